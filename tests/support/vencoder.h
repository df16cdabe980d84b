/* Encodes one matrix in a test: as a whole, or as the state that the steps of lib/encoder work
 * on, with naive versions in double to compare with. */
#ifndef VPTQ_TESTS_SUPPORT_VENCODER_H
#define VPTQ_TESTS_SUPPORT_VENCODER_H

#include "lib/encoder/encoder.h"
#include "tests/support/problem.h"

/* A device with counted memory, and the result of a run on it. */
typedef struct vencoder_run {
    vptq_mem mem;
    vptq_ctx ctx;
    vptq_device dev;
    vptq_arena arena;
    vptq_encoder_result r;
} vencoder_run;

void vencoder_open(vencoder_run *run, const char *backend, int threads);
void vencoder_close(vencoder_run *run); /* fails the test if memory leaks */

/* Returns the plain input of a problem, with matrix number 5. */
vptq_encoder_input vencoder_input(const problem *p);
/* Fails the test if encoding fails. */
void vencoder_quantize(vencoder_run *run, const vptq_encoder_settings *s,
                       const vptq_encoder_input *input);
/* Returns the matrix [out][in] as a reader of the file decodes it on ref; the caller frees it.
 */
float *vencoder_decode(const vptq_vq *vq);
/* Returns a hash of all stored bytes. */
uint64_t vencoder_digest(const vptq_vq *vq);
/* Returns the loss of a whole run on cpu. */
double vencoder_loss(const problem *p, const vptq_encoder_settings *s);

/* ---- the state of the steps ---- */

/* An encoder before its first step: codebooks and indices are zero. */
typedef struct vencoder_state {
    vencoder_run run;
    vptq_encoder_settings s;
    vptq_encoder_input input;
    vptq_encoder_report report;
    vptq_encoder enc;
    double *h; /* [in][in] H' in double, in processing order */
} vencoder_state;

void vencoder_state_open(vencoder_state *e, const char *backend, int threads,
                         const vptq_encoder_settings *s, const vptq_encoder_input *input);
void vencoder_state_close(vencoder_state *e);

/* Computes h again after scale or bias have changed. */
void vencoder_state_metric(vencoder_state *e);

/* Returns q of one position from codebooks and indices: the float sum that a reader gets. */
double vencoder_q(const vptq_column_group *g, size_t column, size_t row);
/* tr(E H' E^T), padded rows included, term by term. */
double vencoder_objective(const vencoder_state *e);
/* sum of H'_tt |q_t - target_t|^2 over the columns t of a group; target [in][rows]. */
double vencoder_diagonal_objective(const vencoder_state *e, const vptq_column_group *g,
                                   const float *target);

/* ---- naive versions in double ---- */

typedef struct vencoder_choice {
    uint32_t main, res;
    double distance;
} vencoder_choice;

/* |x - c - r|^2 for x [v], without r unless `pairs`. */
double vencoder_distance(const vptq_column_group *g, const double *x, uint32_t main,
                         uint32_t res, bool pairs);
/* Returns the best pair whose main centroid is among the `beam` nearest. */
vencoder_choice vencoder_choose(const vptq_column_group *g, const double *x, uint32_t beam,
                                bool pairs);
/* Return the inverse of H' [in][in] and z [in][rows]; the caller frees them. */
double *vencoder_inverse(const vencoder_state *e);
double *vencoder_target(const vencoder_state *e);
/* Eliminates position t from a [n][n], the inverse of H' over the remaining positions. */
void vencoder_eliminate(size_t n, double *a, size_t t);

/* ---- cases: every kind of column group, alone and together ---- */

typedef struct vencoder_case {
    uint32_t out, in, v, k, k_res, groups;
    double outliers;
    uint32_t v0, k0, beam, norm;
    bool perm;
} vencoder_case;

enum { VENCODER_CASES = 10 };
extern const vencoder_case vencoder_cases[VENCODER_CASES];

/* Returns the default settings with few iterations of k-means. */
vptq_encoder_settings vencoder_settings(uint32_t v, uint32_t k, uint32_t k_res);
/* Returns the settings of the published recipe with the stored shape of `like`. */
vptq_encoder_settings vencoder_upstream(const vptq_encoder_settings *like);
/* Returns these settings with the shape of a case. */
vptq_encoder_settings vencoder_case_settings(const vencoder_case *q);
/* Opens a state with trained codebooks and the indices of the nearest centroids. */
void vencoder_state_train(vencoder_state *e, const problem *p, const vencoder_case *q,
                          int threads);
/* The same for vencoder_cases[i] and the problem of `seed`, after a column pass. */
void vencoder_case_open(vencoder_state *e, problem *p, size_t i, uint64_t seed);

#endif
