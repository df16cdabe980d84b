/* Tests the table of settings, the encoders' presets, refused settings and the stored shape. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/encoder/encode.h"
#include "lib/encoder/settings.h"
#include "tests/support/vtest.h"

static const vptq_setting *find(const char *key)
{
    const vptq_setting *t = vptq_setting_find(key);
    assert_non_null(t);
    return t;
}

static void set(vptq_encoder_settings *s, const char *key, const char *text)
{
    vptq_err err = {0};
    assert_ok(vptq_setting_parse(find(key), text, s, &err), &err);
}

static void assert_value(const vptq_encoder_settings *s, const char *key, const char *text)
{
    char got[64];
    vptq_setting_print(find(key), s, got, sizeof got);
    assert_string_equal(got, text);
}

static void assert_same(const vptq_encoder_settings *a, const vptq_encoder_settings *b)
{
    size_t count;
    const vptq_setting *t = vptq_setting_table(&count);
    for (size_t i = 0; i < count; i++)
        assert_true(vptq_setting_equal(&t[i], a, b));
}

/* ---- the table ---- */

static void test_table_covers_everything(void **state)
{
    (void)state;
    static const size_t size[] = {sizeof(uint32_t),   sizeof(uint32_t), sizeof(uint64_t),
                                  sizeof(bool),       sizeof(double),   sizeof(uint32_t),
                                  sizeof(vptq_dtype), sizeof(uint32_t)};
    unsigned char covered[sizeof(vptq_encoder_settings)] = {0};
    size_t count, holes = 0;
    const vptq_setting *t = vptq_setting_table(&count);
    for (size_t i = 0; i < count; i++) {
        assert_ptr_equal(vptq_setting_find(t[i].key), &t[i]);
        assert_true(t[i].help[0] != 0);
        assert_int_equal(t[i].kind == VPTQ_SETTING_CHOICE || t[i].kind == VPTQ_SETTING_DTYPE ||
                             t[i].kind == VPTQ_SETTING_METHOD,
                         t[i].choices != NULL);
        for (size_t b = 0; b < size[t[i].kind]; b++) {
            assert_false(covered[t[i].offset + b]); /* two keys for one field */
            covered[t[i].offset + b] = 1;
        }
    }
    for (size_t b = 0; b < sizeof covered; b++)
        holes += !covered[b];
    assert_true(holes < 2 * sizeof(double)); /* padding after the dtype and the bool */
    assert_null(vptq_setting_find("no_such_key"));
    assert_null(vptq_setting_find(""));
    assert_null(vptq_setting_find("vector_lengt"));
}

/* Prints every value of `s` and reads it back into fresh settings. */
static void check_round_trip(const vptq_encoder_settings *s)
{
    char text[64];
    size_t count;
    const vptq_setting *t = vptq_setting_table(&count);
    vptq_encoder_settings copy;
    memset(&copy, 0xff, sizeof copy);
    copy.perm = false;
    for (size_t i = 0; i < count; i++) {
        vptq_err err = {0};
        vptq_setting_print(&t[i], s, text, sizeof text);
        assert_ok(vptq_setting_parse(&t[i], text, &copy, &err), &err);
        assert_true(vptq_setting_equal(&t[i], s, &copy));
    }
}

static void test_values_read_back(void **state)
{
    (void)state;
    vptq_err err = {0};
    vptq_encoder_settings s = vptq_encoder_defaults();
    check_round_trip(&s);
    assert_ok(vptq_encoder_set_encoder(&s, "upstream", &err), &err);
    check_round_trip(&s);
    s.seed = UINT64_MAX;
    s.storage = VPTQ_BF16;
    s.outliers = 100.0 / 3;
    s.ridge = 0.1 + 0.2;
    s.damping = 1e-12;
    s.kmeans_tolerance = 0x1p-40;
    s.kmeans_shift = 1e30;
    check_round_trip(&s);
    assert_value(&s, "seed", "18446744073709551615");
    assert_value(&s, "dtype", "bf16");
    assert_value(&s, "outliers", "33.333333333333336");
    assert_value(&s, "ridge", "0.30000000000000004");
    assert_value(&s, "damping", "1e-12");
    s.ridge = 0.1;
    assert_value(&s, "ridge", "0.1");
    s.ridge = 0;
    assert_value(&s, "ridge", "0");
    assert_value(&s, "norm", "minmax");
    assert_value(&s, "perm", "true");
}

