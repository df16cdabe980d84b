/* Tests the ops on a paged cache: ref against plain attention on the same numbers, other
 * backends against ref, and independence of sequences. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/half.h"
#include "tests/support/devices.h"

enum { MAX_SEQUENCES = 8 };

typedef struct paged_case {
    size_t heads, kv_heads, head_dim, window;
    size_t sequences, rows[MAX_SEQUENCES], positions[MAX_SEQUENCES];
    vptq_dtype type;
    float cap;
} paged_case;

/* The arrays of a case: tokens of all sequences; the last rows[s] of each are queries. */
typedef struct problem {
    const paged_case *c;
    uint32_t starts[MAX_SEQUENCES + 1], positions[MAX_SEQUENCES],
        all[MAX_SEQUENCES + 1]; /* all: tokens, summed up */
    size_t max_rows, max_tokens, pages;
    float *q, *keys, *values; /* [rows, ..]; [tokens, ..] of all sequences */
} problem;

static problem problem_of(const paged_case *c)
{
    problem p = {.c = c};
    for (size_t s = 0; s < c->sequences; s++) {
        const size_t tokens = c->positions[s] + c->rows[s];
        p.starts[s + 1] = p.starts[s] + (uint32_t)c->rows[s];
        p.positions[s] = (uint32_t)c->positions[s];
        p.all[s + 1] = p.all[s] + (uint32_t)tokens;
        p.max_rows = c->rows[s] > p.max_rows ? c->rows[s] : p.max_rows;
        p.max_tokens = tokens > p.max_tokens ? tokens : p.max_tokens;
        p.pages += (tokens + VPTQ_KV_PAGE - 1) / VPTQ_KV_PAGE;
    }
    const size_t wide = c->heads * c->head_dim, narrow = c->kv_heads * c->head_dim;
    p.q = vtest_normals(p.starts[c->sequences] * (wide + 1), 1);
    p.keys = vtest_normals(p.all[c->sequences] * (narrow + 2), 2);
    p.values = vtest_normals(p.all[c->sequences] * narrow, 3);
    for (size_t i = 0; i < p.starts[c->sequences] * (wide + 1); i++)
        p.q[i] *= 3; /* spread of a trained model's scores */
    return p;
}

static void problem_free(problem *p)
{
    free(p->q);
    free(p->keys);
    free(p->values);
}

/* Assigns pages to the sequences in turn, starting with the last page of the pool, so that
 * neighboring pages of a sequence are not neighbors in the pool. */
static uint32_t *table_of(const problem *p, size_t ld)
{
    uint32_t *table = vtest_alloc(p->c->sequences * ld, sizeof *table);
    uint32_t next = (uint32_t)p->pages;
    for (size_t page = 0; page < ld; page++)
        for (size_t s = 0; s < p->c->sequences; s++)
            if (page * VPTQ_KV_PAGE < p->all[s + 1] - p->all[s])
                table[s * ld + page] = next--;
    return table; /* page 0 stays unused */
}

/* Fills unused slots with NaN, which must not reach the results. */
static void *empty_pool(const problem *p)
{
    const size_t bytes = (p->pages + 1) * VPTQ_KV_PAGE * p->c->kv_heads * p->c->head_dim *
                         vptq_dtype_get(p->c->type)->bytes;
    void *pool = malloc(bytes);
    assert_non_null(pool);
    memset(pool, 0xff, bytes);
    return pool;
}

