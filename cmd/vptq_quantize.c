/* vptq-quantize: quantizes a model with Hessians and settings into a work directory. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/cli/calibrate.h"
#include "cmd/cli/settings.h"
#include "lib/internal.h"
#include "lib/vptq.h"

typedef struct quantize_args {
    const char *model, *hessians, *held_out, *output, *tokenizer, *recipe;
    double kv_factor;
    bool sequential;
    double correction;
    vptq_cli_calibrate calibrate;
    vptq_cli_range layers;
    vptq_cli_settings settings;
    /* bit budget */
    double bits;
    int allocate; /* vptq_allocate_mode */
    vptq_cli_strings texts, tokens;
    uint64_t windows, length;
} quantize_args;

/* Seconds by encoder step, in the order of first use. */
typedef struct step_seconds {
    const char *name[VPTQ_ENCODER_MAX_STEPS];
    double seconds[VPTQ_ENCODER_MAX_STEPS];
    uint32_t count;
    double all; /* including the time before the first step and after the last */
} step_seconds;

/* ---- seconds ---- */

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

static void print_share(const char *name, double share, int *column)
{
    char text[48];
    const int length = snprintf(text, sizeof text, " %s %.0f %%", name, 100 * share);
    if (*column + length > 78)
        *column = printf(",\n   ") - 2;
    else if (*column > 0)
        putchar(',');
    *column += length + 1;
    fputs(text, stdout);
}

static void print_shares(const step_seconds *s)
{
    int column = 0;
    if (!(s->all > 0))
        return;
    fputs("time:", stdout);
    for (uint32_t i = 0; i < s->count; i++)
        print_share(s->name[i], s->seconds[i] / s->all, &column);
    print_share("rest", rest_of(s) / s->all, &column);
    putchar('\n');
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
enum { PLAN = 1, RUN = 2, HELD_OUT = 4, PREDICTED = 8 };

#define TEXT(key, field, columns, bits)                                                        \
    {                                                                                          \
        .name = key, field, .width = columns, .formats = VPTQ_IN_TEXT, .needs = bits           \
    }
#define REAL(key, member, digits, columns, bits)                                               \
    {                                                                                          \
        .name = key, VPTQ_REAL(quantize_line, member), .decimals = digits, .width = columns,   \
        .formats = VPTQ_IN_TEXT, .needs = bits                                                 \
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

    TEXT("layer", VPTQ_INTEGER(quantize_line, r.layer), 5, 0),
    TEXT("name", VPTQ_TEXT(quantize_line, r.name), 9, 0),
    TEXT("rows", VPTQ_INTEGER(quantize_line, r.rows), 6, 0),
    TEXT("columns", VPTQ_INTEGER(quantize_line, r.columns), 7, 0),
    TEXT("v", VPTQ_INTEGER(quantize_line, r.shape.v), 2, 0),
    TEXT("k", VPTQ_INTEGER(quantize_line, r.shape.k), 5, 0),
    TEXT("k_res", VPTQ_INTEGER(quantize_line, r.shape.k_res), 5, 0),
    TEXT("grp", VPTQ_INTEGER(quantize_line, r.shape.groups), 3, 0),
    TEXT("outl", VPTQ_INTEGER(quantize_line, r.shape.outliers), 4, 0),
    REAL("index", index_bits, 4, 8, PLAN),
    REAL("codebooks", codebook_bits, 4, 9, PLAN),
    REAL("total", r.bits.per_weight, 4, 8, PLAN),
    TEXT("bytes", VPTQ_INTEGER(quantize_line, bytes), 10, PLAN),
    REAL("loss", r.predicted, 6, 8, PLAN | PREDICTED),
    REAL("bits", r.bits.per_weight, 4, 7, RUN),
    REAL("k-means", loss, 6, 8, RUN),
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
    (void)err;
    if (line.quantized) {
        add_steps(&p->steps, &r->report);
        line.seconds = make_step_columns(&r->report, &steps);
    }
    if (p->printer.rows == 0)
        p->printer.has |=
            (r->held_out ? HELD_OUT : 0) | (isfinite(r->predicted) ? PREDICTED : 0);
    vptq_print_row(&p->printer, &line, NULL);
    return VPTQ_OK;
}

static void print_mean_losses(const vptq_quantize_result *r, bool held_out)
{
    printf("mean loss %.6f", r->mean_loss);
    if (held_out)
        printf(", held-out %.6f", r->mean_held_out);
    if (r->diagonal)
        printf(" (of the diagonals of Hessians)");
    if (isfinite(r->predicted_loss))
        printf(", predicted %.6f", r->predicted_loss);
    if (r->predicted_kld > 0)
        printf(", divergence %.4f", r->predicted_kld);
    putchar('\n');
}

/* Matrices that a recipe decides have no prediction: the mean loss is then unknown, and the
 * divergence is that of the other matrices. */
static void print_predictions(const vptq_quantize_result *r)
{
    const bool loss = isfinite(r->predicted_loss), divergence = r->predicted_kld > 0;
    if (loss)
        printf("predicted mean loss %.6f", r->predicted_loss);
    if (divergence)
        printf("%s %.4f", loss ? ", divergence" : "predicted divergence", r->predicted_kld);
    if (loss || divergence)
        putchar('\n');
}

static void print_summary(const vptq_cli *cli, const row_printer *p,
                          const vptq_quantize_result *r)
{
    char bytes[32], seconds[32];

    if (cli->common.format == CLI_JSON)
        return;
    vptq_cli_human_bytes(bytes, r->packed_bytes);
    vptq_cli_human_seconds(seconds, r->seconds);
    printf("%u matrices", r->matrices);
    if (r->reused)
        printf(" (%u kept)", r->reused);
    printf(", %.4f bits per weight, weights file about %s, %s\n", r->bits_per_weight, bytes,
           seconds);
    if (cli->common.dry_run) {
        print_predictions(r);
        return;
    }
    print_mean_losses(r, p->printer.has & HELD_OUT);
    print_shares(&p->steps);
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
     .width = 7},
    {.name = "of", VPTQ_TEXT(preset_row, model), .width = 11, .formats = VPTQ_IN_TEXT},
    {.name = "paper", VPTQ_TEXT(preset_row, p.paper), .formats = VPTQ_IN_TEXT}};

