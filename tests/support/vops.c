/* One call of every op, with arguments that fit the arrays of a vops. */
#include "tests/support/vops.h"

#include <stdlib.h>
#include <string.h>

#include "tests/emu/emu.h"
#include "tests/support/vmatrix.h"
#include "tests/support/vtest.h"

/* The largest arrays are N x N. */
enum { N = 32, V = 4, K = 8 };

static void *on_device(vops *r, const void *host, size_t bytes)
{
    vptq_err err;
    void *p = NULL;
    assert_ok(r->dev.ops->alloc(r->dev.state, 1, bytes, &p, &err), &err);
    assert_ok(r->dev.ops->upload(r->dev.state, p, host, bytes, &err), &err);
    return p;
}

void vops_open(vops *r)
{
    vptq_err err;
    static const uint32_t zeros[N * N];
    double unit[N * N] = {0};
    *r = (vops){.ctx = {.threads = 1}};
    assert_ok(vptq_device_open(&r->ctx, "emu", &r->dev, &err), &err);
    assert_ptr_equal(r->dev.ops, vptq_backend_emu()); /* this reference also links it */
    r->host = malloc(N * N * sizeof *r->host);
    assert_non_null(r->host);
    for (size_t i = 0; i < N * N; i++)
        r->host[i] = 1;
    for (size_t i = 0; i < N; i++)
        unit[i * N + i] = 4;
    r->x = on_device(r, r->host, N * N * sizeof *r->x);
    r->y = on_device(r, r->host, N * N * sizeof *r->y);
    r->d = on_device(r, unit, sizeof unit);
    r->idx = on_device(r, zeros, sizeof zeros);
    assert_ok(r->dev.ops->sync(r->dev.state, &err), &err);
}

void vops_close(vops *r)
{
    void *const arrays[] = {r->x, r->y, r->d, r->idx};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        r->dev.ops->release(r->dev.state, arrays[i]);
    vptq_device_close(&r->dev);
    free(r->host);
}

/* ---- memory ---- */

static vptq_status run_alloc(vops *r, vptq_err *err)
{
    void *p = NULL;
    const vptq_status st = r->dev.ops->alloc(r->dev.state, N, sizeof(float), &p, err);
    r->dev.ops->release(r->dev.state, p);
    return st;
}

static vptq_status run_upload(vops *r, vptq_err *err)
{
    return r->dev.ops->upload(r->dev.state, r->y, r->host, N * sizeof(float), err);
}

static vptq_status run_download(vops *r, vptq_err *err)
{
    return r->dev.ops->download(r->dev.state, r->host, r->y, N * sizeof(float), err);
}

static vptq_status run_sync(vops *r, vptq_err *err)
{
    return r->dev.ops->sync(r->dev.state, err);
}

/* ---- linear algebra ---- */

static vptq_status run_gemm(vops *r, vptq_err *err)
{
    const vptq_gemm_args g = {.m = N,
                              .n = N,
                              .k = N,
                              .a = r->x,
                              .b = r->x,
                              .c = r->y,
                              .lda = N,
                              .ldb = N,
                              .ldc = N,
                              .trans_b = true,
                              .alpha = 1};
    return r->dev.ops->gemm(r->dev.state, &g, err);
}

static vptq_status run_syrk_add(vops *r, vptq_err *err)
{
    double *sum = r->d + N * (N - 1);
    return r->dev.ops->syrk_add(
        r->dev.state,
        &(vptq_syrk_args){.tokens = N, .n = N - 1, .x = r->x, .ldx = N, .h = r->d, .sum = sum},
        err);
}

static vptq_status run_channel_range(vops *r, vptq_err *err)
{
    return r->dev.ops->channel_range(r->dev.state,
                                     &(vptq_channel_args){.tokens = N,
                                                          .n = N - 1,
                                                          .x = r->x,
                                                          .ldx = N,
                                                          .abs_sum = r->d,
                                                          .min = r->y,
                                                          .max = r->y + N},
                                     err);
}

