/* Tests the ops that compute gradients: ref against central differences of the forward pass in
 * double, other backends against ref. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/devices.h"

static const char *const names[] = {"ref", "cpu", "emu"};
enum { NAMES = 3 };

/* About twenty float operations per element, each with an error of at most 2^-24. */
static const double few_operations = 0x1p-42;

/* ---- central differences ---- */

/* A loss in double of the arrays in x, which are stored one after the other. */
typedef double loss_fn(const void *arg, const double *x);

/* Checks gradients of n inputs: the error is at most 1e-6 of the largest. */
static void check_differences(loss_fn *loss, const void *arg, double *x, const float *got,
                              size_t n)
{
    const double step = 1e-5;
    double largest = 0, worst = 0;
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const double before = x[i];
        x[i] = before + step;
        const double above = loss(arg, x);
        x[i] = before - step;
        const double want = (above - loss(arg, x)) / (2 * step);
        const double error = fabs(want - (double)got[i]);
        x[i] = before;
        largest = fabs(want) > largest ? fabs(want) : largest;
        at = error > worst ? i : at;
        worst = error > worst ? error : worst;
    }
    if (!(worst <= 1e-6 * largest))
        fail_msg("the gradient of input %zu is off by %g; the largest is %g", at, worst,
                 largest);
}

static double *widened(const float *x, size_t n)
{
    double *wide = malloc(n * sizeof *wide);
    assert_non_null(wide);
    for (size_t i = 0; i < n; i++)
        wide[i] = (double)x[i];
    return wide;
}

/* ---- attention ---- */

typedef struct attention_case {
    size_t n, heads, kv_heads, head_dim, window;
    float scale;
    float *inputs; /* queries, keys and values */
    float *dout;
    float *out, *lse; /* of ref */
    int part;         /* which gradient run_attention_grad returns: 0 to 2 */
} attention_case;

static size_t wide(const attention_case *c)
{
    return c->n * c->heads * c->head_dim;
}

static size_t narrow(const attention_case *c)
{
    return c->n * c->kv_heads * c->head_dim;
}

/* out [n, heads, head_dim] . dout in double, straight from the definition. */
static double attention_loss(const void *arg, const double *x)
{
    const attention_case *c = arg;
    const size_t d = c->head_dim;
    const double *keys = x + wide(c), *values = keys + narrow(c);
    double loss = 0;
    for (size_t i = 0; i < c->n; i++)
        for (size_t h = 0; h < c->heads; h++) {
            const size_t kv = h / (c->heads / c->kv_heads), row = (i * c->heads + h) * d;
            double sum = 0, mixed = 0;
            for (size_t j = 0; j <= i; j++) {
                const size_t col = (j * c->kv_heads + kv) * d;
                double score = 0, value = 0;
                if (c->window && i - j >= c->window)
                    continue;
                for (size_t e = 0; e < d; e++) {
                    score += x[row + e] * keys[col + e];
                    value += values[col + e] * (double)c->dout[row + e];
                }
                sum += exp((double)c->scale * score);
                mixed += exp((double)c->scale * score) * value;
            }
            loss += mixed / sum;
        }
    return loss;
}

static void attend(const vptq_device *dev, const attention_case *c, float *out, float *lse)
{
    const size_t ldq = c->heads * c->head_dim, ldk = c->kv_heads * c->head_dim;
    vptq_err err;
    assert_ok(
        dev->ops->attention(dev->state,
                            &(vptq_attention_args){.n = c->n,
                                                   .heads = c->heads,
                                                   .kv_heads = c->kv_heads,
                                                   .head_dim = c->head_dim,
                                                   .window = c->window,
                                                   .scale = c->scale,
                                                   .q = c->inputs,
                                                   .keys = c->inputs + wide(c),
                                                   .values = c->inputs + wide(c) + narrow(c),
                                                   .out = out,
                                                   .lse = lse,
                                                   .ldq = ldq,
                                                   .ldk = ldk,
                                                   .ldv = ldk,
                                                   .ldo = ldq},
                            &err),
        &err);
}

