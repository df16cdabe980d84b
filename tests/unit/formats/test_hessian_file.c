/* Tests Hessian files: round trips, metadata, and damaged files. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "formats/vptq/hessian_file.h"
#include "tests/support/vtest.h"

enum { N = 5, TRIANGLE = 15 };

static void test_names(void **state)
{
    (void)state;
    char name[64];
    vptq_hessian_file_name(name, 3, "qkv");
    assert_string_equal(name, "layer_003_qkv.safetensors");
    vptq_hessian_file_name(name, 1234, "down");
    assert_string_equal(name, "layer_1234_down.safetensors");
}

static void put_hessian(const char *path, float *lower, float *mean)
{
    vptq_err err = {0};
    for (int i = 0; i < TRIANGLE; i++)
        lower[i] = 0.25f * (float)i;
    for (int i = 0; i < N; i++)
        mean[i] = -(float)i;
    assert_ok(vptq_hessian_file_write(
                  path,
                  &(vptq_hessian_data){
                      .n = N, .tokens = UINT64_C(1) << 40, .values = lower, .mean = mean},
                  &err),
              &err);
}

static void test_round_trip(void **state)
{
    char path[4096];
    float lower[TRIANGLE], mean[N];
    vptq_err err = {0};
    vptq_hessian_file h;
    vtest_path(path, sizeof path, *state, "h.safetensors");
    put_hessian(path, lower, mean);
    put_hessian(path, lower, mean); /* replaces the file */
    for (uint32_t expect = 0; expect <= N; expect += N) {
        assert_ok(vptq_hessian_file_read(path, expect, NULL, &h, &err), &err);
        assert_int_equal(h.n, N);
        assert_int_equal(h.tokens, UINT64_C(1) << 40);
        assert_same_f32(h.lower, lower, TRIANGLE);
        assert_same_f32(h.mean, mean, N);
        vptq_hessian_file_release(&h);
    }
    assert_fails(vptq_hessian_file_read(path, 6, NULL, &h, &err), VPTQ_E_SHAPE, &err,
                 "h.safetensors: the Hessian has 5 columns, expected 6");
}

/* ---- channel ranges ---- */

static float lows[N] = {-1, 0, -3.5f, 2, -0.0f}, highs[N] = {1, 0, 2, 2, 0},
             magnitudes[N] = {0.5f, 0, 3, 2, 0};

/* A Hessian with channel ranges. */
static vptq_hessian_data ranged(const float *lower, const float *mean)
{
    return (vptq_hessian_data){.n = N,
                               .tokens = 9,
                               .values = lower,
                               .mean = mean,
                               .abs_mean = magnitudes,
                               .min = lows,
                               .max = highs};
}

static void test_ranges(void **state)
{
    char path[4096];
    float lower[TRIANGLE], mean[N];
    vptq_err err = {0};
    vptq_hessian_file h;
    vtest_path(path, sizeof path, *state, "r.safetensors");
    put_hessian(path, lower, mean); /* as files were before there were ranges */
    assert_ok(vptq_hessian_file_read(path, N, NULL, &h, &err), &err);
    assert_true(!h.abs_mean && !h.min && !h.max);
    assert_ok(vptq_hessian_file_check(&h, path, &err), &err);
    vptq_hessian_file_release(&h);
    vptq_hessian_data data = ranged(lower, mean);
    for (int extra = 0; extra < 2; extra++) {
        data.extra_name = extra ? "covariance" : NULL;
        data.extra = lower;
        assert_ok(vptq_hessian_file_write(path, &data, &err), &err);
        assert_ok(vptq_hessian_file_read(path, N, NULL, &h, &err), &err);
        assert_ok(vptq_hessian_file_check(&h, path, &err), &err);
        assert_same_f32(h.lower, lower, TRIANGLE);
        assert_same_f32(h.mean, mean, N);
        assert_same_f32(h.abs_mean, magnitudes, N);
        assert_same_f32(h.min, lows, N);
        assert_same_f32(h.max, highs, N);
        vptq_hessian_file_release(&h);
    }
    data.kind = VPTQ_WEIGHTS_SINK; /* a term has none */
    data.windows = 3;
    assert_ok(vptq_hessian_file_write(path, &data, &err), &err);
    assert_ok(vptq_hessian_file_read(path, N, NULL, &h, &err), &err);
    assert_true(!h.abs_mean && !h.min && !h.max);
    vptq_hessian_file_release(&h);
}

