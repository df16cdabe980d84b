/* Internal: second moments of the input of a linear layer: H = E[x x^T] (raw, not centred),
 * mean and token count; exact pooling, statistics, and the factor for the column pass. */
#ifndef VPTQ_HESSIAN_HESSIAN_H
#define VPTQ_HESSIAN_HESSIAN_H

#include "formats/model_desc.h"
#include "formats/vptq/hessian_file.h"
#include "hessian/total.h"
#include "lib/backend/backend.h"
#include "lib/vptq.h"

/* sum x x^T (lower triangle), sum x and sum |x| in double, minimum and maximum of x; in device
 * memory. */
typedef struct vptq_hessian_sum {
    vptq_device *dev;
    uint32_t n;
    uint64_t tokens;
    bool term;  /* set after init: sums windows of a term, without a range */
    bool clear; /* nothing was added to the chunk: its arrays are uninitialized */
    /* of the present chunk (hessian/total.h); the last three in the memory of x */
    double *h; /* [n, n] */
    double *x, *abs_x;
    float *min, *max; /* one rank: of all chunks */
    float *abs_mean;  /* [n] sum |x| divided, on its way to the host */
    vptq_total total; /* the packed lower triangle, then x and abs_x */
    float *range;     /* several ranks: min and max of all chunks [2, n], in host memory */
} vptq_hessian_sum;

vptq_status vptq_hessian_sum_init(vptq_device *dev, uint32_t n, vptq_hessian_sum *s,
                                  vptq_err *err) VPTQ_MUST_CHECK;
/* Bytes of host memory that this allocates. */
size_t vptq_hessian_sum_bytes(const vptq_device *dev, uint32_t n);
void vptq_hessian_sum_clear(vptq_hessian_sum *s);   /* to zero tokens */
void vptq_hessian_sum_release(vptq_hessian_sum *s); /* accepts a zeroed struct */
/* Adds x [t, n] (device memory) to the chunk, without checking for NaN or infinity. */
vptq_status vptq_hessian_sum_add(vptq_hessian_sum *s, size_t t, const float *x,
                                 vptq_err *err) VPTQ_MUST_CHECK;
/* Adds sum_t w_t x_t x_t^T, w [t] (device memory) or NULL for ones: one window of a term, which
 * counts as one token. */
vptq_status vptq_hessian_sum_add_window(vptq_hessian_sum *s, size_t t, const float *x,
                                        const float *w, vptq_err *err) VPTQ_MUST_CHECK;
/* Ends a round of chunks, of which the ranks 0 to parts - 1 have one: adds them to the total.
 */
vptq_status vptq_hessian_sum_share(vptq_hessian_sum *s, int parts,
                                   vptq_err *err) VPTQ_MUST_CHECK;
/* After the last round: `tokens` are those of all ranks. */
vptq_status vptq_hessian_sum_end(vptq_hessian_sum *s, uint64_t tokens,
                                 vptq_err *err) VPTQ_MUST_CHECK;
/* lower [n (n + 1) / 2] and mean [n] = the total divided by the tokens, as float.  VPTQ_E_ARG
 * without tokens. */
vptq_status vptq_hessian_sum_finish(const vptq_hessian_sum *s, float *lower, float *mean,
                                    vptq_err *err) VPTQ_MUST_CHECK;
/* abs_mean, min and max [n] of the tokens of a sum without windows of a term; VPTQ_E_ARG
 * without tokens.  A NaN in x is only in abs_mean (and in the Hessian). */
vptq_status vptq_hessian_sum_range(const vptq_hessian_sum *s, float *abs_mean, float *min,
                                   float *max, vptq_err *err) VPTQ_MUST_CHECK;

/* The term of linear layer l, named by a linear layer too: k_proj and v_proj share that of
 * k_proj (sink, attention), or each has its own (guided); VPTQ_LINEAR_NONE = none. */
vptq_linear vptq_term_of(vptq_token_weights kind, vptq_linear l);
/* The term's name in files: "kv", "guided_q", ... */
const char *vptq_term_name(vptq_token_weights kind, vptq_linear term);
/* mixed [n] = plain + factor * term, or (1 - factor) * plain + factor * term (guided); mixed
 * may be either. */
void vptq_term_mix(vptq_token_weights kind, double factor, size_t n, const float *plain,
                   const float *term, float *mixed);
/* VPTQ_E_ARG unless terms of that kind may have the factor. */
vptq_status vptq_term_check(vptq_token_weights kind, double factor,
                            vptq_err *err) VPTQ_MUST_CHECK;

/* Pools `count` Hessians of one size exactly: sum_g t_g H_g / sum_g t_g in double and in the
 * order given, and the means likewise.  Terms are weighted by windows instead of tokens. */
