/* Internal: a growable byte buffer.  After init `data` is never NULL and always has a 0 after
 * `len` bytes. */
#ifndef VPTQ_BASE_BUF_H
#define VPTQ_BASE_BUF_H

#include <stdarg.h>
#include <stddef.h>

#include "lib/base/mem.h"

typedef struct vptq_buf {
    vptq_mem *mem;
    char *data;
    size_t len, cap;
} vptq_buf;

void vptq_buf_init(vptq_buf *b, vptq_mem *mem); /* allocates nothing */
void vptq_buf_release(vptq_buf *b);
void vptq_buf_clear(vptq_buf *b); /* keeps the memory */
vptq_status vptq_buf_reserve(vptq_buf *b, size_t extra, vptq_err *err);
vptq_status vptq_buf_add(vptq_buf *b, const void *bytes, size_t n, vptq_err *err);
vptq_status vptq_buf_printf(vptq_buf *b, vptq_err *err, const char *fmt, ...) VPTQ_PRINTF(3, 4);
vptq_status vptq_buf_vprintf(vptq_buf *b, vptq_err *err, const char *fmt, va_list ap)
    VPTQ_PRINTF(3, 0);

#endif
