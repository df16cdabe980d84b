/* Settings of one matrix: the table, the encoders, checks, and the stored shape. */
#include "lib/encoder/settings.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kmeans/kmeans.h"
#include "lib/base/additive.h"
#include "lib/base/uniform.h"
#include "lib/encoder/encoder.h"

#define AT(field) offsetof(vptq_encoder_settings, field)

/* Stages that use a setting. */
enum {
    VQ = VPTQ_METHOD_VPTQ,
    SMOOTH = VPTQ_METHOD_SMOOTH,
    SPARSE = VPTQ_METHOD_SPARSE,
    RTN = VPTQ_METHOD_RTN,
    GPTQ = VPTQ_METHOD_GPTQ,
    AWQ = VPTQ_METHOD_AWQ,
    GPTVQ = VPTQ_METHOD_GPTVQ,
    AQLM = VPTQ_METHOD_AQLM,
    DBLLM = VPTQ_METHOD_DBLLM,
    QUIP = VPTQ_METHOD_QUIP,
    CODES = RTN | GPTQ | AWQ,
    ADDITIVE = VPTQ_METHOD_ADDITIVE,
    ALL = VQ | SPARSE | CODES | ADDITIVE
};

enum { AQLM_MAX_BEAM = 32 }; /* hypotheses with all their products in memory */

/* Whether there is a method of these stages. */
static bool is_method(uint32_t stages)
{
    const uint32_t codes = stages & ~(uint32_t)(SMOOTH | SPARSE);
    const bool one = stages && !(stages & (stages - 1));
    return stages == VQ || stages == SPARSE || (one && stages & ADDITIVE) || codes == RTN ||
           codes == GPTQ || codes == AWQ;
}

