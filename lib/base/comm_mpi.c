/* Carries messages by MPI: only point to point, since reductions of a library add in an order
 * of their own.  Waits test a request again and again, so that a rank can answer others, be
 * interrupted, and leave the processor to its threads. */
#include "lib/base/comm_mpi.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 22 }; /* bytes of a message at most */

typedef struct world {
    MPI_Comm comm;
    bool ours; /* to finalize: a caller who uses MPI itself may have initialized it */
    /* A message that may be given up passes through these: its other end may still write to or
     * read from the memory, which thus stays until MPI has ended.  In the caller's own memory
     * are those that come while another waits, and all after one was given up: nothing
     * interrupts them (comm.h). */
    char *in, *out; /* [PIECE] */
    bool busy, gave_up;
} world;

static vptq_status check(int code, const char *what, vptq_err *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (code == MPI_SUCCESS)
        return VPTQ_OK;
    (void)MPI_Error_string(code, text, &length);
    return vptq_fail(err, VPTQ_E_IO, "%s: %.300s", what, text);
}

/* Waits for both requests, MPI_REQUEST_NULL for none, or gives them up. */
static vptq_status finish(world *w, MPI_Request request[2], vptq_wait_fn wait, void *arg,
                          vptq_err *err)
{
    MPI_Status status[2]; /* MPI_STATUSES_IGNORE of MPICH is an array without elements to gcc */
    for (;;) {
        int done = 0;
        VPTQ_CHECK(
            check(MPI_Testall(2, request, &done, status), "a message between ranks", err));
        if (done)
            return VPTQ_OK;
        const vptq_status st = wait(arg, err);
        for (int i = 0; st && i < 2; i++)
            if (request[i] != MPI_REQUEST_NULL) {
                (void)MPI_Cancel(&request[i]);
                (void)MPI_Request_free(&request[i]);
            }
        if (st) {
            w->gave_up = true;
            return st;
        }
    }
}

static size_t piece_of(size_t left)
{
    return left < PIECE ? left : PIECE;
}

static vptq_status exchange(void *state, int tag, int to, const void *data, size_t size,
                            int from, void *got, size_t got_size, vptq_wait_fn wait, void *arg,
                            vptq_err *err)
{
    world *w = state;
    const char *src = data;
    char *dst = got;
    bool sends = to >= 0, receives = from >= 0;
    const bool copies = !w->busy && !w->gave_up, was_busy = w->busy;
    vptq_status st = VPTQ_OK;

    w->busy = true;
    while (sends || receives) {
        MPI_Request request[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
        const size_t n = piece_of(size), m = piece_of(got_size);
        if (receives)
            VPTQ_TRY(check(MPI_Irecv(copies ? w->in : dst, (int)m, MPI_BYTE, from, tag, w->comm,
                                     &request[0]),
                           "receiving from a rank", err));
        if (sends && n && copies)
            memcpy(w->out, src, n);
        if (sends)
            VPTQ_TRY(check(MPI_Isend(copies ? w->out : src, (int)n, MPI_BYTE, to, tag, w->comm,
                                     &request[1]),
                           "sending to a rank", err));
        VPTQ_TRY(finish(w, request, wait, arg, err));
        if (receives && m && copies)
            memcpy(dst, w->in, m);
        size -= sends ? n : 0;
        got_size -= receives ? m : 0;
        src = sends && n ? src + n : src;
        dst = receives && m ? dst + m : dst;
        sends = sends && size;
        receives = receives && got_size;
    }
out:
    w->busy = was_busy;
    return st;
}

static vptq_status probe(void *state, int tag, int *from, vptq_err *err)
{
    const world *w = state;
    MPI_Status status;
    int found = 0;
    VPTQ_CHECK(check(MPI_Iprobe(MPI_ANY_SOURCE, tag, w->comm, &found, &status),
                     "looking for messages of ranks", err));
    *from = found ? status.MPI_SOURCE : -1;
    return VPTQ_OK;
}

static void free_world(world *w)
{
    free(w->in);
    free(w->out);
    free(w);
}

static void close_mpi(void *state)
{
    world *w = state;
    (void)MPI_Comm_free(&w->comm);
    if (w->ours)
        (void)MPI_Finalize();
    if (w->ours || !w->gave_up)
        free_world(w);
}

static const vptq_transport mpi = {.exchange = exchange, .probe = probe, .close = close_mpi};

/* Without a launcher MPI would start helpers of its own for nothing. */
static bool is_launched(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK",
                                        "PMIX_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]))
            return true;
    return false;
}

static vptq_status initialize(world *w, vptq_err *err)
{
    int before = 0, level;
    VPTQ_CHECK(check(MPI_Initialized(&before), "MPI", err));
    if (before)
        return VPTQ_OK;
    VPTQ_CHECK(check(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level), "MPI", err));
    w->ours = true;
    if (level < MPI_THREAD_FUNNELED)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "this MPI does not allow threads in a process (MPI_THREAD_FUNNELED)");
    return VPTQ_OK;
}

/* Ranks that share memory with this one. */
static vptq_status count_local(MPI_Comm comm, vptq_comm *c, vptq_err *err)
{
    MPI_Comm local;
    VPTQ_CHECK(check(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local),
                     "MPI", err));
    vptq_status st = check(MPI_Comm_size(local, &c->local_size), "MPI", err);
    if (!st)
        st = check(MPI_Comm_rank(local, &c->local_rank), "MPI", err);
    (void)MPI_Comm_free(&local);
    return st;
}

static vptq_status open_world(world *w, vptq_comm *c, vptq_err *err)
{
    VPTQ_CHECK(initialize(w, err));
    /* a communicator of our own: messages of a caller stay apart */
    VPTQ_CHECK(check(MPI_Comm_dup(MPI_COMM_WORLD, &w->comm), "MPI", err));
    VPTQ_CHECK(check(MPI_Comm_set_errhandler(w->comm, MPI_ERRORS_RETURN), "MPI", err));
    VPTQ_CHECK(check(MPI_Comm_rank(w->comm, &c->rank), "MPI", err));
    VPTQ_CHECK(check(MPI_Comm_size(w->comm, &c->size), "MPI", err));
    return count_local(w->comm, c, err);
}

vptq_status vptq_comm_mpi_open(vptq_comm *c, vptq_err *err)
{
    if (!is_launched())
        return VPTQ_OK;
    world *w = calloc(1, sizeof *w);
    if (!w || !(w->in = malloc(PIECE)) || !(w->out = malloc(PIECE))) {
        if (w)
            free_world(w);
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    }
    const vptq_status st = open_world(w, c, err);
    if (st) {
        free_world(w);
        return st;
    }
    c->transport = &mpi;
    c->state = w;
    return VPTQ_OK;
}
