/* Tests uploads to a device with its own memory: sizes around those of its buffers, their order
 * relative to ops, and host memory that changes as soon as the upload returns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/backend/backend.h"
#include "tests/emu/emu.h"
#include "tests/support/devices.h"

enum { BUFFER = 4 << 20, MAX_BYTES = 3 * BUFFER };

typedef struct rig {
    vptq_mem mem;
    vptq_ctx ctx;
    vptq_device dev;
    char log[256];
} rig;

static void keep_log(void *user, vptq_log_level level, const char *text)
{
    (void)level;
    if (strstr(text, "pinned"))
        snprintf(((rig *)user)->log, sizeof((rig *)user)->log, "%s", text);
}

static void rig_open(rig *r)
{
    vptq_err err;
    *r = (rig){.ctx = {.threads = 1, .log = keep_log, .user = r}};
    vptq_mem_init(&r->mem, 0);
    r->ctx.mem = &r->mem;
    (void)vptq_backend_emu(); /* this reference links it */
    assert_ok(vptq_device_open(&r->ctx, devices_gpu(), &r->dev, &err), &err);
}

static void rig_close(rig *r)
{
    vptq_device_close(&r->dev);
    assert_int_equal(r->mem.used, 0);
    assert_int_equal(cuda_emu_memory_used(), 0);
}

static unsigned char *pattern(size_t n, unsigned seed)
{
    unsigned char *p = malloc(n);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)((i * 2654435761U >> 13) + seed);
    return p;
}

static void *device_bytes(rig *r, size_t bytes)
{
    void *p = NULL;
    vptq_err err;
    assert_ok(r->dev.ops->alloc(r->dev.state, 1, bytes, &p, &err), &err);
    return p;
}

/* Uploads from memory that is overwritten at once, and compares what is downloaded. */
static void check_size(rig *r, size_t bytes, unsigned seed)
{
    const vptq_backend *ops = r->dev.ops;
    unsigned char *want = pattern(bytes, seed), *copy = pattern(bytes, seed);
    unsigned char *got = malloc(bytes), *to = device_bytes(r, bytes + 2);
    static const unsigned char edge = 77;
    vptq_err err;
    assert_non_null(got);
    assert_ok(ops->upload(r->dev.state, to, &edge, 1, &err), &err);
    assert_ok(ops->upload(r->dev.state, to + bytes + 1, &edge, 1, &err), &err);
    assert_ok(ops->upload(r->dev.state, to + 1, copy, bytes, &err), &err);
    memset(copy, 0, bytes);
    assert_ok(ops->download(r->dev.state, got, to + 1, bytes, &err), &err);
    assert_memory_equal(got, want, bytes);
    assert_ok(ops->download(r->dev.state, got, to, 1, &err), &err);
    assert_int_equal(got[0], edge);
    assert_ok(ops->download(r->dev.state, got, to + bytes + 1, 1, &err), &err);
    assert_int_equal(got[0], edge);
    ops->release(r->dev.state, to);
    free(want);
    free(copy);
    free(got);
}

static const size_t sizes[] = {1,          1000,       64 << 10,       (64 << 10) + 1,
                               BUFFER - 1, BUFFER + 1, 2 * BUFFER + 5, MAX_BYTES};

static void test_sizes(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        check_size(&r, sizes[i], i);
    assert_string_equal(r.log, "");
    rig_close(&r);
}

/* Without pinned memory, or without host memory to describe it, uploads use ordinary memory. */
static void test_without_pinned_memory(void **state)
{
    (void)state;
    devices_skip_if_only();
    for (int n = 1; n <= 2; n++) {
        rig r;
        rig_open(&r);
        cuda_emu_break(n == 1 ? "pinned:1" : "pinned:2");
        check_size(&r, MAX_BYTES, 3);
        cuda_emu_break(NULL);
        check_size(&r, MAX_BYTES, 4); /* pinned memory is not tried again */
        assert_string_equal(r.log, "uploads go without pinned memory: out of memory");
        rig_close(&r);
    }
    rig r;
    rig_open(&r);
    r.mem.fail_after = 0;
    check_size(&r, MAX_BYTES, 5);
    r.mem.fail_after = -1;
    rig_close(&r);
}

/* Small uploads go through pinned memory, too, and more of them than fit in it keep their
 * values, although the memory that they come from changes at once. */
static void test_small_uploads(void **state)
{
    (void)state;
    enum { EACH = 40000, COUNT = 120 };
    rig r;
    vptq_err err;
    rig_open(&r);
    unsigned char *to = device_bytes(&r, (size_t)EACH * COUNT), *got = malloc(EACH),
                  source[EACH];
    assert_non_null(got);
    for (unsigned i = 0; i < COUNT; i++) {
        memset(source, (int)i, sizeof source);
        assert_ok(
            r.dev.ops->upload(r.dev.state, to + (size_t)i * EACH, source, sizeof source, &err),
            &err);
    }
    for (unsigned i = 0; i < COUNT; i++) {
        assert_ok(r.dev.ops->download(r.dev.state, got, to + (size_t)i * EACH, EACH, &err),
                  &err);
        if (got[0] != i || got[EACH - 1] != i)
            fail_msg("upload %u holds %u and %u", i, got[0], got[EACH - 1]);
    }
    r.dev.ops->release(r.dev.state, to);
    free(got);
    rig_close(&r);
    if (devices_only())
        return;
    rig_open(&r);
    cuda_emu_break("pinned:1");
    check_size(&r, 1000, 6);
    cuda_emu_break(NULL);
    assert_string_equal(r.log, "uploads go without pinned memory: out of memory");
    rig_close(&r);
}

