/* Tunes a work directory: models, windows, layers and steps, the report. */
#include "lib/quantize/tune.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/comm.h"
#include "lib/base/text.h"
#include "lib/model/backward.h"
#include "lib/model/corpus.h"
#include "lib/quantize/self_text.h"
#include "lib/quantize/tune_internal.h"

enum { SAVED_EVERY = 10 }; /* steps */

const char *vptq_tune_method_name(vptq_tune_method m)
{
    static const char *const names[] = {"layer", "e2e", "layer,e2e"};
    return names[m - VPTQ_TUNE_LAYER];
}

vptq_tune_options vptq_tune_defaults(void)
{
    return (vptq_tune_options){.length = 512,
                               .holdout = (double)NAN,
                               .steps = 120,
                               .passes = 4,
                               .batch = 8,
                               .rate = (double)NAN};
}

/* ---- the two models and the text ---- */

static vptq_status check_options(const vptq_tune_options *o, vptq_err *err)
{
    if (o->method < VPTQ_TUNE_LAYER || o->method > VPTQ_TUNE_LAYER_E2E)
        return vptq_fail(err, VPTQ_E_ARG, "tuning method %d: expected 1 to 3", (int)o->method);
    if (o->method & VPTQ_TUNE_LAYER && o->passes < 1)
        return vptq_fail(err, VPTQ_E_ARG, "0 passes over the windows, expected at least 1");
    if (o->method & VPTQ_TUNE_E2E && o->steps < 1)
        return vptq_fail(err, VPTQ_E_ARG, "0 steps, expected at least 1");
    if (o->self_windows > UINT32_MAX)
        return vptq_fail(err, VPTQ_E_ARG, "%zu windows of own text, expected at most %u",
                         o->self_windows, UINT32_MAX);
    if (o->batch < 1 ||
        (o->windows && o->batch > o->windows && o->batch - o->windows > o->self_windows))
        return vptq_fail(err, VPTQ_E_ARG,
                         "steps of %zu windows, expected at least 1 and at most all windows",
                         o->batch);
    if (o->length < 2)
        return vptq_fail(err, VPTQ_E_ARG, "windows of %zu token%s, expected at least 2",
                         o->length, vptq_plural(o->length, "", "s"));
    if (!isnan(o->holdout) && !(o->holdout > 0 && o->holdout < 1))
        return vptq_fail(err, VPTQ_E_ARG,
                         "a held-out share of %g, expected more than 0 and less than 1",
                         o->holdout);
    return isnan(o->rate) || (o->rate >= 0 && o->rate <= 1)
               ? VPTQ_OK
               : vptq_fail(err, VPTQ_E_ARG, "a rate of %g, expected 0 to 1", o->rate);
}

/* Starting over would remove what is to be tuned. */
static vptq_status check_directories(const vptq_tune_options *o, vptq_err *err)
{
    char from[PATH_MAX], work[PATH_MAX];
    if (!o->work)
        return VPTQ_OK;
    if (realpath(o->from, from) && realpath(o->work, work) && !strcmp(from, work))
        return vptq_fail(err, VPTQ_E_ARG,
                         "'%s' is the directory to tune and cannot be the output", o->from);
    return VPTQ_OK;
}

/* Tuning a part of the model is possible, but rarely meant. */
static void warn_of_missing(const vptq_tuner *t)
{
    const size_t all = vptq_checkpoint_all_matrices(&t->model.ckpt);
    if (t->model.ckpt.quantized_count < all)
        vptq_log(t->dev->ctx, VPTQ_LOG_WARN,
                 "'%s' has %zu of %zu matrices; the others stay as the original's",
                 t->opt->from, t->model.ckpt.quantized_count, all);
}

