#include "tests/support/vcount.h"

#include "tests/support/vtest.h"

enum { MAX_UPLOADS = 4096 };

static struct {
    vptq_backend table;
    size_t left, uploads;
    const void *from[MAX_UPLOADS];
    size_t bytes[MAX_UPLOADS];
    vcount sum;
} count;

static size_t left(const vptq_dev *dev)
{
    (void)dev;
    return count.left;
}

static vptq_status upload(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                          vptq_err *err)
{
    assert_true(count.uploads < MAX_UPLOADS);
    count.from[count.uploads] = src;
    count.bytes[count.uploads++] = bytes;
    count.sum.uploaded += bytes;
    return vptq_backend_ref.upload(dev, dst, src, bytes, err);
}

static vptq_status download(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                            vptq_err *err)
{
    count.sum.downloaded += bytes;
    count.sum.downloads++;
    return vptq_backend_ref.download(dev, dst, src, bytes, err);
}

void vcount_start(vptq_device *dev, size_t free_bytes)
{
    count.table = vptq_backend_ref;
    count.table.host_memory = false;
    count.table.left = left;
    count.table.upload = count.table.upload_new = upload;
    count.table.download = download;
    count.left = free_bytes;
    count.uploads = 0;
    count.sum = (vcount){0};
    dev->ops = &count.table;
}

vcount vcount_of(const vptq_model *m)
{
    vcount sum = count.sum;
    for (size_t i = 0; i < count.uploads; i++)
        for (size_t t = 0; t < m->ckpt.set.count; t++) {
            const vptq_tensor *x = &m->ckpt.set.tensors[t];
            const uintptr_t from = (uintptr_t)count.from[i], data = (uintptr_t)x->data;
            if (from >= data && from - data < x->bytes)
                sum.weights += count.bytes[i];
        }
    return sum;
}

size_t vcount_block_weights(const vptq_model *m)
{
    size_t bytes = 0;
    for (uint32_t layer = 0; layer < m->desc->layers; layer++)
        for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
            bytes += m->blocks[layer].linear[l].tensor->bytes;
    return bytes;
}
