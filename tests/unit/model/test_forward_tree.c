/* Sequences that continue others: every token has the same hidden states as in whole sequences
 * that share nothing, on every kind of device; order, groups, bad input, out of memory. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/model/forward_internal.h"
#include "tests/emu/emu.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

#define ROOT VPTQ_FORWARD_ROOT
enum { HIDDEN = VRIG_HIDDEN, VOCAB = VRIG_VOCAB, LONGEST = 21 };

/* Two trees and, between them, a single sequence; in brackets the tokens.  The window of
 * tiny_mistral has 8 tokens: it begins within parents, after them, and before a token's own
 * sequence.
 *
 *     0 (9) - 1 (4) - 2 (1)              5 (6)    6 (1) - 7 (20)
 *           |       - 3 (8)
 *           - 4 (3)
 */
enum { SEQUENCES = 8, ROWS = 52 };
static const size_t starts[SEQUENCES + 1] = {0, 9, 13, 14, 22, 25, 31, 32, ROWS};
static const size_t parents[SEQUENCES] = {ROOT, 0, 1, 1, 0, ROOT, ROOT, 6};

static void open_tiny(vrig *r, const char *family, const char *backend, int threads)
{
    char path[128];
    snprintf(path, sizeof path, "tests/golden/tiny_%s", family);
    vrig_open_forward(r, path, backend, threads, LONGEST);
}

static int32_t token(size_t row)
{
    return (int32_t)(row * 29 % 47 + row % 2);
}

static vptq_status run_trees(vrig *r, float *hidden, vptq_err *err)
{
    int32_t ids[ROWS];
    const vptq_block_hooks hooks = {.parents = parents};
    for (size_t i = 0; i < ROWS; i++)
        ids[i] = token(i);
    VPTQ_CHECK(vptq_forward_embed(r->f, ids, ROWS, hidden, err));
    for (uint32_t l = 0; l < r->m.desc->layers; l++)
        VPTQ_CHECK(vptq_forward_block_with(r->f, l, starts, SEQUENCES, hidden, &hooks, err));
    return VPTQ_OK;
}

/* Collects the rows of all tokens from the root to the end of sequence s; returns their number.
 */
static size_t whole_sequence(size_t s, size_t rows[LONGEST])
{
    size_t n = parents[s] == ROOT ? 0 : whole_sequence(parents[s], rows);
    for (size_t i = starts[s]; i < starts[s + 1]; i++)
        rows[n++] = i;
    return n;
}

/* Runs sequence s alone from its root on; stores the hidden states of its own rows. */
static void run_alone(vrig *r, size_t s, float *hidden)
{
    size_t rows[LONGEST], n = whole_sequence(s, rows);
    const size_t own = starts[s + 1] - starts[s], one[2] = {0, n};
    int32_t ids[LONGEST];
    float all[LONGEST * VRIG_MAX_HIDDEN];
    const size_t dim = r->m.desc->hidden;
    for (size_t i = 0; i < n; i++)
        ids[i] = token(rows[i]);
    vrig_run_blocks(r, ids, one, 1, all);
    memcpy(hidden + starts[s] * dim, all + (n - own) * dim, own * dim * sizeof *all);
}

/* exact: the same bits, for the reference, which computes row by row.  On other devices the
 * order of sums in attention depends on the number of queries; the tolerance is some 2^-24 of
 * the largest logit for each of a few dozen operations. */
static void check_device(const char *family, const char *backend, bool exact)
{
    vrig r;
    vptq_err err = {0};
    float shared[ROWS * VRIG_MAX_HIDDEN], alone[ROWS * VRIG_MAX_HIDDEN];
    float logits[2][ROWS * VOCAB], largest = 0;
    open_tiny(&r, family, backend, 2);
    assert_ok(run_trees(&r, shared, &err), &err);
    for (size_t s = 0; s < SEQUENCES; s++)
        run_alone(&r, s, alone);
    assert_ok(vptq_forward_logits(r.f, ROWS, shared, logits[0], &err), &err);
    assert_ok(vptq_forward_logits(r.f, ROWS, alone, logits[1], &err), &err);
    for (size_t i = 0; i < ROWS * VOCAB; i++)
        largest = fmaxf(largest, fabsf(logits[1][i]));
    if (exact)
        assert_same_f32(shared, alone, ROWS * r.m.desc->hidden);
    assert_close(logits[0], logits[1], ROWS * VOCAB, exact ? 0 : 2e-6 * (double)largest, 0);
    vrig_close(&r);
}

static void test_same_as_without_sharing(void **state)
{
    (void)state;
    for (int i = 0; i < VRIG_ALL_FAMILIES; i++) {
        check_device(vrig_families[i], "ref", true);
        check_device(vrig_families[i], "cpu", false);
        if (i < VRIG_DEVICE_FAMILIES)
            check_device(vrig_families[i], "emu", false);
    }
}

static void test_threads(void **state)
{
    (void)state;
    float hidden[2][ROWS * HIDDEN];
    for (int i = 0; i < 2; i++) {
        vrig r;
        vptq_err err = {0};
        open_tiny(&r, "qwen3", "cpu", i ? 3 : 1);
        assert_ok(run_trees(&r, hidden[i], &err), &err);
        vrig_close(&r);
    }
    assert_same_f32(hidden[1], hidden[0], ROWS * HIDDEN);
}

