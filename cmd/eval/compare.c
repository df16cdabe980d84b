/* vptq-eval compare: tables and pages from the records of served models. */
#include "cmd/eval/eval.h"

#include <stdio.h>
#include <string.h>

enum { LAYOUT_DEFAULT, LAYOUT_CLASSIC };

typedef struct compare_command {
    int layout, format;
    const char *output, *original, *source;
} compare_command;

/* In the order of the choices of --format. */
static const vptq_format formats[] = {VPTQ_FORMAT_MD, VPTQ_FORMAT_CSV, VPTQ_FORMAT_JSON,
                                      VPTQ_FORMAT_HTML};

/* Names the source of the report: --source-name, the file, or the first file and the number of
 * others. */
static void name_source(char *text, size_t size, const vptq_cli *cli, const compare_command *c)
{
    const char *slash = strrchr(cli->args[0], '/');
    const bool from_stdin = strcmp(cli->args[0], "-") == 0;
    const char *first = from_stdin ? "standard input" : slash ? slash + 1 : cli->args[0];
    if (c->source || cli->arg_count == 1)
        snprintf(text, size, "%s", c->source ? c->source : first);
    else
        snprintf(text, size, "%s and %zu more", first, cli->arg_count - 1);
}

static size_t count_stdin(const vptq_cli *cli)
{
    size_t n = 0;
    for (size_t i = 0; i < cli->arg_count; i++)
        n += strcmp(cli->args[i], "-") == 0;
    return n;
}

static int run_compare(vptq_cli *cli, void *arg)
{
    const compare_command *c = arg;
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    vptq_writer *file = NULL;
    vptq_output out;
    char source[512];
    const bool to_file = c->output && strcmp(c->output, "-") != 0;
    const vptq_compare_options opt = {.records = cli->args,
                                      .count = cli->arg_count,
                                      .original = c->original,
                                      .source = source,
                                      .classic = c->layout == LAYOUT_CLASSIC,
                                      .dry_run = cli->common.dry_run,
                                      .output = to_file ? c->output : NULL};
    if (!cli->arg_count)
        return vptq_cli_usage_error(cli, "expected files of records as arguments");
    if (count_stdin(cli) > 1)
        return vptq_cli_usage_error(cli, "standard input ('-') is given more than once");
    cli->out.format = formats[c->format];
    cli->out.format = vptq_cli_format_of(cli, c->output);
    if (c->layout == LAYOUT_CLASSIC && cli->out.format != VPTQ_FORMAT_MD)
        return vptq_cli_usage_error(
            cli, "--layout classic is Markdown: leave out --format, or name the file .md");
    name_source(source, sizeof source, cli, c);
    VPTQ_TRY(vptq_cli_open_output(cli, c->output, &file, &out, &err));
    VPTQ_TRY(vptq_compare(cli->ctx, &opt, &out, &err));
    if (file)
        VPTQ_TRY(vptq_writer_commit(file, &err));
out:
    vptq_writer_close(file);
    return vptq_cli_finish(cli, st, &err);
}

int vptq_cli_compare(vptq_cli *cli, int argc, char **argv)
{
    compare_command c = {.layout = LAYOUT_DEFAULT};
    const vptq_cli_option options[] = {
        {'o', "output", CLI_STRING, &c.output, "FILE",
         "write to FILE instead of stdout; its ending chooses the format"},
        {0, "layout", CLI_CHOICE, &c.layout, "default|classic",
         "classic: the layout of the published report"},
        {0, "format", CLI_CHOICE, &c.format, "md|csv|json|html", "form of the report"},
        {0, "original", CLI_STRING, &c.original, "NAME",
         "model that the others are compared with (default: original)"},
        {0, "source-name", CLI_STRING, &c.source, "NAME", "source that the report names"},
        CLI_END};
    cli->usage = "vptq-eval compare RECORDS.jsonl.. [--format md|csv|json|html] [-o FILE]";
    cli->examples = "  vptq-eval compare records.jsonl --format html -o report.html\n"
                    "  vptq-eval compare records.jsonl --layout classic > report.md\n";
    cli->options = options;
    cli->omit = "threads|backend|seed|progress|no-progress";
    cli->operands = true;
    return vptq_cli_run(cli, argc, argv, run_compare, &c);
}
