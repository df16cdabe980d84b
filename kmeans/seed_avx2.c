#include <immintrin.h>

enum { WIDTH = 8 };
typedef float floats __attribute__((vector_size(32)));

static inline floats mul_add(floats a, floats b, floats c)
{
    return (floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

#include "kmeans/seed_body.h"

const vptq_seed_loops vptq_seed_loops_avx2 = {add, probe};
