/* Reads texts and token files as ids, splits texts into documents, and draws windows. */
#define _GNU_SOURCE /* memmem */
#include "lib/model/corpus.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "formats/text_file.h"
#include "lib/base/file.h"
#include "lib/base/rng.h"
#include "lib/base/text.h"
#include "lib/base/utf8.h"

/* Returns the length of the white space at the beginning of text. */
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

/* Returns the length of text without the white space at its end. */
static size_t trim_space(const char *text, size_t len)
{
    uint32_t cp = 0;
    size_t n;
    while ((n = vptq_utf8_decode_last(text, len, &cp)) > 0 && vptq_utf8_space(cp))
        len -= n;
    return len;
}

/* Adds the text as Hugging Face's dataset reader returns it, one row per line, with "\n\n"
 * between rows. */
static vptq_status form_rows(const char *text, size_t len, vptq_buf *out, vptq_err *err)
{
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

static vptq_text_kind text_kind(bool lossy)
{
    return lossy ? VPTQ_TEXT_LOSSY : VPTQ_TEXT_UTF8;
}

/* Encodes the file's text after the ids; its errors name the file. */
static vptq_status add_text(const vptq_ctx *ctx, const char *path,
                            const vptq_corpus_options *opt, const vptq_tokenizer *t,
                            vptq_ids *ids, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_text_file file;
    vptq_buf formed;
    vptq_buf_init(&formed, ids->mem);
    VPTQ_TRY(vptq_text_file_open(ctx, path, text_kind(opt->lossy), SIZE_MAX, &file, err));
    const char *text = file.data;
    size_t len = file.size;
    if (opt->rows) {
        VPTQ_TRY(form_rows(text, len, &formed, err));
        text = formed.data;
        len = formed.len;
    }
    st = vptq_tokenizer_encode(t, text, len, VPTQ_ENCODE_BOS, ids, err);
    if (st)
        st = vptq_err_context(err, "%s", file.name);
out:
    vptq_buf_release(&formed);
    vptq_text_file_close(&file);
    return st;
}

static vptq_status add_token_file(const vptq_ctx *ctx, const char *path, vptq_ids *ids,
                                  vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_text_file file;
    VPTQ_TRY(vptq_text_file_open(ctx, path, VPTQ_TEXT_BYTES, SIZE_MAX, &file, err));
    if (file.size % 4 != 0)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_FORMAT,
                           "%s: %zu bytes are not a whole number of int32 token ids", file.name,
                           file.size));
    int32_t part[1024];
    for (size_t i = 0; i < file.size;) {
        size_t n = 0;
        for (; n < 1024 && i < file.size; n++, i += 4) {
            const uint8_t *b = (const uint8_t *)file.data + i;
            uint32_t v = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 |
                         (uint32_t)b[3] << 24;
            part[n] = (int32_t)v;
        }
        VPTQ_TRY(vptq_ids_add(ids, part, n, err));
    }
