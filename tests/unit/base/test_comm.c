/* Tests the queue, agreement and ordered sums of comm.h with ranks that are threads, which pass
 * messages in memory. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/comm.h"
#include "lib/base/parallel.h"
#include "tests/support/vtest.h"

enum { RANKS = 5, MAX_MESSAGES = 4096 };

/* ---- a transport in memory ---- */

typedef struct message {
    int tag, from, to;
    void *data; /* NULL: taken */
    size_t size;
} message;

typedef struct post_office {
    pthread_mutex_t lock;
    message messages[MAX_MESSAGES];
    size_t count;
} post_office;

typedef struct end {
    post_office *office;
    int rank;
} end;

static void put(end *e, int tag, int to, const void *data, size_t size)
{
    message m = {tag, e->rank, to, malloc(size + 1), size};
    if (size)
        memcpy(m.data, data, size);
    pthread_mutex_lock(&e->office->lock);
    assert_true(e->office->count < MAX_MESSAGES);
    e->office->messages[e->office->count++] = m;
    pthread_mutex_unlock(&e->office->lock);
}

/* The first message with the tag for this rank, from any rank if `from` is negative; NULL:
 * none. */
static message *find(end *e, int tag, int from)
{
    for (size_t i = 0; i < e->office->count; i++) {
        message *m = &e->office->messages[i];
        if (m->data && m->to == e->rank && m->tag == tag && (from < 0 || m->from == from))
            return m;
    }
    return NULL;
}

static vptq_status memory_exchange(void *state, int tag, int to, const void *data, size_t size,
                                   int from, void *got, size_t got_size, vptq_wait_fn wait,
                                   void *arg, vptq_err *err)
{
    end *e = state;
    if (to >= 0)
        put(e, tag, to, data, size);
    while (from >= 0) {
        pthread_mutex_lock(&e->office->lock);
        message *m = find(e, tag, from);
        if (m) {
            assert_int_equal(m->size, got_size);
            if (got_size)
                memcpy(got, m->data, got_size);
            free(m->data);
            m->data = NULL;
        }
        pthread_mutex_unlock(&e->office->lock);
        if (m)
            return VPTQ_OK;
        VPTQ_CHECK(wait(arg, err));
    }
    return VPTQ_OK;
}

static vptq_status memory_probe(void *state, int tag, int *from, vptq_err *err)
{
    end *e = state;
    (void)err;
    pthread_mutex_lock(&e->office->lock);
    const message *m = find(e, tag, -1);
    *from = m ? m->from : -1;
    pthread_mutex_unlock(&e->office->lock);
    return VPTQ_OK;
}

static void memory_close(void *state)
{
    (void)state;
}

static const vptq_transport memory = {
    .exchange = memory_exchange, .probe = memory_probe, .close = memory_close};

/* ---- ranks ---- */

typedef vptq_status (*rank_fn)(const vptq_ctx *ctx, void *arg, vptq_err *err);

typedef struct rank {
    pthread_t thread;
    end end;
    vptq_comm comm;
    vptq_ctx ctx;
    rank_fn fn;
    void *arg;
    vptq_status st;
    vptq_err err;
} rank;

static void *run_rank(void *arg)
{
    rank *r = arg;
    r->comm.owner = pthread_self();
    r->st = r->fn(&r->ctx, r->arg, &r->err);
    return NULL;
}

/* Runs fn on `size` ranks at the same time; statuses and sentences are in ranks afterwards. */
static void run_ranks(rank *ranks, int size, rank_fn fn, void *arg)
{
    post_office office = {.count = 0};
    pthread_mutex_init(&office.lock, NULL);
    for (int i = 0; i < size; i++) {
        rank *r = &ranks[i];
        *r = (rank){.end = {&office, i}, .fn = fn, .arg = arg};
        r->comm = (vptq_comm){.rank = i, .size = size, .transport = &memory, .state = &r->end};
        r->ctx = (vptq_ctx){.threads = 1, .comm = &r->comm};
    }
    for (int i = 0; i < size; i++)
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    for (int i = 0; i < size; i++) {
        pthread_join(ranks[i].thread, NULL);
        vptq_comm_close(&ranks[i].comm);
    }
    for (size_t i = 0; i < office.count; i++)
        free(office.messages[i].data);
    pthread_mutex_destroy(&office.lock);
}

/* ---- tests ---- */

enum { UNITS = 100 };