/* Every choice is accepted by name; both ends of every range are accepted and values beyond
 * them refused. */
static void test_ranges(void **state)
{
    (void)state;
    char text[64], part[80];
    size_t count;
    const vptq_setting *t = vptq_setting_table(&count);
    vptq_encoder_settings s = vptq_encoder_defaults();
    vptq_err err = {0};
    for (size_t i = 0; i < count; i++) {
        const vptq_encoder_settings before = s;
        snprintf(part, sizeof part, "%s is '", t[i].key); /* every error begins with the key */
        const bool real = t[i].kind == VPTQ_SETTING_DOUBLE;
        if (real || t[i].kind == VPTQ_SETTING_U32 || t[i].kind == VPTQ_SETTING_POWER) {
            double step = real ? 1e-6 + t[i].max * 1e-6 : 1;
            const double out[] = {t[i].min - step, t[i].max + step};
            for (int e = 0; e < 2; e++) {
                snprintf(text, sizeof text, "%.17g", e ? t[i].max : t[i].min);
                assert_ok(vptq_setting_parse(&t[i], text, &s, &err), &err);
                vptq_setting_copy(&t[i], &s, &before);
                snprintf(text, sizeof text, "%.17g", out[e]);
                assert_fails(vptq_setting_parse(&t[i], text, &s, &err), VPTQ_E_ARG, &err, part);
            }
        }
        static const char *const never[] = {"",         " ",   "nan", "inf", "0x4", "1e99",
                                            "none|std", "yes", "4 ",  " 4",  "-1",  "4,5"};
        for (size_t n = 0; n < sizeof never / sizeof never[0]; n++)
            assert_fails(vptq_setting_parse(&t[i], never[n], &s, &err), VPTQ_E_ARG, &err, part);
        assert_same(&s, &before); /* a refused value changes nothing */
    }
    assert_fails(vptq_setting_parse(find("centroids"), "2.5", &s, &err), VPTQ_E_ARG, &err,
                 "centroids is '2.5', expected a whole number from 2 to 65536");
    assert_fails(vptq_setting_parse(find("seed"), "18446744073709551616", &s, &err), VPTQ_E_ARG,
                 &err, "seed is '18446744073709551616', expected a whole number below 2^64");
    assert_fails(vptq_setting_parse(find("norm"), "st", &s, &err), VPTQ_E_ARG, &err,
                 "norm is 'st', expected none|std|minmax");
    assert_fails(vptq_setting_parse(find("perm"), "1", &s, &err), VPTQ_E_ARG, &err,
                 "perm is '1', expected true or false");
    assert_fails(vptq_setting_parse(find("dtype"), "f32", &s, &err), VPTQ_E_ARG, &err,
                 "dtype is 'f32', expected f16|bf16");
}

static void test_choices(void **state)
{
    (void)state;
    vptq_encoder_settings s = vptq_encoder_defaults();
    set(&s, "norm", "none");
    assert_int_equal(s.norm, VPTQ_NORM_NONE);
    set(&s, "norm", "std");
    assert_int_equal(s.norm, VPTQ_NORM_STD);
    set(&s, "norm", "minmax");
    assert_int_equal(s.norm, VPTQ_NORM_MINMAX);
    set(&s, "metric", "raw");
    assert_int_equal(s.metric, VPTQ_METRIC_RAW);
    set(&s, "metric", "scaled");
    assert_int_equal(s.metric, VPTQ_METRIC_SCALED);
    set(&s, "init", "random");
    assert_int_equal(s.init, VPTQ_INIT_RANDOM);
    set(&s, "init", "plusplus");
    assert_int_equal(s.init, VPTQ_INIT_PLUSPLUS);
    set(&s, "residual_from", "pass");
    assert_int_equal(s.residual_from, VPTQ_RESIDUAL_PASS);
    set(&s, "residual_from", "plain");
    assert_int_equal(s.residual_from, VPTQ_RESIDUAL_PLAIN);
    set(&s, "rounding", "end");
    assert_int_equal(s.rounding, VPTQ_ROUND_END);
    set(&s, "rounding", "loop");
    assert_int_equal(s.rounding, VPTQ_ROUND_LOOP);
    set(&s, "codebook_grid", "int8");
    assert_int_equal(s.codebook_grid, VPTQ_GRID_INT8);
    set(&s, "codebook_grid", "none");
    assert_int_equal(s.codebook_grid, VPTQ_GRID_NONE);
    set(&s, "dtype", "bf16");
    assert_int_equal(s.storage, VPTQ_BF16);
    set(&s, "dtype", "f16");
    assert_int_equal(s.storage, VPTQ_F16);
    set(&s, "perm", "false");
    assert_false(s.perm);
}

