/* Formats sizes and times for people, and writes results to stdout or a file. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cmd/cli/internal.h"

void vptq_cli_human_bytes(char text[32], uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double x = (double)bytes;
    size_t u = 0;
    while (x >= 1024 && u + 1 < sizeof units / sizeof *units) {
        x /= 1024;
        u++;
    }
    snprintf(text, 32, u ? "%.1f %s" : "%.0f %s", x, units[u]);
}

void vptq_cli_human_seconds(char text[32], double seconds)
{
    if (!(seconds >= 0) || seconds > 1e9) {
        snprintf(text, 32, "?");
        return;
    }
    if (seconds < 59.95) {
        snprintf(text, 32, "%.1f s", seconds);
        return;
    }
    uint64_t s = (uint64_t)(seconds + 0.5);
    if (s < 3600)
        snprintf(text, 32, "%" PRIu64 " min %" PRIu64 " s", s / 60, s % 60);
    else
        snprintf(text, 32, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s % 3600 / 60);
}

vptq_status vptq_cli_write_stdout(void *arg, const char *text, size_t length, vptq_err *err)
{
    (void)err;
    vptq_cli_progress_clear(arg);
    fwrite(text, 1, length, stdout); /* vptq_cli_finish reports a failure */
    fflush(stdout);                  /* a report may take long */
    return VPTQ_OK;
}

static vptq_status write_file(void *arg, const char *text, size_t length, vptq_err *err)
{
    return vptq_writer_write(arg, text, length, err);
}

vptq_output vptq_cli_output(const vptq_cli *cli, vptq_writer *file)
{
    return file ? (vptq_output){cli->out.format, write_file, file} : cli->out;
}

vptq_status vptq_cli_open_output(const vptq_cli *cli, const char *path, vptq_writer **file,
                                 vptq_err *err)
{
    *file = NULL;
    return path && strcmp(path, "-") ? vptq_writer_open(path, cli->common.force, file, err)
                                     : VPTQ_OK;
}

vptq_status vptq_cli_check_output(const vptq_cli *cli, const char *path, vptq_err *err)
{
    if (!path || !strcmp(path, "-") || cli->common.force || !vptq_path_exists(path))
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_EXISTS, "'%s' already exists", path);
}

vptq_status vptq_cli_deliver(const vptq_cli *cli, const char *path, const vptq_string *text,
                             vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_writer *w = NULL;
    if (!path || !strcmp(path, "-")) {
        fwrite(text->data, 1, text->length, stdout); /* vptq_cli_finish reports a failure */
        return VPTQ_OK;
    }
    VPTQ_TRY(vptq_writer_open(path, cli->common.force, &w, err));
    VPTQ_TRY(vptq_writer_write(w, text->data, text->length, err));
    VPTQ_TRY(vptq_writer_commit(w, err));
out:
    vptq_writer_close(w);
    return st;
}

const char *vptq_cli_path_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}
