/* Running one operation on every device there is: ref, cpu with each SIMD level of this
 * processor and 1, 2, 3 and 5 threads, emu, the CUDA backend under the emulator, and, where
 * VPTQ_TEST_GPU is set, cuda.  Arrays are in host memory all the same (tests/support/shadow.h).
 */
#ifndef VPTQ_TESTS_SUPPORT_DEVICES_H
#define VPTQ_TESTS_SUPPORT_DEVICES_H

#include "lib/backend/backend.h"
#include "lib/base/cpu.h"
#include "tests/support/vtest.h"

/* A device and what keeps it alive.  VPTQ_SIMD is set while it opens; only cpu looks at it. */
typedef struct devices_one {
    vptq_ctx ctx;
    vptq_device dev;
} devices_one;
void devices_open(devices_one *d, const char *name, vptq_simd simd, int threads);
void devices_close(devices_one *d);

/* Calls fn(arg, device) for ref, then for cpu at every level with two threads. */
typedef void (*devices_fn)(void *arg, const vptq_device *dev, bool is_ref);
void devices_each(devices_fn fn, void *arg);
/* And for emu, in two orders of its threads: rows that have a kernel, shapes that are small. */
void devices_each_emu(devices_fn fn, void *arg);

/* Inputs and outputs of an op; `out` holds `count` elements (the row's inputs with
 * it where it works in place). */
typedef struct devices_op {
    void (*run)(const vptq_device *dev, const void *arg, void *out);
    const void *arg;
    size_t count;
    size_t size;  /* of an element: sizeof(float), sizeof(double) or 1 for plain bytes */
    double limit; /* of the NMSE between cpu and ref; not for plain bytes */
} devices_op;

/* ref and cpu agree within the limit at every SIMD level (plain bytes: exactly), and cpu gives
 * the same bits for every number of threads. Leaves the result of ref in `out`, which may be
 * NULL. */
void devices_check(const devices_op *op, void *out);
/* And emu with ref, the same bits in several orders of its threads. */
void devices_check_emu(const devices_op *op, void *out);

#endif
