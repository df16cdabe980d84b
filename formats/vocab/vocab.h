/* Internal: the content of a tokenizer file as plain data. lib/tokenizer/tokenizer.h encodes
 * with it. */
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
} vptq_piece; /* len 0 and type UNUSED for an id without a piece */

typedef struct vptq_merge {
    uint32_t left, right, result; /* ids; the index of a merge is its rank */
} vptq_merge;

/* A token that is cut out of the text before anything else happens. */
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
    VPTQ_NORM_PREPEND, /* puts `content` before a non-empty section */
    VPTQ_NORM_REPLACE, /* replaces every `pattern` (a non-empty string) by `content` */
    VPTQ_NORM_REGEX,   /* replaces every match of `pattern` by `content` */
    VPTQ_NORM_STRIP,   /* removes white space at the `left` and `right` end */
    VPTQ_NORM_LOWER,   /* lower case of every character on its own */
    VPTQ_NORM_UNMARK   /* removes combining marks (category M) */
} vptq_norm_kind;

typedef struct vptq_norm {
    vptq_norm_kind kind;
    const char *pattern, *content; /* UTF-8, terminated; NULL if the kind has none */
    bool left, right;
} vptq_norm;

/* One step of the pre-tokenizer: cuts every word that the previous step produced. */
typedef enum {
    VPTQ_SPLIT_ISOLATED,   /* matches of `pattern` and the text between them are words */
    VPTQ_SPLIT_REMOVED,    /* drops matches; the text between them are words */
    VPTQ_SPLIT_DIGITS,     /* numeric characters one by one (`individual`) or in runs */
    VPTQ_SPLIT_METASPACE,  /* spaces become U+2581, one is added at the start if missing;
                              `individual`: each begins a word */
    VPTQ_SPLIT_PREFIX,     /* adds a space before a word that does not begin with one */
    VPTQ_SPLIT_CONTIGUOUS, /* like ISOLATED, but adjacent matches are one word */
    VPTQ_SPLIT_TO_LEFT,    /* like ISOLATED, but a match ends the word before it */
    VPTQ_SPLIT_TO_RIGHT    /* like ISOLATED, but a match begins the word after it */
} vptq_split_kind;

typedef enum { VPTQ_PREPEND_NEVER, VPTQ_PREPEND_FIRST, VPTQ_PREPEND_ALWAYS } vptq_prepend;

typedef struct vptq_split {
    vptq_split_kind kind;
    const char *pattern; /* PCRE syntax, UTF-8; NULL if the kind has none */
    bool individual;
    bool invert;          /* swaps matches and the text between them */
    vptq_prepend prepend; /* METASPACE: before no word, the first of the text, every one */
} vptq_split;

typedef struct vptq_vocab {
    vptq_arena arena;
    const char *source; /* path, for messages */
    vptq_vocab_kind kind;
    vptq_piece *pieces;
    uint32_t count;
    vptq_merge *merges;
    uint32_t merge_count;
    bool by_score; /* without merges: neighbours whose joined text is a NORMAL piece merge, the
                      highest score first, the leftmost among equals */
    vptq_added_token *added;
    uint32_t added_count;
    vptq_norm *norms;
    uint32_t norm_count;
    vptq_split *splits;
    uint32_t split_count;
    bool ignore_merges;        /* a word that is a NORMAL piece is taken whole */
    bool byte_fallback;        /* SPM: text that no piece covers becomes BYTE pieces */
    bool fuse_unk;             /* adjacent unknown tokens become one */
    bool strip_start;          /* decoding drops a space at the start of the text */
    bool strip_marks;          /* decoding drops every U+2581 of the first token */
    bool add_bos, add_eos;     /* tokens that encoding with special tokens adds */
    int32_t bos, eos, unk;     /* -1 = none */
    const char *chat_template; /* kept for tokenizer_config.json; NULL = none */
} vptq_vocab;

/* GPT-2's printable alphabet: the code point of a byte, and the byte of a code point or -1. */
uint32_t vptq_byte_symbol(uint8_t byte);
int vptq_symbol_byte(uint32_t cp);
/* Returns whether a text is that of a byte piece such as <0x0A>, with the byte in *byte. */
bool vptq_piece_is_byte(const char *text, size_t len, uint8_t *byte);

/* Returns the chat template in a value of "chat_template": a string, or the entry "default" of
 * a list of objects with "name" and "template". NULL if there is none. */
const char *vptq_chat_template_of(const json_t *value);

void vptq_vocab_release(vptq_vocab *v);

enum {
    VPTQ_TOKENIZER_LIMIT = 256 << 20
}; /* bytes of a tokenizer.json; real ones reach 35 MB */
/* Reads the texts of tokenizer.json and tokenizer_config.json (NULL if there is none); `name`
 * is for messages. */
vptq_status vptq_vocab_parse_json(const char *text, size_t len, const char *config,
                                  size_t config_len, const char *name, vptq_mem *mem,
                                  vptq_vocab *v, vptq_err *err) VPTQ_MUST_CHECK;
/* Reads tokenizer.ggml.* of a GGUF: models "llama", and "gpt2" with a named pre-tokenizer. */
vptq_status vptq_vocab_read_gguf(const vptq_gguf *g, vptq_mem *mem, vptq_vocab *v,
                                 vptq_err *err) VPTQ_MUST_CHECK;
/* Reads any tokenizer, chosen by content: a GGUF file, a tokenizer.json (also the
 * tokenizer_config.json next to it), a SentencePiece protobuf, Llama 3's tiktoken ranks, a
 * llama2.c tokenizer.bin with `expect` pieces (the vocabulary size of the model; 0 = any
 * number), or a directory with tokenizer.json or tokenizer.model. */
vptq_status vptq_vocab_read(const char *path, uint32_t expect, vptq_mem *mem, vptq_vocab *v,
                            vptq_err *err) VPTQ_MUST_CHECK;

/* Writes tokenizer.json and tokenizer_config.json into `dir`, replacing existing files.
 * transformers gives the same ids for them. Merges by score become the ranked merges that they
 * imply. */
vptq_status vptq_vocab_write_hf(const vptq_vocab *v, const char *dir,
                                vptq_err *err) VPTQ_MUST_CHECK;

#endif
