/* Tests one Hessian in the formats of other programs (tests/golden/make_foreign_hessians.py):
 * every format gives the numbers that numpy computed, and a bad file is refused by name. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/gguf/imatrix.h"
#include "formats/gguf/write.h"
#include "formats/torch/file.h"
#include "formats/torch/npy.h"
#include "hessian/import.h"
#include "tests/support/devices.h"

enum { N = 12, TOKENS = 40, TRIANGLE = N * (N + 1) / 2 };
static const char golden[] = "tests/golden/foreign/";
static const char *const inputs[] = {"qkv", "o", "up", "down"};

typedef struct truth {
    double h[N * N], mean[N], mean_diag;
} truth;

static void load(const char *name, double *to, size_t n)
{
    char path[128];
    vtest_npy a;
    snprintf(path, sizeof path, "%s%s", golden, name);
    vtest_npy_load(path, &a);
    assert_int_equal(a.count, n);
    for (size_t i = 0; i < n; i++)
        to[i] = vtest_npy_at(&a, i);
    vtest_npy_free(&a);
}

static truth load_truth(void)
{
    truth t = {.mean_diag = 0};
    load("h.npy", t.h, sizeof t.h / sizeof t.h[0]);
    load("mean.npy", t.mean, N);
    for (size_t i = 0; i < N; i++)
        t.mean_diag += t.h[i * N + i] / N;
    return t;
}

static void copy_golden(const char *from, const char *dir, const char *name)
{
    char source[128];
    snprintf(source, sizeof source, "%s%s", golden, from);
    vtest_copy_file(source, dir, name);
}

/* Makes a directory of one layer whose four inputs all come from the same file. */
static void put_dir(const char *dir, const char *file)
{
    vptq_err err = {0};
    char name[64];
    assert_ok(vptq_dir_make(dir, &err), &err);
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "0_%s%s", inputs[i], strrchr(file, '.'));
        copy_golden(file, dir, name);
    }
}

typedef struct rig {
    devices_one one;
    char from[4096], to[4096], back[4096];
} rig;

static rig *open_rig(void **state)
{
    rig *r = vtest_alloc(1, sizeof *r);
    devices_open(&r->one, "ref", VPTQ_SIMD_NONE, 1);
    vtest_path(r->from, sizeof r->from, *state, "from");
    vtest_path(r->to, sizeof r->to, *state, "to");
    vtest_path(r->back, sizeof r->back, *state, "back");
    return r;
}

static void close_rig(rig *r)
{
    devices_close(&r->one);
    free(r);
}

/* Checks |H_ij - scale truth_ij| against `share` of the largest truth_ij. */
static void expect_hessian(const char *dir, const truth *t, double scale, double share)
{
    vptq_err err = {0};
    vptq_hessian_file h;
    double most = 0;
    for (size_t i = 0; i < N * N; i++)
        most = fabs(t->h[i]) > most ? fabs(t->h[i]) : most;
    for (int input = 0; input < 4; input++) {
        assert_ok(vptq_hessian_dir_load(dir, 0, (vptq_input)input, N, NULL, &h, &err), &err);
        for (size_t i = 0, at = 0; i < N; i++)
            for (size_t j = 0; j <= i; j++, at++)
                if (!(fabs((double)h.lower[at] - scale * t->h[i * N + j]) <=
                      share * most * scale))
                    fail_msg("%s (%zu, %zu): %.9g, expected %.9g", inputs[input], i, j,
                             (double)h.lower[at], scale * t->h[i * N + j]);
        vptq_hessian_file_release(&h);
    }
}

static void test_numpy(void **state)
{
    static const char *const files[] = {"h.npy", "fortran.npy", "version3.npy"};
    const truth t = load_truth();
    rig *r = open_rig(state);
    vptq_err err = {0};
    vptq_exchange made;
    for (int i = 0; i < 3; i++) {
        put_dir(r->from, files[i]);
        assert_ok(vptq_hessian_import(&r->one.dev, r->from, r->to, i > 0, &made, &err), &err);
        assert_int_equal(made.form, VPTQ_FOREIGN_NUMPY);
        assert_int_equal(made.dir.tokens, 0);
        assert_false(made.dir.diagonal);
        expect_hessian(r->to, &t, 1, 1e-7);
    }
    close_rig(r);
}

