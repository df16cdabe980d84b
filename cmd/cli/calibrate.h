/* Internal: options for calibration texts and windows, shared by three commands. */
#ifndef VPTQ_CMD_CLI_CALIBRATE_H
#define VPTQ_CMD_CLI_CALIBRATE_H

#include <math.h>

#include "cmd/cli/cli.h"

typedef struct vptq_cli_calibrate {
    vptq_cli_strings texts, tokens;
    uint64_t windows, length, outputs;
    bool rows, lossy;
    const char *weights;
    double holdout; /* NAN = not given */
} vptq_cli_calibrate;

/* Rows of a table of options that point into `c`, which holds the defaults. */
#define CLI_CALIBRATE_DEFAULTS                                                                 \
    {                                                                                          \
        .windows = 128, .length = CLI_UNSET, .weights = "sink", .holdout = (double)NAN         \
    }
#define CLI_CALIBRATE_OPTIONS(c)                                                               \
    CLI_OPTION(                                                                                \
        'c', "calibration", CLI_INPUTS, &(c)->texts, "TEXT",                                   \
        "UTF-8 text, plain, gzip or zstd; '-' = standard input, builtin = the one that ships " \
        "with the tools; may be repeated"),                                                    \
        CLI_OPTION(0, "tokens", CLI_INPUTS, &(c)->tokens, "FILE",                              \
                   "token ids (int32, little endian) instead of a text; may be repeated"),     \
        CLI_OPTION('n', "windows", CLI_U64, &(c)->windows, "N",                                \
                   "maximum number of windows, drawn by --seed if the text has more"),         \
        CLI_OPTION('l', "length", CLI_U64, &(c)->length, "N",                                  \
                   "tokens per window " CLI_WINDOW_DEFAULT),                                   \
        CLI_OPTION(0, "rows", CLI_FLAG, &(c)->rows, NULL,                                      \
                   "form the text as Hugging Face rows joined by two newlines"),               \
        CLI_LOSSY_OPTION(&(c)->lossy),                                                         \
        CLI_OPTION(                                                                            \
            0, "weights", CLI_STRING, &(c)->weights, "KIND",                                   \
            "tokens that count more: plain, sink[:factor], attention[:factor] (for k and v), " \
            "guided[:factor] (for all linear layers)"),                                        \
        CLI_OPTION(0, "holdout", CLI_DOUBLE, &(c)->holdout, "SHARE",                           \
                   "share of the windows to hold out; losses are also reported on them"),      \
        CLI_OPTION(0, "outputs", CLI_U64, &(c)->outputs, "N",                                  \
                   "windows whose gradients give output Hessians")

/* Tells whether a calibration text was given. */
static inline bool vptq_cli_calibrate_given(const vptq_cli_calibrate *c)
{
    return c->texts.count || c->tokens.count;
}

/* Makes the text that ships with the tools the one of an empty corpus. */
void vptq_cli_default_text(vptq_corpus_options *corpus);

/* Refuses options that do nothing with Hessians that were collected before.  `text`: some are
 * those of a text to tune on.  CLI_OK or CLI_USAGE. */
int vptq_cli_calibrate_unused(const vptq_cli *cli, bool text);

/* Converts the options to *o, which points into `c`, and the factor of --weights to *factor.
 * VPTQ_E_ARG names an impossible option. */
vptq_status vptq_cli_calibrate_take(const vptq_cli *cli, const vptq_cli_calibrate *c,
                                    vptq_calibrate_options *o, double *factor,
                                    vptq_err *err) VPTQ_MUST_CHECK;

#endif
