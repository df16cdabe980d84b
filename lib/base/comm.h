/* Internal: the processes that share the work of one run, called ranks as in MPI.  A context
 * without a vptq_comm has one rank, and every function here then does nothing or the obvious.
 *
 * Nothing depends on the number of ranks: units of work are independent, sums of doubles are
 * added in the order of ranks, and no reduction of a library is used.  All ranks run the same
 * program over the same options and call the collective functions in the same order:
 *
 *     st = vptq_comm_same(ctx, "the model", fingerprint, err);
 *     while (!st && !(st = vptq_comm_next(ctx, count, &unit, err)) && unit < count)
 *         st = do_unit(unit, err);
 *     st = vptq_comm_agree(ctx, st, err);
 *
 * Between two calls of vptq_comm_agree a rank may fail at any point, if it then goes straight
 * to the next agreement: the others get a message to stop, and their waits and
 * vptq_check_cancel return VPTQ_E_CANCELLED.  Rank 0 hands out units while it works itself,
 * whenever it calls vptq_check_cancel.  Only the thread that opened the comm communicates. */
#ifndef VPTQ_BASE_COMM_H
#define VPTQ_BASE_COMM_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/ctx.h"

/* Called again and again while a transport waits; a failure ends the wait. */
typedef vptq_status (*vptq_wait_fn)(void *arg, vptq_err *err);

/* The carrier of messages.  A tag is a small number; messages of one tag between two ranks keep
 * their order. */
typedef struct vptq_transport {
    /* Sends `data` to rank `to` and receives `got` from rank `from`, sizes in bytes, at the
     * same time; -1 = neither.  What arrives has exactly that size. */
    vptq_status (*exchange)(void *state, int tag, int to, const void *data, size_t size,
                            int from, void *got, size_t got_size, vptq_wait_fn wait, void *arg,
                            vptq_err *err);
    /* *from = a rank of which a message with the tag has arrived, or -1. */
    vptq_status (*probe)(void *state, int tag, int *from, vptq_err *err);
    void (*close)(void *state);
} vptq_transport;

/* Handles a message that another rank posted to rank 0. */
typedef vptq_status (*vptq_take_fn)(void *arg, const void *data, size_t size, vptq_err *err);

typedef struct vptq_comm {
    int rank, size;
    int local_rank, local_size; /* among the ranks on this machine */
    const vptq_transport *transport;
    void *state;       /* of the transport */
    pthread_t owner;   /* the thread that opened it */
    uint64_t epoch;    /* agreements so far */
    uint64_t stopped;  /* 1 + the last epoch in which another rank failed or was interrupted */
    bool over;         /* an agreement failed: nothing is sent any more */
    bool alone;        /* vptq_comm_alone */
    int *threads;      /* of the context, which vptq_comm_share_threads changes; or NULL */
    int own_threads;   /* before that; 0 = as they were */
    uint64_t next;     /* rank 0: the unit to hand out next */
    vptq_take_fn take; /* rank 0: for posted messages */
    void *take_arg;
    vptq_err untaken; /* rank 0: why a posted message could not be taken; code 0 = none */
} vptq_comm;

/* Whether this build has MPI. */
bool vptq_comm_has_mpi(void);

/* Joins the other processes that a launcher such as mpirun started; size 1 without one.
 * VPTQ_E_UNSUPPORTED if it started several and this build has no MPI. */
vptq_status vptq_comm_open(vptq_comm *c, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_comm_close(vptq_comm *c); /* accepts a zeroed struct */

int vptq_comm_rank(const vptq_ctx *ctx);
int vptq_comm_size(const vptq_ctx *ctx);
/* The rank among those on this machine, which share its GPUs. */
int vptq_comm_local_rank(const vptq_ctx *ctx);
/* Begins or ends work of this rank on its own: for an operation that could share its work, but
 * is itself a unit.  Rank and size are 0 and 1, so that nothing below communicates,
 * while vptq_check_cancel still answers other ranks and sees that they stop. */
void vptq_comm_alone(const vptq_ctx *ctx, bool alone);

/* Before ranks take `units` units: if these are fewer than the ranks of a machine, those that
 * get none wait, and the others use their threads, too, as far as the processors reach that the
 * launcher has bound them to.  0: each has its own again. */
void vptq_comm_share_threads(const vptq_ctx *ctx, uint64_t units);

/* Of several ranks: *unit = the next of `count` units that none has taken since the last
 * agreement, or `count`: all are taken. */
vptq_status vptq_comm_next(const vptq_ctx *ctx, uint64_t count, uint64_t *unit,
                           vptq_err *err) VPTQ_MUST_CHECK;
/* Rank 0 of several: units handed out since the last agreement, at most `count`, for a progress
 * line. */
uint64_t vptq_comm_given(const vptq_ctx *ctx, uint64_t count);

/* Waits for all ranks.  Returns on all VPTQ_OK if `st` is VPTQ_OK on all, else the failure of
 * the lowest rank that has one other than VPTQ_E_CANCELLED, its sentence naming the rank.  The
 * run is over then: later agreements return `st` at once, and everything else VPTQ_E_CANCELLED.
 */
vptq_status vptq_comm_agree(const vptq_ctx *ctx, vptq_status st, vptq_err *err) VPTQ_MUST_CHECK;
/* Agrees whether `text` is the same on all ranks; VPTQ_E_MISMATCH naming `what` ("the model")
 * and both texts, of long ones from the word on in which they differ. */
vptq_status vptq_comm_same(const vptq_ctx *ctx, const char *what, const char *text,
                           vptq_err *err) VPTQ_MUST_CHECK;

/* Agrees that all ranks see the directory of rank 0, which exists; else VPTQ_E_IO, with
 * `advice` at the end of its sentence. */
vptq_status vptq_comm_see(const vptq_ctx *ctx, const char *dir, const char *advice,
                          vptq_err *err) VPTQ_MUST_CHECK;

/* Copies data from rank `root` to all. */
vptq_status vptq_comm_broadcast(const vptq_ctx *ctx, int root, void *data, size_t size,
                                vptq_err *err) VPTQ_MUST_CHECK;
/* total [n] += the parts [n] of the ranks 0 to parts - 1, in this order, on all ranks; the
 * totals are the same on all before.  Other ranks pass NULL as their part. */
vptq_status vptq_comm_sum(const vptq_ctx *ctx, int parts, const double *part, double *total,
                          size_t n, vptq_err *err) VPTQ_MUST_CHECK;

/* Gives all ranks all of values [n].  Each value is of one rank; the others have 0 there, or -0
 * if the value may be -0, so that the sums of which this is made are exact. */
vptq_status vptq_comm_gather(const vptq_ctx *ctx, double *values, size_t n,
                             vptq_err *err) VPTQ_MUST_CHECK;

/* Rank 0 of several: handles messages posted from now on when it polls; NULL: they fail. */
void vptq_comm_take(const vptq_ctx *ctx, vptq_take_fn take, void *arg);
/* Other ranks: hands a message to rank 0.  It is taken before the next agreement ends, which
 * fails if it could not be. */
vptq_status vptq_comm_post(const vptq_ctx *ctx, const void *data, size_t size,
                           vptq_err *err) VPTQ_MUST_CHECK;

/* For vptq_check_cancel: answers what has arrived.  VPTQ_E_CANCELLED if another rank stopped.
 */
vptq_status vptq_comm_poll(vptq_comm *c, vptq_err *err) VPTQ_MUST_CHECK;

#endif
