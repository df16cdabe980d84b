/* Reads the layouts of AutoGPTQ and AutoAWQ. */
#include "formats/hf/gptq.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "formats/hf/config.h"
#include "formats/hf/parts.h"
#include "lib/base/bits.h"
#include "lib/base/text.h"

enum {
    WORD_BITS = 32,
    AWQ_BITS = 4,
    AWQ_ROWS = WORD_BITS / AWQ_BITS, /* of a word */
    MAX_GROUP_SIZE = 1 << 24
};

/* ---- config.json ---- */

typedef struct config_reader {
    const json_t *config;
    char where[512]; /* "FILE: quantization_config", for messages */
    vptq_err *err;
} config_reader;

static bool is_method(const json_t *config, const char *name)
{
    const char *method =
        json_string_value(json_object_get(vptq_hf_quantization(config), "quant_method"));
    return method && strcmp(method, name) == 0;
}

bool vptq_gptq_is_config(const json_t *config)
{
    return is_method(config, "gptq") || is_method(config, "awq");
}

static vptq_status fail_value(const config_reader *r, const char *key, const char *found,
                              const char *expected)
{
    return vptq_fail(r->err, VPTQ_E_UNSUPPORTED, "%s: key '%s' is %.100s, expected %s",
                     r->where, key, found, expected);
}

/* Fails unless a text is one of two; capitals do not count.  *second = whether it is the
 * second.
 */
static vptq_status read_text(const config_reader *r, const char *key, const char *first,
                             const char *other, bool *second)
{
    const char *text;
    char expected[64];
    VPTQ_CHECK(vptq_json_str_or(r->config, r->where, key, first, &text, r->err));
    *second = other && strcasecmp(text, other) == 0;
    if (*second || strcasecmp(text, first) == 0)
        return VPTQ_OK;
    snprintf(expected, sizeof expected, "%s%s%s", first, other ? " or " : "",
             other ? other : "");
    return fail_value(r, key, text, expected);
}

static vptq_status expect_text(const config_reader *r, const char *key, const char *expected)
{
    bool second;
    return read_text(r, key, expected, NULL, &second);
}

static vptq_status expect_false(const config_reader *r, const char *key)
{
    bool value;
    VPTQ_CHECK(vptq_json_bool_or(r->config, r->where, key, false, &value, r->err));
    return value ? fail_value(r, key, "true", "false") : VPTQ_OK;
}

static vptq_status read_numbers(const config_reader *r, vptq_gptq_layout *out)
{
    const json_t *size = json_object_get(r->config, "group_size");
    uint64_t bits, columns = 0;
    char found[24];
    VPTQ_CHECK(vptq_json_u64(r->config, r->where, "bits", UINT32_MAX, &bits, r->err));
    out->bits = (uint32_t)bits;
    snprintf(found, sizeof found, "%u", (unsigned)out->bits);
    if (out->awq && bits != AWQ_BITS)
        return fail_value(r, "bits", found, "4");
    if (bits != 2 && bits != 3 && bits != 4 && bits != 8)
        return fail_value(r, "bits", found, "2, 3, 4 or 8");
    if (json_is_integer(size) && json_integer_value(size) == -1)
        return VPTQ_OK;
    VPTQ_CHECK(
        vptq_json_u64(r->config, r->where, "group_size", MAX_GROUP_SIZE, &columns, r->err));
    out->group_size = (uint32_t)columns;
    return columns ? VPTQ_OK : fail_value(r, "group_size", "0", "-1 or a number of columns");
}

/* Refuses settings of single layers; those that leave a layer plain need not be known. */
static vptq_status check_dynamic(const config_reader *r)
{
    const json_t *dynamic = json_object_get(r->config, "dynamic");
    json_t *all = (json_t *)(uintptr_t)dynamic; /* jansson's iterators are not const */
    if (dynamic && !json_is_null(dynamic) && !json_is_object(dynamic))
        return vptq_fail(r->err, VPTQ_E_FORMAT, "%s: key 'dynamic' is not an object", r->where);
    for (void *it = json_object_iter(all); it; it = json_object_iter_next(all, it))
        if (strncmp(json_object_iter_key(it), "-:", 2) != 0)
            return fail_value(r, "dynamic", "set", "the same layout for all layers");
    return VPTQ_OK;
}

