/* cuBLAS and cuSOLVER, loaded with dlopen when an op first needs them. */
#include "lib/backend/cuda/library.h"

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cusolverDn.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "lib/backend/cuda/library_find.h"

/* Every function that is used: FUNCTION(member of vptq_cuda_library, symbol). */
#define BLAS_FUNCTIONS(FUNCTION)                                                               \
    FUNCTION(blas_create, cublasCreate_v2)                                                     \
    FUNCTION(blas_destroy, cublasDestroy_v2)                                                   \
    FUNCTION(blas_set_stream, cublasSetStream_v2)                                              \
    FUNCTION(blas_set_workspace, cublasSetWorkspace_v2)                                        \
    FUNCTION(blas_property, cublasGetProperty)                                                 \
    FUNCTION(gemm_ex, cublasGemmEx_64)                                                         \
    FUNCTION(sgemm, cublasSgemm_v2_64)                                                         \
    FUNCTION(sgemv, cublasSgemv_v2_64)
#define LT_FUNCTIONS(FUNCTION)                                                                 \
    FUNCTION(lt_product_create, cublasLtMatmulDescCreate)                                      \
    FUNCTION(lt_product_destroy, cublasLtMatmulDescDestroy)                                    \
    FUNCTION(lt_product_set, cublasLtMatmulDescSetAttribute)                                   \
    FUNCTION(lt_layout_create, cublasLtMatrixLayoutCreate)                                     \
    FUNCTION(lt_layout_destroy, cublasLtMatrixLayoutDestroy)                                   \
    FUNCTION(lt_preference_create, cublasLtMatmulPreferenceCreate)                             \
    FUNCTION(lt_preference_destroy, cublasLtMatmulPreferenceDestroy)                           \
    FUNCTION(lt_preference_set, cublasLtMatmulPreferenceSetAttribute)                          \
    FUNCTION(lt_heuristic, cublasLtMatmulAlgoGetHeuristic)                                     \
    FUNCTION(lt_matmul, cublasLtMatmul)
#define SOLVER_FUNCTIONS(FUNCTION)                                                             \
    FUNCTION(solver_create, cusolverDnCreate)                                                  \
    FUNCTION(solver_destroy, cusolverDnDestroy)                                                \
    FUNCTION(create_params, cusolverDnCreateParams)                                            \
    FUNCTION(destroy_params, cusolverDnDestroyParams)                                          \
    FUNCTION(solver_set_stream, cusolverDnSetStream)                                           \
    FUNCTION(solver_property, cusolverGetProperty)                                             \
    FUNCTION(potrf_size, cusolverDnXpotrf_bufferSize)                                          \
    FUNCTION(potrf, cusolverDnXpotrf)                                                          \
    FUNCTION(trtri_size, cusolverDnXtrtri_bufferSize)                                          \
    FUNCTION(trtri, cusolverDnXtrtri)

#define MEMBER(member, function) decltype(function) *member;
struct vptq_cuda_library {
    cublasHandle_t blas;             /* NULL: not open */
    cusolverDnHandle_t solver;       /* NULL: not open */
    bool solver_tried, solver_found; /* its file */
    cusolverDnParams_t params;
    void *half_workspace; /* HALF_WORKSPACE bytes of device memory, or NULL */
    BLAS_FUNCTIONS(MEMBER)
    LT_FUNCTIONS(MEMBER)
    SOLVER_FUNCTIONS(MEMBER)
};

/* ---- loading ---- */

struct library_function {
    const char *name;
    size_t offset; /* of its pointer in vptq_cuda_library */
};

#define ENTRY(member, function) {#function, offsetof(vptq_cuda_library, member)},
static const library_function blas_functions[] = {BLAS_FUNCTIONS(ENTRY)};
static const library_function solver_functions[] = {SOLVER_FUNCTIONS(ENTRY)};

static const library_function lt_functions[] = {LT_FUNCTIONS(ENTRY)};