typedef struct queue_test {
    int taken[3][UNITS]; /* by three queues, one after another */
} queue_test;

static vptq_status take_units(const vptq_ctx *ctx, void *arg, vptq_err *err)
{
    queue_test *t = arg;
    for (int round = 0; round < 3; round++) {
        uint64_t unit;
        for (;;) {
            VPTQ_CHECK(vptq_comm_next(ctx, UNITS, &unit, err));
            if (unit == UNITS)
                break;
            __atomic_fetch_add(&t->taken[round][unit], 1, __ATOMIC_RELAXED);
        }
        VPTQ_CHECK(vptq_comm_agree(ctx, VPTQ_OK, err));
    }
    return VPTQ_OK;
}

static void test_queue(void **state)
{
    (void)state;
    static const int sizes[] = {2, 3, RANKS};
    rank ranks[RANKS];
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        queue_test t = {0};
        run_ranks(ranks, sizes[s], take_units, &t);
        for (int i = 0; i < sizes[s]; i++)
            assert_ok(ranks[i].st, &ranks[i].err);
        for (int round = 0; round < 3; round++)
            for (int u = 0; u < UNITS; u++)
                assert_int_equal(t.taken[round][u], 1);
    }
}

/* Lengths that the ranks do not divide, and pieces of more than one message. */
enum { NUMBERS = RANKS * (1 << 17) + 1003 };

typedef struct sum_test {
    int parts;
    size_t n;
    double *part[RANKS], *total[RANKS];
} sum_test;

static vptq_status add_parts(const vptq_ctx *ctx, void *arg, vptq_err *err)
{
    sum_test *t = arg;
    const int me = vptq_comm_rank(ctx);
    VPTQ_CHECK(vptq_comm_sum(ctx, t->parts, me < t->parts ? t->part[me] : NULL, t->total[me],
                             t->n, err));
    return vptq_comm_agree(ctx, VPTQ_OK, err);
}

static void check_sum(int size, int parts, size_t n)
{
    rank ranks[RANKS];
    sum_test t = {.parts = parts, .n = n};
    double *want = calloc(n + 1, sizeof *want);
    for (int r = 0; r < size; r++) {
        t.part[r] = calloc(n + 1, sizeof(double));
        t.total[r] = calloc(n + 1, sizeof(double));
        for (size_t i = 0; i < n; i++) {
            /* other orders have other sums */
            t.part[r][i] = (r % 2 ? -1e16 : 1e16) / (1 + r) + (double)(i % 97) + 0.1 * r;
            t.total[r][i] = 0.3 * (double)i;
        }
    }
    for (size_t i = 0; i < n; i++) {
        want[i] = t.total[0][i];
        for (int r = 0; r < parts; r++)
            want[i] += t.part[r][i];
    }
    run_ranks(ranks, size, add_parts, &t);
    for (int r = 0; r < size; r++) {
        assert_ok(ranks[r].st, &ranks[r].err);
        assert_memory_equal(t.total[r], want, n * sizeof *want);
        free(t.part[r]);
        free(t.total[r]);
    }
    free(want);
}

static void test_sum(void **state)
{
    (void)state;
    check_sum(1, 1, 10);
    check_sum(2, 2, 1001);
    check_sum(RANKS, RANKS, 3); /* fewer numbers than ranks */
    check_sum(RANKS, 2, 1001);  /* the last ranks have no part */
    check_sum(RANKS, RANKS, NUMBERS);
}

/* Rank r has the values r, r + ranks, ..; value 3 is -0, and value 4 is 0. */
static double value_of(size_t i)
{
    return i == 3 ? -0.0 : i == 4 ? 0 : 1 / (double)(i + 1) - 0.25;
}

typedef struct gather_test {
    size_t n;
    double *values[RANKS];
} gather_test;

static vptq_status gather_values(const vptq_ctx *ctx, void *arg, vptq_err *err)
{
    gather_test *t = arg;
    const size_t me = (size_t)vptq_comm_rank(ctx), size = (size_t)vptq_comm_size(ctx);
    double *values = t->values[me];
    for (size_t i = 0; i < t->n; i++)
        values[i] = i % size == me ? value_of(i) : -0.0;
    VPTQ_CHECK(vptq_comm_gather(ctx, values, t->n, err));
    return vptq_comm_agree(ctx, VPTQ_OK, err);
}

