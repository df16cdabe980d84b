/* The queue of units, agreement and ordered sums of several ranks (comm.h). */
#include "lib/base/comm.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/parallel.h"

#ifdef VPTQ_MPI
#include "lib/base/comm_mpi.h"
#endif

enum {
    TAG_ASK = 1, /* for a unit; no content */
    TAG_UNIT,    /* uint64_t */
    TAG_STOP,    /* uint64_t: epoch */
    TAG_VERDICT, /* verdict, to rank 0 and back */
    TAG_TEXT,    /* uint64_t: size, then the text */
    TAG_POST,    /* uint64_t: size, then the content */
    TAG_DATA
};

enum { SUM_DOUBLES = 1 << 17 /* of a segment, at a time */ };

/* The result of a rank, or of all together. */
typedef struct verdict {
    int32_t status;
    char text[sizeof((vptq_err *)0)->text];
} verdict;

/* ---- opening ---- */

#ifndef VPTQ_MPI
/* The number of processes that a launcher says it started. */
static long launched(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *text = getenv(names[i]);
        if (text && *text)
            return strtol(text, NULL, 10);
    }
    /* PMIx has no variable for it; Slurm has one for the processes of a step */
    const char *text = getenv("PMIX_RANK") ? getenv("SLURM_STEP_NUM_TASKS") : NULL;
    return text ? strtol(text, NULL, 10) : 1;
}
#endif

bool vptq_comm_has_mpi(void)
{
#ifdef VPTQ_MPI
    return true;
#else
    return false;
#endif
}

vptq_status vptq_comm_open(vptq_comm *c, vptq_err *err)
{
    *c = (vptq_comm){.size = 1, .local_size = 1, .owner = pthread_self()};
#ifdef VPTQ_MPI
    return vptq_comm_mpi_open(c, err);
#else
    if (launched() > 1)
        return vptq_fail(
            err, VPTQ_E_UNSUPPORTED,
            "a launcher started %ld processes, but this build has no MPI (build it "
            "with 'make MPI=1')",
            launched());
    return VPTQ_OK;
#endif
}

void vptq_comm_close(vptq_comm *c)
{
    if (c->transport)
        c->transport->close(c->state);
    *c = (vptq_comm){0};
}

int vptq_comm_rank(const vptq_ctx *ctx)
{
    return ctx && ctx->comm && !ctx->comm->alone ? ctx->comm->rank : 0;
}

int vptq_comm_size(const vptq_ctx *ctx)
{
    return ctx && ctx->comm && !ctx->comm->alone ? ctx->comm->size : 1;
}

void vptq_comm_alone(const vptq_ctx *ctx, bool alone)
{
    if (ctx->comm)
        ctx->comm->alone = alone;
}

int vptq_comm_local_rank(const vptq_ctx *ctx)
{
    return ctx && ctx->comm ? ctx->comm->local_rank : 0;
}

void vptq_comm_share_threads(const vptq_ctx *ctx, uint64_t units)
{
    vptq_comm *c = ctx->comm;
    if (!c || !c->threads)
        return;
    if (c->own_threads)
        *c->threads = c->own_threads;
    c->own_threads = 0;
    if (!units || units >= (uint64_t)c->local_size)
        return;
    const uint64_t all = (uint64_t)*c->threads * (uint64_t)c->local_size;
    const int threads = (int)(all / units), usable = vptq_cpu_count();
    c->own_threads = *c->threads;
    if (*c->threads < usable)
        *c->threads = threads < usable ? threads : usable;
}

static bool is_alone(const vptq_ctx *ctx)
{
    return vptq_comm_size(ctx) == 1;
}

/* ---- waiting ---- */

typedef struct waiter {
    const vptq_ctx *ctx;
    vptq_err *trouble; /* NULL: a failure ends the wait; else the wait goes on, to agree on the
                          first failure, which is kept there */
    int calls;
} waiter;

/* Gives the processor to others, who may be the ones that are waited for. */
static void rest(int calls)
{
    enum { YIELDS = 200, SHORT = 2000, SHORT_NS = 50000, LONG_NS = 1000000 };
    if (calls < YIELDS) {
        (void)sched_yield();
        return;
    }
    const struct timespec t = {.tv_nsec = calls < SHORT ? SHORT_NS : LONG_NS};
    (void)nanosleep(&t, NULL);
}

