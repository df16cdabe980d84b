/* Writes a vocabulary as tokenizer.json and tokenizer_config.json. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "formats/vocab/internal.h"

static vptq_status no_memory(const vptq_vocab *v, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_NOMEM, "%s: out of memory while writing the tokenizer",
                     v->source);
}

/* Appends and takes over `value`.  On failure, also an earlier one, *array becomes NULL. */
static void append(json_t **array, json_t *value)
{
    if (json_array_append_new(*array, value)) {
        json_decref(*array);
        *array = NULL;
    }
}

static bool put(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0;
}

/* --- merges --- */

static int by_order(const void *a, const void *b)
{
    const vptq_vocab_join *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->result != y->result)
        return x->result < y->result ? -1 : 1;
    if (x->left != y->left)
        return x->left < y->left ? -1 : 1;
    return x->right < y->right ? -1 : x->right > y->right;
}

size_t vptq_vocab_joins(const vptq_vocab *v, const vptq_strmap *map, vptq_vocab_join *list)
{
    size_t n = 0;
    for (uint32_t i = 0; i < v->count; i++) {
        const vptq_piece *p = &v->pieces[i];
        if (p->type != VPTQ_PIECE_NORMAL)
            continue;
        for (uint32_t k = 1; k < p->len; k++) {
            uint32_t left = 0, right = 0;
            if (((unsigned char)p->text[k] & 0xC0) == 0x80 ||
                !vptq_strmap_get(map, p->text, k, &left) ||
                !vptq_strmap_get(map, p->text + k, p->len - k, &right) ||
                v->pieces[left].type != VPTQ_PIECE_NORMAL ||
                v->pieces[right].type != VPTQ_PIECE_NORMAL)
                continue;
            if (list)
                list[n] = (vptq_vocab_join){p->score, i, left, right};
            n++;
        }
    }
    return n;
}

/* Lists the merges of a vocabulary that merges by score, in an array of `v->arena.mem`. */
static vptq_status implied_merges(const vptq_vocab *v, vptq_vocab_join **out, size_t *count,
                                  vptq_err *err)
{
    vptq_strmap map = {0};
    VPTQ_CHECK(vptq_vocab_index(v, &map, err));
    *count = vptq_vocab_joins(v, &map, NULL);
    *out = vptq_mem_alloc(v->arena.mem, *count, sizeof **out, err);
    if (*out) {
        (void)vptq_vocab_joins(v, &map, *out);
        if (*count > 0)
            qsort(*out, *count, sizeof **out, by_order);
    }
    vptq_strmap_release(&map);
    return *out ? VPTQ_OK : VPTQ_E_NOMEM;
}

static bool has_space(const vptq_vocab *v)
{
    for (uint32_t i = 0; i < v->count; i++) {
        if (v->pieces[i].type == VPTQ_PIECE_NORMAL &&
            memchr(v->pieces[i].text, ' ', v->pieces[i].len))
            return true;
    }
    return false;
}

/* Returns "a b", which all versions of the format know, or ["a", "b"] if `pair`. */
static json_t *merge_json(const vptq_vocab *v, uint32_t left, uint32_t right, bool pair)
{
    const vptq_piece *a = &v->pieces[left], *b = &v->pieces[right];
    if (pair)
        return json_pack("[s%s%]", a->text, (size_t)a->len, b->text, (size_t)b->len);
    char text[2 * VPTQ_PIECE_MAX + 1];
    memcpy(text, a->text, a->len);
    text[a->len] = ' ';
    memcpy(text + a->len + 1, b->text, b->len);
    return json_stringn(text, (size_t)a->len + 1 + b->len);
}

static vptq_status merges_json(const vptq_vocab *v, json_t **out, vptq_err *err)
{
    vptq_vocab_join *list = NULL;
    size_t count = v->merge_count;
    bool pair = has_space(v);
    if (v->by_score)
        VPTQ_CHECK(implied_merges(v, &list, &count, err));
    *out = json_array();
    for (size_t i = 0; *out && i < count; i++)
        append(out, list ? merge_json(v, list[i].left, list[i].right, pair)
                         : merge_json(v, v->merges[i].left, v->merges[i].right, pair));
    vptq_mem_free(v->arena.mem, list);
    return *out ? VPTQ_OK : no_memory(v, err);
}

