/* Internal to cmd/cli: the state of a command line and the functions that its files share. */
#ifndef VPTQ_CMD_CLI_INTERNAL_H
#define VPTQ_CMD_CLI_INTERNAL_H

#include "cmd/cli/cli.h"
#include "cmd/cli/progress.h"

enum { CLI_COMMON_COUNT = 15, CLI_DEFAULT_SIZE = 64 };

/* The option that names a file of options, where it was given. */
typedef struct vptq_cli_config {
    const char *path; /* NULL: not given; for messages, once the file is read */
    const vptq_cli_option *option, *stdin_reader; /* the latter NULL unless it is "-" */
    const char *words[2]; /* of the command line, "--config" and its value or both in one */
    bool twice;
    vptq_config read;
    char **argv; /* the new command line; owned, as are the words of the file */
    size_t from_file;
} vptq_cli_config;

/* One accepted option; the letter is 0 if another option uses it. */
typedef struct vptq_cli_entry {
    const vptq_cli_option *option;
    char letter;
    bool seen;
} vptq_cli_entry;

/* An option as it was given; text NULL: without value. */
typedef struct vptq_cli_word {
    const vptq_cli_option *option;
    const char *text;
} vptq_cli_word;

struct vptq_cli_state {
    vptq_cli_progress progress;
    vptq_cli_option common[CLI_COMMON_COUNT];
    vptq_cli_entry *entries; /* the command's options and headings, then the common ones */
    size_t own, count;
    vptq_cli_word *given; /* [given_count] in their order */
    size_t given_count;
    vptq_cli_config config;
    bool hushed; /* not rank 0: prints nothing */
};

/* Prepares the process, before anything is opened; again does no harm. */
void vptq_cli_start(void);
/* Restores the environment variable that cmd/cli/spin.c replaced before main. */
void vptq_cli_restore_environment(void);
/* Opens cli->ctx, the log and cli->out, and catches signals (context.c). */
vptq_status vptq_cli_make_context(vptq_cli *cli, vptq_err *err);
/* The signal that asked to stop, or 0. */
int vptq_cli_signal(void);
/* As vptq_cli_say, but on stderr only if it is `shown`; in the log in any case. */
void vptq_cli_report(const vptq_cli *cli, bool shown, const char *fmt, ...) VPTQ_PRINTF(3, 4);
/* Whether this is a rank that prints nothing. */
bool vptq_cli_is_hushed(const vptq_cli *cli);
/* As vptq_write_fn; `arg` is the vptq_cli, whose progress line makes way. */
vptq_status vptq_cli_write_stdout(void *arg, const char *text, size_t length, vptq_err *err);
/* Columns of the terminal on stdout, or COLUMNS if it is set; 0 = unknown or not a terminal. */
uint32_t vptq_cli_stdout_width(void);
/* Flushes stdout; prints a message and returns CLI_FAILED if a write to it failed. */
int vptq_cli_finish_stdout(const vptq_cli *cli);
/* Tells whether a word is in a list "a|b"; not in NULL. */
bool vptq_cli_lists(const char *list, const char *word);
/* Tells whether an option has a value. */
bool vptq_cli_takes_value(const vptq_cli_option *o);
/* Tells whether the option's value is standard input. */
bool vptq_cli_is_stdin(const vptq_cli_option *o, const char *text);
/* Puts the options of the file that state->config names into cli->argc and cli->argv, after the
 * first word: those that were not `seen` on the command line.  CLI_OK or an exit code. */
int vptq_cli_expand_config(vptq_cli *cli);
void vptq_cli_release_config(vptq_cli_config *config);
/* The name of an option that `word` may be a misspelling of, or NULL. */
const char *vptq_cli_nearest_name(const struct vptq_cli_state *s, const char *word);
void vptq_cli_print_help(const vptq_cli *cli);
void vptq_cli_print_version(const vptq_cli *cli);
const char *vptq_cli_commit(void); /* that the tools were built from */

#endif
