/* Internal: files that are mapped or read in pieces, atomic writes of files and directories,
 * locks.
 *
 * A vptq_file_writer writes to "PATH.tmp.RANDOM" next to the target; commit does fsync, rename
 * and fsync of the folder.  A reader sees the old file or the new one, and a killed run leaves
 * only a temporary file, which the next writer of that path removes.
 *
 * Others may have filled the directories that are written to.  Their links are treated thus:
 * - a path that the user names is followed as usual: WORK may be a link to a directory;
 * - a directory that is locked or being written is held open (vptq_held_dir).  Whatever is
 *   written into it or removed from it fails once its path leads elsewhere, and below it no
 *   component may be a link: DIR/holdout, DIR/rows;
 * - temporary files and directories are new (O_EXCL, mkdir), so that a link that waits under
 *   their name is an error.  Writing, renaming and removing them starts from the descriptor of
 *   the folder in which they were made;
 * - an output file that is a link to a plain file or to nothing is replaced itself, with force,
 *   as rename does; its target stays as it is.  An output directory may not be a link;
 * - files that are changed in place (locks, records of serving runs) may not be links, and a
 *   lock must look like one;
 * - removal never follows a link: of directories, only those of plain files are removed. */
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

/* VPTQ_E_IO naming the path, also for a directory or a device. */
vptq_status vptq_map_open(const char *path, vptq_map *map, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_map_release(vptq_map *map);
/* Drops the pages within [p, p + n), a part of a mapping, from the memory of this process; they
 * stay in the system's file cache and can be read again. */
void vptq_map_forget(const void *p, size_t n);
/* Asks the system to read these pages in the background. */
void vptq_map_ahead(const void *p, size_t n);

/* A file that is read in pieces.  It takes no address space, and truncating it while it is open
 * is an error, whereas a mapping would crash. */
typedef struct vptq_file {
    int fd;           /* -1: not open */
    uint64_t size;    /* when it was opened */
    const char *path; /* the caller's; not copied */
} vptq_file;

/* Errors as vptq_map_open. */
vptq_status vptq_file_open(const char *path, vptq_file *f, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_file_close(vptq_file *f);
/* Reads n bytes at `offset`; VPTQ_E_IO if the file is shorter.  Thread safe. */
vptq_status vptq_file_read_at(const vptq_file *f, uint64_t offset, void *dst, size_t n,
                              vptq_err *err) VPTQ_MUST_CHECK;

/* Reads a whole small file into a new buffer of `mem`, with a 0 after its *size bytes; fails
 * for more than `limit` bytes.  Free it with vptq_mem_free. */
vptq_status vptq_file_read(const char *path, size_t limit, vptq_mem *mem, char **data,
                           size_t *size, vptq_err *err) VPTQ_MUST_CHECK;

/* Read or write all `bytes` of an open file at `offset`, in as many calls as needed; false with
 * errno, which is 0 if the file is too short. */
bool vptq_read_at(int fd, void *data, size_t bytes, uint64_t offset) VPTQ_MUST_CHECK;
bool vptq_write_at(int fd, const void *data, size_t bytes, uint64_t offset) VPTQ_MUST_CHECK;

typedef struct vptq_file_writer {
    int fd;  /* -1: not open */
    int dir; /* the folder; open as long as fd is */
    bool force;
    uint64_t written;
    char path[4096], tmp[4096];
} vptq_file_writer;

/* Opens the temporary file, in a folder that is created if it does not exist; with a path of
 * NULL what is written is only counted.  Without `force`
 * an existing target is VPTQ_E_EXISTS, here or, if it appears later, at commit.  A directory or
 * a device is never replaced, nor is a link to one.  A failed write or commit names the path
 * and removes the temporary file at once. */
vptq_status vptq_file_writer_open(const char *path, bool force, vptq_file_writer *w,
                                  vptq_err *err) VPTQ_MUST_CHECK;
/* Fails as opening the writer because of what is at `path`, or if this user may not create it;
 * writes nothing. */
vptq_status vptq_file_check_target(const char *path, bool force, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_file_write(vptq_file_writer *w, const void *data, size_t n,
                            vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_file_writer_commit(vptq_file_writer *w, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_file_writer_abort(
    vptq_file_writer *w); /* removes the temporary file; harmless after commit or a failure */

/* Writes a whole file of n bytes atomically. */
vptq_status vptq_file_replace(const char *path, const void *data, size_t n,
                              vptq_err *err) VPTQ_MUST_CHECK;

/* Removes a file or link, and what killed writers of it left.  It may be missing. */
vptq_status vptq_file_remove(const char *path, vptq_err *err) VPTQ_MUST_CHECK;

/* Opens a new file that ends with its descriptor: its name, a temporary one of `path`, is
 * removed at once. */
vptq_status vptq_file_unnamed(const char *path, int *fd, vptq_err *err) VPTQ_MUST_CHECK;

bool vptq_path_exists(const char *path);
/* Bytes that the disk of `path`, which need not exist yet, has free for this user; 0 = unknown.
 */
uint64_t vptq_path_disk_free(const char *path);
bool vptq_path_is_dir(const char *path);
/* True if DIR/NAME is a link to a file outside DIR, whose path is then in `target`.  In the
 * cache of Hugging Face links to DIR/../../blobs/HASH are not outside. */
bool vptq_path_leaves(const char *dir, const char *name, char target[4096]);
/* out = dir + "/" + name; VPTQ_E_ARG if it does not fit. */
vptq_status vptq_path_join(char *out, size_t size, const char *dir, const char *name,
                           vptq_err *err) VPTQ_MUST_CHECK;
const char *vptq_path_base(const char *path); /* the part after the last '/' */
/* Whether two paths lead to the same file, or a file lies in a directory, by device and inode,
 * however they are spelled.  False for what does not exist. */
bool vptq_path_same(const char *a, const char *b);
bool vptq_path_lies_in(const char *dir, const char *file);
/* As vptq_check_output. */
vptq_status vptq_path_check_output(const char *output, const char *input,
                                   vptq_err *err) VPTQ_MUST_CHECK;
/* out = the path of `name` in the folder of `path`, which is "." for a bare name. */
vptq_status vptq_path_beside(char *out, size_t size, const char *path, const char *name,
                             vptq_err *err) VPTQ_MUST_CHECK;

/* Creates a directory and its parents (mkdir -p); it may exist, but below a held directory not
 * as a link. */
vptq_status vptq_dir_make(const char *path, vptq_err *err) VPTQ_MUST_CHECK;
/* Fails as vptq_dir_make if a file has that name, or that of a parent, or if this user may not
 * create the first that is missing; makes nothing. */
vptq_status vptq_dir_check_make(const char *path, vptq_err *err) VPTQ_MUST_CHECK;
/* The same, and fails as vptq_lock_take if this user may not create or open the lock of a
 * directory that exists. */
vptq_status vptq_dir_check_fill(const char *path, vptq_err *err) VPTQ_MUST_CHECK;

/* Creates the folder of `path` and its parents if it does not exist, as the writers below do
 * for theirs; but none at or below a held directory, whose loss is an error that opening it
 * reports.
 */
vptq_status vptq_path_make_parent(const char *path, vptq_err *err) VPTQ_MUST_CHECK;

/* Fails as creating the folder of `path` would, or with "cannot DOING 'PATH'" if this user may
 * not create files in it; makes nothing. */
vptq_status vptq_path_check_create(const char *path, const char *doing,
                                   vptq_err *err) VPTQ_MUST_CHECK;

/* Removes a directory that holds only plain files, and maybe one directory of them named
 * `inner` (NULL = none); fails, and removes nothing, if it holds anything else. */
vptq_status vptq_dir_remove(const char *path, const char *inner, vptq_err *err) VPTQ_MUST_CHECK;

/* Fails unless a directory that is filled file by file may be begun or continued at `path`: it
 * is missing, or holds `manifest`, or only the lock and temporary manifests of a run killed
 * early.  Otherwise VPTQ_E_MISMATCH: "'PATH' is not WHAT: it holds 'FILE' and no MANIFEST". */
vptq_status vptq_dir_check_own(const char *path, const char *manifest, const char *what,
                               vptq_mem *mem, vptq_err *err) VPTQ_MUST_CHECK;

/* *unused: such a directory is missing, or holds only the lock, the manifest, temporary ones
 * and `inner` (NULL = none).  A run that has failed at its start leaves it so: it has nothing
 * to lose, whatever its manifest says. */
vptq_status vptq_dir_find_unused(const char *path, const char *manifest, const char *inner,
                                 vptq_mem *mem, bool *unused, vptq_err *err) VPTQ_MUST_CHECK;

/* A directory that is kept open while it is written to, see above.  It must not move. */
typedef struct vptq_held_dir {
    struct vptq_held_dir *next; /* all of this process */
    char path[4096];            /* as it was named, without slashes at the end */
    int fd;
    uint64_t device, inode;
} vptq_held_dir;

/* A directory written atomically: fill `tmp`, then commit renames it to the target.  An empty
 * target is replaced; another one is VPTQ_E_EXISTS, or with `force` moved aside and removed
 * after the rename.  Only a directory of plain files is ever removed; `inner`, constant text or
 * NULL, names the one directory of plain files allowed inside.  A failed commit removes `tmp`.
 */
typedef struct vptq_dir_writer {
    char path[4096], tmp[4096];
    const char *inner;
    bool force;
    vptq_held_dir held; /* `tmp` */
} vptq_dir_writer;
vptq_status vptq_dir_writer_open(const char *path, const char *inner, bool force,
                                 vptq_dir_writer *w, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_dir_writer_commit(vptq_dir_writer *w, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_dir_writer_abort(vptq_dir_writer *w);
/* Fails as opening the writer because of what is at `path`, or if this user may not create it;
 * writes nothing. */
vptq_status vptq_dir_check_target(const char *path, const char *inner, bool force,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* An exclusive lock on DIR/lock (flock), and the directory held; VPTQ_E_LOCKED with the process
 * id of the holder.  A `lock` that is a link, has other names or does not look like a lock is
 * left alone: VPTQ_E_IO.  Released by vptq_lock_release or by the end of the process. */
typedef struct vptq_lock {
    int fd; /* -1: not locked */
    vptq_held_dir held;
} vptq_lock;
vptq_status vptq_lock_take(const char *dir, vptq_lock *lock, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_lock_release(vptq_lock *lock);

/* Lists a directory: names in strcmp order, without "." and "..", in `arena`. */
vptq_status vptq_dir_list(const char *path, vptq_arena *arena, char ***names, size_t *count,
                          vptq_err *err) VPTQ_MUST_CHECK;

/* XXH3 64-bit hash of a byte range; `seed` chains ranges. */
uint64_t vptq_hash(const void *data, size_t n, uint64_t seed);

#endif
