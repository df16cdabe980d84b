/* How fast models serve: batches of prompts of random tokens, all at once, timed until the last
 * token of the last one, by the engine of lib/model/batch.h.  The definitions are those of the
 * client of SGLang's serving benchmark:
 *
 *     latency            seconds from the prompts to the last token of all
 *     ttft               until the last sequence of the batch has its first token
 *     output_throughput  batch * output / (latency - ttft): decoding alone
 *     overall_throughput batch * (input + output) / latency
 *     input_throughput   batch * input / ttft
 *
 * A run's prompts follow from the seed, the run and the place in the batch; they hold no
 * special tokens, and end tokens end nothing.  Tokens are chosen greedily.  Run 1 of every
 * model comes before run 2 of any, so that a machine that gets slower does so for all of them.
 * Warm-up runs have the same batch and short prompts and outputs. */
#ifndef VPTQ_BENCH_SERVE_H
#define VPTQ_BENCH_SERVE_H

#include "lib/model/batch.h"
#include "lib/vptq.h"

vptq_status vptq_serve_need_of(const vptq_model *m, const vptq_serve_config *c, vptq_dtype kv,
                               vptq_serve_need *need, vptq_err *err) VPTQ_MUST_CHECK;

/* "MODEL_CONFIG_runR" */
void vptq_serve_run_name(const vptq_serve_record *r, char name[VPTQ_SERVE_RUN_NAME]);

/* A file of records, JSON objects one a line: what is in it is not run again. */
typedef struct vptq_serve_log vptq_serve_log;
/* Opens or makes it.  An existing one is continued, and half a line at its end, which a killed
 * run may leave, goes; with `force` it is emptied.  Errors name file and line: VPTQ_E_FORMAT
 * for a file of something else, which stays as it is, VPTQ_E_EXISTS for a run that is there
 * twice; VPTQ_E_LOCKED while another one has it open. */
vptq_status vptq_serve_log_open(vptq_mem *mem, const char *path, bool force,
                                vptq_serve_log **log, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_serve_log_close(vptq_serve_log *log); /* accepts NULL */
/* The figures of the record's run, where the file has it: *found.  VPTQ_E_MISMATCH where it was
 * made with other settings than the record says. */
vptq_status vptq_serve_log_find(const vptq_serve_log *log, vptq_serve_record *r, bool *found,
                                vptq_err *err) VPTQ_MUST_CHECK;
/* Appends it, with all bytes on their way to the disk. */
vptq_status vptq_serve_log_add(vptq_serve_log *log, const vptq_serve_record *r,
                               vptq_err *err) VPTQ_MUST_CHECK;

/* The ids of a model that are no special tokens, from low to high: what prompts are made of.
 * The model has its tokenizer; *ids goes to vptq_mem_free. */
vptq_status vptq_serve_plain_ids(const vptq_model *m, vptq_mem *mem, int32_t **ids,
                                 size_t *count, vptq_err *err) VPTQ_MUST_CHECK;

/* Checks everything that can be known before the first run: names, lengths, memory, and the
 * records of `log` (may be NULL) that are of these runs.  VPTQ_E_ARG, VPTQ_E_NOMEM. */
vptq_status vptq_serve_check(const vptq_ctx *ctx, const vptq_serve_options *o,
                             const vptq_serve_log *log, vptq_err *err) VPTQ_MUST_CHECK;

/* Checks, then runs what `log` (may be NULL) does not have, configuration by configuration, and
 * adds each run to it. */
vptq_status vptq_eval_serve(const vptq_ctx *ctx, const vptq_serve_options *o,
                            vptq_serve_log *log, vptq_serve_fn fn, void *arg,
                            vptq_err *err) VPTQ_MUST_CHECK;

#endif
