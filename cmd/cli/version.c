/* Version text: what was built from which sources, and what it runs on.  The Makefile defines
 * VPTQ_COMMIT and VPTQ_FEATURES for this file only, so that a new commit compiles no other. */
#include <stdio.h>

#include "cmd/cli/internal.h"

/* Log callback: prints the description of the chosen backend. */
static void print_choice(void *user, vptq_log_level level, const char *text)
{
    (void)user;
    (void)level;
    printf("%s\n", text);
}

static void print_device(const vptq_cli *cli)
{
    vptq_err err = {VPTQ_OK, ""};
    vptq_ctx *ctx = NULL;
    vptq_backend_info info;
    const vptq_ctx_options options = {.backend = cli->common.backend, .log = print_choice};
    vptq_status st = vptq_ctx_open(&options, &ctx, &err);
    if (!st)
        st = vptq_ctx_backend(ctx, &info, &err);
    if (st)
        vptq_err_context(&err, "backend %s", cli->common.backend);
    if (st)
        printf("%s\n", err.text);
    else if (*info.libraries)
        printf("libraries: %s\n", info.libraries);
    vptq_ctx_close(ctx);
}

const char *vptq_cli_commit(void)
{
    return VPTQ_COMMIT;
}

void vptq_cli_print_version(const vptq_cli *cli)
{
    printf("%s %s\ncommit: %s\nfeatures: %s\n", cli->tool, VPTQ_VERSION, VPTQ_COMMIT,
           VPTQ_FEATURES);
    if (!cli->common.verbose)
        return;
#if defined(__clang__)
    printf("compiler: clang %s\n", __clang_version__);
#elif defined(__GNUC__)
    printf("compiler: gcc %s\n", __VERSION__);
#endif
    print_device(cli);
}
