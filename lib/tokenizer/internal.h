/* The parts of a tokenizer.  Not for other modules. */
#ifndef VPTQ_TOKENIZER_INTERNAL_H
#define VPTQ_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "lib/base/strmap.h"
#include "lib/tokenizer/tokenizer.h"

#define VPTQ_META "\xE2\x96\x81" /* U+2581 */

/* A run of bytes of somebody else. */
typedef struct vptq_span {
    const char *text;
    size_t len;
} vptq_span;

/* --- added tokens (tokenizer_added.c) --- */

/* Added tokens sorted by their text, for the longest match at a position. */
typedef struct vptq_added_set {
    struct vptq_added_entry *entries;
    uint32_t count;
    bool first[256]; /* some entry begins with this byte */
} vptq_added_set;

/* --- merging (tokenizer_merge.c) --- */

/* (left id, right id) -> rank of their merge: open addressing. */
typedef struct vptq_pair_slot {
    uint32_t left, right, rank; /* rank UINT32_MAX = empty */
} vptq_pair_slot;

typedef struct vptq_pair_table {
    vptq_pair_slot *slots;
    size_t mask;
} vptq_pair_table;

struct vptq_tokenizer {
    const vptq_vocab *v;
    vptq_arena arena; /* everything but `text` and the patterns */
    vptq_strmap text; /* NORMAL pieces by what they stand for (BYTE_BPE: bytes); may be empty */
    vptq_pair_table pairs;
    uint32_t *rank;       /* [count] without merges: order of the scores, equal scores equal */
    vptq_span *bytes;     /* [count] what decoding gives; text NULL for a hole */
    uint32_t longest;     /* bytes of the longest NORMAL piece */
    int32_t byte_id[256]; /* BYTE_BPE: the symbol; SPM: the BYTE piece; -1 none */
    bool cut_meta;        /* SPM: no merge joins another character and a U+2581 behind it */
    vptq_added_set raw, normalized;
    pcre2_general_context *pcre; /* allocates from the arena's vptq_mem */
    pcre2_code **norm_code;      /* [norm_count], NULL where a step has no pattern */
    pcre2_code **split_code;     /* [split_count] */
};

/* What matching needs besides a pattern: results, limits, a stack. */
typedef struct vptq_regex_run {
    pcre2_match_data *match;
    pcre2_match_context *limits;
    pcre2_jit_stack *stack;
} vptq_regex_run;

/* One call of encode: what it appends to, and scratch memory. */
typedef struct vptq_symbol {
    uint32_t start, len;
    int32_t id; /* -1: no piece */
    uint32_t prev, next;
} vptq_symbol;

typedef struct vptq_candidate {
    uint32_t rank, left, right, len;
    int32_t id;
} vptq_candidate;

typedef struct vptq_encoder {
    const vptq_tokenizer *t;
    vptq_mem *mem;
    vptq_ids *out;
    vptq_symbol *symbols;
    vptq_candidate *heap;
    size_t symbol_cap, heap_cap, heap_len;
    vptq_buf norm[2]; /* a section after each step of the normalizer, in turns */
    vptq_buf *step;   /* [split_count] words that a step rewrites */
    vptq_regex_run regex;
} vptq_encoder;

/* Builds what merging needs: `rank` or `pairs`. */
vptq_status vptq_merge_prepare(vptq_tokenizer *t, vptq_err *err) VPTQ_MUST_CHECK;
/* Appends the ids of one word. */
vptq_status vptq_merge_word(vptq_encoder *e, const char *word, size_t len,
                            vptq_err *err) VPTQ_MUST_CHECK;

/* --- added tokens --- */

vptq_status vptq_added_prepare(vptq_tokenizer *t, vptq_err *err) VPTQ_MUST_CHECK;
/* The added tokens of a text [len] from the left; begin with {0}. */
typedef struct vptq_added_match {
    size_t begin, end; /* its place with the white space that it swallows; begin is len when
                          there is none any more */
    int32_t id;
    size_t from; /* where to look on: a token may lie in what the one before swallowed */
} vptq_added_match;
bool vptq_added_next(const vptq_added_set *set, const char *text, size_t len, bool special,
                     vptq_added_match *m);

/* --- patterns (tokenizer_regex.c) --- */

/* Compiles the patterns of both kinds of steps; release also after a failure. */
vptq_status vptq_regex_prepare(vptq_tokenizer *t, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_regex_release(vptq_tokenizer *t);
vptq_status vptq_regex_open(const vptq_tokenizer *t, vptq_regex_run *run,
                            vptq_err *err) VPTQ_MUST_CHECK;
void vptq_regex_close(vptq_regex_run *run); /* accepts a zeroed one */

/* The matches of a pattern in valid UTF-8 text [len], from the left; begin with {0}. */
typedef struct vptq_matches {
    size_t begin, end; /* the match; both len when there is none any more */
    bool found;
    size_t from; /* where to search on */
    bool behind; /* a match ended at `end`: an empty one there does not count */
} vptq_matches;
vptq_status vptq_regex_next(const vptq_tokenizer *t, const pcre2_code *code,
                            vptq_regex_run *run, const char *text, size_t len, vptq_matches *m,
                            vptq_err *err) VPTQ_MUST_CHECK;

/* --- normalizing (tokenizer_norm.c) --- */

/* The section after all steps; *out is in one of the buffers or the text itself.  *cut: a step
 * took away what the section began with. */
vptq_status vptq_normalize(const vptq_tokenizer *t, vptq_regex_run *run, vptq_buf norm[2],
                           const char *text, size_t len, vptq_span *out, bool *cut,
                           vptq_err *err) VPTQ_MUST_CHECK;

/* The character that ends at text[at] (at > 0), 0 for invalid bytes; its length in *size. */
uint32_t vptq_char_before(const char *text, size_t at, size_t *size);

/* --- splitting (tokenizer_split.c) --- */

/* Cuts a normalized section into words by the pre-tokenizer and merges each.  `first`: the
 * section begins where the text does. */
vptq_status vptq_split_words(vptq_encoder *e, const char *text, size_t len, bool first,
                             vptq_err *err) VPTQ_MUST_CHECK;

#endif
