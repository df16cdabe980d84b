/* Reads importance matrices of both forms. */
#include "formats/gguf/imatrix.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/gguf/gguf.h"
#include "lib/base/le.h"
#include "lib/base/text.h"

enum { MAX_NAME = 255, MAX_LAYER_DIGITS = 4 };

static vptq_status add_entry(vptq_imatrix *im, const char *path, const vptq_imatrix_entry *e,
                             vptq_err *err)
{
    bool fresh;
    for (uint32_t i = 0; i < e->n; i++)
        if (!isfinite(e->mean_square[i]) || e->mean_square[i] < 0 ||
            (e->mean && !isfinite(e->mean[i])))
            return vptq_fail(err, VPTQ_E_NUMERIC,
                             "%s: entry '%s': the value of column %" PRIu32 " is not usable",
                             path, e->name, i);
    VPTQ_CHECK(vptq_strmap_add(&im->by_name, e->name, strlen(e->name), (uint32_t)im->count,
                               &fresh, err));
    if (!fresh)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: duplicate entry '%s'", path, e->name);
    im->entries[im->count++] = *e;
    return VPTQ_OK;
}

/* ---- the legacy form ---- */

typedef struct cursor {
    const char *path;
    const uint8_t *at;
    size_t left;
} cursor;

/* Takes a count of at least `min` items of `size` bytes each, which follow in the file. */
static vptq_status take_count(cursor *c, const char *what, int32_t min, size_t size,
                              uint32_t *out, vptq_err *err)
{
    if (c->left < 4)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: the imatrix file ends before its number of %s", c->path, what);
    const int64_t n = (int32_t)(uint32_t)vptq_get_le(c->at, 4);
    c->at += 4;
    c->left -= 4;
    if (n < min || (uint64_t)n * size > c->left)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: the imatrix file has %" PRId64 " %s in its last %zu bytes",
                         c->path, n, what, c->left);
    *out = (uint32_t)n;
    return VPTQ_OK;
}

static vptq_status take_legacy_entry(cursor *c, vptq_imatrix *im, vptq_err *err)
{
    vptq_imatrix_entry e = {.name = NULL};
    uint32_t len = 0, calls = 0;
    VPTQ_CHECK(take_count(c, "bytes of a name", 1, 1, &len, err));
    if (len > MAX_NAME || memchr(c->at, 0, len))
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: entry %zu has an invalid name", c->path,
                         im->count + 1);
    e.name = vptq_arena_strndup(&im->arena, (const char *)c->at, len, err);
    if (!e.name)
        return VPTQ_E_NOMEM;
    c->at += len;
    c->left -= len;
    VPTQ_CHECK(take_count(c, "calls", 0, 0, &calls, err));
    VPTQ_CHECK(take_count(c, "values", 1, 4, &e.n, err));
    float *mean = vptq_arena_alloc(&im->arena, e.n, sizeof *mean, err);
    if (!mean)
        return VPTQ_E_NOMEM;
    memcpy(mean, c->at, e.n * sizeof *mean);
    c->at += e.n * sizeof *mean;
    c->left -= e.n * sizeof *mean;
    for (uint32_t i = 0; calls && i < e.n; i++)
        mean[i] = (float)((double)mean[i] / calls);
    e.mean_square = mean;
    return add_entry(im, c->path, &e, err);
}

static vptq_status read_legacy(const char *path, vptq_mem *mem, vptq_imatrix *im, vptq_err *err)
{
    enum { MIN_ENTRY_BYTES = 4 + 1 + 4 + 4 + 4 };
    vptq_status st = VPTQ_OK;
    vptq_map map = {0};
    uint32_t count = 0;
    VPTQ_TRY(vptq_map_open(path, &map, err));
    cursor c = {path, map.data, map.size};
    VPTQ_TRY(take_count(&c, "entries", 1, MIN_ENTRY_BYTES, &count, err));
    im->entries = vptq_arena_alloc(&im->arena, count, sizeof *im->entries, err);
    if (!im->entries)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(vptq_strmap_init(&im->by_name, mem, count, err));
    while (im->count < count)
        VPTQ_TRY(take_legacy_entry(&c, im, err));
out:
    vptq_map_release(&map);
    return st;
}

/* ---- GGUF ---- */

/* Finds tensor NAME + suffix, one row of n floats; *t = NULL if there is none. */
static vptq_status find_part(const vptq_gguf *g, const vptq_imatrix_entry *e,
                             const char *suffix, uint64_t n, const vptq_tensor **t,
                             vptq_err *err)
{
    char name[2 * MAX_NAME];
    snprintf(name, sizeof name, "%s%s", e->name, suffix);
    *t = vptq_tensor_find(&g->set, name);
    if (!*t ||
        ((*t)->type == VPTQ_F32 && vptq_tensor_rows(*t) == 1 && vptq_tensor_cols(*t) == n))
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_SHAPE,
                     "%s: tensor '%s' is not a row of %" PRIu64 " numbers of type F32", g->path,
                     name, n);
}