static vptq_status open_models(vptq_tuner *t, vptq_err *err)
{
    const vptq_tune_options *o = t->opt;
    const vptq_checkpoint_options from = {.base = o->model};
    vptq_checkpoint_options plain = {.tokenizer = o->tokenizer, .quiet = true};
    VPTQ_CHECK(vptq_model_open(t->dev->ctx, o->from, &from, false, &t->model, err));
    if (t->model.ckpt.kind != VPTQ_CKPT_WORK)
        return vptq_fail(err, VPTQ_E_ARG, "'%s' is a %s, expected a work directory", o->from,
                         vptq_checkpoint_kind_name(t->model.ckpt.kind));
    if (vptq_checkpoint_matrix_count(&t->model.ckpt) > t->model.ckpt.quantized_count)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: has matrices of other methods than vptq, which cannot be tuned",
                         t->opt->from);
    const char *path = t->model.ckpt.base->path;
    if (!plain.tokenizer)
        plain.tokenizer = t->model.ckpt.tokenizer;
    const bool texts = o->corpus.text_count > 0;
    VPTQ_CHECK(vptq_model_open(t->dev->ctx, path, &plain, texts, &t->original, err));
    VPTQ_CHECK(vptq_student_open(t->dev->ctx, &t->model, &t->student, err));
    warn_of_missing(t);
    return VPTQ_OK;
}

/* Copies `count` windows of the text: those that are held out, spread evenly over it, to the
 * end.  The original's own go between them. */
static vptq_status copy_windows(vptq_tuner *t, const vptq_corpus *c, const size_t *starts,
                                size_t count, vptq_err *err)
{
    const size_t length = t->opt->length, held_out = t->plan.held_out;
    size_t next = 0, next_held_out = t->plan.windows;
    t->ids =
        vptq_arena_alloc(&t->arena, next_held_out + held_out, length * sizeof *t->ids, err);
    if (!t->ids)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        const bool held = (i + 1) * held_out / count > i * held_out / count;
        memcpy(t->ids + (held ? next_held_out++ : next++) * length, c->ids.data + starts[i],
               length * sizeof *t->ids);
    }
    t->plan.ids = t->ids;
    return VPTQ_OK;
}

/* Windows to hold out of `count` of the text.  Measuring them is to take a small part of the
 * time. */
static double held_out_of(const vptq_tune_options *o, double count)
{
    return isnan(o->holdout) ? fmin(ceil(count / 16), 32) : ceil(o->holdout * count);
}

/* Windows to take of the text, and how many of them to hold out.  Without -n, the steps use
 * each window once: more would be left over, and taking fewer several times helps less than
 * other text.  Layers get as many as the default steps. */
static void wanted_windows(const vptq_tune_options *o, size_t *text, size_t *held_out)
{
    const uint32_t steps = o->method & VPTQ_TUNE_E2E ? o->steps : vptq_tune_defaults().steps;
    const double used = (double)steps * (double)o->batch;
    const double all = isnan(o->holdout) ? used + held_out_of(o, used * 16 / 15)
                                         : ceil(used / (1 - o->holdout));
    const double most = (double)(SIZE_MAX / 2), given = (double)o->windows;
    const double count = fmin(o->windows ? given : all, most);
    const double held = fmin(held_out_of(o, count), most);
    const double replaced = o->windows ? 0 : fmin((double)o->self_windows, count - held);
    *text = (size_t)(count - replaced);
    *held_out = (size_t)held;
}

/* Steps between measurements of the held-out windows: at most ten in all, so that they take a
 * small part of the time. */
static uint32_t measured_every(const vptq_tune_options *o)
{
    return o->steps > 10 * SAVED_EVERY ? (o->steps + 9) / 10 : SAVED_EVERY;
}

/* The windows of a text that a run takes, and how many of them it holds out. */
typedef struct text_windows {
    size_t *starts; /* [count] */
    size_t count, held_out;
} text_windows;

