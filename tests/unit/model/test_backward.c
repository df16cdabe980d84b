/* The backward pass against gradients of PyTorch in float64 (tests/golden/make_gradients.py).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/model/backward.h"
#include "tests/emu/emu.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

enum { TOKENS = VRIG_TOKENS, HIDDEN = VRIG_HIDDEN, LAYERS = 2, MAX_SIDE = 64 };

/* Everything that a run of the tiny models gives, in host memory. */
typedef struct gradients {
    vptq_device *dev;
    double loss[TOKENS];
    float input[TOKENS * HIDDEN];
    struct {
        double weight[VPTQ_LINEAR_DENSE][MAX_SIDE * MAX_SIDE],
            bias[VPTQ_LINEAR_DENSE][MAX_SIDE];
        double norm[4][HIDDEN]; /* input, post, q, k */
    } layer[LAYERS];
    double final_norm[HIDDEN];
    const vptq_model *m;
} gradients;

static float *on_host(vptq_device *dev, const float *x, size_t n)
{
    vptq_err err;
    float *copy = malloc(n * sizeof *copy);
    assert_non_null(copy);
    assert_ok(dev->ops->download(dev->state, copy, x, n * sizeof *copy, &err), &err);
    return copy;
}

/* dW = dz^T x and db = the sum of dz, in double. */
static vptq_status linear_hook(void *arg, uint32_t layer, vptq_linear l, size_t rows,
                               const float *x, const float *dz, vptq_err *err)
{
    gradients *g = arg;
    uint32_t out, in;
    (void)err;
    vptq_linear_shape(g->m->desc, l, &out, &in);
    assert_int_equal(rows, TOKENS);
    assert_true(out <= MAX_SIDE && in <= MAX_SIDE);
    float *hx = on_host(g->dev, x, rows * in), *hz = on_host(g->dev, dz, rows * out);
    for (size_t t = 0; t < rows; t++)
        for (size_t o = 0; o < out; o++) {
            const double z = (double)hz[t * out + o];
            g->layer[layer].bias[l][o] += z;
            for (size_t i = 0; i < in; i++)
                g->layer[layer].weight[l][o * in + i] += z * (double)hx[t * in + i];
        }
    free(hx);
    free(hz);
    return VPTQ_OK;
}

/* ---- running ---- */

/* An array of device memory, copied from `host` (NULL: zeros). */
static void *on_device(vptq_device *dev, const void *host, size_t bytes)
{
    vptq_err err;
    void *p = NULL;
    assert_ok(dev->ops->alloc(dev->state, bytes, 1, &p, &err), &err);
    assert_ok(host ? dev->ops->upload(dev->state, p, host, bytes, &err)
                   : dev->ops->clear(dev->state, p, bytes, &err),
              &err);
    return p;
}

static void run_layers_back(vrig *r, gradients *g, vptq_backward *b, float *const *states,
                            float *dhidden)
{
    vptq_err err;
    const size_t head_dim = r->m.desc->head_dim;
    double *norms = on_device(&r->dev, NULL, 4 * HIDDEN * sizeof *norms);
    for (uint32_t l = LAYERS; l-- > 0;) {
        const vptq_backward_hooks hooks = {.linear = linear_hook,
                                           .arg = g,
                                           .input_norm = norms,
                                           .post_norm = norms + HIDDEN,
                                           .q_norm = norms + 2 * HIDDEN,
                                           .k_norm = norms + 3 * HIDDEN};
        const vptq_backend *ops = r->dev.ops;
        assert_true(head_dim <= HIDDEN);
        assert_ok(ops->clear(r->dev.state, norms, 4 * HIDDEN * sizeof *norms, &err), &err);
        assert_ok(vptq_backward_block(b, l, states[l], dhidden, &hooks, &err), &err);
        assert_ok(ops->download(r->dev.state, g->layer[l].norm, norms,
                                4 * HIDDEN * sizeof *norms, &err),
                  &err);
    }
    r->dev.ops->release(r->dev.state, norms);
}

/* The hidden states before block 0, 1, .. and after the last. */
static void run_forward(vrig *r, vptq_backward *b, const int32_t *ids,
                        float *states[LAYERS + 1])
{
    vptq_err err;
    const size_t bytes = TOKENS * HIDDEN * sizeof(float);
    float hidden[TOKENS * HIDDEN];
    assert_ok(vptq_forward_embed(r->f, ids, TOKENS, hidden, &err), &err);
    states[0] = on_device(&r->dev, hidden, bytes);
    for (uint32_t l = 0; l < LAYERS; l++) {
        states[l + 1] = on_device(&r->dev, NULL, bytes);
        assert_ok(r->dev.ops->copy(r->dev.state, states[l + 1], states[l], bytes, &err), &err);
        assert_ok(vptq_backward_forward(b, l, NULL, states[l + 1], &err), &err);
    }
}

