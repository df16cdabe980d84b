/* Parsing of a command line by its option table, messages, and the exit code. */
#include "cmd/cli/cli.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cli/internal.h"
#include "cmd/cli/log.h"
#include "cmd/cli/value.h"

enum {
    LONG_ONLY = 256,   /* getopt's value of entry i is LONG_ONLY + i, letter or not */
    MAX_THREADS = 4096 /* more is certainly a typing error */
};

/* --- messages ---------------------------------------------------------------------------- */

static const char *command_of(const vptq_cli *cli)
{
    return cli->command ? cli->command : "";
}

bool vptq_cli_is_hushed(const vptq_cli *cli)
{
    return cli->state && cli->state->hushed;
}

static int try_help(const vptq_cli *cli)
{
    if (vptq_cli_is_hushed(cli))
        return CLI_USAGE;
    fprintf(stderr, "try '%s%s%s --help'\n", cli->tool, cli->command ? " " : "",
            command_of(cli));
    return CLI_USAGE;
}

static vptq_cli_log *log_of(const vptq_cli *cli)
{
    return cli->state ? cli->state->progress.log : NULL;
}

/* vptq_fail escapes, as it does for every sentence of the library. */
static void say(const vptq_cli *cli, bool shown, const char *fmt, va_list ap)
{
    char text[1024];
    vptq_err line;
    const int n = snprintf(text, sizeof text, "%s: ", cli->tool);
    vsnprintf(text + n, sizeof text - (size_t)n, fmt, ap);
    vptq_fail(&line, VPTQ_OK, "%s", text);
    if (shown && !vptq_cli_is_hushed(cli))
        fprintf(stderr, "%s\n", line.text);
    vptq_cli_log_line(log_of(cli), line.text);
}

void vptq_cli_say(const vptq_cli *cli, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(cli, true, fmt, ap);
    va_end(ap);
}

void vptq_cli_report(const vptq_cli *cli, bool shown, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(cli, shown, fmt, ap);
    va_end(ap);
}

int vptq_cli_usage_error(const vptq_cli *cli, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(cli, true, fmt, ap);
    va_end(ap);
    return try_help(cli);
}

/* Index of an option in the command's own table. */
static size_t own_option(const vptq_cli *cli, const char *name)
{
    size_t i = 0;
    while (cli->options[i].name ? strcmp(cli->options[i].name, name) != 0
                                : cli->options[i].help != NULL)
        i++;
    assert(cli->options[i].name);
    return i;
}

bool vptq_cli_given(const vptq_cli *cli, const char *name)
{
    const struct vptq_cli_state *s = cli->state;
    size_t i = 0;
    while (i < s->count &&
           (!s->entries[i].option->name || strcmp(s->entries[i].option->name, name) != 0))
        i++;
    assert(i < s->count);
    return s->entries[i].seen;
}

int vptq_cli_check_context(const vptq_cli *cli, uint64_t context)
{
    return context >= 2
               ? CLI_OK
               : vptq_cli_usage_error(cli, "--context %" PRIu64 ": expected at least 2 tokens",
                                      context);
}

int vptq_cli_missing_option(const vptq_cli *cli, const char *name)
{
    const vptq_cli_option *o = &cli->options[own_option(cli, name)];
    const char letter[] = {'-', o->letter, '/', 0};
    return vptq_cli_usage_error(cli, "missing option: %s--%s%s%s", o->letter ? letter : "",
                                o->name, o->arg ? " " : "", o->arg ? o->arg : "");
}

/* --- the table of options ---------------------------------------------------------------- */

bool vptq_cli_lists(const char *list, const char *word)
{
    int n;
    return list && vptq_cli_parse_choice(word, list, &n);
}

static bool is_omitted(const vptq_cli *cli, const char *name)
{
    return strcmp(name, "format") ? vptq_cli_lists(cli->omit, name) : !cli->formats;
}

static bool is_taken(const struct vptq_cli_state *s, const vptq_cli_option *o, bool by_letter)
{
    for (size_t i = 0; i < s->own; i++) {
        const vptq_cli_option *mine = s->entries[i].option;
        if (mine->name &&
            (by_letter ? mine->letter == o->letter : !strcmp(mine->name, o->name)))
            return true;
    }
    return false;
}