static void test_covariance(void **state)
{
    const truth t = load_truth();
    rig *r = open_rig(state);
    vptq_err err = {0};
    vptq_exchange made;
    put_dir(r->from, "covariance.pt");
    assert_ok(vptq_hessian_import(&r->one.dev, r->from, r->to, false, &made, &err), &err);
    assert_int_equal(made.form, VPTQ_FOREIGN_COVARIANCE);
    assert_int_equal(made.dir.tokens, TOKENS);
    expect_hessian(r->to, &t, 1, 1e-6);
    close_rig(r);
}

/* PyTorch's factor of the inverse, computed in float like the published tools do. */
static void test_inverse(void **state)
{
    const truth t = load_truth();
    rig *r = open_rig(state);
    vptq_err err = {0};
    vptq_exchange made;
    for (int sorted = 0; sorted < 2; sorted++) {
        put_dir(r->from, sorted ? "inverse_sorted.pt" : "inverse.pt");
        assert_ok(vptq_hessian_import(&r->one.dev, r->from, r->to, sorted, &made, &err), &err);
        assert_int_equal(made.form, VPTQ_FOREIGN_INVERSE);
        assert_true(fabs(made.ridge - 0.0201) < 1e-12);
        expect_hessian(r->to, &t, 1 / t.mean_diag, 1e-4);
    }
    put_dir(r->from, "inverse_other.pt");
    assert_ok(vptq_hessian_import(&r->one.dev, r->from, r->to, true, &made, &err), &err);
    assert_true(made.ridge == 0);
    expect_hessian(r->to, &t, 0.01, 1e-4);

    vtest_path(r->back, sizeof r->back, r->from,
               "0_down.pt"); /* one input with damping, the others without */
    copy_golden("inverse.pt", r->from, "0_down.pt");
    assert_fails(
        vptq_hessian_import(&r->one.dev, r->from, r->to, true, &made, &err), VPTQ_E_FORMAT,
        &err, "0_down.pt: its damping is that of the published tools, unlike the files before");
    copy_golden("covariance.pt", r->from, "0_down.pt");
    assert_fails(vptq_hessian_import(&r->one.dev, r->from, r->to, true, &made, &err),
                 VPTQ_E_FORMAT, &err,
                 "form is 'pytorch covariance', but that of the files before");
    close_rig(r);
}

/* Our factor equals PyTorch's and imports again. */
static void test_export_inverse(void **state)
{
    const truth t = load_truth();
    rig *r = open_rig(state);
    vptq_err err = {0};
    vptq_exchange made;
    vptq_torch_file ours, theirs;
    char path[4096];
    put_dir(r->from, "h.npy");
    assert_ok(vptq_hessian_import(&r->one.dev, r->from, r->to, false, &made, &err), &err);
    assert_ok(
        vptq_hessian_export(&r->one.dev, r->to, VPTQ_FOREIGN_INVERSE, r->back, &made, &err),
        &err);
    vtest_path(path, sizeof path, r->back, "0_up.pt");
    assert_ok(vptq_torch_read(path, NULL, &ours, &err), &err);
    snprintf(path, sizeof path, "%sinverse.pt", golden);
    assert_ok(vptq_torch_read(path, NULL, &theirs, &err), &err);
    assert_int_equal(ours.count, theirs.count);
    float got[N * N], want[N * N];
    assert_ok(vptq_tensor_read(&vptq_torch_find(&ours, "invH")->tensor, 0, N, got, &err), &err);
    assert_ok(vptq_tensor_read(&vptq_torch_find(&theirs, "invH")->tensor, 0, N, want, &err),
              &err);
    assert_close(got, want, N * N, 1e-4, 1e-4);
    for (int i = 0; i < 2; i++) {
        const char *key = i ? "zero_idx" : "perm";
        const vptq_tensor *a = &vptq_torch_find(&ours, key)->tensor;
        const vptq_tensor *b = &vptq_torch_find(&theirs, key)->tensor;
        assert_int_equal(a->type, b->type);
        assert_int_equal(a->bytes, b->bytes);
        assert_memory_equal(a->data, b->data, a->bytes);
    }
    vptq_torch_release(&ours);
    vptq_torch_release(&theirs);
    assert_ok(vptq_hessian_import(&r->one.dev, r->back, r->to, true, &made, &err), &err);
    expect_hessian(r->to, &t, 1 / t.mean_diag, 1e-5);
    close_rig(r);
}

