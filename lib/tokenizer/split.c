/* Runs the pre-tokenizer: each step cuts the words of the previous step and passes its own on.
 */
#include <string.h>
#include <utf8proc.h>

#include "lib/base/utf8.h"
#include "lib/tokenizer/internal.h"

/* A word between two steps; `first`: it begins the text. */
typedef struct word {
    const char *text;
    size_t len;
    bool first;
} word;

static vptq_status run_step(vptq_encode_run *e, uint32_t step, word w, vptq_err *err);

/* Passes part [begin, end) of a word to the next step. */
static vptq_status pass_on(vptq_encode_run *e, uint32_t step, word w, size_t begin, size_t end,
                           vptq_err *err)
{
    if (begin == end)
        return VPTQ_OK;
    word part = {w.text + begin, end - begin, w.first && begin == 0};
    return run_step(e, step + 1, part, err);
}

/* Merges a SentencePiece word in parts, cut before each U+2581 that does not follow another
 * one. If no merge spans such a position, this changes nothing and keeps the heaps small. */
static vptq_status merge_cut(vptq_encode_run *e, word w, vptq_err *err)
{
    size_t begin = 0;
    for (size_t i = 3; i + 3 <= w.len; i++) {
        if (vptq_is_meta(w.text, w.len, i) && !vptq_is_meta(w.text, w.len, i - 3)) {
            VPTQ_CHECK(vptq_merge_word(e, w.text + begin, i - begin, err));
            begin = i;
        }
    }
    return vptq_merge_word(e, w.text + begin, w.len - begin, err);
}

/* Joins matches and the text between them into words, as the kind of split requires. The last
 * word waits for what follows. */
typedef struct cutter {
    vptq_encode_run *e;
    uint32_t step;
    word w;
    size_t begin, end; /* of the waiting word */
    bool waits, match; /* match: the previous part was one */
} cutter;

static vptq_status flush(cutter *c, vptq_err *err)
{
    c->waits = false;
    return pass_on(c->e, c->step, c->w, c->begin, c->end, err);
}

/* Adds the next part [begin, end) of the text. */
static vptq_status cut_part(cutter *c, size_t begin, size_t end, bool match, vptq_err *err)
{
    bool before = c->match, joins = false;
    c->match = match;
    switch (c->e->t->v->splits[c->step].kind) {
    case VPTQ_SPLIT_REMOVED:
        return match ? VPTQ_OK : pass_on(c->e, c->step, c->w, begin, end, err);
    case VPTQ_SPLIT_CONTIGUOUS:
        joins = match == before;
        break;
    case VPTQ_SPLIT_TO_LEFT:
        joins = match && !before;
        break;
    case VPTQ_SPLIT_TO_RIGHT:
        joins = !match && before;
        break;
    default: /* ISOLATED */
        return pass_on(c->e, c->step, c->w, begin, end, err);
    }
    if (c->waits && joins) {
        c->end = end;
        return VPTQ_OK;
    }
    if (c->waits)
        VPTQ_CHECK(flush(c, err));
    c->begin = begin;
    c->end = end;
    c->waits = true;
    return VPTQ_OK;
}

/* Cuts the valid UTF-8 in [begin, begin + len). */
static vptq_status cut_valid(cutter *c, size_t begin, size_t len, vptq_err *err)
{
    const vptq_tokenizer *t = c->e->t;
    bool invert = t->v->splits[c->step].invert;
    size_t at = 0;
    c->match = false;
    for (vptq_matches m = {.found = len > 0}; m.found; at = m.end) {
        VPTQ_CHECK(
            vptq_regex_next(c->e, &t->split_code[c->step], c->w.text + begin, len, &m, err));
        if (m.begin > at)
            VPTQ_CHECK(cut_part(c, begin + at, begin + m.begin, invert, err));
        if (m.found)
            VPTQ_CHECK(cut_part(c, begin + m.begin, begin + m.end, !invert, err));
    }
    if (c->waits)
        VPTQ_CHECK(flush(c, err));
    return VPTQ_OK;
}

static vptq_status split_regex(vptq_encode_run *e, uint32_t step, word w, vptq_err *err)
{
    cutter c = {.e = e, .step = step, .w = w};
    for (size_t i = 0; i < w.len;) {
        size_t run = vptq_utf8_valid_prefix(w.text + i, w.len - i);
        VPTQ_CHECK(cut_valid(&c, i, run, err));
        i += run;
        size_t bad = i; /* bytes that are not UTF-8 form a word */
        uint32_t cp = 0;
        while (i < w.len && vptq_utf8_decode(w.text + i, w.len - i, &cp) == 0)
            i++;
        VPTQ_CHECK(pass_on(e, step, w, bad, i, err));
    }
    return VPTQ_OK;
}

