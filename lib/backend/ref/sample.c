/* The op `sample` by its definition: sort, cut, draw, with probabilities and sums in double. */
#include <math.h>
#include <stdlib.h>

#include "lib/backend/dev.h"
#include "lib/backend/ref/ref.h"

typedef struct candidate {
    double p;
    float logit;
    int32_t id;
} candidate;

static int by_id(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static int by_logit(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return by_id(a, b);
}

static int32_t choose(const vptq_sample_args *s, size_t row, candidate *list)
{
    const float *logits = s->logits + row * s->ld;
    size_t best = 0, n = 0;
    double total = 0, kept = 0;
    for (size_t i = 0; i < s->vocab; i++) {
        if (isnan(logits[i]))
            return -1;
        if (logits[i] > logits[best])
            best = i;
    }
    if (s->temperature <= 0)
        return (int32_t)best;
    for (size_t i = 0; i < s->vocab; i++) {
        double below = (double)logits[i] - (double)logits[best]; /* NaN for two infinities */
        double p = logits[i] == logits[best] ? 1 : exp(below / s->temperature);
        list[i] = (candidate){.p = p, .logit = logits[i], .id = (int32_t)i};
        total += p;
    }
    qsort(list, s->vocab, sizeof *list, by_logit);
    do
        kept += list[n++].p;
    while (n < s->vocab && (s->top_p >= 1 || kept < s->top_p * total));
    qsort(list, n, sizeof *list, by_id);
    double left = s->u[row] * kept;
    size_t last = 0;
    for (size_t i = 0; i < n; i++) {
        if (left < list[i].p)
            return list[i].id;
        left -= list[i].p;
        last = list[i].p > 0 ? i : last;
    }
    return list[last].id; /* reached only by the rounding of sums */
}

vptq_status vptq_ref_sample(vptq_dev *dev, const vptq_sample_args *s, vptq_err *err)
{
    candidate *list = vptq_dev_scratch(dev, s->vocab, sizeof *list, err);
    if (!list)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < s->n; i++)
        s->ids[i] = choose(s, i, list);
    return VPTQ_OK;
}
