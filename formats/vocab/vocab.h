/* What a tokenizer file says, as one plain description; lib/tokenizer/tokenizer.h encodes with
 * it.
 */
#ifndef VPTQ_FORMATS_VOCAB_VOCAB_H
#define VPTQ_FORMATS_VOCAB_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/gguf/gguf.h"
#include "formats/json.h"
#include "lib/base/mem.h"

typedef enum {
    VPTQ_VOCAB_BYTE_BPE, /* GPT-2 style: pieces over 256 byte symbols, ranked merges, regex
                            splits */
    VPTQ_VOCAB_SPM_BPE   /* SentencePiece style: pieces with scores (or ranked merges), byte
                            fallback */
} vptq_vocab_kind;

typedef enum {
    VPTQ_PIECE_NORMAL = 1,
    VPTQ_PIECE_UNKNOWN = 2,
    VPTQ_PIECE_CONTROL = 3,
    VPTQ_PIECE_USER = 4,
    VPTQ_PIECE_UNUSED = 5,
    VPTQ_PIECE_BYTE = 6
} vptq_piece_type; /* SentencePiece's and GGUF's numbers */

typedef struct vptq_piece {
    const char
        *text; /* BYTE_BPE: in GPT-2's printable alphabet; SPM: with U+2581 for a space */
    uint32_t len;
    float score; /* by_score: higher merges first; 0 otherwise */
    uint8_t type;
} vptq_piece; /* an id without a piece has len 0 and type UNUSED */

typedef struct vptq_merge {
    uint32_t left, right, result; /* ids; the index of a merge is its rank */
} vptq_merge;

/* Added tokens are cut out of the text before anything else. */
typedef struct vptq_added_token {
    uint32_t id;
    const char *text;
    uint32_t len;
    bool special, lstrip, rstrip, single_word, normalized;
} vptq_added_token;

/* One step of the normalizer, applied in order to every section between added tokens. */
typedef enum {
    VPTQ_NORM_NFC,
    VPTQ_NORM_NFD,
    VPTQ_NORM_NFKC,
    VPTQ_NORM_NFKD,
    VPTQ_NORM_PREPEND, /* `content` in front of a section that is not empty */
    VPTQ_NORM_REPLACE, /* every `pattern` (a plain string, not empty) by `content` */
    VPTQ_NORM_REGEX,   /* every match of `pattern` by `content` */
    VPTQ_NORM_STRIP,   /* white space at the `left` and at the `right` end goes */
    VPTQ_NORM_LOWER,   /* every character by its lower case, without regard to its neighbours */
    VPTQ_NORM_UNMARK   /* combining marks (category M) go */
} vptq_norm_kind;

typedef struct vptq_norm {
    vptq_norm_kind kind;
    const char *pattern, *content; /* UTF-8, terminated; NULL where the kind has none */
    bool left, right;
} vptq_norm;

/* One step of the pre-tokenizer: cuts every word of the step before it. */
typedef enum {
    VPTQ_SPLIT_ISOLATED,   /* matches of `pattern` and what lies between them are words */
    VPTQ_SPLIT_REMOVED,    /* matches go, what lies between them are words */
    VPTQ_SPLIT_DIGITS,     /* numeric characters alone (`individual`) or in runs */
    VPTQ_SPLIT_METASPACE,  /* spaces become U+2581; one in front unless there is one; a word
                              begins at each when `individual` */
    VPTQ_SPLIT_PREFIX,     /* a space in front of a word that does not begin with one */
    VPTQ_SPLIT_CONTIGUOUS, /* as ISOLATED, neighbouring matches are one word */
    VPTQ_SPLIT_TO_LEFT,    /* as ISOLATED, a match ends the word in front of it */
    VPTQ_SPLIT_TO_RIGHT    /* as ISOLATED, a match begins the word behind it */
} vptq_split_kind;

typedef enum { VPTQ_PREPEND_NEVER, VPTQ_PREPEND_FIRST, VPTQ_PREPEND_ALWAYS } vptq_prepend;

typedef struct vptq_split {
    vptq_split_kind kind;
    const char *pattern; /* PCRE syntax, UTF-8; NULL where the kind has none */
    bool individual;
    bool invert;          /* matches and the rest change places */
    vptq_prepend prepend; /* METASPACE: before no, the text's first, or every word */
} vptq_split;

