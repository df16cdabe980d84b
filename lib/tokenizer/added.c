/* Finds added tokens in a text, the longest match first. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "lib/base/utf8.h"
#include "lib/tokenizer/internal.h"

typedef struct vptq_added_entry {
    vptq_span span;
    const vptq_added_token *token;
} entry;

static int by_text(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    size_t n = x->span.len < y->span.len ? x->span.len : y->span.len;
    int c = memcmp(x->span.text, y->span.text, n);
    if (c != 0)
        return c;
    if (x->span.len != y->span.len)
        return x->span.len < y->span.len ? -1 : 1;
    return x->token < y->token ? -1 : x->token > y->token; /* the first of equal ones counts */
}

/* Adds an entry with a copy of `text`. */
static vptq_status add_entry(vptq_tokenizer *t, vptq_added_set *set, vptq_span text,
                             const vptq_added_token *token, vptq_err *err)
{
    char *copy = vptq_arena_strndup(&t->arena, text.text, text.len, err);
    if (!copy)
        return VPTQ_E_NOMEM;
    set->entries[set->count++] = (entry){{copy, text.len}, token};
    return VPTQ_OK;
}

vptq_status vptq_added_prepare(vptq_tokenizer *t, vptq_err *err)
{
    const vptq_vocab *v = t->v;
    vptq_added_set *sets[2] = {&t->raw, &t->normalized};
    vptq_encode_run e;
    size_t total = 0, kept = 0;
    for (uint32_t i = 0; i < v->added_count; i++)
        total += v->added[i].len;
    vptq_status st = vptq_encode_open(&e, t, total, NULL, err);
    if (st)
        goto out;
    for (int k = 0; k < 2; k++) {
        sets[k]->entries =
            vptq_arena_alloc(&t->arena, v->added_count, sizeof *sets[k]->entries, err);
        if (!sets[k]->entries)
            VPTQ_TRY(VPTQ_E_NOMEM);
    }
    for (uint32_t i = 0; i < v->added_count; i++) {
        const vptq_added_token *a = &v->added[i];
        vptq_span text = {a->text, a->len};
        bool cut;
        if (a->normalized)
            VPTQ_TRY(vptq_normalize(&e, a->text, a->len, &text, &cut, err));
        kept += text.len;
        VPTQ_TRY(vptq_check_growth(&e, kept, err));
        if (text.len > 0)
            VPTQ_TRY(add_entry(t, sets[a->normalized], text, a, err));
    }
    for (int k = 0; k < 2; k++) {
        if (sets[k]->count > 0)
            qsort(sets[k]->entries, sets[k]->count, sizeof *sets[k]->entries, by_text);
        for (uint32_t i = 0; i < sets[k]->count; i++)
            sets[k]->first[(unsigned char)sets[k]->entries[i].span.text[0]] = true;
    }
out:
    vptq_encode_close(&e);
    return st;
}

/* The first of the entries [lo, hi) whose byte d is at least `byte`. */
static uint32_t lower_bound(const vptq_added_set *set, uint32_t lo, uint32_t hi, size_t d,
                            int byte)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if ((unsigned char)set->entries[mid].span.text[d] < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Returns the longest entry that the text begins with, or NULL. The range of entries that agree
 * with the first d bytes narrows as d grows. *steps: bytes that were compared. */
static const entry *longest(const vptq_added_set *set, const char *text, size_t len,
                            size_t *steps)
{
    const entry *best = NULL;
    uint32_t lo = 0, hi = set->count;
    for (size_t d = 0; lo < hi; d++) {
        *steps = d;
        if (hi - lo == 1) {
            const vptq_span s = set->entries[lo].span;
            *steps += s.len / 16;
            return s.len <= len && !memcmp(text + d, s.text + d, s.len - d) ? &set->entries[lo]
                                                                            : best;
        }
        /* entries that end here come first in the range */
        if (set->entries[lo].span.len == d) {
            best = &set->entries[lo];
            while (lo < hi && set->entries[lo].span.len == d)
                lo++;
        }
        if (d == len)
            break;
        int byte = (unsigned char)text[d];
        lo = lower_bound(set, lo, hi, d, byte);
        hi = lower_bound(set, lo, hi, d, byte + 1);
    }
    return best;
}

/* Matches \w: alphabetic characters (letters, letter numbers, letters in circles and squares),
 * marks, decimal digits, connecting punctuation, the two joiners. */
static bool is_word(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) ||
           c == UTF8PROC_CATEGORY_PC || cp == 0x200C || cp == 0x200D ||
           (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) ||
           (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189);
}

static bool stands_alone(const char *text, size_t len, size_t begin, size_t end)
{
    size_t size;
    uint32_t cp = 0;
    if (begin > 0 && is_word(vptq_char_before(text, begin, &size)))
        return false;
    return vptq_utf8_decode(text + end, len - end, &cp) == 0 || !is_word(cp);
}

/* Extends [begin, end) by white space, to the left not before `from`. An `end` before `from`
 * lies in white space that the previous token absorbed up to there. */
static void swallow_space(const vptq_added_token *a, const char *text, size_t len, size_t from,
                          size_t *begin, size_t *end)
{
    size_t size = 0;
    while (a->lstrip && *begin > from &&
           vptq_utf8_space(vptq_char_before(text, *begin, &size)) && *begin - size >= from)
        *begin -= size;
    if (a->lstrip && *begin < from)
        *begin = from;
    if (a->rstrip && *end < from)
        *end = from;
    while (a->rstrip && *end < len) {
        uint32_t cp = 0;
        size = vptq_utf8_decode(text + *end, len - *end, &cp);
        if (size == 0 || !vptq_utf8_space(cp))
            break;
        *end += size;
    }
}

vptq_status vptq_added_next(vptq_encode_run *e, const vptq_added_set *set, const char *text,
                            size_t len, bool special, vptq_added_match *m, vptq_err *err)
{
    size_t taken = m->end, steps = 0;
    m->found = true;
    for (size_t i = set->count > 0 ? m->from : len; i < len; i++) {
        if (!set->first[(unsigned char)text[i]])
            continue;
        const entry *hit = longest(set, text + i, len - i, &steps);
        VPTQ_CHECK(vptq_charge(e, 1 + steps, err));
        if (!hit)
            continue;
        const vptq_added_token *a = hit->token;
        size_t end = i + hit->span.len;
        if ((a->special && !special) || (a->single_word && !stands_alone(text, len, i, end))) {
            i = end - 1; /* a match that does not count still hides the text it covers */
            continue;
        }
        *m = (vptq_added_match){i, end, (int32_t)a->id, end, true};
        swallow_space(a, text, len, taken, &m->begin, &m->end);
        if (m->begin < m->end)
            return VPTQ_OK;
        taken = m->end; /* the previous token absorbed all of it */
    }
    m->begin = len;
    m->found = false;
    return VPTQ_OK;
}
