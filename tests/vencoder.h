/* Quantizing one matrix in a test: as a whole, or as the state that the steps of lib/quant work
 * on, put together here from the definitions in encoder.h and metric.h. */
#ifndef TESTS_VENCODER_H
#define TESTS_VENCODER_H

#include "lib/quant/encoder.h"
#include "tests/problem.h"

/* A device with accounted memory, and what a run on it gave. */
typedef struct vencoder_run {
    vptq_mem mem;
    vptq_ctx ctx;
    vptq_device dev;
    vptq_arena arena;
    vptq_quant_result r;
} vencoder_run;

void vencoder_open(vencoder_run *run, const char *backend, int threads);
void vencoder_close(vencoder_run *run); /* fails the test when memory is left */

/* The plain input of a problem, matrix 5. */
vptq_quant_input vencoder_input(const problem *p);
/* Must succeed. */
void vencoder_quantize(vencoder_run *run, const vptq_quant_settings *s,
                       const vptq_quant_input *input);
/* As a reader of the file has it, decoded by ref: [out][in], freed by the caller. */
float *vencoder_decode(const vptq_vq *vq);
/* Every byte that is stored, folded into one number. */
uint64_t vencoder_digest(const vptq_vq *vq);
/* Loss of a whole run on cpu. */
double vencoder_loss(const problem *p, const vptq_quant_settings *s);

/* All parts with books of zeros; z, h, u, diag and order filled in; books and indices to be
 * trained or set by the test. */
typedef struct vencoder_state {
    vencoder_run run;
    vptq_quant_settings s;
    vptq_quant_input input;
    vptq_quant_report report;
    vptq_encoder c;
    double *h; /* [in][in] H' in double, positions */
} vencoder_state;

void vencoder_state_open(vencoder_state *e, const char *backend, int threads,
                         const vptq_quant_settings *s, const vptq_quant_input *input);
void vencoder_state_close(vencoder_state *e);

/* q of one position in double from books and indices: the float sums that readers see. */
double vencoder_q(const vptq_part *p, size_t column, size_t row);
/* tr(E H' E^T), padded rows included, term by term. */
double vencoder_objective(const vencoder_state *e);

#endif
