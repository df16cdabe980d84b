/* Scores a list of tasks, prints their table, and keeps the answers to all items in a file. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/comm.h"
#include "lib/base/file.h"
#include "lib/base/text.h"
#include "lib/eval/estimate.h"
#include "lib/eval/tasks.h"
#include "lib/eval/units.h"
#include "lib/report/column.h"

/* A task and its figures. */
typedef struct task_row {
    const char *name, *model, *base_model;
    vptq_task_result r;
    vptq_object totals; /* of a plan */
} task_row;

typedef struct run {
    vptq_device *dev;
    const vptq_model *m, *base; /* base: NULL = none */
    const vptq_task_options *opt;
    const vptq_output *out;
    vptq_task_file *files; /* [read] of [tasks] */
    size_t read, done;
    task_row *rows; /* [tasks] */
    vptq_file_writer samples;
} run;

/* ---- the table ---- */

/* Conditions of columns: a base, a normalized accuracy or a perplexity in one of the tasks. */
enum { BASE = 1, NORM = 2, PERPLEXITY = 4 };
enum { PROGRAMS = VPTQ_IN_JSON | VPTQ_IN_CSV };

/* Key, title, member and needs of a column. */
#define FIGURE(k, t, member, n)                                                                \
    {                                                                                          \
        .name = k, .title = t, VPTQ_REAL(task_row, member), .decimals = 4, .needs = n          \
    }
#define COUNT(k, t, member, n)                                                                 \
    {                                                                                          \
        .name = k, .title = t, VPTQ_INTEGER(task_row, member), .needs = n                      \
    }
/* Key and member of a column of JSON and CSV only. */
#define FACT(k, field)                                                                         \
    {                                                                                          \
        .name = k, field, .formats = PROGRAMS                                                  \
    }

static const vptq_column columns[] = {
    {.name = "task", .title = "Task", VPTQ_TEXT(task_row, name), .head = true},
    COUNT("items", "Items", r.model.items, 0),
    FIGURE("acc", "acc", r.model.acc, 0),
    FIGURE("acc_stderr", "±", r.model.acc_stderr, 0),
    FIGURE("acc_norm", "acc_norm", r.model.acc_norm, NORM),
    FIGURE("acc_norm_stderr", "±", r.model.acc_norm_stderr, NORM),
    FIGURE("perplexity", "Perplexity", r.model.perplexity, PERPLEXITY),
    FIGURE("perplexity_stderr", "±", r.model.perplexity_stderr, PERPLEXITY),
    FIGURE("acc_base", "acc of base", r.base.acc, BASE),
    FIGURE("acc_norm_base", "acc_norm of base", r.base.acc_norm, BASE | NORM),
    FIGURE("perplexity_base", "Perplexity of base", r.base.perplexity, BASE | PERPLEXITY),
    FIGURE("agreement", "Agreement", r.agreement.same, BASE),
    FIGURE("agreement_stderr", "±", r.agreement.same_stderr, BASE),
    FIGURE("agreement_norm", "Agreement (norm)", r.agreement.same_norm, BASE | NORM),
    FIGURE("agreement_norm_stderr", "±", r.agreement.same_norm_stderr, BASE | NORM),
    COUNT("right_to_wrong", "Right to wrong", r.agreement.right_to_wrong, BASE),
    COUNT("wrong_to_right", "Wrong to right", r.agreement.wrong_to_right, BASE),
    FACT("requests", VPTQ_INTEGER(task_row, r.model.requests)),
    FACT("rows", VPTQ_INTEGER(task_row, r.model.rows)),
    FACT("rows_saved", VPTQ_INTEGER(task_row, r.model.rows_saved)),
    {.name = "seconds",
     .title = "Seconds",
     VPTQ_REAL(task_row, r.model.seconds),
     .decimals = 1},
    FACT("model", VPTQ_TEXT(task_row, model)),
    {.name = "base", VPTQ_TEXT(task_row, base_model), .formats = PROGRAMS, .needs = BASE}};

static vptq_status print_total(const run *r, vptq_err *err)
{
    uint64_t rows = 0, saved = 0;
    double seconds = 0;
    for (size_t i = 0; i < r->done; i++) {
        const vptq_task_figures *f = &r->rows[i].r.model;
        rows += f->rows;
        saved += f->rows_saved;
        seconds += f->seconds;
    }
    return vptq_print_line(
        r->out, err, "%s%s%s: %" PRIu64 " token%s, %.0f per second; sharing saved %" PRIu64,
        r->m->ckpt.path, r->base ? " against " : "", r->base ? r->base->ckpt.path : "", rows,
        vptq_plural(rows, "", "s"), seconds > 0 ? (double)rows / seconds : 0, saved);
}

