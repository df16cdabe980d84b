/* vptq-quantize: quantizes a model with Hessians and settings into a work directory. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/cli/calibrate.h"
#include "cmd/cli/settings.h"
#include "lib/vptq.h"

typedef struct quantize_args {
    const char *model, *hessians, *held_out, *output, *tokenizer, *recipe;
    const char *config, *save_config;
    int to; /* form of the output */
    bool keep_work, no_shared_dir;
    double kv_factor;
    bool sequential;
    double correction;
    vptq_cli_calibrate calibrate;
    vptq_cli_range layers;
    vptq_cli_settings settings;
    /* bit budget */
    double bits;
    int budget;     /* vptq_budget */
    int embeddings; /* index into "f16|q8|q6" */
    int allocate;   /* vptq_allocate_mode; AUTO cannot be given */
    vptq_cli_strings texts, tokens;
    uint64_t windows, length;
    /* figures for the card */
    vptq_cli_strings measure;
    uint64_t measure_windows;
    /* tuning */
    const char *from;
    int tune; /* vptq_tune_method - 1; -1: not given */
    uint64_t steps, passes, batch, self_windows;
    double rate;
    int precision; /* index into "float|bf16" */
} quantize_args;

enum { TO_AUTO, TO_WORK, TO_HF, TO_ARCHIVE }; /* "auto|work|hf|archive" */

/* Whether the name of the output has that ending. */
static bool output_ends_with(const quantize_args *a, const char *ending)
{
    const size_t size = strlen(ending);
    size_t n = a->output ? strlen(a->output) : 0;
    while (n > 0 && a->output[n - 1] == '/')
        n--;
    return n > size && !memcmp(a->output + n - size, ending, size);
}

/* Whether the output is a packed model: --to, or the ending of its name. */
static bool is_packed(const quantize_args *a)
{
    return a->to == TO_AUTO ? output_ends_with(a, ".vptq") : a->to != TO_WORK;
}

/* Whether this run calibrates; a plan without an output does without, unless a text is given.
 */
static bool calibrates(const vptq_cli *cli, const quantize_args *a)
{
    return !a->hessians &&
           (vptq_cli_calibrate_given(&a->calibrate) || !cli->common.dry_run || a->output);
}

/* Sets what a budget without Hessians and texts implies: what gives the best result. */
static void take_defaults(const vptq_cli *cli, quantize_args *a)
{
    if (a->hessians || isnan(a->bits) || vptq_cli_given(cli, "layers") ||
        vptq_cli_calibrate_given(&a->calibrate))
        return;
    a->sequential = a->sequential || calibrates(cli, a);
    if (!vptq_cli_given(cli, "allocate"))
        a->allocate = VPTQ_ALLOCATE_AUTO;
}

/* Converts the options for calibrating in this run, without -H. */
static vptq_status take_calibration(const vptq_cli *cli, const quantize_args *a,
                                    vptq_calibrate_options *c, double *kv_factor, vptq_err *err)
{
    static const double sequential_holdout =
        0.1; /* choosing the correction needs held-out windows */
    double factor;
    vptq_status st = vptq_cli_calibrate_take(cli, &a->calibrate, c, &factor, err);
    if (st)
        return st;
    c->sequential = a->sequential;
    c->correction = isnan(a->correction) ? (double)c->sequential : a->correction;
    if (!(c->correction >= 0 && c->correction <= 1))
        return vptq_fail(err, VPTQ_E_ARG, "--correction %g: expected 0 to 1", a->correction);
    if (c->correction > 0 && isnan(a->calibrate.holdout))
        c->holdout = sequential_holdout;
    if (isnan(a->kv_factor))
        *kv_factor = factor;
    else if (a->kv_factor > 0 && !c->weights)
        return vptq_fail(err, VPTQ_E_ARG,
                         "--kv-factor needs --weights sink, attention or guided");
    return VPTQ_OK;
}

/* ---- tuning ---- */

enum { MAX_STEPS = 1000000, MAX_PASSES = 1000, MAX_SELF_TEXT = 1000000 };