static void check_gather(int size, size_t n)
{
    rank ranks[RANKS];
    gather_test t = {.n = n};
    double *want = calloc(n + 1, sizeof *want);
    for (size_t i = 0; i < n; i++)
        want[i] = value_of(i);
    for (int r = 0; r < size; r++)
        t.values[r] = calloc(n + 1, sizeof(double));
    run_ranks(ranks, size, gather_values, &t);
    for (int r = 0; r < size; r++) {
        assert_ok(ranks[r].st, &ranks[r].err);
        assert_memory_equal(t.values[r], want, n * sizeof *want);
        free(t.values[r]);
    }
    free(want);
}

static void test_gather(void **state)
{
    (void)state;
    check_gather(1, 10);
    check_gather(2, 1001);
    check_gather(RANKS, 5);
    check_gather(RANKS, NUMBERS);
    check_gather(3, 0);
}

/* Zeros in place of others' values do as well, but for the sign of a zero. */
static vptq_status gather_among_zeros(const vptq_ctx *ctx, void *arg, vptq_err *err)
{
    double *values = arg, mine[RANKS] = {0};
    const int me = vptq_comm_rank(ctx);
    mine[me] = me + 0.1;
    VPTQ_CHECK(vptq_comm_gather(ctx, mine, RANKS, err));
    values[me] = mine[(me + 1) % RANKS];
    return vptq_comm_agree(ctx, VPTQ_OK, err);
}

static void test_gather_among_zeros(void **state)
{
    (void)state;
    rank ranks[RANKS];
    double values[RANKS];
    run_ranks(ranks, RANKS, gather_among_zeros, values);
    for (int r = 0; r < RANKS; r++) {
        assert_ok(ranks[r].st, &ranks[r].err);
        assert_true(values[r] == (r + 1) % RANKS + 0.1);
    }
}

typedef struct failure_test {
    vptq_status st[RANKS];
    bool waits; /* ranks without a failure wait for a message that never comes */
} failure_test;

static vptq_status fail_some(const vptq_ctx *ctx, void *arg, vptq_err *err)
{
    const failure_test *t = arg;
    const int me = vptq_comm_rank(ctx);
    vptq_status st = t->st[me];
    char data[8];
    if (st)
        vptq_fail(err, st, "sentence %d", me);
    else if (t->waits)
        st = vptq_comm_broadcast(ctx, (me + 1) % RANKS, data, sizeof data, err);
    st = vptq_comm_agree(ctx, st, err);
    if (st) /* the run is over: nothing waits, and the status stays */
        assert_int_equal(vptq_comm_agree(ctx, st, err), st);
    return st;
}

static void check_failure(const failure_test *t, vptq_status want, const char *text)
{
    rank ranks[RANKS];
    failure_test copy = *t;
    run_ranks(ranks, RANKS, fail_some, &copy);
    for (int r = 0; r < RANKS; r++)
        assert_fails(ranks[r].st, want, &ranks[r].err, text);
}

static void test_agreement(void **state)
{
    (void)state;
    check_failure(&(failure_test){.st = {[3] = VPTQ_E_IO}}, VPTQ_E_IO, "rank 3: sentence 3");
    check_failure(&(failure_test){.st = {[0] = VPTQ_E_IO}, .waits = true}, VPTQ_E_IO,
                  "sentence 0");
    check_failure(&(failure_test){.st = {[4] = VPTQ_E_NUMERIC}, .waits = true}, VPTQ_E_NUMERIC,
                  "rank 4: sentence 4");
    /* an interruption says less than any other failure, and the lowest rank counts */
    check_failure(
        &(failure_test){.st = {[0] = VPTQ_E_CANCELLED, [2] = VPTQ_E_IO, [3] = VPTQ_E_FORMAT}},
        VPTQ_E_IO, "rank 2: sentence 2");
    check_failure(&(failure_test){.st = {[1] = VPTQ_E_CANCELLED}}, VPTQ_E_CANCELLED,
                  "sentence 1");
}

static vptq_status compare(const vptq_ctx *ctx, void *arg, vptq_err *err)
{
    const char *const *texts = arg;
    return vptq_comm_same(ctx, "the model", texts[vptq_comm_rank(ctx)], err);
}