/* GPTQModel writes two keys for the same. */
static vptq_status read_gptq_format(const config_reader *r, bool *v2)
{
    bool checkpoint, format;
    VPTQ_CHECK(read_text(r, "checkpoint_format", "gptq", "gptq_v2", &checkpoint));
    VPTQ_CHECK(read_text(r, "format", "gptq", "gptq_v2", &format));
    *v2 = checkpoint || format;
    if (checkpoint != format && json_is_string(json_object_get(r->config, "format")) &&
        json_is_string(json_object_get(r->config, "checkpoint_format")))
        return vptq_fail(r->err, VPTQ_E_FORMAT,
                         "%s: keys 'format' and 'checkpoint_format' differ", r->where);
    return VPTQ_OK;
}

vptq_status vptq_gptq_layout_of(const json_t *config, const char *file, vptq_gptq_layout *out,
                                vptq_err *err)
{
    config_reader r = {.config = vptq_hf_quantization(config), .err = err};
    vptq_gptq_layout l = {.awq = is_method(config, "awq")};
    snprintf(r.where, sizeof r.where, "%.400s: quantization_config", file);
    VPTQ_CHECK(read_numbers(&r, &l));
    VPTQ_CHECK(check_dynamic(&r));
    VPTQ_CHECK(expect_false(&r, "lm_head"));
    VPTQ_CHECK(expect_text(&r, "pack_dtype", "int32"));
    if (l.awq) {
        VPTQ_CHECK(expect_text(&r, "version", "gemm"));
        VPTQ_CHECK(expect_text(&r, "backend", "autoawq"));
        VPTQ_CHECK(expect_text(&r, "format", "gemm"));
        VPTQ_CHECK(expect_text(&r, "checkpoint_format", "gemm"));
    } else {
        bool v2;
        VPTQ_CHECK(expect_false(&r, "is_marlin_format"));
        VPTQ_CHECK(read_gptq_format(&r, &v2));
        VPTQ_CHECK(vptq_json_bool_or(r.config, r.where, "desc_act", false, &l.ordered, err));
        l.minus_one = !v2;
    }
    *out = l;
    return VPTQ_OK;
}

/* ---- tensors ---- */

typedef struct matrix_reader {
    vptq_parts parts;
    const vptq_gptq_layout *layout;
    vptq_uniform u;
    vptq_dtype storage;
} matrix_reader;

size_t vptq_gptq_module_length(const char *tensor_name)
{
    static const char *const names[] = {".qweight", ".qzeros", ".scales", ".g_idx"};
    size_t len = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !len; i++)
        len = vptq_text_before(tensor_name, names[i]);
    return len;
}

/* Finds a part of this type and shape ([rows] if cols is 0) and loads it. */
static vptq_status load(const matrix_reader *r, const char *part, vptq_dtype type,
                        uint64_t rows, uint64_t cols, const void **data)
{
    vptq_tensor t = {0};
    VPTQ_CHECK(vptq_parts_need(&r->parts, part, &t));
    VPTQ_CHECK(vptq_parts_check_type(&r->parts, &t, type));
    VPTQ_CHECK(vptq_parts_check_shape(&r->parts, &t, rows, cols));
    return vptq_parts_load(&r->parts, &t, data);
}

/* AutoGPTQ packs the columns of a row without gaps into ceil(in bits / 32) words,
 * qweight[w][row], with in divisible by 32; AutoAWQ eight rows of a column into each word of
 * qweight[column]. */