static int list_presets(vptq_cli *cli)
{
    size_t count;
    const vptq_preset *table = vptq_preset_table(&count);
    const bool text = cli->common.format != CLI_JSON;
    vptq_printer p = vptq_printer_make(&cli->out, VPTQ_COLUMNS(preset_columns));
    p.gap = 1;
    for (size_t i = 0; i < count; i++) {
        const preset_row row = {table[i], table[i].model->name, vptq_preset_bits(&table[i])};
        vptq_print_row(&p, &row, NULL);
    }
    if (text)
        printf("\nbits: everything stored for the linear layers of that model, per weight; "
               "codebooks take\na larger share of a small model, which --dry-run shows\n");
    return vptq_cli_finish(cli, VPTQ_OK, NULL);
}

/* ---- running ---- */

/* Converts the options for calibrating in this run, without -H. */
static vptq_status take_calibration(const vptq_cli *cli, const quantize_args *a,
                                    vptq_calibrate_options *c, double *kv_factor, vptq_err *err)
{
    static const double sequential_holdout =
        0.1; /* choosing the correction needs held-out windows */
    const bool correct = !isnan(a->correction) && a->correction > 0;
    double factor;
    vptq_status st = vptq_cli_calibrate_take(&a->calibrate, cli->common.seed, c, &factor, err);
    if (st)
        return st;
    c->sequential = a->sequential;
    c->correction = isnan(a->correction) ? (double)c->sequential : a->correction;
    if (!(c->correction >= 0 && c->correction <= 1))
        return vptq_fail(err, VPTQ_E_ARG, "--correction %g: expected 0 to 1", a->correction);
    if (correct && !c->sequential)
        return vptq_fail(err, VPTQ_E_ARG, "--correction needs --sequential");
    if (c->correction > 0 && isnan(a->calibrate.holdout))
        c->holdout = sequential_holdout;
    if (isnan(a->kv_factor))
        *kv_factor = factor;
    else if (a->kv_factor > 0 && !c->weights)
        return vptq_fail(err, VPTQ_E_ARG, "--kv-factor needs --weights sink or attention");
    return VPTQ_OK;
}