static void fill_common(vptq_cli *cli)
{
    vptq_cli_common *c = &cli->common;
    const vptq_cli_option table[CLI_COMMON_COUNT] = {
        {'t', "threads", CLI_U32, &c->threads, "N", "threads, 0 = all processors"},
        {0, "backend", CLI_STRING, &c->backend, "auto|cuda|cpu|ref", "what computes"},
        {0, "seed", CLI_U64, &c->seed, "N", "seed of all random choices"},
        {0, "mem", CLI_SIZE, &c->mem, "SIZE",
         "cap on working memory, like 512M or 1.5G (K, M, G, T: powers of 1024), 0 = none"},
        {'f', "force", CLI_FLAG, &c->force, NULL, "replace an existing output"},
        {0, "dry-run", CLI_FLAG, &c->dry_run, NULL, "show what would be done, write nothing"},
        {0, "format", CLI_CHOICE, &c->format, cli->formats, "format of the results"},
        {'q', "quiet", CLI_COUNT, &c->quiet, NULL, "print fewer messages (-qq: errors only)"},
        {'v', "verbose", CLI_COUNT, &c->verbose, NULL, "print more messages (-vv: even more)"},
        {0, "progress", CLI_FLAG, NULL, NULL, "show progress even if stderr is not a terminal"},
        {0, "no-progress", CLI_FLAG, NULL, NULL, "show no progress"},
        {0, "log-file", CLI_STRING, &c->log_file, "FILE",
         "append messages and progress to FILE, with the time in UTC, also under -q"},
        {0, "log-dir", CLI_STRING, &c->log_dir, "DIR",
         "the same for every rank of a run by MPI, to DIR/rank-N.log"},
        {'h', "help", CLI_FLAG, &c->help, NULL, "show this help"},
        {'V', "version", CLI_FLAG, &c->version, NULL,
         "show version, commit and features (with --verbose: compiler and libraries)"},
    };
    memcpy(cli->state->common, table, sizeof table);
}

static bool make_table(vptq_cli *cli)
{
    size_t own = 0;
    while (cli->options && (cli->options[own].name || cli->options[own].help))
        own++;
    struct vptq_cli_state *s = calloc(1, sizeof *s);
    cli->state = s;
    if (!s)
        return false;
    s->entries = calloc(own + CLI_COMMON_COUNT, sizeof *s->entries);
    if (!s->entries)
        return false;
    s->own = s->count = own;
    for (size_t i = 0; i < own; i++)
        s->entries[i] =
            (vptq_cli_entry){.option = &cli->options[i], .letter = cli->options[i].letter};
    fill_common(cli);
    for (size_t i = 0; i < CLI_COMMON_COUNT; i++) {
        const vptq_cli_option *o = &s->common[i];
        if (is_omitted(cli, o->name) || is_taken(s, o, false))
            continue;
        s->entries[s->count++] = (vptq_cli_entry){
            .option = o, .letter = o->letter && is_taken(s, o, true) ? 0 : o->letter};
    }
    return true;
}

bool vptq_cli_takes_value(const vptq_cli_option *o)
{
    return o->type != CLI_FLAG && o->type != CLI_UNFLAG && o->type != CLI_COUNT;
}

/* The table as getopt wants it: short letters and long names, each with an empty last element.
 */
typedef struct spelling {
    char letters[3 + 2 * 64];
    struct option *names;
} spelling;

static bool spell(const struct vptq_cli_state *s, spelling *sp)
{
    size_t n = 0, at = 0;
    sp->names = calloc(s->count + 1, sizeof *sp->names);
    if (!sp->names)
        return false;
    sp->letters[at++] =
        ':'; /* makes getopt distinguish a missing value from an unknown option */
    for (size_t i = 0; i < s->count; i++) {
        const vptq_cli_option *o = s->entries[i].option;
        if (!o->name)
            continue;
        sp->names[n++] = (struct option){
            .name = o->name, .has_arg = vptq_cli_takes_value(o), .val = LONG_ONLY + (int)i};
        if (s->entries[i].letter && at + 3 < sizeof sp->letters) {
            sp->letters[at++] = s->entries[i].letter;
            if (vptq_cli_takes_value(o))
                sp->letters[at++] = ':';
        }
    }
    sp->letters[at] = 0;
    return true;
}

static vptq_cli_entry *entry_of(const struct vptq_cli_state *s, int value)
{
    if (value >= LONG_ONLY)
        return &s->entries[value - LONG_ONLY];
    for (size_t i = 0; i < s->count; i++)
        if (s->entries[i].letter && s->entries[i].letter == (char)value)
            return &s->entries[i];
    return NULL;
}

