/* Reports of quantizing, as text or JSON: a row per matrix, sums at the end; the presets. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/backend/cuda/plan_cost.h"
#include "lib/base/text.h"
#include "lib/quantize/quantize.h"
#include "lib/report/column.h"
#include "lib/report/emit.h"
#include "lib/report/estimate.h"

static bool is_json(const vptq_output *out)
{
    return out && out->format == VPTQ_FORMAT_JSON;
}

/* ---- seconds ---- */

/* Seconds by encoder step, in the order of first use. */
typedef struct step_seconds {
    const char *name[VPTQ_ENCODER_MAX_STEPS];
    double seconds[VPTQ_ENCODER_MAX_STEPS];
    uint32_t count;
    double all; /* including the time before the first step and after the last */
} step_seconds;

/* Adds the seconds of a report; a repeated step counts as one. */
static void add_steps(step_seconds *s, const vptq_encoder_report *r)
{
    for (uint32_t i = 0; i < r->num_steps; i++) {
        uint32_t at = 0;
        while (at < s->count && strcmp(s->name[at], r->steps[i].name) != 0)
            at++;
        if (at == s->count) {
            s->name[s->count] = r->steps[i].name;
            s->seconds[s->count++] = 0;
        }
        s->seconds[at] += r->steps[i].seconds;
    }
    s->all += r->seconds;
}

static double rest_of(const step_seconds *s)
{
    double rest = s->all;
    for (uint32_t i = 0; i < s->count; i++)
        rest -= s->seconds[i];
    return rest > 0 ? rest : 0;
}

static void emit_share(vptq_emit *e, const char *name, double share, size_t *column)
{
    char text[48];
    const int n = snprintf(text, sizeof text, " %s %.0f %%", name, 100 * share);
    if (*column + (size_t)n > 78) {
        vptq_emit_text(e, ",\n   ");
        *column = 3;
    } else if (*column > 0) {
        vptq_emit_text(e, ",");
    }
    *column += (size_t)n + 1;
    vptq_emit_text(e, text);
}

/* "time: k-means 20 %, ..." */
static vptq_status print_shares(const vptq_output *out, const step_seconds *s, vptq_err *err)
{
    size_t column = 0;
    vptq_buf text;
    if (!(s->all > 0) || !s->count) /* other ranks do not tell their steps */
        return VPTQ_OK;
    vptq_buf_init(&text, NULL);
    vptq_emit e = {.buf = &text, .err = err};
    for (uint32_t i = 0; i < s->count; i++)
        emit_share(&e, s->name[i], s->seconds[i] / s->all, &column);
    emit_share(&e, "rest", rest_of(s) / s->all, &column);
    if (!e.st)
        e.st = vptq_print_text(out, err, "time:%.*s\n", (int)text.len, text.data);
    vptq_buf_release(&text);
    return e.st;
}

/* ---- rows ---- */

/* A row of the library and the figures of this run. */
typedef struct quantize_line {
    vptq_quantize_row r;
    double index_bits, codebook_bits, loss; /* bits per weight; loss after the first step */
    uint64_t bytes;
    bool quantized; /* in this run, not kept from an earlier one */
    vptq_object seconds;
} quantize_line;

/* Conditions of columns. */
enum {
    PLAN = 1,
    RUN = 2,
    HELD_OUT = 4,
    PREDICTED = 8,
    TIMES = 16,
    VECTORS = 32, /* matrices of method vptq */
    CODES = 64    /* of methods with uniform codes */
};

#define TEXT(key, field, columns, bits)                                                        \
    {                                                                                          \
        .name = key, field, .width = columns, .formats = VPTQ_IN_TEXT, .needs = bits           \
    }
#define REAL(key, member, digits, columns, bits)                                               \
    {                                                                                          \
        .name = key, VPTQ_REAL(quantize_line, member), .decimals = digits, .width = columns,   \
        .formats = VPTQ_IN_TEXT, .needs = bits, .major = true                                  \
    }
#define MILLISECONDS .decimals = 3, .fixed = VPTQ_IN_JSON, .formats = VPTQ_IN_JSON