struct library_file {
    const char *name, *files[3]; /* the newest version first, then NULL */
    vptq_status missing;         /* the status if it cannot be loaded */
    const library_function *functions;
    size_t count;
};
static const library_file blas_file = {"cuBLAS",
                                       {"libcublas.so.13", "libcublas.so.12"},
                                       VPTQ_E_UNSUPPORTED,
                                       blas_functions,
                                       sizeof blas_functions / sizeof *blas_functions};
static const library_file lt_file = {"cuBLASLt",
                                     {"libcublasLt.so.13", "libcublasLt.so.12"},
                                     VPTQ_E_UNSUPPORTED,
                                     lt_functions,
                                     sizeof lt_functions / sizeof *lt_functions};
static const library_file solver_file = {"cuSOLVER",
                                         {"libcusolver.so.12", "libcusolver.so.11"},
                                         VPTQ_E_DEVICE,
                                         solver_functions,
                                         sizeof solver_functions / sizeof *solver_functions};

static vptq_status load(const library_file &f, vptq_cuda_library *library, vptq_err *err)
{
    char files[64], why[1024];
    snprintf(files, sizeof files, "%s or %s", f.files[0], f.files[1]);
    void *handle = vptq_cuda_library_find(f.files, why, sizeof why);
    if (!handle)
        return vptq_cuda_library_missing(f.missing, f.name, files, why, err);
    for (size_t i = 0; i < f.count; i++) {
        char fault[1280];
        void *symbol = dlsym(handle, f.functions[i].name);
        snprintf(fault, sizeof fault, "%s has no %s", why, f.functions[i].name);
        if (!symbol)
            return vptq_cuda_library_missing(f.missing, f.name, files, fault, err);
        memcpy(reinterpret_cast<char *>(library) + f.functions[i].offset, &symbol,
               sizeof symbol);
    }
    return VPTQ_OK;
}

/* Translates a library's status; `no_memory` is its code for a failed allocation. */
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
    cublasHandle_t handle = NULL;
    VPTQ_CHECK(library_of(dev, library, err));
    vptq_cuda_library *l = *library;
    if (l->blas)
        return VPTQ_OK;
    VPTQ_CHECK(load(lt_file, l, err)); /* first: cuBLAS needs it and may not find it */
    VPTQ_CHECK(load(blas_file, l, err));
    VPTQ_CHECK(blas_answer("cublasCreate", l->blas_create(&handle), err));
    const vptq_status st =
        blas_answer("cublasSetStream", l->blas_set_stream(handle, dev->stream), err);
    if (st)
        (void)l->blas_destroy(handle);
    else
        l->blas = handle;
    return st;
}

static vptq_status solver_open(vptq_dev *dev, vptq_cuda_library **library, vptq_err *err)
{
    cusolverDnHandle_t handle = NULL;
    VPTQ_CHECK(library_of(dev, library, err));
    vptq_cuda_library *l = *library;
    if (l->solver)
        return VPTQ_OK;
    VPTQ_CHECK(load(solver_file, l, err));
    VPTQ_CHECK(solver_answer("cusolverDnCreate", l->solver_create(&handle), err));
    vptq_status st =
        solver_answer("cusolverDnSetStream", l->solver_set_stream(handle, dev->stream), err);
    if (!st)
        st = solver_answer("cusolverDnCreateParams", l->create_params(&l->params), err);
    if (st)
        (void)l->solver_destroy(handle);
    else
        l->solver = handle;
    return st;
}

bool vptq_cuda_library_has_solver(vptq_dev *dev)
{
    vptq_cuda_library *l = NULL;
    vptq_err err;
    if (library_of(dev, &l, &err))
        return true; /* its call reports the same failure */
    if (!l->solver_tried)
        l->solver_found = !load(solver_file, l, &err);
    l->solver_tried = true;
    return l->solver_found;
}