/* --- values ------------------------------------------------------------------------------ */

/* Describes the values of an option; `threads` is the target of --threads. */
static const char *expected(const vptq_cli_option *o, const uint32_t *threads)
{
    switch (o->type) {
    case CLI_U32:
        return o->target == threads ? "0 to 4096" : "0 to 4294967295";
    case CLI_U64:
        return "a whole number";
    case CLI_SIZE:
        return "a number of bytes like 512M or 1.5G";
    case CLI_DOUBLE:
        return "a number";
    case CLI_RANGE:
        return "A-B or A, counted from 0";
    default:
        return o->arg;
    }
}

static bool add_string(vptq_cli_strings *list, const char *text)
{
    const char **items = malloc((list->count + 1) * sizeof *items);
    if (!items)
        return false;
    for (size_t i = 0; i < list->count; i++)
        items[i] = list->items[i];
    items[list->count++] = text;
    free(list->items);
    list->items = items;
    return true;
}

static bool store(vptq_cli *cli, const vptq_cli_option *o, const char *text)
{
    uint64_t x;
    switch (o->type) {
    case CLI_FLAG:
        if (o->target)
            *(bool *)o->target = true;
        else /* --progress and --no-progress; neither is the third state */
            cli->common.progress = !strcmp(o->name, "progress");
        return true;
    case CLI_UNFLAG:
        *(bool *)o->target = false;
        return true;
    case CLI_COUNT:
        ++*(int *)o->target;
        return true;
    case CLI_STRING:
    case CLI_CONFIG:
    case CLI_INPUT:
        *(const char **)o->target = text;
        return true;
    case CLI_STRINGS:
    case CLI_INPUTS:
        return add_string(o->target, text);
    case CLI_U32:
        if (!vptq_cli_parse_u64(text, UINT32_MAX, &x))
            return false;
        *(uint32_t *)o->target = (uint32_t)x;
        return true;
    case CLI_U64:
        return vptq_cli_parse_u64(text, UINT64_MAX, o->target);
    case CLI_SIZE:
        return vptq_cli_parse_size(text, o->target);
    case CLI_DOUBLE:
        return vptq_cli_parse_double(text, o->target);
    case CLI_RANGE:
        return vptq_cli_parse_range(text, o->target);
    case CLI_CHOICE:
        return vptq_cli_parse_choice(text, o->arg, o->target);
    }
    return false;
}

/* --- parsing ----------------------------------------------------------------------------- */

static void note_config(vptq_cli_config *c, const vptq_cli_option *o, char **argv)
{
    c->option = o;
    c->twice = c->path != NULL;
    c->path = optarg;
    c->words[0] = optarg == argv[optind - 1] ? argv[optind - 2] : argv[optind - 1];
    c->words[1] = argv[optind - 1];
}

/* Finds --help and --version anywhere on the command line.  They take precedence over errors,
 * and help must show the defaults, so this runs before any value is stored.  Also finds a file
 * of options, and which of them are on the command line. */
static void look_ahead(vptq_cli *cli, int argc, char **argv, const spelling *sp)
{
    opterr = 0;
    optind = 0; /* glibc: restart the scan */
    for (int c = getopt_long(argc, argv, sp->letters, sp->names, NULL); c != -1;
         c = getopt_long(argc, argv, sp->letters, sp->names, NULL)) {
        vptq_cli_entry *e = c == '?' || c == ':' ? NULL : entry_of(cli->state, c);
        if (!e)
            continue;
        e->seen = true;
        if (e->option->type == CLI_CONFIG)
            note_config(&cli->state->config, e->option, argv);
        if (e->option->target == &cli->common.help)
            cli->common.help = true;
        else if (e->option->target == &cli->common.version)
            cli->common.version = true;
        else if (e->option->target == &cli->common.verbose)
            cli->common.verbose = 1;
        else if (e->option->target == &cli->common.backend)
            cli->common.backend = optarg; /* --version --verbose describes it */
    }
}

/* Tells an ambiguous prefix from an unknown name; getopt reports both alike. */
static bool begins_some_name(const struct vptq_cli_state *s, const char *word)
{
    for (size_t i = 0; i < s->count; i++) {
        const vptq_cli_option *o = s->entries[i].option;
        if (o->name && !strncmp(o->name, word, strcspn(word, "=")))
            return true;
    }
    return false;
}

