/* Tests SparseGPT against its definition in double, which eliminates columns from the inverse
 * Hessian, and against golden masks; alone, before RTN and in the pass of GPTQ. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/hf/safetensors.h"
#include "lib/base/file.h"
#include "lib/uniform/uniform.h"
#include "tests/support/devices.h"
#include "tests/support/vencoder.h"
#include "tests/support/vtest.h"

enum { BLOCK = 128 };

static const vptq_uniform_settings usual = {
    .bits = 4, .group_size = 32, .storage = VPTQ_F16, .ridge = 0.01, .damping = 0.01};
static const vptq_prune half = {.share = 0.5}, two_of_four = {.n = 2, .m = 4},
                        four_of_eight = {.n = 4, .m = 8};

/* ---- the definition ---- */

typedef struct naive {
    double *w;     /* [out][in] pruned */
    uint8_t *mask; /* [out][in] 1: pruned */
} naive;

static void eliminate(double *a, size_t n, size_t c)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            if (i != c && j != c)
                a[i * n + j] -= a[i * n + c] * a[c * n + j] / a[c * n + c];
}

/* The inverse of H + ridge; the caller frees it. */
static double *inverse(const problem *p)
{
    const size_t n = p->in;
    double *a = vtest_alloc(n * n, sizeof *a), mean = 0;
    for (size_t i = 0; i < n; i++)
        mean += p->h[i * n + i] / (double)n;
    for (size_t i = 0; i < n * n; i++)
        a[i] = p->h[i] + (i % (n + 1) ? 0 : usual.ridge * mean);
    problem_invert(n, a);
    return a;
}