static const vptq_column columns[] = {
    /* JSON: the row of report.jsonl and these keys */
    {.type = VPTQ_COLUMN_MEMBERS,
     .offset = offsetof(quantize_line, r.json),
     .formats = VPTQ_IN_JSON},
    {.name = "bytes", VPTQ_INTEGER(quantize_line, bytes), .formats = VPTQ_IN_JSON},
    {.name = "reused",
     VPTQ_BOOL(quantize_line, r.reused),
     .formats = VPTQ_IN_JSON,
     .needs = RUN},
    {.name = "seconds", VPTQ_REAL(quantize_line, r.report.seconds), MILLISECONDS, .needs = RUN},
    {.name = "step_seconds",
     VPTQ_OBJECT(quantize_line, seconds),
     .formats = VPTQ_IN_JSON,
     .when = offsetof(quantize_line, quantized)},
    {.name = "predicted_seconds",
     VPTQ_REAL(quantize_line, r.report.seconds),
     MILLISECONDS,
     .needs = TIMES},
    {.name = "predicted_step_seconds",
     VPTQ_OBJECT(quantize_line, seconds),
     .formats = VPTQ_IN_JSON,
     .needs = TIMES},

    TEXT("layer", VPTQ_INTEGER(quantize_line, r.layer), 5, 0),
    {.name = "name",
     VPTQ_TEXT(quantize_line, r.name),
     .width = 9,
     .formats = VPTQ_IN_TEXT,
     .major = true},
    TEXT("rows", VPTQ_INTEGER(quantize_line, r.rows), 6, 0),
    TEXT("columns", VPTQ_INTEGER(quantize_line, r.columns), 7, 0),
    TEXT("v", VPTQ_INTEGER(quantize_line, r.shape.v), 2, VECTORS),
    TEXT("k", VPTQ_INTEGER(quantize_line, r.shape.k), 5, VECTORS),
    TEXT("k_res", VPTQ_INTEGER(quantize_line, r.shape.k_res), 5, VECTORS),
    TEXT("grp", VPTQ_INTEGER(quantize_line, r.shape.groups), 3, VECTORS),
    TEXT("outl", VPTQ_INTEGER(quantize_line, r.shape.outliers), 4, VECTORS),
    TEXT("code", VPTQ_INTEGER(quantize_line, r.uniform.bits), 4, CODES),
    TEXT("group", VPTQ_INTEGER(quantize_line, r.uniform.group_size), 5, CODES),
    REAL("index", index_bits, 4, 8, PLAN),
    REAL("codebooks", codebook_bits, 4, 9, PLAN | VECTORS),
    REAL("total", r.bits.per_weight, 4, 8, PLAN),
    TEXT("bytes", VPTQ_INTEGER(quantize_line, bytes), 10, PLAN),
    REAL("loss", r.predicted, 6, 8, PLAN | PREDICTED),
    REAL("seconds", r.report.seconds, 2, 7, PLAN | TIMES),
    REAL("bits", r.bits.per_weight, 4, 7, RUN),
    REAL("k-means", loss, 6, 8, RUN | VECTORS),
    REAL("loss", r.report.loss, 6, 8, RUN),
    REAL("held-out", r.report.held_out, 6, 8, RUN | HELD_OUT),
    {.name = "seconds",
     VPTQ_REAL(quantize_line, r.report.seconds),
     .decimals = 2,
     .width = 7,
     .when = offsetof(quantize_line, quantized),
     .missing = "kept",
     .formats = VPTQ_IN_TEXT,
     .needs = RUN}};

typedef struct row_printer {
    vptq_printer printer;
    step_seconds steps; /* of all matrices that this run quantizes */
} row_printer;

/* Seconds of steps as columns of an object; keys are the names without hyphens. */
typedef struct step_columns {
    char key[VPTQ_ENCODER_MAX_STEPS][32];
    vptq_column columns[VPTQ_ENCODER_MAX_STEPS + 1];
    double seconds[VPTQ_ENCODER_MAX_STEPS + 1];
} step_columns;

static vptq_object make_step_columns(const vptq_encoder_report *r, step_columns *c)
{
    step_seconds steps = {.count = 0};
    add_steps(&steps, r);
    for (uint32_t i = 0; i <= steps.count; i++) {
        const char *name = i < steps.count ? steps.name[i] : "rest";
        c->columns[i] = (vptq_column){.name = name,
                                      .type = VPTQ_COLUMN_REAL,
                                      .offset = i * sizeof *c->seconds,
                                      .size = sizeof *c->seconds,
                                      MILLISECONDS};
        c->seconds[i] = i < steps.count ? steps.seconds[i] : rest_of(&steps);
        if (i < steps.count && strchr(name, '-')) {
            size_t n = 0;
            for (; *name && n + 1 < sizeof c->key[i]; name++)
                if (*name != '-')
                    c->key[i][n++] = *name;
            c->key[i][n] = 0;
            c->columns[i].name = c->key[i];
        }
    }
    return (vptq_object){c->columns, steps.count + 1, c->seconds};
}

