/* Internal: the run context: memory, threads, logging and cancelling for every longer
 * operation. The caller owns everything in it and keeps it alive during the call. */
#ifndef VPTQ_BASE_CTX_H
#define VPTQ_BASE_CTX_H

#include "lib/base/mem.h"
#include "lib/base/status.h"

struct vptq_comm;       /* lib/base/comm.h */
struct vptq_text_input; /* formats/text_file.h */

struct vptq_ctx {
    vptq_mem *mem;                       /* NULL: plain allocation */
    int threads;                         /* >= 1; results never depend on it */
    vptq_log_fn log;                     /* NULL: silent */
    vptq_progress_fn progress;           /* NULL: silent */
    void *user;                          /* passed to both */
    const volatile sig_atomic_t *cancel; /* as vptq_ctx_options.cancel */
    struct vptq_text_input **inputs;     /* list of what pipes gave; NULL: is not kept */
    struct vptq_comm *comm;              /* the ranks of this run; NULL: one process */
};

void vptq_log(const vptq_ctx *ctx, vptq_log_level level, const char *fmt, ...)
    VPTQ_PRINTF(3, 4);
/* As vptq_progress_info; units of equal cost.  `unit` by vptq_plural of `total`. */
void vptq_progress(const vptq_ctx *ctx, const char *stage, const char *unit, uint64_t done,
                   uint64_t total, const char *detail);
void vptq_progress_share(const vptq_ctx *ctx, const char *stage, const char *unit,
                         uint64_t done, uint64_t total, double share, const char *detail);

/* VPTQ_E_CANCELLED ("interrupted") when the caller's flag is raised or another rank stopped,
 * else VPTQ_OK.  Rank 0 also answers the others here. */
vptq_status vptq_check_cancel(const vptq_ctx *ctx, vptq_err *err) VPTQ_MUST_CHECK;

/* Monotonic seconds, for reports only; never enters a result. */
double vptq_seconds(void);

#endif
