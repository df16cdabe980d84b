/* Quantize runs that calibrate: lack of memory, and errors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/base/rng.h"
#include "lib/quantize/quantize.h"
#include "tests/support/vtest.h"

enum { VOCAB = 48, WINDOWS = 3, LENGTH = 16, PATH = 4096 };
static const char model_path[] = "tests/golden/tiny_mistral";

typedef struct job {
    char ids[PATH], work[PATH];
    bool sequential, force;
} job;

static void job_open(job *j, const char *dir)
{
    int32_t ids[WINDOWS * LENGTH];
    vptq_rng rng = vptq_rng_make(5, 0, 0, VPTQ_RNG_TEST);
    memset(j, 0, sizeof *j);
    for (size_t i = 0; i < WINDOWS * LENGTH; i++)
        ids[i] = (int32_t)vptq_rng_below(&rng, i, VOCAB);
    vtest_path(j->ids, sizeof j->ids, dir, "ids");
    vtest_path(j->work, sizeof j->work, dir, "work");
    vtest_write_file(j->ids, ids, sizeof ids);
}

static vptq_status quantize(void *arg, vptq_mem *mem, vptq_err *err)
{
    const job *j = arg;
    vptq_ctx ctx = {.mem = mem, .threads = 2};
    vptq_device dev;
    vptq_quantize_result result;
    const char *files[] = {j->ids};
    const vptq_calibrate_options calibrate = {.corpus = {.tokens = files, .token_count = 1},
                                              .windows = WINDOWS,
                                              .length = LENGTH,
                                              .holdout = 0.3,
                                              .weights = VPTQ_WEIGHTS_SINK,
                                              .sequential = j->sequential};
    vptq_encoder_settings settings = vptq_encoder_defaults();
    settings.k = 4;
    settings.kmeans_iterations = 2;
    vptq_quantize_options opt = {.model = model_path,
                                 .work = j->work,
                                 .calibrate = &calibrate,
                                 .kv_factor = 0.1,
                                 .settings = &settings,
                                 .last_layer = 1,
                                 .force = j->force};
    vptq_status st = vptq_device_open(&ctx, "cpu", &dev, err);
    if (st)
        return st;
    st = vptq_quantize_model(&dev, &opt, NULL, NULL, &result, err);
    vptq_device_close(&dev);
    return st;
}

/* Every run continues where the previous one ran out of memory. */
static void test_out_of_memory(void **state)
{
    job j;
    job_open(&j, *state);
    j.sequential = true;
    assert_true(vtest_oom_walk(quantize, &j) > 50);
}

/* Checkpoints of other runs, sequential or not, are not used. */
static void test_runs_do_not_mix(void **state)
{
    job j;
    vptq_mem mem;
    vptq_err err = {0};
    char path[PATH];
    job_open(&j, *state);
    vptq_mem_init(&mem, 0);
    assert_ok(quantize(&j, &mem, &err), &err);
    j.sequential = true;
    assert_fails(quantize(&j, &mem, &err), VPTQ_E_MISMATCH, &err, "key 'calibration'");
    j.force = true;
    assert_ok(quantize(&j, &mem, &err), &err);
    vtest_path(path, sizeof path, j.work, "hidden.state");
    assert_false(vptq_path_exists(path));
    /* made again from the earlier blocks, which are read from the directory */
    size_t size;
    vtest_path(path, sizeof path, j.work, "layer_001_o_proj.safetensors");
    char *before = vtest_read_file(path, &size);
    assert_int_equal(unlink(path), 0);
    j.force = false;
    assert_ok(quantize(&j, &mem, &err), &err);
    vtest_expect_file(path, before, size);
    free(before);
    assert_int_equal(mem.used, 0);
}

VTEST_MAIN(scratch_test(test_out_of_memory), scratch_test(test_runs_do_not_mix))
