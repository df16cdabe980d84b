/* Quantizing one matrix in a test: as a whole, or as the state that the steps of lib/encoder
 * work on, put together here from the definitions in encoder.h and metric.h. */
#ifndef VPTQ_TESTS_SUPPORT_VENCODER_H
#define VPTQ_TESTS_SUPPORT_VENCODER_H

#include "lib/encoder/encoder.h"
#include "tests/support/problem.h"

/* A device with accounted memory, and what a run on it gave. */
typedef struct vencoder_run {
    vptq_mem mem;
    vptq_ctx ctx;
    vptq_device dev;
    vptq_arena arena;
    vptq_encoder_result r;
} vencoder_run;

void vencoder_open(vencoder_run *run, const char *backend, int threads);
void vencoder_close(vencoder_run *run); /* fails the test when memory is left */

/* The plain input of a problem, matrix 5. */
vptq_encoder_input vencoder_input(const problem *p);
/* Must succeed. */
void vencoder_quantize(vencoder_run *run, const vptq_encoder_settings *s,
                       const vptq_encoder_input *input);
/* As a reader of the file has it, decoded by ref: [out][in], freed by the caller. */
float *vencoder_decode(const vptq_vq *vq);
/* Every byte that is stored, folded into one number. */
uint64_t vencoder_digest(const vptq_vq *vq);
/* Loss of a whole run on cpu. */
double vencoder_loss(const problem *p, const vptq_encoder_settings *s);

/* All parts with codebooks of zeros; z, h, u, diag and order filled in; codebooks and indices
 * to be trained or set by the test. */
typedef struct vencoder_state {
    vencoder_run run;
    vptq_encoder_settings s;
    vptq_encoder_input input;
    vptq_encoder_report report;
    vptq_encoder c;
    double *h; /* [in][in] H' in double, positions */
} vencoder_state;

void vencoder_state_open(vencoder_state *e, const char *backend, int threads,
                         const vptq_encoder_settings *s, const vptq_encoder_input *input);
void vencoder_state_close(vencoder_state *e);

/* h again, after scale and bias changed. */
void vencoder_state_metric(vencoder_state *e);

/* q of one position in double from codebooks and indices: the float sums that readers see. */
double vencoder_q(const vptq_part *p, size_t column, size_t row);
/* tr(E H' E^T), padded rows included, term by term. */
double vencoder_objective(const vencoder_state *e);

/* ---- written out in double ---- */

typedef struct vencoder_choice {
    uint32_t main, res;
    double distance;
} vencoder_choice;

/* |x - c - r|^2 for x [v], without r where `pairs` is false. */
double vencoder_distance(const vptq_part *p, const double *x, uint32_t main, uint32_t res,
                         bool pairs);
/* The best pair whose main centroid is among the `beam` nearest. */
vencoder_choice vencoder_choose(const vptq_part *p, const double *x, uint32_t beam, bool pairs);
/* The inverse of H' [in][in], and z [in][rows]; freed by the caller. */
double *vencoder_inverse(const vencoder_state *s);
double *vencoder_target(const vencoder_state *s);
/* Takes position t out of the inverse a of what is left. */
void vencoder_eliminate(size_t n, double *a, size_t t);

/* ---- cases: every kind of part, alone and together ---- */

typedef struct vencoder_case {
    uint32_t out, in, v, k, k_res, groups;
    double outliers;
    uint32_t v0, k0, beam, norm;
    bool perm;
} vencoder_case;

enum { VENCODER_CASES = 10 };
extern const vencoder_case vencoder_cases[VENCODER_CASES];

/* The default, with few iterations of k-means. */
vptq_encoder_settings vencoder_settings(uint32_t v, uint32_t k, uint32_t k_res);
/* A state with trained codebooks and the indices of the plain assignment. */
void vencoder_state_train(vencoder_state *e, const problem *p, const vencoder_case *q,
                          int threads);

#endif
