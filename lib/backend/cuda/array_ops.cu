/* The ops of array_ops.h. Elementwise kernels give the bits of `ref`; sums are added within
 * chunks of fixed size and then over the chunks, in a fixed order. */
#include <math.h>

#include "lib/backend/cuda/cuda.h"

enum { THREADS = 256, CHUNK = 4096 };

/* Rows [first, last) of column `column`: the share of a block if each column takes `chunks`
 * blocks. */
struct share {
    size_t column, first, last;
};
static __device__ inline share share_of(size_t rows, unsigned chunks)
{
    const size_t first = (size_t)(blockIdx.x % chunks) * CHUNK;
    return {blockIdx.x / chunks, first + threadIdx.x, min(first + CHUNK, rows)};
}

/* Starts a kernel whose first two arguments are the args and the chunks of a column. */
template <class K, class A>
static vptq_status over_columns(vptq_dev *dev, const char *op, K kernel, const A &args,
                                size_t cols, size_t rows, vptq_err *err)
{
    const unsigned chunks = vptq_cuda_blocks(rows, CHUNK);
    if (!cols || !rows)
        return VPTQ_OK;
    return vptq_cuda_check(
        port_launch(kernel, (unsigned)(cols * chunks), THREADS, 0, dev->stream, args, chunks),
        op, err);
}

/* Starts kernel(args) with a thread for each of args.n elements. */
template <class A>
static vptq_status each_element(vptq_dev *dev, const char *op, void (*kernel)(A), const A &args,
                                vptq_err *err)
{
    if (!args.n)
        return VPTQ_OK;
    return vptq_cuda_check(
        port_launch(kernel, vptq_cuda_blocks(args.n, THREADS), THREADS, 0, dev->stream, args),
        op, err);
}

/* ---- checks and statistics of weights ---- */

/* at[0] = the first chunk with an element outside, at[1] = its offset in that chunk; both start
 * at their largest value. With `found` the one block searches chunk at[0]. */
/* budget: outside_kernel 32 registers */
__global__ static void __launch_bounds__(THREADS)
    outside_kernel(vptq_outside_args a, bool found, unsigned *at)
{
    const size_t chunk = found ? at[0] : blockIdx.x, first = chunk * CHUNK;
    for (unsigned i = threadIdx.x; i < CHUNK && first + i < a.n; i += THREADS)
        if (!(a.x[first + i] >= a.min && a.x[first + i] <= a.max)) {
            atomicMin(found ? at + 1 : at, found ? i : (unsigned)chunk);
            break;
        }
}

vptq_status vptq_cuda_first_outside(vptq_dev *dev, const vptq_outside_args *a, vptq_err *err)
{
    void *memory = NULL;
    unsigned at[2];
    *a->first = a->n;
    if (!a->n)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_cuda_scratch(dev, sizeof at, &memory, err));
    unsigned *on = static_cast<unsigned *>(memory);
    cudaError_t e = cudaMemsetAsync(on, 0xff, sizeof at, dev->stream);
    if (!e)
        e = port_launch(outside_kernel, vptq_cuda_blocks(a->n, CHUNK), THREADS, 0, dev->stream,
                        *a, false, on);
    if (!e)
        e = port_launch(outside_kernel, 1, THREADS, 0, dev->stream, *a, true, on);
    if (e)
        return vptq_cuda_check(e, "first_outside", err);
    VPTQ_CHECK(vptq_cuda_download(dev, at, on, sizeof at, err));
    if (at[0] != 0xffffffffu)
        *a->first = (size_t)at[0] * CHUNK + at[1];
    return VPTQ_OK;
}

enum { NORM_ROWS = 256 };
enum statistic { SUM, SQUARES, RANGE };

/* A block of columns over a chunk of rows: x [chunks][in] = their sum, or sum of squared
 * distances from the bias, or minimum; y [chunks][in] = their maximum. */