static int quantize(vptq_cli *cli, const quantize_args *a, const vptq_settings *settings)
{
    vptq_err err = {0};
    vptq_calibrate_options calibrate;
    vptq_quantize_result r = {0};
    const vptq_corpus_options text = {.texts = a->texts.items,
                                      .text_count = a->texts.count,
                                      .tokens = a->tokens.items,
                                      .token_count = a->tokens.count};
    vptq_quantize_options opt = {.model = a->model,
                                 .hessians = a->hessians,
                                 .held_out = a->held_out,
                                 .kv_factor = a->kv_factor,
                                 .work = a->output,
                                 .tokenizer = a->tokenizer,
                                 .settings = settings,
                                 .recipe = a->recipe,
                                 .bits = isnan(a->bits) ? 0 : a->bits,
                                 .allocate = (vptq_allocate_mode)a->allocate,
                                 .allocate_text = &text,
                                 .allocate_windows = a->windows,
                                 .allocate_length = a->length,
                                 .first_layer = a->layers.first,
                                 .last_layer = a->layers.last,
                                 .force = cli->common.force,
                                 .dry_run = cli->common.dry_run};
    row_printer p = {.printer = vptq_printer_make(&cli->out, VPTQ_COLUMNS(columns))};
    p.printer.has = opt.dry_run ? PLAN : RUN;
    p.printer.gap = 1;

    vptq_status st = VPTQ_OK;
    if (vptq_cli_calibrate_given(&a->calibrate)) {
        st = take_calibration(cli, a, &calibrate, &opt.kv_factor, &err);
        opt.calibrate = &calibrate;
    }
    if (!st)
        st = vptq_quantize(cli->ctx, &opt, print_row, &p, &r, &err);
    if (!st)
        print_summary(cli, &p, &r);
    if (st == VPTQ_E_CANCELLED && r.matrices > 0)
        vptq_fail(&err, st, "interrupted; %u matri%s kept, run the same command to continue",
                  r.matrices, r.matrices == 1 ? "x" : "ces");
    return vptq_cli_finish(cli, st, &err);
}

static int check_budget(const vptq_cli *cli, const quantize_args *a)
{
    const bool kl = a->allocate == VPTQ_ALLOCATE_KL;
    const bool text = a->texts.count + a->tokens.count > 0;

    if (isnan(a->bits))
        return CLI_OK;
    if (!(a->bits > 0))
        return vptq_cli_usage_error(cli, "--bits %g: expected more than 0", a->bits);
    if (vptq_cli_settings_rate(&a->settings))
        return vptq_cli_usage_error(cli, "--bits and --%s exclude each other",
                                    vptq_cli_settings_rate(&a->settings));
    if (a->allocate != VPTQ_ALLOCATE_UNIFORM && !a->hessians &&
        !(vptq_cli_calibrate_given(&a->calibrate) && a->output))
        return vptq_cli_usage_error(cli,
                                    "--allocate %s needs -H HDIR, or -c TEXT and -o WORK "
                                    "(--allocate uniform needs neither)",
                                    kl ? "kl" : "proxy");
    if (kl && !text)
        return vptq_cli_usage_error(
            cli, "--allocate kl needs --allocate-text FILE or --allocate-tokens FILE");
    if (kl && (a->windows == 0 || a->length < 2))
        return vptq_cli_usage_error(cli, "--allocate kl needs windows of at least 2 tokens");
    return CLI_OK;
}

static int dispatch(vptq_cli *cli, const quantize_args *a)
{
    vptq_settings *settings;
    vptq_err err = {0};
    bool dry = cli->common.dry_run;

    if (a->settings.preset && !strcmp(a->settings.preset, "list"))
        return list_presets(cli);
    if (!a->model)
        return vptq_cli_missing_option(cli, "model");
    const bool text = vptq_cli_calibrate_given(&a->calibrate);
    if (!dry && !a->hessians && !text)
        return vptq_cli_usage_error(
            cli,
            "missing option: -H/--hessians HDIR (from vptq-hessian) or -c/--calibration TEXT");
    if (a->hessians && text)
        return vptq_cli_usage_error(cli, "-H and a calibration text exclude each other");
    if (!text && a->sequential)
        return vptq_cli_usage_error(cli, "--sequential needs a calibration text (-c TEXT)");
    if (!dry && !a->output)
        return vptq_cli_missing_option(cli, "output");
    if (!a->hessians && a->held_out)
        return vptq_cli_usage_error(cli, "--held-out needs -H HDIR");
    if (!isnan(a->kv_factor) && !(a->kv_factor >= 0))
        return vptq_cli_usage_error(cli, "--kv-factor %g: expected 0 or more", a->kv_factor);
    if (check_budget(cli, a) != CLI_OK)
        return CLI_USAGE;
    if (vptq_cli_settings_take(&a->settings, cli->common.seed, &settings, &err))
        return vptq_cli_usage_error(cli, "%s", err.text);
    const int code = quantize(cli, a, settings);
    vptq_settings_free(settings);
    return code;
}

/* Upper limit of the options of the tool, headings and CLI_END included. */
enum { MAX_OPTIONS = 80 };