/* ---- encoders ---- */

static void test_encoders(void **state)
{
    (void)state;
    vptq_err err = {0};
    size_t count;
    const vptq_setting *t = vptq_setting_table(&count);
    const vptq_encoder_settings best = vptq_encoder_defaults();
    vptq_encoder_settings mine = {.v = 12,
                                  .k = 8192,
                                  .k_res = 16,
                                  .groups = 3,
                                  .group_size = 64,
                                  .outliers = 1.5,
                                  .v0 = 2,
                                  .k0 = 128,
                                  .storage = VPTQ_BF16,
                                  .seed = 77};
    vptq_encoder_settings s = mine;
    assert_ok(vptq_encoder_set_encoder(&s, "upstream", &err), &err);
    assert_int_equal(s.norm, VPTQ_NORM_MINMAX);
    assert_int_equal(s.metric, VPTQ_METRIC_RAW);
    assert_int_equal(s.init, VPTQ_INIT_RANDOM);
    assert_int_equal(s.residual_from, VPTQ_RESIDUAL_PASS);
    assert_int_equal(s.rounding, VPTQ_ROUND_END);
    assert_int_equal(s.beam, 1);
    assert_int_equal(s.joint + s.sweeps + s.refits, 0);
    for (size_t i = 0; i < count; i++)
        if (t[i].stored || !strcmp(t[i].key, "seed"))
            assert_true(vptq_setting_equal(&t[i], &s, &mine));
    assert_ok(vptq_encoder_set_encoder(&s, "best", &err), &err);
    for (size_t i = 0; i < count; i++)
        assert_true(vptq_setting_equal(
            &t[i], &s, t[i].stored || !strcmp(t[i].key, "seed") ? &mine : &best));
    mine = s;
    assert_fails(vptq_encoder_set_encoder(&s, "fastest", &err), VPTQ_E_ARG, &err,
                 "encoder is 'fastest', expected best|upstream");
    assert_same(&s, &mine);
    s = vptq_encoder_defaults();
    vptq_encoder_copy_stored(&s, &mine);
    for (size_t i = 0; i < count; i++)
        assert_true(vptq_setting_equal(&t[i], &s, t[i].stored ? &mine : &best));
}

static void test_encoders_are_valid(void **state)
{
    (void)state;
    vptq_err err = {0};
    vptq_encoder_settings s = vptq_encoder_defaults();
    assert_ok(vptq_encoder_check(&s, 576, 576, &err), &err);
    assert_ok(vptq_encoder_set_encoder(&s, "upstream", &err), &err);
    assert_ok(vptq_encoder_check(&s, 576, 576, &err), &err);
    assert_ok(vptq_encoder_check(&s, 1, 1, &err), &err);
}

/* ---- checks ---- */

static void refused(const char *key, const char *text, uint32_t in, const char *part)
{
    vptq_err err = {0};
    vptq_encoder_settings s = vptq_encoder_defaults();
    set(&s, key, text);
    assert_fails(vptq_encoder_check(&s, 64, in, &err), VPTQ_E_ARG, &err, part);
}

