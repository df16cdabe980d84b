/* memmem */
#define _GNU_SOURCE
#include "lib/model/corpus.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/file.h"
#include "lib/base/rng.h"
#include "lib/base/utf8.h"

/* Where the white space at the beginning of text ends. */
static size_t skip_space(const char *text, size_t len)
{
    size_t i = 0;
    while (i < len) {
        uint32_t cp = 0;
        size_t n = vptq_utf8_decode(text + i, len - i, &cp);
        if (n == 0 || !vptq_utf8_space(cp))
            break;
        i += n;
    }
    return i;
}

/* The length of text without the white space at its end. */
static size_t trim_space(const char *text, size_t len)
{
    while (len > 0) {
        size_t begin = len - 1;
        while (begin > 0 && len - begin < 4 && ((unsigned char)text[begin] & 0xC0) == 0x80)
            begin--;
        uint32_t cp = 0;
        if (vptq_utf8_decode(text + begin, len - begin, &cp) != len - begin ||
            !vptq_utf8_space(cp))
            break;
        len = begin;
    }
    return len;
}

/* The text as Hugging Face's reader gives it: one row per line, "\n\n" between rows. */
static vptq_status form_rows(const char *text, size_t len, vptq_buf *out, vptq_err *err)
{
    /* every line grows by at most the two newlines in front of it */
    for (size_t i = 0; i < len;) {
        const char *line = text + i;
        const char *end = memchr(line, '\n', len - i);
        size_t n = end ? (size_t)(end - line) + 1 : len - i;
        if (i > 0)
            VPTQ_CHECK(vptq_buf_add(out, "\n\n", 2, err));
        if (skip_space(line, n) < n)
            VPTQ_CHECK(vptq_buf_add(out, line, n, err));
        i += n;
    }
    return VPTQ_OK;
}

static vptq_status add_text(const char *path, bool rows, const vptq_tokenizer *t,
                            uint32_t vocab, vptq_mem *mem, vptq_ids *ids, vptq_err *err)
{
    vptq_map map = {0};
    vptq_buf formed;
    vptq_buf_init(&formed, mem);
    size_t before = ids->count;
    vptq_status st = vptq_map_open(path, &map, err);
    if (st)
        goto out;
    const char *text = map.size > 0 ? (const char *)map.data : "";
    size_t len = map.size;
    if (rows) {
        VPTQ_TRY(form_rows(text, len, &formed, err));
        text = formed.data;
        len = formed.len;
    }
    st = vptq_tokenizer_encode(t, text, len, VPTQ_ENCODE_BOS, ids, err);
    if (st) {
        st = vptq_err_context(err, "%s", path);
        goto out;
    }
    VPTQ_TRY(vptq_ids_check(ids->data + before, ids->count - before, vocab, path, err));
out:
    vptq_buf_release(&formed);
    vptq_map_release(&map);
    return st;
}

static vptq_status add_tokens(const char *path, uint32_t vocab, vptq_ids *ids, vptq_err *err)
{
    vptq_map map = {0};
    size_t before = ids->count;
    vptq_status st = vptq_map_open(path, &map, err);
    if (st)
        goto out;
    if (map.size % 4 != 0) {
        st = vptq_fail(err, VPTQ_E_FORMAT,
                       "%s: %zu bytes are no whole number of int32 token ids", path, map.size);
        goto out;
    }
    int32_t part[1024];
    for (size_t i = 0; i < map.size;) {
        size_t n = 0;
        for (; n < 1024 && i < map.size; n++, i += 4) {
            const uint8_t *b = map.data + i;
            uint32_t v = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 |
                         (uint32_t)b[3] << 24;
            part[n] = (int32_t)v;
        }
        VPTQ_TRY(vptq_ids_add(ids, part, n, err));
    }
    VPTQ_TRY(vptq_ids_check(ids->data + before, ids->count - before, vocab, path, err));
out:
    vptq_map_release(&map);
    return st;
}

