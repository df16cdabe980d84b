/* Counts the quirks of packed matrices and describes them. */
#include "formats/vptq/quirks.h"

#include <stdio.h>

#include "formats/model_desc.h"

typedef struct quirk_text {
    const char *warning, *repair;
} quirk_text;

static const quirk_text texts[VPTQ_QUIRK_COUNT] = {
    [VPTQ_QUIRK_EXTRA_KEY] = {"has key 'norm_dim' or 'enable_proxy_error', which the vptq "
                              "package does not accept",
                              "keys 'norm_dim' and 'enable_proxy_error' removed"},
    [VPTQ_QUIRK_FLOAT_KEY] = {"lacks key 'indices_as_float', which the vptq package requires",
                              "'indices_as_float' set to false"},
    [VPTQ_QUIRK_AS_FLOAT] = {"sets indices_as_float, which today's loaders do not support",
                             "indices stored as integers"},
    [VPTQ_QUIRK_NOT_PACKED] = {"stores its indices unpacked, which transformers refuses",
                               "indices packed"},
    [VPTQ_QUIRK_NO_NORM] = {"has no scale and bias, which the vptq package's GPU kernels read "
                            "anyway",
                            "scale 1 and bias 0 added"},
    [VPTQ_QUIRK_LOST_PERM] = {"sets enable_perm, but has no 'perm' tensor",
                              "'enable_perm' set to match the tensors"},
    [VPTQ_QUIRK_PERM] = {NULL, "permutation absorbed"},
    [VPTQ_QUIRK_BIAS_KEY] = {"has a 'bias' key that does not agree with its tensors",
                             "'bias' set to match the tensors"},
    [VPTQ_QUIRK_RESIDUALS] = {"has more residual than main centroids, and other readers lose "
                              "bits of such indices",
                              "main and residual codebook exchanged"},
    [VPTQ_QUIRK_PADDING] = {"has bits set after the last index of a row, where zeros are "
                            "expected",
                            "bits after the last index of a row cleared"}};

const char *vptq_quirk_warning(vptq_quirk quirk)
{
    return texts[quirk].warning;
}

const char *vptq_quirk_repair(vptq_quirk quirk)
{
    return texts[quirk].repair;
}

void vptq_quirks_add(vptq_quirks *q, const json_t *config, const vptq_tensor_set *set,
                     const vptq_packed_matrix *m)
{
    const json_t *entry = vptq_packed_entry(config, m->name);
    const vptq_vq_shape *s = &m->vq.shape;
    vptq_packed_layout layout;
    char bias[VPTQ_NAME_MAX + 8];
    if (vptq_packed_parse_entry(entry, m->name, "", &layout, NULL))
        return; /* cannot happen: the matrix was read with this entry */
    snprintf(bias, sizeof bias, "%.*s.bias", VPTQ_NAME_MAX, m->name);
    const vptq_vq_shape stored = vptq_packed_stored_shape(s);
    const bool has[VPTQ_QUIRK_COUNT] = {
        [VPTQ_QUIRK_EXTRA_KEY] =
            json_object_get(entry, "norm_dim") || json_object_get(entry, "enable_proxy_error"),
        [VPTQ_QUIRK_FLOAT_KEY] = !json_is_boolean(json_object_get(entry, "indices_as_float")),
        [VPTQ_QUIRK_AS_FLOAT] = layout.as_float,
        [VPTQ_QUIRK_NOT_PACKED] = !layout.bit_packed,
        [VPTQ_QUIRK_NO_NORM] = !s->has_norm,
        [VPTQ_QUIRK_LOST_PERM] = layout.shape.has_perm && !s->has_perm,
        [VPTQ_QUIRK_PERM] = s->has_perm && !stored.has_perm,
        [VPTQ_QUIRK_BIAS_KEY] = layout.has_bias != (vptq_tensor_find(set, bias) != NULL),
        [VPTQ_QUIRK_RESIDUALS] = s->k_res > s->k,
        [VPTQ_QUIRK_PADDING] = vptq_packed_count_dirty_rows(&m->vq) > 0,
    };
    for (int i = 0; i < VPTQ_QUIRK_COUNT; i++)
        if (has[i] && q->count[i]++ == 0)
            q->first[i] = m->name;
}
