/* Choice tasks: log-likelihoods, choices and figures compared with lm-evaluation-harness
 * (tests/golden/make_tasks.py); trees compared with all prefixes; the same bytes for any memory
 * and thread count; bad items. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json.h"
#include "lib/eval/task_plan.h"
#include "lib/eval/tasks.h"
#include "lib/model/forward.h"
#include "tests/emu/emu.h"
#include "tests/support/devices.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

#define GOLDEN  "tests/golden/tasks/"
#define STORIES "models/stories260K-hf"
enum { SHORT = 20 };

static const vptq_task_file_options plain = {.task = "x", .delimiter = "\nAnswer: "};
static const vptq_ctx ctx = {.threads = 1};

static bool stories(vrig *r)
{
    char path[4096];
    if (!vtest_data(path, sizeof path, STORIES))
        return false;
    vrig_open(r, path, NULL, true);
    return true;
}

static void golden_path(char path[128], const char *task)
{
    snprintf(path, 128, GOLDEN "%s.%s", task, strcmp(task, "endings") ? "jsonl" : "txt");
}

/* ---- the harness ---- */

/* The harness sums about 30 losses around 4 in float32: 1e-6 each. */
static const double per_token = 1e-5;

static void check_item(const json_t *want, const vptq_task_item *item,
                       const vptq_task_answer *a, double tolerance)
{
    const json_t *ll = json_object_get(want, "loglikelihoods");
    const json_t *greedy = json_object_get(want, "greedy");
    const json_t *norm = json_object_get(want, "correct_norm");
    assert_int_equal(json_array_size(ll), item->count);
    for (uint32_t i = 0; i < item->count; i++) {
        const double x = json_real_value(json_array_get(ll, i));
        if (!(fabs(a->loglikelihoods[i] - x) <= tolerance * a->tokens[i]))
            fail_msg("request %u: %.9g, the harness has %.9g", i, a->loglikelihoods[i], x);
        assert_int_equal(a->greedy[i], json_is_true(json_array_get(greedy, i)));
    }
    assert_int_equal(a->correct, json_is_true(json_object_get(want, "correct")));
    if (norm)
        assert_int_equal(a->correct_norm, json_is_true(norm));
}

static void check_figure(const json_t *figures, const char *key, double got, double relative)
{
    const json_t *value = json_object_get(figures, key);
    if (value &&
        !(fabs(got - json_number_value(value)) <= relative * fabs(json_number_value(value))))
        fail_msg("%s: %.12g, the harness has %.12g", key, got, json_number_value(value));
}

typedef struct golden_run {
    vrig *r;
    vptq_task_run run;
    double tolerance;
    const char *only; /* only this task; NULL = all */
    vptq_task_file file;
    vptq_task_answer *answers;
    vptq_task_figures result;
    vptq_arena arena;
    size_t items, tasks; /* lines compared so far */
} golden_run;

static void golden_start(golden_run *g, const char *task)
{
    char path[128];
    vptq_err err = {0};
    golden_path(path, task);
    vptq_arena_init(&g->arena, NULL);
    g->run.name = task;
    g->run.arena = &g->arena;
    assert_ok(vptq_task_file_read(path, &plain, &ctx, &g->file, &err), &err);
    assert_ok(
        vptq_eval_task(&g->r->dev, &g->r->m, &g->file, &g->run, &g->answers, &g->result, &err),
        &err);
}

static void golden_end(golden_run *g)
{
    vptq_task_file_release(&g->file);
    vptq_arena_release(&g->arena);
}

/* A line of the golden file: an item, or after a task's items its figures. */
static void golden_line(golden_run *g, const json_t *want)
{
    const json_t *figures = json_object_get(want, "figures");
    const char *task = json_string_value(json_object_get(want, "task"));
    const size_t i = (size_t)json_integer_value(json_object_get(want, "item"));
    if (!figures) {
        if (i == 0)
            golden_start(g, task);
        check_item(want, &g->file.items[i], &g->answers[i], g->tolerance);
        g->items++;
        return;
    }
    const vptq_task_figures *r = &g->result;
    check_figure(figures, "acc", r->acc, 1e-12);
    check_figure(figures, "acc_stderr", r->acc_stderr, 1e-12);
    check_figure(figures, "acc_norm", r->acc_norm, 1e-12);
    check_figure(figures, "acc_norm_stderr", r->acc_norm_stderr, 1e-12);
    check_figure(figures, "perplexity", r->perplexity, 1e-4);
    assert_int_equal(isnan(r->perplexity), json_object_get(figures, "perplexity") == NULL);
    assert_int_equal(r->items, g->file.count);
    g->tasks++;
    golden_end(g);
}

