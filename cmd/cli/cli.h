/* Internal: command-line handling shared by the four tools: parsing and help from one option
 * table per command, numbers and sizes with units, exit codes, signals, and the run context.
 *
 *     const vptq_cli_option options[] = {
 *         {'m', "model", CLI_STRING, &o.model, "PATH", "model to read"},
 *         CLI_END};
 *     vptq_cli cli = {.tool = "vptq-x", .options = options, .required = "model"};
 *     return vptq_cli_run(&cli, argc, argv, run, &o);
 * Options of every tool (-t, --backend, --seed, --mem, -f, --dry-run, -q, -v, --[no-]progress,
 * --log-file, --log-dir, --format, -h, -V) are in vptq_cli_common; vptq_cli_parse adds them.  A
 * command's own option takes precedence: if it uses -v, the common one is --verbose only.
 *
 * Results are printed to stdout, which is fully buffered while a progress line is shown: the
 * line is cleared before they appear. */
#ifndef VPTQ_CMD_CLI_CLI_H
#define VPTQ_CMD_CLI_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/vptq.h"

/* Returns the failure of a call at once: for functions that have nothing to release. */
#define VPTQ_CHECK(call)                                                                       \
    do {                                                                                       \
        const vptq_status checked_ = (call);                                                   \
        if (checked_)                                                                          \
            return checked_;                                                                   \
    } while (0)

/* Goes to the label `out` with the failure in the local `st`: for functions that have something
 * to release. */
#define VPTQ_TRY(call)                                                                         \
    do {                                                                                       \
        st = (call);                                                                           \
        if (st)                                                                                \
            goto out;                                                                          \
    } while (0)

/* A run that a signal stopped exits with CLI_SIGNALLED + its number, as shells report it. */
enum {
    CLI_OK = 0,
    CLI_FAILED = 1,
    CLI_USAGE = 2,
    CLI_CHECK_FAILED = 3,
    CLI_SIGNALLED = 128,
    CLI_INTERRUPTED = CLI_SIGNALLED + 2
};

typedef enum {
    CLI_FLAG,    /* bool * -> true */
    CLI_UNFLAG,  /* bool * -> false (spelled --no-x in its name) */
    CLI_STRING,  /* const char ** */
    CLI_STRINGS, /* vptq_cli_strings *: the option may be given several times */
    CLI_INPUT,   /* as CLI_STRING and CLI_STRINGS: files to read.  "-" (with the argument */
    CLI_INPUTS,  /* NAME=FILE, "NAME=-") is standard input, which only one may be */
    CLI_U32,     /* uint32_t * */
    CLI_U64,     /* uint64_t * */
    CLI_SIZE,    /* uint64_t *: bytes, with K, M, G, T (powers of 1024) */
    CLI_DOUBLE,  /* double * */
    CLI_RANGE,   /* vptq_cli_range *: A-B or A */
    CLI_CHOICE,  /* int *: index into `arg`, a "|"-separated list */
    CLI_CONFIG,  /* const char **: a JSON file with options, which the command line overrides */
    CLI_COUNT    /* int *: number of times it was given */
} vptq_cli_type;

/* Default of a CLI_U64 option that the library chooses: help shows no number.  It can be given,
 * too: vptq_cli_or_zero tells which. */
#define CLI_UNSET UINT64_MAX

#define CLI_WINDOW_DEFAULT "(default: 2048, or the model's context if that is shorter)"

typedef struct vptq_cli_strings {
    const char **items; /* freed by vptq_cli_release */
    size_t count;
} vptq_cli_strings;

typedef struct vptq_cli_range {
    uint32_t first, last;
} vptq_cli_range;

typedef struct vptq_cli_option {
    char letter;      /* 0 = none */
    const char *name; /* long name without dashes; NULL with a help text = a section heading */
    vptq_cli_type type;
    void *target;     /* holds the default before parsing */
    const char *arg;  /* argument's name in help, or the choices of CLI_CHOICE */
    const char *help; /* one line; the printer appends the default */
} vptq_cli_option;
#define CLI_OPTION(letter, name, type, target, arg, help)                                      \
    {                                                                                          \
        letter, name, type, target, arg, help                                                  \
    }
#define CLI_LOSSY_OPTION(target)                                                               \
    CLI_OPTION(0, "lossy", CLI_FLAG, target, NULL,                                             \
               "replace bytes of a text that are not UTF-8 instead of refusing it")
#define CLI_HEADING(text) CLI_OPTION(0, NULL, CLI_FLAG, NULL, NULL, text)
#define CLI_END           CLI_HEADING(NULL)

/* Same values as vptq_format. */
typedef enum { CLI_TEXT, CLI_JSON, CLI_CSV, CLI_MD, CLI_HTML } vptq_cli_format;

typedef struct vptq_cli_common {
    uint32_t threads; /* 0 = all processors */
    const char *backend;
    uint64_t seed;
    uint64_t mem; /* bytes, 0 = no cap */
    bool force, dry_run, help, version;
    int quiet, verbose;
    int progress; /* -1 auto (terminal), 0 off, 1 on */
    int format;   /* vptq_cli_format */
    const char *log_file, *log_dir;
} vptq_cli_common;

