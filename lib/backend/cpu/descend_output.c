/* The op vq_descend_output.  A unit is the smallest number of rows that neither a vector nor a
 * block of K crosses.  Units are independent: a thread takes a few through all columns, vector
 * by vector, searched together so that they share the loads of the codebook.
 *
 * With w = G_Rt - H_tt K_RR c_old, a change from c_old to c adds a constant and twice
 *     H_tt c^T K_RR c / 2 + c.w
 * and c^T K_RR c / 2 is computed once for every vector of a unit and every centroid. */
#include <string.h>

#include "lib/backend/cpu/cpu.h"
#include "lib/backend/cpu/descend_output.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

enum { BLOCK = VPTQ_OUTPUT_ROWS, SETS = VPTQ_OUTPUT_SETS, MAX_V = VPTQ_VQ_MAX_V };

_Static_assert(BLOCK == (int)VPTQ_PANEL, "`eliminate` takes a row of a block of K");

typedef struct output_job {
    const vptq_descend_output_args *args;
    const vptq_output_kernels *kernels;
    const vptq_nearest_kernels *panels;
    vptq_codebook codebooks[2]; /* main, residual */
    size_t unit;                /* rows, a multiple of 64 */
    size_t forms;               /* floats of the forms of a vector, main then residual */
    size_t slice;               /* floats of a unit */
    float *scratch;             /* [threads][SETS or fewer] slices */
    size_t together;
} output_job;

typedef struct output_unit {
    size_t row, rows;
    float *g;      /* [unit] the gradient of the column */
    float *change; /* [unit / 64][cols][64] new q - old q; of the column in work: old q */
    float *forms;  /* [vectors][forms] */
} output_unit;

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- one vector ---- */

/* g -= K u for the rows of a vector; g is the gradient from the block of K of `row` on. */
static void subtract(const output_job *job, size_t row, const float *u, float *g)
{
    const size_t v = job->args->v;
    for (size_t e = 0, count; e < v; e += count, g += BLOCK) {
        count = least(BLOCK - (row + e) % BLOCK, v - e);
        job->panels->eliminate(count, job->args->output + (row + e) * BLOCK, u + e, 1, g);
    }
}

/* w [v] of the vector in row r of the unit, whose centroid is c. */
static void put_w(const output_job *job, const output_unit *u, size_t r, float h,
                  const float *c, float *w)
{
    const size_t v = job->args->v, at = r % BLOCK;
    float g[2 * BLOCK], hc[MAX_V];
    for (size_t e = 0; e < v; e++)
        hc[e] = h * c[e];
    memcpy(g, u->g + r - at, vptq_round_up(at + v, BLOCK) * sizeof *g);
    subtract(job, u->row + r, hc, g);
    memcpy(w, g + at, v * sizeof *w);
}

/* Decodes the vector in row r of the unit and applies its change to the gradient. */
static void decode(const output_job *job, const output_unit *u, size_t t, size_t r, float h)
{
    const vptq_descend_output_args *d = job->args;
    const size_t v = d->v, at = t * d->ldi + (u->row + r) / v;
    const float *c = d->centroids + d->idx[at] * v;
    const float *res = d->k_res ? d->res_centroids + d->idx_res[at] * v : NULL;
    float *q = d->q + t * d->ldq + u->row + r, minus[MAX_V];
    for (size_t e = 0; e < v; e++) {
        const float now = res ? c[e] + res[e] : c[e];
        minus[e] = h * (q[e] - now);
        q[e] = now;
    }
    subtract(job, u->row + r, minus, u->g + r / BLOCK * BLOCK);
}

/* Chooses a centroid of one codebook for the vectors in row r of n units. */
static void choose(const output_job *job, size_t n, const output_unit *units, size_t t,
                   size_t r, bool residual)
{
    const vptq_descend_output_args *d = job->args;
    const vptq_codebook *codebook = &job->codebooks[residual];
    const float *centroids = residual ? d->res_centroids : d->centroids;
    const size_t v = d->v, at = t * d->ldi;
    const float h = d->h[t * d->ldh + t], *form[SETS] = {NULL};
    uint32_t *idx = (residual ? d->idx_res : d->idx) + at, now[SETS];
    float w[SETS * MAX_V] = {0};
    for (size_t i = 0; i < n; i++) {
        now[i] = idx[(units[i].row + r) / v];
        form[i] = units[i].forms + r / v * job->forms +
                  (residual ? job->codebooks[0].blocks * VPTQ_CODEBOOK_LANES : 0);
        put_w(job, units + i, r, h, centroids + now[i] * v, w + i * v);
    }
    job->kernels->choose(codebook, n, h, form, w, now);
    for (size_t i = 0; i < n; i++) {
        uint32_t *own = idx + (units[i].row + r) / v;
        if (now[i] == *own)
            continue;
        *own = now[i];
        decode(job, units + i, t, r, h);
    }
}

/* ---- units ---- */

