/* vptq-eval compare: tables and pages from the records of served models. */
#include "cmd/eval/eval.h"

#include <stdio.h>

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
    if (c->source)
        snprintf(text, size, "%s", c->source);
    else if (cli->arg_count == 1)
        snprintf(text, size, "%s", vptq_cli_path_base(cli->args[0]));
    else
        snprintf(text, size, "%s and %zu more", vptq_cli_path_base(cli->args[0]),
                 cli->arg_count - 1);
}

static int run_compare(vptq_cli *cli, const compare_command *c)
{
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    vptq_writer *file = NULL;
    char source[512];
    const vptq_compare_options opt = {.records = cli->args,
                                      .count = cli->arg_count,
                                      .original = c->original,
                                      .source = source,
                                      .classic = c->layout == LAYOUT_CLASSIC};
    name_source(source, sizeof source, cli, c);
    VPTQ_TRY(vptq_cli_open_output(cli, c->output, &file, &err));
    vptq_output out = vptq_cli_output(cli, file);
    out.format = formats[c->format];
    VPTQ_TRY(vptq_compare(cli->ctx, &opt, &out, &err));
    if (file)
        VPTQ_TRY(vptq_writer_commit(file, &err));
out:
    vptq_writer_close(file);
    return vptq_cli_finish(cli, st, &err);
}

int vptq_cli_compare(int argc, char **argv)
{
    compare_command c = {.layout = LAYOUT_DEFAULT};
    const vptq_cli_option options[] = {
        {'o', "output", CLI_STRING, &c.output, "FILE", "write to FILE instead of stdout",
         false},
        {0, "layout", CLI_CHOICE, &c.layout, "default|classic",
         "classic: the layout of the published report", false},
        {0, "format", CLI_CHOICE, &c.format, "md|csv|json|html", "form of the report", false},
        {0, "original", CLI_STRING, &c.original, "NAME",
         "model that the others are compared with (default: original)", false},
        {0, "source-name", CLI_STRING, &c.source, "NAME", "source that the report names",
         false},
        CLI_END};
    vptq_cli cli = {
        .tool = "vptq-eval",
        .command = "compare",
        .summary = "tables and pages that compare served models",
        .usage = "vptq-eval compare RECORDS.jsonl.. [--format md|csv|json|html] [-o FILE]",
        .examples = "  vptq-eval compare records.jsonl --format html -o report.html\n"
                    "  vptq-eval compare records.jsonl --layout classic > report.md\n",
        .options = options,
        .omit = "threads|backend|seed|dry-run|progress|no-progress",
        .operands = true};
    int code;
    if (vptq_cli_parse(&cli, argc, argv, 2, &code)) {
        if (!cli.arg_count)
            code = vptq_cli_usage_error(&cli, "expected files of records as arguments");
        else if (c.layout == LAYOUT_CLASSIC && formats[c.format] != VPTQ_FORMAT_MD)
            code =
                vptq_cli_usage_error(&cli, "--layout classic is Markdown: leave out --format");
        else
            code = run_compare(&cli, &c);
    }
    vptq_cli_release(&cli);
    return code;
}