/* dq, dkeys and dvalues into the arrays from `to` on, one after the other. */
static void attention_grad(const vptq_device *dev, const attention_case *c, float *to)
{
    vptq_err err;
    assert_ok(dev->ops->attention_grad(
                  dev->state,
                  &(vptq_attention_grad_args){.n = c->n,
                                              .heads = c->heads,
                                              .kv_heads = c->kv_heads,
                                              .head_dim = c->head_dim,
                                              .window = c->window,
                                              .scale = c->scale,
                                              .q = c->inputs,
                                              .out = c->out,
                                              .dout = c->dout,
                                              .keys = c->inputs + wide(c),
                                              .values = c->inputs + wide(c) + narrow(c),
                                              .lse = c->lse,
                                              .dq = to,
                                              .dkeys = to + wide(c),
                                              .dvalues = to + wide(c) + narrow(c)},
                  &err),
              &err);
}

static size_t part_size(const attention_case *c)
{
    return c->part ? narrow(c) : wide(c);
}

static void run_attention_grad(const vptq_device *dev, const void *arg, void *out)
{
    const attention_case *c = arg;
    const size_t first[] = {0, wide(c), wide(c) + narrow(c)}, all = wide(c) + 2 * narrow(c);
    float *to = malloc(all * sizeof *to);
    assert_non_null(to);
    memset(to, 0xff, all * sizeof *to);
    attention_grad(dev, c, to);
    memcpy(out, to + first[c->part], part_size(c) * sizeof *to);
    free(to);
}

static void run_lse(const vptq_device *dev, const void *arg, void *out)
{
    const attention_case *c = arg;
    float *mixed = malloc(wide(c) * sizeof *mixed);
    assert_non_null(mixed);
    attend(dev, c, mixed, out);
    free(mixed);
}

/* Inputs of a shape, with a head whose queries all but ignore other keys than the first, like
 * the attention sinks of trained models. */
static attention_case attention_open(const size_t shape[5])
{
    attention_case c = {shape[0], shape[1], shape[2], shape[3], shape[4], 0, 0, 0, 0, 0, 0};
    devices_one ref;
    c.inputs = vtest_normals(wide(&c) + 2 * narrow(&c), 31);
    c.scale = (float)(1 / sqrt((double)c.head_dim));
    for (size_t i = 0; i < c.n; i++)
        c.inputs[i * c.heads * c.head_dim] = 3;
    c.inputs[wide(&c)] = 4 / c.scale;
    c.dout = vtest_normals(wide(&c), 32);
    c.out = vtest_alloc(wide(&c), sizeof *c.out);
    c.lse = vtest_alloc(c.n * c.heads, sizeof *c.lse);
    devices_open(&ref, "ref", VPTQ_SIMD_NONE, 1);
    attend(&ref.dev, &c, c.out, c.lse);
    devices_close(&ref);
    return c;
}

static void attention_free(attention_case *c)
{
    free(c->inputs);
    free(c->dout);
    free(c->out);
    free(c->lse);
}

static void test_attention_differences(void **state)
{
    (void)state;
    /* n, heads, kv_heads, head_dim, window */
    static const size_t shapes[][5] = {{1, 1, 1, 1, 0}, {2, 2, 1, 3, 0}, {9, 4, 2, 5, 0},
                                       {7, 3, 3, 4, 0}, {9, 3, 1, 4, 3}, {5, 2, 2, 2, 1}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        attention_case c = attention_open(shapes[s]);
        const size_t all = wide(&c) + 2 * narrow(&c);
        double *x = widened(c.inputs, all);
        float *got = malloc(all * sizeof *got);
        devices_one ref;
        assert_non_null(got);
        devices_open(&ref, "ref", VPTQ_SIMD_NONE, 1);
        attention_grad(&ref.dev, &c, got);
        check_differences(attention_loss, &c, x, got, all);
        devices_close(&ref);
        free(got);
        free(x);
        attention_free(&c);
    }
}

