/* Calibration: all windows of a text go through a model one block at a time, and the moments of
 * the block's inputs are summed on the way.  Only one block's weights and sums are in memory;
 * the hidden states of all windows are, or are in a file where memory is capped.
 *
 *     vptq_calibrator c;
 *     vptq_calibrator_plan(dev, model, &opt, &c, err);
 *     vptq_calibrator_start(&c, dir, wanted, err);
 *     while (c.layer <= last)
 *         vptq_calibrator_run(&c, take, arg, err);
 *     vptq_calibrator_release(&c);
 *
 * The windows are in two parts: those that are learnt from, and the held-out ones, the last of
 * the sample, on which the same moments tell what was only learnt by heart.
 *
 * A sequential calibration carries two streams: x of the model as it is, and x~ that passed the
 * quantized blocks before.  A block sums the moments of x~, the block itself not quantized yet,
 * and how far x is from it; when its linears are quantized, x~ goes on through them:
 *
 *     vptq_calibrator_run(&c, take, arg, err);
 *     ... quantize ...
 *     vptq_calibrator_advance(&c, linear, err); */
#ifndef HESSIAN_CALIBRATE_H
#define HESSIAN_CALIBRATE_H

#include "hessian/hessian.h"
#include "hessian/states.h"
#include "lib/model/corpus.h"
#include "lib/model/forward.h"

typedef enum { VPTQ_PART_MAIN, VPTQ_PART_HELD_OUT, VPTQ_PART_COUNT } vptq_part;

typedef struct vptq_calibrate_options {
    vptq_corpus_options corpus;
    size_t windows; /* at most; both parts */
    size_t length;  /* tokens per window */
    uint64_t seed;
    double holdout; /* share of the windows, rounded up, never all; 0 = none */
    vptq_token_weights weights;
    bool sequential;
    double correction; /* sequential: the largest alpha of a target's correction, 0..1 */
    uint64_t run;      /* sequential: what decides x~ beside all this, so that no checkpoint of
                          another run is taken */
    size_t reserve;    /* bytes that the caller will need besides; matters under a memory cap */
    double checkpoint_seconds; /* at least between checkpoints */
} vptq_calibrate_options;

/* "plain", "sink", "sink:0.3", "attention:1": the kind, and the factor c of H + c T (the kind's
 * default where none is given). */
vptq_status vptq_token_weights_parse(const char *text, vptq_token_weights *weights,
                                     double *factor, vptq_err *err) VPTQ_MUST_CHECK;

typedef struct vptq_calibrator {
    vptq_device *dev;
    const vptq_model *model;
    vptq_calibrate_options opt;
    char model_fingerprint[17], ids_fingerprint[17];
    /* of each part: model, ids, length and weights; "" of an empty one */
    char fingerprint[VPTQ_PART_COUNT][17];
    size_t windows[VPTQ_PART_COUNT];
    uint32_t layer, last; /* to run next; the last that will be, for the progress */
    /* of the part that was run last; sequential: of x~ */
    vptq_hessian_sum sum[VPTQ_INPUT_COUNT];
    vptq_hessian_sum term;           /* of k and v; its tokens are windows */
    double *shift[VPTQ_INPUT_COUNT]; /* sequential: sums of (x - x~) x~^T [n, n], else NULL */

    /* the rest is the calibrator's own */
    vptq_arena arena;
    vptq_corpus corpus;
    size_t *window, *starts; /* [all windows] first ids; [all windows + 1] rows */
    vptq_forward *forward;
    vptq_states states;
    char state_path[4096];
    double state_time;
    vptq_part part; /* being run */
    size_t first;   /* window of the group being run */
    size_t most;    /* rows of a group */
    double *mass;   /* [length] device memory, and on the host */
    double *host_mass;
    float *weight, *host_weight;
    vptq_states passed;              /* x~ */
    float *record[VPTQ_INPUT_COUNT]; /* [most, n] host: x of the group, then x - x~ */
    float *copy;                     /* [most, hidden] host: x~ of the group */
    float *product;                  /* rows of a product [product_rows, largest n], device */
    float *tokens, *host_tokens;     /* [length, largest n]; NULL for host devices */
    float *host_product;             /* as product, on the host; NULL for host devices */
    size_t product_floats;
} vptq_calibrator;

/* Windows and fingerprints; allocates little.  A holdout that would leave one of the parts
 * empty is VPTQ_E_ARG. */
vptq_status vptq_calibrator_plan(vptq_device *dev, const vptq_model *m,
                                 const vptq_calibrate_options *opt, vptq_calibrator *c,
                                 vptq_err *err) VPTQ_MUST_CHECK;
void vptq_calibrator_release(vptq_calibrator *c);

/* Memory, and the states in front of block c->layer: those of the checkpoint in `dir` when it
 * is one of this calibration and not past block `wanted`, else the embeddings.  `last`: of the
 * blocks to be run. */
vptq_status vptq_calibrator_start(vptq_calibrator *c, const char *dir, uint32_t wanted,
                                  uint32_t last, vptq_err *err) VPTQ_MUST_CHECK;

/* Called when all windows of a part went through the block: c->sum and c->term (where tokens
 * are weighted) hold its sums. */
typedef vptq_status (*vptq_calibrator_fn)(void *arg, vptq_calibrator *c, vptq_part part,
                                          vptq_err *err);

/* Runs block c->layer over all windows, part by part; c->layer is the next one then.  With a
 * NULL fn nothing is summed. */
vptq_status vptq_calibrator_run(vptq_calibrator *c, vptq_calibrator_fn fn, void *arg,
                                vptq_err *err) VPTQ_MUST_CHECK;

/* Sequential: x~ through block c->layer - 1 with these linears [VPTQ_LINEAR_COUNT] in place of
 * the model's (NULL: with those). */
vptq_status vptq_calibrator_advance(vptq_calibrator *c, const vptq_weight *linear,
                                    vptq_err *err) VPTQ_MUST_CHECK;

/* E[(x - x~) x~^T] of an input [n, n], row = component of x - x~. */
void vptq_calibrator_shift(const vptq_calibrator *c, vptq_input input, float *shift);

/* A sum as the mean that a Hessian file holds, lower [n (n + 1) / 2] and mean [n];
 * VPTQ_E_NUMERIC naming `layer` and `input` when it is not finite. */
vptq_status vptq_calibrator_finish(const vptq_hessian_sum *s, uint32_t layer, const char *input,
                                   float *lower, float *mean, vptq_err *err) VPTQ_MUST_CHECK;

/* Writes a checkpoint when the last one is long enough ago.  A disk too full for it is only
 * logged: it saves nothing but time after an interruption. */
void vptq_calibrator_checkpoint(vptq_calibrator *c);
void vptq_calibrator_forget(const char *dir); /* removes it */

#endif
