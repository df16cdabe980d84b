/* Reads the input as saved base logits, as it is and with valid checksums, because the
 * checksums would reject almost all damage. */
#include <math.h>
#include <string.h>

#include "formats/vptq/kld_base.h"
#include "tests/fuzz/fuzz_input.h"

/* Offsets after docs/formats.md. */
enum { HEAD = 136, HEAD_SUM = 128, IDS_SUM = 56, SUM = 8 };

static void use(const char *path)
{
    vptq_kld_base_file f;
    vptq_err err;
    if (vptq_kld_base_file_open(path, NULL, &f, &err))
        return;
    const size_t size = vptq_kld_base_record_bytes(&f.head);
    const uint64_t records = (uint64_t)f.head.windows * vptq_kld_base_positions(&f.head);
    uint8_t *bytes = malloc(size);
    for (uint64_t i = 0; bytes && i < records; i++) {
        if (vptq_kld_base_file_read(&f, i, 1, bytes, &err))
            break;
        const vptq_kld_base_record r = vptq_kld_base_record_at(&f.head, bytes);
        for (size_t k = 0; k < f.head.entries; k++)
            if (vptq_kld_base_id(&r, k) >= f.head.vocab ||
                !isfinite(vptq_kld_base_log(&r, k)) || vptq_kld_base_log(&r, k) > 1e-4)
                abort();
        if (r.likeliest >= f.head.vocab || isnan(r.tail) || !isfinite(r.target))
            abort();
    }
    free(bytes);
    vptq_kld_base_file_release(&f);
}

/* Puts valid checksums into the copy of a file; those of records only if the head is readable.
 */
static void seal(uint8_t *b, size_t size)
{
    vptq_kld_base_head h = {.precision = (vptq_kld_base_precision)(vptq_get_le(b + 12, 4) & 1),
                            .vocab = (uint32_t)vptq_get_le(b + 16, 4),
                            .entries = (uint32_t)vptq_get_le(b + 20, 4),
                            .context = (uint32_t)vptq_get_le(b + 24, 4),
                            .windows = (uint32_t)vptq_get_le(b + 32, 4)};
    const uint64_t ids = (uint64_t)h.windows * h.context * 4;
    const size_t record = vptq_kld_base_record_bytes(&h);
    if (ids <= size - HEAD) {
        vptq_put_le(b + IDS_SUM, vptq_hash(b + HEAD, (size_t)ids, 0), SUM);
        size_t at = HEAD + (size_t)ids;
        for (uint64_t i = 0; record <= size - at; i++, at += record)
            vptq_put_le(b + at + record - SUM, vptq_hash(b + at, record - SUM, i), SUM);
    }
    vptq_put_le(b + HEAD_SUM, vptq_hash(b, HEAD_SUM, 0), SUM);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_MAX], sealed[FUZZ_PATH_MAX];
    if (!fuzz_input_file(path, data, size))
        return 0;
    use(path);
    uint8_t *copy = size >= HEAD ? malloc(size) : NULL;
    if (copy) {
        memcpy(copy, data, size);
        seal(copy, size);
        if (fuzz_input_file(sealed, copy, size)) {
            use(sealed);
            unlink(sealed);
        }
    }
    free(copy);
    unlink(path);
    return 0;
}