/* Runs a family forwards and backwards; teacher NULL: the next ids are the targets. */
static gradients *run(const char *family, const char *backend, int threads,
                      const float *teacher)
{
    vrig r;
    vptq_err err;
    vptq_backward *b;
    gradients *g = vtest_alloc(1, sizeof *g);
    char path[128];
    int32_t *ids = vrig_tiny_ids(family), targets[TOKENS];
    float *states[LAYERS + 1];
    const size_t bytes = TOKENS * HIDDEN * sizeof(float);
    memset(g, 0, sizeof *g);
    snprintf(path, sizeof path, "tests/golden/tiny_%s", family);
    vrig_open_forward(&r, path, backend, threads, TOKENS);
    g->dev = &r.dev;
    g->m = &r.m;
    for (int i = 0; i < TOKENS; i++)
        targets[i] = i + 1 < TOKENS ? ids[i + 1] : -1;
    assert_ok(vptq_backward_open(r.f, TOKENS, 1, &b, &err), &err);
    run_forward(&r, b, ids, states);
    float *wanted = teacher ? on_device(&r.dev, teacher, bytes) : NULL;
    float *dhidden = on_device(&r.dev, NULL, bytes);
    double *final = on_device(&r.dev, NULL, sizeof g->final_norm);
    const vptq_backward_loss loss = {.hidden = states[LAYERS],
                                     .teacher = wanted,
                                     .targets = targets,
                                     .scale = 1,
                                     .final_norm = final};
    assert_ok(vptq_backward_head(b, &loss, g->loss, dhidden, &err), &err);
    run_layers_back(&r, g, b, states, dhidden);
    vptq_dev *dev = r.dev.state;
    assert_ok(r.dev.ops->download(dev, g->input, dhidden, bytes, &err), &err);
    assert_ok(r.dev.ops->download(dev, g->final_norm, final, sizeof g->final_norm, &err), &err);
    vptq_backward_close(b);
    for (int l = 0; l <= LAYERS; l++)
        r.dev.ops->release(dev, states[l]);
    r.dev.ops->release(dev, wanted);
    r.dev.ops->release(dev, dhidden);
    r.dev.ops->release(dev, final);
    free(ids);
    vrig_close(&r);
    return g;
}

/* ---- comparing ---- */

/* Takes `got` [n] off the golden array: the error is at most 1e-5 of the largest entry. */
static void take(const vtest_npy *want, size_t *at, const char *what, size_t n,
                 const double *got)
{
    double largest = 0, worst = 0;
    assert_true(*at + n <= want->count);
    for (size_t i = 0; i < n; i++) {
        const double w = vtest_npy_at(want, *at + i), error = fabs(w - got[i]);
        largest = fabs(w) > largest ? fabs(w) : largest;
        worst = error > worst || isnan(error) ? error : worst;
    }
    if (!(worst <= 1e-5 * largest) || largest == 0)
        fail_msg("%s is off by %g; its largest entry is %g", what, worst, largest);
    *at += n;
}

static void compare(const gradients *g, const vptq_model_desc *d, const vtest_npy *want)
{
    static const char *const norms[] = {"input norm", "post-attention norm", "norm of q",
                                        "norm of k"};
    size_t at = 0;
    double input[TOKENS * HIDDEN];
    for (size_t i = 0; i < TOKENS * HIDDEN; i++)
        input[i] = (double)g->input[i];
    take(want, &at, "loss", TOKENS, g->loss);
    take(want, &at, "input", TOKENS * HIDDEN, input);
    for (int l = 0; l < LAYERS; l++) {
        for (int i = 0; i < VPTQ_LINEAR_DENSE; i++) {
            uint32_t out, in;
            vptq_linear_shape(d, (vptq_linear)i, &out, &in);
            take(want, &at, vptq_linear_name(d, (vptq_linear)i).text, (size_t)out * in,
                 g->layer[l].weight[i]);
        }
        for (int i = 0; d->qkv_bias && i <= VPTQ_LINEAR_V; i++) {
            uint32_t out, in;
            vptq_linear_shape(d, (vptq_linear)i, &out, &in);
            take(want, &at, "bias", out, g->layer[l].bias[i]);
        }
        for (int i = 0; i < (d->family->qk_norm ? 4 : 2); i++)
            take(want, &at, norms[i], i < 2 ? HIDDEN : d->head_dim, g->layer[l].norm[i]);
    }
    take(want, &at, "final norm", HIDDEN, g->final_norm);
    assert_int_equal(at, want->count);
}

