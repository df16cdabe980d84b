/* Internal: the settings of one matrix as plain data: the method, what is stored, and how it is
 * searched for.  One table describes every setting (key, kind, range, help); the command line,
 * recipes, presets and the manifest of a work directory use it, so that a setting has the same
 * name and limits everywhere.
 *
 * An encoder is a set of values: `best` is this project's sequence of steps, `upstream` the
 * published recipe (microsoft/VPTQ, algorithm branch) with its known faults.  In both every
 * step can be switched separately. */
#ifndef VPTQ_ENCODER_SETTINGS_H
#define VPTQ_ENCODER_SETTINGS_H

#include <stdbool.h>

#include "lib/base/dtype.h"
#include "lib/base/vq.h"

enum {
    VPTQ_NORM_NONE,  /* scale 1, bias 0 */
    VPTQ_NORM_STD,   /* standard deviation and mean of the column */
    VPTQ_NORM_MINMAX /* range and minimum of the column (published recipe) */
};
enum {
    VPTQ_METRIC_SCALED, /* S (H + ridge) S: the loss of W in coordinates of Z */
    VPTQ_METRIC_RAW     /* H + ridge whatever the scale (published recipe) */
};
enum {
    VPTQ_INIT_PLUSPLUS, /* greedy k-means++; empty clusters are repaired */
    VPTQ_INIT_RANDOM /* distinct vectors, uniformly; empty clusters stay (published recipe) */
};
enum {
    VPTQ_RESIDUAL_PLAIN, /* trained on the residuals of the normalized weights */
    VPTQ_RESIDUAL_PASS   /* trained on the errors of a first pass with the main codebook alone,
                            with vector t weighted as vector t / v (published recipe) */
};
enum {
    VPTQ_ROUND_LOOP, /* scale and bias first, codebooks before the last sweeps */
    VPTQ_ROUND_END   /* everything after the last decision (published recipe) */
};

enum {
    VPTQ_GRID_NONE, /* any value of the storage type */
    VPTQ_GRID_INT8  /* whole multiples, up to 127, of a scale per codebook (lib/base/grid.h) */
};

/* Stages of a method, each a bit. */
enum {
    VPTQ_METHOD_SMOOTH = 1,
    VPTQ_METHOD_VPTQ = 2, /* this folder; the others are those of lib/uniform */
    VPTQ_METHOD_SPARSE = 4,
    VPTQ_METHOD_RTN = 8,
    VPTQ_METHOD_GPTQ = 16,
    VPTQ_METHOD_AWQ = 32,
    VPTQ_METHOD_GPTVQ = 64,
    VPTQ_METHOD_AQLM = 128,
    VPTQ_METHOD_DBLLM = 256,
    VPTQ_METHOD_QUIP = 512,
    VPTQ_METHOD_ADDITIVE = /* those with additive codes, which stand alone */
    VPTQ_METHOD_GPTVQ | VPTQ_METHOD_AQLM | VPTQ_METHOD_DBLLM | VPTQ_METHOD_QUIP
};

/* Whether the method rounds to uniform codes. */
static inline bool vptq_method_has_codes(uint32_t method)
{
    return method & (VPTQ_METHOD_RTN | VPTQ_METHOD_GPTQ | VPTQ_METHOD_AWQ);
}

/* Whether the method gives additive codes. */
static inline bool vptq_method_is_additive(uint32_t method)
{
    return method & VPTQ_METHOD_ADDITIVE;
}

enum { VPTQ_PATTERN_NONE, VPTQ_PATTERN_2_4, VPTQ_PATTERN_4_8 };

typedef struct vptq_encoder_settings {
    uint32_t method; /* its stages, added */
    /* what is stored */
    uint32_t v, k, k_res;      /* vector length; centroids; residual centroids, 0 = none */
    uint32_t groups;           /* of columns with codebooks of their own; 1 */
    uint32_t group_size;       /* columns per group instead of groups; 0 = by groups, of uniform
                                  methods all columns */
    double outliers;           /* percent of columns with the outlier codebook; 0 */
    uint32_t v0, k0;           /* vector length and centroids of that codebook; 4, 4096 */
    double smooth_alpha;       /* SmoothQuant: share of the activations' range that is moved */
    vptq_dtype storage;        /* F16 or BF16: type of codebooks, scale and bias */
    uint32_t weight_bits;      /* of a uniform code, 2 to 8; 4.  Of a weight, of gptvq
                                  and quip#: 2 to 4; 2 */
    uint32_t codebook_rows;    /* that share a codebook; 8 */
    uint32_t codebooks;        /* whose entries are added; 2 */
    bool symmetric;            /* uniform codes without zero points */
    bool fit_groups;           /* of a group size that does not divide the columns, the largest
                                  power of two that does (vptq_encoder_fit_groups) */
    uint32_t activation_bits;  /* 8: the model quantizes each token's input of the linear layer;
                                  0: it does not; 0 */
    double sparsity;           /* share of the weights that is pruned, 0.01 to 0.99; 0.5 */
    uint32_t sparsity_pattern; /* the constants above */
    /* how the encoder searches */
    uint32_t norm, metric, init, residual_from, rounding; /* the constants above */
    bool perm; /* order columns by the metric's diagonal, largest first; of uniform methods the
                  order decides which columns are a group, and is stored */
    uint32_t kmeans_iterations;
    double kmeans_tolerance; /* stop at a smaller relative gain */
    double kmeans_shift; /* stop when the squared moves of all centroids sum to less; 0 = off */
    uint32_t joint;      /* rounds of training main and residual codebook together, 0 = off */
    uint32_t beam; /* main centroids tried per vector with a residual codebook, 1 = greedy; of
                      aqlm, hypotheses of a row */
    uint32_t pass_columns; /* quantized at a time by the pass before their errors go on; 1 */
    uint32_t retrain;      /* rounds of training on the pass's targets, then a pass again */
    uint32_t sweeps; /* of coordinate descent after the pass, 0 = off; of db-llm, rounds */
    uint32_t refits; /* rounds of least squares over the codebooks and two sweeps, 0 = off */
    uint32_t codebook_grid; /* the constants above */
    bool scales;            /* least squares over scale and bias before the first refit */
    double ridge;           /* times mean diag H, added to H before scaling */
    double damping;         /* first damping step when the factor fails */
    uint64_t seed;
} vptq_encoder_settings;

