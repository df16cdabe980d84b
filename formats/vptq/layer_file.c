/* Reads and writes the file of one finished matrix. */
#include "formats/vptq/layer_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/text.h"

/* Version of the metadata and of what the checksum covers. */
#define LAYER_FORMAT "1"
/* Formats of uniform codes, with the names that compressed-tensors gives them.  That of bytes
 * is for 8-bit activations. */
#define PACKED_FORMAT "pack-quantized"
#define BYTES_FORMAT  "int-quantized"
#define FOLDED        "folded"
#define NORM          "norm"
/* Its name of tensors that are not quantized. */
#define DENSE_FORMAT "dense"

enum { FORMAT, NAME, ENTRY, FINGERPRINT, REPORT, SUM, META_COUNT };

void vptq_layer_file_name(char name[VPTQ_LAYER_FILE_NAME_MAX], uint32_t layer,
                          const char *linear)
{
    snprintf(name, VPTQ_LAYER_FILE_NAME_MAX, "layer_%03u_%.60s.safetensors", (unsigned)layer,
             linear);
}

bool vptq_layer_file_is(const char *name)
{
    return strncmp(name, "layer_", 6) == 0 && vptq_text_before(name, ".safetensors") > 0;
}

static void add_float_codebook(vptq_tensor *list, size_t *count, const char *name,
                               const vptq_vq_shape *s, uint32_t k, const float *codebook)
{
    list[(*count)++] = (vptq_tensor){.name = name,
                                     .type = VPTQ_F32,
                                     .dims = 3,
                                     .shape = {s->groups, k, s->v},
                                     .data = (const uint8_t *)(const void *)codebook,
                                     .bytes = (size_t)s->groups * k * s->v * sizeof *codebook,
                                     .round_to = VPTQ_F32,
                                     .file = ""};
}

static void add_norm(vptq_tensor *list, size_t *count, const vptq_layer_file *f)
{
    list[(*count)++] = (vptq_tensor){.name = NORM,
                                     .type = VPTQ_F32,
                                     .dims = 1,
                                     .shape = {f->norm_size},
                                     .data = (const uint8_t *)(const void *)f->norm,
                                     .bytes = f->norm_size * sizeof *f->norm,
                                     .round_to = VPTQ_F32,
                                     .file = ""};
}

/* The config entry of a uniform matrix; the keys are those of compressed-tensors. */
static json_t *uniform_entry(const vptq_compressed_matrix *m)
{
    const vptq_uniform_shape *s = &m->u.shape;
    json_t *entry = json_pack(
        "{s:s, s:i, s:i, s:b}", "format", m->activation_bits ? BYTES_FORMAT : PACKED_FORMAT,
        "num_bits", (int)s->bits, "group_size", (int)s->group_size, "symmetric", !s->has_zeros);
    if (entry && m->activation_bits &&
        json_object_set_new(entry, "activation_bits", json_integer(m->activation_bits))) {
        json_decref(entry);
        return NULL;
    }
    return entry;
}

static vptq_status entry_text(const vptq_layer_file *f, char **text, vptq_err *err)
{
    json_t *entry = NULL;
    if (f->dense)
        entry = json_pack("{s:s}", "format", DENSE_FORMAT);
    else if (f->is_uniform)
        entry = uniform_entry(&f->uniform);
    else if (f->is_additive)
        VPTQ_CHECK(vptq_additive_make_entry(&f->additive, &entry, err));
    else
        VPTQ_CHECK(vptq_packed_make_entry(&f->matrix, false, &entry, err));
    if (entry && f->folded && json_object_set_new(entry, FOLDED, json_true())) {
        json_decref(entry);
        entry = NULL;
    }
    *text = entry ? json_dumps(entry, JSON_COMPACT) : NULL;
    json_decref(entry);
    if (!*text)
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory for the config entry of '%s'",
                         vptq_layer_file_matrix(f));
    return VPTQ_OK;
}

