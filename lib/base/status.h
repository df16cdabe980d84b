/* Internal: status codes and the one error channel of the library.
 *
 * Every fallible function returns a vptq_status and takes a vptq_err as its last parameter. The
 * failing function writes one sentence (lower case, no full stop, naming the file or option,
 * what was found and what was expected); callers may only prepend context to it.  The library
 * never prints, exits or aborts because of its input.
 *
 * A function that owns nothing uses VPTQ_CHECK, one that has something to release VPTQ_TRY:
 *
 *     static vptq_status thing_read(thing *t, vptq_err *err)
 *     {
 *         VPTQ_CHECK(thing_read_header(t, err));
 *         return thing_read_body(t, err);
 *     }
 *
 *     vptq_status thing_load(const char *path, thing *t, vptq_err *err)
 *     {
 *         vptq_status st = VPTQ_OK;
 *         VPTQ_TRY(vptq_map_open(path, &t->map, err));
 *         VPTQ_TRY(thing_read(t, err));
 *     out:
 *         if (st)
 *             thing_release(t);
 *         return st;
 *     }
 */
#ifndef VPTQ_BASE_STATUS_H
#define VPTQ_BASE_STATUS_H

#include "lib/base/target.h"
#include "lib/vptq.h"

/* As vptq_fail, with ": " and the text of the system error number `errnum` at the end. */
vptq_status vptq_fail_errno(vptq_err *err, vptq_status code, int errnum, const char *fmt, ...)
    VPTQ_PRINTF(4, 5);

/* Returns at once if `call` fails: for functions that own nothing then. */
#define VPTQ_CHECK(call)                                                                       \
    do {                                                                                       \
        const vptq_status checked_ = (call);                                                   \
        if (checked_)                                                                          \
            return checked_;                                                                   \
    } while (0)

/* Goes to the label `out` with the failure in the local `st`: for functions that have something
 * to release.  A function uses VPTQ_CHECK or VPTQ_TRY, never both. */
#define VPTQ_TRY(call)                                                                         \
    do {                                                                                       \
        st = (call);                                                                           \
        if (st)                                                                                \
            goto out;                                                                          \
    } while (0)

/* A broken invariant of our own: prints file and line on stderr and aborts.  Never for input.
 */
#define VPTQ_BUG_IF(cond)                                                                      \
    do {                                                                                       \
        if (cond)                                                                              \
            vptq_bug(__FILE__, __LINE__, #cond);                                               \
    } while (0)
#if defined(__GNUC__)
__attribute__((noreturn))
#endif
void vptq_bug(const char *file, int line, const char *cond);

#endif
