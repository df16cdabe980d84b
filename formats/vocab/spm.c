/* Reads SentencePiece's tokenizer.model, a protobuf, without a library. Fields in use
 * (sentencepiece_model.proto): ModelProto {1 pieces, 2 trainer_spec, 3 normalizer_spec};
 * SentencePiece {1 piece, 2 score, 3 type}; TrainerSpec {3 model_type, 24
 * treat_whitespace_as_suffix, 35 byte_fallback, 40..42 unk, bos, eos id}; NormalizerSpec {1
 * name, 2 precompiled_charsmap, 3 add_dummy_prefix, 4 remove_extra_whitespaces, 5
 * escape_whitespaces}. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "formats/vocab/internal.h"
#include "lib/base/le.h"

/* --- protobuf --- */

typedef struct message {
    const uint8_t *at, *end;
} message;

typedef struct field {
    uint32_t number;
    unsigned wire;  /* 0 varint, 1 64 bits, 2 bytes, 5 32 bits */
    uint64_t value; /* of varints and 32 bits */
    message bytes;  /* of wire type 2 */
} field;

static bool take_varint(message *m, uint64_t *out)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 64 && m->at < m->end; shift += 7) {
        uint8_t b = *m->at++;
        if (shift == 63 && b > 1)
            return false;
        v |= (uint64_t)(b & 0x7F) << shift;
        if (b < 0x80) {
            *out = v;
            return true;
        }
    }
    return false;
}

/* Reads the next field; false if there is no valid one. */
static bool take_field(message *m, field *f)
{
    uint64_t tag = 0;
    if (!take_varint(m, &tag) || tag >> 3 == 0 || tag >> 3 > (1U << 29) - 1)
        return false;
    f->number = (uint32_t)(tag >> 3);
    f->wire = (unsigned)(tag & 7);
    size_t left = (size_t)(m->end - m->at), size = 0;
    switch (f->wire) {
    case 0:
        return take_varint(m, &f->value);
    case 1:
        size = 8;
        break;
    case 2:
        if (!take_varint(m, &f->value) || f->value > (uint64_t)(m->end - m->at))
            return false;
        left = (size_t)(m->end - m->at);
        size = (size_t)f->value;
        break;
    case 5:
        size = 4;
        break;
    default:
        return false;
    }
    if (size > left)
        return false;
    f->bytes = (message){m->at, m->at + size};
    if (f->wire == 5)
        f->value = vptq_get_le(m->at, 4);
    m->at += size;
    return true;
}

static vptq_status broken(const vptq_vocab *v, const message *whole, const message *m,
                          vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: invalid protobuf field at byte %zu of %zu",
                     v->source, (size_t)(m->at - whole->at), (size_t)(whole->end - whole->at));
}

/* --- the parts --- */

typedef struct spec {
    uint64_t model_type; /* 1 unigram, 2 BPE, 3 word, 4 char */
    bool byte_fallback, suffix, prefix, squeeze, escape;
    int32_t unk, bos, eos;
    message charsmap, name;
} spec;

static vptq_status read_piece(vptq_vocab *v, const message *whole, message m, vptq_pool *pool,
                              vptq_err *err)
{
    uint32_t id = v->count;
    vptq_piece *p = &v->pieces[id];
    field f;
    *p = (vptq_piece){.text = "", .type = VPTQ_PIECE_NORMAL};
    while (m.at < m.end) {
        if (!take_field(&m, &f))
            return broken(v, whole, &m, err);
        if (f.number == 1 && f.wire == 2) {
            if (f.value > VPTQ_PIECE_MAX)
                return vptq_fail(err, VPTQ_E_FORMAT,
                                 "%s: piece %" PRIu32 " has %" PRIu64
                                 " bytes, at most %d are read",
                                 v->source, id, f.value, VPTQ_PIECE_MAX);
            p->len = (uint32_t)f.value;
            if (pool->left <= p->len) /* a piece that repeats its text */
                return broken(v, whole, &m, err);
            p->text = vptq_pool_add(pool, (const char *)f.bytes.at, p->len);
        } else if (f.number == 2 && f.wire == 5) {
            uint32_t bits = (uint32_t)f.value;
            memcpy(&p->score, &bits, sizeof p->score);
        } else if (f.number == 3 && f.wire == 0) {
            if (f.value < VPTQ_PIECE_NORMAL || f.value > VPTQ_PIECE_BYTE)
                return vptq_fail(err, VPTQ_E_FORMAT,
                                 "%s: piece %" PRIu32 " has the type %" PRIu64, v->source, id,
                                 f.value);
            p->type = (uint8_t)f.value;
        }
    }
    if (p->len == 0 || isnan(p->score))
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: piece %" PRIu32 " has %s", v->source, id,
                         p->len == 0 ? "no text" : "the score NaN");
    v->count++;
    return VPTQ_OK;
}

static vptq_status read_trainer(const vptq_vocab *v, const message *whole, message m, spec *s,
                                vptq_err *err)
{
    field f;
    while (m.at < m.end) {
        if (!take_field(&m, &f))
            return broken(v, whole, &m, err);
        if (f.wire != 0)
            continue;
        if (f.number == 3)
            s->model_type = f.value;
        else if (f.number == 24)
            s->suffix = f.value != 0;
        else if (f.number == 35)
            s->byte_fallback = f.value != 0;
        else if (f.number == 40) /* int32: negative ones are sign-extended */
            s->unk = (int32_t)(uint32_t)f.value;
        else if (f.number == 41)
            s->bos = (int32_t)(uint32_t)f.value;
        else if (f.number == 42)
            s->eos = (int32_t)(uint32_t)f.value;
    }
    return VPTQ_OK;
}