typedef struct vptq_cli {
    const char *tool;     /* "vptq-eval" */
    const char *command;  /* "ppl" or NULL */
    const char *summary;  /* one line for help */
    const char *usage;    /* lines of the synopsis */
    const char *examples; /* closing text of help, or NULL */
    const vptq_cli_option *options;
    const char *required; /* options that must be given: "model|task"; NULL = none */
    const char *formats;  /* accepted --format values, "text|json" or "text|json|csv|md"; NULL =
                             the command has no --format */
    const char *omit;     /* common options without effect here: "force|dry-run"; NULL = none */
    bool ranks; /* processes that mpirun started share the work; otherwise they are refused */
    bool operands; /* store words that are not options in `args` instead of refusing them */
    vptq_cli_common common;
    int argc; /* the command line, with the options of a CLI_CONFIG file in its place */
    char **argv;
    const char **args; /* operands */
    size_t arg_count;
    vptq_ctx *ctx;                /* owned */
    vptq_output out;              /* stdout, in the format of --format */
    struct vptq_cli_state *state; /* progress line; owned */
} vptq_cli;

/* Parses the command line and calls `run` with `arg` unless there is nothing to run, as
 * vptq_cli_parse tells; releases `cli`.  Returns the exit code. */
int vptq_cli_run(vptq_cli *cli, int argc, char **argv, int (*run)(vptq_cli *cli, void *arg),
                 void *arg);
/* Parses argv[first..]; prints help (stdout) or version and returns false with *exit_code 0, or
 * a usage error (stderr: "TOOL: ...", "try 'TOOL COMMAND --help'") with 2.  On true the context
 * is ready: SIGINT, SIGTERM and SIGHUP set the cancel flag (a second one ends the process at
 * once), SIGBUS ends it with a sentence, log and progress go to stderr.  `cli` must not move:
 * the context points into it. */
bool vptq_cli_parse(vptq_cli *cli, int argc, char **argv, int first, int *exit_code);
/* The exit code: CLI_SIGNALLED + the signal for VPTQ_E_CANCELLED, CLI_USAGE for VPTQ_E_ARG,
 * CLI_FAILED otherwise, after printing "TOOL: text" to stderr; CLI_OK for VPTQ_OK.  Ends the
 * progress line, and reports a failed write to stdout. */
int vptq_cli_finish(vptq_cli *cli, vptq_status st, const vptq_err *err);
void vptq_cli_release(vptq_cli *cli);
/* Tells whether an option was given, one of the command or a common one. */
bool vptq_cli_given(const vptq_cli *cli, const char *name);
/* The value `x` of an option whose default is CLI_UNSET; 0 if it was not given. */
static inline uint64_t vptq_cli_or_zero(const vptq_cli *cli, const char *name, uint64_t x)
{
    return vptq_cli_given(cli, name) ? x : 0;
}
/* Writes the options that were given, also those from a file, as a file for CLI_CONFIG; without
 * --force and the option `name` itself. */
vptq_status vptq_cli_save_config(const vptq_cli *cli, const char *name, const char *path,
                                 vptq_err *err) VPTQ_MUST_CHECK;
/* Prints "TOOL: sentence" on stderr as one line, control characters escaped, and in the log. */
void vptq_cli_say(const vptq_cli *cli, const char *fmt, ...) VPTQ_PRINTF(2, 3);
/* Usage errors found after parsing: each prints one and returns CLI_USAGE. */
int vptq_cli_usage_error(const vptq_cli *cli, const char *fmt, ...) VPTQ_PRINTF(2, 3);
/* Refuses a --context below 2 tokens, the least that predict one; CLI_OK or CLI_USAGE. */
int vptq_cli_check_context(const vptq_cli *cli, uint64_t context);
/* "missing option: -m/--model MODEL"; `name` is in the command's own table. */
int vptq_cli_missing_option(const vptq_cli *cli, const char *name);

/* Runs the command of a tool that argv[1] names.  The command gets the whole command line, and
 * a `cli` with the names and the summary.  Handles help and version of the tool itself. */
typedef struct vptq_cli_command {
    const char *name, *summary; /* a NULL name ends the table */
    int (*run)(vptq_cli *cli, int argc, char **argv);
} vptq_cli_command;
int vptq_cli_run_command(const char *tool, const char *summary,
                         const vptq_cli_command *commands, int argc, char **argv);

/* The format of a report in the file `path`, NULL or "-" for stdout: that of cli->out, or if
 * --format was not given and the command has such a format, the one that the ending names:
 * .html, .md, .csv, .json or .jsonl. */
vptq_format vptq_cli_format_of(const vptq_cli *cli, const char *path);
/* Opens the file `path`, which then appears whole, for a report in this format; NULL and "-"
 * are stdout, and *file is NULL.  Replaces an existing file only with --force, and never one
 * that an option or an operand names as an input. */
vptq_status vptq_cli_open_output(const vptq_cli *cli, const char *path, vptq_writer **file,
                                 vptq_output *out, vptq_err *err) VPTQ_MUST_CHECK;

/* Texts and files of token ids, which point into the lists. */
static inline vptq_corpus_options vptq_cli_corpus(const vptq_cli_strings *texts,
                                                  const vptq_cli_strings *tokens, bool rows,
                                                  bool lossy)
{
    return (vptq_corpus_options){texts->items,  texts->count, tokens->items,
                                 tokens->count, rows,         lossy};
}

#endif
