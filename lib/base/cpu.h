/* Internal: the vector instructions of this CPU; no hidden state. */
#ifndef VPTQ_BASE_CPU_H
#define VPTQ_BASE_CPU_H

#include <stdbool.h>

typedef enum {
    VPTQ_SIMD_NONE = 0,
    VPTQ_SIMD_AVX2 = 1,   /* AVX2 + FMA + F16C */
    VPTQ_SIMD_AVX512 = 2, /* AVX-512 F, BW, DQ, VL on top */
    VPTQ_SIMD_NEON = 3    /* of aarch64 */
} vptq_simd;

/* Whether this machine has the instructions of a level. */
bool vptq_cpu_has(vptq_simd s);

/* The fastest level of this machine, or the one that the environment variable
 * VPTQ_SIMD=none|avx2|avx512|neon names, if the machine has it.  The level is a matter of
 * speed: all give the same bits. */
vptq_simd vptq_cpu_simd(void);
/* Whether AMX may multiply bfloat16 numbers and bytes: the machine has it, the system lets this
 * process use it, and VPTQ_SIMD is not set. */
bool vptq_cpu_amx(void);
const char *vptq_simd_name(vptq_simd s);

/* Declares the tables `name` of all levels. */
#define VPTQ_SIMD_TABLES(type, name)                                                           \
    extern const type name##_none, name##_avx2, name##_avx512, name##_neon

/* Pointer to the table `name` of a level: a *_simd.c file defines name_none and, on x86-64,
 * name_avx2 and name_avx512, on aarch64 name_neon (lib/base/simd.h). */
#if defined(__x86_64__)
#define VPTQ_SIMD_SELECT(simd, name)                                                           \
    ((simd) == VPTQ_SIMD_AVX512 ? &name##_avx512                                               \
     : (simd) == VPTQ_SIMD_AVX2 ? &name##_avx2                                                 \
                                : &name##_none)
#elif defined(__aarch64__)
#define VPTQ_SIMD_SELECT(simd, name) ((simd) == VPTQ_SIMD_NEON ? &name##_neon : &name##_none)
#else
#define VPTQ_SIMD_SELECT(simd, name) ((void)(simd), &name##_none)
#endif

#endif
