/* Counts the bytes that encoding a matrix moves between host and device: weights and Hessians
 * up, the packed result down, and little else. The guard makes the host fault if it touches
 * device memory otherwise. */
#include <math.h>
#include <stdlib.h>

#include "tests/emu/emu.h"
#include "tests/support/vencoder.h"
#include "tests/support/vtest.h"

/* Refers to the emulated backend, so that it is linked. */
static const vptq_backend *(*const emulated)(void) = vptq_backend_emu;

static double stored_bytes(const vptq_vq_shape *s)
{
    const double books = (double)s->groups * ((double)s->k + s->k_res) * s->v * 4;
    const double outliers = s->outliers
                                ? (double)s->outliers * ((s->out + s->v0 - 1) / s->v0) * 4 +
                                      (double)s->k0 * s->v0 * 4
                                : 0;
    return books + outliers + 8.0 * s->in + (s->has_perm ? 2.0 * s->in : 0) +
           4.0 * s->groups * vptq_vq_vector_rows(s) * (double)vptq_vq_row_words(s);
}

/* The codebooks of a group: the numbers of the sample that is seeded from, those to draw with
 * (8 trials per centroid), and each codebook down, rounded, and up. */
static double codebook_bytes(const vptq_encoder_settings *s, double vectors, double k, double v)
{
    double sample = 8 * k < 0x1p30 / k ? 8 * k : 0x1p30 / k > 2 * k ? 0x1p30 / k : 2 * k;
    sample = sample > 32768 ? sample : 32768;
    sample = sample < vectors ? sample : vectors;
    return (s->init == VPTQ_INIT_RANDOM ? 4 * k : 4 * sample + 8 * 8 * k) + 8 * k * v;
}

/* The bytes that move besides weights, Hessians and the result. */
static double other_bytes(const vptq_encoder_settings *s, const vptq_vq_shape *shape,
                          uint32_t hessians)
{
    const double in = shape->in,
                 vectors = (double)shape->group_size * vptq_vq_vector_rows(shape);
    /* k-means, residual, pass, storage, and the optional ones */
    const double steps =
        4.0 + (s->joint > 0) + (s->retrain > 0) + (s->sweeps > 0) + s->scales + s->refits;
    double bytes = stored_bytes(shape); /* up again, to be decoded as a reader does it */
    bytes += shape->groups * codebook_bytes(s, vectors, shape->k, shape->v);
    if (shape->k_res)
        bytes += shape->groups * codebook_bytes(s, vectors, shape->k_res, shape->v);
    if (shape->outliers)
        bytes += codebook_bytes(s, (double)shape->outliers * shape->out / shape->v0, shape->k0,
                                shape->v0);
    /* per column: its norm, its place and H'_jj at the beginning and after a new scale, least
     * squares over scales; its share of each loss after every step; scalars */
    return bytes + 120 * in + steps * ((24 + 8.0 * hessians) * in + 128);
}

/* Encodes on the emulated device and returns the bytes moved. */
static double moved(const vptq_encoder_settings *s, const vptq_encoder_input *input,
                    vptq_vq_shape *shape)
{
    vencoder_run run;
    assert_non_null(emulated());
    vencoder_open(&run, "emu", 1);
    cuda_emu_guard(true);
    const cuda_emu_counts before = cuda_emu_count();
    vencoder_quantize(&run, s, input);
    const cuda_emu_counts after = cuda_emu_count();
    *shape = run.r.vq.shape;
    vencoder_close(&run);
    cuda_emu_guard(false);
    assert_int_equal(cuda_emu_memory_used(), 0);
    return (double)(after.uploaded - before.uploaded) +
           (double)(after.downloaded - before.downloaded);
}

/* The matrix is large enough for one more copy of its weights or of a Hessian to exceed the
 * bound. */
static void check(const char *name, const vptq_encoder_settings *s, uint32_t hessians)
{
    problem p = problem_make(40, 80, 5);
    float *metric = problem_hessian(p.in, 6), *held_out = problem_hessian(p.in, 7);
    vptq_vq_shape shape;
    vptq_encoder_input input = vencoder_input(&p);
    input.metric = hessians > 1 ? metric : NULL;
    input.held_out = hessians > 2 ? held_out : NULL;
    const double bytes = moved(s, &input, &shape);
    const double weights = 4.0 * p.out * p.in, hessian = 2.0 * p.in * (p.in + 1);
    const double ends = weights + hessians * hessian + stored_bytes(&shape);
    const double bound = ends + other_bytes(s, &shape, hessians);
    if (!(bytes <= bound))
        fail_msg("%s moves %.0f bytes, expected at most %.0f", name, bytes, bound);
    if (!(bytes + fmin(weights, hessian) > bound))
        fail_msg("%s moves %.0f bytes; a bound of %.0f allows one more copy", name, bytes,
                 bound);
    /* All of the input moves once, so that a count that is too low fails, too. */
    assert_true(bytes >= ends - stored_bytes(&shape));
    free(metric);
    free(held_out);
    problem_free(&p);
}

static vptq_encoder_settings small(uint32_t k_res)
{
    vptq_encoder_settings s = vptq_encoder_defaults();
    s.v = 8;
    s.k = 16;
    s.k_res = k_res;
    s.kmeans_iterations = 2;
    s.joint = s.retrain = s.sweeps = 1;
    s.refits = 1;
    s.beam = 2;
    return s;
}

static void test_matrices_stay_on_the_device(void **state)
{
    (void)state;
    vptq_encoder_settings s = small(0);
    vptq_err err = {0};
    check("plain", &s, 1);
    s = small(4);
    check("residual", &s, 3);
    s.groups = 2;
    s.outliers = 10;
    s.v0 = 4;
    s.k0 = 8;
    s.pass_columns = 3;
    check("groups, outliers and columns together", &s, 2);
    s = small(4);
    assert_ok(vptq_encoder_set_encoder(&s, "upstream", &err), &err);
    s.kmeans_iterations = 2;
    check("upstream", &s, 1);
}

/* At the sizes of a 7B model everything else is less than a tenth. */
static void test_other_bytes_are_few(void **state)
{
    static const uint32_t shapes[][2] = {{4096, 4096}, {11008, 4096}, {4096, 11008}};
    (void)state;
    for (int residual = 0; residual < 2; residual++)
        for (size_t i = 0; i < 3; i++) {
            vptq_encoder_settings s = vptq_encoder_defaults();
            s.v = 8;
            s.k = 4096;
            s.k_res = residual ? 256 : 0;
            const double out = shapes[i][0], in = shapes[i][1];
            const vptq_vq_shape shape = vptq_encoder_shape(&s, shapes[i][0], shapes[i][1]);
            const double ends = 4 * out * in + 2 * in * (in + 1) + stored_bytes(&shape);
            if (!(other_bytes(&s, &shape, 1) <= 0.1 * ends))
                fail_msg("%.0f x %.0f: %.0f bytes besides %.0f", out, in,
                         other_bytes(&s, &shape, 1), ends);
        }
}

VTEST_MAIN(cmocka_unit_test(test_matrices_stay_on_the_device),
           cmocka_unit_test(test_other_bytes_are_few))
