/* Internal: zip files of stored (uncompressed) entries, as written by PyTorch.  Reads from a
 * mapping, with or without zip64, and checks every offset against the file, that entries are in
 * file order without overlap, unique names, and that nothing is compressed or encrypted. Writes
 * zip64 records. Source: PKWARE APPNOTE 6.3.9. */
#ifndef VPTQ_FORMATS_TORCH_ZIP_H
#define VPTQ_FORMATS_TORCH_ZIP_H

#include <stdbool.h>

#include "lib/base/buf.h"
#include "lib/base/file.h"
#include "lib/base/strmap.h"

/* Tables of CRC-32 (polynomial 0xedb88320, as in zip), made by vptq_crc32_init. */
typedef struct vptq_crc32 {
    uint32_t table[8][256];
} vptq_crc32;
void vptq_crc32_init(vptq_crc32 *c);
uint32_t vptq_crc32_of(const vptq_crc32 *c, const uint8_t *data, size_t n);

typedef struct vptq_zip_entry {
    const char *name;    /* in the arena */
    const uint8_t *data; /* in the mapping */
    size_t size;
    uint32_t crc;
    bool checked; /* the checksum has been verified */
} vptq_zip_entry;

typedef struct vptq_zip {
    const char *path; /* borrowed */
    vptq_zip_entry *entries;
    size_t count;
    vptq_strmap by_name;
    vptq_crc32 crc;
} vptq_zip;

/* Lists the entries.  Names and entries are in `arena`, bytes in `map`; both must outlive the
 * list. */
vptq_status vptq_zip_list(const char *path, const vptq_map *map, vptq_arena *arena,
                          vptq_zip *zip, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_zip_release(vptq_zip *zip);
/* NULL if there is no such entry. */
vptq_zip_entry *vptq_zip_find(const vptq_zip *zip, const char *name, size_t len);
/* Verifies the checksum of an entry, once; VPTQ_E_CHECKSUM naming the entry. */
vptq_status vptq_zip_check(const vptq_zip *zip, vptq_zip_entry *e,
                           vptq_err *err) VPTQ_MUST_CHECK;

typedef struct vptq_zip_writer {
    vptq_file_writer file;
    vptq_buf directory;
    uint64_t count;
    vptq_crc32 crc;
} vptq_zip_writer;
vptq_status vptq_zip_writer_open(const char *path, bool force, vptq_mem *mem,
                                 vptq_zip_writer *w, vptq_err *err) VPTQ_MUST_CHECK;
/* Writes one entry, its bytes aligned to 64 in the file. */
vptq_status vptq_zip_write(vptq_zip_writer *w, const char *name, const void *data, size_t n,
                           vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_zip_writer_commit(vptq_zip_writer *w, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_zip_writer_abort(vptq_zip_writer *w); /* also frees; harmless after commit */

#endif
