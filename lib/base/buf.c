/* The growable byte buffer (buf.h). */
#include "lib/base/buf.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* `data` of a buffer that owns nothing points here (cap 0), so it is always a valid empty
 * text.  It is const: nothing is written before reserve has replaced it. */
static const char empty_text[1] = "";

void vptq_buf_init(vptq_buf *b, vptq_mem *mem)
{
    union {
        const char *in;
        char *out;
    } text = {.in = empty_text};
    *b = (vptq_buf){.mem = mem, .data = text.out};
}

void vptq_buf_release(vptq_buf *b)
{
    if (b->cap)
        vptq_mem_free(b->mem, b->data);
    vptq_buf_init(b, b->mem);
}

void vptq_buf_clear(vptq_buf *b)
{
    b->len = 0;
    if (b->cap)
        b->data[0] = 0;
}

vptq_status vptq_buf_reserve(vptq_buf *b, size_t extra, vptq_err *err)
{
    size_t need;
    if (!vptq_size_add(b->len, extra, &need) || !vptq_size_add(need, 1, &need))
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory (%zu bytes requested)", extra);
    if (need <= b->cap)
        return VPTQ_OK;
    size_t cap = b->cap <= SIZE_MAX / 2 ? b->cap * 2 : need;
    if (cap < need)
        cap = need;
    if (cap < 64)
        cap = 64;
    char *data = vptq_mem_alloc(b->mem, cap, 1, err);
    if (!data)
        return VPTQ_E_NOMEM;
    memcpy(data, b->data, b->len + 1);
    if (b->cap)
        vptq_mem_free(b->mem, b->data);
    b->data = data;
    b->cap = cap;
    return VPTQ_OK;
}

vptq_status vptq_buf_add(vptq_buf *b, const void *bytes, size_t n, vptq_err *err)
{
    VPTQ_CHECK(vptq_buf_reserve(b, n, err));
    if (n)
        memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = 0;
    return VPTQ_OK;
}

vptq_status vptq_buf_vprintf(vptq_buf *b, vptq_err *err, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    if (n < 0)
        return vptq_fail_errno(err, VPTQ_E_ARG, errno, "cannot format a text");
    VPTQ_CHECK(vptq_buf_reserve(b, (size_t)n, err));
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    b->len += (size_t)n;
    return VPTQ_OK;
}

vptq_status vptq_buf_printf(vptq_buf *b, vptq_err *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const vptq_status st = vptq_buf_vprintf(b, err, fmt, ap);
    va_end(ap);
    return st;
}
