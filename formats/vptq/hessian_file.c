/* Reads and writes the files of a Hessian directory. */
#include "formats/vptq/hessian_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/text.h"

static const char tokens_key[] = "tokens", kind_key[] = "kind", windows_key[] = "windows";
enum { MAX_TENSORS = 6 }; /* that are written */
static const char unknown[] = "unknown", sum_key[] = "xxh3";

static const char *const weights_names[] = {"plain", "sink", "attention", "guided"};

const char *vptq_token_weights_name(vptq_token_weights w)
{
    return weights_names[w];
}

vptq_token_weights vptq_token_weights_find(const char *name, size_t len)
{
    int w = 0;
    while (w < VPTQ_WEIGHTS_COUNT && !vptq_text_is(name, len, weights_names[w]))
        w++;
    return (vptq_token_weights)w;
}

void vptq_hessian_file_name(char name[64], uint32_t layer, const char *input)
{
    snprintf(name, 64, "layer_%03u_%s.safetensors", layer, input);
}

static vptq_tensor vector(const char *name, size_t n, const float *x)
{
    return (vptq_tensor){.name = name,
                         .type = VPTQ_F32,
                         .dims = 1,
                         .shape = {n},
                         .data = (const uint8_t *)x,
                         .bytes = n * sizeof *x};
}

/* Checksum of `sorted` and of the metadata kind, tokens and windows, those that there are. */
static void checksum(const vptq_tensor *sorted, size_t count, const vptq_metadata_list *meta,
                     char hex[VPTQ_SAFETENSORS_SUM])
{
    static const char *const keys[] = {kind_key, tokens_key, windows_key};
    vptq_metadata covered[3];
    size_t n = 0;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        covered[n] = (vptq_metadata){keys[i], vptq_metadata_find(meta, keys[i])};
        n += covered[n].value != NULL;
    }
    vptq_safetensors_sum(sorted, count, covered, n, hex);
}

vptq_status vptq_hessian_file_write(const char *path, const vptq_hessian_data *h, vptq_err *err)
{
    const bool term = h->kind != VPTQ_WEIGHTS_PLAIN;
    const size_t triangle = vptq_triangle(h->n);
    char tokens[24], windows[24];
    snprintf(tokens, sizeof tokens, "%llu", (unsigned long long)h->tokens);
    snprintf(windows, sizeof windows, "%llu", (unsigned long long)h->windows);
    char sum[VPTQ_SAFETENSORS_SUM];
    vptq_tensor tensors[MAX_TENSORS] = {h->diagonal ? vector("diagonal", h->n, h->values)
                                                    : vector("hessian", triangle, h->values),
                                        vector("mean", h->n, h->mean)};
    size_t count = 2;
    if (h->abs_mean) {
        tensors[count++] = vector("abs_mean", h->n, h->abs_mean);
        tensors[count++] = vector("min", h->n, h->min);
        tensors[count++] = vector("max", h->n, h->max);
    }
    if (h->extra_name)
        tensors[count++] = vector(h->extra_name, triangle, h->extra);
    vptq_metadata plain[] = {{tokens_key, h->tokens ? tokens : unknown}, {sum_key, sum}};
    vptq_metadata weighted[] = {{kind_key, vptq_token_weights_name(h->kind)},
                                {tokens_key, tokens},
                                {windows_key, windows},
                                {sum_key, sum}};
    const vptq_metadata_list meta = {term ? weighted : plain, term ? 4 : 2};
    vptq_tensor sorted[MAX_TENSORS];
    memcpy(sorted, tensors, sizeof sorted);
    qsort(sorted, count, sizeof *sorted, vptq_tensor_by_name);
    checksum(sorted, count, &meta, sum);
    return vptq_safetensors_save(path, tensors, count, meta.items, meta.count, err);
}

/* Only a term has a kind. */
static vptq_status parse_kind(const char *path, const vptq_metadata_list *meta,
                              vptq_hessian_file *h, vptq_err *err)
{
    const char *text = vptq_metadata_find(meta, kind_key);
    if (!text)
        return VPTQ_OK;
    h->kind = vptq_token_weights_find(text, strlen(text));
    if (h->kind == VPTQ_WEIGHTS_PLAIN || h->kind == VPTQ_WEIGHTS_COUNT)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: metadata '%s' is '%.100s', expected sink, attention or guided",
                         path, kind_key, text);
    return vptq_metadata_count(path, meta, windows_key, &h->windows, err);
}

