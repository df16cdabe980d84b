/* Internal: PyTorch .pt files (torch.save of a dictionary, as a model's state_dict): a zip of
 * stored entries with a pickle NAME/data.pkl and the bytes of each storage in NAME/data/KEY.
 * Reads dictionaries of numbers and tensors; other plain values become VPTQ_TORCH_OTHER, and
 * everything that would have to run code is refused by name (pickle.h).  Checks offsets and
 * sizes against the file, checksums of the entries used, byte order and unique keys.  The
 * format of torch.save before PyTorch 1.6, which is not a zip, is refused. */
#ifndef VPTQ_FORMATS_TORCH_FILE_H
#define VPTQ_FORMATS_TORCH_FILE_H

#include "formats/tensor.h"

typedef enum {
    VPTQ_TORCH_OTHER, /* None, a boolean, a text, a container */
    VPTQ_TORCH_INT,
    VPTQ_TORCH_FLOAT,
    VPTQ_TORCH_TENSOR
} vptq_torch_kind;

typedef struct vptq_torch_item {
    const char *name; /* key in the dictionary */
    vptq_torch_kind kind;
    int64_t i;
    double f;
    vptq_tensor tensor; /* name, type, dims, shape, data, bytes, file; elements in C order */
} vptq_torch_item;

typedef struct vptq_torch_file {
    vptq_arena arena;
    vptq_map map;
    vptq_torch_item *items; /* in the order of the dictionary */
    size_t count;
} vptq_torch_file;

/* Tensors in another order than C are copied; the others stay in the mapping and may be
 * unaligned. */
vptq_status vptq_torch_read(const char *path, vptq_mem *mem, vptq_torch_file *t,
                            vptq_err *err) VPTQ_MUST_CHECK;
void vptq_torch_release(vptq_torch_file *t);
/* NULL if there is no such item. */
const vptq_torch_item *vptq_torch_find(const vptq_torch_file *t, const char *name);

/* Adds the tensors of the file to a set, which then owns its mapping, and ignores other values;
 * the caller finishes the set.  Refuses tensors in another order than C. */
vptq_status vptq_torch_read_tensors(const char *path, vptq_tensor_set *set,
                                    vptq_err *err) VPTQ_MUST_CHECK;

/* Writes a dictionary of numbers and tensors (types F32, F16, BF16, I64, BOOL; name, type,
 * dims, shape and data are used) that torch.load reads, also with weights_only.  Atomic. */
vptq_status vptq_torch_write(const char *path, bool force, const vptq_torch_item *items,
                             size_t count, vptq_mem *mem, vptq_err *err) VPTQ_MUST_CHECK;

#endif
