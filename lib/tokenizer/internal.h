/* Internal to lib/tokenizer: the prepared vocabulary, the state of one encode call, and the
 * functions of added.c, norm.c, split.c, regex.c and merge.c, in the order of a text's way. */
#ifndef VPTQ_TOKENIZER_INTERNAL_H
#define VPTQ_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "lib/base/strmap.h"
#include "lib/tokenizer/tokenizer.h"

#define VPTQ_META "\xE2\x96\x81" /* U+2581 */

static inline bool vptq_is_meta(const char *text, size_t len, size_t at)
{
    return len - at >= 3 && memcmp(text + at, VPTQ_META, 3) == 0;
}

/* A run of bytes that belongs to someone else. */
typedef struct vptq_span {
    const char *text;
    size_t len;
} vptq_span;

/* --- added tokens --- */

/* Added tokens sorted by text, for finding the longest match at a position. */
typedef struct vptq_added_set {
    struct vptq_added_entry *entries;
    uint32_t count;
    bool first[256]; /* some entry begins with this byte */
} vptq_added_set;

/* --- merging --- */

/* (left id, right id) -> rank of their merge: open addressing. */
typedef struct vptq_pair_slot {
    uint32_t left, right, rank; /* rank UINT32_MAX = empty */
} vptq_pair_slot;

typedef struct vptq_pair_table {
    vptq_pair_slot *slots;
    size_t mask;
} vptq_pair_table;

/* A compiled pattern of a step; code is NULL for steps without one. */
typedef struct vptq_pattern {
    pcre2_code *code;
    const char *text;
    bool jit; /* compiled to machine code */
} vptq_pattern;

struct vptq_tokenizer {
    const vptq_vocab *v;
    vptq_ctx ctx;     /* of opening: its flag cancels encoding */
    vptq_arena arena; /* everything except `text` and the patterns */
    vptq_strmap text; /* NORMAL pieces by the text that they stand for (BYTE_BPE: bytes) */
    vptq_pair_table pairs;
    uint32_t *rank;       /* [count] without merges: rank by score, equal for equal scores */
    vptq_span *bytes;     /* [count] decoded text; NULL for an id without a piece */
    uint32_t longest;     /* bytes of the longest NORMAL piece */
    int32_t byte_id[256]; /* BYTE_BPE: the symbol; SPM: the BYTE piece; -1 none */
    int32_t char_id[128]; /* SPM: the NORMAL piece of an ASCII character; -1 none */
    bool cut_meta;        /* SPM: no merge joins a U+2581 to another character before it */
    vptq_added_set raw, normalized;
    pcre2_general_context *pcre; /* allocates from the arena's vptq_mem */
    vptq_pattern *norm_code;     /* [norm_count] */
    vptq_pattern *split_code;    /* [split_count] */
};

/* Results, limits and stack for matching. */
typedef struct vptq_regex_run {
    pcre2_match_data *match;
    pcre2_match_context *limits;
    pcre2_jit_stack *stack;
    bool single; /* the limits are those of an attempt at one start position */
} vptq_regex_run;

typedef struct vptq_symbol {
    uint32_t start, len;
    int32_t id; /* -1: no piece */
    uint32_t prev, next;
} vptq_symbol;

typedef struct vptq_candidate {
    uint32_t rank, left, right, len;
    int32_t id;
} vptq_candidate;

/* Bounds on one call for a text of n bytes: WORK_CALL + n * WORK_BYTE steps, and
 * GROWTH_CALL + n * GROWTH_BYTE bytes that normalizer and pre-tokenizer make of it. A step is
 * about a byte that is read, or eight backtracks of a pattern. Real tokenizers take
 * up to 60 steps and make up to 11 bytes per byte (U+FDFA under NFKC). */
enum {
    VPTQ_WORK_CALL = 8 << 20,
    VPTQ_WORK_BYTE = 512,
    VPTQ_WORK_POLL = 1 << 16, /* steps between two checks of the cancel flag */
    VPTQ_GROWTH_CALL = 1 << 20,
    VPTQ_GROWTH_BYTE = 64
};