vptq_encoder_settings vptq_encoder_defaults(void); /* encoder best, v 4, k 256, F16 */
/* Sets the method, and of the settings that it uses those whose defaults are its own; the
 * others stay. */
void vptq_encoder_set_method(vptq_encoder_settings *s, uint32_t method);

/* Sets how the encoder searches to the values of "best" or "upstream" (another name is
 * VPTQ_E_ARG); what is stored, and the seed, stay. */
vptq_status vptq_encoder_set_encoder(vptq_encoder_settings *s, const char *encoder,
                                     vptq_err *err) VPTQ_MUST_CHECK;

/* Rejects impossible settings for a matrix [out, in]: VPTQ_E_ARG naming the setting.  The shape
 * is that of method vptq. */
vptq_status vptq_encoder_check(const vptq_encoder_settings *s, uint32_t out, uint32_t in,
                               vptq_err *err) VPTQ_MUST_CHECK;
/* The group size for a matrix of `in` columns with fit_groups: that of the settings if it
 * divides the columns or is not below their number; else the largest smaller power of two that
 * divides them, from 32 on, which kernels for such codes need; else 0, the whole row. */
uint32_t vptq_encoder_fit_groups(const vptq_encoder_settings *s, uint32_t in);
/* The stored shape that the settings give for a matrix (bits via vptq_vq_count_bits).  Outlier
 * columns are ceil(percent * in), plus what makes the rest divisible by the groups. */
vptq_vq_shape vptq_encoder_shape(const vptq_encoder_settings *s, uint32_t out, uint32_t in);

/* ---- the table ---- */

typedef enum {
    VPTQ_SETTING_U32,
    VPTQ_SETTING_POWER, /* uint32_t: a power of two; 0 if min is */
    VPTQ_SETTING_U64,
    VPTQ_SETTING_BOOL,
    VPTQ_SETTING_DOUBLE,
    VPTQ_SETTING_CHOICE, /* a uint32_t: index into `choices` */
    VPTQ_SETTING_DTYPE,
    VPTQ_SETTING_METHOD /* a uint32_t: names of `choices`, joined by +, as bits */
} vptq_setting_kind;

typedef struct vptq_setting {
    const char *key; /* "vector_length": JSON and messages; the option has - for _ */
    vptq_setting_kind kind;
    size_t offset;       /* in vptq_encoder_settings */
    double min, max;     /* numbers */
    const char *choices; /* "none|std|minmax" */
    bool stored;         /* decides what is stored, not only how the encoder searches */
    unsigned methods;    /* stages that use it, added */
    const char *help;
} vptq_setting;

const vptq_setting *vptq_setting_table(size_t *count);
const vptq_setting *vptq_setting_find(const char *key); /* NULL if unknown */
/* Whether a stage of s->method uses the setting; true for an impossible method. */
bool vptq_setting_is_used(const vptq_setting *t, const vptq_encoder_settings *s);
/* Sets from text ("8", "true", "std"); VPTQ_E_ARG naming key, value and expectation. */
vptq_status vptq_setting_parse(const vptq_setting *t, const char *text,
                               vptq_encoder_settings *s, vptq_err *err) VPTQ_MUST_CHECK;
/* Prints to text, doubles as the shortest decimal that reads back to the same value. */
void vptq_setting_print(const vptq_setting *t, const vptq_encoder_settings *s, char *text,
                        size_t size);
bool vptq_setting_equal(const vptq_setting *t, const vptq_encoder_settings *a,
                        const vptq_encoder_settings *b);
void vptq_setting_copy(const vptq_setting *t, vptq_encoder_settings *to,
                       const vptq_encoder_settings *from);
/* Copies what is stored; how the encoder searches stays. */
void vptq_encoder_copy_stored(vptq_encoder_settings *to, const vptq_encoder_settings *from);

#endif
