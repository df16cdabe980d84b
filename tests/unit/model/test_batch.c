/* Batched generation: every sequence gets the same tokens as alone, from single steps of the
 * forward pass; pages, limits, memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/rng.h"
#include "lib/model/batch.h"
#include "tests/emu/emu.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

enum { VOCAB = VRIG_VOCAB, SEQUENCES = 5, LENGTH = 90, NEW = 20 };

static void open_tiny(vrig *r, const char *family, const char *backend, int threads)
{
    char path[128];
    snprintf(path, sizeof path, "tests/golden/tiny_%s", family);
    vrig_open_on(r, path, NULL, backend, threads);
}

/* Fills ids with prompt s, 1 to 70 random tokens; returns its length. */
static size_t make_prompt(size_t s, int32_t ids[LENGTH])
{
    static const size_t lengths[SEQUENCES] = {33, 1, 70, 32, 5};
    const vptq_rng rng = vptq_rng_make(7, (uint32_t)s, 0, VPTQ_RNG_TEST);
    for (size_t i = 0; i < lengths[s]; i++)
        ids[i] = (int32_t)vptq_rng_below(&rng, i, VOCAB);
    return lengths[s];
}

/* Generates `new` tokens for one sequence by single steps. */
static void run_alone(vrig *r, const int32_t *prompt, size_t n, size_t new, uint32_t number,
                      double temperature, uint64_t seed, int32_t *out)
{
    vptq_err err = {0};
    vptq_forward *f;
    const vptq_rng rng = vptq_rng_make(seed, number, 0, VPTQ_RNG_GENERATE);
    /* as long as the batch: longrope scaling depends on it */
    const size_t length = n + new > LENGTH ? n + new : LENGTH;
    assert_ok(vptq_forward_open(&r->m, &r->dev, length, &f, &err), &err);
    for (size_t i = 0; i < new; i++) {
        const double u = vptq_rng_uniform(&rng, i);
        const vptq_forward_sampling c = {temperature, 0.9, &u};
        assert_ok(i ? vptq_forward_next(f, &out[i - 1], 1, &c, &out[i], &err)
                    : vptq_forward_next(f, prompt, n, &c, &out[i], &err),
                  &err);
    }
    vptq_forward_close(f);
}

static void prefill(vptq_batch *b)
{
    vptq_err err = {0};
    for (size_t left = 1; left;)
        assert_ok(vptq_batch_prefill(b, &left, &err), &err);
}

static vptq_batch_options make_options(vptq_dtype kv)
{
    return (vptq_batch_options){
        .sequences = SEQUENCES, .length = LENGTH, .kv = kv, .top_p = 0.9, .seed = 3};
}

/* Adds and ends sequences while others continue. */
static void check_tokens(vrig *r, const vptq_batch_options *o, size_t steps)
{
    vptq_err err = {0};
    vptq_batch *b;
    size_t id[SEQUENCES], n[SEQUENCES];
    int32_t prompt[SEQUENCES][LENGTH], want[NEW];
    assert_ok(vptq_batch_open(&r->m, &r->dev, o, &b, &err), &err);
    const size_t pages = vptq_batch_free_pages(b);
    for (size_t s = 0; s < 3; s++) {
        n[s] = make_prompt(s, prompt[s]);
        assert_ok(vptq_batch_add(b, prompt[s], n[s], &id[s], &err), &err);
    }
    prefill(b);
    for (size_t i = 0; i < 4; i++)
        assert_ok(vptq_batch_decode(b, &err), &err);
    for (size_t s = 3; s < SEQUENCES; s++) {
        n[s] = make_prompt(s, prompt[s]);
        assert_ok(vptq_batch_add(b, prompt[s], n[s], &id[s], &err), &err);
    }
    assert_ok(vptq_batch_decode(b, &err),
              &err); /* only sequences 0 to 2: the new prompts wait */
    prefill(b);
    for (size_t i = 6; i < steps; i++)
        assert_ok(vptq_batch_decode(b, &err), &err);
    for (size_t s = 0; s < SEQUENCES; s++) {
        const size_t new = s < 3 ? steps : steps - 5;
        size_t count;
        const int32_t *ids = vptq_batch_ids(b, id[s], &count);
        assert_int_equal(count, n[s] + new);
        assert_memory_equal(ids, prompt[s], n[s] * sizeof *ids);
        run_alone(r, prompt[s], n[s], new, (uint32_t)s, o->temperature, o->seed, want);
        assert_memory_equal(ids + n[s], want, new * sizeof *ids);
        vptq_batch_end(b, id[s]);
    }
    assert_int_equal(vptq_batch_free_pages(b), pages);
    vptq_batch_close(b);
}