static void check_golden(golden_run *g, const char *file)
{
    size_t size;
    vptq_err err = {0};
    char *text = vtest_read_file(file, &size);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *want;
        assert_ok(vptq_json_parse(line, strlen(line), file, &want, &err), &err);
        if (!g->only || !strcmp(g->only, json_string_value(json_object_get(want, "task"))))
            golden_line(g, want);
        json_decref(want);
    }
    free(text);
}

static void test_golden(void **state)
{
    (void)state;
    vrig r;
    if (!stories(&r))
        skip();
    golden_run g = {.r = &r, .tolerance = per_token};
    check_golden(&g, GOLDEN "expected.jsonl");
    assert_int_equal(g.tasks, 11);
    assert_int_equal(g.items, 35);
    vrig_close(&r);
}

/* Requests longer than the context lose their first tokens. */
static void test_short_context(void **state)
{
    (void)state;
    vrig r;
    if (!stories(&r))
        skip();
    golden_run g = {.r = &r, .run = {.context = SHORT}, .tolerance = per_token};
    check_golden(&g, GOLDEN "expected_short.jsonl");
    assert_int_equal(g.tasks, 4);
    vrig_close(&r);
}

/* On the reference backend and on the emulated device, some of whose products are 16-bit. */
static void test_backends(void **state)
{
    (void)state;
    static const char *const backends[] = {"ref", "emu"};
    assert_false(vptq_backend_emu()->host_memory);
    for (int i = 0; i < 2; i++) {
        vrig r;
        vptq_err err = {0};
        if (!stories(&r))
            skip();
        vptq_device_close(&r.dev);
        assert_ok(vptq_device_open(&r.ctx, backends[i], &r.dev, &err), &err);
        golden_run g = {.r = &r,
                        .run = {.context = SHORT},
                        .tolerance = i ? 1e-3 : per_token,
                        .only = i ? "boolq" : NULL};
        check_golden(&g, GOLDEN "expected_short.jsonl");
        assert_int_equal(g.tasks, i ? 1 : 4);
        vrig_close(&r);
        assert_int_equal(cuda_emu_memory_used(), 0);
    }
}

/* ---- trees ---- */

/* Collects the tokens from a row of the plan back to its root; returns their number. */
static size_t path_of(const vptq_task_plan *p, size_t row, int32_t *ids)
{
    size_t n = 0, s = 0;
    while (p->starts[s + 1] <= row)
        s++;
    for (;;) {
        for (size_t i = row + 1; i-- > p->starts[s];)
            ids[n++] = p->ids[i];
        if (p->parents[s] == VPTQ_FORWARD_ROOT)
            return n;
        s = p->parents[s];
        row = p->starts[s + 1] - 1;
    }
}

/* Every scored token of a request comes after a row whose path is the request up to there. */
static void check_request(const vptq_task_plan *p, size_t request, const vptq_ids *ids,
                          size_t scored)
{
    int32_t path[4096];
    const size_t n = ids->count;
    assert_int_equal(p->scored[request + 1] - p->scored[request], scored);
    for (size_t k = 0; k < scored; k++) {
        const uint32_t pair = p->scored_pair[p->scored[request] + k];
        const size_t at = n - scored + k, length = path_of(p, p->pair_row[pair], path);
        assert_int_equal(p->pair_target[pair], ids->data[at]);
        assert_int_equal(length, at);
        for (size_t i = 0; i < length; i++)
            assert_int_equal(path[i], ids->data[length - 1 - i]);
    }
}

/* Number of tokens of `b` that do not share a beginning with any request of `all` [count]
 * before it. */
static size_t new_rows(const vptq_ids *all, size_t count, const vptq_ids *b)
{
    size_t most = 0;
    for (size_t i = 0; i < count; i++) {
        size_t k = 0;
        while (k + 1 < all[i].count && k + 1 < b->count && all[i].data[k] == b->data[k])
            k++;
        most = k > most ? k : most;
    }
    return b->count - 1 - most;
}

