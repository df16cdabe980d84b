/* What the readers of vocabularies share.  Not for other modules. */
#ifndef VPTQ_FORMATS_VOCAB_BUILD_H
#define VPTQ_FORMATS_VOCAB_BUILD_H

#include "formats/json.h"
#include "formats/vocab/vocab.h"
#include "lib/base/strmap.h"

enum {
    VPTQ_PIECE_MAX = 2048,    /* bytes of a piece or added token; real ones end at some 300 */
    VPTQ_VOCAB_MAX = 1 << 22, /* pieces; real vocabularies end at some 260,000 */
    VPTQ_STEPS_MAX = 32       /* steps of a normalizer or a pre-tokenizer */
};

#define VPTQ_META "\xE2\x96\x81" /* U+2581, SentencePiece's mark of a space */

/* Many small texts in one allocation. */
typedef struct vptq_pool {
    char *next;
    size_t left;
} vptq_pool;

/* Room for `count` texts of `bytes` bytes together, each with a 0 behind it. */
vptq_status vptq_pool_init(vptq_pool *p, vptq_arena *arena, size_t bytes, size_t count,
                           vptq_err *err) VPTQ_MUST_CHECK;
char *vptq_pool_add(vptq_pool *p, const char *text, size_t len);

/* An empty description that owns its arena and a copy of the path. */
vptq_status vptq_vocab_begin(vptq_vocab *v, const char *path, vptq_mem *mem,
                             vptq_err *err) VPTQ_MUST_CHECK;
/* `count` pieces, all without a text. */
vptq_status vptq_vocab_pieces(vptq_vocab *v, size_t count, vptq_err *err) VPTQ_MUST_CHECK;

/* Maps every text to its id; a text that two ids have, is too long or is not UTF-8 is
 * VPTQ_E_FORMAT.  The caller releases the map. */
vptq_status vptq_vocab_index(const vptq_vocab *v, vptq_strmap *map,
                             vptq_err *err) VPTQ_MUST_CHECK;

/* One merge out of its two texts; names the merge and the unknown piece in errors. */
vptq_status vptq_vocab_merge(vptq_vocab *v, const vptq_strmap *map, size_t index,
                             const char *left, size_t left_len, const char *right,
                             size_t right_len, vptq_err *err) VPTQ_MUST_CHECK;

/* The lists of steps, with room for VPTQ_STEPS_MAX, and one more step at their end. */
vptq_status vptq_vocab_add_norm(vptq_vocab *v, vptq_norm norm, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_vocab_add_split(vptq_vocab *v, vptq_split split,
                                 vptq_err *err) VPTQ_MUST_CHECK;

/* Every CONTROL and USER piece as an added token (U+2581 as a space in SPM ones). */
vptq_status vptq_vocab_added_from_types(vptq_vocab *v, vptq_err *err) VPTQ_MUST_CHECK;

/* NORMAL pieces with the text of a byte piece become BYTE ones. */
void vptq_vocab_mark_bytes(vptq_vocab *v);

/* Steps and settings of a byte-level pre-tokenizer by its GGUF name; *bos: whether it adds one
 * unless the file says otherwise.  Unknown: VPTQ_E_UNSUPPORTED. */
vptq_status vptq_vocab_pre(vptq_vocab *v, const char *name, size_t len, bool *bos,
                           vptq_err *err) VPTQ_MUST_CHECK;
const char *vptq_pattern_gpt2(void);

/* The SentencePiece way with spaces: `prefix` in front of the text, spaces as U+2581. */
vptq_status vptq_vocab_spm_norms(vptq_vocab *v, bool prefix, bool squeeze,
                                 vptq_err *err) VPTQ_MUST_CHECK;

/* Checks that hold for every vocabulary: it is not empty, special ids are in it. */
vptq_status vptq_vocab_finish(const vptq_vocab *v, vptq_err *err) VPTQ_MUST_CHECK;

/* normalizer, pre_tokenizer, decoder and post_processor of a tokenizer.json
 * (vocab_json_steps.c). */
vptq_status vptq_vocab_json_steps(vptq_vocab *v, const json_t *root,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* tiktoken ranks into a vocabulary that was begun (vocab_tiktoken.c). */
vptq_status vptq_vocab_tiktoken(vptq_vocab *v, const char *text, size_t len,
                                vptq_err *err) VPTQ_MUST_CHECK;

#endif
