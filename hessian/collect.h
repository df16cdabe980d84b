/* Walks a model over calibration windows and writes one Hessian per block input into a
 * directory. */
#ifndef VPTQ_HESSIAN_COLLECT_H
#define VPTQ_HESSIAN_COLLECT_H

#include "hessian/calibrate.h"

typedef struct vptq_collect_options {
    vptq_calibrate_options calibrate;
    double factor;                    /* of the weights' term; the directory's default */
    uint32_t first_layer, last_layer; /* inclusive; last UINT32_MAX = the model's last */
    bool force;                       /* start again over a directory of other settings */
    bool dry_run;                     /* plan only: fills the result, writes nothing */
    const char *tool_version;
} vptq_collect_options;

typedef struct vptq_collect_result {
    size_t windows, length;              /* windows of the main part */
    size_t held_out;                     /* windows in DIR/holdout */
    uint64_t tokens;                     /* of the main part */
    uint32_t layers_done, layers_reused; /* reused: found finished in the directory */
    uint64_t bytes;                      /* of all Hessian files */
    double seconds;
} vptq_collect_result;

/* Collects into `dir` (made when missing, locked while running), the held-out windows into
 * "holdout" inside it, which is a Hessian directory of its own.  A directory that holds some
 * of the layers of the same run (fingerprints of model, ids and settings in hessian.json) is
 * continued; one of another run is VPTQ_E_MISMATCH naming the key, unless force.  The hidden
 * states go into a checkpoint file beside the Hessians now and then, so that a killed run goes
 * on near where it was; one that is damaged or comes too late is only passed over.  Same bytes
 * in the end for any interruption, thread count and memory cap. */
vptq_status vptq_hessian_collect(vptq_device *dev, const vptq_model *m,
                                 const vptq_collect_options *opt, const char *dir,
                                 vptq_collect_result *result, vptq_err *err) VPTQ_MUST_CHECK;

/* Exact pooling of directories of the same model, layers and weights into a new one; held-out
 * parts are pooled, too, where every directory has one.  With force a Hessian directory that is
 * there is replaced, its held-out part with it. */
vptq_status vptq_hessian_merge(const vptq_ctx *ctx, const char *const *dirs, size_t count,
                               const char *out, bool force, vptq_err *err) VPTQ_MUST_CHECK;

/* The directory of held-out Hessians inside a directory. */
#define VPTQ_HESSIAN_HOLDOUT "holdout"

/* A directory's hessian.json, as a user of the Hessians needs it. */
typedef struct vptq_hessian_dir {
    char model_fingerprint[17];
    char fingerprint[17]; /* of the Hessians themselves: model, ids, windows, length */
    uint32_t layers;      /* of the model */
    uint32_t first_layer, last_layer; /* inclusive: what the directory holds */
    uint64_t tokens;                  /* 0 = not known (imported) */
    bool diagonal; /* only the diagonals are known (imported): files without `lower` */
    vptq_token_weights weights; /* with a term of k and v unless plain */
    double factor;              /* of the term, unless the user asks for another */
    uint64_t held_out_tokens;   /* of DIR/holdout; 0 = there is none */
} vptq_hessian_dir;
vptq_status vptq_hessian_dir_open(const char *dir, vptq_hessian_dir *h,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* Writes hessian.json; `details` (borrowed) becomes its key "settings". */
vptq_status vptq_hessian_dir_save(const char *dir, const vptq_hessian_dir *h, json_t *details,
                                  vptq_err *err) VPTQ_MUST_CHECK;
/* The Hessian of one input, `n` columns (0 = any); a missing file is VPTQ_E_FORMAT naming it, a
 * number that is not finite VPTQ_E_NUMERIC.  `lower` is there in any case: a diagonal gets
 * zeros beside it, but with n = 0 is VPTQ_E_UNSUPPORTED. */
vptq_status vptq_hessian_dir_load(const char *dir, uint32_t layer, vptq_input input, uint32_t n,
                                  vptq_mem *mem, vptq_hessian_file *h,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* The Hessian of k and v: plain (the lower triangle of that of qkv) plus `factor` times the
 * term of layer, into mixed [n (n + 1) / 2], which may be plain.  NAN takes the directory's
 * factor.  VPTQ_E_MISMATCH where the directory has no terms. */
vptq_status vptq_hessian_dir_load_kv(const char *dir, uint32_t layer, uint32_t n, double factor,
                                     vptq_mem *mem, const float *plain, float *mixed,
                                     vptq_err *err) VPTQ_MUST_CHECK;

/* Statistics row by row: fn is called for each Hessian in layer and input order, also for one
 * that holds NaN (its verdict is "broken"); that of k and v, "kv", is plain plus term. */
typedef vptq_status (*vptq_hessian_row_fn)(void *arg, uint32_t layer, const char *input,
                                           const vptq_hessian_stats *s, vptq_err *err);
vptq_status vptq_hessian_show(vptq_device *dev, const char *dir, vptq_hessian_row_fn fn,
                              void *arg, vptq_err *err) VPTQ_MUST_CHECK;

#endif