static const vptq_setting table[] = {
    {"method", VPTQ_SETTING_METHOD, AT(method), 0, 0,
     "smooth|vptq|sparse|rtn|gptq|awq|gptvq|aqlm|db-llm|quip#", true, ALL,
     "vectors, uniform codes and what comes before them, or additive codes; a chain is joined "
     "by +, as in smooth+gptq"},
    {"vector_length", VPTQ_SETTING_U32, AT(v), 1, VPTQ_VQ_MAX_V, NULL, true, VQ | GPTVQ | AQLM,
     "rows that share one index (additive codes: columns)"},
    {"centroids", VPTQ_SETTING_POWER, AT(k), 2, VPTQ_VQ_MAX_K, NULL, true, VQ | AQLM,
     "centroids of the main codebook, or of each, a power of two"},
    {"codebooks", VPTQ_SETTING_U32, AT(codebooks), 1, VPTQ_ADDITIVE_MAX_STAGES, NULL, true,
     AQLM, "codebooks whose entries are added"},
    {"residual", VPTQ_SETTING_POWER, AT(k_res), 0, VPTQ_VQ_MAX_K, NULL, true, VQ,
     "centroids of the residual codebook, a power of two; 0 = none"},
    {"groups", VPTQ_SETTING_U32, AT(groups), 1, 65536, NULL, true, VQ,
     "groups of columns with codebooks of their own"},
    {"group_size", VPTQ_SETTING_U32, AT(group_size), 0, 65536, NULL, true,
     VQ | CODES | GPTVQ | DBLLM,
     "columns per group, instead of groups; 0 = by groups (other methods: 0 = all columns)"},
    {"fit_groups", VPTQ_SETTING_BOOL, AT(fit_groups), 0, 0, NULL, true, CODES,
     "where group_size does not divide the columns, the largest power of two that does"},
    {"outliers", VPTQ_SETTING_DOUBLE, AT(outliers), 0, 100, NULL, true, VQ,
     "percent of columns that get the outlier codebook"},
    {"outlier_vector_length", VPTQ_SETTING_U32, AT(v0), 1, VPTQ_VQ_MAX_V, NULL, true, VQ,
     "vector length of the outlier codebook"},
    {"outlier_centroids", VPTQ_SETTING_POWER, AT(k0), 2, VPTQ_VQ_MAX_K, NULL, true, VQ,
     "centroids of the outlier codebook, a power of two"},
    {"dtype", VPTQ_SETTING_DTYPE, AT(storage), 0, 0, "f16|bf16", true, ALL,
     "type of codebooks, scale and bias"},
    {"weight_bits", VPTQ_SETTING_U32, AT(weight_bits), 2, VPTQ_UNIFORM_MAX_BITS, NULL, true,
     CODES | GPTVQ | QUIP, "bits of a uniform code, or of a weight"},
    {"codebook_rows", VPTQ_SETTING_U32, AT(codebook_rows), 1, 65536, NULL, true, GPTVQ,
     "rows that share a codebook, in every group of columns"},
    {"symmetric", VPTQ_SETTING_BOOL, AT(symmetric), 0, 0, NULL, true, CODES,
     "uniform codes without zero points"},
    {"activation_bits", VPTQ_SETTING_U32, AT(activation_bits), 0, 8, NULL, true, CODES,
     "bits of each token's inputs when the model runs: 8, or 0 = not quantized"},
    {"smooth_alpha", VPTQ_SETTING_DOUBLE, AT(smooth_alpha), 0, 1, NULL, true, SMOOTH,
     "share of the activations' range that smooth moves into the weights"},
    {"sparsity", VPTQ_SETTING_DOUBLE, AT(sparsity), 0.01, 0.99, NULL, true, SPARSE,
     "share of the weights that is pruned"},
    {"sparsity_pattern", VPTQ_SETTING_CHOICE, AT(sparsity_pattern), 0, 0, "none|2:4|4:8", true,
     SPARSE, "prunes so many of each 4 or 8 neighbors in a row"},
    {"norm", VPTQ_SETTING_CHOICE, AT(norm), 0, 0, "none|std|minmax", false, VQ,
     "scale and bias of columns"},
    {"metric", VPTQ_SETTING_CHOICE, AT(metric), 0, 0, "scaled|raw", false, VQ,
     "Hessian in normalized coordinates, or as it is"},
    {"perm", VPTQ_SETTING_BOOL, AT(perm), 0, 0, NULL, false, VQ | GPTQ,
     "order columns by importance"},
    {"init", VPTQ_SETTING_CHOICE, AT(init), 0, 0, "plusplus|random", false, VQ,
     "first centroids of k-means"},
    {"kmeans_iterations", VPTQ_SETTING_U32, AT(kmeans_iterations), 1,
     VPTQ_KMEANS_MAX_ITERATIONS, NULL, false, VQ | AQLM,
     "maximum number of k-means iterations"},
    {"kmeans_tolerance", VPTQ_SETTING_DOUBLE, AT(kmeans_tolerance), 0, 0.5, NULL, false, VQ,
     "k-means stops at a smaller relative gain"},
    {"kmeans_shift", VPTQ_SETTING_DOUBLE, AT(kmeans_shift), 0, 1e30, NULL, false, VQ,
     "k-means stops when all centroids together move less (squared); 0 = off"},
    {"residual_from", VPTQ_SETTING_CHOICE, AT(residual_from), 0, 0, "plain|pass", false, VQ,
     "what the residual codebook is trained on"},
    {"joint", VPTQ_SETTING_U32, AT(joint), 0, 1000, NULL, false, VQ,
     "rounds of training both codebooks together"},
    {"beam", VPTQ_SETTING_U32, AT(beam), 1, VPTQ_VQ_MAX_K, NULL, false, VQ | AQLM,
     "main centroids tried per vector (aqlm: hypotheses of a row), 1 = greedy"},
    {"pass_columns", VPTQ_SETTING_U32, AT(pass_columns), 1, VPTQ_PASS_BLOCK, NULL, false, VQ,
     "columns quantized before their errors are propagated; 1 = channel-independent"},
    {"retrain", VPTQ_SETTING_U32, AT(retrain), 0, 1000, NULL, false, VQ,
     "rounds of training on the compensated targets, then another pass"},
    {"sweeps", VPTQ_SETTING_U32, AT(sweeps), 0, 1000, NULL, false, VQ | DBLLM,
     "coordinate-descent sweeps after the pass (db-llm: maximum number of rounds)"},
    {"refits", VPTQ_SETTING_U32, AT(refits), 0, VPTQ_ENCODER_MAX_REFITS, NULL, false, VQ,
     "rounds of least squares over the codebooks and two sweeps"},
    {"scales", VPTQ_SETTING_BOOL, AT(scales), 0, 0, NULL, false, VQ,
     "least squares over scale and bias before the first refit"},
    {"rounding", VPTQ_SETTING_CHOICE, AT(rounding), 0, 0, "loop|end", false, VQ,
     "round to the stored type before or after the last decisions"},
    {"codebook_grid", VPTQ_SETTING_CHOICE, AT(codebook_grid), 0, 0, "none|int8", false,
     VQ | GPTVQ, "round codebooks to whole multiples, up to 127, of one scale each"},
    {"ridge", VPTQ_SETTING_DOUBLE, AT(ridge), 0, 1, NULL, false,
     VQ | SPARSE | GPTQ | GPTVQ | QUIP, "share of the mean diagonal added to the Hessian"},
    {"damping", VPTQ_SETTING_DOUBLE, AT(damping), 1e-12, 1, NULL, false,
     VQ | SPARSE | GPTQ | GPTVQ | QUIP, "first share added when the factorization fails"},
    {"seed", VPTQ_SETTING_U64, AT(seed), 0, 0, NULL, false, ALL, "of all random numbers"},
};

