/* Hessians of experts: those of the tokens that the router sends to each, against sums in
 * double made here; experts that no token reaches; merging and resuming. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hessian/collect.h"
#include "lib/base/file.h"
#include "tests/support/vcollect.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

enum { LENGTH = 20, TOKENS = VRIG_TOKENS, HIDDEN = VRIG_HIDDEN, WIDEST = 48, EXPERTS = 4 };

typedef struct rig {
    vrig v;
    char ids[VCOLLECT_PATH], one[VCOLLECT_PATH], two[VCOLLECT_PATH];
    char warning[256];
} rig;

static void on_log(void *user, vptq_log_level level, const char *text)
{
    rig *r = user;
    if (level == VPTQ_LOG_WARN)
        snprintf(r->warning, sizeof r->warning, "%s", text);
}

static void rig_open(rig *r, const char *dir, const char *family)
{
    char path[128];
    snprintf(path, sizeof path, "tests/golden/tiny_%s", family);
    vrig_open_forward(&r->v, path, "cpu", 2, LENGTH);
    snprintf(r->ids, sizeof r->ids, "%s/ids.i32", path);
    vtest_path(r->one, sizeof r->one, dir, "one");
    vtest_path(r->two, sizeof r->two, dir, "two");
    r->v.ctx.log = on_log;
    r->v.ctx.user = r;
    r->warning[0] = 0;
}

static void collect(rig *r, const char *dir, size_t windows, size_t length,
                    vptq_collect_result *result)
{
    const char *files[] = {r->ids};
    vptq_err err = {0};
    const vptq_collect_options opt = {
        .calibrate = {.corpus = {.tokens = files, .token_count = 1},
                      .windows = windows,
                      .length = length},
        .last_layer = UINT32_MAX,
        .tool_version = "test"};
    r->warning[0] = 0;
    assert_ok(vptq_hessian_collect(&r->v.dev, &r->v.m, &opt, dir, result, &err), &err);
}

/* ---- sums in double ---- */

typedef struct sums {
    double h[WIDEST * WIDEST], mean[WIDEST];
    uint64_t tokens;
} sums;

static void add(sums *s, const double *x, size_t n)
{
    s->tokens++;
    for (size_t i = 0; i < n; i++) {
        s->mean[i] += x[i];
        for (size_t j = 0; j < n; j++)
            s->h[i * n + j] += x[i] * x[j];
    }
}

static void check(const rig *r, uint32_t layer, vptq_input input, const sums *s)
{
    vptq_err err = {0};
    vptq_hessian_file f;
    const size_t n = vptq_input_size(r->v.m.desc, input);
    vptq_mem mem;
    vptq_mem_init(&mem, 0);
    assert_ok(vptq_hessian_dir_load(r->one, layer, input, (uint32_t)n, &mem, &f, &err), &err);
    assert_int_equal(f.tokens, s->tokens);
    assert_true(s->tokens > 0);
    for (size_t i = 0; i < n; i++) {
        const float mean = (float)(s->mean[i] / (double)s->tokens);
        assert_close(&f.mean[i], &mean, 1, 1e-5, 1e-5);
        for (size_t j = 0; j <= i; j++) {
            const float want = (float)(s->h[i * n + j] / (double)s->tokens);
            assert_close(&f.lower[i * (i + 1) / 2 + j], &want, 1, 1e-5, 1e-5);
        }
    }
    vptq_hessian_file_release(&f);
}

static float *read_tensor(const vptq_tensor *t)
{
    vptq_err err = {0};
    const size_t rows = vptq_tensor_rows(t);
    float *w = vtest_alloc(rows * vptq_tensor_cols(t), sizeof *w);
    assert_ok(vptq_tensor_read(t, 0, rows, w, &err), &err);
    return w;
}

static void multiply(const float *w, size_t rows, size_t cols, const double *x, double *y)
{
    for (size_t i = 0; i < rows; i++) {
        y[i] = 0;
        for (size_t j = 0; j < cols; j++)
            y[i] += (double)w[i * cols + j] * x[j];
    }
}

/* act [rows of gate] = silu(gate x) * (up x) with the linear layers from `gate` on. */
static void activate(const vptq_block *b, vptq_linear gate, const double *x, double *act)
{
    double up[WIDEST];
    const size_t rows = b->linear[gate].rows;
    float *wg = read_tensor(b->linear[gate].tensor);
    float *wu = read_tensor(b->linear[gate + 1].tensor);
    multiply(wg, rows, HIDDEN, x, act);
    multiply(wu, rows, HIDDEN, x, up);
    for (size_t i = 0; i < rows; i++)
        act[i] *= up[i] / (1 + exp(-act[i]));
    free(wg);
    free(wu);
}

