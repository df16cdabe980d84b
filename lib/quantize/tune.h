/* Internal: tuning of a work directory into another one (lib/vptq.h has the options). */
#ifndef VPTQ_QUANTIZE_TUNE_H
#define VPTQ_QUANTIZE_TUNE_H

#include "lib/backend/backend.h"
#include "lib/vptq.h"

/* Tuning as a stage of a run: quantizing writes this directory inside the one to tune to. */
#define VPTQ_UNTUNED_DIR "untuned"

/* Sets `untuned` [PATH_MAX] to the directory for quantizing inside `work`.  VPTQ_E_MISMATCH for
 * a directory of something else, or without `force` for one of a run without this stage. */
vptq_status vptq_tune_find_stage(const char *work, bool force, vptq_mem *mem, char *untuned,
                                 vptq_err *err) VPTQ_MUST_CHECK;

/* Fails as vptq_tune_report will, when matrices of `original` are quantized, because of the
 * options, the model or the text, which it reads.  `original` has its tokenizer. */
vptq_status vptq_tune_check(const vptq_ctx *ctx, const vptq_tune_options *opt,
                            const vptq_model *original, vptq_err *err) VPTQ_MUST_CHECK;

/* "layer", "e2e" or "layer,e2e" */
const char *vptq_tune_method_name(vptq_tune_method m);

/* Locks the work directory.  An interrupted run goes on after the last layer or step that was
 * saved, to the same bytes; a finished one is left alone.  Reports a row for each on `out` (may
 * be NULL), without the line or object at the end.
 *
 * Ranks share the windows.  The first has the work directory and reports; all read `from`, and
 * other ranks need `work` only under a memory cap. */
vptq_status vptq_tune_report(vptq_device *dev, const vptq_tune_options *opt,
                             const vptq_output *out, vptq_tune_result *r,
                             vptq_err *err) VPTQ_MUST_CHECK;
/* The report of a dry run. */
vptq_status vptq_tune_report_plan(const vptq_tune_options *opt, const vptq_tune_result *r,
                                  const vptq_output *out, vptq_err *err) VPTQ_MUST_CHECK;
/* The end of the report, with r->digest. */
vptq_status vptq_tune_report_end(const vptq_tune_options *opt, const vptq_tune_result *r,
                                 const vptq_output *out, vptq_err *err) VPTQ_MUST_CHECK;

#endif
