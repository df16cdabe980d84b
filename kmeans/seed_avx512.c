#include <immintrin.h>

enum { WIDTH = 16 };
typedef float floats __attribute__((vector_size(64)));

static inline floats mul_add(floats a, floats b, floats c)
{
    return (floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

#include "kmeans/seed_body.h"

const vptq_seed_loops vptq_seed_loops_avx512 = {add, probe};
