/* Options for calibration texts and windows, which two tools share. */
#ifndef VPTQ_CMD_CLI_CALIBRATE_H
#define VPTQ_CMD_CLI_CALIBRATE_H

#include "cmd/cli/cli.h"

enum { CLI_CALIBRATE_OPTIONS = 7 };

typedef struct vptq_cli_calibrate {
    vptq_cli_strings texts, tokens;
    uint64_t windows, length;
    bool rows;
    const char *weights;
    double holdout; /* NAN = not given */
} vptq_cli_calibrate;

/* Writes CLI_CALIBRATE_OPTIONS options, which point into `c` and start as its defaults. */
void vptq_cli_calibrate_options(vptq_cli_calibrate *c, vptq_cli_option *options);

static inline bool vptq_cli_calibrate_given(const vptq_cli_calibrate *c) /* a text */
{
    return c->texts.count || c->tokens.count;
}

/* Converts the options, and the factor of the weights' term; VPTQ_E_ARG naming what
 * cannot be.  `*o` points into `c`. */
vptq_status vptq_cli_calibrate_take(const vptq_cli_calibrate *c, uint64_t seed,
                                    vptq_calibrate_options *o, double *factor,
                                    vptq_err *err) VPTQ_MUST_CHECK;

#endif