static void test_families(void **state)
{
    (void)state;
    static const char *const backends[] = {"ref", "cpu"};
    vrig r;
    for (size_t f = 0; f < VRIG_ALL_FAMILIES; f++)
        for (size_t d = 0; d < 2; d++)
            for (int sampled = 0; sampled < 2; sampled++) {
                vptq_batch_options o = make_options(VPTQ_F32);
                o.temperature = sampled ? 1 : 0;
                open_tiny(&r, vrig_families[f], backends[d], 2);
                check_tokens(&r, &o, NEW);
                vrig_close(&r);
            }
}

/* The same on a device with its own memory, all of which is released at the end. */
static void test_device_memory(void **state)
{
    (void)state;
    const vptq_batch_options o = make_options(VPTQ_F32);
    vrig r;
    assert_string_equal(vptq_backend_emu()->name, "emu"); /* links the backend */
    open_tiny(&r, "mistral", "emu", 1);
    check_tokens(&r, &o, 8);
    vrig_close(&r);
    assert_int_equal(cuda_emu_memory_used(), 0);
}

/* The weights go to a device once, when a batch opens; a step uploads some numbers per
 * sequence. */
static void test_steps_upload_no_weights(void **state)
{
    (void)state;
    enum { STEPS = 6, PER_SEQUENCE = 64 };
    vptq_err err = {0};
    vptq_batch *b;
    size_t id;
    int32_t prompt[LENGTH];
    const vptq_batch_options o = make_options(VPTQ_F32);
    vrig r;
    open_tiny(&r, "qwen3", "emu", 1);
    const uint64_t empty = cuda_emu_count().uploaded;
    assert_ok(vptq_batch_open(&r.m, &r.dev, &o, &b, &err), &err);
    for (size_t s = 0; s < SEQUENCES; s++)
        assert_ok(vptq_batch_add(b, prompt, make_prompt(s, prompt), &id, &err), &err);
    prefill(b);
    const uint64_t before = cuda_emu_count().uploaded;
    for (size_t i = 0; i < STEPS; i++)
        assert_ok(vptq_batch_decode(b, &err), &err);
    const uint64_t step = (cuda_emu_count().uploaded - before) / STEPS;
    assert_true(before - empty > r.m.head->bytes);
    assert_in_range(step, SEQUENCES * sizeof(int32_t), SEQUENCES * PER_SEQUENCE);
    vptq_batch_close(b);
    vrig_close(&r);
}

static bool stories_open(vrig *r, int threads)
{
    char model[4096], tokenizer[4096];
    if (!vtest_data(model, sizeof model, "models/stories260K/stories260K.bin") ||
        !vtest_data(tokenizer, sizeof tokenizer, "models/stories260K/tok512.bin"))
        return false;
    vrig_open_on(r, model, tokenizer, "cpu", threads);
    return true;
}