static void check_plan(vrig *r, const char *task)
{
    char path[128];
    vptq_err err = {0};
    vptq_arena arena;
    vptq_task_file f;
    vptq_task_plan p;
    vptq_task_encoder e;
    size_t rows = 0, unshared = 0, request = 0;
    golden_path(path, task);
    vptq_arena_init(&arena, NULL);
    assert_ok(vptq_task_file_read(path, &plain, &ctx, &f, &err), &err);
    assert_ok(vptq_task_plan_make(&r->m, &f, 512, NULL, &arena, &p, &err), &err);
    assert_ok(vptq_task_encoder_open(&r->m, NULL, &e, &err), &err);
    for (size_t i = 0; i < f.count; i++) {
        vptq_ids ids[8];
        for (uint32_t k = 0; k < f.items[i].count; k++, request++) {
            size_t scored;
            vptq_ids_init(&ids[k], NULL);
            assert_ok(vptq_task_encode(&e, &f.items[i].requests[k], &ids[k], &scored, &err),
                      &err);
            check_request(&p, request, &ids[k], scored);
            rows += new_rows(ids, k, &ids[k]);
            unshared += ids[k].count - 1;
        }
        assert_int_equal(p.item_rows[i], rows);
        for (uint32_t k = 0; k < f.items[i].count; k++)
            vptq_ids_release(&ids[k]);
    }
    assert_int_equal(p.rows, rows);
    assert_int_equal(p.unshared, unshared);
    assert_int_equal(p.requests, request);
    vptq_task_encoder_close(&e);
    vptq_task_file_release(&f);
    vptq_arena_release(&arena);
}

static void test_plan(void **state)
{
    (void)state;
    static const char *const tasks[] = {"arc_easy",   "openbookqa", "piqa",   "hellaswag",
                                        "winogrande", "copa",       "boolq",  "lambada_openai",
                                        "choices",    "schema",     "endings"};
    vrig r;
    if (!stories(&r))
        skip();
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++)
        check_plan(&r, tasks[i]);
    vrig_close(&r);
}

static const char *write_items(const char *dir, const char *text)
{
    static char path[4096];
    vtest_path(path, sizeof path, dir, "items");
    vtest_write_file(path, text, strlen(text));
    return path;
}

/* An item larger than a group becomes several trees, none of them larger. */
static void test_long_item(void **state)
{
    vrig r;
    vptq_err err = {0};
    vptq_arena arena;
    vptq_task_file f;
    vptq_task_plan p;
    char text[64 * 128], *at = text;
    if (!stories(&r))
        skip();
    at += sprintf(at, "{\"query\": \"Once\", \"gold\": 63, \"choices\": [");
    for (int i = 0; i < 64; i++) {
        at += sprintf(at, "%s\"%d", i ? ", " : "", 90 - i);
        for (int k = 0; k < 50; k++)
            *at++ = (char)('a' + (i + k) % 26);
        *at++ = '"';
    }
    sprintf(at, "]}\n");
    vptq_arena_init(&arena, NULL);
    assert_ok(vptq_task_file_read(write_items(*state, text), &plain, &ctx, &f, &err), &err);
    assert_ok(vptq_task_plan_make(&r.m, &f, 512, NULL, &arena, &p, &err), &err);
    assert_true(p.rows > VPTQ_FORWARD_ROWS);
    size_t trees = 0;
    for (size_t s = 0, e; s < p.sequences; s = e, trees++) {
        e = vptq_forward_group_trees(p.starts, p.parents, p.sequences, s);
        assert_true(p.starts[e] - p.starts[s] <= VPTQ_FORWARD_ROWS);
    }
    assert_int_equal(trees, (p.rows + VPTQ_FORWARD_ROWS - 1) / VPTQ_FORWARD_ROWS);
    vptq_task_file_release(&f);
    vptq_arena_release(&arena);
    vrig_close(&r);
}

/* ---- the same for any memory and threads ---- */

static char *many_items(size_t count)
{
    static const char *const words[] = {"ball", "dog", "sky", "mom", "red", "park", "toy"};
    char *text = vtest_alloc(count, 256), *at = text;
    for (size_t i = 0; i < count; i++)
        at += sprintf(
            at,
            "{\"query\": \"Tom and Lily saw a big %s and a %s near the %s\", \"choices\": "
            "[\"they saw %s\", \"they saw %s too\", \"%s\"], \"gold\": %zu}\n",
            words[i % 7], words[i % 5], words[i % 3], words[(i + 1) % 7], words[i % 4],
            words[i % 6], i % 3);
    return text;
}

