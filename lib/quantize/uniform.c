/* The methods of lib/uniform as the encoder of a matrix: settings, losses, report. */
#include <math.h>

#include "lib/base/half.h"
#include "lib/quantize/internal.h"

static vptq_prune prune_of(const vptq_encoder_settings *s)
{
    if (!(s->method & VPTQ_METHOD_SPARSE))
        return (vptq_prune){0};
    switch (s->sparsity_pattern) {
    case VPTQ_PATTERN_2_4:
        return (vptq_prune){.n = 2, .m = 4};
    case VPTQ_PATTERN_4_8:
        return (vptq_prune){.n = 4, .m = 8};
    default:
        return (vptq_prune){.share = s->sparsity};
    }
}

vptq_uniform_settings vptq_uniform_settings_of(const vptq_encoder_settings *s)
{
    return (vptq_uniform_settings){.bits = s->weight_bits,
                                   .group_size = s->group_size,
                                   .symmetric = s->symmetric,
                                   .compensate = s->method & VPTQ_METHOD_GPTQ,
                                   .clip = s->method & VPTQ_METHOD_AWQ,
                                   .order = s->perm,
                                   .prune = prune_of(s),
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

/* Share of zeros. */
static double sparsity_of(const float *w, size_t n)
{
    size_t zeros = 0;
    for (size_t i = 0; i < n; i++)
        zeros += fabsf(w[i]) <= 0;
    return (double)zeros / (double)n;
}

/* Measures the matrix as a reader decodes it. */
static vptq_status measure_all(vptq_device *dev, const vptq_encoder_settings *s,
                               const vptq_encoder_input *input, const float *what,
                               vptq_encoder_report *report, vptq_err *err)
{
    vptq_encoder_loss plain, weighted, held_out;
    VPTQ_CHECK(measure(dev, input, input->lower, what, &plain, err));
    VPTQ_CHECK(measure(dev, input, input->metric, what, &weighted, err));
    VPTQ_CHECK(measure(dev, input, input->held_out, what, &held_out, err));
    report->loss = plain.relative;
    report->weighted = input->metric ? weighted.relative : plain.relative;
    report->held_out = held_out.relative;
    report->relative_mse = plain.norm_sq > 0 ? plain.error_sq / plain.norm_sq : 0;
    if (s->method & VPTQ_METHOD_SPARSE)
        report->sparsity = sparsity_of(what, (size_t)input->out * input->in);
    return VPTQ_OK;
}

/* Codes in `arena`, or without a stage that rounds, weights only; both decoded into `what`. */
static vptq_status choose(vptq_device *dev, const vptq_encoder_settings *s,
                          const vptq_encoder_input *input, vptq_arena *arena, vptq_uniform *u,
                          float *what, vptq_encoder_report *report, vptq_err *err)
{
    const vptq_linear linear = (vptq_linear)(input->matrix_id % VPTQ_LINEAR_DENSE);
    vptq_uniform_settings settings = vptq_uniform_settings_of(s);
    double damping = 0;
    vptq_uniform_input matrix = {.out = input->out,
                                 .in = input->in,
                                 .w = input->w,
                                 .lower = input->metric ? input->metric : input->lower};
    const bool codes = vptq_method_has_codes(s->method);
    if (s->method & VPTQ_METHOD_SPARSE && (!codes || settings.clip)) {
        VPTQ_CHECK(
            vptq_uniform_prune(dev, &settings, &matrix, what, &report->damping_added, err));
        matrix.w = what; /* ranges of AWQ are those of the weights that stay */
        settings.prune = (vptq_prune){0};
    }
    if (!codes)
        return VPTQ_OK;
    if (linear == VPTQ_LINEAR_Q || linear == VPTQ_LINEAR_K)
        settings.clip = false; /* as published */
    VPTQ_CHECK(vptq_uniform_quantize(dev, &settings, &matrix, arena, u, &damping, err));
    report->damping_added = fmax(report->damping_added, damping);
    vptq_uniform_read(u, 0, input->out, what);
    vptq_round_to_n(s->storage, what, (size_t)input->out * input->in);
    return VPTQ_OK;
}

/* The last stage. */
static const char *step_name(uint32_t method)
{
    return method & VPTQ_METHOD_GPTQ  ? "gptq"
           : method & VPTQ_METHOD_AWQ ? "awq"
           : method & VPTQ_METHOD_RTN ? "rtn"
                                      : "sparse";
}

void vptq_quantize_begin(const char *name, const vptq_encoder_input *input,
                         vptq_encoder_report *report)
{
    *report = (vptq_encoder_report){.num_steps = 1};
    if (input->on_step)
        input->on_step(input->on_step_arg, name, (double)NAN);
}

vptq_status vptq_quantize_end(vptq_device *dev, const vptq_encoder_settings *s,
                              const vptq_encoder_input *input, const float *what,
                              const char *name, double start, vptq_encoder_report *report,
                              vptq_err *err)
{
    VPTQ_CHECK(measure_all(dev, s, input, what, report, err));
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

vptq_status vptq_quantize_uniform(vptq_device *dev, const vptq_encoder_settings *s,
                                  const vptq_encoder_input *input, vptq_arena *arena,
                                  vptq_uniform *u, float *what, vptq_encoder_report *report,
                                  vptq_err *err)
{
    const double start = vptq_seconds();
    const char *name = step_name(s->method);
    vptq_quantize_begin(name, input, report);
    VPTQ_CHECK(choose(dev, s, input, arena, u, what, report, err));
    return vptq_quantize_end(dev, s, input, what, name, start, report, err);
}