static vptq_status list_tensors(const vptq_layer_file *f, vptq_arena *arena, vptq_tensor *list,
                                size_t *count, vptq_err *err)
{
    const vptq_packed_matrix *m = &f->matrix;
    if (f->dense) {
        list[(*count)++] = f->weight;
        return VPTQ_OK;
    }
    if (f->is_uniform)
        return vptq_compressed_tensors(&f->uniform, arena, list, count, err);
    if (f->is_additive)
        return vptq_additive_tensors(&f->additive, arena, list, count, err);
    VPTQ_CHECK(vptq_packed_tensors(m, arena, list, count, err));
    add_float_codebook(list, count, "centroids_f32", &m->vq.shape, m->vq.shape.k,
                       f->centroids_f32);
    if (m->vq.shape.k_res)
        add_float_codebook(list, count, "res_centroids_f32", &m->vq.shape, m->vq.shape.k_res,
                           f->res_centroids_f32);
    return VPTQ_OK;
}

vptq_status vptq_layer_file_write(const char *path, const vptq_layer_file *f, vptq_mem *mem,
                                  vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    vptq_arena_init(&arena, mem);
    char *entry = NULL, hex[VPTQ_SAFETENSORS_SUM];
    vptq_tensor list[VPTQ_ADDITIVE_MAX_TENSORS + 1]; /* the most of any kind, and a norm */
    size_t count = 0;
    VPTQ_TRY(entry_text(f, &entry, err));
    VPTQ_TRY(list_tensors(f, &arena, list, &count, err));
    if (f->norm)
        add_norm(list, &count, f);
    qsort(list, count, sizeof *list, vptq_tensor_by_name);
    vptq_metadata meta[META_COUNT] = {
        {"format", LAYER_FORMAT}, {"name", vptq_layer_file_matrix(f)},
        {"entry", entry},         {"fingerprint", f->fingerprint},
        {"report", f->report},    {"xxh3", hex}};
    vptq_safetensors_sum(list, count, meta, SUM, hex);
    VPTQ_TRY(vptq_safetensors_save(path, list, count, meta, META_COUNT, err));
out:
    free(entry);
    vptq_arena_release(&arena);
    return st;
}

/* Puts the metadata in the order of writing. */
static vptq_status parse_metadata(const char *path, const vptq_metadata_list *found,
                                  vptq_metadata meta[META_COUNT], vptq_err *err)
{
    static const char *const keys[META_COUNT] = {"format",      "name",   "entry",
                                                 "fingerprint", "report", "xxh3"};
    for (size_t i = 0; i < META_COUNT; i++) {
        meta[i] = (vptq_metadata){keys[i], vptq_metadata_find(found, keys[i])};
        if (!meta[i].value)
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: is not a finished matrix: '%s' is missing in its metadata",
                             path, keys[i]);
    }
    if (strcmp(meta[FORMAT].value, LAYER_FORMAT) != 0)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: version '%.20s' of the work format, expected %s", path,
                         meta[FORMAT].value, LAYER_FORMAT);
    return VPTQ_OK;
}

/* An F32 array of the file, each number finite. */
static vptq_status read_floats(vptq_layer_file *f, const char *path, const vptq_tensor *t,
                               const float **out, vptq_err *err)
{
    const float *x = vptq_tensor_aligned(t, &f->set.arena, err);
    if (!x)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < t->bytes / sizeof *x; i++)
        if (!isfinite(x[i]))
            return vptq_fail(err, VPTQ_E_NUMERIC, "%s: tensor '%s': element %zu is %g", path,
                             t->name, i, (double)x[i]);
    *out = x;
    return VPTQ_OK;
}

static vptq_status read_float_codebook(vptq_layer_file *f, const char *path, const char *name,
                                       uint32_t k, const float **out, vptq_err *err)
{
    const vptq_vq_shape *s = &f->matrix.vq.shape;
    const vptq_tensor *t = vptq_tensor_find(&f->set, name);
    if (!t || t->type != VPTQ_F32 || t->dims != 3 || t->shape[0] != s->groups ||
        t->shape[1] != k || t->shape[2] != s->v)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: tensor '%s' is missing or not F32 [%u, %u, %u]", path, name,
                         (unsigned)s->groups, (unsigned)k, (unsigned)s->v);
    return read_floats(f, path, t, out, err);
}

static vptq_status read_norm(const char *path, const json_t *entry, vptq_layer_file *f,
                             vptq_err *err)
{
    const vptq_tensor *t = vptq_tensor_find(&f->set, NORM);
    VPTQ_CHECK(vptq_json_bool_or(entry, path, FOLDED, false, &f->folded, err));
    if (!t)
        return VPTQ_OK;
    if (!f->folded || t->type != VPTQ_F32 || t->dims != 1 || t->shape[0] > UINT32_MAX)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: tensor '" NORM "' is not F32 [columns] of a folded matrix", path);
    f->norm_size = (uint32_t)t->shape[0];
    return read_floats(f, path, t, &f->norm, err);
}

