/* The op channel_range: threads divide columns, never a sum over tokens. */
#include "lib/backend/cpu/channel.h"

#include <math.h>
#include <string.h>

#include "lib/backend/cpu/cpu.h"
#include "lib/backend/cpu/gemm.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

typedef struct channel_job {
    const vptq_channel_args *args;
    const vptq_channel_kernels *kernels;
} channel_job;

/* One panel; columns after the last one are zeros. */
static void add_panel(void *arg, size_t begin, size_t end, int thread)
{
    const channel_job *job = arg;
    const vptq_channel_args *a = job->args;
    const size_t count = end - begin, bytes = count * sizeof(float);
    const float *x = a->x + begin;
    float padded[VPTQ_CHANNELS] = {0};
    vptq_channel_panel p = {.abs_sum = {0}};
    (void)thread;
    for (size_t j = 0; j < count; j++) {
        p.abs_sum[j] = a->first ? 0 : a->abs_sum[begin + j];
        p.min[j] = a->first ? INFINITY : a->min[begin + j];
        p.max[j] = a->first ? -INFINITY : a->max[begin + j];
    }
    if (count == VPTQ_CHANNELS)
        job->kernels->add(a->tokens, x, a->ldx, &p);
    for (size_t t = 0; count < VPTQ_CHANNELS && t < a->tokens; t++) {
        memcpy(padded, x + t * a->ldx, bytes);
        job->kernels->add(1, padded, 0, &p);
    }
    memcpy(a->abs_sum + begin, p.abs_sum, count * sizeof *p.abs_sum);
    memcpy(a->min + begin, p.min, bytes);
    memcpy(a->max + begin, p.max, bytes);
}

vptq_status vptq_cpu_channel_range(vptq_dev *dev, const vptq_channel_args *a, vptq_err *err)
{
    channel_job job = {a, vptq_channel_kernels_get(dev->simd)};
    (void)err;
    vptq_parallel_for(vptq_cpu_threads(dev, a->tokens * a->n), a->n, VPTQ_CHANNELS, add_panel,
                      &job);
    return VPTQ_OK;
}
