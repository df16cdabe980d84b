/* The emulator's device: its properties, error codes, attributes of kernels, and conversions of
 * 16-bit numbers. */
#include "tests/emu/cuda_emu.h"

#include <stdio.h>

extern "C" {
#include "lib/base/half.h"
}

enum {
    DEFAULT_SHARED = 48 << 10, /* of shared memory without the attribute */
    KERNELS = 256              /* with the attribute */
};

static const cuda_emu_machine default_machine = {true, 13000, 13000, 9, 0, 0};

static struct {
    cudaError_t last_error;
    struct {
        const void *kernel;
        size_t bytes;
    } allowed[KERNELS];
    unsigned allowed_count;
    bool no_libraries;
    cuda_emu_machine machine;
} emulated = {.machine = default_machine};

cudaError_t cuda_emu_remember(cudaError_t e)
{
    if (e)
        emulated.last_error = e;
    return e;
}

int cuda_emu_attribute_set(const void *kernel, int otherwise)
{
    for (unsigned i = 0; i < emulated.allowed_count; i++)
        if (emulated.allowed[i].kernel == kernel)
            return (int)emulated.allowed[i].bytes;
    return otherwise;
}

size_t cuda_emu_dynamic_limit(const void *kernel)
{
    return (size_t)cuda_emu_attribute_set(kernel, DEFAULT_SHARED);
}

static size_t shared_bytes(void)
{
    return emulated.machine.shared ? emulated.machine.shared : (size_t)CUDA_EMU_SHARED_BYTES;
}

size_t cuda_emu_shared_limit(const void *kernel)
{
    for (unsigned i = 0; i < emulated.allowed_count; i++)
        if (emulated.allowed[i].kernel == kernel)
            return shared_bytes();
    return DEFAULT_SHARED;
}

void cuda_emu_libraries(bool there)
{
    emulated.no_libraries = !there;
}

bool cuda_emu_has_libraries(void)
{
    return !emulated.no_libraries;
}

const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInvalidConfiguration:
        return "invalid configuration argument";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorECCUncorrectable:
        return "uncorrectable ECC error encountered";
    case cudaErrorIllegalAddress:
        return "an illegal memory access was encountered";
    case cudaErrorLaunchOutOfResources:
        return "too many resources requested for launch";
    case cudaErrorAssert:
        return "a pinned buffer was changed while a copy from it was under way";
    case cudaErrorStreamCaptureUnsupported:
        return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
        return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureIsolation:
        return "dependency created on uncaptured work in another stream";
    case cudaErrorLaunchFailure:
        return cuda_emu_report();
    }
    return "unknown error";
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t e = emulated.last_error;
    emulated.last_error = cuda_emu_broken();
    return e;
}

void cuda_emu_be(const cuda_emu_machine *machine)
{
    emulated.machine = machine ? *machine : default_machine;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    const cuda_emu_machine *m = &emulated.machine;
    *count = m->device ? 1 : 0;
    if (m->driver < m->runtime)
        return cuda_emu_remember(cudaErrorInsufficientDriver);
    return m->device ? cudaSuccess : cuda_emu_remember(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
    return device ? cuda_emu_remember(cudaErrorInvalidValue) : cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    if (device)
        return cuda_emu_remember(cudaErrorInvalidValue);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated device");
    size_t left;
    (void)cudaMemGetInfo(&left, &p->totalGlobalMem);
    p->sharedMemPerBlockOptin = shared_bytes();
    p->major = emulated.machine.major;
    p->minor = emulated.machine.minor;
    p->multiProcessorCount = 4;
    p->l2CacheSize = 1 << 20;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = emulated.machine.runtime;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = emulated.machine.driver;
    return cudaSuccess;
}

cudaError_t cuda_emu_attribute(const void *kernel, cudaFuncAttribute, int value)
{
    unsigned i = 0;
    while (i < emulated.allowed_count && emulated.allowed[i].kernel != kernel)
        i++;
    if (i == KERNELS || value < 0 || (size_t)value > shared_bytes())
        return cuda_emu_remember(cudaErrorInvalidValue);
    emulated.allowed[i] = {kernel, (size_t)value};
    emulated.allowed_count = i == emulated.allowed_count ? i + 1 : emulated.allowed_count;
    return cudaSuccess;
}

/* ---- numbers of 16 bits ---- */

__half __float2half_rn(float f)
{
    return {vptq_f32_to_f16(f)};
}

float __half2float(__half h)
{
    return vptq_f16_to_f32(h.bits);
}

__nv_bfloat16 __float2bfloat16_rn(float f)
{
    return {vptq_f32_to_bf16(f)};
}

float __bfloat162float(__nv_bfloat16 b)
{
    return vptq_bf16_to_f32(b.bits);
}