static vptq_status keep_waiting(void *arg, vptq_err *err)
{
    waiter *w = arg;
    vptq_err why = {0};
    rest(w->calls < 1 << 20 ? w->calls++ : w->calls);
    if (!w->trouble)
        return vptq_check_cancel(w->ctx, err);
    const vptq_status st = vptq_comm_poll(w->ctx->comm, &why);
    if (st && st != VPTQ_E_CANCELLED && !w->trouble->code)
        *w->trouble = why;
    return VPTQ_OK;
}

static vptq_status exchange(const vptq_ctx *ctx, vptq_err *trouble, int tag, int to,
                            const void *data, size_t size, int from, void *got, size_t got_size,
                            vptq_err *err)
{
    waiter w = {.ctx = ctx, .trouble = trouble};
    vptq_comm *c = ctx->comm;
    if (c->over)
        return vptq_fail(err, VPTQ_E_CANCELLED, "interrupted");
    return c->transport->exchange(c->state, tag, to, data, size, from, got, got_size,
                                  keep_waiting, &w, err);
}

static vptq_status send_to(const vptq_ctx *ctx, vptq_err *trouble, int tag, int to,
                           const void *data, size_t size, vptq_err *err)
{
    return exchange(ctx, trouble, tag, to, data, size, -1, NULL, 0, err);
}

static vptq_status receive(const vptq_ctx *ctx, vptq_err *trouble, int tag, int from,
                           void *data, size_t size, vptq_err *err)
{
    return exchange(ctx, trouble, tag, -1, NULL, 0, from, data, size, err);
}

/* For messages so short that they leave at once. */
static vptq_status no_wait(void *arg, vptq_err *err)
{
    int *calls = arg;
    (void)err;
    rest((*calls)++);
    return VPTQ_OK;
}

static vptq_status exchange_short(vptq_comm *c, int tag, int to, const void *data, size_t size,
                                  int from, void *got, size_t got_size, vptq_err *err)
{
    int calls = 0;
    return c->transport->exchange(c->state, tag, to, data, size, from, got, got_size, no_wait,
                                  &calls, err);
}

/* ---- what arrives at any time ---- */

static vptq_status take_stop(vptq_comm *c, int from, vptq_err *err)
{
    uint64_t epoch;
    VPTQ_CHECK(exchange_short(c, TAG_STOP, -1, NULL, 0, from, &epoch, sizeof epoch, err));
    /* of this epoch, or of the next if it comes before the verdict of this one */
    c->stopped = epoch + 1 > c->stopped ? epoch + 1 : c->stopped;
    return VPTQ_OK;
}

static vptq_status answer(vptq_comm *c, int from, vptq_err *err)
{
    const uint64_t unit = c->next++;
    VPTQ_CHECK(exchange_short(c, TAG_ASK, -1, NULL, 0, from, NULL, 0, err));
    return exchange_short(c, TAG_UNIT, from, &unit, sizeof unit, -1, NULL, 0, err);
}

static vptq_status take_post(vptq_comm *c, int from, vptq_err *err)
{
    uint64_t size;
    VPTQ_CHECK(exchange_short(c, TAG_POST, -1, NULL, 0, from, &size, sizeof size, err));
    void *data = vptq_mem_alloc(NULL, 1, (size_t)size, err);
    if (!data)
        return VPTQ_E_NOMEM;
    vptq_status st = exchange_short(c, TAG_POST, -1, NULL, 0, from, data, (size_t)size, err);
    if (!st)
        st = c->take ? c->take(c->take_arg, data, (size_t)size, err)
                     : vptq_fail(err, VPTQ_E_IO, "rank %d posted a message to nobody", from);
    vptq_mem_free(NULL, data);
    return st;
}

/* Handles all messages with the tag that have arrived. */
static vptq_status take_all(vptq_comm *c, int tag,
                            vptq_status (*take)(vptq_comm *c, int from, vptq_err *err),
                            vptq_err *err)
{
    for (;;) {
        int from;
        VPTQ_CHECK(c->transport->probe(c->state, tag, &from, err));
        if (from < 0)
            return VPTQ_OK;
        VPTQ_CHECK(take(c, from, err));
    }
}

