#include "lib/backend/cpu/blas.h"

#include <dlfcn.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

static const char core_variable[] = "OPENBLAS_CORETYPE";

/* The library, with its core type chosen.  SkylakeX is OpenBLAS's name for plain AVX-512 (F,
 * BW, DQ, VL), what VPTQ_SIMD_AVX512 promises.  The variable is the process's: it is set only
 * if the user has not, and only while the library loads. */
static void *blas_load(vptq_simd simd)
{
    static const char *const names[] = {"libopenblas.so.0", "libopenblas.so"};
    const bool choose = simd == VPTQ_SIMD_AVX512 && !getenv(core_variable);
    void *library = NULL;

    if (choose)
        setenv(core_variable, "SkylakeX", 1);
    /* Never unloaded once it is there: its threads and buffers do not survive that well. */
    for (size_t i = 0; !library && i < sizeof names / sizeof *names; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (choose)
        unsetenv(core_variable);
    return library;
}

/* ISO C has no conversion from object to function pointers; POSIX promises the same bits. */
static bool blas_symbol(void *library, const char *name, void *function, size_t size)
{
    void *symbol = dlsym(library, name);
    if (!symbol)
        return false;
    memcpy(function, &symbol, size);
    return true;
}

vptq_status vptq_blas_open(vptq_blas *blas, vptq_simd simd, vptq_err *err)
{
    void (*set_threads)(int) = NULL;
    const struct {
        const char *name;
        void *function;
    } wanted[] = {
        {"cblas_sgemm", &blas->sgemm},
        {"cblas_sgemv", &blas->sgemv},
        {"cblas_dgemm", &blas->dgemm},
        {"cblas_dsyrk", &blas->dsyrk},
        {"cblas_dtrsm", &blas->dtrsm},
        {"cblas_dtrmm", &blas->dtrmm},
        {"dpotrf_", &blas->dpotrf},
        {"dtrtri_", &blas->dtrtri},
        {"openblas_get_config", &blas->config},
        {"openblas_get_corename", &blas->corename},
        {"openblas_set_num_threads", &set_threads},
    };

    blas->library = blas_load(simd);
    if (!blas->library) {
        const char *why = dlerror();
        return vptq_fail(
            err, VPTQ_E_UNSUPPORTED,
            "the cpu backend needs OpenBLAS (Debian: libopenblas0-openmp; --backend ref "
            "does without): %s",
            why ? why : "libopenblas.so.0 was not found");
    }
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!blas_symbol(blas->library, wanted[i].name, wanted[i].function,
                         sizeof set_threads)) {
            vptq_blas_close(blas);
            return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                             "libopenblas.so.0 has no %s; the cpu backend needs OpenBLAS with "
                             "CBLAS and LAPACK",
                             wanted[i].name);
        }

    /* For OpenBLAS with its own threads; the OpenMP variant asks OpenMP at every call instead,
     * and its setter changes the caller's OpenMP setting on the way. */
    const int omp_threads = omp_get_max_threads();
    set_threads(1);
    omp_set_num_threads(omp_threads);
    return VPTQ_OK;
}

void vptq_blas_close(vptq_blas *blas)
{
    if (blas->library)
        dlclose(blas->library);
    blas->library = NULL;
}

void vptq_blas_parallel_for(int threads, size_t n, size_t chunk, vptq_range_fn fn, void *arg)
{
    /* Inside a parallel region OpenBLAS stays serial; with one thread there is no region, and
     * this setting of the calling thread is what keeps it so. */
    const int omp_threads = omp_get_max_threads();
    omp_set_num_threads(1);
    vptq_parallel_for(threads, n, chunk, fn, arg);
    omp_set_num_threads(omp_threads);
}