static vptq_status run_potrf(vops *r, vptq_err *err)
{
    return r->dev.ops->potrf(r->dev.state, N, r->d, N, NULL, err);
}

static vptq_status run_trtri(vops *r, vptq_err *err)
{
    return r->dev.ops->trtri(r->dev.state, N, r->d, N, err);
}

static vptq_status run_quad_trace(vops *r, vptq_err *err)
{
    double trace;
    return r->dev.ops->quad_trace(
        r->dev.state,
        &(vptq_quad_trace_args){
            .m = N, .n = N, .e = r->x, .lde = N, .h = r->d, .ldh = N, .trace = &trace},
        err);
}

/* ---- clustering ---- */

static vptq_assign_args assign_of(const vops *r)
{
    return (vptq_assign_args){
        .n = N, .v = V, .k = K, .x = r->x, .centroids = r->x, .idx = r->idx};
}

static vptq_status run_assign(vops *r, vptq_err *err)
{
    const vptq_assign_args a = assign_of(r);
    return r->dev.ops->assign(r->dev.state, &a, err);
}

static vptq_status run_reassign(vops *r, vptq_err *err)
{
    const vptq_assign_args a = assign_of(r);
    return r->dev.ops->reassign(r->dev.state, &a, err);
}

static vptq_status run_accumulate(vops *r, vptq_err *err)
{
    double objective;
    return r->dev.ops->accumulate(r->dev.state,
                                  &(vptq_accumulate_args){.n = N,
                                                          .v = V,
                                                          .k = K,
                                                          .x = r->x,
                                                          .idx = r->idx,
                                                          .centroids = r->x,
                                                          .sums = r->d,
                                                          .weights = r->d + K * V,
                                                          .objective = &objective},
                                  err);
}

/* The numbers to draw with are zeros of d. */
static vptq_status run_plus_plus(vops *r, vptq_err *err)
{
    return r->dev.ops->plus_plus(
        r->dev.state,
        &(vptq_plus_plus_args){
            .m = N, .v = V, .k = 3, .x = r->x, .w = r->x, .u = r->d + 1, .centroids = r->y},
        err);
}

/* ---- vector quantization ---- */

static vptq_status run_with_matrix(vops *r, vops_matrix_fn fn, vptq_err *err)
{
    const vptq_vq_shape shape = {
        .out = N, .in = N, .v = V, .k = K, .groups = 1, .group_size = N};
    vmatrix q;
    vptq_matrix *m = NULL;
    vmatrix_make(&q, &shape);
    vptq_status st = r->dev.ops->matrix_open(r->dev.state, &q.q, &m, err);
    if (!st)
        st = fn(r, m, err);
    r->dev.ops->matrix_close(r->dev.state, m);
    vmatrix_free(&q);
    return st;
}

static vptq_status dequant(vops *r, const vptq_matrix *m, vptq_err *err)
{
    return r->dev.ops->vq_dequant(r->dev.state, m, 0, N, r->y, N, err);
}

static vptq_gemv_args products(const vops *r, size_t n)
{
    return (vptq_gemv_args){.n = n, .x = r->x, .y = r->y, .ldx = N, .ldy = N};
}

static vptq_status few_products(vops *r, const vptq_matrix *m, vptq_err *err)
{
    const vptq_gemv_args g = products(r, 2);
    return r->dev.ops->vq_gemv(r->dev.state, m, &g, err);
}

/* More tokens than the kernel for few tokens accepts. */
static vptq_status many_products(vops *r, const vptq_matrix *m, vptq_err *err)
{
    const vptq_gemv_args g = products(r, N);
    return r->dev.ops->vq_gemv(r->dev.state, m, &g, err);
}

static vptq_status run_vq_gemv_tiles(vops *r, vptq_err *err)
{
    setenv("VPTQ_CUDA_GEMV", "gemm-dequant", 1);
    const vptq_status st = run_with_matrix(r, many_products, err);
    unsetenv("VPTQ_CUDA_GEMV");
    return st;
}

