/* move_centroids and worst_vectors. The largest losses are found by radix selection over the
 * bits of the loss, and among equal losses over the bits of the index; the choice and its order
 * are those of `ref`. */
#include <stdlib.h>
#include <string.h>

#include "lib/backend/cuda/cuda.h"

enum { THREADS = 256, DIGITS = 256, DIGIT_BITS = 8 };

/* ---- move_centroids ---- */

/* A thread takes a centroid. parts [2][blocks]: squared moves and empty clusters. */
/* budget: move_kernel 48 registers */
__global__ static void __launch_bounds__(THREADS) move_kernel(vptq_move_args a, double *parts)
{
    const size_t j = (size_t)blockIdx.x * THREADS + threadIdx.x;
    double moved = 0, empty = 0;
    if (j < a.k) {
        const double weight = a.weights[j];
        empty = !(weight > 0);
        for (size_t e = j * a.v; e < (j + 1) * a.v; e++) {
            const float from = a.centroids[e];
            a.before[e] = from;
            if (!(weight > 0))
                continue;
            const double to = a.sums[e] / weight, by = to - (double)from;
            a.centroids[e] = (float)to;
            moved += by * by;
        }
    }
    moved = port_block_sum(moved);
    empty = port_block_sum(empty);
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = moved;
        parts[gridDim.x + blockIdx.x] = empty;
    }
}

vptq_status vptq_cuda_move_centroids(vptq_dev *dev, const vptq_move_args *a, vptq_err *err)
{
    const unsigned blocks = vptq_cuda_blocks(a->k, THREADS);
    void *memory = NULL;
    double sums[2];
    VPTQ_CHECK(vptq_cuda_scratch(dev, (2 * blocks + 2) * sizeof(double), &memory, err));
    double *totals = static_cast<double *>(memory), *parts = totals + 2;
    cudaError_t e = port_launch(move_kernel, blocks, THREADS, 0, dev->stream, *a, parts);
    if (!e)
        e = vptq_cuda_total(dev, blocks, parts, totals);
    if (!e)
        e = vptq_cuda_total(dev, blocks, parts + blocks, totals + 1);
    if (e)
        return vptq_cuda_check(e, "move_centroids", err);
    VPTQ_CHECK(vptq_cuda_download(dev, sums, totals, sizeof sums, err));
    *a->moved = sums[0];
    *a->empty = (uint32_t)sums[1];
    return VPTQ_OK;
}

/* ---- worst_vectors ---- */

/* loss [n]; NaN counts as 0. The bits of positive doubles ascend with their value. */
/* budget: loss_kernel 48 registers */
__global__ static void __launch_bounds__(THREADS)
    loss_kernel(vptq_worst_args a, unsigned long long *loss)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.n)
        return;
    const float *x = a.x + i * a.v, *c = a.centroids + (size_t)a.idx[i] * a.v;
    double sum = 0;
    for (uint32_t d = 0; d < a.v; d++) {
        const double diff = (double)x[d] - (double)c[d];
        sum += diff * diff;
    }
    if (a.w)
        sum = (double)a.w[i] * sum;
    loss[i] = sum > 0 ? (unsigned long long)__double_as_longlong(sum) : 0;
}

/* The vectors under consideration: those whose loss, or index if `equal`, has the bits of
 * `prefix` above bit `shift` + 8. With `equal`, only those with that loss. */
struct digit {
    size_t n;
    const unsigned long long *loss;
    bool equal;
    unsigned long long with, prefix;
    unsigned shift;
};

/* Counts the digits of these vectors. */
/* budget: digits_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS) digits_kernel(digit a, unsigned *counts)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.n || !a.loss[i] || (a.equal && a.loss[i] != a.with))
        return;
    const unsigned long long key = a.equal ? i : a.loss[i];
    const unsigned above = a.shift + DIGIT_BITS;
    if (above >= 64 || key >> above == a.prefix >> above)
        atomicAdd(&counts[key >> a.shift & (DIGITS - 1)], 1u);
}

struct candidate {
    unsigned long long loss;
    unsigned index, unused;
};

/* Lists the vectors with a larger loss than `least`, or with that loss and an index of at most
 * `last`. */
/* budget: collect_kernel 32 registers */
__global__ static void __launch_bounds__(THREADS)
    collect_kernel(size_t n, const unsigned long long *loss, unsigned long long least,
                   unsigned last, unsigned *count, candidate *list)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n && loss[i] && (loss[i] > least || (loss[i] == least && i <= last)))
        list[atomicAdd(count, 1u)] = {loss[i], (unsigned)i, 0};
}

