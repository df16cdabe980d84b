/* Opens tokenizers, encodes texts by the other files of this folder, and decodes ids. */
#include "lib/tokenizer/tokenizer.h"

#include <inttypes.h>
#include <string.h>

#include "lib/base/utf8.h"
#include "lib/tokenizer/internal.h"

/* --- opening --- */

/* Decodes a piece in GPT-2's alphabet into bytes; false if a character is not in the alphabet.
 */
static bool from_alphabet(const vptq_piece *p, char *out, size_t *len)
{
    *len = 0;
    for (size_t i = 0; i < p->len;) {
        uint32_t cp = 0;
        size_t k = vptq_utf8_decode(p->text + i, p->len - i, &cp);
        int byte = k > 0 ? vptq_symbol_byte(cp) : -1;
        if (byte < 0)
            return false;
        out[(*len)++] = (char)byte;
        i += k;
    }
    return true;
}

static void from_meta(const vptq_piece *p, char *out, size_t *len)
{
    *len = 0;
    for (size_t i = 0; i < p->len;) {
        bool meta = vptq_is_meta(p->text, p->len, i);
        out[(*len)++] = meta ? ' ' : p->text[i];
        i += meta ? 3 : 1;
    }
}

/* Sets the decoded text of every piece, all in one allocation. */
static vptq_status decode_pieces(vptq_tokenizer *t, vptq_err *err)
{
    const vptq_vocab *v = t->v;
    size_t total = 0;
    for (uint32_t i = 0; i < v->count; i++)
        total += v->pieces[i].len;
    t->bytes = vptq_arena_zalloc(&t->arena, v->count, sizeof *t->bytes, err);
    char *next = vptq_arena_alloc(&t->arena, total, 1, err);
    if (!t->bytes || !next)
        return VPTQ_E_NOMEM;
    for (uint32_t i = 0; i < v->count; i++) {
        const vptq_piece *p = &v->pieces[i];
        vptq_span *b = &t->bytes[i];
        *b = (vptq_span){next, 0};
        if (v->kind == VPTQ_VOCAB_SPM_BPE && p->type == VPTQ_PIECE_BYTE) {
            uint8_t byte;
            if (!vptq_piece_is_byte(p->text, p->len, &byte))
                return vptq_fail(err, VPTQ_E_FORMAT,
                                 "%s: byte piece %" PRIu32 " is '%s', expected <0xHH>",
                                 v->source, i, p->text);
            t->byte_id[byte] = (int32_t)i;
            next[0] = (char)byte;
            b->len = 1;
        } else if (v->kind == VPTQ_VOCAB_SPM_BPE) {
            from_meta(p, next, &b->len);
        } else if (!from_alphabet(p, next, &b->len)) {
            *b = (vptq_span){p->text, p->len};
            continue;
        }
        next += b->len;
    }
    for (uint32_t i = 0; v->kind == VPTQ_VOCAB_BYTE_BPE && i < v->added_count; i++)
        t->bytes[v->added[i].id] = (vptq_span){v->added[i].text, v->added[i].len};
    return VPTQ_OK;
}

/* Returns whether a character other than U+2581 is followed by U+2581. */
static bool meta_inside(const vptq_piece *p)
{
    for (size_t i = 1; i < p->len; i++)
        if (vptq_is_meta(p->text, p->len, i) &&
            (i < 3 || !vptq_is_meta(p->text, p->len, i - 3)))
            return true;
    return false;
}

/* Builds the map from text to NORMAL pieces, and the symbols of single bytes. */
static vptq_status index_pieces(vptq_tokenizer *t, vptq_err *err)
{
    const vptq_vocab *v = t->v;
    bool bytes = v->kind == VPTQ_VOCAB_BYTE_BPE;
    bool by_text = !bytes || v->by_score || v->ignore_merges;
    vptq_status st = vptq_strmap_init(&t->text, t->arena.mem, by_text ? v->count : 0, err);
    if (st)
        return st;
    bool meta = false, inside = false;
    for (uint32_t i = 0; i < v->count; i++) {
        const vptq_piece *p = &v->pieces[i];
        if (p->type != VPTQ_PIECE_NORMAL || p->len == 0)
            continue;
        vptq_span key = bytes ? t->bytes[i] : (vptq_span){p->text, p->len};
        if (key.text == p->text && bytes)
            continue; /* not in the alphabet: no text encodes to it */
        bool fresh = true;
        if (by_text)
            st = vptq_strmap_add(&t->text, key.text, key.len, i, &fresh, err);
        if (st)
            return st;
        unsigned char only = (unsigned char)key.text[0];
        if (bytes && key.len == 1)
            t->byte_id[only] = (int32_t)i;
        else if (fresh && key.len == 1 && only < 128)
            t->char_id[only] = (int32_t)i;
        if (key.len > t->longest)
            t->longest = (uint32_t)key.len;
        meta = meta || (p->len == 3 && vptq_is_meta(p->text, p->len, 0));
        inside = inside || (!bytes && meta_inside(p));
    }
    t->cut_meta = !bytes && meta && !inside && !v->ignore_merges;
    return VPTQ_OK;
}

