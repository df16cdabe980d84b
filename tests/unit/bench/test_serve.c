/* Serving runs: configurations, prompts, errors before the first run, files of records, and
 * figures that agree with each other. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/bench/serve.h"
#include "tests/support/vtest.h"

static void test_parse(void **state)
{
    (void)state;
    static const char *const bad[] = {"",     "small",  "1,2",   "1,2,3,4", "0,2,3",
                                      "1,,2", "1,-2,3", "1,2,x", "1, 2,3",  "1,2,9999999999"};
    size_t count;
    vptq_err err;
    vptq_serve_config c;
    const vptq_serve_config *named = vptq_serve_named(&count);
    assert_int_equal(count, 7);
    for (size_t i = 0; i < count; i++) {
        assert_ok(vptq_serve_parse(named[i].name, &c, &err), &err);
        assert_memory_equal(&c, &named[i], sizeof c);
    }
    assert_ok(vptq_serve_parse("long_context", &c, &err), &err);
    assert_true(c.batch == 1 && c.input == 16384 && c.output == 32);
    assert_ok(vptq_serve_parse("64,256,128", &c, &err), &err);
    assert_string_equal(c.name, "high_concurrency");
    assert_ok(vptq_serve_parse("3,50,7", &c, &err), &err);
    assert_string_equal(c.name, "b3_i50_o7");
    assert_true(c.batch == 3 && c.input == 50 && c.output == 7);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(vptq_serve_parse(bad[i], &c, &err), VPTQ_E_ARG, &err,
                     "expected BATCH,INPUT,OUTPUT or one of interactive");
}

/* ---- models ---- */

typedef struct rig {
    vptq_mem mem;
    vptq_ctx ctx;
    vptq_model model[2];
    vptq_serve_model models[2];
    size_t count;
} rig;

static bool rig_open(rig *r, size_t count)
{
    char model[4096], tokenizer[4096];
    static const char *const names[] = {"one", "two"};
    vptq_err err;
    if (!vtest_data(model, sizeof model, "models/stories260K/stories260K.bin") ||
        !vtest_data(tokenizer, sizeof tokenizer, "models/stories260K/tok512.bin"))
        return false;
    *r = (rig){.ctx = {.threads = 2}, .count = count};
    vptq_mem_init(&r->mem, 0);
    r->ctx.mem = &r->mem;
    const vptq_checkpoint_options opt = {.tokenizer = tokenizer};
    for (size_t i = 0; i < count; i++) {
        strcpy(r->models[i].name, names[i]);
        r->models[i].model = &r->model[i];
        assert_ok(vptq_model_open(&r->ctx, model, &opt, true, &r->model[i], &err), &err);
    }
    return true;
}

static void rig_close(rig *r)
{
    for (size_t i = 0; i < r->count; i++)
        vptq_model_release(&r->model[i]);
    assert_int_equal(r->mem.used, 0);
}

static vptq_serve_plan options_of(const rig *r, const vptq_serve_config *configs, size_t n)
{
    return (vptq_serve_plan){.models = r->models,
                             .model_count = r->count,
                             .configs = configs,
                             .config_count = n,
                             .runs = 2,
                             .warmup = 1,
                             .kv = VPTQ_F16,
                             .backend = "cpu"};
}

static void test_plain_ids(void **state)
{
    (void)state;
    rig r;
    vptq_err err;
    int32_t *ids;
    size_t count;
    if (!rig_open(&r, 1))
        skip();
    assert_ok(vptq_serve_plain_ids(&r.model[0], &r.mem, &ids, &count, &err), &err);
    assert_int_equal(count, 512 - 3); /* all but <unk>, <s> and </s> */
    for (size_t i = 0; i < count; i++)
        assert_int_equal(ids[i], i + 3);
    vptq_mem_free(&r.mem, ids);
    rig_close(&r);
}

