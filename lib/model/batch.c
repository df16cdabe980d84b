/* Batched generation: page pool, groups of rows from many sequences, prefill and decode. */
#include "lib/model/batch.h"

#include <string.h>

#include "lib/base/rng.h"
#include "lib/base/text.h"
#include "lib/model/forward_internal.h"

typedef struct sequence {
    bool live;
    uint32_t number; /* counts added sequences from 0; gives turn and random numbers */
    size_t count;    /* ids, prompt included */
    size_t prompt;   /* ids of the prompt */
    size_t stored;   /* ids with keys and values in the cache */
    size_t pages;
} sequence;

struct vptq_batch {
    const vptq_model *m;
    vptq_device *dev;
    vptq_forward *f;
    vptq_batch_options o;
    size_t table_ld; /* pages of a sequence of full length */
    size_t pages, page_bytes, free_count;
    size_t head_rows; /* maximum rows of `last` */
    uint32_t added;

    vptq_arena arena;    /* of the arrays in host memory */
    sequence *sequences; /* [o.sequences] */
    int32_t *ids;        /* [o.sequences, o.length] */
    uint32_t *table;     /* [o.sequences, table_ld] */
    uint32_t *free_page; /* [pages], a stack of free_count page numbers */
    void *keys, *values; /* device: [layers, pages] of page_bytes */

    /* The current group. */
    size_t rows, members;
    size_t *member;      /* [o.sequences] sequences in the order of their rows */
    size_t *member_rows; /* [o.sequences] */
    int32_t *row_ids;    /* [max_rows] */
    uint32_t *index;     /* host: starts, positions, table, later the last rows */
    uint32_t *device_index;
    float *last;   /* device: [head_rows, hidden], hidden states of the last rows */
    double *u;     /* [VPTQ_BATCH_HEAD_ROWS] random numbers */
    int32_t *next; /* [VPTQ_BATCH_HEAD_ROWS] */
};

/* ---- sizes ---- */

static size_t pages_of(size_t tokens)
{
    return (tokens + VPTQ_KV_PAGE - 1) / VPTQ_KV_PAGE;
}

static size_t max_rows(const vptq_batch_options *o)
{
    return o->sequences > VPTQ_FORWARD_ROWS ? o->sequences : VPTQ_FORWARD_ROWS;
}

static size_t head_rows(const vptq_batch_options *o)
{
    return o->sequences < VPTQ_BATCH_HEAD_ROWS ? o->sequences : VPTQ_BATCH_HEAD_ROWS;
}

/* Rows of the largest group within the limits of the options. */
static size_t group_rows(const vptq_batch_options *o)
{
    size_t tokens;
    if (!vptq_size_mul(o->sequences, o->length, &tokens) || tokens > max_rows(o))
        return max_rows(o);
    return tokens;
}

/* Numbers that describe a group: starts, positions, table, last rows. */
static size_t index_count(const vptq_batch_options *o)
{
    return (o->sequences + 1) + o->sequences + o->sequences * pages_of(o->length) +
           o->sequences;
}

static vptq_status pool_size(const vptq_model *m, const vptq_batch_options *o, size_t *pages,
                             size_t *page_bytes, size_t *bytes, vptq_err *err)
{
    const vptq_model_desc *d = m->desc;
    size_t tokens = o->tokens;
    const size_t width = (size_t)d->kv_heads * d->head_dim * vptq_dtype_get(o->kv)->bytes;
    *page_bytes = width * VPTQ_KV_PAGE;
    /* The last page of every sequence may be partly used. */
    if ((tokens || vptq_size_mul(o->sequences, o->length, &tokens)) &&
        vptq_size_add(tokens / VPTQ_KV_PAGE, o->sequences, pages) && *pages <= UINT32_MAX &&
        vptq_size_mul(*pages, *page_bytes, bytes) && vptq_size_mul(*bytes, d->layers, bytes) &&
        vptq_size_mul(*bytes, 2, bytes))
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_NOMEM, "a cache of %zu sequences of %zu tokens is too large",
                     o->sequences, o->length);
}

static vptq_status check_options(const vptq_batch_options *o, vptq_err *err)
{
    if (o->sequences == 0 || o->length == 0)
        return vptq_fail(
            err, VPTQ_E_ARG,
            "batch of %zu sequences of %zu tokens: both numbers must be at least 1",
            o->sequences, o->length);
    if (o->kv != VPTQ_F16 && o->kv != VPTQ_F32)
        return vptq_fail(err, VPTQ_E_ARG, "the cache has type %s, expected F16 or F32",
                         vptq_dtype_get(o->kv)->name);
    return VPTQ_OK;
}