vptq_status vptq_tokenizer_open(const vptq_ctx *ctx, const vptq_vocab *vocab,
                                vptq_tokenizer **out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_mem *mem = ctx ? ctx->mem : NULL;
    *out = NULL;
    vptq_tokenizer *t = vptq_mem_alloc(mem, 1, sizeof *t, err);
    if (!t)
        return VPTQ_E_NOMEM;
    *t = (vptq_tokenizer){.v = vocab, .ctx = {.cancel = ctx ? ctx->cancel : NULL}};
    vptq_arena_init(&t->arena, mem);
    for (int i = 0; i < 256; i++)
        t->byte_id[i] = t->char_id[i % 128] = -1;
    VPTQ_TRY(decode_pieces(t, err));
    VPTQ_TRY(index_pieces(t, err));
    VPTQ_TRY(vptq_merge_prepare(t, err));
    VPTQ_TRY(vptq_regex_prepare(t, err));
    VPTQ_TRY(vptq_added_prepare(t, err));
out:
    if (st) {
        vptq_tokenizer_close(t);
        t = NULL;
    }
    *out = t;
    return st;
}

void vptq_tokenizer_close(vptq_tokenizer *t)
{
    if (!t)
        return;
    vptq_mem *mem = t->arena.mem;
    vptq_regex_release(t);
    vptq_strmap_release(&t->text);
    vptq_arena_release(&t->arena);
    vptq_mem_free(mem, t);
}

/* --- encoding --- */

static uint64_t work_limit(const vptq_encode_run *e)
{
    return VPTQ_WORK_CALL + (uint64_t)e->text_len * VPTQ_WORK_BYTE;
}

vptq_status vptq_encode_poll(vptq_encode_run *e, vptq_err *err)
{
    const char *source = e->t->v->source;
    uint64_t limit = work_limit(e);
    VPTQ_CHECK(vptq_check_cancel(&e->t->ctx, err));
    if (e->work > limit && e->pattern)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: encoding %zu bytes takes more than %" PRIu64
                         " steps, the last in the pattern '%.200s'",
                         source, e->text_len, limit, e->pattern);
    if (e->work > limit)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: encoding %zu bytes takes more than %" PRIu64 " steps", source,
                         e->text_len, limit);
    e->work_poll = e->work + VPTQ_WORK_POLL;
    return VPTQ_OK;
}

vptq_status vptq_growth_fails(const vptq_encode_run *e, vptq_err *err)
{
    return vptq_fail(
        err, VPTQ_E_FORMAT,
        "%s: normalizer and pre-tokenizer make more than %zu bytes of a text of %zu",
        e->t->v->source, e->growth, e->text_len);
}

vptq_status vptq_encode_open(vptq_encode_run *e, const vptq_tokenizer *t, size_t len,
                             vptq_ids *out, vptq_err *err)
{
    *e = (vptq_encode_run){
        .t = t, .text_len = len, .work_poll = VPTQ_WORK_POLL, .mem = t->arena.mem, .out = out};
    e->growth = len < SIZE_MAX / 2 / VPTQ_GROWTH_BYTE
                    ? VPTQ_GROWTH_CALL + len * VPTQ_GROWTH_BYTE
                    : SIZE_MAX;
    vptq_buf_init(&e->norm[0], e->mem);
    vptq_buf_init(&e->norm[1], e->mem);
    if (t->v->split_count > 0) {
        e->step = vptq_mem_alloc(e->mem, t->v->split_count, sizeof *e->step, err);
        if (!e->step)
            return VPTQ_E_NOMEM;
        for (uint32_t i = 0; i < t->v->split_count; i++)
            vptq_buf_init(&e->step[i], e->mem);
    }
    return vptq_regex_open(t, &e->regex, err);
}