/* The `used` largest logits. */
static void route(const double *logits, uint32_t used, bool chosen[EXPERTS])
{
    memset(chosen, 0, EXPERTS * sizeof *chosen);
    for (uint32_t k = 0; k < used; k++) {
        int best = -1;
        for (int e = 0; e < EXPERTS; e++)
            if (!chosen[e] && (best < 0 || logits[e] > logits[best]))
                best = e;
        chosen[best] = true;
    }
}

typedef struct record {
    float x[TOKENS * HIDDEN];
    size_t tokens;
} record;

static vptq_status on_input(void *arg, vptq_input input, size_t sequence, size_t tokens,
                            size_t dim, const float *x, vptq_err *err)
{
    record *r = arg;
    (void)sequence;
    (void)err;
    if (input == VPTQ_INPUT_UP) {
        memcpy(r->x + r->tokens * dim, x, tokens * dim * sizeof *x);
        r->tokens += tokens;
    }
    return VPTQ_OK;
}

static void check_layer(const rig *r, uint32_t layer, const record *seen)
{
    const vptq_model_desc *d = r->v.m.desc;
    const vptq_block *b = &r->v.m.blocks[layer];
    sums *up = vtest_alloc(EXPERTS, sizeof *up), *down = vtest_alloc(EXPERTS, sizeof *down);
    sums *shared = vtest_alloc(1, sizeof *shared), *all = vtest_alloc(1, sizeof *all);
    float *router = read_tensor(b->router);
    memset(up, 0, EXPERTS * sizeof *up);
    memset(down, 0, EXPERTS * sizeof *down);
    memset(shared, 0, sizeof *shared);
    memset(all, 0, sizeof *all);
    for (size_t t = 0; t < TOKENS; t++) {
        double x[HIDDEN], logits[EXPERTS], act[WIDEST];
        bool chosen[EXPERTS];
        for (size_t i = 0; i < HIDDEN; i++)
            x[i] = (double)seen->x[t * HIDDEN + i];
        multiply(router, EXPERTS, HIDDEN, x, logits);
        route(logits, d->experts.used, chosen);
        add(all, x, HIDDEN);
        for (uint32_t e = 0; e < EXPERTS; e++) {
            if (!chosen[e])
                continue;
            add(&up[e], x, HIDDEN);
            activate(b, vptq_expert_linear(e, VPTQ_LINEAR_GATE), x, act);
            add(&down[e], act, d->experts.intermediate);
        }
        if (d->experts.shared) {
            activate(b, VPTQ_LINEAR_SHARED, x, act);
            add(shared, act, d->experts.shared);
        }
    }
    check(r, layer, VPTQ_INPUT_UP, all);
    if (d->experts.shared)
        check(r, layer, VPTQ_INPUT_SHARED_DOWN, shared);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        check(r, layer, vptq_expert_input(e, VPTQ_INPUT_UP), &up[e]);
        check(r, layer, vptq_expert_input(e, VPTQ_INPUT_DOWN), &down[e]);
    }
    free(up);
    free(down);
    free(shared);
    free(all);
    free(router);
}

static void check_family(const char *family, const char *dir)
{
    static const size_t starts[] = {0, LENGTH, TOKENS};
    rig *r = vtest_alloc(1, sizeof *r);
    vptq_collect_result result;
    vptq_err err = {0};
    float hidden[TOKENS * HIDDEN];
    int32_t *ids = vrig_tiny_ids(family);
    size_t layers = 0;
    char own[VCOLLECT_PATH];
    vtest_path(own, sizeof own, dir, family);
    assert_ok(vptq_dir_make(own, &err), &err);
    rig_open(r, own, family);
    collect(r, r->one, 2, LENGTH, &result);
    assert_ok(vptq_forward_embed(r->v.f, ids, TOKENS, hidden, &err), &err);
    for (uint32_t layer = 0; layer < r->v.m.desc->layers; layer++) {
        record seen = {.tokens = 0};
        const vptq_block_hooks hooks = {.hook = on_input, .arg = &seen};
        assert_ok(vptq_forward_block_with(r->v.f, layer, starts, 2, hidden, &hooks, &err),
                  &err);
        assert_int_equal(seen.tokens, TOKENS);
        if (!vptq_layer_has_experts(&r->v.m.desc->experts, layer))
            continue;
        check_layer(r, layer, &seen);
        layers++;
    }
    assert_true(layers > 0);
    free(ids);
    vrig_close(&r->v);
    free(r);
}

static void test_routed_tokens(void **state)
{
    check_family("mixtral", *state);
    check_family("qwen2moe", *state);
    check_family("qwen3moe", *state);
}

/* ---- experts without tokens ---- */

static void load(const rig *r, const char *dir, uint32_t e, vptq_input kind,
                 vptq_hessian_file *f)
{
    vptq_err err = {0};
    const vptq_input input = vptq_expert_input(e, kind);
    assert_ok(vptq_hessian_dir_load(dir, 0, input, vptq_input_size(r->v.m.desc, input),
                                    r->v.ctx.mem, f, &err),
              &err);
}

