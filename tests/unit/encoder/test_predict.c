/* Tests that the predicted work of the encoder is what it does: its ops are counted, and the
 * prediction is made with rates that turn it into one of these counts. */
#include <math.h>

#include "lib/encoder/predict.h"
#include "tests/support/vencoder.h"
#include "tests/support/vtest.h"

/* Rates at which only one kind of work takes time; see vptq_cuda_costs. */
static vptq_cuda_costs only(size_t rate)
{
    vptq_cuda_costs c = {.memory = INFINITY,
                         .link = INFINITY,
                         .products = INFINITY,
                         .doubles = INFINITY,
                         .factoring = INFINITY,
                         .issued = INFINITY,
                         .columns = INFINITY};
    *(double *)((char *)&c + rate) = 1;
    return c;
}

/* The ops of cpu, with the work of every call added up.  Ops have no argument of their own. */
static vptq_backend counting;
static const vptq_backend *cpu;
static vptq_cuda_costs rates;
static double done;
/* The codebooks of every index, by the address that it has now. */
static struct {
    const vptq_search_index *index;
    vptq_cuda_searched books;
} opened[1024];
static size_t count_opened;

static const vptq_cuda_searched *books_of(const vptq_search_index *index)
{
    size_t i = count_opened;
    while (i > 0 && opened[i - 1].index != index)
        i--;
    assert_true(i > 0);
    return &opened[i - 1].books;
}

static vptq_status count_gemm(vptq_dev *dev, const vptq_gemm_args *g, vptq_err *err)
{
    done += vptq_cuda_cost_gemm(&rates, (double)g->m, (double)g->n, (double)g->k);
    return cpu->gemm(dev, g, err);
}

static vptq_status count_index(vptq_dev *dev, const vptq_codebooks *c,
                               vptq_search_index **index, vptq_err *err)
{
    const vptq_status st = cpu->search_index_open(dev, c, index, err);
    assert_true(count_opened < sizeof opened / sizeof *opened);
    opened[count_opened].index = *index;
    opened[count_opened++].books = (vptq_cuda_searched){c->v, c->k, c->k_res, c->beam};
    return st;
}

static vptq_status count_search(vptq_dev *dev, const vptq_search_args *s, vptq_err *err)
{
    done += vptq_cuda_cost_search(&rates, (double)s->n, books_of(s->index));
    return cpu->search(dev, s, err);
}

static void visit(size_t cols, size_t rows, const vptq_search_index *index)
{
    const vptq_cuda_searched *s = books_of(index);
    done += vptq_cuda_cost_columns(&rates, (double)cols, (double)(rows / s->v), s);
}

static vptq_status count_pass(vptq_dev *dev, const vptq_pass_args *p, vptq_err *err)
{
    visit(p->cols, p->rows, p->index);
    return cpu->vq_pass(dev, p, err);
}

static vptq_status count_descend(vptq_dev *dev, const vptq_descend_args *d, vptq_err *err)
{
    visit(d->cols, d->rows, d->index);
    return cpu->vq_descend(dev, d, err);
}

static vptq_status count_assign(vptq_dev *dev, const vptq_assign_args *a, vptq_err *err)
{
    done += vptq_cuda_cost_assign(&rates, (double)a->n, a->v, a->k);
    return cpu->assign(dev, a, err);
}

static vptq_status count_reassign(vptq_dev *dev, const vptq_assign_args *a, vptq_err *err)
{
    done += vptq_cuda_cost_assign(&rates, (double)a->n, a->v, a->k);
    return cpu->reassign(dev, a, err);
}

static vptq_status count_plus_plus(vptq_dev *dev, const vptq_plus_plus_args *a, vptq_err *err)
{
    done += vptq_cuda_cost_seeding(&rates, (double)a->m, a->v, a->k);
    return cpu->plus_plus(dev, a, err);
}

/* Encodes on a device whose ops are counted.  Leaves out the product that follows when a step
 * is reverted, which the prediction does not know. */
static double encode(const problem *p, const vptq_encoder_settings *s)
{
    vencoder_run run;
    const vptq_encoder_input input = vencoder_input(p);

    vencoder_open(&run, "cpu", 1);
    cpu = run.dev.ops;
    counting = *cpu;
    counting.gemm = count_gemm;
    counting.search_index_open = count_index;
    counting.search = count_search;
    counting.vq_pass = count_pass;
    counting.vq_descend = count_descend;
    counting.assign = count_assign;
    counting.reassign = count_reassign;
    counting.plus_plus = count_plus_plus;
    run.dev.ops = &counting;
    done = 0;
    count_opened = 0;
    vencoder_quantize(&run, s, &input);
    for (uint32_t i = 0; i < run.r.report.num_steps; i++)
        if (run.r.report.steps[i].reverted)
            done -= vptq_cuda_cost_gemm(&rates, p->in, p->out, p->in);
    run.dev.ops = cpu;
    vencoder_close(&run);
    return done;
}

/* The same number of k-means iterations in every run. */
static vptq_encoder_settings settings(uint32_t v, uint32_t k, uint32_t k_res)
{
    vptq_encoder_settings s = vptq_encoder_defaults();
    s.v = v;
    s.k = k;
    s.k_res = k_res;
    s.kmeans_iterations = 3;
    s.kmeans_tolerance = 0;
    s.beam = 8;
    return s;
}

static void check(const problem *p, const vptq_encoder_settings *s)
{
    static const size_t kinds[] = {offsetof(vptq_cuda_costs, products),
                                   offsetof(vptq_cuda_costs, issued),
                                   offsetof(vptq_cuda_costs, columns)};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        vptq_encoder_report report;
        rates = only(kinds[i]);
        const double counted = encode(p, s);
        vptq_encoder_predict(&rates, s, (uint32_t)p->out, (uint32_t)p->in, &report);
        assert_true(counted > 0);
        assert_true(fabs(report.seconds / counted - 1) < 1e-9);
    }
}

static void test_best(void **state)
{
    (void)state;
    problem p = problem_make(64, 320, 3);
    vptq_encoder_settings s = settings(8, 32, 0);
    check(&p, &s);
    s = settings(8, 32, 8);
    check(&p, &s);
    s = settings(4, 16, 8);
    s.refits = 1;
    s.scales = false;
    check(&p, &s);
    problem_free(&p);
}

static void test_groups(void **state)
{
    (void)state;
    problem p = problem_make(60, 256, 4);
    vptq_encoder_settings s = settings(8, 16, 8);
    s.groups = 2;
    check(&p, &s);
    s.groups = 1;
    s.outliers = 10; /* without residuals: not trained jointly */
    s.v0 = 4;
    s.k0 = 16;
    check(&p, &s);
    problem_free(&p);
}

static void test_grid(void **state)
{
    (void)state;
    problem p = problem_make(64, 256, 6);
    /* with fewer residual centroids their refit converges early */
    vptq_encoder_settings s = settings(8, 32, 64);
    s.codebook_grid = VPTQ_GRID_INT8;
    check(&p, &s);
    problem_free(&p);
}

static void test_upstream(void **state)
{
    (void)state;
    problem p = problem_make(64, 256, 5);
    vptq_encoder_settings like = settings(8, 32, 0), s = vencoder_upstream(&like);
    s.kmeans_iterations = 3;
    s.kmeans_shift = 0;
    s.kmeans_tolerance = 0;
    check(&p, &s);
    problem_free(&p);
}

VTEST_MAIN(cmocka_unit_test(test_best), cmocka_unit_test(test_groups),
           cmocka_unit_test(test_grid), cmocka_unit_test(test_upstream))
