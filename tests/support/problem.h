/* Random matrices with Hessians for tests of quantization, and what the library computes from
 * them, written out term by term in double. */
#ifndef VPTQ_TESTS_SUPPORT_PROBLEM_H
#define VPTQ_TESTS_SUPPORT_PROBLEM_H

#include <stddef.h>
#include <stdint.h>

typedef struct problem {
    uint32_t out, in;
    float *w;     /* [out][in], columns of different spread and mean */
    float *lower; /* packed second moments of correlated inputs */
    double *h;    /* [in][in], the same in full */
} problem;

problem problem_make(uint32_t out, uint32_t in, uint64_t seed);
void problem_free(problem *p);

/* Returns packed second moments of other inputs of the same kind; the caller frees them with
 * free(). */
float *problem_hessian(uint32_t in, uint64_t seed);

/* Fills h again from `lower` after a change. */
void problem_unpack(problem *p);

/* tr(E H E^T) / tr(W H W^T) for E = what - w. */
double problem_loss(const problem *p, const float *what);
double problem_loss_under(const problem *p, const float *lower, const float *what);

/* Inverts a positive definite a [n][n] in place by Gauss-Jordan elimination without pivots. */
void problem_invert(size_t n, double *a);

#endif