static void expect_diagonals(const char *dir, const truth *t, uint64_t tokens)
{
    vptq_err err = {0};
    vptq_hessian_file h;
    for (int input = 0; input < 4; input++) {
        const double s = (input + 1) * (input + 1);
        assert_ok(vptq_hessian_dir_load(dir, 0, (vptq_input)input, N, NULL, &h, &err), &err);
        assert_int_equal(h.tokens, tokens);
        for (size_t i = 0; i < N; i++) {
            const float *row = h.lower + i * (i + 1) / 2;
            assert_true(fabs((double)h.diagonal[i] / (s * t->h[i * N + i]) - 1) < 1e-6);
            assert_true(row[i] == h.diagonal[i]);
            for (size_t j = 0; j < i; j++)
                assert_true(row[j] == 0);
        }
        vptq_hessian_file_release(&h);
        assert_fails(vptq_hessian_dir_load(dir, 0, (vptq_input)input, 0, NULL, &h, &err),
                     VPTQ_E_UNSUPPORTED, &err, "holds only the diagonal of a Hessian");
    }
}

static vptq_status count_rows(void *arg, uint32_t layer, const char *input,
                              const vptq_hessian_stats *s, vptq_err *err)
{
    (void)layer;
    (void)err;
    assert_true(s->diagonal);
    assert_string_equal(s->verdict, s->tokens ? "few samples" : "diagonal only");
    assert_true(isnan(s->mean_share) == (!s->tokens || strcmp(input, "qkv") != 0));
    ++*(int *)arg;
    return VPTQ_OK;
}

static void test_imatrix(void **state)
{
    static const char *const files[] = {"imatrix.dat", "imatrix.gguf"};
    const truth t = load_truth();
    rig *r = open_rig(state);
    vptq_err err = {0};
    vptq_exchange made;
    vptq_hessian_dir opened;
    vptq_hessian_file h;
    char path[128];
    for (int i = 0; i < 2; i++) {
        int rows = 0;
        snprintf(path, sizeof path, "%s%s", golden, files[i]);
        assert_ok(vptq_hessian_import(&r->one.dev, path, r->to, i > 0, &made, &err), &err);
        assert_int_equal(made.form, VPTQ_FOREIGN_IMATRIX);
        assert_int_equal(made.dir.tokens, i ? TOKENS : 0);
        assert_ok(vptq_hessian_dir_open(r->to, &opened, &err), &err);
        assert_true(opened.diagonal);
        expect_diagonals(r->to, &t, i ? TOKENS : 0);
        assert_ok(vptq_hessian_show(&r->one.dev, r->to, count_rows, &rows, &err), &err);
        assert_int_equal(rows, 4);
    }
    assert_ok(vptq_hessian_dir_load(r->to, 0, VPTQ_INPUT_QKV, N, NULL, &h, &err), &err);
    for (size_t i = 0; i < N; i++)
        assert_true(fabs((double)h.mean[i] - t.mean[i]) < 1e-6);
    vptq_hessian_file_release(&h);

    const char *both[] = {r->to, r->to};
    assert_fails(vptq_hessian_merge(&r->one.ctx, both, 2, r->back, false, &err),
                 VPTQ_E_UNSUPPORTED, &err, "holds only the diagonals of Hessians");
    assert_fails(
        vptq_hessian_export(&r->one.dev, r->to, VPTQ_FOREIGN_COVARIANCE, r->back, &made, &err),
        VPTQ_E_UNSUPPORTED, &err, "holds only the diagonals of Hessians");
    assert_false(vptq_path_exists(r->back));
    close_rig(r);
}

/* ---- bad files ---- */

static void test_bad_arrays(void **state)
{
    static const struct {
        const char *file, *part;
        vptq_status status;
    } bad[] = {
        {"asymmetric.npy", "not a symmetric matrix", VPTQ_E_NUMERIC},
        {"wide.npy", "not a square matrix", VPTQ_E_SHAPE},
        {"mean.npy", "not a square matrix", VPTQ_E_SHAPE},
        {"big.npy", "have type '>f8', expected '<f4' or '<f8'", VPTQ_E_UNSUPPORTED},
        {"whole.npy", "have type '<i8', expected '<f4' or '<f8'", VPTQ_E_UNSUPPORTED},
        {"records.npy", "has a type that is not a string", VPTQ_E_FORMAT},
    };
    rig *r = open_rig(state);
    vptq_err err = {0};
    vptq_exchange made;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        put_dir(r->from, bad[i].file);
        assert_fails(vptq_hessian_import(&r->one.dev, r->from, r->to, false, &made, &err),
                     bad[i].status, &err, bad[i].part);
        assert_false(vptq_path_exists(r->to));
    }
    copy_golden("covariance.pt", r->from, "0_o.pt");
    assert_fails(vptq_hessian_import(&r->one.dev, r->from, r->to, false, &made, &err),
                 VPTQ_E_FORMAT, &err, "files, expected one kind");
    close_rig(r);
}