const vptq_setting *vptq_setting_table(size_t *count)
{
    *count = sizeof table / sizeof table[0];
    return table;
}

const vptq_setting *vptq_setting_find(const char *key)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (!strcmp(table[i].key, key))
            return &table[i];
    return NULL;
}

bool vptq_setting_is_used(const vptq_setting *t, const vptq_encoder_settings *s)
{
    return !is_method(s->method) || t->methods & s->method;
}

/* ---- text ---- */

/* Index of the `len` characters at `text` in "a|b|c", or -1. */
static int choice_index(const char *choices, const char *text, size_t len)
{
    for (int i = 0; *choices; i++) {
        size_t n = strcspn(choices, "|");
        if (n == len && !memcmp(choices, text, n))
            return i;
        choices += n + (choices[n] == '|');
    }
    return -1;
}

static void choice_name(const char *choices, uint32_t index, char *text, size_t size)
{
    while (index-- && *choices) {
        size_t n = strcspn(choices, "|");
        choices += n + (choices[n] == '|');
    }
    snprintf(text, size, "%.*s", (int)strcspn(choices, "|"), choices);
}

/* Reads "a+c" into bits; false for an unknown or repeated name. */
static bool parse_stages(const char *choices, const char *text, uint32_t *stages)
{
    *stages = 0;
    for (;; text++) {
        const size_t len = strcspn(text, "+");
        const int i = choice_index(choices, text, len);
        if (i < 0 || *stages & 1U << i)
            return false;
        *stages |= 1U << i;
        text += len;
        if (!*text)
            return true;
    }
}

static void print_stages(const char *choices, uint32_t stages, char *text, size_t size)
{
    char name[32];
    size_t n = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < 32 && stages >> i; i++) {
        if (!(stages >> i & 1) || n >= size)
            continue;
        choice_name(choices, i, name, sizeof name);
        n += (size_t)snprintf(text + n, size - n, "%s%s", n ? "+" : "", name);
    }
}

static const char *values_of(const vptq_setting *t)
{
    switch (t->kind) {
    case VPTQ_SETTING_METHOD: /* without the first, smooth, which is not a method alone */
        return strchr(t->choices, '|') + 1;
    case VPTQ_SETTING_BOOL:
        return "true|false";
    case VPTQ_SETTING_DOUBLE:
        return "X";
    default:
        return t->choices ? t->choices : "N";
    }
}

enum { REASON = 128 };

