/* Internal to formats/vptq: the byte layout of .vptq archives, shared by archive.c (reading)
 * and archive_write.c.  Specified in docs/formats/archive.md; all numbers are little endian. */
#ifndef VPTQ_FORMATS_VPTQ_ARCHIVE_INTERNAL_H
#define VPTQ_FORMATS_VPTQ_ARCHIVE_INTERNAL_H

#include "formats/vptq/archive.h"
#include "lib/base/le.h"

#define VPTQ_ARCHIVE_MAGIC     "\x8fVPTQ\r\n\x1a"
#define VPTQ_ARCHIVE_END_MAGIC "\x1a\n\rQTPV\x8f"

enum {
    VPTQ_ARCHIVE_VERSION = 2,
    VPTQ_ARCHIVE_MAGIC_BYTES = 8,
    VPTQ_ARCHIVE_HEADER_BYTES = 16, /* magic, u32 version, u32 0 */
    VPTQ_ARCHIVE_FOOTER_BYTES = 48, /* u64 offset, packed size, raw size of the index, u64 XXH3
                                       of its packed bytes, u64 XXH3 of header and the footer
                                       up to here, end magic */
    VPTQ_ARCHIVE_FOOTER_HASHED = 32,
    VPTQ_ARCHIVE_FRAME_RAW = 4 << 20, /* raw bytes of every frame except an entry's last */
    VPTQ_ARCHIVE_FRAME_PACKED = (4 << 20) + (16 << 10), /* maximum: ZSTD_compressBound */
    VPTQ_ARCHIVE_FRAME_BYTES = 24, /* in the index: u64 offset, u32 packed, u32 raw, u64 XXH3 of
                                      the packed bytes */
    VPTQ_ARCHIVE_ENTRY_BYTES = 32, /* u8 kind, planes, dims, 0; u32 name length, first frame,
                                      frames; u64 size; char type[8]; then u64 shape[dims] and
                                      the name, padded with zeros to 8 */
    VPTQ_ARCHIVE_INDEX_MAX = 16 << 20,                   /* raw bytes */
    VPTQ_ARCHIVE_INDEX_PACKED = (16 << 20) + (64 << 10), /* maximum: ZSTD_compressBound */
    VPTQ_ARCHIVE_NAME_MAX = 512,
    VPTQ_ARCHIVE_FILE = 0, /* kinds of entries */
    VPTQ_ARCHIVE_TENSOR = 1
};

/* True for the name of a tensor: any text without control characters. */
bool vptq_archive_tensor_ok(const char *name, size_t len);

#endif