static const char *const tuning_options[] = {"steps", "passes",    "batch",
                                             "rate",  "precision", "self-text"};
enum { TUNING_OPTIONS = sizeof tuning_options / sizeof *tuning_options };

/* Returns a given option that a run with --from has no use for, or NULL. */
static const char *misplaced(const vptq_cli *cli)
{
    static const char *const shared[] = {
        "model", "output",  "tokenizer", "calibration", "tokens", "windows", "length",
        "rows",  "holdout", "from",      "tune",        "lossy",  "config",  "save-config"};
    for (const vptq_cli_option *o = cli->options; o->name || o->help; o++) {
        bool used = false;
        if (!o->name || !vptq_cli_given(cli, o->name))
            continue;
        for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
            used |= !strcmp(o->name, shared[i]);
        for (size_t i = 0; i < TUNING_OPTIONS; i++)
            used |= !strcmp(o->name, tuning_options[i]);
        if (!used)
            return o->name;
    }
    return NULL;
}

static int check_tune(const vptq_cli *cli, const quantize_args *a)
{
    const unsigned method = (unsigned)a->tune + 1;
    for (size_t i = 0; a->tune < 0 && i < TUNING_OPTIONS; i++)
        if (vptq_cli_given(cli, tuning_options[i]))
            return vptq_cli_usage_error(cli, "--%s needs --tune METHOD", tuning_options[i]);
    if (a->tune < 0)
        return CLI_OK;
    if (!vptq_cli_calibrate_given(&a->calibrate))
        return vptq_cli_usage_error(cli, "missing option: -c/--calibration TEXT to train on");
    if (vptq_cli_given(cli, "steps") && !(method & VPTQ_TUNE_E2E))
        return vptq_cli_usage_error(cli, "--steps needs --tune e2e; a layer takes --passes");
    if (vptq_cli_given(cli, "passes") && !(method & VPTQ_TUNE_LAYER))
        return vptq_cli_usage_error(cli, "--passes needs --tune layer");
    if (a->steps < 1 || a->steps > MAX_STEPS)
        return vptq_cli_usage_error(cli, "--steps %" PRIu64 ": expected 1 to %u", a->steps,
                                    (unsigned)MAX_STEPS);
    if (a->passes < 1 || a->passes > MAX_PASSES)
        return vptq_cli_usage_error(cli, "--passes %" PRIu64 ": expected 1 to %u", a->passes,
                                    (unsigned)MAX_PASSES);
    if (a->self_windows > MAX_SELF_TEXT)
        return vptq_cli_usage_error(cli, "--self-text %" PRIu64 ": expected at most %u",
                                    a->self_windows, (unsigned)MAX_SELF_TEXT);
    return CLI_OK;
}

/* Converts the options of --tune.  The windows are those of -n and -l, unless these are of a
 * calibration in the same run. */
static vptq_status take_tuning(const vptq_cli *cli, const quantize_args *a,
                               vptq_tune_options *t, vptq_err *err)
{
    const bool own = a->from || a->hessians;
    double factor;
    vptq_calibrate_options c;
    vptq_status st = vptq_cli_calibrate_take(cli, &a->calibrate, &c, &factor, err);
    if (st)
        return st;
    *t = vptq_tune_defaults();
    t->method = (vptq_tune_method)(a->tune + 1);
    t->corpus = c.corpus;
    if (own && vptq_cli_given(cli, "windows"))
        t->windows = c.windows;
    if (own && vptq_cli_given(cli, "length"))
        t->length = c.length;
    if (own && !isnan(a->calibrate.holdout))
        t->holdout = c.holdout;
    t->steps = (uint32_t)a->steps;
    t->passes = (uint32_t)a->passes;
    t->batch = a->batch;
    t->self_windows = a->self_windows;
    t->rate = a->rate;
    t->bf16 = a->precision == 1;
    t->seed = cli->common.seed;
    return VPTQ_OK;
}

static vptq_status save_config(const vptq_cli *cli, const quantize_args *a, vptq_err *err)
{
    return a->save_config ? vptq_cli_save_config(cli, "save-config", a->save_config, err)
                          : VPTQ_OK;
}