static bool parse_number(const vptq_setting *t, const char *text, double *x,
                         char reason[REASON])
{
    char *end;
    const bool whole = t->kind != VPTQ_SETTING_DOUBLE;
    /* strtod alone would take leading space, hexadecimal digits and names of infinities */
    const bool plain = *text && strspn(text, "0123456789+-.eE") == strlen(text);

    *x = strtod(text, &end);
    if (plain && !*end && *x >= t->min && *x <= t->max && (!whole || *x == floor(*x)))
        return true;
    snprintf(reason, REASON, "expected a %s from %.15g to %.15g",
             whole ? "whole number" : "number", t->min, t->max);
    return false;
}

/* Accepts a power of two, and 0 where the range has it. */
static bool check_power(const vptq_setting *t, uint32_t k, char reason[REASON])
{
    uint32_t below = 1;

    if (k != 1 && (k & (k - 1)) == 0)
        return true;
    while (2 * below <= k)
        below *= 2;
    int n =
        snprintf(reason, REASON, "must be a power of two from 2 to %.15g (nearest: ", t->max);
    if (below > 1)
        n += snprintf(reason + n, REASON - (size_t)n, "%" PRIu32 ", ", below);
    snprintf(reason + n, REASON - (size_t)n, "%" PRIu32 ")", 2 * below);
    return false;
}

/* Sets the member at `at`, or returns false with the reason. */
static bool parse_value(const vptq_setting *t, const char *text, unsigned char *at,
                        char reason[REASON])
{
    double x = 0;
    uint32_t u = 0;

    switch (t->kind) {
    case VPTQ_SETTING_U32:
    case VPTQ_SETTING_POWER:
        if (!parse_number(t, text, &x, reason))
            return false;
        u = (uint32_t)x;
        if (t->kind == VPTQ_SETTING_POWER && !check_power(t, u, reason))
            return false;
        memcpy(at, &u, sizeof u);
        return true;
    case VPTQ_SETTING_DOUBLE:
        if (!parse_number(t, text, &x, reason))
            return false;
        memcpy(at, &x, sizeof x);
        return true;
    case VPTQ_SETTING_U64: {
        snprintf(reason, REASON, "expected a whole number below 2^64");
        errno = 0;
        const uint64_t n = strtoull(text, NULL, 10);
        if (!*text || strspn(text, "0123456789") != strlen(text) || errno)
            return false;
        memcpy(at, &n, sizeof n);
        return true;
    }
    case VPTQ_SETTING_BOOL: {
        snprintf(reason, REASON, "expected true or false");
        const bool yes = !strcmp(text, "true");
        if (!yes && strcmp(text, "false"))
            return false;
        memcpy(at, &yes, sizeof yes);
        return true;
    }
    case VPTQ_SETTING_METHOD:
        snprintf(reason, REASON,
                 "expected %s; smooth+ and sparse+ may precede rtn, gptq and awq",
                 values_of(t));
        if (!parse_stages(t->choices, text, &u) || !is_method(u))
            return false;
        memcpy(at, &u, sizeof u);
        return true;
    case VPTQ_SETTING_CHOICE:
    case VPTQ_SETTING_DTYPE:
        break;
    }
    snprintf(reason, REASON, "expected %s", t->choices);
    const int i = choice_index(t->choices, text, strlen(text));
    const vptq_dtype dtype = i ? VPTQ_BF16 : VPTQ_F16;
    u = (uint32_t)i;
    if (i < 0)
        return false;
    if (t->kind == VPTQ_SETTING_DTYPE)
        memcpy(at, &dtype, sizeof dtype);
    else
        memcpy(at, &u, sizeof u);
    return true;
}

vptq_status vptq_setting_parse(const vptq_setting *t, const char *text,
                               vptq_encoder_settings *s, vptq_err *err)
{
    char reason[REASON];
    if (parse_value(t, text, (unsigned char *)s + t->offset, reason))
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_ARG, "%s is '%.60s', %s", t->key, text, reason);
}

