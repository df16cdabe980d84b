/* Reads one matrix of the compressed-tensors layout and checks everything about it. */
#include <inttypes.h>
#include <string.h>

#include "formats/hf/compressed_internal.h"
#include "formats/hf/parts.h"
#include "lib/base/bits.h"
#include "lib/base/text.h"

typedef struct matrix_reader {
    vptq_parts parts;
    const vptq_compressed_layout *layout;
    vptq_uniform u;
    vptq_dtype storage;
    bool one_scale; /* of the whole matrix */
} matrix_reader;

static bool is_matrix(const vptq_tensor *t, uint64_t rows, uint64_t cols)
{
    return t->dims == 2 && t->shape[0] == rows && t->shape[1] == cols;
}

/* Fails if a part exists that the group rules out: readers that trust the config and readers
 * that trust the tensors would decode different matrices. */
static vptq_status check_absent(const matrix_reader *r, const char *part, const char *why)
{
    if (!vptq_parts_find(&r->parts, part))
        return VPTQ_OK;
    return vptq_fail(r->parts.err, VPTQ_E_FORMAT,
                     "%s: tensor '%s.%s' is present, but the layer's config group has %s",
                     r->parts.file, r->parts.name, part, why);
}

/* ---- codes ---- */

static vptq_status set_shape(matrix_reader *r, uint64_t out, uint64_t in)
{
    vptq_uniform_shape *s = &r->u.shape;
    const vptq_compressed_layout *l = r->layout;
    VPTQ_CHECK(vptq_parts_check_size(&r->parts, out, in));
    *s = (vptq_uniform_shape){.out = (uint32_t)out,
                              .in = (uint32_t)in,
                              .bits = l->bits,
                              .group_size = l->group_size ? l->group_size : (uint32_t)in,
                              .has_zeros = !l->symmetric};
    return VPTQ_OK;
}

/* Words of a row in which no code crosses the end of a word. */
static uint64_t padded_words(uint64_t n, uint32_t bits)
{
    const uint32_t codes = VPTQ_COMPRESSED_WORD_BITS / bits;
    return (n + codes - 1) / codes;
}

static vptq_status read_shape(matrix_reader *r)
{
    vptq_tensor t = {0};
    const void *data = NULL;
    int64_t shape[2];
    VPTQ_CHECK(vptq_parts_need(&r->parts, "weight_shape", &t));
    VPTQ_CHECK(vptq_parts_check_type(&r->parts, &t, VPTQ_I64));
    VPTQ_CHECK(vptq_parts_check_shape(&r->parts, &t, 2, 0));
    VPTQ_CHECK(vptq_parts_load(&r->parts, &t, &data));
    memcpy(shape, data, sizeof shape);
    if (shape[0] < 0 || shape[1] < 0)
        return vptq_fail(r->parts.err, VPTQ_E_SHAPE,
                         "%s: tensor '%s' says %" PRId64 " x %" PRId64
                         ", expected a matrix's rows and columns",
                         r->parts.file, t.name, shape[0], shape[1]);
    return set_shape(r, (uint64_t)shape[0], (uint64_t)shape[1]);
}

static vptq_status read_packed(matrix_reader *r)
{
    const vptq_uniform_shape *s = &r->u.shape;
    vptq_tensor t = {0};
    const void *data = NULL;
    VPTQ_CHECK(check_absent(r, "weight", "a packed format"));
    VPTQ_CHECK(read_shape(r));
    VPTQ_CHECK(vptq_parts_need(&r->parts, "weight_packed", &t));
    VPTQ_CHECK(vptq_parts_check_type(&r->parts, &t, VPTQ_I32));
    const uint64_t words = vptq_uniform_row_words(s), padded = padded_words(s->in, s->bits);
    if (padded != words && is_matrix(&t, s->out, padded))
        return vptq_fail(r->parts.err, VPTQ_E_UNSUPPORTED,
                         "%s: tensor '%s' has gaps after the codes of %u bits in every word, "
                         "as compressed-tensors before 0.18 wrote them: %" PRIu64
                         " words per row, expected %" PRIu64,
                         r->parts.file, t.name, (unsigned)s->bits, padded, words);
    VPTQ_CHECK(vptq_parts_check_shape(&r->parts, &t, s->out, words));
    VPTQ_CHECK(vptq_parts_load(&r->parts, &t, &data));
    r->u.codes = data;
    return VPTQ_OK;
}