/* Divides a sum over tokens by their number. */
static vptq_status read_mean(vptq_imatrix *im, const vptq_tensor *sum, double tokens,
                             const float **mean, vptq_err *err)
{
    const size_t n = vptq_tensor_cols(sum);
    float *x = vptq_arena_alloc(&im->arena, n, sizeof *x, err);
    if (!x)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(vptq_tensor_read(sum, 0, 1, x, err));
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((double)x[i] / tokens);
    *mean = x;
    return VPTQ_OK;
}

/* Reads the entry of tensor NAME.in_sum2. */
static vptq_status read_entry(const vptq_gguf *g, const vptq_tensor *sum2, size_t name_len,
                              vptq_imatrix *im, vptq_err *err)
{
    const vptq_tensor *counts, *sum;
    vptq_imatrix_entry e = {.n = (uint32_t)vptq_tensor_cols(sum2)};
    float tokens = 0;
    if (vptq_tensor_rows(sum2) != 1)
        return VPTQ_OK; /* experts */
    if (sum2->type != VPTQ_F32 || vptq_tensor_cols(sum2) > UINT32_MAX)
        return vptq_fail(err, VPTQ_E_SHAPE, "%s: tensor '%s' is not a vector of type F32",
                         g->path, sum2->name);
    e.name = vptq_arena_strndup(&im->arena, sum2->name, name_len, err);
    if (!e.name)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(find_part(g, &e, ".counts", 1, &counts, err));
    VPTQ_CHECK(find_part(g, &e, ".in_sum", e.n, &sum, err));
    if (counts)
        VPTQ_CHECK(vptq_tensor_read(counts, 0, 1, &tokens, err));
    if (!(tokens >= 1 && tokens < 0x1p53F))
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: tensor '%s.counts' is missing or not a number of tokens", g->path,
                         e.name);
    e.tokens = (uint64_t)lround((double)tokens);
    VPTQ_CHECK(read_mean(im, sum2, (double)tokens, &e.mean_square, err));
    if (sum)
        VPTQ_CHECK(read_mean(im, sum, (double)tokens, &e.mean, err));
    return add_entry(im, g->path, &e, err);
}

static vptq_status read_gguf(const char *path, vptq_mem *mem, vptq_imatrix *im, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_gguf g;
    VPTQ_TRY(vptq_gguf_open(path, mem, &g, err));
    im->entries = vptq_arena_alloc(&im->arena, g.set.count, sizeof *im->entries, err);
    if (!im->entries)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(vptq_strmap_init(&im->by_name, mem, g.set.count, err));
    for (size_t i = 0; i < g.set.count; i++) {
        const vptq_tensor *t = &g.set.tensors[i];
        const size_t name_len = vptq_text_before(t->name, ".in_sum2");
        if (name_len)
            VPTQ_TRY(read_entry(&g, t, name_len, im, err));
    }
    if (im->count == 0)
        st = vptq_fail(err, VPTQ_E_FORMAT,
                       "%s: is not an importance matrix: it has no tensors NAME.in_sum2", path);
out:
    vptq_gguf_release(&g);
    return st;
}

/* ---- both ---- */

vptq_status vptq_imatrix_read(const char *path, vptq_mem *mem, vptq_imatrix *im, vptq_err *err)
{
    *im = (vptq_imatrix){.count = 0};
    vptq_arena_init(&im->arena, mem);
    vptq_status st =
        vptq_gguf_is(path) ? read_gguf(path, mem, im, err) : read_legacy(path, mem, im, err);
    if (st)
        vptq_imatrix_release(im);
    return st;
}

void vptq_imatrix_release(vptq_imatrix *im)
{
    vptq_strmap_release(&im->by_name);
    vptq_arena_release(&im->arena);
    *im = (vptq_imatrix){.count = 0};
}

const vptq_imatrix_entry *vptq_imatrix_find(const vptq_imatrix *im, uint32_t layer,
                                            vptq_input input)
{
    static const char *const names[VPTQ_INPUT_DENSE][3] = {
        [VPTQ_INPUT_QKV] = {"attn_q", "attn_k", "attn_v"},
        [VPTQ_INPUT_O] = {"attn_output"},
        [VPTQ_INPUT_UP] = {"ffn_up", "ffn_gate"},
        [VPTQ_INPUT_DOWN] = {"ffn_down"}};
    char name[64];
    uint32_t found;
    for (int i = 0; i < 3 && names[input][i]; i++) {
        int len =
            snprintf(name, sizeof name, "blk.%" PRIu32 ".%s.weight", layer, names[input][i]);
        if (vptq_strmap_get(&im->by_name, name, (size_t)len, &found))
            return &im->entries[found];
    }
    return NULL;
}

bool vptq_imatrix_layer(const char *name, uint32_t *layer)
{
    if (strncmp(name, "blk.", 4) != 0)
        return false;
    const size_t digits = strspn(name + 4, "0123456789");
    *layer = 0;
    for (size_t i = 0; i < digits && i <= MAX_LAYER_DIGITS; i++)
        *layer = *layer * 10 + (uint32_t)(name[4 + i] - '0');
    return digits > 0 && digits <= MAX_LAYER_DIGITS && name[4 + digits] == '.';
}
