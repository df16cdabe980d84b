/* A growing list of token ids. */
#include <inttypes.h>
#include <string.h>

#include "lib/tokenizer/tokenizer.h"

void vptq_ids_init(vptq_ids *ids, vptq_mem *mem)
{
    *ids = (vptq_ids){.mem = mem};
}

void vptq_ids_release(vptq_ids *ids)
{
    vptq_mem_free(ids->mem, ids->data);
    ids->data = NULL;
    ids->count = ids->cap = 0;
}

vptq_status vptq_ids_add(vptq_ids *ids, const int32_t *more, size_t n, vptq_err *err)
{
    if (n == 0)
        return VPTQ_OK;
    if (n > ids->cap - ids->count) {
        size_t need = 0;
        if (!vptq_size_add(ids->count, n, &need) || need > SIZE_MAX / 2)
            return vptq_fail(err, VPTQ_E_NOMEM, "too many token ids: %zu and %zu more",
                             ids->count, n);
        size_t cap = need > 2 * ids->cap ? need : 2 * ids->cap;
        if (cap < 64)
            cap = 64;
        int32_t *data = vptq_mem_alloc(ids->mem, cap, sizeof *data, err);
        if (!data)
            return VPTQ_E_NOMEM;
        if (ids->count > 0)
            memcpy(data, ids->data, ids->count * sizeof *data);
        vptq_mem_free(ids->mem, ids->data);
        ids->data = data;
        ids->cap = cap;
    }
    memcpy(ids->data + ids->count, more, n * sizeof *more);
    ids->count += n;
    return VPTQ_OK;
}

vptq_status vptq_ids_check(const int32_t *ids, size_t n, uint32_t vocab, const char *file,
                           vptq_err *err)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= vocab)
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: token %zu has the id %" PRId32
                             ", the model's vocabulary has %" PRIu32 " entries",
                             file, i, ids[i], vocab);
    }
    return VPTQ_OK;
}
