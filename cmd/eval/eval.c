/* Opens and closes the device and the models of a command. */
#include "cmd/eval/eval.h"

vptq_status vptq_cli_eval_open(vptq_cli_eval *s, const vptq_cli *cli, const char *path,
                               const char *tokenizer, const char *base, bool need_tokenizer,
                               vptq_err *err)
{
    vptq_checkpoint_options opt = {.tokenizer = tokenizer, .base = base};
    VPTQ_CHECK(vptq_device_open(cli->ctx, cli->common.backend, &s->dev, err));
    s->has_dev = true;
    VPTQ_CHECK(vptq_model_open(cli->ctx, path, &opt, need_tokenizer, &s->model, err));
    s->has_model = true;
    return VPTQ_OK;
}

void vptq_cli_eval_close(vptq_cli_eval *s)
{
    if (s->has_base)
        vptq_model_release(&s->base);
    if (s->has_model)
        vptq_model_release(&s->model);
    if (s->has_dev)
        vptq_device_close(&s->dev);
}
