/* Estimates what a run would take: the costs of its matrices (cost.c) at the speed of this
 * machine, which encoding a slice of one of them shows, and its calibration (hessian/probe.h).
 */
#include <math.h>

#include "hessian/probe.h"
#include "lib/quantize/internal.h"
#include "lib/report/emit.h"
#include "lib/report/estimate.h"
#include "lib/uniform/fold.h"

/* Least size of a slice and its codebooks, and seconds that the two take about. */
enum { LEAST_ROWS = 64, LEAST_COLUMNS = 256, LEAST_CENTROIDS = 256, GPTVQ_BITS = 8 };
static const double first_seconds = 0.1, second_seconds = 0.5;

typedef struct slice {
    uint32_t layer, out, in;
    vptq_linear linear;
    vptq_encoder_settings settings;
} slice;

/* A whole matrix; false if the run does not quantize it. */
static bool take(const vptq_quantizer *q, uint32_t layer, int l, slice *s)
{
    *s = (slice){.layer = layer, .linear = (vptq_linear)l};
    if (!vptq_quantizer_has(q, layer, l))
        return false;
    vptq_linear_shape(q->model.desc, s->linear, &s->out, &s->in);
    s->settings = vptq_quantizer_matrix(q, layer, s->linear)->settings;
    return s->out > 0;
}

static double cost_of(const slice *s)
{
    vptq_encoder_report cost;
    vptq_matrix_cost(&s->settings, s->out, s->in, &cost);
    return cost.seconds;
}

static uint32_t halve(uint32_t n, uint32_t least)
{
    const uint32_t half = (n / 2 + least - 1) / least * least;
    return half < n ? half : n;
}

static void halve_codebook(uint32_t *centroids)
{
    if (*centroids > LEAST_CENTROIDS)
        *centroids = (*centroids + 1) / 2;
}

static void halve_codebooks(vptq_encoder_settings *s)
{
    halve_codebook(&s->k);
    halve_codebook(&s->k_res);
    halve_codebook(&s->k0);
    if (s->method == VPTQ_METHOD_GPTVQ && s->v % 2 == 0 && s->weight_bits * s->v > GPTVQ_BITS)
        s->v /= 2;
}

/* Cuts the slice until it costs at most `most`, or is as small as slices are.  Its codebooks
 * shrink with it: large ones, which a budget chooses for large matrices, would take minutes,
 * and have more centroids than the slice has vectors. */
static void cut(slice *s, double most)
{
    while (cost_of(s) > most) {
        const uint32_t rows = halve(s->out, LEAST_ROWS), cols = halve(s->in, LEAST_COLUMNS);
        if (rows == s->out && cols == s->in)
            return;
        if (rows < s->out && (s->out >= s->in || cols == s->in))
            s->out = rows;
        else
            s->in = cols;
        halve_codebooks(&s->settings);
    }
}

static vptq_status read_slice(const vptq_quantizer *q, const slice *s, vptq_arena *arena,
                              const float **w, vptq_err *err)
{
    const vptq_weight *stored = &q->model.blocks[s->layer].linear[s->linear];
    float *x = vptq_arena_alloc(arena, (size_t)s->out * stored->cols, sizeof *x, err);
    if (!x)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(vptq_weight_read(stored, q->dev, 0, s->out, x, err));
    for (size_t i = 1; i < s->out; i++)
        for (size_t j = 0; j < s->in; j++)
            x[i * s->in + j] = x[i * stored->cols + j];
    *w = x;
    return VPTQ_OK;
}

/* Any Hessian takes the same time; in this one all columns are correlated, so that errors move,
 * and no number comes near the denormal ones, which are slow. */
static float *make_hessian(uint32_t n, vptq_arena *arena, vptq_err *err)
{
    static const float correlation = 0.25F;
    float *lower = vptq_arena_alloc(arena, vptq_triangle(n), sizeof *lower, err);
    for (size_t i = 0, at = 0; lower && i < n; i++)
        for (size_t j = 0; j <= i; j++)
            lower[at++] = i == j ? 1 : correlation;
    return lower;
}

/* Chooses the scales of AWQ, which come before its codes, for an input of ones. */
static vptq_status try_scales(vptq_quantizer *q, const slice *s,
                              const vptq_encoder_input *input, vptq_arena *arena, vptq_err *err)
{
    double exponent;
    float *scales = vptq_arena_alloc(arena, s->in, sizeof *scales, err);
    float *mean = scales ? vptq_arena_alloc(arena, s->in, sizeof *mean, err) : NULL;
    const vptq_fold_matrix matrix = {
        .out = s->out, .w = input->w, .settings = vptq_fold_settings(&s->settings)};
    const vptq_fold_input fold = {
        .in = s->in, .abs_mean = mean, .lower = input->lower, .matrix = &matrix, .count = 1};
    if (!mean)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < s->in; i++)
        mean[i] = 1;
    return vptq_awq_scales(q->dev, &fold, scales, &exponent, err);
}

