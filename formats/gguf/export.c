/* Writes a model's description and tokenizer as GGUF metadata. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/gguf/model.h"
#include "formats/vocab/internal.h"

enum { KEY_MAX = 96 };

/* ---- the description ---- */

typedef struct desc_writer {
    vptq_gguf_keys *k;
    const vptq_model_desc *d;
} desc_writer;

static void full_key(const desc_writer *w, const char *key, char out[KEY_MAX])
{
    snprintf(out, KEY_MAX, "%s.%s", w->d->family->gguf_arch, key);
}

static void put_u32(const desc_writer *w, const char *key, uint32_t x)
{
    char full[KEY_MAX];
    full_key(w, key, full);
    vptq_gguf_put_u32(w->k, full, x);
}

static void put_f32(const desc_writer *w, const char *key, double x)
{
    char full[KEY_MAX];
    full_key(w, key, full);
    vptq_gguf_put_f32(w->k, full, (float)x);
}

static void put_yarn(const desc_writer *w)
{
    const vptq_model_desc *d = w->d;
    const double attention =
        d->rope_attention_factor / vptq_rope_yarn_attention(d->rope_factor, 1);
    put_f32(w, "rope.scaling.yarn_beta_slow", d->rope_low);
    put_f32(w, "rope.scaling.yarn_beta_fast", d->rope_high);
    if (fabs(attention - 1) > 1e-6)
        put_f32(w, "rope.scaling.yarn_attn_factor", attention);
}

/* Llama 3.1's scaling is a tensor, not a key; readers assume an original context of 8192 unless
 * a key gives another. */
static void put_rope(const desc_writer *w)
{
    enum { LLAMA3_CONTEXT = 8192 };
    const vptq_model_desc *d = w->d;
    char key[KEY_MAX];
    const bool linear = d->rope_scaling == VPTQ_ROPE_LINEAR;
    put_u32(w, "rope.dimension_count", d->head_dim);
    put_f32(w, "rope.freq_base", d->rope_theta);
    if (linear || d->rope_scaling == VPTQ_ROPE_YARN) {
        full_key(w, "rope.scaling.type", key);
        vptq_gguf_put_str(w->k, key, linear ? "linear" : "yarn");
        put_f32(w, "rope.scaling.factor", d->rope_factor);
    }
    if (d->rope_scaling == VPTQ_ROPE_YARN)
        put_yarn(w);
    if (d->rope_scaling == VPTQ_ROPE_YARN ||
        (d->rope_scaling == VPTQ_ROPE_LLAMA3 && d->rope_original_context != LLAMA3_CONTEXT))
        put_u32(w, "rope.scaling.original_context_length", d->rope_original_context);
}

vptq_status vptq_gguf_check_family(const vptq_model_desc *d, const char *file, vptq_err *err)
{
    if (d->family->gguf_arch && !d->gelu && !d->full_every &&
        d->rope_scaling != VPTQ_ROPE_LONGROPE)
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                     "%s: models of type %s with this configuration cannot be written as GGUF",
                     file, d->family->model_type);
}

vptq_status vptq_gguf_put_desc(vptq_gguf_keys *k, const vptq_model_desc *d, const char *file,
                               vptq_err *err)
{
    const desc_writer w = {k, d};
    const char *arch = d->family->gguf_arch;
    if (d->window && d->window_from)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: sliding attention begins at layer %" PRIu32
                         ", which a GGUF file cannot express",
                         file, d->window_from);
    vptq_gguf_put_str(k, "general.architecture", arch);
    vptq_gguf_put_str(k, "general.type", "model");
    put_u32(&w, "block_count", d->layers);
    put_u32(&w, "context_length", d->context);
    put_u32(&w, "embedding_length", d->hidden);
    put_u32(&w, "feed_forward_length", d->intermediate);
    put_u32(&w, "attention.head_count", d->heads);
    put_u32(&w, "attention.head_count_kv", d->kv_heads);
    put_u32(&w, "attention.key_length", d->head_dim);
    put_u32(&w, "attention.value_length", d->head_dim);
    put_f32(&w, "attention.layer_norm_rms_epsilon", (double)d->norm_eps);
    if (d->window)
        put_u32(&w, "attention.sliding_window", d->window);
    put_rope(&w);
    put_u32(&w, "vocab_size", d->vocab);
    return VPTQ_OK;
}