/* Opens a file made of a version 1 header with `text` and `bytes` bytes of numbers. */
static vptq_status open_made(const char *path, const char *text, size_t bytes, vptq_err *err)
{
    char file[512] = "\x93NUMPY\x01";
    vptq_npy a;
    size_t len = strlen(text);
    assert_true(10 + len + bytes <= sizeof file);
    file[8] = (char)(len & 255);
    file[9] = (char)(len >> 8);
    memcpy(file + 10, text, len);
    vtest_write_file(path, file, 10 + len + bytes);
    vptq_status st = vptq_npy_open(path, &a, err);
    if (!st)
        vptq_npy_release(&a);
    return st;
}

static void test_headers(void **state)
{
    static const struct {
        const char *text;
        size_t bytes;
        const char *part; /* part of the error text; NULL: the header is valid */
    } cases[] = {
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\n", 12, NULL},
        {"{\"shape\":(),\"descr\":\"<f8\",\"fortran_order\":True}", 8, NULL},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (0, 9)}", 0, NULL},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\n", 13, "do not match"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\n", 11, "do not match"},
        {"{'descr': '<f4', 'fortran_order': False}", 4, "lacks one of"},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': ()}", 4, "neither True nor False"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", 4, "no usable shape"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1 2)}", 4, "no usable shape"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}", 4,
         "no usable shape"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296,4294967296,8)}", 4,
         "do not match"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", 4,
         "no usable shape"},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': ()}", 4,
         "a key other than"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': ()} x", 4, "lacks one of"},
        {"{'descr: 1}", 4, "is not a dictionary"},
        {"['descr']", 4, "is not a dictionary"},
        {"", 4, "is not a dictionary"},
    };
    char path[4096];
    vptq_err err = {0};
    vtest_path(path, sizeof path, *state, "a.npy");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (cases[i].part)
            assert_fails(open_made(path, cases[i].text, cases[i].bytes, &err), VPTQ_E_FORMAT,
                         &err, cases[i].part);
        else
            assert_ok(open_made(path, cases[i].text, cases[i].bytes, &err), &err);
}

static void test_bad_imatrix(void **state)
{
    static const int32_t name = 0x6d2e6b62; /* four letters */
    const int32_t cases[][7] = {
        /* entries, length, name, calls, values, numbers ... */
        {0, 4, name, 1, 1, 0, 0},
        {-1, 4, name, 1, 1, 0, 0},
        {1 << 30, 4, name, 1, 1, 0, 0},
        {1, 1 << 30, name, 1, 1, 0, 0},
        {1, 0, name, 1, 1, 0, 0},
        {1, 4, 0, 1, 1, 0, 0},
        {1, 4, name, -1, 1, 0, 0},
        {1, 4, name, 1, 0, 0, 0},
        {1, 4, name, 1, INT32_MAX, 0, 0},
        {1, 4, name, 1, 1, -1, 0},
        {1, 4, name, 1, 1, INT32_MIN | 0x3f800000, 0},
    };
    char path[4096];
    vptq_err err = {0};
    vptq_imatrix im;
    vtest_path(path, sizeof path, *state, "imatrix.dat");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        vtest_write_file(path, cases[i], sizeof cases[i]);
        vptq_status st = vptq_imatrix_read(path, NULL, &im, &err);
        if (st != VPTQ_E_FORMAT && st != VPTQ_E_NUMERIC)
            fail_msg("case %zu: %d", i, (int)st);
    }
    const int32_t fine[] = {1, 4, name, 2, 1, 0x40000000, 0};
    vtest_write_file(path, fine, sizeof fine);
    assert_ok(vptq_imatrix_read(path, NULL, &im, &err), &err);
    assert_int_equal(im.count, 1);
    assert_true(im.entries[0].mean_square[0] == 1);
    vptq_imatrix_release(&im);
    const int32_t twice[] = {2, 4, name, 2, 1, 0, 4, name, 2, 1, 0};
    vtest_write_file(path, twice, sizeof twice);
    assert_fails(vptq_imatrix_read(path, NULL, &im, &err), VPTQ_E_FORMAT, &err,
                 "duplicate entry 'bk.m'");
    vptq_device none = {0};
    vptq_ctx ctx = {.threads = 1};
    vptq_exchange made;
    char to[4096];
    none.ctx = &ctx;
    vtest_path(to, sizeof to, *state, "to");
    vtest_write_file(path, fine, sizeof fine);
    assert_fails(vptq_hessian_import(&none, path, to, false, &made, &err), VPTQ_E_FORMAT, &err,
                 "the imatrix has no entry for a block");

    /* a missing entry is found before anything is written */
    unsigned char one[64] = {1, 0, 0, 0, 19, 0, 0, 0};
    const int32_t rest[] = {1, 1, 0x40000000};
    memcpy(one + 8, "blk.0.attn_q.weight", 19);
    memcpy(one + 27, rest, sizeof rest);
    vtest_write_file(path, one, 27 + sizeof rest);
    vtest_write_file(to, "", 0);
    assert_fails(vptq_hessian_import(&none, path, to, false, &made, &err), VPTQ_E_FORMAT, &err,
                 "imatrix.dat: no entry for input o of block 0");
}

