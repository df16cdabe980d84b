/* Internal to lib/ablate: a run of an ablation and one of its rows; figures.c measures what
 * ablate.c quantizes. */
#ifndef VPTQ_ABLATE_INTERNAL_H
#define VPTQ_ABLATE_INTERNAL_H

#include <limits.h>

#include "formats/json.h"
#include "lib/ablate/ablate.h"
#include "lib/bench/serve.h"

enum { VPTQ_ABLATE_SPEEDS = 16 };

/* Sums of a dry run over the rows. */
typedef struct vptq_ablate_plan {
    struct {
        uint32_t method;
        double seconds; /* per cost of a matrix (lib/quantize/quantize.h) */
    } speed[VPTQ_ABLATE_SPEEDS];
    size_t speeds;
    double seconds, memory; /* of quantizing; memory is the most that a row takes */
    double disk, packed;    /* bytes of work directories, and of archives */
    size_t quantized;       /* rows */
    bool tuned;             /* some of them are */
} vptq_ablate_plan;

/* One measurement of all texts, or of all tasks. */
typedef struct vptq_ablate_passes {
    double tokens, scored;
    size_t length; /* of a sequence */
} vptq_ablate_passes;

typedef struct vptq_ablation {
    vptq_device *dev;
    const vptq_ablate_options *opt;
    vptq_ablate_report *report;
    vptq_ablate_row *rows; /* [report->count] */
    const char *hessians;
    char hessian_path[PATH_MAX];
    uint64_t *text_hash; /* [texts] of the content, its ids and the scoring options */
    uint64_t *task_hash; /* [tasks] of name, content, its ids and limit */
    char tokenizer[17];  /* hash of its files */
    vptq_ablate_passes text_passes, task_passes;
    vptq_serve_config serve;
    vptq_model original; /* open when a row has been compared with it */
    bool has_original;
    bool all_layers;
    bool estimates; /* a dry run that prints an estimate */
    vptq_ablate_plan plan;
} vptq_ablation;

/* A row that is being run. */
typedef struct vptq_ablate_job {
    vptq_ablation *a;
    const vptq_ablate_row *row;
    vptq_ablate_result *result;
    char work[PATH_MAX], tuned[PATH_MAX], packed[PATH_MAX], file[PATH_MAX];
    char made_of[17]; /* hash of what the row is made of, or the original's fingerprint */
    json_t *doc;      /* the row file; its key "scores" is an object */
} vptq_ablate_job;

vptq_status vptq_ablate_no_memory(vptq_err *err);
/* doc[key] = x, or null if x is not finite; false when out of memory. */
bool vptq_ablate_set_real(json_t *doc, const char *key, double x);

/* With a tokenizer if a figure needs one. */
vptq_status vptq_ablate_open_model(const vptq_ablation *a, const char *path, vptq_model *model,
                                   vptq_err *err) VPTQ_MUST_CHECK;

/* Checks, hashes and counts texts and tasks, as the original `m` reads them, before anything is
 * measured.  VPTQ_E_ARG, or errors of reading them. */
vptq_status vptq_ablate_plan_figures(vptq_ablation *a, const vptq_model *m,
                                     vptq_err *err) VPTQ_MUST_CHECK;
/* Reads the figures of the row file into the result; false if one is missing. */
bool vptq_ablate_has_figures(const vptq_ablate_job *m);
/* Measures the model at `path` in every way that the row file has no figures of, and saves the
 * file after each. */
vptq_status vptq_ablate_measure(vptq_ablate_job *m, const char *path,
                                vptq_err *err) VPTQ_MUST_CHECK;
void vptq_ablate_release_original(vptq_ablation *a);
/* *hash = hash of itself and what is read, which does not depend on compression. */
vptq_status vptq_ablate_hash_input(const vptq_ablation *a, const char *path,
                                   vptq_text_kind kind, uint64_t *hash,
                                   vptq_err *err) VPTQ_MUST_CHECK;

/* ---- same.c ---- */

/* Agrees that all ranks have the same rows and texts: results are files, which one rank writes
 * and another reads. */
vptq_status vptq_ablate_check_same(const vptq_ablation *a, vptq_err *err) VPTQ_MUST_CHECK;

/* ---- estimate.c ---- */

/* Costs of the matrices of a row (lib/quantize/quantize.h), and bytes of its work directory. */
typedef struct vptq_ablate_cost {
    double cost;
    uint64_t work_bytes;
} vptq_ablate_cost;
/* A vptq_quantize_fn that adds a matrix to the vptq_ablate_cost `arg`. */
vptq_status vptq_ablate_add_cost(void *arg, const vptq_quantize_row *row, vptq_err *err);
/* Seconds per cost that an earlier row with the same method has shown, or 0; rows with a recipe
 * may have several. */
double vptq_ablate_speed(const vptq_ablation *a, const vptq_ablate_row *row);
/* Adds a planned row; r->estimate is read if its speed is not known. */
void vptq_ablate_add_row(vptq_ablation *a, const vptq_ablate_row *row,
                         const vptq_quantize_result *r, const vptq_ablate_cost *cost);
/* Fills the report's estimate after all rows have been added. */
vptq_status vptq_ablate_estimate(vptq_ablation *a, vptq_err *err) VPTQ_MUST_CHECK;

#endif