static int tune(vptq_cli *cli, const quantize_args *a)
{
    vptq_err err = {0};
    vptq_tune_options opt;
    const char *other = misplaced(cli);
    if (a->tune < 0)
        return vptq_cli_usage_error(cli, "--from WORK needs --tune METHOD");
    if (other)
        return vptq_cli_usage_error(cli,
                                    "--%s and --from exclude each other: tuning keeps settings "
                                    "and indices as they are",
                                    other);
    if (is_packed(a))
        return vptq_cli_usage_error(
            cli, "--from writes a work directory, which vptq-pack packs; -o WORK2");
    if (!a->output && !cli->common.dry_run)
        return vptq_cli_missing_option(cli, "output");
    vptq_status st = take_tuning(cli, a, &opt, &err);
    opt.from = a->from;
    opt.model = a->model;
    opt.work = a->output;
    opt.tokenizer = a->tokenizer;
    opt.force = cli->common.force;
    opt.dry_run = cli->common.dry_run;
    if (!st)
        st = save_config(cli, a, &err);
    if (!st)
        st = vptq_tune(cli->ctx, &opt, &cli->out, NULL, &err);
    return vptq_cli_finish(cli, st, &err);
}

/* ---- quantizing ---- */

/* Writes a word as a shell reads it; returns its length, or SIZE_MAX if it does not fit. */
static size_t quote(const char *word, char *text, size_t size)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
        "./:=,+@%";
    size_t n = 0;
    if (*word && strspn(word, plain) == strlen(word)) {
        n = (size_t)snprintf(text, size, "%s", word);
        return n < size ? n : SIZE_MAX;
    }
    for (const char *c = word; n + 8 < size; c++) {
        if (c == word)
            text[n++] = '\'';
        if (*c == '\'')
            n += (size_t)snprintf(text + n, size - n, "'\\''");
        else if (*c)
            text[n++] = (unsigned char)*c < ' ' ? ' ' : *c;
        else {
            text[n++] = '\'';
            text[n] = 0;
            return n;
        }
    }
    return SIZE_MAX;
}

/* Writes the command as a shell reads it; false if it does not fit. */
static bool quote_command(const vptq_cli *cli, char *text, size_t size)
{
    size_t n = (size_t)snprintf(text, size, "vptq-quantize");
    for (int i = 1; i < cli->argc; i++) {
        if (n + 1 >= size)
            return false;
        text[n++] = ' ';
        const size_t length = quote(cli->argv[i], text + n, size - n);
        if (length == SIZE_MAX)
            return false;
        n += length;
    }
    return true;
}

/* Quantizes and packs, or plans that. */
static vptq_status convert(vptq_cli *cli, const quantize_args *a,
                           const vptq_quantize_options *quantize, vptq_err *err)
{
    char command[4096];
    const bool archive = a->to == TO_AUTO || a->to == TO_ARCHIVE;
    const vptq_pack_options pack = {.output = a->output,
                                    .tokenizer = a->tokenizer,
                                    .form = archive ? VPTQ_PACK_ARCHIVE : VPTQ_PACK_HF,
                                    .dtype = VPTQ_DTYPE_COUNT,
                                    .embeddings = vptq_cli_given(cli, "embeddings")
                                                      ? quantize->embeddings
                                                      : VPTQ_DTYPE_COUNT,
                                    .force = cli->common.force};
    const vptq_kld_options measure = {
        .corpus =
            vptq_cli_corpus(&a->measure, &(vptq_cli_strings){0}, false, a->calibrate.lossy),
        .windows = a->measure_windows};
    const bool fits = quote_command(cli, command, sizeof command);
    const vptq_convert_options opt = {.quantize = quantize,
                                      .pack = &pack,
                                      .command = fits ? command : NULL,
                                      .keep_work = a->keep_work,
                                      .measure = a->measure.count ? &measure : NULL};
    return vptq_convert(cli->ctx, &opt, &cli->out, err);
}