vptq_status vptq_setting_check(const char *key, const char *value, vptq_err *err)
{
    vptq_encoder_settings scratch;
    char reason[REASON];
    const vptq_setting *t = vptq_setting_find(key);
    if (!t)
        return vptq_fail(err, VPTQ_E_ARG, "no such setting: '%.60s'", key);
    if (parse_value(t, value, (unsigned char *)&scratch + t->offset, reason))
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_ARG, "%s", reason);
}

void vptq_setting_print(const vptq_setting *t, const vptq_encoder_settings *s, char *text,
                        size_t size)
{
    const unsigned char *at = (const unsigned char *)s + t->offset;
    uint32_t u = 0;
    uint64_t n = 0;
    double x = 0;
    bool yes = false;
    vptq_dtype dtype = VPTQ_F16;

    switch (t->kind) {
    case VPTQ_SETTING_U32:
    case VPTQ_SETTING_POWER:
        memcpy(&u, at, sizeof u);
        snprintf(text, size, "%" PRIu32, u);
        break;
    case VPTQ_SETTING_U64:
        memcpy(&n, at, sizeof n);
        snprintf(text, size, "%" PRIu64, n);
        break;
    case VPTQ_SETTING_BOOL:
        memcpy(&yes, at, sizeof yes);
        snprintf(text, size, "%s", yes ? "true" : "false");
        break;
    case VPTQ_SETTING_DOUBLE:
        memcpy(&x, at, sizeof x);
        for (int digits = 1; digits <= 17; digits++) {
            snprintf(text, size, "%.*g", digits, x);
            if (!(strtod(text, NULL) < x) && !(strtod(text, NULL) > x))
                break;
        }
        break;
    case VPTQ_SETTING_CHOICE:
        memcpy(&u, at, sizeof u);
        choice_name(t->choices, u, text, size);
        break;
    case VPTQ_SETTING_METHOD:
        memcpy(&u, at, sizeof u);
        print_stages(t->choices, u, text, size);
        break;
    case VPTQ_SETTING_DTYPE:
        memcpy(&dtype, at, sizeof dtype);
        choice_name(t->choices, dtype == VPTQ_BF16, text, size);
        break;
    }
}

bool vptq_setting_describe(size_t i, vptq_setting_info *info)
{
    const vptq_encoder_settings best = vptq_encoder_defaults();
    vptq_encoder_settings upstream = best;
    if (i >= sizeof table / sizeof table[0])
        return false;
    const vptq_setting *t = &table[i];
    *info = (vptq_setting_info){
        .key = t->key, .help = t->help, .values = values_of(t), .stored = t->stored};
    vptq_setting_print(t, &best, info->best, sizeof info->best);
    if (!vptq_encoder_set_encoder(&upstream, "upstream", NULL))
        vptq_setting_print(t, &upstream, info->upstream, sizeof info->upstream);
    return true;
}

/* ---- one setting of two ---- */

static size_t setting_size(const vptq_setting *t)
{
    switch (t->kind) {
    case VPTQ_SETTING_U64:
        return sizeof(uint64_t);
    case VPTQ_SETTING_BOOL:
        return sizeof(bool);
    case VPTQ_SETTING_DOUBLE:
        return sizeof(double);
    case VPTQ_SETTING_DTYPE:
        return sizeof(vptq_dtype);
    case VPTQ_SETTING_U32:
    case VPTQ_SETTING_POWER:
    case VPTQ_SETTING_CHOICE:
    case VPTQ_SETTING_METHOD:
        break;
    }
    return sizeof(uint32_t);
}

bool vptq_setting_equal(const vptq_setting *t, const vptq_encoder_settings *a,
                        const vptq_encoder_settings *b)
{
    return !memcmp((const unsigned char *)a + t->offset, (const unsigned char *)b + t->offset,
                   setting_size(t));
}

void vptq_setting_copy(const vptq_setting *t, vptq_encoder_settings *to,
                       const vptq_encoder_settings *from)
{
    memcpy((unsigned char *)to + t->offset, (const unsigned char *)from + t->offset,
           setting_size(t));
}

void vptq_encoder_copy_stored(vptq_encoder_settings *to, const vptq_encoder_settings *from)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].stored)
            vptq_setting_copy(&table[i], to, from);
}

