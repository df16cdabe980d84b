/* Tests the readers of vocabularies: SentencePiece, tiktoken ranks, llama2.c and GGUF. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/vgguf.h"
#include "tests/support/vvocab.h"

#define META "\xE2\x96\x81"
#define SMALL_JSON                                                                             \
    "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, "             \
    "\"merges\": [\"a b\"]}}"

/* ---- SentencePiece ---- */

typedef struct proto {
    uint8_t data[4096];
    size_t n;
} proto;

static void p_varint(proto *p, uint64_t x)
{
    for (; x >= 0x80; x >>= 7)
        p->data[p->n++] = (uint8_t)(x | 0x80);
    p->data[p->n++] = (uint8_t)x;
}

static void p_number(proto *p, uint32_t field, uint64_t x)
{
    p_varint(p, field << 3);
    p_varint(p, x);
}

static void p_bytes(proto *p, uint32_t field, const void *data, size_t n)
{
    p_varint(p, field << 3 | 2);
    p_varint(p, n);
    if (n > 0)
        memcpy(p->data + p->n, data, n);
    p->n += n;
}

static void p_piece(proto *p, const char *text, float score, int type)
{
    proto m = {.n = 0};
    p_bytes(&m, 1, text, strlen(text));
    p_varint(&m, 2 << 3 | 5);
    memcpy(m.data + m.n, &score, 4);
    m.n += 4;
    if (type)
        p_number(&m, 3, (uint64_t)type);
    p_bytes(p, 1, m.data, m.n);
}

static void small_spm(proto *p, uint64_t model_type)
{
    proto trainer = {.n = 0};
    p->n = 0;
    p_piece(p, "<unk>", 0, VPTQ_PIECE_UNKNOWN);
    p_piece(p, "<s>", 0, VPTQ_PIECE_CONTROL);
    p_piece(p, META, -3, 0);
    p_piece(p, "a", -2, 0);
    p_piece(p, META "a", -1, VPTQ_PIECE_NORMAL);
    p_piece(p, META "<u>", 0, VPTQ_PIECE_USER);
    p_number(&trainer, 3, model_type);
    p_number(&trainer, 42, UINT64_MAX); /* eos_id = -1 */
    p_bytes(p, 2, trainer.data, trainer.n);
}

static void test_spm(void **state)
{
    proto p;
    vptq_vocab v;
    vptq_err err = {0};
    small_spm(&p, 2);
    assert_ok(vvocab_read(state, "t.model", p.data, p.n, &v, &err), &err);
    assert_int_equal(v.count, 6);
    assert_int_equal(v.kind, VPTQ_VOCAB_SPM_BPE);
    assert_string_equal(v.pieces[4].text, META "a");
    assert_true(v.pieces[4].score == -1);
    assert_int_equal(v.unk, 0);
    assert_int_equal(v.bos, 1);
    assert_int_equal(v.eos, -1);
    assert_true(v.by_score && v.add_bos && !v.add_eos && !v.byte_fallback && v.strip_start);
    assert_int_equal(v.norm_count, 4); /* two of remove_extra_whitespaces, prefix, escape */
    assert_int_equal(v.added_count, 2);
    assert_string_equal(v.added[1].text, " <u>");

    /* default normalizer: removes spaces at the ends, collapses runs */
    static const int32_t want[4] = {4, 4, 5, 4};
    vtok k = {.vocab = v};
    assert_ok(vptq_tokenizer_open(NULL, &k.vocab, &k.t, &err), &err);
    vtok_expect(&k, "  a   a <u>a ", 13, 0, want, 4, "squeezed");
    vtok_close(&k);
}

static void refuse_spm(void **state, const proto *p, vptq_status code, const char *part)
{
    vvocab_expect(state, "t.model", p->data, p->n, code, part);
}