static vptq_status sample_text(const vptq_tune_options *o, const vptq_corpus *c,
                               vptq_arena *arena, text_windows *w, vptq_err *err)
{
    size_t wanted;
    wanted_windows(o, &wanted, &w->held_out);
    VPTQ_CHECK(
        vptq_corpus_sample(c, o->length, wanted, o->seed, arena, &w->starts, &w->count, err));
    if (w->count < wanted)
        w->held_out = (size_t)held_out_of(o, (double)w->count);
    if (w->held_out > w->count || o->batch > w->count - w->held_out + o->self_windows)
        return vptq_fail(
            err, VPTQ_E_FORMAT,
            "%s has %zu windows of %zu tokens: too few for %zu held out and %zu of "
            "a step (a shorter -l, a smaller --batch or more text)",
            c->name, w->count, o->length, w->held_out, o->batch);
    return VPTQ_OK;
}

static vptq_status choose_windows(vptq_tuner *t, const vptq_corpus *c, vptq_err *err)
{
    const vptq_tune_options *o = t->opt;
    text_windows w;
    VPTQ_CHECK(sample_text(o, c, &t->arena, &w, err));
    t->plan = (vptq_trainer_options){.steps = o->steps,
                                     .batch = o->batch,
                                     .rate = o->rate,
                                     .length = o->length,
                                     .windows = w.count - w.held_out + o->self_windows,
                                     .held_out = w.held_out,
                                     .every = measured_every(o),
                                     .seed = o->seed,
                                     .bf16 = o->bf16,
                                     .dir = o->work};
    t->result->windows = t->plan.windows;
    t->result->held_out_windows = w.held_out;
    return copy_windows(t, c, w.starts, w.count, err);
}

static vptq_status load_text(vptq_tuner *t, char fingerprint[17], vptq_err *err)
{
    vptq_corpus c;
    VPTQ_CHECK(vptq_corpus_load(t->dev->ctx, &t->opt->corpus, t->original.tokenizer,
                                t->original.desc->vocab, &c, err));
    memcpy(fingerprint, c.fingerprint, sizeof c.fingerprint);
    const vptq_status st = choose_windows(t, &c, err);
    vptq_corpus_release(&c);
    return st;
}

/* Steps of a layer's pass over the windows: batches that are whole. */
static uint32_t steps_of_pass(const vptq_tuner *t)
{
    return (uint32_t)(t->plan.windows / t->plan.batch);
}

/* ---- the report ---- */

typedef struct layer_line {
    uint32_t layer;
    vptq_layer_report r;
    double best_pass, changed, seconds;
} layer_line;

static const vptq_column layer_columns[] = {
    {.name = "layer", VPTQ_INTEGER(layer_line, layer), .width = 5},
    {.name = "held_out_before",
     .title = "before",
     VPTQ_REAL(layer_line, r.before),
     .decimals = 5,
     .width = 8},
    {.name = "held_out_loss",
     .title = "held-out",
     VPTQ_REAL(layer_line, r.after),
     .decimals = 5,
     .width = 8},
    {.name = "best_pass", .title = "pass", VPTQ_REAL(layer_line, best_pass), .width = 5},
    {.name = "rate", VPTQ_REAL(layer_line, r.rate), .decimals = -3, .width = 9},
    {.name = "changed", VPTQ_REAL(layer_line, changed), .decimals = 4, .width = 7},
    {.name = "seconds", VPTQ_REAL(layer_line, seconds), .decimals = 1, .width = 8}};

typedef struct step_line {
    vptq_trainer_report r;
    double seconds;
} step_line;

static const vptq_column step_columns[] = {
    {.name = "step", VPTQ_INTEGER(step_line, r.step), .width = 5},
    {.name = "loss", VPTQ_REAL(step_line, r.loss), .decimals = 5, .width = 8},
    {.name = "held_out_loss",
     .title = "held-out",
     VPTQ_REAL(step_line, r.held_out),
     .decimals = 5,
     .width = 8},
    {.name = "gradient_norm",
     .title = "gradient",
     VPTQ_REAL(step_line, r.norm),
     .decimals = -4,
     .width = 9},
    {.name = "rate", VPTQ_REAL(step_line, r.rate), .decimals = -3, .width = 9},
    {.name = "changed", VPTQ_REAL(step_line, r.changed), .decimals = 4, .width = 7},
    {.name = "seconds", VPTQ_REAL(step_line, seconds), .decimals = 1, .width = 8}};

