/* Internal to cmd/cli: the state of a command line and the functions of its parts. */
#ifndef VPTQ_CMD_CLI_INTERNAL_H
#define VPTQ_CMD_CLI_INTERNAL_H

#include "cmd/cli/cli.h"
#include "cmd/cli/progress.h"

enum { CLI_COMMON_COUNT = 13, CLI_DEFAULT_SIZE = 64 };

/* One option as it is on offer: the letter is 0 where another option has taken it. */
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

/* Undoes what cmd/cli/spin.c did to the environment before the libraries were loaded. */
void vptq_cli_restore_environment(void);
/* Flushes stdout; CLI_FAILED with a message when what was written did not arrive. */
int vptq_cli_finish_stdout(const char *tool);
void vptq_cli_print_help(const vptq_cli *cli);
void vptq_cli_print_version(const vptq_cli *cli);
/* Formats the default of an option; empty if it has none worth showing. */
void vptq_cli_default_text(char text[CLI_DEFAULT_SIZE], const vptq_cli_option *o);

#endif
