/* Reads the vocabulary of a GGUF file (tokenizer.ggml.*). Copies all texts, so that the result
 * outlives the mapping. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "formats/vocab/internal.h"
#include "lib/base/text.h"
#include "lib/base/utf8.h"

static vptq_status need_strings(const vptq_gguf *g, const char *key, const vptq_gguf_kv **out,
                                vptq_err *err)
{
    *out = vptq_gguf_find(g, key);
    if (!*out)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' is missing", g->path, key);
    if (!(*out)->is_array || (*out)->type != VPTQ_GGUF_STRING)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' is not an array of strings", g->path,
                         key);
    return VPTQ_OK;
}

/* Finds a numeric array with one number per piece; NULL if the file has none. */
static vptq_status find_numbers(const vptq_gguf *g, const char *key, uint64_t count,
                                const vptq_gguf_kv **out, vptq_err *err)
{
    *out = vptq_gguf_find(g, key);
    if (!*out)
        return VPTQ_OK;
    if (!(*out)->is_array || (*out)->type == VPTQ_GGUF_STRING ||
        (*out)->type == VPTQ_GGUF_ARRAY || (*out)->count != count)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: key '%s' is not one number for each of the %" PRIu64 " tokens",
                         g->path, key, count);
    return VPTQ_OK;
}

static vptq_status read_pieces(const vptq_gguf *g, vptq_vocab *v, vptq_err *err)
{
    const vptq_gguf_kv *tokens, *types, *scores;
    vptq_pool pool;
    VPTQ_CHECK(need_strings(g, "tokenizer.ggml.tokens", &tokens, err));
    VPTQ_CHECK(find_numbers(g, "tokenizer.ggml.token_type", tokens->count, &types, err));
    VPTQ_CHECK(find_numbers(g, "tokenizer.ggml.scores", tokens->count, &scores, err));
    VPTQ_CHECK(vptq_vocab_pieces(v, tokens->count, err));
    size_t bytes = 0;
    for (uint32_t i = 0; i < v->count; i++)
        bytes += tokens->str[i].len; /* all inside the file: the sum cannot overflow */
    VPTQ_CHECK(vptq_pool_init(&pool, &v->arena, bytes, v->count, err));
    for (uint32_t i = 0; i < v->count; i++) {
        vptq_gguf_str s = tokens->str[i];
        double type = types ? vptq_gguf_num_at(types, i) : VPTQ_PIECE_NORMAL;
        double score = scores ? vptq_gguf_num_at(scores, i) : 0;
        if (!(type >= VPTQ_PIECE_NORMAL && type <= VPTQ_PIECE_BYTE) || type != floor(type))
            return vptq_fail(err, VPTQ_E_FORMAT, "%s: token %" PRIu32 " has the type %g",
                             g->path, i, type);
        if (isnan(score))
            return vptq_fail(err, VPTQ_E_FORMAT, "%s: the score of token %" PRIu32 " is NaN",
                             g->path, i);
        v->pieces[i] = (vptq_piece){.text = vptq_pool_add(&pool, s.data, s.len),
                                    .len = s.len <= UINT32_MAX ? (uint32_t)s.len : UINT32_MAX,
                                    .score = (float)score,
                                    .type = (uint8_t)type};
        if (v->pieces[i].len == 0)
            v->pieces[i].type = VPTQ_PIECE_UNUSED;
    }
    return VPTQ_OK;
}

/* Old files without types still have byte pieces and an unknown piece. */
static void mark_untyped(const vptq_gguf *g, vptq_vocab *v)
{
    if (vptq_gguf_find(g, "tokenizer.ggml.token_type"))
        return;
    const int32_t special[3] = {v->unk, v->bos, v->eos};
    vptq_vocab_mark_bytes(v);
    for (int i = 0; i < 3; i++) {
        if (special[i] >= 0 && (uint32_t)special[i] < v->count)
            v->pieces[special[i]].type = i == 0 ? VPTQ_PIECE_UNKNOWN : VPTQ_PIECE_CONTROL;
    }
}

static vptq_status read_merges(const vptq_gguf *g, vptq_vocab *v, const vptq_strmap *map,
                               vptq_err *err)
{
    const vptq_gguf_kv *merges;
    VPTQ_CHECK(need_strings(g, "tokenizer.ggml.merges", &merges, err));
    if (merges->count >= UINT32_MAX)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: %" PRIu64 " merges", g->path, merges->count);
    v->merges = vptq_arena_alloc(&v->arena, merges->count, sizeof *v->merges, err);
    if (!v->merges)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < merges->count; i++) {
        vptq_gguf_str s = merges->str[i];
        const char *space = s.len > 1 ? memchr(s.data + 1, ' ', s.len - 1) : NULL;
        size_t left = space ? (size_t)(space - s.data) : 0;
        if (!space || left + 1 == s.len)
            return vptq_fail(err, VPTQ_E_FORMAT, "%s: merge %zu is not two pieces with a space",
                             g->path, i);
        VPTQ_CHECK(vptq_vocab_merge(v, map, i, s.data, left, space + 1, s.len - left - 1, err));
    }
    v->merge_count = (uint32_t)merges->count;
    return VPTQ_OK;
}

