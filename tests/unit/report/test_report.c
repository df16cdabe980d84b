/* Reports of served models: every statistic of the published records against NumPy and SciPy
 * (tests/golden/make_serving.py), names and remarks against cases by hand. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json.h"
#include "lib/report/report.h"
#include "tests/support/vtest.h"

/* ---- against NumPy ---- */

static bool load_published(vptq_records *r)
{
    char path[4096];
    vptq_err err = {0};
    if (!vtest_data(path, sizeof path, "golden/serving/records.jsonl"))
        return false;
    vptq_records_init(r, NULL);
    assert_ok(vptq_records_read(&(vptq_ctx){.threads = 1}, r, path, &err), &err);
    return true;
}

static double number(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    assert_true(json_is_number(v));
    return json_number_value(v);
}

static void assert_near(double got, double want)
{
    assert_close_f64(&got, &want, 1, 1e-12, 1e-12);
}

/* Keys of the golden file, by vptq_metric. */
static const char *const metric_keys[VPTQ_METRIC_COUNT] = {
    "latency", "output_throughput", "input_throughput", "overall_throughput", "ttft"};

static void check_group(const vptq_report *r, const json_t *want, size_t *checked)
{
    const char *name = json_string_value(json_object_get(want, "group"));
    const vptq_report_group *g = r->groups;
    while (strcmp(g->name, name) != 0)
        assert_true(++g < r->groups + r->group_count);
    assert_string_equal(g->model, json_string_value(json_object_get(want, "model")));
    assert_string_equal(r->configs[g->config].label,
                        json_string_value(json_object_get(want, "configuration")));
    assert_ptr_equal(r->models[g->model_index].by_config[g->config], g);
    for (int m = 0; m < VPTQ_METRIC_COUNT; m++) {
        const json_t *w = json_object_get(want, metric_keys[m]);
        const json_t *speedup = json_object_get(w, "speedup");
        const vptq_report_metric *x = &g->metric[m];
        assert_near(x->stats.median, number(w, "median"));
        assert_near(x->stats.mean, number(w, "mean"));
        assert_near(x->stats.std, number(w, "std"));
        assert_int_equal(x->rank, (int)number(w, "rank"));
        if (json_object_get(w, "outliers"))
            assert_int_equal(x->outliers, (int)number(w, "outliers"));
        assert_int_equal(speedup != NULL, !isnan(x->speedup.value));
        if (speedup) {
            assert_near(x->speedup.value, json_number_value(json_array_get(speedup, 0)));
            assert_near(x->speedup.low, json_number_value(json_array_get(speedup, 1)));
            assert_near(x->speedup.high, json_number_value(json_array_get(speedup, 2)));
        }
        ++*checked;
    }
}

static void check_model(const vptq_report *r, const json_t *want, size_t *checked)
{
    const char *name = json_string_value(json_object_get(want, "model"));
    const char *key = json_string_value(json_object_get(want, "metric"));
    const vptq_report_model *m = r->models;
    int k = 0;
    while (strcmp(m->name, name) != 0)
        assert_true(++m < r->models + r->model_count);
    while (strcmp(metric_keys[k], key) != 0)
        assert_true(++k < VPTQ_METRIC_COUNT);
    assert_near(m->summary[k].mean, number(want, "mean"));
    assert_int_equal(m->summary[k].slower, (int)number(want, "slower"));
    assert_int_equal(m->summary[k].count, 7);
    assert_int_equal(r->family_count, 1);
    vptq_break_even e = vptq_report_break_even(r, &r->families[0], m, (vptq_metric)k);
    assert_int_equal(e.kind == VPTQ_EVEN_UNTIL, json_object_get(want, "even") != NULL);
    if (e.kind == VPTQ_EVEN_UNTIL)
        assert_near(e.batch, number(want, "even"));
    ++*checked;
}

/* Of distinct quotients, as many are dropped as enumerating all orders requires. */
static void check_dropped(const json_t *want, size_t *checked)
{
    size_t n = (size_t)number(want, "n"), m = (size_t)number(want, "m"), smaller = 0;
    double a[6], b[6];
    vptq_ratio ratio;
    vptq_err err = {0};
    for (size_t i = 0; i < 6; i++) {
        a[i] = 1 + 0.1 * (double)i;
        b[i] = 1.003 + 0.107 * (double)i;
    }
    assert_ok(vptq_ratio_of(a, n, b, m, NULL, &ratio, &err), &err);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < m; j++)
            smaller += a[i] / b[j] < ratio.low;
    if (n * m == 1)
        assert_true(isnan(ratio.low) && isnan(ratio.high));
    else
        assert_int_equal(smaller, (int)number(want, "dropped"));
    ++*checked;
}

