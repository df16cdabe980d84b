#include "lib/backend/cuda/library.h"

#include <cublas_v2.h>
#include <cusolverDn.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct vptq_cuda_library {
    struct {
        cublasHandle_t handle; /* NULL: not loaded */
        decltype(cublasCreate_v2) *create;
        decltype(cublasDestroy_v2) *destroy;
        decltype(cublasSetStream_v2) *set_stream;
        decltype(cublasGetProperty) *property;
        decltype(cublasSgemm_v2_64) *sgemm;
        decltype(cublasSgemv_v2_64) *sgemv;
    } blas;
    struct {
        cusolverDnHandle_t handle; /* NULL: not loaded */
        cusolverDnParams_t params;
        decltype(cusolverDnCreate) *create;
        decltype(cusolverDnDestroy) *destroy;
        decltype(cusolverDnCreateParams) *create_params;
        decltype(cusolverDnDestroyParams) *destroy_params;
        decltype(cusolverDnSetStream) *set_stream;
        decltype(cusolverGetProperty) *property;
        decltype(cusolverDnXpotrf_bufferSize) *potrf_size;
        decltype(cusolverDnXpotrf) *potrf;
        decltype(cusolverDnXtrtri_bufferSize) *trtri_size;
        decltype(cusolverDnXtrtri) *trtri;
    } solver;
};

/* ---- loading ---- */

struct wanted {
    const char *name;
    void *function; /* where the pointer goes */
};

/* A library by the newest name that is there, and its functions; or status `absent`. */
static vptq_status load(vptq_status absent, const char *library, const char *const names[2],
                        const wanted *functions, size_t count, vptq_err *err)
{
    char files[64], lacking[96];
    snprintf(files, sizeof files, "%s or %s", names[0], names[1]);
    void *handle = NULL;
    /* Never unloaded once it is there: what it has on the device does not survive that. */
    for (int i = 0; !handle && i < 2; i++)
        handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    const char *why = handle ? NULL : dlerror();
    if (!handle)
        return vptq_cuda_library_missing(absent, library, files, why ? why : "it was not found",
                                         err);
    for (size_t i = 0; i < count; i++) {
        void *symbol = dlsym(handle, functions[i].name);
        snprintf(lacking, sizeof lacking, "it has no %s", functions[i].name);
        if (!symbol)
            return vptq_cuda_library_missing(absent, library, files, lacking, err);
        memcpy(functions[i].function, &symbol, sizeof symbol);
    }
    return VPTQ_OK;
}

/* What a library answered, in our terms; `no_memory` is its code for that. */
static vptq_status answer(const char *function, int status, int no_memory, vptq_err *err)
{
    if (!status)
        return VPTQ_OK;
    return vptq_fail(err, status == no_memory ? VPTQ_E_NOMEM : VPTQ_E_DEVICE,
                     "%s failed on the device with status %d%s", function, status,
                     status == no_memory ? " (out of memory)" : "");
}
static vptq_status blas_answer(const char *function, cublasStatus_t status, vptq_err *err)
{
    return answer(function, (int)status, (int)CUBLAS_STATUS_ALLOC_FAILED, err);
}
static vptq_status solver_answer(const char *function, cusolverStatus_t status, vptq_err *err)
{
    return answer(function, (int)status, (int)CUSOLVER_STATUS_ALLOC_FAILED, err);
}

static vptq_status library_of(vptq_dev *dev, vptq_cuda_library **library, vptq_err *err)
{
    if (!dev->library) {
        void *memory = vptq_mem_alloc(dev->ctx->mem, 1, sizeof **library, err);
        if (!memory)
            return VPTQ_E_NOMEM;
        memset(memory, 0, sizeof **library);
        dev->library = static_cast<vptq_cuda_library *>(memory);
    }
    *library = dev->library;
    return VPTQ_OK;
}

static vptq_status blas_open(vptq_dev *dev, vptq_cuda_library **library, vptq_err *err)
{
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12"};
    vptq_status st = library_of(dev, library, err);
    if (st || (*library)->blas.handle)
        return st;
    auto *b = &(*library)->blas;
    const wanted functions[] = {
        {"cublasCreate_v2", &b->create},        {"cublasDestroy_v2", &b->destroy},
        {"cublasSetStream_v2", &b->set_stream}, {"cublasGetProperty", &b->property},
        {"cublasSgemm_v2_64", &b->sgemm},       {"cublasSgemv_v2_64", &b->sgemv},
    };
    st = load(VPTQ_E_UNSUPPORTED, "cuBLAS", names, functions,
              sizeof functions / sizeof *functions, err);
    cublasHandle_t handle = NULL;
    if (!st)
        st = blas_answer("cublasCreate", b->create(&handle), err);
    if (st)
        return st;
    st = blas_answer("cublasSetStream", b->set_stream(handle, dev->stream), err);
    if (st)
        (void)b->destroy(handle);
    else
        b->handle = handle;
    return st;
}