/* A score has an error of about 2^-24 of the size of its terms, 10 here, which is also the
 * relative error of p and of ds: an NMSE of 2^-41 with a sum over keys on top. */
static void test_attention_grad(void **state)
{
    (void)state;
    /* n, heads, kv_heads, head_dim, window */
    static const size_t shapes[][5] = {
        {1, 1, 1, 1, 0},     {2, 4, 2, 6, 0},     {7, 6, 6, 16, 0},     {63, 3, 1, 64, 0},
        {64, 3, 1, 64, 0},   {65, 9, 3, 64, 0},   {253, 2, 1, 80, 0},   {130, 4, 2, 128, 0},
        {300, 4, 2, 16, 2},  {300, 4, 2, 16, 7},  {300, 3, 1, 16, 257}, {520, 2, 2, 8, 300},
        {1100, 2, 1, 16, 0}, {129, 5, 1, 33, 65}, {66, 2, 1, 128, 0},   {20, 3, 1, 136, 5}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        attention_case c = attention_open(shapes[s]);
        const bool small = c.n * c.n * c.heads * c.head_dim <= 3 << 20;
        for (c.part = 0; c.part < 3; c.part++) {
            const devices_op op = {run_attention_grad, &c, part_size(&c), sizeof(float),
                                   0x1p-36};
            (small ? devices_check_emu : devices_check)(&op, NULL);
        }
        const devices_op lse = {run_lse, &c, c.n * c.heads, sizeof(float), 0x1p-42};
        (small ? devices_check_emu : devices_check)(&lse, NULL);
        attention_free(&c);
    }
}

/* A query after `pos0` keys, in small and large numbers: lse in double. */
static void test_lse_after_other_keys(void **state)
{
    (void)state;
    enum { POS0 = 300, N = 40, D = 4 };
    float *q = vtest_normals(N * D, 33), *k = vtest_normals((POS0 + N) * D, 34), out[N * D];
    for (size_t dev = 0; dev < NAMES; dev++)
        for (size_t n = 1; n <= N; n += N - 1) {
            devices_one d;
            vptq_err err;
            float lse[N];
            devices_open(&d, names[dev], vptq_cpu_simd(), 1);
            const vptq_attention_args a = {.n = n,
                                           .pos0 = POS0,
                                           .heads = 1,
                                           .kv_heads = 1,
                                           .head_dim = D,
                                           .scale = 2,
                                           .q = q,
                                           .keys = k,
                                           .values = k,
                                           .out = out,
                                           .lse = lse,
                                           .ldq = D,
                                           .ldk = D,
                                           .ldv = D,
                                           .ldo = D};
            assert_ok(d.dev.ops->attention(d.dev.state, &a, &err), &err);
            for (size_t i = 0; i < n; i++) {
                double sum = 0;
                for (size_t j = 0; j <= POS0 + i; j++) {
                    double score = 0;
                    for (size_t e = 0; e < D; e++)
                        score += (double)q[i * D + e] * (double)k[j * D + e];
                    sum += exp(2 * score);
                }
                assert_true(fabs((double)lse[i] - log(sum)) <= 4e-6);
            }
            devices_close(&d);
        }
    free(q);
    free(k);
}

/* ---- rmsnorm ---- */

typedef struct norm_case {
    size_t n, dim;
    const float *inputs, *dy; /* x [n, dim] and weight [dim] */
    bool add, in_place;
} norm_case;

static double norm_loss(const void *arg, const double *x)
{
    const norm_case *c = arg;
    const double *weight = x + c->n * c->dim;
    double loss = 0;
    for (size_t i = 0; i < c->n; i++) {
        double squares = 0;
        for (size_t j = 0; j < c->dim; j++)
            squares += x[i * c->dim + j] * x[i * c->dim + j];
        for (size_t j = 0; j < c->dim; j++)
            loss += x[i * c->dim + j] / sqrt(squares / (double)c->dim + (double)1e-2f) *
                    weight[j] * (double)c->dy[i * c->dim + j];
    }
    return loss;
}

