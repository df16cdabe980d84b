/* Walks a model over calibration windows and writes one Hessian per block input into a
 * directory. */
#ifndef HESSIAN_HESSIAN_COLLECT_H
#define HESSIAN_HESSIAN_COLLECT_H

#include "hessian/hessian.h"
#include "lib/model/corpus.h"
#include "lib/model/model.h"

typedef struct vptq_collect_options {
    vptq_corpus_options corpus;
    size_t windows; /* at most; 128 */
    size_t length;  /* tokens per window; 2048 */
    uint64_t seed;
    uint32_t first_layer, last_layer; /* inclusive; last UINT32_MAX = the model's last */
    bool force;                       /* start again over a directory of other settings */
    bool dry_run;                     /* plan only: fills the result, writes nothing */
    double checkpoint_seconds;        /* at least between checkpoints; 60 */
    const char *tool_version;
} vptq_collect_options;

typedef struct vptq_collect_result {
    size_t windows, length;
    uint64_t tokens;
    uint32_t layers_done, layers_reused; /* reused: found finished in the directory */
    uint64_t bytes;                      /* of all Hessian files */
    double seconds;
} vptq_collect_result;

/* Collects into `dir` (made when missing, locked while running).  A directory that holds some
 * of the layers of the same run (fingerprints of model, ids and settings in hessian.json) is
 * continued; one of another run is VPTQ_E_MISMATCH naming the key, unless force.  The hidden
 * states go into a checkpoint file beside the Hessians now and then, so that a killed run goes
 * on near where it was; one that is damaged or comes too late is only passed over.  Same bytes
 * in the end for any interruption and thread count. */
vptq_status vptq_hessian_collect(vptq_device *dev, const vptq_model *m,
                                 const vptq_collect_options *opt, const char *dir,
                                 vptq_collect_result *result, vptq_err *err) VPTQ_MUST_CHECK;

/* Exact pooling of directories of the same model into a new one. */
vptq_status vptq_hessian_merge(const vptq_ctx *ctx, const char *const *dirs, size_t count,
                               const char *out, bool force, vptq_err *err) VPTQ_MUST_CHECK;

/* A directory's hessian.json, as a user of the Hessians needs it. */
typedef struct vptq_hessian_dir {
    char model_fingerprint[17];
    char fingerprint[17]; /* of the Hessians themselves: model, ids, windows, length */
    uint32_t layers;      /* of the model */
    uint32_t first_layer, last_layer; /* inclusive: what the directory holds */
    uint64_t tokens;
} vptq_hessian_dir;
vptq_status vptq_hessian_dir_open(const char *dir, vptq_hessian_dir *h,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* Writes hessian.json; `details` (borrowed) becomes its key "settings". */
vptq_status vptq_hessian_dir_save(const char *dir, const vptq_hessian_dir *h, json_t *details,
                                  vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_hessian_dir_path(char *path, size_t size, const char *dir, uint32_t layer,
                                  vptq_input input, vptq_err *err) VPTQ_MUST_CHECK;
/* The Hessian of one input, `n` columns (0 = any); a missing file is VPTQ_E_FORMAT naming it, a
 * number that is not finite VPTQ_E_NUMERIC. */
vptq_status vptq_hessian_dir_load(const char *dir, uint32_t layer, vptq_input input, uint32_t n,
                                  vptq_mem *mem, vptq_hessian_file *h,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* Statistics row by row: fn is called for each file in layer and input order, also for one that
 * holds NaN (its verdict is "broken"). */
typedef vptq_status (*vptq_hessian_row_fn)(void *arg, uint32_t layer, const char *input,
                                           const vptq_hessian_stats *s, vptq_err *err);
vptq_status vptq_hessian_show(vptq_device *dev, const char *dir, vptq_hessian_row_fn fn,
                              void *arg, vptq_err *err) VPTQ_MUST_CHECK;

#endif
