/* The table of the cuda backend: opening and closing a device, and its memory. */
#include "lib/backend/cuda/library.h"
#include "lib/backend/cuda/matrix.h"

#include <stdio.h>
#include <string.h>

vptq_status vptq_cuda_check(cudaError_t e, const char *what, vptq_err *err)
{
    if (e == cudaSuccess)
        return VPTQ_OK;
    (void)cudaGetLastError(); /* or the next call would report it again */
    return vptq_fail(err, e == cudaErrorMemoryAllocation ? VPTQ_E_NOMEM : VPTQ_E_DEVICE,
                     "%s failed on the device: %s", what, cudaGetErrorString(e));
}

/* ---- opening and closing ---- */

static void cuda_close(vptq_dev *dev)
{
    if (!dev)
        return;
    (void)cudaStreamSynchronize(dev->stream);
    vptq_cuda_library_close(dev);
    vptq_cuda_stage_close(dev);
    (void)cudaFree(dev->scratch.at);
    (void)cudaFree(dev->tile.at);
    (void)cudaStreamDestroy(dev->stream);
    vptq_mem_free(dev->ctx->mem, dev);
}

enum { MIN_MAJOR = 8 }; /* oldest major compute capability that the kernels are compiled for */

/* Explains why no device can be used. Versions are numbers such as 12020 for 12.2. */
static vptq_status no_device(cudaError_t e, vptq_err *err)
{
    int driver = 0, runtime = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    (void)cudaGetLastError();
    if (e == cudaErrorInsufficientDriver && !driver)
        return vptq_fail(err, VPTQ_E_DEVICE, "no CUDA device answers: no driver is installed");
    if (e == cudaErrorInsufficientDriver)
        return vptq_fail(
            err, VPTQ_E_DEVICE,
            "no CUDA device answers: the driver is for CUDA %d.%d, this build needs "
            "one for %d.%d or newer",
            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    return vptq_fail(err, VPTQ_E_DEVICE, "no CUDA device answers: %s",
                     cudaGetErrorString(e ? e : cudaErrorNoDevice));
}

static vptq_status open_device(vptq_dev *d, int number, vptq_err *err)
{
    char what[32];
    cudaError_t e = cudaSetDevice(number);
    if (!e)
        e = cudaGetDeviceProperties(&d->properties, number);
    if (!e && d->properties.major < MIN_MAJOR)
        return vptq_fail(err, VPTQ_E_DEVICE,
                         "%s has compute capability %d.%d, this build needs %d.0 or newer",
                         d->properties.name, d->properties.major, d->properties.minor,
                         MIN_MAJOR);
    if (!e)
        e = cudaStreamCreate(&d->stream);
    snprintf(what, sizeof what, "opening device %d", number);
    return vptq_cuda_check(e, what, err);
}

static vptq_status cuda_open(const vptq_ctx *ctx, vptq_dev **dev, vptq_err *err)
{
    int count = 0;
    const cudaError_t e = cudaGetDeviceCount(&count);
    if (e || !count)
        return no_device(e, err);
    vptq_dev *d = static_cast<vptq_dev *>(vptq_mem_alloc(ctx->mem, 1, sizeof *d, err));
    if (!d)
        return VPTQ_E_NOMEM;
    memset(d, 0, sizeof *d);
    d->ctx = ctx;
    /* processes of a run take turns over the devices of a machine */
    const vptq_status st = open_device(d, vptq_comm_local_rank(ctx) % count, err);
    if (st) {
        vptq_mem_free(ctx->mem, d);
        return st;
    }
    *dev = d;
    return VPTQ_OK;
}

static void cuda_describe(const vptq_dev *dev, char *text, size_t size)
{
    const cudaDeviceProp *p = &dev->properties;
    int driver = 0, runtime = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    snprintf(
        text, size,
        "%s (compute capability %d.%d, %d multiprocessors, %zu MiB), driver %d.%d, run time "
        "%d.%d",
        p->name, p->major, p->minor, p->multiProcessorCount, p->totalGlobalMem >> 20,
        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
}

/* ---- limiting the work of a launch ---- */

size_t vptq_cuda_piece(size_t n, double each, size_t unit)
{
    const double fit = port_launch_work() / each / (double)unit;
    if ((double)n <= fit * (double)unit || n <= unit)
        return n;
    return fit < 2 ? unit : (size_t)fit * unit;
}

vptq_status vptq_cuda_pace(vptq_dev *dev, double work, vptq_err *err)
{
    VPTQ_CHECK(vptq_check_cancel(dev->ctx, err));
    dev->queued += work;
    if (dev->queued <= port_launch_work() || dev->recording)
        return VPTQ_OK;
    dev->queued = work;
    return vptq_cuda_check(cudaStreamSynchronize(dev->stream), "work", err);
}

/* ---- memory ---- */

static void free_buffer(vptq_dev *dev, vptq_cuda_buffer *b)
{
    (void)cudaStreamSynchronize(dev->stream);
    (void)cudaFree(b->at);
    *b = {};
}

vptq_status vptq_cuda_alloc(vptq_dev *dev, size_t bytes, void **ptr, vptq_err *err)
{
    cudaError_t e = cudaMalloc(ptr, bytes ? bytes : 1);
    size_t left = 0, total = 0;
    if (e == cudaErrorMemoryAllocation && dev->scratch.at) {
        (void)cudaGetLastError();
        free_buffer(dev, &dev->scratch);
        e = cudaMalloc(ptr, bytes ? bytes : 1);
    }
    if (!e)
        return VPTQ_OK;
    *ptr = NULL;
    (void)cudaGetLastError();
    if (e == cudaErrorMemoryAllocation && !cudaMemGetInfo(&left, &total))
        return vptq_fail(
            err, VPTQ_E_NOMEM,
            "cannot allocate %zu bytes of device memory: %zu of %zu are free (other "
            "programs may hold some; --backend cpu needs none)",
            bytes, left, total);
    return vptq_cuda_check(e, "allocating device memory", err);
}

static vptq_status reserve(vptq_dev *dev, size_t bytes, vptq_cuda_buffer *b, void **ptr,
                           vptq_err *err)
{
    if (bytes > b->bytes || !b->at) {
        free_buffer(dev, b);
        VPTQ_CHECK(vptq_cuda_alloc(dev, bytes, &b->at, err));
        b->bytes = bytes;
    }
    *ptr = b->at;
    return VPTQ_OK;
}

vptq_status vptq_cuda_scratch(vptq_dev *dev, size_t bytes, void **ptr, vptq_err *err)
{
    return reserve(dev, bytes, &dev->scratch, ptr, err);
}

vptq_status vptq_cuda_tile(vptq_dev *dev, size_t bytes, void **ptr, vptq_err *err)
{
    return reserve(dev, bytes, &dev->tile, ptr, err);
}

void vptq_cuda_tile_close(vptq_dev *dev)
{
    free_buffer(dev, &dev->tile);
}

static vptq_status cuda_alloc(vptq_dev *dev, size_t count, size_t size, void **ptr,
                              vptq_err *err)
{
    size_t bytes = 0;
    *ptr = NULL;
    if (!vptq_size_mul(count, size, &bytes))
        return vptq_fail(err, VPTQ_E_NOMEM, "cannot allocate %zu x %zu bytes of device memory",
                         count, size);
    const vptq_status st = vptq_cuda_alloc(dev, bytes, ptr, err);
    if (st != VPTQ_E_NOMEM || !dev->tile.at)
        return st;
    vptq_cuda_tile_close(dev);
    return vptq_cuda_alloc(dev, bytes, ptr, err);
}

/* cudaFree may return before work that is queued has ended, and the next array at this address
 * may be uploaded without waiting for the stream. */
static void cuda_release(vptq_dev *dev, void *ptr)
{
    if (ptr)
        (void)cudaStreamSynchronize(dev->stream);
    (void)cudaFree(ptr);
}

static size_t cuda_left(const vptq_dev *)
{
    size_t left = 0, total = 0;
    if (cudaMemGetInfo(&left, &total)) {
        (void)cudaGetLastError(); /* the next op reports the error */
        return 0;
    }
    return left;
}

vptq_status vptq_cuda_download(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                               vptq_err *err)
{
    cudaError_t e = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, dev->stream);
    if (!e)
        e = cudaStreamSynchronize(dev->stream);
    return vptq_cuda_check(e, "a download", err);
}

static vptq_status cuda_copy(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                             vptq_err *err)
{
    return vptq_cuda_check(
        cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, dev->stream), "a copy", err);
}

