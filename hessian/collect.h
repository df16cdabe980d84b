/* Internal: runs calibration windows through a model and writes one Hessian per block input
 * into a directory; merging, reading and showing such directories. */
#ifndef VPTQ_HESSIAN_COLLECT_H
#define VPTQ_HESSIAN_COLLECT_H

#include "hessian/calibrate.h"
#include "lib/vptq.h"

typedef struct vptq_collect_result {
    size_t windows, length;              /* windows learned from, tokens of each */
    size_t held_out;                     /* windows in DIR/holdout */
    uint64_t tokens;                     /* learned from */
    uint32_t layers_done, layers_reused; /* reused: found finished */
    uint64_t bytes;                      /* of all Hessian files */
    double seconds;
    /* of a plan: the rest of the run, its seconds (NAN = not estimated) and the peak of its
     * memory, both without output Hessians */
    uint32_t layers_to_do;
    bool outputs_to_do;
    uint64_t bytes_to_do; /* of the files to write */
    double estimated_seconds;
    uint64_t memory_bytes;
} vptq_collect_result;

/* Collects into `dir` (created if missing, locked while running); the held-out windows go into
 * "holdout" inside it, a Hessian directory of its own.  Output Hessians are written last, anew
 * if those of the directory are of another number of windows.  A directory of the same run
 * (fingerprints of model, ids and settings in hessian.json) is continued; another run's is
 * VPTQ_E_MISMATCH naming the key, or replaced with force, as is one of the same run that an
 * older version began without channel ranges (without force it continues without them).  From
 * time to time the hidden states are written to a checkpoint file next to the Hessians, so
 * that a killed run continues near where it stopped; an unusable checkpoint is ignored.
 * Several ranks, which call this together, write none and continue after the last finished
 * layer; `dir` is the same for all, on a file system that all see.  A dry run finds out what
 * `dir` (may be NULL) has and writes nothing.  The result has the same
 * bytes for any interruption, thread count, number of ranks and memory cap. */
vptq_status vptq_hessian_collect(vptq_device *dev, const vptq_model *m,
                                 const vptq_collect_options *opt, const char *dir,
                                 vptq_collect_result *result, vptq_err *err) VPTQ_MUST_CHECK;

/* Pools directories of the same model, layers and token weights exactly into a new one, and
 * their held-out parts if every directory has one.  With force an existing Hessian directory is
 * replaced, including its held-out part. */
vptq_status vptq_hessian_merge(const vptq_ctx *ctx, const char *const *dirs, size_t count,
                               const char *out, bool force, vptq_err *err) VPTQ_MUST_CHECK;

/* Bytes that merging or exporting Hessians would take. */
typedef struct vptq_hessian_plan {
    uint64_t bytes, largest; /* all files, and the largest */
    uint64_t memory;         /* peak, without the files, which are mapped */
    uint64_t columns;        /* of the largest, or a few more */
} vptq_hessian_plan;
/* Makes the checks of vptq_hessian_merge, and plans it. */
vptq_status vptq_hessian_merge_plan(const vptq_ctx *ctx, const char *const *dirs, size_t count,
                                    const char *out, bool force, vptq_hessian_plan *plan,
                                    vptq_err *err) VPTQ_MUST_CHECK;

/* A Hessian directory as a whole. */
typedef struct vptq_hessian_dir {
    char model_fingerprint[17];
    char fingerprint[17];             /* of model, ids, windows and length */
    uint32_t layers;                  /* of the model */
    uint32_t first_layer, last_layer; /* inclusive: what the directory holds */
    uint64_t tokens;                  /* 0 = unknown (imported) */
    bool diagonal;                    /* only diagonals are known (imported) */
    bool channel_ranges;              /* Hessians have abs_mean, min and max */
    vptq_token_weights weights;       /* with terms unless plain */
    double factor;                    /* of the term, by default */
    uint64_t held_out_tokens;         /* of DIR/holdout; 0 = none */
    uint64_t outputs;                 /* windows of DIR/outputs.safetensors; 0 = none */
    vptq_experts experts;             /* only count, shared (not 0) and dense */
} vptq_hessian_dir;

/* The directory of held-out Hessians inside a directory. */
#define VPTQ_HESSIAN_HOLDOUT "holdout"

/* Reads hessian.json. */
vptq_status vptq_hessian_dir_open(const char *dir, vptq_hessian_dir *h,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* Writes hessian.json; `details` (borrowed) becomes its key "settings". */
vptq_status vptq_hessian_dir_save(const char *dir, const vptq_hessian_dir *h, json_t *details,
                                  vptq_err *err) VPTQ_MUST_CHECK;
/* Reads the Hessian of one input with `n` columns (0 = any).  VPTQ_E_FORMAT naming a missing
 * file, VPTQ_E_NUMERIC for a number that is not finite.  `lower` is always set: a diagonal is
 * expanded with zeros, or VPTQ_E_UNSUPPORTED with n = 0. */
vptq_status vptq_hessian_dir_load(const char *dir, uint32_t layer, vptq_input input, uint32_t n,
                                  vptq_mem *mem, vptq_hessian_file *h,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* Fails as that if the file of an input, or of a term by vptq_term_name, is missing. */
vptq_status vptq_hessian_dir_find(const char *dir, uint32_t layer, const char *input,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* Mixes a term into a Hessian. */
typedef struct vptq_hessian_mix {
    vptq_token_weights kind; /* of the directory */
    double factor;
    vptq_linear term;
} vptq_hessian_mix;
/* mixed [n (n + 1) / 2] = plain, the Hessian of the term's input, mixed with the term of a
 * layer. */
vptq_status vptq_hessian_dir_load_mixed(const char *dir, uint32_t layer,
                                        const vptq_hessian_mix *m,
                                        const vptq_hessian_file *plain, vptq_mem *mem,
                                        float *mixed, vptq_err *err) VPTQ_MUST_CHECK;

/* `input` is the name of an input, "qkv", "expert3_up", or that of a term for the Hessian that
 * it is mixed into. */
typedef vptq_status (*vptq_hessian_row_fn)(void *arg, uint32_t layer, const char *input,
                                           const vptq_hessian_stats *s, vptq_err *err);

/* Calls fn with the statistics of each Hessian in layer and input order, also of one that holds
 * NaN (verdict "broken"); those with terms follow their input. */
vptq_status vptq_hessian_show(vptq_device *dev, const char *dir, vptq_hessian_row_fn fn,
                              void *arg, vptq_err *err) VPTQ_MUST_CHECK;

#endif