/* The number of tokens may be unknown for a Hessian, but not for a term. */
static vptq_status parse_tokens(const char *path, const vptq_metadata_list *meta,
                                vptq_hessian_file *h, vptq_err *err)
{
    const char *text = vptq_metadata_find(meta, tokens_key);
    if (text && strcmp(text, unknown) == 0 && !vptq_metadata_find(meta, kind_key))
        return VPTQ_OK;
    return vptq_metadata_count(path, meta, tokens_key, &h->tokens, err);
}

static vptq_status require_vector(const vptq_tensor_set *set, const char *name, size_t n,
                                  const vptq_tensor **out, vptq_err *err)
{
    VPTQ_CHECK(vptq_tensor_need(set, name, 0, n, out, err));
    if ((*out)->type != VPTQ_F32)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: tensor '%s' is %s, expected F32",
                         (*out)->file, name, vptq_dtype_get((*out)->type)->name);
    return VPTQ_OK;
}

/* A file without a checksum is refused: nothing that writes Hessians leaves it out. */
static vptq_status verify(const char *path, const vptq_tensor_set *set,
                          const vptq_metadata_list *meta, vptq_err *err)
{
    char sum[VPTQ_SAFETENSORS_SUM];
    const char *recorded = vptq_metadata_find(meta, sum_key);
    if (!recorded)
        return vptq_fail(err, VPTQ_E_CHECKSUM,
                         "%s: has no checksum (metadata '%s'), so damage could not be seen; "
                         "collect or import it again",
                         path, sum_key);
    checksum(set->tensors, set->count, meta, sum);
    return vptq_safetensors_check_sum(path, sum, recorded, err);
}

/* Takes n from the mean; `expect` 0 = any. */
static vptq_status find_size(const char *path, const vptq_tensor_set *set, uint32_t expect,
                             uint32_t *n, vptq_err *err)
{
    const vptq_tensor *mean = vptq_tensor_find(set, "mean");
    uint64_t found = mean && mean->dims == 1 ? mean->shape[0] : 0;
    if (!mean)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: tensor 'mean' is missing", path);
    if (found == 0 || found > UINT32_MAX)
        return vptq_fail(err, VPTQ_E_SHAPE,
                         "%s: tensor 'mean' is not a vector of 1 to 2^32 - 1 numbers", path);
    if (expect && found != expect)
        return vptq_fail(err, VPTQ_E_SHAPE, "%s: the Hessian has %llu columns, expected %u",
                         path, (unsigned long long)found, expect);
    *n = (uint32_t)found;
    return VPTQ_OK;
}

/* Sets all three vectors, or none if the file has none. */
static vptq_status read_range(vptq_hessian_file *h, vptq_err *err)
{
    const struct {
        const char *name;
        const float **out;
    } all[] = {{"abs_mean", &h->abs_mean}, {"min", &h->min}, {"max", &h->max}};
    enum { COUNT = sizeof all / sizeof *all };
    const vptq_tensor *t;
    bool has = false;
    for (size_t i = 0; i < COUNT; i++)
        has = has || vptq_tensor_find(&h->set, all[i].name);
    for (size_t i = 0; has && i < COUNT; i++) {
        VPTQ_CHECK(require_vector(&h->set, all[i].name, h->n, &t, err));
        *all[i].out = vptq_tensor_aligned(t, &h->set.arena, err);
        if (!*all[i].out)
            return VPTQ_E_NOMEM;
    }
    return VPTQ_OK;
}