vptq_status vptq_batch_plan(const vptq_model *m, const vptq_batch_options *o,
                            vptq_batch_memory *memory, vptq_err *err)
{
    const vptq_model_desc *d = m->desc;
    size_t pages, page_bytes, ids;
    VPTQ_CHECK(check_options(o, err));
    VPTQ_CHECK(pool_size(m, o, &pages, &page_bytes, &memory->cache, err));
    if (!vptq_size_mul(o->sequences * sizeof(int32_t), o->length, &ids))
        return vptq_fail(err, VPTQ_E_NOMEM, "%zu sequences of %zu tokens are too large",
                         o->sequences, o->length);
    memory->working = vptq_forward_bytes(m, o->length, group_rows(o)) +
                      head_rows(o) * ((size_t)d->vocab + d->hidden) * sizeof(float) + ids +
                      2 * index_count(o) * sizeof(uint32_t) + pages * sizeof(uint32_t);
    return VPTQ_OK;
}

/* ---- open and close ---- */

static vptq_status device_alloc(vptq_batch *b, size_t count, size_t size, void **p,
                                vptq_err *err)
{
    return b->dev->ops->alloc(b->dev->state, count, size, p, err);
}

static vptq_status alloc_host(vptq_batch *b, vptq_err *err)
{
    vptq_arena *a = &b->arena;
    const size_t n = b->o.sequences, rows = max_rows(&b->o);
    b->sequences = vptq_arena_zalloc(a, n, sizeof *b->sequences, err);
    b->ids = b->sequences ? vptq_arena_alloc(a, n, b->o.length * sizeof *b->ids, err) : NULL;
    b->table = b->ids ? vptq_arena_alloc(a, n, b->table_ld * sizeof *b->table, err) : NULL;
    b->free_page = b->table ? vptq_arena_alloc(a, b->pages, sizeof *b->free_page, err) : NULL;
    b->member = b->free_page ? vptq_arena_alloc(a, n, sizeof *b->member, err) : NULL;
    b->member_rows = b->member ? vptq_arena_alloc(a, n, sizeof *b->member_rows, err) : NULL;
    b->row_ids = b->member_rows ? vptq_arena_alloc(a, rows, sizeof *b->row_ids, err) : NULL;
    b->index =
        b->row_ids ? vptq_arena_alloc(a, index_count(&b->o), sizeof *b->index, err) : NULL;
    b->u = b->index ? vptq_arena_alloc(a, VPTQ_BATCH_HEAD_ROWS, sizeof *b->u, err) : NULL;
    b->next = b->u ? vptq_arena_alloc(a, VPTQ_BATCH_HEAD_ROWS, sizeof *b->next, err) : NULL;
    if (!b->next)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < b->pages; i++) /* page 0 is taken first */
        b->free_page[i] = (uint32_t)(b->pages - 1 - i);
    b->free_count = b->pages;
    return VPTQ_OK;
}

static vptq_status alloc_device(vptq_batch *b, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t pages = b->pages * b->m->desc->layers;
    void *p = NULL;
    VPTQ_TRY(device_alloc(b, pages, b->page_bytes, &b->keys, err));
    VPTQ_TRY(device_alloc(b, pages, b->page_bytes, &b->values, err));
    VPTQ_TRY(device_alloc(b, index_count(&b->o), sizeof *b->device_index, &p, err));
    b->device_index = p;
    VPTQ_TRY(device_alloc(b, b->head_rows, b->m->desc->hidden * sizeof *b->last, &p, err));
    b->last = p;
out:
    if (st)
        vptq_err_context(err, "cache of %zu sequences of %zu tokens", b->o.sequences,
                         b->o.length);
    return st;
}

vptq_status vptq_batch_open(const vptq_model *m, vptq_device *dev, const vptq_batch_options *o,
                            vptq_batch **out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    size_t bytes;
    *out = NULL;
    vptq_batch *b = vptq_mem_alloc(dev->ctx->mem, 1, sizeof *b, err);
    if (!b)
        return VPTQ_E_NOMEM;
    *b = (vptq_batch){.m = m,
                      .dev = dev,
                      .o = *o,
                      .table_ld = pages_of(o->length),
                      .head_rows = head_rows(o)};
    vptq_arena_init(&b->arena, dev->ctx->mem);
    VPTQ_TRY(check_options(o, err));
    VPTQ_TRY(pool_size(m, o, &b->pages, &b->page_bytes, &bytes, err));
    VPTQ_TRY(alloc_host(b, err));
    VPTQ_TRY(alloc_device(b, err));
    VPTQ_TRY(vptq_forward_open(m, dev, o->length, &b->f, err));
    VPTQ_TRY(vptq_forward_keep(b->f, group_rows(o), b->head_rows, err));
out:
    if (st)
        vptq_batch_close(b);
    else
        *out = b;
    return st;
}

