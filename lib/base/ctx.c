/* Logging, progress, cancelling and the clock (ctx.h). */
#include "lib/base/ctx.h"

#include <stdarg.h>
#include <time.h>

#include "lib/base/comm.h"
#include "lib/base/text.h"

void vptq_log(const vptq_ctx *ctx, vptq_log_level level, const char *fmt, ...)
{
    if (!ctx || !ctx->log)
        return;
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vptq_text_vformat(text, sizeof text, fmt, ap);
    va_end(ap);
    ctx->log(ctx->user, level, text);
}

void vptq_progress(const vptq_ctx *ctx, const char *stage, const char *unit, uint64_t done,
                   uint64_t total, const char *detail)
{
    const double share = total ? (double)done / (double)total : 0;
    vptq_progress_share(ctx, stage, unit, done, total, share, detail);
}

void vptq_progress_share(const vptq_ctx *ctx, const char *stage, const char *unit,
                         uint64_t done, uint64_t total, double share, const char *detail)
{
    char shown[512];
    if (!ctx || !ctx->progress)
        return;
    if (detail)
        vptq_text_printable(shown, sizeof shown, detail);
    const vptq_progress_info info = {stage, unit, done, total, share, detail ? shown : NULL};
    ctx->progress(ctx->user, &info);
}

vptq_status vptq_check_cancel(const vptq_ctx *ctx, vptq_err *err)
{
    if (ctx && ctx->cancel && *ctx->cancel)
        return vptq_fail(err, VPTQ_E_CANCELLED, "interrupted");
    return ctx && ctx->comm ? vptq_comm_poll(ctx->comm, err) : VPTQ_OK;
}

double vptq_seconds(void)
{
    struct timespec t;
    if (clock_gettime(CLOCK_MONOTONIC, &t))
        return 0;
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
