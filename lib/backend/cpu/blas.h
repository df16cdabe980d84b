/* Internal: OpenBLAS, loaded at run time, always with one thread per call.
 *
 * Loaded rather than linked because OpenBLAS chooses its kernels in a constructor, and the
 * version of Debian 12 (0.3.21) chooses AVX2 kernels on newer AVX-512 processors, at half the
 * speed. OPENBLAS_CORETYPE corrects that, but must be set before the library is in the process;
 * with a linked library every program would have to execute itself again.
 *
 * Only the ops that need it load it: its start-up code repeats a failing mmap without end, so
 * every mapping that it makes is tried before (docs/numerics.md).
 *
 * One thread per call because OpenBLAS splits its work by the number of threads, which changes
 * last bits. Ops cut their work into tiles that depend only on the shape and distribute them
 * with vptq_blas_parallel_for. */
#ifndef VPTQ_BACKEND_CPU_BLAS_H
#define VPTQ_BACKEND_CPU_BLAS_H

#include "lib/backend/backend.h"
#include "lib/base/cpu.h"
#include "lib/base/ctx.h"
#include "lib/base/parallel.h"

/* Values of the C interface of BLAS. */
enum { VPTQ_BLAS_ROW_MAJOR = 101 };
enum { VPTQ_BLAS_NO_TRANS = 111, VPTQ_BLAS_TRANS = 112 };
enum { VPTQ_BLAS_UPPER = 121, VPTQ_BLAS_LOWER = 122 };
enum { VPTQ_BLAS_NON_UNIT = 131 };
enum { VPTQ_BLAS_LEFT = 141, VPTQ_BLAS_RIGHT = 142 };

typedef struct vptq_blas {
    void *library;
    int threads; /* that may call it at the same time; 0: its memory cannot be had */
    void (*sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                  const float *a, int lda, const float *b, int ldb, float beta, float *c,
                  int ldc);
    void (*sgemv)(int order, int trans, int m, int n, float alpha, const float *a, int lda,
                  const float *x, int step_x, float beta, float *y, int step_y);
    void (*dgemm)(int order, int trans_a, int trans_b, int m, int n, int k, double alpha,
                  const double *a, int lda, const double *b, int ldb, double beta, double *c,
                  int ldc);
    void (*dsyrk)(int order, int uplo, int trans, int n, int k, double alpha, const double *a,
                  int lda, double beta, double *c, int ldc);
    void (*dtrsm)(int order, int side, int uplo, int trans, int diag, int m, int n,
                  double alpha, const double *a, int lda, double *b, int ldb);
    void (*dtrmm)(int order, int side, int uplo, int trans, int diag, int m, int n,
                  double alpha, const double *a, int lda, double *b, int ldb);
    /* Fortran LAPACK, column-major: a row-major lower triangle is its 'U'. */
    void (*dpotrf)(const char *uplo, const int *n, double *a, const int *lda, int *info);
    void (*dtrtri)(const char *uplo, const char *diag, const int *n, double *a, const int *lda,
                   int *info);
    char *(*config)(void);   /* "OpenBLAS 0.3.21 ..." */
    char *(*corename)(void); /* "SkylakeX" */
} vptq_blas;

/* Address space in MiB that OpenBLAS maps when it is loaded (0.3.21: an image of 35 and two
 * buffers of 128), and for each thread that calls it at the same time. */
enum { VPTQ_BLAS_LOAD_MIB = 320, VPTQ_BLAS_THREAD_MIB = 132 };

/* Loads the library for up to `threads` threads and has it map their buffers.  Without the
 * address space (RLIMIT_AS, RLIMIT_DATA, overcommit) for all of them, blas->threads is smaller;
 * without that for one, it is 0 and nothing is loaded.  Returns VPTQ_E_UNSUPPORTED if the
 * library or one of its functions is missing. */
vptq_status vptq_blas_open(vptq_blas *blas, vptq_simd simd, int threads, vptq_err *err);
void vptq_blas_close(vptq_blas *blas);

/* The library for an op, loaded by the first that asks, or NULL where its memory cannot be had:
 * then the op uses that of ref.  The first such op logs a warning. */
vptq_status vptq_cpu_blas(vptq_dev *dev, const vptq_blas **blas, vptq_err *err);

/* vptq_parallel_for for functions that call BLAS, which must not be called in any other way,
 * even for a single task. */
void vptq_blas_parallel_for(const vptq_blas *blas, int threads, size_t n, size_t chunk,
                            vptq_range_fn fn, void *arg);

#endif
