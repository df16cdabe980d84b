/* Reads the input as an archive, and as the parts of one with valid checksums, which would
 * reject almost all damage: u32 length, that many bytes of frames, and the raw index. */
#include <string.h>
#include <zstd.h>

#include "formats/vptq/archive.h"
#include "formats/vptq/archive_internal.h"
#include "tests/fuzz/fuzz_tensor.h"

enum { MAX_LOAD = 16 << 20 };

static bool has_suffix(const char *name, const char *suffix)
{
    const size_t n = strlen(name), s = strlen(suffix);
    return n >= s && !strcmp(name + n - s, suffix);
}

static void read_all(const char *path)
{
    vptq_archive *a = NULL;
    if (vptq_archive_open(path, NULL, &a, NULL))
        return;
    for (size_t i = 0; i < vptq_archive_count(a); i++) {
        const vptq_archive_entry *e = vptq_archive_at(a, i);
        if (vptq_archive_find(a, e->name, e->is_tensor) != e)
            abort();
        /* no companion is read as weights or lies elsewhere */
        if (!e->is_tensor &&
            (strchr(e->name, '/') || e->name[0] == '.' || has_suffix(e->name, ".safetensors") ||
             has_suffix(e->name, ".bin") || has_suffix(e->name, ".py")))
            abort();
        uint8_t *data = e->size <= MAX_LOAD ? malloc((size_t)e->size + 1) : NULL;
        unsigned sum = 0;
        bool whole = data && vptq_archive_load(a, e, 2, data, NULL) == VPTQ_OK;
        for (size_t b = 0; whole && b < e->size; b++)
            sum += data[b];
        if (sum && !e->size)
            abort();
        vptq_tensor t = e->tensor;
        t.data = data;
        if (whole && e->is_tensor && e->size && vptq_dtype_get(t.type)->is_float)
            fuzz_read_tensor(&t);
        free(data);
    }
    vptq_archive_close(a);
}

/* Makes the file of frames and index, with valid checksums. */
static uint8_t *build(const uint8_t *frames, size_t frames_size, const uint8_t *index,
                      size_t index_size, size_t *size)
{
    size_t bound = ZSTD_compressBound(index_size);
    uint8_t *file =
        calloc(VPTQ_ARCHIVE_HEADER_BYTES + frames_size + bound + VPTQ_ARCHIVE_FOOTER_BYTES, 1);
    if (!file)
        return NULL;
    memcpy(file, VPTQ_ARCHIVE_MAGIC, VPTQ_ARCHIVE_MAGIC_BYTES);
    vptq_put_le(file + VPTQ_ARCHIVE_MAGIC_BYTES, VPTQ_ARCHIVE_VERSION, 4);
    if (frames_size)
        memcpy(file + VPTQ_ARCHIVE_HEADER_BYTES, frames, frames_size);
    size_t at = VPTQ_ARCHIVE_HEADER_BYTES + frames_size;
    size_t n = ZSTD_compress(file + at, bound, index, index_size, 1);
    uint8_t *footer = file + at + n,
            hashed[VPTQ_ARCHIVE_HEADER_BYTES + VPTQ_ARCHIVE_FOOTER_HASHED];
    vptq_put_le(footer, at, 8);
    vptq_put_le(footer + 8, n, 8);
    vptq_put_le(footer + 16, index_size, 8);
    vptq_put_le(footer + 24, vptq_hash(file + at, n, 0), 8);
    memcpy(hashed, file, VPTQ_ARCHIVE_HEADER_BYTES);
    memcpy(hashed + VPTQ_ARCHIVE_HEADER_BYTES, footer, VPTQ_ARCHIVE_FOOTER_HASHED);
    vptq_put_le(footer + VPTQ_ARCHIVE_FOOTER_HASHED, vptq_hash(hashed, sizeof hashed, 0), 8);
    memcpy(footer + VPTQ_ARCHIVE_FOOTER_HASHED + 8, VPTQ_ARCHIVE_END_MAGIC,
           VPTQ_ARCHIVE_MAGIC_BYTES);
    *size = at + n + VPTQ_ARCHIVE_FOOTER_BYTES;
    return file;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_MAX];
    if (!fuzz_input_file(path, data, size))
        return 0;
    read_all(path);
    unlink(path);
    if (size < 4 || vptq_get_le(data, 4) > size - 4)
        return 0;
    size_t frames = (size_t)vptq_get_le(data, 4), built = 0;
    uint8_t *file = build(data + 4, frames, data + 4 + frames, size - 4 - frames, &built);
    if (file && fuzz_input_file(path, file, built)) {
        read_all(path);
        unlink(path);
    }
    free(file);
    return 0;
}
