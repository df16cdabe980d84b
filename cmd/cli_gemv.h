/* The command `vptq-eval gemv`. */
#ifndef CMD_CLI_GEMV_H
#define CMD_CLI_GEMV_H

/* As vptq_cli_command.run. */
int vptq_cli_gemv(int argc, char **argv);

#endif