/* --- pieces --- */

/* Maps texts to ids; an added token under the text by which it is recognized. */
static vptq_status vocab_json(const vptq_vocab *v, json_t **out, vptq_err *err)
{
    json_t *vocab = json_object();
    const char **names = vptq_mem_alloc(v->arena.mem, v->count, sizeof *names, err);
    vptq_status st = !names ? VPTQ_E_NOMEM : vocab ? VPTQ_OK : no_memory(v, err);
    for (uint32_t i = 0; !st && i < v->count; i++)
        names[i] = v->pieces[i].text;
    for (uint32_t i = 0; !st && i < v->added_count; i++)
        names[v->added[i].id] = v->added[i].text;
    for (uint32_t i = 0; !st && i < v->count; i++) {
        if (v->pieces[i].len == 0)
            continue;
        if (names[i] == v->pieces[i].text && strlen(names[i]) != v->pieces[i].len)
            st = vptq_fail(err, VPTQ_E_UNSUPPORTED,
                           "%s: piece %" PRIu32
                           " contains a zero byte, which a JSON key cannot hold",
                           v->source, i);
        else if (!put(vocab, names[i], json_integer((json_int_t)i)))
            st = no_memory(v, err);
    }
    vptq_mem_free(v->arena.mem, names);
    if (st)
        json_decref(vocab);
    else
        *out = vocab;
    return st;
}

static json_t *added_json(const vptq_vocab *v)
{
    json_t *array = json_array();
    for (uint32_t i = 0; array && i < v->added_count; i++) {
        const vptq_added_token *a = &v->added[i];
        append(&array,
               json_pack("{s:I, s:s%, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)a->id,
                         "content", a->text, (size_t)a->len, "single_word", a->single_word,
                         "lstrip", a->lstrip, "rstrip", a->rstrip, "normalized", a->normalized,
                         "special", a->special));
    }
    return array;
}

/* --- steps --- */

/* Returns null, the only member, or a Sequence; takes over the array. */
static json_t *sequence(json_t *members, const char *list)
{
    json_t *out = NULL;
    if (!members)
        return NULL;
    if (json_array_size(members) == 0)
        out = json_null();
    else if (json_array_size(members) == 1)
        out = json_incref(json_array_get(members, 0));
    else
        return json_pack("{s:s, s:o}", "type", "Sequence", list, members);
    json_decref(members);
    return out;
}

static json_t *norm_json(const vptq_norm *n)
{
    switch (n->kind) {
    case VPTQ_NORM_NFC:
    case VPTQ_NORM_NFD:
    case VPTQ_NORM_NFKC:
    case VPTQ_NORM_NFKD:
        return json_pack("{s:s}", "type", vptq_norm_forms[n->kind]);
    case VPTQ_NORM_PREPEND:
        return json_pack("{s:s, s:s}", "type", "Prepend", "prepend", n->content);
    case VPTQ_NORM_REPLACE:
    case VPTQ_NORM_REGEX:
        return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern",
                         n->kind == VPTQ_NORM_REGEX ? "Regex" : "String", n->pattern, "content",
                         n->content);
    case VPTQ_NORM_STRIP:
        return json_pack("{s:s, s:b, s:b}", "type", "Strip", "strip_left", n->left,
                         "strip_right", n->right);
    case VPTQ_NORM_LOWER:
        return json_pack("{s:s}", "type", "Lowercase");
    case VPTQ_NORM_UNMARK:
        return json_pack("{s:s}", "type", "StripAccents");
    }
    return NULL;
}

static json_t *normalizer_json(const vptq_vocab *v)
{
    json_t *members = json_array();
    for (uint32_t i = 0; i < v->norm_count; i++)
        append(&members, norm_json(&v->norms[i]));
    return sequence(members, "normalizers");
}