void vptq_cuda_library_close(vptq_dev *dev)
{
    vptq_cuda_library *l = dev->library;
    if (!l)
        return;
    if (l->solver) {
        (void)l->destroy_params(l->params);
        (void)l->solver_destroy(l->solver);
    }
    if (l->blas)
        (void)l->blas_destroy(l->blas);
    (void)cudaFree(l->half_workspace);
    vptq_mem_free(dev->ctx->mem, l);
    dev->library = NULL;
}

template <class P>
static void describe_one(const library_file &f, vptq_status st, const vptq_err *err, P property,
                         char *text, size_t size)
{
    int version[3] = {};
    if (st) {
        snprintf(text, size, "no %s (%.480s)", f.name, err->text);
        return;
    }
    (void)property(MAJOR_VERSION, &version[0]);
    (void)property(MINOR_VERSION, &version[1]);
    (void)property(PATCH_LEVEL, &version[2]);
    snprintf(text, size, "%s %d.%d.%d", f.name, version[0], version[1], version[2]);
}

void vptq_cuda_library_describe(vptq_dev *dev, char *text, size_t size)
{
    vptq_cuda_library *l = NULL;
    char blas[512], solver[512];
    vptq_err err;
    vptq_status st = blas_open(dev, &l, &err);
    describe_one(blas_file, st, &err, st ? NULL : l->blas_property, blas, sizeof blas);
    st = solver_open(dev, &l, &err);
    describe_one(solver_file, st, &err, st ? NULL : l->solver_property, solver, sizeof solver);
    snprintf(text, size, "%s, %s", blas, solver);
}

/* ---- factorizations ---- */

/* The working memory of one call, on the device and on the host. */
struct workspace {
    size_t device_bytes, host_bytes;
    int *info; /* the result of the call, on the device */
    void *device, *host;
};

static vptq_status workspace_open(vptq_dev *dev, workspace *w, vptq_err *err)
{
    enum { INFO_BYTES = 256 }; /* keeps the working memory after it aligned */
    void *memory = NULL;
    VPTQ_CHECK(vptq_cuda_scratch(dev, INFO_BYTES + w->device_bytes, &memory, err));
    w->info = static_cast<int *>(memory);
    w->device = static_cast<char *>(memory) + INFO_BYTES;
    w->host = w->host_bytes ? vptq_mem_alloc(dev->ctx->mem, w->host_bytes, 1, err) : NULL;
    return w->host_bytes && !w->host ? VPTQ_E_NOMEM : VPTQ_OK;
}

/* Runs measure(&w) for the sizes and call(w) with memory of those sizes; *info is what the
 * library reports.  Waits for the call, which may use the host's part until its end. */
template <class M, class C>
static vptq_status factorize(vptq_dev *dev, const char *function, M measure, C call, int *info,
                             vptq_err *err)
{
    workspace w = {};
    VPTQ_CHECK(solver_answer(function, measure(&w), err));
    VPTQ_CHECK(workspace_open(dev, &w, err));
    const vptq_status st = solver_answer(function, call(w), err);
    const vptq_status waited = vptq_cuda_download(dev, info, w.info, sizeof *info, err);
    vptq_mem_free(dev->ctx->mem, w.host);
    if (!st && !waited && *info < 0)
        return vptq_fail(err, VPTQ_E_DEVICE, "%s refuses its argument %d", function, -*info);
    return st ? st : waited;
}

vptq_status vptq_cuda_library_potrf(vptq_dev *dev, size_t n, double *a, size_t lda,
                                    size_t *info, vptq_err *err)
{
    vptq_cuda_library *l = NULL;
    int order = 0;
    VPTQ_CHECK(solver_open(dev, &l, err));
    const vptq_status st = factorize(
        dev, "cusolverDnXpotrf",
        [=](workspace *w) {
            return l->potrf_size(l->solver, l->params, CUBLAS_FILL_MODE_UPPER, (int64_t)n,
                                 CUDA_R_64F, a, (int64_t)lda, CUDA_R_64F, &w->device_bytes,
                                 &w->host_bytes);
        },
        [=](const workspace &w) {
            return l->potrf(l->solver, l->params, CUBLAS_FILL_MODE_UPPER, (int64_t)n,
                            CUDA_R_64F, a, (int64_t)lda, CUDA_R_64F, w.device, w.device_bytes,
                            w.host, w.host_bytes, w.info);
        },
        &order, err);
    *info = st ? 0 : (size_t)order;
    return st;
}

