/* libvptq: quantizes the weight matrices of language models to 2 to 4 bits by vector
 * quantization (VPTQ, Liu et al. 2024), packs the result, and measures what it costs.
 *
 * Every operation takes a context, an options struct whose zero value means "default" unless a
 * field says otherwise, and an error; it returns a status.  Example (a calibration text in
 * "text.txt"; error handling left out):
 *
 *     vptq_err err = {VPTQ_OK, ""};
 *     vptq_ctx *ctx = NULL;
 *     vptq_ctx_open(NULL, &ctx, &err);
 *     const char *const texts[] = {"text.txt"};
 *     vptq_calibrate_options text = {{texts, 1, NULL, 0, false}, 128};
 *     vptq_quantize_options quantize = vptq_quantize_defaults();
 *     quantize.model = "model", quantize.work = "work", quantize.calibrate = &text;
 *     vptq_pack_options pack = {"work", "model.vptq", NULL, NULL, VPTQ_PACK_ARCHIVE};
 *     pack.dtype = pack.embeddings = VPTQ_DTYPE_COUNT;
 *     if (vptq_quantize(ctx, &quantize, NULL, NULL, &err) ||
 *         vptq_pack(ctx, &pack, NULL, &err))
 *         fprintf(stderr, "%s\n", err.text);
 *     vptq_ctx_close(ctx);
 *
 * MODEL.  A path to a model is one of: a Hugging Face directory, a GGUF file, a llama2.c .bin
 * file, a packed VPTQ directory, a .vptq archive, or a work directory of vptq_quantize.  If no
 * such path exists, ORG/NAME or ORG/NAME@REVISION is one in the local Hugging Face cache.
 *
 * Lifetime.  Handles (vptq_ctx, vptq_model, ...) are made by an _open, _load or _new function
 * and freed by the matching _close or _free, which accepts NULL.  A context outlives everything
 * made from it.  The library copies no string of an options struct: strings, arrays and structs
 * that options point to stay valid until the call returns.  What a callback receives is valid
 * until the callback returns; static strings are marked as such.  Functions that fail leave a
 * handle argument NULL and results unspecified.
 *
 * Threads.  A context, and everything made from it, is used by one thread at a time; contexts
 * are independent of each other.  Operations start their own threads and call callbacks only on
 * the calling thread.  Results do not depend on the number of threads or the memory cap.
 *
 * Errors.  The library never prints, exits or aborts because of its input.  A failing function
 * writes one sentence to its vptq_err, which may be NULL: lower case, no full stop, naming the
 * file or setting, what was found and what was expected.  A callback that returns a status
 * other than VPTQ_OK ends the operation with that status.  Errors, log texts and progress
 * details are single lines, safe to print: control characters, bidirectional overrides and
 * bytes that are not UTF-8 appear as \n, \x1b or \u202e; a backslash stays.
 *
 * Files.  Output appears whole under its name or not at all.  Long operations write a directory
 * that the same call continues after an interruption, with the same bytes as without one. */
#ifndef VPTQ_H
#define VPTQ_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VPTQ_VERSION "0.1.0" /* major.minor.patch; the major number is that of the ABI */

#if defined(__GNUC__)
#define VPTQ_API               __attribute__((visibility("default")))
#define VPTQ_MUST_CHECK        __attribute__((warn_unused_result))
#define VPTQ_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define VPTQ_API
#define VPTQ_MUST_CHECK
#define VPTQ_PRINTF(fmt, args)
#endif
#define VPTQ_CALL VPTQ_API VPTQ_MUST_CHECK

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status and errors ------------------------------------------------------------------ */

typedef enum {
    VPTQ_OK = 0,
    VPTQ_E_ARG = 10,         /* an impossible argument or setting */
    VPTQ_E_SHAPE = 12,       /* shapes that do not match */
    VPTQ_E_IO = 20,          /* the system refused to open, read or write */
    VPTQ_E_EXISTS = 21,      /* the output exists and may not be replaced */
    VPTQ_E_FORMAT = 22,      /* a file is not what was expected */
    VPTQ_E_CHECKSUM = 24,    /* a file is damaged */
    VPTQ_E_LOCKED = 26,      /* another process works on the same output */
    VPTQ_E_MISMATCH = 28,    /* a valid file of another run or another model */
    VPTQ_E_NOMEM = 30,       /* out of memory, or over the cap */
    VPTQ_E_NUMERIC = 40,     /* NaN, infinity, or a matrix that is not positive definite */
    VPTQ_E_DEVICE = 50,      /* a device or its library failed */
    VPTQ_E_UNSUPPORTED = 60, /* valid, but not handled by this build */
    VPTQ_E_CANCELLED = 70    /* the cancel flag was raised; finished work is kept */
} vptq_status;

/* Untouched on success. */
typedef struct vptq_err {
    vptq_status code;
    char text[1024]; /* one sentence, always terminated */
} vptq_err;

/* VPTQ_VERSION of the library that is running. */
VPTQ_API const char *vptq_version(void);
/* Name of a status, "VPTQ_E_FORMAT"; static, never NULL. */
VPTQ_API const char *vptq_status_name(vptq_status st);
/* Writes a sentence and returns `code`, so that a callback can fail in one line. */
VPTQ_API vptq_status vptq_fail(vptq_err *err, vptq_status code, const char *fmt, ...)
    VPTQ_PRINTF(3, 4);
/* Puts "context: " before the sentence of a failure that is passed on, but not before that of
 * VPTQ_E_CANCELLED; returns its code. */
VPTQ_API vptq_status vptq_err_context(vptq_err *err, const char *fmt, ...) VPTQ_PRINTF(2, 3);

/* ---- Context ---------------------------------------------------------------------------- */

typedef struct vptq_ctx vptq_ctx;

/* Warnings that the user should act on, then what is shown by default, with -v, with -vv. */
typedef enum { VPTQ_LOG_WARN = 1, VPTQ_LOG_INFO, VPTQ_LOG_MORE, VPTQ_LOG_DEBUG } vptq_log_level;
typedef void (*vptq_log_fn)(void *user, vptq_log_level level, const char *text);

/* How far an operation is. */
typedef struct vptq_progress_info {
    const char *stage;    /* "quantize"; static.  Stages of one operation may take turns */
    const char *unit;     /* "matrices", or "matrix" if there is one; static */
    uint64_t done, total; /* units; total 0 = unknown */
    double share;         /* of the work that is done, 0 to 1, units weighted by their cost */
    const char *detail;   /* "layer 3 mlp.down_proj, loss 0.0123"; may be NULL */
} vptq_progress_info;
typedef void (*vptq_progress_fn)(void *user, const vptq_progress_info *info);