static void test_same(void **state)
{
    (void)state;
    rank ranks[RANKS];
    const char *texts[RANKS] = {"a", "a", "a", "a", "a"};
    run_ranks(ranks, RANKS, compare, texts);
    for (int r = 0; r < RANKS; r++)
        assert_ok(ranks[r].st, &ranks[r].err);
    texts[2] = "b";
    run_ranks(ranks, RANKS, compare, texts);
    for (int r = 0; r < RANKS; r++)
        assert_fails(ranks[r].st, VPTQ_E_MISMATCH, &ranks[r].err,
                     "the model differs between the processes of this run: \"a\" at rank 0, "
                     "\"b\" at rank 2");
}

/* Texts that differ far from their beginnings. */
static void test_same_long(void **state)
{
    (void)state;
    enum { WORD = 8, WORDS = 500 };
    static char text[2][WORDS * WORD + 64];
    const char *texts[RANKS] = {text[0], text[0], text[0], text[1], text[0]};
    rank ranks[RANKS];
    for (int t = 0; t < 2; t++) {
        for (int w = 0; w < WORDS; w++)
            memcpy(text[t] + w * WORD, "nothing ", WORD);
        snprintf(text[t] + WORDS * WORD, 64, "--seed=%s --last", t ? "17" : "1");
    }
    run_ranks(ranks, RANKS, compare, texts);
    for (int r = 0; r < RANKS; r++)
        assert_fails(ranks[r].st, VPTQ_E_MISMATCH, &ranks[r].err,
                     "\"--seed=1 --last\" at rank 0, \"--seed=17 --last\" at rank 3");
    texts[3] = text[0];
    run_ranks(ranks, RANKS, compare, texts);
    for (int r = 0; r < RANKS; r++)
        assert_ok(ranks[r].st, &ranks[r].err);
}

typedef struct post_test {
    size_t bytes[RANKS]; /* posted by each rank, as rank 0 took them */
    bool full;           /* rank 0 fails to take one */
} post_test;

static vptq_status take_one(void *arg, const void *data, size_t size, vptq_err *err)
{
    post_test *t = arg;
    const unsigned char *bytes = data;
    if (t->full)
        return vptq_fail(err, VPTQ_E_IO, "disk full");
    for (size_t i = 0; i < size; i++)
        assert_int_equal(bytes[i], bytes[0]);
    t->bytes[bytes[0]] += size;
    return VPTQ_OK;
}

static vptq_status post_some(const vptq_ctx *ctx, void *arg, vptq_err *err)
{
    const int me = vptq_comm_rank(ctx);
    unsigned char data[100];
    memset(data, me, sizeof data);
    if (me == 0)
        vptq_comm_take(ctx, take_one, arg);
    for (size_t i = 1; me && i <= 10; i++)
        VPTQ_CHECK(vptq_comm_post(ctx, data, 10 * i, err));
    return vptq_comm_agree(ctx, VPTQ_OK, err);
}

static void test_post(void **state)
{
    (void)state;
    rank ranks[RANKS];
    post_test t = {.full = false};
    run_ranks(ranks, RANKS, post_some, &t);
    for (int r = 0; r < RANKS; r++) {
        assert_ok(ranks[r].st, &ranks[r].err);
        assert_int_equal(t.bytes[r], r ? 550 : 0);
    }
    t.full = true;
    run_ranks(ranks, RANKS, post_some, &t);
    for (int r = 0; r < RANKS; r++)
        assert_fails(ranks[r].st, VPTQ_E_IO, &ranks[r].err, "disk full");
}

/* Rank 0 works when the message comes that it cannot take. */
static vptq_status post_to_worker(const vptq_ctx *ctx, void *arg, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    if (vptq_comm_rank(ctx) == 0) {
        vptq_comm_take(ctx, take_one, arg);
        while (!st)
            st = vptq_check_cancel(ctx, err);
        assert_int_equal(st, VPTQ_E_CANCELLED);
        vptq_err_context(err, "the work of rank 0");
    } else {
        st = vptq_comm_post(ctx, "x", 1, err);
    }
    return vptq_comm_agree(ctx, st, err);
}

static void test_post_to_worker(void **state)
{
    (void)state;
    rank ranks[RANKS];
    post_test t = {.full = true};
    run_ranks(ranks, RANKS, post_to_worker, &t);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(ranks[r].st, VPTQ_E_IO);
        assert_string_equal(ranks[r].err.text, "disk full");
    }
}