static json_t *split_json(const vptq_split *s)
{
    switch (s->kind) {
    case VPTQ_SPLIT_ISOLATED:
    case VPTQ_SPLIT_REMOVED:
    case VPTQ_SPLIT_CONTIGUOUS:
    case VPTQ_SPLIT_TO_LEFT:
    case VPTQ_SPLIT_TO_RIGHT:
        return json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex",
                         s->pattern, "behavior", vptq_split_behaviors[s->kind], "invert",
                         s->invert);
    case VPTQ_SPLIT_DIGITS:
        return json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", s->individual);
    case VPTQ_SPLIT_METASPACE:
        return json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace", "replacement", VPTQ_META,
                         "prepend_scheme", vptq_prepend_schemes[s->prepend], "split",
                         s->individual);
    case VPTQ_SPLIT_PREFIX:
        break; /* part of ByteLevel */
    }
    return NULL;
}

static json_t *byte_level_json(bool prefix, bool regex)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", prefix,
                     "trim_offsets", 1, "use_regex", regex);
}

/* The format can add a leading space only in its last step, before the GPT-2 pattern. */
static vptq_status pre_tokenizer_json(const vptq_vocab *v, json_t **out, vptq_err *err)
{
    uint32_t n = v->split_count;
    bool bytes = v->kind == VPTQ_VOCAB_BYTE_BPE;
    bool gpt2 = n > 0 && bytes && v->splits[n - 1].kind == VPTQ_SPLIT_ISOLATED &&
                !v->splits[n - 1].invert &&
                strcmp(v->splits[n - 1].pattern, vptq_pattern_gpt2()) == 0;
    uint32_t end = gpt2 ? n - 1 : n;
    bool prefix = bytes && end > 0 && v->splits[end - 1].kind == VPTQ_SPLIT_PREFIX;
    if (prefix)
        end--;
    json_t *members = json_array();
    for (uint32_t i = 0; i < end; i++) {
        if (v->splits[i].kind == VPTQ_SPLIT_PREFIX) {
            json_decref(members);
            return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                             "%s: tokenizer.json cannot express a space added before words "
                             "ahead of other steps",
                             v->source);
        }
        append(&members, split_json(&v->splits[i]));
    }
    if (bytes)
        append(&members, byte_level_json(prefix, gpt2));
    *out = sequence(members, "pretokenizers");
    return *out ? VPTQ_OK : no_memory(v, err);
}

static json_t *decoder_json(const vptq_vocab *v)
{
    if (v->kind == VPTQ_VOCAB_BYTE_BPE)
        return byte_level_json(true, true);
    json_t *members =
        v->strip_marks ? json_pack("[{s:s, s:s, s:s, s:b}, {s:s}, {s:s}]", "type", "Metaspace",
                                   "replacement", VPTQ_META, "prepend_scheme", "always",
                                   "split", 1, "type", "ByteFallback", "type", "Fuse")
                       : json_pack("[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]", "type", "Replace",
                                   "pattern", "String", VPTQ_META, "content", " ", "type",
                                   "ByteFallback", "type", "Fuse");
    if (v->strip_start)
        append(&members, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content", " ",
                                   "start", 1, "stop", 0));
    return sequence(members, "decoders");
}

/* Returns the text that names a special id in tokenizer_config.json. */
static const char *special_text(const vptq_vocab *v, int32_t id)
{
    for (uint32_t i = 0; i < v->added_count; i++) {
        if ((int32_t)v->added[i].id == id)
            return v->added[i].text;
    }
    return id >= 0 ? v->pieces[id].text : NULL;
}

/* Appends a special token; *single becomes NULL on failure. */
static void add_template_token(const vptq_vocab *v, json_t **single, json_t *specials,
                               int32_t id)
{
    const char *text = special_text(v, id);
    json_t *token = json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", text, "type_id", 0);
    if (!put(specials, text,
             json_pack("{s:s, s:[i], s:[s]}", "id", text, "ids", (int)id, "tokens", text))) {
        json_decref(token);
        token = NULL;
    }
    append(single, token);
}

