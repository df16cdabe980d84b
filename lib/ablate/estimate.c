/* Estimates an ablation: calibration, quantizing every row at the speed that one row of each
 * method shows, and measuring it at that of the original. */
#include <math.h>

#include "lib/ablate/internal.h"
#include "lib/eval/estimate.h"
#include "lib/eval/tasks.h"

/* ---- quantizing ---- */

vptq_status vptq_ablate_add_cost(void *arg, const vptq_quantize_row *row, vptq_err *err)
{
    vptq_ablate_cost *sum = arg;
    vptq_encoder_report cost;
    (void)err;
    vptq_matrix_cost(row->settings, row->rows, row->columns, &cost);
    sum->cost += cost.seconds;
    sum->work_bytes += vptq_work_bytes(row);
    return VPTQ_OK;
}

double vptq_ablate_speed(const vptq_ablation *a, const vptq_ablate_row *row)
{
    const vptq_ablate_plan *p = &a->plan;
    for (size_t i = 0; !row->recipe && i < p->speeds; i++)
        if (p->speed[i].method == row->settings.method)
            return p->speed[i].seconds;
    return 0;
}

void vptq_ablate_add_row(vptq_ablation *a, const vptq_ablate_row *row,
                         const vptq_quantize_result *r, const vptq_ablate_cost *cost)
{
    vptq_ablate_plan *p = &a->plan;
    const double speed = vptq_ablate_speed(a, row), packed = (double)r->packed_bytes;
    p->seconds += speed > 0 ? speed * cost->cost : r->estimate.seconds;
    if (speed == 0) {
        p->memory = fmax(p->memory, (double)r->estimate.memory_bytes);
        if (!row->recipe && p->speeds < VPTQ_ABLATE_SPEEDS) {
            p->speed[p->speeds].method = row->settings.method;
            p->speed[p->speeds++].seconds = r->estimate.seconds / cost->cost;
        }
    }
    p->disk += (double)cost->work_bytes * (row->tune ? 2 : 1);
    p->packed = a->opt->keep_packed ? p->packed + packed : fmax(p->packed, packed);
    p->tuned |= row->tune != 0;
    p->quantized++;
}

/* ---- calibration and figures ---- */

/* Adds a step after those of *e. */
static void add_step(vptq_estimate *e, double seconds, double memory, double disk)
{
    e->seconds += seconds;
    e->memory_bytes = (uint64_t)fmax((double)e->memory_bytes, memory);
    e->disk_bytes += (uint64_t)disk;
}

static vptq_status add_calibration(const vptq_ablation *a, const vptq_model *m,
                                   vptq_estimate *e, vptq_err *err)
{
    vptq_collect_options o = a->opt->collect;
    const vptq_corpus_options *c = &o.calibrate.corpus;
    vptq_collect_result r;
    if (a->opt->hessians || !a->plan.quantized)
        return VPTQ_OK;
    if (c->text_count + c->token_count == 0) {
        vptq_estimate_leave_out(e, "calibration");
        return VPTQ_OK;
    }
    o.dry_run = true;
    VPTQ_CHECK(vptq_hessian_collect(a->dev, m, &o, NULL, &r, err));
    if (isnan(r.estimated_seconds))
        vptq_estimate_leave_out(e, "calibration");
    if (o.calibrate.outputs)
        vptq_estimate_leave_out(e, "output Hessians");
    add_step(e, isnan(r.estimated_seconds) ? 0 : r.estimated_seconds, (double)r.memory_bytes,
             (double)r.bytes);
    return VPTQ_OK;
}

static vptq_status add_passes(const vptq_ablation *a, const vptq_model *m, double times,
                              const vptq_ablate_passes *p, vptq_estimate *e, vptq_err *err)
{
    vptq_estimate one = vptq_estimate_make(NULL);
    if (times * p->tokens <= 0)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_eval_estimate(a->dev, m, times * p->tokens, times * p->scored, p->length,
                                  &one, err));
    add_step(e, one.seconds, (double)one.memory_bytes, 0);
    return VPTQ_OK;
}

static vptq_status add_figures(const vptq_ablation *a, const vptq_model *m, vptq_estimate *e,
                               vptq_err *err)
{
    const double rows = (double)a->report->count, quantized = (double)a->plan.quantized;
    /* a divergence takes a pass of the row and one of the original */
    const double times = rows + (a->opt->kld ? 2 * quantized : 0);
    VPTQ_CHECK(add_passes(a, m, times, &a->text_passes, e, err));
    return add_passes(a, m, rows, &a->task_passes, e, err);
}

static vptq_status add_all(const vptq_ablation *a, const vptq_model *m, vptq_estimate *e,
                           vptq_err *err)
{
    const vptq_ablate_plan *p = &a->plan;
    VPTQ_CHECK(add_calibration(a, m, e, err));
    VPTQ_CHECK(add_figures(a, m, e, err));
    const double used = a->dev->ctx->mem ? (double)a->dev->ctx->mem->used : 0;
    e->memory_bytes += (uint64_t)used;
    add_step(e, p->seconds, p->memory, p->disk + p->packed);
    if (p->tuned)
        vptq_estimate_leave_out(e, "tuning");
    if (p->quantized)
        vptq_estimate_leave_out(e, "packing");
    if (a->opt->serve && !a->opt->no_seconds)
        vptq_estimate_leave_out(e, "serving");
    return VPTQ_OK;
}

vptq_status vptq_ablate_estimate(vptq_ablation *a, vptq_err *err)
{
    vptq_model m;
    vptq_estimate *e = &a->report->estimate;
    *e = vptq_estimate_make(a->opt->dir);
    e->seconds = 0;
    const vptq_ablate_options *o = a->opt;
    const vptq_checkpoint_options copt = {.tokenizer = o->tokenizer, .quiet = true};
    const bool tokenizer = o->ppl.corpus.text_count > 0 || o->task_count > 0 ||
                           o->collect.calibrate.corpus.text_count > 0;
    VPTQ_CHECK(vptq_model_open(a->dev->ctx, o->model, &copt, tokenizer, &m, err));
    const vptq_status st = add_all(a, &m, e, err);
    vptq_model_release(&m);
    return st;
}
