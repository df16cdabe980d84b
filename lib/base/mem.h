/* Internal: one accounted allocator, and arenas whose content has one lifetime.
 *
 * A vptq_mem counts the bytes in use and their peak, fails beyond the cap (--mem) and can be
 * set to fail at the n-th allocation, with which tests reach every out-of-memory path.  It is
 * not thread safe: allocate before a parallel loop, not inside it.  A NULL vptq_mem means plain
 * allocation without accounting.
 *
 * A vptq_arena hands out pieces that live until the arena is reset or released; objects that
 * read a file own one arena and free everything with one call.
 *
 *     vptq_arena a;
 *     vptq_arena_init(&a, ctx->mem);
 *     float *x = vptq_arena_alloc(&a, n, sizeof *x, err);
 *     if (!x)
 *         return VPTQ_E_NOMEM;
 *     ...
 *     vptq_arena_release(&a);
 */
#ifndef VPTQ_BASE_MEM_H
#define VPTQ_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/status.h"

typedef struct vptq_mem {
    size_t used, peak;  /* bytes */
    size_t cap;         /* bytes; 0 = no cap */
    int64_t fail_after; /* allocations that still succeed, for tests; negative = no limit */
} vptq_mem;

void vptq_mem_init(vptq_mem *mem, size_t cap);

/* Bytes left under the cap; SIZE_MAX without one.  Callers choose batch sizes by it. */
size_t vptq_mem_left(const vptq_mem *mem);

/* count * size bytes, 64-byte aligned, not cleared; NULL with VPTQ_E_NOMEM in err if the
 * product overflows, memory is out, or the cap would be exceeded.  A zero size gives a valid
 * pointer. */
void *vptq_mem_alloc(vptq_mem *mem, size_t count, size_t size, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_mem_free(vptq_mem *mem, void *ptr); /* accepts NULL */

typedef struct vptq_arena_chunk vptq_arena_chunk;
typedef struct vptq_arena {
    vptq_mem *mem;
    vptq_arena_chunk *last; /* newest chunk, linked to older ones */
} vptq_arena;

typedef struct vptq_arena_mark {
    vptq_arena_chunk *chunk;
    size_t used;
} vptq_arena_mark;

void vptq_arena_init(vptq_arena *a, vptq_mem *mem); /* allocates nothing */
void vptq_arena_release(vptq_arena *a); /* frees everything; the arena is empty again */

/* 64-byte aligned, not cleared; errors as vptq_mem_alloc.  _zalloc clears.  Pieces are kept
 * apart by poisoned red zones under AddressSanitizer. */
void *vptq_arena_alloc(vptq_arena *a, size_t count, size_t size, vptq_err *err) VPTQ_MUST_CHECK;
void *vptq_arena_zalloc(vptq_arena *a, size_t count, size_t size,
                        vptq_err *err) VPTQ_MUST_CHECK;

/* A copy of `len` bytes followed by a 0. */
char *vptq_arena_strndup(vptq_arena *a, const char *s, size_t len,
                         vptq_err *err) VPTQ_MUST_CHECK;
char *vptq_arena_strdup(vptq_arena *a, const char *s, vptq_err *err) VPTQ_MUST_CHECK;
char *vptq_arena_printf(vptq_arena *a, vptq_err *err, const char *fmt, ...)
    VPTQ_PRINTF(3, 4) VPTQ_MUST_CHECK;

/* _rewind frees everything allocated after the mark. */
vptq_arena_mark vptq_arena_get_mark(const vptq_arena *a);
void vptq_arena_rewind(vptq_arena *a, vptq_arena_mark mark);

/* Hands out pieces of one area, each on a cache line of its own; without a base it only counts
 * the bytes that they take. */
typedef struct vptq_carver {
    char *base;
    size_t used;
} vptq_carver;
void *vptq_carve(vptq_carver *c, size_t count, size_t size);

/* Overflow-checked sizes: false when the result does not fit (then *out is untouched). */
bool vptq_size_mul(size_t a, size_t b, size_t *out);
bool vptq_size_add(size_t a, size_t b, size_t *out);

#endif