typedef struct vptq_ctx_options {
    int threads;         /* 0 = one per usable processor */
    uint64_t memory_cap; /* bytes of working memory; 0 = no cap.  Mapped files do not count */
    const char *backend; /* "cpu", "cuda", "ref"; NULL or "auto" = the fastest available */
    vptq_log_fn log;     /* may be NULL */
    vptq_progress_fn progress;           /* may be NULL */
    void *user;                          /* passed to both */
    const volatile sig_atomic_t *cancel; /* non-zero: VPTQ_E_CANCELLED soon; may be NULL */
    bool ranks; /* share the work with the other processes that mpirun started, if it did; all
                   of them make the same calls with the same options, in one thread */
    const char *build; /* a commit or the like, which tells builds of one version apart: ranks
                          with different ones refuse to work together; may be NULL; copied */
} vptq_ctx_options;

/* `options` may be NULL.  The backend is opened by the first operation that needs it. */
VPTQ_CALL vptq_status vptq_ctx_open(const vptq_ctx_options *options, vptq_ctx **ctx,
                                    vptq_err *err);
VPTQ_API void vptq_ctx_close(vptq_ctx *ctx);

/* This process among those that share the work, from 0, and their number: 0 and 1 for one
 * alone. Functions return the same on all.  Each process writes to its vptq_output, but only
 * what rank 0 writes is complete: a caller shows that alone. */
VPTQ_API void vptq_ctx_ranks(const vptq_ctx *ctx, int *rank, int *size);
/* Waits for all at the end, and whenever a caller has done something that may fail on some
 * only: VPTQ_OK if `st` is on all, else the failure of one of them, on all.  Afterwards a
 * failed run is over: other calls return VPTQ_E_CANCELLED. */
VPTQ_CALL vptq_status vptq_ctx_agree(vptq_ctx *ctx, vptq_status st, vptq_err *err);

/* Compares a text of the caller's, such as its options: VPTQ_E_MISMATCH on all if a process has
 * another one, with `what` ("the list of options") and both texts. */
VPTQ_CALL vptq_status vptq_ctx_same(vptq_ctx *ctx, const char *what, const char *text,
                                    vptq_err *err);

typedef struct vptq_backend_info {
    const char *name;     /* static */
    char device[256];     /* "AMD EPYC 7713, AVX2, 8 threads" */
    char libraries[1200]; /* "OpenBLAS 0.3.21 (SkylakeX)"; "" if no op uses one */
} vptq_backend_info;

/* Opens the backend if it is not open yet, and describes it; `info` may be NULL. */
VPTQ_CALL vptq_status vptq_ctx_backend(vptq_ctx *ctx, vptq_backend_info *info, vptq_err *err);

/* ---- Models and texts ------------------------------------------------------------------- */

typedef struct vptq_model vptq_model;

typedef struct vptq_model_options {
    const char *tokenizer; /* file; NULL = the model's own */
    const char *base;      /* of a work directory: where its model is now; NULL = as recorded */
    bool need_tokenizer;   /* fail if there is none.  Texts, chats and tasks need one */
    bool partial;          /* accept a work directory whose run has not finished */
    bool work_only;        /* VPTQ_E_ARG for `base` or `partial` with another kind of model */
} vptq_model_options;

/* Opens a model of any kind and checks that every tensor is present with its shape.  Weights
 * stay in the mapped file.  `options` may be NULL. */
VPTQ_CALL vptq_status vptq_model_load(vptq_ctx *ctx, const char *path,
                                      const vptq_model_options *options, vptq_model **m,
                                      vptq_err *err);
VPTQ_API void vptq_model_free(vptq_model *m);

/* Element types.  Options name the ones that they accept. */
/* clang-format off */
typedef enum {
    VPTQ_F32, VPTQ_F16, VPTQ_BF16, VPTQ_F64, VPTQ_I8, VPTQ_U8, VPTQ_I16, VPTQ_U16, VPTQ_I32,
    VPTQ_U32, VPTQ_I64, VPTQ_U64, VPTQ_BOOL, /* then block types of GGUF */ VPTQ_Q4_0,
    VPTQ_Q4_1, VPTQ_Q5_0, VPTQ_Q5_1, VPTQ_Q8_0, VPTQ_Q2_K, VPTQ_Q3_K, VPTQ_Q4_K, VPTQ_Q5_K,
    VPTQ_Q6_K, VPTQ_DTYPE_COUNT
} vptq_dtype;
/* clang-format on */

/* How a report or table is written. */
typedef enum {
    VPTQ_FORMAT_TEXT,
    VPTQ_FORMAT_JSON, /* one object per row and line */
    VPTQ_FORMAT_CSV,
    VPTQ_FORMAT_MD,
    VPTQ_FORMAT_HTML /* a page that needs no other file */
} vptq_format;

/* Receives the text of a report as it is written. */
typedef vptq_status (*vptq_write_fn)(void *arg, const char *text, size_t length, vptq_err *err);

/* Where the report of an operation goes, and in which form; a NULL pointer = nowhere. */
typedef struct vptq_output {
    vptq_format format;
    vptq_write_fn write;
    void *arg;      /* passed to write */
    uint32_t width; /* columns of the terminal that shows it: tables in text leave out minor
                       columns to fit, and name them; 0 = any */
} vptq_output;

VPTQ_API void vptq_human_seconds(char text[32], double seconds); /* "3 min 20 s" */

/* Time, memory and disk that a dry run expects of the run. */
typedef struct vptq_estimate {
    double seconds; /* from a second or two of its work on this machine; NAN = not estimated */
    uint64_t memory_bytes; /* peak, as vptq_ctx_options.memory_cap counts; 0 = not estimated */
    uint64_t disk_bytes;   /* that the run holds on the disk at most, about; 0 = none */
    uint64_t disk_free_bytes; /* where the output goes; 0 = unknown, or no output */
    char left_out[96]; /* what `seconds` does not count: "tuning, calibration"; "" = none */
} vptq_estimate;

/* A text as files.  All ids are joined in order, texts before token files.  Texts, recipes,
 * tasks and records may be compressed with gzip or zstd; these and token files may be pipes, or
 * "-": standard input.  A context reads a pipe once and keeps what it gave.  VPTQ_BUILTIN_TEXT
 * is the text that ships with the library; a file of that name is "./builtin". */
