/* Reads the text model of a model with other parts. */
#include "formats/hf/text_part.h"

#include <stdio.h>
#include <string.h>

#include "formats/model_desc.h"

/* ---- config.json ---- */

/* Keys that may be at the top level only. */
static int set_common_keys(json_t *text, const json_t *config)
{
    static const char *const keys[] = {"torch_dtype",  "dtype",        "bos_token_id",
                                       "eos_token_id", "pad_token_id", "quantization_config"};
    int bad = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *value = json_object_get(config, keys[i]);
        if (value && !json_object_get(text, keys[i]))
            bad |= json_object_set(text, keys[i], value);
    }
    return bad;
}

vptq_status vptq_hf_text_config(json_t **config, bool *found, vptq_err *err)
{
    const char *type = json_string_value(json_object_get(*config, "model_type"));
    const json_t *nested = json_object_get(*config, "text_config");
    const vptq_family *f = type ? vptq_family_by_whole(type) : NULL;
    *found = f && json_is_object(nested);
    if (!*found)
        return VPTQ_OK;
    json_t *text = json_deep_copy(nested);
    if (!text || set_common_keys(text, *config) ||
        json_object_set_new(text, "model_type", json_string(f->model_type)) ||
        json_object_set_new(text, "architectures", json_pack("[s]", f->architecture))) {
        json_decref(text);
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory for config.json");
    }
    json_decref(*config);
    *config = text;
    return VPTQ_OK;
}

/* ---- tensors ---- */

/* Whether a tensor is of another part. */
static bool is_other(const char *name)
{
    static const char *const others[] = {"vision_tower.", "multi_modal_projector.",
                                         "model.vision_tower.", "model.multi_modal_projector."};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strncmp(name, others[i], strlen(others[i])) == 0)
            return true;
    return false;
}

/* Replaces *name by the name that the tensor has in a text model: without "language_model.", at
 * the beginning or after "model.". */
static vptq_status rename_tensor(const char **name, vptq_tensor_set *set, vptq_err *err)
{
    static const char part[] = "language_model.", model[] = "model.";
    const char *old = *name;
    const bool inner = strncmp(old, model, sizeof model - 1) == 0;
    const char *rest = inner ? old + sizeof model - 1 : old;
    if (strncmp(rest, part, sizeof part - 1) != 0)
        return VPTQ_OK;
    rest += sizeof part - 1;
    *name = rest;
    if (inner) {
        const size_t size = sizeof model + strlen(rest);
        char *own = vptq_arena_alloc(&set->arena, size, 1, err);
        if (!own)
            return VPTQ_E_NOMEM;
        snprintf(own, size, "%s%s", model, rest);
        *name = own;
    }
    return VPTQ_OK;
}

vptq_status vptq_hf_text_tensors(vptq_tensor_set *set, size_t *dropped, vptq_err *err)
{
    const size_t all = set->count;
    size_t kept = 0;
    for (size_t i = 0; i < all; i++)
        if (!is_other(set->tensors[i].name))
            VPTQ_CHECK(rename_tensor(&set->tensors[i].name, set, err));
    for (size_t i = 0; i < all; i++)
        if (!is_other(set->tensors[i].name))
            set->tensors[kept++] = set->tensors[i];
    set->count = kept;
    *dropped = all - kept;
    return vptq_tensor_set_finish(set, err);
}