static vptq_status cuda_clear(vptq_dev *dev, void *dst, size_t bytes, vptq_err *err)
{
    return vptq_cuda_check(cudaMemsetAsync(dst, 0, bytes, dev->stream), "clearing memory", err);
}

static vptq_status cuda_sync(vptq_dev *dev, vptq_err *err)
{
    return vptq_cuda_check(cudaStreamSynchronize(dev->stream), "work", err);
}

static size_t cuda_cache_bytes(const vptq_dev *dev)
{
    return dev->properties.l2CacheSize > 0 ? (size_t)dev->properties.l2CacheSize : 0;
}

/* ---- the table ---- */

#define TABLE_OP(op) .op = vptq_cuda_##op,
static const vptq_backend cuda_table = {.name = "cuda",
                                        .host_memory = false,
                                        .gemv_max_tokens = VPTQ_CUDA_GEMM_BATCH,
                                        .open = cuda_open,
                                        .close = cuda_close,
                                        .describe = cuda_describe,
                                        .libraries = vptq_cuda_library_describe,
                                        .alloc = cuda_alloc,
                                        .release = cuda_release,
                                        .left = cuda_left,
                                        .upload = vptq_cuda_upload,
                                        .upload_new = vptq_cuda_upload_new,
                                        .download = vptq_cuda_download,
                                        .copy = cuda_copy,
                                        .clear = cuda_clear,
                                        .sync = cuda_sync,
                                        .cache_bytes = cuda_cache_bytes,
                                        .measure = vptq_cuda_measure,
                                        .library_half = vptq_cuda_library_half,
                                        .reassign = vptq_cuda_assign,
                                        VPTQ_BACKEND_OPS(TABLE_OP)};

extern "C" const vptq_backend *vptq_backend_cuda(void)
{
    return &cuda_table;
}