/* budget: norms_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS)
    norms_kernel(vptq_norms_args a, statistic what, double *x, double *y)
{
    const size_t c = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const size_t first = (size_t)blockIdx.y * NORM_ROWS, last = min(first + NORM_ROWS, a.out);
    if (c >= a.in)
        return;
    double low = what == RANGE ? (double)a.w[first * a.in + c] : 0, high = low;
    for (size_t r = first; r < last; r++) {
        const double w = (double)a.w[r * a.in + c];
        if (what == RANGE) {
            low = w < low ? w : low;
            high = w > high ? w : high;
        } else {
            const double d = what == SQUARES ? w - a.bias[c] : w;
            low += what == SQUARES ? d * d : d;
        }
    }
    x[blockIdx.y * a.in + c] = low;
    if (what == RANGE)
        y[blockIdx.y * a.in + c] = high;
}

/* Combines the chunks. */
/* budget: norms_end_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS)
    norms_end_kernel(vptq_norms_args a, statistic what, unsigned chunks, const double *x,
                     const double *y)
{
    const size_t c = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (c >= a.in)
        return;
    double low = x[c], high = what == RANGE ? y[c] : 0;
    for (unsigned k = 1; k < chunks; k++) {
        const double v = x[k * a.in + c], w = what == RANGE ? y[k * a.in + c] : 0;
        if (what == RANGE) {
            low = v < low ? v : low;
            high = w > high ? w : high;
        } else {
            low += v;
        }
    }
    if (what == SUM)
        a.bias[c] = low / (double)a.out;
    if (what == SQUARES)
        a.scale[c] = sqrt(low / (double)a.out);
    if (what == RANGE) {
        a.bias[c] = low;
        a.scale[c] = high - low;
    }
}

static cudaError_t measure(vptq_dev *dev, const vptq_norms_args *a, statistic what, double *x)
{
    const unsigned chunks = vptq_cuda_blocks(a->out, NORM_ROWS);
    const unsigned columns = vptq_cuda_blocks(a->in, THREADS);
    double *y = x + chunks * a->in;
    const cudaError_t e = port_launch(norms_kernel, dim3(columns, chunks), THREADS, 0,
                                      dev->stream, *a, what, x, y);
    return e ? e
             : port_launch(norms_end_kernel, columns, THREADS, 0, dev->stream, *a, what, chunks,
                           x, y);
}

vptq_status vptq_cuda_column_norms(vptq_dev *dev, const vptq_norms_args *a, vptq_err *err)
{
    const size_t parts = 2 * (size_t)vptq_cuda_blocks(a->out, NORM_ROWS) * a->in;
    void *memory = NULL;
    VPTQ_CHECK(vptq_cuda_scratch(dev, parts * sizeof(double), &memory, err));
    double *x = static_cast<double *>(memory);
    cudaError_t e = measure(dev, a, a->range ? RANGE : SUM, x);
    if (!e && !a->range)
        e = measure(dev, a, SQUARES, x);
    return vptq_cuda_check(e, "column_norms", err);
}

enum { SIDE = 32, STRIDE = THREADS / SIDE };

struct square_tile {
    float at[SIDE][SIDE + 1];
};

/* A tile of 32 positions and 32 rows, transposed through shared memory. */
/* budget: normalize_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS)
    normalize_kernel(vptq_normalize_args a, unsigned row_tiles)
{
    square_tile &t = port_shared<square_tile>();
    const unsigned lane = threadIdx.x % SIDE, step = threadIdx.x / SIDE;
    const size_t i0 = (size_t)(blockIdx.x / row_tiles) * SIDE;
    const size_t r0 = (size_t)(blockIdx.x % row_tiles) * SIDE;
    if (i0 + lane < a.in) {
        const size_t c = a.order[i0 + lane];
        for (unsigned k = step; k < SIDE; k += STRIDE)
            t.at[k][lane] =
                r0 + k < a.out ? (a.w[(r0 + k) * a.in + c] - a.bias[c]) / a.scale[c] : 0.0f;
    }
    __syncthreads();
    for (unsigned k = step; k < SIDE; k += STRIDE)
        if (i0 + k < a.in && r0 + lane < a.rows)
            a.z[(i0 + k) * a.rows + r0 + lane] = t.at[lane][k];
}

vptq_status vptq_cuda_normalize(vptq_dev *dev, const vptq_normalize_args *a, vptq_err *err)
{
    const unsigned row_tiles = vptq_cuda_blocks(a->rows, SIDE);
    return vptq_cuda_check(port_launch(normalize_kernel,
                                       vptq_cuda_blocks(a->in, SIDE) * row_tiles, THREADS, 0,
                                       dev->stream, *a, row_tiles),
                           "normalize", err);
}

/* ---- symmetric matrices ---- */

/* Entry (i, j) for j <= i. */
static __device__ inline double metric_entry(const vptq_metric_args &a, size_t i, size_t j)
{
    const size_t at = a.reversed ? a.n - 1 - i : i, with = a.reversed ? a.n - 1 - j : j;
    const size_t o = a.order ? a.order[at] : at, p = a.order ? a.order[with] : with;
    const size_t high = max(o, p), low = min(o, p);
    double h = (double)a.lower[high * (high + 1) / 2 + low];
    if (a.divisor != 1)
        h /= a.divisor;
    if (i == j)
        h += a.ridge;
    if (a.scale)
        h = (double)a.scale[o] * h * (double)a.scale[p];
    return i == j ? h + a.damping : h;
}