#define VPTQ_BUILTIN_TEXT "builtin"
typedef struct vptq_corpus_options {
    const char *const *texts; /* [text_count] UTF-8 files, each tokenized on its own */
    size_t text_count;
    const char *const *tokens; /* [token_count] files of ids, int32 little endian */
    size_t token_count;
    bool rows;  /* read each text as Hugging Face rows, a line each, joined by two newlines */
    bool lossy; /* replace what is not UTF-8, and zero bytes, with U+FFFD; false: VPTQ_E_FORMAT
                 */
} vptq_corpus_options;

/* ---- Hessians: second moments of the inputs of linear layers ---------------------------- */

/* Token weights: terms T, means over windows, that are mixed into the Hessians.  sink and
 * attention add one to that of k and v: nearly every query reads the key and value of a few
 * tokens that E[x x^T] counts as one in thousands. */
typedef enum {
    VPTQ_WEIGHTS_PLAIN,     /* no term */
    VPTQ_WEIGHTS_SINK,      /* x0 x0^T of the first token of each window */
    VPTQ_WEIGHTS_ATTENTION, /* sum_t a_t x_t x_t^T, a_t the mean over query heads and queries of
                               the squared attention probability that t receives */
    VPTQ_WEIGHTS_GUIDED,    /* for every linear layer E[w_t x_t x_t^T], w_t the mean squared
                               gradient of its outputs at t, clipped, with a mean of 1 */
    VPTQ_WEIGHTS_COUNT
} vptq_token_weights;

/* Parses "plain", "sink", "sink:0.3": the kind, and its factor c or the default: of H + c T,
 * and for guided weights of (1 - c) H + c T. */
VPTQ_CALL vptq_status vptq_token_weights_parse(const char *text, vptq_token_weights *weights,
                                               double *factor, vptq_err *err);

/* The calibration windows that a model runs over. */
typedef struct vptq_calibrate_options {
    vptq_corpus_options corpus;
    size_t windows; /* at most, drawn by `seed` if the text has more; at least 1 */
    size_t length;  /* tokens per window, at least 2; 0 = 2048, or the model's context if that
                       is shorter */
    uint64_t seed;
    double holdout; /* fraction of the windows kept out for measuring, rounded up; 0 = none */
    vptq_token_weights weights;
    bool sequential;   /* quantizing only: inputs have passed the quantized layers before */
    double correction; /* sequential: move targets to the original's outputs by at most this */
    double checkpoint_seconds; /* at least this long between checkpoints */
    size_t outputs;            /* windows for output Hessians (docs/encoder.md), 0 = none */
} vptq_calibrate_options;

typedef struct vptq_collect_options {
    vptq_calibrate_options calibrate;
    double factor;                    /* of the token weights; recorded as the default */
    uint32_t first_layer, last_layer; /* inclusive; last UINT32_MAX = the model's last */
    bool force;                       /* start over in a directory of another run */
    bool dry_run;                     /* report the plan, write nothing */
    const char *tool_version;         /* recorded; static */
} vptq_collect_options;

/* Collects one Hessian E[x x^T] per input of a linear layer into directory `dir`; held-out
 * windows go to "holdout" inside it, output Hessians to "outputs.safetensors".  Continues a
 * directory of the same model, text and settings; VPTQ_E_MISMATCH names the key that differs.
 * `dir` may be NULL in a dry run. */
VPTQ_CALL vptq_status vptq_hessians_collect(vptq_ctx *ctx, const vptq_model *m,
                                            const vptq_collect_options *opt, const char *dir,
                                            const vptq_output *out, vptq_err *err);

/* Pools [count] directories of the same model, layers and weights into `to`, weighted by
 * tokens.  `force` replaces a Hessian directory. */
VPTQ_CALL vptq_status vptq_hessians_merge(const vptq_ctx *ctx, const char *const *dirs,
                                          size_t count, const char *to, bool force,
                                          const vptq_output *out, vptq_err *err);

/* Makes the checks of vptq_hessians_merge, and reports what it would write, and the memory. */
VPTQ_CALL vptq_status vptq_hessians_plan_merge(const vptq_ctx *ctx, const char *const *dirs,
                                               size_t count, const char *to, bool force,
                                               const vptq_output *out, vptq_err *err);

/* Reports statistics and a verdict for every Hessian of a directory. */
VPTQ_CALL vptq_status vptq_hessians_show(vptq_ctx *ctx, const char *dir, const vptq_output *out,
                                         vptq_err *err);

/* Reads Hessians of other programs (docs/formats/hessians.md) into the new directory `dir`:
 * files LAYER_INPUT.pt or LAYER_INPUT.npy of a directory, or an imatrix file of llama.cpp. */
VPTQ_CALL vptq_status vptq_hessians_import(vptq_ctx *ctx, const char *from, const char *dir,
                                           bool force, const vptq_output *out, vptq_err *err);
/* Writes the Hessians of `dir` into the new directory `to` as PyTorch files: covariances or,
 * with `inverse`, factors of the damped inverses. */
VPTQ_CALL vptq_status vptq_hessians_export(vptq_ctx *ctx, const char *dir, bool inverse,
                                           const char *to, const vptq_output *out,
                                           vptq_err *err);

/* Makes the checks of vptq_hessians_export, and reports what it would write, and the memory. */
VPTQ_CALL vptq_status vptq_hessians_plan_export(const vptq_ctx *ctx, const char *dir,
                                                bool inverse, const char *to,
                                                const vptq_output *out, vptq_err *err);

/* ---- Settings: how a matrix is quantized ------------------------------------------------ */

typedef struct vptq_encoder_settings vptq_settings;

/* A setting by its key ("vector_length"), the value as text ("8", "true", "std"). */
typedef struct vptq_setting_text {
    const char *key, *value;
} vptq_setting_text;

typedef struct vptq_setting_info {
    const char *key, *help; /* static */
    const char *values;     /* "none|std|minmax", "true|false", "X" (number), "N" (integer) */
    bool stored;            /* decides what is stored, not only how it is searched */
    char best[64], upstream[64]; /* default of each encoder */
} vptq_setting_info;

/* Describes setting `i`; false when there are no more. */
VPTQ_API bool vptq_setting_describe(size_t i, vptq_setting_info *info);
/* VPTQ_E_ARG with the rule that the value breaks: "expected true or false". */
VPTQ_CALL vptq_status vptq_setting_check(const char *key, const char *value, vptq_err *err);

/* The settings of encoder "best" (this project's steps) or "upstream" (the published recipe;
 * NULL = "best"), then those of the preset (NULL = none), then the `count` given ones.  A given
 * `method` comes before the others and brings its defaults; VPTQ_E_ARG for an encoder with
 * another method than vptq, a preset of vptq with another method or the other way round, and
 * for a setting that the method does not use. */
