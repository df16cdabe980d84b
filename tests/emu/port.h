/* The device-specific part of lib/backend/cuda/port.h under the emulator: same functions and
 * contracts as port_gpu.h. */
#ifndef VPTQ_TESTS_EMU_PORT_H
#define VPTQ_TESTS_EMU_PORT_H

#include "tests/emu/cuda_emu.h"

static const unsigned port_emu_warp = 0xffffffffu;

static inline double port_launch_work(void)
{
    return cuda_emu_work_limit() > 0 ? cuda_emu_work_limit() : 1e12;
}

/* ---- launches and shared memory ---- */

template <class... P>
static inline cudaError_t port_start(void (*kernel)(P...), dim3 grid, dim3 block,
                                     size_t dynamic, cudaStream_t stream, P... args)
{
    return cuda_emu_launch(false, kernel, grid, block, dynamic, stream, args...);
}

template <class... P>
static inline cudaError_t port_start_early(void (*kernel)(P...), dim3 grid, dim3 block,
                                           size_t dynamic, cudaStream_t stream, P... args)
{
    return cuda_emu_launch(true, kernel, grid, block, dynamic, stream, args...);
}

template <class... P> static inline cudaError_t port_prefer_shared(void (*)(P...))
{
    return cudaSuccess;
}

static inline void port_grid_wait(void)
{
    cuda_emu_grid_wait();
}
/* The next kernel starts as early as it may, whether this is called or not. */
static inline void port_grid_release(void) {}

template <class T> static inline T &port_shared(CUDA_EMU_SITE)
{
    static const char key = 0;
    return *static_cast<T *>(cuda_emu_shared(&key, sizeof(T), site));
}

static inline void *port_shared_dynamic(void)
{
    return cuda_emu_shared_dynamic();
}

/* ---- tensor cores ---- */

/* Returns the row address of every lane. */
static inline const cuda_emu_words *port_emu_rows(const void *row, cuda_emu_site site)
{
    if (!cuda_emu_is_shared(row, 16) || reinterpret_cast<uintptr_t>(row) % 16)
        cuda_emu_fail(site, "ldmatrix of a row that is not 16 aligned bytes of shared memory");
    return cuda_emu_exchange("ldmatrix", port_emu_warp, cuda_emu_pack(row), false, site);
}

static inline void port_ldmatrix(uint32_t r[4], const void *row, CUDA_EMU_SITE)
{
    const cuda_emu_words *rows = port_emu_rows(row, site);
    const unsigned lane = cuda_emu_lane();
    for (unsigned i = 0; i < 4; i++) {
        const uint16_t *pair =
            cuda_emu_unpack<const uint16_t *>(rows[8 * i + lane / 4]) + lane % 4 * 2;
        r[i] = pair[0] | (uint32_t)pair[1] << 16;
    }
}

static inline void port_ldmatrix_trans(uint32_t r[4], const void *row, CUDA_EMU_SITE)
{
    const cuda_emu_words *rows = port_emu_rows(row, site);
    const unsigned lane = cuda_emu_lane();
    for (unsigned i = 0; i < 4; i++) {
        const unsigned first = 8 * i + lane % 4 * 2;
        const uint16_t *lo = cuda_emu_unpack<const uint16_t *>(rows[first]);
        const uint16_t *hi = cuda_emu_unpack<const uint16_t *>(rows[first + 1]);
        r[i] = lo[lane / 4] | (uint32_t)hi[lane / 4] << 16;
    }
}

static inline float port_emu_f16(uint32_t pair, unsigned high)
{
    return __half2float(__ushort_as_half((unsigned short)(pair >> 16 * high)));
}

static inline void port_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2],
                                CUDA_EMU_SITE)
{
    cuda_emu_mma(d, a, b, site);
}
static inline void port_mma_f16_first(float d[4], const uint32_t a[4], const uint32_t b[2],
                                      CUDA_EMU_SITE)
{
    d[0] = d[1] = d[2] = d[3] = 0;
    port_mma_f16(d, a, b, site);
}

static inline int32_t port_emu_s8(uint32_t four, unsigned i)
{
    return (int8_t)(four >> 8 * i & 0xff);
}

static inline void port_mma_s8(int32_t d[4], const uint32_t a[4], const uint32_t b[2])
{
    const cuda_emu_words given = {{a[0], a[1], a[2], a[3], b[0], b[1]}};
    const cuda_emu_words *all =
        cuda_emu_exchange("mma.s8", port_emu_warp, given, false, {__FILE__, __LINE__});
    const unsigned lane = cuda_emu_lane();
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (unsigned k = 0; k < 32; k++) {
            const uint32_t four_a = all[row % 8 * 4 + k % 16 / 4].word[row / 8 + k / 16 * 2];
            const uint32_t four_b = all[column * 4 + k % 16 / 4].word[4 + k / 16];
            d[i] += port_emu_s8(four_a, k % 4) * port_emu_s8(four_b, k % 4);
        }
    }
}

static inline void port_mma_f64(double d[2], double a, double b, CUDA_EMU_SITE)
{
    struct elements {
        double a, b;
    };
    const cuda_emu_words *all =
        cuda_emu_exchange("mma.f64", port_emu_warp, cuda_emu_pack(elements{a, b}), false, site);
    const unsigned lane = cuda_emu_lane();
    for (unsigned i = 0; i < 2; i++)
        for (unsigned k = 0; k < 4; k++) {
            const unsigned row = lane / 4, column = lane % 4 * 2 + i;
            d[i] = fma(cuda_emu_unpack<elements>(all[row * 4 + k]).a,
                       cuda_emu_unpack<elements>(all[column * 4 + k]).b, d[i]);
        }
}

static inline uint32_t port_permute(uint32_t a, uint32_t b, uint32_t select)
{
    const uint64_t both = a | (uint64_t)b << 32;
    uint32_t result = 0;
    for (unsigned i = 0; i < 4; i++)
        result |= (uint32_t)(both >> 8 * (select >> 4 * i & 7) & 0xff) << 8 * i;
    return result;
}

static inline uint32_t port_add_f16x2(uint32_t a, uint32_t b)
{
    uint32_t sum = 0;
    for (unsigned i = 0; i < 2; i++) /* float is wide enough that rounding twice is harmless */
        sum |=
            (uint32_t)__half_as_ushort(__float2half_rn(port_emu_f16(a, i) + port_emu_f16(b, i)))
            << 16 * i;
    return sum;
}

static inline unsigned port_redux_min(unsigned mask, unsigned value)
{
    return __reduce_min_sync(mask, value);
}

static inline void port_prefetch(const void *) {}

/* ---- asynchronous copies ---- */

static inline void port_copy_async(void *to, const void *from, CUDA_EMU_SITE)
{
    cuda_emu_copy_async(to, from, 16, site);
}
static inline void port_copy_async_word(void *to, const void *from, CUDA_EMU_SITE)
{
    cuda_emu_copy_async(to, from, 4, site);
}
static inline void port_copy_commit(void)
{
    cuda_emu_copy_commit();
}
template <unsigned LEFT> static inline void port_copy_wait(void)
{
    cuda_emu_copy_wait(LEFT);
}

#endif