static vptq_status time_slice(vptq_quantizer *q, const slice *s, double *seconds, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_layer_file file;
    vptq_arena arena;
    vptq_quantize_row row = {.settings = &s->settings, .rows = s->out, .columns = s->in};
    vptq_encoder_input input = {.matrix_id = (uint32_t)s->linear, .out = s->out, .in = s->in};

    vptq_arena_init(&arena, q->dev->ctx->mem);
    VPTQ_TRY(read_slice(q, s, &arena, &input.w, err));
    input.lower = make_hessian(s->in, &arena, err);
    if (!input.lower)
        VPTQ_TRY(VPTQ_E_NOMEM);
    const double start = vptq_seconds();
    if (s->settings.method & VPTQ_METHOD_AWQ)
        VPTQ_TRY(try_scales(q, s, &input, &arena, err));
    VPTQ_TRY(vptq_choose_codes(q, "slice", &input, &arena, &row, &file, err));
    *seconds = vptq_seconds() - start;
out:
    vptq_arena_release(&arena);
    return st;
}

/* Whether the matrix takes the time of others with its method: AWQ keeps ranges of q and k. */
static bool is_usual(const slice *s)
{
    return !(s->settings.method & VPTQ_METHOD_AWQ) ||
           (s->linear != VPTQ_LINEAR_Q && s->linear != VPTQ_LINEAR_K);
}

/* Whether a matrix is the better one to measure: like others, and cheap. */
static bool is_better(const slice *s, const slice *than)
{
    if (!than->out || is_usual(s) != is_usual(than))
        return !than->out || is_usual(s);
    return cost_of(s) < cost_of(than);
}

/* *scale = seconds of this machine per second of cost, from the cheapest matrix with this
 * method. */
static vptq_status measure(vptq_quantizer *q, uint32_t method, double *scale, vptq_err *err)
{
    slice best = {.out = 0}, s;
    double seconds;
    for (uint32_t layer = q->first; layer <= q->last; layer++)
        for (int l = 0; l < vptq_linear_count(q->model.desc); l++)
            if (take(q, layer, l, &s) && s.settings.method == method && is_better(&s, &best))
                best = s;
    s = best;
    cut(&s, first_seconds);
    VPTQ_CHECK(time_slice(q, &s, &seconds, err));
    *scale = seconds / cost_of(&s);
    s = best;
    cut(&s, second_seconds / *scale);
    VPTQ_CHECK(time_slice(q, &s, &seconds, err));
    *scale = seconds / cost_of(&s);
    return VPTQ_OK;
}

/* Bytes per weight and per entry of the Hessian.  Fitted to the peaks of a block with matrices
 * of 576 and 1536 columns, with weighted and held-out Hessians, and a tenth or more added. */
typedef struct need {
    size_t per_weight, per_entry;
} need;

static need need_of(uint32_t method)
{
    switch (method) {
    case VPTQ_METHOD_VPTQ:
        return (need){36, 21};
    case VPTQ_METHOD_GPTVQ:
        return (need){22, 14};
    case VPTQ_METHOD_AQLM:
        return (need){31, 14};
    case VPTQ_METHOD_DBLLM:
        return (need){27, 14};
    case VPTQ_METHOD_QUIP:
        return (need){33, 22};
    default:
        return (need){20, 14};
    }
}

/* Weights in memory at once: those of the matrix, or of all that share its input, whose scales
 * a folding method chooses together. */
static size_t weights_of(const vptq_quantizer *q, const slice *of)
{
    size_t weights = 0;
    slice s;
    if (of->linear >= VPTQ_LINEAR_DENSE ||
        !(of->settings.method & (VPTQ_METHOD_AWQ | VPTQ_METHOD_SMOOTH)))
        return (size_t)of->out * of->in;
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
        if (vptq_linear_input((vptq_linear)l) == vptq_linear_input(of->linear) &&
            take(q, of->layer, l, &s))
            weights += (size_t)s.out * s.in;
    return weights;
}

size_t vptq_matrix_memory(const vptq_quantizer *q)
{
    size_t most = 0;
    slice s;
    for (uint32_t layer = q->first; layer <= q->last; layer++)
        for (int l = 0; l < vptq_linear_count(q->model.desc); l++) {
            if (!take(q, layer, l, &s))
                continue;
            const need n = need_of(s.settings.method);
            const size_t bytes =
                weights_of(q, &s) * n.per_weight + (size_t)s.in * s.in * n.per_entry;
            most = bytes > most ? bytes : most;
        }
    return most;
}

/* Adds the seconds of all matrices, one measurement for each method. */
static vptq_status add_matrices(vptq_quantizer *q, double *total, vptq_err *err)
{
    enum { METHODS = 16 };
    struct {
        uint32_t method;
        double scale;
    } known[METHODS];
    size_t count = 0;
    slice s;
    for (uint32_t layer = q->first; layer <= q->last; layer++)
        for (int l = 0; l < vptq_linear_count(q->model.desc); l++) {
            size_t i = 0;
            if (!take(q, layer, l, &s))
                continue;
            while (i < count && known[i].method != s.settings.method)
                i++;
            if (i == METHODS) /* more than there are: at the speed of the last */
                i--;
            if (i == count) {
                VPTQ_CHECK(measure(q, s.settings.method, &known[i].scale, err));
                known[count++].method = s.settings.method;
            }
            *total += cost_of(&s) * known[i].scale;
        }
    return VPTQ_OK;
}

