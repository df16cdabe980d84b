/* Building blocks of vocabularies, checks that all share, and choosing a reader by content. */
#include "formats/vocab/vocab.h"

#include <inttypes.h>
#include <string.h>

#include "formats/lfs.h"
#include "formats/vocab/internal.h"
#include "lib/base/text.h"
#include "lib/base/utf8.h"

void vptq_vocab_release(vptq_vocab *v)
{
    vptq_arena_release(&v->arena);
    *v = (vptq_vocab){.bos = -1, .eos = -1, .unk = -1};
}

/* Printable Latin-1 characters stand for themselves, the other bytes for U+0100 and up. */
static bool stands_for_itself(uint32_t b)
{
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
}

uint32_t vptq_byte_symbol(uint8_t byte)
{
    if (stands_for_itself(byte))
        return byte;
    /* 0..32 come first, then 127..160, then 173 */
    return byte <= 32 ? 256U + byte : byte <= 160 ? 256U + 33 + byte - 127 : 256U + 67;
}

int vptq_symbol_byte(uint32_t cp)
{
    if (cp < 256)
        return stands_for_itself(cp) ? (int)cp : -1;
    cp -= 256;
    return cp <= 32 ? (int)cp : cp <= 66 ? (int)(cp - 33 + 127) : cp == 67 ? 173 : -1;
}

vptq_status vptq_pool_init(vptq_pool *p, vptq_arena *arena, size_t bytes, size_t count,
                           vptq_err *err)
{
    size_t size = 0;
    if (!vptq_size_add(bytes, count, &size))
        return vptq_fail(err, VPTQ_E_NOMEM, "a vocabulary of %zu texts does not fit", count);
    p->next = vptq_arena_alloc(arena, size, 1, err);
    p->left = size;
    return p->next ? VPTQ_OK : VPTQ_E_NOMEM;
}

char *vptq_pool_add(vptq_pool *p, const char *text, size_t len)
{
    VPTQ_BUG_IF(len >= p->left);
    char *at = p->next;
    if (len > 0)
        memcpy(at, text, len);
    at[len] = 0;
    p->next += len + 1;
    p->left -= len + 1;
    return at;
}

vptq_status vptq_vocab_begin(vptq_vocab *v, const char *path, vptq_mem *mem, vptq_err *err)
{
    *v = (vptq_vocab){.bos = -1, .eos = -1, .unk = -1};
    vptq_arena_init(&v->arena, mem);
    v->source = vptq_arena_strdup(&v->arena, path, err);
    return v->source ? VPTQ_OK : VPTQ_E_NOMEM;
}

vptq_status vptq_vocab_pieces(vptq_vocab *v, size_t count, vptq_err *err)
{
    if (count == 0)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: the vocabulary is empty", v->source);
    if (count > VPTQ_VOCAB_MAX)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: %zu pieces, at most %d are read", v->source,
                         count, VPTQ_VOCAB_MAX);
    v->pieces = vptq_arena_alloc(&v->arena, count, sizeof *v->pieces, err);
    if (!v->pieces)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < count; i++)
        v->pieces[i] = (vptq_piece){.text = "", .type = VPTQ_PIECE_UNUSED};
    v->count = (uint32_t)count;
    return VPTQ_OK;
}

vptq_status vptq_vocab_index(const vptq_vocab *v, vptq_strmap *map, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    VPTQ_CHECK(vptq_strmap_init(map, v->arena.mem, v->count, err));
    for (uint32_t i = 0; i < v->count; i++) {
        const vptq_piece *p = &v->pieces[i];
        bool fresh = true;
        if (p->len > VPTQ_PIECE_MAX)
            st = vptq_fail(err, VPTQ_E_FORMAT,
                           "%s: piece %" PRIu32 " has %" PRIu32 " bytes, at most %d are read",
                           v->source, i, p->len, VPTQ_PIECE_MAX);
        else if (vptq_utf8_valid_prefix(p->text, p->len) < p->len)
            st = vptq_fail(err, VPTQ_E_FORMAT, "%s: piece %" PRIu32 " is not valid UTF-8",
                           v->source, i);
        else if (p->len > 0)
            st = vptq_strmap_add(map, p->text, p->len, i, &fresh, err);
        if (!st && !fresh) {
            uint32_t first = 0;
            (void)vptq_strmap_get(map, p->text, p->len, &first);
            st = vptq_fail(err, VPTQ_E_FORMAT,
                           "%s: pieces %" PRIu32 " and %" PRIu32 " are both '%s'", v->source,
                           first, i, p->text);
        }
        if (st) {
            vptq_strmap_release(map);
            return st;
        }
    }
    return VPTQ_OK;
}

