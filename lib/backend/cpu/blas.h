/* Internal: OpenBLAS, the yardstick of the op library_gemv, loaded at run time, always with one
 * thread per call.  No other op uses it.
 *
 * Loaded rather than linked because OpenBLAS chooses its kernels in a constructor, and the
 * version of Debian 12 (0.3.21) chooses AVX2 kernels on newer AVX-512 processors, at half the
 * speed. OPENBLAS_CORETYPE corrects that, but must be set before the library is in the process;
 * with a linked library every program would have to execute itself again. */
#ifndef VPTQ_BACKEND_CPU_BLAS_H
#define VPTQ_BACKEND_CPU_BLAS_H

#include "lib/backend/backend.h"
#include "lib/base/cpu.h"
#include "lib/base/ctx.h"
#include "lib/base/parallel.h"

/* Values of the C interface of BLAS. */
enum { VPTQ_BLAS_ROW_MAJOR = 101 };
enum { VPTQ_BLAS_NO_TRANS = 111, VPTQ_BLAS_TRANS = 112 };

typedef struct vptq_blas {
    void *library;
    int threads; /* that may call it at the same time */
    void (*sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                  const float *a, int lda, const float *b, int ldb, float beta, float *c,
                  int ldc);
    void (*sgemv)(int order, int trans, int m, int n, float alpha, const float *a, int lda,
                  const float *x, int step_x, float beta, float *y, int step_y);
    char *(*config)(void);   /* "OpenBLAS 0.3.21 ..." */
    char *(*corename)(void); /* "SkylakeX" */
} vptq_blas;

/* Loads the library for up to `threads` threads.  Returns VPTQ_E_UNSUPPORTED if it or one of
 * its functions is missing, or without the address space for its buffers (RLIMIT_AS,
 * RLIMIT_DATA, overcommit). */
vptq_status vptq_blas_open(vptq_blas *blas, vptq_simd simd, int threads, vptq_err *err);
void vptq_blas_close(vptq_blas *blas);

/* The library for an op, loaded by the first that asks. */
vptq_status vptq_cpu_blas(vptq_dev *dev, const vptq_blas **blas, vptq_err *err);

/* vptq_parallel_for for functions that call BLAS, which must not be called in any other way,
 * even for a single task: it would start threads of its own. */
void vptq_blas_parallel_for(const vptq_blas *blas, int threads, size_t n, size_t chunk,
                            vptq_range_fn fn, void *arg);

#endif
