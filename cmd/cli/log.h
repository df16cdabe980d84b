/* Internal to cmd/cli: the file of --log-file or --log-dir, to which messages and progress are
 * appended, one line each: "2026-01-31T23:59:59Z text". */
#ifndef VPTQ_CMD_CLI_LOG_H
#define VPTQ_CMD_CLI_LOG_H

#include <stdbool.h>
#include <stdio.h>

#include "lib/vptq.h"

typedef struct vptq_cli_log {
    FILE *file; /* NULL before the first line of a late one */
    char *path;
    int error; /* errno of the first line that could not be written: none follows it */
} vptq_cli_log;

/* Opens the file for appending, and creates its folder; *log stays NULL without a path. Refuses
 * a link, as for other files that are changed in place.  If late, only the first line opens the
 * file; vptq_cli_log_close warns if that fails. */
vptq_status vptq_cli_log_open(const char *path, bool late, vptq_cli_log **log, vptq_err *err);
/* Appends a line, which has no control characters, if there is a log. */
void vptq_cli_log_line(vptq_cli_log *log, const char *text);
/* Closes and frees it, if there is one.  Unless quiet, warns of lines that could not be
 * written.
 */
void vptq_cli_log_close(vptq_cli_log *log, const char *tool, bool quiet);

#endif