/* Stores all tokens before the queries, in two calls. */
static void store_before(const vptq_device *dev, const problem *p, vptq_kv_rows rows,
                         const vptq_kv_pool *pool)
{
    const size_t narrow = pool->kv_heads * pool->head_dim;
    vptq_err err;
    for (size_t s = 0; s < p->c->sequences; s++) {
        const uint32_t end = p->positions[s], cut[3] = {0, end / 3, end};
        for (size_t part = 0; part < 2; part++) {
            const uint32_t starts[2] = {0, cut[part + 1] - cut[part]};
            const vptq_kv_rows one = {.rows = starts[1],
                                      .sequences = 1,
                                      .max_rows = starts[1],
                                      .max_tokens = cut[part + 1],
                                      .starts = starts,
                                      .positions = &cut[part],
                                      .table = rows.table + s * rows.ld_table,
                                      .ld_table = rows.ld_table};
            const size_t at = p->all[s] + cut[part];
            if (starts[1])
                assert_ok(dev->ops->kv_store(
                              dev->state,
                              &(vptq_kv_store_args){.rows = &one,
                                                    .pool = pool,
                                                    .keys = p->keys + at * (narrow + 2),
                                                    .ldk = narrow + 2,
                                                    .values = p->values + at * narrow,
                                                    .ldv = narrow},
                              &err),
                          &err);
        }
    }
}

static void run_paged(const vptq_device *dev, const void *arg, void *out)
{
    const problem *p = arg;
    const paged_case *c = p->c;
    const size_t wide = c->heads * c->head_dim, narrow = c->kv_heads * c->head_dim;
    const size_t ld = (p->max_tokens + VPTQ_KV_PAGE - 1) / VPTQ_KV_PAGE + 1;
    uint32_t *table = table_of(p, ld);
    const vptq_kv_pool pool = {c->type, c->kv_heads, c->head_dim, empty_pool(p), empty_pool(p)};
    const vptq_kv_rows rows = {.rows = p->starts[c->sequences],
                               .sequences = c->sequences,
                               .max_rows = p->max_rows,
                               .max_tokens = p->max_tokens,
                               .starts = p->starts,
                               .positions = p->positions,
                               .table = table,
                               .ld_table = ld};
    float *keys = vtest_alloc(rows.rows * narrow, sizeof *keys);
    float *values = vtest_alloc(rows.rows * (narrow + 3), sizeof *values);
    vptq_err err;
    for (size_t s = 0; s < c->sequences; s++)
        for (size_t r = 0; r < c->rows[s]; r++) {
            const size_t from = p->all[s] + c->positions[s] + r, to = p->starts[s] + r;
            memcpy(keys + to * narrow, p->keys + from * (narrow + 2), narrow * sizeof *keys);
            memcpy(values + to * (narrow + 3), p->values + from * narrow,
                   narrow * sizeof *values);
        }
    store_before(dev, p, rows, &pool);
    assert_ok(dev->ops->kv_store(dev->state,
                                 &(vptq_kv_store_args){.rows = &rows,
                                                       .pool = &pool,
                                                       .keys = keys,
                                                       .ldk = narrow,
                                                       .values = values,
                                                       .ldv = narrow + 3},
                                 &err),
              &err);
    const vptq_paged_args a = {.rows = &rows,
                               .pool = &pool,
                               .heads = c->heads,
                               .window = c->window,
                               .scale = (float)(1 / sqrt((double)c->head_dim)),
                               .cap = c->cap,
                               .q = p->q,
                               .out = out,
                               .ldq = wide + 1,
                               .ldo = wide};
    assert_ok(dev->ops->attention_paged(dev->state, &a, &err), &err);
    free(keys);
    free(values);
    free(pool.keys);
    free(pool.values);
    free(table);
}