static int quantize(vptq_cli *cli, const quantize_args *a, const vptq_settings *settings)
{
    static const vptq_dtype embeddings[] = {VPTQ_F16, VPTQ_Q8_0, VPTQ_Q6_K};
    vptq_err err = {0};
    vptq_calibrate_options calibrate;
    vptq_tune_options tuning;
    vptq_corpus_options text =
        vptq_cli_corpus(&a->texts, &a->tokens, false, a->calibrate.lossy);
    vptq_cli_default_text(&text);
    vptq_quantize_options opt = {.model = a->model,
                                 .hessians = a->hessians,
                                 .held_out = a->held_out,
                                 .kv_factor = a->kv_factor,
                                 .no_outputs = vptq_cli_given(cli, "outputs"),
                                 .work = a->output,
                                 .tokenizer = a->tokenizer,
                                 .settings = settings,
                                 .recipe = a->recipe,
                                 .bits = isnan(a->bits) ? 0 : a->bits,
                                 .budget = (vptq_budget)a->budget,
                                 .embeddings = embeddings[a->embeddings],
                                 .allocate = (vptq_allocate_mode)a->allocate,
                                 .allocate_text = &text,
                                 .allocate_windows = a->windows,
                                 .allocate_length = a->length,
                                 .first_layer = a->layers.first,
                                 .last_layer = a->layers.last,
                                 .force = cli->common.force,
                                 .dry_run = cli->common.dry_run,
                                 .predict = !strcmp(cli->common.backend, "cuda"),
                                 .estimate = true,
                                 .packs = is_packed(a),
                                 .no_shared_dir = a->no_shared_dir};

    vptq_status st = VPTQ_OK;
    if (calibrates(cli, a)) {
        st = take_calibration(cli, a, &calibrate, &opt.kv_factor, &err);
        opt.calibrate = &calibrate;
    }
    if (!st && a->tune >= 0) {
        st = take_tuning(cli, a, &tuning, &err);
        opt.tune = &tuning;
    }
    if (!st)
        st = save_config(cli, a, &err);
    if (!st)
        st = is_packed(a) ? convert(cli, a, &opt, &err)
                          : vptq_quantize(cli->ctx, &opt, &cli->out, NULL, &err);
    return vptq_cli_finish(cli, st, &err);
}

/* Refuses options that only matter to others. */
static int check_allocation(const vptq_cli *cli, const quantize_args *a)
{
    static const char *const names[] = {"allocate", "allocate-text", "allocate-tokens",
                                        "allocate-windows", "allocate-length"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!vptq_cli_given(cli, names[i]))
            continue;
        if (isnan(a->bits))
            return vptq_cli_usage_error(cli, "--%s needs -b BITS", names[i]);
        if (i > 0 && a->allocate != VPTQ_ALLOCATE_KL && a->allocate != VPTQ_ALLOCATE_AUTO)
            return vptq_cli_usage_error(cli, "--%s needs --allocate kl", names[i]);
    }
    return CLI_OK;
}

static int check_budget(const vptq_cli *cli, const quantize_args *a)
{
    const bool kl = a->allocate == VPTQ_ALLOCATE_KL;
    if (check_allocation(cli, a) != CLI_OK)
        return CLI_USAGE;

    if (a->budget == VPTQ_BUDGET_FILE && isnan(a->bits))
        return vptq_cli_usage_error(cli, "--budget file needs -b BITS");
    if (a->budget != VPTQ_BUDGET_FILE && !is_packed(a) && vptq_cli_given(cli, "embeddings"))
        return vptq_cli_usage_error(cli, "--embeddings needs --budget file or -o OUT.vptq");
    if (isnan(a->bits))
        return CLI_OK;
    if (!(a->bits > 0))
        return vptq_cli_usage_error(cli, "--bits %g: expected more than 0", a->bits);
    if (vptq_cli_settings_rate(&a->settings))
        return vptq_cli_usage_error(cli, "--bits and --%s exclude each other",
                                    vptq_cli_settings_rate(&a->settings));
    if (kl && !a->hessians && !(calibrates(cli, a) && a->output))
        return vptq_cli_usage_error(cli, "--allocate kl needs -H HDIR, or -c TEXT and -o WORK "
                                         "(--allocate proxy needs neither)");
    if ((kl || a->allocate == VPTQ_ALLOCATE_AUTO) && (a->windows == 0 || a->length < 2))
        return vptq_cli_usage_error(cli, "--allocate kl needs windows of at least 2 tokens");
    return CLI_OK;
}