void vptq_encode_close(vptq_encode_run *e)
{
    for (uint32_t i = 0; e->step && i < e->t->v->split_count; i++)
        vptq_buf_release(&e->step[i]);
    vptq_mem_free(e->mem, e->step);
    vptq_buf_release(&e->norm[0]);
    vptq_buf_release(&e->norm[1]);
    vptq_mem_free(e->mem, e->symbols);
    vptq_mem_free(e->mem, e->heap);
    vptq_regex_close(&e->regex);
}

/* Encodes a section between added tokens: normalizes it, cuts it again at the added tokens that
 * count in normalized text, then splits and merges. */
static vptq_status encode_section(vptq_encode_run *e, const char *text, size_t len, bool first,
                                  bool special, vptq_err *err)
{
    vptq_span s;
    bool cut = false;
    if (len == 0)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_normalize(e, text, len, &s, &cut, err));
    size_t at = 0;
    for (vptq_added_match m = {.found = true}; m.found; at = m.end) {
        VPTQ_CHECK(vptq_added_next(e, &e->t->normalized, s.text, s.len, special, &m, err));
        if (m.begin > at)
            VPTQ_CHECK(
                vptq_split_words(e, s.text + at, m.begin - at, first && !cut && at == 0, err));
        if (m.found)
            VPTQ_CHECK(vptq_ids_add(e->out, &m.id, 1, err));
    }
    return VPTQ_OK;
}

vptq_status vptq_tokenizer_encode(const vptq_tokenizer *t, const char *text, size_t len,
                                  unsigned flags, vptq_ids *out, vptq_err *err)
{
    const vptq_vocab *v = t->v;
    bool special = (flags & VPTQ_ENCODE_SPECIAL) != 0, ends = (flags & VPTQ_ENCODE_BOS) != 0;
    vptq_encode_run e;
    vptq_status st = vptq_encode_open(&e, t, len, out, err);
    if (st)
        goto out;
    if (ends && v->add_bos)
        VPTQ_TRY(vptq_ids_add(out, &v->bos, 1, err));
    size_t at = 0;
    for (vptq_added_match m = {.found = true}; m.found; at = m.end) {
        VPTQ_TRY(vptq_added_next(&e, &t->raw, text, len, special, &m, err));
        if (m.begin > at)
            VPTQ_TRY(encode_section(&e, text + at, m.begin - at, at == 0, special, err));
        if (m.found)
            VPTQ_TRY(vptq_ids_add(out, &m.id, 1, err));
    }
    if (ends && v->add_eos)
        VPTQ_TRY(vptq_ids_add(out, &v->eos, 1, err));
out:
    vptq_encode_close(&e);
    return st;
}

/* --- decoding --- */

/* Decodes an id at the start of a text. The text loses one space (strip_start), so an id
 * without bytes leaves the start to the next one; the first id loses all of its marks
 * (strip_marks). */
static vptq_status decode_first(const vptq_tokenizer *t, int32_t id, bool *start, vptq_buf *out,
                                vptq_err *err)
{
    const vptq_piece *p = &t->v->pieces[id];
    vptq_span b = t->bytes[id];
    if (t->v->strip_marks && p->type != VPTQ_PIECE_BYTE) {
        *start = false;
        for (size_t i = 0; i < p->len; i++) {
            if (vptq_is_meta(p->text, p->len, i))
                i += 2;
            else
                VPTQ_CHECK(vptq_buf_add(out, p->text + i, 1, err));
        }
        return VPTQ_OK;
    }
    *start = b.len == 0 && !t->v->strip_marks;
    bool drop = t->v->strip_start && b.len > 0 && b.text[0] == ' ';
    return vptq_buf_add(out, b.text + drop, b.len - drop, err);
}

vptq_status vptq_tokenizer_decode(const vptq_tokenizer *t, const int32_t *ids, size_t n,
                                  bool *start, bool special, vptq_buf *out, vptq_err *err)
{
    const vptq_vocab *v = t->v;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= v->count) {
            return vptq_fail(err, VPTQ_E_ARG,
                             "token id %" PRId32 " is outside the vocabulary of %" PRIu32
                             " entries of %s",
                             ids[i], v->count, v->source);
        }
        uint8_t type = v->pieces[ids[i]].type;
        if ((type == VPTQ_PIECE_CONTROL || type == VPTQ_PIECE_UNKNOWN) && !special)
            continue;
        if (*start)
            VPTQ_CHECK(decode_first(t, ids[i], start, out, err));
        else
            VPTQ_CHECK(vptq_buf_add(out, t->bytes[ids[i]].text, t->bytes[ids[i]].len, err));
    }
    return VPTQ_OK;
}