/* ---- pre-tokenizer ---- */

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static bool same_norms(const vptq_vocab *a, const vptq_vocab *b)
{
    if (a->norm_count != b->norm_count)
        return false;
    for (uint32_t i = 0; i < a->norm_count; i++)
        if (a->norms[i].kind != b->norms[i].kind ||
            !same_text(a->norms[i].pattern, b->norms[i].pattern) ||
            !same_text(a->norms[i].content, b->norms[i].content))
            return false;
    return true;
}

static bool same_steps(const vptq_vocab *a, const vptq_vocab *b)
{
    if (!same_norms(a, b) || a->split_count != b->split_count ||
        a->ignore_merges != b->ignore_merges)
        return false;
    for (uint32_t i = 0; i < a->split_count; i++)
        if (a->splits[i].kind != b->splits[i].kind ||
            !same_text(a->splits[i].pattern, b->splits[i].pattern) ||
            a->splits[i].individual != b->splits[i].individual ||
            a->splits[i].invert != b->splits[i].invert)
            return false;
    return true;
}

/* Finds the name under which GGUF readers know the tokenizer's steps; NULL = none. */
static vptq_status find_pre(const vptq_vocab *v, const char **name, bool *prefix, vptq_err *err)
{
    static const char *const names[] = {"gpt-2", "smollm", "llama-bpe",
                                        "qwen2", "tekken", "default"};
    *name = NULL;
    for (size_t i = 0; i < 2 * sizeof names / sizeof names[0] && !*name; i++) {
        vptq_vocab known;
        bool bos;
        *prefix = i % 2;
        vptq_status st = vptq_vocab_begin(&known, v->source, v->arena.mem, err);
        if (!st && *prefix)
            st = vptq_vocab_add_split(&known, (vptq_split){.kind = VPTQ_SPLIT_PREFIX}, err);
        if (!st)
            st = vptq_vocab_pre(&known, names[i / 2], strlen(names[i / 2]), &bos, err);
        if (!st && same_steps(v, &known))
            *name = names[i / 2];
        vptq_vocab_release(&known);
        VPTQ_CHECK(st);
    }
    return VPTQ_OK;
}

/* ---- pieces ---- */

/* An id as GGUF stores it. */
typedef struct token {
    const char *text;
    size_t len;
    float score;
    int32_t type;
} token;

/* Sets scores that reproduce ranked merges: the earlier the first merge that makes a piece, the
 * higher its score.  Merging by score equals merging by rank if the merges of each piece are
 * consecutive and every pair of pieces that joins to a third is a merge. */
static vptq_status rank_scores(const vptq_vocab *v, token *list, vptq_err *err)
{
    vptq_strmap map = {0};
    bool consecutive = true;
    for (uint32_t m = 0; m < v->merge_count; m++) {
        const uint32_t result = v->merges[m].result;
        if (m && result == v->merges[m - 1].result)
            continue;
        consecutive = consecutive && list[result].score == 0;
        list[result].score = -(float)(m + 1);
    }
    VPTQ_CHECK(vptq_vocab_index(v, &map, err));
    const size_t joins = vptq_vocab_joins(v, &map, NULL);
    vptq_strmap_release(&map);
    if (!consecutive || joins != v->merge_count)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: this tokenizer's merges cannot be expressed as SentencePiece "
                         "scores, so no GGUF can be written; use --unpack -o DIR",
                         v->source);
    return VPTQ_OK;
}