static void test_spm_refusals(void **state)
{
    proto p, normal = {.n = 0};
    small_spm(&p, 1);
    refuse_spm(state, &p, VPTQ_E_UNSUPPORTED, "type unigram");
    small_spm(&p, 77);
    refuse_spm(state, &p, VPTQ_E_UNSUPPORTED, "type unknown");
    small_spm(&p, 2);
    p_piece(&p, "a", 0, 0);
    refuse_spm(state, &p, VPTQ_E_FORMAT, "pieces 3 and 6 are both 'a'");
    small_spm(&p, 2);
    p_piece(&p, "", 0, 0);
    refuse_spm(state, &p, VPTQ_E_FORMAT, "piece 6 has no text");
    small_spm(&p, 2);
    p_piece(&p, "\xff", 0, 0);
    refuse_spm(state, &p, VPTQ_E_FORMAT, "piece 6 is not valid UTF-8");
    small_spm(&p, 2);
    p_piece(&p, "b", 0, 9);
    refuse_spm(state, &p, VPTQ_E_FORMAT, "piece 6 has the type 9");
    small_spm(&p, 2);
    p_bytes(&normal, 1, "nmt_nfkc", 8);
    p_bytes(&normal, 2, "xyz", 3);
    p_bytes(&p, 3, normal.data, normal.n);
    refuse_spm(state, &p, VPTQ_E_UNSUPPORTED, "normalizer 'nmt_nfkc'");
    small_spm(&p, 2);
    normal.n = 0;
    p_number(&normal, 5, 0);
    p_bytes(&p, 3, normal.data, normal.n);
    refuse_spm(state, &p, VPTQ_E_UNSUPPORTED, "escape_whitespaces");
    small_spm(&p, 2);
    normal.n = 0;
    p_number(&normal, 41, 600);
    p_bytes(&p, 2, normal.data, normal.n);
    refuse_spm(state, &p, VPTQ_E_FORMAT, "BOS id is 600");

    vvocab_expect(state, "t.model", "", 0, VPTQ_E_FORMAT, "empty");
    vvocab_expect(state, "t.model", "\x12\x00", 2, VPTQ_E_FORMAT, "empty"); /* no pieces */
    vvocab_expect(state, "t.model", "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 11,
                  VPTQ_E_FORMAT, "invalid protobuf field");
    vvocab_expect(state, "t.model", "\x0b\x01\x01\x01\x01", 5, VPTQ_E_FORMAT,
                  "invalid protobuf field");
    /* a text longer than its piece */
    vvocab_expect(state, "t.model", "\x0a\x03\x0a\x09xyzabcdefgh", 14, VPTQ_E_FORMAT,
                  "invalid protobuf field");
}

/* Cut anywhere and with any byte changed, a file gives an error or a vocabulary. */
static void test_spm_damage(void **state)
{
    proto p, q;
    vptq_vocab v;
    vptq_err err = {0};
    small_spm(&p, 2);
    for (size_t n = 0; n < p.n; n++) {
        vptq_status st = vvocab_read(state, "t.model", p.data, n, &v, &err);
        assert_true(st == VPTQ_E_FORMAT || st == VPTQ_E_UNSUPPORTED);
    }
    for (size_t i = 0; i < p.n; i++) {
        q = p;
        q.data[i] ^= 0xA5;
        if (!vvocab_read(state, "t.model", q.data, q.n, &v, &err))
            vptq_vocab_release(&v);
    }
}

/* ---- tiktoken ---- */

static void test_ranks_refusals(void **state)
{
    enum { LINES = 128000 };
    const size_t size = (size_t)LINES * 24;
    char *text = malloc(size);
    size_t n = 0, second = 0;
    assert_non_null(text);
    vvocab_expect(state, "t.model", "IQ== 0\nIg== 1\n", 14, VPTQ_E_UNSUPPORTED,
                  "2 tiktoken ranks");
    for (uint32_t i = 0; i < LINES; i++) { /* four characters: three bytes of a number */
        static const char digits[] =
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        if (i == 1)
            second = n;
        n += (size_t)snprintf(text + n, size - n, "%c%c%c%c %u\n", digits[i >> 18 & 63],
                              digits[i >> 12 & 63], digits[i >> 6 & 63], digits[i & 63], i);
    }
    vptq_vocab v;
    vptq_err err = {0};
    assert_ok(vvocab_read(state, "t.model", text, n, &v, &err), &err);
    assert_int_equal(v.count, 128256);
    assert_string_equal(v.pieces[128000].text, "<|begin_of_text|>");
    assert_string_equal(v.pieces[128009].text, "<|eot_id|>");
    assert_string_equal(v.pieces[128255].text, "<|reserved_special_token_250|>");
    assert_int_equal(v.added_count, 256);
    assert_int_equal(v.bos, 128000);
    assert_int_equal(v.eos, 128001);
    assert_true(v.add_bos && v.ignore_merges && v.by_score);
    vptq_vocab_release(&v);

    static const char *const lines[5][2] = {{"AAAB 0\n", "which another line has"},
                                            {"AA=B 1\n", "line 2 is not"},
                                            {"AAAB x\n", "line 2 is not"},
                                            {"AAA  1\n", "line 2 is not"},
                                            {"AAAA 1\n", "are both"}};
    for (int i = 0; i < 5; i++) {
        memcpy(text + second, lines[i][0], 7);
        vvocab_expect(state, "t.model", text, n, VPTQ_E_FORMAT, lines[i][1]);
    }
    free(text);
}