/* Tabulates the forms of all vectors of a unit. */
static void put_forms(const output_job *job, const output_unit *u)
{
    const vptq_descend_output_args *d = job->args;
    const size_t v = d->v;
    for (size_t r = 0; r < u->rows; r += v) {
        float k[MAX_V * MAX_V], *form = u->forms + r / v * job->forms;
        for (size_t e = 0; e < v; e++)
            for (size_t f = 0; f < v; f++) {
                const size_t i = u->row + r + e, j = u->row + r + f;
                k[e * v + f] = i / BLOCK == j / BLOCK ? d->output[i * BLOCK + j % BLOCK] : 0;
            }
        job->kernels->forms(&job->codebooks[0], k, form);
        if (d->k_res)
            job->kernels->forms(&job->codebooks[1], k,
                                form + job->codebooks[0].blocks * VPTQ_CODEBOOK_LANES);
    }
}

/* Sets the gradient of column t: g + K (sum over s < t of h[s][t] delta_s). */
static void start_column(const output_job *job, const output_unit *u, size_t t)
{
    const vptq_descend_output_args *d = job->args;
    for (size_t b = 0; b < u->rows; b += BLOCK) {
        const size_t row = u->row + b, count = least(BLOCK, u->rows - b);
        float *change = u->change + b * d->cols, minus[BLOCK] = {0};
        job->panels->eliminate(t, change, d->h + t, d->ldh, minus);
        memset(u->g + b, 0, BLOCK * sizeof *u->g);
        memcpy(u->g + b, d->g + t * d->ldg + row, count * sizeof *u->g);
        job->panels->eliminate(count, d->output + row * BLOCK, minus, 1, u->g + b);
    }
}

/* Keeps the values of column t before it changes, or after it what has changed. */
static void keep_column(const output_job *job, const output_unit *u, size_t t, bool after)
{
    const vptq_descend_output_args *d = job->args;
    const float *q = d->q + t * d->ldq + u->row;
    for (size_t r = 0; r < u->rows; r++) {
        float *change = u->change + (r / BLOCK * d->cols + t) * BLOCK + r % BLOCK;
        *change = after ? q[r] - *change : q[r];
        if (after)
            d->delta[t * d->ldd + u->row + r] = *change;
    }
}

static void descend_column(const output_job *job, size_t n, const output_unit *units, size_t t)
{
    const vptq_descend_output_args *d = job->args;
    const bool changes = d->h[t * d->ldh + t] > 0;
    for (size_t i = 0; i < n; i++) {
        keep_column(job, units + i, t, false);
        if (changes)
            start_column(job, units + i, t);
    }
    for (size_t r = 0; changes && r < units[0].rows; r += d->v) {
        n -= r >= units[n - 1].rows; /* only the last unit may be shorter */
        choose(job, n, units, t, r, false);
        if (d->k_res)
            choose(job, n, units, t, r, true);
    }
}

static void run_units(void *arg, size_t begin, size_t end, int thread)
{
    const output_job *job = arg;
    const vptq_descend_output_args *d = job->args;
    const size_t n = end - begin;
    output_unit units[SETS];
    for (size_t i = 0; i < n; i++) {
        float *slice = job->scratch + ((size_t)thread * job->together + i) * job->slice;
        units[i].row = (begin + i) * job->unit;
        units[i].rows = least(job->unit, d->rows - units[i].row);
        units[i].g = slice;
        units[i].change = slice + job->unit;
        units[i].forms = units[i].change + job->unit * d->cols;
        memset(units[i].change, 0, job->unit * d->cols * sizeof *slice);
        put_forms(job, units + i);
    }
    for (size_t t = 0; t < d->cols; t++) {
        descend_column(job, n, units, t);
        for (size_t i = 0; i < n; i++)
            keep_column(job, units + i, t, true);
    }
}

/* ---- the op ---- */

/* The least common multiple of v and 64, or all rows if that is less. */
static size_t unit_rows(const vptq_descend_output_args *d)
{
    size_t unit = d->v;
    while (unit % BLOCK)
        unit *= 2;
    return least(unit, vptq_round_up(d->rows, BLOCK));
}

vptq_status vptq_cpu_vq_descend_output(vptq_dev *dev, const vptq_descend_output_args *d,
                                       vptq_err *err)
{
    const size_t main = vptq_codebook_floats(d->v, d->k);
    const size_t res = d->k_res ? vptq_codebook_floats(d->v, d->k_res) : 0;
    const size_t threads = (size_t)dev->ctx->threads, rows = unit_rows(d);
    if (!d->rows || !d->cols)
        return VPTQ_OK;
    output_job job = {.args = d,
                      .kernels = VPTQ_SIMD_SELECT(dev->simd, vptq_output_kernels),
                      .panels = vptq_nearest_kernels_get(dev->simd),
                      .unit = rows,
                      .forms = (main + res) / (1 + d->v)};
    const size_t units = (d->rows + rows - 1) / rows,
                 forms = (rows + d->v - 1) / d->v * job.forms;
    job.slice = vptq_round_up(rows * (1 + d->cols) + forms, BLOCK);
    job.together = least(SETS, (units + threads - 1) / threads);
    float *data = vptq_dev_scratch(dev, main + res + threads * job.together * job.slice,
                                   sizeof *data, err);
    if (!data)
        return VPTQ_E_NOMEM;
    job.codebooks[0] = vptq_codebook_lay(dev, d->v, d->k, d->centroids, data);
    if (d->k_res)
        job.codebooks[1] =
            vptq_codebook_lay(dev, d->v, d->k_res, d->res_centroids, data + main);
    job.scratch = data + main + res;
    vptq_parallel_for(dev->ctx->threads, units, job.together, run_units, &job);
    return VPTQ_OK;
}
