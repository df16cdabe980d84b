/* Tests the run context and parallel loops. */
#include <stdlib.h>
#include <string.h>

#include "lib/base/ctx.h"
#include "lib/base/parallel.h"
#include "tests/support/vtest.h"

typedef struct heard {
    vptq_log_level level;
    char text[64], stage[16];
    uint64_t done, total;
} heard;

static void hear_log(void *user, vptq_log_level level, const char *text)
{
    heard *h = user;
    h->level = level;
    strncat(h->text, text, sizeof h->text - strlen(h->text) - 1);
}

static void hear_progress(void *user, const vptq_progress_info *info)
{
    heard *h = user;
    assert_string_equal(info->detail, "layer 3");
    strncat(h->stage, info->stage, sizeof h->stage - 1);
    h->done = info->done;
    h->total = info->total;
}

static void test_context(void **state)
{
    (void)state;
    heard h = {0};
    volatile sig_atomic_t cancel = 0;
    vptq_err err = {0};
    vptq_ctx ctx = {.log = hear_log, .progress = hear_progress, .user = &h, .cancel = &cancel};
    vptq_log(&ctx, VPTQ_LOG_MORE, "%d of %s", 2, "x");
    assert_int_equal(h.level, VPTQ_LOG_MORE);
    assert_string_equal(h.text, "2 of x");
    vptq_progress(&ctx, "hessian", "layers", 3, 7, "layer 3");
    assert_string_equal(h.stage, "hessian");
    assert_true(h.done == 3 && h.total == 7);
    assert_ok(vptq_check_cancel(&ctx, &err), &err);
    cancel = 1;
    assert_fails(vptq_check_cancel(&ctx, &err), VPTQ_E_CANCELLED, &err, "interrupted");
    vptq_ctx silent = {0};
    vptq_log(&silent, VPTQ_LOG_WARN, "x");
    vptq_progress(&silent, "x", "y", 0, 0, NULL);
    assert_ok(vptq_check_cancel(&silent, &err), &err);
    double t = vptq_seconds();
    assert_true(vptq_seconds() >= t);
}

typedef struct loop {
    size_t n, chunk;
    int threads;
    unsigned char *seen;
} loop;

static void visit(void *arg, size_t begin, size_t end, int thread)
{
    loop *l = arg;
    /* Nothing may assert here: a long jump out of a parallel region is undefined. */
    bool good = begin % l->chunk == 0 && begin < end && end <= l->n && thread >= 0 &&
                thread < (l->threads > 1 ? l->threads : 1) &&
                (end == l->n || end - begin == l->chunk);
    for (size_t i = begin; i < end; i++)
        l->seen[i] = (unsigned char)(l->seen[i] + (good ? 1 : 2));
}

static void test_loops_cover(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 7, 64, 65, 1000};
    static const size_t chunks[] = {1, 8, 64, 5000};
    assert_true(vptq_cpu_count() >= 1);
    for (size_t s = 0; s < 6; s++) {
        for (size_t c = 0; c < 4; c++) {
            for (int threads = 0; threads <= 5; threads++) {
                loop l = {.n = sizes[s], .chunk = chunks[c], .threads = threads};
                l.seen = calloc(sizes[s] + 1, 1);
                assert_non_null(l.seen);
                vptq_parallel_for(threads, l.n, l.chunk, visit, &l);
                for (size_t i = 0; i < l.n; i++)
                    assert_int_equal(l.seen[i], 1);
                assert_int_equal(l.seen[l.n], 0);
                free(l.seen);
            }
        }
    }
}

VTEST_MAIN(cmocka_unit_test(test_context), cmocka_unit_test(test_loops_cover))