/* ---- llama2.c ---- */

static size_t small_llama2c(uint8_t *out)
{
    static const char *const pieces[6] = {"<unk>", "\n<s>\n", "\n</s>\n", "<0x41>", " a", "b"};
    size_t n = 4;
    memcpy(out, "\6\0\0\0", 4);
    for (uint32_t i = 0; i < 6; i++) {
        float score = -(float)i;
        uint32_t len = (uint32_t)strlen(pieces[i]);
        memcpy(out + n, &score, 4);
        memcpy(out + n + 4, &len, 4);
        memcpy(out + n + 8, pieces[i], len);
        n += 8 + len;
    }
    return n;
}

static void test_llama2c(void **state)
{
    uint8_t file[256];
    size_t n = small_llama2c(file);
    char path[4096];
    vptq_vocab v;
    vptq_err err = {0};
    assert_ok(vvocab_read(state, "t.bin", file, n, &v, &err), &err);
    assert_int_equal(v.count, 6);
    assert_string_equal(v.pieces[1].text, "<s>");
    assert_string_equal(v.pieces[4].text, META "a");
    assert_int_equal(v.pieces[3].type, VPTQ_PIECE_BYTE);
    assert_int_equal(v.pieces[5].type, VPTQ_PIECE_NORMAL);
    assert_true(v.add_bos && v.bos == 1 && v.eos == 2 && v.unk == 0);
    vptq_vocab_release(&v);

    vtest_path(path, sizeof path, *state, "t.bin");
    assert_ok(vptq_vocab_read(path, 6, NULL, &v, &err), &err);
    vptq_vocab_release(&v);
    assert_fails(vptq_vocab_read(path, 7, NULL, &v, &err), VPTQ_E_MISMATCH, &err,
                 "6 pieces, the model's vocabulary has 7");
    for (size_t cut = 4; cut < n; cut++) { /* cut after a piece, it is a valid shorter file */
        vtest_write_file(path, file, cut);
        vptq_status st = vptq_vocab_read(path, 6, NULL, &v, &err);
        assert_true(st == VPTQ_E_FORMAT || st == VPTQ_E_MISMATCH);
    }
    file[8] = 0xff; /* the first length */
    file[11] = 0xff;
    vvocab_expect(state, "t.bin", file, n, VPTQ_E_FORMAT, "piece 0 of 4278190335 bytes");
    (void)small_llama2c(file);
    memcpy(file + 4, "\0\0\xc0\x7f", 4);
    vvocab_expect(state, "t.bin", file, n, VPTQ_E_FORMAT, "score of piece 0 is NaN");
}

/* ---- GGUF ---- */

typedef struct gguf_parts {
    const char *model, *pre;
    const char *const *tokens, *const *merges;
    size_t token_count, merge_count, type_count;
    const int32_t *types;
    int has_scores;
} gguf_parts;

static void small_gguf(vgguf *w, const gguf_parts *p)
{
    float scores[16] = {0};
    vgguf_init(w);
    vgguf_str(w, "general.architecture", "llama");
    if (p->model)
        vgguf_str(w, "tokenizer.ggml.model", p->model);
    if (p->pre)
        vgguf_str(w, "tokenizer.ggml.pre", p->pre);
    if (p->tokens)
        vgguf_strs(w, "tokenizer.ggml.tokens", p->tokens, p->token_count);
    if (p->merges)
        vgguf_strs(w, "tokenizer.ggml.merges", p->merges, p->merge_count);
    if (p->types)
        vgguf_array(w, "tokenizer.ggml.token_type", VPTQ_GGUF_I32, p->type_count, p->types,
                    p->type_count * 4);
    for (int i = 0; i < 16; i++)
        scores[i] = -(float)i;
    if (p->has_scores)
        vgguf_array(w, "tokenizer.ggml.scores", VPTQ_GGUF_F32, p->token_count, scores,
                    p->token_count * 4);
}

