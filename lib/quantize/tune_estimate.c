/* A dry run of tuning: how much is left of it, and what that takes. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/text.h"
#include "lib/model/narrow.h"
#include "lib/quantize/quantize.h"
#include "lib/quantize/tune_internal.h"
#include "lib/report/emit.h"
#include "lib/report/estimate.h"
#include "lib/tune/probe.h"

/* Layers with packed matrices from layer `first` on. */
static uint32_t count_layers(const vptq_tuner *t, uint32_t first)
{
    uint32_t n = 0;
    for (uint32_t l = first; l < t->model.desc->layers; l++)
        n += vptq_student_range(&t->student, l, l + 1).count > 0;
    return n;
}

static uint32_t end_of_layers(const vptq_tuner *t)
{
    return t->student.tensors[t->student.tensor_count - 1].layer + 1;
}

/* Layers or steps, at most `all`, that an interrupted run has finished: the first number of a
 * state, which is `at` bytes into the file. */
static uint32_t count_finished(const vptq_tuner *t, size_t at, uint32_t all)
{
    uint64_t finished = 0;
    const void *saved = vptq_tuner_saved(t, at, sizeof finished);
    if (saved)
        memcpy(&finished, saved, sizeof finished);
    return finished <= all ? (uint32_t)finished : 0;
}

/* r->layers and r->steps that are left. */
static void count_work(const vptq_tuner *t, vptq_tune_result *r)
{
    const bool by_layers = t->opt->method & VPTQ_TUNE_LAYER;
    const size_t at = by_layers ? vptq_layerwise_state_bytes(t->model.desc, &t->student) : 0;
    if (by_layers)
        r->layers = count_layers(t, count_finished(t, 0, end_of_layers(t)));
    if (t->opt->method & VPTQ_TUNE_E2E)
        r->steps = t->opt->steps - count_finished(t, at, t->opt->steps);
}

/* All windows pass every block of both models; those of the layers to do are trained on. */
static double layer_seconds(const vptq_tuner *t, const vptq_tune_probe *p)
{
    const vptq_trainer_options *o = &t->plan;
    const double length = (double)o->length, batch = (double)o->batch;
    const double passes = t->opt->passes, steps = passes * (double)(o->windows / o->batch);
    const double both_streams = 2 * (double)(o->windows + o->held_out) * length * p->forward;
    const double measured = (passes + 1) * (double)o->held_out * length * p->forward;
    return end_of_layers(t) * both_streams +
           t->result->layers * (measured + steps * (batch * length * p->both + p->step));
}

/* The head runs twice for a window, and once more for the gradient. */
static double step_seconds(const vptq_tuner *t, const vptq_tune_probe *p)
{
    const vptq_trainer_options *o = &t->plan;
    const vptq_model_desc *d = t->model.desc;
    const double length = (double)o->length, held_out = (double)o->held_out;
    const double steps = t->result->steps;
    const double head =
        p->forward * (double)d->vocab * d->hidden / vptq_block_products(d, o->length, false);
    const double forward = length * (d->layers * p->forward + 2 * head);
    const double both = length * (d->layers * p->both + 3 * head);
    const double teacher = length * d->layers * p->forward;
    return (double)(o->windows + o->held_out) * teacher +
           (1 + ceil(steps / o->every)) * held_out * forward +
           steps * ((double)o->batch * both + count_layers(t, 0) * p->step);
}

static uint64_t hidden_bytes(const vptq_tuner *t, size_t rows)
{
    return (uint64_t)rows * t->model.desc->hidden * sizeof(float);
}

static uint64_t stream_bytes(const vptq_tuner *t)
{
    return hidden_bytes(t, (t->plan.windows + t->plan.held_out) * t->plan.length);
}

/* The hidden states of all windows, and of a group in every block. */
static uint64_t state_bytes(const vptq_tuner *t, size_t rows)
{
    return t->opt->method & VPTQ_TUNE_E2E
               ? stream_bytes(t) + hidden_bytes(t, rows * (t->model.desc->layers + 3))
               : 2 * stream_bytes(t);
}