static vptq_status read_normalizer(const vptq_vocab *v, const message *whole, message m,
                                   spec *s, vptq_err *err)
{
    field f;
    while (m.at < m.end) {
        if (!take_field(&m, &f))
            return broken(v, whole, &m, err);
        if (f.number == 1 && f.wire == 2)
            s->name = f.bytes;
        else if (f.number == 2 && f.wire == 2)
            s->charsmap = f.bytes;
        else if (f.number == 3 && f.wire == 0)
            s->prefix = f.value != 0;
        else if (f.number == 4 && f.wire == 0)
            s->squeeze = f.value != 0;
        else if (f.number == 5 && f.wire == 0)
            s->escape = f.value != 0;
    }
    return VPTQ_OK;
}

static vptq_status count_pieces(const vptq_vocab *v, const message *whole, size_t *pieces,
                                vptq_err *err)
{
    message m = *whole;
    field f;
    *pieces = 0;
    while (m.at < m.end) {
        if (!take_field(&m, &f))
            return broken(v, whole, &m, err);
        *pieces += f.number == 1 && f.wire == 2;
    }
    return VPTQ_OK;
}

static vptq_status read_message(vptq_vocab *v, const message *whole, spec *s, vptq_err *err)
{
    size_t count = 0;
    vptq_pool pool;
    VPTQ_CHECK(count_pieces(v, whole, &count, err));
    VPTQ_CHECK(vptq_vocab_pieces(v, count, err));
    v->count = 0; /* counts the pieces as they are read */
    VPTQ_CHECK(vptq_pool_init(&pool, &v->arena, (size_t)(whole->end - whole->at), count, err));
    field f;
    for (message m = *whole; m.at < m.end && take_field(&m, &f);) {
        if (f.wire != 2)
            continue;
        if (f.number == 1)
            VPTQ_CHECK(read_piece(v, whole, f.bytes, &pool, err));
        else if (f.number == 2)
            VPTQ_CHECK(read_trainer(v, whole, f.bytes, s, err));
        else if (f.number == 3)
            VPTQ_CHECK(read_normalizer(v, whole, f.bytes, s, err));
    }
    return VPTQ_OK;
}

static vptq_status check_spec(const vptq_vocab *v, const spec *s, vptq_err *err)
{
    static const char *const types[5] = {"0", "unigram", "BPE", "word", "char"};
    if (s->model_type != 2)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: SentencePiece model of type %s is not supported, only BPE is",
                         v->source, s->model_type < 5 ? types[s->model_type] : "unknown");
    if (s->charsmap.at != s->charsmap.end)
        return vptq_fail(
            err, VPTQ_E_UNSUPPORTED,
            "%s: the SentencePiece normalizer '%.*s' is not supported, only identity is",
            v->source, (int)(s->name.end - s->name.at < 50 ? s->name.end - s->name.at : 50),
            s->name.at ? (const char *)s->name.at : "");
    if (s->suffix || !s->escape)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED, "%s: %s is not supported", v->source,
                         s->suffix ? "treat_whitespace_as_suffix"
                                   : "escape_whitespaces = false");
    return VPTQ_OK;
}

static vptq_status read_protobuf(vptq_vocab *v, const message *whole, vptq_err *err)
{
    vptq_strmap map = {0};
    spec s = {.model_type = 1,
              .prefix = true,
              .squeeze = true,
              .escape = true,
              .unk = 0,
              .bos = 1,
              .eos = 2};
    VPTQ_CHECK(read_message(v, whole, &s, err));
    VPTQ_CHECK(check_spec(v, &s, err));
    v->kind = VPTQ_VOCAB_SPM_BPE;
    v->by_score = true;
    v->byte_fallback = s.byte_fallback;
    v->fuse_unk = true;
    v->unk = s.unk < 0 ? -1 : s.unk;
    v->bos = s.bos < 0 ? -1 : s.bos;
    v->eos = s.eos < 0 ? -1 : s.eos;
    v->add_bos = v->bos >= 0;
    VPTQ_CHECK(vptq_vocab_index(v, &map, err)); /* refuses duplicates */
    vptq_strmap_release(&map);
    VPTQ_CHECK(vptq_vocab_spm_norms(v, s.prefix, s.squeeze, err));
    return vptq_vocab_added_from_types(v, err);
}

/* A protobuf begins with the tag of its first piece, 0x0A, which does not occur in base64. */
vptq_status vptq_vocab_fill_spm(vptq_vocab *v, const void *file, vptq_err *err)
{
    const vptq_map *map = &((const vptq_vocab_file *)file)->map;
    if (map->size == 0)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: the vocabulary is empty", v->source);
    const uint8_t c = map->data[0];
    const message whole = {map->data, map->data + map->size};
    if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
        c == '+' || c == '/')
        return vptq_vocab_tiktoken(v, (const char *)map->data, map->size, err);
    return read_protobuf(v, &whole, err);
}
