/* The .vptq archive: one file with whole small files (config, tokenizer) and tensors in zstd
 * frames, every frame with a checksum, and an index at the end, so that it can be read in
 * parallel and in part.  Byte layout: docs/formats.md. */
#ifndef VPTQ_FORMATS_ARCHIVE_H
#define VPTQ_FORMATS_ARCHIVE_H

#include "formats/tensor.h"

bool vptq_archive_is(const char *path);

/* Writer: entries in call order, then commit writes the index.  Same bytes for the same input.
 */
typedef struct vptq_archive_writer vptq_archive_writer;
vptq_status vptq_archive_writer_open(const char *path, bool force, vptq_mem *mem,
                                     vptq_archive_writer **w, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_archive_add_file(vptq_archive_writer *w, const char *name, const void *data,
                                  size_t n, vptq_err *err) VPTQ_MUST_CHECK;
/* A tensor whose data is set. */
vptq_status vptq_archive_add_tensor(vptq_archive_writer *w, const vptq_tensor *t, int threads,
                                    vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_archive_writer_commit(vptq_archive_writer *w, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_archive_writer_abort(vptq_archive_writer *w); /* frees; harmless after commit */

typedef struct vptq_archive_entry {
    const char *name;
    bool is_tensor;
    vptq_tensor tensor;   /* name, type, shape; data NULL until loaded */
    uint64_t size;        /* bytes when unpacked */
    uint64_t packed_size; /* bytes in the file */
    uint32_t first_frame, frame_count;
} vptq_archive_entry;

typedef struct vptq_archive vptq_archive;
/* Maps the file and checks header, index and its checksum; unpacks nothing. */
vptq_status vptq_archive_open(const char *path, vptq_mem *mem, vptq_archive **a,
                              vptq_err *err) VPTQ_MUST_CHECK;
void vptq_archive_close(vptq_archive *a); /* accepts NULL */
size_t vptq_archive_count(const vptq_archive *a);
const vptq_archive_entry *vptq_archive_at(const vptq_archive *a, size_t i);
const vptq_archive_entry *vptq_archive_find(const vptq_archive *a, const char *name,
                                            bool is_tensor);
/* Unpacks an entry into dst (entry->size bytes), frames in parallel; VPTQ_E_CHECKSUM on damage.
 */
vptq_status vptq_archive_load(const vptq_archive *a, const vptq_archive_entry *e, int threads,
                              void *dst, vptq_err *err) VPTQ_MUST_CHECK;

#endif