/* A third of its letters may be wrong. */
const char *vptq_cli_nearest_name(const struct vptq_cli_state *s, const char *word)
{
    const size_t n = strcspn(word, "=");
    const char *nearest = NULL;
    size_t best = n / 3 + 1;
    for (size_t i = 0; i < s->count; i++) {
        const char *name = s->entries[i].option->name;
        const size_t distance = name ? vptq_cli_distance(word, n, name) : best;
        if (distance < best) {
            best = distance;
            nearest = name;
        }
    }
    return nearest;
}

static int bad_option(const vptq_cli *cli, int c, char **argv)
{
    const char *word = argv[optind - 1], *name;
    if (c == ':')
        return vptq_cli_usage_error(cli, "option '%s' needs a value", word);
    if (optopt > 0 && optopt < LONG_ONLY)
        return vptq_cli_usage_error(cli, "unknown option '-%c'", optopt);
    if (optopt >= LONG_ONLY)
        return vptq_cli_usage_error(cli, "option '%s' takes no value", word);
    if (begins_some_name(cli->state, word + 2))
        return vptq_cli_usage_error(cli, "ambiguous option '%s'", word);
    name = vptq_cli_nearest_name(cli->state, word + 2);
    return vptq_cli_usage_error(cli, "unknown option '%s'%s%s%s", word,
                                name ? "; did you mean --" : "", name ? name : "",
                                name ? "?" : "");
}

bool vptq_cli_is_stdin(const vptq_cli_option *o, const char *text)
{
    if (o->type != CLI_INPUT && o->type != CLI_INPUTS)
        return false;
    const char *named = strchr(o->arg, '=') ? strchr(text, '=') : NULL;
    return strcmp(named ? named + 1 : text, "-") == 0;
}

static bool add_given(struct vptq_cli_state *s, const vptq_cli_option *o, const char *text)
{
    vptq_cli_word *given = realloc(s->given, (s->given_count + 1) * sizeof *given);
    if (!given)
        return false;
    given[s->given_count++] = (vptq_cli_word){o, text};
    s->given = given;
    return true;
}

static int take_options(vptq_cli *cli, const spelling *sp)
{
    const int argc = cli->argc;
    char **argv = cli->argv;
    const vptq_cli_option *reader = cli->state->config.stdin_reader; /* of standard input */
    for (size_t i = 0; i < cli->state->count; i++)
        cli->state->entries[i].seen = false;
    optind = 0;
    for (int c = getopt_long(argc, argv, sp->letters, sp->names, NULL); c != -1;
         c = getopt_long(argc, argv, sp->letters, sp->names, NULL)) {
        vptq_cli_entry *e = c == '?' || c == ':' ? NULL : entry_of(cli->state, c);
        if (!e)
            return bad_option(cli, c, argv);
        e->seen = true;
        if (!store(cli, e->option, optarg))
            return vptq_cli_usage_error(cli, "--%s %.128s: expected %s", e->option->name,
                                        *optarg ? optarg : "''",
                                        expected(e->option, &cli->common.threads));
        if (!add_given(cli->state, e->option, optarg)) {
            vptq_cli_say(cli, "out of memory");
            return CLI_FAILED;
        }
        if (!vptq_cli_is_stdin(e->option, optarg))
            continue;
        if (reader)
            return vptq_cli_usage_error(cli, "--%s %s: standard input is already read by --%s",
                                        e->option->name, optarg, reader->name);
        reader = e->option;
    }
    for (size_t i = 0; i < cli->state->own; i++) {
        const vptq_cli_entry *e = &cli->state->entries[i];
        if (!e->seen && e->option->name && vptq_cli_lists(cli->required, e->option->name))
            return vptq_cli_missing_option(cli, e->option->name);
    }
    if (cli->common.threads > MAX_THREADS)
        return vptq_cli_usage_error(cli, "--threads %u: expected 0 to %d", cli->common.threads,
                                    MAX_THREADS);
    return CLI_OK;
}

static int take_operands(vptq_cli *cli)
{
    size_t n = (size_t)(cli->argc - optind);
    cli->args = calloc(n + 1, sizeof *cli->args);
    if (!cli->args)
        return CLI_FAILED;
    for (size_t i = 0; i < n; i++)
        cli->args[i] = cli->argv[optind + (int)i];
    cli->arg_count = n;
    return CLI_OK;
}

