/* Converts the calibration options. */
#include "cmd/cli/calibrate.h"

void vptq_cli_default_text(vptq_corpus_options *corpus)
{
    static const char *const builtin[] = {VPTQ_BUILTIN_TEXT};
    if (corpus->text_count + corpus->token_count)
        return;
    corpus->texts = builtin;
    corpus->text_count = 1;
}

int vptq_cli_calibrate_unused(const vptq_cli *cli, bool text)
{
    static const char *const names[] = {"weights", "windows", "length", "rows", "holdout"};
    const size_t count = text ? 1 : sizeof names / sizeof *names;
    for (size_t i = 0; i < count; i++)
        if (vptq_cli_given(cli, names[i]))
            return vptq_cli_usage_error(
                cli, "--%s has no effect with -H: it belongs to a calibration text", names[i]);
    return CLI_OK;
}

vptq_status vptq_cli_calibrate_take(const vptq_cli *cli, const vptq_cli_calibrate *c,
                                    vptq_calibrate_options *o, double *factor, vptq_err *err)
{
    *o = (vptq_calibrate_options){.corpus =
                                      vptq_cli_corpus(&c->texts, &c->tokens, c->rows, c->lossy),
                                  .windows = c->windows,
                                  .length = vptq_cli_or_zero(cli, "length", c->length),
                                  .seed = cli->common.seed,
                                  .holdout = isnan(c->holdout) ? 0 : c->holdout,
                                  .checkpoint_seconds = 60,
                                  .outputs = c->outputs};
    vptq_cli_default_text(&o->corpus);
    if (c->windows < 1 || c->length < 2)
        return vptq_fail(
            err, VPTQ_E_ARG,
            "-n/--windows and -l/--length: expected at least 1 window of 2 tokens");
    return vptq_token_weights_parse(c->weights, &o->weights, factor, err);
}