/* A sum whose shape differs from that of its sum of squares, with the same number of
 * elements. */
static void test_imatrix_shapes(void **state)
{
    static const float numbers[4] = {1, 2, 3, 4};
    char path[4096];
    vptq_err err = {0};
    vptq_imatrix im;
    vtest_path(path, sizeof path, *state, "imatrix.gguf");
    for (int turned = 0; turned < 2; turned++) {
        const vptq_tensor tensors[] = {
            {.name = "blk.0.attn_q.weight.in_sum2", .dims = 1, .shape = {4}, .bytes = 16},
            {.name = "blk.0.attn_q.weight.counts", .dims = 1, .shape = {1}, .bytes = 4},
            {.name = "blk.0.attn_q.weight.in_sum",
             .dims = 2,
             .shape = {turned ? 4 : 1, turned ? 1 : 4},
             .bytes = 16}};
        vptq_gguf_keys keys;
        vptq_gguf_writer w;
        vptq_gguf_keys_init(&keys, NULL);
        assert_ok(vptq_gguf_writer_open(path, true, &keys, tensors, 3, &w, &err), &err);
        for (int i = 0; i < 3; i++)
            assert_ok(vptq_gguf_write(&w, numbers, tensors[i].bytes, &err), &err);
        assert_ok(vptq_gguf_writer_commit(&w, &err), &err);
        vptq_gguf_keys_release(&keys);
        if (turned) {
            assert_fails(vptq_imatrix_read(path, NULL, &im, &err), VPTQ_E_SHAPE, &err,
                         "tensor 'blk.0.attn_q.weight.in_sum' is not a row of 4 numbers");
            continue;
        }
        assert_ok(vptq_imatrix_read(path, NULL, &im, &err), &err);
        assert_int_equal(im.entries[0].n, 4);
        assert_true(im.entries[0].mean[3] == 4 && im.entries[0].mean_square[3] == 4);
        vptq_imatrix_release(&im);
    }
}

/* ---- out of memory ---- */

typedef struct walk {
    rig *r;
    const char *from;
} walk;

static vptq_status import_counted(void *arg, vptq_mem *mem, vptq_err *err)
{
    const walk *w = arg;
    vptq_device dev = w->r->one.dev;
    vptq_ctx ctx = {.mem = mem, .threads = 1};
    vptq_exchange made;
    dev.ctx = &ctx;
    return vptq_hessian_import(&dev, w->from, w->r->to, true, &made, err);
}

static void test_out_of_memory(void **state)
{
    static const char *const files[] = {"h.npy", "inverse.pt", "imatrix.dat", "imatrix.gguf"};
    char path[128];
    for (int i = 0; i < 4; i++) {
        rig *r = open_rig(state);
        snprintf(path, sizeof path, "%s%s", golden, files[i]);
        walk w = {r, i < 2 ? r->from : path};
        if (i < 2) {
            char dir[4096];
            snprintf(dir, sizeof dir, "%.4000s%d", r->from, i);
            memcpy(r->from, dir, sizeof dir);
            put_dir(r->from, files[i]);
        }
        vtest_oom_walk(import_counted, &w);
        close_rig(r);
    }
}

VTEST_MAIN(scratch_test(test_numpy), scratch_test(test_covariance), scratch_test(test_inverse),
           scratch_test(test_export_inverse), scratch_test(test_imatrix),
           scratch_test(test_bad_arrays), scratch_test(test_headers),
           scratch_test(test_bad_imatrix), scratch_test(test_imatrix_shapes),
           scratch_test(test_out_of_memory))