static vptq_status solver_open(vptq_dev *dev, vptq_cuda_library **library, vptq_err *err)
{
    static const char *const names[] = {"libcusolver.so.12", "libcusolver.so.11"};
    vptq_status st = library_of(dev, library, err);
    if (st || (*library)->solver.handle)
        return st;
    auto *s = &(*library)->solver;
    const wanted functions[] = {
        {"cusolverDnCreate", &s->create},
        {"cusolverDnDestroy", &s->destroy},
        {"cusolverDnCreateParams", &s->create_params},
        {"cusolverDnDestroyParams", &s->destroy_params},
        {"cusolverDnSetStream", &s->set_stream},
        {"cusolverGetProperty", &s->property},
        {"cusolverDnXpotrf_bufferSize", &s->potrf_size},
        {"cusolverDnXpotrf", &s->potrf},
        {"cusolverDnXtrtri_bufferSize", &s->trtri_size},
        {"cusolverDnXtrtri", &s->trtri},
    };
    st = load(VPTQ_E_DEVICE, "cuSOLVER", names, functions, sizeof functions / sizeof *functions,
              err);
    cusolverDnHandle_t handle = NULL;
    if (!st)
        st = solver_answer("cusolverDnCreate", s->create(&handle), err);
    if (st)
        return st;
    st = solver_answer("cusolverDnSetStream", s->set_stream(handle, dev->stream), err);
    if (!st)
        st = solver_answer("cusolverDnCreateParams", s->create_params(&s->params), err);
    if (st)
        (void)s->destroy(handle);
    else
        s->handle = handle;
    return st;
}

void vptq_cuda_library_close(vptq_dev *dev)
{
    vptq_cuda_library *library = dev->library;
    if (!library)
        return;
    if (library->solver.handle) {
        (void)library->solver.destroy_params(library->solver.params);
        (void)library->solver.destroy(library->solver.handle);
    }
    if (library->blas.handle)
        (void)library->blas.destroy(library->blas.handle);
    vptq_mem_free(dev->ctx->mem, library);
    dev->library = NULL;
}

template <class P>
static void describe_one(const char *name, P property, char *text, size_t size)
{
    int version[3] = {};
    (void)property(MAJOR_VERSION, &version[0]);
    (void)property(MINOR_VERSION, &version[1]);
    (void)property(PATCH_LEVEL, &version[2]);
    snprintf(text, size, "%s %d.%d.%d", name, version[0], version[1], version[2]);
}

void vptq_cuda_library_describe(vptq_dev *dev, char *text, size_t size)
{
    vptq_cuda_library *library = NULL;
    char blas[512], solver[512];
    vptq_err err;
    if (blas_open(dev, &library, &err))
        snprintf(blas, sizeof blas, "no cuBLAS (%.480s)", err.text);
    else
        describe_one("cuBLAS", library->blas.property, blas, sizeof blas);
    if (solver_open(dev, &library, &err))
        snprintf(solver, sizeof solver, "no cuSOLVER (%.480s)", err.text);
    else
        describe_one("cuSOLVER", library->solver.property, solver, sizeof solver);
    snprintf(text, size, "%s, %s", blas, solver);
}

/* ---- factors ---- */

/* The working memory of one call: on the device, behind the word for the library's answer, and
 * on the host. */
struct workspace {
    size_t device_bytes, host_bytes;
    int *info;
    void *device, *host;
};

static vptq_status workspace_open(vptq_dev *dev, workspace *w, vptq_err *err)
{
    enum { HEAD = 256 }; /* keeps what is behind it aligned */
    void *memory = NULL;
    const vptq_status st = vptq_cuda_scratch(dev, HEAD + w->device_bytes, &memory, err);
    if (st)
        return st;
    w->info = static_cast<int *>(memory);
    w->device = static_cast<char *>(memory) + HEAD;
    w->host = w->host_bytes ? vptq_mem_alloc(dev->ctx->mem, w->host_bytes, 1, err) : NULL;
    return w->host_bytes && !w->host ? VPTQ_E_NOMEM : VPTQ_OK;
}

