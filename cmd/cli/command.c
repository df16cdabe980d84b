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
    const char *kind = !word ? "no" : *word == '-' ? "unknown option '" : "unknown command '";
    char names[256] = "";
    size_t n = 0;
    for (const vptq_cli_command *c = commands; c->name && n < sizeof names; c++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s %s",
                              c == commands ? ""
                              : c[1].name   ? ","
                                            : " or",
                              c->name);
    vptq_cli_say(&(vptq_cli){.tool = tool}, "%s%.128s%s (expected%s)", kind,
                 word ? word : " command", word ? "'" : "", names);
    fprintf(stderr, "try '%s --help'\n", tool);
    return CLI_USAGE;
}

int vptq_cli_run_command(const char *tool, const char *summary,
                         const vptq_cli_command *commands, int argc, char **argv)
{
    vptq_cli_start();
    if (argc < 2)
        return usage_error(tool, NULL, commands);
    const char *word = argv[1];
    for (const vptq_cli_command *c = commands; c->name; c++)
        if (!strcmp(word, c->name))
            return c->run(&(vptq_cli){.tool = tool, .command = word, .summary = c->summary},
                          argc, argv);
    if (!strcmp(word, "-h") || !strcmp(word, "--help")) {
        print_commands(tool, summary, commands);
        return vptq_cli_finish_stdout(&(vptq_cli){.tool = tool});
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
