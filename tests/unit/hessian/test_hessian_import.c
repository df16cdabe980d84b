/* Tests importing Hessians from PyTorch files and exporting them: numbers against sums in
 * double, the same bits after a round trip, bad files refused by name. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/torch/file.h"
#include "hessian/import.h"
#include "tests/support/devices.h"

enum { N = 9, TRIANGLE = N * (N + 1) / 2 };

typedef struct numbers {
    float flat[TRIANGLE], mu[N];
} numbers;

/* Makes a mean that is large compared with the covariance, so H alone does not hold all its
 * bits. */
static void make_numbers(numbers *x, uint64_t seed)
{
    vtest_normal(x->flat, TRIANGLE, seed);
    vtest_normal(x->mu, N, seed + 1);
    for (int i = 0; i < N; i++) {
        float *variance = &x->flat[i * (i + 1) / 2 + i];
        *variance = fabsf(*variance);
        x->mu[i] *= 100;
    }
}

static void put_file(const char *path, const numbers *x, int64_t n, int64_t ct)
{
    vptq_err err = {0};
    vptq_torch_item items[] = {{.name = "flatH", .kind = VPTQ_TORCH_TENSOR},
                               {.name = "mu", .kind = VPTQ_TORCH_TENSOR},
                               {.name = "n", .kind = VPTQ_TORCH_INT, .i = n},
                               {.name = "ct", .kind = VPTQ_TORCH_FLOAT, .f = (double)ct}};
    items[0].tensor =
        (vptq_tensor){.dims = 1, .shape = {TRIANGLE}, .data = (const uint8_t *)x->flat};
    items[1].tensor = (vptq_tensor){.dims = 1, .shape = {N}, .data = (const uint8_t *)x->mu};
    assert_ok(vptq_torch_write(path, true, items, 4, NULL, &err), &err);
}

static const char *const inputs[] = {"qkv", "o", "up", "down"};

/* Writes layers 2 and 3, with 1000 + layer tokens. */
static void put_dir(const char *dir)
{
    vptq_err err = {0};
    char path[4096], name[32];
    assert_ok(vptq_dir_make(dir, &err), &err);
    for (int layer = 2; layer < 4; layer++)
        for (int i = 0; i < 4; i++) {
            numbers x;
            make_numbers(&x, (uint64_t)(layer * 8 + i * 2));
            snprintf(name, sizeof name, "%d_%s.pt", layer, inputs[i]);
            vtest_path(path, sizeof path, dir, name);
            put_file(path, &x, N, 1000 + layer);
        }
}

static void test_there_and_back(void **state)
{
    char pt[4096], hdir[4096], out[4096], path[4096];
    devices_one d;
    vptq_err err = {0};
    vptq_exchange made;
    vptq_hessian_dir opened;
    vptq_hessian_file h;
    vptq_torch_file t;
    numbers x;
    vtest_path(pt, sizeof pt, *state, "pt");
    vtest_path(hdir, sizeof hdir, *state, "h");
    vtest_path(out, sizeof out, *state, "out");
    put_dir(pt);
    devices_open(&d, "ref", VPTQ_SIMD_NONE, 1);
    assert_ok(vptq_hessian_import(&d.dev, pt, hdir, false, &made, &err), &err);
    assert_ok(vptq_hessian_dir_open(hdir, &opened, &err), &err);
    assert_string_equal(made.dir.fingerprint, opened.fingerprint);
    assert_int_equal(opened.first_layer, 2);
    assert_int_equal(opened.last_layer, 3);
    assert_int_equal(opened.layers, 4);
    assert_int_equal(opened.tokens, 1002);
    assert_true(vptq_hessian_is_of(opened.model_fingerprint, "0123456789abcdef"));
    assert_false(vptq_hessian_is_of("0123456789abcdee", "0123456789abcdef"));

    make_numbers(&x, 3 * 8 + 2 * 2);
    assert_ok(vptq_hessian_dir_load(hdir, 3, VPTQ_INPUT_UP, N, NULL, &h, &err), &err);
    assert_int_equal(h.tokens, 1003);
    assert_same_f32(h.mean, x.mu, N);
    for (int i = 0, at = 0; i < N; i++)
        for (int j = 0; j <= i; j++, at++)
            assert_true(h.lower[at] ==
                        (float)((double)x.flat[at] + (double)x.mu[i] * (double)x.mu[j]));
    vptq_hessian_file_release(&h);

    assert_ok(vptq_hessian_export(&d.dev, hdir, VPTQ_FOREIGN_COVARIANCE, out, &made, &err),
              &err);
    devices_close(&d);
    vtest_path(path, sizeof path, out, "3_up.pt");
    assert_ok(vptq_torch_read(path, NULL, &t, &err), &err);
    assert_int_equal(t.count, 4);
    assert_memory_equal(vptq_torch_find(&t, "flatH")->tensor.data, x.flat, sizeof x.flat);
    assert_memory_equal(vptq_torch_find(&t, "mu")->tensor.data, x.mu, sizeof x.mu);
    assert_int_equal(vptq_torch_find(&t, "n")->i, N);
    assert_int_equal(vptq_torch_find(&t, "ct")->i, 1003);
    vptq_torch_release(&t);
}

static void refuse_import(vptq_device *dev, const char *from, const char *to, vptq_status code,
                          const char *part)
{
    vptq_err err = {0};
    vptq_exchange made;
    assert_fails(vptq_hessian_import(dev, from, to, false, &made, &err), code, &err, part);
}