/* Part of row i: of the lower triangle for a, of the whole row for h. */
/* budget: metric_kernel 56 registers */
__global__ static void __launch_bounds__(THREADS)
    metric_kernel(vptq_metric_args a, unsigned chunks)
{
    const share s = share_of(a.n, chunks);
    const size_t i = s.column;
    for (size_t j = s.first; j < s.last; j += THREADS) {
        if (!a.h && j > i)
            break;
        const double h = metric_entry(a, max(i, j), min(i, j));
        if (a.h)
            a.h[i * a.n + j] = (float)h;
        if (a.a && j <= i)
            a.a[i * a.n + j] = h;
    }
}

/* budget: metric_diagonal_kernel 48 registers */
__global__ static void __launch_bounds__(THREADS) metric_diagonal_kernel(vptq_metric_args a)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < a.n)
        a.diag[i] = metric_entry(a, i, i);
}

vptq_status vptq_cuda_metric(vptq_dev *dev, const vptq_metric_args *a, vptq_err *err)
{
    if (a->diag)
        VPTQ_CHECK(
            vptq_cuda_check(port_launch(metric_diagonal_kernel, vptq_cuda_blocks(a->n, THREADS),
                                        THREADS, 0, dev->stream, *a),
                            "metric", err));
    return a->a || a->h ? over_columns(dev, "metric", metric_kernel, *a, a->n, a->n, err)
                        : VPTQ_OK;
}

/* Adds a part of one row. */
/* budget: add_packed_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS)
    add_packed_kernel(vptq_packed_args a, unsigned chunks)
{
    const share s = share_of(a.n, chunks);
    const size_t i = s.column, last = a.lower ? min(s.last, i + 1) : s.last;
    double *to = a.packed + (a.lower ? i * (i + 1) / 2 : i * a.n);
    for (size_t j = s.first; j < last; j += THREADS)
        to[j] = a.first ? a.x[i * a.n + j] : to[j] + a.x[i * a.n + j];
}

vptq_status vptq_cuda_add_packed(vptq_dev *dev, const vptq_packed_args *a, vptq_err *err)
{
    return over_columns(dev, "add_packed", add_packed_kernel, *a, a->rows, a->n, err);
}

/* budget: reverse_kernel 32 registers */
__global__ static void __launch_bounds__(THREADS)
    reverse_kernel(vptq_upper_args a, unsigned chunks)
{
    const share s = share_of(a.n, chunks);
    const size_t i = s.column, n = a.n;
    for (size_t j = s.first; j < s.last; j += THREADS)
        a.u[i * n + j] = j < i ? 0.0f : (float)a.a[(n - 1 - i) * n + (n - 1 - j)];
}

vptq_status vptq_cuda_reverse_upper(vptq_dev *dev, const vptq_upper_args *a, vptq_err *err)
{
    return over_columns(dev, "reverse_upper", reverse_kernel, *a, a->n, a->n, err);
}

/* ---- matrices by columns ---- */

/* budget: subtract_kernel 32 registers */
__global__ static void __launch_bounds__(THREADS)
    subtract_kernel(vptq_subtract_args a, unsigned chunks)
{
    const share s = share_of(a.rows, chunks);
    for (size_t r = s.first; r < s.last; r += THREADS)
        a.z[s.column * a.ldz + r] = a.x[s.column * a.ldx + r] - a.y[s.column * a.ldy + r];
}

vptq_status vptq_cuda_subtract(vptq_dev *dev, const vptq_subtract_args *a, vptq_err *err)
{
    return over_columns(dev, "subtract", subtract_kernel, *a, a->cols, a->rows, err);
}