static vptq_status print_row(void *arg, const vptq_quantize_row *r, vptq_err *err)
{
    row_printer *p = arg;
    const double weights = (double)r->rows * r->columns;
    const vptq_vq_bits *b = &r->bits;
    const bool run = p->printer.has & RUN;
    step_columns steps;
    quantize_line line = {.r = *r,
                          .index_bits = (double)(b->indices + b->outlier_indices) / weights,
                          .codebook_bits =
                              (double)(b->codebooks + b->outlier_codebook) / weights,
                          .loss = r->report.steps[0].loss,
                          .bytes = b->total / 8,
                          .quantized = run && !r->reused};
    if (line.quantized || (p->printer.has & TIMES)) {
        add_steps(&p->steps, &r->report);
        line.seconds = make_step_columns(&r->report, &steps);
    }
    if (p->printer.rows == 0)
        p->printer.has |=
            (r->held_out ? HELD_OUT : 0) | (isfinite(r->predicted) ? PREDICTED : 0);
    return vptq_print_row(&p->printer, &line, err);
}

static vptq_status print_mean_losses(const vptq_output *out, const vptq_quantize_result *r,
                                     bool has_held_out, vptq_err *err)
{
    char held_out[48] = "", predicted[48] = "", divergence[48] = "";
    if (has_held_out)
        snprintf(held_out, sizeof held_out, ", held-out %.6f", r->mean_held_out);
    if (isfinite(r->predicted_loss))
        snprintf(predicted, sizeof predicted, ", predicted %.6f", r->predicted_loss);
    if (r->predicted_kld > 0)
        snprintf(divergence, sizeof divergence, ", divergence %.4f", r->predicted_kld);
    return vptq_print_text(out, err, "mean loss %.6f%s%s%s%s\n", r->mean_loss, held_out,
                           r->diagonal ? " (of the diagonals of Hessians)" : "", predicted,
                           divergence);
}

/* Matrices that a recipe decides have no prediction: the mean loss is then unknown, and the
 * divergence is that of the other matrices. */
static vptq_status print_predictions(const vptq_output *out, const vptq_quantize_result *r,
                                     vptq_err *err)
{
    const bool loss = isfinite(r->predicted_loss), divergence = r->predicted_kld > 0;
    if (loss)
        VPTQ_CHECK(vptq_print_text(out, err, "predicted mean loss %.6f%s", r->predicted_loss,
                                   divergence ? ", divergence" : "\n"));
    else if (divergence)
        VPTQ_CHECK(vptq_print_text(out, err, "predicted divergence"));
    return divergence ? vptq_print_text(out, err, " %.4f\n", r->predicted_kld) : VPTQ_OK;
}

/* The time that the run would take on a GPU, and the shares of the encoder's steps. */
static vptq_status print_times(const row_printer *p, const vptq_quantize_result *r,
                               vptq_err *err)
{
    char all[32], calibration[32], note[64] = "";

    vptq_human_seconds(all, r->predicted_seconds);
    vptq_human_seconds(calibration, r->predicted_calibration);
    if (r->predicted_calibration > 0)
        snprintf(note, sizeof note, ", of which calibration %s", calibration);
    VPTQ_CHECK(vptq_print_text(p->printer.out, err, "predicted on one %s: %s%s\n",
                               vptq_cuda_costs_default()->chip, all, note));
    return print_shares(p->printer.out, &p->steps, err);
}

static vptq_status print_summary(const vptq_quantize_options *opt, const row_printer *p,
                                 const vptq_quantize_result *r, vptq_err *err)
{
    const vptq_output *out = p->printer.out;
    char bytes[32], seconds[32], took[40] = "", kept[32] = "", skipped[32] = "";

    vptq_human_bytes(bytes, r->packed_bytes);
    vptq_human_seconds(seconds, r->seconds);
    if (!opt->dry_run)
        snprintf(took, sizeof took, ", %s", seconds);
    if (r->reused)
        snprintf(kept, sizeof kept, " (%u kept)", r->reused);
    if (r->skipped)
        snprintf(skipped, sizeof skipped, ", %u skipped", r->skipped);
    VPTQ_CHECK(vptq_print_text(
        out, err, "%u %s%s%s, %.4f bits per weight, weights file about %s at %.4f%s\n",
        r->matrices, vptq_plural(r->matrices, "matrix", "matrices"), kept, skipped,
        r->bits_per_weight, bytes, r->file_bits_per_weight, took));
    if (opt->dry_run) {
        VPTQ_CHECK(print_predictions(out, r, err));
        if (opt->estimate)
            VPTQ_CHECK(vptq_estimate_print(out, &r->estimate, err));
        return opt->predict ? print_times(p, r, err) : VPTQ_OK;
    }
    VPTQ_CHECK(print_mean_losses(out, r, p->printer.has & HELD_OUT, err));
    return print_shares(out, &p->steps, err);
}