out:
    vptq_text_file_close(&file);
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
    c->name = vptq_text_file_name(c->name);
    if (opt->text_count > 0 && !t)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_ARG, "%s: a text needs a tokenizer, none is given",
                           opt->texts[0]));
    for (size_t i = 0; i < opt->text_count + opt->token_count; i++) {
        const bool is_text = i < opt->text_count;
        const char *path = is_text ? opt->texts[i] : opt->tokens[i - opt->text_count];
        const size_t before = c->ids.count;
        VPTQ_TRY(vptq_check_cancel(ctx, err));
        if (is_text)
            VPTQ_TRY(add_text(ctx, path, opt, t, &c->ids, err));
        else
            VPTQ_TRY(add_token_file(ctx, path, &c->ids, err));
        VPTQ_TRY(vptq_ids_check(c->ids.data + before, c->ids.count - before, vocab,
                                vptq_text_file_name(path), err));
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

/* Returns the offset of the first separator in text, or len. */
static size_t find_separator(const char *text, size_t len, const char *separator, size_t n)
{
    const char *hit = len > 0 ? memmem(text, len, separator, n) : NULL;
    return hit ? (size_t)(hit - text) : len;
}

vptq_status vptq_corpus_documents(const vptq_ctx *ctx, const vptq_corpus_options *opt,
                                  const char *separator, const vptq_tokenizer *t,
                                  uint32_t vocab, vptq_arena *arena, vptq_ids *ids,
                                  size_t **offsets, size_t *count, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_text_file file;
    const char *path = vptq_text_file_name(opt->texts[0]);
    const size_t sep_len = strlen(separator), before = ids->count;
    size_t parts = 1, n = 0;
    if (sep_len == 0)
        return vptq_fail(err, VPTQ_E_ARG, "%s: the document separator is empty", path);
    VPTQ_TRY(
        vptq_text_file_open(ctx, opt->texts[0], text_kind(opt->lossy), SIZE_MAX, &file, err));
    const char *text = file.data;
    for (size_t i = 0;
         (i += find_separator(text + i, file.size - i, separator, sep_len)) < file.size;
         i += sep_len)
        parts++;
    *offsets = vptq_arena_alloc(arena, parts + 1, sizeof **offsets, err);
    if (!*offsets)
        VPTQ_TRY(VPTQ_E_NOMEM);
    (*offsets)[0] = before;
    for (size_t i = 0, k = 0; k < parts; k++) {
        VPTQ_TRY(vptq_check_cancel(ctx, err));
        const char *doc = text + i;
        const size_t len = find_separator(doc, file.size - i, separator, sep_len);
        const size_t begin = skip_space(doc, len), end = trim_space(doc, len);
        i += len + sep_len;
        if (begin >= end)
            continue;
        st = vptq_tokenizer_encode(t, doc + begin, end - begin, VPTQ_ENCODE_BOS, ids, err);
        if (st)
            VPTQ_TRY(vptq_err_context(err, "%s: document %zu", path, k));
        (*offsets)[++n] = ids->count;
    }
    VPTQ_TRY(vptq_ids_check(ids->data + before, ids->count - before, vocab, path, err));
    *count = n;
out:
    vptq_text_file_close(&file);
    return st;
}

vptq_status vptq_corpus_sample(const vptq_corpus *c, size_t length, size_t want, uint64_t seed,
                               vptq_arena *arena, size_t **starts, size_t *count, vptq_err *err)
{
    if (length == 0)
        return vptq_fail(err, VPTQ_E_ARG, "the window length is 0, expected at least 1");
    const size_t windows = c->ids.count / length;
    if (windows == 0)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: the text has %zu token%s, one window needs %zu", c->name,
                         c->ids.count, vptq_plural(c->ids.count, "", "s"), length);
    const size_t n = windows < want ? windows : want;
    *starts = vptq_arena_alloc(arena, n, sizeof **starts, err);
    if (!*starts)
        return VPTQ_E_NOMEM;
    /* Selection sampling (Knuth, The Art of Computer Programming, 3.4.2, algorithm S): a window
     * is taken with probability (windows still wanted) / (windows left). */
    const vptq_rng rng = vptq_rng_make(seed, 0, 0, VPTQ_RNG_SAMPLE);
    size_t taken = 0;
    for (size_t w = 0; taken < n; w++)
        if (vptq_rng_below(&rng, w, windows - w) < n - taken)
            (*starts)[taken++] = w * length;
    *count = n;
    return VPTQ_OK;
}

vptq_status vptq_corpus_check_output(const vptq_corpus_options *opt, const char *output,
                                     vptq_err *err)
{
    for (size_t i = 0; i < opt->text_count; i++)
        VPTQ_CHECK(vptq_path_check_output(output, opt->texts[i], err));
    for (size_t i = 0; i < opt->token_count; i++)
        VPTQ_CHECK(vptq_path_check_output(output, opt->tokens[i], err));
    return VPTQ_OK;
}
