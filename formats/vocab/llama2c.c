/* Reads llama2.c's tokenizer.bin: int32 length of the longest piece, then per piece a float32
 * score, an int32 length and the bytes. Ids 0, 1, 2 are unknown, BOS and EOS, 3..258 the bytes;
 * spaces are plain spaces. The file does not give the number of pieces; the model does. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "formats/vocab/internal.h"
#include "lib/base/le.h"

enum { HEAD = 8, FIRST_NORMAL = 259 };

/* Walks the records; counts pieces and the bytes of their texts with U+2581 for spaces. */
static vptq_status measure(const vptq_vocab *v, const vptq_map *map, size_t *count,
                           size_t *bytes, vptq_err *err)
{
    *count = *bytes = 0;
    if (map->size < 4)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: %zu bytes are too few for a tokenizer",
                         v->source, map->size);
    for (size_t at = 4; at < map->size; ++*count) {
        size_t left = map->size - at;
        uint32_t len = left >= HEAD ? (uint32_t)vptq_get_le(map->data + at + 4, 4) : 0;
        if (left < HEAD || len > left - HEAD)
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: piece %zu of %" PRIu32
                             " bytes does not fit in the %zu bytes left",
                             v->source, *count, len, left);
        for (uint32_t i = 0; i < len; i++)
            *bytes += map->data[at + HEAD + i] == ' ' ? 3 : 1;
        at += HEAD + len;
    }
    return VPTQ_OK;
}

static vptq_piece read_piece(vptq_pool *pool, uint32_t id, const uint8_t *rec)
{
    vptq_piece p = {.text = pool->next, .type = VPTQ_PIECE_NORMAL};
    const char *bytes = (const char *)rec + HEAD;
    uint32_t bits = (uint32_t)vptq_get_le(rec, 4), len = (uint32_t)vptq_get_le(rec + 4, 4);
    memcpy(&p.score, &bits, sizeof p.score);
    uint8_t byte;
    if (id == 1 || id == 2) { /* the file has newlines around them, for printing */
        p.type = VPTQ_PIECE_CONTROL;
        p.text = vptq_pool_add(pool, id == 1 ? "<s>" : "</s>", id == 1 ? 3 : 4);
        p.len = id == 1 ? 3 : 4;
        return p;
    }
    if (id == 0)
        p.type = VPTQ_PIECE_UNKNOWN;
    else if (id < FIRST_NORMAL && vptq_piece_is_byte(bytes, len, &byte))
        p.type = VPTQ_PIECE_BYTE;
    char *out = pool->next;
    for (uint32_t i = 0; i < len; i++) {
        bool space = bytes[i] == ' ';
        memcpy(out + p.len, space ? VPTQ_META : bytes + i, space ? 3 : 1);
        p.len += space ? 3 : 1;
    }
    out[p.len] = 0;
    pool->next += p.len + 1;
    pool->left -= p.len + 1;
    if (p.len == 0)
        p.type = VPTQ_PIECE_UNUSED;
    return p;
}

static vptq_status read_pieces(vptq_vocab *v, const vptq_map *map, size_t bytes, vptq_err *err)
{
    vptq_pool pool;
    VPTQ_CHECK(vptq_pool_init(&pool, &v->arena, bytes + 7, v->count, err));
    const uint8_t *rec = map->data + 4;
    for (uint32_t i = 0; i < v->count; i++) {
        v->pieces[i] = read_piece(&pool, i, rec);
        if (isnan(v->pieces[i].score))
            return vptq_fail(err, VPTQ_E_FORMAT, "%s: the score of piece %" PRIu32 " is NaN",
                             v->source, i);
        rec += HEAD + vptq_get_le(rec + 4, 4);
    }
    vptq_strmap index = {0};
    vptq_status st = vptq_vocab_index(v, &index, err); /* refuses duplicates */
    vptq_strmap_release(&index);
    return st;
}

vptq_status vptq_vocab_fill_llama2c(vptq_vocab *v, const void *file, vptq_err *err)
{
    const vptq_vocab_file *f = file;
    size_t count = 0, bytes = 0;
    VPTQ_CHECK(measure(v, &f->map, &count, &bytes, err));
    if (f->expect != 0 && count != f->expect)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "%s: %zu pieces, the model's vocabulary has %" PRIu32 " entries",
                         v->source, count, f->expect);
    if (count < 3)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: %zu pieces, at least 3 are needed", v->source,
                         count);
    VPTQ_CHECK(vptq_vocab_pieces(v, count, err));
    v->kind = VPTQ_VOCAB_SPM_BPE;
    v->by_score = true;
    v->byte_fallback = true;
    v->fuse_unk = true;
    v->add_bos = true;
    v->unk = 0;
    v->bos = 1;
    v->eos = 2;
    VPTQ_CHECK(read_pieces(v, &f->map, bytes, err));
    VPTQ_CHECK(vptq_vocab_spm_norms(v, true, false, err));
    return vptq_vocab_added_from_types(v, err);
}