VPTQ_CALL vptq_status vptq_settings_new(const char *encoder, const char *preset,
                                        const vptq_setting_text *given, size_t count,
                                        vptq_settings **settings, vptq_err *err);
VPTQ_API void vptq_settings_free(vptq_settings *settings);
/* Lists the presets: rows of the paper's tables, with their settings and bits per weight, and
 * the 8-bit models of a serving benchmark. */
VPTQ_CALL vptq_status vptq_presets_show(const vptq_output *out, vptq_err *err);

/* ---- Options in a file ------------------------------------------------------------------ */

/* Options of a command in a JSON object: {"model": "m.gguf", "bits": 2.2, "sequential": true,
 * "calibration": ["a.txt", "b.txt"]}.  The keys are names of options with "_" for "-". */
typedef struct vptq_config {
    vptq_setting_text *items; /* [count] in the file's order, one for each element of a list;
                                 without those that are null; value NULL: true or false */
    size_t count;
    void *memory;   /* of the texts */
    bool *is_false; /* [count] */
} vptq_config;

/* Reads a file, pipe or "-" (standard input), plain, gzip or zstd.  Which keys there may be is
 * the caller's business.  Release with vptq_config_free. */
VPTQ_CALL vptq_status vptq_config_read(const char *path, vptq_config *c, vptq_err *err);
VPTQ_API void vptq_config_free(vptq_config *c);
/* Writes such a file.  VPTQ_E_EXISTS without `force` if there is one with other options. */
VPTQ_CALL vptq_status vptq_config_write(const char *path, const vptq_setting_text *items,
                                        size_t count, bool force, vptq_err *err);

/* ---- Quantizing a model ----------------------------------------------------------------- */

/* How a bit budget becomes settings. */
typedef enum {
    VPTQ_ALLOCATE_UNIFORM, /* one setting for all matrices: the best one that fits */
    VPTQ_ALLOCATE_PROXY,   /* per matrix, by predicted losses weighted by its size */
    VPTQ_ALLOCATE_KL,      /* per matrix, by the effect of its errors on the model's output */
    VPTQ_ALLOCATE_AUTO     /* KL; PROXY for models with experts and in a dry run */
} vptq_allocate_mode;

/* Scope of a budget: the weights over which `bits` is an average. */
typedef enum {
    VPTQ_BUDGET_MATRICES, /* the quantized matrices */
    VPTQ_BUDGET_FILE      /* all weights of the packed file, those that stay plain as well */
} vptq_budget;

typedef struct vptq_tune_options vptq_tune_options;

typedef struct vptq_quantize_options {
    const char *model;    /* path */
    const char *work;     /* directory to make or to continue */
    const char *hessians; /* directory; NULL = calibrate in this run */
    const char *held_out; /* to report losses on; NULL = the held-out part of `hessians` */
    const vptq_calibrate_options *calibrate; /* instead of `hessians` */
    double kv_factor; /* of token weights; 0 = none, NAN = as recorded in `hessians`, or the
                    default of calibrate->weights */
    bool no_outputs;  /* do without the output Hessians of `hessians` */
    const char *tokenizer;         /* file; NULL = the model's own */
    const vptq_settings *settings; /* of every matrix; NULL = encoder "best", v 4, k 256 */
    const char *recipe;            /* JSON rules that override them per matrix, or leave
                                      matrices in 16 bits; NULL = none */
    double bits; /* budget per weight: chooses v, k, k_res where no recipe does; 0 = none */
    vptq_budget budget;
    vptq_dtype embeddings; /* VPTQ_BUDGET_FILE, `packs`: in which vptq_pack will store
                              embedding and head; other plain tensors take 16 bits */
    vptq_allocate_mode allocate;
    const vptq_corpus_options *allocate_text; /* of KL and AUTO; not the evaluation text */
    size_t allocate_windows, allocate_length; /* of it, and tokens of each; e.g. 2, 512 */
    uint32_t first_layer, last_layer; /* inclusive; last UINT32_MAX = the model's last */
    bool force;                       /* start over in a directory of other settings */
    bool dry_run;                     /* report shapes and bits only */
    bool predict;                     /* in a dry run: also the time that a GPU would take */
    bool no_size_warnings;            /* do not warn about codebooks too large for a matrix, nor
                                         about tensors that the model does not use */
    /* NULL, or to tune the result: quantizing then writes work/untuned, which stays, and tuning
     * writes `work`.  Model, directories, tokenizer and force are those of this run, not of
     * *tune.  A dry run only checks it, and reads its text: bits and shapes stay. */
    const vptq_tune_options *tune;
    bool estimate; /* in a dry run: also time, memory and disk, from a second or two of work */
    bool packs;    /* the result will be packed, as by vptq_convert: settings that packing
                      refuses are errors, and the estimate has the disk for it */
    bool no_shared_dir; /* several ranks: those on other machines do not see `work` of rank 0,
                           which gets their matrices as messages; not with `tune` */
    bool packs_dir;     /* with `packs`: as a packed directory, not an archive */
    /* NULL, or for `estimate` the time and memory of measuring a packed copy afterwards. */
    const vptq_estimate *measuring;
} vptq_quantize_options;

/* Options with their defaults: all layers, NAN where that means "as recorded". */
VPTQ_API vptq_quantize_options vptq_quantize_defaults(void);

enum { VPTQ_DIGEST_SIZE = 71 }; /* "vptq1:", 64 hexadecimal digits and a 0 */

typedef struct vptq_quantize_result {
    uint32_t matrices, reused;
    double bits_per_weight;          /* all stored bits of the quantized matrices */
    double file_bits_per_weight;     /* of the packed weights, all weights of the model */
    double mean_loss, mean_held_out; /* the latter 0 without held-out Hessians */
    bool diagonal;                   /* both under the diagonals of Hessians */
    double predicted_loss;           /* mean of the rows' predictions; NAN = one is unknown */
    double predicted_kld;            /* 0 without VPTQ_ALLOCATE_KL */
    uint64_t packed_bytes;           /* expected size of the packed weights */
    double seconds;
    /* options.predict: of the whole run, and of its calibration */
    double predicted_seconds, predicted_calibration;
    char digest[VPTQ_DIGEST_SIZE]; /* as of vptq_digest; "" while matrices are missing */
    vptq_estimate estimate;        /* of a dry run */
    uint32_t skipped;              /* matrices that the recipe leaves in 16 bits */
} vptq_quantize_result;

