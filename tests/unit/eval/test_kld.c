/* Divergence of a model from its original: compared with float64 NumPy
 * (tests/golden/make_kld.py) and with whole logits in double; 0 of a model from itself. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json.h"
#include "lib/eval/kld.h"
#include "tests/support/devices.h"
#include "tests/support/vcount.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"
#include "tests/support/vwork.h"

/* ---- the golden ---- */

enum { GOLDEN_WINDOWS = 4, GOLDEN_CONTEXT = 256, LLAMA2C_HEAD = 7 };

/* Opens the plain model, the perturbed one and the ids in DIR. */
static bool golden_files(const char *dir, char base[4096], char model[4096], char ids[4096])
{
    char tokens[4096];
    if (!vtest_data(base, 4096, "models/stories260K/stories260K.bin") ||
        !vtest_data(tokens, sizeof tokens, "models/stories260K-hf/ppl_tokens.npy"))
        return false;
    size_t size;
    char *data = vtest_read_file(base, &size);
    float *w = (float *)data + LLAMA2C_HEAD;
    for (size_t i = 0; i < size / sizeof *w - LLAMA2C_HEAD; i++) {
        double u = (double)(uint32_t)(i * 2654435761u) / 2147483648.0 - 1;
        w[i] = (float)((double)w[i] * (1 + u / 8));
    }
    vtest_path(model, 4096, dir, "perturbed.bin");
    vtest_write_file(model, data, size);
    free(data);

    vtest_npy a;
    int32_t all[GOLDEN_WINDOWS * GOLDEN_CONTEXT];
    vtest_npy_load(tokens, &a);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        all[i] = (int32_t)vtest_npy_at(&a, i);
    vtest_npy_free(&a);
    vtest_path(ids, 4096, dir, "ids");
    vtest_write_file(ids, all, sizeof all);
    return true;
}

static void expect(const json_t *want, const char *key, double got, double relative)
{
    const json_t *found = json_object_get(want, key);
    double value = json_number_value(found);
    if (!found || !(fabs(got - value) <= relative * fabs(value)))
        fail_msg("%s: %.12g, expected %.12g", key, got, value);
}

/* Float logits differ by about 1e-6 of their size (up to 20) from those in double, a divergence
 * by about that times the differences of logits, a probability by that of itself.  Changes of
 * it that are almost nothing are compared with `least` instead. */
static void expect_levels(const json_t *want, const char *of, const vptq_kld_level *levels,
                          const double *got, size_t count, double relative, double least)
{
    char key[32];
    for (size_t i = 0; i < count; i++) {
        snprintf(key, sizeof key, "%s_%s", levels[i].name, of);
        double value = json_number_value(json_object_get(want, key));
        assert_non_null(json_object_get(want, key));
        if (!(fabs(got[i] - value) <= fmax(relative * fabs(value), least)))
            fail_msg("%s: %.12g, expected %.12g", key, got[i], value);
    }
}

static void expect_figures(const json_t *want, const vptq_kld_result *got)
{
    expect(want, "tokens", (double)got->tokens, 0);
    expect(want, "mean_kld", got->mean_kld, 1e-5);
    expect(want, "kld_stderr", got->kld_stderr, 1e-5);
    expect_levels(want, "kld", vptq_kld_levels, got->kld, VPTQ_KLD_LEVELS, 1e-4, 1e-7);
    expect(want, "same_top1", got->same_top1, 1e-12);
    expect(want, "same_top1_stderr", got->same_top1_stderr, 1e-12);
    expect(want, "ppl", got->ppl, 1e-5);
    expect(want, "ppl_stderr", got->ppl_stderr, 1e-5);
    expect(want, "ppl_base", got->ppl_base, 1e-5);
    expect(want, "ppl_base_stderr", got->ppl_base_stderr, 1e-5);
    expect(want, "ln_ppl_correlation", got->ln_ppl_correlation, 1e-6);
    expect(want, "ln_ppl_ratio", got->ln_ppl_ratio, 1e-4);
    expect(want, "ln_ppl_ratio_stderr", got->ln_ppl_ratio_stderr, 1e-5);
    expect(want, "ppl_ratio", got->ppl_ratio, 1e-5);
    expect(want, "ppl_ratio_stderr", got->ppl_ratio_stderr, 1e-5);
    expect(want, "ppl_difference", got->ppl_difference, 1e-4);
    expect(want, "ppl_difference_stderr", got->ppl_difference_stderr, 1e-5);
    expect(want, "mean_delta_p", got->mean_delta_p, 1e-4);
    expect(want, "delta_p_stderr", got->delta_p_stderr, 1e-5);
    expect_levels(want, "delta_p", vptq_delta_levels, got->delta_p, VPTQ_DELTA_LEVELS, 1e-4,
                  1e-6);
    expect(want, "rms_delta_p", got->rms_delta_p, 1e-5);
    expect(want, "rms_delta_p_stderr", got->rms_delta_p_stderr, 1e-5);
    assert_int_equal(got->windows, GOLDEN_WINDOWS);
}