static vptq_status set_shape(matrix_reader *r, const vptq_tensor *t)
{
    const vptq_gptq_layout *l = r->layout;
    if (t->dims != 2 || (!l->awq && t->shape[0] % l->bits)) {
        char found[VPTQ_SHAPE_TEXT];
        vptq_shape_text(t->shape, t->dims, found);
        return vptq_fail(r->parts.err, VPTQ_E_SHAPE,
                         "%s: tensor '%s' is [%s], expected a matrix%s", r->parts.file, t->name,
                         found, l->awq ? "" : " whose rows are whole groups of 32 codes");
    }
    const uint64_t words = l->awq ? t->shape[1] : t->shape[0];
    if (words > INT32_MAX / WORD_BITS)
        return vptq_fail(r->parts.err, VPTQ_E_SHAPE, "%s: tensor '%s' is too large",
                         r->parts.file, t->name);
    const uint64_t out = l->awq ? words * AWQ_ROWS : t->shape[1];
    const uint64_t in = l->awq ? t->shape[0] : words / l->bits * WORD_BITS;
    VPTQ_CHECK(vptq_parts_check_size(&r->parts, out, in));
    const bool grouped = l->group_size && l->group_size < in;
    r->u.shape = (vptq_uniform_shape){.out = (uint32_t)out,
                                      .in = (uint32_t)in,
                                      .bits = l->bits,
                                      .group_size = grouped ? l->group_size : (uint32_t)in};
    return VPTQ_OK;
}

/* Position of a row's field in a word of AutoAWQ. */
static unsigned awq_shift(size_t row)
{
    static const uint8_t fields[AWQ_ROWS] = {0, 4, 1, 5, 2, 6, 3, 7};
    return fields[row % AWQ_ROWS] * (unsigned)AWQ_BITS;
}

static void unpack_awq(const vptq_uniform_shape *s, const uint32_t *src, uint32_t *codes)
{
    const size_t row_words = vptq_uniform_row_words(s), blocks = s->out / AWQ_ROWS;
    const uint32_t mask = (1U << AWQ_BITS) - 1;
    for (size_t b = 0; b < blocks; b++)
        for (size_t c = 0; c < s->in; c++)
            for (size_t i = 0; i < AWQ_ROWS; i++)
                vptq_bits_put(codes + (b * AWQ_ROWS + i) * row_words, c, AWQ_BITS,
                              src[c * blocks + b] >> awq_shift(i) & mask);
}

/* codes [out][words] = src [words][out], in tiles of a cache line. */
static void transpose(size_t out, size_t words, const uint32_t *src, uint32_t *codes)
{
    enum { TILE = 16 };
    for (size_t row = 0; row < out; row += TILE)
        for (size_t w = 0; w < words; w++)
            for (size_t i = row; i < out && i < row + TILE; i++)
                codes[i * words + w] = src[w * out + i];
}

static vptq_status read_codes(matrix_reader *r)
{
    const vptq_uniform_shape *s = &r->u.shape;
    vptq_tensor t = {0};
    const void *data = NULL;
    VPTQ_CHECK(vptq_parts_need(&r->parts, "qweight", &t));
    VPTQ_CHECK(vptq_parts_check_type(&r->parts, &t, VPTQ_I32));
    VPTQ_CHECK(set_shape(r, &t));
    VPTQ_CHECK(vptq_parts_load(&r->parts, &t, &data));
    const size_t words = vptq_uniform_row_words(s);
    uint32_t *codes =
        vptq_arena_zalloc(r->parts.arena, s->out * words, sizeof *codes, r->parts.err);
    if (!codes)
        return VPTQ_E_NOMEM;
    if (r->layout->awq)
        unpack_awq(s, data, codes);
    else
        transpose(s->out, words, data, codes);
    r->u.codes = codes;
    return VPTQ_OK;
}

static vptq_status read_scales(matrix_reader *r)
{
    const vptq_uniform_shape *s = &r->u.shape;
    vptq_tensor t = {0};
    float *scales = NULL;
    VPTQ_CHECK(vptq_parts_need(&r->parts, "scales", &t));
    VPTQ_CHECK(vptq_parts_check_shape(&r->parts, &t, vptq_uniform_groups(s), s->out));
    VPTQ_CHECK(vptq_parts_load_scales(&r->parts, &t, true, &scales));
    r->storage = t.type;
    r->u.scales = scales;
    return VPTQ_OK;
}