vptq_status vptq_hessian_file_read(const char *path, uint32_t expect_n, vptq_mem *mem,
                                   vptq_hessian_file *h, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_metadata_list meta;
    const vptq_tensor *values, *mean;
    *h = (vptq_hessian_file){0};
    vptq_tensor_set_init(&h->set, mem);
    VPTQ_TRY(vptq_safetensors_read(path, &h->set, &meta, err));
    VPTQ_TRY(vptq_tensor_set_finish(&h->set, err));
    VPTQ_TRY(find_size(path, &h->set, expect_n, &h->n, err));
    VPTQ_TRY(parse_tokens(path, &meta, h, err));
    VPTQ_TRY(parse_kind(path, &meta, h, err));
    VPTQ_TRY(require_vector(&h->set, "mean", h->n, &mean, err));
    const bool diagonal = vptq_tensor_find(&h->set, "diagonal") && !h->kind;
    if (diagonal && vptq_tensor_find(&h->set, "hessian"))
        VPTQ_TRY(vptq_fail(err, VPTQ_E_FORMAT,
                           "%s: has both tensors 'hessian' and 'diagonal', expected one",
                           path));
    VPTQ_TRY(diagonal ? require_vector(&h->set, "diagonal", h->n, &values, err)
                      : require_vector(&h->set, "hessian", vptq_triangle(h->n), &values, err));
    h->mean = vptq_tensor_aligned(mean, &h->set.arena, err);
    const float *x = h->mean ? vptq_tensor_aligned(values, &h->set.arena, err) : NULL;
    if (!x)
        VPTQ_TRY(VPTQ_E_NOMEM);
    *(diagonal ? &h->diagonal : &h->lower) = x;
    if (!h->kind)
        VPTQ_TRY(read_range(h, err));
    VPTQ_TRY(verify(path, &h->set, &meta, err));
out:
    if (st)
        vptq_hessian_file_release(h);
    return st;
}

vptq_status vptq_hessian_file_expand(vptq_hessian_file *h, vptq_err *err)
{
    float *lower = vptq_arena_zalloc(&h->set.arena, vptq_triangle(h->n), sizeof *lower, err);
    if (!lower)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < h->n; i++)
        lower[i * (i + 1) / 2 + i] = h->diagonal[i];
    h->lower = lower;
    return VPTQ_OK;
}

void vptq_hessian_file_release(vptq_hessian_file *h)
{
    vptq_tensor_set_release(&h->set);
    *h = (vptq_hessian_file){0};
}

static vptq_status unusable(const char *path, const char *what, size_t row, size_t column,
                            float x, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_NUMERIC,
                     "%s: row %zu, column %zu of the %s is %g, expected a finite number below "
                     "1e24",
                     path, row, column, what, (double)x);
}

/* Column j of the range. */
static vptq_status check_range(const vptq_hessian_file *h, const char *path, size_t j,
                               vptq_err *err)
{
    if (!vptq_hessian_usable(h->abs_mean[j]))
        return unusable(path, "abs_mean", 0, j, h->abs_mean[j], err);
    if (!vptq_hessian_usable(h->min[j]))
        return unusable(path, "min", 0, j, h->min[j], err);
    if (!vptq_hessian_usable(h->max[j]))
        return unusable(path, "max", 0, j, h->max[j], err);
    if (h->abs_mean[j] < 0)
        return vptq_fail(err, VPTQ_E_NUMERIC,
                         "%s: column %zu of abs_mean is %g, expected zero or a positive number",
                         path, j, (double)h->abs_mean[j]);
    if (h->min[j] > h->max[j])
        return vptq_fail(err, VPTQ_E_NUMERIC,
                         "%s: column %zu has a min of %g above its max of %g", path, j,
                         (double)h->min[j], (double)h->max[j]);
    return VPTQ_OK;
}

vptq_status vptq_hessian_file_check(const vptq_hessian_file *h, const char *path, vptq_err *err)
{
    for (size_t row = 0, at = 0; row < h->n; row++) {
        if (h->diagonal && !vptq_hessian_usable(h->diagonal[row]))
            return unusable(path, "diagonal", row, row, h->diagonal[row], err);
        for (size_t column = 0; !h->diagonal && column <= row; column++, at++)
            if (!vptq_hessian_usable(h->lower[at]))
                return unusable(path, "Hessian", row, column, h->lower[at], err);
        if (!vptq_hessian_usable(h->mean[row]))
            return unusable(path, "mean", 0, row, h->mean[row], err);
        if (h->abs_mean)
            VPTQ_CHECK(check_range(h, path, row, err));
    }
    return VPTQ_OK;
}
