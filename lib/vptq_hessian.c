/* The public functions on Hessians: they open the device, run the operation and report what it
 * did, as text or JSON. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "hessian/import.h"
#include "hessian/outputs.h"
#include "lib/base/comm.h"
#include "lib/base/file.h"
#include "lib/base/text.h"
#include "lib/report/column.h"
#include "lib/report/emit.h"
#include "lib/report/estimate.h"
#include "lib/vptq_internal.h"

static bool is_json(const vptq_output *out)
{
    return out && out->format == VPTQ_FORMAT_JSON;
}

/* ---- collect ---- */

/* A collection or its plan, as printed. */
typedef struct collected {
    const char *model, *output;
    vptq_collect_result r;
    bool planned;
    vptq_estimate estimate;
    vptq_object totals;
} collected;
static const vptq_column collected_columns[] = {
    {.name = "model", VPTQ_TEXT(collected, model)},
    {.name = "output", VPTQ_TEXT(collected, output)},
    {.name = "dry_run", VPTQ_BOOL(collected, planned)},
    {.name = "windows", VPTQ_INTEGER(collected, r.windows)},
    {.name = "windows_held_out", VPTQ_INTEGER(collected, r.held_out)},
    {.name = "window_length", VPTQ_INTEGER(collected, r.length)},
    {.name = "tokens", VPTQ_INTEGER(collected, r.tokens)},
    {.name = "layers_done", VPTQ_INTEGER(collected, r.layers_done)},
    {.name = "layers_to_do",
     VPTQ_INTEGER(collected, r.layers_to_do),
     .when = offsetof(collected, planned)},
    {.name = "layers_reused", VPTQ_INTEGER(collected, r.layers_reused)},
    {.name = "bytes", VPTQ_INTEGER(collected, r.bytes)},
    {.name = "seconds", VPTQ_REAL(collected, r.seconds)},
    {.name = "totals", VPTQ_OBJECT(collected, totals), .when = offsetof(collected, planned)}};

/* Memory also holds what the context has allocated so far; the disk also holds a checkpoint of
 * the hidden states, and the one that replaces it. */
static void estimate_collected(const vptq_ctx *ctx, const vptq_model *m, collected *c)
{
    const uint64_t rows = (c->r.windows + c->r.held_out) * c->r.length;
    c->estimate = vptq_estimate_make(c->output);
    c->estimate.seconds = c->r.estimated_seconds;
    c->estimate.memory_bytes = c->r.memory_bytes + (ctx->mem ? ctx->mem->used : 0);
    if (ctx->mem && ctx->mem->cap && c->estimate.memory_bytes > ctx->mem->cap)
        c->estimate.memory_bytes = ctx->mem->cap; /* hidden states make do with it */
    c->estimate.disk_bytes = c->r.bytes_to_do;
    if (c->r.layers_to_do)
        c->estimate.disk_bytes += 2 * rows * m->desc->hidden * sizeof(float);
    if (isnan(c->r.estimated_seconds))
        vptq_estimate_leave_out(&c->estimate, "guided weights");
    if (c->r.outputs_to_do)
        vptq_estimate_leave_out(&c->estimate, "output Hessians");
    c->totals = vptq_estimate_object(&c->estimate);
}

static vptq_status report_collected(const vptq_output *out, const collected *c, vptq_err *err)
{
    const vptq_collect_result *r = &c->r;
    const uint32_t layers = c->planned ? r->layers_to_do : r->layers_done;
    char bytes[32], seconds[32], took[40] = "", held_out[64] = "", kept[48] = "";

    if (is_json(out))
        return vptq_print_object(out, VPTQ_COLUMNS(collected_columns), c, err);
    vptq_human_bytes(bytes, r->bytes);
    vptq_human_seconds(seconds, r->seconds);
    if (!c->planned)
        snprintf(took, sizeof took, ", %s", seconds);
    if (r->held_out)
        snprintf(held_out, sizeof held_out, ", %zu window%s held out", r->held_out,
                 vptq_plural(r->held_out, "", "s"));
    if (r->layers_reused)
        snprintf(kept, sizeof kept, ", %u layer%s kept", r->layers_reused,
                 vptq_plural(r->layers_reused, "", "s"));
    VPTQ_CHECK(vptq_print_line(
        out, err, "%s: %zu window%s of %zu token%s, %u layer%s%s, %s%s%s%s",
        c->output ? c->output : "plan", r->windows, vptq_plural(r->windows, "", "s"), r->length,
        vptq_plural(r->length, "", "s"), layers, vptq_plural(layers, "", "s"),
        c->planned ? " to do" : "", bytes, held_out, kept, took));
    return c->planned ? vptq_estimate_print(out, &c->estimate, err) : VPTQ_OK;
}