void vptq_batch_close(vptq_batch *b)
{
    if (!b)
        return;
    const vptq_backend *ops = b->dev->ops;
    vptq_mem *mem = b->dev->ctx->mem;
    vptq_forward_close(b->f);
    ops->release(b->dev->state, b->last);
    ops->release(b->dev->state, b->device_index);
    ops->release(b->dev->state, b->values);
    ops->release(b->dev->state, b->keys);
    vptq_arena_release(&b->arena);
    vptq_mem_free(mem, b);
}

/* ---- sequences ---- */

vptq_status vptq_batch_add(vptq_batch *b, const int32_t *ids, size_t n, size_t *out,
                           vptq_err *err)
{
    size_t s = 0;
    while (s < b->o.sequences && b->sequences[s].live)
        s++;
    if (s == b->o.sequences)
        return vptq_fail(err, VPTQ_E_ARG, "the batch is full: it holds at most %zu sequence%s",
                         b->o.sequences, vptq_plural(b->o.sequences, "", "s"));
    if (n == 0 || n >= b->o.length)
        return vptq_fail(err, VPTQ_E_ARG, "the prompt has %zu tokens, expected 1 to %zu", n,
                         b->o.length - 1);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= b->m->desc->vocab)
            return vptq_fail(
                err, VPTQ_E_ARG,
                "token %zu of the prompt is %d, outside the model's vocabulary of %u", i,
                ids[i], b->m->desc->vocab);
    memcpy(b->ids + s * b->o.length, ids, n * sizeof *ids);
    b->sequences[s] = (sequence){.live = true, .number = b->added++, .count = n, .prompt = n};
    *out = s;
    return VPTQ_OK;
}

const int32_t *vptq_batch_ids(const vptq_batch *b, size_t s, size_t *count)
{
    VPTQ_BUG_IF(s >= b->o.sequences || !b->sequences[s].live);
    *count = b->sequences[s].count;
    return b->ids + s * b->o.length;
}

void vptq_batch_end(vptq_batch *b, size_t s)
{
    VPTQ_BUG_IF(s >= b->o.sequences || !b->sequences[s].live);
    sequence *q = &b->sequences[s];
    while (q->pages)
        b->free_page[b->free_count++] = b->table[s * b->table_ld + --q->pages];
    q->live = false;
}

size_t vptq_batch_free_pages(const vptq_batch *b)
{
    return b->free_count;
}

/* Takes pages from the pool until sequence s can store `rows` more tokens. */
static vptq_status grow_sequence(vptq_batch *b, size_t s, size_t rows, vptq_err *err)
{
    sequence *q = &b->sequences[s];
    while (q->pages < pages_of(q->stored + rows)) {
        if (!b->free_count)
            return vptq_fail(err, VPTQ_E_NOMEM, "the cache of %zu pages of %d tokens is full",
                             b->pages, VPTQ_KV_PAGE);
        b->table[s * b->table_ld + q->pages++] = b->free_page[--b->free_count];
    }
    return VPTQ_OK;
}

/* ---- group ---- */

static void start_group(vptq_batch *b)
{
    b->rows = b->members = 0;
}

/* Adds the next `rows` tokens of sequence s to the group. */
static vptq_status join_group(vptq_batch *b, size_t s, size_t rows, vptq_err *err)
{
    VPTQ_CHECK(grow_sequence(b, s, rows, err));
    memcpy(b->row_ids + b->rows, b->ids + s * b->o.length + b->sequences[s].stored,
           rows * sizeof *b->row_ids);
    b->member[b->members] = s;
    b->member_rows[b->members++] = rows;
    b->rows += rows;
    return VPTQ_OK;
}