/* A block without packed matrices has no row. */
static vptq_status print_layer(const vptq_tuner *t, const vptq_layer_report *r, vptq_err *err)
{
    const layer_line line = {.layer = vptq_layerwise_finished(t->layers) - 1,
                             .r = *r,
                             .best_pass = r->best_step / steps_of_pass(t),
                             .changed = vptq_student_changed(&t->student),
                             .seconds = vptq_seconds() - t->start};
    return t->layer_rows && isfinite(r->before) ? vptq_print_row(t->layer_rows, &line, err)
                                                : VPTQ_OK;
}

static vptq_status print_step(const vptq_tuner *t, const vptq_trainer_report *r, vptq_err *err)
{
    const step_line line = {*r, vptq_seconds() - t->start};
    return t->step_rows ? vptq_print_row(t->step_rows, &line, err) : VPTQ_OK;
}

/* Of an interruption before the layers and steps of this run, or of those before it. */
static vptq_status name_start(vptq_status st, vptq_err *err)
{
    return st == VPTQ_E_CANCELLED
               ? vptq_fail(err, st, "interrupted; run the same command to continue")
               : st;
}

/* ---- ranks ---- */

static bool is_first(const vptq_tuner *t)
{
    return vptq_comm_rank(t->dev->ctx) == 0;
}

/* Goes on after the last layer of an interrupted run, and sets t->layer_state. */
static vptq_status share_layers(vptq_tuner *t, vptq_err *err)
{
    const vptq_ctx *ctx = t->dev->ctx;
    const void *saved = vptq_tuner_saved(t, 0, t->layer_state_bytes);
    bool resumes = saved && !vptq_layerwise_set_state(t->layers, saved, NULL);
    if (saved && !resumes)
        vptq_tuner_warn_of_state(t);
    vptq_layerwise_get_state(t->layers, t->layer_state);
    VPTQ_CHECK(vptq_comm_broadcast(ctx, 0, &resumes, sizeof resumes, err));
    if (!resumes)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_comm_broadcast(ctx, 0, t->layer_state, t->layer_state_bytes, err));
    return is_first(t) ? VPTQ_OK : vptq_layerwise_set_state(t->layers, t->layer_state, err);
}

/* Gives all ranks the steps that rank 0 has taken. */
static vptq_status spread_steps(const vptq_tuner *t, vptq_trainer *e2e, vptq_err *err)
{
    const vptq_ctx *ctx = t->dev->ctx;
    const size_t bytes = vptq_trainer_state_bytes(e2e);
    char *state = vptq_mem_alloc(ctx->mem, bytes, 1, err);
    if (!state)
        return VPTQ_E_NOMEM;
    if (is_first(t))
        vptq_trainer_get_state(e2e, state);
    vptq_status st = vptq_comm_broadcast(ctx, 0, state, bytes, err);
    if (!st && !is_first(t))
        st = vptq_trainer_set_state(e2e, state, err);
    vptq_mem_free(ctx->mem, state);
    return st;
}

/* Goes on after the last step of an interrupted run. */
static vptq_status share_steps(const vptq_tuner *t, vptq_trainer *e2e, vptq_err *err)
{
    const vptq_ctx *ctx = t->dev->ctx;
    const void *saved =
        vptq_tuner_saved(t, t->layer_state_bytes, vptq_trainer_state_bytes(e2e));
    bool resumes = saved && !vptq_trainer_set_state(e2e, saved, NULL);
    if (saved && !resumes)
        vptq_tuner_warn_of_state(t);
    VPTQ_CHECK(vptq_comm_broadcast(ctx, 0, &resumes, sizeof resumes, err));
    return resumes && vptq_comm_size(ctx) > 1 ? spread_steps(t, e2e, err) : VPTQ_OK;
}

/* Every rank has taken every step itself. */
static vptq_status compare_results(const vptq_tuner *t, vptq_err *err)
{
    const vptq_student *s = &t->student;
    char hash[17];
    snprintf(hash, sizeof hash, "%016" PRIx64,
             vptq_hash(s->master, s->count * sizeof *s->master, 0));
    return vptq_comm_same(t->dev->ctx, "the hash of the tuned numbers", hash, err);
}

