/* A thread takes LANES rows through all groups: one operation on all of them at a time. */
#include "lib/uniform/clip.h"

#include <math.h>

#include "lib/base/mem.h"
#include "lib/base/parallel.h"

enum {
    LANES = 16,
    RANGES = 10, /* tried, from the whole one on */
    STEPS = 20   /* a step is 1 / STEPS of it */
};

typedef struct clipping {
    const vptq_uniform_settings *s;
    const vptq_uniform_input *input;
    size_t group_size;
    float *buffer; /* [threads][2][group_size][LANES] */
    float *scale;  /* [groups, out] */
    uint8_t *zero;
} clipping;

/* One group of LANES rows; rows after the last one are 0. */
typedef struct panel {
    const clipping *c;
    size_t row, rows, column, columns;
    float *w, *e; /* [columns][LANES] weights and errors */
    float lo[LANES], hi[LANES], most[LANES];
} panel;

typedef struct grid {
    float lo[LANES], scale[LANES];
    uint8_t zero[LANES];
} grid;

static void load(panel *p)
{
    const vptq_uniform_input *input = p->c->input;
    for (size_t l = 0; l < LANES; l++)
        p->lo[l] = p->hi[l] = 0;
    for (size_t j = 0; j < p->columns; j++)
        for (size_t l = 0; l < LANES; l++) {
            const float w =
                l < p->rows ? input->w[(p->row + l) * input->in + p->column + j] : 0;
            p->w[j * LANES + l] = w;
            p->lo[l] = fminf(p->lo[l], w);
            p->hi[l] = fmaxf(p->hi[l], w);
        }
    for (size_t l = 0; l < LANES; l++)
        p->most[l] = fmaxf(p->hi[l], -p->lo[l]);
}

/* The grid of the range number i. */
static void cut_range(const panel *p, int i, grid *g)
{
    const vptq_uniform_settings *s = p->c->s;
    for (size_t l = 0; l < LANES; l++) {
        const float bound = p->most[l] * (float)(STEPS - i) / STEPS;
        g->lo[l] = fmaxf(p->lo[l], -bound);
        vptq_uniform_grid(s->bits, s->symmetric, s->storage, g->lo[l], fminf(p->hi[l], bound),
                          &g->scale[l], &g->zero[l]);
    }
}

/* Moves the zero points to the whole numbers on the other side of -lo / scale. */
static void move_zero(const panel *p, grid *g)
{
    const float max = (float)((1U << p->c->s->bits) - 1);
    for (size_t l = 0; l < LANES; l++) {
        const float exact = -g->lo[l] / g->scale[l];
        const float other = rintf(exact) > exact ? floorf(exact) : ceilf(exact);
        g->zero[l] = (uint8_t)fminf(fmaxf(other, 0), max);
    }
}

/* p->e: errors of rounding to the grid. */
static void round_weights(const panel *p, const grid *g)
{
    const float max = (float)((1U << p->c->s->bits) - 1);
    for (size_t j = 0; j < p->columns; j++)
        for (size_t l = 0; l < LANES; l++) {
            const float w = p->w[j * LANES + l], zero = (float)g->zero[l];
            const float code = fminf(fmaxf(rintf(w / g->scale[l]) + zero, 0), max);
            p->e[j * LANES + l] = (code - zero) * g->scale[l] - w;
        }
}

/* loss [LANES] = e H_gg e^T, from the lower triangle. */
static void measure(const panel *p, float loss[LANES])
{
    for (size_t l = 0; l < LANES; l++)
        loss[l] = 0;
    for (size_t i = 0; i < p->columns; i++) {
        const size_t at = p->column + i;
        const float *h = p->c->input->lower + at * (at + 1) / 2 + p->column;
        float half[LANES] = {0};
        for (size_t j = 0; j < i; j++)
            for (size_t l = 0; l < LANES; l++)
                half[l] += h[j] * p->e[j * LANES + l];
        for (size_t l = 0; l < LANES; l++) {
            const float e = p->e[i * LANES + l];
            loss[l] += e * (2 * half[l] + h[i] * e);
        }
    }
}

/* Keeps the grid of every row in which it loses less than before; best: NAN without one. */
static void keep_better(panel *p, const grid *tried, size_t g, float best[LANES])
{
    const size_t out = p->c->input->out;
    float loss[LANES];
    round_weights(p, tried);
    measure(p, loss);
    for (size_t l = 0; l < p->rows; l++) {
        if (!isnan(best[l]) && !(loss[l] < best[l]))
            continue;
        best[l] = loss[l];
        p->c->scale[g * out + p->row + l] = tried->scale[l];
        p->c->zero[g * out + p->row + l] = tried->zero[l];
    }
}

static void choose(panel *p, size_t g)
{
    float best[LANES];
    grid tried;
    load(p);
    for (size_t l = 0; l < LANES; l++)
        best[l] = NAN;
    for (int i = 0; i < RANGES; i++) {
        cut_range(p, i, &tried);
        keep_better(p, &tried, g, best);
        if (p->c->s->symmetric)
            continue;
        move_zero(p, &tried);
        keep_better(p, &tried, g, best);
    }
}

static void clip_rows(void *arg, size_t begin, size_t end, int thread)
{
    const clipping *c = arg;
    const size_t in = c->input->in, size = c->group_size;
    float *buffer = c->buffer + (size_t)thread * 2 * size * LANES;
    panel p = {
        .c = c, .row = begin, .rows = end - begin, .w = buffer, .e = buffer + size * LANES};
    for (size_t g = 0; g * size < in; g++) {
        p.column = g * size;
        p.columns = in - p.column < size ? in - p.column : size;
        choose(&p, g);
    }
}

vptq_status vptq_uniform_clip(const vptq_device *dev, const vptq_uniform_settings *s,
                              const vptq_uniform_input *input, float *scale, uint8_t *zero,
                              vptq_err *err)
{
    const vptq_uniform_shape shape = vptq_uniform_shape_of(s, input->out, input->in);
    const size_t threads = (size_t)dev->ctx->threads;
    clipping c = {
        .s = s, .input = input, .group_size = shape.group_size, .scale = scale, .zero = zero};
    c.buffer = vptq_mem_alloc(dev->ctx->mem, threads * c.group_size,
                              2 * LANES * sizeof *c.buffer, err);
    if (!c.buffer)
        return VPTQ_E_NOMEM;
    vptq_parallel_for(dev->ctx->threads, input->out, LANES, clip_rows, &c);
    vptq_mem_free(dev->ctx->mem, c.buffer);
    return VPTQ_OK;
}
