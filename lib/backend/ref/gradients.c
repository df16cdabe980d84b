/* Gradients of the reference backend: one element at a time, in double. */
#include <math.h>
#include <string.h>

#include "lib/backend/dev.h"
#include "lib/backend/ref/ref.h"

/* ---- attention ---- */

/* One query head: where its rows are, and sums in double for its kv head. */
typedef struct head_grad {
    const vptq_attention_grad_args *a;
    size_t head, kv;
    double *dk, *dv; /* [n, head_dim] */
    double *dq;      /* [head_dim], of one query */
} head_grad;

static double dot(const float *x, const float *y, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    return sum;
}

/* Adds what query i and position j pass to each other; delta: dout_i . out_i. */
static void add_pair(const head_grad *h, size_t i, size_t j, double delta)
{
    const vptq_attention_grad_args *a = h->a;
    const size_t d = a->head_dim, row = (i * a->heads + h->head) * d;
    const size_t col = (j * a->kv_heads + h->kv) * d;
    const double score = dot(a->q + row, a->keys + col, d) * (double)a->scale;
    const double p = exp(score - (double)a->lse[i * a->heads + h->head]);
    const double ds = p * (dot(a->dout + row, a->values + col, d) - delta);
    for (size_t e = 0; e < d; e++) {
        h->dq[e] += ds * (double)a->keys[col + e];
        h->dk[j * d + e] += ds * (double)a->q[row + e];
        h->dv[j * d + e] += p * (double)a->dout[row + e];
    }
}

static void head_gradients(const head_grad *h)
{
    const vptq_attention_grad_args *a = h->a;
    const size_t d = a->head_dim;
    for (size_t i = 0; i < a->n; i++) {
        const size_t row = (i * a->heads + h->head) * d;
        const double delta = dot(a->dout + row, a->out + row, d);
        memset(h->dq, 0, d * sizeof *h->dq);
        for (size_t j = a->window && i >= a->window ? i + 1 - a->window : 0; j <= i; j++)
            add_pair(h, i, j, delta);
        for (size_t e = 0; e < d; e++)
            a->dq[row + e] = (float)((double)a->scale * h->dq[e]);
    }
}

vptq_status vptq_ref_attention_grad(vptq_dev *dev, const vptq_attention_grad_args *a,
                                    vptq_err *err)
{
    const size_t d = a->head_dim, size = a->n * d, group = a->heads / a->kv_heads;
    double *sums = vptq_dev_scratch(dev, 2 * size + d, sizeof *sums, err);
    if (!sums)
        return VPTQ_E_NOMEM;
    head_grad h = {.a = a, .dk = sums, .dv = sums + size, .dq = sums + 2 * size};
    for (h.kv = 0; h.kv < a->kv_heads; h.kv++) {
        memset(sums, 0, 2 * size * sizeof *sums);
        for (h.head = h.kv * group; h.head < (h.kv + 1) * group; h.head++)
            head_gradients(&h);
        for (size_t j = 0; j < a->n; j++)
            for (size_t e = 0; e < d; e++) {
                const size_t at = (j * a->kv_heads + h.kv) * d + e;
                a->dkeys[at] = (float)((double)a->scale * h.dk[j * d + e]);
                a->dvalues[at] = (float)h.dv[j * d + e];
            }
    }
    return VPTQ_OK;
}

/* ---- row by row ---- */

vptq_status vptq_ref_rmsnorm_grad(vptq_dev *dev, const vptq_rmsnorm_grad_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t i = 0; i < a->n; i++) {
        const float *x = a->x + i * a->dim, *dy = a->dy + i * a->dim;
        float *dx = a->dx + i * a->dim;
        double along = 0;
        for (size_t j = 0; j < a->dim; j++)
            along += (double)dy[j] * (double)a->weight[j] * (double)x[j];
        const double dim = (double)a->dim;
        const double r = 1 / sqrt(dot(x, x, a->dim) / dim + (double)a->eps);
        for (size_t j = 0; j < a->dim; j++) {
            if (a->dweight)
                a->dweight[j] += (double)dy[j] * (double)x[j] * r;
            const double g = (double)dy[j] * (double)a->weight[j] * r -
                             (double)x[j] * (r * r * r) * along / dim;
            dx[j] = (float)(a->add ? (double)dx[j] + g : g);
        }
    }
    return VPTQ_OK;
}

vptq_status vptq_ref_swiglu_grad(vptq_dev *dev, const vptq_swiglu_grad_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t i = 0; i < a->n * a->dim; i++) {
        const double g = (double)a->gate[i], dy = (double)a->dy[i];
        const double s = 1 / (1 + exp(-g));
        a->gate[i] = (float)(dy * (double)a->up[i] * s * (1 + g * (1 - s)));
        a->up[i] = (float)(dy * g * s);
    }
    return VPTQ_OK;
}

/* ---- the loss ---- */

/* The log of the sum of exp. */
static double log_sum(const float *x, size_t n)
{
    double max = -INFINITY, sum = 0;
    for (size_t j = 0; j < n; j++)
        max = (double)x[j] > max ? (double)x[j] : max;
    for (size_t j = 0; j < n; j++)
        sum += exp((double)x[j] - max);
    return max + log(sum);
}

static double follow_teacher(const vptq_kl_grad_args *a, float *logits, const float *teacher)
{
    const double lse = log_sum(logits, a->vocab), wanted = log_sum(teacher, a->vocab);
    double loss = 0;
    for (size_t j = 0; j < a->vocab; j++) {
        const double ln_p = (double)logits[j] - lse, ln_t = (double)teacher[j] - wanted;
        const double t = exp(ln_t);
        loss += t * (ln_t - ln_p);
        logits[j] = (float)((double)a->scale * (exp(ln_p) - t));
    }
    return loss;
}

static double follow_target(const vptq_kl_grad_args *a, float *logits, size_t target)
{
    const double lse = log_sum(logits, a->vocab), loss = lse - (double)logits[target];
    for (size_t j = 0; j < a->vocab; j++) {
        const double p = exp((double)logits[j] - lse);
        logits[j] = (float)((double)a->scale * (p - (j == target)));
    }
    return loss;
}

vptq_status vptq_ref_kl_grad(vptq_dev *dev, const vptq_kl_grad_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t i = 0; i < a->n; i++) {
        float *logits = a->logits + i * a->vocab;
        if (a->teacher)
            a->loss[i] = follow_teacher(a, logits, a->teacher + i * a->vocab);
        else if (a->targets[i] >= 0)
            a->loss[i] = follow_target(a, logits, (size_t)a->targets[i]);
        else {
            a->loss[i] = 0;
            memset(logits, 0, a->vocab * sizeof *logits);
        }
    }
    return VPTQ_OK;
}
