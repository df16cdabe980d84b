/* Reads the input as a PyTorch file, and as the pickle of one with valid checksums, which would
 * reject most damage: u8 length of a storage "0", then the pickle. */
#include "formats/torch/file.h"
#include "formats/torch/zip.h"
#include "tests/fuzz/fuzz_input.h"

/* As a model's weights: tensors in the mapping, which outlives the reader. */
static void read_tensors(const char *path)
{
    vptq_tensor_set set;
    vptq_tensor_set_init(&set, NULL);
    if (!vptq_torch_read_tensors(path, &set, NULL) && !vptq_tensor_set_finish(&set, NULL))
        for (size_t i = 0; i < set.count; i++)
            if (set.tensors[i].bytes &&
                (set.map_count != 1 || set.tensors[i].data < set.maps[0].data ||
                 set.tensors[i].bytes >
                     set.maps[0].size - (size_t)(set.tensors[i].data - set.maps[0].data)))
                abort();
    vptq_tensor_set_release(&set);
}

static void read_all(const char *path)
{
    vptq_torch_file t;
    if (vptq_torch_read(path, NULL, &t, NULL))
        return;
    unsigned sum = 0;
    for (size_t i = 0; i < t.count; i++) {
        const vptq_tensor *x = &t.items[i].tensor;
        for (size_t b = 0; b < x->bytes; b++)
            sum += x->data[b];
        if (!vptq_torch_find(&t, t.items[i].name))
            abort();
    }
    if (sum && !t.count)
        abort();
    vptq_torch_release(&t);
    read_tensors(path);
}

static void build(const char *path, const uint8_t *data, size_t size)
{
    static const uint8_t numbers[255];
    vptq_zip_writer w;
    if (vptq_zip_writer_open(path, true, NULL, &w, NULL))
        return;
    if (!vptq_zip_write(&w, "a/data.pkl", data + 1, size - 1, NULL) &&
        !vptq_zip_write(&w, "a/data/0", numbers, data[0], NULL) &&
        !vptq_zip_writer_commit(&w, NULL))
        read_all(path);
    vptq_zip_writer_abort(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_MAX];
    if (!fuzz_input_file(path, data, size))
        return 0;
    read_all(path);
    if (size > 0)
        build(path, data, size);
    unlink(path);
    return 0;
}
