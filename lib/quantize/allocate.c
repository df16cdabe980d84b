/* Chooses the settings of every matrix for a bit budget. */
#include <math.h>
#include <string.h>

#include "lib/base/comm.h"
#include "lib/base/file.h"
#include "lib/encoder/allocate.h"
#include "lib/encoder/rates.h"
#include "lib/quantize/internal.h"
#include "lib/quantize/sensitivity.h"

/* Fewer vectors per centroid are not offered: the prediction of losses does not cover them. */
enum { VECTORS_PER_CENTROID = 4, NO_RATE = UINT32_MAX };

/* A setting to choose: a row of the table of rates for method vptq; beyond them, one number of
 * bits after another for methods with uniform codes. */
enum { LEAST_BITS = 2, MOST_BITS = 8 };

typedef struct allocation {
    vptq_quantizer *q;
    const vptq_rate *rate;
    uint32_t rates, choices; /* rows of the table; choices altogether */
    size_t matrices;
    size_t *at;                       /* [matrices] their rows of q->matrix */
    const vptq_sensitivity *measured; /* [rows of q->matrix]; NULL = not measured */
    vptq_allocate_problem problem;
    size_t *first;                      /* [matrices + 1] */
    vptq_allocate_option *options;      /* bits, and cost in the units of the mode */
    uint32_t *rate_of;                  /* of each option; NO_RATE = keep the settings */
    uint64_t weights, budget;           /* of all matrices */
    uint64_t other_weights, other_bits; /* of the rest of the file, with skipped matrices */
    size_t *choice;
} allocation;

static bool is_for(const allocation *a, uint32_t r, const vptq_encoder_settings *s)
{
    return r < a->rates ? s->method == VPTQ_METHOD_VPTQ : vptq_method_has_codes(s->method);
}

static vptq_encoder_settings with_rate(const allocation *a, uint32_t r,
                                       const vptq_encoder_settings *s)
{
    vptq_encoder_settings t = *s;
    if (r >= a->rates) {
        t.weight_bits = LEAST_BITS + r - a->rates;
        return t;
    }
    t.v = a->rate[r].v;
    t.k = a->rate[r].k;
    t.k_res = a->rate[r].k_res;
    return t;
}

/* Predicted loss, divided by that of the quick encoding. */
static double predict(const allocation *a, uint32_t r, const vptq_encoder_settings *s,
                      uint32_t out, uint32_t in)
{
    return r < a->rates ? vptq_rate_predict(&a->rate[r], out, in)
                        : vptq_rate_predict_codes(s->method, s->weight_bits, out, in);
}

/* ---- options ---- */

/* Cost of one unit of predicted loss, relative to the quick encoding, at matrix i.  Without
 * measured divergences its size, the rows of k and v counted for every query head that reads
 * them: the effect of an error on the output hardly depends on the level of the loss
 * (docs/allocation.md has figures). */
static double price(const allocation *a, size_t i, uint32_t out, uint32_t in)
{
    const vptq_model_desc *d = a->q->model.desc;
    const vptq_linear linear = a->q->matrix[a->at[i]].linear;
    if (a->q->allocate == VPTQ_ALLOCATE_KL && a->measured)
        return a->measured[a->at[i]].kld;
    if (vptq_linear_expert(linear) >= 0) /* reached by that share of the tokens */
        return (double)out * in * d->experts.used / d->experts.count;
    const bool shared = linear == VPTQ_LINEAR_K || linear == VPTQ_LINEAR_V;
    return (double)out * in * (shared ? d->heads / d->kv_heads : 1);
}

/* Whether settings `s` are valid for [out, in] and leave enough vectors to train codebooks. */
static bool possible(const vptq_encoder_settings *s, uint32_t out, uint32_t in, uint64_t *bits)
{
    if (vptq_encoder_check(s, out, in, NULL))
        return false;
    if (s->method != VPTQ_METHOD_VPTQ) {
        const vptq_uniform_settings u = vptq_uniform_settings_of(s);
        const vptq_uniform_shape codes = vptq_uniform_shape_of(&u, out, in);
        *bits = vptq_uniform_count_bits(&codes).total;
        return true;
    }
    const vptq_vq_shape shape = vptq_encoder_shape(s, out, in);
    const uint64_t vectors = (uint64_t)vptq_vq_vector_rows(&shape) * shape.group_size;
    *bits = vptq_vq_count_bits(&shape).total;
    return vectors >= (uint64_t)VECTORS_PER_CENTROID * s->k &&
           vectors >= (uint64_t)VECTORS_PER_CENTROID * s->k_res;
}

