/* An ablation table: rows of settings, each taken from Hessians to a packed model and measured
 * on texts, in one directory that a run which was stopped goes on in.
 *
 *     DIR/ablate.json      that the directory is one
 *     DIR/hessians/        of all rows, unless they were given
 *     DIR/work/NAME/       the row's work directory
 *     DIR/packed/NAME.vptq the row as an archive, as long as it is measured
 *     DIR/rows/NAME.json   what came out
 *
 * A table is always made from the row files, so that it is the same bytes whenever they are.
 * What a clock said is in them too: only rows that were made in one go again have the same
 * seconds.
 *
 * Source of the built-in rows: Liu et al. 2024 (VPTQ), Table 10. */
#ifndef VPTQ_ABLATE_ABLATE_H
#define VPTQ_ABLATE_ABLATE_H

#include "lib/eval/perplexity.h"
#include "lib/pack/pack.h"
#include "lib/quantize/quantize.h"
#include "lib/report/table.h"
#include "lib/vptq.h"

/* What the row of the paper was trained with behind quantizing, which is not done here. */
typedef enum { VPTQ_FINETUNE_NONE, VPTQ_FINETUNE_LAYER, VPTQ_FINETUNE_ALL } vptq_finetune;

typedef struct vptq_ablate_row {
    const char *name;  /* of its files: letters, digits, '.', '_' and '-' */
    const char *label; /* "#4" of the paper's table; else the name */
    bool original;     /* the model as it is; nothing of what follows */
    vptq_encoder_settings settings;
    const char *recipe; /* path or NULL */
    double bits;        /* as vptq_quantize_options.bits; 0 = as the settings say */
    vptq_allocate_mode allocate;
    vptq_finetune finetune;
    double paper_bits, paper_ppl[2]; /* Llama-2-13B: bits, WikiText-2 and C4 at 4096; NAN where
                                        the row is not the paper's */
    /* A row with the same settings that is not finetuned stands for it already: this one is
     * not run. */
    bool skipped;
} vptq_ablate_row;

typedef struct vptq_ablate_score {
    double ppl, ppl_stderr, nll;
    uint64_t tokens;
} vptq_ablate_score;

typedef struct vptq_ablate_result {
    const vptq_ablate_row *row;
    double bits_per_weight;          /* every stored bit of the quantized matrices */
    double mean_loss, mean_held_out; /* proxy losses over matrices; NAN where there are none */
    uint64_t packed_bytes;
    double seconds;            /* of quantizing */
    vptq_ablate_score *scores; /* [texts]; NULL in a dry run and for skipped rows */
} vptq_ablate_result;

typedef struct vptq_ablate_report {
    const vptq_ablate_options *opt;
    vptq_ablate_result *rows; /* [count] */
    size_t count;
    vptq_arena arena; /* of rows and texts */
} vptq_ablate_report;

/* The rows to do, in `arena`.  VPTQ_E_FORMAT naming file, row and key; VPTQ_E_ARG for a name in
 * `only` that no row has. */
vptq_status vptq_ablate_rows(const vptq_ablate_options *opt, vptq_arena *arena,
                             vptq_ablate_row **rows, size_t *count,
                             vptq_err *err) VPTQ_MUST_CHECK;

/* Called when a row is through. */
typedef void (*vptq_ablate_fn)(void *arg, const vptq_ablate_result *r, size_t done, size_t all);

/* All rows, checked whole before any work: settings that cannot be for this model are
 * VPTQ_E_ARG naming row, matrix and setting.  A work directory of other settings under the name
 * of a row, or Hessians of another text, is VPTQ_E_MISMATCH naming the key.  `report` is
 * released by the caller in any case. */
vptq_status vptq_ablate_run(vptq_device *dev, const vptq_ablate_options *opt, vptq_ablate_fn fn,
                            void *arg, vptq_ablate_report *report,
                            vptq_err *err) VPTQ_MUST_CHECK;
void vptq_ablate_release(vptq_ablate_report *report);

/* The report as a table: columns as in the paper, then every stored bit per weight, perplexity
 * by text, mean losses and, with `seconds`, what quantizing took.  Columns that no row has
 * anything for are left out.  `t` is initialized here and released by the caller in any case,
 * before the report. */
vptq_status vptq_ablate_table(vptq_ablate_report *report, bool seconds, vptq_mem *mem,
                              vptq_table *t, vptq_err *err) VPTQ_MUST_CHECK;
/* The same with perplexity over bits for every text, as a page of HTML that stands alone. */
vptq_status vptq_ablate_page(vptq_ablate_report *report, bool seconds, vptq_mem *mem,
                             vptq_buf *out, vptq_err *err) VPTQ_MUST_CHECK;

#endif