/* ---- encoders ---- */

static void copy_how(vptq_encoder_settings *to, const vptq_encoder_settings *from)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (!table[i].stored && table[i].offset != AT(seed))
            vptq_setting_copy(&table[i], to, from);
}

vptq_encoder_settings vptq_encoder_defaults(void)
{
    return (vptq_encoder_settings){.method = VPTQ_METHOD_VPTQ,
                                   .v = 4,
                                   .k = 256,
                                   .groups = 1,
                                   .v0 = 4,
                                   .k0 = 4096,
                                   .storage = VPTQ_F16,
                                   .weight_bits = 4,
                                   .codebook_rows = 8,
                                   .codebooks = 2,
                                   .smooth_alpha = 0.8,
                                   .sparsity = 0.5,
                                   .norm = VPTQ_NORM_STD,
                                   .perm = true,
                                   .kmeans_iterations = 25,
                                   .kmeans_tolerance = 1e-4,
                                   .joint = 8,
                                   .beam = 16,
                                   .pass_columns = 1,
                                   .retrain = 4,
                                   .sweeps = 4,
                                   .refits = 3,
                                   .scales = true,
                                   .ridge =
                                       0.0201, /* the published recipe's two ridges in one */
                                   .damping = 0.01};
}

/* Defaults of the methods with additive codes. */
static const struct {
    uint32_t method, v, k, weight_bits, group_size, codebook_grid;
    uint32_t kmeans_iterations, beam, sweeps;
} additive_defaults[] = {
    {GPTVQ, 2, 256, 2, 256, VPTQ_GRID_INT8, 25, 16, 4},
    {AQLM, 8, 256, 4, 0, VPTQ_GRID_NONE, 100, 1, 4},
    {DBLLM, 4, 256, 4, 64, VPTQ_GRID_NONE, 25, 16, 50},
    {QUIP, 4, 256, 2, 0, VPTQ_GRID_NONE, 25, 16, 4},
};

/* The defaults of an additive method; of others, what those have changed. */
static void set_additive(vptq_encoder_settings *s, uint32_t method, uint32_t before)
{
    const vptq_encoder_settings vq = vptq_encoder_defaults();
    if (before & ADDITIVE) {
        s->v = vq.v;
        s->k = vq.k;
        s->weight_bits = vq.weight_bits;
        s->codebook_grid = vq.codebook_grid;
        s->kmeans_iterations = vq.kmeans_iterations;
        s->beam = vq.beam;
        s->sweeps = vq.sweeps;
    }
    for (size_t i = 0; i < sizeof additive_defaults / sizeof additive_defaults[0]; i++) {
        if (additive_defaults[i].method != method)
            continue;
        s->v = additive_defaults[i].v;
        s->k = additive_defaults[i].k;
        s->weight_bits = additive_defaults[i].weight_bits;
        s->group_size = additive_defaults[i].group_size;
        s->codebook_grid = additive_defaults[i].codebook_grid;
        s->kmeans_iterations = additive_defaults[i].kmeans_iterations;
        s->beam = additive_defaults[i].beam;
        s->sweeps = additive_defaults[i].sweeps;
    }
}

void vptq_encoder_set_method(vptq_encoder_settings *s, uint32_t method)
{
    const vptq_encoder_settings vq = vptq_encoder_defaults();
    const bool other = method != VPTQ_METHOD_VPTQ;
    const uint32_t before = s->method;
    s->method = method;
    s->group_size = other ? 128 : 0;
    s->perm = !other;
    s->ridge = other ? 0.01 : vq.ridge;
    set_additive(s, method, before);
}

