/* Error sentences: formatting, context, names of status codes. */
#include "lib/base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/text.h"

vptq_status vptq_fail(vptq_err *err, vptq_status code, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        vptq_text_vformat(err->text, sizeof err->text, fmt, ap);
        va_end(ap);
        err->code = code;
    }
    return code;
}

/* The text of a system error number.  strerror is not safe between threads and strerror_r has
 * two incompatible forms; the POSIX one is what _POSIX_C_SOURCE selects. */
static void system_text(int errnum, char *text, size_t size)
{
    if (strerror_r(errnum, text, size))
        snprintf(text, size, "system error %d", errnum);
}

vptq_status vptq_fail_errno(vptq_err *err, vptq_status code, int errnum, const char *fmt, ...)
{
    if (err) {
        char reason[128];
        va_list ap;
        va_start(ap, fmt);
        size_t len = vptq_text_vformat(err->text, sizeof err->text, fmt, ap);
        va_end(ap);
        system_text(errnum, reason, sizeof reason);
        size_t tail = strlen(reason) + 2;
        /* Cut the end of a long path, never the reason. */
        if (len > sizeof err->text - 1 - tail)
            len = vptq_text_cut(err->text, sizeof err->text - 1 - tail);
        snprintf(err->text + len, sizeof err->text - len, ": %s", reason);
        err->code = code;
    }
    return code;
}

vptq_status vptq_err_context(vptq_err *err, const char *fmt, ...)
{
    if (!err)
        return VPTQ_E_ARG;
    if (err->code == VPTQ_E_CANCELLED)
        return err->code;
    char old[sizeof err->text];
    memcpy(old, err->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    size_t len = vptq_text_vformat(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    if (len + 3 < sizeof err->text) {
        size_t max = sizeof err->text - len - 3, keep = strlen(old);
        if (keep > max)
            keep = vptq_text_cut(old, max);
        memcpy(err->text + len, ": ", 2);
        memcpy(err->text + len + 2, old, keep);
        err->text[len + 2 + keep] = 0;
    }
    return err->code;
}

#define NAME(code)                                                                             \
    case code:                                                                                 \
        return #code
const char *vptq_status_name(vptq_status st)
{
    switch (st) {
        NAME(VPTQ_OK);
        NAME(VPTQ_E_ARG);
        NAME(VPTQ_E_SHAPE);
        NAME(VPTQ_E_IO);
        NAME(VPTQ_E_EXISTS);
        NAME(VPTQ_E_FORMAT);
        NAME(VPTQ_E_CHECKSUM);
        NAME(VPTQ_E_LOCKED);
        NAME(VPTQ_E_MISMATCH);
        NAME(VPTQ_E_NOMEM);
        NAME(VPTQ_E_NUMERIC);
        NAME(VPTQ_E_DEVICE);
        NAME(VPTQ_E_UNSUPPORTED);
        NAME(VPTQ_E_CANCELLED);
    }
    return "VPTQ_E_UNKNOWN";
}

void vptq_bug(const char *file, int line, const char *cond)
{
    fprintf(stderr, "internal error: %s:%d: %s\n", file, line, cond);
    abort();
}