static vptq_status run_gemv(vops *r, vptq_err *err)
{
    const vptq_gemv_args g = products(r, 2);
    return r->dev.ops->gemv(r->dev.state, N, N, VPTQ_F32, r->x, &g, err);
}

/* A few tokens, and as many as take tiles.  Codes and scales are any numbers. */
static vptq_status run_uniform_gemv(vops *r, vptq_err *err)
{
    const vptq_gemv_args few = products(r, 2), many = products(r, N);
    const vptq_uniform w = {.shape = {.out = N, .in = N, .bits = 4, .group_size = N},
                            .codes = r->idx,
                            .scales = r->x};
    VPTQ_CHECK(r->dev.ops->uniform_gemv(r->dev.state, &w, VPTQ_F16, &few, err));
    return r->dev.ops->uniform_gemv(r->dev.state, &w, VPTQ_F16, &many, err);
}

static vptq_status run_library_gemv(vops *r, vptq_err *err)
{
    const vptq_gemv_args g = products(r, 1);
    return r->dev.ops->library_gemv(r->dev.state, N, N, r->x, &g, err);
}

static vptq_status run_with_index(vops *r, vops_index_fn fn, vptq_err *err)
{
    const vptq_codebooks codebooks = {
        .v = V, .k = K, .k_res = K, .beam = 2, .centroids = r->x, .res_centroids = r->x};
    vptq_search_index *f = NULL;
    vptq_status st = r->dev.ops->search_index_open(r->dev.state, &codebooks, &f, err);
    if (!st && fn)
        st = fn(r, f, err);
    r->dev.ops->search_index_close(r->dev.state, f);
    return st;
}

static vptq_status run_search_index_open(vops *r, vptq_err *err)
{
    return run_with_index(r, NULL, err);
}

static vptq_status search(vops *r, const vptq_search_index *f, vptq_err *err)
{
    const vptq_search_args a = {
        .n = N, .index = f, .x = r->x, .idx = r->idx, .idx_res = r->idx + N};
    return r->dev.ops->search(r->dev.state, &a, err);
}

/* Arrays of C columns in the two halves of x and y. */
enum { C = N / 4 };

/* The arguments that vq_pass and vq_descend share. */
#define COLUMN_ARGS(r, f)                                                                      \
    .cols = C, .rows = N, .index = f, .idx = r->idx, .idx_res = r->idx + N * C, .ldi = N / V,  \
    .ldq = N

static vptq_status pass(vops *r, const vptq_search_index *f, vptq_err *err)
{
    const vptq_pass_args a = {COLUMN_ARGS(r, f),       .z = r->y, .u = r->x, .q = r->y + N * C,
                              .err = r->y + 2 * N * C, .ldz = N,  .ldu = C,  .lde = N};
    return r->dev.ops->vq_pass(r->dev.state, &a, err);
}

static vptq_status descend(vops *r, const vptq_search_index *f, vptq_err *err)
{
    const vptq_descend_args a = {COLUMN_ARGS(r, f),     .g = r->x, .h = r->x, .q = r->y,
                                 .delta = r->y + N * C, .ldg = N,  .ldh = C,  .ldd = N};
    return r->dev.ops->vq_descend(r->dev.state, &a, err);
}

static vptq_status run_vq_descend_output(vops *r, vptq_err *err)
{
    const vptq_descend_output_args a = {.cols = 2,
                                        .rows = N / 2,
                                        .v = V,
                                        .k = K,
                                        .centroids = r->x,
                                        .output = r->x, /* [N / 2, 64] */
                                        .g = r->x,
                                        .h = r->x,
                                        .idx = r->idx,
                                        .q = r->y,
                                        .delta = r->y + N,
                                        .ldg = N / 2,
                                        .ldh = 2,
                                        .ldi = N / 2 / V,
                                        .ldq = N / 2,
                                        .ldd = N / 2};
    return r->dev.ops->vq_descend_output(r->dev.state, &a, err);
}

static vptq_status run_vq_gather(vops *r, vptq_err *err)
{
    const vptq_gather_args a = {.cols = C,
                                .rows = N,
                                .v = V,
                                .k = K,
                                .centroids = r->x,
                                .idx = r->idx,
                                .q = r->y,
                                .ldi = N / V,
                                .ldq = N};
    return r->dev.ops->vq_gather(r->dev.state, &a, err);
}

