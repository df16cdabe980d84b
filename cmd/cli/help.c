/* Help text from the option table. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/cli/internal.h"
#include "cmd/cli/value.h"

enum { HELP_COLUMN = 30, HELP_WIDTH = 96, HELP_BUFFER = 1 << 16 };

static void range_text(char text[CLI_DEFAULT_SIZE], const vptq_cli_range *r)
{
    if (r->first == 0 && r->last == UINT32_MAX)
        return; /* all: the help text says so */
    snprintf(text, CLI_DEFAULT_SIZE, "%" PRIu32 "-%" PRIu32, r->first, r->last);
}

/* Formats the default of an option; empty if there is nothing to show. */
static void default_text(char text[CLI_DEFAULT_SIZE], const vptq_cli_option *o)
{
    if (!o->target)
        return;
    switch (o->type) {
    case CLI_STRING:
    case CLI_INPUT: {
        const char *s = *(const char *const *)o->target;
        vptq_err shown; /* --backend may have come from the command line */
        vptq_fail(&shown, VPTQ_OK, "%s", s ? s : "");
        snprintf(text, CLI_DEFAULT_SIZE, "%.63s", shown.text);
        break;
    }
    case CLI_U32: {
        uint32_t x = *(const uint32_t *)o->target;
        if (x != UINT32_MAX)
            snprintf(text, CLI_DEFAULT_SIZE, "%" PRIu32, x);
        break;
    }
    case CLI_U64:
    case CLI_SIZE: {
        uint64_t x = *(const uint64_t *)o->target;
        if (x != UINT64_MAX)
            snprintf(text, CLI_DEFAULT_SIZE, "%" PRIu64, x);
        break;
    }
    case CLI_DOUBLE: {
        double x = *(const double *)o->target;
        if (isfinite(x))
            snprintf(text, CLI_DEFAULT_SIZE, "%g", x);
        break;
    }
    case CLI_RANGE:
        range_text(text, o->target);
        break;
    case CLI_CHOICE:
        vptq_cli_choice_name(text, CLI_DEFAULT_SIZE, o->arg, *(const int *)o->target);
        break;
    case CLI_FLAG:
    case CLI_UNFLAG:
    case CLI_STRINGS:
    case CLI_INPUTS:
    case CLI_CONFIG:
    case CLI_COUNT:
        break;
    }
}

/* Prints text from column HELP_COLUMN on, broken between words. */
static void print_wrapped(const char *text)
{
    size_t column = HELP_COLUMN;
    while (*text) {
        size_t word = strcspn(text, " ");
        if (column > HELP_COLUMN && column + 1 + word > HELP_WIDTH) {
            printf("\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (column > HELP_COLUMN) {
            putchar(' ');
            column++;
        }
        printf("%.*s", (int)word, text);
        column += word;
        text += word;
        text += strspn(text, " ");
    }
    putchar('\n');
}

static void print_option(const vptq_cli_entry *e, bool required)
{
    const vptq_cli_option *o = e->option;
    char left[128], right[512], value[CLI_DEFAULT_SIZE] = "";
    int n =
        snprintf(left, sizeof left, e->letter ? "  -%c, --%s%s%s" : "  %c   --%s%s%s",
                 e->letter ? e->letter : ' ', o->name, o->arg ? " " : "", o->arg ? o->arg : "");
    if (!required)
        default_text(value, o);
    snprintf(right, sizeof right, "%s%s%s%s%s", o->help, required ? " (required)" : "",
             value[0] ? " (default: " : "", value, value[0] ? ")" : "");
    if (n + 1 < HELP_COLUMN)
        printf("%-*s", HELP_COLUMN, left);
    else
        printf("%s\n%*s", left, HELP_COLUMN, "");
    print_wrapped(right);
}

/* Prints lines after "usage: ", aligned with the first. */
static void print_usage(const char *lines)
{
    const char *head = "usage: ";
    while (*lines) {
        size_t len = strcspn(lines, "\n");
        printf("%s%.*s\n", head, (int)len, lines);
        lines += len + (lines[len] == '\n');
        head = "       ";
    }
}

void vptq_cli_print_help(const vptq_cli *cli)
{
    const struct vptq_cli_state *s = cli->state;
    /* Written at once, at the end: the reason why a write in between fails would be lost. */
    static char buffer[HELP_BUFFER];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    if (cli->usage)
        print_usage(cli->usage);
    if (cli->summary)
        printf("\n%s\n", cli->summary);
    for (size_t i = 0; i < s->count; i++) {
        const vptq_cli_option *o = s->entries[i].option;
        if (i == s->own)
            printf("\nCommon options:\n");
        else if (i == 0 && o->name)
            printf("\nOptions:\n");
        if (o->name)
            print_option(&s->entries[i], i < s->own && vptq_cli_lists(cli->required, o->name));
        else
            printf("\n%s:\n", o->help);
    }
    if (cli->examples)
        printf("\n%s\n", cli->examples);
}