/* Of a dry run. */
static const vptq_column totals_columns[] = {
    {.name = "matrices", VPTQ_INTEGER(vptq_quantize_result, matrices)},
    {.name = "matrices_skipped", VPTQ_INTEGER(vptq_quantize_result, skipped)},
    {.name = "bits_per_weight", VPTQ_REAL(vptq_quantize_result, bits_per_weight)},
    {.name = "file_bits_per_weight", VPTQ_REAL(vptq_quantize_result, file_bits_per_weight)},
    {.name = "packed_bytes", VPTQ_INTEGER(vptq_quantize_result, packed_bytes)},
    VPTQ_ESTIMATE_COLUMNS(vptq_quantize_result, estimate)};

vptq_status vptq_quantize_report(vptq_device *dev, const vptq_quantize_options *opt,
                                 const vptq_output *out, vptq_quantize_result *r, vptq_err *err)
{
    row_printer p = {.printer = vptq_printer_make(out, VPTQ_COLUMNS(columns))};
    p.printer.has = opt->dry_run ? PLAN : RUN;
    if (opt->dry_run && opt->predict)
        p.printer.has |= TIMES;
    if (opt->recipe) /* may mix methods */
        p.printer.has |= VECTORS | CODES;
    else
        p.printer.has |= opt->settings->method == VPTQ_METHOD_VPTQ      ? VECTORS
                         : vptq_method_has_codes(opt->settings->method) ? CODES
                                                                        : 0;
    p.printer.gap = 1;
    VPTQ_CHECK(vptq_quantize_model(dev, opt, out ? print_row : NULL, &p, r, err));
    if (is_json(out))
        return opt->dry_run && opt->estimate
                   ? vptq_totals_print(out, VPTQ_COLUMNS(totals_columns), r, err)
                   : VPTQ_OK;
    return out ? print_summary(opt, &p, r, err) : VPTQ_OK;
}

/* The last object of a run. */
typedef struct end_line {
    const char *work;
    vptq_quantize_result r;
} end_line;
static const vptq_column end_columns[] = {
    {.name = "work", VPTQ_TEXT(end_line, work)},
    {.name = "matrices", VPTQ_INTEGER(end_line, r.matrices)},
    {.name = "matrices_skipped", VPTQ_INTEGER(end_line, r.skipped)},
    {.name = "bits_per_weight", VPTQ_REAL(end_line, r.bits_per_weight)},
    {.name = "file_bits_per_weight", VPTQ_REAL(end_line, r.file_bits_per_weight)},
    {.name = "mean_loss", VPTQ_REAL(end_line, r.mean_loss)},
    {.name = "seconds", VPTQ_REAL(end_line, r.seconds)},
    {.name = "digest", VPTQ_CHARS(end_line, r.digest)}};

vptq_status vptq_quantize_report_end(const vptq_quantize_options *opt,
                                     const vptq_quantize_result *r, const vptq_output *out,
                                     vptq_err *err)
{
    const end_line line = {opt->work, *r};
    if (is_json(out))
        return vptq_print_object(out, VPTQ_COLUMNS(end_columns), &line, err);
    return *r->digest ? vptq_print_text(out, err, "digest %s\n", r->digest) : VPTQ_OK;
}

/* ---- presets ---- */

typedef struct preset_row {
    vptq_preset p;
    const char *model;
    double bits;
} preset_row;

#define SETTING(key, text, member, columns)                                                    \
    {                                                                                          \
        .name = key, .title = text, VPTQ_INTEGER(preset_row, p.member), .width = columns       \
    }
static const vptq_column preset_columns[] = {
    {.name = "name", VPTQ_TEXT(preset_row, p.name), .width = 20},
    {.name = "paper", VPTQ_TEXT(preset_row, p.paper), .formats = VPTQ_IN_JSON},
    {.name = "model", VPTQ_TEXT(preset_row, model), .formats = VPTQ_IN_JSON},
    SETTING("v", NULL, v, 2),
    SETTING("k", NULL, k, 5),
    SETTING("k_res", NULL, k_res, 5),
    SETTING("groups", "grp", groups, 3),
    {.name = "outlier_percent",
     .title = "outl%",
     VPTQ_REAL(preset_row, p.outliers),
     .decimals = -6},
    SETTING("v0", NULL, v0, 2),
    SETTING("k0", NULL, k0, 4),
    {.name = "bits_per_weight",
     .title = "bits",
     VPTQ_REAL(preset_row, bits),
     .decimals = 4,
     .width = 7,
     .major = true},
    {.name = "of", VPTQ_TEXT(preset_row, model), .width = 11, .formats = VPTQ_IN_TEXT},
    {.name = "paper", VPTQ_TEXT(preset_row, p.paper), .width = 8, .formats = VPTQ_IN_TEXT}};

