enum { WIDTH = 8 };

#include "kmeans/kmeans_seed_body.h"

const vptq_seed_loops vptq_seed_loops_avx2 = {add, probe};