/* The published text of upstream, generated among other sequences. */
static void check_text(vrig *r, vptq_dtype kv, const char *want, size_t size)
{
    enum { TOKENS = 200, OTHERS = 11 };
    vptq_err err = {0};
    vptq_batch *b;
    vptq_buf text;
    const vptq_batch_options o = {.sequences = OTHERS + 1, .length = 300, .kv = kv, .top_p = 1};
    const int32_t bos = 1;
    size_t at, other, count;
    bool at_start = true;
    assert_ok(vptq_batch_open(&r->m, &r->dev, &o, &b, &err), &err);
    for (size_t s = 0; s < OTHERS; s++) {
        int32_t ids[3] = {1, (int32_t)(300 + s), 400};
        assert_ok(vptq_batch_add(b, ids, 1 + s % 3, &other, &err), &err);
        if (s == 4)
            assert_ok(vptq_batch_add(b, &bos, 1, &at, &err), &err);
    }
    prefill(b);
    for (int i = 1; i < TOKENS; i++)
        assert_ok(vptq_batch_decode(b, &err), &err);
    const int32_t *ids = vptq_batch_ids(b, at, &count);
    assert_int_equal(count, TOKENS + 1);
    vptq_buf_init(&text, &r->mem);
    assert_ok(
        vptq_tokenizer_decode(r->m.tokenizer, ids + 1, TOKENS, &at_start, false, &text, &err),
        &err);
    assert_int_equal(text.len, size);
    assert_memory_equal(text.data, want, size);
    vptq_buf_release(&text);
    vptq_batch_close(b);
}

static void test_published_text(void **state)
{
    (void)state;
    char path[4096];
    size_t size;
    if (!vtest_data(path, sizeof path, "golden/stories260K_greedy200.txt"))
        skip();
    char *want = vtest_read_file(path, &size);
    for (int threads = 1; threads <= 2; threads++) {
        vrig r;
        if (!stories_open(&r, threads)) {
            free(want);
            skip();
        }
        check_text(&r, threads == 1 ? VPTQ_F32 : VPTQ_F16, want, size);
        vrig_close(&r);
    }
    free(want);
}

/* Sampled, so that a different last bit of a probability could change a token. */
static void test_threads(void **state)
{
    (void)state;
    enum { N = 24, TOKENS = 40 };
    int32_t first[N][TOKENS + 8];
    for (int threads = 1; threads <= 3; threads += 2) {
        vrig r;
        vptq_err err = {0};
        vptq_batch *b;
        const vptq_batch_options o = {
            .sequences = N, .length = 64, .kv = VPTQ_F16, .temperature = 1, .top_p = 1};
        if (!stories_open(&r, threads))
            skip();
        assert_ok(vptq_batch_open(&r.m, &r.dev, &o, &b, &err), &err);
        for (size_t s = 0, at; s < N; s++) {
            const int32_t ids[8] = {1, 300, 301, (int32_t)(302 + s), 400, 401, 402, 403};
            assert_ok(vptq_batch_add(b, ids, 1 + s % 8, &at, &err), &err);
        }
        prefill(b);
        for (int i = 1; i < TOKENS; i++)
            assert_ok(vptq_batch_decode(b, &err), &err);
        for (size_t s = 0; s < N; s++) {
            size_t count;
            const int32_t *ids = vptq_batch_ids(b, s, &count);
            assert_int_equal(count, 1 + s % 8 + TOKENS);
            if (threads == 1)
                memcpy(first[s], ids, count * sizeof *ids);
            else
                assert_memory_equal(ids, first[s], count * sizeof *ids);
        }
        vptq_batch_close(b);
        vrig_close(&r);
    }
}

