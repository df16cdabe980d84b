/* The accounted allocator and arenas (mem.h). */
#include "lib/base/mem.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define VPTQ_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define VPTQ_ASAN 1
#endif
#endif

#ifdef VPTQ_ASAN
#include <sanitizer/asan_interface.h>
#endif

enum {
    ALIGN = 64,              /* a cache line, and the widest vector register */
    CHUNK_MIN = 4096,        /* first chunk of an arena */
    CHUNK_MAX = 1024 * 1024, /* growth stops here: unused tails stay below this */
#ifdef VPTQ_ASAN
    RED_ZONE = 64, /* unaddressable bytes after every piece of an arena */
    TEXT_ALIGN = 8 /* AddressSanitizer marks memory in units of 8 bytes */
#else
    RED_ZONE = 0,
    TEXT_ALIGN = 1
#endif
};

static void poison(void *p, size_t n)
{
#ifdef VPTQ_ASAN
    __asan_poison_memory_region(p, n);
#else
    (void)p;
    (void)n;
#endif
}

static void unpoison(void *p, size_t n)
{
#ifdef VPTQ_ASAN
    __asan_unpoison_memory_region(p, n);
#else
    (void)p;
    (void)n;
#endif
}

bool vptq_size_mul(size_t a, size_t b, size_t *out)
{
    if (b && a > SIZE_MAX / b)
        return false;
    *out = a * b;
    return true;
}

bool vptq_size_add(size_t a, size_t b, size_t *out)
{
    if (a > SIZE_MAX - b)
        return false;
    *out = a + b;
    return true;
}

static void *out_of_memory(size_t bytes, vptq_err *err)
{
    vptq_fail(err, VPTQ_E_NOMEM, "out of memory (%zu bytes requested)", bytes);
    return NULL;
}

/* *bytes = count * size. */
static bool array_bytes(size_t count, size_t size, size_t *bytes, vptq_err *err)
{
    if (vptq_size_mul(count, size, bytes))
        return true;
    vptq_fail(err, VPTQ_E_NOMEM, "out of memory (%zu pieces of %zu bytes requested)", count,
              size);
    return false;
}

/* --- allocator --------------------------------------------------------------------------- */

/* Header in the ALIGN bytes before every block: the size to account for when it is freed. */
typedef struct block_header {
    size_t bytes;
} block_header;

void vptq_mem_init(vptq_mem *mem, size_t cap)
{
    *mem = (vptq_mem){.cap = cap, .fail_after = -1};
}

size_t vptq_mem_left(const vptq_mem *mem)
{
    if (!mem || !mem->cap)
        return SIZE_MAX;
    return mem->used < mem->cap ? mem->cap - mem->used : 0;
}

/* Counts one allocation against fail_after; true if this one must fail, as all later ones do
 * until the caller sets the field again. */
static bool must_fail(vptq_mem *mem)
{
    if (!mem || mem->fail_after < 0)
        return false;
    if (mem->fail_after == 0)
        return true;
    mem->fail_after--;
    return false;
}

/* Writes "802 bytes" or "3.0 KiB". */
static void format_bytes(char text[32], size_t bytes)
{
    static const char units[] = "KMGT";
    double x = (double)bytes / 1024;
    size_t u = 0;
    for (; x >= 1024 && u < 3; u++)
        x /= 1024;
    if (bytes < 1024)
        snprintf(text, 32, "%zu bytes", bytes);
    else
        snprintf(text, 32, "%.1f %ciB", x, units[u]);
}

static void fail_over_cap(const vptq_mem *mem, size_t bytes, vptq_err *err)
{
    char cap[32], more[32], left[32];
    format_bytes(cap, mem->cap);
    format_bytes(more, bytes);
    format_bytes(left, vptq_mem_left(mem));
    vptq_fail(err, VPTQ_E_NOMEM, "--mem (%s) is too small: %s more needed, %s left", cap, more,
              left);
}

static void *block_alloc(vptq_mem *mem, size_t bytes, vptq_err *err)
{
    if (bytes > vptq_mem_left(mem)) {
        fail_over_cap(mem, bytes, err);
        return NULL;
    }
    size_t total;
    void *base = NULL;
    if (!vptq_size_add(bytes, ALIGN, &total) || posix_memalign(&base, ALIGN, total))
        return out_of_memory(bytes, err);
    ((block_header *)base)->bytes = bytes;
    poison((char *)base + sizeof(block_header), ALIGN - sizeof(block_header));
    if (mem) {
        mem->used += bytes;
        if (mem->used > mem->peak)
            mem->peak = mem->used;
    }
    return (char *)base + ALIGN;
}

void *vptq_mem_alloc(vptq_mem *mem, size_t count, size_t size, vptq_err *err)
{
    size_t bytes;
    if (!array_bytes(count, size, &bytes, err))
        return NULL;
    return must_fail(mem) ? out_of_memory(bytes, err) : block_alloc(mem, bytes, err);
}

void vptq_mem_free(vptq_mem *mem, void *ptr)
{
    if (!ptr)
        return;
    char *base = (char *)ptr - ALIGN;
    unpoison(base, ALIGN);
    if (mem)
        mem->used -= ((block_header *)(void *)base)->bytes;
    free(base);
}