/* The attention op of ref, sequence by sequence, over keys and values rounded to the type. */
static void check_plain(const problem *p, const float *got)
{
    const paged_case *c = p->c;
    const size_t wide = c->heads * c->head_dim, narrow = c->kv_heads * c->head_dim;
    const size_t rows = p->starts[c->sequences], tokens = p->all[c->sequences];
    float *want = vtest_alloc(rows * wide, sizeof *want);
    float *keys = vtest_alloc(tokens * (narrow + 2), sizeof *keys);
    float *values = vtest_alloc(tokens * narrow, sizeof *values);
    devices_one d;
    vptq_err err;
    for (size_t i = 0; i < tokens * (narrow + 2); i++)
        keys[i] = vptq_round_to(c->type, p->keys[i]);
    for (size_t i = 0; i < tokens * narrow; i++)
        values[i] = vptq_round_to(c->type, p->values[i]);
    devices_open(&d, "ref", VPTQ_SIMD_NONE, 1);
    for (size_t s = 0; s < c->sequences; s++) {
        const vptq_attention_args a = {.n = c->rows[s],
                                       .pos0 = c->positions[s],
                                       .heads = c->heads,
                                       .kv_heads = c->kv_heads,
                                       .head_dim = c->head_dim,
                                       .window = c->window,
                                       .scale = (float)(1 / sqrt((double)c->head_dim)),
                                       .cap = c->cap,
                                       .q = p->q + p->starts[s] * (wide + 1),
                                       .keys = keys + p->all[s] * (narrow + 2),
                                       .values = values + p->all[s] * narrow,
                                       .out = want + p->starts[s] * wide,
                                       .ldq = wide + 1,
                                       .ldk = narrow + 2,
                                       .ldv = narrow,
                                       .ldo = wide};
        assert_ok(d.dev.ops->attention(d.dev.state, &a, &err), &err);
    }
    devices_close(&d);
    assert_same_f32(got, want, rows * wide);
    free(want);
    free(keys);
    free(values);
}

/* Whether the case is small enough for the emulator. */
static bool emulated(const problem *p)
{
    return p->starts[p->c->sequences] * p->max_tokens * p->c->heads * p->c->head_dim <= 1 << 22;
}

static const paged_case cases[] = {
    {1, 1, 1, 0, 1, {1}, {0}, VPTQ_F32, 0},
    {4, 2, 6, 0, 2, {2, 1}, {0, 31}, VPTQ_F16, 0},
    {9, 3, 64, 0, 3, {1, 1, 1}, {0, 300, 32}, VPTQ_F16, 0},
    {9, 3, 64, 0, 3, {1, 70, 3}, {1100, 0, 63}, VPTQ_F16, 0},
    {9, 3, 64, 0, 2, {33, 1}, {511, 512}, VPTQ_F32, 0},
    {8, 1, 128, 0, 2, {1, 5}, {600, 20}, VPTQ_F16, 0},
    {4, 4, 32, 7, 4, {1, 1, 40, 2}, {3, 700, 30, 64}, VPTQ_F32, 0},
    {6, 2, 24, 512, 3, {1, 1, 130}, {1023, 1024, 517}, VPTQ_F16, 0},
    {5, 1, 17, 100, 3, {1, 1, 9}, {400, 0, 260}, VPTQ_F16, 0},
    {10, 2, 80, 1, 3, {1, 300, 1}, {0, 0, 65}, VPTQ_F16, 0},
    {9, 3, 64, 0, 3, {1, 70, 3}, {1100, 0, 63}, VPTQ_F16, 2},
    {5, 1, 17, 100, 3, {1, 1, 9}, {400, 0, 260}, VPTQ_F32, 5},
    /* on a GPU only static and dynamic shared memory
       together exceed 48 KB */
    {1, 1, 1024, 0, 1, {1}, {40}, VPTQ_F16, 0}};

static void test_paged(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        problem p = problem_of(&cases[i]);
        const size_t count = p.starts[cases[i].sequences] * cases[i].heads * cases[i].head_dim;
        float *out = vtest_alloc(count, sizeof *out);
        /* As for the op attention: NMSE (10 * 2^-24)^2 for scores of size 10, times 8. */
        const devices_op op = {run_paged, &p, count, sizeof(float), 0x1p-38};
        (emulated(&p) ? devices_check_emu : devices_check)(&op, out);
        check_plain(&p, out);
        free(out);
        problem_free(&p);
    }
}