static void test_refused_settings(void **state)
{
    (void)state;
    vptq_err err = {0};
    vptq_encoder_settings s = vptq_encoder_defaults();
    s.k = 100;
    assert_fails(
        vptq_encoder_check(&s, 64, 64, &err), VPTQ_E_ARG, &err,
        "centroids is '100', must be a power of two from 2 to 65536 (nearest: 64, 128)");
    s = vptq_encoder_defaults();
    s.k_res = 3;
    assert_fails(vptq_encoder_check(&s, 64, 64, &err), VPTQ_E_ARG, &err,
                 "residual is '3', must be a power of two");
    s.k_res = 1;
    assert_fails(vptq_encoder_check(&s, 64, 64, &err), VPTQ_E_ARG, &err,
                 "residual is '1', must be a power of two from 2 to 65536 (nearest: 2)");
    s = vptq_encoder_defaults();
    s.k0 = 48;
    assert_fails(vptq_encoder_check(&s, 64, 64, &err), VPTQ_E_ARG, &err,
                 "outlier_centroids is '48', must be a power of two");
    s = vptq_encoder_defaults();
    refused("groups", "5", 64, "groups is 5, which does not divide 64 columns");
    refused("groups", "65", 64, "groups is 65, which leaves an empty group of 64 columns");
    refused("group_size", "65", 64, "group_size is 65, which leaves an empty group");
    refused("group_size", "48", 64, "group_size is 48, which does not divide 64 columns");
    refused("outliers", "100", 64, "outliers is 100 percent, which leaves none of 64 columns");
    refused("outliers", "99", 64, "outliers is 99 percent, which leaves none of 64 columns");
    s.groups = 2;
    s.group_size = 32;
    assert_fails(vptq_encoder_check(&s, 64, 64, &err), VPTQ_E_ARG, &err,
                 "groups is 2 and group_size is 32, expected only one of them");
    s = vptq_encoder_defaults();
    s.outliers = 50;
    s.groups = 33;
    assert_fails(vptq_encoder_check(&s, 64, 64, &err), VPTQ_E_ARG, &err,
                 "groups is 33, which leaves an empty group of 32 columns");
    s.groups = 32;
    assert_ok(vptq_encoder_check(&s, 64, 64, &err), &err);
    s.groups = 5; /* with outliers the remaining columns join them */
    assert_ok(vptq_encoder_check(&s, 64, 64, &err), &err);
    assert_fails(vptq_encoder_check(&s, 64, 65537, &err), VPTQ_E_SHAPE, &err, "65537");
}

/* Values that no text can produce are each refused with their key. */
static void test_fields_out_of_range(void **state)
{
    (void)state;
    char part[80];
    size_t count;
    const vptq_setting *t = vptq_setting_table(&count);
    for (size_t i = 0; i < count; i++) {
        vptq_err err = {0};
        vptq_encoder_settings s = vptq_encoder_defaults();
        unsigned char *at = (unsigned char *)&s + t[i].offset;
        if (!vptq_setting_is_used(&t[i], &s))
            vptq_encoder_set_method(&s,
                                    VPTQ_METHOD_SMOOTH | VPTQ_METHOD_SPARSE | VPTQ_METHOD_GPTQ);
        if (!vptq_setting_is_used(&t[i], &s))
            vptq_encoder_set_method(&s, VPTQ_METHOD_GPTVQ);
        if (!vptq_setting_is_used(&t[i], &s))
            vptq_encoder_set_method(&s, VPTQ_METHOD_AQLM);
        const uint32_t large = UINT32_MAX;
        const double wrong[] = {(double)NAN, (double)INFINITY, -1};
        snprintf(part, sizeof part, "%s is '", t[i].key);
        if (t[i].kind == VPTQ_SETTING_U32 || t[i].kind == VPTQ_SETTING_POWER ||
            t[i].kind == VPTQ_SETTING_CHOICE || t[i].kind == VPTQ_SETTING_METHOD) {
            memcpy(at, &large, sizeof large);
            assert_fails(vptq_encoder_check(&s, 64, 64, &err), VPTQ_E_ARG, &err, part);
        }
        for (size_t n = 0; t[i].kind == VPTQ_SETTING_DOUBLE && n < 3; n++) {
            memcpy(at, &wrong[n], sizeof wrong[n]);
            assert_fails(vptq_encoder_check(&s, 64, 64, &err), VPTQ_E_ARG, &err, part);
        }
    }
    vptq_err err = {0};
    vptq_encoder_settings s = vptq_encoder_defaults();
    s.weight_bits = 0; /* which vptq does not use */
    assert_ok(vptq_encoder_check(&s, 64, 64, &err), &err);
    s.storage = VPTQ_Q4_0;
    assert_fails(vptq_encoder_check(&s, 64, 64, &err), VPTQ_E_ARG, &err,
                 "storage type is Q4_0, expected F16 or BF16");
}