static void test_golden(void **state)
{
    vrig r;
    vptq_err err = {0};
    char base[4096], model[4096], ids[4096];
    if (!golden_files(*state, base, model, ids))
        skip();
    json_t *want;
    const char *files[] = {ids}, *const protocols[] = {"gptq", "llama.cpp"};
    assert_ok(vptq_json_load("tests/golden/kld.json", 1 << 20, &want, &err), &err);
    vrig_open(&r, model, NULL, false);
    vrig_open_base(&r, base);
    for (int i = 0; i < 2; i++) {
        vptq_ppl_protocol protocol = i ? VPTQ_PPL_LLAMA_CPP : VPTQ_PPL_GPTQ;
        vptq_kld_options opt = {.corpus = {.tokens = files, .token_count = 1},
                                .context = GOLDEN_CONTEXT,
                                .protocol = protocol};
        vptq_kld_result got;
        assert_ok(vptq_eval_kld(&r.dev, &r.m, &r.base, &opt, NULL, &got, &err), &err);
        expect_figures(json_object_get(want, protocols[i]), &got);

        /* The perplexities equal those of vptq_eval_ppl. */
        vptq_ppl_options plain = {
            .corpus = opt.corpus, .context = GOLDEN_CONTEXT, .protocol = protocol};
        vptq_ppl_result ppl;
        assert_ok(vptq_eval_ppl(&r.dev, &r.m, &plain, NULL, &ppl, &err), &err);
        assert_close_f64(&got.ppl, &ppl.ppl, 1, 0, 1e-6);
        assert_close_f64(&got.ppl_stderr, &ppl.ppl_stderr, 1, 0, 1e-5);
    }
    json_decref(want);
    vrig_close(&r);
}

/* ---- recorded ---- */

/* Steps of the 16-bit log-probabilities are at most 24 / 65535 wide and cancel in a mean. */
static void check_recorded(vrig *r, const json_t *want, const vptq_kld_result *run,
                           const char *ids, const char *path, vptq_kld_base_precision precision,
                           size_t top)
{
    vptq_err err = {0};
    char key[16];
    const char *files[] = {ids};
    const vptq_corpus_options corpus = {.tokens = files, .token_count = 1};
    vptq_kld_options record = {.corpus = corpus,
                               .context = GOLDEN_CONTEXT,
                               .save_base = path,
                               .force = true,
                               .precision = precision,
                               .top = top};
    vptq_kld_options compare = {.base_file = path, .any_protocol = true};
    vptq_kld_result got;
    snprintf(key, sizeof key, "top%zu", top);
    assert_ok(vptq_eval_kld(&r->dev, NULL, &r->base, &record, NULL, &got, &err), &err);
    assert_int_equal(got.tokens, run->tokens);
    assert_ok(vptq_eval_kld(&r->dev, &r->m, NULL, &compare, NULL, &got, &err), &err);
    if (precision == VPTQ_KLD_BASE_FULL) {
        assert_true(got.base_tail == 0);
        assert_close_f64(&got.mean_kld, &run->mean_kld, 1, 0, 1e-5);
        assert_close_f64(got.kld, run->kld, VPTQ_KLD_LEVELS, 1e-5, 1e-3);
    } else {
        const json_t *figures = json_object_get(want, key);
        expect(figures, "mean_kld", got.mean_kld, 3e-5);
        expect(figures, "max_kld", got.kld[0], 1e-3);
        expect(figures, "base_tail", got.base_tail, 1e-5);
        assert_true(got.mean_kld < run->mean_kld);
    }
    /* Figures that need only the right and the likeliest token are not rounded. */
    assert_true(got.ppl == run->ppl && got.same_top1 == run->same_top1);
    assert_close_f64(&got.ppl_base, &run->ppl_base, 1, 0, 1e-6);
    assert_close_f64(&got.ln_ppl_ratio, &run->ln_ppl_ratio, 1, 1e-7, 0);
    assert_close_f64(got.delta_p, run->delta_p, VPTQ_DELTA_LEVELS, 1e-6, 0);
    assert_string_equal(got.base_name, "stories260K.bin");
    assert_int_equal(got.context, GOLDEN_CONTEXT);
    assert_int_equal(got.windows, GOLDEN_WINDOWS);
}

