/* Loads OpenBLAS and keeps it serial. */
#include "lib/backend/cpu/blas.h"

#include <dlfcn.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

static const char core_variable[] = "OPENBLAS_CORETYPE";

/* Loads the library with a core type that fits the SIMD level. SkylakeX is the name that
 * OpenBLAS has for plain AVX-512 (F, BW, DQ, VL). The environment variable is set only if the
 * user has not set it, and only while the library loads. */
static void *blas_load(vptq_simd simd)
{
    static const char *const names[] = {"libopenblas.so.0", "libopenblas.so"};
    const bool choose = simd == VPTQ_SIMD_AVX512 && !getenv(core_variable);
    void *library = NULL;

    if (choose)
        setenv(core_variable, "SkylakeX", 1);
    /* Never unloaded: its threads and buffers do not survive that. */
    for (size_t i = 0; !library && i < sizeof names / sizeof *names; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (choose)
        unsetenv(core_variable);
    return library;
}

/* ISO C cannot convert object pointers to function pointers; POSIX guarantees the same bits. */
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

    /* For an OpenBLAS with its own threads. The OpenMP variant asks OpenMP in every call, and
     * its setter changes the OpenMP setting of the caller. */
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
    /* OpenBLAS is serial inside a parallel region. With one thread there is none, and this
     * setting of the calling thread keeps it serial. */
    const int omp_threads = omp_get_max_threads();
    omp_set_num_threads(1);
    vptq_parallel_for(threads, n, chunk, fn, arg);
    omp_set_num_threads(omp_threads);
}
