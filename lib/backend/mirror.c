/* Arrays of a device with one lifetime. */
#include "lib/backend/mirror.h"

#include <string.h>

struct vptq_mirrored {
    vptq_mirrored *next;
    void *host, *device;
    size_t bytes;
    bool download;
};

/* Allocates device memory for an array with or without a host array; NULL after a failure. */
static vptq_mirrored *add(vptq_mirror *m, void *host, size_t count, size_t size)
{
    vptq_mirrored *item =
        m->status ? NULL : vptq_mem_alloc(m->dev->ctx->mem, 1, sizeof *item, &m->err);
    if (!item) {
        m->status = m->status ? m->status : VPTQ_E_NOMEM;
        return NULL;
    }
    *item = (vptq_mirrored){.next = m->last, .host = host, .bytes = count * size};
    m->last = item;
    m->status = m->dev->ops->alloc(m->dev->state, count, size, &item->device, &m->err);
    return m->status ? NULL : item;
}

void *vptq_mirror_alloc(vptq_mirror *m, size_t count, size_t size)
{
    const vptq_mirrored *item = add(m, NULL, count, size);
    return item ? item->device : NULL;
}

void *vptq_mirror_take(vptq_mirror *m, void *host, size_t count, size_t size, unsigned copies)
{
    if (!host || m->status || m->dev->ops->host_memory)
        return m->status ? NULL : host;
    vptq_mirrored *item = add(m, host, count, size);
    if (!item)
        return NULL;
    item->download = copies & VPTQ_MIRROR_DOWNLOAD;
    if (copies & VPTQ_MIRROR_UPLOAD)
        m->status =
            m->dev->ops->upload_new(m->dev->state, item->device, host, item->bytes, &m->err);
    return m->status ? NULL : item->device;
}

const void *vptq_mirror_in(vptq_mirror *m, const void *host, size_t count, size_t size)
{
    void *p = NULL;
    memcpy(&p, &host, sizeof p); /* only read, never copied back */
    return vptq_mirror_take(m, p, count, size, VPTQ_MIRROR_UPLOAD);
}

/* Returns the device address that mirrors a host address. */
static void *device_address(const vptq_mirror *m, const void *host, size_t bytes)
{
    const char *at = host;
    for (const vptq_mirrored *i = m->last; i; i = i->next) {
        const char *first = i->host;
        if (first && at >= first && at + bytes <= first + i->bytes)
            return (char *)i->device + (at - first);
    }
    VPTQ_BUG_IF(true); /* the array was not mirrored */
    return NULL;
}

vptq_status vptq_mirror_pull(vptq_mirror *m, void *host, size_t bytes, vptq_err *err)
{
    if (m->dev->ops->host_memory)
        return VPTQ_OK;
    return m->dev->ops->download(m->dev->state, host, device_address(m, host, bytes), bytes,
                                 err);
}

vptq_status vptq_mirror_push(vptq_mirror *m, const void *host, size_t bytes, vptq_err *err)
{
    if (m->dev->ops->host_memory)
        return VPTQ_OK;
    return m->dev->ops->upload(m->dev->state, device_address(m, host, bytes), host, bytes, err);
}

vptq_status vptq_mirror_check(const vptq_mirror *m, vptq_err *err)
{
    if (m->status && err)
        *err = m->err;
    return m->status;
}

vptq_status vptq_mirror_end(vptq_mirror *m, vptq_status st, vptq_err *err)
{
    const vptq_backend *ops = m->dev->ops;
    while (m->last) {
        vptq_mirrored *i = m->last;
        m->last = i->next;
        if (!st && !m->status && i->download)
            m->status = ops->download(m->dev->state, i->host, i->device, i->bytes, &m->err);
        ops->release(m->dev->state, i->device);
        vptq_mem_free(m->dev->ctx->mem, i);
    }
    return st ? st : vptq_mirror_check(m, err);
}
