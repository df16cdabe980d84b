/* Internal to cmd/cli: the state of a command line and the functions that its files share. */
#ifndef VPTQ_CMD_CLI_INTERNAL_H
#define VPTQ_CMD_CLI_INTERNAL_H

#include "cmd/cli/cli.h"
#include "cmd/cli/progress.h"

enum { CLI_COMMON_COUNT = 14, CLI_DEFAULT_SIZE = 64 };

/* One accepted option; the letter is 0 if another option uses it. */
typedef struct vptq_cli_entry {
    const vptq_cli_option *option;
    char letter;
    bool seen;
} vptq_cli_entry;

struct vptq_cli_state {
    vptq_cli_progress progress;
    vptq_cli_option common[CLI_COMMON_COUNT];
    vptq_cli_entry *entries; /* the command's options and headings, then the common ones */
    size_t own, count;
};

/* Prepares the process, before anything is opened; again does no harm. */
void vptq_cli_start(void);
/* Restores the environment variable that cmd/cli/spin.c replaced before main. */
void vptq_cli_restore_environment(void);
/* As vptq_write_fn; `arg` is the progress line, which makes way. */
vptq_status vptq_cli_write_stdout(void *arg, const char *text, size_t length, vptq_err *err);
/* Flushes stdout; prints a message and returns CLI_FAILED if a write to it failed. */
int vptq_cli_finish_stdout(const vptq_cli *cli);
/* Tells whether a word is in a list "a|b"; not in NULL. */
bool vptq_cli_lists(const char *list, const char *word);
void vptq_cli_print_help(const vptq_cli *cli);
void vptq_cli_print_version(const vptq_cli *cli);

#endif
