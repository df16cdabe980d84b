/* Merges byte pairs of one word: symbols in a doubly linked list, candidate merges in a binary
 * heap ordered by (rank, position). A candidate whose symbols have changed meanwhile is dropped
 * when it is popped. n symbols make at most n - 1 merges and 3 n candidates: O(n log n). */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/utf8.h"
#include "lib/tokenizer/internal.h"

#define NONE UINT32_MAX

static size_t mix(uint32_t left, uint32_t right)
{
    uint64_t x = (uint64_t)left << 32 | right;
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9); /* splitmix64's finalizer */
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (size_t)(x ^ (x >> 31));
}

static vptq_status build_pairs(vptq_tokenizer *t, vptq_err *err)
{
    const vptq_vocab *v = t->v;
    size_t cap = 16;
    while (cap < (size_t)v->merge_count * 2)
        cap *= 2;
    t->pairs.slots = vptq_arena_alloc(&t->arena, cap, sizeof *t->pairs.slots, err);
    if (!t->pairs.slots)
        return VPTQ_E_NOMEM;
    t->pairs.mask = cap - 1;
    for (size_t i = 0; i < cap; i++)
        t->pairs.slots[i].rank = NONE;
    for (uint32_t r = 0; r < v->merge_count; r++) {
        const vptq_merge *m = &v->merges[r];
        size_t i = mix(m->left, m->right) & t->pairs.mask;
        vptq_pair_slot *s = &t->pairs.slots[i];
        while (s->rank != NONE && (s->left != m->left || s->right != m->right)) {
            i = (i + 1) & t->pairs.mask;
            s = &t->pairs.slots[i];
        }
        /* the last rank of a repeated pair counts */
        *s = (vptq_pair_slot){m->left, m->right, r};
    }
    return VPTQ_OK;
}

static uint32_t find_pair(const vptq_pair_table *p, uint32_t left, uint32_t right)
{
    for (size_t i = mix(left, right) & p->mask;; i = (i + 1) & p->mask) {
        const vptq_pair_slot *s = &p->slots[i];
        if (s->rank == NONE || (s->left == left && s->right == right))
            return s->rank;
    }
}

typedef struct scored {
    float score;
    uint32_t id;
} scored;

static int by_score(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static vptq_status build_ranks(vptq_tokenizer *t, vptq_err *err)
{
    const vptq_vocab *v = t->v;
    t->rank = vptq_arena_alloc(&t->arena, v->count, sizeof *t->rank, err);
    scored *order = vptq_mem_alloc(t->arena.mem, v->count, sizeof *order, err);
    if (!t->rank || !order) {
        vptq_mem_free(t->arena.mem, order);
        return VPTQ_E_NOMEM;
    }
    for (uint32_t i = 0; i < v->count; i++)
        order[i] = (scored){v->pieces[i].score, i};
    qsort(order, v->count, sizeof *order, by_score);
    uint32_t rank = 0;
    for (uint32_t i = 0; i < v->count; i++) {
        rank += i > 0 && order[i].score < order[i - 1].score;
        t->rank[order[i].id] = rank;
    }
    vptq_mem_free(t->arena.mem, order);
    return VPTQ_OK;
}

vptq_status vptq_merge_prepare(vptq_tokenizer *t, vptq_err *err)
{
    return t->v->by_score ? build_ranks(t, err) : build_pairs(t, err);
}

/* --- the heap --- */

static bool before(const vptq_candidate *a, const vptq_candidate *b)
{
    return a->rank < b->rank || (a->rank == b->rank && a->left < b->left);
}

static vptq_status heap_push(vptq_encode_run *e, vptq_candidate c, vptq_err *err)
{
    if (e->heap_len == e->heap_cap) {
        size_t cap = e->heap_cap ? 2 * e->heap_cap : 64;
        vptq_candidate *heap = vptq_mem_alloc(e->mem, cap, sizeof *heap, err);
        if (!heap)
            return VPTQ_E_NOMEM;
        if (e->heap_len > 0)
            memcpy(heap, e->heap, e->heap_len * sizeof *heap);
        vptq_mem_free(e->mem, e->heap);
        e->heap = heap;
        e->heap_cap = cap;
    }
    size_t i = e->heap_len++;
    while (i > 0) {
        size_t up = (i - 1) / 2;
        if (!before(&c, &e->heap[up]))
            break;
        e->heap[i] = e->heap[up];
        i = up;
    }
    e->heap[i] = c;
    return VPTQ_OK;
}

static vptq_candidate heap_pop(vptq_encode_run *e)
{
    vptq_candidate top = e->heap[0];
    vptq_candidate c = e->heap[--e->heap_len];
    size_t i = 0, n = e->heap_len;
    for (;;) {
        size_t down = 2 * i + 1;
        if (down >= n)
            break;
        if (down + 1 < n && before(&e->heap[down + 1], &e->heap[down]))
            down++;
        if (!before(&e->heap[down], &c))
            break;
        e->heap[i] = e->heap[down];
        i = down;
    }
    e->heap[i] = c;
    return top;
}

/* --- one word --- */

/* Pushes the merge of two neighbours, if there is one. */
static vptq_status consider(vptq_encode_run *e, const char *word, uint32_t left, uint32_t right,
                            vptq_err *err)
{
    const vptq_tokenizer *t = e->t;
    if (left == NONE || right == NONE)
        return VPTQ_OK;
    const vptq_symbol *a = &e->symbols[left], *b = &e->symbols[right];
    vptq_candidate c = {.left = left, .right = right, .len = a->len + b->len};
    if (!t->v->by_score) {
        if (a->id < 0 || b->id < 0)
            return VPTQ_OK;
        c.rank = find_pair(&t->pairs, (uint32_t)a->id, (uint32_t)b->id);
        if (c.rank == NONE)
            return VPTQ_OK;
        c.id = (int32_t)t->v->merges[c.rank].result;
    } else {
        uint32_t id = 0;
        if (c.len > t->longest)
            return VPTQ_OK;
        if (!vptq_strmap_get(&t->text, word + a->start, c.len, &id))
            return VPTQ_OK;
        c.id = (int32_t)id;
        c.rank = t->rank[id];
    }
    return heap_push(e, c, err);
}

/* Fills symbols with the bytes (BYTE_BPE) or characters of the word; returns their number. */
static uint32_t cut_symbols(vptq_encode_run *e, const char *word, size_t len)
{
    const vptq_tokenizer *t = e->t;
    bool bytes = t->v->kind == VPTQ_VOCAB_BYTE_BPE;
    uint32_t n = 0;
    for (size_t i = 0; i < len; n++) {
        uint32_t cp = 0, id = 0;
        size_t k = bytes ? 1 : vptq_utf8_decode(word + i, len - i, &cp);
        if (k == 0)
            k = 1;
        vptq_symbol s = {.start = (uint32_t)i, .len = (uint32_t)k, .id = -1};
        if (bytes)
            s.id = t->byte_id[(unsigned char)word[i]];
        else if (k == 1 && (unsigned char)word[i] < 128)
            s.id = t->char_id[(unsigned char)word[i]];
        else if (vptq_strmap_get(&t->text, word + i, k, &id))
            s.id = (int32_t)id;
        s.prev = n > 0 ? n - 1 : NONE;
        s.next = n + 1;
        e->symbols[n] = s;
        i += k;
    }
    e->symbols[n - 1].next = NONE;
    return n;
}

static vptq_status need_symbols(vptq_encode_run *e, size_t n, vptq_err *err)
{
    if (n <= e->symbol_cap)
        return VPTQ_OK;
    size_t cap = n < 64 ? 64 : n;
    vptq_symbol *s = vptq_mem_alloc(e->mem, cap, sizeof *s, err);
    if (!s)
        return VPTQ_E_NOMEM;
    vptq_mem_free(e->mem, e->symbols);
    e->symbols = s;
    e->symbol_cap = cap;
    return VPTQ_OK;
}

/* Emits bytes that no piece covers: byte pieces if all of them have one, else the unknown
 * token. */
static vptq_status emit_unknown(vptq_encode_run *e, const char *bytes, uint32_t len,
                                bool *unknown, vptq_err *err)
{
    const vptq_tokenizer *t = e->t;
    int32_t ids[4];
    uint32_t n = 0;
    if (t->v->byte_fallback && t->v->kind == VPTQ_VOCAB_SPM_BPE) {
        while (n < len && t->byte_id[(unsigned char)bytes[n]] >= 0) {
            ids[n] = t->byte_id[(unsigned char)bytes[n]];
            n++;
        }
    }
    if (n == len) {
        *unknown = false;
        return vptq_ids_add(e->out, ids, n, err);
    }
    if (t->v->unk < 0)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: neither a piece for byte 0x%02x of the text nor an unknown token",
                         t->v->source, (unsigned)(unsigned char)bytes[0]);
    if (*unknown && t->v->fuse_unk)
        return VPTQ_OK;
    *unknown = true;
    return vptq_ids_add(e->out, &t->v->unk, 1, err);
}

