/* The `quantization_config` of the compressed-tensors layout: reads the layout of a module and
 * makes the config of a model. */
#include <string.h>
#include <strings.h>

#include "formats/hf/compressed_internal.h"
#include "formats/hf/config.h"

enum { MAX_GROUP_SIZE = 1 << 24 };

bool vptq_compressed_is_config(const json_t *config)
{
    const char *method =
        json_string_value(json_object_get(vptq_hf_quantization(config), "quant_method"));
    return method && strcmp(method, "compressed-tensors") == 0;
}

/* ---- reading ---- */

/* One object of the config. */
typedef struct part_reader {
    const json_t *part;
    char where[640]; /* "FILE: group NAME: weights", for messages */
    vptq_err *err;
} part_reader;

static const json_t *present(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static vptq_status fail_value(const part_reader *r, const char *key, const char *found,
                              const char *expected)
{
    return vptq_fail(r->err, VPTQ_E_UNSUPPORTED, "%s: key '%s' is %.100s, expected %s",
                     r->where, key, found, expected);
}

/* Fails unless a text is the expected one; capitals do not count. */
static vptq_status expect_text(const part_reader *r, const char *key, const char *fallback,
                               const char *expected)
{
    const char *text;
    VPTQ_CHECK(vptq_json_str_or(r->part, r->where, key, fallback, &text, r->err));
    return strcasecmp(text, expected) == 0 ? VPTQ_OK : fail_value(r, key, text, expected);
}

/* `dynamic` is true or false, or "local" for formats that are not supported. */
static vptq_status expect_dynamic(const part_reader *r, bool expected)
{
    static const char *const names[] = {"false", "true"};
    const json_t *value = present(r->part, "dynamic");
    bool dynamic;
    if (json_is_string(value))
        return fail_value(r, "dynamic", json_string_value(value), names[expected]);
    VPTQ_CHECK(vptq_json_bool_or(r->part, r->where, "dynamic", false, &dynamic, r->err));
    return dynamic == expected ? VPTQ_OK
                               : fail_value(r, "dynamic", names[dynamic], names[expected]);
}

static vptq_status read_bits(const part_reader *r, uint32_t min, uint32_t max, uint32_t *out)
{
    uint64_t bits = 0;
    char found[24], expected[40];
    VPTQ_CHECK(vptq_json_u64_or(r->part, r->where, "num_bits", UINT32_MAX, 8, &bits, r->err));
    *out = (uint32_t)bits;
    if (bits >= min && bits <= max)
        return VPTQ_OK;
    snprintf(found, sizeof found, "%u", *out);
    if (min == max)
        snprintf(expected, sizeof expected, "%u", min);
    else
        snprintf(expected, sizeof expected, "%u to %u", min, max);
    return fail_value(r, "num_bits", found, expected);
}

/* Reads the columns of a group, 0 for none: null, and -1 in old files. */
static vptq_status read_group_size(const part_reader *r, uint32_t *out)
{
    const json_t *value = present(r->part, "group_size");
    uint64_t size = 0;
    if (!json_is_integer(value) || json_integer_value(value) != -1)
        VPTQ_CHECK(vptq_json_u64_or(r->part, r->where, "group_size", MAX_GROUP_SIZE, 0, &size,
                                    r->err));
    *out = (uint32_t)size;
    return VPTQ_OK;
}

/* A tensor's single scale is recognized by its shape, so "tensor" is the same as "channel". */
static vptq_status read_strategy(const part_reader *r, uint32_t *group_size)
{
    const char *text;
    VPTQ_CHECK(read_group_size(r, group_size));
    VPTQ_CHECK(vptq_json_str_or(r->part, r->where, "strategy",
                                *group_size ? "group" : "channel", &text, r->err));
    const bool grouped = strcasecmp(text, "group") == 0;
    if (!grouped && strcasecmp(text, "channel") != 0 && strcasecmp(text, "tensor") != 0)
        return fail_value(r, "strategy", text, "group, channel or tensor");
    if (grouped != (*group_size > 0))
        return vptq_fail(r->err, VPTQ_E_FORMAT,
                         "%s: key 'group_size' is %u, which contradicts strategy %s", r->where,
                         (unsigned)*group_size, text);
    return VPTQ_OK;
}

static vptq_status read_weights(const part_reader *r, vptq_compressed_layout *out)
{
    const uint32_t min = out->bytes ? 8 : VPTQ_COMPRESSED_MIN_BITS;
    VPTQ_CHECK(expect_text(r, "type", "int", "int"));
    VPTQ_CHECK(read_bits(r, min, VPTQ_UNIFORM_MAX_BITS, &out->bits));
    VPTQ_CHECK(
        vptq_json_bool_or(r->part, r->where, "symmetric", true, &out->symmetric, r->err));
    VPTQ_CHECK(expect_dynamic(r, false));
    return read_strategy(r, &out->group_size);
}

static vptq_status read_activations(const part_reader *r, uint32_t *bits)
{
    bool symmetric;
    VPTQ_CHECK(expect_text(r, "type", "int", "int"));
    VPTQ_CHECK(
        read_bits(r, VPTQ_COMPRESSED_ACTIVATION_BITS, VPTQ_COMPRESSED_ACTIVATION_BITS, bits));
    VPTQ_CHECK(expect_dynamic(r, true));
    VPTQ_CHECK(expect_text(r, "strategy", "tensor", "token"));
    VPTQ_CHECK(vptq_json_bool_or(r->part, r->where, "symmetric", true, &symmetric, r->err));
    return symmetric ? VPTQ_OK : fail_value(r, "symmetric", "false", "true");
}

/* Reads the group's own format, else that of the whole config. */
static vptq_status read_format(const part_reader *group, const part_reader *whole, bool *bytes)
{
    const part_reader *r = present(group->part, "format") ? group : whole;
    const char *text;
    VPTQ_CHECK(vptq_json_str_or(r->part, r->where, "format", NULL, &text, r->err));
    *bytes = strcmp(text, "int-quantized") == 0 || strcmp(text, "naive-quantized") == 0;
    if (*bytes || strcmp(text, "pack-quantized") == 0)
        return VPTQ_OK;
    if (r == whole && strcmp(text, "mixed-precision") == 0)
        return vptq_fail(r->err, VPTQ_E_FORMAT,
                         "%s: key 'format' is missing, which mixed-precision requires",
                         group->where);
    return fail_value(r, "format", text, "pack-quantized, int-quantized or naive-quantized");
}

/* Opens an object of another one; its part is NULL if it is missing or null. */
static vptq_status open_part(const part_reader *whole, const char *key, part_reader *out)
{
    *out = (part_reader){.part = present(whole->part, key), .err = whole->err};
    snprintf(out->where, sizeof out->where, "%.600s: %s", whole->where, key);
    if (out->part && !json_is_object(out->part))
        return vptq_fail(out->err, VPTQ_E_FORMAT, "%s is not an object", out->where);
    return VPTQ_OK;
}

/* Rejects what changes the model outside of the weights of its groups. */
static vptq_status check_whole(const part_reader *r)
{
    part_reader sparsity, transforms;
    if (present(r->part, "kv_cache_scheme"))
        return fail_value(r, "kv_cache_scheme", "set", "null");
    VPTQ_CHECK(open_part(r, "sparsity_config", &sparsity));
    VPTQ_CHECK(expect_text(&sparsity, "format", "dense", "dense"));
    VPTQ_CHECK(open_part(r, "transform_config", &transforms));
    const json_t *groups = json_object_get(transforms.part, "config_groups");
    return json_object_size(groups ? groups : transforms.part) > 0
               ? fail_value(r, "transform_config", "set", "none")
               : VPTQ_OK;
}

static vptq_status read_group(const part_reader *whole, const part_reader *group,
                              vptq_compressed_layout *out, bool *quantized)
{
    part_reader weights, inputs;
    VPTQ_CHECK(open_part(group, "weights", &weights));
    VPTQ_CHECK(open_part(group, "input_activations", &inputs));
    if (present(group->part, "output_activations"))
        return fail_value(group, "output_activations", "set", "null");
    *quantized = weights.part || inputs.part;
    if (!*quantized)
        return VPTQ_OK;
    if (!weights.part)
        return fail_value(group, "weights", "null", "an object, as inputs are quantized");
    VPTQ_CHECK(read_format(group, whole, &out->bytes));
    VPTQ_CHECK(read_weights(&weights, out));
    return inputs.part ? read_activations(&inputs, &out->activation_bits) : VPTQ_OK;
}

vptq_status vptq_compressed_layout_of(const json_t *config, const char *module,
                                      const char *file, vptq_compressed_layout *out,
                                      bool *quantized, vptq_err *err)
{
    part_reader whole = {.part = vptq_hf_quantization(config), .err = err},
                group = {.err = err};
    vptq_compressed_layout layout = {0};
    const char *name;
    *quantized = false;
    snprintf(whole.where, sizeof whole.where, "%.400s: quantization_config", file);
    VPTQ_CHECK(check_whole(&whole));
    VPTQ_CHECK(vptq_compressed_find_group(whole.part, module, file, &name, &group.part, err));
    if (!group.part)
        return VPTQ_OK;
    snprintf(group.where, sizeof group.where, "%.400s: group '%.100s'", file, name);
    VPTQ_CHECK(read_group(&whole, &group, &layout, quantized));
    *out = layout;
    return VPTQ_OK;
}

/* ---- writing ---- */

/* Layout of a matrix as vptq_compressed_tensors stores it. */
static vptq_compressed_layout layout_of(const vptq_compressed_matrix *m)
{
    const vptq_uniform_shape *s = &m->u.shape;
    return (vptq_compressed_layout){.bits = s->bits,
                                    .group_size = s->group_size < s->in ? s->group_size : 0,
                                    .symmetric = !m->u.zeros,
                                    .bytes = m->activation_bits > 0,
                                    .activation_bits = m->activation_bits};
}

static bool same_group(const vptq_compressed_matrix *a, const vptq_compressed_matrix *b)
{
    const vptq_compressed_layout x = layout_of(a), y = layout_of(b);
    return x.bits == y.bits && x.group_size == y.group_size && x.symmetric == y.symmetric &&
           x.activation_bits == y.activation_bits && !a->u.groups == !b->u.groups;
}

static const char *format_of(bool bytes)
{
    return bytes ? "int-quantized" : "pack-quantized";
}

static json_t *make_weights(const vptq_compressed_matrix *m)
{
    const vptq_compressed_layout l = layout_of(m);
    return json_pack("{s:i, s:s, s:b, s:s, s:o, s:b, s:s?, s:n, s:s, s:{}}", "num_bits",
                     (int)l.bits, "type", "int", "symmetric", (int)l.symmetric, "strategy",
                     l.group_size ? "group" : "channel", "group_size",
                     l.group_size ? json_integer(l.group_size) : json_null(), "dynamic", 0,
                     "actorder", m->u.groups ? "group" : NULL, "block_structure", "observer",
                     "minmax", "observer_kwargs");
}

static json_t *make_activations(uint32_t bits)
{
    return bits ? json_pack("{s:i, s:s, s:b, s:s, s:n, s:b, s:n, s:n, s:n, s:{}}", "num_bits",
                            (int)bits, "type", "int", "symmetric", 1, "strategy", "token",
                            "group_size", "dynamic", 1, "actorder", "block_structure",
                            "observer", "observer_kwargs")
                : json_null();
}

/* Lists the modules from the first on that have its layout; NULL if out of memory. */
static json_t *make_targets(const vptq_compressed_matrix *first, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < count; i++)
        if (same_group(first, &first[i]) &&
            json_array_append_new(list, json_string(first[i].name))) {
            json_decref(list);
            list = NULL;
        }
    return list;
}

