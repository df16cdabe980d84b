/* The figures of a divergence from its tokens.  Internal to lib/eval. */
#ifndef VPTQ_EVAL_FIGURES_H
#define VPTQ_EVAL_FIGURES_H

#include "lib/eval/divergence.h"

/* Of n >= 1 tokens: fills r but for tokens, windows, context and seconds.  kld [n] and delta
 * [n] (probability of the target by the model less that by the base) are sorted by it; nll
 * [n] and nll_base [n] stay. */
typedef struct vptq_kld_columns {
    double *kld, *delta;
    double *nll, *nll_base;
    uint64_t same; /* tokens whose likeliest is the same */
} vptq_kld_columns;
void vptq_kld_figures(const vptq_kld_columns *c, size_t n, vptq_kld_result *r);

#endif