/* Zero point of a row among the words of one group.  GPTQModel subtracts one from all fields of
 * a word at once, so that a 0 borrows from the next field; adding at once reverts it. */
static uint8_t zero_of(const vptq_gptq_layout *l, const uint32_t *words, size_t row)
{
    const uint32_t mask = (1U << l->bits) - 1;
    if (l->awq)
        return (uint8_t)(words[row / AWQ_ROWS] >> awq_shift(row) & mask);
    if (WORD_BITS % l->bits)
        return (uint8_t)((vptq_bits_get(words, row, l->bits) + l->minus_one) & mask);
    const uint32_t rows = WORD_BITS / l->bits, ones = l->minus_one ? UINT32_MAX / mask : 0;
    return (uint8_t)((words[row / rows] + ones) >> row % rows * l->bits & mask);
}

static vptq_status read_zeros(matrix_reader *r)
{
    vptq_uniform_shape *s = &r->u.shape;
    const size_t groups = vptq_uniform_groups(s), words = vptq_bits_words(s->out, s->bits);
    const void *data = NULL;
    VPTQ_CHECK(load(r, "qzeros", VPTQ_I32, groups, words, &data));
    uint8_t *zeros = vptq_arena_alloc(r->parts.arena, s->out * groups, 1, r->parts.err);
    if (!zeros)
        return VPTQ_E_NOMEM;
    const uint32_t *src = data;
    for (size_t g = 0; g < groups; g++)
        for (size_t row = 0; row < s->out; row++) {
            const uint8_t zero = zero_of(r->layout, src + g * words, row);
            zeros[row * groups + g] = zero;
            s->has_zeros |= zero != 1U << (s->bits - 1);
        }
    r->u.zeros = s->has_zeros ? zeros : NULL;
    return VPTQ_OK;
}

static vptq_status read_order(matrix_reader *r)
{
    static const char part[] = "g_idx";
    vptq_uniform_shape *s = &r->u.shape;
    const vptq_tensor *t = vptq_parts_find(&r->parts, part);
    const void *data = NULL;
    if (!t && !r->layout->ordered)
        return VPTQ_OK;
    VPTQ_CHECK(load(r, part, VPTQ_I32, s->in, 0, &data));
    const int32_t *groups = data;
    VPTQ_CHECK(vptq_parts_check_groups(&r->parts, t, groups, s->in, vptq_uniform_groups(s)));
    for (size_t c = 0; c < s->in && !s->has_groups; c++)
        s->has_groups = (uint32_t)groups[c] != c / s->group_size;
    r->u.groups = s->has_groups ? groups : NULL;
    return VPTQ_OK;
}

static vptq_status read_parts(matrix_reader *r)
{
    if (vptq_parts_find(&r->parts, "weight"))
        return vptq_fail(r->parts.err, VPTQ_E_FORMAT,
                         "%s: layer '%s' has the tensors 'weight' and 'qweight', expected one",
                         r->parts.file, r->parts.name);
    VPTQ_CHECK(read_codes(r));
    VPTQ_CHECK(read_scales(r));
    VPTQ_CHECK(read_zeros(r));
    return read_order(r);
}

vptq_status vptq_gptq_read(const vptq_tensor_set *set, const vptq_gptq_layout *layout,
                           const char *name, const char *file, vptq_arena *arena,
                           vptq_compressed_matrix *out, bool *quantized, vptq_err *err)
{
    matrix_reader r = {
        .parts = {.set = set, .name = name, .file = file, .arena = arena, .err = err},
        .layout = layout};
    *quantized = vptq_parts_find(&r.parts, "qweight") != NULL;
    if (!*quantized)
        return VPTQ_OK;
    VPTQ_CHECK(read_parts(&r));
    char *own_name = vptq_arena_strdup(arena, name, err);
    if (!own_name)
        return VPTQ_E_NOMEM;
    *out = (vptq_compressed_matrix){.name = own_name, .u = r.u, .storage = r.storage};
    return VPTQ_OK;
}
