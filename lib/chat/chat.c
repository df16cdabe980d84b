#include "lib/chat/chat.h"

#include <math.h>
#include <string.h>

#include "lib/base/utf8.h"
#include "lib/chat/template.h"

/* ---- ends ---- */

static vptq_status add_end(const vptq_model *m, int64_t id, vptq_ids *ends, vptq_err *err)
{
    if (id < 0 || id >= (int64_t)m->desc->vocab)
        return VPTQ_OK;
    for (size_t i = 0; i < ends->count; i++)
        if (ends->data[i] == id)
            return VPTQ_OK;
    const int32_t small = (int32_t)id;
    return vptq_ids_add(ends, &small, 1, err);
}

/* A parse as reals makes ids reals; -1 for what is none. */
static int64_t id_of(const json_t *number)
{
    const double x = json_number_value(number);
    return x >= 0 && x <= INT32_MAX && x == floor(x) ? (int64_t)x : -1;
}

/* "eos_token_id": a number or a list of them. */
static vptq_status add_ends_of(const vptq_model *m, const json_t *config, vptq_ids *ends,
                               vptq_err *err)
{
    const json_t *value = json_object_get(config, "eos_token_id"), *item;
    size_t i;
    if (json_is_number(value))
        VPTQ_CHECK(add_end(m, id_of(value), ends, err));
    json_array_foreach(value, i, item)
    {
        if (json_is_number(item))
            VPTQ_CHECK(add_end(m, id_of(item), ends, err));
    }
    return VPTQ_OK;
}

static vptq_status add_gguf_ends(const vptq_model *m, const vptq_gguf *g, vptq_ids *ends,
                                 vptq_err *err)
{
    static const char *const keys[] = {"tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    for (int i = 0; i < 2; i++) {
        uint64_t id = 0;
        if (!vptq_gguf_find(g, keys[i]))
            continue;
        VPTQ_CHECK(vptq_gguf_u64_or(g, keys[i], 0, &id, err));
        VPTQ_CHECK(add_end(m, id > INT32_MAX ? -1 : (int64_t)id, ends, err));
    }
    return VPTQ_OK;
}

/* A JSON file that came with the model; *json is NULL where there is none. */
static vptq_status companion_json(const vptq_model *m, const char *name, bool tokenizer,
                                  vptq_arena *arena, json_t **json, vptq_err *err)
{
    vptq_text text;
    *json = NULL;
    vptq_status st = vptq_checkpoint_companion(&m->ckpt, name, tokenizer, VPTQ_TOKENIZER_LIMIT,
                                               arena, &text, err);
    if (!st && text.data)
        st = vptq_json_parse_reals(text.data, text.len, name, json, err);
    return st;
}

vptq_status vptq_model_ends(const vptq_ctx *ctx, const vptq_model *m, vptq_ids *ends,
                            vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    json_t *generation = NULL;
    const vptq_checkpoint *origin = m->ckpt.base ? m->ckpt.base : &m->ckpt;
    vptq_arena_init(&arena, ctx->mem);
    VPTQ_TRY(add_end(m, m->desc->eos, ends, err));
    if (m->tokenizer)
        VPTQ_TRY(add_end(m, m->vocab.eos, ends, err));
    VPTQ_TRY(add_ends_of(m, origin->config, ends, err));
    VPTQ_TRY(companion_json(m, "generation_config.json", false, &arena, &generation, err));
    VPTQ_TRY(add_ends_of(m, generation, ends, err));
    if (origin->gguf && m->ckpt.tokenizer == origin->tokenizer)
        VPTQ_TRY(add_gguf_ends(m, origin->gguf, ends, err));
out:
    json_decref(generation);
    vptq_arena_release(&arena);
    return st;
}

/* ---- the template ---- */

typedef struct source {
    const char *text, *name; /* text NULL: none found */
    size_t len;
} source;

static void take_text(source *s, const char *text, const char *name)
{
    *s = (source){text, name, text ? strlen(text) : 0};
}

static vptq_status read_template(const vptq_ctx *ctx, const char *path, vptq_arena *arena,
                                 source *s, vptq_err *err)
{
    char *data = NULL;
    vptq_status st = vptq_file_read(path, VPTQ_TEMPLATE_LIMIT, ctx->mem, &data, &s->len, err);
    if (st)
        return st;
    s->name = path;
    s->text = vptq_arena_strndup(arena, data, s->len, err);
    vptq_mem_free(ctx->mem, data);
    return s->text ? VPTQ_OK : VPTQ_E_NOMEM;
}