/* A preset of uniform codes; values that its method does not use are missing. */
typedef struct served_row {
    const char *name, *paper;
    char method[VPTQ_SETTING_TEXT];
    uint32_t weight_bits, group_size, activation_bits;
    bool symmetric;
    double smooth_alpha, sparsity, ridge;
} served_row;

static const vptq_column served_columns[] = {
    {.name = "name", VPTQ_TEXT(served_row, name), .width = 23},
    {.name = "paper", VPTQ_TEXT(served_row, paper), .formats = VPTQ_IN_JSON},
    {.name = "method", VPTQ_CHARS(served_row, method), .width = 18},
    {.name = "weight_bits", .title = "bits", VPTQ_INTEGER(served_row, weight_bits)},
    {.name = "activation_bits",
     .title = "inputs",
     VPTQ_INTEGER(served_row, activation_bits),
     .zero_missing = true},
    {.name = "group_size", .title = "group", VPTQ_INTEGER(served_row, group_size), .width = 5},
    {.name = "symmetric", VPTQ_BOOL(served_row, symmetric), .formats = VPTQ_IN_JSON},
    {.name = "smooth_alpha",
     .title = "alpha",
     VPTQ_REAL(served_row, smooth_alpha),
     .decimals = 1},
    {.name = "sparsity", VPTQ_REAL(served_row, sparsity), .decimals = 1},
    {.name = "ridge", VPTQ_REAL(served_row, ridge), .decimals = 2}};

static served_row served_row_of(const vptq_served_preset *p)
{
    vptq_encoder_settings s = vptq_encoder_defaults();
    const bool known = !vptq_preset_apply(p->name, &s, NULL);
    served_row row = {
        .name = known ? p->name : NULL,
        .paper = "serving benchmark",
        .group_size = s.group_size,
        .weight_bits = s.weight_bits,
        .activation_bits = s.activation_bits,
        .symmetric = s.symmetric,
        .smooth_alpha = s.method & VPTQ_METHOD_SMOOTH ? s.smooth_alpha : (double)NAN,
        .sparsity = s.method & VPTQ_METHOD_SPARSE ? s.sparsity : (double)NAN,
        .ridge = s.method & (VPTQ_METHOD_GPTQ | VPTQ_METHOD_SPARSE) ? s.ridge : (double)NAN};
    vptq_setting_print(vptq_setting_find("method"), &s, row.method, sizeof row.method);
    return row;
}

static vptq_status show_served(const vptq_output *out, vptq_err *err)
{
    size_t count;
    const vptq_served_preset *table = vptq_served_preset_table(&count);
    vptq_printer p = vptq_printer_make(out, VPTQ_COLUMNS(served_columns));
    p.gap = 1;
    if (!is_json(out))
        VPTQ_CHECK(vptq_print_text(out, err, "\n"));
    for (size_t i = 0; i < count; i++) {
        const served_row row = served_row_of(&table[i]);
        VPTQ_CHECK(vptq_print_row(&p, &row, err));
    }
    if (is_json(out))
        return VPTQ_OK;
    return vptq_print_text(out, err,
                           "\n8-bit models of a serving benchmark; groups are made to fit the "
                           "columns (--fit-groups),\n0 = the whole row; inputs: bits of "
                           "activations\n");
}

vptq_status vptq_presets_show(const vptq_output *out, vptq_err *err)
{
    size_t count;
    const vptq_preset *table = vptq_preset_table(&count);
    vptq_printer p = vptq_printer_make(out, VPTQ_COLUMNS(preset_columns));
    p.gap = 1;
    for (size_t i = 0; i < count; i++) {
        const preset_row row = {table[i], table[i].model->name, vptq_preset_bits(&table[i])};
        VPTQ_CHECK(vptq_print_row(&p, &row, err));
    }
    if (!is_json(out))
        VPTQ_CHECK(vptq_print_text(
            out, err,
            "\nbits: everything stored for the linear layers of that model, per weight; "
            "codebooks take\na larger share of a small model, which --dry-run shows\n"));
    return show_served(out, err);
}