/* ---- layers ---- */

static vptq_status open_layers(vptq_tuner *t, vptq_err *err)
{
    vptq_trainer_options plan = t->plan;
    const uint64_t steps = (uint64_t)t->opt->passes * steps_of_pass(t);
    if (steps > UINT32_MAX)
        return vptq_fail(err, VPTQ_E_ARG,
                         "%u passes are %" PRIu64 " steps of a layer, expected at most %u",
                         t->opt->passes, steps, UINT32_MAX);
    plan.every = steps_of_pass(t);
    plan.steps = (uint32_t)steps;
    VPTQ_CHECK(name_start(
        vptq_layerwise_open(t->dev, &t->original, &t->student, &plan, &t->layers, err), err));
    t->layer_state_bytes = vptq_layerwise_state_bytes(t->model.desc, &t->student);
    t->layer_state = vptq_arena_alloc(&t->arena, t->layer_state_bytes, 1, err);
    if (!t->layer_state)
        return VPTQ_E_NOMEM;
    return share_layers(t, err);
}

/* The mean losses of the layers that have been tuned. */
static void sum_layers(const vptq_tuner *t, vptq_tune_result *r)
{
    double before = 0, after = 0;
    r->layers = 0;
    for (uint32_t l = 0; l < vptq_layerwise_finished(t->layers); l++) {
        const vptq_layer_report *report = vptq_layerwise_report(t->layers, l);
        if (!isfinite(report->before))
            continue;
        before += report->before;
        after += report->after;
        r->layers++;
    }
    r->layer_loss_before = before / r->layers;
    r->layer_loss = after / r->layers;
}

/* Leaves the student as a reader of the tuned layers has it: the end-to-end run begins as one
 * from their work directory would. */
static vptq_status tune_layers(vptq_tuner *t, vptq_err *err)
{
    vptq_student *s = &t->student;
    vptq_layer_report r;
    VPTQ_CHECK(open_layers(t, err));
    while (!vptq_layerwise_done(t->layers)) {
        VPTQ_CHECK(vptq_layerwise_block(t->layers, &r, err));
        vptq_layerwise_get_state(t->layers, t->layer_state);
        if (is_first(t))
            vptq_tuner_save_state(t); /* before the row: a layer that is shown is kept */
        VPTQ_CHECK(print_layer(t, &r, err));
    }
    sum_layers(t, t->result);
    vptq_layerwise_close(t->layers);
    t->layers = NULL;
    if (t->opt->method & VPTQ_TUNE_E2E)
        memcpy(s->master, s->stored, s->count * sizeof *s->master);
    return VPTQ_OK;
}

/* ---- end to end ---- */

static vptq_status take_steps(vptq_tuner *t, vptq_trainer *e2e, vptq_err *err)
{
    vptq_trainer_report r;
    while (!vptq_trainer_done(e2e)) {
        const vptq_status st = vptq_trainer_step(e2e, &r, err);
        t->result->steps = e2e->optimizer.step;
        if (st == VPTQ_E_CANCELLED && is_first(t))
            vptq_tuner_save_state(t);
        VPTQ_CHECK(st);
        if (r.step % SAVED_EVERY == 0 && !vptq_trainer_done(e2e) && is_first(t))
            vptq_tuner_save_state(t);
        VPTQ_CHECK(print_step(t, &r, err));
        vptq_progress(t->dev->ctx, "tune", vptq_plural(t->plan.steps, "step", "steps"), r.step,
                      t->plan.steps, NULL);
    }
    return VPTQ_OK;
}

