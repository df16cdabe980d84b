/* The text that ships with the program (share/README.md), compressed (text_file.h). */
#include <zstd.h>

#include "formats/text_file.h"

/* The assembler reads the file from the root of the source tree. */
__asm__(".pushsection .rodata\n"
        "vptq_builtin_text_begin:\n"
        ".incbin \"share/calibration.txt.zst\"\n"
        "vptq_builtin_text_end:\n"
        ".popsection\n");
extern const char vptq_builtin_text_begin[] __attribute__((visibility("hidden")));
extern const char vptq_builtin_text_end[] __attribute__((visibility("hidden")));

vptq_status vptq_text_builtin(vptq_buf *out, vptq_err *err)
{
    const char *from = vptq_builtin_text_begin;
    const size_t packed = (size_t)(vptq_builtin_text_end - from);
    const unsigned long long size = ZSTD_getFrameContentSize(from, packed);
    VPTQ_CHECK(vptq_buf_reserve(out, (size_t)size, err));
    const size_t got = ZSTD_decompress(out->data, (size_t)size, from, packed);
    if (ZSTD_isError(got) || got != size)
        return vptq_fail(err, VPTQ_E_CHECKSUM, "the built-in text cannot be read: %s",
                         ZSTD_isError(got) ? ZSTD_getErrorName(got) : "wrong size");
    out->len = (size_t)size;
    out->data[out->len] = 0;
    return VPTQ_OK;
}
