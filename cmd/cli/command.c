/* Tools with commands: choice of the command, list of commands, version of the tool. */
#include <stdio.h>
#include <string.h>

#include "cmd/cli/internal.h"

static void print_commands(const char *tool, const char *summary,
                           const vptq_cli_command *commands)
{
    printf("usage: %s COMMAND [OPTION..]\n\n%s\n\nCommands:\n", tool, summary);
    for (const vptq_cli_command *c = commands; c->name; c++)
        printf("  %-9s %s\n", c->name, c->summary);
    printf("\n'%s COMMAND --help' lists the options of a command.\n", tool);
}

static int usage_error(const char *tool, const char *word, const vptq_cli_command *commands)
{
    const char *kind = !word ? "no" : *word == '-' ? "unknown option" : "unknown command";
    fprintf(stderr, "%s: %s", tool, kind);
    if (word)
        fprintf(stderr, " '%s'", word);
    else
        fputs(" command", stderr);
    fputs(" (expected", stderr);
    for (const vptq_cli_command *c = commands; c->name; c++)
        fprintf(stderr, "%s %s", c == commands ? "" : c[1].name ? "," : " or", c->name);
    fprintf(stderr, ")\ntry '%s --help'\n", tool);
    return CLI_USAGE;
}

int vptq_cli_run_command(const char *tool, const char *summary,
                         const vptq_cli_command *commands, int argc, char **argv)
{
    if (argc < 2)
        return usage_error(tool, NULL, commands);
    const char *word = argv[1];
    for (const vptq_cli_command *c = commands; c->name; c++)
        if (!strcmp(word, c->name))
            return c->run(argc, argv);
    if (!strcmp(word, "-h") || !strcmp(word, "--help")) {
        print_commands(tool, summary, commands);
        return vptq_cli_finish_stdout(tool);
    }
    if (!strcmp(word, "-V") || !strcmp(word, "--version")) {
        /* Only common options: --verbose adds compiler and libraries. */
        vptq_cli cli = {.tool = tool};
        int code = CLI_OK;
        vptq_cli_parse(&cli, argc, argv, 1, &code);
        vptq_cli_release(&cli);
        return code;
    }
    return usage_error(tool, word, commands);
}
