/* The commands of vptq-eval, a file each, and what they share: the device and the models. */
#ifndef VPTQ_CMD_EVAL_EVAL_H
#define VPTQ_CMD_EVAL_EVAL_H

#include "cmd/cli/cli.h"

/* As vptq_cli_command.run. */
int vptq_cli_ppl(int argc, char **argv);
int vptq_cli_kld(int argc, char **argv);
int vptq_cli_tasks(int argc, char **argv);
int vptq_cli_error(int argc, char **argv);
int vptq_cli_generate(int argc, char **argv);
int vptq_cli_gemv(int argc, char **argv);
int vptq_cli_serve(int argc, char **argv);
int vptq_cli_ablate(int argc, char **argv);
int vptq_cli_compare(int argc, char **argv);

/* Starts as {.has_dev = false}. */
typedef struct vptq_cli_eval {
    vptq_device dev;
    vptq_model model, base;
    bool has_dev, has_model, has_base;
} vptq_cli_eval;

/* Opens the device that the options name and the model `path`; `base`: where the original of a
 * work directory is, or NULL.  Release in any case. */
vptq_status vptq_cli_eval_open(vptq_cli_eval *s, const vptq_cli *cli, const char *path,
                               const char *tokenizer, const char *base, bool need_tokenizer,
                               vptq_err *err) VPTQ_MUST_CHECK;
void vptq_cli_eval_close(vptq_cli_eval *s);

#endif