/* Checks the options of a calibration in this run. */
static int check_calibration(const vptq_cli *cli, const quantize_args *a)
{
    const bool text = vptq_cli_calibrate_given(&a->calibrate);
    if (a->hessians && text && a->tune < 0)
        return vptq_cli_usage_error(
            cli, "-H and a calibration text exclude each other, except with --tune");
    if (a->hessians && !text && !a->texts.count && !a->measure.count && a->calibrate.lossy)
        return vptq_cli_usage_error(
            cli, "--lossy has no effect with -H: it belongs to a calibration text");
    if (!calibrates(cli, a) && a->calibrate.outputs)
        return vptq_cli_usage_error(
            cli,
            "--outputs needs a calibration text (-c TEXT); with -H those of HDIR are used, "
            "or none with --outputs 0");
    if (!calibrates(cli, a) && a->sequential)
        return vptq_cli_usage_error(
            cli, "--sequential needs a calibration text (-c TEXT) and no -H");
    if (vptq_cli_given(cli, "correction") && !a->sequential)
        return vptq_cli_usage_error(cli, "--correction needs --sequential");
    return a->hessians ? vptq_cli_calibrate_unused(cli, text) : CLI_OK;
}

/* Checks options that belong to one form of the output. */
static int check_form(const vptq_cli *cli, const quantize_args *a)
{
    if (is_packed(a) && vptq_cli_given(cli, "layers"))
        return vptq_cli_usage_error(cli,
                                    "--layers needs a work directory as output, and several "
                                    "runs fill it; vptq-pack packs it");
    if (is_packed(a) && a->to != TO_HF && a->output && *a->output &&
        a->output[strlen(a->output) - 1] == '/')
        return vptq_cli_usage_error(
            cli, "-o %s: an archive is a file; --to hf writes a directory", a->output);
    if (!is_packed(a) && (a->keep_work || a->measure.count))
        return vptq_cli_usage_error(cli,
                                    "--%s needs a packed model as output: -o OUT.vptq, or --to",
                                    a->keep_work ? "keep-work" : "measure");
    if (vptq_cli_given(cli, "measure-windows") && !a->measure.count)
        return vptq_cli_usage_error(cli, "--measure-windows needs --measure TEXT");
    if (a->measure.count && a->no_shared_dir)
        return vptq_cli_usage_error(cli, "--measure and --no-shared-dir exclude each other");
    return CLI_OK;
}