static vptq_status list_matrix(allocation *a, size_t i, vptq_err *err)
{
    const vptq_matrix_settings *m = &a->q->matrix[a->at[i]];
    char name[VPTQ_NAME_MAX];
    uint32_t out, in;
    size_t n = a->first[i];
    vptq_linear_shape(a->q->model.desc, m->linear, &out, &in);
    a->weights += (uint64_t)out * in;
    if (m->pinned) {
        const vptq_quantize_row row = vptq_row_make(a->q, m->layer, m->linear);
        a->options[n] = (vptq_allocate_option){.bits = row.bits.total};
        a->rate_of[n++] = NO_RATE;
    }
    for (uint32_t r = 0; r < a->choices && !m->pinned; r++) {
        const vptq_encoder_settings s = with_rate(a, r, &m->settings);
        uint64_t bits;
        if (!is_for(a, r, &s) || !possible(&s, out, in, &bits))
            continue;
        a->options[n] = (vptq_allocate_option){
            .bits = bits, .cost = price(a, i, out, in) * predict(a, r, &s, out, in)};
        a->rate_of[n++] = r;
    }
    a->first[i + 1] = n;
    if (n > a->first[i])
        return VPTQ_OK;
    vptq_linear_full_name(a->q->model.desc, name, m->layer, m->linear);
    if (m->settings.method != VPTQ_METHOD_VPTQ && !vptq_method_has_codes(m->settings.method)) {
        char method[VPTQ_SETTING_TEXT];
        vptq_setting_print(vptq_setting_find("method"), &m->settings, method, sizeof method);
        return vptq_fail(err, VPTQ_E_ARG, "%s: a bit budget has nothing to choose of method %s",
                         name, method);
    }
    return vptq_fail(
        err, VPTQ_E_ARG,
        "%s: none of the settings to choose from is valid for %u rows, %u columns and "
        "the other settings",
        name, out, in);
}

/* Lists the matrices to quantize in a->at. */
static vptq_status list_matrices(allocation *a, vptq_arena *arena, vptq_err *err)
{
    const vptq_quantizer *q = a->q;
    const vptq_model_desc *d = q->model.desc;
    size_t count = 0;
    if (d->experts.count && q->allocate == VPTQ_ALLOCATE_KL)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: divergences are not measured for models of type %s; allocate by "
                         "predicted losses (--allocate proxy)",
                         q->model.ckpt.path, d->family->model_type);
    a->at = vptq_arena_alloc(arena, a->matrices, sizeof *a->at, err);
    if (!a->at)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < vptq_linear_index(d, d->layers, 0); i++)
        if (vptq_quantizer_has(q, q->matrix[i].layer, q->matrix[i].linear))
            a->at[count++] = i;
    return VPTQ_OK;
}

/* Of a budget for the file, the matrices get what the other tensors leave. */
static void set_budget(allocation *a)
{
    const vptq_quantizer *q = a->q;
    const uint64_t skipped = q->matrix_weights - a->weights;
    double bits = q->opt->bits * (double)a->weights;
    a->other_weights = q->plain_weights + skipped;
    a->other_bits = q->plain_bits + 16 * skipped;
    if (q->opt->budget == VPTQ_BUDGET_FILE)
        bits += q->opt->bits * (double)a->other_weights - (double)a->other_bits;
    a->budget = (uint64_t)fmax(0, fmin(bits, 0x1p63));
}