/* A prompt of several groups between short prompts; groups end in the middle of prompts. */
static void test_long_prompts(void **state)
{
    (void)state;
    enum { LONG = 2 * VPTQ_FORWARD_ROWS + 75, SHORT = 700, OUT = 6 };
    vrig r;
    vptq_err err = {0};
    vptq_batch *b;
    size_t lengths[3] = {SHORT, LONG, SHORT + 1}, id[3], left = 3, groups = 0;
    int32_t *ids = vtest_alloc(LONG, sizeof *ids), want[OUT];
    for (size_t i = 0; i < LONG; i++)
        ids[i] = (int32_t)(i * i % 47);
    open_tiny(&r, "mistral", "cpu", 2);
    const vptq_batch_options o = {.sequences = 3,
                                  .length = LONG + OUT,
                                  .tokens = 2 * SHORT + 1 + LONG + 3 * OUT,
                                  .kv = VPTQ_F32,
                                  .top_p = 1};
    assert_ok(vptq_batch_open(&r.m, &r.dev, &o, &b, &err), &err);
    for (size_t s = 0; s < 3; s++)
        assert_ok(vptq_batch_add(b, ids + s, lengths[s] - s, &id[s], &err), &err);
    for (; left; groups++)
        assert_ok(vptq_batch_prefill(b, &left, &err), &err);
    assert_int_equal(groups, (LONG + 2 * SHORT + VPTQ_FORWARD_ROWS - 3) / VPTQ_FORWARD_ROWS);
    for (int i = 1; i < OUT; i++)
        assert_ok(vptq_batch_decode(b, &err), &err);
    for (size_t s = 0; s < 3; s++) {
        size_t count;
        const int32_t *got = vptq_batch_ids(b, id[s], &count);
        run_alone(&r, ids + s, lengths[s] - s, OUT, 0, 0, 0, want);
        assert_int_equal(count, lengths[s] - s + OUT);
        assert_memory_equal(got + lengths[s] - s, want, sizeof want);
    }
    vptq_batch_close(b);
    vrig_close(&r);
    free(ids);
}

/* The pool is sized for the given tokens, not for all sequences at full length. */
static void test_pages(void **state)
{
    (void)state;
    vrig r;
    vptq_err err = {0};
    vptq_batch *b;
    vptq_batch_memory small, large;
    int32_t ids[70] = {0};
    size_t one, two, three, left;
    vptq_batch_options o = {.sequences = 2, .length = 128, .tokens = 96, .kv = VPTQ_F16};
    open_tiny(&r, "llama3", "cpu", 1);
    assert_ok(vptq_batch_plan(&r.m, &o, &small, &err), &err);
    /* 96 / 32 pages and one for each sequence, of 32 tokens; two layers; keys and values of 2
     * heads of 8 numbers of 2 bytes */
    assert_int_equal(small.cache, 5 * 32 * 2 * 2 * (2 * 8) * 2);
    o.tokens = 0;
    assert_ok(vptq_batch_plan(&r.m, &o, &large, &err), &err);
    assert_int_equal(large.cache, small.cache / 5 * (2 * 128 / 32 + 2));
    o.tokens = 96;
    assert_ok(vptq_batch_open(&r.m, &r.dev, &o, &b, &err), &err);
    assert_int_equal(vptq_batch_free_pages(b), 5);
    assert_ok(vptq_batch_add(b, ids, 63, &one, &err), &err);
    assert_ok(vptq_batch_add(b, ids, 32, &two, &err), &err);
    assert_fails(vptq_batch_add(b, ids, 1, &three, &err), VPTQ_E_ARG, &err,
                 "at most 2 sequences");
    prefill(b);
    assert_int_equal(vptq_batch_free_pages(b), 2);
    assert_ok(vptq_batch_decode(b, &err), &err); /* the 64th and the 33rd token */
    assert_int_equal(vptq_batch_free_pages(b), 1);
    assert_ok(vptq_batch_decode(b, &err), &err);
    assert_int_equal(vptq_batch_free_pages(b), 0);
    vptq_batch_end(b, one);
    assert_int_equal(vptq_batch_free_pages(b), 3);
    assert_ok(vptq_batch_add(b, ids, 70, &one, &err), &err);
    prefill(b);
    for (size_t i = 0; i < 26; i++)
        assert_ok(vptq_batch_decode(b, &err), &err);
    assert_fails(vptq_batch_decode(b, &err), VPTQ_E_NOMEM, &err, "the cache of 5 pages of 32");
    vptq_batch_end(b, two);
    assert_ok(vptq_batch_prefill(b, &left, &err), &err); /* nothing to do is not an error */
    assert_int_equal(left, 0);
    vptq_batch_close(b);
    vrig_close(&r);
}

