/* Squared attention that positions receive: the oracle, one query and head at a time. */
#include <math.h>

#include "lib/backend/dev.h"
#include "lib/backend/ref/ref.h"

/* Adds one query's squared probabilities; p: scratch for positions [first, last]. */
static void ref_receive(const vptq_attention_args *a, size_t query, size_t head, double *p,
                        double *mass)
{
    const size_t d = a->head_dim, kv = head / (a->heads / a->kv_heads);
    const size_t last = a->pos0 + query;
    const size_t first = a->window && last + 1 > a->window ? last + 1 - a->window : 0;
    const float *q = a->q + query * a->ldq + head * d;

    double max = -INFINITY, sum = 0;
    for (size_t j = first; j <= last; j++) {
        const float *key = a->keys + j * a->ldk + kv * d;
        double s = 0;
        for (size_t i = 0; i < d; i++)
            s += (double)q[i] * (double)key[i];
        p[j] = s * (double)a->scale;
        max = p[j] > max ? p[j] : max;
    }
    for (size_t j = first; j <= last; j++) {
        p[j] = exp(p[j] - max);
        sum += p[j];
    }
    for (size_t j = first; j <= last; j++)
        mass[j] += p[j] / sum * (p[j] / sum);
}

vptq_status vptq_ref_attention_mass(vptq_dev *dev, const vptq_attention_args *a, double *mass,
                                    vptq_err *err)
{
    double *p = vptq_dev_scratch(dev, a->pos0 + a->n, sizeof *p, err);
    if (!p)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < a->n; i++)
        for (size_t h = 0; h < a->heads; h++)
            ref_receive(a, i, h, p, mass);
    return VPTQ_OK;
}