static vptq_status run_vq_scatter(vops *r, vptq_err *err)
{
    const vptq_scatter_args a = {.cols = C,
                                 .rows = N,
                                 .v = V,
                                 .k = K,
                                 .y = r->x,
                                 .idx = r->idx,
                                 .sums = r->d,
                                 .weights = r->d + K * V,
                                 .ldy = N,
                                 .ldi = N / V};
    return r->dev.ops->vq_scatter(r->dev.state, &a, err);
}

/* ---- arrays (array_ops.h) ---- */

/* Defines run_OP for an op with an args struct. */
#define RUN(op, type, ...)                                                                     \
    static vptq_status run_##op(vops *r, vptq_err *err)                                        \
    {                                                                                          \
        size_t first;                                                                          \
        uint32_t count, at[C];                                                                 \
        double sum, loss[C];                                                                   \
        const type a = {__VA_ARGS__};                                                          \
        (void)first, (void)count, (void)at, (void)sum, (void)loss;                             \
        return r->dev.ops->op(r->dev.state, &a, err);                                          \
    }
RUN(first_outside, vptq_outside_args, .n = N, .x = r->x, .max = 1, .first = &first)
RUN(column_norms, vptq_norms_args, .out = N, .in = N, .w = r->x, .bias = r->d,
    .scale = r->d + N)
RUN(normalize, vptq_normalize_args, .out = N, .in = N, .rows = N, .w = r->x, .order = r->idx,
    .scale = r->x, .bias = r->x, .z = r->y)
RUN(metric, vptq_metric_args, .n = N, .lower = r->x, .order = r->idx, .divisor = 1, .h = r->y,
    .diag = r->d)
RUN(add_packed, vptq_packed_args, .n = N, .rows = N / 2, .x = r->d, .lower = true,
    .packed = r->d + N * N / 2)
RUN(reverse_upper, vptq_upper_args, .n = N, .a = r->d, .u = r->y)
RUN(subtract, vptq_subtract_args, .cols = N, .rows = N, .x = r->x, .y = r->x, .z = r->y,
    .ldx = N, .ldy = N, .ldz = N)
RUN(affine, vptq_affine_args, .cols = N, .rows = N, .valid = C, .x = r->x, .a = r->x, .b = r->x,
    .y = r->y, .ldx = N, .ldy = N)
RUN(column_dots, vptq_dots_args, .cols = C, .rows = N, .x = r->x, .ldx = N, .sums = r->d)
RUN(solve_upper, vptq_solve_args, .cols = C, .rows = N, .u = r->x, .x = r->y, .ldu = N,
    .ldx = N)
RUN(dot, vptq_dot_args, .n = N, .x = r->d, .y = r->d, .sum = &sum)
RUN(cg_step, vptq_cg_step_args, .n = N, .d = r->d, .ad = r->d, .m = r->d, .x = r->d + N,
    .r = r->d + 2 * N, .s = r->d + 3 * N, .rho = &sum)
RUN(cg_turn, vptq_cg_turn_args, .n = N, .s = r->d, .d = r->d + N, .rounded = r->y)
RUN(add_widened, vptq_widen_args, .n = N, .x = r->y, .sum = r->d)
RUN(narrow, vptq_narrow_args, .n = N, .divisor = 2, .x = r->d, .y = r->y)
RUN(add_rounded, vptq_add_args, .n = N, .x = r->d, .y = r->y)
RUN(move_centroids, vptq_move_args, .k = K, .v = V, .sums = r->d, .weights = r->d,
    .centroids = r->y, .before = r->y + N, .moved = &sum, .empty = &count)
RUN(worst_vectors, vptq_worst_args, .n = N, .count = C, .v = V, .k = K, .x = r->y,
    .idx = r->idx, .centroids = r->x, .loss = loss, .at = at)