static void test_recorded(void **state)
{
    vrig r;
    vptq_err err = {0};
    char base[4096], model[4096], ids[4096], path[4096];
    if (!golden_files(*state, base, model, ids))
        skip();
    json_t *want;
    const char *files[] = {ids};
    vptq_kld_options opt = {.corpus = {.tokens = files, .token_count = 1},
                            .context = GOLDEN_CONTEXT};
    vptq_kld_result run;
    vtest_path(path, sizeof path, *state, "base");
    assert_ok(vptq_json_load("tests/golden/kld.json", 1 << 20, &want, &err), &err);
    vrig_open(&r, model, NULL, false);
    vrig_open_base(&r, base);
    assert_ok(vptq_eval_kld(&r.dev, &r.m, &r.base, &opt, NULL, &run, &err), &err);
    assert_true(run.base_tail == 0 && run.base_name[0] == 0);
    check_recorded(&r, want, &run, ids, path, VPTQ_KLD_BASE_COMPACT, 16);
    check_recorded(&r, want, &run, ids, path, VPTQ_KLD_BASE_COMPACT, 128);
    check_recorded(&r, want, &run, ids, path, VPTQ_KLD_BASE_FULL, 0);
    json_decref(want);
    vrig_close(&r);
}

/* The bytes of a file do not depend on threads, memory, or whether a model runs next to the
 * original; using it with anything else is an error that names the difference. */