/* Packs signed bytes. */
static vptq_status read_bytes(matrix_reader *r)
{
    const vptq_uniform_shape *s = &r->u.shape;
    vptq_tensor t = {0};
    const void *data = NULL;
    VPTQ_CHECK(check_absent(r, "weight_packed", "a format of bytes"));
    VPTQ_CHECK(vptq_parts_need(&r->parts, "weight", &t));
    VPTQ_CHECK(vptq_parts_check_type(&r->parts, &t, VPTQ_I8));
    if (t.dims != 2)
        return vptq_fail(r->parts.err, VPTQ_E_SHAPE,
                         "%s: tensor '%s' has %u dimensions, expected 2", r->parts.file, t.name,
                         (unsigned)t.dims);
    VPTQ_CHECK(set_shape(r, t.shape[0], t.shape[1]));
    VPTQ_CHECK(vptq_parts_load(&r->parts, &t, &data));
    const size_t row_bytes = vptq_uniform_row_words(s) * sizeof(uint32_t);
    uint8_t *codes = vptq_arena_zalloc(r->parts.arena, s->out, row_bytes, r->parts.err);
    if (!codes)
        return VPTQ_E_NOMEM;
    const uint8_t *src = data;
    for (size_t row = 0; row < s->out; row++)
        for (size_t c = 0; c < s->in; c++)
            codes[row * row_bytes + c] =
                (uint8_t)(src[row * s->in + c] ^ VPTQ_COMPRESSED_BYTE_ZERO);
    r->u.codes = (const uint32_t *)(const void *)codes;
    return VPTQ_OK;
}

/* ---- scales and zero points ---- */

static vptq_status check_groups(const matrix_reader *r, const vptq_tensor *scales)
{
    const vptq_uniform_shape *s = &r->u.shape;
    const uint64_t found = scales->dims == 2 ? scales->shape[1] : 0;
    char taken[128] = "every group must have the same number";
    if (r->layout->ragged || s->in % s->group_size == 0)
        return VPTQ_OK;
    if (found > 0 && found <= s->in)
        snprintf(taken, sizeof taken,
                 "compressed-tensors before 0.19 takes %" PRIu64
                 " scales per row for groups of %" PRIu64,
                 found, s->in / found);
    return vptq_fail(r->parts.err, VPTQ_E_SHAPE,
                     "%s: layer '%s': groups of %u columns do not divide %u columns: %s",
                     r->parts.file, r->parts.name, (unsigned)s->group_size, (unsigned)s->in,
                     taken);
}

/* Repeats the one scale of a matrix for every row. */
static vptq_status repeat_scale(matrix_reader *r, float scale)
{
    float *x = vptq_arena_alloc(r->parts.arena, r->u.shape.out, sizeof *x, r->parts.err);
    if (!x)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < r->u.shape.out; i++)
        x[i] = scale;
    r->u.scales = x;
    return VPTQ_OK;
}

static vptq_status read_scales(matrix_reader *r)
{
    const vptq_uniform_shape *s = &r->u.shape;
    vptq_tensor t = {0};
    float *scales = NULL;
    VPTQ_CHECK(vptq_parts_need(&r->parts, "weight_scale", &t));
    VPTQ_CHECK(check_groups(r, &t));
    r->one_scale = r->layout->group_size == 0 && t.dims == 1 && t.shape[0] == 1;
    if (!r->one_scale)
        VPTQ_CHECK(vptq_parts_check_shape(&r->parts, &t, s->out, vptq_uniform_groups(s)));
    VPTQ_CHECK(vptq_parts_load_scales(&r->parts, &t, false, &scales));
    r->storage = t.type;
    r->u.scales = scales;
    return r->one_scale ? repeat_scale(r, scales[0]) : VPTQ_OK;
}

/* Unpacks zero points, packed along the rows: [words of out, groups]. */
static void unpack_zeros(const vptq_uniform_shape *s, const uint32_t *words, uint8_t *zeros)
{
    const size_t groups = vptq_uniform_groups(s);
    for (size_t row = 0; row < s->out; row++) {
        const size_t bit = row * s->bits, w = bit / VPTQ_COMPRESSED_WORD_BITS;
        const unsigned shift = (unsigned)(bit % VPTQ_COMPRESSED_WORD_BITS);
        const bool crosses = shift + s->bits > VPTQ_COMPRESSED_WORD_BITS;
        for (size_t g = 0; g < groups; g++) {
            uint64_t two = words[w * groups + g];
            if (crosses)
                two |= (uint64_t)words[(w + 1) * groups + g] << VPTQ_COMPRESSED_WORD_BITS;
            zeros[row * groups + g] = (uint8_t)(two >> shift & ((1U << s->bits) - 1));
        }
    }
}