static vptq_status read_gguf(void **state, vgguf *w, vptq_vocab *v, vptq_err *err)
{
    char path[4096];
    vtest_path(path, sizeof path, *state, "t.gguf");
    vgguf_write(w, path);
    vgguf_free(w);
    return vptq_vocab_read(path, 0, NULL, v, err);
}

static const char *const gpt2_tokens[4] = {"<e>", "a", "b", "ab"};
static const char *const gpt2_merges[1] = {"a b"};
static const int32_t gpt2_types[4] = {3, 1, 1, 1};

static gguf_parts gpt2_parts(void)
{
    return (gguf_parts){.model = "gpt2",
                        .pre = "smollm",
                        .tokens = gpt2_tokens,
                        .token_count = 4,
                        .merges = gpt2_merges,
                        .merge_count = 1,
                        .types = gpt2_types,
                        .type_count = 4};
}

static void test_gguf(void **state)
{
    gguf_parts p = gpt2_parts();
    vgguf w;
    vptq_vocab v;
    vptq_err err = {0};
    small_gguf(&w, &p);
    vgguf_u32(&w, "tokenizer.ggml.eos_token_id", 0);
    vgguf_bool(&w, "tokenizer.ggml.add_eos_token", 1);
    vgguf_str(&w, "tokenizer.chat_template", "{{ t }}");
    assert_ok(read_gguf(state, &w, &v, &err), &err);
    assert_int_equal(v.kind, VPTQ_VOCAB_BYTE_BPE);
    assert_int_equal(v.count, 4);
    assert_int_equal(v.merges[0].result, 3);
    assert_true(!v.add_bos && v.add_eos && v.bos == -1 && v.eos == 0);
    assert_int_equal(v.added_count, 1);
    assert_true(v.added[0].special);
    assert_int_equal(v.split_count, 2);
    assert_int_equal(v.splits[0].kind, VPTQ_SPLIT_DIGITS);
    assert_string_equal(v.chat_template, "{{ t }}");
    vptq_vocab_release(&v);

    /* Llama 3 adds BOS unless the file says otherwise */
    p.pre = "llama-bpe";
    small_gguf(&w, &p);
    vgguf_u32(&w, "tokenizer.ggml.bos_token_id", 0);
    assert_ok(read_gguf(state, &w, &v, &err), &err);
    assert_true(v.add_bos && v.ignore_merges && v.bos == 0);
    vptq_vocab_release(&v);

    /* without types, byte pieces are recognized by their text */
    static const char *const spm[5] = {"<unk>", "<s>", "</s>", "<0x41>", "a"};
    p = (gguf_parts){.model = "llama", .tokens = spm, .token_count = 5, .has_scores = 1};
    small_gguf(&w, &p);
    assert_ok(read_gguf(state, &w, &v, &err), &err);
    assert_int_equal(v.pieces[0].type, VPTQ_PIECE_UNKNOWN);
    assert_int_equal(v.pieces[2].type, VPTQ_PIECE_CONTROL);
    assert_int_equal(v.pieces[3].type, VPTQ_PIECE_BYTE);
    assert_true(v.add_bos && v.by_score && v.strip_start);
    vptq_vocab_release(&v);
}

static void refuse_gguf(void **state, const gguf_parts *p, vptq_status code, const char *part)
{
    vgguf w;
    vptq_vocab v;
    vptq_err err = {0};
    small_gguf(&w, p);
    assert_fails(read_gguf(state, &w, &v, &err), code, &err, part);
}