/* A sentence of the greatest length arrives whole, but for what "rank 2: " takes. */
static vptq_status fail_at_length(const vptq_ctx *ctx, void *arg, vptq_err *err)
{
    (void)arg;
    char text[sizeof err->text];
    memset(text, 'x', sizeof text - 1);
    memcpy(text + sizeof text - 1 - strlen("the end"), "the end", sizeof "the end");
    return vptq_comm_agree(
        ctx, vptq_comm_rank(ctx) ? VPTQ_OK : vptq_fail(err, VPTQ_E_IO, "%s", text), err);
}

static void test_long_sentence(void **state)
{
    (void)state;
    rank ranks[RANKS];
    run_ranks(ranks, RANKS, fail_at_length, NULL);
    for (int r = 0; r < RANKS; r++)
        assert_fails(ranks[r].st, VPTQ_E_IO, &ranks[r].err, "the end");
}

static vptq_status copy_from_two(const vptq_ctx *ctx, void *arg, vptq_err *err)
{
    int *values = arg, value = vptq_comm_rank(ctx) == 2 ? 42 : 0;
    VPTQ_CHECK(vptq_comm_broadcast(ctx, 2, &value, sizeof value, err));
    values[vptq_comm_rank(ctx)] = value;
    return vptq_comm_agree(ctx, VPTQ_OK, err);
}

static void test_broadcast(void **state)
{
    (void)state;
    rank ranks[RANKS];
    int values[RANKS] = {0};
    run_ranks(ranks, RANKS, copy_from_two, values);
    for (int r = 0; r < RANKS; r++) {
        assert_ok(ranks[r].st, &ranks[r].err);
        assert_int_equal(values[r], 42);
    }
}

/* Ranks without a unit give their threads to others, as far as these have processors. */
static void test_threads(void **state)
{
    (void)state;
    const int usable = vptq_cpu_count();
    vptq_comm c = {.size = 12, .local_size = 6};
    vptq_ctx ctx = {.threads = 1, .comm = &c};
    c.threads = &ctx.threads;
    for (int units = 1; units <= 7; units++) {
        vptq_comm_share_threads(&ctx, (uint64_t)units);
        const int want = units < 6 ? 6 / units : 1;
        assert_int_equal(ctx.threads, want < usable ? want : usable);
    }
    vptq_comm_share_threads(&ctx, 1);
    vptq_comm_share_threads(&ctx, 0);
    assert_int_equal(ctx.threads, 1);
    ctx.threads = usable + 3; /* on request: not taken away */
    vptq_comm_share_threads(&ctx, 1);
    assert_int_equal(ctx.threads, usable + 3);
    vptq_comm_share_threads(&ctx, 0);
    assert_int_equal(ctx.threads, usable + 3);
}

/* A process that a launcher started with others would write over their files. */
static void test_launched(void **state)
{
    (void)state;
    vptq_comm c;
    vptq_err err = {0};
    if (vptq_comm_has_mpi())
        skip();
    setenv("PMI_SIZE", "3", 1);
    assert_fails(vptq_comm_open(&c, &err), VPTQ_E_UNSUPPORTED, &err,
                 "started 3 processes, but this build has no MPI");
    setenv("PMI_SIZE", "1", 1);
    assert_ok(vptq_comm_open(&c, &err), &err);
    assert_int_equal(c.size, 1);
    vptq_comm_close(&c);
    unsetenv("PMI_SIZE");
    setenv("SLURM_STEP_NUM_TASKS", "4", 1); /* of srun, which may start other programs, too */
    assert_ok(vptq_comm_open(&c, &err), &err);
    vptq_comm_close(&c);
    setenv("PMIX_RANK", "0", 1);
    assert_fails(vptq_comm_open(&c, &err), VPTQ_E_UNSUPPORTED, &err,
                 "started 4 processes, but this build has no MPI");
    unsetenv("PMIX_RANK");
    unsetenv("SLURM_STEP_NUM_TASKS");
}

VTEST_MAIN(cmocka_unit_test(test_queue), cmocka_unit_test(test_sum),
           cmocka_unit_test(test_gather), cmocka_unit_test(test_gather_among_zeros),
           cmocka_unit_test(test_agreement), cmocka_unit_test(test_same),
           cmocka_unit_test(test_same_long), cmocka_unit_test(test_post),
           cmocka_unit_test(test_post_to_worker), cmocka_unit_test(test_long_sentence),
           cmocka_unit_test(test_broadcast), cmocka_unit_test(test_threads),
           cmocka_unit_test(test_launched))
