/* Internal: speed of models that serve batches of prompts of random tokens with the engine of
 * lib/model/batch.h.  All prompts start at once; the clock stops at the last token of the last
 * one. The definitions are those of the client of SGLang's serving benchmark:
 *
 *     latency            seconds from the start to the last token of all sequences
 *     ttft               seconds until the last sequence has its first token
 *     output_throughput  batch * output / (latency - ttft): decoding only
 *     overall_throughput batch * (input + output) / latency
 *     input_throughput   batch * input / ttft
 *
 * The prompts of a run follow from the seed, the run and the position in the batch.  They have
 * no special tokens, stop tokens are ignored, and tokens are chosen greedily.  Every model does
 * run 1 before any does run 2, so that a machine that slows down affects all of them.  Warm-up
 * runs have the same batch and short prompts and outputs. */
#ifndef VPTQ_BENCH_SERVE_H
#define VPTQ_BENCH_SERVE_H

#include "lib/model/batch.h"
#include "lib/report/estimate.h"
#include "lib/vptq.h"

enum { VPTQ_SERVE_RUN_NAME = 2 * VPTQ_SERVE_NAME + 16 }; /* bytes */

typedef struct vptq_serve_config {
    char name[VPTQ_SERVE_NAME];
    uint32_t batch, input, output; /* sequences; tokens of each prompt and of each reply */
} vptq_serve_config;

/* The [*count] configurations of the published report; static. */
const vptq_serve_config *vptq_serve_named(size_t *count);
/* One of those by its name, or "BATCH,INPUT,OUTPUT". */
vptq_status vptq_serve_parse(const char *text, vptq_serve_config *config,
                             vptq_err *err) VPTQ_MUST_CHECK;

/* A run before those that are timed. */
vptq_serve_config vptq_serve_warm_up(const vptq_serve_config *c);
/* The batch in which a run of the configuration takes place. */
vptq_batch_options vptq_serve_batch_options(const vptq_serve_config *c, vptq_dtype kv,
                                            uint64_t seed);

/* As vptq_serve_options, with parsed configurations. */
typedef struct vptq_serve_plan {
    const vptq_serve_model *models;
    size_t model_count;
    const vptq_serve_config *configs;
    size_t config_count;
    uint32_t runs, warmup;
    vptq_dtype kv;
    uint64_t seed;
    bool allow_long;
    const char *backend; /* every model gets a device of its own */
} vptq_serve_plan;

typedef struct vptq_serve_need {
    uint64_t weights;        /* as stored: mapped, not allocated */
    uint64_t cache, working; /* bytes */
} vptq_serve_need;

typedef struct vptq_serve_record {
    const vptq_serve_model *model;
    const vptq_serve_config *config;
    uint32_t run;         /* from 1 */
    bool resumed;         /* read from the file */
    double latency, ttft; /* seconds to the last token of all, and to the last first token */
    double output_throughput; /* batch * output / (latency - ttft), tokens per second */
    double overall_throughput, input_throughput; /* all tokens / latency, input / ttft */
    double last_gen_throughput; /* of the last step; this and output_throughput are NAN if the
                                   output is one token */
    uint64_t peak_memory_bytes; /* weights, and most that was allocated for this model */
    vptq_serve_need need;
    double bits_per_weight;
    vptq_dtype kv;
    int threads;
    const char *backend;
    uint64_t seed;
} vptq_serve_record;
typedef vptq_status (*vptq_serve_fn)(void *arg, const vptq_serve_record *r, vptq_err *err);

/* Computes the memory that a model needs for a configuration. */
vptq_status vptq_serve_need_of(const vptq_model *m, const vptq_serve_config *c, vptq_dtype kv,
                               vptq_serve_need *need, vptq_err *err) VPTQ_MUST_CHECK;

/* "MODEL_CONFIG" */
void vptq_serve_group(const vptq_serve_record *r, char name[VPTQ_SERVE_RUN_NAME]);
/* "MODEL_CONFIG_runR" */
void vptq_serve_run_name(const vptq_serve_record *r, char name[VPTQ_SERVE_RUN_NAME]);

/* A file of records, one JSON object per line.  Runs that it has are not run again. */
typedef struct vptq_serve_log vptq_serve_log;
/* Opens or creates the file at `path`, which must outlive the log.  Appends to an existing file
 * after removing a partial last line, which a killed run may leave; `force` empties it.  Errors
 * name file and line: VPTQ_E_FORMAT for another kind of file, which stays unchanged,
 * VPTQ_E_EXISTS for a run that appears twice, VPTQ_E_LOCKED if another process has it open. */
vptq_status vptq_serve_log_open(vptq_mem *mem, const char *path, bool force,
                                vptq_serve_log **log, vptq_err *err) VPTQ_MUST_CHECK;
/* Fails as opening it if this user may not create or write the file; writes nothing. */
vptq_status vptq_serve_log_check(const char *path, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_serve_log_close(vptq_serve_log *log); /* accepts NULL */
/* Sets *found if the file has the record's run, and reads its figures into the record.
 * VPTQ_E_MISMATCH if it was made with other settings than the record has. */
vptq_status vptq_serve_log_find(const vptq_serve_log *log, vptq_serve_record *r, bool *found,
                                vptq_err *err) VPTQ_MUST_CHECK;
/* Appends the record and syncs the file. */
vptq_status vptq_serve_log_add(vptq_serve_log *log, const vptq_serve_record *r,
                               vptq_err *err) VPTQ_MUST_CHECK;

/* Lists the ids that are not special tokens, in increasing order; prompts are made of them. The
 * model must have its tokenizer.  The caller frees *ids with vptq_mem_free. */
vptq_status vptq_serve_plain_ids(const vptq_model *m, vptq_mem *mem, int32_t **ids,
                                 size_t *count, vptq_err *err) VPTQ_MUST_CHECK;

/* VPTQ_E_ARG for a configuration that is longer than the context of a model, unless that is
 * allowed. */
vptq_status vptq_serve_check_lengths(const vptq_serve_plan *o, vptq_err *err) VPTQ_MUST_CHECK;
/* Checks everything that is known before the first run: names, lengths, memory, and the records
 * in `log` (may be NULL) of these runs.  VPTQ_E_ARG, VPTQ_E_NOMEM. */
vptq_status vptq_serve_check(const vptq_ctx *ctx, const vptq_serve_plan *o,
                             const vptq_serve_log *log, vptq_err *err) VPTQ_MUST_CHECK;

/* Checks, then does the runs that `log` (may be NULL) does not have, configuration by
 * configuration, and adds each to it.  Calls fn for every run, also for those in the log. */
vptq_status vptq_eval_serve(const vptq_ctx *ctx, const vptq_serve_plan *o, vptq_serve_log *log,
                            vptq_serve_fn fn, void *arg, vptq_err *err) VPTQ_MUST_CHECK;

/* Estimates all runs and warm-ups of the plan, from about a second of real work for each model
 * and kind of group: prompts and decoding steps pass a few blocks and the head of the model or
 * of a narrow stand-in (lib/model/narrow.h). */
vptq_status vptq_serve_estimate(const vptq_ctx *ctx, const vptq_serve_plan *o, vptq_estimate *e,
                                vptq_err *err) VPTQ_MUST_CHECK;

/* As vptq_serve, on devices of `backend`. */
vptq_status vptq_eval_serve_table(const vptq_ctx *ctx, const char *backend,
                                  const vptq_serve_options *opt, const vptq_output *out,
                                  vptq_err *err) VPTQ_MUST_CHECK;

#endif
