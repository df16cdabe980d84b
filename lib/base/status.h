/* Status codes and the one error channel of the library.
 *
 * Every fallible function returns a vptq_status and takes a vptq_err as its last parameter. The
 * place that fails writes one sentence (lower case, no full stop, naming the file and the
 * thing, what was found and what was expected); callers may only put context in front of it.
 * The library never prints, exits or aborts on input; VPTQ_BUG_IF is for our own mistakes.
 *
 *     vptq_status thing_load(const char *path, thing *t, vptq_err *err)
 *     {
 *         vptq_status st = VPTQ_OK;
 *         VPTQ_TRY(vptq_map_open(path, &t->map, err));
 *         ...
 *     out:
 *         if (st)
 *             thing_release(t);
 *         return st;
 *     }
 */
#ifndef VPTQ_BASE_STATUS_H
#define VPTQ_BASE_STATUS_H

#include <stddef.h>

typedef enum {
    VPTQ_OK = 0,
    VPTQ_E_ARG = 10,         /* an argument or setting that cannot be */
    VPTQ_E_SHAPE = 12,       /* shapes of two things do not fit each other */
    VPTQ_E_IO = 20,          /* the system refused: open, read, write, space */
    VPTQ_E_EXISTS = 21,      /* an output is already there and force was not given */
    VPTQ_E_FORMAT = 22,      /* a file is not what it should be */
    VPTQ_E_CHECKSUM = 24,    /* a file is damaged */
    VPTQ_E_LOCKED = 26,      /* another process works on the same output */
    VPTQ_E_MISMATCH = 28,    /* a valid file of another run or another model */
    VPTQ_E_NOMEM = 30,       /* out of memory, or over the --mem cap */
    VPTQ_E_NUMERIC = 40,     /* NaN, infinity, a matrix that is not positive definite */
    VPTQ_E_DEVICE = 50,      /* a device or its library failed */
    VPTQ_E_UNSUPPORTED = 60, /* valid, but not something this build handles */
    VPTQ_E_CANCELLED = 70    /* the caller's cancel flag was raised; finished work is kept */
} vptq_status;

/* Written by the failing site only; untouched on success.  Callers may pass NULL. */
typedef struct vptq_err {
    vptq_status code;
    char text[1024]; /* one sentence, always terminated */
} vptq_err;

#if defined(__GNUC__)
#define VPTQ_MUST_CHECK        __attribute__((warn_unused_result))
#define VPTQ_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define VPTQ_MUST_CHECK
#define VPTQ_PRINTF(fmt, args)
#endif

/* Write the sentence and return `code`, so that a failure is one line: return vptq_fail(...).
 */
vptq_status vptq_fail(vptq_err *err, vptq_status code, const char *fmt, ...) VPTQ_PRINTF(3, 4);

/* As vptq_fail, with ": " and the text of the system error number `errnum` at the end. */
vptq_status vptq_fail_errno(vptq_err *err, vptq_status code, int errnum, const char *fmt, ...)
    VPTQ_PRINTF(4, 5);

/* Put "context: " in front of the sentence of a failure that is being passed up; returns the
 * code that `err` holds.  The end of an over-long text is cut, never the context. */
vptq_status vptq_err_context(vptq_err *err, const char *fmt, ...) VPTQ_PRINTF(2, 3);

/* Stable name of a status ("VPTQ_E_FORMAT"), for logs and tests; never NULL. */
const char *vptq_status_name(vptq_status st);

/* Passes a failure up at once: for functions that own nothing when `call` fails. */
#define VPTQ_CHECK(call)                                                                       \
    do {                                                                                       \
        const vptq_status checked_ = (call);                                                   \
        if (checked_)                                                                          \
            return checked_;                                                                   \
    } while (0)

/* Goes to the label `out` with the failure in the local `st`: for functions that have something
 * to release.  A function uses one of the two, never both. */
#define VPTQ_TRY(call)                                                                         \
    do {                                                                                       \
        st = (call);                                                                           \
        if (st)                                                                                \
            goto out;                                                                          \
    } while (0)

/* Broken invariant of our own: reports file and line on stderr and aborts.  Never for input. */
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