/* Two of three vectors, and vectors of other types and sizes. */
static void test_bad_ranges(void **state)
{
    static const struct {
        const char *name[2];
        vptq_dtype type;
        uint64_t n;
        vptq_status code;
        const char *part;
    } bad[] = {
        {{"min", "max"}, VPTQ_F32, N, VPTQ_E_FORMAT, "tensor 'abs_mean' is missing"},
        {{"abs_mean", "max"}, VPTQ_F32, N, VPTQ_E_FORMAT, "tensor 'min' is missing"},
        {{"abs_mean", "min"}, VPTQ_F32, N, VPTQ_E_FORMAT, "tensor 'max' is missing"},
        {{"max", "other"}, VPTQ_F32, N, VPTQ_E_FORMAT, "tensor 'abs_mean' is missing"},
        {{"abs_mean", "min"}, VPTQ_I32, N, VPTQ_E_FORMAT, "'abs_mean' is I32, expected F32"},
        {{"abs_mean", "min"}, VPTQ_F32, N - 1, VPTQ_E_SHAPE, "has shape [4], expected [5]"},
        {{"abs_mean", "min"}, VPTQ_F32, N + 1, VPTQ_E_SHAPE, "has shape [6], expected [5]"},
        {{"abs_mean", "min"}, VPTQ_F32, 0, VPTQ_E_SHAPE, "has shape [0], expected [5]"}};
    static const float zeros[TRIANGLE];
    static const vptq_metadata tokens = {"tokens", "7"};
    char path[4096];
    vptq_err err = {0};
    vptq_hessian_file h;
    vtest_path(path, sizeof path, *state, "r.safetensors");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        vptq_tensor t[] = {{.name = "hessian", .shape = {TRIANGLE}},
                           {.name = "mean", .shape = {N}},
                           {.name = bad[i].name[0], .shape = {bad[i].n}},
                           {.name = bad[i].name[1], .shape = {N}}};
        for (int k = 0; k < 4; k++) {
            t[k].type = k == 2 ? bad[i].type : VPTQ_F32;
            t[k].dims = 1;
            t[k].data = (const uint8_t *)zeros;
        }
        assert_ok(vptq_safetensors_save(path, t, 4, &tokens, 1, &err), &err);
        assert_fails(vptq_hessian_file_read(path, 0, NULL, &h, &err), bad[i].code, &err,
                     bad[i].part);
        assert_non_null(strstr(err.text, "r.safetensors: "));
    }
}

static void test_metadata_terms(void **state)
{
    static const struct {
        vptq_metadata meta[3];
        const char *part;
    } bad[] = {
        {{{"kind", "plain"}, {"tokens", "5"}, {"windows", "1"}}, "'kind' is 'plain', expected"},
        {{{"kind", "sinks"}, {"tokens", "5"}, {"windows", "1"}}, "'kind' is 'sinks', expected"},
        {{{"kind", "sink"}, {"tokens", "5"}, {"windows", "0"}}, "'windows' is '0', expected"},
        {{{"kind", "sink"}, {"tokens", "5"}, {"other", "1"}}, "'windows' is missing"},
        {{{"kind", "sink"}, {"other", "5"}, {"windows", "1"}}, "'tokens' is missing"},
    };
    char path[4096];
    float lower[TRIANGLE], mean[N];
    vptq_err err = {0};
    vptq_hessian_file h;
    vtest_path(path, sizeof path, *state, "t.safetensors");
    put_hessian(path, lower, mean);
    for (int kind = VPTQ_WEIGHTS_SINK; kind < VPTQ_WEIGHTS_COUNT; kind++) {
        assert_ok(vptq_hessian_file_write(path,
                                          &(vptq_hessian_data){.n = N,
                                                               .tokens = 70,
                                                               .values = lower,
                                                               .mean = mean,
                                                               .kind = (vptq_token_weights)kind,
                                                               .windows = 7},
                                          &err),
                  &err);
        assert_ok(vptq_hessian_file_read(path, N, NULL, &h, &err), &err);
        assert_int_equal(h.kind, kind);
        assert_int_equal(h.windows, 7);
        assert_int_equal(h.tokens, 70);
        assert_same_f32(h.lower, lower, TRIANGLE);
        vptq_hessian_file_release(&h);
    }
    const vptq_tensor tensors[] = {{.name = "hessian",
                                    .type = VPTQ_F32,
                                    .dims = 1,
                                    .shape = {TRIANGLE},
                                    .data = (const uint8_t *)lower},
                                   {.name = "mean",
                                    .type = VPTQ_F32,
                                    .dims = 1,
                                    .shape = {N},
                                    .data = (const uint8_t *)mean}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_ok(vptq_safetensors_save(path, tensors, 2, bad[i].meta, 3, &err), &err);
        assert_fails(vptq_hessian_file_read(path, N, NULL, &h, &err), VPTQ_E_FORMAT, &err,
                     bad[i].part);
    }
}