/* An op reads what was uploaded before it, not what is uploaded after it. */
static void test_order_of_ops_and_uploads(void **state)
{
    (void)state;
    enum { N = 1 << 18 }; /* floats: a megabyte */
    rig r;
    vptq_err err;
    rig_open(&r);
    const vptq_backend *ops = r.dev.ops;
    float *host = malloc(N * sizeof *host), *got = malloc(N * sizeof *got);
    float *x = device_bytes(&r, N * sizeof *x), *y = device_bytes(&r, N * sizeof *y);
    float *one = device_bytes(&r, N * sizeof *one);
    assert_true(host && got);
    for (size_t i = 0; i < N; i++)
        host[i] = 0; /* silu(0) is 0 */
    assert_ok(ops->upload(r.dev.state, one, host, N * sizeof *one, &err), &err);
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < N; i++)
            host[i] = (float)((size_t)round * 1000 + i % 999);
        assert_ok(ops->upload(r.dev.state, x, host, N * sizeof *x, &err), &err);
        for (size_t i = 0; i < N; i++)
            host[i] = 100;
        /* y = silu(100) x = 100 x */
        assert_ok(ops->upload(r.dev.state, one, host, N * sizeof *one, &err), &err);
        assert_ok(
            ops->swiglu(r.dev.state,
                        &(vptq_swiglu_args){.n = 1, .dim = N, .gate = one, .up = x, .y = y},
                        &err),
            &err);
        for (size_t i = 0; i < N; i++)
            host[i] = -1;
        assert_ok(ops->upload(r.dev.state, x, host, N * sizeof *x, &err), &err);
        assert_ok(ops->download(r.dev.state, got, y, N * sizeof *y, &err), &err);
        for (size_t i = 0; i < N; i++)
            if (got[i] != 100 * (float)((size_t)round * 1000 + i % 999))
                fail_msg("round %d: element %zu is %g", round, i, (double)got[i]);
    }
    ops->release(r.dev.state, x);
    ops->release(r.dev.state, y);
    ops->release(r.dev.state, one);
    free(host);
    free(got);
    rig_close(&r);
}

/* A failed transfer is reported by the upload or by the next op. */
static void test_failed_transfers(void **state)
{
    (void)state;
    devices_skip_if_only();
    for (unsigned n = 1; n <= 3; n++) {
        rig r;
        vptq_err err;
        char how[16];
        unsigned char *host = pattern(MAX_BYTES, n);
        rig_open(&r);
        void *to = device_bytes(&r, MAX_BYTES);
        snprintf(how, sizeof how, "copy:%u", n);
        cuda_emu_break(how);
        assert_fails(r.dev.ops->upload(r.dev.state, to, host, MAX_BYTES, &err), VPTQ_E_DEVICE,
                     &err, "an upload failed on the device: uncorrectable ECC error");
        assert_fails(r.dev.ops->sync(r.dev.state, &err), VPTQ_E_DEVICE, &err, "uncorrectable");
        cuda_emu_break(NULL);
        r.dev.ops->release(r.dev.state, to);
        free(host);
        rig_close(&r);
    }
}

/* An upload into new memory does not wait for what is queued; the emulator does that as late as
 * it may. */
static void test_new_memory(void **state)
{
    (void)state;
    devices_skip_if_only();
    for (int new = 0; new < 2; new ++) {
        rig r;
        vptq_err err;
        unsigned char *host = pattern(MAX_BYTES, 8), *got = malloc(MAX_BYTES);
        rig_open(&r);
        cuda_emu_guard(false); /* to look at x */
        const vptq_backend *ops = r.dev.ops;
        unsigned char *x = device_bytes(&r, 1), *to = device_bytes(&r, MAX_BYTES);
        assert_non_null(got);
        assert_ok(ops->upload(r.dev.state, x, "a", 1, &err), &err);
        assert_ok(ops->sync(r.dev.state, &err), &err);
        assert_ok(ops->clear(r.dev.state, x, 1, &err), &err);
        assert_ok((new ? ops->upload_new : ops->upload)(r.dev.state, to, host, MAX_BYTES, &err),
                  &err);
        assert_int_equal(*x, new ? 'a' : 0);
        assert_ok(ops->download(r.dev.state, got, to, MAX_BYTES, &err), &err);
        assert_memory_equal(got, host, MAX_BYTES);
        assert_int_equal(*x, 0);
        ops->release(r.dev.state, x);
        ops->release(r.dev.state, to);
        free(host);
        free(got);
        rig_close(&r);
    }
}

VTEST_MAIN(cmocka_unit_test(test_sizes), cmocka_unit_test(test_small_uploads),
           cmocka_unit_test(test_without_pinned_memory),
           cmocka_unit_test(test_order_of_ops_and_uploads), cmocka_unit_test(test_new_memory),
           cmocka_unit_test(test_failed_transfers))
