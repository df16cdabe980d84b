/* A device that fails in the middle: every row says so, and none says afterwards that all is
 * well. */
#include <stdio.h>
#include <string.h>

#include "tests/emu/emu.h"
#include "tests/vrows.h"
#include "tests/vtest.h"

static void expect(const char *row, const char *when, vptq_status st, const vptq_err *err,
                   const char *part)
{
    if (!st)
        fail_msg("%s %s: success, expected a failure", row, when);
    if (st != VPTQ_E_DEVICE && st != VPTQ_E_NOMEM)
        fail_msg("%s %s: %s", row, when, vptq_status_name(st));
    if (!strstr(err->text, part))
        fail_msg("%s %s: '%s' has no '%s'", row, when, err->text, part);
}

static void expect_success(const char *row, const char *when, vptq_status st,
                           const vptq_err *err)
{
    if (st)
        fail_msg("%s %s: %s", row, when, err->text);
}

/* A copy has failed for good: no row gets by. */
static void test_no_row_works_on_a_broken_device(void **state)
{
    (void)state;
    for (const vrows_row *row = vrows_all; row->name; row++) {
        vrows r;
        vptq_err err;
        vrows_open(&r);
        cuda_emu_break("copy:1");
        assert_fails(r.dev.ops->upload(r.dev.state, r.x, r.host, 4, &err), VPTQ_E_DEVICE, &err,
                     "an upload failed on the device: uncorrectable ECC error");
        for (int again = 0; again < 2; again++)
            expect(row->name, "on a broken device", row->run(&r, &err), &err,
                   "uncorrectable ECC error");
        cuda_emu_break(NULL);
        expect_success(row->name, "on a device as new", row->run(&r, &err), &err);
        vrows_close(&r);
        assert_int_equal(cuda_emu_memory_used(), 0);
    }
}

/* A kernel dies after its launch: whoever waits for the device learns of it, and nobody gets by
 * from then on. */
static void test_dead_kernels_are_noticed(void **state)
{
    (void)state;
    static const char *const why = "an illegal memory access was encountered";
    for (const vrows_row *row = vrows_all; row->name; row++) {
        vrows r;
        vptq_err err;
        vrows_open(&r);
        const unsigned long before = cuda_emu_count().launches;
        cuda_emu_break("kernel:1");
        const vptq_status st = row->run(&r, &err);
        if (st)
            expect(row->name, "whose kernel dies", st, &err, why);
        if (cuda_emu_count().launches > before) {
            expect("sync", "behind a dead kernel", r.dev.ops->sync(r.dev.state, &err), &err,
                   why);
            expect(row->name, "behind a dead kernel", row->run(&r, &err), &err, why);
        }
        cuda_emu_break(NULL);
        vrows_close(&r);
        assert_int_equal(cuda_emu_memory_used(), 0);
    }
}

/* The n-th launch or allocation is refused until there are no more of them: the row says so,
 * and works when it is called again. */
static void check_refusals(const vrows_row *row, const char *how, const char *part)
{
    vrows r;
    vptq_err err;
    vptq_status st;
    char when[32];
    for (int n = 1; n < 40; n++) {
        vrows_open(&r);
        snprintf(when, sizeof when, "%s:%d", how, n);
        cuda_emu_break(when);
        st = row->run(&r, &err);
        if (st)
            expect(row->name, when, st, &err, part);
        cuda_emu_break(NULL);
        if (st)
            expect_success(row->name, "after a refusal", row->run(&r, &err), &err);
        vrows_close(&r);
        assert_int_equal(cuda_emu_memory_used(), 0);
        if (!st)
            return;
    }
    fail_msg("%s has no end", row->name);
}

static void test_refused_launches_and_allocations(void **state)
{
    (void)state;
    for (const vrows_row *row = vrows_all; row->name; row++) {
        check_refusals(row, "launch", "too many resources requested for launch");
        check_refusals(row, "alloc", "device memory cannot be had");
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_row_works_on_a_broken_device),
        cmocka_unit_test(test_dead_kernels_are_noticed),
        cmocka_unit_test(test_refused_launches_and_allocations),
    };
    return vtest_main(argc, argv, tests);
}
