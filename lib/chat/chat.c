/* Chats: finds the template of a model, renders its prompt, and finds the token that ends a
 * reply. */
#include "lib/chat/chat.h"

#include <string.h>

#include "formats/text_file.h"
#include "lib/base/utf8.h"
#include "lib/chat/template.h"

/* ---- the template ---- */

typedef struct source {
    const char *text, *name; /* text: NULL until one is found */
    size_t len;
} source;

static vptq_status read_template(const vptq_ctx *ctx, const char *path, vptq_arena *arena,
                                 source *s, vptq_err *err)
{
    vptq_text_file t;
    VPTQ_CHECK(vptq_text_file_open(ctx, path, VPTQ_TEXT_UTF8, VPTQ_TEMPLATE_LIMIT, &t, err));
    *s = (source){vptq_arena_strndup(arena, t.data, t.size, err), t.name, t.size};
    vptq_text_file_close(&t);
    return s->text ? VPTQ_OK : VPTQ_E_NOMEM;
}

/* Takes a text that may be NULL; it must live as long as the arena. */
static void take_text(source *s, const char *text, const char *name)
{
    if (!s->text)
        *s = (source){text, name, text ? strlen(text) : 0};
}

/* In the order of chat.h; `config`: tokenizer_config.json, or NULL; *json keeps the text. */
static vptq_status find_template(const vptq_model *m, const json_t *config, vptq_arena *arena,
                                 json_t **json, source *s, vptq_err *err)
{
    static const char jinja[] = "chat_template.jinja", other[] = "chat_template.json";
    vptq_text text;
    VPTQ_CHECK(vptq_checkpoint_companion(&m->ckpt, jinja, true, VPTQ_TEMPLATE_LIMIT, arena,
                                         &text, err));
    *s = (source){text.data, jinja, text.len};
    take_text(s, vptq_chat_template_of(json_object_get(config, "chat_template")),
              "the chat template of tokenizer_config.json");
    if (!s->text)
        VPTQ_CHECK(vptq_model_companion_json(m, other, true, arena, json, err));
    take_text(s, vptq_chat_template_of(json_object_get(*json, "chat_template")), other);
    take_text(s, m->vocab.chat_template, "tokenizer.chat_template");
    return s->text ? VPTQ_OK
                   : vptq_fail(err, VPTQ_E_FORMAT,
                               "%s: the model has no chat template; pass --chat-template FILE",
                               m->ckpt.path);
}

/* ---- variables ---- */

static vptq_status no_memory(vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_NOMEM, "out of memory for a chat");
}

/* Takes ownership of `value`. */
static vptq_status set(json_t *object, const char *key, json_t *value, vptq_err *err)
{
    return value && json_object_set_new(object, key, value) == 0 ? VPTQ_OK : no_memory(err);
}

/* The special tokens by name: from tokenizer_config.json (a string, or an object with
 * "content"), or without that file by their ids. */
static vptq_status set_tokens(const vptq_model *m, const json_t *config, json_t *variables,
                              vptq_err *err)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                        "sep_token", "cls_token", "mask_token"};
    const vptq_vocab *v = &m->vocab;
    const int32_t ids[] = {v->bos, v->eos, v->unk};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *token = json_object_get(config, names[i]);
        if (json_is_object(token))
            token = json_object_get(token, "content");
        if (json_is_string(token))
            VPTQ_CHECK(set(variables, names[i], json_string(json_string_value(token)), err));
        else if (!config && i < 3 && ids[i] >= 0)
            VPTQ_CHECK(set(variables, names[i],
                           json_stringn(v->pieces[ids[i]].text, v->pieces[ids[i]].len), err));
    }
    return VPTQ_OK;
}