/* Reading returns bad numbers unchanged; the check names the first of them. */
static vptq_status read_and_check(const char *path, vptq_err *err)
{
    vptq_hessian_file h;
    assert_ok(vptq_hessian_file_read(path, N, NULL, &h, err), err);
    vptq_status st = vptq_hessian_file_check(&h, path, err);
    vptq_hessian_file_release(&h);
    return st;
}

static void test_not_finite(void **state)
{
    char path[4096];
    float lower[TRIANGLE], mean[N];
    vptq_err err = {0};
    vtest_path(path, sizeof path, *state, "h.safetensors");
    put_hessian(path, lower, mean);
    lower[12] = NAN; /* rows begin at 0 1 3 6 10 */
    assert_ok(vptq_hessian_file_write(
                  path,
                  &(vptq_hessian_data){.n = N, .tokens = 1, .values = lower, .mean = mean},
                  &err),
              &err);
    assert_fails(
        read_and_check(path, &err), VPTQ_E_NUMERIC, &err,
        "h.safetensors: row 4, column 2 of the Hessian is nan, expected a finite number below "
        "1e24");
    lower[12] = 0;
    lower[0] = INFINITY;
    assert_ok(vptq_hessian_file_write(
                  path,
                  &(vptq_hessian_data){.n = N, .tokens = 1, .values = lower, .mean = mean},
                  &err),
              &err);
    assert_fails(read_and_check(path, &err), VPTQ_E_NUMERIC, &err,
                 "row 0, column 0 of the Hessian is inf");
    lower[0] = 3e38f; /* finite, but sums with it are not */
    assert_ok(vptq_hessian_file_write(
                  path,
                  &(vptq_hessian_data){.n = N, .tokens = 1, .values = lower, .mean = mean},
                  &err),
              &err);
    assert_fails(read_and_check(path, &err), VPTQ_E_NUMERIC, &err,
                 "row 0, column 0 of the Hessian is 3e+38");
    lower[0] = 0;
    mean[3] = -INFINITY;
    assert_ok(vptq_hessian_file_write(
                  path,
                  &(vptq_hessian_data){.n = N, .tokens = 1, .values = lower, .mean = mean},
                  &err),
              &err);
    assert_fails(read_and_check(path, &err), VPTQ_E_NUMERIC, &err,
                 "row 0, column 3 of the mean is -inf");
}

static void test_impossible_ranges(void **state)
{
    static const struct {
        float *x, value;
        const char *part;
    } bad[] = {
        {&magnitudes[2], NAN,
         "r.safetensors: row 0, column 2 of the abs_mean is nan, expected"},
        {&magnitudes[2], INFINITY, "column 2 of the abs_mean is inf"},
        {&magnitudes[4], -1, "column 4 of abs_mean is -1, expected zero or a positive number"},
        {&lows[0], -INFINITY, "column 0 of the min is -inf"},
        {&lows[1], NAN, "column 1 of the min is nan"},
        {&lows[3], 2.5f, "column 3 has a min of 2.5 above its max of 2"},
        {&highs[4], NAN, "column 4 of the max is nan"},
        {&highs[3], 3e38f, "column 3 of the max is 3e+38"},
        {&highs[2], -4, "column 2 has a min of -3.5 above its max of -4"}};
    char path[4096];
    float lower[TRIANGLE], mean[N];
    vptq_err err = {0};
    vtest_path(path, sizeof path, *state, "r.safetensors");
    put_hessian(path, lower, mean);
    const vptq_hessian_data data = ranged(lower, mean);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const float kept = *bad[i].x;
        *bad[i].x = bad[i].value;
        assert_ok(vptq_hessian_file_write(path, &data, &err), &err);
        assert_fails(read_and_check(path, &err), VPTQ_E_NUMERIC, &err, bad[i].part);
        *bad[i].x = kept;
    }
}

