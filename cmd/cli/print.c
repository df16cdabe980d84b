/* Writes results to stdout or a file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cmd/cli/internal.h"
#include "cmd/cli/value.h"

vptq_status vptq_cli_write_stdout(void *arg, const char *text, size_t length, vptq_err *err)
{
    const vptq_cli *cli = arg;
    (void)err;
    if (vptq_cli_is_hushed(cli))
        return VPTQ_OK;
    vptq_cli_progress_clear(&cli->state->progress);
    fwrite(text, 1, length, stdout); /* vptq_cli_finish reports a failure */
    fflush(stdout);                  /* a report may take long */
    return VPTQ_OK;
}

uint32_t vptq_cli_stdout_width(void)
{
    const char *columns = getenv("COLUMNS");
    uint64_t wish;
    struct winsize ws;
    if (!isatty(STDOUT_FILENO))
        return 0;
    if (columns && vptq_cli_parse_u64(columns, UINT16_MAX, &wish) && wish)
        return (uint32_t)wish;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &ws) ? 0 : ws.ws_col;
}

static vptq_status write_file(void *arg, const char *text, size_t length, vptq_err *err)
{
    return vptq_writer_write(arg, text, length, err);
}

/* Also where a command has its own option of this name. */
static bool format_given(const vptq_cli *cli)
{
    for (size_t i = 0; i < cli->state->count; i++) {
        const char *name = cli->state->entries[i].option->name;
        if (name && !strcmp(name, "format") && cli->state->entries[i].seen)
            return true;
    }
    return false;
}

vptq_format vptq_cli_format_of(const vptq_cli *cli, const char *path)
{
    static const struct {
        const char *ending, *name;
        vptq_format format;
    } forms[] = {{".html", "html", VPTQ_FORMAT_HTML},
                 {".md", "md", VPTQ_FORMAT_MD},
                 {".csv", "csv", VPTQ_FORMAT_CSV},
                 {".json", "json", VPTQ_FORMAT_JSON},
                 {".jsonl", "json", VPTQ_FORMAT_JSON}};
    const char *ending = path && !format_given(cli) ? strrchr(path, '.') : NULL;
    for (size_t i = 0; ending && i < sizeof forms / sizeof *forms; i++)
        if (!strcmp(ending, forms[i].ending) &&
            (!cli->formats || vptq_cli_lists(cli->formats, forms[i].name)))
            return forms[i].format;
    return cli->out.format;
}

/* The part of a given option that names a file to read or a model; NULL if there is none. */
static const char *input_of(const vptq_cli_word *given)
{
    const vptq_cli_option *o = given->option;
    const bool reads = o->type == CLI_INPUT || o->type == CLI_INPUTS;
    const char *equals =
        given->text && reads && strchr(o->arg, '=') ? strchr(given->text, '=') : NULL;
    if (!reads && (o->type != CLI_STRING || strcmp(o->arg, "MODEL") != 0))
        return NULL;
    return equals ? equals + 1 : given->text;
}

/* Fails if the file is an operand, or an option names it as an input. */
static vptq_status check_output(const vptq_cli *cli, const char *path, vptq_err *err)
{
    for (size_t i = 0; i < cli->arg_count; i++)
        VPTQ_CHECK(vptq_check_output(path, cli->args[i], err));
    for (size_t i = 0; i < cli->state->given_count; i++) {
        const char *input = input_of(&cli->state->given[i]);
        if (input)
            VPTQ_CHECK(vptq_check_output(path, input, err));
    }
    return VPTQ_OK;
}

vptq_status vptq_cli_open_output(const vptq_cli *cli, const char *path, vptq_writer **file,
                                 vptq_output *out, vptq_err *err)
{
    *file = NULL;
    *out = cli->out;
    if (!path || !strcmp(path, "-") || vptq_cli_is_hushed(cli))
        return VPTQ_OK;
    VPTQ_CHECK(check_output(cli, path, err));
    if (cli->common.dry_run)
        return vptq_writer_check(path, cli->common.force, err);
    VPTQ_CHECK(vptq_writer_open(path, cli->common.force, file, err));
    *out = (vptq_output){
        .format = vptq_cli_format_of(cli, path), .write = write_file, .arg = *file};
    return VPTQ_OK;
}
