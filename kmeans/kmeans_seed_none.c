enum { WIDTH = 4 };

#include "kmeans/kmeans_seed_body.h"

const vptq_seed_loops vptq_seed_loops_none = {add, probe};
