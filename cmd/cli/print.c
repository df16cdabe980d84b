/* Writes results to stdout or a file. */
#include <stdio.h>
#include <string.h>

#include "cmd/cli/internal.h"

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