vptq_status vptq_cuda_library_trtri(vptq_dev *dev, size_t n, double *a, size_t lda,
                                    vptq_err *err)
{
    vptq_cuda_library *l = NULL;
    int order = 0;
    VPTQ_CHECK(solver_open(dev, &l, err));
    return factorize(
        dev, "cusolverDnXtrtri",
        [=](workspace *w) {
            return l->trtri_size(l->solver, CUBLAS_FILL_MODE_UPPER, CUBLAS_DIAG_NON_UNIT,
                                 (int64_t)n, CUDA_R_64F, a, (int64_t)lda, &w->device_bytes,
                                 &w->host_bytes);
        },
        [=](const workspace &w) {
            return l->trtri(l->solver, CUBLAS_FILL_MODE_UPPER, CUBLAS_DIAG_NON_UNIT, (int64_t)n,
                            CUDA_R_64F, a, (int64_t)lda, w.device, w.device_bytes, w.host,
                            w.host_bytes, w.info);
        },
        &order, err);
}

/* ---- products ---- */

vptq_status vptq_cuda_library_sgemm(vptq_dev *dev, size_t m, size_t n, size_t k, const float *a,
                                    size_t lda, const float *b, size_t ldb, float beta,
                                    float *c, size_t ldc, vptq_err *err)
{
    vptq_cuda_library *l = NULL;
    const float one = 1;
    VPTQ_CHECK(blas_open(dev, &l, err));
    return blas_answer("cublasSgemm",
                       l->sgemm(l->blas, CUBLAS_OP_T, CUBLAS_OP_N, (int64_t)m, (int64_t)n,
                                (int64_t)k, &one, a, (int64_t)lda, b, (int64_t)ldb, &beta, c,
                                (int64_t)ldc),
                       err);
}

vptq_status vptq_cuda_library_sgemv(vptq_dev *dev, size_t m, size_t n, const float *a,
                                    size_t lda, const float *x, float beta, float *y,
                                    vptq_err *err)
{
    vptq_cuda_library *l = NULL;
    const float one = 1;
    VPTQ_CHECK(blas_open(dev, &l, err));
    return blas_answer("cublasSgemv",
                       l->sgemv(l->blas, CUBLAS_OP_T, (int64_t)m, (int64_t)n, &one, a,
                                (int64_t)lda, x, 1, &beta, y, 1),
                       err);
}

/* ---- products of half floats, for benchmarks ---- */

enum {
    HALF_WORKSPACE = 32 << 20, /* what the library's manual recommends from sm_90 on */
    HALF_CHOICES = 8           /* entries requested of the heuristic list */
};

static vptq_status half_open(vptq_dev *dev, vptq_cuda_library **library, vptq_err *err)
{
    VPTQ_CHECK(blas_open(dev, library, err));
    if ((*library)->half_workspace)
        return VPTQ_OK;
    return vptq_cuda_alloc(dev, HALF_WORKSPACE, &(*library)->half_workspace, err);
}