static void check_identity(const vptq_hessian_file *f)
{
    assert_int_equal(f->tokens, 0);
    for (size_t i = 0, at = 0; i < f->n; i++) {
        for (size_t j = 0; j <= i; j++, at++)
            assert_true(f->lower[at] == (i == j ? 1.0f : 0.0f));
        assert_true(f->mean[i] == 0 && f->abs_mean[i] == 1 && f->min[i] == -1 &&
                    f->max[i] == 1);
    }
}

typedef struct shown {
    size_t rows, empty;
} shown;

static vptq_status on_row(void *arg, uint32_t layer, const char *input,
                          const vptq_hessian_stats *s, vptq_err *err)
{
    shown *n = arg;
    (void)layer;
    (void)err;
    n->rows++;
    n->empty += strcmp(s->verdict, "no tokens") == 0;
    if (!s->tokens)
        assert_int_equal(strncmp(input, "expert", 6), 0);
    return VPTQ_OK;
}

static void test_no_tokens(void **state)
{
    rig *r = vtest_alloc(1, sizeof *r);
    vptq_collect_result result;
    vptq_err err = {0};
    vptq_hessian_file f, g;
    shown n = {0};
    char out[VCOLLECT_PATH];
    uint32_t empty = EXPERTS;
    rig_open(r, *state, "mixtral");
    collect(r, r->one, 1, 2, &result);
    assert_non_null(strstr(r->warning,
                           "8 of 8 experts saw fewer calibration tokens than they have "
                           "columns, "));
    assert_null(strstr(r->warning, " 0 of them none"));
    for (uint32_t e = 0; e < EXPERTS; e++) {
        load(r, r->one, e, VPTQ_INPUT_UP, &f);
        load(r, r->one, e, VPTQ_INPUT_DOWN, &g);
        assert_int_equal(f.tokens, g.tokens);
        if (!f.tokens) {
            empty = e;
            check_identity(&f);
            check_identity(&g);
        }
        vptq_hessian_file_release(&f);
        vptq_hessian_file_release(&g);
    }
    assert_true(empty < EXPERTS);
    assert_ok(vptq_hessian_show(&r->v.dev, r->one, on_row, &n, &err), &err);
    assert_int_equal(n.rows, 2 * (3 + 2 * EXPERTS));
    assert_true(n.empty >= 2);

    /* merged with others, only their tokens count; with none, it stays the identity */
    collect(r, r->two, 2, LENGTH, &result);
    const char *const both[] = {r->one, r->two}, *const same[] = {r->one, r->one};
    vtest_path(out, sizeof out, *state, "merged");
    assert_ok(vptq_hessian_merge(&r->v.ctx, both, 2, out, false, &err), &err);
    load(r, r->two, empty, VPTQ_INPUT_UP, &f);
    load(r, out, empty, VPTQ_INPUT_UP, &g);
    assert_true(f.tokens > 0 && f.tokens == g.tokens);
    assert_close(g.lower, f.lower, vptq_triangle(f.n), 0, 1e-7);
    assert_same_f32(g.max, f.max, f.n);
    assert_same_f32(g.min, f.min, f.n);
    vptq_hessian_file_release(&f);
    vptq_hessian_file_release(&g);
    assert_ok(vptq_hessian_merge(&r->v.ctx, same, 2, out, true, &err), &err);
    load(r, out, empty, VPTQ_INPUT_DOWN, &g);
    check_identity(&g);
    vptq_hessian_file_release(&g);
    vrig_close(&r->v);
    free(r);
}

/* A lost file of an expert is collected again; the counts of experts stay the same. */
static void test_resumed(void **state)
{
    rig *r = vtest_alloc(1, sizeof *r);
    vptq_collect_result result;
    char path[VCOLLECT_PATH], warning[256];
    rig_open(r, *state, "qwen2moe");
    collect(r, r->one, 2, LENGTH, &result);
    assert_int_equal(result.layers_done, 4);
    memcpy(warning, r->warning, sizeof warning);
    assert_non_null(strstr(warning, " of 12 experts saw fewer calibration tokens"));
    collect(r, r->two, 2, LENGTH, &result);
    vtest_path(path, sizeof path, r->two, "layer_002_expert1_down.safetensors");
    assert_int_equal(unlink(path), 0);
    collect(r, r->two, 2, LENGTH, &result);
    assert_int_equal(result.layers_done, 1);
    assert_int_equal(result.layers_reused, 3);
    assert_string_equal(r->warning, warning);
    vcollect_expect_same(r->one, r->two);
    vrig_close(&r->v);
    free(r);
}

VTEST_MAIN(scratch_test(test_routed_tokens), scratch_test(test_no_tokens),
           scratch_test(test_resumed))