vptq_status vptq_encoder_set_encoder(vptq_encoder_settings *s, const char *encoder,
                                     vptq_err *err)
{
    const vptq_encoder_settings best = vptq_encoder_defaults();
    const vptq_encoder_settings upstream = {.norm = VPTQ_NORM_MINMAX,
                                            .metric = VPTQ_METRIC_RAW,
                                            .init = VPTQ_INIT_RANDOM,
                                            .residual_from = VPTQ_RESIDUAL_PASS,
                                            .rounding = VPTQ_ROUND_END,
                                            .perm = true,
                                            .kmeans_iterations = 100,
                                            .kmeans_shift = 1e-5,
                                            .beam = 1,
                                            .pass_columns = 1,
                                            .ridge = best.ridge,
                                            .damping = best.damping};
    if (strcmp(encoder, "best") && strcmp(encoder, "upstream"))
        return vptq_fail(err, VPTQ_E_ARG, "encoder is '%.60s', expected best|upstream",
                         encoder);
    copy_how(s, strcmp(encoder, "best") ? &upstream : &best);
    return VPTQ_OK;
}

/* ---- shape and checks ---- */

/* The slack is for products such as 1.1 * 3000 that come out above the whole number they are.
 */
static uint32_t outlier_columns(const vptq_encoder_settings *s, uint32_t in)
{
    double columns = ceil(s->outliers * in / 100 - 1e-9);
    return columns < in ? (uint32_t)columns : in;
}

vptq_vq_shape vptq_encoder_shape(const vptq_encoder_settings *s, uint32_t out, uint32_t in)
{
    uint32_t outliers = outlier_columns(s, in);
    uint32_t unit = s->group_size ? s->group_size : s->groups ? s->groups : 1;
    if (outliers)
        outliers += (in - outliers) % unit;
    uint32_t rest = in - outliers;
    uint32_t groups = s->group_size ? rest / s->group_size : unit;
    /* Scale and bias are stored even without normalization (as 1 and 0), because the published
     * GPU kernels take them as mandatory arguments; so they count. */
    return (vptq_vq_shape){.out = out,
                           .in = in,
                           .v = s->v,
                           .k = s->k,
                           .k_res = s->k_res,
                           .groups = groups,
                           .group_size = groups ? rest / groups : 0,
                           .outliers = outliers,
                           .v0 = outliers ? s->v0 : 0,
                           .k0 = outliers ? s->k0 : 0,
                           .has_perm = outliers || (groups > 1 && s->perm),
                           .has_norm = true,
                           .int8 = s->codebook_grid == VPTQ_GRID_INT8};
}

uint32_t vptq_encoder_fit_groups(const vptq_encoder_settings *s, uint32_t in)
{
    enum { SMALLEST = 32, LARGEST = 1 << 15 };
    uint32_t size = LARGEST;
    if (!s->group_size || s->group_size >= in || in % s->group_size == 0)
        return s->group_size;
    while (size >= SMALLEST && (size > s->group_size || in % size))
        size /= 2;
    return size >= SMALLEST ? size : 0;
}

static vptq_status check_ranges(const vptq_encoder_settings *s, vptq_err *err)
{
    char text[64];
    vptq_encoder_settings copy = *s;

    if (s->storage != VPTQ_F16 && s->storage != VPTQ_BF16)
        return vptq_fail(err, VPTQ_E_ARG, "storage type is %s, expected F16 or BF16",
                         vptq_dtype_get(s->storage)->name);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (!vptq_setting_is_used(&table[i], s))
            continue;
        vptq_setting_print(&table[i], s, text, sizeof text);
        VPTQ_CHECK(vptq_setting_parse(&table[i], text, &copy, err));
    }
    return VPTQ_OK;
}

static vptq_status check_columns(const vptq_encoder_settings *s, uint32_t in, vptq_err *err)
{
    uint32_t outliers = outlier_columns(s, in);
    uint32_t unit = s->group_size ? s->group_size : s->groups;

    if (s->group_size && s->groups > 1)
        return vptq_fail(err, VPTQ_E_ARG,
                         "groups is %u and group_size is %u, expected only one of them",
                         s->groups, s->group_size);
    if (outliers >= in)
        return vptq_fail(err, VPTQ_E_ARG,
                         "outliers is %g percent, which leaves none of %u columns", s->outliers,
                         in);
    if (unit > in - outliers)
        return vptq_fail(err, VPTQ_E_ARG, "%s is %u, which leaves an empty group of %u columns",
                         s->group_size ? "group_size" : "groups", unit, in - outliers);
    if (!outliers && in % unit)
        return vptq_fail(err, VPTQ_E_ARG,
                         "%s is %u, which does not divide %u columns (with outliers the "
                         "remainder would join them)",
                         s->group_size ? "group_size" : "groups", unit, in);
    return VPTQ_OK;
}