vptq_status vptq_vocab_merge(vptq_vocab *v, const vptq_strmap *map, size_t index,
                             const char *left, size_t left_len, const char *right,
                             size_t right_len, vptq_err *err)
{
    char both[2 * VPTQ_PIECE_MAX];
    vptq_merge m = {0};
    const char *piece = left;
    size_t len = left_len;
    bool known = vptq_strmap_get(map, piece, len, &m.left);
    if (known) {
        piece = right;
        len = right_len;
        known = vptq_strmap_get(map, piece, len, &m.right);
    }
    if (known) { /* both are pieces, so each has at most VPTQ_PIECE_MAX bytes */
        memcpy(both, left, left_len);
        memcpy(both + left_len, right, right_len);
        piece = both;
        len = left_len + right_len;
        known = vptq_strmap_get(map, piece, len, &m.result);
    }
    if (!known)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: merge %zu names '%.*s', which is not a piece of the vocabulary",
                         v->source, index, len < 100 ? (int)len : 100, piece);
    v->merges[index] = m;
    return VPTQ_OK;
}

vptq_status vptq_vocab_add_norm(vptq_vocab *v, vptq_norm norm, vptq_err *err)
{
    if (!v->norms)
        v->norms = vptq_arena_alloc(&v->arena, VPTQ_STEPS_MAX, sizeof *v->norms, err);
    if (!v->norms)
        return VPTQ_E_NOMEM;
    if (v->norm_count == VPTQ_STEPS_MAX)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: a normalizer with more than %d steps is not supported", v->source,
                         VPTQ_STEPS_MAX);
    v->norms[v->norm_count++] = norm;
    return VPTQ_OK;
}

vptq_status vptq_vocab_add_split(vptq_vocab *v, vptq_split split, vptq_err *err)
{
    if (!v->splits)
        v->splits = vptq_arena_alloc(&v->arena, VPTQ_STEPS_MAX, sizeof *v->splits, err);
    if (!v->splits)
        return VPTQ_E_NOMEM;
    if (v->split_count == VPTQ_STEPS_MAX)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: a pre-tokenizer with more than %d steps is not supported",
                         v->source, VPTQ_STEPS_MAX);
    v->splits[v->split_count++] = split;
    return VPTQ_OK;
}

vptq_status vptq_vocab_spm_norms(vptq_vocab *v, bool prefix, bool squeeze, vptq_err *err)
{
    if (squeeze) {
        VPTQ_CHECK(vptq_vocab_add_norm(
            v, (vptq_norm){VPTQ_NORM_REGEX, .pattern = "\\A +| +\\z", .content = ""}, err));
        VPTQ_CHECK(vptq_vocab_add_norm(
            v, (vptq_norm){VPTQ_NORM_REGEX, .pattern = " {2,}", .content = " "}, err));
    }
    if (prefix)
        VPTQ_CHECK(
            vptq_vocab_add_norm(v, (vptq_norm){VPTQ_NORM_PREPEND, .content = VPTQ_META}, err));
    VPTQ_CHECK(vptq_vocab_add_norm(
        v, (vptq_norm){VPTQ_NORM_REPLACE, .pattern = " ", .content = VPTQ_META}, err));
    v->strip_start = prefix;
    return VPTQ_OK;
}

/* Returns a copy with U+2581 turned back into spaces, as before SentencePiece's normalizer. */
static char *unescaped(vptq_arena *arena, const char *text, size_t len, uint32_t *out_len,
                       vptq_err *err)
{
    char *out = vptq_arena_strndup(arena, text, len, err);
    size_t n = 0;
    for (size_t i = 0; out && i < len; n++) {
        bool meta = len - i >= 3 && memcmp(text + i, VPTQ_META, 3) == 0;
        out[n] = meta ? ' ' : text[i];
        i += meta ? 3 : 1;
    }
    if (out)
        out[n] = 0;
    *out_len = (uint32_t)n;
    return out;
}

static bool is_added(const vptq_piece *p)
{
    return p->len > 0 && (p->type == VPTQ_PIECE_CONTROL || p->type == VPTQ_PIECE_USER);
}