static void test_record_once(void **state)
{
    vrig r;
    vptq_err err = {0};
    char ids[4096], path[4096], other[4096], longer[4096];
    int32_t *all = vrig_ids(*state, 6000, ids, sizeof ids);
    const char *files[] = {ids}, *changed[] = {longer};
    vptq_kld_options opt = {.corpus = {.tokens = files, .token_count = 1},
                            .context = 60,
                            .protocol = VPTQ_PPL_LLAMA_CPP,
                            .top = 7};
    vptq_kld_result got;
    vtest_path(path, sizeof path, *state, "base");
    vtest_path(other, sizeof other, *state, "other");
    vtest_path(longer, sizeof longer, *state, "longer");
    vrig_open(&r, VRIG_TINY, NULL, false);
    vrig_open_base(&r, VRIG_TINY);
    opt.save_base = path;
    assert_ok(vptq_eval_kld(&r.dev, NULL, &r.base, &opt, NULL, &got, &err), &err);
    assert_int_equal(got.tokens, 100 * 29);
    opt.save_base = other;
    r.ctx.threads = 1;
    r.mem.cap = r.mem.used + (20 << 20);
    assert_ok(vptq_eval_kld(&r.dev, &r.m, &r.base, &opt, NULL, &got, &err), &err);
    assert_true(got.mean_kld == 0);
    vtest_expect_same_file(path, other);
    assert_fails(vptq_eval_kld(&r.dev, NULL, &r.base, &opt, NULL, &got, &err), VPTQ_E_EXISTS,
                 &err, "already exists");
    opt.save_base = NULL;
    assert_fails(vptq_eval_kld(&r.dev, NULL, &r.base, &opt, NULL, &got, &err), VPTQ_E_ARG, &err,
                 "give either an original");

    /* A model against itself, over fewer windows, and with the text given. */
    vptq_kld_options use = {.base_file = path, .any_protocol = true, .windows = 3};
    assert_ok(vptq_eval_kld(&r.dev, &r.m, NULL, &use, NULL, &got, &err), &err);
    assert_true(got.mean_kld < 1e-7 && got.same_top1 == 1 && got.base_tail > 0);
    assert_int_equal(got.protocol, VPTQ_PPL_LLAMA_CPP);
    assert_int_equal(got.tokens, 3 * 29);
    use = (vptq_kld_options){
        .base_file = path, .corpus = opt.corpus, .context = 60, .protocol = VPTQ_PPL_LLAMA_CPP};
    assert_ok(vptq_eval_kld(&r.dev, &r.m, NULL, &use, NULL, &got, &err), &err);
    assert_int_equal(got.tokens, 100 * 29);

    use.context = 61;
    assert_fails(vptq_eval_kld(&r.dev, &r.m, NULL, &use, NULL, &got, &err), VPTQ_E_MISMATCH,
                 &err, "context of 60 tokens, not of 61");
    use.context = 0;
    use.protocol = VPTQ_PPL_GPTQ;
    assert_fails(vptq_eval_kld(&r.dev, &r.m, NULL, &use, NULL, &got, &err), VPTQ_E_MISMATCH,
                 &err, "by the llama.cpp protocol, not by gptq");
    use.any_protocol = true;
    use.corpus.tokens = changed;
    all[4321] = (all[4321] + 1) % VRIG_VOCAB;
    vtest_write_file(longer, all, 6000 * sizeof *all);
    assert_fails(vptq_eval_kld(&r.dev, &r.m, NULL, &use, NULL, &got, &err), VPTQ_E_MISMATCH,
                 &err, "another text: ");
    assert_non_null(strstr(err.text, "from token 4321 on"));
    vtest_write_file(longer, all, 4000 * sizeof *all);
    assert_fails(vptq_eval_kld(&r.dev, &r.m, NULL, &use, NULL, &got, &err), VPTQ_E_MISMATCH,
                 &err, "4000 tokens, the saved windows 6000");
    vptq_model_desc desc = *r.m.desc;
    r.m.desc = &desc;
    desc.vocab++;
    assert_fails(vptq_eval_kld(&r.dev, &r.m, NULL, &use, NULL, &got, &err), VPTQ_E_MISMATCH,
                 &err, "vocabulary of 48 ids");
    r.m.desc = r.base.desc;
    free(all);
    vrig_close(&r);
}

/* ---- hidden states ---- */

/* The divergence of one row, computed from whole logits. */
static double by_hand(const float *z, const float *y, size_t n)
{
    double a = 0, b = 0, sum = 0;
    for (size_t j = 0; j < n; j++) {
        a += exp((double)z[j]);
        b += exp((double)y[j]);
    }
    for (size_t j = 0; j < n; j++)
        sum += exp((double)z[j]) / a * ((double)z[j] - log(a) - (double)y[j] + log(b));
    return sum;
}

static size_t likeliest(const float *z, size_t n)
{
    size_t best = 0;
    for (size_t j = 1; j < n; j++)
        best = z[j] > z[best] ? j : best;
    return best;
}

/* A variant has the same bits alone. */
static void check_alone(vrig *r, vptq_forward *f, vptq_forward *g, size_t n, size_t variants,
                        const float *h, const float *x, const int32_t *targets,
                        const vptq_kld_token *all)
{
    vptq_err err = {0};
    vptq_kld_token *out = vtest_alloc(n, sizeof *out);
    for (size_t c = 0; c < variants; c++) {
        const vptq_kld_args a = {r->m.desc, f,       g, n, 1, h, x + c * n * VRIG_HIDDEN,
                                 targets,   variants};
        assert_ok(vptq_eval_kld_rows(&r->ctx, &a, out, &err), &err);
        for (size_t i = 0; i < n; i++)
            assert_memory_equal(&out[i].kld, &all[c * n + i].kld, sizeof out->kld);
    }
    free(out);
}