typedef struct vptq_vocab {
    vptq_arena arena;
    const char *source; /* path, for messages */
    vptq_vocab_kind kind;
    vptq_piece *pieces;
    uint32_t count;
    vptq_merge *merges;
    uint32_t merge_count;
    bool by_score; /* there are no merges: any two neighbours whose joined text is a NORMAL
                      piece merge, the highest score first, of equal ones the leftmost */
    vptq_added_token *added;
    uint32_t added_count;
    vptq_norm *norms;
    uint32_t norm_count;
    vptq_split *splits;
    uint32_t split_count;
    bool ignore_merges;        /* a word that is a NORMAL piece is taken whole */
    bool byte_fallback;        /* SPM: what no piece covers becomes BYTE pieces */
    bool fuse_unk;             /* neighbouring unknowns become one */
    bool strip_start;          /* decoding drops a space at the start of the text */
    bool strip_marks;          /* decoding drops every U+2581 of the first token */
    bool add_bos, add_eos;     /* what encoding with special tokens adds */
    int32_t bos, eos, unk;     /* -1 = none */
    const char *chat_template; /* carried along for tokenizer_config.json; NULL = none */
} vptq_vocab;

/* GPT-2's printable alphabet: the code point that stands for a byte, and back (-1: none). */
uint32_t vptq_byte_symbol(uint8_t byte);
int vptq_symbol_byte(uint32_t cp);
/* Whether a text is that of a byte piece, <0x0A>, with the byte in *byte. */
bool vptq_piece_is_byte(const char *text, size_t len, uint8_t *byte);

/* The chat template that a value of "chat_template" names: a text, or a list of objects with
 * "name" and "template", of which "default" is taken; NULL for none. */
const char *vptq_chat_template_of(const json_t *value);

void vptq_vocab_release(vptq_vocab *v);

enum { VPTQ_TOKENIZER_LIMIT = 256 << 20 }; /* bytes of such a text; real ones end at 35 MB */
/* tokenizer.json (and tokenizer_config.json beside it where it is there: add_bos_token, bos,
 * eos). */
vptq_status vptq_vocab_read_json(const char *path, vptq_mem *mem, vptq_vocab *v,
                                 vptq_err *err) VPTQ_MUST_CHECK;
/* The same from memory: the text of tokenizer.json, that of tokenizer_config.json (NULL where
 * there is none), and what messages call them. */
vptq_status vptq_vocab_parse_json(const char *text, size_t len, const char *config,
                                  size_t config_len, const char *name, vptq_mem *mem,
                                  vptq_vocab *v, vptq_err *err) VPTQ_MUST_CHECK;
/* SentencePiece protobuf (tokenizer.model), or tiktoken ranks ("base64 rank" lines, Llama 3).
 */
vptq_status vptq_vocab_read_spm(const char *path, vptq_mem *mem, vptq_vocab *v,
                                vptq_err *err) VPTQ_MUST_CHECK;
/* llama2.c tokenizer.bin; `expect` pieces (the model's vocabulary size), 0 = as many as there
 * are. */
vptq_status vptq_vocab_read_llama2c(const char *path, uint32_t expect, vptq_mem *mem,
                                    vptq_vocab *v, vptq_err *err) VPTQ_MUST_CHECK;
/* tokenizer.ggml.* of a GGUF: models "llama" and "gpt2" with their pre-tokenizers by name. */
vptq_status vptq_vocab_read_gguf(const vptq_gguf *g, vptq_mem *mem, vptq_vocab *v,
                                 vptq_err *err) VPTQ_MUST_CHECK;
/* By content and name: a directory with tokenizer.json or tokenizer.model, or one of these
 * files, a GGUF included. */
vptq_status vptq_vocab_read(const char *path, uint32_t expect, vptq_mem *mem, vptq_vocab *v,
                            vptq_err *err) VPTQ_MUST_CHECK;

/* tokenizer.json + tokenizer_config.json that transformers reads with the same ids, into `dir`
 * (existing files are replaced).  Merges by score are written as the ranked merges they imply.
 */
vptq_status vptq_vocab_write_hf(const vptq_vocab *v, const char *dir,
                                vptq_err *err) VPTQ_MUST_CHECK;

#endif