/* Signed zero points. */
static vptq_status widen_zeros(const matrix_reader *r, const vptq_tensor *t, const int8_t *src,
                               uint8_t *zeros)
{
    const vptq_uniform_shape *s = &r->u.shape;
    const size_t groups = vptq_uniform_groups(s);
    const int middle = 1 << (s->bits - 1);
    for (size_t i = 0; i < s->out * groups; i++) {
        if (src[i] < -middle || src[i] >= middle)
            return vptq_fail(r->parts.err, VPTQ_E_FORMAT,
                             "%s: tensor '%s': row %zu, group %zu: zero point %d, expected %d "
                             "to %d",
                             r->parts.file, t->name, i / groups, i % groups, src[i], -middle,
                             middle - 1);
        zeros[i] = (uint8_t)(src[i] + middle);
    }
    return VPTQ_OK;
}

static vptq_status read_zeros(matrix_reader *r)
{
    static const char part[] = "weight_zero_point";
    const vptq_uniform_shape *s = &r->u.shape;
    vptq_tensor t = {0};
    const void *data = NULL;
    if (!s->has_zeros)
        return check_absent(r, part, "symmetric weights");
    VPTQ_CHECK(vptq_parts_need(&r->parts, part, &t));
    if (r->one_scale)
        return vptq_fail(r->parts.err, VPTQ_E_UNSUPPORTED,
                         "%s: layer '%s': a zero point of the whole matrix is not supported",
                         r->parts.file, r->parts.name);
    const size_t groups = vptq_uniform_groups(s);
    const bool packed = !r->layout->bytes && t.type != VPTQ_I8;
    VPTQ_CHECK(vptq_parts_check_type(&r->parts, &t, packed ? VPTQ_I32 : VPTQ_I8));
    VPTQ_CHECK(vptq_parts_check_shape(
        &r->parts, &t, packed ? vptq_bits_words(s->out, s->bits) : s->out, groups));
    VPTQ_CHECK(vptq_parts_load(&r->parts, &t, &data));
    uint8_t *zeros =
        vptq_arena_alloc(r->parts.arena, s->out * groups, sizeof *zeros, r->parts.err);
    if (!zeros)
        return VPTQ_E_NOMEM;
    r->u.zeros = zeros;
    if (!packed)
        return widen_zeros(r, &t, data, zeros);
    unpack_zeros(s, data, zeros);
    return VPTQ_OK;
}

/* ---- groups of columns in any order ---- */

/* Columns that a group must have. */
static uint32_t columns_of(const vptq_uniform_shape *s, uint32_t group)
{
    const uint32_t left = s->in - group * s->group_size;
    return left < s->group_size ? left : s->group_size;
}

vptq_status vptq_compressed_find_uneven(const vptq_uniform_shape *s, const int32_t *groups,
                                        vptq_arena *arena, uint32_t *group, uint32_t *columns,
                                        vptq_err *err)
{
    const uint32_t n = vptq_uniform_groups(s);
    uint32_t *count = vptq_arena_zalloc(arena, n, sizeof *count, err);
    if (!count)
        return VPTQ_E_NOMEM;
    for (size_t c = 0; c < s->in; c++)
        count[groups[c]]++;
    for (*group = 0; *group < n && count[*group] == columns_of(s, *group);)
        ++*group;
    *columns = *group < n ? count[*group] : 0;
    return VPTQ_OK;
}

/* Without an order the library may store -1 for every column. */
static bool is_unset(const int32_t *groups, size_t n)
{
    size_t i = 0;
    while (i < n && groups[i] == -1)
        i++;
    return i == n;
}

static vptq_status check_order(const matrix_reader *r, const vptq_tensor *t,
                               const int32_t *groups)
{
    const vptq_uniform_shape *s = &r->u.shape;
    const uint32_t n = vptq_uniform_groups(s);
    uint32_t uneven, columns;
    VPTQ_CHECK(vptq_parts_check_groups(&r->parts, t, groups, s->in, n));
    VPTQ_CHECK(vptq_compressed_find_uneven(s, groups, r->parts.arena, &uneven, &columns,
                                           r->parts.err));
    if (uneven == n)
        return VPTQ_OK;
    return vptq_fail(r->parts.err, VPTQ_E_FORMAT,
                     "%s: tensor '%s': group %u has %u columns, expected %u", r->parts.file,
                     t->name, (unsigned)uneven, (unsigned)columns,
                     (unsigned)columns_of(s, uneven));
}