static vptq_status make_tokens(const vptq_vocab *v, uint32_t count, vptq_arena *arena,
                               token **out, vptq_err *err)
{
    token *list = vptq_arena_zalloc(arena, count, sizeof *list, err);
    if (!list)
        return VPTQ_E_NOMEM;
    *out = list;
    for (uint32_t i = 0; i < v->count; i++) {
        const vptq_piece *p = &v->pieces[i];
        list[i] = (token){p->text, p->len, p->score, p->type};
    }
    /* added tokens are plain text; other byte-level pieces are in the byte alphabet */
    for (uint32_t i = 0; i < v->added_count && v->kind == VPTQ_VOCAB_BYTE_BPE; i++) {
        list[v->added[i].id].text = v->added[i].text;
        list[v->added[i].id].len = v->added[i].len;
    }
    if (v->kind == VPTQ_VOCAB_SPM_BPE && v->unk >= 0)
        list[v->unk].type = VPTQ_PIECE_UNKNOWN;
    for (uint32_t i = 0; i < count; i++)
        if (list[i].len == 0) {
            char *name = vptq_arena_printf(arena, err, "[PAD%" PRIu32 "]", i);
            if (!name)
                return VPTQ_E_NOMEM;
            list[i] = (token){name, strlen(name), 0, VPTQ_PIECE_UNUSED};
        }
    return v->kind == VPTQ_VOCAB_SPM_BPE && !v->by_score ? rank_scores(v, list, err) : VPTQ_OK;
}

static void put_tokens(vptq_gguf_keys *k, const vptq_vocab *v, uint32_t count,
                       const token *list)
{
    vptq_gguf_put_array(k, "tokenizer.ggml.tokens", VPTQ_GGUF_STRING, count);
    for (uint32_t i = 0; i < count; i++)
        vptq_gguf_add_str(k, list[i].text, list[i].len);
    if (v->kind == VPTQ_VOCAB_SPM_BPE) {
        vptq_gguf_put_array(k, "tokenizer.ggml.scores", VPTQ_GGUF_F32, count);
        for (uint32_t i = 0; i < count; i++)
            vptq_gguf_add_f32(k, list[i].score);
    }
    vptq_gguf_put_array(k, "tokenizer.ggml.token_type", VPTQ_GGUF_I32, count);
    for (uint32_t i = 0; i < count; i++)
        vptq_gguf_add_i32(k, list[i].type);
}

static vptq_status put_merges(vptq_gguf_keys *k, const vptq_vocab *v, vptq_err *err)
{
    char text[2 * VPTQ_PIECE_MAX + 2];
    vptq_gguf_put_array(k, "tokenizer.ggml.merges", VPTQ_GGUF_STRING, v->merge_count);
    for (uint32_t m = 0; m < v->merge_count; m++) {
        const vptq_piece *a = &v->pieces[v->merges[m].left],
                         *b = &v->pieces[v->merges[m].right];
        if ((size_t)a->len + b->len + 1 > sizeof text || memchr(a->text, ' ', a->len) ||
            memchr(b->text, ' ', b->len))
            return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                             "%s: merge %" PRIu32
                             " has a piece with a space or too many bytes, "
                             "which a GGUF file cannot express",
                             v->source, m);
        memcpy(text, a->text, a->len);
        text[a->len] = ' ';
        memcpy(text + a->len + 1, b->text, b->len);
        vptq_gguf_add_str(k, text, (size_t)a->len + b->len + 1);
    }
    return VPTQ_OK;
}

/* ---- the tokenizer ---- */

static vptq_status put_bpe(vptq_gguf_keys *k, const vptq_vocab *v, vptq_err *err)
{
    const char *pre;
    bool prefix;
    VPTQ_CHECK(find_pre(v, &pre, &prefix, err));
    if (!pre)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: splits text into words like none of the pre-tokenizers that GGUF "
                         "files name (gpt-2, smollm, llama-bpe, qwen2, tekken, default)",
                         v->source);
    vptq_gguf_put_str(k, "tokenizer.ggml.pre", pre);
    if (prefix)
        vptq_gguf_put_bool(k, "tokenizer.ggml.add_space_prefix", true);
    return put_merges(k, v, err);
}

/* Finds the two keys from which readers make the tokenizer's normalizer; a Metaspace step may
 * do the part that marks spaces.  *found is false if the steps do anything else. */
static vptq_status find_spm(const vptq_vocab *v, bool *found, bool *prefix, bool *squeeze,
                            vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_split *meta =
        v->split_count == 1 && v->splits[0].kind == VPTQ_SPLIT_METASPACE ? v->splits : NULL;
    *prefix = *squeeze = false;
    *found = meta && v->norm_count == 0;
    for (int i = 0; !st && !*found && i < 4 && (meta || v->split_count == 0); i++) {
        vptq_vocab known;
        *prefix = i & 1;
        *squeeze = i & 2;
        st = vptq_vocab_begin(&known, v->source, v->arena.mem, err);
        if (!st)
            st = vptq_vocab_spm_norms(&known, *prefix, *squeeze, err);
        *found = !st && same_norms(v, &known);
        vptq_vocab_release(&known);
    }
    if (meta)
        *prefix = *prefix || meta->prepend != VPTQ_PREPEND_NEVER;
    return st;
}

