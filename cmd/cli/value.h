/* Internal to cmd: converts texts of the command line to values.  Each function returns false
 * unless the whole text is a value. */
#ifndef VPTQ_CMD_CLI_VALUE_H
#define VPTQ_CMD_CLI_VALUE_H

#include "cmd/cli/cli.h"

/* Decimal digits only, without sign, space or base prefix; at most `max`. */
bool vptq_cli_parse_u64(const char *text, uint64_t max, uint64_t *out);
/* Bytes: a whole number, or a number with K, M, G, T (or KiB, KB ...; all powers of 1024) and
 * up to nine digits after its point, rounded down. */
bool vptq_cli_parse_size(const char *text, uint64_t *out);
bool vptq_cli_parse_double(const char *text, double *out); /* finite */
bool vptq_cli_parse_range(const char *text, vptq_cli_range *out);
/* Index of `text` in "a|b|c". */
bool vptq_cli_parse_choice(const char *text, const char *choices, int *out);
/* Copies choice n of "a|b|c" to text; empty if n is too large. */
void vptq_cli_choice_name(char *text, size_t size, const char *choices, int n);
/* The least number of letters to insert, remove, replace or swap with the next one that turns
 * the first n letters of `word`, at most 63, into `name`. */
size_t vptq_cli_distance(const char *word, size_t n, const char *name);

#endif