static vptq_status read_packed(const char *path, const char *name, const json_t *entry,
                               vptq_layer_file *f, vptq_err *err)
{
    VPTQ_CHECK(vptq_packed_read(&(vptq_packed_source){&f->set, entry, name, path},
                                &f->set.arena, &f->matrix, err));
    const vptq_vq_shape *s = &f->matrix.vq.shape;
    VPTQ_CHECK(read_float_codebook(f, path, "centroids_f32", s->k, &f->centroids_f32, err));
    return s->k_res ? read_float_codebook(f, path, "res_centroids_f32", s->k_res,
                                          &f->res_centroids_f32, err)
                    : VPTQ_OK;
}

/* *bits: of the activations, 8 if the codes are bytes, else 0. */
static vptq_status read_format(const char *path, const char *name, const json_t *entry,
                               uint32_t *bits, vptq_err *err)
{
    const char *format;
    uint64_t found;
    VPTQ_CHECK(vptq_json_str_or(entry, path, "format", "", &format, err));
    const bool bytes = !strcmp(format, BYTES_FORMAT);
    if (!bytes && strcmp(format, PACKED_FORMAT) != 0)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: layer '%s' has codes in format '%.20s', expected " PACKED_FORMAT
                         " or " BYTES_FORMAT,
                         path, name, format);
    *bits = bytes ? VPTQ_COMPRESSED_ACTIVATION_BITS : 0;
    VPTQ_CHECK(vptq_json_u64_or(entry, path, "activation_bits", UINT32_MAX, 0, &found, err));
    if (found != *bits)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: layer '%s' has activations of %u bits, expected %u with format "
                         "'%s'",
                         path, name, (unsigned)found, (unsigned)*bits, format);
    return VPTQ_OK;
}

/* NULL if memory runs out. */
static const char *weight_name(const char *module, vptq_arena *arena, vptq_err *err)
{
    const size_t size = strlen(module) + sizeof ".weight";
    char *name = vptq_arena_alloc(arena, size, 1, err);
    if (name)
        snprintf(name, size, "%s.weight", module);
    return name;
}

static vptq_status read_uniform(const char *path, const char *name, const json_t *entry,
                                vptq_layer_file *f, vptq_err *err)
{
    uint32_t activation_bits = 0;
    uint64_t bits, group_size;
    bool symmetric;
    VPTQ_CHECK(read_format(path, name, entry, &activation_bits, err));
    VPTQ_CHECK(vptq_json_u64(entry, path, "num_bits", VPTQ_UNIFORM_MAX_BITS, &bits, err));
    const uint32_t least = activation_bits ? VPTQ_UNIFORM_MAX_BITS : VPTQ_COMPRESSED_MIN_BITS;
    if (bits < least)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: layer '%s' has codes of %u bits, expected %u to %d", path, name,
                         (unsigned)bits, (unsigned)least, VPTQ_UNIFORM_MAX_BITS);
    VPTQ_CHECK(vptq_json_u64(entry, path, "group_size", UINT32_MAX, &group_size, err));
    VPTQ_CHECK(vptq_json_bool_or(entry, path, "symmetric", false, &symmetric, err));
    const vptq_compressed_layout layout = {.bits = (uint32_t)bits,
                                           .group_size = (uint32_t)group_size,
                                           .symmetric = symmetric,
                                           .bytes = activation_bits > 0,
                                           .activation_bits = activation_bits,
                                           .ragged = true};
    VPTQ_CHECK(
        vptq_compressed_read(&f->set, &layout, name, path, &f->set.arena, &f->uniform, err));
    VPTQ_CHECK(vptq_compressed_check_activations(&f->uniform, path, err));
    const char *weight = weight_name(name, &f->set.arena, err);
    if (!weight)
        return VPTQ_E_NOMEM;
    f->weight = vptq_compressed_weight(&f->uniform, weight, f->set.tensors[0].file);
    return VPTQ_OK;
}