static void test_bad_files(void **state)
{
    char pt[4096], hdir[4096], path[4096];
    devices_one d;
    vptq_err err = {0};
    numbers x;
    devices_open(&d, "ref", VPTQ_SIMD_NONE, 1);
    make_numbers(&x, 1);
    vtest_path(pt, sizeof pt, *state, "pt");
    vtest_path(hdir, sizeof hdir, *state, "h");
    put_dir(pt);
    vtest_path(path, sizeof path, pt, "2_o.pt");
    put_file(path, &x, N + 1, 5);
    refuse_import(&d.dev, pt, hdir, VPTQ_E_SHAPE,
                  "2_o.pt: n is 10, mu has 9 and flatH 45 numbers");
    put_file(path, &x, N, -1);
    refuse_import(&d.dev, pt, hdir, VPTQ_E_FORMAT,
                  "2_o.pt: key 'ct' is not a whole number of at least 0");
    const vptq_torch_item only = {.name = "ct", .kind = VPTQ_TORCH_INT, .i = 1};
    assert_ok(vptq_torch_write(path, true, &only, 1, NULL, &err), &err);
    refuse_import(&d.dev, pt, hdir, VPTQ_E_FORMAT, "2_o.pt: key 'flatH' is missing");
    x.flat[4] = NAN;
    put_file(path, &x, N, 5);
    refuse_import(&d.dev, pt, hdir, VPTQ_E_NUMERIC,
                  "2_o.pt: row 2, column 1 of the Hessian is nan, expected a finite");
    x.flat[2] = -2; /* negative, and the squared mean does not compensate */
    x.mu[1] = 1;
    put_file(path, &x, N, 5);
    refuse_import(
        &d.dev, pt, hdir, VPTQ_E_NUMERIC,
        "2_o.pt: row 1, column 1 of the Hessian is -1, expected zero or a positive number");
    assert_ok(vptq_dir_make(pt, &err), &err);
    vtest_path(path, sizeof path, pt, "4096_qkv.pt");
    put_file(path, &x, N, 5);
    refuse_import(&d.dev, pt, hdir, VPTQ_E_UNSUPPORTED,
                  "pt' has Hessians of layer 4096, the maximum is 4096 layers");
    assert_false(vptq_path_exists(hdir));
    devices_close(&d);
}

/* A Hessian directory may have changed since the import. */
static void test_export_checks_the_covariance(void **state)
{
    char pt[4096], hdir[4096], out[4096], path[4096];
    devices_one d;
    vptq_err err = {0};
    vptq_exchange made;
    vptq_hessian_file h;
    float extra[TRIANGLE] = {0};
    vtest_path(pt, sizeof pt, *state, "pt");
    vtest_path(hdir, sizeof hdir, *state, "h");
    vtest_path(out, sizeof out, *state, "out");
    put_dir(pt);
    devices_open(&d, "ref", VPTQ_SIMD_NONE, 1);
    assert_ok(vptq_hessian_import(&d.dev, pt, hdir, false, &made, &err), &err);
    vtest_path(path, sizeof path, hdir, "layer_003_o.safetensors");
    assert_ok(vptq_hessian_file_read(path, N, NULL, &h, &err), &err);
    float lower[TRIANGLE], mean[N];
    memcpy(lower, h.lower, sizeof lower);
    memcpy(mean, h.mean, sizeof mean);
    vptq_hessian_file_release(&h);
    extra[7] = NAN;
    assert_ok(vptq_hessian_file_write(path,
                                      &(vptq_hessian_data){.n = N,
                                                           .tokens = 5,
                                                           .values = lower,
                                                           .mean = mean,
                                                           .extra_name = "covariance",
                                                           .extra = extra},
                                      &err),
              &err);
    assert_fails(vptq_hessian_export(&d.dev, hdir, VPTQ_FOREIGN_COVARIANCE, out, &made, &err),
                 VPTQ_E_NUMERIC, &err,
                 "layer_003_o.safetensors: tensor 'covariance' has a value that is not finite");
    memset(lower, 0, sizeof lower);
    assert_ok(vptq_hessian_file_write(
                  path,
                  &(vptq_hessian_data){.n = N, .tokens = 5, .values = lower, .mean = mean},
                  &err),
              &err);
    assert_fails(vptq_hessian_export(&d.dev, hdir, VPTQ_FOREIGN_INVERSE, out, &made, &err),
                 VPTQ_E_NUMERIC, &err,
                 "layer_003_o.safetensors: the mean of the Hessian's diagonal is 0");
    assert_false(vptq_path_exists(out));
    devices_close(&d);
}

typedef struct paths {
    char from[4096], to[4096];
} paths;

static vptq_status import_counted(void *arg, vptq_mem *mem, vptq_err *err)
{
    const paths *p = arg;
    vptq_ctx ctx = {.mem = mem, .threads = 1};
    vptq_device dev = {.ctx = &ctx}; /* nothing is computed on it */
    vptq_exchange made;
    return vptq_hessian_import(&dev, p->from, p->to, true, &made, err);
}

static void test_out_of_memory(void **state)
{
    paths p;
    vtest_path(p.from, sizeof p.from, *state, "pt");
    vtest_path(p.to, sizeof p.to, *state, "h");
    put_dir(p.from);
    vtest_oom_walk(import_counted, &p);
}

VTEST_MAIN(scratch_test(test_there_and_back), scratch_test(test_bad_files),
           scratch_test(test_export_checks_the_covariance), scratch_test(test_out_of_memory))
