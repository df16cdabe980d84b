/* Products of bytes on all threads.  A task is a block of rows of codes times a block of
 * tokens; both stay in a second-level cache while they are multiplied tile by tile. */
#include "lib/backend/cpu/bytes.h"

#include "lib/backend/cpu/amx.h"
#include "lib/backend/cpu/cpu.h"
#include "lib/backend/cpu/gemm.h"
#include "lib/backend/dev.h"
#include "lib/backend/ref/ref.h"
#include "lib/base/parallel.h"

enum {
    OUT = VPTQ_BYTES_OUT,
    TOKENS = VPTQ_BYTES_TOKENS,
    BLOCK_OUT = VPTQ_BYTES_BLOCK, /* rows of codes of a task */
    BLOCK_TOKENS = 64,            /* tokens of a task */
    MANY_VNNI = 9,                /* for so many tokens, panels pay */
    MANY_AMX = 8,
    CHUNK = 1 << 14 /* numbers that a thread quantizes at a time */
};

/* ---- quantizing ---- */

typedef struct quantize_job {
    vptq_dev *dev;
    const vptq_quantize_rows_args *args;
    const vptq_bytes_kernels *kernels;
} quantize_job;

static void quantize_range(void *arg, size_t begin, size_t end, int thread)
{
    const quantize_job *job = arg;
    const size_t row = VPTQ_BYTES_ROW(job->args->cols);
    (void)thread;
    for (size_t r = begin; r < end; r++) {
        vptq_quantize_rows_args one = *job->args;
        one.rows = 1;
        one.x += r * one.ldx;
        one.q += r * row;
        one.scale += r;
        if (job->kernels->quantize(one.x, one.cols, one.q, one.scale))
            continue;
        const vptq_status st = vptq_ref_quantize_rows(job->dev, &one, NULL);
        VPTQ_BUG_IF(st); /* the op cannot fail */
    }
}

vptq_status vptq_cpu_quantize_rows(vptq_dev *dev, const vptq_quantize_rows_args *a,
                                   vptq_err *err)
{
    quantize_job job = {dev, a, vptq_bytes_kernels_get(dev->simd)};
    const size_t chunk = a->cols < CHUNK ? CHUNK / (a->cols + 1) + 1 : 1;
    (void)err;
    vptq_parallel_for(vptq_cpu_threads(dev, a->rows * a->cols), a->rows, chunk, quantize_range,
                      &job);
    return VPTQ_OK;
}

/* ---- products ---- */

typedef struct multiply_job {
    const vptq_multiply_bytes_args *args;
    const vptq_vnni_kernels *vnni; /* or NULL */
    vptq_bytes_multiply *one, *all;
    vptq_bytes_panels panels; /* if they are used */
    bool amx;
    size_t blocks; /* of rows of codes */
} multiply_job;

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Writes y of tokens from `token` on and outputs from `out` on. */
static void finish(const vptq_multiply_bytes_args *a, const vptq_bytes_tile *t, size_t token,
                   size_t tokens, size_t out, size_t outs)
{
    for (size_t i = 0; i < tokens; i++) {
        float *y = a->y + (token + i) * a->ldy + out;
        for (size_t o = 0; o < outs; o++) {
            float z = (float)t->sum[i][o] * (a->q_scale[token + i] * a->scale[out + o]);
            if (a->bias)
                z += a->bias[out + o];
            y[o] = a->beta != 0 ? y[o] + z : z;
        }
    }
}

/* Products of up to TOKENS tokens with the rows of codes from `out` to `end`. */
static void multiply_tiles(const multiply_job *job, size_t token, size_t tokens, size_t out,
                           size_t end)
{
    const vptq_multiply_bytes_args *a = job->args;
    vptq_bytes_tile t = {.bytes = VPTQ_BYTES_ROW(a->in)};
    for (size_t i = 0; i < TOKENS; i++)
        t.q[i] = a->q + (token + least(i, tokens - 1)) * t.bytes;
    for (size_t i = 0; job->vnni && i < tokens; i++)
        t.excess[i] = job->vnni->excess(t.q[i], t.bytes);
    for (; out < end; out += OUT) {
        const size_t outs = least(OUT, end - out);
        for (size_t o = 0; o < OUT; o++)
            t.codes[o] = (const uint8_t *)a->codes + (out + least(o, outs - 1)) * t.bytes;
        if (tokens == 1)
            job->one(&t);
        else
            job->all(&t);
        finish(a, &t, token, tokens, out, outs);
    }
}

