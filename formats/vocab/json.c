/* Reads a Hugging Face tokenizer.json: model (vocabulary and merges) and added tokens, with
 * BOS, EOS and chat template from the tokenizer_config.json in the same folder. */
#include <inttypes.h>
#include <string.h>

#include "formats/lfs.h"
#include "formats/vocab/internal.h"

static vptq_status wrong(const vptq_vocab *v, const char *what, const char *expected,
                         vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: %s is not %s", v->source, what, expected);
}

static vptq_status unsupported(const vptq_vocab *v, const char *key, const char *value,
                               vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_UNSUPPORTED, "%s: %s '%.100s' is not supported", v->source,
                     key, value);
}

/* --- pieces --- */

typedef struct sizes {
    size_t entries, bytes;
    json_int_t highest;
} sizes;

static void grow(sizes *s, size_t len, json_int_t id)
{
    s->entries++;
    s->bytes += len;
    if (id > s->highest)
        s->highest = id;
}

static vptq_status measure(const vptq_vocab *v, json_t *vocab, json_t *added, sizes *s,
                           vptq_err *err)
{
    *s = (sizes){.highest = -1};
    for (void *it = json_object_iter(vocab); it; it = json_object_iter_next(vocab, it)) {
        const json_t *id = json_object_iter_value(it);
        if (!json_is_integer(id) || json_integer_value(id) < 0)
            return vptq_fail(err, VPTQ_E_FORMAT, "%s: the id of piece '%.100s' is not a number",
                             v->source, json_object_iter_key(it));
        grow(s, json_object_iter_key_len(it), json_integer_value(id));
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *a = json_array_get(added, i);
        const json_t *text = json_object_get(a, "content"), *id = json_object_get(a, "id");
        if (!json_is_string(text) || !json_is_integer(id) || json_integer_value(id) < 0)
            return vptq_fail(err, VPTQ_E_FORMAT, "%s: added token %zu has no content or no id",
                             v->source, i);
        grow(s, json_string_length(text), json_integer_value(id));
    }
    /* ids may have gaps, but not so many that a small file needs a large table */
    if (s->highest >= (json_int_t)(2 * s->entries + 65536))
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: the id %" JSON_INTEGER_FORMAT
                         " is out of range for a vocabulary of %zu pieces",
                         v->source, s->highest, s->entries);
    return VPTQ_OK;
}

/* Sets the text of `id`; an error if it already has another one. */
static vptq_status set_piece(vptq_vocab *v, vptq_pool *pool, size_t id, const char *text,
                             size_t len, uint8_t type, vptq_err *err)
{
    vptq_piece *p = &v->pieces[id];
    if (p->type == VPTQ_PIECE_UNUSED) {
        if (len > VPTQ_PIECE_MAX)
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: piece %zu has %zu bytes, at most %d are read", v->source, id,
                             len, VPTQ_PIECE_MAX);
        *p = (vptq_piece){vptq_pool_add(pool, text, len), (uint32_t)len, 0, type};
        return VPTQ_OK;
    }
    if (p->len != len || memcmp(p->text, text, len) != 0)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: the id %zu belongs to '%.100s' and '%.100s'",
                         v->source, id, p->text, text);
    p->type = type;
    return VPTQ_OK;
}

static vptq_status read_pieces(vptq_vocab *v, json_t *vocab, json_t *added, vptq_err *err)
{
    sizes s;
    vptq_pool pool;
    VPTQ_CHECK(measure(v, vocab, added, &s, err));
    VPTQ_CHECK(vptq_vocab_pieces(v, (size_t)(s.highest + 1), err));
    VPTQ_CHECK(vptq_pool_init(&pool, &v->arena, s.bytes, s.entries, err));
    for (void *it = json_object_iter(vocab); it; it = json_object_iter_next(vocab, it)) {
        size_t id = (size_t)json_integer_value(json_object_iter_value(it));
        size_t len = json_object_iter_key_len(it);
        const char *text = json_object_iter_key(it);
        if (v->pieces[id].type != VPTQ_PIECE_UNUSED)
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: the id %zu belongs to '%.100s' and '%.100s'", v->source, id,
                             v->pieces[id].text, text);
        VPTQ_CHECK(set_piece(v, &pool, id, text, len, VPTQ_PIECE_NORMAL, err));
    }
    v->added = vptq_arena_alloc(&v->arena, json_array_size(added), sizeof *v->added, err);
    if (!v->added)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *a = json_array_get(added, i);
        const json_t *text = json_object_get(a, "content");
        vptq_added_token *t = &v->added[v->added_count];
        *t = (vptq_added_token){.id = (uint32_t)json_integer_value(json_object_get(a, "id"))};
        VPTQ_CHECK(vptq_json_bool_or(a, v->source, "special", false, &t->special, err));
        VPTQ_CHECK(vptq_json_bool_or(a, v->source, "lstrip", false, &t->lstrip, err));
        VPTQ_CHECK(vptq_json_bool_or(a, v->source, "rstrip", false, &t->rstrip, err));
        VPTQ_CHECK(vptq_json_bool_or(a, v->source, "single_word", false, &t->single_word, err));
        VPTQ_CHECK(
            vptq_json_bool_or(a, v->source, "normalized", !t->special, &t->normalized, err));
        VPTQ_CHECK(set_piece(v, &pool, t->id, json_string_value(text), json_string_length(text),
                             t->special ? VPTQ_PIECE_CONTROL : VPTQ_PIECE_USER, err));
        t->text = v->pieces[t->id].text;
        t->len = v->pieces[t->id].len;
        v->added_count++;
    }
    return VPTQ_OK;
}