/* dx, then dweight on top of 0.25, into doubles. */
static void run_norm_grad(const vptq_device *dev, const void *arg, void *out)
{
    const norm_case *c = arg;
    const size_t size = c->n * c->dim;
    double *to = out;
    float *dx = malloc(size * sizeof *dx);
    vptq_err err;
    assert_non_null(dx);
    for (size_t i = 0; i < size; i++)
        dx[i] = c->in_place ? c->dy[i] : c->add ? 0.5f : NAN;
    for (size_t i = 0; i < c->dim; i++)
        to[size + i] = 0.25;
    assert_ok(dev->ops->rmsnorm_grad(
                  dev->state,
                  &(vptq_rmsnorm_grad_args){.n = c->n,
                                            .dim = c->dim,
                                            .x = c->inputs,
                                            .dy = c->in_place ? dx : c->dy,
                                            .weight = c->inputs + size,
                                            .eps = 1e-2f,
                                            .add = c->add,
                                            .dx = dx,
                                            .dweight = c->in_place ? NULL : to + size},
                  &err),
              &err);
    for (size_t i = 0; i < size; i++)
        to[i] = (double)dx[i];
    free(dx);
}

static void test_rmsnorm_differences(void **state)
{
    (void)state;
    enum { N = 3, DIM = 7, ALL = N * DIM + DIM };
    float *inputs = vtest_normals(ALL, 41), *dy = vtest_normals(N * DIM, 42), got[ALL];
    double *x = widened(inputs, ALL), out[ALL];
    const norm_case c = {N, DIM, inputs, dy, false, false};
    devices_one ref;
    devices_open(&ref, "ref", VPTQ_SIMD_NONE, 1);
    run_norm_grad(&ref.dev, &c, out);
    for (size_t i = 0; i < ALL; i++)
        got[i] = (float)(out[i] - (i < N * DIM ? 0 : 0.25));
    check_differences(norm_loss, &c, x, got, ALL);
    devices_close(&ref);
    free(inputs);
    free(dy);
    free(x);
}

static void test_rmsnorm_grad(void **state)
{
    (void)state;
    static const size_t shapes[][2] = {{1, 1},   {3, 15},  {2, 16},   {64, 17},
                                       {65, 64}, {5, 576}, {300, 33}, {2100, 8}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int way = 0; way < 3; way++) {
            const size_t n = shapes[s][0], dim = shapes[s][1];
            float *inputs = vtest_normals(n * dim + dim, 43), *dy = vtest_normals(n * dim, 44);
            const norm_case c = {n, dim, inputs, dy, way == 1, way == 2};
            const devices_op op = {run_norm_grad, &c, n * dim + dim, sizeof(double),
                                   few_operations};
            (n <= 65 ? devices_check_emu : devices_check)(&op, NULL);
            free(inputs);
            free(dy);
        }
}

/* ---- swiglu ---- */

typedef struct swiglu_case {
    size_t n, dim;
    const float *inputs, *dy; /* gate and up */
} swiglu_case;

static double swiglu_loss(const void *arg, const double *x)
{
    const swiglu_case *c = arg;
    const size_t size = c->n * c->dim;
    double loss = 0;
    for (size_t i = 0; i < size; i++)
        loss += x[i] / (1 + exp(-x[i])) * x[size + i] * (double)c->dy[i];
    return loss;
}

static void run_swiglu_grad(const vptq_device *dev, const void *arg, void *out)
{
    const swiglu_case *c = arg;
    const size_t size = c->n * c->dim;
    float *to = out;
    vptq_err err;
    memcpy(to, c->inputs, 2 * size * sizeof *to);
    assert_ok(dev->ops->swiglu_grad(
                  dev->state,
                  &(vptq_swiglu_grad_args){
                      .n = c->n, .dim = c->dim, .dy = c->dy, .gate = to, .up = to + size},
                  &err),
              &err);
}