/* Writes a file with the two given tensors and one metadata entry. */
static void refuse(const char *path, vptq_tensor first, vptq_tensor second, vptq_metadata meta,
                   vptq_status code, const char *part)
{
    static const float zeros[64];
    vptq_err err = {0};
    vptq_hessian_file h;
    vptq_tensor tensors[] = {first, second};
    tensors[0].data = tensors[1].data = (const uint8_t *)zeros;
    assert_ok(vptq_safetensors_save(path, tensors, 2, &meta, 1, &err), &err);
    assert_fails(vptq_hessian_file_read(path, 0, NULL, &h, &err), code, &err, part);
    assert_non_null(strstr(err.text, "h.safetensors: "));
}

/* Writes a Hessian with a different diagonal. */
static void refuse_both(const char *path)
{
    static const float zeros[TRIANGLE];
    vptq_err err = {0};
    vptq_hessian_file h;
    assert_ok(vptq_hessian_file_write(path,
                                      &(vptq_hessian_data){.n = N,
                                                           .tokens = 1,
                                                           .values = zeros,
                                                           .mean = zeros,
                                                           .extra_name = "diagonal",
                                                           .extra = zeros},
                                      &err),
              &err);
    assert_fails(vptq_hessian_file_read(path, N, NULL, &h, &err), VPTQ_E_FORMAT, &err,
                 "h.safetensors: has both tensors 'hessian' and 'diagonal', expected one");
}

static void test_bad_files(void **state)
{
    char path[4096];
    vtest_path(path, sizeof path, *state, "h.safetensors");
    const vptq_tensor lower = {.name = "hessian", .type = VPTQ_F32, .dims = 1, .shape = {10}};
    const vptq_tensor mean = {.name = "mean", .type = VPTQ_F32, .dims = 1, .shape = {4}};
    const vptq_metadata tokens = {"tokens", "7"};
    vptq_tensor x = mean;
    x.name = "average";
    refuse(path, lower, x, tokens, VPTQ_E_FORMAT, "tensor 'mean' is missing");
    x = lower;
    x.name = "h";
    refuse(path, x, mean, tokens, VPTQ_E_FORMAT, "tensor 'hessian' is missing");
    x = lower;
    x.shape[0] = 16;
    refuse(path, x, mean, tokens, VPTQ_E_SHAPE,
           "tensor 'hessian' has shape [16], expected [10]");
    x = lower;
    x.type = VPTQ_F16;
    refuse(path, x, mean, tokens, VPTQ_E_FORMAT, "tensor 'hessian' is F16, expected F32");
    x = mean;
    x.type = VPTQ_I32;
    refuse(path, lower, x, tokens, VPTQ_E_FORMAT, "tensor 'mean' is I32, expected F32");
    x = mean;
    x.shape[0] = 0;
    refuse(path, lower, x, tokens, VPTQ_E_SHAPE, "tensor 'mean' is not a vector");
    x = mean;
    x.dims = 2;
    x.shape[1] = 1;
    refuse(path, lower, x, tokens, VPTQ_E_SHAPE, "tensor 'mean' is not a vector");
    refuse(path, lower, mean, (vptq_metadata){"token", "7"}, VPTQ_E_FORMAT,
           "metadata 'tokens' is missing");
    static const char *const counts[] = {"", "0", "-1", "+1", " 1", "1x", "1.5", "0x10",
                                         /* 2^63, too large for sums and signed counts */
                                         "9223372036854775808", "99999999999999999999"};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        refuse(path, lower, mean, (vptq_metadata){"tokens", counts[i]}, VPTQ_E_FORMAT,
               "expected a whole number above 0");
    refuse_both(path);
    vptq_err err = {0};
    vptq_hessian_file h;
    assert_int_not_equal(truncate(path, 100), -1);
    assert_fails(vptq_hessian_file_read(path, 0, NULL, &h, &err), VPTQ_E_FORMAT, &err,
                 "h.safetensors: the safetensors header has");
}