vptq_status vptq_vocab_added_from_types(vptq_vocab *v, vptq_err *err)
{
    size_t n = 0;
    for (uint32_t i = 0; i < v->count; i++)
        n += is_added(&v->pieces[i]);
    v->added = vptq_arena_zalloc(&v->arena, n, sizeof *v->added, err);
    if (!v->added)
        return VPTQ_E_NOMEM;
    for (uint32_t i = 0; i < v->count; i++) {
        const vptq_piece *p = &v->pieces[i];
        if (!is_added(p))
            continue;
        vptq_added_token *a = &v->added[v->added_count++];
        a->id = i;
        a->text = p->text;
        a->len = p->len;
        a->special = p->type == VPTQ_PIECE_CONTROL;
        if (v->kind == VPTQ_VOCAB_SPM_BPE && strstr(p->text, VPTQ_META)) {
            a->text = unescaped(&v->arena, p->text, p->len, &a->len, err);
            if (!a->text)
                return VPTQ_E_NOMEM;
        }
    }
    return VPTQ_OK;
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool vptq_piece_is_byte(const char *text, size_t len, uint8_t *byte)
{
    if (len != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return false;
    int high = hex(text[3]), low = hex(text[4]);
    if (high < 0 || low < 0)
        return false;
    *byte = (uint8_t)(high << 4 | low);
    return true;
}

void vptq_vocab_mark_bytes(vptq_vocab *v)
{
    for (uint32_t i = 0; i < v->count; i++) {
        uint8_t byte;
        if (v->pieces[i].type == VPTQ_PIECE_NORMAL &&
            vptq_piece_is_byte(v->pieces[i].text, v->pieces[i].len, &byte))
            v->pieces[i].type = VPTQ_PIECE_BYTE;
    }
}

static vptq_status check(const vptq_vocab *v, vptq_err *err)
{
    const struct {
        const char *name;
        int32_t id;
    } special[3] = {{"BOS", v->bos}, {"EOS", v->eos}, {"unknown", v->unk}};
    for (int i = 0; i < 3; i++) {
        if (special[i].id >= 0 && (uint32_t)special[i].id >= v->count)
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: the %s id is %" PRId32 ", the vocabulary has %" PRIu32
                             " entries",
                             v->source, special[i].name, special[i].id, v->count);
    }
    if ((v->add_bos && v->bos < 0) || (v->add_eos && v->eos < 0))
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: adds a %s token but names none", v->source,
                         v->add_bos && v->bos < 0 ? "BOS" : "EOS");
    for (uint32_t i = 0; i < v->added_count; i++) {
        if (v->added[i].len == 0 || v->added[i].len > VPTQ_PIECE_MAX)
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: added token %" PRIu32 " has %" PRIu32
                             " bytes, 1 to %d are read",
                             v->source, v->added[i].id, v->added[i].len, VPTQ_PIECE_MAX);
    }
    return VPTQ_OK;
}

vptq_status vptq_vocab_make(const char *path, vptq_vocab_fill fill, const void *source,
                            vptq_mem *mem, vptq_vocab *v, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    VPTQ_TRY(vptq_vocab_begin(v, path, mem, err));
    VPTQ_TRY(fill(v, source, err));
    st = check(v, err);
out:
    if (st)
        vptq_vocab_release(v);
    return st;
}

static vptq_status read_file(const char *path, uint32_t expect, vptq_mem *mem, vptq_vocab *v,
                             vptq_err *err)
{
    if (vptq_gguf_is(path)) {
        vptq_gguf g;
        VPTQ_CHECK(vptq_gguf_open(path, mem, &g, err));
        vptq_status st = vptq_vocab_read_gguf(&g, mem, v, err);
        vptq_gguf_release(&g);
        return st;
    }
    if (vptq_text_before(path, ".json"))
        return vptq_vocab_read_json(path, mem, v, err);
    vptq_vocab_file f = {.expect = expect};
    VPTQ_CHECK(vptq_map_open(path, &f.map, err));
    /* llama2.c begins with a small int32, the length of its longest piece; a protobuf with the
     * tag of its first piece, a list of ranks with base64. */
    bool llama2c = f.map.size >= 4 && f.map.data[2] == 0 && f.map.data[3] == 0;
    vptq_status st = vptq_lfs_check(path, f.map.data, f.map.size, "tokenizer", err);
    if (!st)
        st =
            f.map.size > 0 && f.map.data[0] == '{'
                ? vptq_vocab_read_json(path, mem, v, err)
                : vptq_vocab_make(path, llama2c ? vptq_vocab_fill_llama2c : vptq_vocab_fill_spm,
                                  &f, mem, v, err);
    vptq_map_release(&f.map);
    return st;
}

vptq_status vptq_vocab_read(const char *path, uint32_t expect, vptq_mem *mem, vptq_vocab *v,
                            vptq_err *err)
{
    *v = (vptq_vocab){.bos = -1, .eos = -1, .unk = -1};
    if (!vptq_path_is_dir(path))
        return read_file(path, expect, mem, v, err);
    const char *names[2] = {"tokenizer.json", "tokenizer.model"};
    for (int i = 0; i < 2; i++) {
        char file[4096];
        VPTQ_CHECK(vptq_path_join(file, sizeof file, path, names[i], err));
        if (vptq_path_exists(file))
            return read_file(file, expect, mem, v, err);
    }
    return vptq_fail(err, VPTQ_E_IO, "%s: holds neither tokenizer.json nor tokenizer.model",
                     path);
}