int vptq_cli_finish_stdout(const vptq_cli *cli)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return CLI_OK;
    vptq_cli_say(cli, "cannot write to standard output: %s",
                 errno ? strerror(errno) : "write error");
    return CLI_FAILED;
}

static bool out_of_memory(const vptq_cli *cli, int *exit_code)
{
    vptq_cli_say(cli, "out of memory");
    *exit_code = CLI_FAILED;
    return false;
}

bool vptq_cli_parse(vptq_cli *cli, int argc, char **argv, int first, int *exit_code)
{
    spelling sp;
    vptq_cli_start();
    if (!cli->common.backend)
        cli->common.backend = "auto";
    cli->common.progress = -1;
    if (!make_table(cli) || !spell(cli->state, &sp))
        return out_of_memory(cli, exit_code);
    /* getopt skips the word before the first option: the tool's or the command's name. */
    argc -= first - 1;
    argv += first - 1;
    look_ahead(cli, argc, argv, &sp);
    if (cli->common.help || cli->common.version) {
        cli->common.help ? vptq_cli_print_help(cli) : vptq_cli_print_version(cli);
        free(sp.names);
        *exit_code = vptq_cli_finish_stdout(cli);
        return false;
    }
    cli->common.verbose = 0;
    cli->argc = argc;
    cli->argv = argv;
    *exit_code = vptq_cli_expand_config(cli);
    if (!*exit_code)
        *exit_code = take_options(cli, &sp);
    free(sp.names);
    if (*exit_code)
        return false;
    if (take_operands(cli))
        return out_of_memory(cli, exit_code);
    if (cli->arg_count && !cli->operands) {
        *exit_code = vptq_cli_usage_error(cli, "unexpected argument '%s'", cli->args[0]);
        return false;
    }
    vptq_err err = {VPTQ_OK, ""};
    if (vptq_cli_make_context(cli, &err)) {
        *exit_code = vptq_cli_finish(cli, err.code, &err);
        return false;
    }
    return true;
}

/* --- the end ----------------------------------------------------------------------------- */

int vptq_cli_finish(vptq_cli *cli, vptq_status st, const vptq_err *err)
{
    bool can_force = !is_omitted(cli, "force");
    vptq_err agreed = err && st ? *err : (vptq_err){VPTQ_OK, ""};
    if (cli->ctx)
        st = vptq_ctx_agree(cli->ctx, st, &agreed);
    err = &agreed;
    vptq_cli_progress_end(&cli->state->progress);
    int code = vptq_cli_finish_stdout(cli);
    if (st)
        vptq_cli_say(cli, "%s%s", err && err->text[0] ? err->text : "failed",
                     st == VPTQ_E_EXISTS && can_force ? " (--force replaces it)" : "");
    if (st == VPTQ_OK)
        return code;
    if (st == VPTQ_E_CANCELLED)
        return vptq_cli_signal() ? CLI_SIGNALLED + vptq_cli_signal() : CLI_INTERRUPTED;
    return st == VPTQ_E_ARG ? CLI_USAGE : CLI_FAILED;
}

void vptq_cli_release(vptq_cli *cli)
{
    for (size_t i = 0; cli->state && i < cli->state->own; i++) {
        const vptq_cli_option *o = cli->state->entries[i].option;
        if ((o->type != CLI_STRINGS && o->type != CLI_INPUTS) || !o->target)
            continue;
        vptq_cli_strings *list = o->target;
        free(list->items);
        *list = (vptq_cli_strings){0};
    }
    if (cli->state) {
        vptq_cli_log_close(cli->state->progress.log, cli->tool, cli->common.quiet > 1);
        vptq_cli_release_config(&cli->state->config);
        free(cli->state->entries);
        free(cli->state->given);
    }
    free(cli->state);
    free(cli->args);
    vptq_ctx_close(cli->ctx);
    cli->ctx = NULL;
    cli->state = NULL;
    cli->args = NULL;
    cli->arg_count = 0;
}

int vptq_cli_run(vptq_cli *cli, int argc, char **argv, int (*run)(vptq_cli *cli, void *arg),
                 void *arg)
{
    int code;
    if (vptq_cli_parse(cli, argc, argv, cli->command ? 2 : 1, &code))
        code = run(cli, arg);
    if (vptq_cli_is_hushed(cli))
        code = CLI_OK; /* rank 0 has it for all; launchers blame the first that fails */
    vptq_cli_release(cli);
    return code;
}
