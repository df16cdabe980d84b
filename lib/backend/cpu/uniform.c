/* The ops of uniform quantization on all threads.  A thread takes a panel of rows through all
 * columns, so that their errors stay in its cache.  As in columns.c a column first receives the
 * errors of all earlier columns, by the same operations in the same order as if each had been
 * propagated at once, and is then quantized. */
#include "lib/backend/cpu/uniform.h"

#include <string.h>

#include "lib/backend/cpu/cpu.h"
#include "lib/backend/cpu/gemm.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"
#include "lib/base/uniform.h"

enum { PANEL = VPTQ_PANEL };

/* ---- ranges ---- */

typedef struct range_job {
    const vptq_uniform_range_args *args;
    const vptq_uniform_kernels *kernels;
} range_job;

static void range_rows(void *arg, size_t begin, size_t end, int thread)
{
    const range_job *job = arg;
    const vptq_uniform_range_args *a = job->args;
    const size_t count = end - begin;
    float lo[PANEL] = {0}, hi[PANEL] = {0}, padded[PANEL] = {0};
    (void)thread;
    for (size_t t = 0; t < a->cols; t++) {
        const float *z = a->z + t * a->ldz + begin;
        if (count < PANEL)
            z = memcpy(padded, z, count * sizeof *z);
        job->kernels->widen(z, lo, hi);
    }
    for (size_t r = 0; r < count; r++)
        vptq_uniform_grid(a->bits, a->symmetric, a->storage, lo[r], hi[r],
                          &a->scale[begin + r], &a->zero[begin + r]);
}

vptq_status vptq_cpu_uniform_range(vptq_dev *dev, const vptq_uniform_range_args *a,
                                   vptq_err *err)
{
    range_job job = {a, vptq_uniform_kernels_get(dev->simd)};
    (void)err;
    vptq_parallel_for(vptq_cpu_threads(dev, a->rows * a->cols), a->rows, PANEL, range_rows,
                      &job);
    return VPTQ_OK;
}

/* ---- column pass ---- */

typedef struct pass_job {
    const vptq_uniform_pass_args *args;
    const vptq_uniform_kernels *kernels;
    const vptq_nearest_kernels *nearest; /* for `eliminate` */
    float *errors;                       /* [threads][cols][PANEL], NULL without u */
} pass_job;

/* Rows after the last one are quantized too: with scale 1. */
static vptq_uniform_panel panel_of(const vptq_uniform_pass_args *a, size_t first, size_t count)
{
    vptq_uniform_panel p = {.storage = a->storage, .max = (float)((1U << a->bits) - 1)};
    for (size_t r = 0; r < PANEL; r++) {
        p.scale[r] = r < count ? a->scale[first + r] : 1;
        p.zero[r] = r < count ? (float)a->zero[first + r] : 0;
    }
    return p;
}

static void store_codes(const float *code, size_t count, uint8_t *codes)
{
    uint8_t whole[PANEL];
    for (size_t r = 0; r < PANEL; r++)
        whole[r] = (uint8_t)code[r];
    memcpy(codes, whole, count);
}

static void pass_rows(void *arg, size_t begin, size_t end, int thread)
{
    const pass_job *job = arg;
    const vptq_uniform_pass_args *a = job->args;
    const size_t count = end - begin, bytes = count * sizeof *a->z;
    float *errors = a->u ? job->errors + (size_t)thread * a->cols * PANEL : NULL;
    float z[PANEL] = {0}, code[PANEL], d[PANEL];
    const vptq_uniform_panel p = panel_of(a, begin, count);
    for (size_t t = 0; t < a->cols; t++) {
        memcpy(z, a->z + t * a->ldz + begin, bytes);
        if (a->u) {
            job->nearest->eliminate(t, errors, a->u + t, a->ldu, z);
            memcpy(a->z + t * a->ldz + begin, z, bytes);
        }
        job->kernels->quantize(&p, z, code, d);
        store_codes(code, count, a->codes + t * a->ldc + begin);
        if (!a->u)
            continue;
        float *e = errors + t * PANEL;
        const float pivot = a->u[t * a->ldu + t];
        for (size_t r = 0; r < PANEL; r++)
            e[r] = (z[r] - d[r]) / pivot;
        memcpy(a->err + t * a->lde + begin, e, bytes);
    }
}

vptq_status vptq_cpu_uniform_pass(vptq_dev *dev, const vptq_uniform_pass_args *a, vptq_err *err)
{
    pass_job job = {a, vptq_uniform_kernels_get(dev->simd), vptq_nearest_kernels_get(dev->simd),
                    NULL};
    const size_t each = a->u ? a->cols * a->cols : a->cols;
    if (!a->rows || !a->cols)
        return VPTQ_OK;
    if (a->u) {
        job.errors = vptq_dev_scratch(dev, (size_t)dev->threads * a->cols * PANEL,
                                      sizeof *job.errors, err);
        if (!job.errors)
            return VPTQ_E_NOMEM;
    }
    vptq_parallel_for(vptq_cpu_threads(dev, a->rows * each), a->rows, PANEL, pass_rows, &job);
    return VPTQ_OK;
}
