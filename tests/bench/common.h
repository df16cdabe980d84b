/* Helpers of the benchmarks: clocks, options, random vectors. */
#ifndef VPTQ_TESTS_BENCH_COMMON_H
#define VPTQ_TESTS_BENCH_COMMON_H

#include <stddef.h>
#include <stdint.h>

#include "lib/backend/backend.h"

/* Prints one line to stderr and exits with 1. */
_Noreturn void bench_give_up(const char *why);

/* Gives up with the error unless st is VPTQ_OK. */
void bench_need(vptq_status st, const vptq_err *err);

/* Opens the backend; NULL means cuda, and false, with a line that says why, where there is
 * none. */
bool bench_open_device(vptq_ctx *ctx, const char *backend, vptq_device *dev);

/* Processor time of this thread. */
double bench_seconds(void);

/* Memory for count elements, on a line of the cache; free().  Gives up where there is none. */
void *bench_alloc(size_t count, size_t size);

/* n vectors of v floats, normal with correlated elements and a spread of lengths.  They depend
 * on v alone: more of them begin with the same ones. */
void bench_vectors(float *x, size_t n, uint32_t v);

#endif