/* By cublasGemmEx. */
static vptq_status half_gemm(vptq_dev *dev, const vptq_half_args *a, vptq_err *err)
{
    vptq_cuda_library *l = NULL;
    const float one = 1, zero = 0;
    VPTQ_CHECK(half_open(dev, &l, err));
    vptq_status st =
        blas_answer("cublasSetWorkspace",
                    l->blas_set_workspace(l->blas, l->half_workspace, HALF_WORKSPACE), err);
    if (!st)
        st = blas_answer("cublasGemmEx",
                         l->gemm_ex(l->blas, CUBLAS_OP_T, CUBLAS_OP_N, (int64_t)a->out,
                                    (int64_t)a->n, (int64_t)a->in, &one, a->w, CUDA_R_16F,
                                    (int64_t)a->in, a->x, CUDA_R_16F, (int64_t)a->in, &zero,
                                    a->y, CUDA_R_16F, (int64_t)a->out, CUBLAS_COMPUTE_32F,
                                    CUBLAS_GEMM_DEFAULT),
                         err);
    /* Setting the stream takes the workspace away again. */
    const vptq_status back =
        blas_answer("cublasSetStream", l->blas_set_stream(l->blas, dev->stream), err);
    return st ? st : back;
}

/* Describes one product to cuBLASLt. */
struct half_plan {
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulPreference_t preference;
};

static cublasStatus_t half_plan_open(const vptq_cuda_library *l, const vptq_half_args *a,
                                     half_plan *p)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const size_t bytes = HALF_WORKSPACE;
    const int64_t in = (int64_t)a->in, out = (int64_t)a->out;
    cublasStatus_t st = l->lt_product_create(&p->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!st)
        st = l->lt_product_set(p->product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                               sizeof transposed);
    if (!st)
        st = l->lt_layout_create(&p->w, CUDA_R_16F, a->in, a->out, in);
    if (!st)
        st = l->lt_layout_create(&p->x, CUDA_R_16F, a->in, a->n, in);
    if (!st)
        st = l->lt_layout_create(&p->y, CUDA_R_16F, a->out, a->n, out);
    if (!st)
        st = l->lt_preference_create(&p->preference);
    if (!st)
        st = l->lt_preference_set(p->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                  &bytes, sizeof bytes);
    return st;
}

static void half_plan_close(const vptq_cuda_library *l, const half_plan *p)
{
    if (p->preference)
        (void)l->lt_preference_destroy(p->preference);
    if (p->y)
        (void)l->lt_layout_destroy(p->y);
    if (p->x)
        (void)l->lt_layout_destroy(p->x);
    if (p->w)
        (void)l->lt_layout_destroy(p->w);
    if (p->product)
        (void)l->lt_product_destroy(p->product);
}

/* By cublasLtMatmul with entry `choice` of its heuristic list, the library's favourite first.
 */
static vptq_status half_matmul(vptq_dev *dev, const vptq_half_args *a, unsigned choice,
                               vptq_err *err)
{
    vptq_cuda_library *l = NULL;
    const float one = 1, zero = 0;
    cublasLtMatmulHeuristicResult_t found[HALF_CHOICES];
    half_plan p = {};
    int count = 0;
    VPTQ_CHECK(half_open(dev, &l, err));
    /* A handle of cuBLAS is also one of cuBLASLt. */
    const cublasLtHandle_t handle = reinterpret_cast<cublasLtHandle_t>(l->blas);
    cublasStatus_t st = half_plan_open(l, a, &p);
    if (!st)
        st = l->lt_heuristic(handle, p.product, p.w, p.x, p.y, p.y, p.preference, HALF_CHOICES,
                             found, &count);
    const bool none = !st && choice >= (unsigned)count;
    if (!st && !none)
        st = l->lt_matmul(handle, p.product, &one, a->w, p.w, a->x, p.x, &zero, a->y, p.y, a->y,
                          p.y, &found[choice].algo, l->half_workspace, HALF_WORKSPACE,
                          dev->stream);
    half_plan_close(l, &p);
    if (none)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED, "cuBLASLt offers %d ways for this product",
                         count);
    return blas_answer("cublasLtMatmul", st, err);
}

/* The first call on a device allocates working memory; later ones may be captured into a graph.
 */
vptq_status vptq_cuda_library_half(vptq_dev *dev, const vptq_half_args *a, vptq_err *err)
{
    return a->way ? half_matmul(dev, a, a->way - 1, err) : half_gemm(dev, a, err);
}