/* State of one encode call. */
typedef struct vptq_encode_run {
    const vptq_tokenizer *t;
    size_t text_len;     /* of the whole call */
    uint64_t work;       /* steps so far */
    uint64_t work_poll;  /* where to look at limit and cancel flag next */
    size_t growth;       /* limit of the bytes made from the text */
    size_t merged;       /* bytes of all words so far */
    const char *pattern; /* the last one that ran, for messages; NULL before */
    vptq_mem *mem;
    vptq_ids *out;
    vptq_symbol *symbols;
    vptq_candidate *heap;
    size_t symbol_cap, heap_cap, heap_len;
    vptq_buf norm[2]; /* a section after each step of the normalizer, alternating */
    vptq_buf *step;   /* [split_count] words that a step rewrites */
    vptq_regex_run regex;
} vptq_encode_run;

/* Prepares a call on `len` bytes; close it after a failure as well. */
vptq_status vptq_encode_open(vptq_encode_run *e, const vptq_tokenizer *t, size_t len,
                             vptq_ids *out, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_encode_close(vptq_encode_run *e);
/* Fails when the call has used up its steps or is cancelled. */
vptq_status vptq_encode_poll(vptq_encode_run *e, vptq_err *err) VPTQ_MUST_CHECK;
static inline vptq_status vptq_charge(vptq_encode_run *e, size_t steps, vptq_err *err)
{
    e->work += steps;
    return e->work < e->work_poll ? VPTQ_OK : vptq_encode_poll(e, err);
}
vptq_status vptq_growth_fails(const vptq_encode_run *e, vptq_err *err) VPTQ_MUST_CHECK;
/* Fails if `bytes` made from the text are too many. */
static inline vptq_status vptq_check_growth(const vptq_encode_run *e, size_t bytes,
                                            vptq_err *err)
{
    return bytes <= e->growth ? VPTQ_OK : vptq_growth_fails(e, err);
}

/* Builds `rank` or `pairs`, which merging needs. */
vptq_status vptq_merge_prepare(vptq_tokenizer *t, vptq_err *err) VPTQ_MUST_CHECK;
/* Appends the ids of one word. */
vptq_status vptq_merge_word(vptq_encode_run *e, const char *word, size_t len,
                            vptq_err *err) VPTQ_MUST_CHECK;

/* --- added tokens --- */

vptq_status vptq_added_prepare(vptq_tokenizer *t, vptq_err *err) VPTQ_MUST_CHECK;
/* State of a walk over the added tokens of a text; start with {0}. */
typedef struct vptq_added_match {
    size_t begin, end; /* position including absorbed white space; begin is len after the last
                          one */
    int32_t id;
    size_t from; /* where to continue: a token may lie in what the previous one absorbed */
    bool found;
} vptq_added_match;
vptq_status vptq_added_next(vptq_encode_run *e, const vptq_added_set *set, const char *text,
                            size_t len, bool special, vptq_added_match *m,
                            vptq_err *err) VPTQ_MUST_CHECK;

/* --- patterns --- */

/* Compiles the patterns of all steps; release them after a failure as well. */
vptq_status vptq_regex_prepare(vptq_tokenizer *t, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_regex_release(vptq_tokenizer *t);
vptq_status vptq_regex_open(const vptq_tokenizer *t, vptq_regex_run *run,
                            vptq_err *err) VPTQ_MUST_CHECK;
void vptq_regex_close(vptq_regex_run *run); /* accepts {0} */

/* State of a walk over the matches of a pattern in valid UTF-8 text; start with {0}. */
typedef struct vptq_matches {
    size_t begin, end; /* the match; both len after the last one */
    bool found;
    size_t from; /* where to continue */
    bool at_end; /* a match ended at `end`: an empty one there does not count */
} vptq_matches;
vptq_status vptq_regex_next(vptq_encode_run *e, const vptq_pattern *p, const char *text,
                            size_t len, vptq_matches *m, vptq_err *err) VPTQ_MUST_CHECK;

/* --- normalizing --- */

/* Runs all steps on a section; *out points into one of the buffers or to the text itself.
 * *cut: a step removed the beginning of the section. */
vptq_status vptq_normalize(vptq_encode_run *e, const char *text, size_t len, vptq_span *out,
                           bool *cut, vptq_err *err) VPTQ_MUST_CHECK;

/* Returns the character that ends before text[at] (at > 0), 0 for invalid bytes, and its length
 * in *size. */
uint32_t vptq_char_before(const char *text, size_t at, size_t *size);

/* --- splitting --- */

/* Cuts a normalized section into words with the pre-tokenizer and merges each. `first`: the
 * section is the first of the text. */
vptq_status vptq_split_words(vptq_encode_run *e, const char *text, size_t len, bool first,
                             vptq_err *err) VPTQ_MUST_CHECK;

#endif