/* Adds the group of the first matrix.  Returns false if out of memory. */
static bool add_group(json_t *groups, const vptq_compressed_matrix *first, size_t count,
                      bool only, bool mixed)
{
    char name[32];
    json_t *group = json_pack("{s:o, s:o, s:o, s:n}", "targets",
                              only ? json_pack("[s]", "Linear") : make_targets(first, count),
                              "weights", make_weights(first), "input_activations",
                              make_activations(first->activation_bits), "output_activations");
    snprintf(name, sizeof name, "group_%zu", json_object_size(groups));
    if (group && mixed &&
        json_object_set_new(group, "format", json_string(format_of(first->activation_bits)))) {
        json_decref(group);
        group = NULL;
    }
    return json_object_set_new(groups, name, group) == 0;
}

/* Whether an earlier matrix has the layout of matrix i. */
static bool has_earlier(const vptq_compressed_matrix *matrices, size_t i)
{
    size_t k = 0;
    while (k < i && !same_group(&matrices[k], &matrices[i]))
        k++;
    return k < i;
}

static json_t *make_groups(const vptq_compressed_matrix *matrices, size_t count, bool mixed)
{
    json_t *groups = json_object();
    bool only = true;
    for (size_t i = 1; i < count && only; i++)
        only = same_group(&matrices[0], &matrices[i]);
    for (size_t i = 0; groups && i < count; i++)
        if (!has_earlier(matrices, i) &&
            !add_group(groups, &matrices[i], count - i, only, mixed)) {
            json_decref(groups);
            groups = NULL;
        }
    return groups;
}