/* Quantizes the linear layers of a model into a work directory, matrix by matrix, and reports a
 * row for each.  Locks the directory and continues one of the same model, Hessians and
 * settings; VPTQ_E_MISMATCH names the key that differs.  `result` may be NULL. */
VPTQ_CALL vptq_status vptq_quantize(vptq_ctx *ctx, const vptq_quantize_options *opt,
                                    const vptq_output *out, vptq_quantize_result *result,
                                    vptq_err *err);

/* ---- Tuning a quantized model ----------------------------------------------------------- */

/* Layer: one layer after another follows the original's hidden states.  End to end: all of them
 * follow its output. */
typedef enum {
    VPTQ_TUNE_LAYER = 1,
    VPTQ_TUNE_E2E = 2,
    VPTQ_TUNE_LAYER_E2E = VPTQ_TUNE_LAYER | VPTQ_TUNE_E2E /* in this order */
} vptq_tune_method;

struct vptq_tune_options {
    vptq_tune_method method;
    const char *from;      /* work directory of vptq_quantize, or of a tuning run */
    const char *model;     /* the original; NULL = where `from` says that it is */
    const char *work;      /* directory to make or to continue */
    const char *tokenizer; /* file; NULL = the model's own */
    vptq_corpus_options corpus;
    /* Windows of the text at most, held-out ones included, and tokens of each; 0 windows: as
     * many as the steps (layers alone: the default ones) take if none comes twice. */
    size_t windows, length;
    /* Windows besides them that the original writes itself, to train on.  With 0 windows of the
     * text they take the place of as many; held-out ones are always of the text. */
    size_t self_windows;
    double holdout;  /* share of the text's windows that choose what is kept, above 0; NAN: a
                        sixteenth, at most 32 windows */
    uint32_t steps;  /* end to end */
    uint32_t passes; /* of a layer over all windows */
    size_t batch;    /* windows of a step */
    double rate;     /* largest step, relative to a codebook's size; NAN: from how many numbers
                        are trained and the loss before the first step */
    bool bf16;       /* gradients from numbers rounded to bfloat16; faster with AMX only */
    uint64_t seed;
    bool force;   /* start over in a directory of another run */
    bool dry_run; /* report the plan and an estimate, write nothing; `work` may be NULL */
};

/* Options with their defaults; the caller sets method, directories and text. */
VPTQ_API vptq_tune_options vptq_tune_defaults(void);

typedef struct vptq_tune_result {
    uint32_t steps; /* end to end */
    /* The following is 0 or NAN of a directory that was finished before, and of a method that
     * does not have it. */
    uint32_t layers;                      /* that were tuned */
    double layer_loss_before, layer_loss; /* their mean losses on the held-out windows */
    uint32_t best_step;               /* whose numbers are kept; 0 = those before the first */
    double rate;                      /* largest step end to end */
    size_t windows, held_out_windows; /* to train on, and others */
    double held_out_before, held_out; /* mean divergence of the held-out windows */
    double changed;                   /* share of the stored numbers */
    double seconds;
    char digest[VPTQ_DIGEST_SIZE]; /* as of vptq_digest */
    /* Of a dry run, whose `layers` are those that are left, and `steps` all or none. */
    vptq_estimate estimate;
} vptq_tune_result;

/* Trains what a quantized model stores, codebooks, scales and biases, so that it follows
 * its original: layout and bits stay.  Reports a row for each layer and step.  `result` may be
 * NULL. */
VPTQ_CALL vptq_status vptq_tune(vptq_ctx *ctx, const vptq_tune_options *opt,
                                const vptq_output *out, vptq_tune_result *result,
                                vptq_err *err);

/* ---- Packing, unpacking, listing, checking ---------------------------------------------- */

typedef enum {
    VPTQ_PACK_HF,      /* directory in the published VPTQ layout; unpacked: a plain one */
    VPTQ_PACK_ARCHIVE, /* one .vptq file; vptq_pack only */
    VPTQ_PACK_GGUF     /* one GGUF file; vptq_unpack only */
} vptq_pack_form;

typedef struct vptq_pack_options {
    const char *input, *output; /* paths; output may be NULL in a dry run */
    const char *base;      /* of a work directory: where its model is now; NULL = as recorded */
    const char *tokenizer; /* file; NULL = the model's own */
    vptq_pack_form form;
    vptq_dtype dtype; /* F16, BF16, to unpack F32, of a GGUF file also Q4_0 to Q6_K, for linear
                         layers; to pack VPTQ_DTYPE_COUNT = as quantized */
    vptq_dtype embeddings; /* archive, GGUF: of embedding and output head; F16, BF16, F32, Q8_0
                              or Q6_K; VPTQ_DTYPE_COUNT = as the other plain tensors,
                              F16 next to blocks */
    uint64_t shard_bytes;  /* largest weights file of a directory; 0 = 4 GiB */
    uint32_t level;        /* archive: zstd level 1 to 22; 0 = chosen by kind of tensor */
    bool repair;           /* vptq_pack: reports what rewriting a packed input repaired */
    bool lm_head;          /* vptq_pack: also store a tied output head, for package `vptq` */
    bool partial;          /* accept a work directory whose run has not finished */
    bool force, dry_run;
    const char *card; /* vptq_pack: README.md, in place of the original's; NULL = that one */
} vptq_pack_options;

/* Writes a work directory, or any quantized model, as a packed directory or an archive. */
VPTQ_CALL vptq_status vptq_pack(const vptq_ctx *ctx, const vptq_pack_options *opt,
                                const vptq_output *out, vptq_err *err);
/* Writes any model as a plain Hugging Face directory or a GGUF file, with its tokenizer. */
VPTQ_CALL vptq_status vptq_unpack(vptq_ctx *ctx, const vptq_pack_options *opt,
                                  const vptq_output *out, vptq_err *err);

typedef struct vptq_kld_options vptq_kld_options;

/* From a model to a packed one, with a model card (README.md). */
typedef struct vptq_convert_options {
    const vptq_quantize_options *quantize; /* its `work` and `force` are not used */
    const vptq_pack_options *pack; /* its `input`, `card` and `dry_run` are not used; `force`
                                      replaces the output and work of other settings */
    const char *command;           /* as it was typed, for the card; NULL = not known */
    bool keep_work;                /* keep the work directory, OUTPUT.work, afterwards */
    /* Corpus, context and windows on which the packed model is compared with its original, for
     * the card; other members are not used.  NULL = not measured. */
    const vptq_kld_options *measure;
} vptq_convert_options;

