/* Saved base logits: files written from the specification by
 * tests/golden/make_kld_base_corpus.py, round trips, and damaged files. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/vptq/kld_base.h"
#include "tests/support/vtest.h"

/* ---- files of another implementation ---- */

typedef struct corpus_case {
    const char *name;
    vptq_kld_base_head head;
    double tolerance; /* half a step of the codes, plus rounding to float */
} corpus_case;

/* Value k of record i as in the script. */
static double corpus_value(const vptq_kld_base_head *h, size_t i, size_t k)
{
    if (h->precision == VPTQ_KLD_BASE_COMPACT)
        return -1.0 - (double)((i + k) % h->entries);
    double sum = 0;
    for (size_t j = 0; j < h->vocab; j++)
        sum += (double)(1 + (i * 5 + j * 3) % 11);
    return log((double)(1 + (i * 5 + k * 3) % 11) / sum);
}

static void check_corpus_record(const corpus_case *c, size_t i, const uint8_t *bytes)
{
    const vptq_kld_base_head *h = &c->head;
    const vptq_kld_base_record r = vptq_kld_base_record_at(h, bytes);
    size_t best = 0;
    double sum = 0;
    for (size_t k = 0; k < h->entries; k++) {
        double want = corpus_value(h, i, k), got = vptq_kld_base_log(&r, k);
        size_t step = h->vocab / h->entries;
        assert_int_equal(vptq_kld_base_id(&r, k),
                         h->precision == VPTQ_KLD_BASE_FULL ? k : k * step + i % step);
        assert_close_f64(&got, &want, 1, c->tolerance, 0);
        best = want > corpus_value(h, i, best) ? k : best;
        sum += exp(want);
    }
    assert_int_equal(r.likeliest, vptq_kld_base_id(&r, best));
    if (h->precision == VPTQ_KLD_BASE_FULL)
        assert_true(r.target == -1.5f && isinf(r.tail) && r.tail < 0);
    else
        assert_true(r.target == -3.25f && fabs((double)r.tail - log(1 - sum)) < 1e-6);
}

static void check_corpus(const corpus_case *c)
{
    char path[4096];
    vptq_err err = {0};
    vptq_mem mem;
    vptq_kld_base_file f;
    vptq_mem_init(&mem, 0);
    vtest_path(path, sizeof path, "tests/fuzz/corpus/kld_base", c->name);
    assert_ok(vptq_kld_base_file_open(path, &mem, &f, &err), &err);
    const vptq_kld_base_head *h = &c->head;
    assert_int_equal(f.head.precision, h->precision);
    assert_int_equal(f.head.protocol, h->protocol);
    assert_int_equal(f.head.vocab, h->vocab);
    assert_int_equal(f.head.entries, h->entries);
    assert_int_equal(f.head.context, h->context);
    assert_int_equal(f.head.windows, h->windows);
    assert_int_equal(f.head.bos, h->bos);
    assert_true(f.head.model == 0x0123456789ABCDEF && f.head.vocabulary == 0xFEDCBA9876543210);
    assert_string_equal(f.head.name, h->name);
    for (size_t i = 0; i < (size_t)h->windows * h->context; i++)
        assert_int_equal(f.ids[i], i * 7 % h->vocab);
    const size_t size = vptq_kld_base_record_bytes(h),
                 n = h->windows * vptq_kld_base_positions(h);
    uint8_t *bytes = vtest_alloc(n, size), *one = vtest_alloc(1, size);
    assert_ok(vptq_kld_base_file_read(&f, 0, n, bytes, &err), &err);
    for (size_t i = 0; i < n; i++) {
        check_corpus_record(c, i, bytes + i * size);
        assert_ok(vptq_kld_base_file_read(&f, i, 1, one, &err), &err);
        assert_memory_equal(one, bytes + i * size, size);
    }
    free(bytes);
    free(one);
    vptq_kld_base_file_release(&f);
    assert_int_equal(mem.used, 0);
}