static vptq_status tune_e2e(vptq_tuner *t, vptq_err *err)
{
    vptq_trainer_report start;
    t->plan.fingerprint = t->original_fingerprint;
    VPTQ_CHECK(name_start(
        vptq_e2e_open(t->dev, &t->original, &t->student, &t->plan, &t->e2e, &start, err), err));
    vptq_trainer *e2e = vptq_e2e_trainer(t->e2e);
    t->result->held_out_before = start.held_out;
    t->result->rate = e2e->optimizer.rate;
    VPTQ_CHECK(print_step(t, &start, err));
    VPTQ_CHECK(share_steps(t, e2e, err));
    t->result->steps = e2e->optimizer.step;
    VPTQ_CHECK(take_steps(t, e2e, err));
    t->result->held_out = vptq_trainer_best(e2e, &t->result->best_step);
    return VPTQ_OK;
}

/* ---- the run ---- */

/* Completes the windows to train on. */
static vptq_status write_self_text(vptq_tuner *t, vptq_err *err)
{
    const vptq_tune_options *o = t->opt;
    const vptq_self_text_args args = {.dev = t->dev,
                                      .model = &t->original,
                                      .model_fingerprint = t->weights_fingerprint,
                                      .dir = o->work,
                                      .windows = o->self_windows,
                                      .length = o->length,
                                      .seed = o->seed};
    const size_t text = t->plan.windows - o->self_windows;
    return o->self_windows ? vptq_self_text(&args, t->ids + text * o->length, err) : VPTQ_OK;
}

static vptq_status tune(vptq_tuner *t, vptq_err *err)
{
    VPTQ_CHECK(write_self_text(t, err));
    vptq_tuner_hash_original(t);
    if (is_first(t))
        VPTQ_CHECK(vptq_tuner_map_state(t, err));
    if (t->opt->method & VPTQ_TUNE_LAYER)
        VPTQ_CHECK(tune_layers(t, err));
    if (t->opt->method & VPTQ_TUNE_E2E)
        VPTQ_CHECK(tune_e2e(t, err));
    t->result->changed = vptq_student_changed(&t->student);
    VPTQ_CHECK(compare_results(t, err));
    return is_first(t) ? vptq_tuner_write_result(t, err) : VPTQ_OK;
}

/* Before the manifest there may be what a stage of this run has quantized, or the original's
 * hidden states or own text, copied from another run. */
static vptq_status check_own(const char *work, vptq_mem *mem, vptq_err *err)
{
    static const char *const ours[] = {VPTQ_UNTUNED_DIR, VPTQ_E2E_ORIGINAL_FILE,
                                       VPTQ_SELF_TEXT_FILE};
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        VPTQ_CHECK(vptq_path_join(path, sizeof path, work, ours[i], err));
        if (vptq_path_exists(path))
            return VPTQ_OK;
    }
    return vptq_dir_check_own(work, VPTQ_WORK_FILE, "a work directory", mem, err);
}

static vptq_status check_text(const vptq_ctx *ctx, const vptq_tune_options *o,
                              const vptq_model *original, vptq_err *err)
{
    vptq_corpus c;
    vptq_arena arena;
    text_windows w;
    VPTQ_CHECK(
        vptq_corpus_load(ctx, &o->corpus, original->tokenizer, original->desc->vocab, &c, err));
    vptq_arena_init(&arena, ctx->mem);
    const vptq_status st = sample_text(o, &c, &arena, &w, err);
    vptq_arena_release(&arena);
    vptq_corpus_release(&c);
    return st;
}

vptq_status vptq_tune_check(const vptq_ctx *ctx, const vptq_tune_options *opt,
                            const vptq_model *original, vptq_err *err)
{
    VPTQ_CHECK(check_options(opt, err));
    VPTQ_CHECK(vptq_backward_check(original, err));
    if (opt->self_windows)
        VPTQ_CHECK(vptq_self_text_check(original, err));
    return check_text(ctx, opt, original, err);
}