/* Rows of bytes are multiplied by rows of bytes: one scale each. */
static vptq_status check_activations(const vptq_encoder_settings *s, uint32_t in, vptq_err *err)
{
    if (!(s->method & CODES) || !s->activation_bits)
        return VPTQ_OK;
    if (s->activation_bits != 8)
        return vptq_fail(err, VPTQ_E_ARG, "activation_bits is %u, expected 0 or 8",
                         s->activation_bits);
    if (s->weight_bits != 8 || !s->symmetric || (s->group_size && s->group_size < in))
        return vptq_fail(err, VPTQ_E_ARG,
                         "activation_bits 8 needs weight_bits 8, group_size 0 and symmetric "
                         "true; they are %u, %u and %s",
                         s->weight_bits, s->group_size, s->symmetric ? "true" : "false");
    return VPTQ_OK;
}

/* Both patterns prune half; m columns that follow each other in the file form one. */
static vptq_status check_pattern(const vptq_encoder_settings *s, uint32_t in, vptq_err *err)
{
    const vptq_setting *t = vptq_setting_find("sparsity_pattern");
    const uint32_t m = s->sparsity_pattern == VPTQ_PATTERN_2_4 ? 4 : 8;
    const uint32_t group = s->method & CODES && s->group_size < in ? s->group_size : 0;
    char name[64];
    if (!(s->method & SPARSE) || s->sparsity_pattern == VPTQ_PATTERN_NONE)
        return VPTQ_OK;
    vptq_setting_print(t, s, name, sizeof name);
    if (s->sparsity < 0.5 || s->sparsity > 0.5)
        return vptq_fail(err, VPTQ_E_ARG,
                         "sparsity is %g, but sparsity_pattern %s prunes half of the weights",
                         s->sparsity, name);
    if (s->method & GPTQ && s->perm)
        return vptq_fail(err, VPTQ_E_ARG,
                         "sparsity_pattern is %s, which needs columns in their own order, but "
                         "perm is true",
                         name);
    if (in % m || group % m)
        return vptq_fail(err, VPTQ_E_ARG,
                         "sparsity_pattern is %s, which does not divide %s%u "
                         "columns",
                         name, in % m ? "" : "groups of ", in % m ? in : group);
    return VPTQ_OK;
}

/* The published codes of GPTVQ and QuIP# have 2 to 4 bits. */
static vptq_status check_additive(const vptq_encoder_settings *s, vptq_err *err)
{
    enum { MAX_BITS = 4 };
    if (s->method & AQLM && s->beam > AQLM_MAX_BEAM)
        return vptq_fail(err, VPTQ_E_ARG, "beam is %u, expected 1 to %d of method aqlm",
                         s->beam, AQLM_MAX_BEAM);
    if (s->method & (GPTVQ | QUIP) && s->weight_bits > MAX_BITS)
        return vptq_fail(err, VPTQ_E_ARG, "weight_bits is %u, expected 2 to %d of method %s",
                         s->weight_bits, MAX_BITS, s->method & GPTVQ ? "gptvq" : "quip#");
    return VPTQ_OK;
}

vptq_status vptq_encoder_check(const vptq_encoder_settings *s, uint32_t out, uint32_t in,
                               vptq_err *err)
{
    VPTQ_CHECK(check_ranges(s, err));
    VPTQ_CHECK(check_activations(s, in, err));
    VPTQ_CHECK(check_additive(s, err));
    if (s->method != VPTQ_METHOD_VPTQ)
        return check_pattern(s, in, err);
    VPTQ_CHECK(check_columns(s, in, err));
    vptq_vq_shape shape = vptq_encoder_shape(s, out, in);
    return vptq_vq_shape_check(&shape, err);
}