static void test_bad_input(void **state)
{
    (void)state;
    vrig r;
    vptq_err err = {0};
    vptq_batch *b = NULL;
    vptq_batch_memory memory;
    size_t at;
    vptq_batch_options o = {.sequences = 1, .length = 4, .kv = VPTQ_F16};
    const int32_t ids[4] = {0}, bad[2] = {1, VOCAB}, negative = -1;
    open_tiny(&r, "qwen2", "cpu", 1);
    assert_ok(vptq_batch_open(&r.m, &r.dev, &o, &b, &err), &err);
    assert_fails(vptq_batch_add(b, ids, 0, &at, &err), VPTQ_E_ARG, &err,
                 "the prompt has 0 tokens");
    assert_fails(vptq_batch_add(b, ids, 4, &at, &err), VPTQ_E_ARG, &err, "expected 1 to 3");
    assert_fails(vptq_batch_add(b, bad, 2, &at, &err), VPTQ_E_ARG, &err,
                 "token 1 of the prompt is 48");
    assert_fails(vptq_batch_add(b, &negative, 1, &at, &err), VPTQ_E_ARG, &err, "is -1");
    assert_ok(vptq_batch_add(b, ids, 2, &at, &err), &err);
    prefill(b);
    assert_ok(vptq_batch_decode(b, &err), &err);
    assert_fails(vptq_batch_decode(b, &err), VPTQ_E_ARG, &err, "already has 4 tokens");
    vptq_batch_close(b);

    o.kv = VPTQ_BF16;
    assert_fails(vptq_batch_open(&r.m, &r.dev, &o, &b, &err), VPTQ_E_ARG, &err, "type BF16");
    o.kv = VPTQ_F16;
    o.sequences = 0;
    assert_fails(vptq_batch_plan(&r.m, &o, &memory, &err), VPTQ_E_ARG, &err, "0 sequences");
    o.sequences = SIZE_MAX / 64;
    o.length = 1 << 20;
    assert_fails(vptq_batch_plan(&r.m, &o, &memory, &err), VPTQ_E_NOMEM, &err, "too large");
    vrig_close(&r);
}

static void test_cancelled(void **state)
{
    (void)state;
    vrig r;
    vptq_err err = {0};
    vptq_batch *b;
    volatile sig_atomic_t stop = 0;
    const vptq_batch_options o = make_options(VPTQ_F16);
    const int32_t ids[3] = {1, 2, 3};
    size_t at, left;
    open_tiny(&r, "qwen3", "cpu", 2);
    r.ctx.cancel = &stop;
    assert_ok(vptq_batch_open(&r.m, &r.dev, &o, &b, &err), &err);
    assert_ok(vptq_batch_add(b, ids, 3, &at, &err), &err);
    stop = 1;
    assert_fails(vptq_batch_prefill(b, &left, &err), VPTQ_E_CANCELLED, &err, "interrupted");
    vptq_batch_close(b);
    vrig_close(&r);
}

/* Opens a batch, runs it briefly and closes it. */
static vptq_status run_all(void *arg, vptq_mem *mem, vptq_err *err)
{
    vrig *r = arg;
    vptq_status st = VPTQ_OK;
    vptq_batch *b = NULL;
    const vptq_batch_options o = make_options(VPTQ_F16);
    const int32_t ids[12] = {1, 2, 3};
    size_t at, left;
    r->ctx.mem = mem;
    vptq_device dev;
    st = vptq_device_open(&r->ctx, "cpu", &dev, err);
    if (st)
        return st;
    VPTQ_TRY(vptq_batch_open(&r->m, &dev, &o, &b, err));
    VPTQ_TRY(vptq_batch_add(b, ids, 3, &at, err));
    VPTQ_TRY(vptq_batch_add(b, ids, 12, &at, err));
    VPTQ_TRY(vptq_batch_prefill(b, &left, err));
    VPTQ_TRY(vptq_batch_decode(b, err));
out:
    vptq_batch_close(b);
    vptq_device_close(&dev);
    return st;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    vrig r;
    open_tiny(&r, "llama3", "cpu", 2);
    assert_true(vtest_oom_walk(run_all, &r) > 20);
    r.ctx.mem = &r.mem;
    vrig_close(&r);
}