/* ---- methods ---- */

static void test_methods(void **state)
{
    (void)state;
    vptq_encoder_settings s = vptq_encoder_defaults();
    assert_value(&s, "method", "vptq");
    assert_true(vptq_setting_is_used(find("centroids"), &s));
    assert_false(vptq_setting_is_used(find("weight_bits"), &s));
    s.storage = VPTQ_BF16;
    vptq_encoder_set_method(&s, VPTQ_METHOD_GPTQ);
    assert_value(&s, "method", "gptq");
    assert_value(&s, "weight_bits", "4");
    assert_value(&s, "group_size", "128");
    assert_value(&s, "perm", "false");
    assert_value(&s, "ridge", "0.01");
    assert_value(&s, "dtype", "bf16");
    assert_false(vptq_setting_is_used(find("centroids"), &s));
    assert_true(vptq_setting_is_used(find("perm"), &s));
    vptq_encoder_set_method(&s, VPTQ_METHOD_RTN);
    assert_false(vptq_setting_is_used(find("perm"), &s));
    assert_false(vptq_setting_is_used(find("ridge"), &s));
    assert_true(vptq_setting_is_used(find("seed"), &s));
    vptq_encoder_set_method(&s, VPTQ_METHOD_SPARSE);
    assert_value(&s, "method", "sparse");
    assert_value(&s, "sparsity", "0.5");
    assert_value(&s, "sparsity_pattern", "none");
    assert_true(vptq_setting_is_used(find("ridge"), &s));
    assert_false(vptq_setting_is_used(find("group_size"), &s));
    assert_false(vptq_setting_is_used(find("perm"), &s));
    vptq_encoder_set_method(&s, VPTQ_METHOD_GPTQ | VPTQ_METHOD_SPARSE);
    assert_value(&s, "method", "sparse+gptq");
    assert_true(vptq_setting_is_used(find("sparsity"), &s));
    assert_true(vptq_setting_is_used(find("perm"), &s));
    vptq_encoder_set_method(&s, VPTQ_METHOD_VPTQ);
    s.storage = VPTQ_F16;
    const vptq_encoder_settings defaults = vptq_encoder_defaults();
    assert_same(&s, &defaults);
    vptq_err err = {0};
    assert_ok(vptq_setting_parse(find("method"), "gptq+smooth", &s, &err), &err);
    assert_int_equal(s.method, VPTQ_METHOD_SMOOTH | VPTQ_METHOD_GPTQ);
    assert_value(&s, "method", "smooth+gptq");
    assert_true(vptq_setting_is_used(find("smooth_alpha"), &s));
    assert_true(vptq_setting_is_used(find("ridge"), &s));
    vptq_encoder_set_method(&s, VPTQ_METHOD_AWQ);
    assert_value(&s, "method", "awq");
    assert_false(vptq_setting_is_used(find("smooth_alpha"), &s));
    assert_false(vptq_setting_is_used(find("ridge"), &s));
    assert_true(vptq_setting_is_used(find("symmetric"), &s));
    static const char *const wrong[] = {"",
                                        "awq?",
                                        "rtn+gptq",
                                        "gptq+gptq",
                                        "gptq+",
                                        "+gptq",
                                        "vptq+rtn",
                                        "smooth",
                                        "awq+gptq",
                                        "smooth+vptq",
                                        "smooth+",
                                        "sparse+vptq",
                                        "sparse+smooth",
                                        "sparse+rtn+gptq",
                                        "gptvq+gptq",
                                        "smooth+gptvq",
                                        "vptq+gptvq"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        err = (vptq_err){0};
        assert_fails(vptq_setting_parse(find("method"), wrong[i], &s, &err), VPTQ_E_ARG, &err,
                     "expected vptq|sparse|rtn|gptq|awq|gptvq|aqlm|db-llm|quip#; smooth+ ");
        assert_value(&s, "method", "awq");
    }
    vptq_setting_info info;
    assert_true(vptq_setting_describe(0, &info));
    assert_string_equal(info.key, "method");
    assert_string_equal(info.values, "vptq|sparse|rtn|gptq|awq|gptvq|aqlm|db-llm|quip#");
}