/* Quantizes into OUTPUT.work, which the same call continues after an interruption, packs it and
 * removes it.  VPTQ_E_EXISTS before any work if the output exists and may not be replaced. With
 * quantize->dry_run as vptq_quantize: the output may be NULL, and what packing would refuse
 * about settings, tokenizer and output fails. */
VPTQ_CALL vptq_status vptq_convert(vptq_ctx *ctx, const vptq_convert_options *opt,
                                   const vptq_output *out, vptq_err *err);

/* Lists every matrix and tensor of a model with its bits.  `open` may be NULL. */
VPTQ_CALL vptq_status vptq_list(const vptq_ctx *ctx, const char *path,
                                const vptq_model_options *open, const vptq_output *out,
                                vptq_err *err);
/* Checks every byte of a model, and whether other programs can load it.  VPTQ_OK if it could be
 * checked; *errors (may be NULL) = the faults that were found. */
VPTQ_CALL vptq_status vptq_check(vptq_ctx *ctx, const char *path,
                                 const vptq_model_options *open, const vptq_output *out,
                                 uint32_t *errors, vptq_err *err);

/* Digest of a packed directory, an archive or a finished work directory, the same for all forms
 * of a model (docs/formats.md).  `open`, `out` and `digest` may be NULL. */
VPTQ_CALL vptq_status vptq_digest(const vptq_ctx *ctx, const char *path,
                                  const vptq_model_options *open, const vptq_output *out,
                                  char digest[VPTQ_DIGEST_SIZE], vptq_err *err);

/* ---- Perplexity ------------------------------------------------------------------------- */

typedef enum {
    VPTQ_PPL_GPTQ,     /* every token of a window after its first is scored */
    VPTQ_PPL_LLAMA_CPP /* the second half is; BOS replaces the first token if there is one */
} vptq_ppl_protocol;

typedef struct vptq_ppl_options {
    vptq_corpus_options corpus; /* each file is measured on its own */
    bool join;                  /* measure all files as one text */
    const char *documents;      /* separator of documents to score alone; NULL = windows */
    size_t document_limit;      /* documents at most, before skipping long ones; 0 = all */
    size_t context; /* tokens per window; 0 = 2048, or the model's context if that is shorter */
    size_t windows; /* at most; 0 = all */
    size_t stride;  /* tokens between window starts, each scored once; 0 = context */
    vptq_ppl_protocol protocol;
    const char *dump; /* file for the losses of all scored tokens, double; NULL = none */
    bool force;       /* replace it */
    bool dry_run;     /* fill windows, tokens, bytes, skipped and bits_per_weight only */
} vptq_ppl_options;

typedef struct vptq_ppl_result {
    double ppl, ppl_stderr;    /* standard error of the mean NLL times ppl */
    double nll;                /* mean over the scored tokens, nats */
    uint64_t tokens;           /* scored */
    uint64_t bytes;            /* of the text that they stand for; 0 = unknown (token files) */
    double bits_per_byte;      /* NAN = unknown */
    uint64_t windows, skipped; /* or documents; those longer than the context */
    size_t context;
    double seconds, tokens_per_second;
    double bits_per_weight; /* of the model's linear layers as stored */
    vptq_estimate estimate; /* of a dry run */
} vptq_ppl_result;

/* Perplexity of a model on texts.  `results` (may be NULL) has one for each text.
 * VPTQ_E_FORMAT: a text is shorter than one window; VPTQ_E_NUMERIC names the window whose loss
 * is not finite. */
VPTQ_CALL vptq_status vptq_perplexity(vptq_ctx *ctx, const vptq_model *m,
                                      const vptq_ppl_options *opt, const vptq_output *out,
                                      vptq_ppl_result *results, vptq_err *err);
/* Writes the ids that vptq_perplexity would read, a line each, texts and documents apart. */
VPTQ_CALL vptq_status vptq_tokenize(vptq_ctx *ctx, const vptq_model *m,
                                    const vptq_ppl_options *opt, const vptq_output *out,
                                    vptq_err *err);

/* ---- Divergence from the original ------------------------------------------------------- */

/* Ids that saved base logits keep of every token: the most likely ones, or all. */
typedef enum { VPTQ_KLD_BASE_COMPACT, VPTQ_KLD_BASE_FULL } vptq_kld_base_precision;

enum {
    VPTQ_KLD_TOP = 1024,         /* ids that a compact saved base keeps by default */
    VPTQ_KLD_BASE_NAME_MAX = 63, /* bytes of a saved base's name */
    VPTQ_KLD_LEVELS = 10,
    VPTQ_DELTA_LEVELS = 13
};

struct vptq_kld_options {
    vptq_corpus_options corpus;
    size_t context, windows; /* as vptq_ppl_options */
    vptq_ppl_protocol protocol;
    const char *base_file; /* saved base logits; an empty corpus or context 0 are as saved */
    bool any_protocol;     /* with base_file: the saved protocol */
    const char *save_base; /* file to save the base logits in; NULL = none */
    bool force;            /* replace it */
    vptq_kld_base_precision precision;
    size_t top;   /* ids that a compact saved base keeps per token */
    bool dry_run; /* fill tokens, windows, context, protocol and an estimate only */
};

/* _stderr: standard error of the figure before it, over tokens; 0 for one token. */
typedef struct vptq_kld_result {
    double mean_kld, kld_stderr; /* KL(original || model) per token, nats */
    double kld[VPTQ_KLD_LEVELS]; /* max, p99.9, p99, p95, p90, median, p10, p5, p1, min */
    double same_top1, same_top1_stderr; /* fraction of tokens with the same likeliest id */
    double ppl, ppl_stderr, ppl_base, ppl_base_stderr;
    double ln_ppl_correlation; /* of the losses per token; NAN = all are equal */
    double ln_ppl_ratio, ln_ppl_ratio_stderr, ppl_ratio, ppl_ratio_stderr;
    double ppl_difference, ppl_difference_stderr; /* model minus base */
    double mean_delta_p, delta_p_stderr; /* probability of the right token, model minus base */
    double delta_p[VPTQ_DELTA_LEVELS];   /* as kld, with p75 and p25 and with p0.1 */
    double rms_delta_p, rms_delta_p_stderr;
    double base_tail; /* mean probability outside the saved ids, which count as one id */
    char base_name[VPTQ_KLD_BASE_NAME_MAX + 1], base_fingerprint[17]; /* saved base, else "" */
    uint64_t tokens, windows;
    size_t context;
    vptq_ppl_protocol protocol;
    double seconds;
    vptq_estimate estimate; /* of a dry run */
} vptq_kld_result;

