/* Internal: a map from byte strings to 32-bit values: open addressing over XXH3 hashes.  Keys
 * are not copied: they must outlive the map.  Iteration order is not defined, so nothing may
 * depend on it. */
#ifndef VPTQ_BASE_STRMAP_H
#define VPTQ_BASE_STRMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/mem.h"

typedef struct vptq_strmap_slot {
    const char *key; /* NULL = empty */
    uint32_t len;
    uint32_t value;
    uint64_t hash;
} vptq_strmap_slot;

typedef struct vptq_strmap {
    vptq_mem *mem;
    vptq_strmap_slot *slots;
    size_t cap, count;
} vptq_strmap;

/* An empty map that holds `expect` keys without growing (may be 0). */
vptq_status vptq_strmap_init(vptq_strmap *m, vptq_mem *mem, size_t expect, vptq_err *err);
void vptq_strmap_release(vptq_strmap *m);

/* Adds a key; if it exists, sets *fresh to false and keeps the old value. */
vptq_status vptq_strmap_add(vptq_strmap *m, const char *key, size_t len, uint32_t value,
                            bool *fresh, vptq_err *err);
bool vptq_strmap_get(const vptq_strmap *m, const char *key, size_t len, uint32_t *value);

#endif