/* Methods with additive codes have defaults of their own, which do not outlive them. */
static void test_additive_methods(void **state)
{
    (void)state;
    vptq_err err = {0};
    const vptq_encoder_settings defaults = vptq_encoder_defaults();
    vptq_encoder_settings s = defaults;
    vptq_encoder_set_method(&s, VPTQ_METHOD_GPTVQ);
    assert_value(&s, "method", "gptvq");
    assert_value(&s, "weight_bits", "2");
    assert_value(&s, "vector_length", "2");
    assert_value(&s, "group_size", "256");
    assert_value(&s, "codebook_rows", "8");
    assert_value(&s, "codebook_grid", "int8");
    assert_value(&s, "ridge", "0.01");
    static const char *const unused[] = {
        "centroids",         "perm",   "symmetric", "residual", "activation_bits",
        "kmeans_iterations", "sweeps", "outliers",  "sparsity"};
    for (size_t i = 0; i < sizeof unused / sizeof unused[0]; i++)
        assert_false(vptq_setting_is_used(find(unused[i]), &s));
    assert_ok(vptq_encoder_check(&s, 64, 96, &err), &err);
    s.weight_bits = 5;
    assert_fails(vptq_encoder_check(&s, 64, 96, &err), VPTQ_E_ARG, &err,
                 "weight_bits is 5, expected 2 to 4");
    vptq_encoder_set_method(&s, VPTQ_METHOD_RTN);
    assert_value(&s, "weight_bits", "4");
    assert_value(&s, "group_size", "128");
    vptq_encoder_set_method(&s, VPTQ_METHOD_GPTVQ);
    vptq_encoder_set_method(&s, VPTQ_METHOD_VPTQ);
    assert_same(&s, &defaults);
    vptq_encoder_set_method(&s, VPTQ_METHOD_AQLM);
    assert_value(&s, "method", "aqlm");
    assert_value(&s, "vector_length", "8");
    assert_value(&s, "centroids", "256");
    assert_value(&s, "codebooks", "2");
    assert_value(&s, "beam", "1");
    assert_value(&s, "kmeans_iterations", "100");
    assert_false(vptq_setting_is_used(find("group_size"), &s));
    assert_false(vptq_setting_is_used(find("ridge"), &s));
    assert_ok(vptq_encoder_check(&s, 64, 96, &err), &err);
    s.beam = 33;
    assert_fails(vptq_encoder_check(&s, 64, 96, &err), VPTQ_E_ARG, &err,
                 "beam is 33, expected 1 to 32 of method aqlm");
    vptq_encoder_set_method(&s, VPTQ_METHOD_DBLLM);
    assert_value(&s, "method", "db-llm");
    assert_value(&s, "group_size", "64");
    assert_value(&s, "sweeps", "50");
    assert_false(vptq_setting_is_used(find("vector_length"), &s));
    assert_false(vptq_setting_is_used(find("codebooks"), &s));
    assert_ok(vptq_encoder_check(&s, 64, 96, &err), &err);
    vptq_encoder_set_method(&s, VPTQ_METHOD_QUIP);
    assert_value(&s, "method", "quip#");
    assert_value(&s, "weight_bits", "2");
    assert_value(&s, "ridge", "0.01");
    assert_true(vptq_setting_is_used(find("seed"), &s));
    assert_false(vptq_setting_is_used(find("vector_length"), &s));
    assert_false(vptq_setting_is_used(find("group_size"), &s));
    s.weight_bits = 5;
    assert_fails(vptq_encoder_check(&s, 64, 96, &err), VPTQ_E_ARG, &err,
                 "weight_bits is 5, expected 2 to 4 of method quip#");
    vptq_encoder_set_method(&s, VPTQ_METHOD_VPTQ);
    assert_same(&s, &defaults);
}

