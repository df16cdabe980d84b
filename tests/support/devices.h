/* Runs one op on every device: ref, cpu with each SIMD level of this processor and 1, 2, 3 and
 * 5 threads, emu (the CUDA backend under the emulator) and, where VPTQ_TEST_GPU is set, cuda.
 * Arrays are in host memory on all of them (tests/support/shadow.h).
 *
 * VPTQ_TEST_GPU=only is for the short time on a GPU: the device cuda alone against ref, in
 * place of emu everywhere, without the levels and threads of cpu. "only:emu" does the same with
 * the emulated device, to test this mode without a GPU. */
#ifndef VPTQ_TESTS_SUPPORT_DEVICES_H
#define VPTQ_TESTS_SUPPORT_DEVICES_H

#include "lib/backend/backend.h"
#include "lib/base/cpu.h"
#include "tests/support/vtest.h"

/* An open device with its context. VPTQ_SIMD is set to `simd` while it opens; only cpu reads
 * it. */
typedef struct devices_one {
    vptq_ctx ctx;
    vptq_device dev;
} devices_one;
void devices_open(devices_one *d, const char *name, int simd, int threads);
void devices_close(devices_one *d);

/* The device that tests of the CUDA backend open: "emu", or the one of VPTQ_TEST_GPU=only. */
const char *devices_gpu(void);
/* Whether a GPU is tested: VPTQ_TEST_GPU is 1 or only. */
bool devices_have_gpu(void);
/* Whether VPTQ_TEST_GPU=only is set. */
bool devices_only(void);
/* Whether this level of cpu is tested: the machine has it, and cpu is tested at all.  Tests try
 * all up to VPTQ_SIMD_NEON; devices_each and devices_check also the widest one with AMX. */
enum { DEVICES_AMX = VPTQ_SIMD_NEON + 1 };
bool devices_have_simd(int simd);
/* Skips the calling test if so: for tests of cpu, or of what only the emulator can do. */
void devices_skip_if_only(void);

/* NMSE limit for float sums of k products.  Those of independent terms have an error of about
 * sqrt(k) half ulps (2^-25) of the root of the sum of squares: an NMSE of k 2^-50.  The limit
 * leaves a factor of 16.  It also holds for the three products of halves on tensor cores
 * (docs/numerics.md). */
double devices_float_sum_limit(size_t k);

/* Calls fn(arg, device) for ref, then for cpu at every level with two threads. */
typedef void (*devices_fn)(void *arg, const vptq_device *dev, bool is_ref);
void devices_each(devices_fn fn, void *arg);
/* The same, then for emu in two orders of its threads (one in instrumented builds): for ops
 * with a kernel and small shapes. */
void devices_each_emu(devices_fn fn, void *arg);

/* An op with its inputs. `out` holds `count` elements; an op that works in place copies its
 * input there first. */
typedef struct devices_op {
    void (*run)(const vptq_device *dev, const void *arg, void *out);
    const void *arg;
    size_t count;
    size_t size;  /* of an element: sizeof(float), sizeof(double), or 1 for plain bytes */
    double limit; /* of the NMSE between cpu and ref; not for plain bytes */
} devices_op;

/* Checks that ref and cpu agree within the limit (plain bytes: exactly), and that cpu gives the
 * same bits at every SIMD level and for any number of threads. Stores the result of ref in
 * `out`, which may be NULL. */
void devices_check(const devices_op *op, void *out);
/* The same, and that emu agrees with ref and gives the same bits in several orders of its
 * threads (one in instrumented builds). */
void devices_check_emu(const devices_op *op, void *out);

/* As vtest_oom_walk, calls fn on a device with this number of threads. Opening the device is
 * part of the walk. */
typedef vptq_status (*devices_oom_fn)(void *arg, vptq_device *dev, vptq_err *err);
size_t devices_oom_walk(const char *name, int threads, devices_oom_fn fn, void *arg);

#endif