static void test_gguf_refusals(void **state)
{
    static const char *const merges[3] = {"a c", "ab", " ab"};
    static const char *const names[3] = {"names 'c'", "not two pieces", "not two pieces"};
    static const char *const twice[4] = {"<e>", "a", "b", "a"};
    static const int32_t types[4] = {3, 1, 1, 7};
    gguf_parts p = gpt2_parts();
    p.model = "t5";
    refuse_gguf(state, &p, VPTQ_E_UNSUPPORTED, "tokenizer model 't5'");
    p.model = NULL;
    refuse_gguf(state, &p, VPTQ_E_FORMAT, "no tokenizer");
    p = gpt2_parts();
    p.pre = "viking";
    refuse_gguf(state, &p, VPTQ_E_UNSUPPORTED, "pre-tokenizer 'viking'");
    p = gpt2_parts();
    p.tokens = NULL;
    refuse_gguf(state, &p, VPTQ_E_FORMAT, "'tokenizer.ggml.tokens' is missing");
    p = gpt2_parts();
    p.token_count = 0;
    p.type_count = 0;
    refuse_gguf(state, &p, VPTQ_E_FORMAT, "empty");
    p = gpt2_parts();
    p.merges = NULL;
    refuse_gguf(state, &p, VPTQ_E_FORMAT, "'tokenizer.ggml.merges' is missing");
    p = gpt2_parts();
    p.tokens = twice;
    refuse_gguf(state, &p, VPTQ_E_FORMAT, "pieces 1 and 3 are both 'a'");
    p = gpt2_parts();
    p.types = types;
    refuse_gguf(state, &p, VPTQ_E_FORMAT, "token 3 has the type 7");
    p = gpt2_parts();
    p.type_count = 3;
    refuse_gguf(state, &p, VPTQ_E_FORMAT, "not one number for each of the 4");
    p = gpt2_parts();
    p.model = "llama";
    refuse_gguf(state, &p, VPTQ_E_FORMAT, "'tokenizer.ggml.scores' is missing");
    for (int i = 0; i < 3; i++) {
        p = gpt2_parts();
        p.merges = merges + i;
        refuse_gguf(state, &p, VPTQ_E_FORMAT, names[i]);
    }
    vgguf w;
    vptq_vocab v;
    vptq_err err = {0};
    p = gpt2_parts();
    small_gguf(&w, &p);
    vgguf_u32(&w, "tokenizer.ggml.bos_token_id", 4);
    assert_fails(read_gguf(state, &w, &v, &err), VPTQ_E_FORMAT, &err, "BOS id is 4");
    small_gguf(&w, &p);
    vgguf_bool(&w, "tokenizer.ggml.add_bos_token", 1);
    assert_fails(read_gguf(state, &w, &v, &err), VPTQ_E_FORMAT, &err, "names none");
}

/* ---- other ways to fail ---- */

static void test_places(void **state)
{
    vptq_vocab v;
    vptq_err err = {0};
    assert_fails(vptq_vocab_read(*state, 0, NULL, &v, &err), VPTQ_E_IO, &err,
                 "neither tokenizer.json nor tokenizer.model");
    assert_fails(vptq_vocab_read("no/such/file", 0, NULL, &v, &err), VPTQ_E_IO, &err,
                 "no/such/file");
    vvocab_accept_json(state, SMALL_JSON, &v);
    assert_fails(vptq_vocab_write_hf(&v, "/dev/null/dir", &err), VPTQ_E_IO, &err, "/dev/null");
    vptq_vocab_release(&v);
}

static vptq_status read_and_write(void *arg, vptq_mem *mem, vptq_err *err)
{
    char dir[4096];
    vptq_vocab v;
    const char *path = arg;
    vptq_status st = vptq_vocab_read(path, 0, mem, &v, err);
    if (st)
        return st;
    (void)snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(path, '/') - path), path);
    st = vptq_vocab_write_hf(&v, dir, err);
    vptq_vocab_release(&v);
    return st;
}

static void test_out_of_memory(void **state)
{
    char path[4096];
    uint8_t file[256];
    proto p;
    size_t n = small_llama2c(file);
    vtest_path(path, sizeof path, *state, "t.bin");
    vtest_write_file(path, file, n);
    assert_true(vtest_oom_walk(read_and_write, path) >= 6);
    small_spm(&p, 2);
    vtest_path(path, sizeof path, *state, "t.model");
    vtest_write_file(path, p.data, p.n);
    assert_true(vtest_oom_walk(read_and_write, path) >= 6);
    gguf_parts parts = gpt2_parts();
    vgguf w;
    small_gguf(&w, &parts);
    vtest_path(path, sizeof path, *state, "t.gguf");
    vgguf_write(&w, path);
    vgguf_free(&w);
    assert_true(vtest_oom_walk(read_and_write, path) >= 6);
    vtest_path(path, sizeof path, *state, "other.json");
    vtest_write_file(path, SMALL_JSON, strlen(SMALL_JSON));
    assert_true(vtest_oom_walk(read_and_write, path) >= 6);
}

VTEST_MAIN(scratch_test(test_spm), scratch_test(test_spm_refusals),
           scratch_test(test_spm_damage), scratch_test(test_ranks_refusals),
           scratch_test(test_llama2c), scratch_test(test_gguf),
           scratch_test(test_gguf_refusals), scratch_test(test_places),
           scratch_test(test_out_of_memory))