/* More rows than pass through the head at once, of one model and of three. */
static void check_states(vrig *r, size_t n, size_t variants)
{
    vptq_err err = {0};
    vptq_forward *f, *g;
    float *h = vtest_alloc(n * VRIG_HIDDEN, sizeof *h);
    float *x = vtest_alloc(variants * n * VRIG_HIDDEN, sizeof *x);
    float *z = vtest_alloc(n * VRIG_VOCAB, sizeof *z),
          *y = vtest_alloc(n * VRIG_VOCAB, sizeof *y);
    int32_t *targets = vtest_alloc(n, sizeof *targets);
    vptq_kld_token *out = vtest_alloc(variants * n, sizeof *out);
    vtest_normal(h, n * VRIG_HIDDEN, 1);
    vtest_normal(x, variants * n * VRIG_HIDDEN, 2);
    for (size_t i = 0; i < n; i++)
        targets[i] = i % 7 ? (int32_t)(i % VRIG_VOCAB) : -1;
    memcpy(x, h,
           n / 2 * VRIG_HIDDEN * sizeof *x); /* equal hidden states of the first variant */
    assert_ok(vptq_forward_open(&r->base, &r->dev, 16, &f, &err), &err);
    assert_ok(vptq_forward_open(&r->m, &r->dev, 16, &g, &err), &err);
    assert_ok(vptq_eval_kld_rows(
                  &r->ctx, &(vptq_kld_args){r->m.desc, f, g, n, variants, h, x, targets, 0},
                  out, &err),
              &err);
    check_alone(r, f, g, n, variants, h, x, targets, out);
    assert_ok(vptq_forward_logits(f, n, h, z, &err), &err);
    for (size_t c = 0; c < variants; c++) {
        assert_ok(vptq_forward_logits(g, n, x + c * n * VRIG_HIDDEN, y, &err), &err);
        for (size_t i = 0; i < n; i++) {
            const vptq_kld_token *t = &out[c * n + i];
            const float *a = z + i * VRIG_VOCAB, *b = y + i * VRIG_VOCAB;
            double want = by_hand(a, b, VRIG_VOCAB), sum = 0;
            assert_close_f64(&t->kld, &want, 1, 1e-6, 1e-5);
            assert_int_equal(t->same_top1,
                             likeliest(a, VRIG_VOCAB) == likeliest(b, VRIG_VOCAB));
            if (c == 0 && i < n / 2)
                assert_true(t->kld == 0);
            for (size_t j = 0; j < VRIG_VOCAB; j++)
                sum += exp((double)b[j]);
            double nll = targets[i] < 0 ? 0 : log(sum) - (double)b[targets[i]];
            if (targets[i] < 0)
                assert_true(isnan(t->nll) && isnan(t->nll_base));
            else
                assert_close_f64(&t->nll, &nll, 1, 1e-5, 0);
        }
    }
    vptq_forward_close(f);
    vptq_forward_close(g);
    free(h), free(x), free(z), free(y), free(targets), free(out);
}

/* Values that are not finite are returned as they are. */
static void check_not_finite(vrig *r)
{
    vptq_err err = {0};
    vptq_forward *f, *g;
    float h[2 * VRIG_HIDDEN], x[2 * VRIG_HIDDEN];
    vptq_kld_token out[2];
    vtest_normal(h, 2 * VRIG_HIDDEN, 3);
    memcpy(x, h, sizeof x);
    x[VRIG_HIDDEN] = (float)NAN;
    assert_ok(vptq_forward_open(&r->base, &r->dev, 16, &f, &err), &err);
    assert_ok(vptq_forward_open(&r->m, &r->dev, 16, &g, &err), &err);
    assert_ok(vptq_eval_kld_rows(
                  &r->ctx, &(vptq_kld_args){r->m.desc, f, g, 2, 1, h, x, NULL, 0}, out, &err),
              &err);
    assert_true(out[0].kld == 0 && isnan(out[1].kld));
    vptq_forward_close(f);
    vptq_forward_close(g);
}

static void test_states(void **state)
{
    (void)state;
    vrig r;
    vptq_err err = {0};
    vrig_open(&r, VRIG_TINY, NULL, false);
    vrig_open_base(&r, VRIG_TINY);
    check_states(&r, 33, 1);
    check_states(&r, 2100, 3);
    check_states(&r, 2054, 3); /* 8 rows after three times 682 */
    check_not_finite(&r);
    assert_fails(
        vptq_eval_kld_rows(&r.ctx, &(vptq_kld_args){.shape = r.m.desc, .rows = 1}, NULL, &err),
        VPTQ_E_ARG, &err, "0 models");
    vrig_close(&r);
}

