/* The ops of array_ops.h on copies of their arrays. */
#include "tests/support/shadow_ops.h"

static void first_outside_arrays(shadow *s, const vptq_outside_args *a, vptq_outside_args *d)
{
    IN(x, a->n);
}
SHADOW_OP(first_outside, vptq_outside_args)

static void column_norms_arrays(shadow *s, const vptq_norms_args *a, vptq_norms_args *d)
{
    IN(w, a->out * a->in);
    OUT(bias, a->in);
    OUT(scale, a->in);
}
SHADOW_OP(column_norms, vptq_norms_args)

static void normalize_arrays(shadow *s, const vptq_normalize_args *a, vptq_normalize_args *d)
{
    IN(w, a->out * a->in);
    IN(order, a->in);
    IN(scale, a->in);
    IN(bias, a->in);
    OUT(z, a->in * a->rows);
}
SHADOW_OP(normalize, vptq_normalize_args)

static void metric_arrays(shadow *s, const vptq_metric_args *a, vptq_metric_args *d)
{
    IN(lower, a->n * (a->n + 1) / 2);
    IN(order, a->n);
    IN(scale, a->n);
    OUT(a, a->n * a->n);
    OUT(h, a->n * a->n);
    OUT(diag, a->n);
}
SHADOW_OP(metric, vptq_metric_args)

static void add_packed_arrays(shadow *s, const vptq_packed_args *a, vptq_packed_args *d)
{
    const size_t n = a->lower ? a->rows * (a->rows + 1) / 2 : a->rows * a->n;
    IN(x, a->rows * a->n);
    OUT(packed, n);
}
SHADOW_OP(add_packed, vptq_packed_args)

static void reverse_upper_arrays(shadow *s, const vptq_upper_args *a, vptq_upper_args *d)
{
    IN(a, a->n * a->n);
    OUT(u, a->n * a->n);
}
SHADOW_OP(reverse_upper, vptq_upper_args)

static void subtract_arrays(shadow *s, const vptq_subtract_args *a, vptq_subtract_args *d)
{
    IN(x, shadow_span(a->cols, a->rows, a->ldx));
    IN(y, shadow_span(a->cols, a->rows, a->ldy));
    OUT(z, shadow_span(a->cols, a->rows, a->ldz));
}
SHADOW_OP(subtract, vptq_subtract_args)

static void affine_arrays(shadow *s, const vptq_affine_args *a, vptq_affine_args *d)
{
    IN(x, shadow_span(a->cols, a->rows, a->ldx));
    IN(a, a->cols);
    IN(b, a->cols);
    OUT(y, shadow_span(a->cols, a->rows, a->ldy));
}
SHADOW_OP(affine, vptq_affine_args)

static void column_dots_arrays(shadow *s, const vptq_dots_args *a, vptq_dots_args *d)
{
    IN(x, shadow_span(a->cols, a->rows, a->ldx));
    IN(y, shadow_span(a->cols, a->rows, a->ldy));
    OUT(sums, a->cols);
}
SHADOW_OP(column_dots, vptq_dots_args)

static void solve_upper_arrays(shadow *s, const vptq_solve_args *a, vptq_solve_args *d)
{
    IN(u, shadow_span(a->cols, a->cols, a->ldu));
    OUT(x, shadow_span(a->cols, a->rows, a->ldx));
}
SHADOW_OP(solve_upper, vptq_solve_args)

static void dot_arrays(shadow *s, const vptq_dot_args *a, vptq_dot_args *d)
{
    IN(x, a->n);
    IN(y, a->n);
}
SHADOW_OP(dot, vptq_dot_args)

static void cg_step_arrays(shadow *s, const vptq_cg_step_args *a, vptq_cg_step_args *d)
{
    IN(d, a->n);
    IN(ad, a->n);
    IN(m, a->n);
    OUT(x, a->n);
    OUT(r, a->n);
    OUT(s, a->n);
}
SHADOW_OP(cg_step, vptq_cg_step_args)

static void cg_turn_arrays(shadow *s, const vptq_cg_turn_args *a, vptq_cg_turn_args *d)
{
    IN(s, a->n);
    OUT(d, a->n);
    OUT(rounded, a->n);
}
SHADOW_OP(cg_turn, vptq_cg_turn_args)