/* `config`: tokenizer_config.json, or NULL. */
static vptq_status find_template(const vptq_ctx *ctx, const vptq_model *m, const char *file,
                                 const json_t *config, vptq_arena *arena, source *s,
                                 vptq_err *err)
{
    static const char jinja[] = "chat_template.jinja", other[] = "chat_template.json";
    vptq_status st = VPTQ_OK;
    json_t *json = NULL;
    vptq_text text;
    if (file)
        return read_template(ctx, file, arena, s, err);
    VPTQ_TRY(vptq_checkpoint_companion(&m->ckpt, jinja, true, VPTQ_TEMPLATE_LIMIT, arena, &text,
                                       err));
    s->text = text.data;
    s->len = text.len;
    s->name = jinja;
    if (!s->text)
        take_text(s, vptq_chat_template_of(json_object_get(config, "chat_template")),
                  "the chat template of tokenizer_config.json");
    if (!s->text) {
        VPTQ_TRY(companion_json(m, other, true, arena, &json, err));
        const char *found = vptq_chat_template_of(json_object_get(json, "chat_template"));
        take_text(s, found ? vptq_arena_strdup(arena, found, err) : NULL, other);
        st = found && !s->text ? VPTQ_E_NOMEM : VPTQ_OK;
    }
    if (!st && !s->text)
        take_text(s, m->vocab.chat_template, "tokenizer.chat_template");
    if (!st && !s->text)
        st = vptq_fail(err, VPTQ_E_FORMAT,
                       "%s: the model has no chat template; give --chat-template FILE",
                       m->ckpt.path);
out:
    json_decref(json);
    return st;
}

/* ---- variables ---- */

static vptq_status no_memory(vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_NOMEM, "out of memory for a chat");
}

/* Takes `value` over. */
static vptq_status set(json_t *object, const char *key, json_t *value, vptq_err *err)
{
    return value && json_object_set_new(object, key, value) == 0 ? VPTQ_OK : no_memory(err);
}

/* The texts of special tokens, from tokenizer_config.json (a string, or an object with
 * "content") or, without one, by their ids. */
static vptq_status set_tokens(const vptq_model *m, const json_t *config, json_t *variables,
                              vptq_err *err)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                        "sep_token", "cls_token", "mask_token"};
    const vptq_vocab *v = &m->vocab;
    const int32_t ids[] = {v->bos, v->eos, v->unk};
    vptq_status st = VPTQ_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *token = json_object_get(config, names[i]);
        if (json_is_object(token))
            token = json_object_get(token, "content");
        if (json_is_string(token))
            st = set(variables, names[i], json_string(json_string_value(token)), err);
        else if (!config && i < 3 && ids[i] >= 0)
            st = set(variables, names[i],
                     json_stringn(v->pieces[ids[i]].text, v->pieces[ids[i]].len), err);
        if (st)
            break;
    }
    return st;
}

static vptq_status set_args(const vptq_chat_options *o, json_t *variables, vptq_err *err)
{
    for (size_t i = 0; i < o->arg_count; i++) {
        const char *equals = strchr(o->args[i], '=');
        char name[64];
        json_t *value;
        size_t len = equals ? (size_t)(equals - o->args[i]) : 0;
        if (len == 0 || len >= sizeof name)
            return vptq_fail(err, VPTQ_E_ARG, "'%.80s' is no NAME=JSON for the chat template",
                             o->args[i]);
        memcpy(name, o->args[i], len);
        name[len] = 0;
        if (strcmp(name, "messages") == 0 || strcmp(name, "add_generation_prompt") == 0)
            return vptq_fail(err, VPTQ_E_ARG, "'%.80s': '%s' is not for an argument to set",
                             o->args[i], name);
        if (vptq_json_parse(equals + 1, strlen(equals + 1), name, &value, err))
            return vptq_fail(err, VPTQ_E_ARG,
                             "'%.80s': what stands behind '=' is no JSON (a text is \"text\")",
                             o->args[i]);
        vptq_status st = set(variables, name, value, err);
        if (st)
            return st;
    }
    return VPTQ_OK;
}

static vptq_status add_message(json_t *messages, const char *role, const char *content,
                               bool first, vptq_err *err)
{
    if (vptq_utf8_valid_prefix(content, strlen(content)) < strlen(content))
        return vptq_fail(err, VPTQ_E_ARG, "the %s's message is not valid UTF-8", role);
    json_t *m = json_pack("{s:s, s:s}", "role", role, "content", content);
    int bad = !m || (first ? json_array_insert_new(messages, 0, m)
                           : json_array_append_new(messages, m));
    return bad ? no_memory(err) : VPTQ_OK;
}

/* The file's list; other variables of an object go into `variables`. */
static vptq_status read_messages(const char *path, json_t *variables, json_t **messages,
                                 vptq_err *err)
{
    enum { LIMIT = 64 << 20 };
    json_t *file = NULL;
    const json_t *item;
    size_t i;
    vptq_status st = vptq_json_load(path, LIMIT, &file, err);
    if (st)
        return st;
    json_t *list = json_is_object(file) ? json_object_get(file, "messages") : file;
    if (!json_is_array(list))
        st = vptq_fail(err, VPTQ_E_FORMAT,
                       "%s: expected a list of messages, or an object with such \"messages\"",
                       path);
    json_array_foreach(list, i, item)
    {
        if (!st && !json_is_string(json_object_get(item, "role")))
            st = vptq_fail(err, VPTQ_E_FORMAT, "%s: message %zu has no \"role\"", path, i);
    }
    if (!st && json_is_object(file) && json_object_update(variables, file))
        st = no_memory(err);
    if (!st)
        *messages = json_incref(list);
    json_decref(file);
    return st;
}