static void test_any_memory_and_threads(void **state)
{
    enum { ITEMS = 450, CAP = 11 << 20 };
    vptq_err err = {0};
    vptq_task_file f;
    vptq_buf samples[3];
    char *text = many_items(ITEMS);
    assert_ok(vptq_task_file_read(write_items(*state, text), &plain, &ctx, &f, &err), &err);
    for (int i = 0; i < 3; i++) {
        vrig r;
        vptq_arena arena;
        const vptq_task_run run = {.name = "many", .arena = &arena};
        vptq_task_answer *answers;
        vptq_task_figures result;
        if (!stories(&r))
            skip();
        r.ctx.threads = i == 2 ? 3 : 1;
        r.mem.cap = i == 1 ? r.mem.used + CAP : 0;
        vptq_arena_init(&arena, NULL);
        vptq_buf_init(&samples[i], NULL);
        assert_ok(vptq_eval_task(&r.dev, &r.m, &f, &run, &answers, &result, &err), &err);
        assert_true(i != 1 || r.mem.peak <= r.mem.cap);
        /* more than one batch under the cap, a quarter of which is for hidden states */
        assert_true(result.rows > CAP / 4 / (64 * sizeof(float)));
        assert_ok(vptq_eval_task_samples("many", &f, answers, answers, &samples[i], &err),
                  &err);
        assert_int_equal(samples[i].len, samples[0].len);
        assert_memory_equal(samples[i].data, samples[0].data, samples[0].len);
        vptq_arena_release(&arena);
        vrig_close(&r);
    }
    for (int i = 0; i < 3; i++)
        vptq_buf_release(&samples[i]);
    vptq_task_file_release(&f);
    free(text);
}

/* ---- figures ---- */

static void test_agreement(void **state)
{
    (void)state;
    vptq_task_file f = {.form = VPTQ_TASK_CHOICES, .count = 4};
    const vptq_task_answer a[] = {{.choice = 1, .choice_norm = 0, .correct = true},
                                  {.choice = 2, .choice_norm = 0},
                                  {.choice = 0, .choice_norm = 3, .correct = true},
                                  {.choice = 0, .choice_norm = 1}};
    const vptq_task_answer b[] = {{.choice = 1, .choice_norm = 0, .correct = true},
                                  {.choice = 0, .choice_norm = 0, .correct = true},
                                  {.choice = 3, .choice_norm = 3},
                                  {.choice = 0, .choice_norm = 0}};
    vptq_task_agreement g;
    vptq_eval_task_compare(&f, a, b, &g);
    assert_true(g.same == 0.5 && g.same_norm == 0.75);
    assert_true(fabs(g.same_stderr - sqrt(1.0 / 12)) < 1e-15);
    assert_true(fabs(g.same_norm_stderr - sqrt(0.75 / 12)) < 1e-15);
    assert_int_equal(g.right_to_wrong, 1);
    assert_int_equal(g.wrong_to_right, 1);
    f.form = VPTQ_TASK_LAMBADA; /* only `greedy` counts for a single request */
    f.count = 3;
    vptq_eval_task_compare(&f, a, b, &g);
    assert_true(fabs(g.same - 1.0 / 3) < 1e-15 && isnan(g.same_norm));
    f.count = 1;
    vptq_eval_task_compare(&f, a, b, &g);
    assert_true(g.same == 1 && isnan(g.same_stderr));
}

static void test_samples(void **state)
{
    (void)state;
    double ll[] = {-1.5, -0.25};
    uint32_t tokens[] = {2, 1};
    bool greedy[] = {false, true};
    const vptq_task_request q[] = {{.characters = 7}, {.characters = 3}};
    vptq_task_item item = {.line = 9, .count = 2, .gold = 1, .requests = q};
    const vptq_task_file f = {.form = VPTQ_TASK_SCHEMA, .count = 1, .items = &item};
    const vptq_task_answer a = {
        .loglikelihoods = ll, .tokens = tokens, .greedy = greedy, .choice = 1, .correct = true};
    vptq_err err = {0};
    vptq_buf out;
    vptq_buf_init(&out, NULL);
    assert_ok(vptq_eval_task_samples("a\"b", &f, &a, NULL, &out, &err), &err);
    assert_string_equal(out.data,
                        "{\"task\": \"a\\\"b\", \"item\": 0, \"line\": 9, \"gold\": 1, "
                        "\"choice\": 1, \"choice_norm\": null, \"correct\": true, "
                        "\"loglikelihoods\": [-1.5, -0.25], \"greedy\": [false, true], "
                        "\"tokens\": [2, 1], \"characters\": [7, 3]}\n");
    vptq_buf_release(&out);
}

