#include "lib/pack/check_layout.h"

#include <stdio.h>

typedef struct trouble_text {
    const char *finding, *repair;
} trouble_text;

static const trouble_text texts[VPTQ_TROUBLE_COUNT] = {
    {"has key 'norm_dim' or 'enable_proxy_error', at which the vptq package stops",
     "keys 'norm_dim' and 'enable_proxy_error' taken out"},
    {"has no 'indices_as_float', at which the vptq package stops",
     "'indices_as_float' set to false"},
    {"says indices_as_float, for which the loaders of today have no use",
     "indices stored as integers"},
    {"stores its indices unpacked, which transformers refuses", "indices packed"},
    {"has no scale and bias, which the vptq package's GPU kernels read anyway",
     "scale 1 and bias 0 added"},
    {"says enable_perm, but has no 'perm' tensor", "'enable_perm' set to what is stored"},
    {NULL, "permutation absorbed"},
    {"has a 'bias' key that does not agree with its tensors", "'bias' set to what is stored"},
    {"has more residual than main centroids, of whose indices other readers lose bits",
     "main and residual codebook exchanged"},
    {"has bits set behind the last index of a row, which should be zeros",
     "bits behind the last index of a row cleared"}};

const char *vptq_trouble_finding(vptq_trouble what)
{
    return texts[what].finding;
}

const char *vptq_trouble_repair(vptq_trouble what)
{
    return texts[what].repair;
}

static void note(vptq_troubles *t, vptq_trouble what, bool is, const char *module)
{
    if (is && t->count[what]++ == 0)
        t->first[what] = module;
}

void vptq_troubles_add(vptq_troubles *t, const vptq_checkpoint *c, const vptq_packed_matrix *m)
{
    const json_t *entry = vptq_packed_entry(c->config, m->name);
    const vptq_vq_shape *s = &m->vq.shape;
    vptq_packed_layout layout;
    char bias[VPTQ_NAME_MAX + 8];
    if (vptq_packed_parse_entry(entry, m->name, c->path, &layout, NULL))
        return; /* opening has read it */
    snprintf(bias, sizeof bias, "%.*s.bias", VPTQ_NAME_MAX, m->name);
    const json_t *as_float = json_object_get(entry, "indices_as_float");
    bool extra =
        json_object_get(entry, "norm_dim") || json_object_get(entry, "enable_proxy_error");
    vptq_vq_shape stored = vptq_packed_stored_shape(s);
    note(t, VPTQ_TROUBLE_EXTRA_KEY, extra, m->name);
    note(t, VPTQ_TROUBLE_FLOAT_KEY, !json_is_boolean(as_float), m->name);
    note(t, VPTQ_TROUBLE_AS_FLOAT, layout.as_float, m->name);
    note(t, VPTQ_TROUBLE_NOT_PACKED, !layout.bit_packed, m->name);
    note(t, VPTQ_TROUBLE_NO_NORM, !s->has_norm, m->name);
    note(t, VPTQ_TROUBLE_LOST_PERM, layout.shape.has_perm && !s->has_perm, m->name);
    note(t, VPTQ_TROUBLE_PERM, s->has_perm && !stored.has_perm, m->name);
    note(t, VPTQ_TROUBLE_BIAS_KEY, layout.has_bias != (vptq_tensor_find(&c->set, bias) != NULL),
         m->name);
    note(t, VPTQ_TROUBLE_RESIDUALS, s->k_res > s->k, m->name);
    note(t, VPTQ_TROUBLE_PADDING, vptq_packed_dirty_rows(&m->vq) > 0, m->name);
}