/* Takes what was posted.  A failure is not that of the work in which rank 0 looked for
 * messages, so it waits for the agreement. */
static void take_posts(vptq_comm *c)
{
    vptq_err why = {0};
    if (take_all(c, TAG_POST, take_post, &why) && !c->untaken.code)
        c->untaken = why;
}

vptq_status vptq_comm_poll(vptq_comm *c, vptq_err *err)
{
    if (c->size == 1 || !pthread_equal(pthread_self(), c->owner))
        return VPTQ_OK;
    if (c->over)
        return vptq_fail(err, VPTQ_E_CANCELLED, "interrupted");
    VPTQ_CHECK(take_all(c, TAG_STOP, take_stop, err));
    if (c->rank == 0) {
        VPTQ_CHECK(take_all(c, TAG_ASK, answer, err));
        take_posts(c);
    }
    return c->stopped > c->epoch || c->untaken.code
               ? vptq_fail(err, VPTQ_E_CANCELLED, "interrupted")
               : VPTQ_OK;
}

/* ---- the queue ---- */

vptq_status vptq_comm_next(const vptq_ctx *ctx, uint64_t count, uint64_t *unit, vptq_err *err)
{
    vptq_comm *c = ctx->comm;
    *unit = count;
    VPTQ_CHECK(vptq_check_cancel(ctx, err));
    if (c->rank == 0) {
        *unit = c->next++;
    } else {
        VPTQ_CHECK(send_to(ctx, NULL, TAG_ASK, 0, NULL, 0, err));
        VPTQ_CHECK(receive(ctx, NULL, TAG_UNIT, 0, unit, sizeof *unit, err));
    }
    *unit = *unit < count ? *unit : count;
    return VPTQ_OK;
}

uint64_t vptq_comm_given(const vptq_ctx *ctx, uint64_t count)
{
    return ctx->comm->next < count ? ctx->comm->next : count;
}

/* ---- agreement ---- */

static vptq_status stop_others(const vptq_ctx *ctx, vptq_err *err)
{
    vptq_comm *c = ctx->comm;
    for (int r = 0; r < c->size; r++)
        if (r != c->rank)
            VPTQ_CHECK(
                exchange_short(c, TAG_STOP, r, &c->epoch, sizeof c->epoch, -1, NULL, 0, err));
    return VPTQ_OK;
}

/* Whether failure b of a higher rank says more than a. */
static bool outweighs(const verdict *b, const verdict *a)
{
    return b->status &&
           (!a->status || (a->status == VPTQ_E_CANCELLED && b->status != VPTQ_E_CANCELLED));
}

/* Rank 0: the verdict of all.  Messages of a rank arrive in their order, so that all it posted
 * is here with its verdict. */
static vptq_status collect(const vptq_ctx *ctx, verdict *v, vptq_err *err)
{
    vptq_err trouble = {0};
    verdict other;
    for (int r = 1; r < ctx->comm->size; r++) {
        VPTQ_CHECK(receive(ctx, &trouble, TAG_VERDICT, r, &other, sizeof other, err));
        other.text[sizeof other.text - 1] = 0;
        if (!outweighs(&other, v))
            continue;
        v->status = other.status;
        if (other.status == VPTQ_E_CANCELLED)
            snprintf(v->text, sizeof v->text, "%s", other.text);
        else
            snprintf(v->text, sizeof v->text, "rank %d: %.1000s", r, other.text);
    }
    take_posts(ctx->comm);
    const vptq_err *const why[] = {&trouble, &ctx->comm->untaken};
    for (int i = 0; i < 2; i++) {
        other.status = (int32_t)why[i]->code;
        memcpy(other.text, why[i]->text, sizeof other.text);
        if (outweighs(&other, v))
            *v = other;
    }
    return VPTQ_OK;
}

static vptq_status judge(const vptq_ctx *ctx, verdict *v, vptq_err *err)
{
    vptq_err trouble = {0};
    if (ctx->comm->rank) {
        VPTQ_CHECK(send_to(ctx, &trouble, TAG_VERDICT, 0, v, sizeof *v, err));
        return receive(ctx, &trouble, TAG_VERDICT, 0, v, sizeof *v, err);
    }
    VPTQ_CHECK(collect(ctx, v, err));
    ctx->comm->next = 0; /* whoever has the verdict may ask for a unit of the next epoch */
    for (int r = 1; r < ctx->comm->size; r++)
        VPTQ_CHECK(send_to(ctx, &trouble, TAG_VERDICT, r, v, sizeof *v, err));
    return VPTQ_OK;
}