static vptq_status read_id(const vptq_gguf *g, const char *key, int32_t fallback, int32_t *out,
                           vptq_err *err)
{
    uint64_t id = 0;
    VPTQ_CHECK(vptq_gguf_u64_or(g, key, 0, &id, err));
    if (id > INT32_MAX)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: key '%s' is %" PRIu64 ", which is not a token id", g->path, key,
                         id);
    *out = vptq_gguf_find(g, key) ? (int32_t)id : fallback;
    return VPTQ_OK;
}

static vptq_status read_specials(const vptq_gguf *g, vptq_vocab *v, vptq_err *err)
{
    bool spm = v->kind == VPTQ_VOCAB_SPM_BPE;
    vptq_gguf_str chat;
    VPTQ_CHECK(read_id(g, "tokenizer.ggml.bos_token_id", spm ? 1 : -1, &v->bos, err));
    VPTQ_CHECK(read_id(g, "tokenizer.ggml.eos_token_id", spm ? 2 : -1, &v->eos, err));
    VPTQ_CHECK(read_id(g, "tokenizer.ggml.unknown_token_id", spm ? 0 : -1, &v->unk, err));
    VPTQ_CHECK(vptq_gguf_str_or(g, "tokenizer.chat_template", &chat, err));
    if (chat.data && vptq_utf8_valid_prefix(chat.data, chat.len) == chat.len) {
        v->chat_template = vptq_arena_strndup(&v->arena, chat.data, chat.len, err);
        if (!v->chat_template)
            return VPTQ_E_NOMEM;
    }
    return VPTQ_OK;
}

static vptq_status read_spm(const vptq_gguf *g, vptq_vocab *v, vptq_err *err)
{
    bool prefix, squeeze;
    vptq_strmap map = {0};
    VPTQ_CHECK(vptq_gguf_bool_or(g, "tokenizer.ggml.add_space_prefix", true, &prefix, err));
    VPTQ_CHECK(
        vptq_gguf_bool_or(g, "tokenizer.ggml.remove_extra_whitespaces", false, &squeeze, err));
    VPTQ_CHECK(vptq_vocab_spm_norms(v, prefix, squeeze, err));
    if (!vptq_gguf_find(g, "tokenizer.ggml.scores"))
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key 'tokenizer.ggml.scores' is missing",
                         g->path);
    v->by_score = true;
    v->byte_fallback = true;
    v->fuse_unk = true;
    vptq_status st = vptq_vocab_index(v, &map, err); /* refuses duplicates */
    vptq_strmap_release(&map);
    return st;
}

static vptq_status read_bpe(const vptq_gguf *g, vptq_vocab *v, bool *bos, vptq_err *err)
{
    bool prefix;
    vptq_gguf_str pre;
    vptq_strmap map = {0};
    VPTQ_CHECK(vptq_gguf_str_or(g, "tokenizer.ggml.pre", &pre, err));
    VPTQ_CHECK(vptq_gguf_bool_or(g, "tokenizer.ggml.add_space_prefix", false, &prefix, err));
    if (prefix)
        VPTQ_CHECK(vptq_vocab_add_split(v, (vptq_split){.kind = VPTQ_SPLIT_PREFIX}, err));
    if (!pre.data)
        pre = (vptq_gguf_str){"default", 7};
    VPTQ_CHECK(vptq_vocab_pre(v, pre.data, pre.len, bos, err));
    VPTQ_CHECK(vptq_vocab_index(v, &map, err));
    vptq_status st = read_merges(g, v, &map, err);
    vptq_strmap_release(&map);
    return st;
}

static vptq_status fill(vptq_vocab *v, const void *source, vptq_err *err)
{
    const vptq_gguf *g = source;
    vptq_gguf_str model;
    bool bos = true;
    VPTQ_CHECK(vptq_gguf_str_or(g, "tokenizer.ggml.model", &model, err));
    if (!model.data)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: key 'tokenizer.ggml.model' is missing: the file has no tokenizer",
                         g->path);
    if (vptq_text_is(model.data, model.len, "llama"))
        v->kind = VPTQ_VOCAB_SPM_BPE;
    else if (!vptq_text_is(model.data, model.len, "gpt2"))
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: the tokenizer model '%.*s' is not supported, only llama and gpt2 "
                         "are",
                         g->path, model.len < 100 ? (int)model.len : 100, model.data);
    VPTQ_CHECK(read_specials(g, v, err));
    VPTQ_CHECK(read_pieces(g, v, err));
    mark_untyped(g, v);
    VPTQ_CHECK(v->kind == VPTQ_VOCAB_SPM_BPE ? read_spm(g, v, err) : read_bpe(g, v, &bos, err));
    VPTQ_CHECK(vptq_gguf_bool_or(g, "tokenizer.ggml.add_bos_token", bos, &v->add_bos, err));
    VPTQ_CHECK(vptq_gguf_bool_or(g, "tokenizer.ggml.add_eos_token", false, &v->add_eos, err));
    return vptq_vocab_added_from_types(v, err);
}

vptq_status vptq_vocab_read_gguf(const vptq_gguf *g, vptq_mem *mem, vptq_vocab *v,
                                 vptq_err *err)
{
    return vptq_vocab_make(g->path, fill, g, mem, v, err);
}