/* Uploads the description of the group's rows; *rows then points to it in device memory. */
static vptq_status describe_rows(vptq_batch *b, vptq_kv_rows *rows, vptq_err *err)
{
    const size_t n = b->members;
    uint32_t *starts = b->index, *positions = starts + n + 1, *table = positions + n;
    *rows = (vptq_kv_rows){.rows = b->rows, .sequences = n};
    starts[0] = 0;
    for (size_t i = 0; i < n; i++) {
        const sequence *q = &b->sequences[b->member[i]];
        const size_t taken = b->member_rows[i], tokens = q->stored + taken;
        starts[i + 1] = starts[i] + (uint32_t)taken;
        positions[i] = (uint32_t)q->stored;
        rows->max_rows = taken > rows->max_rows ? taken : rows->max_rows;
        rows->max_tokens = tokens > rows->max_tokens ? tokens : rows->max_tokens;
    }
    rows->ld_table = pages_of(rows->max_tokens);
    for (size_t i = 0; i < n; i++) { /* entries after a sequence's last page are not read */
        const size_t s = b->member[i], pages = b->sequences[s].pages;
        memset(table + i * rows->ld_table, 0, rows->ld_table * sizeof *table);
        memcpy(table + i * rows->ld_table, b->table + s * b->table_ld, pages * sizeof *table);
    }
    rows->starts = b->device_index;
    rows->positions = rows->starts + n + 1;
    rows->table = rows->positions + n;
    return b->dev->ops->upload(b->dev->state, b->device_index, b->index,
                               (2 * n + 1 + n * rows->ld_table) * sizeof *b->index, err);
}

static vptq_status run_blocks(vptq_batch *b, vptq_err *err)
{
    const vptq_model_desc *d = b->m->desc;
    const size_t layer_bytes = b->pages * b->page_bytes;
    vptq_kv_rows rows;
    vptq_forward_pages pages = {
        .rows = &rows,
        .pool = {.type = b->o.kv, .kv_heads = d->kv_heads, .head_dim = d->head_dim}};
    VPTQ_CHECK(describe_rows(b, &rows, err));
    VPTQ_CHECK(vptq_forward_start(b->f, b->row_ids, b->rows, err));
    for (uint32_t l = 0; l < d->layers; l++) {
        pages.pool.keys = (char *)b->keys + l * layer_bytes;
        pages.pool.values = (char *)b->values + l * layer_bytes;
        VPTQ_CHECK(vptq_forward_pages_block(b->f, l, b->rows, &pages, err));
    }
    return VPTQ_OK;
}

/* Chooses b->next of n <= VPTQ_BATCH_HEAD_ROWS members; rows [n]: their last rows in the group.
 */
static vptq_status choose_tokens(vptq_batch *b, const size_t *members, const uint32_t *rows,
                                 size_t n, vptq_err *err)
{
    const vptq_backend *ops = b->dev->ops;
    const size_t hidden = b->m->desc->hidden;
    int32_t *device_rows = (int32_t *)(void *)b->device_index;
    const vptq_forward_sampling sampling = {
        .temperature = b->o.temperature, .top_p = b->o.top_p, .u = b->u};
    for (size_t i = 0; i < n; i++) {
        const sequence *q = &b->sequences[members[i]];
        const vptq_rng rng = vptq_rng_make(b->o.seed, q->number, 0, VPTQ_RNG_GENERATE);
        b->u[i] = vptq_rng_uniform(&rng, q->count - q->prompt);
    }
    VPTQ_CHECK(ops->upload(b->dev->state, device_rows, rows, n * sizeof *rows, err));
    VPTQ_CHECK(ops->embed(b->dev->state,
                          &(vptq_embed_args){.n = n,
                                             .dim = hidden,
                                             .table = b->f->hidden,
                                             .type = VPTQ_F32,
                                             .ids = device_rows,
                                             .out = b->last},
                          err));
    return vptq_forward_choose(b->f, n, b->last, &sampling, b->next, err);
}

/* Adds the chosen tokens. */
static vptq_status add_tokens(vptq_batch *b, const size_t *members, const uint32_t *rows,
                              size_t n, vptq_err *err)
{
    VPTQ_CHECK(choose_tokens(b, members, rows, n, err));
    for (size_t i = 0; i < n; i++) {
        sequence *q = &b->sequences[members[i]];
        if (b->next[i] < 0)
            return vptq_fail(err, VPTQ_E_NUMERIC, "%s: the model's output is not a number",
                             b->m->ckpt.path);
        b->ids[members[i] * b->o.length + q->count++] = b->next[i];
    }
    return VPTQ_OK;
}

/* Runs the group; each member whose ids are all stored then gets one more token. */
static vptq_status run_group(vptq_batch *b, vptq_err *err)
{
    size_t ready = 0, end = 0;
    VPTQ_CHECK(run_blocks(b, err));
    uint32_t *last = b->index; /* reused: its content has been uploaded and read */
    for (size_t i = 0; i < b->members; i++) {
        sequence *q = &b->sequences[b->member[i]];
        end += b->member_rows[i];
        q->stored += b->member_rows[i];
        if (q->stored < q->count)
            continue;
        b->member[ready] = b->member[i];
        last[ready++] = (uint32_t)(end - 1);
    }
    for (size_t i = 0, n; i < ready; i += n) {
        n = ready - i < VPTQ_BATCH_HEAD_ROWS ? ready - i : VPTQ_BATCH_HEAD_ROWS;
        VPTQ_CHECK(add_tokens(b, b->member + i, last + i, n, err));
    }
    return VPTQ_OK;
}

