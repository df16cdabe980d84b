/* Calibrations of a tiny model, for tests: windows of random ids, all moments of a block, and
 * blocks whose matrices are quantized. */
#ifndef VPTQ_TESTS_SUPPORT_VCALIB_H
#define VPTQ_TESTS_SUPPORT_VCALIB_H

#include "hessian/calibrate.h"
#include "tests/support/vrig.h"

/* Two layers, 6 windows of 16 ids, the last 2 of them held out. */
enum {
    VCALIB_WINDOWS = 6,
    VCALIB_HELD = 2,
    VCALIB_LENGTH = 16,
    VCALIB_IDS = VCALIB_WINDOWS * VCALIB_LENGTH
};

typedef struct vcalib {
    vrig v;
    char path[4096]; /* of the ids */
    int32_t *ids;
} vcalib;

void vcalib_open(vcalib *r, const char *dir, const char *backend);
void vcalib_close(vcalib *r);
void vcalib_plan(vcalib *r, vptq_token_weights weights, bool sequential, vptq_calibrator *c);
/* Plans and starts. */
void vcalib_start(vcalib *r, const char *dir, vptq_token_weights weights, bool sequential,
                  uint32_t wanted, vptq_calibrator *c);

/* All moments of one block, for both parts of the windows, those of x and terms as packed lower
 * triangles; NULL = none. */
typedef struct vcalib_moments {
    double *h[VPTQ_PART_COUNT][VPTQ_INPUT_DENSE], *term[VPTQ_PART_COUNT][VPTQ_LINEAR_DENSE];
    float *range[VPTQ_PART_COUNT][VPTQ_INPUT_DENSE]; /* abs_mean, min and max [3, n] */
    float *shift[VPTQ_PART_COUNT][VPTQ_INPUT_DENSE]; /* or drift */
    float *term_shift[VPTQ_PART_COUNT][VPTQ_LINEAR_DENSE];
} vcalib_moments;
void vcalib_free(vcalib_moments *m);

/* Runs one block: of one stream, or of two where `linear` replaces the second stream's linear
 * layers. */
void vcalib_run(vptq_calibrator *c, const vptq_weight *linear, vcalib_moments *m);

void vcalib_expect_same(const vcalib *r, const vcalib_moments *a, const vcalib_moments *b);
/* The same for shifts, drifts and those of terms. */
void vcalib_expect_same_shifts(const vcalib *r, const vcalib_moments *a,
                               const vcalib_moments *b);

/* [rows, columns] floats; the caller frees them with free(). */
float *vcalib_room(size_t rows, size_t columns);

/* Makes W a quantized matrix without any loss: every weight has its own centroid. */
void vcalib_exact(vcalib *r, const vptq_weight *w, vptq_arena *arena, vptq_packed_matrix *out);
/* Makes the linear layers of a block quantized matrices that lose something: `coarse` and
 * `linear` [VPTQ_LINEAR_DENSE]. */
void vcalib_coarse(vcalib *r, uint32_t layer, vptq_arena *arena, vptq_packed_matrix *coarse,
                   vptq_weight *linear);

#endif
