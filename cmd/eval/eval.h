/* Internal: the commands of vptq-eval, one file each. */
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

#endif