/* Writes the table of options, which point into `a`. */
static void fill_options(quantize_args *a, vptq_cli_option options[MAX_OPTIONS])
{
    const vptq_cli_option inputs[] = {
        {0, NULL, CLI_FLAG, NULL, NULL, "Input and output", false},
        {'m', "model", CLI_STRING, &a->model, "MODEL", "model to quantize (required)", false},
        {'H', "hessians", CLI_STRING, &a->hessians, "HDIR", "its Hessians", false},
        {0, "held-out", CLI_STRING, &a->held_out, "HDIR",
         "Hessians of other tokens, on which losses are also reported (default: those inside "
         "HDIR)",
         false},
        {0, "kv-factor", CLI_DOUBLE, &a->kv_factor, "C",
         "weight of the term that k_proj and v_proj add to their Hessian, 0 = none (default: "
         "that of HDIR)",
         false},
        {'o', "output", CLI_STRING, &a->output, "WORK",
         "work directory to create or to continue", false},
        {0, "layers", CLI_RANGE, &a->layers, "A-B", "only these layers (default: all)", false},
        {0, "tokenizer", CLI_STRING, &a->tokenizer, "FILE", "tokenizer to use with the model",
         false},
        {0, "recipe", CLI_STRING, &a->recipe, "FILE",
         "JSON rules with settings for single matrices; they take precedence over options",
         false},
        {0, NULL, CLI_FLAG, NULL, NULL, "Bit budget", false},
        {'b', "bits", CLI_DOUBLE, &a->bits, "BITS",
         "choose v, k and k_res so that all stored bits per weight are at most BITS", false},
        {0, "allocate", CLI_CHOICE, &a->allocate, "uniform|proxy|kl",
         "one setting for all; by the loss of every matrix; by its effect on the output",
         false},
        {0, "allocate-text", CLI_STRINGS, &a->texts, "FILE",
         "text for measuring sensitivities; must differ from the evaluation text", false},
        {0, "allocate-tokens", CLI_STRINGS, &a->tokens, "FILE",
         "token ids instead, int32 little endian", false},
        {0, "allocate-windows", CLI_U64, &a->windows, "N", "number of its windows", false},
        {0, "allocate-length", CLI_U64, &a->length, "N", "tokens per window", false}};
    const vptq_cli_option calibration[] = {
        {0, NULL, CLI_FLAG, NULL, NULL, "Calibrate in this run, without -H", false},
        {0, "sequential", CLI_FLAG, &a->sequential, NULL,
         "fit each linear layer to the outputs of the quantized layers before it", false},
        {0, "correction", CLI_DOUBLE, &a->correction, "X",
         "with --sequential, move targets towards the original's outputs by up to X, 0 to 1, "
         "chosen on held-out windows: a tenth of them unless --holdout is given (default: 1)",
         false}};
    enum {
        INPUTS = sizeof inputs / sizeof inputs[0],
        CALIBRATION = sizeof calibration / sizeof calibration[0],
        SETTINGS = INPUTS + CALIBRATION + CLI_CALIBRATE_OPTIONS
    };
    memcpy(options, inputs, sizeof inputs);
    memcpy(options + INPUTS, calibration, sizeof calibration);
    vptq_cli_calibrate_options(&a->calibrate, options + INPUTS + CALIBRATION);
    vptq_cli_settings_options(&a->settings, options + SETTINGS, MAX_OPTIONS - SETTINGS - 1);
}

int main(int argc, char **argv)
{
    quantize_args a = {.kv_factor = NAN,
                       .correction = NAN,
                       .layers = {0, UINT32_MAX},
                       .bits = NAN,
                       .allocate = VPTQ_ALLOCATE_PROXY,
                       .windows = 2,
                       .length = 512};
    vptq_cli_option options[MAX_OPTIONS] = {0};
    vptq_cli cli = {
        .tool = "vptq-quantize",
        .summary = "Vector-quantizes the linear layers of a model, matrix by matrix.",
        .usage = "vptq-quantize -m MODEL -H HDIR -o WORK [-v 4] [-k 256] [-r 0] [SETTINGS]\n"
                 "vptq-quantize -m MODEL -H HDIR -o WORK -b BITS [--allocate MODE] [SETTINGS]\n"
                 "vptq-quantize -m MODEL -c TEXT -o WORK [--sequential] [SETTINGS]\n"
                 "vptq-quantize -m MODEL --dry-run [SETTINGS]\n"
                 "vptq-quantize --preset list",
        .examples =
            "To continue an interrupted run, run the same command again.\n"
            "The order of options does not matter: the encoder applies first, then the "
            "preset,\n"
            "single settings and the rules of a recipe. -v is the vector length; --verbose\n"
            "has no short form.",
        .options = options,
        .formats = "text|json"};
    int code;

    fill_options(&a, options);
    if (vptq_cli_parse(&cli, argc, argv, 1, &code))
        code = dispatch(&cli, &a);
    vptq_cli_release(&cli);
    return code;
}
