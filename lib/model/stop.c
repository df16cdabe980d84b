/* The tokens that end a text: those of the tokenizer, of the configurations and of a GGUF file.
 */
#include <math.h>

#include "lib/model/model.h"

vptq_status vptq_model_add_stop_token(const vptq_model *m, int64_t id, vptq_ids *stop,
                                      vptq_err *err)
{
    if (id < 0 || id >= (int64_t)m->desc->vocab)
        return VPTQ_OK;
    for (size_t i = 0; i < stop->count; i++)
        if (stop->data[i] == id)
            return VPTQ_OK;
    return vptq_ids_add(stop, &(int32_t){(int32_t)id}, 1, err);
}

/* "eos_token_id" of a configuration, whose numbers were parsed as reals: one, or a list. */
static vptq_status add_stop_tokens(const vptq_model *m, const json_t *config, vptq_ids *stop,
                                   vptq_err *err)
{
    const json_t *value = json_object_get(config, "eos_token_id");
    size_t count = json_is_array(value) ? json_array_size(value) : 1;
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        double id = json_number_value(item);
        if (json_is_number(item) && id >= 0 && id <= INT32_MAX && id == floor(id))
            VPTQ_CHECK(vptq_model_add_stop_token(m, (int64_t)id, stop, err));
    }
    return VPTQ_OK;
}

/* Of a GGUF file: the ends of a turn and of a message. */
static vptq_status add_gguf_stop_tokens(const vptq_model *m, const vptq_gguf *g, vptq_ids *stop,
                                        vptq_err *err)
{
    static const char *const keys[] = {"tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    for (int i = 0; i < 2; i++) {
        uint64_t id = 0;
        if (!vptq_gguf_find(g, keys[i]))
            continue;
        VPTQ_CHECK(vptq_gguf_u64_or(g, keys[i], 0, &id, err));
        VPTQ_CHECK(vptq_model_add_stop_token(m, id > INT32_MAX ? -1 : (int64_t)id, stop, err));
    }
    return VPTQ_OK;
}

vptq_status vptq_model_companion_json(const vptq_model *m, const char *name, bool tokenizer,
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

vptq_status vptq_model_stop_tokens(const vptq_ctx *ctx, const vptq_model *m, vptq_ids *stop,
                                   vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    json_t *generation = NULL;
    const vptq_checkpoint *origin = m->ckpt.base ? m->ckpt.base : &m->ckpt;
    vptq_arena_init(&arena, ctx->mem);
    VPTQ_TRY(vptq_model_add_stop_token(m, m->desc->eos, stop, err));
    if (m->tokenizer)
        VPTQ_TRY(vptq_model_add_stop_token(m, m->vocab.eos, stop, err));
    VPTQ_TRY(add_stop_tokens(m, origin->config, stop, err));
    VPTQ_TRY(vptq_model_companion_json(m, "generation_config.json", false, &arena, &generation,
                                       err));
    VPTQ_TRY(add_stop_tokens(m, generation, stop, err));
    if (origin->gguf && m->ckpt.tokenizer == origin->tokenizer)
        VPTQ_TRY(add_gguf_stop_tokens(m, origin->gguf, stop, err));
out:
    json_decref(generation);
    vptq_arena_release(&arena);
    return st;
}
