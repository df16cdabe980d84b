/* Internal: parallel loops whose results do not depend on the number of threads: the range is
 * cut into chunks of a fixed size, each computed by one thread, and reductions add the results
 * of chunks in index order on the calling thread. */
#ifndef VPTQ_BASE_PARALLEL_H
#define VPTQ_BASE_PARALLEL_H

#include <stddef.h>

/* Usable processors (affinity respected), at least 1. */
int vptq_cpu_count(void);

/* Calls fn(arg, begin, end, thread) for every chunk [begin, end) of [0, n); chunk >= 1,
 * `thread` in [0, threads).  Chunks are distributed dynamically; with threads <= 1 they run in
 * order. */
typedef void (*vptq_range_fn)(void *arg, size_t begin, size_t end, int thread);
void vptq_parallel_for(int threads, size_t n, size_t chunk, vptq_range_fn fn, void *arg);

#endif