static void test_corpus(void **state)
{
    (void)state;
    static const corpus_case cases[] = {
        {"compact",
         {VPTQ_KLD_BASE_COMPACT, VPTQ_KLD_BASE_GPTQ, 48, 5, 6, 3, -1, 0, 0, "model"},
         4e-5},
        {"halves",
         {VPTQ_KLD_BASE_COMPACT, VPTQ_KLD_BASE_LLAMA_CPP, 48, 8, 8, 2, 1, 0, 0, "model"},
         6e-5},
        {"full", {VPTQ_KLD_BASE_FULL, VPTQ_KLD_BASE_GPTQ, 9, 9, 4, 2, -1, 0, 0, "model"}, 2e-5},
        {"wide_ids",
         {VPTQ_KLD_BASE_COMPACT, VPTQ_KLD_BASE_GPTQ, 70000, 3, 3, 1, -1, 0, 0,
          "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"},
         2e-5},
        {"one", {VPTQ_KLD_BASE_COMPACT, VPTQ_KLD_BASE_GPTQ, 2, 1, 2, 1, -1, 0, 0, "model"}, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_corpus(&cases[i]);
}

/* ---- round trip ---- */

enum { VOCAB = 40, TOP = 6, CONTEXT = 5, WINDOWS = 2, RECORDS = WINDOWS * (CONTEXT - 1) };

static const vptq_kld_base_head small = {.precision = VPTQ_KLD_BASE_COMPACT,
                                         .vocab = VOCAB,
                                         .entries = TOP,
                                         .context = CONTEXT,
                                         .windows = WINDOWS,
                                         .bos = -1,
                                         .model = 1,
                                         .vocabulary = 2,
                                         .name = "small"};

static double small_value(size_t i, size_t k)
{
    return k == 3 ? -30.0 - (double)i : -0.7 * (double)(1 + k) - 0.01 * (double)i;
}

/* Writes the file `path`; `force` replaces an existing one. */
static vptq_status write_small(const char *path, bool force, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    int32_t ids[WINDOWS * CONTEXT];
    uint8_t bytes[256];
    double values[TOP];
    uint32_t which[TOP];
    vptq_kld_base_writer w;
    assert_true(vptq_kld_base_record_bytes(&small) <= sizeof bytes);
    for (int i = 0; i < WINDOWS * CONTEXT; i++)
        ids[i] = i;
    VPTQ_TRY(vptq_kld_base_writer_open(path, force, &small, ids, &w, err));
    for (size_t i = 0; i < RECORDS; i++) {
        for (uint32_t k = 0; k < TOP; k++) {
            values[k] = small_value(i, k);
            which[k] = 5 * k + 2;
        }
        vptq_kld_base_record_fill(&small, i,
                                  &(vptq_kld_base_values){2, -4.5, -3.5, values, which}, bytes);
        VPTQ_TRY(vptq_kld_base_writer_add(&w, bytes, 1, err));
    }
    assert_false(vptq_path_exists(path) && !force);
    VPTQ_TRY(vptq_kld_base_writer_commit(&w, err));
out:
    vptq_kld_base_writer_abort(&w);
    return st;
}

static void test_round_trip(void **state)
{
    char path[4096];
    vptq_err err = {0};
    vptq_kld_base_file f;
    uint8_t bytes[256];
    vtest_path(path, sizeof path, *state, "base");
    assert_ok(write_small(path, false, &err), &err);
    assert_ok(vptq_kld_base_file_open(path, NULL, &f, &err), &err);
    assert_string_equal(f.head.name, "small");
    for (size_t i = 0; i < RECORDS; i++) {
        assert_ok(vptq_kld_base_file_read(&f, i, 1, bytes, &err), &err);
        const vptq_kld_base_record r = vptq_kld_base_record_at(&f.head, bytes);
        const double highest = small_value(i, 0);
        assert_true(r.highest == (float)highest && r.target == -4.5f && r.tail == -3.5f);
        assert_true(fabs((double)r.lowest - (highest - 24)) < 1e-5); /* the end of the range */
        for (size_t k = 0; k < TOP; k++) {
            double want = fmax(small_value(i, k), highest - 24), got = vptq_kld_base_log(&r, k);
            assert_close_f64(&got, &want, 1, 24.0 / 65535 / 2 + 4e-6, 0);
            assert_int_equal(vptq_kld_base_id(&r, k), 5 * k + 2);
        }
    }
    vptq_kld_base_file_release(&f);
    assert_fails(write_small(path, false, &err), VPTQ_E_EXISTS, &err, "already exists");
    assert_ok(write_small(path, true, &err), &err);
}

/* ---- damaged files ---- */

static vptq_status read_all(const char *path, vptq_mem *mem, vptq_err *err)
{
    vptq_kld_base_file f;
    vptq_status st = vptq_kld_base_file_open(path, mem, &f, err);
    if (st)
        return st;
    const size_t size = vptq_kld_base_record_bytes(&f.head);
    uint8_t *bytes = vtest_alloc(1, size);
    for (uint64_t i = 0; !st && i < f.head.windows * vptq_kld_base_positions(&f.head); i++)
        st = vptq_kld_base_file_read(&f, i, 1, bytes, err);
    free(bytes);
    vptq_kld_base_file_release(&f);
    return st;
}

/* Changes every byte, and tries every wrong length. */
static void test_damaged(void **state)
{
    char path[4096], bad[4096];
    vptq_err err = {0};
    size_t size;
    vtest_path(path, sizeof path, *state, "base");
    vtest_path(bad, sizeof bad, *state, "bad");
    assert_ok(write_small(path, false, &err), &err);
    char *data = vtest_read_file(path, &size);
    for (size_t i = 0; i < size; i++) {
        data[i] ^= 0x20;
        vtest_write_file(bad, data, size);
        vptq_status st = read_all(bad, NULL, &err);
        assert_true(st == VPTQ_E_CHECKSUM || (i < 12 && st));
        assert_non_null(strstr(err.text, "bad: "));
        data[i] ^= 0x20;
    }
    for (size_t n = 0; n < size; n += n < 140 ? 1 : 17) {
        vtest_write_file(bad, data, n);
        assert_fails(read_all(bad, NULL, &err), VPTQ_E_FORMAT, &err, "bad: ");
    }
    data = realloc(data, size + 1);
    data[size] = 0;
    vtest_write_file(bad, data, size + 1);
    assert_fails(read_all(bad, NULL, &err), VPTQ_E_FORMAT, &err, "2 windows of 5 tokens need");
    free(data);
}

enum { HEAD = 136, IDS = 4 * WINDOWS * CONTEXT };

/* Puts an invalid number into the file at `path`, with valid checksums, and reads the result.
 */
static void check_invalid(const char *path, const char *bad, size_t at, uint32_t value,
                          const char *part)
{
    vptq_err err = {0};
    size_t size;
    const size_t record = vptq_kld_base_record_bytes(&small);
    uint8_t *b = (uint8_t *)vtest_read_file(path, &size), *r = b + HEAD + IDS;
    vptq_put_le(b + at, value, 4);
    vptq_put_le(b + 128, vptq_hash(b, 128, 0), 8);
    vptq_put_le(r + record - 8, vptq_hash(r, record - 8, 0), 8);
    vtest_write_file(bad, b, size);
    vptq_status st = read_all(bad, NULL, &err);
    if (!st || !strstr(err.text, part))
        fail_msg("0x%x at byte %zu: '%s', expected '%s'", value, at, st ? err.text : "", part);
    free(b);
}

static void test_invalid_numbers(void **state)
{
    static const struct {
        size_t at;
        uint32_t value;
        const char *part;
    } cases[] = {
        {8, 2, "version 2 of saved base logits, expected 1"},
        {12, 2, "invalid precision"},
        {12, 1, "invalid number of entries"},
        {16, 0, "invalid size of the vocabulary"},
        {16, 0x80000000, "invalid size of the vocabulary"},
        {16, 9, "token 9 has id 9, expected less than 9"},
        {20, 0, "invalid number of entries"},
        {20, VOCAB + 1, "invalid number of entries"},
        {24, 0, "invalid context"},
        {24, 1, "invalid context"},
        {24, 0x7fffffff, "windows of 2147483647 tokens need"},
        {28, 2, "invalid protocol"},
        {32, 0, "invalid number of windows"},
        {32, 3, "3 windows of 5 tokens need"},
        {32, 0xffffffff, "windows of 5 tokens need"},
        {36, VOCAB, "invalid BOS id"},
        {36, 0xfffffffe, "invalid BOS id"},
        {124, 0x78787878, "invalid name"},
    };
    static const struct {
        size_t at; /* from the start of the record */
        uint32_t value;
    } records[] = {
        {0, 0x7fc00000},   /* target NaN */
        {0, 0x3f800000},   /* target 1 */
        {4, VOCAB},        /* likeliest token */
        {8, 0x7f800000},   /* highest infinite */
        {12, 0xff800000},  /* lowest infinite */
        {12, 0},           /* lowest above the highest */
        {16, 0x7fc00000},  /* tail NaN */
        {24 + 2 * TOP, 7}, /* ids 7, 0, 12 .. */
    };
    char path[4096], bad[4096];
    vptq_err err = {0};
    vtest_path(path, sizeof path, *state, "base");
    vtest_path(bad, sizeof bad, *state, "bad");
    assert_ok(write_small(path, false, &err), &err);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_invalid(path, bad, cases[i].at, cases[i].value, cases[i].part);
    for (size_t i = 0; i < sizeof records / sizeof *records; i++)
        check_invalid(path, bad, HEAD + IDS + records[i].at, records[i].value,
                      "record 0 has an invalid");
    assert_fails(read_all(*state, NULL, &err), VPTQ_E_IO, &err, "directory");
}

static vptq_status walk(void *arg, vptq_mem *mem, vptq_err *err)
{
    return read_all(arg, mem, err);
}

static void test_out_of_memory(void **state)
{
    char path[4096];
    vptq_err err = {0};
    vtest_path(path, sizeof path, *state, "base");
    assert_ok(write_small(path, false, &err), &err);
    assert_true(vtest_oom_walk(walk, path) >= 1);
}

VTEST_MAIN(cmocka_unit_test(test_corpus), scratch_test(test_round_trip),
           scratch_test(test_damaged), scratch_test(test_invalid_numbers),
           scratch_test(test_out_of_memory))
