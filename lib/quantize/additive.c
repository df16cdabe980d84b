/* The methods of lib/uniform with additive codes as the encoder of a matrix. */
#include "lib/base/half.h"
#include "lib/quantize/internal.h"
#include "lib/uniform/aqlm.h"
#include "lib/uniform/dbllm.h"
#include "lib/uniform/gptvq.h"
#include "lib/uniform/quip.h"

/* Of AQLM and DB-LLM: rounds stop when one gains less than this share of the loss; the
 * published AQLM does so at 0.01, too. */
static const double TOLERANCE = 0.01;
enum { MAX_ROUNDS = 50 };

typedef struct additive_method {
    uint32_t method;
    const char *name;
    vptq_additive_shape (*shape_of)(const vptq_encoder_settings *s, uint32_t out, uint32_t in);
    vptq_status (*quantize)(vptq_device *dev, const vptq_encoder_settings *s,
                            const vptq_uniform_input *input, uint32_t matrix_id,
                            vptq_arena *arena, vptq_additive *a, double *damping_added,
                            vptq_err *err);
} additive_method;

/* ---- GPTVQ ---- */

static vptq_gptvq_settings gptvq_settings(const vptq_encoder_settings *s)
{
    return (vptq_gptvq_settings){.bits = s->weight_bits,
                                 .v = s->v,
                                 .block_columns = s->group_size,
                                 .block_rows = s->codebook_rows,
                                 .int8 = s->codebook_grid == VPTQ_GRID_INT8,
                                 .storage = s->storage,
                                 .ridge = s->ridge,
                                 .damping = s->damping};
}

static vptq_additive_shape gptvq_shape(const vptq_encoder_settings *s, uint32_t out,
                                       uint32_t in)
{
    const vptq_gptvq_settings settings = gptvq_settings(s);
    return vptq_gptvq_shape_of(&settings, out, in);
}

static vptq_status gptvq(vptq_device *dev, const vptq_encoder_settings *s,
                         const vptq_uniform_input *input, uint32_t matrix_id, vptq_arena *arena,
                         vptq_additive *a, double *damping_added, vptq_err *err)
{
    const vptq_gptvq_settings settings = gptvq_settings(s);
    (void)matrix_id;
    return vptq_gptvq_quantize(dev, &settings, input, arena, a, damping_added, err);
}

/* ---- AQLM ---- */

static vptq_aqlm_settings aqlm_settings(const vptq_encoder_settings *s, uint32_t matrix_id)
{
    return (vptq_aqlm_settings){.v = s->v,
                                .k = s->k,
                                .codebooks = s->codebooks,
                                .beam = s->beam,
                                .rounds = MAX_ROUNDS,
                                .tolerance = TOLERANCE,
                                .kmeans_iterations = (int)s->kmeans_iterations,
                                .storage = s->storage,
                                .seed = s->seed,
                                .matrix = matrix_id};
}

static vptq_additive_shape aqlm_shape(const vptq_encoder_settings *s, uint32_t out, uint32_t in)
{
    const vptq_aqlm_settings settings = aqlm_settings(s, 0);
    return vptq_aqlm_shape_of(&settings, out, in);
}

static vptq_status aqlm(vptq_device *dev, const vptq_encoder_settings *s,
                        const vptq_uniform_input *input, uint32_t matrix_id, vptq_arena *arena,
                        vptq_additive *a, double *damping_added, vptq_err *err)
{
    const vptq_aqlm_settings settings = aqlm_settings(s, matrix_id);
    *damping_added = 0;
    return vptq_aqlm_quantize(dev, &settings, input, arena, a, err);
}

/* ---- DB-LLM ---- */

static vptq_dbllm_settings dbllm_settings(const vptq_encoder_settings *s)
{
    return (vptq_dbllm_settings){.group_size = s->group_size,
                                 .rounds = s->sweeps,
                                 .tolerance = TOLERANCE,
                                 .storage = s->storage};
}

static vptq_additive_shape dbllm_shape(const vptq_encoder_settings *s, uint32_t out,
                                       uint32_t in)
{
    const vptq_dbllm_settings settings = dbllm_settings(s);
    return vptq_dbllm_shape_of(&settings, out, in);
}

static vptq_status dbllm(vptq_device *dev, const vptq_encoder_settings *s,
                         const vptq_uniform_input *input, uint32_t matrix_id, vptq_arena *arena,
                         vptq_additive *a, double *damping_added, vptq_err *err)
{
    const vptq_dbllm_settings settings = dbllm_settings(s);
    (void)matrix_id;
    *damping_added = 0;
    return vptq_dbllm_quantize(dev, &settings, input, arena, a, err);
}

/* ---- QuIP# ---- */

static vptq_quip_settings quip_settings(const vptq_encoder_settings *s)
{
    return (vptq_quip_settings){
        .bits = s->weight_bits, .seed = s->seed, .ridge = s->ridge, .damping = s->damping};
}

static vptq_additive_shape quip_shape(const vptq_encoder_settings *s, uint32_t out, uint32_t in)
{
    const vptq_quip_settings settings = quip_settings(s);
    return vptq_quip_shape_of(&settings, out, in);
}

static vptq_status quip(vptq_device *dev, const vptq_encoder_settings *s,
                        const vptq_uniform_input *input, uint32_t matrix_id, vptq_arena *arena,
                        vptq_additive *a, double *damping_added, vptq_err *err)
{
    const vptq_quip_settings settings = quip_settings(s);
    return vptq_quip_quantize(dev, &settings, input, matrix_id, arena, a, damping_added, err);
}

/* ---- all methods ---- */

static const additive_method methods[] = {
    {VPTQ_METHOD_GPTVQ, "gptvq", gptvq_shape, gptvq},
    {VPTQ_METHOD_AQLM, "aqlm", aqlm_shape, aqlm},
    {VPTQ_METHOD_DBLLM, "db-llm", dbllm_shape, dbllm},
    {VPTQ_METHOD_QUIP, "quip#", quip_shape, quip},
};

static const additive_method *method_of(const vptq_encoder_settings *s)
{
    size_t i = 0;
    while (methods[i].method != s->method)
        i++;
    return &methods[i];
}

vptq_additive_shape vptq_additive_shape_of(const vptq_encoder_settings *s, uint32_t out,
                                           uint32_t in)
{
    return method_of(s)->shape_of(s, out, in);
}

vptq_status vptq_quantize_additive(vptq_device *dev, const vptq_encoder_settings *s,
                                   const vptq_encoder_input *input, vptq_arena *arena,
                                   vptq_additive *a, float *what, vptq_encoder_report *report,
                                   vptq_err *err)
{
    const double start = vptq_seconds();
    const vptq_uniform_input matrix = {.out = input->out,
                                       .in = input->in,
                                       .w = input->w,
                                       .lower = input->metric ? input->metric : input->lower};
    const additive_method *m = method_of(s);
    vptq_quantize_begin(m->name, input, report);
    VPTQ_CHECK(
        m->quantize(dev, s, &matrix, input->matrix_id, arena, a, &report->damping_added, err));
    VPTQ_CHECK(vptq_additive_decode(dev->ctx, a, what, err));
    vptq_round_to_n(s->storage, what, (size_t)input->out * input->in);
    return vptq_quantize_end(dev, s, input, what, m->name, start, report, err);
}