vptq_status vptq_corpus_load(const vptq_ctx *ctx, const vptq_corpus_options *opt,
                             const vptq_tokenizer *t, uint32_t vocab, vptq_corpus *c,
                             vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    *c = (vptq_corpus){0};
    vptq_ids_init(&c->ids, ctx->mem);
    c->name = opt->text_count ? opt->texts[0] : opt->token_count ? opt->tokens[0] : "no text";
    if (opt->text_count > 0 && !t) {
        st = vptq_fail(err, VPTQ_E_ARG, "%s: a text needs a tokenizer, none is given",
                       opt->texts[0]);
        goto out;
    }
    for (size_t i = 0; i < opt->text_count; i++) {
        VPTQ_TRY(vptq_check_cancel(ctx, err));
        VPTQ_TRY(add_text(opt->texts[i], opt->rows, t, vocab, ctx->mem, &c->ids, err));
    }
    for (size_t i = 0; i < opt->token_count; i++) {
        VPTQ_TRY(vptq_check_cancel(ctx, err));
        VPTQ_TRY(add_tokens(opt->tokens[i], vocab, &c->ids, err));
    }
    uint64_t hash = vptq_hash(c->ids.data, c->ids.count * sizeof *c->ids.data, 0);
    (void)snprintf(c->fingerprint, sizeof c->fingerprint, "%016" PRIx64, hash);
out:
    if (st)
        vptq_corpus_release(c);
    return st;
}

void vptq_corpus_release(vptq_corpus *c)
{
    vptq_ids_release(&c->ids);
}

/* The first occurrence of part in text, or len. */
static size_t find_part(const char *text, size_t len, const char *part, size_t part_len)
{
    const char *hit = len > 0 ? memmem(text, len, part, part_len) : NULL;
    return hit ? (size_t)(hit - text) : len;
}

vptq_status vptq_corpus_documents(const vptq_ctx *ctx, const char *path, const char *separator,
                                  const vptq_tokenizer *t, uint32_t vocab, vptq_arena *arena,
                                  vptq_ids *ids, size_t **offsets, size_t *count, vptq_err *err)
{
    size_t sep_len = strlen(separator);
    if (sep_len == 0)
        return vptq_fail(err, VPTQ_E_ARG, "%s: the document separator is empty", path);
    vptq_map map = {0};
    vptq_status st = vptq_map_open(path, &map, err);
    if (st)
        goto out;
    const char *text = map.size > 0 ? (const char *)map.data : "";
    size_t parts = 1;
    for (size_t i = 0; (i += find_part(text + i, map.size - i, separator, sep_len)) < map.size;
         i += sep_len)
        parts++;
    size_t *at = vptq_arena_alloc(arena, parts + 1, sizeof *at, err);
    if (!at) {
        st = VPTQ_E_NOMEM;
        goto out;
    }
    size_t n = 0;
    at[0] = ids->count;
    for (size_t i = 0, k = 0; k < parts; k++) {
        VPTQ_TRY(vptq_check_cancel(ctx, err));
        size_t len = find_part(text + i, map.size - i, separator, sep_len);
        const char *doc = text + i;
        size_t skip = skip_space(doc, len);
        size_t end = trim_space(doc, len);
        i += len + sep_len;
        if (skip >= end)
            continue;
        st = vptq_tokenizer_encode(t, doc + skip, end - skip, VPTQ_ENCODE_BOS, ids, err);
        if (st) {
            st = vptq_err_context(err, "%s: document %zu", path, k);
            goto out;
        }
        at[++n] = ids->count;
    }
    VPTQ_TRY(vptq_ids_check(ids->data + at[0], ids->count - at[0], vocab, path, err));
    *offsets = at;
    *count = n;
out:
    vptq_map_release(&map);
    return st;
}

vptq_status vptq_corpus_sample(const vptq_corpus *c, size_t length, size_t want, uint64_t seed,
                               vptq_arena *arena, size_t **starts, size_t *count, vptq_err *err)
{
    if (length == 0)
        return vptq_fail(err, VPTQ_E_ARG, "a window of 0 tokens");
    size_t windows = c->ids.count / length;
    if (windows == 0)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: the text has %zu tokens, one window needs %zu", c->name,
                         c->ids.count, length);
    size_t n = windows < want ? windows : want;
    size_t *at = vptq_arena_alloc(arena, n, sizeof *at, err);
    if (!at)
        return VPTQ_E_NOMEM;
    /* Selection sampling (Knuth, The Art of Computer Programming, 3.4.2, algorithm S): a window
     * is taken with probability (still wanted) / (still there). */
    vptq_rng rng = vptq_rng_make(seed, 0, 0, VPTQ_RNG_SAMPLE);
    size_t taken = 0;
    for (size_t w = 0; taken < n; w++) {
        if (vptq_rng_below(&rng, w, windows - w) < n - taken)
            at[taken++] = w * length;
    }
    *starts = at;
    *count = n;
    return VPTQ_OK;
}
