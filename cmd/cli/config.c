/* Options from a JSON file in place of those of the command line, and those of a run into one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli/internal.h"

/* Copies a name with one letter in place of another. */
static void respell(char *to, size_t size, const char *name, char from, char with)
{
    snprintf(to, size, "%s", name);
    for (char *c = to; *c; c++)
        if (*c == from)
            *c = with;
}

enum { MAX_NAME = 64 };

/* The option of a key, whose "-" the file writes as "_"; NULL if there is none. */
static const vptq_cli_entry *find(const struct vptq_cli_state *s, const char *key)
{
    char name[MAX_NAME];
    for (size_t i = 0; i < s->count; i++) {
        const vptq_cli_option *o = s->entries[i].option;
        if (!o->name || o->type == CLI_CONFIG)
            continue;
        respell(name, sizeof name, o->name, '-', '_');
        if (!strcmp(name, key))
            return &s->entries[i];
    }
    return NULL;
}

static int unknown_key(const vptq_cli *cli, const char *key)
{
    char name[MAX_NAME], nearest[MAX_NAME] = "";
    const vptq_cli_option *self = cli->state->config.option;
    if (!strcmp(key, self->name))
        return vptq_cli_usage_error(cli, "%s: a file of options cannot have the option '%s'",
                                    cli->state->config.path, key);
    respell(name, sizeof name, key, '_', '-');
    const char *found = vptq_cli_nearest_name(cli->state, name);
    if (found)
        respell(nearest, sizeof nearest, found, '-', '_');
    return vptq_cli_usage_error(cli, "%s: unknown option '%s'%s%s%s", cli->state->config.path,
                                key, found ? "; did you mean '" : "", nearest,
                                found ? "'?" : "");
}

/* *word = "--name=value", or "--name" if the value is NULL. */
static int join(const vptq_cli *cli, const char *name, const char *value, char **word)
{
    const size_t size = strlen(name) + (value ? strlen(value) : 0) + sizeof "--=";
    *word = malloc(size);
    if (!*word) {
        vptq_cli_say(cli, "out of memory");
        return CLI_FAILED;
    }
    snprintf(*word, size, "--%s%s%s", name, value ? "=" : "", value ? value : "");
    return CLI_OK;
}

/* As make_word for a flag: false is the option --no-NAME if there is one, else no option. */
static int make_flag_word(const vptq_cli *cli, const vptq_cli_option *o, bool off, char **word)
{
    char key[MAX_NAME];
    if (!off)
        return join(cli, o->name, NULL, word);
    snprintf(key, sizeof key, "no_%s", o->name);
    const vptq_cli_entry *opposite = find(cli->state, key);
    return opposite ? join(cli, opposite->option->name, NULL, word) : CLI_OK;
}

/* *word = item i of the file as on a command line; NULL if it needs none. */
static int make_word(const vptq_cli *cli, size_t i, char **word)
{
    const vptq_cli_config *c = &cli->state->config;
    const vptq_setting_text *item = &c->read.items[i];
    const vptq_cli_entry *e = find(cli->state, item->key);
    const char *value = item->value;
    *word = NULL;
    if (!e)
        return unknown_key(cli, item->key);
    if (e->seen)
        return CLI_OK;
    if (!vptq_cli_takes_value(e->option))
        return value ? vptq_cli_usage_error(cli, "%s: '%s' expects true or false", c->path,
                                            item->key)
                     : make_flag_word(cli, e->option, c->read.is_false[i], word);
    if (!value)
        value = c->read.is_false[i] ? "false" : "true";
    if (!item->value && !vptq_cli_lists(e->option->arg, value))
        return vptq_cli_usage_error(cli, "%s: '%s' expects a value", c->path, item->key);
    return join(cli, e->option->name, value, word);
}

/* Fills config->argv: the first word, those of the file, then the others. */
static int make_argv(vptq_cli *cli)
{
    vptq_cli_config *c = &cli->state->config;
    int n = 0;
    c->argv = calloc((size_t)cli->argc + c->read.count + 1, sizeof *c->argv);
    if (!c->argv) {
        vptq_cli_say(cli, "out of memory");
        return CLI_FAILED;
    }
    c->argv[n++] = cli->argv[0];
    for (size_t i = 0; i < c->read.count; i++) {
        const int code = make_word(cli, i, &c->argv[n]);
        if (code)
            return code;
        c->from_file += c->argv[n] != NULL;
        n += c->argv[n] != NULL;
    }
    for (int i = 1; i < cli->argc; i++)
        if (cli->argv[i] != c->words[0] && cli->argv[i] != c->words[1])
            c->argv[n++] = cli->argv[i];
    cli->argc = n;
    cli->argv = c->argv;
    return CLI_OK;
}

int vptq_cli_expand_config(vptq_cli *cli)
{
    vptq_cli_config *c = &cli->state->config;
    vptq_err err = {VPTQ_OK, ""};
    if (!c->path)
        return CLI_OK;
    if (c->twice)
        return vptq_cli_usage_error(cli, "%s: a second file of options", c->path);
    if (vptq_config_read(c->path, &c->read, &err))
        return vptq_cli_finish(cli, err.code, &err);
    if (!strcmp(c->path, "-")) {
        c->path = "standard input";
        c->stdin_reader = c->option;
    }
    return make_argv(cli);
}

void vptq_cli_release_config(vptq_cli_config *c)
{
    for (size_t i = 0; i < c->from_file; i++)
        free(c->argv[1 + i]);
    free(c->argv);
    vptq_config_free(&c->read);
}

static bool is_saved(const vptq_cli *cli, const vptq_cli_option *o, const char *name)
{
    return o->target != &cli->common.force && strcmp(o->name, name) != 0;
}

vptq_status vptq_cli_save_config(const vptq_cli *cli, const char *name, const char *path,
                                 vptq_err *err)
{
    const struct vptq_cli_state *s = cli->state;
    size_t n = 0;
    if (s->hushed) /* the first rank writes */
        return VPTQ_OK;
    vptq_setting_text *items = calloc(s->given_count + 1, sizeof *items);
    char(*keys)[MAX_NAME] = calloc(s->given_count + 1, sizeof *keys);
    if (!items || !keys) {
        free(items);
        free(keys);
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < s->given_count; i++) {
        const vptq_cli_option *o = s->given[i].option;
        if (!is_saved(cli, o, name))
            continue;
        respell(keys[n], sizeof *keys, o->name, '-', '_');
        items[n] = (vptq_setting_text){keys[n], s->given[i].text};
        n++;
    }
    const vptq_status st = vptq_config_write(path, items, n, cli->common.force, err);
    free(items);
    free(keys);
    return st;
}
