/* Appends messages to the file of --log-file or --log-dir. */
#include "cmd/cli/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static FILE *open_file(const char *path)
{
    const int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "a");
    const int reason = errno;
    if (!file && fd >= 0)
        close(fd);
    errno = reason;
    return file;
}

static const char *reason_of(int error)
{
    return error == ELOOP ? "it is a link" : strerror(error);
}

vptq_status vptq_cli_log_open(const char *path, bool late, vptq_cli_log **log, vptq_err *err)
{
    *log = NULL;
    if (!path)
        return VPTQ_OK;
    const vptq_status st = vptq_make_parents(path, err);
    if (st)
        return st;
    FILE *file = late ? NULL : open_file(path);
    if (!file && !late)
        return vptq_fail(err, VPTQ_E_IO, "cannot open the log file '%s': %s", path,
                         reason_of(errno));
    *log = malloc(sizeof **log);
    char *copy = strdup(path);
    if (!*log || !copy) {
        free(*log);
        free(copy);
        *log = NULL;
        if (file)
            fclose(file);
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    }
    **log = (vptq_cli_log){.file = file, .path = copy};
    return VPTQ_OK;
}

void vptq_cli_log_line(vptq_cli_log *log, const char *text)
{
    char stamp[32] = "";
    struct tm utc;
    const time_t now = time(NULL);
    if (!log || log->error)
        return;
    if (!log->file && !(log->file = open_file(log->path))) {
        log->error = errno;
        return;
    }
    if (gmtime_r(&now, &utc))
        strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", &utc);
    if (fprintf(log->file, "%s %s\n", stamp, text) < 0 || fflush(log->file))
        log->error = errno;
}

void vptq_cli_log_close(vptq_cli_log *log, const char *tool, bool quiet)
{
    if (!log)
        return;
    if (log->file && fclose(log->file) && !log->error)
        log->error = errno;
    if (log->error && !quiet)
        fprintf(stderr, "%s: warning: the log file '%s' is incomplete: %s\n", tool, log->path,
                reason_of(log->error));
    free(log->path);
    free(log);
}