RUN(uniform_range, vptq_uniform_range_args, .cols = C, .rows = N, .z = r->x, .ldz = N,
    .bits = 4, .storage = VPTQ_F16, .scale = r->y, .zero = (void *)r->idx)
RUN(prune_mask, vptq_prune_mask_args, .cols = C, .rows = N, .z = r->x, .u = r->x, .rank = C,
    .mask = (void *)r->idx, .ldz = N, .ldu = C, .ldm = N)
RUN(uniform_pass, vptq_uniform_pass_args, .cols = C, .rows = N, .z = r->y, .u = r->x, .bits = 4,
    .storage = VPTQ_F16, .scale = r->x, .zero = (void *)r->idx, .codes = (void *)(r->idx + N),
    .err = r->y + N * C, .ldz = N, .ldu = C, .ldc = N, .lde = N)
RUN(quantize_rows, vptq_quantize_rows_args, .rows = C, .cols = N, .x = r->x, .ldx = N,
    .q = (void *)r->idx, .scale = r->y)
RUN(multiply_bytes, vptq_multiply_bytes_args, .rows = C, .out = C, .in = N,
    .q = (const void *)r->idx, .q_scale = r->x, .codes = r->idx + N * C, .scale = r->x,
    .y = r->y, .ldy = C)
RUN(vq_pack, vptq_pack_args, .cols = C, .vector_rows = C, .bits = 5, .idx = r->idx,
    .words = r->idx + N * C, .ldw = C)

static vptq_status run_copy(vops *r, vptq_err *err)
{
    return r->dev.ops->copy(r->dev.state, r->y, r->x, N * sizeof *r->y, err);
}

static vptq_status run_clear(vops *r, vptq_err *err)
{
    return r->dev.ops->clear(r->dev.state, r->y, N * sizeof *r->y, err);
}

/* ---- transformer ---- */

static vptq_status run_embed(vops *r, vptq_err *err)
{
    const void *ids = r->idx;
    return r->dev.ops->embed(
        r->dev.state,
        &(vptq_embed_args){
            .n = 2, .dim = N, .table = r->x, .type = VPTQ_F32, .ids = ids, .out = r->y},
        err);
}

static vptq_status run_rmsnorm(vops *r, vptq_err *err)
{
    return r->dev.ops->rmsnorm(r->dev.state,
                               &(vptq_rmsnorm_args){.n = 2,
                                                    .dim = N,
                                                    .x = r->x,
                                                    .ldx = N,
                                                    .weight = r->x,
                                                    .eps = 1e-5f,
                                                    .y = r->y,
                                                    .ldy = N},
                               err);
}

static vptq_status run_rope(vops *r, vptq_err *err)
{
    return r->dev.ops->rope(r->dev.state,
                            &(vptq_rope_args){.n = 2,
                                              .heads = 2,
                                              .head_dim = N / 2,
                                              .x = r->y,
                                              .ldx = N,
                                              .cos_table = r->x,
                                              .sin_table = r->x},
                            err);
}

static vptq_attention_args attention_of(const vops *r)
{
    return (vptq_attention_args){.n = N,
                                 .heads = 2,
                                 .kv_heads = 1,
                                 .head_dim = N / 2,
                                 .scale = 1,
                                 .q = r->x,
                                 .keys = r->x,
                                 .values = r->x,
                                 .out = r->y,
                                 .ldq = N,
                                 .ldk = N / 2,
                                 .ldv = N / 2,
                                 .ldo = N};
}

static vptq_status run_attention(vops *r, vptq_err *err)
{
    const vptq_attention_args a = attention_of(r);
    return r->dev.ops->attention(r->dev.state, &a, err);
}

static vptq_status run_attention_mass(vops *r, vptq_err *err)
{
    const vptq_attention_args a = attention_of(r);
    return r->dev.ops->attention_mass(r->dev.state, &a, r->d, err);
}

/* One sequence of two rows in page 0. r->d holds its tables, followed by the pool. */
typedef struct paged_rows {
    vptq_kv_rows rows;
    vptq_kv_pool pool;
} paged_rows;

