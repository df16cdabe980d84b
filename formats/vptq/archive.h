/* Internal: the .vptq archive: one file with small files stored whole (config, tokenizer) and
 * tensors in zstd frames.  Every frame has a checksum and the index is at the end, so that an
 * archive can be read in parallel and in part.  Byte layout: docs/formats/archive.md. */
#ifndef VPTQ_FORMATS_VPTQ_ARCHIVE_H
#define VPTQ_FORMATS_VPTQ_ARCHIVE_H

#include "formats/tensor.h"

/* True if the file begins or ends like an archive; damage at one end does not hide it. */
bool vptq_archive_is(const char *path);

/* True for the name of a companion, a file that accompanies weights: config.json, files of a
 * tokenizer, and texts (docs/formats/archive.md lists them).  No loader takes any of them for
 * weights or code.  Holds for files of archives and for files that packing copies. */
bool vptq_companion_ok(const char *name);

/* True for the types of an archive's tensors: those of safetensors, and GGUF's Q8_0 and Q6_K,
 * whose blocks run through all elements in order. */
bool vptq_archive_stores(vptq_dtype type);

/* ---- writing ---- */

/* Entries are written in call order; commit writes the index.  The same input gives the same
 * bytes for any number of threads.  Holds one frame per thread in memory.  `level` is zstd's, 1
 * to VPTQ_ARCHIVE_MAX_LEVEL. */
enum { VPTQ_ARCHIVE_MAX_LEVEL = 22 };
typedef struct vptq_archive_writer vptq_archive_writer;
vptq_status vptq_archive_writer_open(const char *path, bool force, int threads, vptq_mem *mem,
                                     vptq_archive_writer **w, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_archive_add_file(vptq_archive_writer *w, const char *name, const void *data,
                                  size_t n, int level, vptq_err *err) VPTQ_MUST_CHECK;
/* Adds a tensor piece by piece: begin (ignores t->data), put until t->bytes are written, end.
 */
vptq_status vptq_archive_begin_tensor(vptq_archive_writer *w, const vptq_tensor *t, int level,
                                      vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_archive_put(vptq_archive_writer *w, const void *data, size_t n,
                             vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_archive_end(vptq_archive_writer *w, vptq_err *err) VPTQ_MUST_CHECK;
/* Bytes of the file so far, between entries. */
uint64_t vptq_archive_written(const vptq_archive_writer *w);
vptq_status vptq_archive_writer_commit(vptq_archive_writer *w, vptq_err *err) VPTQ_MUST_CHECK;
/* Frees the writer; removes the file unless it was committed.  Accepts NULL. */
void vptq_archive_writer_abort(vptq_archive_writer *w);

/* ---- reading ---- */

typedef struct vptq_archive_entry {
    const char *name;
    bool is_tensor;
    uint8_t planes;       /* byte planes that each frame is split into before compression */
    vptq_tensor tensor;   /* name, type, shape; data is NULL */
    uint64_t size;        /* bytes when unpacked */
    uint64_t packed_size; /* bytes in the file */
    uint32_t first_frame, frame_count;
} vptq_archive_entry;

typedef struct vptq_archive vptq_archive;
/* Reads header, footer and index and verifies their checksums.  Unpacks no entry. */
vptq_status vptq_archive_open(const char *path, vptq_mem *mem, vptq_archive **a,
                              vptq_err *err) VPTQ_MUST_CHECK;
void vptq_archive_close(vptq_archive *a); /* accepts NULL */
size_t vptq_archive_count(const vptq_archive *a);
const vptq_archive_entry *vptq_archive_at(const vptq_archive *a, size_t i);
/* NULL if there is no such entry. */
const vptq_archive_entry *vptq_archive_find(const vptq_archive *a, const char *name,
                                            bool is_tensor);
/* Unpacks an entry into dst (entry->size bytes), frames in parallel, with one frame in memory
 * per thread; with dst NULL only checks that it can be unpacked.  VPTQ_E_CHECKSUM naming the
 * entry if it is damaged. */
vptq_status vptq_archive_load(const vptq_archive *a, const vptq_archive_entry *e, int threads,
                              void *dst, vptq_err *err) VPTQ_MUST_CHECK;
/* Unpacks bytes [begin, begin + n) of an entry; reads only the frames that hold them. */
vptq_status vptq_archive_load_part(const vptq_archive *a, const vptq_archive_entry *e,
                                   uint64_t begin, uint64_t n, int threads, void *dst,
                                   vptq_err *err) VPTQ_MUST_CHECK;

#endif