/* --- merges --- */

static vptq_status read_merge(vptq_vocab *v, const vptq_strmap *map, size_t i, const json_t *m,
                              vptq_err *err)
{
    if (json_is_array(m) && json_array_size(m) == 2 && json_is_string(json_array_get(m, 0)) &&
        json_is_string(json_array_get(m, 1))) {
        const json_t *left = json_array_get(m, 0), *right = json_array_get(m, 1);
        return vptq_vocab_merge(v, map, i, json_string_value(left), json_string_length(left),
                                json_string_value(right), json_string_length(right), err);
    }
    const char *text = json_is_string(m) ? json_string_value(m) : "";
    const char *space = strchr(text, ' ');
    if (!space || space == text || space[1] == 0 || strchr(space + 1, ' '))
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: merge %zu is not two pieces", v->source, i);
    return vptq_vocab_merge(v, map, i, text, (size_t)(space - text), space + 1,
                            strlen(space + 1), err);
}

static vptq_status read_merges(vptq_vocab *v, const json_t *model, const vptq_strmap *map,
                               vptq_err *err)
{
    const json_t *merges = json_object_get(model, "merges");
    if (!json_is_array(merges))
        return wrong(v, "model.merges", "an array", err);
    size_t n = json_array_size(merges);
    if (n >= UINT32_MAX)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: %zu merges", v->source, n);
    v->merges = vptq_arena_alloc(&v->arena, n, sizeof *v->merges, err);
    if (!v->merges)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        VPTQ_CHECK(read_merge(v, map, i, json_array_get(merges, i), err));
    }
    v->merge_count = (uint32_t)n;
    return VPTQ_OK;
}

/* --- the model --- */

static vptq_status find_token(const vptq_vocab *v, const vptq_strmap *map, const char *key,
                              const char *text, size_t len, int32_t *id, vptq_err *err)
{
    uint32_t found = 0;
    if (!vptq_strmap_get(map, text, len, &found))
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: %s '%.100s' is not a token of the vocabulary",
                         v->source, key, text);
    *id = (int32_t)found;
    return VPTQ_OK;
}

/* Refuses values of model settings that would change the ids and are not supported. */
static vptq_status refuse_settings(const vptq_vocab *v, const json_t *model, vptq_err *err)
{
    static const char *const affixes[2] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++) {
        const json_t *a = json_object_get(model, affixes[i]);
        if (json_is_string(a) && json_string_length(a) > 0)
            return unsupported(v, affixes[i], json_string_value(a), err);
    }
    double dropout = 0;
    VPTQ_CHECK(vptq_json_f64_or(model, v->source, "dropout", 0, &dropout, err));
    if (dropout != 0)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED, "%s: dropout %g is not supported", v->source,
                         dropout);
    return VPTQ_OK;
}

static vptq_status read_model(vptq_vocab *v, const json_t *root, vptq_strmap *map,
                              vptq_err *err)
{
    const json_t *model = json_object_get(root, "model");
    json_t *added = json_object_get(root, "added_tokens");
    const char *type = NULL, *unk = NULL;
    if (!json_is_object(model))
        return wrong(v, "model", "an object", err);
    if (added && !json_is_null(added) && !json_is_array(added))
        return wrong(v, "added_tokens", "an array", err);
    VPTQ_CHECK(vptq_json_str_or(model, v->source, "type", "BPE", &type, err));
    if (strcmp(type, "BPE") != 0)
        return unsupported(v, "the model type", type, err);
    VPTQ_CHECK(refuse_settings(v, model, err));
    json_t *vocab = json_object_get(model, "vocab");
    if (!json_is_object(vocab))
        return wrong(v, "model.vocab", "an object", err);
    VPTQ_CHECK(
        vptq_json_bool_or(model, v->source, "ignore_merges", false, &v->ignore_merges, err));
    VPTQ_CHECK(
        vptq_json_bool_or(model, v->source, "byte_fallback", false, &v->byte_fallback, err));
    VPTQ_CHECK(vptq_json_bool_or(model, v->source, "fuse_unk", false, &v->fuse_unk, err));
    VPTQ_CHECK(vptq_json_str_or(model, v->source, "unk_token", "", &unk, err));
    VPTQ_CHECK(read_pieces(v, vocab, added, err));
    VPTQ_CHECK(vptq_vocab_index(v, map, err));
    VPTQ_CHECK(read_merges(v, model, map, err));
    if (unk[0] != 0) {
        VPTQ_CHECK(find_token(v, map, "unk_token", unk, strlen(unk), &v->unk, err));
        if (v->pieces[v->unk].type == VPTQ_PIECE_NORMAL)
            v->pieces[v->unk].type = VPTQ_PIECE_UNKNOWN;
    }
    if (v->byte_fallback)
        vptq_vocab_mark_bytes(v);
    return VPTQ_OK;
}