/* The plan matches the memory used, except for the scratch memory of ops and small tables. */
static void test_plan_matches_use(void **state)
{
    (void)state;
    vrig r;
    vptq_err err = {0};
    vptq_batch *b;
    vptq_batch_memory memory;
    const vptq_batch_options o = {.sequences = 64, .length = 400, .kv = VPTQ_F16, .top_p = 1};
    int32_t ids[390];
    size_t at;
    for (size_t i = 0; i < 390; i++)
        ids[i] = (int32_t)(i % VOCAB);
    open_tiny(&r, "llama3", "cpu", 1);
    assert_ok(vptq_batch_plan(&r.m, &o, &memory, &err), &err);
    const size_t before = r.mem.used, plan = memory.cache + memory.working;
    assert_ok(vptq_batch_open(&r.m, &r.dev, &o, &b, &err), &err);
    for (size_t s = 0; s < 64; s++)
        assert_ok(vptq_batch_add(b, ids, 390, &at, &err), &err);
    prefill(b);
    assert_ok(vptq_batch_decode(b, &err), &err);
    vptq_batch_close(b);
    const size_t scratch = r.mem.used - before; /* kept by the device */
    const size_t taken = r.mem.peak - before - scratch;
    assert_true(taken <= plan + plan / 16 && taken >= plan - plan / 16);
    vrig_close(&r);
}

/* A measurement takes pages for a while and changes nothing of what the batch does next. */
static void test_time(void **state)
{
    static const vptq_batch_group groups[] = {
        {1, 1, 0}, {SEQUENCES, 1, LENGTH - 2}, {3, 40, 10}, {SEQUENCES, LENGTH, 0}};
    (void)state;
    vrig r;
    vptq_err err = {0};
    vptq_batch *b;
    int32_t prompt[LENGTH], want[NEW];
    size_t id, count;
    const vptq_batch_options o = make_options(VPTQ_F32);
    open_tiny(&r, "llama3", "cpu", 2);
    assert_ok(vptq_batch_open(&r.m, &r.dev, &o, &b, &err), &err);
    const size_t pages = vptq_batch_free_pages(b);
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        double blocks = 0, head = 0;
        assert_ok(vptq_batch_time(b, &groups[i], &blocks, &head, &err), &err);
        assert_true(blocks > 0 && head > 0);
        assert_int_equal(vptq_batch_free_pages(b), pages);
    }
    const size_t n = make_prompt(0, prompt);
    assert_ok(vptq_batch_add(b, prompt, n, &id, &err), &err);
    prefill(b);
    for (size_t i = 1; i < NEW; i++)
        assert_ok(vptq_batch_decode(b, &err), &err);
    run_alone(&r, prompt, n, NEW, 0, o.temperature, o.seed, want);
    const int32_t *ids = vptq_batch_ids(b, id, &count);
    assert_int_equal(count, n + NEW);
    assert_memory_equal(ids + n, want, sizeof want);
    vptq_batch_close(b);
    vrig_close(&r);
}

VTEST_MAIN(cmocka_unit_test(test_families), cmocka_unit_test(test_device_memory),
           cmocka_unit_test(test_steps_upload_no_weights),
           cmocka_unit_test(test_published_text), cmocka_unit_test(test_threads),
           cmocka_unit_test(test_long_prompts), cmocka_unit_test(test_pages),
           cmocka_unit_test(test_bad_input), cmocka_unit_test(test_cancelled),
           cmocka_unit_test(test_out_of_memory), cmocka_unit_test(test_plan_matches_use),
           cmocka_unit_test(test_time))