/* Prints the finished tasks.  JSON and CSV have every column of the options, text and Markdown
 * leave out empty ones. */
static vptq_status print_table(const run *r, vptq_err *err)
{
    if (!r->out)
        return VPTQ_OK;
    vptq_printer p = vptq_printer_make(r->out, VPTQ_COLUMNS(columns));
    const bool all = r->out->format == VPTQ_FORMAT_JSON || r->out->format == VPTQ_FORMAT_CSV;
    p.plain = true;
    p.has = (r->base ? BASE : 0) | (all ? NORM | PERPLEXITY : 0);
    for (size_t i = 0; i < r->done; i++)
        p.has |= (isnan(r->rows[i].r.model.acc_norm) ? 0 : NORM) |
                 (isnan(r->rows[i].r.model.perplexity) ? 0 : PERPLEXITY);
    VPTQ_CHECK(vptq_print_rows(&p, r->rows, r->done, sizeof *r->rows, err));
    return r->out->format == VPTQ_FORMAT_TEXT ? print_total(r, err) : VPTQ_OK;
}

static vptq_status print_plan(const run *r, task_row *row, vptq_err *err)
{
    static const vptq_column plan[] = {
        {.name = "task", VPTQ_TEXT(task_row, name)},
        {.name = "items", VPTQ_INTEGER(task_row, r.model.items)},
        {.name = "requests", VPTQ_INTEGER(task_row, r.model.requests)},
        {.name = "rows", VPTQ_INTEGER(task_row, r.model.rows)},
        {.name = "rows_saved", VPTQ_INTEGER(task_row, r.model.rows_saved)},
        {.name = "totals", VPTQ_OBJECT(task_row, totals)}};
    const vptq_task_figures *f = &row->r.model;
    vptq_estimate e = vptq_estimate_make(r->opt->samples);
    const double tokens = (double)f->rows;
    const size_t length = f->requests && f->rows > f->requests ? f->rows / f->requests : 1;
    VPTQ_CHECK(vptq_eval_estimate(r->dev, r->m, tokens, tokens, length, &e, err));
    VPTQ_CHECK(vptq_eval_estimate(r->dev, r->base, tokens, tokens, length, &e, err));
    row->totals = vptq_estimate_object(&e);
    if (r->out && r->out->format == VPTQ_FORMAT_JSON)
        return vptq_print_object(r->out, VPTQ_COLUMNS(plan), row, err);
    VPTQ_CHECK(vptq_print_line(r->out, err,
                               "%s: would score %" PRIu64 " item%s in %" PRIu64
                               " request%s; %" PRIu64 " token%s, %" PRIu64 " without sharing",
                               row->name, f->items, vptq_plural(f->items, "", "s"), f->requests,
                               vptq_plural(f->requests, "", "s"), f->rows,
                               vptq_plural(f->rows, "", "s"), f->rows + f->rows_saved));
    return vptq_estimate_print(r->out, &e, err);
}

/* ---- the run ---- */

/* Reads and tokenizes every file before the first task is run. */
static vptq_status read_tasks(run *r, vptq_err *err)
{
    const vptq_task_options *o = r->opt;
    for (size_t i = 0; i < o->task_count; i++, r->read++) {
        const vptq_task_file_options file = {
            .task = o->tasks[i].name, .delimiter = o->delimiter, .limit = o->limit};
        r->rows[i] = (task_row){.name = o->tasks[i].name,
                                .model = r->m->ckpt.path,
                                .base_model = r->base ? r->base->ckpt.path : NULL};
        VPTQ_CHECK(
            vptq_task_file_read(o->tasks[i].path, &file, r->dev->ctx, &r->files[i], err));
    }
    for (size_t i = 0; i < o->task_count; i++) {
        const vptq_task_run plan = {
            .name = o->tasks[i].name, .context = o->context, .dry_run = true};
        if (o->dry_run || i > 0)
            VPTQ_CHECK(vptq_eval_task(r->dev, r->m, &r->files[i], &plan, NULL,
                                      &r->rows[i].r.model, err));
    }
    for (size_t i = 0; o->dry_run && i < o->task_count; i++)
        VPTQ_CHECK(print_plan(r, &r->rows[i], err));
    return VPTQ_OK;
}

