/* Internal: an ablation, a table of settings that are each quantized, tuned where the row
 * says so, packed and measured on texts. An interrupted run continues in its directory:
 *
 *     DIR/ablate.json       marks the directory
 *     DIR/hessians/         Hessians of all rows, unless the caller has some
 *     DIR/work/NAME/        work directory of a row
 *     DIR/tuned/NAME/       the same after tuning
 *     DIR/packed/NAME.vptq  archive of a row while it is measured, or since a run that keeps it
 *     DIR/rows/NAME.json    results of a row; also speeds, if it was served
 *     DIR/rows/NAME.seconds seconds of quantizing and tuning, added up over interruptions
 *
 * The table is made from the row files alone, so the same files give the same bytes, except for
 * the columns of times.
 *
 * Source of the built-in rows: Liu et al. 2024 (VPTQ), Table 10. */
#ifndef VPTQ_ABLATE_ABLATE_H
#define VPTQ_ABLATE_ABLATE_H

#include "lib/eval/perplexity.h"
#include "lib/pack/pack.h"
#include "lib/quantize/quantize.h"
#include "lib/quantize/tune.h"
#include "lib/report/estimate.h"
#include "lib/report/table.h"
#include "lib/vptq.h"

typedef struct vptq_ablate_row {
    const char *name;  /* also of its files: letters, digits, '.', '_' and '-' */
    const char *label; /* "#4" of the paper's table; else the name */
    bool original;     /* the model as it is, without settings */
    bool optional;     /* left out, with a warning, if this model cannot have it */
    vptq_encoder_settings settings;
    const char *recipe; /* path or NULL */
    double bits;        /* as vptq_quantize_options.bits; 0 = as the settings say */
    vptq_allocate_mode allocate;
    unsigned tune; /* vptq_tune_method after quantizing, on the calibration text; 0 = none */
    double paper_bits, paper_ppl[2]; /* Llama-2-13B: bits, WikiText-2 and C4 at 4096; NAN in
                                        other rows than the paper's */
} vptq_ablate_row;

typedef struct vptq_ablate_score {
    double ppl, ppl_stderr, nll;
    uint64_t tokens;
    double kld, kld_stderr; /* from the original; NAN = not measured */
} vptq_ablate_score;

typedef struct vptq_ablate_accuracy {
    double acc, acc_stderr;
} vptq_ablate_accuracy;

typedef struct vptq_ablate_result {
    const vptq_ablate_row *row;
    double bits_per_weight;          /* every stored bit of the quantized matrices */
    double mean_loss, mean_held_out; /* proxy losses over matrices; NAN = none, or tuned */
    uint64_t archive_bytes;          /* 0 of the original */
    char digest[VPTQ_DIGEST_SIZE];   /* of the archive; "" of the original */
    double seconds;                  /* of quantizing and tuning */
    double tokens_per_second;        /* decoded when served; NAN = not measured */
    uint64_t peak_memory;            /* bytes when served; 0 = not measured */
    vptq_ablate_score *scores;       /* [texts]; NULL in a dry run */
    vptq_ablate_accuracy *tasks;     /* [tasks]; NULL in a dry run */
} vptq_ablate_result;

typedef struct vptq_ablate_report {
    const vptq_ablate_options *opt;
    vptq_ablate_result *rows; /* [count] */
    size_t count;
    vptq_estimate estimate; /* of a dry run */
    vptq_arena arena;       /* of rows and texts */
} vptq_ablate_report;

/* Lists the chosen rows, in `arena`.  VPTQ_E_FORMAT for a bad list, naming file, row and key;
 * VPTQ_E_ARG for a name in `only` that no row has. */
vptq_status vptq_ablate_rows(const vptq_ctx *ctx, const vptq_ablate_options *opt,
                             vptq_arena *arena, vptq_ablate_row **rows, size_t *count,
                             vptq_err *err) VPTQ_MUST_CHECK;

/* Number of texts, and the file of text i: texts precede files of ids. */
size_t vptq_ablate_text_count(const vptq_ablate_options *o);
const char *vptq_ablate_text(const vptq_ablate_options *o, size_t i);

/* As vptq_ablate.  Runs all rows after checking all of them: VPTQ_E_ARG for settings that are
 * impossible for this model, naming row, matrix and setting, and for a row to tune without a
 * calibration text; VPTQ_E_MISMATCH, naming the key,
 * for a work directory of other settings under the name of a row or Hessians of another text.
 */
vptq_status vptq_eval_ablate(vptq_device *dev, const vptq_ablate_options *opt,
                             const vptq_output *out, vptq_err *err) VPTQ_MUST_CHECK;

/* Makes the report a table: columns as in the paper, then stored bits per weight, perplexity by
 * text, mean losses and, unless the options leave it out, the time of quantizing and tuning.
 * Columns without any value are left out.  The caller releases `t` in any case, before the
 * report. */
vptq_status vptq_ablate_table(vptq_ablate_report *report, vptq_mem *mem, vptq_table *t,
                              vptq_err *err) VPTQ_MUST_CHECK;
/* Appends a self-contained HTML page with the table and, for every text, perplexity over bits.
 */
vptq_status vptq_ablate_page(vptq_ablate_report *report, vptq_mem *mem, vptq_buf *out,
                             vptq_err *err) VPTQ_MUST_CHECK;

#endif