static void test_against_numpy(void **state)
{
    vptq_records records;
    vptq_report r;
    vptq_err err = {0};
    size_t groups = 0, models = 0, dropped = 0, size;
    (void)state;
    if (!load_published(&records))
        skip();
    assert_ok(vptq_report_build(&records, NULL, NULL, &r, &err), &err);
    assert_int_equal(r.group_count, 49);
    assert_int_equal(r.config_count, 7);
    assert_int_equal(r.model_count, 7);
    assert_true(r.has_original && r.models[0].original);
    char *text = vtest_read_file("tests/golden/serving.jsonl", &size), *rest = text;
    for (char *line; (line = strtok_r(rest, "\n", &rest));) {
        json_t *want;
        assert_ok(vptq_json_parse(line, strlen(line), "serving.jsonl", &want, &err), &err);
        if (json_object_get(want, "group"))
            check_group(&r, want, &groups);
        else if (json_object_get(want, "model"))
            check_model(&r, want, &models);
        else
            check_dropped(want, &dropped);
        json_decref(want);
    }
    assert_int_equal(groups, 49 * VPTQ_METRIC_COUNT);
    assert_int_equal(models, 6 * VPTQ_METRIC_COUNT);
    assert_int_equal(dropped, 36);
    free(text);
    vptq_report_release(&r);
    vptq_records_release(&records);
}

/* ---- cases by hand ---- */

typedef struct run {
    const char *name;
    unsigned batch, in, out;
    double latency, decode, ttft; /* 0 = not recorded */
} run;

/* Makes records of runs; "GROUP/RUN" gives both names. */
static void make_records(vptq_records *r, const run *runs, size_t n)
{
    char line[1024];
    vptq_err err = {0};
    vptq_records_init(r, NULL);
    for (size_t i = 0; i < n; i++) {
        const char *slash = strchr(runs[i].name, '/');
        int at = snprintf(line, sizeof line,
                          "{\"run_name\": \"%s\", \"batch_size\": %u, \"input_len\": %u, "
                          "\"output_len\": %u, \"latency\": %.17g",
                          slash ? slash + 1 : runs[i].name, runs[i].batch, runs[i].in,
                          runs[i].out, runs[i].latency);
        if (slash)
            at += snprintf(line + at, sizeof line - (size_t)at, ", \"group\": \"%.*s\"",
                           (int)(slash - runs[i].name), runs[i].name);
        if (runs[i].decode > 0)
            at += snprintf(line + at, sizeof line - (size_t)at,
                           ", \"output_throughput\": %.17g", runs[i].decode);
        if (runs[i].ttft > 0)
            at += snprintf(line + at, sizeof line - (size_t)at, ", \"ttft\": %.17g",
                           runs[i].ttft);
        at += snprintf(line + at, sizeof line - (size_t)at, "}");
        assert_ok(vptq_records_parse(r, line, (size_t)at, "made", &err), &err);
    }
}

#define COUNT(x) (sizeof(x) / sizeof *(x))

static void build(vptq_report *r, vptq_records *records, const run *runs, size_t n,
                  const char *original)
{
    vptq_err err = {0};
    make_records(records, runs, n);
    assert_ok(vptq_report_build(records, original, NULL, r, &err), &err);
}

static void release(vptq_report *r, vptq_records *records)
{
    vptq_report_release(r);
    vptq_records_release(records);
}