static vptq_status count_digits(vptq_dev *dev, const digit *d, unsigned *on,
                                unsigned counts[DIGITS], vptq_err *err)
{
    const size_t bytes = DIGITS * sizeof *on;
    cudaError_t e = cudaMemsetAsync(on, 0, bytes, dev->stream);
    if (!e)
        e = port_launch(digits_kernel, vptq_cuda_blocks(d->n, THREADS), THREADS, 0, dev->stream,
                        *d, on);
    VPTQ_CHECK(vptq_cuda_check(e, "worst_vectors", err));
    return vptq_cuda_download(dev, counts, on, bytes, err);
}

/* Finds the loss, or with d->equal the index, of number *rank (from 1) and leaves it in
 * d->prefix: from the largest loss, or from the lowest index. *rank becomes its number among
 * the vectors with the same value; *same = how many those are, 0 if there are fewer than *rank
 * vectors. */
static vptq_status select(vptq_dev *dev, digit *d, unsigned bits, unsigned *on, size_t *rank,
                          size_t *same, vptq_err *err)
{
    unsigned counts[DIGITS];
    for (d->shift = bits; d->shift;) {
        unsigned step = 0;
        d->shift -= DIGIT_BITS;
        VPTQ_CHECK(count_digits(dev, d, on, counts, err));
        for (;; step++) {
            const unsigned value = d->equal ? step : DIGITS - 1 - step;
            *same = step < DIGITS ? counts[value] : 0;
            if (step == DIGITS || *rank <= *same) {
                d->prefix |= (unsigned long long)(step < DIGITS ? value : 0) << d->shift;
                break;
            }
            *rank -= *same;
        }
        if (!*same)
            break;
    }
    return VPTQ_OK;
}

static int by_rank(const void *pa, const void *pb)
{
    const candidate *a = static_cast<const candidate *>(pa);
    const candidate *b = static_cast<const candidate *>(pb);
    if (a->loss != b->loss)
        return a->loss > b->loss ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/* Downloads the list of `found` candidates and fills the caller's arrays. */
static vptq_status deliver(vptq_dev *dev, const vptq_worst_args *a, const candidate *on,
                           size_t found, vptq_err *err)
{
    candidate *list =
        static_cast<candidate *>(vptq_mem_alloc(dev->ctx->mem, found + 1, sizeof *list, err));
    if (!list)
        return VPTQ_E_NOMEM;
    const vptq_status st = vptq_cuda_download(dev, list, on, found * sizeof *list, err);
    if (!st)
        qsort(list, found, sizeof *list, by_rank);
    for (size_t i = 0; !st && i < a->count; i++) {
        a->loss[i] = 0;
        a->at[i] = 0;
        if (i < found) {
            memcpy(&a->loss[i], &list[i].loss, sizeof a->loss[i]);
            a->at[i] = list[i].index;
        }
    }
    vptq_mem_free(dev->ctx->mem, list);
    return st;
}

vptq_status vptq_cuda_worst_vectors(vptq_dev *dev, const vptq_worst_args *a, vptq_err *err)
{
    void *memory = NULL;
    unsigned found = 0, last = 0xffffffffu;
    size_t rank = a->count, same = 0;
    if (!a->count)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_cuda_scratch(dev,
                                 a->n * sizeof(unsigned long long) +
                                     a->count * sizeof(candidate) +
                                     (DIGITS + 1) * sizeof(unsigned),
                                 &memory, err));
    unsigned long long *loss = static_cast<unsigned long long *>(memory);
    candidate *list = reinterpret_cast<candidate *>(loss + a->n);
    unsigned *counts = reinterpret_cast<unsigned *>(list + a->count), *count = counts + DIGITS;
    const unsigned blocks = vptq_cuda_blocks(a->n, THREADS);
    cudaError_t e = port_launch(loss_kernel, blocks, THREADS, 0, dev->stream, *a, loss);
    VPTQ_CHECK(vptq_cuda_check(e, "worst_vectors", err));

    digit losses = {a->n, loss, false, 0, 0, 0};
    VPTQ_CHECK(select(dev, &losses, 64, counts, &rank, &same, err));
    if (same > rank) { /* more than fit have the smallest loss */
        digit indices = {a->n, loss, true, losses.prefix, 0, 0};
        VPTQ_CHECK(select(dev, &indices, 32, counts, &rank, &same, err));
        last = (unsigned)indices.prefix;
    }
    e = cudaMemsetAsync(count, 0, sizeof *count, dev->stream);
    if (!e)
        e = port_launch(collect_kernel, blocks, THREADS, 0, dev->stream, a->n, loss,
                        losses.prefix, last, count, list);
    VPTQ_CHECK(vptq_cuda_check(e, "worst_vectors", err));
    VPTQ_CHECK(vptq_cuda_download(dev, &found, count, sizeof found, err));
    return deliver(dev, a, list, found, err);
}