static vptq_status set_args(const vptq_chat_options *o, json_t *variables, vptq_err *err)
{
    for (size_t i = 0; i < o->arg_count; i++) {
        const char *arg = o->args[i], *equals = strchr(arg, '=');
        size_t len = equals ? (size_t)(equals - arg) : 0;
        char name[64] = "";
        json_t *value;
        if (len == 0 || len >= sizeof name)
            return vptq_fail(err, VPTQ_E_ARG, "'%.80s': expected NAME=JSON", arg);
        memcpy(name, arg, len);
        if (strcmp(name, "messages") == 0 || strcmp(name, "add_generation_prompt") == 0)
            return vptq_fail(err, VPTQ_E_ARG, "'%.80s': '%s' cannot be set", arg, name);
        if (vptq_json_parse(equals + 1, strlen(equals + 1), name, &value, err))
            return vptq_fail(err, VPTQ_E_ARG,
                             "'%.80s': the value is not valid JSON (a text needs quotes)", arg);
        VPTQ_CHECK(set(variables, name, value, err));
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

/* The list of messages of a file; other members of an object become variables. */
static vptq_status read_messages(const vptq_ctx *ctx, const char *path, json_t *variables,
                                 json_t **messages, vptq_err *err)
{
    enum { LIMIT = 64 << 20 };
    json_t *file = NULL;
    const json_t *item;
    size_t i;
    VPTQ_CHECK(vptq_json_read(ctx, path, LIMIT, &file, err));
    vptq_status st = VPTQ_OK;
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

/* *messages is the caller's, also after a failure. */
static vptq_status collect_messages(const vptq_ctx *ctx, const vptq_chat_options *o,
                                    json_t *variables, json_t **messages, vptq_err *err)
{
    if (o->messages)
        VPTQ_CHECK(read_messages(ctx, o->messages, variables, messages, err));
    else if (!(*messages = json_array()))
        return no_memory(err);
    const char *first =
        json_string_value(json_object_get(json_array_get(*messages, 0), "role"));
    if (o->system && first && strcmp(first, "system") == 0)
        return vptq_fail(err, VPTQ_E_ARG, "%s: begins with a system message; drop --system",
                         o->messages);
    if (o->system)
        VPTQ_CHECK(add_message(*messages, "system", o->system, true, err));
    if (o->user)
        VPTQ_CHECK(add_message(*messages, "user", o->user, false, err));
    return json_array_size(*messages) > 0
               ? VPTQ_OK
               : vptq_fail(err, VPTQ_E_ARG, "the chat has no messages");
}

/* ---- rendering ---- */

typedef struct chat {
    const vptq_ctx *ctx;
    const vptq_model *m;
    const char *date;
    vptq_template *template;
    json_t *variables;
} chat;

/* Takes ownership of `messages`. */
static vptq_status render(const chat *c, json_t *messages, bool reply, vptq_buf *out,
                          vptq_err *err)
{
    VPTQ_CHECK(set(c->variables, "messages", messages, err));
    VPTQ_CHECK(set(c->variables, "add_generation_prompt", json_boolean(reply), err));
    return vptq_template_render(
        c->template,
        &(vptq_template_input){.variables = c->variables, .date = c->date, .ctx = c->ctx}, out,
        err);
}

static bool is_special(const vptq_vocab *v, int32_t id)
{
    for (uint32_t i = 0; i < v->added_count; i++)
        if (v->added[i].special && (int32_t)v->added[i].id == id)
            return true;
    return false;
}

/* Adds the special token that follows a reply in a rendered chat, if there is one and the
 * template accepts that chat. */
static vptq_status add_turn_end(const chat *c, vptq_ids *stop, vptq_err *err)
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
        vptq_log(c->ctx, VPTQ_LOG_MORE, "the token that ends a turn is unknown: %s",
                 refused.text);
        st = st == VPTQ_E_NOMEM || st == VPTQ_E_CANCELLED
                 ? vptq_fail(err, st, "%s", refused.text)
                 : VPTQ_OK;
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
        st = vptq_model_add_stop_token(c->m, ids.data[0], stop, err);
out:
    vptq_ids_release(&ids);
    vptq_buf_release(&text);
    return st;
}

vptq_status vptq_chat_prompt(const vptq_ctx *ctx, const vptq_model *m,
                             const vptq_chat_options *o, vptq_buf *prompt, vptq_ids *stop,
                             vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    source s = {NULL, NULL, 0};
    json_t *config = NULL, *json = NULL, *messages = NULL;
    chat c = {.ctx = ctx, .m = m, .date = o->date, .variables = json_object()};
    vptq_arena_init(&arena, ctx->mem);
    if (!c.variables)
        VPTQ_TRY(no_memory(err));
    if (!m->tokenizer)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_ARG, "%s: a chat needs a tokenizer", m->ckpt.path));
    VPTQ_TRY(vptq_model_companion_json(m, "tokenizer_config.json", true, &arena, &config, err));
    VPTQ_TRY(o->template_file ? read_template(ctx, o->template_file, &arena, &s, err)
                              : find_template(m, config, &arena, &json, &s, err));
    VPTQ_TRY(vptq_template_parse(s.text, s.len, s.name, ctx->mem, &c.template, err));
    VPTQ_TRY(set(c.variables, "tools", json_null(), err));
    VPTQ_TRY(set(c.variables, "documents", json_null(), err));
    VPTQ_TRY(set_tokens(m, config, c.variables, err));
    VPTQ_TRY(collect_messages(ctx, o, c.variables, &messages, err));
    VPTQ_TRY(set_args(o, c.variables, err));
    VPTQ_TRY(render(&c, json_incref(messages), true, prompt, err));
    if (stop)
        st = add_turn_end(&c, stop, err);
out:
    vptq_template_free(c.template);
    json_decref(messages);
    json_decref(json);
    json_decref(config);
    json_decref(c.variables);
    vptq_arena_release(&arena);
    return st;
}