/* Diagonal of the inverse when a column is reached: U_jj^2. */
static double *pivots_of(const problem *p)
{
    const size_t n = p->in;
    double *a = inverse(p), *pivot = vtest_alloc(n, sizeof *pivot);
    for (size_t c = 0; c < n; c++) {
        pivot[c] = a[c * n + c];
        eliminate(a, n, c);
    }
    free(a);
    return pivot;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The mask of columns [first, last): scores up to the one at the position of the share. */
static void mask_block(const problem *p, double share, const double *pivot, size_t first,
                       size_t last, naive *q)
{
    const size_t n = p->in, count = p->out * (last - first);
    double *all = vtest_alloc(count, sizeof *all);
    size_t k = 0;
    for (size_t r = 0; r < p->out; r++)
        for (size_t c = first; c < last; c++)
            all[k++] = q->w[r * n + c] * q->w[r * n + c] / pivot[c];
    qsort(all, count, sizeof *all, ascending);
    const double most = all[(size_t)(share * (double)count)];
    for (size_t r = 0; r < p->out; r++)
        for (size_t c = first; c < last; c++)
            q->mask[r * n + c] = q->w[r * n + c] * q->w[r * n + c] / pivot[c] <= most;
    free(all);
}

static void mask_pattern(const problem *p, const vptq_prune *s, const double *pivot, size_t c,
                         naive *q)
{
    for (size_t r = 0; r < p->out; r++)
        for (uint32_t k = 0; k < s->n; k++) {
            size_t least = s->m;
            for (size_t i = 0; i < s->m; i++) {
                const size_t at = r * p->in + c;
                const double x = q->w[at + i] * q->w[at + i] / pivot[c + i];
                if (!q->mask[at + i] &&
                    (least == s->m ||
                     x < q->w[at + least] * q->w[at + least] / pivot[c + least]))
                    least = i;
            }
            q->mask[r * p->in + c + least] = 1;
        }
}

static naive naive_make(const vptq_prune *s, const problem *p)
{
    const size_t n = p->in;
    naive q = {vtest_alloc(p->out * n, sizeof *q.w), vtest_alloc(p->out * n, 1)};
    double *a = inverse(p), *pivot = pivots_of(p);
    for (size_t i = 0; i < p->out * n; i++)
        q.w[i] = p->h[i % n * (n + 1)] > 0 ? (double)p->w[i] : 0;
    memset(q.mask, 0, p->out * n);
    for (size_t c = 0; c < n; c++) {
        if (s->m && c % s->m == 0)
            mask_pattern(p, s, pivot, c, &q);
        if (!s->m && c % BLOCK == 0)
            mask_block(p, s->share, pivot, c, c + BLOCK < n ? c + BLOCK : n, &q);
        for (size_t r = 0; r < p->out; r++) {
            double *row = q.w + r * n;
            const double e = q.mask[r * n + c] ? row[c] / a[c * n + c] : 0;
            for (size_t l = c + 1; l < n; l++)
                row[l] -= e * a[c * n + l];
            row[c] = q.mask[r * n + c] ? 0 : row[c];
        }
        eliminate(a, n, c);
    }
    free(a);
    free(pivot);
    return q;
}

static void naive_free(naive *q)
{
    free(q->w);
    free(q->mask);
}

/* ---- what the library does ---- */

/* Prunes, or with `codes` also quantizes; returns the weights [out][in] as stored. */
static float *prune_input(vencoder_run *run, const vptq_uniform_settings *s, bool codes,
                          const vptq_uniform_input *input)
{
    const size_t n = (size_t)input->out * input->in;
    float *w = vtest_alloc(n, sizeof *w);
    vptq_err err = {0};
    vptq_uniform u;
    double added;
    if (codes) {
        assert_ok(vptq_uniform_quantize(&run->dev, s, input, &run->arena, &u, &added, &err),
                  &err);
        vptq_uniform_read(&u, 0, input->out, w);
        vptq_round_to_n(s->storage, w, n);
    } else {
        assert_ok(vptq_uniform_prune(&run->dev, s, input, w, &added, &err), &err);
    }
    assert_true(added == 0);
    return w;
}

static float *prune_on(vencoder_run *run, const vptq_uniform_settings *s, bool codes,
                       const problem *p)
{
    return prune_input(
        run, s, codes,
        &(vptq_uniform_input){.out = p->out, .in = p->in, .w = p->w, .lower = p->lower});
}

static size_t zeros_of(const float *w, size_t n)
{
    size_t zeros = 0;
    for (size_t i = 0; i < n; i++)
        zeros += w[i] == 0;
    return zeros;
}

static void check_case(const vptq_prune *prune, uint32_t out, uint32_t in)
{
    problem p = problem_make(out, in, 3);
    naive want = naive_make(prune, &p);
    vptq_uniform_settings s = usual;
    vencoder_run run;
    s.prune = *prune;
    vencoder_open(&run, "cpu", 2);
    float *w = prune_on(&run, &s, false, &p);
    for (size_t i = 0; i < (size_t)out * in; i++) {
        assert_int_equal(w[i] == 0, want.mask[i]);
        assert_true(fabs((double)w[i] - want.w[i]) <= 1e-3 * fabs(want.w[i]) + 1e-4);
    }
    free(w);
    naive_free(&want);
    vencoder_close(&run);
    problem_free(&p);
}

static void test_definition(void **state)
{
    (void)state;
    check_case(&half, 24, 80);
    check_case(&half, 16, 300); /* three blocks */
    check_case(&(vptq_prune){.share = 0.3}, 1, 5);
    check_case(&(vptq_prune){.share = 0.9}, 20, 160);
    check_case(&two_of_four, 24, 160);
    check_case(&four_of_eight, 17, 136);
}

/* ---- counts ---- */

/* Every m columns of a row have n zeros. */
static void assert_pattern(const vptq_prune *s, const float *w, size_t out, size_t in)
{
    for (size_t i = 0; i < out * in; i += s->m)
        assert_true(zeros_of(w + i, s->m) >= s->n);
}

static void test_counts(void **state)
{
    (void)state;
    problem p = problem_make(40, 160, 7);
    const size_t n = (size_t)p.out * p.in;
    vptq_uniform_settings s = usual;
    vencoder_run run;
    vencoder_open(&run, "cpu", 2);
    s.prune = half;
    float *w = prune_on(&run, &s, false, &p);
    assert_int_equal(zeros_of(w, n), n / 2 + 2); /* one more in each of two blocks */
    free(w);
    s.prune = two_of_four;
    w = prune_on(&run, &s, false, &p);
    assert_pattern(&two_of_four, w, p.out, p.in);
    assert_int_equal(zeros_of(w, n), n / 2);
    free(w);
    vencoder_close(&run);
    problem_free(&p);
}

/* Codes keep every zero; RTN of the pruned matrix has its zeros; the joint pass
 * loses less than RTN after pruning, with a pattern not always. */
static void check_codes(const vptq_prune *prune, uint32_t group_size)
{
    problem p = problem_make(40, 160, 7);
    const size_t n = (size_t)p.out * p.in;
    vptq_uniform_settings s = usual;
    vencoder_run run;
    s.prune = *prune;
    s.group_size = group_size;
    vencoder_open(&run, "cpu", 2);
    float *w = prune_on(&run, &s, false, &p), *rtn = prune_on(&run, &s, true, &p);
    for (size_t i = 0; i < n; i++)
        assert_true(w[i] != 0 || rtn[i] == 0);
    s.compensate = true;
    float *gptq = prune_on(&run, &s, true, &p);
    if (prune->m)
        assert_pattern(prune, gptq, p.out, p.in);
    assert_true(2 * zeros_of(gptq, n) >= n);
    const double pruned = problem_loss(&p, w), after = problem_loss(&p, rtn);
    assert_true(pruned < after);
    assert_true(problem_loss(&p, gptq) < (prune->m ? 1.1 : 1) * after);
    s.symmetric = true;
    s.order = !prune->m;
    float *ordered = prune_on(&run, &s, true, &p);
    assert_true(2 * zeros_of(ordered, n) >= n);
    assert_true(problem_loss(&p, ordered) < 1.1 * after);
    free(ordered);
    free(gptq);
    free(rtn);
    free(w);
    vencoder_close(&run);
    problem_free(&p);
}

static void test_codes(void **state)
{
    (void)state;
    check_codes(&half, 32);
    check_codes(&half, 0);
    check_codes(&half, 100); /* groups and blocks do not end together */
    check_codes(&two_of_four, 32);
    check_codes(&four_of_eight, 0);
}

/* The errors of pruning are compensated: less is lost than without. */
static void test_losses(void **state)
{
    (void)state;
    problem p = problem_make(64, 96, 5);
    const size_t n = (size_t)p.out * p.in;
    vptq_uniform_settings s = usual;
    vencoder_run run;
    double before = 0;
    vencoder_open(&run, "cpu", 1);
    for (int i = 1; i <= 8; i++) {
        s.prune.share = 0.1 * i;
        float *w = prune_on(&run, &s, false, &p);
        float *plain = vtest_alloc(n, sizeof *plain);
        for (size_t k = 0; k < n; k++)
            plain[k] = w[k] == 0 ? 0 : p.w[k];
        const double loss = problem_loss(&p, w);
        assert_true(loss > before && loss < problem_loss(&p, plain));
        before = loss;
        free(plain);
        free(w);
    }
    vencoder_close(&run);
    problem_free(&p);
}

/* Columns without inputs become 0, and nothing is divided by their H_jj. */
static void test_dead_columns(void **state)
{
    (void)state;
    problem p = problem_make(12, 40, 4);
    const size_t dead[] = {0, 5, 6, 39};
    for (size_t d = 0; d < sizeof dead / sizeof *dead; d++)
        for (size_t i = 0; i < p.in; i++) {
            const size_t a = dead[d] > i ? dead[d] : i, b = dead[d] > i ? i : dead[d];
            p.lower[a * (a + 1) / 2 + b] = 0;
        }
    problem_unpack(&p);
    const vptq_prune *const prunes[] = {&half, &two_of_four};
    for (size_t k = 0; k < 2; k++) {
        naive want = naive_make(prunes[k], &p);
        vptq_uniform_settings s = usual;
        vencoder_run run;
        s.prune = *prunes[k];
        vencoder_open(&run, "cpu", 2);
        float *w = prune_on(&run, &s, false, &p);
        for (size_t i = 0; i < (size_t)p.out * p.in; i++) {
            assert_true(isfinite(w[i]));
            assert_int_equal(w[i] == 0, want.w[i] == 0);
        }
        for (size_t r = 0; r < p.out; r++)
            for (size_t d = 0; d < sizeof dead / sizeof *dead; d++)
                assert_true(w[r * p.in + dead[d]] == 0);
        free(w);
        naive_free(&want);
        vencoder_close(&run);
    }
    problem_free(&p);
}

/* ---- golden masks ---- */

static const vptq_tensor *need_tensor(const vptq_tensor_set *set, const char *name)
{
    const vptq_tensor *t = vptq_tensor_find(set, name);
    assert_non_null(t);
    return t;
}

static void open_golden(const char *path, vptq_tensor_set *set, vptq_mem *mem)
{
    vptq_err err = {0};
    vptq_tensor_set_init(set, mem);
    assert_ok(vptq_safetensors_read(path, set, NULL, &err), &err);
    assert_ok(vptq_tensor_set_finish(set, &err), &err);
}

/* tests/golden/make_sparse.py, another implementation in double. */
static void test_golden(void **state)
{
    (void)state;
    static const struct {
        const char *mask, *dense;
        vptq_prune prune;
    } cases[] = {{"mask_0.5", "dense_0.5", {.share = 0.5}},
                 {"mask_0.7", NULL, {.share = 0.7}},
                 {"mask_2:4", "dense_2:4", {.n = 2, .m = 4}},
                 {"mask_4:8", NULL, {.n = 4, .m = 8}}};
    vencoder_run run;
    vptq_err err = {0};
    vptq_tensor_set matrix, sparse;
    vencoder_open(&run, "cpu", 2);
    open_golden("tests/golden/gptq.safetensors", &matrix, &run.mem);
    open_golden("tests/golden/sparse.safetensors", &sparse, &run.mem);
    const vptq_tensor *w = need_tensor(&matrix, "w");
    const vptq_tensor *lower = need_tensor(&matrix, "lower");
    const vptq_uniform_input input = {.out = (uint32_t)w->shape[0],
                                      .in = (uint32_t)w->shape[1],
                                      .w = vptq_tensor_aligned(w, &run.arena, &err),
                                      .lower = vptq_tensor_aligned(lower, &run.arena, &err)};
    const size_t n = (size_t)input.out * input.in;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        vptq_uniform_settings s = usual;
        s.prune = cases[i].prune;
        float *got = prune_input(&run, &s, false, &input);
        const uint8_t *mask = need_tensor(&sparse, cases[i].mask)->data;
        for (size_t k = 0; k < n; k++)
            assert_int_equal(got[k] == 0, mask[k]);
        const float *dense =
            cases[i].dense
                ? vptq_tensor_aligned(need_tensor(&sparse, cases[i].dense), &run.arena, &err)
                : NULL;
        for (size_t k = 0; dense && k < n; k++)
            assert_true(fabsf(got[k] - dense[k]) <= 1e-3F * fabsf(dense[k]) + 1e-5F);
        free(got);
    }
    vptq_tensor_set_release(&matrix);
    vptq_tensor_set_release(&sparse);
    vencoder_close(&run);
}

