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

enum { VPTQ_SERVE_NAME = 64 }; /* bytes of a name with its end */

typedef struct vptq_serve_config {
    char name[VPTQ_SERVE_NAME];
    uint32_t batch, input, output;
} vptq_serve_config;

/* The seven of the published report. */
const vptq_serve_config *vptq_serve_named(size_t *count);
/* One of those by its name, or "B,I,O" of numbers from 1 on; three numbers that have a name get
 * it.  VPTQ_E_ARG names what was found and what is there. */
vptq_status vptq_serve_parse(const char *text, vptq_serve_config *config,
                             vptq_err *err) VPTQ_MUST_CHECK;

typedef struct vptq_serve_model {
    char name[VPTQ_SERVE_NAME];
    vptq_model model;
    char fingerprint[17]; /* vptq_checkpoint_fingerprint: records of another one are refused */
} vptq_serve_model;
/* Opens the model with its tokenizer; `name` is the caller's.  Released by vptq_model_release.
 */
vptq_status vptq_serve_model_open(const vptq_ctx *ctx, const char *path,
                                  const vptq_checkpoint_options *opt, vptq_serve_model *m,
                                  vptq_err *err) VPTQ_MUST_CHECK;

typedef struct vptq_serve_options {
    const vptq_serve_model *models;
    size_t model_count;
    const vptq_serve_config *configs;
    size_t config_count;
    uint32_t runs, warmup;
    vptq_dtype kv;
    uint64_t seed;
    bool allow_long;     /* sequences beyond a model's context */
    const char *backend; /* as vptq_device_open; every model gets a device of its own */
} vptq_serve_options;

/* What a model needs for a configuration. */
typedef struct vptq_serve_need {
    uint64_t weights; /* as they are stored: mapped, not allocated */
    uint64_t cache, working;
} vptq_serve_need;
vptq_status vptq_serve_need_of(const vptq_model *m, const vptq_serve_config *c, vptq_dtype kv,
                               vptq_serve_need *need, vptq_err *err) VPTQ_MUST_CHECK;

typedef struct vptq_serve_record {
    const vptq_serve_model *model;
    const vptq_serve_config *config;
    uint32_t run;                                                   /* from 1 */
    bool resumed;                                                   /* was in the file */
    double latency, ttft;                                           /* seconds */
    double output_throughput, overall_throughput, input_throughput; /* tokens per second */
    double last_gen_throughput; /* of the last step; this and output_throughput are NaN where
                                   the output is one token */
    uint64_t peak_memory_bytes; /* weights, and what was allocated for this model at most, with
                                   the memory of a device of its own */
    vptq_serve_need need;
    double bits_per_weight;
    vptq_dtype kv;
    int threads;
    const char *backend; /* its name */
    uint64_t seed;
} vptq_serve_record;

/* "MODEL_CONFIG" and "MODEL_CONFIG_runR". */
enum { VPTQ_SERVE_RUN_NAME = 2 * VPTQ_SERVE_NAME + 16 };
void vptq_serve_group(const vptq_serve_record *r, char name[VPTQ_SERVE_RUN_NAME]);
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

/* Called for every run, also for those that `log` had. */
typedef vptq_status (*vptq_serve_fn)(void *arg, const vptq_serve_record *r, vptq_err *err);
/* Checks, then runs what `log` (may be NULL) does not have, configuration by configuration, and
 * adds each run to it. */
vptq_status vptq_eval_serve(const vptq_ctx *ctx, const vptq_serve_options *o,
                            vptq_serve_log *log, vptq_serve_fn fn, void *arg,
                            vptq_err *err) VPTQ_MUST_CHECK;

#endif