static void test_names(void **state)
{
    /* without the original: the ending that leaves known models */
    static const run runs[] = {{"original_a", 1, 8, 8, 2, 0, 0}, {"x_awq_a", 1, 8, 8, 1, 0, 0},
                               {"y_awq_a", 1, 8, 8, 1, 0, 0},    {"x_awq_b", 2, 8, 8, 1, 0, 0},
                               {"y_awq_b", 2, 8, 8, 1, 0, 0},    {"lone_c", 4, 8, 8, 1, 0, 0}};
    static const char *const models[] = {"original", "x_awq", "y_awq",
                                         "x_awq",    "y_awq", "lone_c"};
    static const run back[] = {{"a_q", 1, 8, 8, 2, 0, 0},
                               {"b_q", 1, 8, 8, 1, 0, 0},
                               {"a_q", 2, 8, 8, 2, 0, 0},
                               {"b_q", 2, 8, 8, 4, 0, 0}};
    vptq_records records;
    vptq_report r;
    (void)state;
    build(&r, &records, runs, COUNT(runs), NULL);
    assert_int_equal(r.group_count, COUNT(models));
    for (size_t i = 0; i < COUNT(models); i++)
        assert_string_equal(r.groups[i].model, models[i]);
    assert_string_equal(r.configs[0].label, "a");
    assert_string_equal(r.configs[1].label, "b");
    assert_null(r.configs[2].label);
    assert_string_equal(r.configs[1].absent, "original, lone_c");
    release(&r, &records);

    build(&r, &records, back, COUNT(back), "a_q");
    assert_string_equal(r.groups[1].model, "b_q");
    assert_null(r.configs[0].label);
    assert_true(r.groups[1].metric[VPTQ_METRIC_LATENCY].speedup.value == 2);
    assert_true(isnan(r.groups[1].metric[VPTQ_METRIC_LATENCY].speedup.low)); /* one run each */
    vptq_break_even e =
        vptq_report_break_even(&r, &r.families[0], &r.models[1], VPTQ_METRIC_LATENCY);
    assert_int_equal(e.kind, VPTQ_EVEN_UNTIL); /* 2 at batch 1, 1/2 at batch 2 */
    assert_near(e.batch, sqrt(2));
    assert_near(vptq_report_at_batch(&r, &r.models[1], 2, VPTQ_METRIC_LATENCY), 0.5);
    release(&r, &records);
    build(&r, &records, runs, COUNT(runs), "x_awq_a"); /* a whole group names its model */
    assert_string_equal(r.models[0].name, "x_awq");
    assert_true(r.models[0].original);
    release(&r, &records);
}

/* Recorded names of configurations and other recorded facts. */
static void test_recorded_config(void **state)
{
    static const char text[] =
        "{\"run_name\": \"a_x_c_1_run1\", \"batch_size\": 1, \"input_len\": 8, \"output_len\": "
        "8, "
        "\"latency\": 1, \"config\": \"c_1\", \"backend\": \"cpu\", \"bits_per_weight\": 3}\n"
        "{\"run_name\": \"a_x_c_1_run2\", \"batch_size\": 1, \"input_len\": 8, \"output_len\": "
        "8, "
        "\"latency\": 1, \"config\": \"c_1\", \"backend\": \"cpu\", \"bits_per_weight\": 2, "
        "\"peak_memory_bytes\": 7}\n"
        "{\"run_name\": \"b_x_c_1_run1\", \"batch_size\": 1, \"input_len\": 8, \"output_len\": "
        "8, "
        "\"latency\": 1, \"config\": \"c_1\", \"backend\": \"cpu\"}\n"
        "{\"run_name\": \"b_x_c_1_run2\", \"batch_size\": 1, \"input_len\": 8, \"output_len\": "
        "8, "
        "\"latency\": 1, \"config\": \"c_1\"}\n";
    vptq_records records;
    vptq_report r;
    vptq_err err = {0};
    (void)state;
    vptq_records_init(&records, NULL);
    assert_ok(vptq_records_parse(&records, text, sizeof text - 1, "made", &err), &err);
    assert_ok(vptq_report_build(&records, NULL, NULL, &r, &err), &err);
    assert_string_equal(r.configs[0].label, "c_1"); /* and not x_c_1 */
    assert_string_equal(r.groups[0].model, "a_x");
    assert_string_equal(r.groups[0].backend, "cpu");
    assert_true(r.groups[0].bits_per_weight == 3 && r.groups[0].peak_memory_bytes == 7);
    assert_null(r.groups[1].backend);
    assert_true(isnan(r.groups[1].bits_per_weight));
    release(&r, &records);
}

static void test_no_such_original(void **state)
{
    static const run runs[] = {{"a", 1, 8, 8, 2, 0, 0}, {"b", 1, 8, 8, 1, 0, 0}};
    vptq_records records;
    vptq_report r;
    vptq_err err = {0};
    (void)state;
    make_records(&records, runs, COUNT(runs));
    assert_fails(vptq_report_build(&records, "c", NULL, &r, &err), VPTQ_E_ARG, &err,
                 "--original 'c': no records of such a model; there are some of 'a'");
    assert_ok(vptq_report_build(&records, NULL, NULL, &r, &err), &err);
    assert_false(r.has_original);
    assert_true(isnan(r.groups[0].metric[0].speedup.value));
    release(&r, &records);
}