static void test_impossible_options(void **state)
{
    (void)state;
    rig r;
    vptq_err err;
    const vptq_serve_config small = {"small", 2, 8, 4},
                            configs[] = {small, {"long", 1, 510, 3}};
    if (!rig_open(&r, 2))
        skip();
    vptq_serve_plan o = options_of(&r, configs, 2);
    assert_fails(
        vptq_serve_check(&r.ctx, &o, NULL, &err), VPTQ_E_ARG, &err,
        "configuration 'long' has sequences of 513 tokens, the context of 'one' is 512");
    o.allow_long = true;
    assert_ok(vptq_serve_check(&r.ctx, &o, NULL, &err), &err);
    o.config_count = 1;
    r.mem.cap = r.mem.used + (1 << 16);
    assert_fails(vptq_serve_check(&r.ctx, &o, NULL, &err), VPTQ_E_NOMEM, &err,
                 "configuration 'small' needs 0.");
    r.mem.cap = 0;
    o.runs = 0;
    assert_fails(vptq_serve_check(&r.ctx, &o, NULL, &err), VPTQ_E_ARG, &err, "nothing to");
    o.runs = 1;
    strcpy(r.models[1].name, "one");
    assert_fails(vptq_serve_check(&r.ctx, &o, NULL, &err), VPTQ_E_ARG, &err,
                 "two models have the name 'one'");
    strcpy(r.models[1].name, "two");
    const vptq_serve_config twice[] = {small, small};
    o.configs = twice;
    o.config_count = 2;
    assert_fails(vptq_serve_check(&r.ctx, &o, NULL, &err), VPTQ_E_ARG, &err,
                 "configuration 'small' is given twice");
    o.backend = "none";
    assert_fails(vptq_serve_check(&r.ctx, &o, NULL, &err), VPTQ_E_UNSUPPORTED, &err, "none");
    rig_close(&r);
}

/* ---- runs ---- */

typedef struct seen {
    size_t count, resumed;
    char names[16][VPTQ_SERVE_RUN_NAME];
    vptq_serve_record last;
} seen;

static vptq_status keep_record(void *arg, const vptq_serve_record *r, vptq_err *err)
{
    seen *s = arg;
    (void)err;
    assert_true(s->count < 16);
    vptq_serve_run_name(r, s->names[s->count++]);
    s->resumed += r->resumed;
    s->last = *r;
    return VPTQ_OK;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-12 * fabs(b);
}

static void check_figures(const vptq_serve_record *r)
{
    const double b = r->config->batch, in = r->config->input, out = r->config->output;
    assert_true(r->ttft > 0 && r->latency > r->ttft);
    assert_true(near(r->output_throughput, b * out / (r->latency - r->ttft)));
    assert_true(near(r->overall_throughput, b * (in + out) / r->latency));
    assert_true(near(r->input_throughput, b * in / r->ttft));
    assert_true(r->last_gen_throughput > 0);
    assert_int_equal(r->need.weights, 4 * 260032 /* floats */);
    assert_true(r->peak_memory_bytes > r->need.weights + r->need.cache);
    assert_true(near(r->bits_per_weight, 32));
}

static void keep_progress(void *user, const vptq_progress_info *info)
{
    assert_string_equal(info->stage, "serve");
    assert_true(info->done <= info->total);
    *(uint64_t *)user = info->total - info->done;
}

/* Runs with the records of `path`, which it continues; the last progress is all. */
static seen serve_with_log(rig *r, const vptq_serve_plan *o, const char *path)
{
    seen s = {.count = 0};
    uint64_t left = UINT64_MAX;
    vptq_err err;
    vptq_serve_log *log;
    r->ctx.progress = keep_progress;
    r->ctx.user = &left;
    assert_ok(vptq_serve_log_open(&r->mem, path, false, &log, &err), &err);
    assert_ok(vptq_eval_serve(&r->ctx, o, log, keep_record, &s, &err), &err);
    assert_int_equal(left, 0);
    r->ctx.progress = NULL;
    vptq_serve_log_close(log);
    return s;
}