/* Rows of bytes with one scale each. */
static void test_activation_bits(void **state)
{
    (void)state;
    const struct {
        uint32_t activation_bits, weight_bits, group_size;
        bool symmetric;
        const char *text; /* NULL: accepted */
    } rows[] = {
        {0, 4, 128, false, NULL},
        {8, 8, 0, true, NULL},
        {8, 8, 96, true, NULL}, /* the whole row */
        {8, 8, 95, true, "group_size 0 and symmetric true; they are 8, 95 and true"},
        {8, 8, 0, false,
         "activation_bits 8 needs weight_bits 8, group_size 0 and symmetric "
         "true; they are 8, 0 and false"},
        {8, 7, 0, true, "they are 7, 0 and true"},
        {4, 8, 0, true, "activation_bits is 4, expected 0 or 8"},
        {1, 8, 0, true, "activation_bits is 1, expected 0 or 8"},
        {9, 8, 0, true, "activation_bits is '9', expected a whole number from 0 to 8"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        vptq_err err = {0};
        vptq_encoder_settings s = vptq_encoder_defaults();
        vptq_encoder_set_method(&s, VPTQ_METHOD_RTN);
        s.activation_bits = rows[i].activation_bits;
        s.weight_bits = rows[i].weight_bits;
        s.group_size = rows[i].group_size;
        s.symmetric = rows[i].symmetric;
        if (rows[i].text)
            assert_fails(vptq_encoder_check(&s, 32, 96, &err), VPTQ_E_ARG, &err, rows[i].text);
        else
            assert_ok(vptq_encoder_check(&s, 32, 96, &err), &err);
        vptq_encoder_set_method(&s, VPTQ_METHOD_VPTQ); /* which does not use it */
        assert_ok(vptq_encoder_check(&s, 32, 96, &err), &err);
    }
}

static void test_patterns(void **state)
{
    (void)state;
    vptq_err err = {0};
    vptq_encoder_settings s = vptq_encoder_defaults();
    vptq_encoder_set_method(&s, VPTQ_METHOD_SPARSE);
    assert_ok(vptq_encoder_check(&s, 3, 7, &err), &err);
    s.sparsity_pattern = VPTQ_PATTERN_2_4;
    assert_ok(vptq_encoder_check(&s, 3, 12, &err), &err);
    assert_fails(vptq_encoder_check(&s, 3, 14, &err), VPTQ_E_ARG, &err,
                 "sparsity_pattern is 2:4, which does not divide 14 columns");
    s.group_size = 6; /* not of this method */
    assert_ok(vptq_encoder_check(&s, 3, 12, &err), &err);
    s.method |= VPTQ_METHOD_RTN;
    assert_fails(vptq_encoder_check(&s, 3, 12, &err), VPTQ_E_ARG, &err,
                 "sparsity_pattern is 2:4, which does not divide groups of 6 columns");
    s.group_size = 0;
    s.perm = true; /* not of this method either */
    assert_ok(vptq_encoder_check(&s, 3, 12, &err), &err);
    s.method = VPTQ_METHOD_SPARSE | VPTQ_METHOD_GPTQ;
    assert_fails(vptq_encoder_check(&s, 3, 12, &err), VPTQ_E_ARG, &err,
                 "needs columns in their own order");
    s.perm = false;
    s.sparsity_pattern = VPTQ_PATTERN_4_8;
    assert_fails(vptq_encoder_check(&s, 3, 12, &err), VPTQ_E_ARG, &err,
                 "sparsity_pattern is 4:8, which does not divide 12 columns");
    assert_ok(vptq_encoder_check(&s, 3, 16, &err), &err);
    s.sparsity = 0.25;
    assert_fails(vptq_encoder_check(&s, 3, 16, &err), VPTQ_E_ARG, &err,
                 "sparsity is 0.25, but sparsity_pattern 4:8 prunes half of the weights");
    s.sparsity_pattern = VPTQ_PATTERN_NONE;
    assert_ok(vptq_encoder_check(&s, 3, 16, &err), &err);
}

/* ---- the stored shape ---- */

static void assert_shape(const vptq_encoder_settings *s, const vptq_vq_shape *want)
{
    const vptq_vq_shape got = vptq_encoder_shape(s, want->out, want->in);
    assert_memory_equal(&got, want, offsetof(vptq_vq_shape, has_perm)); /* no padding */
    assert_int_equal(got.has_perm, want->has_perm);
    assert_int_equal(got.has_norm, want->has_norm);
    assert_int_equal(got.int8, want->int8);
}

static void test_shape(void **state)
{
    (void)state;
    vptq_encoder_settings s = vptq_encoder_defaults();
    s.v = 6;
    s.k = 1024;
    s.k_res = 64;
    const vptq_vq_shape one = {50, 96, 6, 1024, 64, 1, 96, 0, 0, 0, false, true, false};
    assert_shape(&s, &one);
    s.codebook_grid = VPTQ_GRID_INT8;
    const vptq_vq_shape grid = {50, 96, 6, 1024, 64, 1, 96, 0, 0, 0, false, true, true};
    assert_shape(&s, &grid);
    s.codebook_grid = VPTQ_GRID_NONE;
    s.groups = 4;
    const vptq_vq_shape four = {50, 96, 6, 1024, 64, 4, 24, 0, 0, 0, true, true, false};
    assert_shape(&s, &four);
    s.perm = false;
    s.norm = VPTQ_NORM_NONE; /* scale and bias are stored even so */
    vptq_vq_shape got = vptq_encoder_shape(&s, 50, 96);
    assert_false(got.has_perm);
    assert_true(got.has_norm);
    s.groups = 1;
    s.group_size = 32;
    got = vptq_encoder_shape(&s, 50, 96);
    assert_int_equal(got.groups, 3);
    assert_int_equal(got.group_size, 32);
    s.outliers = 3; /* 2.88 columns, rounded up until the rest divides into whole groups */
    s.v0 = 5;
    s.k0 = 512;
    const vptq_vq_shape outliers = {50, 96, 6, 1024, 64, 2, 32, 32, 5, 512, true, true, false};
    assert_shape(&s, &outliers);
}

/* ceil(percent * in), not one more where the product is a whole number. */
static void test_outlier_columns(void **state)
{
    (void)state;
    static const struct {
        double percent;
        uint32_t in, columns;
    } row[] = {{1, 100, 1},   {7, 100, 7},    {14, 50, 7},    {1.1, 3000, 33},
               {29, 100, 29}, {0.1, 1536, 2}, {0.01, 64, 1},  {2, 576, 12},
               {5, 576, 29},  {57, 100, 57},  {0.7, 1000, 7}, {33.3, 1000, 333}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        vptq_encoder_settings s = vptq_encoder_defaults();
        s.outliers = row[i].percent;
        assert_int_equal(vptq_encoder_shape(&s, 8, row[i].in).outliers, row[i].columns);
    }
}

VTEST_MAIN(cmocka_unit_test(test_table_covers_everything),
           cmocka_unit_test(test_values_read_back), cmocka_unit_test(test_ranges),
           cmocka_unit_test(test_choices), cmocka_unit_test(test_encoders),
           cmocka_unit_test(test_encoders_are_valid), cmocka_unit_test(test_refused_settings),
           cmocka_unit_test(test_fields_out_of_range), cmocka_unit_test(test_methods),
           cmocka_unit_test(test_additive_methods), cmocka_unit_test(test_activation_bits),
           cmocka_unit_test(test_patterns), cmocka_unit_test(test_shape),
           cmocka_unit_test(test_outlier_columns))