static vptq_status run_task(run *r, size_t i, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_task_file *file = &r->files[i];
    vptq_task_result *result = &r->rows[i].r;
    vptq_arena arena;
    vptq_buf text;
    vptq_task_answer *answers = NULL, *base = NULL;
    char base_name[96];
    vptq_task_run one = {.name = r->rows[i].name, .context = r->opt->context, .arena = &arena};
    vptq_arena_init(&arena, r->dev->ctx->mem);
    vptq_buf_init(&text, r->dev->ctx->mem);
    VPTQ_TRY(vptq_eval_task(r->dev, r->m, file, &one, &answers, &result->model, err));
    if (r->base) {
        snprintf(base_name, sizeof base_name, "%.64s of the base", one.name);
        one.name = base_name;
        VPTQ_TRY(vptq_eval_task(r->dev, r->base, file, &one, &base, &result->base, err));
        vptq_eval_task_compare(file, answers, base, &result->agreement);
    }
    if (r->samples.fd >= 0) {
        VPTQ_TRY(vptq_eval_task_samples(r->rows[i].name, file, answers, base, &text, err));
        VPTQ_TRY(vptq_file_write(&r->samples, text.data, text.len, err));
    }
    r->done++;
out:
    vptq_buf_release(&text);
    vptq_arena_release(&arena);
    return st;
}

/* Fails if the file of answers is an input, and in a dry run, if it cannot be written. */
static vptq_status check_samples(const run *r, vptq_err *err)
{
    const char *path = r->opt->samples;
    for (size_t i = 0; path && i < r->opt->task_count; i++)
        VPTQ_CHECK(vptq_path_check_output(path, r->opt->tasks[i].path, err));
    VPTQ_CHECK(vptq_checkpoint_check_output(path ? &r->m->ckpt : NULL, path, err));
    VPTQ_CHECK(
        vptq_checkpoint_check_output(path && r->base ? &r->base->ckpt : NULL, path, err));
    return path && r->opt->dry_run && !vptq_comm_rank(r->dev->ctx)
               ? vptq_file_check_target(path, r->opt->force, err)
               : VPTQ_OK;
}

/* Runs all tasks; the finished ones are printed and kept even if a later one fails. */
static vptq_status run_tasks(run *r, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    if (r->opt->samples && vptq_comm_rank(r->dev->ctx) == 0)
        VPTQ_CHECK(vptq_file_writer_open(r->opt->samples, r->opt->force, &r->samples, err));
    while (r->done < r->opt->task_count && !st)
        st = run_task(r, r->done, err);
    vptq_err *later = st ? NULL : err;
    if (r->done > 0) {
        vptq_status kept = print_table(r, later);
        if (!kept && r->samples.fd >= 0)
            kept = vptq_file_writer_commit(&r->samples, later);
        st = st ? st : kept;
    }
    vptq_file_writer_abort(&r->samples);
    return st;
}

vptq_status vptq_eval_tasks(vptq_device *dev, const vptq_model *m, const vptq_model *base,
                            const vptq_task_options *opt, const vptq_output *out,
                            vptq_task_result *results, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    run r = {.dev = dev,
             .m = m,
             .base = base,
             .opt = opt,
             .out = vptq_comm_rank(dev->ctx) ? NULL : out,
             .samples = {.fd = -1}};
    vptq_arena_init(&arena, dev->ctx->mem);
    r.files = vptq_arena_zalloc(&arena, opt->task_count, sizeof *r.files, err);
    r.rows = r.files ? vptq_arena_zalloc(&arena, opt->task_count, sizeof *r.rows, err) : NULL;
    if (!r.rows)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(vptq_units_same_model(dev->ctx, m, err));
    VPTQ_TRY(vptq_units_same_model(dev->ctx, base, err));
    VPTQ_TRY(check_samples(&r, err));
    VPTQ_TRY(read_tasks(&r, err));
    if (!opt->dry_run)
        VPTQ_TRY(run_tasks(&r, err));
    for (size_t i = 0; results && i < opt->task_count; i++)
        results[i] = r.rows[i].r;
out:
    for (size_t i = 0; i < r.read; i++)
        vptq_task_file_release(&r.files[i]);
    vptq_arena_release(&arena);
    return vptq_comm_agree(dev->ctx, st, err);
}
