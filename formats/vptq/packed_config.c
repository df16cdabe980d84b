/* The `quantization_config` of config.json: finds, parses and makes the entries of layers. */
#include <string.h>

#include "formats/vptq/packed.h"

/* Upstream puts it at the top, or inside text_config for multimodal models. */
const json_t *vptq_packed_config(const json_t *config)
{
    const json_t *q = json_object_get(config, "quantization_config");
    if (!q)
        q = json_object_get(json_object_get(config, "text_config"), "quantization_config");
    return q;
}

bool vptq_packed_is_config(const json_t *config)
{
    const char *method =
        json_string_value(json_object_get(vptq_packed_config(config), "quant_method"));
    return method && strcmp(method, "vptq") == 0;
}

const json_t *vptq_packed_entry(const json_t *config, const char *module)
{
    const json_t *q = vptq_packed_config(config);
    const json_t *entry = json_object_get(json_object_get(q, "config_for_layers"), module);
    if (entry)
        return entry;
    const char *dot = strrchr(module, '.');
    return json_object_get(json_object_get(q, "shared_layer_config"), dot ? dot + 1 : module);
}

typedef struct entry_reader {
    const json_t *entry;
    char where[768]; /* "FILE: layer MODULE", for messages */
    vptq_err *err;
} entry_reader;

static vptq_status read_size(const entry_reader *r, const char *key, uint32_t *out)
{
    uint64_t value = 0;
    vptq_status st = vptq_json_u64(r->entry, r->where, key, UINT32_C(1) << 24, &value, r->err);
    *out = (uint32_t)value;
    return st;
}

/* Reads [outlier, main]; -1 and 0 both mean none. */
static vptq_status read_pair(const entry_reader *r, const char *key, uint32_t pair[2])
{
    const json_t *list = json_object_get(r->entry, key);
    if (!list || json_is_null(list))
        return vptq_fail(r->err, VPTQ_E_FORMAT, "%s: key '%s' is missing", r->where, key);
    if (json_array_size(list) != 2)
        return vptq_fail(r->err, VPTQ_E_FORMAT,
                         "%s: key '%s' is not a list of two numbers, [outlier, main]", r->where,
                         key);
    for (size_t i = 0; i < 2; i++) {
        const json_t *item = json_array_get(list, i);
        json_int_t value = json_integer_value(item);
        if (!json_is_integer(item) || value < -1 || value > VPTQ_VQ_MAX_K)
            return vptq_fail(r->err, VPTQ_E_FORMAT,
                             "%s: key '%s' holds a value that is not a number from -1 to %d",
                             r->where, key, (int)VPTQ_VQ_MAX_K);
        pair[i] = value < 0 ? 0 : (uint32_t)value;
    }
    return VPTQ_OK;
}

static vptq_status read_codebooks(const entry_reader *r, vptq_vq_shape *s)
{
    uint32_t v[2], k[2], k_res[2];
    VPTQ_CHECK(read_pair(r, "vector_lens", v));
    VPTQ_CHECK(read_pair(r, "num_centroids", k));
    VPTQ_CHECK(read_pair(r, "num_res_centroids", k_res));
    s->v = v[1];
    s->k = k[1];
    s->k_res = k_res[1];
    if (s->outliers) {
        s->v0 = v[0];
        s->k0 = k[0];
        if (k_res[0])
            return vptq_fail(
                r->err, VPTQ_E_UNSUPPORTED,
                "%s: the outlier columns have a residual codebook of %u centroids, for "
                "which the layout has no tensor",
                r->where, (unsigned)k_res[0]);
    }
    return VPTQ_OK;
}

vptq_status vptq_packed_parse_entry(const json_t *entry, const char *name, const char *file,
                                    vptq_packed_layout *out, vptq_err *err)
{
    entry_reader r = {.entry = entry, .err = err};
    snprintf(r.where, sizeof r.where, "%.400s: layer '%.200s'", file, name);
    if (!json_is_object(entry))
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: its entry in quantization_config is not an object", r.where);
    vptq_packed_layout layout = {.bit_packed = true};
    vptq_vq_shape *s = &layout.shape;
    VPTQ_CHECK(read_size(&r, "in_features", &s->in));
    VPTQ_CHECK(read_size(&r, "out_features", &s->out));
    VPTQ_CHECK(read_size(&r, "group_num", &s->groups));
    VPTQ_CHECK(read_size(&r, "group_size", &s->group_size));
    VPTQ_CHECK(read_size(&r, "outlier_size", &s->outliers));
    VPTQ_CHECK(read_codebooks(&r, s));
    VPTQ_CHECK(vptq_json_bool_or(entry, r.where, "enable_norm", false, &s->has_norm, err));
    VPTQ_CHECK(vptq_json_bool_or(entry, r.where, "enable_perm", false, &s->has_perm, err));
    VPTQ_CHECK(
        vptq_json_bool_or(entry, r.where, "is_indice_packed", true, &layout.bit_packed, err));
    VPTQ_CHECK(vptq_json_bool_or(entry, r.where, "bias", false, &layout.has_bias, err));
    VPTQ_CHECK(
        vptq_json_bool_or(entry, r.where, "indices_as_float", false, &layout.as_float, err));
    if (vptq_vq_shape_check(s, err))
        return vptq_err_context(err, "%s", r.where);
    *out = layout;
    return VPTQ_OK;
}

static bool can_absorb_perm(const vptq_vq_shape *s)
{
    return s->has_perm && s->groups == 1 && s->outliers == 0;
}

vptq_vq_shape vptq_packed_stored_shape(const vptq_vq_shape *s)
{
    vptq_vq_shape stored = *s;
    stored.has_norm = true;
    stored.has_perm = s->has_perm && !can_absorb_perm(s);
    return stored;
}

vptq_status vptq_packed_make_entry(const vptq_packed_matrix *m, bool has_bias, json_t **entry,
                                   vptq_err *err)
{
    vptq_vq_shape s = vptq_packed_stored_shape(&m->vq.shape);
    int v0 = s.outliers ? (int)s.v0 : -1, k0 = s.outliers ? (int)s.k0 : -1;
    *entry = json_pack(
        "{s:i, s:i, s:[i,i], s:[i,i], s:[i,i], s:i, s:i, s:i, s:b, s:b, s:b, s:b, s:b}",
        "in_features", (int)s.in, "out_features", (int)s.out, "vector_lens", v0, (int)s.v,
        "num_centroids", k0, (int)s.k, "num_res_centroids", -1, s.k_res ? (int)s.k_res : -1,
        "group_num", (int)s.groups, "group_size", (int)s.group_size, "outlier_size",
        (int)s.outliers, "indices_as_float", 0, "enable_norm", (int)s.has_norm, "enable_perm",
        (int)s.has_perm, "is_indice_packed", 1, "bias", (int)has_bias);
    if (!*entry)
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory for the config entry of '%s'",
                         m->name);
    return VPTQ_OK;
}