/* True if a Metaspace step splits at every mark, so that pieces with a mark inside are never
 * used. */
static bool splits_pieces(const vptq_vocab *v)
{
    const size_t mark = strlen(VPTQ_META);
    if (v->split_count == 0 || !v->splits[0].individual)
        return false;
    for (uint32_t i = 0; i < v->count; i++)
        if (v->pieces[i].type == VPTQ_PIECE_NORMAL && v->pieces[i].len > mark &&
            strstr(v->pieces[i].text + 1, VPTQ_META))
            return true;
    return false;
}

/* True if unknown text is handled as GGUF readers do: as byte pieces if there are any, else as
 * one unknown token. */
static bool handles_unknown(const vptq_vocab *v)
{
    uint32_t bytes = 0;
    for (uint32_t i = 0; i < v->count; i++)
        bytes += v->pieces[i].type == VPTQ_PIECE_BYTE;
    return (v->byte_fallback || bytes == 0) && (v->fuse_unk || v->unk < 0 || bytes == 256);
}

static vptq_status put_spm(vptq_gguf_keys *k, const vptq_vocab *v, vptq_err *err)
{
    bool found, prefix, squeeze;
    VPTQ_CHECK(find_spm(v, &found, &prefix, &squeeze, err));
    if (!handles_unknown(v))
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: encodes unknown text differently than GGUF readers, which use "
                         "byte pieces, else one unknown token",
                         v->source);
    if (!found || v->ignore_merges || splits_pieces(v))
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: normalizes or splits text in ways that a GGUF file of a "
                         "SentencePiece tokenizer cannot express",
                         v->source);
    vptq_gguf_put_str(k, "tokenizer.ggml.pre", "default");
    vptq_gguf_put_bool(k, "tokenizer.ggml.add_space_prefix", prefix);
    vptq_gguf_put_bool(k, "tokenizer.ggml.remove_extra_whitespaces", squeeze);
    return VPTQ_OK;
}

/* Puts id, else fallback; nothing if both are negative. */
static void put_id(vptq_gguf_keys *k, const char *key, int32_t id, int32_t fallback)
{
    id = id >= 0 ? id : fallback;
    if (id >= 0)
        vptq_gguf_put_u32(k, key, (uint32_t)id);
}

vptq_status vptq_gguf_put_vocab(vptq_gguf_keys *k, const vptq_vocab *v,
                                const vptq_model_desc *d, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const bool bytes = v->kind == VPTQ_VOCAB_BYTE_BPE;
    vptq_arena arena;
    token *list = NULL;

    if (v->count > d->vocab)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "%s: the tokenizer has %" PRIu32
                         " tokens, the model's embedding only %" PRIu32,
                         v->source, v->count, d->vocab);
    vptq_arena_init(&arena, v->arena.mem);
    VPTQ_TRY(make_tokens(v, d->vocab, &arena, &list, err));
    vptq_gguf_put_str(k, "tokenizer.ggml.model", bytes ? "gpt2" : "llama");
    put_tokens(k, v, d->vocab, list);
    VPTQ_TRY(bytes ? put_bpe(k, v, err) : put_spm(k, v, err));
    put_id(k, "tokenizer.ggml.bos_token_id", v->bos, d->bos);
    put_id(k, "tokenizer.ggml.eos_token_id", v->eos, d->eos);
    put_id(k, "tokenizer.ggml.unknown_token_id", v->unk, -1);
    vptq_gguf_put_bool(k, "tokenizer.ggml.add_bos_token", v->add_bos);
    vptq_gguf_put_bool(k, "tokenizer.ggml.add_eos_token", v->add_eos);
    if (v->chat_template)
        vptq_gguf_put_str(k, "tokenizer.chat_template", v->chat_template);
out:
    vptq_arena_release(&arena);
    return st;
}