/* Divergence of `m` from its original `base` over the tokens that vptq_perplexity scores.  m
 * NULL: only saves the base logits.  base NULL: reads saved ones.  VPTQ_E_MISMATCH: other
 * shapes, vocabularies, tokenizers, or a saved base of another text or protocol. */
VPTQ_CALL vptq_status vptq_divergence(vptq_ctx *ctx, const vptq_model *m,
                                      const vptq_model *base, const vptq_kld_options *opt,
                                      const vptq_output *out, vptq_kld_result *result,
                                      vptq_err *err);

/* ---- Choice tasks ----------------------------------------------------------------------- */

/* A JSON Lines file of ARC, OpenBookQA, PIQA, HellaSwag, WinoGrande, COPA, BoolQ or LAMBADA, or
 * of {query, choices, gold}; scored as lm-evaluation-harness does. */
typedef struct vptq_task {
    const char *name, *path; /* the name of a known set must be that of the file */
} vptq_task;

typedef struct vptq_task_options {
    const vptq_task *tasks;
    size_t task_count;
    const char *delimiter; /* between query and choice of {query, choices, gold} */
    size_t limit;          /* the first items only; 0 = all */
    size_t context; /* tokens per request at most, the last ones; 0 = the model's context */
    const char *samples; /* file for a JSON line per item of the finished tasks; NULL = none */
    bool force;          /* replace it */
    bool dry_run;        /* fill items, requests, rows and rows_saved only */
} vptq_task_options;

/* Means over items with their standard errors (NAN for one item).  acc: the choice with the
 * largest log-likelihood is right; acc_norm: with the largest per character (NAN where that
 * says nothing); perplexity: of the right continuation (NAN for items with choices). */
typedef struct vptq_task_figures {
    double acc, acc_stderr, acc_norm, acc_norm_stderr, perplexity, perplexity_stderr;
    uint64_t items, requests, rows, rows_saved; /* rows: tokens that ran, that sharing saved */
    double seconds;
} vptq_task_figures;

typedef struct vptq_task_agreement {
    double same, same_stderr;                /* fraction of items with the same choice */
    double same_norm, same_norm_stderr;      /* by acc_norm; NAN as that */
    uint64_t right_to_wrong, wrong_to_right; /* by acc, from the base to the model */
} vptq_task_agreement;

typedef struct vptq_task_result {
    vptq_task_figures model, base;
    vptq_task_agreement agreement;
} vptq_task_result;

/* Scores tasks by `m` and, if `base` is not NULL, by its original; `results` has one per task.
 * Reads all files first; if a task fails, those before it are still written. */
VPTQ_CALL vptq_status vptq_score_tasks(vptq_ctx *ctx, const vptq_model *m,
                                       const vptq_model *base, const vptq_task_options *opt,
                                       const vptq_output *out, vptq_task_result *results,
                                       vptq_err *err);

/* ---- Error of quantized matrices -------------------------------------------------------- */

typedef enum {
    VPTQ_ERROR_ORDER_FORMAT, /* CSV and JSON by layer, formats for people worst first */
    VPTQ_ERROR_ORDER_WORST,  /* falling output error, or weight error without Hessians */
    VPTQ_ERROR_ORDER_LAYER
} vptq_error_order;

typedef struct vptq_error_options {
    const char *hessians; /* directory; NULL = errors of weights only */
    uint32_t first_layer, last_layer;
    vptq_error_order order;
    size_t top;   /* rows at most; 0 = all.  Means are over all */
    bool dry_run; /* check, and report an estimate only */
} vptq_error_options;

/* Compares every quantized matrix of `m` with that of `base`. */
VPTQ_CALL vptq_status vptq_measure_error(vptq_ctx *ctx, const vptq_model *m,
                                         const vptq_model *base, const vptq_error_options *opt,
                                         const vptq_output *out, vptq_err *err);

/* ---- Generating text -------------------------------------------------------------------- */

typedef struct vptq_chat_options {
    const char *template_file; /* Jinja; NULL = the model's own */
    const char *system;        /* first message; NULL = none */
    const char *messages; /* JSON file: messages, or variables with "messages"; NULL = none */
    const char *user;     /* last message; NULL = none */
    const char *date;     /* YYYY-MM-DD[Thh:mm:ss] for templates that use it; NULL = none */
    const char *const *args; /* [arg_count] "NAME=JSON": template variables */
    size_t arg_count;
} vptq_chat_options;

typedef struct vptq_generate_options {
    const char *prompt;            /* text to continue */
    const vptq_chat_options *chat; /* instead of `prompt`; NULL = none */
    size_t tokens;                 /* new ones at most; 0 = until the model's context is full */
    double temperature;            /* 0 = the likeliest token */
    double top_p; /* draw from the likeliest tokens that sum to this; 1 = all */
    uint64_t seed;
    bool special; /* special tokens of the prompt become ids, and are shown in the output */
    bool ignore_eos;
    const char *const *stops; /* [stop_count] not empty: the text ends before the first */
    size_t stop_count;
    bool printable; /* VPTQ_FORMAT_TEXT: escape as errors do, but for newlines and tabs */
    bool dry_run;   /* only write the prompt, its ids and an estimate */
    const char *prompt_file; /* text instead of `prompt`, or of the chat's `user`, but for one
                                newline at its end; NULL = none */
    bool lossy;              /* prompt_file: as vptq_corpus_options.lossy */
} vptq_generate_options;

typedef enum {
    VPTQ_STOPPED_BY_LENGTH, /* `tokens`, or the context */
    VPTQ_STOPPED_BY_END,    /* a stop token */
    VPTQ_STOPPED_BY_STRING,
    VPTQ_STOPPED_BY_CANCEL
} vptq_stop_reason;

typedef struct vptq_generate_result {
    vptq_stop_reason reason;
    size_t prompt_tokens, new_tokens;                   /* the stop token included */
    double tokens_per_second, prompt_tokens_per_second; /* the former of single steps */
} vptq_generate_result;

/* Continues a prompt.  VPTQ_FORMAT_TEXT writes it and new text as it comes, VPTQ_FORMAT_JSON
 * one object at the end.  `result` may be NULL; it is also filled when the run is cancelled.
 * VPTQ_E_ARG: the prompt does not fit into the model's context. */
VPTQ_CALL vptq_status vptq_generate(vptq_ctx *ctx, const vptq_model *m,
                                    const vptq_generate_options *opt, const vptq_output *out,
                                    vptq_generate_result *result, vptq_err *err);

