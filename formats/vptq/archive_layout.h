/* Numbers of the .vptq archive that its reader and writer share; docs/formats.md specifies the
 * bytes.  Everything is little endian. */
#ifndef VPTQ_FORMATS_VPTQ_ARCHIVE_LAYOUT_H
#define VPTQ_FORMATS_VPTQ_ARCHIVE_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "lib/base/le.h"

#define VPTQ_ARCHIVE_MAGIC     "\x8fVPTQ\r\n\x1a"
#define VPTQ_ARCHIVE_END_MAGIC "\x1a\n\rQTPV\x8f"

enum {
    VPTQ_ARCHIVE_VERSION = 2,
    VPTQ_ARCHIVE_MAGIC_BYTES = 8,
    VPTQ_ARCHIVE_HEADER_BYTES = 16, /* magic, u32 version, u32 0 */
    VPTQ_ARCHIVE_FOOTER_BYTES = 48, /* u64 offset, packed size, raw size of the index, u64 XXH3
                                       of its packed bytes, u64 XXH3 of header and footer so
                                       far, end magic */
    VPTQ_ARCHIVE_FOOTER_HASHED = 32,
    VPTQ_ARCHIVE_FRAME_RAW = 4 << 20, /* raw bytes of every frame but an entry's last */
    VPTQ_ARCHIVE_FRAME_PACKED = (4 << 20) + (16 << 10), /* at most: ZSTD_compressBound */
    VPTQ_ARCHIVE_FRAME_BYTES = 24, /* in the index: u64 offset, u32 packed, u32 raw, u64 XXH3 of
                                      the packed bytes */
    VPTQ_ARCHIVE_ENTRY_BYTES = 32, /* u8 kind, planes, dims, 0; u32 name length, first frame,
                                      frames; u64 size; char type[8]; then u64 shape[dims] and
                                      the name, padded with zeros to 8 */
    VPTQ_ARCHIVE_INDEX_MAX = 16 << 20,                   /* raw bytes */
    VPTQ_ARCHIVE_INDEX_PACKED = (16 << 20) + (64 << 10), /* at most: ZSTD_compressBound */
    VPTQ_ARCHIVE_NAME_MAX = 512,
    VPTQ_ARCHIVE_FILE = 0, /* kinds of entries */
    VPTQ_ARCHIVE_TENSOR = 1
};

/* Files of an archive may be written into a directory by whoever unpacks it: letters, digits,
 * '_', '-' and '.', not beginning with '.'.  Tensors: anything without control characters. */
static inline bool vptq_archive_name_ok(const char *name, size_t len, bool is_tensor)
{
    if (len == 0 || len > (is_tensor ? VPTQ_ARCHIVE_NAME_MAX : 255) ||
        (!is_tensor && name[0] == '.'))
        return false;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)name[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                     (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
        if (is_tensor ? c < 0x20 || c == 0x7f : !plain)
            return false;
    }
    return true;
}

#endif