/* ---- texts ---- */

static void test_itself(void **state)
{
    vrig r;
    vptq_err err = {0};
    char path[4096];
    free(vrig_ids(*state, 200, path, sizeof path));
    const char *files[] = {path};
    vptq_kld_options opt = {
        .corpus = {.tokens = files, .token_count = 1}, .context = 16, .windows = 5};
    vptq_kld_result got;
    vrig_open(&r, VRIG_TINY, NULL, false);
    vrig_open_base(&r, VRIG_TINY);
    assert_ok(vptq_eval_kld(&r.dev, &r.m, &r.base, &opt, NULL, &got, &err), &err);
    assert_true(got.mean_kld == 0 && got.kld_stderr == 0);
    for (size_t i = 0; i < VPTQ_KLD_LEVELS; i++)
        assert_true(got.kld[i] == 0);
    for (size_t i = 0; i < VPTQ_DELTA_LEVELS; i++)
        assert_true(got.delta_p[i] == 0);
    assert_true(got.rms_delta_p == 0 && got.rms_delta_p_stderr == 0);
    assert_true(got.same_top1 == 1 && got.same_top1_stderr == 0);
    assert_true(got.ppl_ratio == 1 && got.ppl_ratio_stderr == 0 && got.ln_ppl_ratio == 0);
    assert_true(got.ppl == got.ppl_base && got.ppl_stderr == got.ppl_base_stderr);
    assert_true(got.ppl_difference == 0 && got.ppl_difference_stderr == 0);
    assert_true(fabs(got.ln_ppl_correlation - 1) < 1e-12);
    assert_int_equal(got.tokens, 75);
    assert_int_equal(got.windows, 5);
    opt.dry_run = true;
    opt.windows = 0;
    assert_ok(vptq_eval_kld(&r.dev, &r.m, &r.base, &opt, NULL, &got, &err), &err);
    assert_int_equal(got.windows, 12);
    assert_int_equal(got.tokens, 180);
    vrig_close(&r);
}

/* A quantized model against its original: the same figures for any thread count and memory. */
static void test_quantized(void **state)
{
    vrig r;
    vptq_err err = {0};
    char path[4096], base[4096], packed[4096];
    char *dir = realpath(*state, NULL);
    vwork_make(dir);
    vtest_path(base, sizeof base, dir, "base");
    vtest_path(packed, sizeof packed, dir, "packed");
    free(vrig_ids(dir, 6000, path, sizeof path));
    const char *files[] = {path};
    vptq_kld_options opt = {.corpus = {.tokens = files, .token_count = 1}, .context = 64};
    vptq_kld_result want, got;
    vrig_windows windows = {0};
    vrig_open(&r, packed, NULL, false);
    vrig_open_base(&r, base);
    const vptq_eval_watch watch = {.window = vrig_log_window, .arg = &windows};
    assert_ok(vptq_eval_kld(&r.dev, &r.m, &r.base, &opt, &watch, &want, &err), &err);
    assert_true(want.mean_kld > 0 && want.kld[VPTQ_KLD_LEVELS - 1] >= 0);
    for (size_t i = 1; i < VPTQ_KLD_LEVELS; i++)
        assert_true(want.kld[i - 1] > want.kld[i]);
    for (size_t i = 1; i < VPTQ_DELTA_LEVELS; i++)
        assert_true(want.delta_p[i - 1] > want.delta_p[i]);
    double mean = windows.sum / (double)windows.tokens;
    assert_int_equal(windows.tokens, want.tokens);
    assert_close_f64(&mean, &want.mean_kld, 1, 0, 1e-9);
    r.ctx.threads = 1;
    r.mem.cap = r.mem.peak + (1 << 20);
    assert_ok(vptq_eval_kld(&r.dev, &r.m, &r.base, &opt, NULL, &got, &err), &err);
    got.seconds = want.seconds;
    assert_memory_equal(&got, &want, sizeof got);
    vrig_close(&r);
    free(dir);
}