vptq_status vptq_comm_agree(const vptq_ctx *ctx, vptq_status st, vptq_err *err)
{
    verdict v = {.status = (int32_t)st};
    vptq_comm *c = ctx->comm;
    if (is_alone(ctx) || c->over)
        return st;
    if (st && err)
        memcpy(v.text, err->text, sizeof v.text);
    if (st)
        VPTQ_CHECK(stop_others(ctx, err));
    VPTQ_CHECK(judge(ctx, &v, err));
    c->epoch++;
    c->over = v.status;
    return v.status ? vptq_fail(err, (vptq_status)v.status, "%s", v.text) : VPTQ_OK;
}

/* The word in which a text differs from another, or all of a short one. */
static const char *show_difference(const char *text, const char *other)
{
    enum { SHORT = 200 };
    size_t at = 0;
    if (strlen(text) <= SHORT && strlen(other) <= SHORT)
        return text;
    while (text[at] && text[at] == other[at])
        at++;
    while (at && text[at - 1] != ' ')
        at--;
    return text + at;
}

/* Rank 0: compares its text with that of another, which sends the size first. */
static vptq_status compare_text(const vptq_ctx *ctx, const char *what, const char *ours, int r,
                                vptq_err *err)
{
    uint64_t size;
    VPTQ_CHECK(receive(ctx, NULL, TAG_TEXT, r, &size, sizeof size, err));
    char *theirs = vptq_mem_alloc(ctx->mem, size, 1, err);
    if (!theirs)
        return VPTQ_E_NOMEM;
    vptq_status st = receive(ctx, NULL, TAG_TEXT, r, theirs, size, err);
    if (!st && (size != strlen(ours) + 1 || memcmp(theirs, ours, size) != 0)) {
        theirs[size - 1] = 0;
        st = vptq_fail(err, VPTQ_E_MISMATCH,
                       "%s differs between the processes of this run: \"%.200s\" at rank 0, "
                       "\"%.200s\" at rank %d",
                       what, show_difference(ours, theirs), show_difference(theirs, ours), r);
    }
    vptq_mem_free(ctx->mem, theirs);
    return st;
}

static vptq_status compare_texts(const vptq_ctx *ctx, const char *what, const char *ours,
                                 vptq_err *err)
{
    for (int r = 1; r < ctx->comm->size; r++)
        VPTQ_CHECK(compare_text(ctx, what, ours, r, err));
    return VPTQ_OK;
}

static vptq_status send_text(const vptq_ctx *ctx, const char *text, vptq_err *err)
{
    const uint64_t size = strlen(text) + 1;
    VPTQ_CHECK(send_to(ctx, NULL, TAG_TEXT, 0, &size, sizeof size, err));
    return send_to(ctx, NULL, TAG_TEXT, 0, text, size, err);
}

vptq_status vptq_comm_same(const vptq_ctx *ctx, const char *what, const char *text,
                           vptq_err *err)
{
    if (is_alone(ctx))
        return VPTQ_OK;
    const vptq_status st =
        ctx->comm->rank ? send_text(ctx, text, err) : compare_texts(ctx, what, text, err);
    return vptq_comm_agree(ctx, st, err);
}

/* ---- data ---- */

void vptq_comm_take(const vptq_ctx *ctx, vptq_take_fn take, void *arg)
{
    ctx->comm->take = take;
    ctx->comm->take_arg = arg;
}

vptq_status vptq_comm_post(const vptq_ctx *ctx, const void *data, size_t size, vptq_err *err)
{
    const uint64_t bytes = size;
    vptq_err trouble = {0};
    VPTQ_CHECK(vptq_check_cancel(ctx, err));
    /* rank 0 waits for the content once it has the size: nothing may interrupt these two */
    VPTQ_CHECK(send_to(ctx, &trouble, TAG_POST, 0, &bytes, sizeof bytes, err));
    return send_to(ctx, &trouble, TAG_POST, 0, data, size, err);
}