static vptq_status list_options(allocation *a, vptq_arena *arena, vptq_err *err)
{
    const size_t max = a->matrices * (a->choices + 1);
    a->weights = 0;
    a->first = vptq_arena_zalloc(arena, a->matrices + 1, sizeof *a->first, err);
    a->options = vptq_arena_alloc(arena, max, sizeof *a->options, err);
    a->rate_of = vptq_arena_alloc(arena, max, sizeof *a->rate_of, err);
    a->choice = vptq_arena_alloc(arena, a->matrices, sizeof *a->choice, err);
    if (!a->first || !a->options || !a->rate_of || !a->choice)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < a->matrices; i++)
        VPTQ_CHECK(list_matrix(a, i, err));
    a->problem =
        (vptq_allocate_problem){.count = a->matrices, .first = a->first, .options = a->options};
    set_budget(a);
    return VPTQ_OK;
}

static vptq_status too_small(const allocation *a, uint64_t least, vptq_err *err)
{
    const vptq_quantizer *q = a->q;
    if (q->opt->budget == VPTQ_BUDGET_FILE)
        return vptq_fail(err, VPTQ_E_ARG,
                         "a budget of %g bits per weight of the file leaves %.4f for the "
                         "matrices, below the smallest possible, %.4f; the file needs %.4f",
                         q->opt->bits, (double)a->budget / (double)a->weights,
                         (double)least / (double)a->weights,
                         (double)(least + a->other_bits) /
                             (double)(a->weights + a->other_weights));
    return vptq_fail(err, VPTQ_E_ARG,
                     "a budget of %g bits per weight is below the smallest possible, %.4f",
                     a->q->opt->bits, (double)least / (double)a->weights);
}

/* The number that `most` bits of the matrices allow is rounded up, so that it can be given. */
static vptq_status check_largest(const allocation *a, uint64_t most, vptq_err *err)
{
    const vptq_quantizer *q = a->q;
    const bool file = q->opt->budget == VPTQ_BUDGET_FILE;
    const double bits = (double)most + (file ? (double)a->other_bits : 0);
    const double weights = (double)a->weights + (file ? (double)a->other_weights : 0);
    const double largest = ceil(1e4 * bits / weights) / 1e4;
    if (q->opt->bits <= largest)
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_ARG,
                     "a budget of %g bits per weight%s is above the largest that the settings "
                     "to choose from can use, %.4f",
                     q->opt->bits, file ? " of the file" : "", largest);
}

/* ---- one setting for all ---- */

/* Sums rate r over all matrices and chooses it for them; false if it is not valid for one. */
static bool sum_rate(const allocation *a, uint32_t r, vptq_allocate_option *sum)
{
    *sum = (vptq_allocate_option){0};
    for (size_t i = 0; i < a->matrices; i++) {
        size_t o = a->first[i];
        while (o < a->first[i + 1] && a->rate_of[o] != r && a->rate_of[o] != NO_RATE)
            o++;
        if (o == a->first[i + 1])
            return false;
        sum->bits += a->options[o].bits;
        sum->cost += a->options[o].cost;
        a->choice[i] = o - a->first[i];
    }
    return true;
}

static vptq_status choose_uniform(allocation *a, vptq_err *err)
{
    vptq_allocate_option sum, best = {.bits = UINT64_MAX, .cost = (double)INFINITY};
    uint64_t least = UINT64_MAX, most = 0;
    uint32_t rate = NO_RATE;
    for (uint32_t r = 0; r < a->choices; r++) {
        if (!sum_rate(a, r, &sum))
            continue;
        least = sum.bits < least ? sum.bits : least;
        most = sum.bits > most ? sum.bits : most;
        if (sum.bits <= a->budget && sum.cost < best.cost) {
            best = sum;
            rate = r;
        }
    }
    if (least == UINT64_MAX)
        return vptq_fail(err, VPTQ_E_ARG,
                         "none of the settings to choose from is valid for every matrix");
    if (rate == NO_RATE)
        return too_small(a, least, err);
    VPTQ_CHECK(check_largest(a, most, err));
    sum_rate(a, rate, &sum);
    return VPTQ_OK;
}

/* Whether the budget is possible depends on sizes only, not on what measuring finds. */
static vptq_status check_budget(allocation *a, vptq_err *err)
{
    const uint64_t least = vptq_allocate_least(&a->problem);
    if (a->q->allocate == VPTQ_ALLOCATE_UNIFORM)
        return choose_uniform(a, err);
    if (a->budget < least)
        return too_small(a, least, err);
    return check_largest(a, vptq_allocate_most(&a->problem), err);
}