vptq_status vptq_hessian_pool(vptq_mem *mem, const vptq_hessian_file *parts, size_t count,
                              float *lower, float *mean, uint64_t *tokens,
                              vptq_err *err) VPTQ_MUST_CHECK;

/* Pools the ranges of parts that vptq_hessian_pool pools: abs_mean like the means.  Returns
 * false, and writes nothing, if a part has none. */
bool vptq_hessian_pool_range(const vptq_hessian_file *parts, size_t count, float *abs_mean,
                             float *min, float *max);

typedef struct vptq_hessian_stats {
    uint32_t n;      /* columns */
    uint64_t tokens; /* 0 = unknown */
    double trace, mean_diag, max_diag;
    double mean_share;      /* |mean|^2 / trace; NAN = the mean is unknown */
    uint32_t dead;          /* columns with H_jj = 0 */
    uint32_t constant;      /* other columns with a variance below 1e-6 of H_jj */
    uint32_t nan;           /* entries that are not finite */
    double condition;       /* estimated, of H + 1e-6 mean_diag I; INFINITY = does not factor */
    double samples_per_dim; /* tokens / n; NAN = unknown */
    double abs_max;         /* largest |x|; NAN = unknown */
    bool diagonal;          /* only the diagonal is known */
    const char *verdict;    /* "good", "diagonal only", "few samples", "rank deficient", "dead
                               columns", "no tokens" (vptq_hessian_show, of experts) or
                               "broken": the worst that applies; static */
} vptq_hessian_stats;

vptq_status vptq_hessian_describe(vptq_device *dev, const vptq_hessian_file *h,
                                  vptq_hessian_stats *s, vptq_err *err) VPTQ_MUST_CHECK;

/* Experts by the tokens that reached them. */
typedef struct vptq_expert_counts {
    size_t all, few, none; /* few: fewer than columns of one of its matrices, or none */
} vptq_expert_counts;
/* Counts an expert by the second of its inputs; does nothing for any other input. */
void vptq_experts_count(vptq_expert_counts *n, const vptq_model_desc *d, vptq_input input,
                        uint64_t tokens);
/* Warns if some have few; `source` goes before the text. */
void vptq_experts_warn(const vptq_expert_counts *n, const vptq_ctx *ctx, const char *source);

/* The ops potrf and trtri on a [n, n] in host memory. */
vptq_status vptq_hessian_cholesky(vptq_device *dev, size_t n, double *a, size_t *bad_pivot,
                                  vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_hessian_invert_lower(vptq_device *dev, size_t n, double *a,
                                      vptq_err *err) VPTQ_MUST_CHECK;

/* *trace = tr(X H X^T) in double for x [rows, in] and the packed triangle `lower`, both in
 * device memory. */
vptq_status vptq_hessian_trace(vptq_device *dev, size_t rows, uint32_t in, const float *x,
                               const float *lower, double *trace,
                               vptq_err *err) VPTQ_MUST_CHECK;

/* VPTQ_E_NUMERIC naming the first entry of the packed triangle, in device memory, that is not
 * finite. */
vptq_status vptq_hessian_check_finite(vptq_device *dev, size_t n, const float *lower,
                                      vptq_err *err) VPTQ_MUST_CHECK;

/* *mean = the mean of the diagonal of the matrix that `metric` describes (arrays in device
 * memory, outputs not read). */
vptq_status vptq_hessian_mean_diagonal(vptq_device *dev, const vptq_metric_args *metric,
                                       double *mean, vptq_err *err) VPTQ_MUST_CHECK;

/* Factor for the column pass, all arrays in device memory.  Given A = P S (H + ridge) S P^T
 * (symmetric positive definite; `metric` describes it, its damping and outputs are not read), U
 * is the upper triangular matrix with A^-1 = U^T U, without forming the inverse: J A J = L L^T
 * with J the reversal, so U = J L^-1 J.  If the factorization fails, `damping` times the mean
 * diagonal is added, then ten times that and so on, up to 8 times; *added is the share of the
 * mean diagonal that was needed (0 = none).  u [n, n] has zeros below the diagonal. */
vptq_status vptq_hessian_factor(vptq_device *dev, const vptq_metric_args *metric,
                                double damping, float *u, double *added,
                                vptq_err *err) VPTQ_MUST_CHECK;
/* Bytes of memory that vptq_hessian_factor takes on the CPU, at most. */
uint64_t vptq_hessian_factor_bytes(uint64_t n);

/* Replaces the lower triangle of metric->a by the lower Cholesky factor of the same A, damped
 * likewise; metric->damping becomes what was added. */
vptq_status vptq_hessian_factor_lower(vptq_device *dev, vptq_metric_args *metric,
                                      double damping, double *added,
                                      vptq_err *err) VPTQ_MUST_CHECK;

#endif
