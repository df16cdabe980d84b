/* Splits fused tensors into views of their rows. */
#include "formats/hf/fused.h"

#include <stdio.h>
#include <string.h>

void vptq_fused_name(char name[VPTQ_NAME_MAX], uint32_t layer, const vptq_fused *f)
{
    snprintf(name, VPTQ_NAME_MAX, "model.layers.%u.%s.weight", layer, f->path);
}

/* Adds views of the rows of tensor t, which the set holds. */
static vptq_status add_views(const vptq_model_desc *d, uint32_t layer, const vptq_fused *f,
                             const vptq_tensor *t, vptq_tensor_set *set, vptq_err *err)
{
    char module[VPTQ_NAME_MAX], name[VPTQ_NAME_MAX + 8];
    vptq_tensor view = *t;
    for (int i = 0; i < f->count; i++) {
        uint32_t rows, cols;
        const vptq_linear l = (vptq_linear)((int)f->first + i);
        vptq_linear_shape(d, l, &rows, &cols);
        vptq_linear_full_name(d, module, layer, l);
        snprintf(name, sizeof name, "%s.weight", module);
        view.name = name;
        view.shape[0] = rows;
        view.bytes = rows * (size_t)cols * vptq_dtype_get(t->type)->bytes;
        VPTQ_CHECK(vptq_tensor_set_add(set, &view, err));
        view.data += view.bytes;
    }
    return VPTQ_OK;
}

static vptq_status split(const vptq_model_desc *d, uint32_t layer, const vptq_fused *f,
                         vptq_tensor_set *set, vptq_err *err)
{
    char name[VPTQ_NAME_MAX];
    uint32_t rows = 0, cols = 0, out;
    const vptq_tensor *found;
    for (int i = 0; i < f->count; i++) {
        vptq_linear_shape(d, (vptq_linear)((int)f->first + i), &out, &cols);
        rows += out;
    }
    vptq_fused_name(name, layer, f);
    if (!vptq_tensor_find(set, name))
        return VPTQ_OK;
    VPTQ_CHECK(vptq_tensor_need(set, name, rows, cols, &found, err));
    const vptq_tensor t = *found; /* adding may move the others */
    return add_views(d, layer, f, &t, set, err);
}

/* The rest of a tensor's name after the path of a fused layer; NULL if it is not of one. */
static const char *rest_of_fused(const vptq_model_desc *d, const char *name)
{
    const char *rest = vptq_name_in_block(d, name);
    for (size_t i = 0; rest && i < VPTQ_FUSED_COUNT; i++) {
        const size_t length = strlen(vptq_fused_layers[i].path);
        if (strncmp(rest, vptq_fused_layers[i].path, length) == 0 && rest[length] == '.')
            return rest + length + 1;
    }
    return NULL;
}

vptq_status vptq_fused_split(const vptq_model_desc *d, vptq_tensor_set *set, vptq_err *err)
{
    size_t kept = 0;
    if (!d->family->fused)
        return VPTQ_OK;
    for (uint32_t layer = 0; layer < d->layers; layer++)
        for (size_t i = 0; i < VPTQ_FUSED_COUNT; i++)
            VPTQ_CHECK(split(d, layer, &vptq_fused_layers[i], set, err));
    for (size_t i = 0; i < set->count; i++) {
        const vptq_tensor t = set->tensors[i];
        const char *rest = rest_of_fused(d, t.name);
        if (!rest || strcmp(rest, "weight") != 0)
            set->tensors[kept++] = t;
        if (rest && strcmp(rest, "weight") != 0 && strcmp(rest, "bias") != 0)
            return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                             "%s: tensor '%s' is part of a quantized fused layer; models of "
                             "type %s are supported plain, or with each linear layer quantized "
                             "on its own",
                             t.file, t.name, d->family->model_type);
    }
    set->count = kept;
    return vptq_tensor_set_finish(set, err);
}
