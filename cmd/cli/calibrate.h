/* Internal: options for calibration texts and windows, shared by three commands. */
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

/* Initializes `c` to the defaults and writes CLI_CALIBRATE_OPTIONS options that point into it.
 */
void vptq_cli_calibrate_options(vptq_cli_calibrate *c, vptq_cli_option *options);

/* Tells whether a calibration text was given. */
static inline bool vptq_cli_calibrate_given(const vptq_cli_calibrate *c)
{
    return c->texts.count || c->tokens.count;
}

/* Converts the options to *o, which points into `c`, and the factor of --weights to *factor.
 * VPTQ_E_ARG names an impossible option. */
vptq_status vptq_cli_calibrate_take(const vptq_cli_calibrate *c, uint64_t seed,
                                    vptq_calibrate_options *o, double *factor,
                                    vptq_err *err) VPTQ_MUST_CHECK;

#endif
