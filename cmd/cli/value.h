/* Texts of the command line to values: the whole text or nothing.  Internal to cmd/cli*.c. */
#ifndef VPTQ_CMD_CLI_VALUE_H
#define VPTQ_CMD_CLI_VALUE_H

#include "cmd/cli/cli.h"

/* Decimal digits only: no sign, space or base prefix; false when over `max`. */
bool vptq_cli_parse_u64(const char *text, uint64_t max, uint64_t *out);
/* A whole number of bytes, or with K, M, G, T (also KiB, KB ...: all powers of 1024). */
bool vptq_cli_parse_size(const char *text, uint64_t *out);
bool vptq_cli_parse_double(const char *text, double *out); /* finite */
bool vptq_cli_parse_range(const char *text, vptq_cli_range *out);
/* Position of `text` in "a|b|c". */
bool vptq_cli_parse_choice(const char *text, const char *choices, int *out);
/* The n-th of "a|b|c" into text (empty when there is none). */
void vptq_cli_choice_name(char *text, size_t size, const char *choices, int n);

#endif
