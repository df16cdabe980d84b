/* Loads OpenBLAS where its memory can be had, and keeps it serial. */
#include "lib/backend/cpu/blas.h"

#include <dlfcn.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "lib/backend/dev.h"

enum { MAX_THREADS = 64 }; /* a build for 64 processors, as Debian's, has 128 buffers */

static const char *const names[] = {"libopenblas.so.0", "libopenblas.so"};
enum { NAMES = sizeof names / sizeof *names };

static const char core_variable[] = "OPENBLAS_CORETYPE";

#ifdef VPTQ_STATIC
/* A loaded library would bring a second libc. */
static const char not_loaded[] = "static tools load no libraries";

static void *load(const char *name)
{
    (void)name;
    return NULL;
}
#else
static const char not_loaded[] = "libopenblas.so.0 was not found";

static void *load(const char *name)
{
    return dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}
#endif

/* Loads the library with a core type that fits the SIMD level. SkylakeX is the name that
 * OpenBLAS has for plain AVX-512 (F, BW, DQ, VL). The environment variable is set only if the
 * user has not set it, and only while the library loads. */
static void *blas_load(vptq_simd simd)
{
    const bool choose = simd == VPTQ_SIMD_AVX512 && !getenv(core_variable);
    void *library = NULL;

    if (choose)
        setenv(core_variable, "SkylakeX", 1);
    /* Never unloaded: its threads and buffers do not survive that. */
    for (size_t i = 0; !library && i < NAMES; i++)
        library = load(names[i]);
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

/* Fails unless the mappings of the library and its buffers can be had: its code repeats a
 * failing mmap without end. */
static vptq_status check_memory(int threads, vptq_err *err)
{
    /* 0.3.21: an image of 35 MiB and two buffers of 128 when it is loaded, then one for each
     * thread that calls it at the same time. */
    enum { LOAD_MIB = 320, THREAD_MIB = 132 };
    const size_t mib = LOAD_MIB + (size_t)threads * THREAD_MIB;
    void *p = mmap(NULL, mib << 20, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "OpenBLAS reserves %zu MiB of address space, more than the limits "
                         "leave (ulimit -v)",
                         mib);
    munmap(p, mib << 20);
    return VPTQ_OK;
}

/* Has OpenBLAS map the buffers of its threads now instead of when they call it.  It keeps them
 * for later calls. */
static void map_buffers(void *library, int threads)
{
    void *(*take)(int) = NULL;
    void (*give)(void *) = NULL;
    void *buffers[MAX_THREADS] = {NULL};

    if (!blas_symbol(library, "blas_memory_alloc", &take, sizeof take) ||
        !blas_symbol(library, "blas_memory_free", &give, sizeof give))
        return;
    for (int i = 0; i < threads; i++)
        buffers[i] = take(0);
    for (int i = threads; i-- > 0;)
        give(buffers[i]);
}

vptq_status vptq_blas_open(vptq_blas *blas, vptq_simd simd, int threads, vptq_err *err)
{
    void (*set_threads)(int) = NULL;
    const struct {
        const char *name;
        void *function;
    } wanted[] = {
        {"cblas_sgemm", &blas->sgemm},
        {"cblas_sgemv", &blas->sgemv},
        {"openblas_get_config", &blas->config},
        {"openblas_get_corename", &blas->corename},
        {"openblas_set_num_threads", &set_threads},
    };

    *blas = (vptq_blas){.threads = threads < MAX_THREADS ? threads : MAX_THREADS};
    VPTQ_CHECK(check_memory(blas->threads, err));
    blas->library = blas_load(simd);
    if (!blas->library) {
        const char *why = dlerror();
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "OpenBLAS cannot be loaded (Debian: libopenblas0-openmp): %s",
                         why ? why : not_loaded);
    }
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!blas_symbol(blas->library, wanted[i].name, wanted[i].function,
                         sizeof set_threads)) {
            vptq_blas_close(blas);
            return vptq_fail(err, VPTQ_E_UNSUPPORTED, "libopenblas.so.0 has no %s",
                             wanted[i].name);
        }

    /* For an OpenBLAS with its own threads. The OpenMP variant asks OpenMP in every call, and
     * its setter changes the OpenMP setting of the caller. */
    const int omp_threads = omp_get_max_threads();
    set_threads(1);
    omp_set_num_threads(omp_threads);
    map_buffers(blas->library, blas->threads);
    return VPTQ_OK;
}

void vptq_blas_close(vptq_blas *blas)
{
    if (blas->library)
        dlclose(blas->library);
    blas->library = NULL;
}

vptq_status vptq_cpu_blas(vptq_dev *dev, const vptq_blas **blas, vptq_err *err)
{
    if (!dev->blas) {
        vptq_blas *b = vptq_mem_alloc(dev->ctx->mem, 1, sizeof *b, err);
        const vptq_status st =
            b ? vptq_blas_open(b, dev->simd, dev->ctx->threads, err) : VPTQ_E_NOMEM;
        if (st) {
            vptq_mem_free(dev->ctx->mem, b);
            return st;
        }
        dev->blas = b;
    }
    *blas = dev->blas;
    return VPTQ_OK;
}

void vptq_blas_parallel_for(const vptq_blas *blas, int threads, size_t n, size_t chunk,
                            vptq_range_fn fn, void *arg)
{
    /* OpenBLAS is serial inside a parallel region. With one thread there is none, and this
     * setting of the calling thread keeps it serial. */
    const int omp_threads = omp_get_max_threads();
    omp_set_num_threads(1);
    vptq_parallel_for(threads < blas->threads ? threads : blas->threads, n, chunk, fn, arg);
    omp_set_num_threads(omp_threads);
}
