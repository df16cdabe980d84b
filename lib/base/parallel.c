/* Parallel loops on OpenMP (parallel.h). */
#include "lib/base/parallel.h"

#include <omp.h>

#include "lib/base/status.h"

int vptq_cpu_count(void)
{
    int n = omp_get_num_procs();
    return n > 0 ? n : 1;
}

void vptq_parallel_for(int threads, size_t n, size_t chunk, vptq_range_fn fn, void *arg)
{
    VPTQ_BUG_IF(chunk == 0);
    size_t chunks = n / chunk + (n % chunk != 0);
    if (threads <= 1 || chunks <= 1) {
        for (size_t c = 0; c < chunks; c++)
            fn(arg, c * chunk, n - c * chunk < chunk ? n : c * chunk + chunk, 0);
        return;
    }
    const int used = (size_t)threads < chunks ? threads : (int)chunks;
    (void)used; /* without OpenMP */
#pragma omp parallel for schedule(dynamic, 1) num_threads(used)
    for (size_t c = 0; c < chunks; c++)
        fn(arg, c * chunk, n - c * chunk < chunk ? n : c * chunk + chunk, omp_get_thread_num());
}
