/* What a tokenizer file says, as one plain description; lib/model/tokenizer.h encodes with it.
 */
#ifndef VPTQ_FORMATS_VOCAB_H
#define VPTQ_FORMATS_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/gguf.h"
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
    float score; /* SPM: higher merges first; 0 otherwise */
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

/* One step of the pre-tokenizer. */
typedef enum {
    VPTQ_SPLIT_ISOLATED, /* pieces between matches and matches are words (pattern: a regex) */
    VPTQ_SPLIT_REMOVED,
    VPTQ_SPLIT_DIGITS /* every digit alone (individual) or runs of digits */
} vptq_split_kind;

typedef struct vptq_split {
    vptq_split_kind kind;
    const char *pattern; /* PCRE syntax, UTF-8; NULL for DIGITS */
    bool individual, invert;
} vptq_split;

typedef struct vptq_vocab {
    vptq_arena arena;
    vptq_vocab_kind kind;
    vptq_piece *pieces;
    uint32_t count;
    vptq_merge *merges;
    uint32_t merge_count; /* 0 = merge by score */
    vptq_added_token *added;
    uint32_t added_count;
    vptq_split *splits;
    uint32_t split_count;
    bool nfc;              /* normalize to NFC first */
    bool add_prefix_space; /* SPM: U+2581 in front of the text (HF: of every section, see
                              prepend_first) */
    bool prepend_first;    /* ... only of the first section of the text */
    bool ignore_merges;    /* a word that is a piece is taken whole */
    bool byte_fallback;
    bool fuse_unk;
    bool remove_extra_spaces; /* SPM normalizer option */
    bool add_bos, add_eos;    /* what encoding with special tokens adds */
    int32_t bos, eos, unk;    /* -1 = none */
    const char *source;       /* path, for messages */
} vptq_vocab;

void vptq_vocab_release(vptq_vocab *v);

/* tokenizer.json (and tokenizer_config.json beside it where it is there: add_bos_token, bos,
 * eos). */
vptq_status vptq_vocab_read_json(const char *path, vptq_mem *mem, vptq_vocab *v,
                                 vptq_err *err) VPTQ_MUST_CHECK;
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
 * files. */
vptq_status vptq_vocab_read(const char *path, uint32_t expect, vptq_mem *mem, vptq_vocab *v,
                            vptq_err *err) VPTQ_MUST_CHECK;

/* tokenizer.json + tokenizer_config.json that transformers reads with the same ids, into `dir`.
 */
vptq_status vptq_vocab_write_hf(const vptq_vocab *v, const char *dir,
                                vptq_err *err) VPTQ_MUST_CHECK;

#endif
