/* The .vptq archive: one file with whole small files (config, tokenizer) and tensors in zstd
 * frames, every frame with a checksum, and an index at the end, so that it can be read in
 * parallel and in part.  Byte layout: docs/formats.md. */
#ifndef VPTQ_FORMATS_VPTQ_ARCHIVE_H
#define VPTQ_FORMATS_VPTQ_ARCHIVE_H

#include "formats/tensor.h"

/* By its first bytes or its last. */
bool vptq_archive_is(const char *path);

/* Writer: entries in call order, then commit writes the index.  Same bytes for the same input.
 * Levels are those of zstd, 1 to VPTQ_ARCHIVE_MAX_LEVEL; a tensor that hardly shrinks is as
 * well served by 1.  A batch of frames is in memory at a time, one for each thread. */
enum { VPTQ_ARCHIVE_MAX_LEVEL = 22 };
typedef struct vptq_archive_writer vptq_archive_writer;
vptq_status vptq_archive_writer_open(const char *path, bool force, int threads, vptq_mem *mem,
                                     vptq_archive_writer **w, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_archive_add_file(vptq_archive_writer *w, const char *name, const void *data,
                                  size_t n, int level, vptq_err *err) VPTQ_MUST_CHECK;
/* A tensor whose data is set. */
vptq_status vptq_archive_add_tensor(vptq_archive_writer *w, const vptq_tensor *t, int level,
                                    vptq_err *err) VPTQ_MUST_CHECK;
/* A tensor whose bytes come piece by piece: begin (data is not looked at), put until t->bytes
 * are there, end. */
vptq_status vptq_archive_begin_tensor(vptq_archive_writer *w, const vptq_tensor *t, int level,
                                      vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_archive_put(vptq_archive_writer *w, const void *data, size_t n,
                             vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_archive_end_tensor(vptq_archive_writer *w, vptq_err *err) VPTQ_MUST_CHECK;
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
/* Checks header, footer and index with their checksums; unpacks nothing and holds nothing but
 * the index. */
vptq_status vptq_archive_open(const char *path, vptq_mem *mem, vptq_archive **a,
                              vptq_err *err) VPTQ_MUST_CHECK;
void vptq_archive_close(vptq_archive *a); /* accepts NULL */
size_t vptq_archive_count(const vptq_archive *a);
const vptq_archive_entry *vptq_archive_at(const vptq_archive *a, size_t i);
const vptq_archive_entry *vptq_archive_find(const vptq_archive *a, const char *name,
                                            bool is_tensor);
/* Unpacks an entry into dst (entry->size bytes), frames in parallel, a frame in memory for each
 * thread; VPTQ_E_CHECKSUM naming the entry on damage. */
vptq_status vptq_archive_load(const vptq_archive *a, const vptq_archive_entry *e, int threads,
                              void *dst, vptq_err *err) VPTQ_MUST_CHECK;
/* The same of bytes [at, at + n), which must be in the entry; only the frames that hold them
 * are read. */
vptq_status vptq_archive_load_part(const vptq_archive *a, const vptq_archive_entry *e,
                                   uint64_t at, size_t n, int threads, void *dst,
                                   vptq_err *err) VPTQ_MUST_CHECK;
/* Unpacks an entry to nowhere. */
vptq_status vptq_archive_verify(const vptq_archive *a, const vptq_archive_entry *e, int threads,
                                vptq_err *err) VPTQ_MUST_CHECK;

#endif