static bool is_numeric(uint32_t cp)
{
    if (cp < 0x80)
        return cp >= '0' && cp <= '9';
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

static vptq_status split_digits(vptq_encode_run *e, uint32_t step, word w, vptq_err *err)
{
    bool individual = e->t->v->splits[step].individual, in_digits = false;
    size_t begin = 0;
    for (size_t i = 0, k = 0; i < w.len; i += k) {
        uint32_t cp = 0;
        k = vptq_utf8_decode(w.text + i, w.len - i, &cp);
        bool digit = k > 0 && is_numeric(cp);
        if (k == 0)
            k = 1;
        if (i > begin && (digit != in_digits || (digit && individual))) {
            VPTQ_CHECK(pass_on(e, step, w, begin, i, err));
            begin = i;
        }
        in_digits = digit;
    }
    return pass_on(e, step, w, begin, w.len, err);
}

static vptq_status split_metaspace(vptq_encode_run *e, uint32_t step, word w, vptq_err *err)
{
    const vptq_split *s = &e->t->v->splits[step];
    vptq_buf *b = &e->step[step];
    bool has = w.text[0] == ' ' || vptq_is_meta(w.text, w.len, 0);
    vptq_buf_clear(b);
    if (!has &&
        (s->prepend == VPTQ_PREPEND_ALWAYS || (s->prepend == VPTQ_PREPEND_FIRST && w.first)))
        VPTQ_CHECK(vptq_buf_add(b, VPTQ_META, 3, err));
    for (size_t i = 0; i < w.len;) {
        const char *space = memchr(w.text + i, ' ', w.len - i);
        size_t n = space ? (size_t)(space - w.text) - i : w.len - i;
        VPTQ_CHECK(vptq_buf_add(b, w.text + i, n, err));
        i += n;
        if (i < w.len) {
            VPTQ_CHECK(vptq_buf_add(b, VPTQ_META, 3, err));
            i++;
        }
    }
    word all = {b->data, b->len, w.first};
    size_t begin = 0;
    for (size_t i = 1; s->individual && i + 3 <= all.len; i++) {
        if (vptq_is_meta(all.text, all.len, i)) {
            VPTQ_CHECK(pass_on(e, step, all, begin, i, err));
            begin = i;
        }
    }
    return pass_on(e, step, all, begin, all.len, err);
}

static vptq_status split_prefix(vptq_encode_run *e, uint32_t step, word w, vptq_err *err)
{
    if (w.text[0] == ' ')
        return run_step(e, step + 1, w, err);
    vptq_buf *b = &e->step[step];
    vptq_buf_clear(b);
    VPTQ_CHECK(vptq_buf_add(b, " ", 1, err));
    VPTQ_CHECK(vptq_buf_add(b, w.text, w.len, err));
    return run_step(e, step + 1, (word){b->data, b->len, w.first}, err);
}

/* Runs one step; steps nest at most VPTQ_STEPS_MAX deep. */
static vptq_status run_step(vptq_encode_run *e, uint32_t step, word w, vptq_err *err)
{
    const vptq_vocab *v = e->t->v;
    VPTQ_CHECK(vptq_charge(e, w.len, err));
    if (step == v->split_count)
        return e->t->cut_meta ? merge_cut(e, w, err) : vptq_merge_word(e, w.text, w.len, err);
    switch (v->splits[step].kind) {
    case VPTQ_SPLIT_ISOLATED:
    case VPTQ_SPLIT_REMOVED:
    case VPTQ_SPLIT_CONTIGUOUS:
    case VPTQ_SPLIT_TO_LEFT:
    case VPTQ_SPLIT_TO_RIGHT:
        return split_regex(e, step, w, err);
    case VPTQ_SPLIT_DIGITS:
        return split_digits(e, step, w, err);
    case VPTQ_SPLIT_METASPACE:
        return split_metaspace(e, step, w, err);
    case VPTQ_SPLIT_PREFIX:
        return split_prefix(e, step, w, err);
    }
    return VPTQ_OK;
}

vptq_status vptq_split_words(vptq_encode_run *e, const char *text, size_t len, bool first,
                             vptq_err *err)
{
    return len > 0 ? run_step(e, 0, (word){text, len, first}, err) : VPTQ_OK;
}