static void check(const char *backend)
{
    for (int i = 0; i < VRIG_FAMILIES; i++)
        for (int kl = strcmp(vrig_families[i], "llama3") != 0; kl < 2; kl++) {
            char path[128];
            vtest_npy want, teacher;
            snprintf(path, sizeof path, "tests/golden/gradients/%s_%s.npy", vrig_families[i],
                     kl ? "kl" : "nll");
            vtest_npy_load(path, &want);
            snprintf(path, sizeof path, "tests/golden/gradients/%s_teacher.npy",
                     vrig_families[i]);
            vtest_npy_load(path, &teacher);
            gradients *g =
                run(vrig_families[i], backend, 2, kl ? vtest_npy_as(&teacher, "f4") : NULL);
            vrig r;
            snprintf(path, sizeof path, "tests/golden/tiny_%s", vrig_families[i]);
            vrig_open(&r, path, NULL, false);
            compare(g, r.m.desc, &want);
            vrig_close(&r);
            free(g);
            vtest_npy_free(&want);
            vtest_npy_free(&teacher);
        }
}

static void test_ref(void **state)
{
    (void)state;
    check("ref");
}

static void test_cpu(void **state)
{
    (void)state;
    check("cpu");
}

static void test_emulated_cuda(void **state)
{
    (void)state;
    if (vtest_emulated())
        skip();
    assert_non_null(vptq_backend_emu()); /* this reference also links it */
    check("emu");
}

/* The same bits for any number of threads. */
static void test_threads(void **state)
{
    (void)state;
    gradients *one = run("qwen3", "cpu", 1, NULL), *three = run("qwen3", "cpu", 3, NULL);
    one->dev = three->dev = NULL;
    one->m = three->m = NULL;
    assert_memory_equal(one, three, sizeof *one);
    free(one);
    free(three);
}

/* ---- a block of the demo model (tests/golden/make_block_gradient.py) ---- */

typedef struct block_run {
    vptq_device *dev;
    const vptq_model *m;
    double *at; /* the next of dW u and v dW */
} block_run;

/* In double; with u[i] = v[i] = cos(i + 1): dW u = dz^T (x u), v dW = (dz v)^T x. */
static vptq_status projections_hook(void *arg, uint32_t layer, vptq_linear l, size_t rows,
                                    const float *x, const float *dz, vptq_err *err)
{
    block_run *b = arg;
    uint32_t out, in;
    (void)layer;
    (void)err;
    vptq_linear_shape(b->m->desc, l, &out, &in);
    double *at = b->at;
    for (int i = 0; i < (int)l; i++) { /* hooks come from the last linear layer to the first */
        uint32_t o, n;
        vptq_linear_shape(b->m->desc, (vptq_linear)i, &o, &n);
        at += o + n;
    }
    for (size_t t = 0; t < rows; t++) {
        double xu = 0, zv = 0;
        for (size_t i = 0; i < in; i++)
            xu += (double)x[t * in + i] * cos((double)i + 1);
        for (size_t o = 0; o < out; o++)
            zv += (double)dz[t * out + o] * cos((double)o + 1);
        for (size_t o = 0; o < out; o++)
            at[o] += (double)dz[t * out + o] * xu;
        for (size_t i = 0; i < in; i++)
            at[out + i] += zv * (double)x[t * in + i];
    }
    return VPTQ_OK;
}

