/* The op sample, with integers instead of probabilities (sample.h). The tokens that top_p keeps
 * are found without sorting: bins of one digit of the keys hold sums of weights; from the
 * highest bin down, the bin in which the sum is reached is split by the next digit. */
#include <math.h>
#include <string.h>

#include "lib/backend/cpu/cpu.h"
#include "lib/backend/dev.h"
#include "lib/backend/sample.h"
#include "lib/base/parallel.h"

typedef struct sample_job {
    const vptq_sample_args *s;
    uint64_t *scratch; /* [threads][vocab + VPTQ_SAMPLE_BINS] */
} sample_job;

/* Tokens with larger keys are kept, and the first `ties` of those with this key. */
typedef struct cut {
    uint32_t key;
    uint64_t ties, kept; /* kept: sum of weights */
} cut;

/* The largest logit, or NaN if any is. */
static float largest(const float *logits, size_t n)
{
    float max = logits[0];
    int bad = 0;
    for (size_t i = 0; i < n; i++) {
        bad |= logits[i] != logits[i];
        max = logits[i] > max ? logits[i] : max;
    }
    return bad ? NAN : max;
}

static int32_t first_of(const float *logits, float max)
{
    size_t i = 0;
    while (logits[i] != max)
        i++;
    return (int32_t)i;
}

/* Fills the bins of the digit at `shift`, for keys that agree with `prefix` from bit `known`
 * on. */
static void fill_bins(const float *logits, const uint64_t *weights, size_t n, uint32_t prefix,
                      unsigned known, unsigned shift, uint64_t *bins)
{
    const uint32_t above = (uint32_t)(UINT64_MAX << known);
    memset(bins, 0, VPTQ_SAMPLE_BINS * sizeof *bins);
    for (size_t i = 0; i < n; i++) {
        const uint32_t key = vptq_sample_key(logits[i]);
        if ((key & above) == prefix)
            bins[key >> shift & (VPTQ_SAMPLE_BINS - 1)] += weights[i];
    }
}

static cut find_cut(const float *logits, const uint64_t *weights, size_t n, uint64_t reach,
                    uint64_t *bins)
{
    static const unsigned shifts[] = {32, VPTQ_SAMPLE_FIRST, VPTQ_SAMPLE_SECOND, 0};
    cut c = {.key = 0};
    uint64_t left = reach, weight = 0;
    for (int d = 1; d < 4; d++) {
        uint32_t b = VPTQ_SAMPLE_BINS - 1;
        fill_bins(logits, weights, n, c.key, shifts[d - 1], shifts[d], bins);
        for (; bins[b] < left; b--)
            left -= bins[b];
        c.key |= b << shifts[d];
    }
    for (size_t i = 0; !weight; i++)
        weight = vptq_sample_key(logits[i]) == c.key ? weights[i] : 0;
    c.ties = (left + weight - 1) / weight;
    c.kept = reach - left + c.ties * weight;
    return c;
}

static int32_t draw(const float *logits, const uint64_t *weights, const cut *c, double u)
{
    uint64_t unit = vptq_sample_unit(u, c->kept), ties = 0;
    for (size_t i = 0;; i++) {
        const uint32_t key = vptq_sample_key(logits[i]);
        if (key < c->key || (key == c->key && ties++ >= c->ties))
            continue;
        if (unit < weights[i])
            return (int32_t)i;
        unit -= weights[i];
    }
}

static int32_t choose(const vptq_sample_args *s, size_t row, uint64_t *weights)
{
    const float *logits = s->logits + row * s->ld;
    const float max = largest(logits, s->vocab);
    uint64_t total = 0;
    if (isnan(max))
        return -1;
    if (s->temperature <= 0)
        return first_of(logits, max);
    for (size_t i = 0; i < s->vocab; i++)
        weights[i] = vptq_sample_weight(logits[i], max, s->temperature);
    for (size_t i = 0; i < s->vocab; i++)
        total += weights[i];
    cut c = {.kept = total, .ties = total}; /* keeps all tokens */
    if (s->top_p < 1)
        c = find_cut(logits, weights, s->vocab, vptq_sample_reach(s->top_p, total),
                     weights + s->vocab);
    return draw(logits, weights, &c, s->u[row]);
}

static void choose_rows(void *arg, size_t begin, size_t end, int thread)
{
    const sample_job *j = arg;
    uint64_t *own = j->scratch + (size_t)thread * (j->s->vocab + VPTQ_SAMPLE_BINS);
    for (size_t i = begin; i < end; i++)
        j->s->ids[i] = choose(j->s, i, own);
}

vptq_status vptq_cpu_sample(vptq_dev *dev, const vptq_sample_args *s, vptq_err *err)
{
    sample_job j = {.s = s};
    j.scratch = vptq_dev_scratch(dev, (size_t)dev->ctx->threads * (s->vocab + VPTQ_SAMPLE_BINS),
                                 sizeof *j.scratch, err);
    if (!j.scratch)
        return VPTQ_E_NOMEM;
    vptq_parallel_for(dev->ctx->threads, s->n, 1, choose_rows, &j);
    return VPTQ_OK;
}
