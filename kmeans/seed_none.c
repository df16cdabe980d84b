enum { WIDTH = 4 };
typedef float floats __attribute__((vector_size(16)));

static inline floats mul_add(floats a, floats b, floats c)
{
    return a * b + c;
}

#include "kmeans/seed_body.h"

const vptq_seed_loops vptq_seed_loops_none = {add, probe};