vptq_status vptq_hessians_collect(vptq_ctx *ctx, const vptq_model *m,
                                  const vptq_collect_options *opt, const char *dir,
                                  const vptq_output *out, vptq_err *err)
{
    vptq_device *dev;
    collected c = {.model = m->ckpt.path, .output = dir};
    vptq_collect_options o = *opt;
    if (!o.tool_version)
        o.tool_version = "libvptq " VPTQ_VERSION;
    VPTQ_CHECK(vptq_ctx_device(ctx, &dev, err));
    VPTQ_CHECK(vptq_hessian_collect(dev, m, &o, dir, &c.r, err));
    c.planned = opt->dry_run;
    if (c.planned)
        estimate_collected(ctx, m, &c);
    return vptq_comm_rank(ctx) ? VPTQ_OK : report_collected(out, &c, err);
}

/* ---- show ---- */

/* The statistics of one Hessian. */
typedef struct show_row {
    const char *input;
    uint32_t layer;
    vptq_hessian_stats s;
    uint64_t output_windows; /* of the output Hessians of the directory; 0 = none */
} show_row;

/* 0 tokens: unknown. */
#define TOKENS .zero_missing = true, .missing = "?"

static const vptq_column show_columns[] = {
    {.name = "layer", VPTQ_INTEGER(show_row, layer)},
    {.name = "input", VPTQ_TEXT(show_row, input), .major = true},
    {.name = "columns", VPTQ_INTEGER(show_row, s.n)},
    {.name = "tokens", VPTQ_INTEGER(show_row, s.tokens), TOKENS, .width = 9},
    {.name = "samples_per_dim",
     .title = "per dim",
     VPTQ_REAL(show_row, s.samples_per_dim),
     .decimals = 1,
     .missing = "?",
     .width = 8},
    {.name = "diagonal", VPTQ_BOOL(show_row, s.diagonal), .formats = VPTQ_IN_JSON},
    {.name = "trace", VPTQ_REAL(show_row, s.trace), .decimals = -4, .width = 10},
    {.name = "mean_diag", VPTQ_REAL(show_row, s.mean_diag), .formats = VPTQ_IN_JSON},
    {.name = "max_diag",
     .title = "max diag",
     VPTQ_REAL(show_row, s.max_diag),
     .decimals = -3,
     .width = 9},
    {.name = "abs_max", VPTQ_REAL(show_row, s.abs_max), .formats = VPTQ_IN_JSON},
    {.name = "mean_share",
     .title = "mean",
     VPTQ_REAL(show_row, s.mean_share),
     .scale = 100,
     .unit = "%",
     .missing = "?",
     .width = 6},
    {.name = "dead", VPTQ_INTEGER(show_row, s.dead), .width = 5},
    {.name = "constant", VPTQ_INTEGER(show_row, s.constant)},
    {.name = "nan", VPTQ_INTEGER(show_row, s.nan), .width = 4},
    {.name = "condition", VPTQ_REAL(show_row, s.condition), .decimals = -2, .major = true},
    {.name = "verdict", VPTQ_TEXT(show_row, s.verdict), .width = 14, .major = true},
    {.name = "output_windows",
     VPTQ_INTEGER(show_row, output_windows),
     .formats = VPTQ_IN_JSON}};

typedef struct show_state {
    vptq_printer printer;
    uint64_t bad;
    double worst_condition;
    bool diagonal; /* at least one is only a diagonal */
    uint64_t output_windows;
} show_state;

static vptq_status print_stats(void *arg, uint32_t layer, const char *input,
                               const vptq_hessian_stats *s, vptq_err *err)
{
    show_state *show = arg;
    const show_row row = {input, layer, *s, show->output_windows};
    show->bad += strcmp(s->verdict, "good") != 0;
    show->diagonal = show->diagonal || s->diagonal;
    if (s->condition > show->worst_condition)
        show->worst_condition = s->condition;
    return vptq_print_row(&show->printer, &row, err);
}

static const char only_diagonals[] =
    "only diagonals are known: they weight errors but cannot compensate them\n";