static json_t *post_processor_json(const vptq_vocab *v)
{
    if (!v->add_bos && !v->add_eos)
        return json_null();
    json_t *single = json_array(), *specials = json_object();
    if (v->add_bos)
        add_template_token(v, &single, specials, v->bos);
    append(&single, json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A", "type_id", 0));
    if (v->add_eos)
        add_template_token(v, &single, specials, v->eos);
    json_t *pair = json_deep_copy(single);
    append(&pair, json_pack("{s:{s:s, s:i}}", "Sequence", "id", "B", "type_id", 1));
    /* "o" takes over the references even if one is NULL, which fails */
    return json_pack("{s:s, s:o, s:o, s:o}", "type", "TemplateProcessing", "single", single,
                     "pair", pair, "special_tokens", specials);
}

/* --- the files --- */

static vptq_status tokenizer_json(const vptq_vocab *v, json_t **out, vptq_err *err)
{
    json_t *vocab = NULL, *merges = NULL, *pre = NULL;
    vptq_status st = VPTQ_OK;
    VPTQ_TRY(vocab_json(v, &vocab, err));
    VPTQ_TRY(merges_json(v, &merges, err));
    VPTQ_TRY(pre_tokenizer_json(v, &pre, err));
    json_t *model = json_pack("{s:s, s:n, s:s?, s:n, s:n, s:b, s:b, s:b, s:O, s:O}", "type",
                              "BPE", "dropout", "unk_token", special_text(v, v->unk),
                              "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                              v->fuse_unk, "byte_fallback", v->byte_fallback, "ignore_merges",
                              v->ignore_merges, "vocab", vocab, "merges", merges);
    /* "o" takes over the reference even if packing fails */
    *out = json_pack("{s:s, s:n, s:n, s:o, s:o, s:O, s:o, s:o, s:o}", "version", "1.0",
                     "truncation", "padding", "added_tokens", added_json(v), "normalizer",
                     normalizer_json(v), "pre_tokenizer", pre, "post_processor",
                     post_processor_json(v), "decoder", decoder_json(v), "model", model);
    if (!*out)
        st = no_memory(v, err);
out:
    json_decref(vocab);
    json_decref(merges);
    json_decref(pre);
    return st;
}

static json_t *config_json(const vptq_vocab *v)
{
    json_t *config = json_pack("{s:s, s:b, s:s?, s:s?, s:s?, s:b, s:b}", "tokenizer_class",
                               "PreTrainedTokenizerFast", "clean_up_tokenization_spaces", 0,
                               "bos_token", special_text(v, v->bos), "eos_token",
                               special_text(v, v->eos), "unk_token", special_text(v, v->unk),
                               "add_bos_token", v->add_bos, "add_eos_token", v->add_eos);
    if (config && v->chat_template &&
        !put(config, "chat_template", json_string(v->chat_template))) {
        json_decref(config);
        return NULL;
    }
    return config;
}

vptq_status vptq_vocab_write_hf(const vptq_vocab *v, const char *dir, vptq_err *err)
{
    char path[4096];
    json_t *tokenizer = NULL, *config = NULL;
    vptq_status st = VPTQ_OK;
    VPTQ_TRY(tokenizer_json(v, &tokenizer, err));
    config = config_json(v);
    if (!config)
        VPTQ_TRY(no_memory(v, err));
    VPTQ_TRY(vptq_path_join(path, sizeof path, dir, "tokenizer.json", err));
    VPTQ_TRY(vptq_json_save(path, tokenizer, err));
    VPTQ_TRY(vptq_path_join(path, sizeof path, dir, "tokenizer_config.json", err));
    VPTQ_TRY(vptq_json_save(path, config, err));
out:
    json_decref(tokenizer);
    json_decref(config);
    return st;
}