/* Fails for a number of 16 bits that is not finite. */
static vptq_status check_finite(const char *path, const vptq_tensor *t, vptq_err *err)
{
    const uint16_t exponent = t->type == VPTQ_F16 ? 0x7c00 : 0x7f80;
    for (size_t i = 0; i < t->bytes / 2; i++) {
        uint16_t bits;
        memcpy(&bits, t->data + 2 * i, sizeof bits);
        if ((bits & exponent) == exponent)
            return vptq_fail(err, VPTQ_E_NUMERIC, "%s: tensor '%s': element %zu is not finite",
                             path, t->name, i);
    }
    return VPTQ_OK;
}

/* The only tensor: NAME.weight, numbers of 16 bits. */
static vptq_status read_dense(const char *path, const char *name, vptq_layer_file *f,
                              vptq_err *err)
{
    const char *weight = weight_name(name, &f->set.arena, err);
    if (!weight)
        return VPTQ_E_NOMEM;
    const vptq_tensor *t = vptq_tensor_find(&f->set, weight);
    const size_t others = vptq_tensor_find(&f->set, NORM) ? 1 : 0;
    if (!t || f->set.count > 1 + others || t->dims < 1 || t->dims > 2 ||
        (t->type != VPTQ_F16 && t->type != VPTQ_BF16))
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: expected one tensor '%.200s' of one or two dimensions and type "
                         "F16 or BF16",
                         path, weight);
    f->dense = name;
    f->weight = *t;
    f->weight.round_to = t->type;
    return check_finite(path, &f->weight, err);
}

static bool is_dense(const json_t *entry)
{
    const char *format = json_string_value(json_object_get(entry, "format"));
    return format && !strcmp(format, DENSE_FORMAT);
}

static vptq_status read_matrix(const char *path, const vptq_metadata meta[META_COUNT],
                               vptq_layer_file *f, vptq_err *err)
{
    json_t *entry = NULL;
    vptq_status st = VPTQ_OK;
    const char *name = meta[NAME].value;
    VPTQ_TRY(vptq_json_parse(meta[ENTRY].value, strlen(meta[ENTRY].value), path, &entry, err));
    f->is_additive = vptq_additive_is_entry(entry);
    f->is_uniform = !f->is_additive && json_object_get(entry, "num_bits") != NULL;
    if (f->is_additive)
        VPTQ_TRY(
            vptq_additive_read(&f->set, entry, name, path, &f->set.arena, &f->additive, err));
    else if (f->is_uniform)
        VPTQ_TRY(read_uniform(path, name, entry, f, err));
    else if (is_dense(entry))
        VPTQ_TRY(read_dense(path, name, f, err));
    else
        VPTQ_TRY(read_packed(path, name, entry, f, err));
    VPTQ_TRY(read_norm(path, entry, f, err));
    f->fingerprint = meta[FINGERPRINT].value;
    f->report = meta[REPORT].value;
out:
    json_decref(entry);
    return st;
}

vptq_status vptq_layer_file_read(const char *path, vptq_mem *mem, vptq_layer_file *f,
                                 vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    *f = (vptq_layer_file){0};
    vptq_tensor_set_init(&f->set, mem);
    vptq_metadata_list found;
    vptq_metadata meta[META_COUNT];
    char hex[VPTQ_SAFETENSORS_SUM];
    VPTQ_TRY(vptq_safetensors_read(path, &f->set, &found, err));
    VPTQ_TRY(vptq_tensor_set_finish(&f->set, err));
    VPTQ_TRY(parse_metadata(path, &found, meta, err));
    vptq_safetensors_sum(f->set.tensors, f->set.count, meta, SUM, hex);
    VPTQ_TRY(vptq_safetensors_check_sum(path, hex, meta[SUM].value, err));
    VPTQ_TRY(read_matrix(path, meta, f, err));
out:
    if (st)
        vptq_layer_file_release(f);
    return st;
}

vptq_status vptq_layer_file_decode(const vptq_ctx *ctx, vptq_layer_file *f, vptq_err *err)
{
    if (!f->is_additive)
        return VPTQ_OK;
    return vptq_additive_weight(ctx, &f->additive, f->set.tensors[0].file, &f->set.arena,
                                &f->weight, err);
}

void vptq_layer_file_release(vptq_layer_file *f)
{
    vptq_tensor_set_release(&f->set);
    *f = (vptq_layer_file){0};
}
