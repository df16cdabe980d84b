/* The string map (strmap.h). */
#include "lib/base/strmap.h"

#include <string.h>
#define XXH_INLINE_ALL  /* keys are a few bytes long: the call would cost as much as the hash  \
                         */
#include <xxhash.h>

/* Slots are a power of two and at most three quarters full; linear probing. */
enum { CAP_MIN = 16 };

static vptq_status new_slots(vptq_mem *mem, size_t cap, vptq_strmap_slot **slots, vptq_err *err)
{
    *slots = vptq_mem_alloc(mem, cap, sizeof **slots, err);
    if (!*slots)
        return VPTQ_E_NOMEM;
    memset(*slots, 0, cap * sizeof **slots);
    return VPTQ_OK;
}

vptq_status vptq_strmap_init(vptq_strmap *m, vptq_mem *mem, size_t expect, vptq_err *err)
{
    *m = (vptq_strmap){.mem = mem};
    size_t cap = CAP_MIN;
    while (cap / 4 * 3 < expect) {
        if (cap > SIZE_MAX / 2)
            return vptq_fail(err, VPTQ_E_NOMEM, "out of memory (a map of %zu keys requested)",
                             expect);
        cap *= 2;
    }
    vptq_status st = new_slots(mem, cap, &m->slots, err);
    if (!st)
        m->cap = cap;
    return st;
}

void vptq_strmap_release(vptq_strmap *m)
{
    vptq_mem_free(m->mem, m->slots);
    *m = (vptq_strmap){.mem = m->mem};
}

/* The slot of the key, or the empty slot where it belongs. */
static vptq_strmap_slot *find(vptq_strmap_slot *slots, size_t cap, const char *key, size_t len,
                              uint64_t hash)
{
    size_t i = (size_t)hash & (cap - 1);
    while (slots[i].key) {
        const vptq_strmap_slot *s = &slots[i];
        if (s->hash == hash && s->len == len && (len == 0 || !memcmp(s->key, key, len)))
            break;
        i = (i + 1) & (cap - 1);
    }
    return &slots[i];
}

static vptq_status grow(vptq_strmap *m, vptq_err *err)
{
    vptq_strmap_slot *slots;
    VPTQ_CHECK(new_slots(m->mem, m->cap * 2, &slots, err));
    for (size_t i = 0; i < m->cap; i++) {
        const vptq_strmap_slot *s = &m->slots[i];
        if (s->key)
            *find(slots, m->cap * 2, s->key, s->len, s->hash) = *s;
    }
    vptq_mem_free(m->mem, m->slots);
    m->slots = slots;
    m->cap *= 2;
    return VPTQ_OK;
}

vptq_status vptq_strmap_add(vptq_strmap *m, const char *key, size_t len, uint32_t value,
                            bool *fresh, vptq_err *err)
{
    if (len > UINT32_MAX)
        return vptq_fail(err, VPTQ_E_ARG, "a key of %zu bytes is too long for a map", len);
    uint64_t hash = XXH3_64bits(key, len);
    vptq_strmap_slot *s = find(m->slots, m->cap, key, len, hash);
    if (s->key) {
        *fresh = false;
        return VPTQ_OK;
    }
    if (m->count >= m->cap / 4 * 3) {
        VPTQ_CHECK(grow(m, err));
        s = find(m->slots, m->cap, key, len, hash);
    }
    *s = (vptq_strmap_slot){.key = key, .len = (uint32_t)len, .value = value, .hash = hash};
    m->count++;
    *fresh = true;
    return VPTQ_OK;
}

bool vptq_strmap_get(const vptq_strmap *m, const char *key, size_t len, uint32_t *value)
{
    if (!m->cap)
        return false;
    const vptq_strmap_slot *s = find(m->slots, m->cap, key, len, XXH3_64bits(key, len));
    if (!s->key)
        return false;
    *value = s->value;
    return true;
}