static vptq_status emit(vptq_encode_run *e, const char *word, vptq_err *err)
{
    bool unknown = false;
    for (uint32_t i = 0; i != NONE; i = e->symbols[i].next) {
        const vptq_symbol *s = &e->symbols[i];
        if (s->id < 0) {
            VPTQ_CHECK(emit_unknown(e, word + s->start, s->len, &unknown, err));
        } else {
            unknown = false;
            VPTQ_CHECK(vptq_ids_add(e->out, &s->id, 1, err));
        }
    }
    return VPTQ_OK;
}

vptq_status vptq_merge_word(vptq_encode_run *e, const char *word, size_t len, vptq_err *err)
{
    uint32_t whole = 0;
    if (len == 0)
        return VPTQ_OK;
    e->merged += len;
    VPTQ_CHECK(vptq_check_growth(e, e->merged, err));
    if (len >= NONE)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "a word of %zu bytes is too long for the tokenizer", len);
    if (e->t->v->ignore_merges && len <= e->t->longest &&
        vptq_strmap_get(&e->t->text, word, len, &whole)) {
        int32_t id = (int32_t)whole;
        return vptq_ids_add(e->out, &id, 1, err);
    }
    VPTQ_CHECK(need_symbols(e, len, err));
    uint32_t n = cut_symbols(e, word, len);
    vptq_symbol *s = e->symbols;
    e->heap_len = 0;
    VPTQ_CHECK(vptq_charge(e, n, err));
    for (uint32_t i = 0; i + 1 < n; i++)
        VPTQ_CHECK(consider(e, word, i, i + 1, err));
    while (e->heap_len > 0) {
        vptq_candidate c = heap_pop(e);
        VPTQ_CHECK(vptq_charge(e, 2 + c.len / 8, err));
        /* stale if one of the two has been merged meanwhile: then the lengths differ or the
         * right one is not a neighbour */
        if (s[c.left].len == 0 || s[c.left].next != c.right ||
            s[c.left].len + s[c.right].len != c.len)
            continue;
        s[c.left].id = c.id;
        s[c.left].len = c.len;
        s[c.left].next = s[c.right].next;
        if (s[c.right].next != NONE)
            s[s[c.right].next].prev = c.left;
        s[c.right].len = 0;
        VPTQ_CHECK(consider(e, word, s[c.left].prev, c.left, err));
        VPTQ_CHECK(consider(e, word, c.left, s[c.left].next, err));
    }
    return emit(e, word, err);
}