static void test_swiglu_grad(void **state)
{
    (void)state;
    static const size_t shapes[][2] = {{1, 1}, {3, 17}, {1, 16385}, {40, 1536}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const size_t size = shapes[s][0] * shapes[s][1];
        float *inputs = vtest_normals(2 * size, 45), *dy = vtest_normals(size, 46);
        for (size_t i = 0; i < size; i++)
            inputs[i] *= 4;
        const swiglu_case c = {shapes[s][0], shapes[s][1], inputs, dy};
        const devices_op op = {run_swiglu_grad, &c, 2 * size, sizeof(float), few_operations};
        float *got = malloc(2 * size * sizeof *got);
        assert_non_null(got);
        devices_check_emu(&op, got);
        if (size < 100) {
            double *x = widened(inputs, 2 * size);
            check_differences(swiglu_loss, &c, x, got, 2 * size);
            free(x);
        }
        free(inputs);
        free(dy);
        free(got);
    }
}

/* Gates so large that exp overflows pass on dy as it is, or nothing. */
static void test_swiglu_grad_by_hand(void **state)
{
    (void)state;
    const float dy[] = {1, 2, 3};
    const float want_gate[] = {2.5f, 6, 0}, want_up[] = {0, 2000, 0};
    for (size_t i = 0; i < NAMES; i++) {
        devices_one d;
        vptq_err err;
        float gate[] = {0, 1000, -1000}, up[] = {5, 3, 3};
        devices_open(&d, names[i], vptq_cpu_simd(), 1);
        assert_ok(
            d.dev.ops->swiglu_grad(
                d.dev.state,
                &(vptq_swiglu_grad_args){.n = 1, .dim = 3, .dy = dy, .gate = gate, .up = up},
                &err),
            &err);
        assert_close(gate, want_gate, 3, 0, 0);
        assert_close(up, want_up, 3, 0, 0);
        devices_close(&d);
    }
}

/* ---- the loss ---- */

typedef struct kl_case {
    size_t n, vocab;
    const float *logits, *teacher;
    const int32_t *targets;
    float scale;
} kl_case;

static double log_sum(const double *x, size_t n)
{
    double sum = 0;
    for (size_t j = 0; j < n; j++)
        sum += exp(x[j]);
    return log(sum);
}

static double kl_loss(const void *arg, const double *x)
{
    const kl_case *c = arg;
    double loss = 0;
    for (size_t i = 0; i < c->n; i++, x += c->vocab) {
        const double lse = log_sum(x, c->vocab);
        if (!c->teacher) {
            loss += c->targets[i] < 0 ? 0 : lse - x[c->targets[i]];
            continue;
        }
        double *teacher = widened(c->teacher + i * c->vocab, c->vocab);
        const double wanted = log_sum(teacher, c->vocab);
        for (size_t j = 0; j < c->vocab; j++)
            loss += exp(teacher[j] - wanted) * (teacher[j] - wanted - x[j] + lse);
        free(teacher);
    }
    return loss * (double)c->scale;
}

/* The gradient, then scale * loss of every row, as doubles. */
static void run_kl_grad(const vptq_device *dev, const void *arg, void *out)
{
    const kl_case *c = arg;
    const size_t size = c->n * c->vocab;
    double *to = out;
    float *logits = malloc(size * sizeof *logits);
    vptq_err err;
    assert_non_null(logits);
    memcpy(logits, c->logits, size * sizeof *logits);
    assert_ok(dev->ops->kl_grad(dev->state,
                                &(vptq_kl_grad_args){.n = c->n,
                                                     .vocab = c->vocab,
                                                     .logits = logits,
                                                     .teacher = c->teacher,
                                                     .targets = c->targets,
                                                     .scale = c->scale,
                                                     .loss = to + size},
                                &err),
              &err);
    for (size_t i = 0; i < size; i++)
        to[i] = (double)logits[i];
    for (size_t i = 0; i < c->n; i++)
        to[size + i] *= (double)c->scale;
    free(logits);
}

