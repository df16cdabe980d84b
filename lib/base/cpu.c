/* Detects the vector instructions of this CPU (cpu.h). */
#include "lib/base/cpu.h"

#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__x86_64__)
#include <cpuid.h>

/* The builtins read the result of the compiler's start-up code.  The cpuid instruction traps in
 * virtual machines and costs microseconds, so it is used only if the compiler does not know
 * "f16c" by name (bit 29 of leaf 1). */
static bool has_f16c(void)
{
#if defined(__clang__)
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & 1u << 29);
#else
    return __builtin_cpu_supports("f16c");
#endif
}

static vptq_simd detect(void)
{
    if (!has_f16c() || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return VPTQ_SIMD_NONE;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return VPTQ_SIMD_AVX512;
    return VPTQ_SIMD_AVX2;
}
#elif defined(__aarch64__)
static vptq_simd detect(void)
{
    return VPTQ_SIMD_NEON;
}
#else
static vptq_simd detect(void)
{
    return VPTQ_SIMD_NONE;
}
#endif

const char *vptq_simd_name(vptq_simd s)
{
    switch (s) {
    case VPTQ_SIMD_NONE:
        return "none";
    case VPTQ_SIMD_AVX2:
        return "avx2";
    case VPTQ_SIMD_AVX512:
        return "avx512";
    case VPTQ_SIMD_NEON:
        return "neon";
    }
    return "none";
}

bool vptq_cpu_has(vptq_simd s)
{
    const vptq_simd best = detect();
    return s == VPTQ_SIMD_NONE || s == best ||
           (s == VPTQ_SIMD_AVX2 && best == VPTQ_SIMD_AVX512);
}

vptq_simd vptq_cpu_simd(void)
{
    const char *wish = getenv("VPTQ_SIMD");
    for (int s = VPTQ_SIMD_NONE; wish && s <= VPTQ_SIMD_NEON; s++)
        if (!strcmp(wish, vptq_simd_name((vptq_simd)s)) && vptq_cpu_has((vptq_simd)s))
            return (vptq_simd)s;
    return detect();
}

#if defined(__x86_64__) && defined(__linux__)

/* Asks the system for the tile registers, which it saves only for processes that want them. */
static bool may_use_tiles(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* asm/prctl.h, from 5.16 on */
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static bool has_amx(void)
{
    const unsigned wanted = 1U << 22 | 1U << 24 | 1U << 25; /* bfloat16, tiles, int8 */
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return detect() == VPTQ_SIMD_AVX512 && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) &&
           (edx & wanted) == wanted && may_use_tiles();
}

#else

static bool has_amx(void)
{
    return false;
}

#endif

bool vptq_cpu_amx(void)
{
    return !getenv("VPTQ_SIMD") && has_amx();
}