/* *windows: of the output Hessians of the directory; 0 = none. */
static vptq_status find_outputs(const vptq_ctx *ctx, const char *dir, uint64_t *windows,
                                vptq_err *err)
{
    vptq_hessian_dir h;
    vptq_outputs o;

    VPTQ_CHECK(vptq_hessian_dir_open(dir, &h, err));
    VPTQ_CHECK(vptq_outputs_open_dir(dir, &h, NULL, ctx->mem, &o, err));
    *windows = o.windows;
    vptq_outputs_close(&o);
    return VPTQ_OK;
}

vptq_status vptq_hessians_show(vptq_ctx *ctx, const char *dir, const vptq_output *out,
                               vptq_err *err)
{
    vptq_device *dev;
    char outputs[64] = "";
    show_state s = {.printer = vptq_printer_make(out, VPTQ_COLUMNS(show_columns))};
    s.printer.gap = 1;

    VPTQ_CHECK(vptq_ctx_device(ctx, &dev, err));
    VPTQ_CHECK(find_outputs(ctx, dir, &s.output_windows, err));
    VPTQ_CHECK(vptq_hessian_show(dev, dir, print_stats, &s, err));
    if (is_json(out))
        return VPTQ_OK;
    if (s.output_windows)
        snprintf(outputs, sizeof outputs, "output Hessians of %" PRIu64 " window%s\n",
                 s.output_windows, vptq_plural(s.output_windows, "", "s"));
    VPTQ_CHECK(vptq_print_line(out, err,
                               "%s: %" PRIu64 " of %zu hessians are good, worst condition %.2g",
                               dir, s.printer.rows - s.bad, s.printer.rows, s.worst_condition));
    return vptq_print_text(out, err, "%s%s", s.diagonal ? only_diagonals : "", outputs);
}

/* ---- merge, import and export ---- */

/* The disk and memory of a plan; the time is that of disks, which is not estimated. */
static vptq_estimate estimate_of(const vptq_ctx *ctx, const char *to,
                                 const vptq_hessian_plan *plan)
{
    vptq_estimate e = vptq_estimate_make(to);
    e.memory_bytes = plan->memory + (ctx->mem ? ctx->mem->used : 0);
    e.disk_bytes = plan->bytes;
    return e;
}

typedef struct merged {
    const char *output;
    size_t merged;
    bool planned;
    vptq_object totals;
} merged;
static const vptq_column merged_columns[] = {
    {.name = "output", VPTQ_TEXT(merged, output)},
    {.name = "merged", VPTQ_INTEGER(merged, merged)},
    {.name = "dry_run", VPTQ_BOOL(merged, planned), .when = offsetof(merged, planned)},
    {.name = "totals", VPTQ_OBJECT(merged, totals), .when = offsetof(merged, planned)}};

vptq_status vptq_hessians_plan_merge(const vptq_ctx *ctx, const char *const *dirs, size_t count,
                                     const char *to, bool force, const vptq_output *out,
                                     vptq_err *err)
{
    vptq_hessian_plan plan;
    VPTQ_CHECK(vptq_hessian_merge_plan(ctx, dirs, count, to, force, &plan, err));
    const vptq_estimate e = estimate_of(ctx, to, &plan);
    const merged row = {to, count, true, vptq_estimate_object(&e)};
    if (is_json(out))
        return vptq_print_object(out, VPTQ_COLUMNS(merged_columns), &row, err);
    VPTQ_CHECK(vptq_print_line(out, err, "%s: to merge from %zu directories", to, count));
    return vptq_estimate_print(out, &e, err);
}

vptq_status vptq_hessians_merge(const vptq_ctx *ctx, const char *const *dirs, size_t count,
                                const char *to, bool force, const vptq_output *out,
                                vptq_err *err)
{
    const merged row = {.output = to, .merged = count};
    VPTQ_CHECK(vptq_hessian_merge(ctx, dirs, count, to, force, err));
    return is_json(out)
               ? vptq_print_object(out, VPTQ_COLUMNS(merged_columns), &row, err)
               : vptq_print_line(out, err, "%s: merged from %zu directories", to, count);
}