static vptq_status read_order(matrix_reader *r)
{
    static const char part[] = "weight_g_idx";
    const void *data = NULL;
    vptq_tensor t = {0};
    if (!vptq_parts_find(&r->parts, part))
        return VPTQ_OK;
    if (r->layout->group_size == 0)
        return check_absent(r, part, "one scale per row");
    VPTQ_CHECK(vptq_parts_need(&r->parts, part, &t));
    VPTQ_CHECK(vptq_parts_check_type(&r->parts, &t, VPTQ_I32));
    VPTQ_CHECK(vptq_parts_check_shape(&r->parts, &t, r->u.shape.in, 0));
    VPTQ_CHECK(vptq_parts_load(&r->parts, &t, &data));
    if (is_unset(data, r->u.shape.in))
        return VPTQ_OK;
    VPTQ_CHECK(check_order(r, &t, data));
    r->u.groups = data;
    r->u.shape.has_groups = true;
    return VPTQ_OK;
}

vptq_status vptq_compressed_read(const vptq_tensor_set *set,
                                 const vptq_compressed_layout *layout, const char *name,
                                 const char *file, vptq_arena *arena,
                                 vptq_compressed_matrix *out, vptq_err *err)
{
    matrix_reader r = {
        .parts = {.set = set, .name = name, .file = file, .arena = arena, .err = err},
        .layout = layout};
    VPTQ_BUG_IF(layout->bits < VPTQ_COMPRESSED_MIN_BITS ||
                layout->bits > VPTQ_UNIFORM_MAX_BITS ||
                (layout->bytes && layout->bits != VPTQ_UNIFORM_MAX_BITS));
    VPTQ_CHECK(layout->bytes ? read_bytes(&r) : read_packed(&r));
    VPTQ_CHECK(read_scales(&r));
    VPTQ_CHECK(read_zeros(&r));
    VPTQ_CHECK(read_order(&r));
    if (vptq_uniform_shape_check(&r.u.shape, err))
        return vptq_err_context(err, "%s: layer '%s'", file, name);
    char *own_name = vptq_arena_strdup(arena, name, err);
    if (!own_name)
        return VPTQ_E_NOMEM;
    *out = (vptq_compressed_matrix){.name = own_name,
                                    .u = r.u,
                                    .storage = r.storage,
                                    .activation_bits = layout->activation_bits,
                                    .ragged = layout->ragged};
    return VPTQ_OK;
}

vptq_status vptq_compressed_check_activations(const vptq_compressed_matrix *m, const char *file,
                                              vptq_err *err)
{
    const vptq_uniform_shape *s = &m->u.shape;
    if (!m->activation_bits ||
        (s->bits == VPTQ_UNIFORM_MAX_BITS && s->group_size >= s->in && !s->has_zeros))
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                     "%s: layer '%s' has activations of %u bits with %scodes of %u bits in "
                     "groups of %u columns, expected 8 bits, no zero points and one group per "
                     "row",
                     file, m->name, (unsigned)m->activation_bits,
                     s->has_zeros ? "asymmetric " : "", (unsigned)s->bits,
                     (unsigned)s->group_size);
}

vptq_tensor vptq_compressed_weight(const vptq_compressed_matrix *m, const char *name,
                                   const char *file)
{
    const vptq_uniform_shape *s = &m->u.shape;
    return (vptq_tensor){.name = name,
                         .type = m->storage,
                         .dims = 2,
                         .shape = {s->out, s->in},
                         .bytes = (size_t)(vptq_uniform_count_bits(s).total / 8),
                         .round_to = m->storage,
                         .file = file,
                         .uniform = &m->u,
                         .activation_bits = m->activation_bits};
}

size_t vptq_compressed_module_length(const char *tensor_name)
{
    static const char *const parts[] = {".weight_packed", ".weight_scale", ".weight_shape",
                                        ".weight_zero_point", ".weight_g_idx"};
    size_t len = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && !len; i++)
        len = vptq_text_before(tensor_name, parts[i]);
    return len;
}