/* Waits for the call, which may still use the host's part. */
static vptq_status workspace_close(vptq_dev *dev, workspace *w, vptq_status st, int *info,
                                   vptq_err *err)
{
    const vptq_status waited = vptq_cuda_download(dev, info, w->info, sizeof *info, err);
    vptq_mem_free(dev->ctx->mem, w->host);
    return st ? st : waited;
}

vptq_status vptq_cuda_library_potrf(vptq_dev *dev, size_t n, double *a, size_t lda,
                                    size_t *info, vptq_err *err)
{
    vptq_cuda_library *library = NULL;
    workspace w = {};
    int order = 0;
    vptq_status st = solver_open(dev, &library, err);
    if (st)
        return st;
    const auto *s = &library->solver;
    st = solver_answer("cusolverDnXpotrf_bufferSize",
                       s->potrf_size(s->handle, s->params, CUBLAS_FILL_MODE_UPPER, (int64_t)n,
                                     CUDA_R_64F, a, (int64_t)lda, CUDA_R_64F, &w.device_bytes,
                                     &w.host_bytes),
                       err);
    if (!st)
        st = workspace_open(dev, &w, err);
    if (st)
        return st;
    st = solver_answer("cusolverDnXpotrf",
                       s->potrf(s->handle, s->params, CUBLAS_FILL_MODE_UPPER, (int64_t)n,
                                CUDA_R_64F, a, (int64_t)lda, CUDA_R_64F, w.device,
                                w.device_bytes, w.host, w.host_bytes, w.info),
                       err);
    st = workspace_close(dev, &w, st, &order, err);
    *info = order > 0 ? (size_t)order : 0;
    return st;
}

vptq_status vptq_cuda_library_trtri(vptq_dev *dev, size_t n, double *a, size_t lda,
                                    vptq_err *err)
{
    vptq_cuda_library *library = NULL;
    workspace w = {};
    int order = 0;
    vptq_status st = solver_open(dev, &library, err);
    if (st)
        return st;
    const auto *s = &library->solver;
    st = solver_answer("cusolverDnXtrtri_bufferSize",
                       s->trtri_size(s->handle, CUBLAS_FILL_MODE_UPPER, CUBLAS_DIAG_NON_UNIT,
                                     (int64_t)n, CUDA_R_64F, a, (int64_t)lda, &w.device_bytes,
                                     &w.host_bytes),
                       err);
    if (!st)
        st = workspace_open(dev, &w, err);
    if (st)
        return st;
    st = solver_answer("cusolverDnXtrtri",
                       s->trtri(s->handle, CUBLAS_FILL_MODE_UPPER, CUBLAS_DIAG_NON_UNIT,
                                (int64_t)n, CUDA_R_64F, a, (int64_t)lda, w.device,
                                w.device_bytes, w.host, w.host_bytes, w.info),
                       err);
    return workspace_close(dev, &w, st, &order, err);
}

/* ---- products ---- */

vptq_status vptq_cuda_library_sgemm(vptq_dev *dev, size_t m, size_t n, size_t k, const float *a,
                                    size_t lda, const float *b, size_t ldb, float beta,
                                    float *c, size_t ldc, vptq_err *err)
{
    vptq_cuda_library *library = NULL;
    const float one = 1;
    const vptq_status st = blas_open(dev, &library, err);
    if (st)
        return st;
    return blas_answer("cublasSgemm",
                       library->blas.sgemm(library->blas.handle, CUBLAS_OP_T, CUBLAS_OP_N,
                                           (int64_t)m, (int64_t)n, (int64_t)k, &one, a,
                                           (int64_t)lda, b, (int64_t)ldb, &beta, c,
                                           (int64_t)ldc),
                       err);
}

vptq_status vptq_cuda_library_sgemv(vptq_dev *dev, size_t m, size_t n, const float *a,
                                    size_t lda, const float *x, float beta, float *y,
                                    vptq_err *err)
{
    vptq_cuda_library *library = NULL;
    const float one = 1;
    const vptq_status st = blas_open(dev, &library, err);
    if (st)
        return st;
    return blas_answer("cublasSgemv",
                       library->blas.sgemv(library->blas.handle, CUBLAS_OP_T, (int64_t)m,
                                           (int64_t)n, &one, a, (int64_t)lda, x, 1, &beta, y,
                                           1),
                       err);
}