/* NULL if memory runs out. */
static json_t *make_ignore(const char *const *plain, size_t count)
{
    json_t *list = json_pack("[s]", "lm_head");
    for (size_t i = 0; list && i < count; i++)
        if (json_array_append_new(list, json_string(plain[i]))) {
            json_decref(list);
            list = NULL;
        }
    return list;
}

vptq_status vptq_compressed_make_config(const vptq_compressed_matrix *matrices, size_t count,
                                        const char *const *plain, size_t plain_count,
                                        json_t **config, vptq_err *err)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(vptq_compressed_last_component(matrices[i].name), "lm_head") == 0)
            return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                             "layer '%s' cannot be written in the compressed-tensors layout: "
                             "its config leaves lm_head plain",
                             matrices[i].name);
        VPTQ_CHECK(vptq_compressed_check_writable(&matrices[i], err));
        VPTQ_CHECK(
            vptq_json_check_text("quantization_config", "module", matrices[i].name, err));
        bytes += matrices[i].activation_bits > 0;
    }
    const bool mixed = bytes > 0 && bytes < count;
    *config = json_pack(
        "{s:s, s:s, s:s, s:n, s:o, s:n, s:o}", "quant_method", "compressed-tensors", "format",
        mixed ? "mixed-precision" : format_of(bytes > 0), "quantization_status", "compressed",
        "global_compression_ratio", "ignore", make_ignore(plain, plain_count),
        "kv_cache_scheme", "config_groups", make_groups(matrices, count, mixed));
    return *config ? VPTQ_OK
                   : vptq_fail(err, VPTQ_E_NOMEM, "out of memory for the quantization_config");
}
