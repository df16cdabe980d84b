/* Internal to formats/vocab: building blocks of the readers, and the GGUF pre-tokenizers. */
#ifndef VPTQ_FORMATS_VOCAB_INTERNAL_H
#define VPTQ_FORMATS_VOCAB_INTERNAL_H

#include "formats/json.h"
#include "formats/vocab/vocab.h"
#include "lib/base/file.h"
#include "lib/base/strmap.h"

enum {
    VPTQ_PIECE_MAX = 2048,    /* bytes of a piece or added token; real ones reach about 300 */
    VPTQ_VOCAB_MAX = 1 << 22, /* pieces; real vocabularies reach about 260,000 */
    VPTQ_PATTERN_MAX = 65535, /* bytes of a pattern; PCRE2 compiles no longer ones */
    VPTQ_STEPS_MAX = 32       /* steps of a normalizer or a pre-tokenizer */
};

#define VPTQ_META "\xE2\x96\x81" /* U+2581, SentencePiece's mark of a space */

/* Many small strings in one allocation. */
typedef struct vptq_pool {
    char *next;
    size_t left;
} vptq_pool;

/* Allocates space for `count` strings of `bytes` bytes in total, each with a terminating 0. */
vptq_status vptq_pool_init(vptq_pool *p, vptq_arena *arena, size_t bytes, size_t count,
                           vptq_err *err) VPTQ_MUST_CHECK;
/* Copies a string; there must be space for it. */
char *vptq_pool_add(vptq_pool *p, const char *text, size_t len);

/* Starts an empty vocabulary with its own arena and a copy of the path. */
vptq_status vptq_vocab_begin(vptq_vocab *v, const char *path, vptq_mem *mem,
                             vptq_err *err) VPTQ_MUST_CHECK;
/* Starts a vocabulary, fills it from `source` and checks that special ids are in range, tokens
 * to add exist and added tokens have a text.  Releases it on failure. */
typedef vptq_status (*vptq_vocab_fill)(vptq_vocab *v, const void *source, vptq_err *err);
vptq_status vptq_vocab_make(const char *path, vptq_vocab_fill fill, const void *source,
                            vptq_mem *mem, vptq_vocab *v, vptq_err *err) VPTQ_MUST_CHECK;
/* Allocates `count` pieces without text. */
vptq_status vptq_vocab_pieces(vptq_vocab *v, size_t count, vptq_err *err) VPTQ_MUST_CHECK;

/* Maps the text of every piece to its id. VPTQ_E_FORMAT for a text that is too long, is not
 * UTF-8 or belongs to two ids. The caller releases the map. */
vptq_status vptq_vocab_index(const vptq_vocab *v, vptq_strmap *map,
                             vptq_err *err) VPTQ_MUST_CHECK;

/* Sets merge number `index` from the texts of its two pieces. */
vptq_status vptq_vocab_merge(vptq_vocab *v, const vptq_strmap *map, size_t index,
                             const char *left, size_t left_len, const char *right,
                             size_t right_len, vptq_err *err) VPTQ_MUST_CHECK;

/* Append one step, up to VPTQ_STEPS_MAX. */
vptq_status vptq_vocab_add_norm(vptq_vocab *v, vptq_norm norm, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_vocab_add_split(vptq_vocab *v, vptq_split split,
                                 vptq_err *err) VPTQ_MUST_CHECK;

/* Makes every CONTROL and USER piece an added token (with spaces for U+2581 in SPM ones). */
vptq_status vptq_vocab_added_from_types(vptq_vocab *v, vptq_err *err) VPTQ_MUST_CHECK;

/* Turns NORMAL pieces with the text of a byte piece into BYTE pieces. */
void vptq_vocab_mark_bytes(vptq_vocab *v);

/* Adds the steps of a byte-level pre-tokenizer by its GGUF name and sets *bos to its default
 * for adding BOS. VPTQ_E_UNSUPPORTED for an unknown name. */
vptq_status vptq_vocab_pre(vptq_vocab *v, const char *name, size_t len, bool *bos,
                           vptq_err *err) VPTQ_MUST_CHECK;
const char *vptq_pattern_gpt2(void);

/* Adds the steps of SentencePiece: with `squeeze` runs of spaces become one, with `prefix` a
 * space is added before the text, and spaces become U+2581. */
vptq_status vptq_vocab_spm_norms(vptq_vocab *v, bool prefix, bool squeeze,
                                 vptq_err *err) VPTQ_MUST_CHECK;

/* Reads normalizer, pre_tokenizer, decoder and post_processor of a tokenizer.json. */
vptq_status vptq_vocab_json_steps(vptq_vocab *v, const json_t *root,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* Names in tokenizer.json: of the first norm kinds, of prepend schemes, and the behavior of
 * split kinds (NULL = none). */
extern const char *const vptq_norm_forms[4],
    *const vptq_prepend_schemes[3], *const vptq_split_behaviors[VPTQ_SPLIT_TO_RIGHT + 1];

/* Readers of one kind of file, from its mapping. */
typedef struct vptq_vocab_file {
    vptq_map map;
    uint32_t expect; /* pieces of a llama2.c tokenizer; 0 = any number */
} vptq_vocab_file;
/* A SentencePiece protobuf, or Llama 3's tiktoken ranks. */
vptq_status vptq_vocab_fill_spm(vptq_vocab *v, const void *file, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_vocab_fill_llama2c(vptq_vocab *v, const void *file,
                                    vptq_err *err) VPTQ_MUST_CHECK;
/* A tokenizer.json, with BOS, EOS and chat template from the tokenizer_config.json in the same
 * folder if there is one. */
vptq_status vptq_vocab_read_json(const char *path, vptq_mem *mem, vptq_vocab *v,
                                 vptq_err *err) VPTQ_MUST_CHECK;
/* Reads tiktoken ranks into a vocabulary that has been started. */
vptq_status vptq_vocab_tiktoken(vptq_vocab *v, const char *text, size_t len,
                                vptq_err *err) VPTQ_MUST_CHECK;

/* A way to join a NORMAL piece from two others. */
typedef struct vptq_vocab_join {
    float score;
    uint32_t result, left, right;
} vptq_vocab_join;
/* Counts these ways, and lists them if `list` is not NULL. */
size_t vptq_vocab_joins(const vptq_vocab *v, const vptq_strmap *map, vptq_vocab_join *list);

#endif