/* Imported or exported Hessians, as printed. */
typedef struct exchanged {
    const char *output, *form;
    vptq_exchange x;
    bool took_ridge, added_ridge, planned;
    vptq_object totals;
} exchanged;
static const vptq_column exchanged_columns[] = {
    {.name = "output", VPTQ_TEXT(exchanged, output)},
    {.name = "form", VPTQ_TEXT(exchanged, form)},
    {.name = "first_layer", VPTQ_INTEGER(exchanged, x.dir.first_layer)},
    {.name = "last_layer", VPTQ_INTEGER(exchanged, x.dir.last_layer)},
    {.name = "tokens", VPTQ_INTEGER(exchanged, x.dir.tokens), TOKENS},
    {.name = "diagonal", VPTQ_BOOL(exchanged, x.dir.diagonal)},
    {.name = "ridge_removed",
     VPTQ_REAL(exchanged, x.ridge),
     .when = offsetof(exchanged, took_ridge)},
    {.name = "ridge", VPTQ_REAL(exchanged, x.ridge), .when = offsetof(exchanged, added_ridge)},
    {.name = "dry_run", VPTQ_BOOL(exchanged, planned), .when = offsetof(exchanged, planned)},
    {.name = "totals", VPTQ_OBJECT(exchanged, totals), .when = offsetof(exchanged, planned)}};

/* Text on the ridge of factors of inverses. */
static void describe_ridge(const exchanged *e, char text[96])
{
    text[0] = 0;
    if (e->added_ridge)
        snprintf(text, 96, "inverted with %g of the mean diagonal added\n", e->x.ridge);
    else if (e->took_ridge && e->x.ridge > 0)
        snprintf(text, 96,
                 "inverted back; the ridge of %g was subtracted, the mean diagonal is 1\n",
                 e->x.ridge);
    else if (e->took_ridge)
        snprintf(text, 96, "inverted back; their damping is unknown, so they keep it\n");
}

static vptq_status report_exchanged(const vptq_output *out, const exchanged *e, vptq_err *err)
{
    const vptq_hessian_dir *d = &e->x.dir;
    char tokens[48] = "unknown number of tokens", ridge[96];

    if (is_json(out))
        return vptq_print_object(out, VPTQ_COLUMNS(exchanged_columns), e, err);
    if (d->tokens)
        snprintf(tokens, sizeof tokens, "%" PRIu64 " token%s", d->tokens,
                 vptq_plural(d->tokens, "", "s"));
    describe_ridge(e, ridge);
    VPTQ_CHECK(vptq_print_line(
        out, err, "%s: %s%s, hessians of layers %" PRIu32 "-%" PRIu32 ", %s", e->output,
        e->planned ? "to write " : "", e->form, d->first_layer, d->last_layer, tokens));
    return vptq_print_text(out, err, "%s%s", d->diagonal ? only_diagonals : "", ridge);
}

vptq_status vptq_hessians_import(vptq_ctx *ctx, const char *from, const char *dir, bool force,
                                 const vptq_output *out, vptq_err *err)
{
    vptq_device *dev;
    exchanged e = {.output = dir};
    VPTQ_CHECK(vptq_ctx_device(ctx, &dev, err));
    VPTQ_CHECK(vptq_hessian_import(dev, from, dir, force, &e.x, err));
    e.form = vptq_foreign_form_name(e.x.form);
    e.took_ridge = e.x.form == VPTQ_FOREIGN_INVERSE;
    return report_exchanged(out, &e, err);
}

vptq_status vptq_hessians_plan_export(const vptq_ctx *ctx, const char *dir, bool inverse,
                                      const char *to, const vptq_output *out, vptq_err *err)
{
    const vptq_foreign_form form = inverse ? VPTQ_FOREIGN_INVERSE : VPTQ_FOREIGN_COVARIANCE;
    vptq_hessian_plan plan;
    exchanged e = {.output = to,
                   .form = vptq_foreign_form_name(form),
                   .added_ridge = inverse,
                   .planned = true};
    VPTQ_CHECK(vptq_hessian_export_plan(dir, form, to, &e.x, &plan, err));
    const vptq_estimate estimate = estimate_of(ctx, to, &plan);
    e.totals = vptq_estimate_object(&estimate);
    VPTQ_CHECK(report_exchanged(out, &e, err));
    return is_json(out) ? VPTQ_OK : vptq_estimate_print(out, &estimate, err);
}

vptq_status vptq_hessians_export(vptq_ctx *ctx, const char *dir, bool inverse, const char *to,
                                 const vptq_output *out, vptq_err *err)
{
    const vptq_foreign_form form = inverse ? VPTQ_FOREIGN_INVERSE : VPTQ_FOREIGN_COVARIANCE;
    vptq_device *dev;
    exchanged e = {.output = to, .form = vptq_foreign_form_name(form), .added_ridge = inverse};
    VPTQ_CHECK(vptq_ctx_device(ctx, &dev, err));
    VPTQ_CHECK(vptq_hessian_export(dev, dir, form, to, &e.x, err));
    return report_exchanged(out, &e, err);
}
