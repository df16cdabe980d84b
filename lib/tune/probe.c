/* Measures tuning in one block. */
#include "lib/tune/probe.h"

#include <math.h>

enum { FIRST_TOKENS = 32, MAX_STEPS = 16 };
static const double target_seconds = 0.5; /* of a window at most, and of all steps about */

typedef struct probe {
    vptq_trainer t;
    uint32_t layer;
    float *in, *out;      /* [length, hidden] device memory */
    double forward, both; /* seconds of the last window of either kind */
} probe;

/* Runs the block over any hidden states; a gradient is as large as its output. */
static vptq_status run_window(void *arg, const size_t *windows, size_t count, bool backward,
                              double *loss, vptq_err *err)
{
    probe *p = arg;
    const vptq_device *dev = p->t.dev;
    const size_t bytes = p->t.opt.length * p->t.student->m->desc->hidden * sizeof *p->in;
    const double start = vptq_seconds();
    (void)windows;
    *loss = (double)count;
    VPTQ_CHECK(dev->ops->copy(dev->state, p->out, p->in, bytes, err));
    VPTQ_CHECK(vptq_backward_forward(p->t.b, p->layer, vptq_trainer_weights(&p->t, p->layer),
                                     p->out, err));
    if (backward)
        VPTQ_CHECK(vptq_trainer_backward(&p->t, p->layer, p->in, p->out, err));
    *(backward ? &p->both : &p->forward) = vptq_seconds() - start;
    return VPTQ_OK;
}

static vptq_status make_input(probe *p, vptq_err *err)
{
    const vptq_device *dev = p->t.dev;
    const size_t n = p->t.opt.length * p->t.student->m->desc->hidden;
    VPTQ_CHECK(vptq_trainer_states(&p->t, 1, &p->in, err));
    VPTQ_CHECK(vptq_trainer_states(&p->t, 1, &p->out, err));
    float *x = vptq_mem_alloc(dev->ctx->mem, n, sizeof *x, err);
    if (!x)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < n; i++) /* in -1 to 1, all rows different */
        x[i] = (float)sin((double)i);
    const vptq_status st = dev->ops->upload(dev->state, p->in, x, n * sizeof *x, err);
    vptq_mem_free(dev->ctx->mem, x);
    return st;
}

/* Takes steps of one window each, of which the first only touches the memory, and sets the mean
 * seconds. */
static vptq_status measure(probe *p, vptq_tune_probe *mean, vptq_err *err)
{
    const vptq_tensor_range range = vptq_student_range(p->t.student, p->layer, p->layer + 1);
    vptq_trainer_report r;
    double start = 0, forward = 0, both = 0, all = 0;
    int n = 0;
    VPTQ_CHECK(make_input(p, err));
    VPTQ_CHECK(vptq_trainer_begin(&p->t, &range, &r, err));
    VPTQ_CHECK(vptq_trainer_step(&p->t, &r, err));
    for (const double begin = vptq_seconds(); n < MAX_STEPS; n++) {
        if (n && vptq_seconds() - begin > target_seconds)
            break;
        start = vptq_seconds();
        VPTQ_CHECK(vptq_trainer_step(&p->t, &r, err));
        all += vptq_seconds() - start;
        both += p->both;
        VPTQ_CHECK(run_window(p, NULL, 1, false, &r.loss, err));
        forward += p->forward;
    }
    const double tokens = n * (double)p->t.opt.length;
    *mean = (vptq_tune_probe){
        .forward = forward / tokens, .both = both / tokens, .step = (all - both) / n};
    return VPTQ_OK;
}

static vptq_status measure_length(vptq_device *dev, vptq_student *s, bool bf16, size_t length,
                                  size_t rows, vptq_tune_probe *out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_mem *mem = dev->ctx->mem;
    const size_t used = mem ? mem->used : 0;
    probe p = {.layer = s->tensors[0].layer};
    const vptq_trainer_options o = {.steps = MAX_STEPS + 2, /* the last would measure */
                                    .batch = 1,
                                    .rate = 0,
                                    .length = length,
                                    .group = 1,
                                    .windows = 1,
                                    .held_out = 1,
                                    .every = MAX_STEPS + 2,
                                    .bf16 = bf16};
    if (mem)
        mem->peak = used;
    VPTQ_TRY(vptq_trainer_open(dev, s, &o, run_window, &p, &p.t, err));
    VPTQ_TRY(measure(&p, out, err));
    out->memory = (mem ? mem->peak - used : 0) + vptq_backward_bytes(p.t.f, rows) -
                  vptq_backward_bytes(p.t.f, length);
out:
    dev->ops->release(dev->state, p.in);
    dev->ops->release(dev->state, p.out);
    vptq_trainer_close(&p.t);
    return st;
}

vptq_status vptq_tune_measure(vptq_device *dev, vptq_student *student,
                              const vptq_trainer_options *opt, size_t rows, vptq_tune_probe *p,
                              vptq_err *err)
{
    vptq_ctx alone = *dev->ctx; /* ranks measure alone */
    vptq_device own = *dev;
    vptq_mem *mem = alone.mem;
    const size_t peak = mem ? mem->peak : 0, first = FIRST_TOKENS;
    size_t length = opt->length < first ? opt->length : first;
    alone.comm = NULL;
    own.ctx = &alone;
    VPTQ_CHECK(measure_length(&own, student, opt->bf16, length, rows, p, err));
    const double affordable = target_seconds / (p->both + 1e-9);
    if (affordable > (double)length)
        length = affordable < (double)opt->length ? (size_t)affordable : opt->length;
    const vptq_status st = measure_length(&own, student, opt->bf16, length, rows, p, err);
    if (mem && mem->peak < peak)
        mem->peak = peak;
    return st;
}