/* The matrices, which are as large as those of `from`, and the files of an unfinished run. */
static uint64_t disk_bytes(const vptq_tuner *t)
{
    const vptq_checkpoint *c = &t->model.ckpt;
    uint64_t bytes = 3 * t->student.count * sizeof *t->student.master;
    for (size_t i = 0; i < c->quantized_count; i++) {
        const vptq_quantize_row row = {.bits = vptq_vq_count_bits(&c->quantized[i].vq.shape)};
        bytes += vptq_work_bytes(&row);
    }
    return bytes + (t->opt->method & VPTQ_TUNE_E2E ? stream_bytes(t) : 0);
}

static vptq_status add_all(vptq_tuner *t, vptq_estimate *e, vptq_err *err)
{
    const bool e2e = t->opt->method & VPTQ_TUNE_E2E;
    const vptq_mem *mem = t->dev->ctx->mem;
    const size_t rows = (e2e ? vptq_e2e_group(&t->plan) : 1) * t->plan.length;
    vptq_tune_probe p;
    VPTQ_CHECK(vptq_tune_measure(t->dev, &t->student, &t->plan, rows, &p, err));
    if (t->opt->method & VPTQ_TUNE_LAYER)
        e->seconds += layer_seconds(t, &p);
    if (e2e)
        e->seconds += step_seconds(t, &p);
    if (t->opt->self_windows)
        vptq_estimate_leave_out(e, "own text");
    e->memory_bytes += p.memory + state_bytes(t, rows);
    if (mem && mem->cap && e->memory_bytes > mem->cap)
        e->memory_bytes = mem->cap;
    e->disk_bytes = disk_bytes(t);
    return VPTQ_OK;
}

vptq_status vptq_tuner_estimate(vptq_tuner *t, bool finished, vptq_err *err)
{
    vptq_tune_result *r = t->result;
    vptq_estimate *e = &r->estimate;
    const vptq_mem *mem = t->dev->ctx->mem;
    *e = vptq_estimate_make(t->opt->work);
    e->seconds = 0;
    e->memory_bytes = mem ? mem->used : 0;
    if (finished)
        return VPTQ_OK;
    count_work(t, r);
    return add_all(t, e, err);
}

/* ---- the report ---- */

typedef struct plan_line {
    const char *work;
    vptq_tune_result r;
    bool dry_run;
    vptq_object totals;
} plan_line;
static const vptq_column plan_columns[] = {
    {.name = "work", VPTQ_TEXT(plan_line, work)},
    {.name = "dry_run", VPTQ_BOOL(plan_line, dry_run)},
    {.name = "layers", VPTQ_INTEGER(plan_line, r.layers)},
    {.name = "steps", VPTQ_INTEGER(plan_line, r.steps)},
    {.name = "windows", VPTQ_INTEGER(plan_line, r.windows)},
    {.name = "held_out_windows", VPTQ_INTEGER(plan_line, r.held_out_windows)},
    {.name = "seconds", VPTQ_REAL(plan_line, r.seconds)},
    {.name = "totals", VPTQ_OBJECT(plan_line, totals)}};

vptq_status vptq_tune_report_plan(const vptq_tune_options *opt, const vptq_tune_result *r,
                                  const vptq_output *out, vptq_err *err)
{
    const plan_line line = {opt->work, *r, true, vptq_estimate_object(&r->estimate)};
    if (out && out->format == VPTQ_FORMAT_JSON)
        return vptq_print_object(out, VPTQ_COLUMNS(plan_columns), &line, err);
    VPTQ_CHECK(vptq_print_line(
        out, err,
        "%s: %" PRIu32 " layer%s and %" PRIu32 " step%s to do, %zu window%s to train on, %zu "
        "held out",
        opt->work ? opt->work : "plan", r->layers, vptq_plural(r->layers, "", "s"), r->steps,
        vptq_plural(r->steps, "", "s"), r->windows, vptq_plural(r->windows, "", "s"),
        r->held_out_windows));
    return vptq_estimate_print(out, &r->estimate, err);
}
