/* Parses the header of .npy files. */
#include "formats/torch/npy.h"

#include <string.h>

#include "lib/base/le.h"
#include "lib/base/text.h"

static const char magic[] = "\x93NUMPY";
enum { MAGIC_BYTES = sizeof magic - 1, MAX_HEADER = 1 << 16, MAX_SHOWN = 40 };

/* The text of the dictionary and the values parsed so far. */
typedef struct header {
    const char *path, *at, *end;
    const char *descr; /* descr_len bytes, not terminated; NULL = not parsed yet */
    size_t descr_len;
    bool has_order, has_shape;
    vptq_npy *out;
} header;

static vptq_status bad_header(const header *h, const char *what, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: the header of the .npy file %s", h->path, what);
}

static void skip_spaces(header *h)
{
    while (h->at < h->end && (*h->at == ' ' || *h->at == '\n' || *h->at == '\t'))
        h->at++;
}

static bool take(header *h, const char *word)
{
    size_t n = strlen(word);
    skip_spaces(h);
    if ((size_t)(h->end - h->at) < n || memcmp(h->at, word, n) != 0)
        return false;
    h->at += n;
    return true;
}

/* Takes a string in single or double quotes; these headers contain no escapes. */
static bool take_string(header *h, const char **text, size_t *len)
{
    skip_spaces(h);
    if (h->at == h->end || (*h->at != '\'' && *h->at != '"'))
        return false;
    char quote = *h->at++;
    const char *close = memchr(h->at, quote, (size_t)(h->end - h->at));
    if (!close)
        return false;
    *text = h->at;
    *len = (size_t)(close - h->at);
    h->at = close + 1;
    return true;
}

static bool take_size(header *h, uint64_t *n)
{
    skip_spaces(h);
    const char *first = h->at;
    for (*n = 0; h->at < h->end && *h->at >= '0' && *h->at <= '9'; h->at++) {
        if (*n > UINT64_MAX / 10 - 1)
            return false;
        *n = *n * 10 + (uint64_t)(*h->at - '0');
    }
    return h->at > first;
}

static bool take_shape(header *h)
{
    vptq_tensor *t = &h->out->tensor;
    if (!take(h, "("))
        return false;
    for (bool more = true; !take(h, ")"); t->dims++) {
        if (!more || t->dims == VPTQ_MAX_DIMS || !take_size(h, &t->shape[t->dims]))
            return false;
        more = take(h, ",");
    }
    return true;
}

static vptq_status take_entry(header *h, vptq_err *err)
{
    const char *key;
    size_t len;
    if (!take_string(h, &key, &len) || !take(h, ":"))
        return bad_header(h, "is not a dictionary", err);
    if (vptq_text_is(key, len, "descr") && !h->descr) {
        if (!take_string(h, &h->descr, &h->descr_len))
            return bad_header(h, "has a type that is not a string (an array of records?)", err);
    } else if (vptq_text_is(key, len, "fortran_order") && !h->has_order) {
        h->has_order = true;
        h->out->fortran = take(h, "True");
        if (!h->out->fortran && !take(h, "False"))
            return bad_header(h, "has a fortran_order that is neither True nor False", err);
    } else if (vptq_text_is(key, len, "shape") && !h->has_shape) {
        h->has_shape = true;
        if (!take_shape(h))
            return bad_header(h, "has no usable shape", err);
    } else {
        return bad_header(
            h, "has a key other than descr, fortran_order and shape, or a duplicate key", err);
    }
    return VPTQ_OK;
}

static vptq_status parse(header *h, vptq_err *err)
{
    if (!take(h, "{"))
        return bad_header(h, "is not a dictionary", err);
    while (!take(h, "}")) {
        VPTQ_CHECK(take_entry(h, err));
        if (!take(h, ",") && (h->at == h->end || *h->at != '}'))
            return bad_header(h, "is not a dictionary", err);
    }
    skip_spaces(h);
    if (h->at != h->end || !h->descr || !h->has_order || !h->has_shape)
        return bad_header(h, "lacks one of the keys descr, fortran_order and shape", err);
    return VPTQ_OK;
}

static vptq_status take_type(const header *h, vptq_err *err)
{
    vptq_tensor *t = &h->out->tensor;
    if (vptq_text_is(h->descr, h->descr_len, "<f4"))
        t->type = VPTQ_F32;
    else if (vptq_text_is(h->descr, h->descr_len, "<f8"))
        t->type = VPTQ_F64;
    else
        return vptq_fail(
            err, VPTQ_E_UNSUPPORTED,
            "%s: its numbers have type '%.*s', expected '<f4' or '<f8' (float32, float64)",
            h->path, (int)(h->descr_len < MAX_SHOWN ? h->descr_len : MAX_SHOWN), h->descr);
    return VPTQ_OK;
}

/* Finds the dictionary, which follows its length as u16 or u32. */
static vptq_status find_header(const char *path, vptq_npy *a, header *h, vptq_err *err)
{
    const uint8_t *p = a->map.data;
    const size_t size = a->map.size;
    if (size < MAGIC_BYTES + 4 || memcmp(p, magic, MAGIC_BYTES) != 0)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: is not a .npy file", path);
    const int version = p[MAGIC_BYTES];
    if (version < 1 || version > 3)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: version %d of the .npy format, expected 1 to 3", path, version);
    const size_t width = version == 1 ? 2 : 4, begin = MAGIC_BYTES + 2 + width;
    const uint64_t len = begin > size ? 0 : vptq_get_le(p + MAGIC_BYTES + 2, (unsigned)width);
    if (begin > size || len > MAX_HEADER || len > size - begin)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: the .npy file ends inside its header", path);
    const char *text = (const char *)p + begin;
    *h = (header){.path = path, .at = text, .end = text + len, .out = a};
    return VPTQ_OK;
}

vptq_status vptq_npy_open(const char *path, vptq_npy *a, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    header h = {.path = path};
    size_t elements = 1;
    *a = (vptq_npy){.tensor = {.name = "array", .file = path}};
    VPTQ_TRY(vptq_map_open(path, &a->map, err));
    VPTQ_TRY(find_header(path, a, &h, err));
    const uint8_t *data = (const uint8_t *)h.end;
    VPTQ_TRY(parse(&h, err));
    VPTQ_TRY(take_type(&h, err));
    vptq_tensor *t = &a->tensor;
    const size_t data_bytes = a->map.size - (size_t)(data - a->map.data);
    bool fits = true;
    for (uint32_t d = 0; fits && d < t->dims; d++)
        fits = t->shape[d] <= SIZE_MAX && vptq_size_mul(elements, t->shape[d], &elements);
    if (!fits || !vptq_dtype_bytes(t->type, elements, &t->bytes) || t->bytes != data_bytes)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_FORMAT,
                           "%s: %zu bytes of numbers do not match the shape in the header",
                           path, data_bytes));
    t->data = data;
out:
    if (st)
        vptq_npy_release(a);
    return st;
}

void vptq_npy_release(vptq_npy *a)
{
    vptq_map_release(&a->map);
    *a = (vptq_npy){.fortran = false};
}

double vptq_npy_at(const vptq_npy *a, size_t i, size_t j)
{
    const vptq_tensor *t = &a->tensor;
    const size_t at = a->fortran ? j * (size_t)t->shape[0] + i : i * (size_t)t->shape[1] + j;
    float single;
    double x;
    if (t->type == VPTQ_F64) {
        memcpy(&x, t->data + at * sizeof x, sizeof x);
        return x;
    }
    memcpy(&single, t->data + at * sizeof single, sizeof single);
    return (double)single;
}