static vptq_status choose(allocation *a, vptq_err *err)
{
    if (a->q->allocate == VPTQ_ALLOCATE_UNIFORM)
        return choose_uniform(a, err);
    return vptq_allocate(&a->problem, a->budget, a->q->dev->ctx->mem, a->choice, err);
}

/* ---- measuring ---- */

/* Rank 0: takes the work directory. */
static vptq_status open_work(vptq_quantizer *q, vptq_lock *lock, vptq_err *err)
{
    VPTQ_CHECK(vptq_work_check_own(q, err));
    VPTQ_CHECK(vptq_manifest_check(q, true, err));
    VPTQ_CHECK(vptq_dir_make(q->opt->work, err));
    VPTQ_CHECK(vptq_lock_take(q->opt->work, lock, err));
    return vptq_manifest_drop_unused(q, err);
}

/* Measures the matrices; saves to the work directory, if given, under its lock. */
static vptq_status measure(allocation *a, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_quantizer *q = a->q;
    const vptq_quantize_options *o = q->opt;
    vptq_lock lock = {.fd = -1};
    vptq_sensitivity *rows;
    char file[PATH_MAX];
    vptq_sensitivity_options opt = {.hessians = &q->hessians,
                                    .base_fingerprint = q->base_fingerprint,
                                    .text = q->allocate == VPTQ_ALLOCATE_KL ? o->allocate_text
                                                                            : NULL,
                                    .windows = o->allocate_windows,
                                    .length = o->allocate_length,
                                    .seed = o->settings->seed,
                                    .storage = o->settings->storage};
    if (o->work && vptq_comm_rank(q->dev->ctx) == 0)
        VPTQ_TRY(open_work(q, &lock, err));
    if (o->work) {
        VPTQ_TRY(vptq_path_join(file, sizeof file, o->work, VPTQ_SENSITIVITY_FILE, err));
        opt.file = file;
    }
    VPTQ_TRY(vptq_sensitivity_measure(q->dev, &q->model, &opt, &q->arena, &rows, err));
    a->measured = rows;
out:
    vptq_lock_release(&lock);
    return st;
}

/* ---- the result ---- */

static vptq_status apply(allocation *a, vptq_err *err)
{
    vptq_quantizer *q = a->q;
    q->predicted =
        vptq_arena_alloc(&q->arena, vptq_linear_index(q->model.desc, q->model.desc->layers, 0),
                         sizeof *q->predicted, err);
    if (!q->predicted)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < a->matrices; i++) {
        const size_t at = a->at[i];
        vptq_matrix_settings *m = &q->matrix[at];
        const uint32_t r = a->rate_of[a->first[i] + a->choice[i]];
        uint32_t out, in;
        vptq_linear_shape(q->model.desc, m->linear, &out, &in);
        q->predicted[at] = (double)NAN;
        if (r == NO_RATE)
            continue;
        m->settings = with_rate(a, r, &m->settings);
        if (!a->measured)
            continue;
        const double factor = predict(a, r, &m->settings, out, in);
        q->predicted[at] = a->measured[at].loss * factor;
        q->result->predicted_kld += a->measured[at].kld * factor;
    }
    return VPTQ_OK;
}

vptq_status vptq_plan_allocate(vptq_quantizer *q, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    const vptq_model_desc *d = q->model.desc;
    allocation a = {.q = q, .matrices = vptq_quantizer_count(q, 0, d->layers - 1)};
    size_t rates;
    vptq_arena_init(&arena, q->dev->ctx->mem);
    a.rate = vptq_rate_table(&rates);
    a.rates = (uint32_t)rates;
    a.choices = a.rates + MOST_BITS - LEAST_BITS + 1;
    VPTQ_TRY(list_matrices(&a, &arena, err));
    VPTQ_TRY(list_options(&a, &arena, err));
    VPTQ_TRY(check_budget(&a, err));
    if (vptq_allocate_measures(q)) {
        VPTQ_TRY(measure(&a, err));
        VPTQ_TRY(list_options(&a, &arena, err)); /* with their costs */
    }
    VPTQ_TRY(choose(&a, err));
    VPTQ_TRY(apply(&a, err));
out:
    vptq_arena_release(&arena);
    return st;
}