/* --- tokenizer_config.json --- */

/* Reads "bos_token" or "eos_token": a string, an object with "content", or null. With `used`
 * the post-processor has already named the token to add, which takes precedence. */
static vptq_status config_token(vptq_vocab *v, const vptq_strmap *map, const json_t *config,
                                const char *key, bool used, int32_t *id, vptq_err *err)
{
    const json_t *t = json_object_get(config, key);
    int32_t named = -1;
    if (json_is_object(t))
        t = json_object_get(t, "content");
    if (!t || json_is_null(t))
        return VPTQ_OK;
    if (!json_is_string(t))
        return wrong(v, key, "a token", err);
    VPTQ_CHECK(
        find_token(v, map, key, json_string_value(t), json_string_length(t), &named, err));
    if (!used)
        *id = named;
    return VPTQ_OK;
}

const char *vptq_chat_template_of(const json_t *value)
{
    size_t i;
    const json_t *item;
    json_array_foreach(value, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name && strcmp(name, "default") == 0)
            return json_string_value(json_object_get(item, "template"));
    }
    return json_string_value(value);
}

static vptq_status apply_config(vptq_vocab *v, const vptq_strmap *map, const json_t *config,
                                vptq_err *err)
{
    VPTQ_CHECK(config_token(v, map, config, "bos_token", v->add_bos, &v->bos, err));
    VPTQ_CHECK(config_token(v, map, config, "eos_token", v->add_eos, &v->eos, err));
    VPTQ_CHECK(
        vptq_json_bool_or(config, v->source, "add_bos_token", v->add_bos, &v->add_bos, err));
    VPTQ_CHECK(
        vptq_json_bool_or(config, v->source, "add_eos_token", v->add_eos, &v->add_eos, err));
    const char *chat = vptq_chat_template_of(json_object_get(config, "chat_template"));
    if (chat) {
        v->chat_template = vptq_arena_strdup(&v->arena, chat, err);
        if (!v->chat_template)
            return VPTQ_E_NOMEM;
    }
    return VPTQ_OK;
}

/* The two texts of a tokenizer, each with its name for messages. */
typedef struct json_texts {
    const char *text, *name;
    size_t len;
    const char *config, *config_name; /* config: NULL if there is none */
    size_t config_len;
} json_texts;

static vptq_status read_config(vptq_vocab *v, const vptq_strmap *map, const json_texts *t,
                               vptq_err *err)
{
    json_t *config = NULL;
    if (!t->config)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_json_parse_reals(t->config, t->config_len, t->config_name, &config, err));
    vptq_status st = VPTQ_OK;
    if (!json_is_object(config))
        st = vptq_fail(err, VPTQ_E_FORMAT, "%s: not an object", t->config_name);
    else if (apply_config(v, map, config, err))
        st = vptq_err_context(err, "%s", t->config_name);
    json_decref(config);
    return st;
}

static vptq_status fill(vptq_vocab *v, const void *source, vptq_err *err)
{
    const json_texts *t = source;
    json_t *root = NULL;
    vptq_strmap map = {0};
    vptq_status st = VPTQ_OK;
    VPTQ_TRY(vptq_json_parse(t->text, t->len, t->name, &root, err));
    if (!json_is_object(root))
        VPTQ_TRY(wrong(v, "the file", "an object", err));
    VPTQ_TRY(read_model(v, root, &map, err));
    VPTQ_TRY(vptq_vocab_json_steps(v, root, err));
    VPTQ_TRY(read_config(v, &map, t, err));
out:
    vptq_strmap_release(&map);
    json_decref(root);
    return st;
}

vptq_status vptq_vocab_parse_json(const char *text, size_t len, const char *config,
                                  size_t config_len, const char *name, vptq_mem *mem,
                                  vptq_vocab *v, vptq_err *err)
{
    const json_texts t = {text, name, len, config, name, config_len};
    return vptq_vocab_make(name, fill, &t, mem, v, err);
}

vptq_status vptq_vocab_read_json(const char *path, vptq_mem *mem, vptq_vocab *v, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char *text = NULL, *config = NULL, name[4096];
    size_t len = 0, config_len = 0;
    VPTQ_TRY(vptq_file_read(path, VPTQ_TOKENIZER_LIMIT, mem, &text, &len, err));
    VPTQ_TRY(vptq_lfs_check(path, text, len, "tokenizer", err));
    VPTQ_TRY(vptq_path_beside(name, sizeof name, path, "tokenizer_config.json", err));
    if (vptq_path_exists(name))
        VPTQ_TRY(vptq_file_read(name, VPTQ_TOKENIZER_LIMIT, mem, &config, &config_len, err));
    const json_texts t = {text, path, len, config, name, config_len};
    VPTQ_TRY(vptq_vocab_make(path, fill, &t, mem, v, err));
out:
    vptq_mem_free(mem, config);
    vptq_mem_free(mem, text);
    return st;
}
