/* The calibration options and their conversion. */
#include "cmd/cli/calibrate.h"

#include <math.h>
#include <string.h>

void vptq_cli_calibrate_options(vptq_cli_calibrate *c, vptq_cli_option *options)
{
    const vptq_cli_option list[CLI_CALIBRATE_OPTIONS] = {
        {'c', "calibration", CLI_STRINGS, &c->texts, "TEXT", "UTF-8 text; may be repeated",
         false},
        {0, "tokens", CLI_STRINGS, &c->tokens, "FILE",
         "token ids (int32, little endian) instead of a text; may be repeated", false},
        {'n', "windows", CLI_U64, &c->windows, "N",
         "maximum number of windows, drawn by --seed if the text has more", false},
        {'l', "length", CLI_U64, &c->length, "N", "tokens per window", false},
        {0, "rows", CLI_FLAG, &c->rows, NULL,
         "form the text as Hugging Face rows joined by two newlines", false},
        {0, "weights", CLI_STRING, &c->weights, "KIND",
         "tokens that count more for k and v: plain, sink[:factor] or attention[:factor]",
         false},
        {0, "holdout", CLI_DOUBLE, &c->holdout, "SHARE",
         "share of the windows to hold out; losses are also reported on them", false}};

    *c =
        (vptq_cli_calibrate){.windows = 128, .length = 2048, .weights = "sink", .holdout = NAN};
    memcpy(options, list, sizeof list);
}

vptq_status vptq_cli_calibrate_take(const vptq_cli_calibrate *c, uint64_t seed,
                                    vptq_calibrate_options *o, double *factor, vptq_err *err)
{
    *o = (vptq_calibrate_options){.corpus = {.texts = c->texts.items,
                                             .text_count = c->texts.count,
                                             .tokens = c->tokens.items,
                                             .token_count = c->tokens.count,
                                             .rows = c->rows},
                                  .windows = c->windows,
                                  .length = c->length,
                                  .seed = seed,
                                  .holdout = isnan(c->holdout) ? 0 : c->holdout,
                                  .checkpoint_seconds = 60};
    if (c->windows < 1 || c->length < 2)
        return vptq_fail(
            err, VPTQ_E_ARG,
            "-n/--windows and -l/--length: expected at least 1 window of 2 tokens");
    return vptq_token_weights_parse(c->weights, &o->weights, factor, err);
}
