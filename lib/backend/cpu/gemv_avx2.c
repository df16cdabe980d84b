#include "lib/backend/cpu/gemv_body.h"

const vptq_gemv_kernels vptq_gemv_kernels_avx2 = {fields, block, dot, panel_rows};