static void add_widened_arrays(shadow *s, const vptq_widen_args *a, vptq_widen_args *d)
{
    IN(x, a->n);
    OUT(sum, a->n);
}
SHADOW_OP(add_widened, vptq_widen_args)

static void narrow_arrays(shadow *s, const vptq_narrow_args *a, vptq_narrow_args *d)
{
    IN(x, a->n);
    OUT(y, a->n);
}
SHADOW_OP(narrow, vptq_narrow_args)

static void add_rounded_arrays(shadow *s, const vptq_add_args *a, vptq_add_args *d)
{
    IN(x, a->n);
    OUT(y, a->n);
}
SHADOW_OP(add_rounded, vptq_add_args)

static void move_centroids_arrays(shadow *s, const vptq_move_args *a, vptq_move_args *d)
{
    IN(sums, (size_t)a->k * a->v);
    IN(weights, a->k);
    OUT(centroids, (size_t)a->k * a->v);
    OUT(before, (size_t)a->k * a->v);
}
SHADOW_OP(move_centroids, vptq_move_args)

static void worst_vectors_arrays(shadow *s, const vptq_worst_args *a, vptq_worst_args *d)
{
    IN(x, a->n * a->v);
    IN(w, a->n);
    IN(idx, a->n);
    IN(centroids, (size_t)a->k * a->v);
}
SHADOW_OP(worst_vectors, vptq_worst_args)

static void uniform_range_arrays(shadow *s, const vptq_uniform_range_args *a,
                                 vptq_uniform_range_args *d)
{
    IN(z, shadow_span(a->cols, a->rows, a->ldz));
    OUT(scale, a->rows);
    OUT(zero, a->rows);
}
SHADOW_OP(uniform_range, vptq_uniform_range_args)

static void prune_mask_arrays(shadow *s, const vptq_prune_mask_args *a, vptq_prune_mask_args *d)
{
    IN(z, shadow_span(a->cols, a->rows, a->ldz));
    IN(u, shadow_span(a->cols, a->cols, a->ldu));
    OUT(mask, shadow_span(a->cols, a->rows, a->ldm));
}
SHADOW_OP(prune_mask, vptq_prune_mask_args)

static void uniform_pass_arrays(shadow *s, const vptq_uniform_pass_args *a,
                                vptq_uniform_pass_args *d)
{
    OUT(z, shadow_span(a->cols, a->rows, a->ldz));
    IN(u, shadow_span(a->cols, a->cols, a->ldu));
    IN(scale, a->rows);
    IN(zero, a->rows);
    OUT(codes, shadow_span(a->cols, a->rows, a->ldc));
    OUT(err, shadow_span(a->cols, a->rows, a->lde));
    IN(mask, shadow_span(a->cols, a->rows, a->ldm));
}
SHADOW_OP(uniform_pass, vptq_uniform_pass_args)

static void quantize_rows_arrays(shadow *s, const vptq_quantize_rows_args *a,
                                 vptq_quantize_rows_args *d)
{
    IN(x, shadow_span(a->rows, a->cols, a->ldx));
    OUT(q, a->rows * VPTQ_BYTES_ROW(a->cols));
    OUT(scale, a->rows);
}
SHADOW_OP(quantize_rows, vptq_quantize_rows_args)

static void multiply_bytes_arrays(shadow *s, const vptq_multiply_bytes_args *a,
                                  vptq_multiply_bytes_args *d)
{
    IN(q, a->rows * VPTQ_BYTES_ROW(a->in));
    IN(q_scale, a->rows);
    IN(codes, a->out * VPTQ_BYTES_ROW(a->in) / 4);
    IN(scale, a->out);
    IN(bias, a->out);
    OUT(y, shadow_span(a->rows, a->out, a->ldy));
}
SHADOW_OP(multiply_bytes, vptq_multiply_bytes_args)

static void vq_pack_arrays(shadow *s, const vptq_pack_args *a, vptq_pack_args *d)
{
    IN(idx, a->cols * a->vector_rows);
    IN(idx_res, a->cols * a->vector_rows);
    IN(column, a->cols);
    OUT(words, shadow_span(a->vector_rows, vptq_bits_words(a->cols, a->bits), a->ldw));
}
SHADOW_OP(vq_pack, vptq_pack_args)
