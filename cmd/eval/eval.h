/* The commands of vptq-eval, one file each, and the device and models that they share. */
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

/* Opens the device of --backend and the model `path`.  `base` is the path of the original of a
 * work directory, or NULL.  Close it even after a failure. */
vptq_status vptq_cli_eval_open(vptq_cli_eval *s, const vptq_cli *cli, const char *path,
                               const char *tokenizer, const char *base, bool need_tokenizer,
                               vptq_err *err) VPTQ_MUST_CHECK;
void vptq_cli_eval_close(vptq_cli_eval *s);

#endif