/* Models take turns, and runs that the file has are not repeated. */
static void test_runs(void **state)
{
    static const char *const order[] = {"one_a_run1", "two_a_run1", "one_a_run2", "two_a_run2",
                                        "one_b_run1", "two_b_run1", "one_b_run2", "two_b_run2"};
    const vptq_serve_config configs[] = {{"a", 3, 9, 4}, {"b", 1, 40, 2}};
    rig r;
    vptq_err err;
    vptq_serve_log *log;
    char path[4096];
    size_t size;
    if (!rig_open(&r, 2))
        skip();
    vtest_path(path, sizeof path, *state, "runs.jsonl");
    vptq_serve_plan o = options_of(&r, configs, 2);
    const seen first = serve_with_log(&r, &o, path);
    assert_int_equal(first.count, 8);
    assert_int_equal(first.resumed, 0);
    for (size_t i = 0; i < 8; i++)
        assert_string_equal(first.names[i], order[i]);
    check_figures(&first.last);
    char *text = vtest_read_file(path, &size);

    const seen again = serve_with_log(&r, &o, path);
    assert_int_equal(again.count, 8);
    assert_int_equal(again.resumed, 8);
    check_figures(&again.last);
    assert_true(again.last.latency == first.last.latency);
    vtest_expect_file(path, text, size);

    /* The partial last line of a killed run is removed; its run is repeated, one more is added.
     */
    text[size - 30] = 0;
    vtest_write_file(path, text, size - 30);
    o.runs = 3;
    seen more = serve_with_log(&r, &o, path);
    assert_int_equal(more.count, 12);
    assert_int_equal(more.resumed, 7);

    o.kv = VPTQ_F32;
    assert_ok(vptq_serve_log_open(&r.mem, path, false, &log, &err), &err);
    assert_fails(vptq_eval_serve(&r.ctx, &o, log, keep_record, &more, &err), VPTQ_E_MISMATCH,
                 &err, "runs.jsonl:1: run 'one_a_run1' has kv \"f16\", expected \"f32\"");
    vptq_serve_log_close(log);
    free(text);
    rig_close(&r);
}

/* With an output of one token nothing is decoded. */
static void test_one_token(void **state)
{
    (void)state;
    const vptq_serve_config c = {"c", 2, 5, 1};
    rig r;
    vptq_err err;
    seen s = {.count = 0};
    if (!rig_open(&r, 1))
        skip();
    const vptq_serve_plan o = options_of(&r, &c, 1);
    assert_ok(vptq_eval_serve(&r.ctx, &o, NULL, keep_record, &s, &err), &err);
    assert_true(isnan(s.last.output_throughput) && isnan(s.last.last_gen_throughput));
    assert_true(s.last.latency == s.last.ttft && s.last.input_throughput > 0);
    rig_close(&r);
}

static void test_bad_files(void **state)
{
    static const struct {
        const char *text, *part;
        vptq_status status;
    } bad[] = {{"{}\n", "runs.jsonl:1: key 'run_name' is missing", VPTQ_E_FORMAT},
               {"{\"run_name\": \"a\"}\nx\n", "runs.jsonl:2", VPTQ_E_FORMAT},
               {"[1]\n", "runs.jsonl:1", VPTQ_E_FORMAT},
               {"no end of line", "runs.jsonl:1: the last line has no end", VPTQ_E_FORMAT},
               {"{\"run_name\": \"a\"}\n{\"name\"", "runs.jsonl:2: the last line has no end",
                VPTQ_E_FORMAT},
               {"{\"run_name\": 7}\n", "run_name", VPTQ_E_FORMAT},
               {"{\"run_name\": \"a\"}\n{\"run_name\": \"a\"}\n",
                "runs.jsonl:2: run 'a' appears twice", VPTQ_E_EXISTS}};
    vptq_err err;
    vptq_serve_log *log;
    char path[4096];
    vtest_path(path, sizeof path, *state, "runs.jsonl");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        size_t size;
        vtest_write_file(path, bad[i].text, strlen(bad[i].text));
        assert_fails(vptq_serve_log_open(NULL, path, false, &log, &err), bad[i].status, &err,
                     bad[i].part);
        char *text = vtest_read_file(path, &size); /* unchanged */
        assert_string_equal(text, bad[i].text);
        free(text);
    }
    vptq_serve_log *other;
    assert_ok(vptq_serve_log_open(NULL, path, true, &log, &err), &err);
    assert_fails(vptq_serve_log_open(NULL, path, true, &other, &err), VPTQ_E_LOCKED, &err,
                 "is in use by another process");
    vptq_serve_log_close(log);
    assert_fails(vptq_serve_log_open(NULL, *state, false, &log, &err), VPTQ_E_IO, &err, "");
}

VTEST_MAIN(cmocka_unit_test(test_parse), cmocka_unit_test(test_plain_ids),
           cmocka_unit_test(test_impossible_options), scratch_test(test_runs),
           cmocka_unit_test(test_one_token), scratch_test(test_bad_files))
