/* Internal: options for the settings of a matrix, generated from the library's table of
 * settings, so that names and ranges match recipes and reports.  The order of options on the
 * command line does not matter: the encoder applies first, then the preset, then single
 * settings. */
#ifndef VPTQ_CMD_CLI_SETTINGS_H
#define VPTQ_CMD_CLI_SETTINGS_H

#include "cmd/cli/cli.h"

enum { CLI_SETTINGS = 48, CLI_SETTINGS_NAME = 40, CLI_SETTINGS_HELP = 160 };

typedef struct vptq_cli_settings {
    const char *encoder, *preset;
    const char *value[CLI_SETTINGS]; /* as given, by index in the table; NULL = not given */
    const char *search;              /* "greedy", "beam:16": the setting `beam` */
    bool norm, perm;                 /* false: --no-norm, --no-perm */
    bool act_order, symmetric;       /* given */
    char name[CLI_SETTINGS][CLI_SETTINGS_NAME]; /* option names */
    char help[CLI_SETTINGS][CLI_SETTINGS_HELP];
} vptq_cli_settings;

/* Initializes `s` to the defaults and writes options that point into it, with headings, to
 * `options`.  Returns their number, at most `max`. */
size_t vptq_cli_settings_options(vptq_cli_settings *s, vptq_cli_option *options, size_t max);

/* Converts the options to settings, which the caller frees; VPTQ_E_ARG naming the option. */
vptq_status vptq_cli_settings_take(const vptq_cli_settings *s, uint64_t seed,
                                   vptq_settings **settings, vptq_err *err) VPTQ_MUST_CHECK;

/* Returns the name of a given option that a bit budget decides, or NULL. */
const char *vptq_cli_settings_rate(const vptq_cli_settings *s);

#endif