static void test_remarks(void **state)
{
    static const run runs[] = {{"a/a_run1", 1, 8, 8, 1, 0, 0}, {"a/a_run3", 1, 8, 8, 1, 0, 0},
                               {"a/a_run3", 1, 8, 8, 1, 0, 0}, {"a/a_run3", 1, 8, 8, 1, 0, 0},
                               {"b/b_run1", 1, 8, 8, 1, 0, 0}, {"b/b_run2", 1, 8, 8, 1, 0, 0},
                               {"b/a_run3", 1, 8, 8, 1, 0, 0}, {"c/any", 1, 8, 8, 1, 0, 0}};
    vptq_records records;
    vptq_report r;
    (void)state;
    build(&r, &records, runs, COUNT(runs), NULL);
    assert_string_equal(r.groups[0].repeated, "run3 (3 times)");
    assert_string_equal(r.groups[0].missing, "run2");
    assert_null(r.groups[0].elsewhere);
    assert_null(r.groups[1].repeated);
    assert_null(r.groups[1].missing);
    assert_string_equal(r.groups[1].elsewhere, "a_run3");
    assert_null(r.groups[2].missing); /* its run has no number */
    assert_int_equal(r.groups[0].run_count, 4);
    release(&r, &records);
}

static void test_first_token(void **state)
{
    /* 2 requests of 6 in and 10 out: 20 tokens at 40 a second take 0.5 s of the 0.8 */
    static const run runs[] = {{"derived", 2, 6, 10, 0.8, 40, 0},
                               {"nothing_left", 2, 6, 10, 0.4, 40, 0},
                               {"recorded", 2, 6, 10, 0.8, 40, 0.25},
                               {"unknown", 2, 6, 10, 0.8, 0, 0}};
    vptq_records records;
    vptq_report r;
    (void)state;
    build(&r, &records, runs, COUNT(runs), NULL);
    assert_near(r.groups[0].metric[VPTQ_METRIC_TTFT].stats.median, 0.3);
    assert_near(r.groups[0].metric[VPTQ_METRIC_PREFILL].stats.median, 40);
    assert_int_equal(r.groups[0].derived_ttft, 1);
    assert_int_equal(r.groups[1].metric[VPTQ_METRIC_TTFT].stats.count, 0);
    assert_int_equal(r.groups[1].derived_ttft, 0);
    assert_near(r.groups[2].metric[VPTQ_METRIC_PREFILL].stats.median, 48);
    assert_int_equal(r.groups[2].derived_ttft, 0);
    assert_int_equal(r.groups[3].metric[VPTQ_METRIC_DECODE].stats.count, 0);
    assert_int_equal(r.groups[3].metric[VPTQ_METRIC_DECODE].rank, 0);
    release(&r, &records);
}

static void test_break_even_kinds(void **state)
{
    static const double original = 8;
    static const struct {
        double latency[3]; /* of batch 1, 4, 16; 0 = not measured */
        vptq_even_kind kind;
        double batch;
        bool again;
    } cases[] = {
        {{4, 4, 4}, VPTQ_EVEN_FASTER, 0, false},  {{9, 8, 16}, VPTQ_EVEN_SLOWER, 0, false},
        {{4, 16, 0}, VPTQ_EVEN_UNTIL, 2, false},  {{16, 4, 4}, VPTQ_EVEN_FROM, 2, false},
        {{4, 16, 4}, VPTQ_EVEN_UNTIL, 2, true},   {{4, 0, 16}, VPTQ_EVEN_UNTIL, 4, false},
        {{4, 0, 0}, VPTQ_EVEN_UNKNOWN, 0, false}, {{4, 8, 4}, VPTQ_EVEN_UNTIL, 4, true}};
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        run runs[6];
        size_t n = 0;
        for (unsigned k = 0; k < 3; k++) {
            unsigned batch = 1U << (2 * k);
            runs[n++] = (run){"original", batch, 8, 8, original, 0, 0};
            if (cases[i].latency[k] > 0)
                runs[n++] = (run){"m", batch, 8, 8, cases[i].latency[k], 0, 0};
        }
        vptq_records records;
        vptq_report r;
        build(&r, &records, runs, n, NULL);
        assert_int_equal(r.family_count, 1);
        vptq_break_even e =
            vptq_report_break_even(&r, &r.families[0], &r.models[1], VPTQ_METRIC_LATENCY);
        assert_int_equal(e.kind, cases[i].kind);
        assert_int_equal(e.again, cases[i].again);
        if (cases[i].batch > 0)
            assert_near(e.batch, cases[i].batch);
        else
            assert_true(isnan(e.batch));
        release(&r, &records);
    }
}