static void test_demo_block(void **state)
{
    (void)state;
    enum { LENGTH = 24, BLOCK = 15, DIM = 576, SIZE = LENGTH * DIM };
    vrig r;
    vptq_err err;
    vptq_backward *b;
    vtest_npy want;
    if (!vrig_open_demo(&r, LENGTH))
        skip();
    assert_int_equal(r.m.desc->hidden, DIM);
    vtest_npy_load("tests/golden/gradients/smollm2_block.npy", &want);
    const float *golden = vtest_npy_as(&want, "f4");
    float *dhidden = vtest_alloc(SIZE, sizeof *dhidden);
    double *got = vtest_alloc(want.count, sizeof *got);
    memset(got, 0, want.count * sizeof *got);
    memcpy(dhidden, golden + SIZE, SIZE * sizeof *dhidden);
    block_run run = {&r.dev, &r.m, got + SIZE};
    double *norms = got + want.count - 2 * SIZE - 2 * DIM;
    const vptq_backward_hooks hooks = {
        .linear = projections_hook, .arg = &run, .input_norm = norms, .post_norm = norms + DIM};
    assert_ok(vptq_backward_open(r.f, LENGTH, 1, &b, &err), &err);
    assert_ok(vptq_backward_block(b, BLOCK, golden, dhidden, &hooks, &err), &err);
    vptq_backward_close(b);
    for (size_t i = 0; i < SIZE; i++)
        got[i] = (double)dhidden[i];
    size_t at = 2 * SIZE, own = SIZE;
    take(&want, &at, "input", SIZE, got);
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++) {
        uint32_t out, in;
        vptq_linear_shape(r.m.desc, (vptq_linear)l, &out, &in);
        take(&want, &at, vptq_linear_name(r.m.desc, (vptq_linear)l).text, out, got + own);
        take(&want, &at, vptq_linear_name(r.m.desc, (vptq_linear)l).text, in, got + own + out);
        own += out + in;
    }
    take(&want, &at, "input norm", DIM, norms);
    take(&want, &at, "post-attention norm", DIM, norms + DIM);
    assert_int_equal(at, want.count);
    free(got);
    free(dhidden);
    vtest_npy_free(&want);
    vrig_close(&r);
}

/* ---- several windows at once ---- */

enum { WINDOWS = 3 };

/* Losses and gradients of the rows of some windows, and sums over all of them. */
typedef struct several {
    size_t rows;
    vptq_device *dev;
    const vptq_model *m;
    double loss[WINDOWS * TOKENS];
    float dhidden[WINDOWS * TOKENS * HIDDEN];
    double norm[HIDDEN];                     /* of k, in the first layer */
    double sum_x, sum_dz[VPTQ_LINEAR_DENSE]; /* of squares */
} several;

static double squares(vptq_device *dev, const float *x, size_t n)
{
    double sum = 0;
    float *copy = on_host(dev, x, n);
    for (size_t i = 0; i < n; i++)
        sum += (double)copy[i] * (double)copy[i];
    free(copy);
    return sum;
}

static vptq_status squares_hook(void *arg, uint32_t layer, vptq_linear l, size_t rows,
                                const float *x, const float *dz, vptq_err *err)
{
    several *s = arg;
    uint32_t out, in;
    (void)layer;
    (void)err;
    vptq_linear_shape(s->m->desc, l, &out, &in);
    assert_int_equal(rows, s->rows);
    s->sum_x += squares(s->dev, x, rows * in);
    s->sum_dz[l] += squares(s->dev, dz, rows * out);
    return VPTQ_OK;
}

/* Windows [first, first + count) of ids. */
static several *run_several(vrig *r, vptq_backward *b, const int32_t *ids, size_t first,
                            size_t count)
{
    vptq_err err;
    several *s = vtest_alloc(1, sizeof *s);
    int32_t targets[WINDOWS * TOKENS];
    const size_t rows = count * TOKENS, size = rows * HIDDEN;
    float *states = on_device(&r->dev, NULL, (LAYERS + 1) * size * sizeof *states);
    float *dhidden = on_device(&r->dev, NULL, size * sizeof *dhidden);
    double *norm = on_device(&r->dev, NULL, sizeof s->norm);
    float *embedded = vtest_alloc(size, sizeof *embedded);
    *s = (several){.rows = rows, .dev = &r->dev, .m = &r->m};
    for (size_t i = 0; i < rows; i++)
        targets[i] = ids[first * TOKENS + i];
    vptq_backward_windows(b, count);
    assert_ok(vptq_backward_run(b, ids + first * TOKENS, NULL, embedded, states, &err), &err);
    const vptq_backward_loss loss = {
        .hidden = states + LAYERS * size, .targets = targets, .scale = 1};
    assert_ok(vptq_backward_head(b, &loss, s->loss, dhidden, &err), &err);
    for (uint32_t l = LAYERS; l-- > 0;) {
        const vptq_backward_hooks hooks = {
            .linear = squares_hook, .arg = s, .k_norm = l ? NULL : norm};
        assert_ok(vptq_backward_block(b, l, states + l * size, dhidden, &hooks, &err), &err);
    }
    vptq_dev *dev = r->dev.state;
    assert_ok(r->dev.ops->download(dev, s->dhidden, dhidden, size * sizeof *dhidden, &err),
              &err);
    assert_ok(r->dev.ops->download(dev, s->norm, norm, sizeof s->norm, &err), &err);
    r->dev.ops->release(dev, states);
    r->dev.ops->release(dev, dhidden);
    r->dev.ops->release(dev, norm);
    free(embedded);
    return s;
}