vptq_status vptq_tune_find_stage(const char *work, bool force, vptq_mem *mem, char *untuned,
                                 vptq_err *err)
{
    char manifest[PATH_MAX];
    bool unused;
    VPTQ_CHECK(vptq_path_join(untuned, PATH_MAX, work, VPTQ_UNTUNED_DIR, err));
    VPTQ_CHECK(vptq_path_join(manifest, sizeof manifest, work, VPTQ_WORK_FILE, err));
    VPTQ_CHECK(vptq_dir_find_unused(work, VPTQ_WORK_FILE, NULL, mem, &unused, err));
    if (!force && !unused && vptq_path_exists(manifest) && !vptq_path_exists(untuned))
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "'%s' holds a run without --tune; tune it into another directory "
                         "(--from), or start over with --force",
                         work);
    return check_own(work, mem, err);
}

/* Rank 0 */
static vptq_status open_work(const vptq_tuner *t, vptq_lock *lock, bool *finished,
                             vptq_err *err)
{
    VPTQ_CHECK(check_own(t->opt->work, t->dev->ctx->mem, err));
    VPTQ_CHECK(vptq_dir_make(t->opt->work, err));
    VPTQ_CHECK(vptq_lock_take(t->opt->work, lock, err));
    VPTQ_CHECK(vptq_tuner_open_manifest(t, err));
    return vptq_tuner_find_result(t, finished, err);
}

static vptq_status run(vptq_tuner *t, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_lock lock = {.fd = -1};
    const vptq_ctx *ctx = t->dev->ctx;
    bool finished = false;
    VPTQ_TRY(vptq_comm_same(ctx, "the fingerprint of matrices, text and settings",
                            t->fingerprint, err));
    if (is_first(t))
        st = open_work(t, &lock, &finished, err);
    VPTQ_TRY(vptq_comm_agree(ctx, st, err));
    VPTQ_TRY(vptq_comm_broadcast(ctx, 0, &finished, sizeof finished, err));
    if (finished) {
        t->result->steps = t->opt->method & VPTQ_TUNE_E2E ? t->opt->steps : 0;
        vptq_log(t->dev->ctx, VPTQ_LOG_INFO, "'%s' is finished", t->opt->work);
    } else {
        VPTQ_TRY(tune(t, err));
    }
out:
    vptq_lock_release(&lock);
    return st;
}

/* Finds what is left to do, and estimates it. */
static vptq_status plan(vptq_tuner *t, vptq_err *err)
{
    bool finished = false;
    if (!is_first(t))
        return VPTQ_OK;
    if (t->opt->work) {
        VPTQ_CHECK(vptq_dir_check_fill(t->opt->work, err));
        VPTQ_CHECK(check_own(t->opt->work, t->dev->ctx->mem, err));
        VPTQ_CHECK(vptq_tuner_open_manifest(t, err));
        VPTQ_CHECK(vptq_tuner_find_result(t, &finished, err));
        VPTQ_CHECK(vptq_tuner_map_state(t, err));
    }
    return vptq_tuner_estimate(t, finished, err);
}

/* Says how far an interrupted run has come. */
static void tell_interruption(const vptq_tuner *t, vptq_err *err)
{
    if (t->layers)
        vptq_fail(err, VPTQ_E_CANCELLED,
                  "interrupted after %u of %u layers; run the same command to continue",
                  vptq_layerwise_finished(t->layers), vptq_layerwise_end(t->layers));
    else if (t->e2e)
        vptq_fail(err, VPTQ_E_CANCELLED,
                  "interrupted after step %u of %u; run the same command to continue",
                  t->result->steps, t->opt->steps);
}

static void close_all(vptq_tuner *t)
{
    vptq_layerwise_close(t->layers);
    vptq_e2e_close(t->e2e);
    vptq_map_release(&t->saved);
    vptq_student_release(&t->student);
    vptq_model_release(&t->original);
    vptq_model_release(&t->model);
    json_decref(t->manifest);
    vptq_arena_release(&t->arena);
}