static vptq_status collect_messages(const vptq_chat_options *o, json_t *variables,
                                    json_t **messages, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    if (o->messages)
        VPTQ_TRY(read_messages(o->messages, variables, messages, err));
    else if (!(*messages = json_array()))
        VPTQ_TRY(no_memory(err));
    const char *first =
        json_string_value(json_object_get(json_array_get(*messages, 0), "role"));
    if (o->system && first && strcmp(first, "system") == 0)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_ARG, "%s: begins with a system message, beside --system",
                           o->messages));
    if (o->system)
        VPTQ_TRY(add_message(*messages, "system", o->system, true, err));
    if (o->user)
        VPTQ_TRY(add_message(*messages, "user", o->user, false, err));
    if (json_array_size(*messages) == 0)
        st = vptq_fail(err, VPTQ_E_ARG, "a chat without a message");
out:
    return st;
}

/* ---- rendering ---- */

typedef struct chat {
    const vptq_ctx *ctx;
    const vptq_model *m;
    const char *date;
    vptq_template *template;
    json_t *variables;
} chat;

/* With `messages` (taken over) in place. */
static vptq_status render(const chat *c, json_t *messages, bool reply, vptq_buf *out,
                          vptq_err *err)
{
    vptq_status st = set(c->variables, "messages", messages, err);
    if (!st)
        st = set(c->variables, "add_generation_prompt", json_boolean(reply), err);
    if (!st)
        st = vptq_template_render(c->template, &(vptq_template_input){c->variables, c->date},
                                  out, err);
    return st;
}

static bool is_special(const vptq_vocab *v, int32_t id)
{
    for (uint32_t i = 0; i < v->added_count; i++)
        if (v->added[i].special && (int32_t)v->added[i].id == id)
            return true;
    return false;
}

/* The special token behind a reply, if there is one: a chat with a reply is rendered and looked
 * at.  A template that refuses that chat has none. */
static vptq_status find_turn_end(const chat *c, vptq_ids *ends, vptq_err *err)
{
    static const char mark[] = "REPLY";
    vptq_status st = VPTQ_OK;
    vptq_err refused;
    vptq_buf text;
    vptq_ids ids;
    vptq_buf_init(&text, c->ctx->mem);
    vptq_ids_init(&ids, c->ctx->mem);
    json_t *messages = json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", "user", "content", "Q",
                                 "role", "assistant", "content", mark);
    st = render(c, messages, false, &text, &refused);
    if (st) {
        vptq_log(c->ctx, VPTQ_LOG_MORE, "no end of a turn is known: %s", refused.text);
        st = st == VPTQ_E_NOMEM ? vptq_fail(err, st, "%s", refused.text) : VPTQ_OK;
        goto out;
    }
    const char *tail = NULL;
    for (const char *at = text.data; (at = strstr(at, mark)); at++)
        tail = at + strlen(mark);
    if (!tail)
        goto out;
    tail += strspn(tail, " \n");
    VPTQ_TRY(vptq_tokenizer_encode(c->m->tokenizer, tail, strlen(tail), VPTQ_ENCODE_SPECIAL,
                                   &ids, err));
    if (ids.count > 0 && is_special(&c->m->vocab, ids.data[0]))
        st = add_end(c->m, ids.data[0], ends, err);
out:
    vptq_ids_release(&ids);
    vptq_buf_release(&text);
    return st;
}

vptq_status vptq_chat_prompt(const vptq_ctx *ctx, const vptq_model *m,
                             const vptq_chat_options *o, vptq_buf *prompt, vptq_ids *ends,
                             vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    source s = {NULL, NULL, 0};
    json_t *config = NULL, *messages = NULL;
    chat c = {.ctx = ctx, .m = m, .date = o->date, .variables = json_object()};
    vptq_arena_init(&arena, ctx->mem);
    if (!c.variables)
        VPTQ_TRY(no_memory(err));
    if (!m->tokenizer)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_ARG, "%s: a chat needs a tokenizer", m->ckpt.path));
    VPTQ_TRY(companion_json(m, "tokenizer_config.json", true, &arena, &config, err));
    VPTQ_TRY(find_template(ctx, m, o->template_file, config, &arena, &s, err));
    VPTQ_TRY(vptq_template_parse(s.text, s.len, s.name, ctx->mem, &c.template, err));
    VPTQ_TRY(set(c.variables, "tools", json_null(), err));
    VPTQ_TRY(set(c.variables, "documents", json_null(), err));
    VPTQ_TRY(set_tokens(m, config, c.variables, err));
    VPTQ_TRY(collect_messages(o, c.variables, &messages, err));
    VPTQ_TRY(set_args(o, c.variables, err));
    VPTQ_TRY(render(&c, json_incref(messages), true, prompt, err));
    if (ends)
        st = find_turn_end(&c, ends, err);
out:
    vptq_template_free(c.template);
    json_decref(messages);
    json_decref(config);
    json_decref(c.variables);
    vptq_arena_release(&arena);
    return st;
}