static vptq_status paged_of(vops *r, paged_rows *p, vptq_err *err)
{
    static const uint32_t starts[2] = {0, 2};
    uint32_t *at = (uint32_t *)(void *)r->d;
    const vptq_status st = r->dev.ops->upload(r->dev.state, at, starts, sizeof starts, err);
    *p = (paged_rows){.rows = {.rows = 2,
                               .sequences = 1,
                               .max_rows = 2,
                               .max_tokens = 2,
                               .starts = at,
                               .positions = r->idx,
                               .table = r->idx,
                               .ld_table = 1},
                      .pool = {VPTQ_F16, 1, N / 2, r->d + 8, r->d + 8 + 4 * N}};
    return st;
}

static vptq_status run_rope_rows(vops *r, vptq_err *err)
{
    paged_rows p;
    const vptq_status st = paged_of(r, &p, err);
    return st ? st
              : r->dev.ops->rope_rows(r->dev.state, &p.rows,
                                      &(vptq_rope_args){.heads = 2,
                                                        .head_dim = N / 2,
                                                        .x = r->y,
                                                        .ldx = N,
                                                        .cos_table = r->x,
                                                        .sin_table = r->x},
                                      err);
}

static vptq_status run_kv_store(vops *r, vptq_err *err)
{
    paged_rows p;
    const vptq_status st = paged_of(r, &p, err);
    return st ? st
              : r->dev.ops->kv_store(r->dev.state,
                                     &(vptq_kv_store_args){.rows = &p.rows,
                                                           .pool = &p.pool,
                                                           .keys = r->x,
                                                           .ldk = N,
                                                           .values = r->x,
                                                           .ldv = N},
                                     err);
}

static vptq_status run_attention_paged(vops *r, vptq_err *err)
{
    paged_rows p;
    const vptq_status st = paged_of(r, &p, err);
    const vptq_paged_args a = {.rows = &p.rows,
                               .pool = &p.pool,
                               .heads = 2,
                               .scale = 1,
                               .q = r->x,
                               .out = r->y,
                               .ldq = N,
                               .ldo = N};
    return st ? st : r->dev.ops->attention_paged(r->dev.state, &a, err);
}

static vptq_status run_soft_cap(vops *r, vptq_err *err)
{
    return r->dev.ops->soft_cap(r->dev.state,
                                &(vptq_soft_cap_args){.n = N, .cap = 2, .x = r->y}, err);
}

static vptq_status run_swiglu(vops *r, vptq_err *err)
{
    return r->dev.ops->swiglu(
        r->dev.state,
        &(vptq_swiglu_args){.n = 2, .dim = N, .gate = r->x, .up = r->x, .y = r->y}, err);
}

static vptq_status run_nll(vops *r, vptq_err *err)
{
    const void *targets = r->idx;
    void *states = r->d;
    return r->dev.ops->nll(r->dev.state,
                           &(vptq_nll_args){.n = 2,
                                            .width = N,
                                            .logits = r->x,
                                            .ld = N,
                                            .targets = targets,
                                            .start = true,
                                            .state = states},
                           err);
}

static vptq_status run_sample(vops *r, vptq_err *err)
{
    void *ids = r->idx;
    const vptq_sample_args s = {.n = 2,
                                .vocab = N,
                                .logits = r->x,
                                .ld = N,
                                .temperature = 1,
                                .top_p = 0.5,
                                .u = r->d + 1,
                                .ids = ids};
    return r->dev.ops->sample(r->dev.state, &s, err);
}

/* ---- gradients ---- */

static vptq_status run_attention_grad(vops *r, vptq_err *err)
{
    void *narrow = r->d;
    float *dkeys = narrow;
    const vptq_attention_grad_args a = {.n = N,
                                        .heads = 2,
                                        .kv_heads = 1,
                                        .head_dim = N / 2,
                                        .scale = 1,
                                        .q = r->x,
                                        .out = r->x,
                                        .dout = r->x,
                                        .keys = r->x,
                                        .values = r->x,
                                        .lse = r->x,
                                        .dq = r->y,
                                        .dkeys = dkeys,
                                        .dvalues = dkeys + N * N};
    return r->dev.ops->attention_grad(r->dev.state, &a, err);
}