vptq_status vptq_tune_report(vptq_device *dev, const vptq_tune_options *opt,
                             const vptq_output *out, vptq_tune_result *r, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const double unknown = (double)NAN;
    char ids[17];
    const bool prints = out && vptq_comm_rank(dev->ctx) == 0;
    vptq_printer layer_rows = vptq_printer_make(out, VPTQ_COLUMNS(layer_columns));
    vptq_printer step_rows = vptq_printer_make(out, VPTQ_COLUMNS(step_columns));
    layer_rows.gap = step_rows.gap = 1;
    vptq_tuner t = {.dev = dev,
                    .opt = opt,
                    .result = r,
                    .layer_rows = prints ? &layer_rows : NULL,
                    .step_rows = prints ? &step_rows : NULL,
                    .start = vptq_seconds()};
    *r = (vptq_tune_result){.layer_loss_before = unknown,
                            .layer_loss = unknown,
                            .held_out_before = unknown,
                            .held_out = unknown,
                            .rate = unknown,
                            .changed = unknown};
    vptq_arena_init(&t.arena, dev->ctx->mem);
    VPTQ_TRY(check_options(opt, err));
    VPTQ_TRY(check_directories(opt, err));
    VPTQ_TRY(open_models(&t, err));
    VPTQ_TRY(vptq_backward_check(&t.original, err));
    if (opt->self_windows)
        VPTQ_TRY(vptq_self_text_check(&t.original, err));
    VPTQ_TRY(load_text(&t, ids, err));
    VPTQ_TRY(vptq_tuner_make_manifest(&t, ids, err));
    VPTQ_TRY(opt->dry_run ? plan(&t, err) : run(&t, err));
out:
    r->seconds = vptq_seconds() - t.start;
    if (st == VPTQ_E_CANCELLED)
        tell_interruption(&t, err);
    st = vptq_comm_agree(dev->ctx, st, err);
    close_all(&t);
    return st;
}

typedef struct end_line {
    const char *work;
    vptq_tune_result r;
} end_line;
static const vptq_column end_columns[] = {
    {.name = "work", VPTQ_TEXT(end_line, work)},
    {.name = "layers", VPTQ_INTEGER(end_line, r.layers)},
    {.name = "layer_loss_before", VPTQ_REAL(end_line, r.layer_loss_before)},
    {.name = "layer_loss", VPTQ_REAL(end_line, r.layer_loss)},
    {.name = "steps", VPTQ_INTEGER(end_line, r.steps)},
    {.name = "best_step", VPTQ_INTEGER(end_line, r.best_step)},
    {.name = "rate", VPTQ_REAL(end_line, r.rate)},
    {.name = "windows", VPTQ_INTEGER(end_line, r.windows)},
    {.name = "held_out_windows", VPTQ_INTEGER(end_line, r.held_out_windows)},
    {.name = "held_out_before", VPTQ_REAL(end_line, r.held_out_before)},
    {.name = "held_out_loss", VPTQ_REAL(end_line, r.held_out)},
    {.name = "changed", VPTQ_REAL(end_line, r.changed)},
    {.name = "seconds", VPTQ_REAL(end_line, r.seconds)},
    {.name = "digest", VPTQ_CHARS(end_line, r.digest)}};

vptq_status vptq_tune_report_end(const vptq_tune_options *opt, const vptq_tune_result *r,
                                 const vptq_output *out, vptq_err *err)
{
    const end_line line = {opt->work, *r};
    if (out && out->format == VPTQ_FORMAT_JSON)
        return vptq_print_object(out, VPTQ_COLUMNS(end_columns), &line, err);
    if (isfinite(r->layer_loss))
        VPTQ_CHECK(vptq_print_text(out, err, "held-out loss of %u layer%s %.5f -> %.5f\n",
                                   r->layers, vptq_plural(r->layers, "", "s"),
                                   r->layer_loss_before, r->layer_loss));
    if (isfinite(r->held_out))
        VPTQ_CHECK(vptq_print_text(out, err, "held-out divergence %.5f -> %.5f (step %u)\n",
                                   r->held_out_before, r->held_out, r->best_step));
    if (isfinite(r->changed))
        VPTQ_CHECK(vptq_print_text(out, err, "%.1f %% of the stored numbers changed\n",
                                   100 * r->changed));
    return *r->digest ? vptq_print_text(out, err, "digest %s\n", r->digest) : VPTQ_OK;
}
