/* Reads Llama 3's tokenizer.model: tiktoken ranks, one "base64 rank" per line. The rank of a
 * piece is its id and its position in the order of merges. Pattern and special tokens are not
 * in the file but those of Llama 3 (llama-models, llama3/tokenizer.py). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "formats/vocab/internal.h"
#include "lib/base/utf8.h"

enum { LLAMA3_RANKS = 128000, LLAMA3_SPECIAL = 256 };

static int base64_value(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decodes n characters with their padding; false if they are not base64. */
static bool base64(const char *text, size_t n, uint8_t *out, size_t *len)
{
    *len = 0;
    if (n == 0 || n % 4 != 0)
        return false;
    size_t pad = text[n - 1] == '=' ? text[n - 2] == '=' ? 2 : 1 : 0;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t group = 0;
        size_t bytes = i + 4 == n ? 3 - pad : 3;
        for (size_t k = 0; k < 4; k++) {
            int v = k <= bytes ? base64_value(text[i + k]) : 0;
            if (v < 0)
                return false;
            group = group << 6 | (uint32_t)v;
        }
        for (size_t k = 0; k < bytes; k++)
            out[(*len)++] = (uint8_t)(group >> (16 - 8 * k));
    }
    return true;
}

/* Reads one line without its newline. */
static vptq_status read_line(vptq_vocab *v, size_t number, const char *line, size_t len,
                             vptq_pool *pool, vptq_err *err)
{
    uint8_t bytes[VPTQ_PIECE_MAX];
    char text[2 * VPTQ_PIECE_MAX];
    size_t n = 0, text_len = 0;
    uint64_t rank = 0;
    const char *space = memchr(line, ' ', len);
    size_t code = space ? (size_t)(space - line) : 0;
    bool good = space && code / 4 * 3 <= VPTQ_PIECE_MAX / 2 && base64(line, code, bytes, &n) &&
                code + 1 < len && len - code - 1 <= 9;
    for (size_t i = code + 1; good && i < len; i++) {
        good = line[i] >= '0' && line[i] <= '9';
        rank = rank * 10 + (uint64_t)(line[i] - '0');
    }
    if (!good)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: line %zu is not 'base64 rank'", v->source,
                         number + 1);
    if (rank >= LLAMA3_RANKS || v->pieces[rank].len > 0)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: line %zu has the rank %" PRIu64 ", %s",
                         v->source, number + 1, rank,
                         rank >= LLAMA3_RANKS ? "which is out of range"
                                              : "which another line has");
    for (size_t i = 0; i < n; i++)
        text_len += vptq_utf8_encode(vptq_byte_symbol(bytes[i]), text + text_len);
    v->pieces[rank] = (vptq_piece){.text = vptq_pool_add(pool, text, text_len),
                                   .len = (uint32_t)text_len,
                                   .score = -(float)rank,
                                   .type = VPTQ_PIECE_NORMAL};
    return VPTQ_OK;
}

static vptq_status add_special(vptq_vocab *v, vptq_err *err)
{
    static const struct {
        uint32_t at;
        const char *text;
    } named[5] = {{0, "<|begin_of_text|>"},
                  {1, "<|end_of_text|>"},
                  {6, "<|start_header_id|>"},
                  {7, "<|end_header_id|>"},
                  {9, "<|eot_id|>"}};
    for (uint32_t i = 0, k = 0, reserved = 0; i < LLAMA3_SPECIAL; i++) {
        bool has_name = k < 5 && named[k].at == i;
        char *text =
            has_name ? vptq_arena_strdup(&v->arena, named[k].text, err)
                     : vptq_arena_printf(&v->arena, err,
                                         "<|reserved_special_token_%" PRIu32 "|>", reserved);
        if (!text)
            return VPTQ_E_NOMEM;
        k += has_name;
        reserved += !has_name;
        v->pieces[LLAMA3_RANKS + i] = (vptq_piece){
            .text = text, .len = (uint32_t)strlen(text), .type = VPTQ_PIECE_CONTROL};
    }
    v->bos = LLAMA3_RANKS;
    v->eos = LLAMA3_RANKS + 1;
    return vptq_vocab_added_from_types(v, err);
}

vptq_status vptq_vocab_tiktoken(vptq_vocab *v, const char *text, size_t len, vptq_err *err)
{
    vptq_pool pool;
    vptq_strmap map = {0};
    size_t lines = 0;
    for (size_t i = 0; i < len; i++)
        lines += text[i] == '\n' || i + 1 == len;
    if (lines != LLAMA3_RANKS)
        return vptq_fail(
            err, VPTQ_E_UNSUPPORTED,
            "%s: a list of %zu tiktoken ranks; only the %d of Llama 3 are supported", v->source,
            lines, LLAMA3_RANKS);
    v->kind = VPTQ_VOCAB_BYTE_BPE;
    v->by_score = true;
    VPTQ_CHECK(vptq_vocab_pieces(v, LLAMA3_RANKS + LLAMA3_SPECIAL, err));
    /* base64 of n bytes has 4 n / 3 characters, the alphabet at most 2 n */
    VPTQ_CHECK(vptq_pool_init(&pool, &v->arena, 2 * len, LLAMA3_RANKS, err));
    for (size_t at = 0, n = 0; at < len; n++) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t line = end ? (size_t)(end - text) - at : len - at;
        VPTQ_CHECK(read_line(v, n, text + at, line, &pool, err));
        at += line + 1;
    }
    VPTQ_CHECK(vptq_vocab_pre(v, "llama-bpe", strlen("llama-bpe"), &v->add_bos, err));
    VPTQ_CHECK(add_special(v, err));
    VPTQ_CHECK(vptq_vocab_index(v, &map, err)); /* refuses duplicates */
    vptq_strmap_release(&map);
    return VPTQ_OK;
}
