/* vptq-eval ablate: a table of settings, each quantized, packed and measured. */
#include "cmd/eval/eval.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cmd/cli/calibrate.h"

enum { MAX_SETTINGS = 32, MAX_TEXTS = 8, MAX_TASKS = 8, KEY = 48, NAME = 64 };

typedef struct ablate_command {
    const char *model, *tokenizer, *dir, *hessians, *rows, *encoder, *report, *serve;
    vptq_cli_calibrate calibrate;
    vptq_cli_strings only, set, texts, tokens, tasks;
    vptq_cli_range layers;
    uint64_t context, windows, stride, task_limit;
    int protocol;
    bool text_rows, keep_packed, seconds, kld;
    /* converted options */
    vptq_setting_text given[MAX_SETTINGS + 1]; /* the seed first */
    char key[MAX_SETTINGS][KEY], seed[24];
    vptq_task task[MAX_TASKS];
    char task_name[MAX_TASKS][NAME];
} ablate_command;

/* ---- options ---- */

/* Takes "KEY=VALUE"; the key may have - for _. */
static vptq_status take_setting(ablate_command *c, size_t i, vptq_err *err)
{
    const char *word = c->set.items[i], *equals = strchr(word, '=');
    const size_t n = equals ? (size_t)(equals - word) : 0;
    if (n == 0 || n >= KEY)
        return vptq_fail(err, VPTQ_E_ARG, "--set %.60s: expected KEY=VALUE", word);
    for (size_t k = 0; k < n; k++)
        c->key[i][k] = word[k] == '-' ? '_' : word[k];
    c->key[i][n] = 0;
    c->given[i + 1] = (vptq_setting_text){c->key[i], equals + 1};
    return VPTQ_OK;
}

static vptq_status take_words(ablate_command *c, vptq_err *err)
{
    if (c->set.count > MAX_SETTINGS)
        return vptq_fail(err, VPTQ_E_ARG, "--set: given %zu times, expected at most %d",
                         c->set.count, (int)MAX_SETTINGS);
    if (c->texts.count + c->tokens.count > MAX_TEXTS)
        return vptq_fail(err, VPTQ_E_ARG,
                         "--text and --text-tokens: given %zu times, expected at most %d",
                         c->texts.count + c->tokens.count, (int)MAX_TEXTS);
    if (c->tasks.count > MAX_TASKS)
        return vptq_fail(err, VPTQ_E_ARG, "--task: given %zu times, expected at most %d",
                         c->tasks.count, (int)MAX_TASKS);
    for (size_t i = 0; i < c->tasks.count; i++)
        VPTQ_CHECK(
            vptq_cli_take_task(c->tasks.items[i], c->task_name[i], NAME, &c->task[i], err));
    for (size_t i = 0; i < c->set.count; i++)
        VPTQ_CHECK(take_setting(c, i, err));
    return VPTQ_OK;
}

static vptq_status take_options(const vptq_cli *cli, ablate_command *c, vptq_ablate_options *o,
                                vptq_err *err)
{
    *o = (vptq_ablate_options){
        .model = c->model,
        .tokenizer = c->tokenizer,
        .dir = c->dir,
        .hessians = c->hessians,
        .collect = {.first_layer = c->layers.first,
                    .last_layer = c->layers.last,
                    .force = cli->common.force,
                    .tool_version = "vptq-eval " VPTQ_VERSION},
        .rows = c->rows,
        .only = c->only.items,
        .only_count = c->only.count,
        .encoder = c->encoder,
        .given = c->given,
        .given_count = c->set.count + 1,
        .ppl = {.corpus =
                    vptq_cli_corpus(&c->texts, &c->tokens, c->text_rows, c->calibrate.lossy),
                .context = vptq_cli_or_zero(cli, "context", c->context),
                .windows = c->windows,
                .stride = c->stride,
                .protocol = c->protocol ? VPTQ_PPL_LLAMA_CPP : VPTQ_PPL_GPTQ},
        .kld = c->kld,
        .tasks = c->task,
        .task_count = c->tasks.count,
        .task_limit = c->task_limit,
        .serve = c->serve,
        .keep_packed = c->keep_packed,
        .no_seconds = !c->seconds,
        .force = cli->common.force,
        .dry_run = cli->common.dry_run,
    };
    VPTQ_CHECK(take_words(c, err));
    snprintf(c->seed, sizeof c->seed, "%" PRIu64, cli->common.seed);
    c->given[0] = (vptq_setting_text){"seed", c->seed};
    if (vptq_cli_calibrate_given(&c->calibrate))
        VPTQ_CHECK(vptq_cli_calibrate_take(cli, &c->calibrate, &o->collect.calibrate,
                                           &o->collect.factor, err));
    return VPTQ_OK;
}

static int check_usage(const vptq_cli *cli, const ablate_command *c)
{
    const bool calibration = vptq_cli_calibrate_given(&c->calibrate);
    if (vptq_cli_check_context(cli, c->context))
        return CLI_USAGE;
    if (c->texts.count + c->tokens.count == 0)
        return vptq_cli_usage_error(cli, "missing option: --text FILE or --text-tokens FILE");
    if (c->hessians && vptq_cli_calibrate_unused(cli, calibration))
        return CLI_USAGE;
    if (cli->common.dry_run)
        return CLI_OK;
    if (!calibration && vptq_cli_given(cli, "outputs"))
        return vptq_cli_usage_error(
            cli,
            "--outputs needs a calibration text (-c TEXT); with -H those of HDIR are used");
    if (!c->dir)
        return vptq_cli_missing_option(cli, "output");
    if (!calibration && !c->hessians)
        return vptq_cli_usage_error(
            cli, "missing option: -c/--calibration TEXT or -H/--hessians HDIR");
    return CLI_OK;
}