/* ---- Benchmarks ------------------------------------------------------------------------- */

typedef struct vptq_gemv_pair {
    uint32_t a, b;
} vptq_gemv_pair;

typedef enum {
    VPTQ_GEMV_COLD, /* every call takes the next of several copies that no cache holds */
    VPTQ_GEMV_WARM, /* every call takes the same copy */
    VPTQ_GEMV_CHAIN /* cold; AxB stands for a block: four matrices AxA, two AxB, one BxA */
} vptq_gemv_cache;

typedef struct vptq_gemv_options {
    const vptq_gemv_pair *shapes, *codebooks; /* in, out; k, k_res.  Count 0: as published */
    size_t shape_count, codebook_count;
    const uint32_t *batch; /* [batch_count] rows of activations; count 0: 1 */
    size_t batch_count;
    uint32_t v;
    vptq_dtype dtype; /* of the dense matrix and of codebooks; F16 or BF16 */
    vptq_gemv_cache cache;
    bool sequential; /* codes 0, 1, 2 ... as in the published benchmark; else random */
    bool grid;       /* codebooks on an int8 grid */
    double seconds;  /* per row, approximately */
    uint64_t seed;
} vptq_gemv_options;

/* Times products with packed matrices against dense ones, by codebooks, shapes and batches. */
VPTQ_CALL vptq_status vptq_gemv(vptq_ctx *ctx, const vptq_gemv_options *opt,
                                const vptq_output *out, vptq_err *err);

enum { VPTQ_SERVE_NAME = 64 }; /* bytes */

typedef struct vptq_serve_model {
    char name[VPTQ_SERVE_NAME];
    vptq_model *model; /* loaded with need_tokenizer */
} vptq_serve_model;

typedef struct vptq_serve_options {
    const vptq_serve_model *models;
    size_t model_count;
    /* "BATCH,INPUT,OUTPUT" or published names; count 0: those of the published ones that fit
     * into the context of every model, or all with allow_long */
    const char *const *configs;
    size_t config_count;
    uint32_t runs, warmup; /* per model and configuration */
    vptq_dtype kv;         /* type of keys and values, F16 or F32 */
    uint64_t seed;
    bool allow_long;     /* sequences may exceed a model's context */
    const char *records; /* file with a JSON line per run, to continue; NULL = none */
    bool force;          /* empty the file first */
    bool dry_run;        /* only write the memory that each run needs, and an estimate of all */
} vptq_serve_options;

/* Times batches of random prompts that all models answer in turn: run 1 of every model, then
 * run 2.  Checks names, lengths and memory before the first run. */
VPTQ_CALL vptq_status vptq_serve(vptq_ctx *ctx, const vptq_serve_options *opt,
                                 const vptq_output *out, vptq_err *err);

typedef struct vptq_compare_options {
    const char *const *records; /* [count] files of vptq_serve */
    size_t count;
    const char *original; /* model that the others are compared with; NULL = "original" */
    const char *source;   /* what the report says it was generated from */
    bool classic;         /* layout of the published report; Markdown only */
    bool dry_run;         /* make the report, and write only an estimate */
    const char *output;   /* file that a dry run counts the disk of; NULL = none */
} vptq_compare_options;

/* Compares served models. */
VPTQ_CALL vptq_status vptq_compare(vptq_ctx *ctx, const vptq_compare_options *opt,
                                   const vptq_output *out, vptq_err *err);

/* ---- Ablation tables -------------------------------------------------------------------- */

typedef struct vptq_ablate_options {
    const char *model, *tokenizer; /* tokenizer may be NULL */
    const char *dir;               /* directory of the table, to make or to continue */
    const char *hessians; /* directory; NULL = DIR/hessians, collected as `collect` says */
    vptq_collect_options collect; /* its layers are those of all rows */
    const char *rows;             /* file: a JSON list of rows; "methods": all methods at 2, 3,
                                     4 and 8 bits; NULL = the paper's Table 10 */
    const char *const *only; /* [only_count] names, labels, numbers ("4", "2-10"); none = all */
    size_t only_count;
    const char *encoder; /* of all rows, and settings before their own */
    const vptq_setting_text *given;
    size_t given_count;
    vptq_ppl_options ppl;          /* each file of its corpus, at least one, is a column */
    bool kld;                      /* divergence from the original on the same texts */
    const vptq_task *tasks;        /* [task_count] accuracies, a column each */
    size_t task_count, task_limit; /* limit: the first items only; 0 = all */
    const char *serve; /* "BATCH,INPUT,OUTPUT" or a published name: tokens per second, median of
                          three runs, and peak memory; NULL = not served */
    bool keep_packed;  /* keep the archive of every row in DIR/packed */
    bool no_seconds;   /* leave out timings and `serve`: the same bytes from every run */
    bool force;        /* quantize rows of other settings again */
    bool dry_run;      /* bits of all rows, and an estimate; needs no directory */
} vptq_ablate_options;

/* Quantizes every row, tunes it where it says so, packs and measures it, and writes the table
 * at the end.  Rows are tuned on the text of `collect`. */
VPTQ_CALL vptq_status vptq_ablate(vptq_ctx *ctx, const vptq_ablate_options *opt,
                                  const vptq_output *out, vptq_err *err);

/* ---- Files ------------------------------------------------------------------------------ */

/* A file that replaces `path` when committed; VPTQ_E_EXISTS without `force` if it exists. */
typedef struct vptq_writer vptq_writer;
VPTQ_CALL vptq_status vptq_writer_open(const char *path, bool force, vptq_writer **w,
                                       vptq_err *err);
/* Makes the checks of vptq_writer_open, and writes nothing. */
VPTQ_CALL vptq_status vptq_writer_check(const char *path, bool force, vptq_err *err);
VPTQ_CALL vptq_status vptq_writer_write(vptq_writer *w, const void *data, size_t bytes,
                                        vptq_err *err);
VPTQ_CALL vptq_status vptq_writer_commit(vptq_writer *w, vptq_err *err);
VPTQ_API void vptq_writer_close(vptq_writer *w); /* without a commit, nothing appears */
/* Creates the folder of `path` and its parents where they are missing, as vptq_writer_open. */
VPTQ_CALL vptq_status vptq_make_parents(const char *path, vptq_err *err);
/* VPTQ_E_ARG if both are the same file, so that writing `output` would replace `input`. */
VPTQ_CALL vptq_status vptq_check_output(const char *output, const char *input, vptq_err *err);

#ifdef __cplusplus
}
#endif
#endif