/* Windows that go through the model together give, bit for bit, what each gives alone. */
static void check_windows(const char *family)
{
    vrig r;
    vptq_err err;
    vptq_backward *b;
    char path[128];
    int32_t *one = vrig_tiny_ids(family), ids[WINDOWS * TOKENS];
    snprintf(path, sizeof path, "tests/golden/tiny_%s", family);
    vrig_open_forward(&r, path, "cpu", 2, TOKENS);
    for (int i = 0; i < WINDOWS * TOKENS; i++)
        ids[i] = one[i % TOKENS * (i / TOKENS + 1) % TOKENS];
    assert_ok(vptq_backward_open(r.f, TOKENS, WINDOWS, &b, &err), &err);
    several *all = run_several(&r, b, ids, 0, WINDOWS);
    double norm[HIDDEN] = {0}, sum_x = 0, sum_dz[VPTQ_LINEAR_DENSE] = {0};
    for (size_t w = 0; w < WINDOWS; w++) {
        several *single = run_several(&r, b, ids, w, 1);
        assert_memory_equal(single->loss, all->loss + w * TOKENS, TOKENS * sizeof(double));
        assert_memory_equal(single->dhidden, all->dhidden + w * TOKENS * HIDDEN,
                            TOKENS * HIDDEN * sizeof(float));
        for (int i = 0; i < HIDDEN; i++)
            norm[i] += single->norm[i];
        sum_x += single->sum_x;
        for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
            sum_dz[l] += single->sum_dz[l];
        free(single);
    }
    double largest = 0;
    for (size_t i = 0; i < r.m.desc->head_dim; i++)
        largest = fmax(largest, fabs(norm[i]));
    assert_true(largest > 0 || !r.m.desc->family->qk_norm);
    for (size_t i = 0; i < r.m.desc->head_dim; i++)
        assert_true(fabs(norm[i] - all->norm[i]) <= 1e-6 * largest);
    assert_true(fabs(sum_x - all->sum_x) <= 1e-12 * sum_x);
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
        assert_true(sum_dz[l] > 0 && fabs(sum_dz[l] - all->sum_dz[l]) <= 1e-12 * sum_dz[l]);
    free(all);
    vptq_backward_close(b);
    free(one);
    vrig_close(&r);
}

static void test_windows(void **state)
{
    (void)state;
    for (int i = 0; i < VRIG_FAMILIES; i++)
        check_windows(vrig_families[i]);
}

/* Kept activations give, bit for bit, what computing them again gives, however many blocks
 * there is memory for. */
static void check_kept(const char *family, const char *backend)
{
    vrig r;
    vptq_err err;
    vptq_backward *b;
    char path[128];
    int32_t *ids = vrig_tiny_ids(family);
    snprintf(path, sizeof path, "tests/golden/tiny_%s", family);
    vrig_open_forward(&r, path, backend, 2, TOKENS);
    assert_ok(vptq_backward_open(r.f, TOKENS, 1, &b, &err), &err);
    several *want = run_several(&r, b, ids, 0, 1);
    vptq_backward_close(b);
    const size_t none = r.mem.used, one = TOKENS * 4 * HIDDEN * sizeof(float);
    const size_t room[] = {0, 10 * one, (size_t)1 << 20};
    for (size_t i = 0; i < sizeof room / sizeof *room; i++) {
        assert_ok(vptq_backward_open(r.f, TOKENS, 1, &b, &err), &err);
        const size_t before = r.mem.used;
        vptq_backward_keep(b, room[i]);
        assert_true((i > 0) == (r.mem.used > before));
        assert_true(r.mem.used - before <= room[i] + 4096 || !r.dev.ops->host_memory);
        for (int run = 0; run < 2; run++) {
            several *kept = run_several(&r, b, ids, 0, 1);
            assert_memory_equal(kept, want, sizeof *want);
            free(kept);
        }
        vptq_backward_close(b);
        assert_int_equal(r.mem.used, none);
    }
    free(want);
    free(ids);
    vrig_close(&r);
}

static void test_kept(void **state)
{
    (void)state;
    for (int i = 0; i < VRIG_FAMILIES; i++)
        check_kept(vrig_families[i], "cpu");
    if (!vtest_emulated())
        check_kept("qwen3", "emu");
}

VTEST_MAIN(cmocka_unit_test(test_ref), cmocka_unit_test(test_cpu),
           cmocka_unit_test(test_emulated_cuda), cmocka_unit_test(test_threads),
           cmocka_unit_test(test_demo_block), cmocka_unit_test(test_windows),
           cmocka_unit_test(test_kept))
