/* Internal: the commands of vptq-eval, one file each. */
#ifndef VPTQ_CMD_EVAL_EVAL_H
#define VPTQ_CMD_EVAL_EVAL_H

#include "cmd/cli/cli.h"

/* As vptq_cli_command.run. */
int vptq_cli_ppl(vptq_cli *cli, int argc, char **argv);
int vptq_cli_kld(vptq_cli *cli, int argc, char **argv);
int vptq_cli_tasks(vptq_cli *cli, int argc, char **argv);
int vptq_cli_error(vptq_cli *cli, int argc, char **argv);
int vptq_cli_generate(vptq_cli *cli, int argc, char **argv);
int vptq_cli_gemv(vptq_cli *cli, int argc, char **argv);
int vptq_cli_serve(vptq_cli *cli, int argc, char **argv);
int vptq_cli_ablate(vptq_cli *cli, int argc, char **argv);
int vptq_cli_compare(vptq_cli *cli, int argc, char **argv);

/* Takes "NAME=FILE": copies the name into `name` [size]; the path stays in `word`. */
vptq_status vptq_cli_take_task(const char *word, char *name, size_t size, vptq_task *task,
                               vptq_err *err);

#endif