vptq_status vptq_comm_broadcast(const vptq_ctx *ctx, int root, void *data, size_t size,
                                vptq_err *err)
{
    if (is_alone(ctx))
        return VPTQ_OK;
    if (ctx->comm->rank != root)
        return receive(ctx, NULL, TAG_DATA, root, data, size, err);
    for (int r = 0; r < ctx->comm->size; r++)
        if (r != root)
            VPTQ_CHECK(send_to(ctx, NULL, TAG_DATA, r, data, size, err));
    return VPTQ_OK;
}

/* The segment [*begin, *end) of [0, n) that a rank adds up. */
static void segment(int size, size_t n, int rank, size_t *begin, size_t *end)
{
    *begin = n / (size_t)size * (size_t)rank;
    *end = rank + 1 == size ? n : *begin + n / (size_t)size;
}

/* Every rank adds its segment of [0, n), with the parts of others in `parts` [ranks, longest
 * segment]. */
static vptq_status add_segments(const vptq_ctx *ctx, int count, const double *part,
                                double *total, size_t n, double *parts, size_t stride,
                                vptq_err *err)
{
    const int size = ctx->comm->size, me = ctx->comm->rank;
    size_t mine, mine_end, begin, end;
    segment(size, n, me, &mine, &mine_end);
    for (int k = 1; k < size; k++) {
        const int to = (me + k) % size, from = (me - k + size) % size;
        segment(size, n, to, &begin, &end);
        VPTQ_CHECK(exchange(ctx, NULL, TAG_DATA, part ? to : -1, part ? part + begin : NULL,
                            (end - begin) * sizeof *part, from < count ? from : -1,
                            parts + (size_t)from * stride, (mine_end - mine) * sizeof *part,
                            err));
    }
    for (int r = 0; r < count; r++) {
        const double *p = r == me ? part + mine : parts + (size_t)r * stride;
        for (size_t i = mine; i < mine_end; i++)
            total[i] += p[i - mine];
    }
    return VPTQ_OK;
}

/* Gives every rank the segments of the others. */
static vptq_status spread_segments(const vptq_ctx *ctx, double *total, size_t n, vptq_err *err)
{
    const int size = ctx->comm->size, me = ctx->comm->rank;
    size_t mine, mine_end, begin, end;
    segment(size, n, me, &mine, &mine_end);
    for (int k = 1; k < size; k++) {
        const int to = (me + k) % size, from = (me - k + size) % size;
        segment(size, n, from, &begin, &end);
        VPTQ_CHECK(exchange(ctx, NULL, TAG_DATA, to, total + mine,
                            (mine_end - mine) * sizeof *total, from, total + begin,
                            (end - begin) * sizeof *total, err));
    }
    return VPTQ_OK;
}

vptq_status vptq_comm_sum(const vptq_ctx *ctx, int parts, const double *part, double *total,
                          size_t n, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    if (is_alone(ctx)) {
        for (size_t i = 0; i < n; i++)
            total[i] += part[i];
        return VPTQ_OK;
    }
    const size_t size = (size_t)ctx->comm->size, step = size * SUM_DOUBLES;
    /* the last segment takes the rest of a division */
    const size_t stride = (n < step ? n / size : (size_t)SUM_DOUBLES) + size;
    double *buffer = vptq_mem_alloc(ctx->mem, size, stride * sizeof *buffer, err);
    if (!buffer)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < n; i += step) {
        const size_t count = n - i < step ? n - i : step;
        VPTQ_TRY(add_segments(ctx, parts, part ? part + i : NULL, total + i, count, buffer,
                              stride, err));
        VPTQ_TRY(spread_segments(ctx, total + i, count, err));
    }
out:
    vptq_mem_free(ctx->mem, buffer);
    return st;
}

vptq_status vptq_comm_gather(const vptq_ctx *ctx, double *values, size_t n, vptq_err *err)
{
    if (is_alone(ctx))
        return VPTQ_OK;
    double *total = vptq_mem_alloc(ctx->mem, n, sizeof *total, err);
    if (!total)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        total[i] = -0.0; /* added to it, any x stays x, also -0 */
    const vptq_status st = vptq_comm_sum(ctx, ctx->comm->size, values, total, n, err);
    if (!st)
        memcpy(values, total, n * sizeof *total);
    vptq_mem_free(ctx->mem, total);
    return st;
}
