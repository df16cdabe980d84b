/* Files: read by mapping or in places, written whole or not at all, directories with a lock.
 *
 * A vptq_file_writer collects its bytes in "PATH.tmp.PID" beside the target; commit does fsync,
 * rename and fsync of the folder, so a reader sees the old file or the new one and a killed run
 * leaves nothing but a temporary name, which the next writer of that path removes. */
#ifndef VPTQ_BASE_FILE_H
#define VPTQ_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/mem.h"
#include "lib/base/status.h"

typedef struct vptq_map {
    const uint8_t *data; /* read-only; valid until release; NULL for an empty file */
    size_t size;
} vptq_map;

/* Errors name the path: VPTQ_E_IO, also for a directory or a device. */
vptq_status vptq_map_open(const char *path, vptq_map *map, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_map_release(vptq_map *map);
/* The pages within [p, p + n), a part of a mapping, leave the memory of this process (not the
 * system's cache of the file); touching them again is slower, nothing else. */
void vptq_map_forget(const void *p, size_t n);
/* The system may read them already while the caller does something else. */
void vptq_map_ahead(const void *p, size_t n);

/* A file that is read in places.  It takes no address space, and one that is cut short while it
 * is open is an error, where a mapping would end the process. */
typedef struct vptq_file {
    int fd;           /* -1: not open */
    uint64_t size;    /* as it was opened */
    const char *path; /* as given; not copied */
} vptq_file;

/* Errors as vptq_map_open. */
vptq_status vptq_file_open(const char *path, vptq_file *f, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_file_close(vptq_file *f);
/* n bytes from `offset` on; where the file ends before, VPTQ_E_IO.  Thread safe. */
vptq_status vptq_file_read_at(const vptq_file *f, uint64_t offset, void *dst, size_t n,
                              vptq_err *err) VPTQ_MUST_CHECK;

/* A whole small file into a fresh buffer of `mem` (a 0 stands behind `*size` bytes); refuses
 * more than `limit` bytes.  Free with vptq_mem_free. */
vptq_status vptq_file_read(const char *path, size_t limit, vptq_mem *mem, char **data,
                           size_t *size, vptq_err *err) VPTQ_MUST_CHECK;

/* All `bytes` of an open file at `offset`, in as many calls as it takes; false with errno,
 * which is 0 for a file that ends too early. */
bool vptq_read_at(int fd, void *data, size_t bytes, uint64_t offset) VPTQ_MUST_CHECK;
bool vptq_write_at(int fd, const void *data, size_t bytes, uint64_t offset) VPTQ_MUST_CHECK;

typedef struct vptq_file_writer {
    int fd; /* -1: not open */
    bool force;
    uint64_t written;
    char path[4096], tmp[4096];
} vptq_file_writer;

/* Opens the temporary file.  With `force` false an existing target is VPTQ_E_EXISTS, here or,
 * if it appears meanwhile, at commit.  Writes and commit that fail (no space left ...) name the
 * path and remove the temporary at once. */
vptq_status vptq_file_writer_open(const char *path, bool force, vptq_file_writer *w,
                                  vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_file_write(vptq_file_writer *w, const void *data, size_t n,
                            vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_file_writer_commit(vptq_file_writer *w, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_file_writer_abort(
    vptq_file_writer *w); /* removes the temporary; harmless after commit or a failure */

/* Atomic whole-file write of n bytes. */
vptq_status vptq_file_replace(const char *path, const void *data, size_t n,
                              vptq_err *err) VPTQ_MUST_CHECK;

bool vptq_path_exists(const char *path);
bool vptq_path_is_dir(const char *path);
/* dir + "/" + name into out; VPTQ_E_ARG when it does not fit. */
vptq_status vptq_path_join(char *out, size_t size, const char *dir, const char *name,
                           vptq_err *err) VPTQ_MUST_CHECK;
const char *vptq_path_base(const char *path); /* the part behind the last '/' */

/* mkdir -p; an existing directory is fine. */
vptq_status vptq_dir_make(const char *path, vptq_err *err) VPTQ_MUST_CHECK;

/* Whether a directory that is filled file by file may be begun or continued at `path`: it is
 * not there, or holds `manifest`, or nothing but what a run leaves that was killed before it
 * wrote that (the lock, a temporary of the manifest).  Else VPTQ_E_MISMATCH: "'PATH' is no
 * WHAT: it holds 'FILE' and no MANIFEST". */
vptq_status vptq_dir_check_own(const char *path, const char *manifest, const char *what,
                               vptq_mem *mem, vptq_err *err) VPTQ_MUST_CHECK;

/* A directory that appears whole: fill `tmp`, then commit renames it to the target.  An empty
 * target is taken; another one is VPTQ_E_EXISTS, or with `force` moved aside first and removed
 * after the rename (only a directory whose every entry is a plain file is ever removed;
 * `inner`, constant text or NULL, names the one directory of plain files that the old and the
 * new one may have inside).  A commit that fails removes `tmp`. */
typedef struct vptq_dir_writer {
    char path[4096], tmp[4096];
    const char *inner;
    bool force;
} vptq_dir_writer;
vptq_status vptq_dir_writer_open(const char *path, const char *inner, bool force,
                                 vptq_dir_writer *w, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_dir_writer_commit(vptq_dir_writer *w, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_dir_writer_abort(vptq_dir_writer *w);

/* An exclusive lock on DIR/lock (flock): VPTQ_E_LOCKED with the other process's id in the text
 * when somebody holds it.  Released by vptq_lock_release or by the end of the process. */
typedef struct vptq_lock {
    int fd; /* -1: not held */
} vptq_lock;
vptq_status vptq_lock_take(const char *dir, vptq_lock *lock, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_lock_release(vptq_lock *lock);

/* Sorted names (strcmp order) of the entries of a directory, without "." and "..", in `arena`.
 */
vptq_status vptq_dir_list(const char *path, vptq_arena *arena, char ***names, size_t *count,
                          vptq_err *err) VPTQ_MUST_CHECK;

/* XXH3 64-bit of a byte range; `seed` chains ranges. */
uint64_t vptq_hash(const void *data, size_t n, uint64_t seed);

#endif