/* budget: affine_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS)
    affine_kernel(vptq_affine_args a, unsigned chunks)
{
    const share s = share_of(a.rows, chunks);
    const size_t t = s.column;
    for (size_t r = s.first; r < s.last; r += THREADS) {
        float y = 0;
        if (r < a.valid && a.x) {
            y = a.x[t * a.ldx + r];
            y = a.a ? a.a[t] * y : y;
            y = a.b ? y + a.b[t] : y;
        } else if (r < a.valid && a.b) {
            y = a.b[t];
        }
        a.y[t * a.ldy + r] = y;
    }
}

vptq_status vptq_cuda_affine(vptq_dev *dev, const vptq_affine_args *a, vptq_err *err)
{
    return over_columns(dev, "affine", affine_kernel, *a, a->cols, a->rows, err);
}

/* Adds up a chunk of a column; a.sums [cols][chunks]. */
/* budget: dots_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS) dots_kernel(vptq_dots_args a, unsigned chunks)
{
    const share s = share_of(a.rows, chunks);
    const float *x = a.x + s.column * a.ldx, *y = a.y ? a.y + s.column * a.ldy : NULL;
    double sum = 0;
    for (size_t r = s.first; r < s.last; r += THREADS)
        sum += y ? (double)x[r] * (double)y[r] : (double)x[r];
    sum = port_block_sum(sum);
    if (threadIdx.x == 0)
        a.sums[blockIdx.x] = sum;
}

/* sums[t] = the sum of of[t][count]; a block for each t. */
/* budget: row_sums_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS)
    row_sums_kernel(size_t count, const double *of, double *sums)
{
    double sum = 0;
    for (size_t i = threadIdx.x; i < count; i += THREADS)
        sum += of[blockIdx.x * count + i];
    sum = port_block_sum(sum);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = sum;
}

vptq_status vptq_cuda_column_dots(vptq_dev *dev, const vptq_dots_args *a, vptq_err *err)
{
    const size_t chunks = vptq_cuda_blocks(a->rows, CHUNK);
    vptq_dots_args parts = *a;
    void *memory = NULL;
    if (!a->cols)
        return VPTQ_OK;
    if (!a->rows)
        return vptq_cuda_check(
            cudaMemsetAsync(a->sums, 0, a->cols * sizeof *a->sums, dev->stream), "column_dots",
            err);
    if (chunks > 1) {
        VPTQ_CHECK(vptq_cuda_scratch(dev, a->cols * chunks * sizeof *a->sums, &memory, err));
        parts.sums = static_cast<double *>(memory);
    }
    VPTQ_CHECK(over_columns(dev, "column_dots", dots_kernel, parts, a->cols, a->rows, err));
    return chunks > 1
               ? vptq_cuda_check(port_launch(row_sums_kernel, (unsigned)a->cols, THREADS, 0,
                                             dev->stream, chunks, parts.sums, a->sums),
                                 "column_dots", err)
               : VPTQ_OK;
}

/* A thread solves for one row of all columns. */
/* budget: solve_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS) solve_kernel(vptq_solve_args a, size_t first)
{
    const size_t r = first + (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (r >= a.rows)
        return;
    for (size_t t = 0; t < a.cols; t++) {
        float x = a.x[t * a.ldx + r];
        for (size_t s = 0; s < t; s++)
            x -= a.u[s * a.ldu + t] * a.x[s * a.ldx + r];
        a.x[t * a.ldx + r] = x / a.u[t * a.ldu + t];
    }
}

vptq_status vptq_cuda_solve_upper(vptq_dev *dev, const vptq_solve_args *a, vptq_err *err)
{
    const auto launch = [&](size_t first, size_t count) {
        return port_launch(solve_kernel, vptq_cuda_blocks(count, THREADS), THREADS, 0,
                           dev->stream, *a, first);
    };
    return vptq_cuda_in_pieces(dev, "solve_upper", a->rows, (double)(a->cols * a->cols),
                               THREADS, launch, err);
}

/* ---- conjugate gradients ---- */

/* Adds up `count` numbers and downloads the sum. */
static vptq_status fetch_total(vptq_dev *dev, const char *op, size_t count, const double *parts,
                               double *at, double *sum, vptq_err *err)
{
    VPTQ_CHECK(vptq_cuda_check(vptq_cuda_total(dev, count, parts, at), op, err));
    return vptq_cuda_download(dev, sum, at, sizeof *sum, err);
}

/* budget: dot_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS) dot_kernel(vptq_dot_args a, double *parts)
{
    const share s = share_of(a.n, gridDim.x);
    double sum = 0;
    for (size_t i = s.first; i < s.last; i += THREADS)
        sum += a.x[i] * a.y[i];
    sum = port_block_sum(sum);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

/* Sums what the blocks of kernel(args, parts) leave, for n elements. */
template <class A>
static vptq_status sum_parts(vptq_dev *dev, const char *op, void (*kernel)(A, double *),
                             const A &args, double *sum, vptq_err *err)
{
    const unsigned chunks = vptq_cuda_blocks(args.n, CHUNK);
    void *memory = NULL;
    VPTQ_CHECK(vptq_cuda_scratch(dev, (chunks + 1) * sizeof(double), &memory, err));
    double *total = static_cast<double *>(memory), *parts = total + 1;
    if (chunks)
        VPTQ_CHECK(vptq_cuda_check(
            port_launch(kernel, chunks, THREADS, 0, dev->stream, args, parts), op, err));
    return fetch_total(dev, op, chunks, parts, total, sum, err);
}