static void check_kl(const kl_case *c)
{
    const size_t size = c->n * c->vocab;
    const devices_op op = {run_kl_grad, c, size + c->n, sizeof(double), few_operations};
    double *out = malloc((size + c->n) * sizeof *out), *x = widened(c->logits, size), sum = 0;
    float *got = malloc(size * sizeof *got);
    assert_non_null(out);
    assert_non_null(got);
    devices_check_emu(&op, out);
    for (size_t i = 0; i < size; i++)
        got[i] = (float)out[i];
    for (size_t i = 0; i < c->n; i++)
        sum += out[size + i];
    const double want = kl_loss(c, x);
    assert_close_f64(&sum, &want, 1, 1e-15, 1e-12);
    if (c->vocab > 1 && size < 1000)
        check_differences(kl_loss, c, x, got, size);
    free(out);
    free(x);
    free(got);
}

static void test_kl_grad(void **state)
{
    (void)state;
    static const size_t shapes[][2] = {{1, 1}, {3, 17}, {7, 97}, {5, 1000}, {2, 49152}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const size_t n = shapes[s][0], vocab = shapes[s][1];
        float *logits = vtest_normals(n * vocab, 51), *teacher = vtest_normals(n * vocab, 52);
        int32_t *targets = malloc(n * sizeof *targets);
        assert_non_null(targets);
        for (size_t i = 0; i < n; i++)
            targets[i] = i % 4 == 2 ? -1 : (int32_t)(i * 31 % vocab);
        for (size_t i = 0; i < n * vocab; i++) {
            logits[i] = logits[i] * 3 - 2;
            teacher[i] = teacher[i] + logits[i];
        }
        const kl_case c = {n, vocab, logits, vocab > 1 ? teacher : NULL, targets, 0.25f};
        check_kl(&c);
        if (vocab > 1)
            check_kl(&(kl_case){n, vocab, logits, NULL, targets, 0.25f});
        free(logits);
        free(teacher);
        free(targets);
    }
}

/* Equal logits: zeros.  Logits so far apart that exp overflows or vanishes: finite. */
static void test_kl_grad_special(void **state)
{
    (void)state;
    enum { N = 3, VOCAB = 40 };
    float *same = vtest_normals(N * VOCAB, 53);
    const float teacher[] = {1000, -1000, 0};
    for (size_t i = 0; i < NAMES; i++) {
        devices_one d;
        vptq_err err;
        float logits[N * VOCAB], far[] = {-1000, 1000, 0};
        double loss[N];
        memcpy(logits, same, sizeof logits);
        devices_open(&d, names[i], vptq_cpu_simd(), 1);
        vptq_kl_grad_args a = {.n = N,
                               .vocab = VOCAB,
                               .logits = logits,
                               .teacher = same,
                               .scale = 1,
                               .loss = loss};
        assert_ok(d.dev.ops->kl_grad(d.dev.state, &a, &err), &err);
        for (size_t j = 0; j < N * VOCAB; j++)
            assert_true(logits[j] == 0);
        for (size_t j = 0; j < N; j++)
            assert_true(loss[j] == 0);
        a.n = 1;
        a.vocab = 3;
        a.logits = far;
        a.teacher = teacher;
        assert_ok(d.dev.ops->kl_grad(d.dev.state, &a, &err), &err);
        assert_true(loss[0] == 2000);
        assert_true(far[0] == -1 && far[1] == 1 && far[2] == 0);
        devices_close(&d);
    }
    free(same);
}

VTEST_MAIN(cmocka_unit_test(test_attention_differences), cmocka_unit_test(test_attention_grad),
           cmocka_unit_test(test_lse_after_other_keys),
           cmocka_unit_test(test_rmsnorm_differences), cmocka_unit_test(test_rmsnorm_grad),
           cmocka_unit_test(test_swiglu_grad), cmocka_unit_test(test_swiglu_grad_by_hand),
           cmocka_unit_test(test_kl_grad), cmocka_unit_test(test_kl_grad_special))