static vptq_status run_rmsnorm_grad(vops *r, vptq_err *err)
{
    const vptq_rmsnorm_grad_args a = {.n = 2,
                                      .dim = N,
                                      .x = r->x,
                                      .dy = r->x,
                                      .weight = r->x,
                                      .eps = 1e-5f,
                                      .dx = r->y,
                                      .dweight = r->d};
    return r->dev.ops->rmsnorm_grad(r->dev.state, &a, err);
}

static vptq_status run_swiglu_grad(vops *r, vptq_err *err)
{
    const vptq_swiglu_grad_args a = {
        .n = 2, .dim = N, .dy = r->x, .gate = r->y, .up = r->y + 2 * N};
    return r->dev.ops->swiglu_grad(r->dev.state, &a, err);
}

static vptq_status run_kl_grad(vops *r, vptq_err *err)
{
    const vptq_kl_grad_args a = {
        .n = 2, .vocab = N, .logits = r->y, .teacher = r->x, .scale = 1, .loss = r->d};
    return r->dev.ops->kl_grad(r->dev.state, &a, err);
}

/* matrix_open is tested with the ops that use it; alone it does nothing on the device. */
const vops_op vops_all[] = {
    {"alloc", .run = run_alloc},
    {"upload", .run = run_upload},
    {"download", .run = run_download},
    {"sync", .run = run_sync},
    {"gemm", .run = run_gemm},
    {"syrk_add", .run = run_syrk_add},
    {"channel_range", .run = run_channel_range},
    {"potrf", .run = run_potrf},
    {"trtri", .run = run_trtri},
    {"quad_trace", .run = run_quad_trace},
    {"assign", .run = run_assign},
    {"reassign", .run = run_reassign},
    {"accumulate", .run = run_accumulate},
    {"plus_plus", .run = run_plus_plus},
    {"vq_dequant", .with_matrix = dequant},
    {"vq_gemv", .with_matrix = few_products},
    {"vq_gemv of many tokens", .with_matrix = many_products},
    {"vq_gemv through tiles", .run = run_vq_gemv_tiles},
    {"gemv", .run = run_gemv},
    {"uniform_gemv", .run = run_uniform_gemv},
    {"library_gemv", .run = run_library_gemv},
    {"search_index_open", .run = run_search_index_open},
    {"search", .with_index = search},
    {"vq_pass", .with_index = pass},
    {"vq_descend", .with_index = descend},
    {"vq_descend_output", .run = run_vq_descend_output},
    {"vq_gather", .run = run_vq_gather},
    {"vq_scatter", .run = run_vq_scatter},
    {"copy", .run = run_copy},
    {"clear", .run = run_clear},
#define RUN_OP(op) {#op, .run = run_##op},
    VPTQ_ARRAY_OPS(RUN_OP){"embed", .run = run_embed},
    {"rmsnorm", .run = run_rmsnorm},
    {"rope", .run = run_rope},
    {"attention", .run = run_attention},
    {"attention_mass", .run = run_attention_mass},
    {"rope_rows", .run = run_rope_rows},
    {"kv_store", .run = run_kv_store},
    {"attention_paged", .run = run_attention_paged},
    {"swiglu", .run = run_swiglu},
    {"soft_cap", .run = run_soft_cap},
    {"nll", .run = run_nll},
    {"sample", .run = run_sample},
    {"attention_grad", .run = run_attention_grad},
    {"rmsnorm_grad", .run = run_rmsnorm_grad},
    {"swiglu_grad", .run = run_swiglu_grad},
    {"kl_grad", .run = run_kl_grad},
    {.name = NULL},
};

vptq_status vops_run(const vops_op *op, vops *r, vptq_err *err)
{
    if (op->with_matrix)
        return run_with_matrix(r, op->with_matrix, err);
    return op->with_index ? run_with_index(r, op->with_index, err) : op->run(r, err);
}
