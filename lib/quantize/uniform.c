/* The methods of lib/uniform as the encoder of a matrix: settings, losses, report. */
#include <math.h>

#include "lib/base/half.h"
#include "lib/quantize/internal.h"

vptq_uniform_settings vptq_uniform_settings_of(const vptq_encoder_settings *s)
{
    return (vptq_uniform_settings){.bits = s->weight_bits,
                                   .group_size = s->group_size,
                                   .symmetric = s->symmetric,
                                   .compensate = s->method & VPTQ_METHOD_GPTQ,
                                   .clip = s->method & VPTQ_METHOD_AWQ,
                                   .order = s->perm,
                                   .storage = s->storage,
                                   .ridge = s->ridge,
                                   .damping = s->damping};
}

/* *loss = tr(E H E^T) / tr(W H W^T) of what [out, in] under the Hessian `lower`; NULL: 0. */
static vptq_status measure(vptq_device *dev, const vptq_encoder_input *input,
                           const float *lower, const float *what, vptq_encoder_loss *loss,
                           vptq_err *err)
{
    vptq_encoder_input under = *input;
    under.lower = lower;
    *loss = (vptq_encoder_loss){0};
    return lower ? vptq_encoder_measure(dev, &under, what, loss, err) : VPTQ_OK;
}

/* Measures the matrix as a reader decodes it. */
static vptq_status measure_all(vptq_device *dev, const vptq_encoder_settings *s,
                               const vptq_encoder_input *input, const vptq_uniform *u,
                               vptq_encoder_report *report, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_encoder_loss plain, weighted, held_out;
    const size_t n = (size_t)input->out * input->in;
    float *what = vptq_mem_alloc(dev->ctx->mem, n, sizeof *what, err);
    if (!what)
        return VPTQ_E_NOMEM;
    vptq_uniform_read(u, 0, input->out, what);
    vptq_round_to_n(s->storage, what, n);
    VPTQ_TRY(measure(dev, input, input->lower, what, &plain, err));
    VPTQ_TRY(measure(dev, input, input->metric, what, &weighted, err));
    VPTQ_TRY(measure(dev, input, input->held_out, what, &held_out, err));
    report->loss = plain.relative;
    report->weighted = input->metric ? weighted.relative : plain.relative;
    report->held_out = held_out.relative;
    report->relative_mse = plain.norm_sq > 0 ? plain.error_sq / plain.norm_sq : 0;
out:
    vptq_mem_free(dev->ctx->mem, what);
    return st;
}

vptq_status vptq_quantize_uniform(vptq_device *dev, const vptq_encoder_settings *s,
                                  const vptq_encoder_input *input, vptq_arena *arena,
                                  vptq_uniform *u, vptq_encoder_report *report, vptq_err *err)
{
    const double start = vptq_seconds();
    const char *name = s->method & VPTQ_METHOD_GPTQ  ? "gptq"
                       : s->method & VPTQ_METHOD_AWQ ? "awq"
                                                     : "rtn";
    const vptq_linear linear = (vptq_linear)(input->matrix_id % VPTQ_LINEAR_COUNT);
    vptq_uniform_settings settings = vptq_uniform_settings_of(s);
    const vptq_uniform_input matrix = {.out = input->out,
                                       .in = input->in,
                                       .w = input->w,
                                       .lower = input->metric ? input->metric : input->lower};
    if (linear == VPTQ_LINEAR_Q || linear == VPTQ_LINEAR_K)
        settings.clip = false; /* as published */
    *report = (vptq_encoder_report){.num_steps = 1};
    if (input->on_step)
        input->on_step(input->on_step_arg, name, (double)NAN);
    VPTQ_CHECK(
        vptq_uniform_quantize(dev, &settings, &matrix, arena, u, &report->damping_added, err));
    VPTQ_CHECK(measure_all(dev, s, input, u, report, err));
    for (size_t i = 0; i < input->in; i++)
        report->dead_columns += !(input->lower[i * (i + 1) / 2 + i] > 0);
    report->seconds = vptq_seconds() - start;
    report->steps[0] = (vptq_encoder_step){.name = name,
                                           .loss = report->loss,
                                           .weighted = report->weighted,
                                           .held_out = report->held_out,
                                           .seconds = report->seconds};
    return VPTQ_OK;
}