static void test_refused(void **state)
{
    vrig r;
    vptq_err err = {0};
    char path[4096];
    free(vrig_ids(*state, 20, path, sizeof path));
    const char *files[] = {path};
    vptq_kld_options opt = {.corpus = {.tokens = files, .token_count = 1}, .context = 64};
    vptq_kld_result got;
    vrig_open(&r, VRIG_TINY, NULL, false);
    vrig_open_base(&r, VRIG_TINY);
    assert_fails(vptq_eval_kld(&r.dev, &r.m, &r.base, &opt, NULL, &got, &err), VPTQ_E_FORMAT,
                 &err, "20 tokens");
    opt.context = 1;
    assert_fails(vptq_eval_kld(&r.dev, &r.m, &r.base, &opt, NULL, &got, &err), VPTQ_E_ARG, &err,
                 "context 1");
    opt.context = 16;
    vptq_model_desc other = *r.base.desc;
    r.base.desc = &other;
    other.vocab++;
    assert_fails(vptq_eval_kld(&r.dev, &r.m, &r.base, &opt, NULL, &got, &err), VPTQ_E_MISMATCH,
                 &err, "vocabulary");
    other.vocab--;
    other.layers--;
    assert_fails(vptq_eval_kld(&r.dev, &r.m, &r.base, &opt, NULL, &got, &err), VPTQ_E_MISMATCH,
                 &err, "not a version of");
    r.base.desc = r.m.desc;
    vrig_close(&r);
}

static vptq_status divergence(void *arg, vptq_device *dev, vptq_err *err)
{
    vrig *r = arg;
    vptq_kld_result got;
    const char *files[] = {r->ctx.user};
    vptq_kld_options opt = {.corpus = {.tokens = files, .token_count = 1}, .context = 16};
    return vptq_eval_kld(dev, &r->m, &r->base, &opt, NULL, &got, err);
}

static void test_out_of_memory(void **state)
{
    vrig r;
    char path[4096];
    free(vrig_ids(*state, 200, path, sizeof path));
    vrig_open(&r, VRIG_TINY, NULL, false);
    vrig_open_base(&r, VRIG_TINY);
    r.ctx.user = path;
    assert_true(devices_oom_walk("cpu", 1, divergence, &r) > 10);
    vrig_close(&r);
}

/* As in test_perplexity.c, with both models. */
static void test_uploads(void **state)
{
    enum { CONTEXT = 1050, WINDOWS = 3, TOKENS = CONTEXT * WINDOWS };
    char path[4096];
    const char *files[] = {path};
    vptq_kld_options opt = {.corpus = {.tokens = files, .token_count = 1}, .context = CONTEXT};
    vptq_kld_result res[2];
    free(vrig_ids(*state, TOKENS, path, sizeof path));
    for (int fits = 1; fits >= 0; fits--) {
        vrig r;
        vptq_err err = {0};
        vrig_open_on(&r, VRIG_TINY_OF("mistral"), NULL, "ref", 2);
        vrig_open_base(&r, VRIG_TINY_OF("llama3"));
        vcount_start(&r.dev, fits ? SIZE_MAX : 0);
        assert_ok(vptq_eval_kld(&r.dev, &r.m, &r.base, &opt, NULL, &res[fits], &err), &err);
        const size_t weights = vcount_of(&r.m).weights, base = vcount_of(&r.base).weights;
        const size_t others = vcount_of(&r.m).uploaded - weights - base;
        if (!fits) {
            assert_true(weights >= WINDOWS * vcount_block_weights(&r.m));
        } else {
            assert_int_equal(weights, vcount_block_weights(&r.m) + r.m.head->bytes);
            assert_int_equal(base, vcount_block_weights(&r.base) + r.base.head->bytes);
            /* hidden states; tables of angles and norms */
            assert_in_range(others, 2 * TOKENS * VRIG_HIDDEN * sizeof(float),
                            3 * TOKENS * VRIG_HIDDEN * sizeof(float));
        }
        vrig_close(&r);
    }
    assert_true(res[0].mean_kld == res[1].mean_kld && res[0].mean_kld > 0);
}

VTEST_MAIN(scratch_test(test_golden), scratch_test(test_recorded),
           scratch_test(test_record_once), cmocka_unit_test(test_states),
           scratch_test(test_itself), scratch_test(test_quantized), scratch_test(test_refused),
           scratch_test(test_out_of_memory), scratch_test(test_uploads))