static int dispatch(vptq_cli *cli, void *arg)
{
    quantize_args *a = arg;
    vptq_settings *settings;
    vptq_err err = {0};

    if (a->save_config && cli->common.dry_run)
        return vptq_cli_usage_error(cli, "--save-config and --dry-run exclude each other");
    if (a->settings.preset && !strcmp(a->settings.preset, "list"))
        return vptq_cli_finish(cli, vptq_presets_show(&cli->out, &err), &err);
    if (check_tune(cli, a) != CLI_OK)
        return CLI_USAGE;
    if (a->to == TO_AUTO && output_ends_with(a, ".gguf"))
        return vptq_cli_usage_error(cli,
                                    "'%s': a GGUF file is written from the result: -o %s, then "
                                    "vptq-pack --unpack %s -o %s",
                                    a->output, a->from ? "WORK2" : "OUT.vptq",
                                    a->from ? "WORK2" : "OUT.vptq", a->output);
    if (a->from)
        return tune(cli, a);
    if (!a->model)
        return vptq_cli_missing_option(cli, "model");
    if (check_form(cli, a) != CLI_OK)
        return CLI_USAGE;
    take_defaults(cli, a);
    if (check_calibration(cli, a) != CLI_OK)
        return CLI_USAGE;
    if (!cli->common.dry_run && !a->output)
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
enum { MAX_OPTIONS = 96 };

/* Writes the table of options, which point into `a`. */
static void fill_options(quantize_args *a, vptq_cli_option options[MAX_OPTIONS])
{
    const vptq_cli_option inputs[] = {
        CLI_HEADING("Input and output"),
        {'m', "model", CLI_STRING, &a->model, "MODEL", "model to quantize (required)"},
        {'H', "hessians", CLI_STRING, &a->hessians, "HDIR", "its Hessians"},
        {0, "held-out", CLI_STRING, &a->held_out, "HDIR",
         "Hessians of other tokens, on which losses are also reported (default: those inside "
         "HDIR)"},
        {0, "kv-factor", CLI_DOUBLE, &a->kv_factor, "C",
         "factor of the token weights of k_proj and v_proj, or of all linear layers if they "
         "are guided; 0 = none (default: that of HDIR)"},
        {'o', "output", CLI_STRING, &a->output, "WORK|OUT",
         "work directory to create or to continue; or a packed model, OUT.vptq"},
        {0, "to", CLI_CHOICE, &a->to, "auto|work|hf|archive",
         "form of the output: a work directory, a packed directory or an archive; auto: by the "
         "ending .vptq"},
        {0, "keep-work", CLI_FLAG, &a->keep_work, NULL,
         "keep the work directory OUT.work when the packed model is written"},
        {0, "measure", CLI_INPUTS, &a->measure, "TEXT",
         "perplexity and divergence of the packed model on this text, for its model card"},
        {0, "measure-windows", CLI_U64, &a->measure_windows, "N",
         "windows of it, of up to 2048 tokens; 0 = all"},
        {0, "no-shared-dir", CLI_FLAG, &a->no_shared_dir, NULL,
         "ranks of MPI on other machines do not see OUT: they send their matrices"},
        {0, "layers", CLI_RANGE, &a->layers, "A-B", "only these layers (default: all)"},
        {0, "tokenizer", CLI_STRING, &a->tokenizer, "FILE", "tokenizer to use with the model"},
        {0, "recipe", CLI_INPUT, &a->recipe, "FILE",
         "JSON rules with settings for single matrices, which take precedence over options, or "
         "that leave matrices in 16 bits"},
        {0, "config", CLI_CONFIG, &a->config, "FILE",
         "JSON file with options of this command, which the command line overrides; '-' = "
         "standard input"},
        {0, "save-config", CLI_STRING, &a->save_config, "FILE",
         "write the options of this run to such a file"},
        CLI_HEADING("Bit budget"),
        {'b', "bits", CLI_DOUBLE, &a->bits, "BITS",
         "choose v, k and k_res, or the bits of codes, so that all stored bits per weight "
         "are at most BITS"},
        {0, "budget", CLI_CHOICE, &a->budget, "matrices|file",
         "what BITS is the average of: the quantized matrices, or all weights of the file"},
        {0, "embeddings", CLI_CHOICE, &a->embeddings, "f16|q8|q6",
         "of the packed model; with --budget file and -o WORK: as vptq-pack will be given"},
        {0, "allocate", CLI_CHOICE, &a->allocate, "uniform|proxy|kl",
         "one setting for all; per matrix, by predicted loss and size, or by its effect on the "
         "output (without -H and -c: kl, with experts proxy)"},
        {0, "allocate-text", CLI_INPUTS, &a->texts, "FILE",
         "text for measuring sensitivities; must differ from the evaluation text (default: the "
         "one that ships with the tools)"},
        {0, "allocate-tokens", CLI_INPUTS, &a->tokens, "FILE",
         "token ids instead, int32 little endian"},
        {0, "allocate-windows", CLI_U64, &a->windows, "N", "number of its windows"},
        {0, "allocate-length", CLI_U64, &a->length, "N", "tokens per window"},
        CLI_HEADING(
            "Calibrate in this run, without -H (without -c: on a text that ships with the "
            "tools)"),
        {0, "sequential", CLI_FLAG, &a->sequential, NULL,
         "fit each linear layer to the outputs of the quantized layers before it"},
        {0, "correction", CLI_DOUBLE, &a->correction, "X",
         "with --sequential, move targets towards the original's outputs by up to X, 0 to 1, "
         "chosen on held-out windows: a tenth of them unless --holdout is given (default: 1)"},
        CLI_CALIBRATE_OPTIONS(&a->calibrate),
        CLI_HEADING("Tune what is quantized, or a work directory, on the text of -c"),
        {0, "tune", CLI_CHOICE, &a->tune, "layer|e2e|layer,e2e",
         "codebooks, scales and biases follow the original: every layer its hidden states, or "
         "all end to end its output; bits and layout stay"},
        {0, "from", CLI_STRING, &a->from, "WORK",
         "tune this work directory, and write the result to -o"},
        {0, "steps", CLI_U64, &a->steps, "N", "steps to take end to end"},
        {0, "passes", CLI_U64, &a->passes, "N", "passes of a layer over the windows"},
        {0, "batch", CLI_U64, &a->batch, "N", "windows of a step"},
        {0, "self-text", CLI_U64, &a->self_windows, "N",
         "train on N windows that the original writes itself, too"},
        {0, "rate", CLI_DOUBLE, &a->rate, "X",
         "largest step, relative to the size of a codebook (default: by the model's size and "
         "loss)"},
        {0, "precision", CLI_CHOICE, &a->precision, "float|bf16",
         "of the numbers that gradients are multiplied from; bf16 is faster on processors with "
         "AMX"}};
    enum { INPUTS = sizeof inputs / sizeof inputs[0] };
    memcpy(options, inputs, sizeof inputs);
    vptq_cli_settings_options(&a->settings, options + INPUTS, MAX_OPTIONS - INPUTS - 1);
}

int main(int argc, char **argv)
{
    const vptq_tune_options tuning = vptq_tune_defaults();
    quantize_args a = {.calibrate = CLI_CALIBRATE_DEFAULTS,
                       .kv_factor = NAN,
                       .correction = NAN,
                       .layers = {0, UINT32_MAX},
                       .bits = NAN,
                       .allocate = VPTQ_ALLOCATE_PROXY,
                       .windows = 2,
                       .length = 512,
                       .measure_windows = 16,
                       .tune = -1,
                       .steps = tuning.steps,
                       .passes = tuning.passes,
                       .batch = tuning.batch,
                       .rate = tuning.rate};
    vptq_cli_option options[MAX_OPTIONS] = {0};
    vptq_cli cli = {
        .tool = "vptq-quantize",
        .summary = "Vector-quantizes the linear layers of a model, matrix by matrix.",
        .ranks = true,
        .usage = "vptq-quantize -m MODEL -b BITS -o OUT.vptq [SETTINGS]\n"
                 "vptq-quantize -m MODEL -H HDIR -o WORK [-v 4] [-k 256] [-r 0] [SETTINGS]\n"
                 "vptq-quantize -m MODEL -H HDIR -o WORK -b BITS [--allocate MODE] [SETTINGS]\n"
                 "vptq-quantize -m MODEL -c TEXT -o WORK [--sequential] [SETTINGS]\n"
                 "vptq-quantize -m MODEL --dry-run [SETTINGS]\n"
                 "vptq-quantize -m MODEL -c TEXT -o WORK --tune METHOD [--passes N] [--steps "
                 "N] [SETTINGS]\n"
                 "vptq-quantize --from WORK --tune METHOD -c TEXT -o WORK2 [--passes N] "
                 "[--steps N]\n"
                 "vptq-quantize --preset list",
        .examples =
            "To continue an interrupted run, run the same command again.\n"
            "The order of options does not matter: the encoder applies first, then the "
            "preset,\n"
            "single settings and the rules of a recipe. -v is the vector length; --verbose\n"
            "has no short form.",
        .options = options,
        .formats = "text|json"};
    fill_options(&a, options);
    return vptq_cli_run(&cli, argc, argv, dispatch, &a);
}