/* The rows of a sequence have the same bits alone and together with others. */
static void alone_and_among(void *arg, const vptq_device *dev, bool is_ref)
{
    (void)arg;
    (void)is_ref;
    const paged_case *c = &cases[3];
    problem p = problem_of(c);
    const size_t wide = c->heads * c->head_dim, narrow = c->kv_heads * c->head_dim;
    float *all = vtest_alloc(p.starts[c->sequences] * wide, sizeof *all);
    run_paged(dev, &p, all);
    for (size_t s = 0; s < c->sequences; s++) {
        const paged_case one = {c->heads,     c->kv_heads,       c->head_dim, c->window, 1,
                                {c->rows[s]}, {c->positions[s]}, c->type,     c->cap};
        problem alone = problem_of(&one);
        float *out = vtest_alloc(c->rows[s] * wide, sizeof *out);
        memcpy(alone.q, p.q + p.starts[s] * (wide + 1),
               c->rows[s] * (wide + 1) * sizeof(float));
        memcpy(alone.keys, p.keys + p.all[s] * (narrow + 2),
               alone.all[1] * (narrow + 2) * sizeof(float));
        memcpy(alone.values, p.values + p.all[s] * narrow,
               alone.all[1] * narrow * sizeof(float));
        run_paged(dev, &alone, out);
        assert_same_f32(out, all + p.starts[s] * wide, c->rows[s] * wide);
        free(out);
        problem_free(&alone);
    }
    free(all);
    problem_free(&p);
}

static void test_sequences_are_independent(void **state)
{
    (void)state;
    devices_each_emu(alone_and_among, NULL);
}

/* ---- rope_rows ---- */

typedef struct rope_case {
    const float *x, *cosine, *sine;
} rope_case;

enum {
    ROPE_HEADS = 3,
    ROPE_DIM = 22,
    ROTATED = 16,
    ROPE_ROWS = 9,
    ROPE_LD = ROPE_HEADS * ROPE_DIM + 1
};
static const uint32_t rope_starts[] = {0, 1, 8, 9}, rope_positions[] = {40, 3, 0};

static void run_rope(const vptq_device *dev, const void *arg, void *out)
{
    const rope_case *c = arg;
    const vptq_kv_rows rows = {.rows = ROPE_ROWS,
                               .sequences = 3,
                               .max_rows = 7,
                               .max_tokens = 41,
                               .starts = rope_starts,
                               .positions = rope_positions};
    vptq_err err;
    memcpy(out, c->x, ROPE_ROWS * ROPE_LD * sizeof(float));
    assert_ok(dev->ops->rope_rows(dev->state, &rows,
                                  &(vptq_rope_args){.heads = ROPE_HEADS,
                                                    .head_dim = ROPE_DIM,
                                                    .rotated = ROTATED,
                                                    .x = out,
                                                    .ldx = ROPE_LD,
                                                    .cos_table = c->cosine,
                                                    .sin_table = c->sine},
                                  &err),
              &err);
}

static void test_rope_rows(void **state)
{
    (void)state;
    enum { HALF = ROTATED / 2, TOKENS = 41, N = ROPE_ROWS * ROPE_LD };
    float *x = vtest_normals(N, 4), *cosine = vtest_normals(TOKENS * HALF, 5);
    float *sine = vtest_normals(TOKENS * HALF, 6), *got = vtest_alloc(N, sizeof *got);
    const rope_case c = {x, cosine, sine};
    const devices_op op = {run_rope, &c, N, sizeof(float), 0x1p-45};
    devices_check_emu(&op, got);
    for (size_t s = 0; s < 3; s++)
        for (size_t r = rope_starts[s]; r < rope_starts[s + 1]; r++)
            for (size_t h = 0; h < ROPE_HEADS; h++)
                for (size_t i = 0; i < HALF; i++) {
                    const size_t at = (rope_positions[s] + r - rope_starts[s]) * HALF + i;
                    float *to = x + r * ROPE_LD + h * ROPE_DIM + i;
                    const double a = (double)to[0], b = (double)to[HALF];
                    const double cs = (double)cosine[at], sn = (double)sine[at];
                    to[0] = (float)(a * cs - b * sn);
                    to[HALF] = (float)(b * cs + a * sn);
                }
    assert_same_f32(got, x, N);
    free(x);
    free(cosine);
    free(sine);
    free(got);
}

VTEST_MAIN(cmocka_unit_test(test_paged), cmocka_unit_test(test_sequences_are_independent),
           cmocka_unit_test(test_rope_rows))