/* Hidden states and activations make do with what --mem leaves. */
static void add_passes(const vptq_quantizer *q, vptq_estimate *e, uint64_t bytes)
{
    const vptq_mem *mem = q->dev->ctx->mem;
    const uint64_t cap = mem && mem->cap ? mem->cap : UINT64_MAX;
    if (e->memory_bytes + bytes > cap)
        bytes = e->memory_bytes < cap ? cap - e->memory_bytes : 0;
    e->memory_bytes += bytes;
}

static vptq_status add_calibration(vptq_quantizer *q, vptq_estimate *e, vptq_err *err)
{
    vptq_calibrator c;
    double seconds;
    uint64_t memory;
    const vptq_calibrate_options *o = q->opt->calibrate;
    if (o->outputs)
        vptq_estimate_leave_out(e, "output Hessians");
    if (o->weights == VPTQ_WEIGHTS_GUIDED) {
        vptq_estimate_leave_out(e, "guided calibration");
        return VPTQ_OK;
    }
    VPTQ_CHECK(vptq_calibrator_sample(q->dev, &q->model, o, &c, err));
    if (!q->hessians.state) /* else opening the calibration has done so */
        vptq_calibrator_log_windows(&c);
    const vptq_status st = vptq_calibrator_probe(&c, q->last + 1, 0, &seconds, &memory, err);
    if (!st) {
        /* the checkpoint, and the one that replaces it */
        const size_t streams = o->sequential ? 2 : 1;
        const size_t windows = c.windows[VPTQ_PART_MAIN] + c.windows[VPTQ_PART_HELD_OUT];
        e->disk_bytes +=
            2 * streams * c.opt.length * windows * q->model.desc->hidden * sizeof(float);
        e->seconds += seconds;
        e->memory_bytes += vptq_calibration_memory(q->model.desc, o);
        add_passes(q, e, memory);
    }
    vptq_calibrator_release(&c);
    return st;
}

/* Codebooks also in float, a report, and a header. */
uint64_t vptq_work_bytes(const vptq_quantize_row *row)
{
    enum { HEADER = 4096 };
    return (row->bits.total + 2 * row->bits.codebooks) / 8 + HEADER;
}

static uint64_t work_bytes(const vptq_quantizer *q)
{
    uint64_t bytes = 0;
    for (uint32_t layer = q->first; layer <= q->last; layer++)
        for (int l = 0; l < vptq_linear_count(q->model.desc); l++) {
            if (!vptq_quantizer_has(q, layer, l))
                continue;
            const vptq_quantize_row row = vptq_row_make(q, layer, (vptq_linear)l);
            bytes += vptq_work_bytes(&row);
        }
    return bytes;
}

static void warn_of_memory(const vptq_quantizer *q, uint64_t bytes)
{
    char takes[32], cap[32];
    vptq_human_bytes(takes, bytes);
    vptq_human_bytes(cap, q->dev->ctx->mem->cap);
    vptq_log(q->dev->ctx, VPTQ_LOG_WARN,
             "--mem (%s) is probably too small: the run takes about %s", cap, takes);
}

vptq_status vptq_plan_estimate(vptq_quantizer *q, vptq_err *err)
{
    const vptq_quantize_options *o = q->opt;
    vptq_estimate *e = &q->result->estimate;
    const vptq_mem *mem = q->dev->ctx->mem;
    *e = vptq_estimate_make(o->work);
    e->seconds = 0;
    e->memory_bytes = (mem ? mem->used : 0) + vptq_matrix_memory(q);
    e->disk_bytes = work_bytes(q) + (o->packs ? q->result->packed_bytes : 0);
    if (o->predict)
        e->seconds = q->result->predicted_seconds;
    else
        VPTQ_CHECK(add_matrices(q, &e->seconds, err));
    if (!o->hessians && !o->calibrate)
        vptq_estimate_leave_out(e, "calibration");
    if (o->calibrate && !o->predict)
        VPTQ_CHECK(add_calibration(q, e, err));
    /* with a work directory, the plan has measured and kept them */
    if (o->bits > 0 && q->allocate == VPTQ_ALLOCATE_KL && !o->work)
        vptq_estimate_leave_out(e, "measuring sensitivities");
    if (o->tune)
        vptq_estimate_leave_out(e, "tuning");
    if (o->measuring) {
        e->seconds += o->measuring->seconds;
        e->disk_bytes += q->result->packed_bytes;
        if (e->memory_bytes < o->measuring->memory_bytes)
            e->memory_bytes = o->measuring->memory_bytes;
    }
    if (mem && mem->cap && e->memory_bytes > mem->cap)
        warn_of_memory(q, e->memory_bytes);
    return VPTQ_OK;
}
