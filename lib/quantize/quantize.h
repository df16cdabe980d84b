/* Whole-model operations: the only place that knows models, files and matrices at once. */
#ifndef VPTQ_QUANTIZE_QUANTIZE_H
#define VPTQ_QUANTIZE_QUANTIZE_H

#include "hessian/collect.h"
#include "lib/encoder/encode.h"
#include "lib/encoder/presets.h"
#include "lib/quantize/settings.h"

#define VPTQ_VERSION "0.1.0"

/* ---- quantize: model + Hessians -> work directory (pipeline_quantize.c) ---- */

/* How a budget of bits becomes settings. */
typedef enum {
    VPTQ_ALLOCATE_UNIFORM, /* one setting for all matrices: the best one that fits */
    VPTQ_ALLOCATE_PROXY,   /* per matrix, by the losses that a quick encoding shows */
    VPTQ_ALLOCATE_KL       /* per matrix, by what its errors do to the model's output */
} vptq_allocate_mode;

typedef struct vptq_quantize_options {
    const char *model, *work;
    const char *hessians; /* directory */
    const char *held_out; /* Hessians of other tokens that every loss is reported on, too; NULL
                             = what the directory itself keeps, if anything */
    /* in place of a directory: calibrate in this run (its `run` and `reserve` are not the
     * caller's)
     */
    const vptq_calibrate_options *calibrate;
    double kv_factor; /* of the term that k_proj and v_proj add to their Hessian; NAN = the
                         directory's (not with `calibrate`), 0 = none */
    const char *tokenizer;
    vptq_encoder_settings settings; /* of every matrix (vptq_settings_defaults) ... */
    const char *recipe;             /* ... but for this file's rules; NULL = none */
    double bits; /* everything that is stored of all layers, per weight, is at most this: v, k
                    and k_res of what no rule of the recipe says are chosen.  0 = as given */
    vptq_allocate_mode allocate;
    const vptq_corpus_options *allocate_text; /* for VPTQ_ALLOCATE_KL: not the test text */
    size_t allocate_windows, allocate_length; /* of it; 2 of 512 */
    uint32_t first_layer, last_layer; /* inclusive; last UINT32_MAX = the model's last */
    bool force;                       /* start again over a work directory of other settings */
    bool dry_run;   /* rows with shapes and bits; with a work directory, measurements for the
                       allocation are kept in it all the same */
    bool looked_at; /* the caller tells of codebooks that are too large for a matrix */
} vptq_quantize_options;

typedef struct vptq_quantize_row {
    uint32_t layer;
    const char *name; /* "q_proj" */
    uint32_t rows, columns;
    const vptq_encoder_settings *settings;
    vptq_vq_shape shape;
    vptq_vq_bits bits;
    double predicted;        /* loss that the allocation expects; NAN where none is known */
    bool reused;             /* found finished */
    bool weighted, held_out; /* the report has these losses */
    bool diagonal;           /* losses are under the diagonal of the Hessian alone */
    bool corrected;          /* sequential: the target is W + alpha times its correction */
    double alpha, alpha_damping, alpha_gain; /* vptq_target_choice */
    vptq_encoder_report report; /* zeros in a dry run; when reused only the final losses and
                                 that of the first step */
    const char *json; /* the row as report.jsonl has it; in a dry run without losses */
} vptq_quantize_row;
typedef vptq_status (*vptq_quantize_fn)(void *arg, const vptq_quantize_row *row, vptq_err *err);

typedef struct vptq_quantize_result {
    uint32_t matrices, reused;
    double bits_per_weight; /* all stored bits of the quantized matrices over their weights */
    double mean_loss, mean_held_out; /* the latter 0 without held-out Hessians */
    bool diagonal;                   /* both under the diagonals of Hessians alone */
    double predicted_loss; /* mean of the rows' predictions; NAN where one is not known */
    double predicted_kld;  /* 0 without VPTQ_ALLOCATE_KL */
    uint64_t packed_bytes; /* predicted size of the packed weights file */
    double seconds;
} vptq_quantize_result;

/* Locked, resumable matrix by matrix; the same bytes for any interruption and thread count. */
vptq_status vptq_quantize_model(vptq_device *dev, const vptq_quantize_options *opt,
                                vptq_quantize_fn fn, void *arg, vptq_quantize_result *result,
                                vptq_err *err) VPTQ_MUST_CHECK;

#endif