/* The data may begin at an offset that is not a multiple of 4. */
static void test_unaligned(void **state)
{
    static const char start[] = "{\"__metadata__\":{\"tokens\":\"3\"";
    static const char end[] =
        "},\"hessian\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
        "\"mean\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}";
    const float numbers[2] = {2.5f, -1.5f};
    char path[4096], header[300], sum[40];
    uint64_t h = vptq_hash("3", 2, vptq_hash("tokens", 7, 0));
    h = vptq_hash(&numbers[0], 4, vptq_hash("hessian", 8, h));
    h = vptq_hash(&numbers[1], 4, vptq_hash("mean", 5, h));
    snprintf(sum, sizeof sum, ",\"xxh3\":\"%016llx\"", (unsigned long long)h);
    vtest_path(path, sizeof path, *state, "h.safetensors");
    for (size_t pad = 0; pad < 5; pad++) {
        vptq_err err = {0};
        vptq_hessian_file f;
        const bool sealed = pad < 4;
        const size_t n = (size_t)snprintf(header, sizeof header, "%s%s%s%*s", start,
                                          sealed ? sum : "", end, (int)(pad % 4), "");
        uint8_t bytes[8 + sizeof header + 8] = {(uint8_t)n};
        assert_true(n < 256);
        memcpy(bytes + 8, header, n);
        memcpy(bytes + 8 + n, numbers, 8);
        vtest_write_file(path, bytes, 8 + n + 8);
        if (!sealed) {
            assert_fails(
                vptq_hessian_file_read(path, 1, NULL, &f, &err), VPTQ_E_CHECKSUM, &err,
                "h.safetensors: has no checksum (metadata 'xxh3'), so damage could not "
                "be seen; collect or import it again");
            break;
        }
        assert_ok(vptq_hessian_file_read(path, 1, NULL, &f, &err), &err);
        assert_same_f32(f.lower, numbers, 1);
        assert_same_f32(f.mean, numbers + 1, 1);
        vptq_hessian_file_release(&f);
    }
}

/* Every byte of a Hessian and of a term, three bits each: an error, or the same content. */
static void test_every_byte(void **state)
{
    static const float values[6] = {4, 1, 5, 2, 3, 6}, mean[3] = {0.5f, 0, -2};
    char path[4096];
    size_t size, refused = 0;
    vtest_path(path, sizeof path, *state, "b.safetensors");
    for (int kind = 0; kind < VPTQ_WEIGHTS_COUNT; kind++) {
        vptq_err err = {0};
        const vptq_hessian_data data = {.n = 3,
                                        .tokens = 40,
                                        .values = values,
                                        .mean = mean,
                                        .abs_mean = kind ? NULL : magnitudes,
                                        .min = lows,
                                        .max = highs,
                                        .kind = (vptq_token_weights)kind,
                                        .windows = kind ? 5 : 0};
        assert_ok(vptq_hessian_file_write(path, &data, &err), &err);
        char *bytes = vtest_read_file(path, &size);
        for (size_t i = 0; i < 3 * size; i++) {
            vptq_hessian_file h;
            const char bit = (char)(1 << (i % 3 * 3));
            bytes[i / 3] ^= bit;
            vtest_write_file(path, bytes, size);
            bytes[i / 3] ^= bit;
            if (vptq_hessian_file_read(path, 0, NULL, &h, &err)) {
                assert_non_null(strstr(err.text, "b.safetensors"));
                refused++;
                continue;
            }
            assert_int_equal(h.kind, kind);
            assert_true(h.tokens == 40 && h.windows == data.windows);
            assert_same_f32(h.lower, values, 6);
            assert_same_f32(h.mean, mean, 3);
            assert_int_equal(h.abs_mean != NULL, !kind);
            if (h.abs_mean) {
                assert_same_f32(h.abs_mean, magnitudes, 3);
                assert_same_f32(h.min, lows, 3);
                assert_same_f32(h.max, highs, 3);
            }
            vptq_hessian_file_release(&h);
        }
        free(bytes);
    }
    assert_true(refused > 2000);
}

static vptq_status read_counted(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_hessian_file h;
    vptq_status st = vptq_hessian_file_read(arg, N, mem, &h, err);
    if (!st)
        vptq_hessian_file_release(&h);
    return st;
}

static void test_out_of_memory(void **state)
{
    char path[4096];
    float lower[TRIANGLE], mean[N];
    vtest_path(path, sizeof path, *state, "h.safetensors");
    vptq_err err = {0};
    put_hessian(path, lower, mean);
    const vptq_hessian_data data = ranged(lower, mean);
    assert_ok(vptq_hessian_file_write(path, &data, &err), &err);
    vtest_oom_walk(read_counted, path);
}

VTEST_MAIN(cmocka_unit_test(test_names), scratch_test(test_round_trip),
           scratch_test(test_ranges), scratch_test(test_bad_ranges),
           scratch_test(test_impossible_ranges), scratch_test(test_metadata_terms),
           scratch_test(test_not_finite), scratch_test(test_bad_files),
           scratch_test(test_unaligned), scratch_test(test_every_byte),
           scratch_test(test_out_of_memory))