/* Groups consist of whole trees. */
static void test_groups(void **state)
{
    (void)state;
    const size_t long_starts[] = {0, 1000, 1900, 2100, 2148, 5000, 5100};
    const size_t long_parents[] = {ROOT, 0, ROOT, 2, 3, ROOT};
    assert_int_equal(vptq_forward_group_trees(starts, parents, SEQUENCES, 0), SEQUENCES);
    assert_int_equal(vptq_forward_group_trees(long_starts, long_parents, 6, 0), 2);
    assert_int_equal(vptq_forward_group_trees(long_starts, long_parents, 6, 2), 5);
    assert_int_equal(vptq_forward_group_trees(long_starts, NULL, 6, 0), 2);
    assert_int_equal(vptq_forward_group_trees(long_starts, NULL, 6, 1), 4);
    assert_int_equal(vptq_forward_trees(starts, parents, SEQUENCES, 0, 31), 6);
    assert_int_equal(vptq_forward_trees(starts, parents, SEQUENCES, 0, 30), 5);
    assert_int_equal(vptq_forward_trees(starts, parents, SEQUENCES, 0, 1), 5);
}

/* The largest number of rows in a product so far. */
static size_t max_rows;

static vptq_status counting_gemm(vptq_dev *dev, const vptq_gemm_args *g, vptq_err *err)
{
    max_rows = g->m > max_rows ? g->m : max_rows;
    return vptq_backend_emu()->gemm(dev, g, err);
}

static vptq_status counting_gemv(vptq_dev *dev, size_t out, size_t in, vptq_dtype type,
                                 const void *w, const vptq_gemv_args *g, vptq_err *err)
{
    max_rows = g->n > max_rows ? g->n : max_rows;
    return vptq_backend_emu()->gemv(dev, out, in, type, w, g, err);
}

/* With memory for one tree at a time. */
static void test_smaller_groups_when_memory_is_short(void **state)
{
    (void)state;
    float hidden[2][ROWS * HIDDEN];
    vptq_backend counting = *vptq_backend_emu();
    counting.gemm = counting_gemm;
    counting.gemv = counting_gemv;
    for (int i = 0; i < 2; i++) {
        vrig r;
        vptq_err err = {0};
        open_tiny(&r, "llama3", "emu", 1);
        r.dev.ops = &counting;
        max_rows = 0;
        if (i)
            cuda_emu_memory(cuda_emu_memory_used() + 64 * 1024);
        assert_ok(run_trees(&r, hidden[i], &err), &err);
        /* the first tree has 25 rows, with the next sequence 31 */
        assert_in_range(max_rows, i ? 25 : ROWS, i ? 31 : ROWS);
        vrig_close(&r);
        cuda_emu_memory(0);
    }
    assert_same_f32(hidden[1], hidden[0], ROWS * HIDDEN);
}

static void check_bad_parents(const size_t *bad_starts, const size_t *bad_parents, size_t count,
                              const char *part)
{
    vrig r;
    vptq_err err = {0};
    float hidden[ROWS * HIDDEN] = {0};
    const vptq_block_hooks hooks = {.parents = bad_parents};
    open_tiny(&r, "llama3", "cpu", 1);
    assert_fails(vptq_forward_block_with(r.f, 0, bad_starts, count, hidden, &hooks, &err),
                 VPTQ_E_ARG, &err, part);
    vrig_close(&r);
}

static void test_bad_parents(void **state)
{
    (void)state;
    const size_t five[] = {0, 1, 2, 3, 4, 5}, long_child[] = {0, 12, 22};
    check_bad_parents(five, (const size_t[]){0}, 1, "sequence 0 continues 0");
    check_bad_parents(five, (const size_t[]){ROOT, 2, ROOT}, 3, "sequence 1 continues 2");
    check_bad_parents(five, (const size_t[]){ROOT, 0, ROOT, 1}, 4, "sequence 3 continues 1");
    check_bad_parents(five, (const size_t[]){ROOT, 0, 1, 0, 2}, 5, "sequence 4 continues 2");
    check_bad_parents(long_child, (const size_t[]){ROOT, 0}, 2,
                      "sequence 1 has 22 tokens, expected 1 to 21");
}

/* Opens a model, runs the trees and closes it. */
static vptq_status run_all(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vrig r = {.ctx = {.mem = mem, .threads = 1}};
    bool dev = false, model = false;
    float hidden[ROWS * HIDDEN];
    (void)arg;
    VPTQ_TRY(vptq_device_open(&r.ctx, "cpu", &r.dev, err));
    dev = true;
    VPTQ_TRY(vptq_model_open(&r.ctx, VRIG_TINY_OF("qwen3"), &(vptq_checkpoint_options){0},
                             false, &r.m, err));
    model = true;
    VPTQ_TRY(vptq_forward_open(&r.m, &r.dev, LONGEST, &r.f, err));
    VPTQ_TRY(run_trees(&r, hidden, err));
out:
    vptq_forward_close(r.f);
    if (model)
        vptq_model_release(&r.m);
    if (dev)
        vptq_device_close(&r.dev);
    return st;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    vtest_oom_walk(run_all, NULL);
}

VTEST_MAIN(cmocka_unit_test(test_same_as_without_sharing), cmocka_unit_test(test_threads),
           cmocka_unit_test(test_groups),
           cmocka_unit_test(test_smaller_groups_when_memory_is_short),
           cmocka_unit_test(test_bad_parents), cmocka_unit_test(test_out_of_memory))
