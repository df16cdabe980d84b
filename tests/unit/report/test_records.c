/* Serving records: what is read, and that every kind of bad record is an error that names file
 * and line. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/report/records.h"
#include "tests/support/vtest.h"

#define HEAD "\"run_name\": \"m_run1\", \"batch_size\": 2, \"input_len\": 3, \"output_len\": 4"

static vptq_status parse(const char *text, vptq_records *r, vptq_err *err)
{
    vptq_records_init(r, NULL);
    return vptq_records_parse(r, text, strlen(text), "r.jsonl", err);
}

static void test_read(void **state)
{
    vptq_records r;
    vptq_err err = {0};
    (void)state;
    assert_ok(parse("\n{" HEAD
                    ", \"latency\": 0.5, \"unknown\": [1, {}], \"config\": null}\r\n \t\n"
                    "{" HEAD ", \"group\": \"g\", \"latency\": 2, \"output_throughput\": 7, "
                    "\"overall_throughput\": 8.5, \"input_throughput\": 9, \"ttft\": 0.25, "
                    "\"bits_per_weight\": 2.125, \"peak_memory_bytes\": 123456789012, "
                    "\"config\": \"a b\", \"backend\": \"cpu\", \"kv\": \"f16\", "
                    "\"threads\": 12, \"seed\": [7]}",
                    &r, &err),
              &err);
    assert_int_equal(r.count, 2);
    assert_string_equal(r.items[0].run_name, "m_run1");
    assert_string_equal(r.items[0].group, "m");
    assert_int_equal(r.items[0].batch_size, 2);
    assert_int_equal(r.items[0].input_len, 3);
    assert_int_equal(r.items[0].output_len, 4);
    assert_true(r.items[0].latency == 0.5);
    assert_true(isnan(r.items[0].output_throughput) && isnan(r.items[0].ttft) &&
                isnan(r.items[0].bits_per_weight) && !r.items[0].config);
    assert_string_equal(r.items[1].group, "g");
    assert_true(r.items[1].latency == 2 && r.items[1].output_throughput == 7 &&
                r.items[1].overall_throughput == 8.5 && r.items[1].input_throughput == 9 &&
                r.items[1].ttft == 0.25 && r.items[1].bits_per_weight == 2.125 &&
                r.items[1].peak_memory_bytes == 123456789012.0);
    assert_string_equal(r.items[1].config, "a b");
    assert_string_equal(r.items[1].backend, "cpu");
    assert_string_equal(r.items[1].settings[0], "f16");
    assert_string_equal(r.items[1].settings[1], "12");
    assert_true(!r.items[1].settings[2] && !r.items[1].settings[3] && !r.items[0].settings[0]);
    vptq_records_release(&r);
}

static void test_name_stem(void **state)
{
    static const struct {
        const char *name;
        size_t stem;
    } cases[] = {{"a_run1", 1}, {"a_b_run12", 3},   {"a_run", 5}, {"a_run1x", 7}, {"_run1", 5},
                 {"run1", 4},   {"a_run1_run2", 6}, {"", 0},      {"a_Run1", 6}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(vptq_run_name_stem(cases[i].name), cases[i].stem);
}

static void test_bad_records(void **state)
{
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "r.jsonl: has no records"},
        {" \n\n", "r.jsonl: has no records"},
        {"\n[1]", "r.jsonl: line 2: not an object"},
        {"{" HEAD "}\n", "line 1: key 'latency': found nothing, expected a number above 0"},
        {"{" HEAD ", \"latency\": 0}",
         "line 1: key 'latency': found 0, expected a number above"},
        {"{" HEAD ", \"latency\": -0.5}", "key 'latency': found -0.5"},
        {"{" HEAD ", \"latency\": null}", "key 'latency': found null"},
        {"{" HEAD ", \"latency\": \"1\"}", "key 'latency': found a string"},
        {"{" HEAD ", \"latency\": 1e-300}",
         "found 1e-300, expected a number from 1e-12 to 1e18"},
        {"{" HEAD ", \"latency\": 1, \"ttft\": 1e19}", "expected a number from 1e-12 to 1e18"},
        {"{" HEAD ", \"latency\": NaN}", "r.jsonl: line 1, column"},
        {"\n\n{" HEAD ", \"latency\": 1e999}", "r.jsonl: line 3, column"},
        {"{" HEAD ", \"latency\": 1, \"latency\": 2}", "r.jsonl: line 1, column"},
        {"{" HEAD ", \"latency\": 1", "r.jsonl: line 1, column"},
        {"{" HEAD ", \"latency\": 1} x", "r.jsonl: line 1, column"},
        {"{" HEAD ", \"latency\": 1, \"ttft\": -1}", "key 'ttft': found -1, expected a number"},
        {"{" HEAD ", \"latency\": 1, \"output_throughput\": {}}", "found an object"},
        {"{" HEAD ", \"latency\": 1, \"group\": 3}", "key 'group': found 3, expected a string"},
        {"{" HEAD ", \"latency\": 1, \"group\": \"\"}", "found a string of 0 bytes"},
        {"{" HEAD ", \"latency\": 1, \"group\": \"a\\nb\"}", "without control characters"},
        {"{\"latency\": 1}", "key 'run_name': found nothing, expected a string"},
        {"{\"run_name\": \"a\", \"batch_size\": 0}",
         "key 'batch_size': found 0, expected a whole"},
        {"{\"run_name\": \"a\", \"batch_size\": 1.5}", "key 'batch_size': found 1.5"},
        {"{\"run_name\": \"a\", \"batch_size\": 2000000000}", "found 2000000000"},
        {"{\"run_name\": \"a\", \"batch_size\": 1}", "key 'input_len': found nothing"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        vptq_records r;
        vptq_err err = {0};
        assert_fails(parse(cases[i].text, &r, &err), VPTQ_E_FORMAT, &err, cases[i].part);
        vptq_records_release(&r);
    }
}

/* Out of memory at every allocation of ours (jansson has its own), and records of several
 * files. */
static vptq_status read_twice(void *arg, vptq_mem *mem, vptq_err *err)
{
    const vptq_ctx ctx = {.mem = mem, .threads = 1};
    vptq_records r;
    vptq_records_init(&r, mem);
    vptq_status st = vptq_records_read(&ctx, &r, arg, err);
    if (!st)
        st = vptq_records_read(&ctx, &r, arg, err);
    if (!st)
        assert_int_equal(r.count, 200);
    vptq_records_release(&r);
    return st;
}

static void test_several_files(void **state)
{
    char path[4096], text[100 * 128];
    size_t n = 0;
    for (int i = 0; i < 100; i++)
        n +=
            (size_t)snprintf(text + n, sizeof text - n, "{" HEAD ", \"latency\": %d}\n", i + 1);
    vtest_path(path, sizeof path, *state, "r.jsonl");
    vtest_write_file(path, text, n);
    assert_true(vtest_oom_walk(read_twice, path) > 3);
}

VTEST_MAIN(cmocka_unit_test(test_read), cmocka_unit_test(test_name_stem),
           cmocka_unit_test(test_bad_records), scratch_test(test_several_files))