/* ---- what cannot be scored ---- */

static void check_refused(vrig *r, const char *dir, const char *text, const char *delimiter,
                          size_t context, vptq_status code, const char *part)
{
    vptq_err err = {0};
    vptq_task_file f;
    vptq_task_figures result;
    const vptq_task_file_options opt = {.task = "x", .delimiter = delimiter};
    const vptq_task_run run = {.name = "x", .context = context};
    assert_ok(vptq_task_file_read(write_items(dir, text), &opt, &ctx, &f, &err), &err);
    assert_fails(vptq_eval_task(&r->dev, &r->m, &f, &run, NULL, &result, &err), code, &err,
                 part);
    vptq_task_file_release(&f);
}

static void test_refused(void **state)
{
    const char two[] = "{\"text\": \"One day Tom\"}\n{\"text\": \"One day Tom went away\"}\n";
    const char merged[] =
        "{\"query\": \"Once upon a tim\", \"choices\": [\"e\", \"x\"], \"gold\": 0}";
    vrig r;
    if (!stories(&r))
        skip();
    check_refused(&r, *state, two, "", 1, VPTQ_E_FORMAT,
                  "items: line 1: a continuation has 2 tokens, more than the context of 1");
    check_refused(&r, *state, merged, "", 0, VPTQ_E_FORMAT,
                  "items: line 1: a continuation has no token");
    vptq_tokenizer *t = r.m.tokenizer;
    r.m.tokenizer = NULL;
    check_refused(&r, *state, two, "", 0, VPTQ_E_ARG, "tasks need a tokenizer, none is given");
    r.m.tokenizer = t;
    uint16_t bad[64];
    for (size_t i = 0; i < 64; i++)
        bad[i] = 0x7e00; /* NaN in float16 */
    for (size_t i = 0; i < r.m.ckpt.set.count; i++)
        if (&r.m.ckpt.set.tensors[i] == r.m.final_norm)
            r.m.ckpt.set.tensors[i].data = (const uint8_t *)bad;
    check_refused(&r, *state, two, "", 0, VPTQ_E_NUMERIC,
                  "not finite for the item in line 1 of");
    vrig_close(&r);
}

typedef struct small_run {
    char model[4096];
    vptq_task_file file;
} small_run;

static vptq_status run_small(void *arg, vptq_device *dev, vptq_err *err)
{
    const small_run *s = arg;
    vptq_model m;
    vptq_arena arena;
    const vptq_task_run run = {.name = "x", .arena = &arena};
    vptq_task_answer *answers;
    vptq_task_figures result;
    VPTQ_CHECK(
        vptq_model_open(dev->ctx, s->model, &(vptq_checkpoint_options){0}, true, &m, err));
    vptq_arena_init(&arena, dev->ctx->mem);
    const vptq_status st = vptq_eval_task(dev, &m, &s->file, &run, &answers, &result, err);
    vptq_model_release(&m);
    vptq_arena_release(&arena);
    return st;
}

static void test_no_memory(void **state)
{
    (void)state;
    vptq_err err = {0};
    small_run s;
    if (!vtest_data(s.model, sizeof s.model, STORIES))
        skip();
    assert_ok(vptq_task_file_read(GOLDEN "schema.jsonl", &plain, &ctx, &s.file, &err), &err);
    devices_oom_walk("cpu", 1, run_small, &s);
    vptq_task_file_release(&s.file);
}

VTEST_MAIN(cmocka_unit_test(test_golden), cmocka_unit_test(test_short_context),
           cmocka_unit_test(test_backends), cmocka_unit_test(test_plan),
           scratch_test(test_long_item), scratch_test(test_any_memory_and_threads),
           cmocka_unit_test(test_agreement), cmocka_unit_test(test_samples),
           scratch_test(test_refused), cmocka_unit_test(test_no_memory))