/* --- arenas ------------------------------------------------------------------------------ */

/* A chunk is one block; pieces follow its header.  Free space is poisoned. */
struct vptq_arena_chunk {
    vptq_arena_chunk *older;
    size_t size, used; /* bytes of the block, header included */
    size_t total;      /* sizes of this chunk and all older ones: steers growth */
};

void vptq_arena_init(vptq_arena *a, vptq_mem *mem)
{
    *a = (vptq_arena){.mem = mem};
}

static void pop_chunk(vptq_arena *a)
{
    vptq_arena_chunk *c = a->last;
    a->last = c->older;
    unpoison(c, c->size);
    vptq_mem_free(a->mem, c);
}

void vptq_arena_release(vptq_arena *a)
{
    while (a->last)
        pop_chunk(a);
}

/* Adds a chunk for `need` bytes after its header.  Chunks grow with the arena, so that small
 * arenas stay small and large ones need few calls; a big piece gets a chunk of its size. */
static vptq_status push_chunk(vptq_arena *a, size_t need, vptq_err *err)
{
    size_t total = a->last ? a->last->total : 0;
    size_t size = total / 4;
    if (size < CHUNK_MIN)
        size = CHUNK_MIN;
    if (size > CHUNK_MAX)
        size = CHUNK_MAX;
    if (need > SIZE_MAX - ALIGN)
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory (%zu bytes requested)", need);
    if (size < need + ALIGN)
        size = need + ALIGN;
    if (size > vptq_mem_left(a->mem))
        size = need + ALIGN; /* near the cap: nothing for later pieces */
    vptq_arena_chunk *c = block_alloc(a->mem, size, err);
    if (!c)
        return VPTQ_E_NOMEM;
    *c = (vptq_arena_chunk){.older = a->last, .size = size, .used = ALIGN};
    c->total = total + size;
    poison((char *)c + sizeof *c, size - sizeof *c);
    a->last = c;
    return VPTQ_OK;
}

static void *arena_take(vptq_arena *a, size_t bytes, size_t align, vptq_err *err)
{
    size_t need;
    if (must_fail(a->mem) || !vptq_size_add(bytes, RED_ZONE, &need))
        return out_of_memory(bytes, err);
    vptq_arena_chunk *c = a->last;
    size_t at = c ? (c->used + align - 1) / align * align : 0;
    if (!c || at > c->size || c->size - at < need) {
        if (push_chunk(a, need, err))
            return NULL;
        c = a->last;
        at = c->used;
    }
    c->used = at + need;
    char *p = (char *)c + at;
    unpoison(p, bytes);
    return p;
}

void *vptq_arena_alloc(vptq_arena *a, size_t count, size_t size, vptq_err *err)
{
    size_t bytes;
    return array_bytes(count, size, &bytes, err) ? arena_take(a, bytes, ALIGN, err) : NULL;
}

void *vptq_arena_zalloc(vptq_arena *a, size_t count, size_t size, vptq_err *err)
{
    void *p = vptq_arena_alloc(a, count, size, err);
    if (p)
        memset(p, 0, count * size);
    return p;
}

/* Text needs no alignment: vocabularies are hundreds of thousands of short strings. */
char *vptq_arena_strndup(vptq_arena *a, const char *s, size_t len, vptq_err *err)
{
    size_t bytes;
    if (!vptq_size_add(len, 1, &bytes))
        return out_of_memory(len, err);
    char *p = arena_take(a, bytes, TEXT_ALIGN, err);
    if (!p)
        return NULL;
    if (len)
        memcpy(p, s, len);
    p[len] = 0;
    return p;
}

char *vptq_arena_strdup(vptq_arena *a, const char *s, vptq_err *err)
{
    return vptq_arena_strndup(a, s, strlen(s), err);
}

char *vptq_arena_printf(vptq_arena *a, vptq_err *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) {
        vptq_fail_errno(err, VPTQ_E_ARG, errno, "cannot format a text");
        return NULL;
    }
    size_t size = (size_t)n + 1;
    char *p = arena_take(a, size, TEXT_ALIGN, err);
    if (!p)
        return NULL;
    va_start(ap, fmt);
    vsnprintf(p, size, fmt, ap);
    va_end(ap);
    return p;
}

vptq_arena_mark vptq_arena_get_mark(const vptq_arena *a)
{
    return (vptq_arena_mark){.chunk = a->last, .used = a->last ? a->last->used : 0};
}

void vptq_arena_rewind(vptq_arena *a, vptq_arena_mark mark)
{
    while (a->last != mark.chunk)
        pop_chunk(a);
    if (a->last) {
        a->last->used = mark.used;
        /* The red zone before the mark is poisoned already; only whole units can be poisoned.
         */
        size_t from = (mark.used + 7) / 8 * 8;
        if (from < a->last->size)
            poison((char *)a->last + from, a->last->size - from);
    }
}

void *vptq_carve(vptq_carver *c, size_t count, size_t size)
{
    enum { LINE = 64 };
    void *p = c->base ? c->base + c->used : NULL;
    c->used += (count * size + LINE - 1) / LINE * LINE;
    return p;
}