/* ---- times ---- */

/* Makes a group of sequences whose tokens are any, and whose cache is 0. */
static vptq_status join_any(vptq_batch *b, const vptq_batch_group *g, vptq_err *err)
{
    const size_t bytes = b->pages * b->m->desc->layers * b->page_bytes;
    start_group(b);
    VPTQ_CHECK(b->dev->ops->clear(b->dev->state, b->keys, bytes, err));
    VPTQ_CHECK(b->dev->ops->clear(b->dev->state, b->values, bytes, err));
    for (size_t s = 0; s < g->sequences; s++) {
        int32_t *ids = b->ids + s * b->o.length + g->stored;
        for (size_t i = 0; i < g->rows; i++)
            ids[i] = (int32_t)((s * g->rows + i) % b->m->desc->vocab);
        b->sequences[s] = (sequence){.live = true, .number = (uint32_t)s, .stored = g->stored};
        VPTQ_CHECK(join_group(b, s, g->rows, err));
    }
    return VPTQ_OK;
}

vptq_status vptq_batch_time(vptq_batch *b, const vptq_batch_group *g, double *blocks,
                            double *head, vptq_err *err)
{
    const vptq_backend *ops = b->dev->ops;
    VPTQ_CHECK(join_any(b, g, err));
    VPTQ_CHECK(ops->sync(b->dev->state, err));
    const double start = vptq_seconds();
    VPTQ_CHECK(run_blocks(b, err));
    VPTQ_CHECK(ops->sync(b->dev->state, err));
    const double middle = vptq_seconds();
    for (size_t s = 0, n; s < g->sequences; s += n) {
        n = g->sequences - s < VPTQ_BATCH_HEAD_ROWS ? g->sequences - s
                                                    : (size_t)VPTQ_BATCH_HEAD_ROWS;
        for (size_t i = 0; i < n; i++)
            b->index[i] = (uint32_t)((s + i + 1) * g->rows - 1);
        VPTQ_CHECK(choose_tokens(b, b->member + s, b->index, n, err));
    }
    *blocks = middle - start;
    *head = vptq_seconds() - middle;
    for (size_t s = 0; s < g->sequences; s++)
        vptq_batch_end(b, s);
    return VPTQ_OK;
}

/* ---- steps ---- */

static bool in_prompt(const sequence *q)
{
    return q->live && q->stored < q->prompt;
}

/* Finds the unfinished prompt with the lowest number of at least `from`; o.sequences if none is
 * left. */
static size_t next_in_prompt(const vptq_batch *b, uint32_t from)
{
    size_t first = b->o.sequences;
    for (size_t s = 0; s < b->o.sequences; s++) {
        const sequence *q = &b->sequences[s];
        if (in_prompt(q) && q->number >= from &&
            (first == b->o.sequences || q->number < b->sequences[first].number))
            first = s;
    }
    return first;
}

vptq_status vptq_batch_prefill(vptq_batch *b, size_t *left, vptq_err *err)
{
    start_group(b);
    for (uint32_t from = 0; b->rows < VPTQ_FORWARD_ROWS;) {
        const size_t s = next_in_prompt(b, from);
        if (s == b->o.sequences)
            break;
        const sequence *q = &b->sequences[s];
        const size_t free_rows = VPTQ_FORWARD_ROWS - b->rows, rest = q->prompt - q->stored;
        VPTQ_CHECK(join_group(b, s, rest < free_rows ? rest : free_rows, err));
        from = q->number + 1;
    }
    if (b->rows)
        VPTQ_CHECK(run_group(b, err));
    *left = 0;
    for (size_t s = 0; s < b->o.sequences; s++)
        *left += in_prompt(&b->sequences[s]);
    return VPTQ_OK;
}

vptq_status vptq_batch_decode(vptq_batch *b, vptq_err *err)
{
    start_group(b);
    for (size_t s = 0; s < b->o.sequences; s++) {
        const sequence *q = &b->sequences[s];
        if (!q->live || in_prompt(q))
            continue;
        if (q->count == b->o.length)
            return vptq_fail(err, VPTQ_E_ARG,
                             "a sequence already has %zu tokens, the maximum length",
                             b->o.length);
        VPTQ_CHECK(join_group(b, s, 1, err));
    }
    if (b->rows)
        VPTQ_CHECK(run_group(b, err));
    return VPTQ_OK;
}