/* ---- the same bytes everywhere, memory ---- */

static void test_threads(void **state)
{
    (void)state;
    problem p = problem_make(150, 200, 9);
    const vptq_prune *const prunes[] = {&half, &two_of_four};
    for (size_t k = 0; k < 2; k++) {
        uint64_t first = 0;
        for (int threads = 1; threads <= 4; threads++) {
            vencoder_run run;
            vptq_uniform_settings s = usual;
            s.prune = *prunes[k];
            vencoder_open(&run, "cpu", threads);
            float *w = prune_on(&run, &s, false, &p);
            const uint64_t h = vptq_hash(w, (size_t)p.out * p.in * sizeof *w, 0);
            first = threads == 1 ? h : first;
            assert_true(h == first);
            free(w);
            vencoder_close(&run);
        }
    }
    problem_free(&p);
}

static vptq_status prune_small(void *arg, vptq_device *dev, vptq_err *err)
{
    const problem *p = arg;
    vptq_uniform_settings s = usual;
    const vptq_uniform_input input = {.out = p->out, .in = p->in, .w = p->w, .lower = p->lower};
    float w[9 * 72];
    double added;
    s.prune = half;
    return vptq_uniform_prune(dev, &s, &input, w, &added, err);
}

static void test_memory(void **state)
{
    (void)state;
    problem p = problem_make(9, 72, 2);
    assert_true(devices_oom_walk("cpu", 2, prune_small, &p) > 8);
    problem_free(&p);
}

static void test_bad_hessians(void **state)
{
    (void)state;
    problem p = problem_make(8, 64, 2);
    vencoder_run run;
    vptq_err err = {0};
    vencoder_open(&run, "cpu", 1);
    memset(p.lower, 0, sizeof *p.lower * 64 * 65 / 2);
    assert_int_equal(prune_small(&p, &run.dev, &err), VPTQ_E_NUMERIC);
    assert_non_null(strstr(err.text, "mean diagonal of 0"));
    vencoder_close(&run);
    problem_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_definition),   cmocka_unit_test(test_counts),
        cmocka_unit_test(test_codes),        cmocka_unit_test(test_losses),
        cmocka_unit_test(test_dead_columns), cmocka_unit_test(test_golden),
        cmocka_unit_test(test_threads),      cmocka_unit_test(test_memory),
        cmocka_unit_test(test_bad_hessians),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