static void multiply_range(void *arg, size_t begin, size_t end, int thread)
{
    const multiply_job *job = arg;
    const vptq_multiply_bytes_args *a = job->args;
    (void)thread;
    for (size_t b = begin; b < end; b++) {
        const size_t out = b % job->blocks * BLOCK_OUT, token = b / job->blocks * BLOCK_TOKENS;
        const size_t out_end = least(a->out, out + BLOCK_OUT);
        const size_t token_end = least(a->rows, token + BLOCK_TOKENS);
        for (size_t i = token; i < token_end; i += TOKENS)
            multiply_tiles(job, i, least(TOKENS, token_end - i), out, out_end);
    }
}

/* ---- products by panels ---- */

static void pack_range(void *arg, size_t begin, size_t end, int thread)
{
    const multiply_job *job = arg;
    const vptq_multiply_bytes_args *a = job->args;
    const size_t bytes = VPTQ_BYTES_ROW(a->in);
    (void)thread;
    for (size_t p = begin; p < end; p++) {
        const size_t token = least(p * VPTQ_BYTES_PANEL, a->rows);
        job->vnni->pack(a->q + token * bytes, bytes, least(VPTQ_BYTES_PANEL, a->rows - token),
                        &job->panels, p);
    }
}

static void multiply_panels_range(void *arg, size_t begin, size_t end, int thread)
{
    const multiply_job *job = arg;
    const vptq_multiply_bytes_args *a = job->args;
    (void)thread;
    if (job->amx)
        vptq_amx_begin();
    for (size_t b = begin; b < end; b++) {
        const size_t out = b % job->blocks * VPTQ_BYTES_BLOCK;
        const size_t token = b / job->blocks * BLOCK_TOKENS;
        const size_t token_end = least(a->rows, token + BLOCK_TOKENS);
        for (size_t i = token; i < token_end; i += VPTQ_BYTES_BLOCK)
            job->vnni->block(a, &job->panels, i / VPTQ_BYTES_PANEL, out, job->amx);
    }
    if (job->amx)
        vptq_amx_end();
}

/* Takes memory for panels and packs them. */
static vptq_status make_panels(vptq_dev *dev, multiply_job *job, vptq_err *err)
{
    const vptq_multiply_bytes_args *a = job->args;
    const size_t tokens = vptq_round_up(a->rows, VPTQ_BYTES_BLOCK);
    job->panels.words = vptq_round_up(VPTQ_BYTES_ROW(a->in) / 4, 16);
    uint32_t *memory =
        vptq_dev_scratch(dev, tokens, (job->panels.words + 1) * sizeof *memory, err);
    if (!memory)
        return VPTQ_E_NOMEM;
    job->panels.word = memory;
    job->panels.excess = (int32_t *)(memory + tokens * job->panels.words);
    vptq_parallel_for(vptq_cpu_threads(dev, a->rows * a->in), tokens / VPTQ_BYTES_PANEL, 1,
                      pack_range, job);
    return VPTQ_OK;
}

vptq_status vptq_cpu_multiply_bytes(vptq_dev *dev, const vptq_multiply_bytes_args *a,
                                    vptq_err *err)
{
    const vptq_bytes_kernels *k = vptq_bytes_kernels_get(dev->simd);
    const vptq_vnni_kernels *vnni = vptq_vnni_kernels_get(dev->simd);
    multiply_job job = {.args = a,
                        .vnni = vnni,
                        .one = vnni ? vnni->one : k->one,
                        .all = vnni ? vnni->all : k->all,
                        .amx = dev->amx,
                        .blocks = (a->out + BLOCK_OUT - 1) / BLOCK_OUT};
    const size_t tasks = job.blocks * ((a->rows + BLOCK_TOKENS - 1) / BLOCK_TOKENS);
    const bool panels = vnni && a->rows >= (dev->amx ? MANY_AMX : MANY_VNNI);
    if (panels)
        VPTQ_CHECK(make_panels(dev, &job, err));
    vptq_parallel_for(vptq_cpu_threads(dev, a->rows * a->out * a->in), tasks, 1,
                      panels ? multiply_panels_range : multiply_range, &job);
    return VPTQ_OK;
}