static void test_quantiles_and_means(void **state)
{
    static const double x[] = {1, 2, 4}, y[] = {1, 1, 1};
    double error;
    (void)state;
    assert_near(vptq_quantile(x, 3, 0), 1);
    assert_near(vptq_quantile(x, 3, 0.25), 1.5);
    assert_near(vptq_quantile(x, 3, 0.75), 3);
    assert_near(vptq_quantile(x, 3, 1), 4);
    assert_near(vptq_quantile(x, 1, 0.5), 1);
    assert_near(vptq_mean_with_error(x, 1, NULL, 0, 3, &error), 7.0 / 3);
    assert_near(error, sqrt(7.0) / 3);
    assert_near(vptq_mean_with_error(x, 2, y, -1, 3, &error), 11.0 / 3);
    assert_near(error, 2 * sqrt(7.0) / 3);
    assert_near(vptq_mean_with_error(x, 1, NULL, 0, 1, &error), 1);
    assert_true(error == 0);
}

static void test_outliers(void **state)
{
    static const struct {
        double x[5];
        size_t n, marked;
    } cases[] = {{{1, 1, 9}, 2, 0},         /* two values */
                 {{100, 100.1, 104}, 3, 0}, /* far by the scatter, but within 5 % */
                 {{100, 110, 120}, 3, 0},   /* far, but all scatter */
                 {{100, 100.5, 106}, 3, 1},
                 {{100, 100, 106}, 3, 1}, /* no scatter at all */
                 {{50, 100, 100.5, 101, 150}, 5, 2}};
    double room[5];
    bool marked[5];
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        vptq_stats s = vptq_stats_of(cases[i].x, cases[i].n, room);
        assert_int_equal(vptq_stats_outliers(cases[i].x, cases[i].n, s.median, marked, room),
                         cases[i].marked);
        if (cases[i].marked)
            assert_true(marked[cases[i].n - 1]);
    }
    /* the normal approximation agrees with exact counting: about 5 % on each side */
    double a[40];
    vptq_ratio exact, normal;
    vptq_err err = {0};
    for (size_t i = 0; i < 40; i++)
        a[i] = 1 + 0.01 * (double)i;
    assert_ok(vptq_ratio_of(a, 20, a, 20, NULL, &exact, &err), &err);
    assert_ok(vptq_ratio_of(a, 21, a, 21, NULL, &normal, &err), &err);
    assert_true(fabs(exact.high - normal.high) < 0.01);
}

static vptq_status write_all(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_report r;
    vptq_buf out;
    vptq_status st = vptq_report_build(arg, NULL, mem, &r, err);
    if (st)
        return st;
    vptq_buf_init(&out, mem);
    st = vptq_report_write_classic(&r, "x", &out, err);
    for (int f = VPTQ_FORMAT_TEXT; !st && f <= VPTQ_FORMAT_HTML; f++)
        st = vptq_report_write(&r, (vptq_format)f, "x", &out, err);
    vptq_buf_release(&out);
    vptq_report_release(&r);
    return st;
}

static void test_out_of_memory(void **state)
{
    static const run runs[] = {{"original_a", 1, 8, 8, 2, 5, 0},
                               {"x_a", 1, 8, 8, 1, 9, 0},
                               {"original_b", 2, 8, 8, 2, 5, 0},
                               {"x_b", 2, 8, 8, 3, 4, 0},
                               {"x_b", 2, 8, 8, 3, 4, 0}};
    vptq_records records;
    (void)state;
    make_records(&records, runs, COUNT(runs));
    assert_true(vtest_oom_walk(write_all, &records) > 10);
    vptq_records_release(&records);
}

VTEST_MAIN(cmocka_unit_test(test_against_numpy), cmocka_unit_test(test_names),
           cmocka_unit_test(test_recorded_config), cmocka_unit_test(test_no_such_original),
           cmocka_unit_test(test_remarks), cmocka_unit_test(test_first_token),
           cmocka_unit_test(test_break_even_kinds), cmocka_unit_test(test_quantiles_and_means),
           cmocka_unit_test(test_outliers), cmocka_unit_test(test_out_of_memory))
