enum { WIDTH = 16 };

#include "kmeans/kmeans_seed_body.h"

const vptq_seed_loops vptq_seed_loops_avx512 = {add, probe};