vptq_status vptq_cuda_dot(vptq_dev *dev, const vptq_dot_args *a, vptq_err *err)
{
    return sum_parts(dev, "dot", dot_kernel, *a, a->sum, err);
}

/* budget: cg_step_kernel 48 registers */
__global__ static void __launch_bounds__(THREADS)
    cg_step_kernel(vptq_cg_step_args a, double *parts)
{
    const share s = share_of(a.n, gridDim.x);
    double sum = 0;
    for (size_t i = s.first; i < s.last; i += THREADS) {
        a.x[i] += a.alpha * a.d[i];
        const double r = a.r[i] - a.alpha * a.ad[i], z = a.m[i] > 0 ? r / a.m[i] : 0;
        a.r[i] = r;
        a.s[i] = z;
        sum += r * z;
    }
    sum = port_block_sum(sum);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

vptq_status vptq_cuda_cg_step(vptq_dev *dev, const vptq_cg_step_args *a, vptq_err *err)
{
    return sum_parts(dev, "cg_step", cg_step_kernel, *a, a->rho, err);
}

/* budget: cg_turn_kernel 32 registers */
__global__ static void __launch_bounds__(THREADS) cg_turn_kernel(vptq_cg_turn_args a)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.n)
        return;
    const double d = a.s[i] + a.beta * a.d[i];
    a.d[i] = d;
    a.rounded[i] = (float)d;
}

vptq_status vptq_cuda_cg_turn(vptq_dev *dev, const vptq_cg_turn_args *a, vptq_err *err)
{
    return each_element(dev, "cg_turn", cg_turn_kernel, *a, err);
}

/* budget: add_kernel 32 registers */
__global__ static void __launch_bounds__(THREADS) add_kernel(vptq_add_args a)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < a.n)
        a.y[i] = (float)((double)a.y[i] + a.x[i]);
}

vptq_status vptq_cuda_add_rounded(vptq_dev *dev, const vptq_add_args *a, vptq_err *err)
{
    return each_element(dev, "add_rounded", add_kernel, *a, err);
}

/* budget: add_widened_kernel 32 registers */
__global__ static void __launch_bounds__(THREADS) add_widened_kernel(vptq_widen_args a)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < a.n)
        a.sum[i] += (double)a.x[i];
}

vptq_status vptq_cuda_add_widened(vptq_dev *dev, const vptq_widen_args *a, vptq_err *err)
{
    return each_element(dev, "add_widened", add_widened_kernel, *a, err);
}

/* budget: narrow_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS) narrow_kernel(vptq_narrow_args a)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < a.n)
        a.y[i] = (float)(a.x[i] / a.divisor);
}

vptq_status vptq_cuda_narrow(vptq_dev *dev, const vptq_narrow_args *a, vptq_err *err)
{
    return each_element(dev, "narrow", narrow_kernel, *a, err);
}

/* ---- packing ---- */

/* Entry e of vector row i, or 0 beyond the last. */
static __device__ inline uint64_t entry_of(const vptq_pack_args &a, size_t e, size_t i)
{
    if (e >= a.cols)
        return 0;
    const size_t at = (a.column ? a.column[e] : e) * a.vector_rows + i;
    return a.idx[at] | (a.idx_res ? a.idx_res[at] << a.main_bits : 0);
}

/* A thread assembles one word: neighbouring threads take neighbouring vector rows. */
/* budget: pack_kernel 48 registers */
__global__ static void __launch_bounds__(THREADS) pack_kernel(vptq_pack_args a, unsigned blocks)
{
    const size_t i = (size_t)(blockIdx.x % blocks) * THREADS + threadIdx.x;
    const size_t w = blockIdx.x / blocks, first = w * 32;
    if (i >= a.vector_rows)
        return;
    uint32_t word = 0;
    for (size_t e = first / a.bits; e * a.bits < first + 32; e++) {
        const uint64_t entry = entry_of(a, e, i);
        const size_t bit = e * a.bits;
        word |= (uint32_t)(bit < first ? entry >> (first - bit) : entry << (bit - first));
    }
    a.words[i * a.ldw + w] = word;
}

vptq_status vptq_cuda_vq_pack(vptq_dev *dev, const vptq_pack_args *a, vptq_err *err)
{
    const unsigned blocks = vptq_cuda_blocks(a->vector_rows, THREADS);
    const size_t words = vptq_bits_words(a->cols, a->bits);
    if (!words || !blocks)
        return VPTQ_OK;
    return vptq_cuda_check(port_launch(pack_kernel, (unsigned)(words * blocks), THREADS, 0,
                                       dev->stream, *a, blocks),
                           "vq_pack", err);
}