/* Opens the report first, so that an unwritable file costs no run. */
static int run_ablate(vptq_cli *cli, void *arg)
{
    ablate_command *c = arg;
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    vptq_ablate_options opt;
    vptq_writer *file = NULL;
    vptq_output out;
    if (check_usage(cli, c))
        return CLI_USAGE;
    VPTQ_TRY(take_options(cli, c, &opt, &err));
    VPTQ_TRY(vptq_ctx_backend(cli->ctx, NULL, &err));
    VPTQ_TRY(vptq_cli_open_output(cli, c->report, &file, &out, &err));
    VPTQ_TRY(vptq_ablate(cli->ctx, &opt, &out, &err));
    if (file)
        VPTQ_TRY(vptq_writer_commit(file, &err));
out:
    vptq_writer_close(file);
    return vptq_cli_finish(cli, st, &err);
}

int vptq_cli_ablate(vptq_cli *cli, int argc, char **argv)
{
    ablate_command c = {.calibrate = CLI_CALIBRATE_DEFAULTS,
                        .layers = {.first = 0, .last = UINT32_MAX},
                        .context = CLI_UNSET,
                        .seconds = true};
    const vptq_cli_option options[] = {
        CLI_HEADING("Input and output"),
        {'m', "model", CLI_STRING, &c.model, "MODEL", "model to quantize"},
        {'o', "output", CLI_STRING, &c.dir, "DIR",
         "directory of the table, to create or to continue"},
        {'H', "hessians", CLI_STRING, &c.hessians, "HDIR",
         "Hessians for all rows, instead of those of the calibration text"},
        {0, "layers", CLI_RANGE, &c.layers, "A-B", "quantize only these layers"},
        {0, "tokenizer", CLI_STRING, &c.tokenizer, "FILE", "tokenizer to use with the model"},
        {0, "report", CLI_STRING, &c.report, "FILE",
         "write the table to FILE; its ending chooses the format"},
        {0, "no-seconds", CLI_UNFLAG, &c.seconds, NULL,
         "leave out times and --serve, so that every run prints the same bytes"},
        {0, "keep-packed", CLI_FLAG, &c.keep_packed, NULL,
         "keep the archive of every row in DIR/packed"},
        CLI_HEADING("Rows"),
        {0, "table", CLI_INPUT, &c.rows, "FILE",
         "JSON list of rows, or methods: all methods at 2 to 4 and 8 bits (default: Table 10 "
         "of the "
         "paper)"},
        {0, "only", CLI_STRINGS, &c.only, "ROW", "name or number of a row, or numbers A-B"},
        {0, "encoder", CLI_STRING, &c.encoder, "best|upstream", "encoder of all rows"},
        {0, "set", CLI_STRINGS, &c.set, "KEY=VALUE",
         "a setting of vptq-quantize for all rows; their own take precedence"},
        CLI_HEADING("Perplexity"),
        {0, "text", CLI_INPUTS, &c.texts, "FILE",
         "UTF-8 text, plain, gzip or zstd; '-' = standard input; each is a column"},
        {0, "text-tokens", CLI_INPUTS, &c.tokens, "FILE",
         "token ids instead, int32 little endian"},
        {0, "text-rows", CLI_FLAG, &c.text_rows, NULL,
         "lines as dataset rows joined by two newlines"},
        {0, "context", CLI_U64, &c.context, "N", "tokens per window " CLI_WINDOW_DEFAULT},
        {0, "text-windows", CLI_U64, &c.windows, "N", "at most N windows, 0 = all"},
        {0, "stride", CLI_U64, &c.stride, "N", "tokens between window starts, 0 = context"},
        {0, "protocol", CLI_CHOICE, &c.protocol, "gptq|llama.cpp",
         "score whole windows, or their second halves"},
        CLI_HEADING("Other figures"),
        {0, "kld", CLI_FLAG, &c.kld, NULL, "divergence from the original on the texts"},
        {0, "task", CLI_INPUTS, &c.tasks, "NAME=FILE",
         "accuracy on the items of a task; each is a column"},
        {0, "task-limit", CLI_U64, &c.task_limit, "N", "only the first N items, 0 = all"},
        {0, "serve", CLI_STRING, &c.serve, "B,I,O|NAME",
         "decoded tokens per second and peak memory with B prompts of I tokens and O new ones"},
        CLI_HEADING("Calibration"),
        CLI_CALIBRATE_OPTIONS(&c.calibrate),
        CLI_END};
    cli->usage =
        "vptq-eval ablate -m MODEL -c CALIBRATION -o DIR --text FILE [--table ROWS]\n"
        "vptq-eval ablate -m MODEL -c CALIBRATION -o DIR --text FILE --table methods --kld\n"
        "vptq-eval ablate -m MODEL --text FILE --dry-run";
    cli->examples =
        "  vptq-eval ablate -m model -c c4.txt -o ablation --text wiki.test.raw "
        "--text-rows\n"
        "  vptq-eval ablate -m model -H hessians -o ablation --text wiki.test.raw --only "
        "1-10\n"
        "To continue an interrupted run, run the same command again.  Rows with other "
        "settings\n"
        "than before are refused, or computed again with --force.\n";
    cli->options = options;
    cli->ranks = true;
    cli->formats = "text|json|csv|md|html";
    cli->required = "model";
    return vptq_cli_run(cli, argc, argv, run_ablate, &c);
}
