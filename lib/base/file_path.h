/* Internal to lib/base: helpers of the file and directory writers. */
#ifndef VPTQ_BASE_FILE_PATH_H
#define VPTQ_BASE_FILE_PATH_H

#include "lib/base/file.h"

enum { VPTQ_PATH_MAX = 4096 };

/* "PATH.KIND.RANDOM", a new name. */
vptq_status vptq_path_temporary(char out[VPTQ_PATH_MAX], const char *path, const char *kind,
                                vptq_err *err);

/* Claims the file or directory `fd` until it is closed or its process ends, so that nobody
 * sweeps it.  It is a lock, because process numbers mean nothing in other containers and on
 * other machines.  Returns false if somebody else was faster, and `name` in `dir` is claimed
 * or gone. */
bool vptq_path_claim(int dir, const char *name, int fd);

/* Removes the temporaries of `path` that nobody claims.  Failures are ignored: the next writer
 * tries again.  `inner` as below. */
void vptq_path_sweep(const char *path, const char *kind, const char *inner);

/* Opens a directory for *at calls; fails below or at a held one as file.h says. */
vptq_status vptq_dir_open(const char *path, int *fd, vptq_err *err);
/* The same for the folder of `path`; `doing` ("create") is for the message. */
vptq_status vptq_path_open_parent(const char *path, const char *doing, int *fd, vptq_err *err);

/* Fails if the folder of `path` exists and this user may not create files in it. */
vptq_status vptq_path_check_parent(const char *path, const char *doing, vptq_err *err);

/* Opens a directory and holds it until it is released, which is harmless after a failure. */
vptq_status vptq_dir_hold(const char *path, vptq_held_dir *held, vptq_err *err);
void vptq_dir_unhold(vptq_held_dir *held);

/* Makes the names in an open directory durable, that of `path` among them. */
vptq_status vptq_dir_sync(int fd, const char *path, vptq_err *err);

/* Whether every entry is a plain file, except for one directory of plain files named `inner`
 * (NULL = none); *entries counts them. */
bool vptq_dir_is_flat(const char *path, const char *inner, size_t *entries);
/* Removes such a directory; false if it holds anything else, is not a directory, or the system
 * refuses. */
bool vptq_dir_remove_flat(const char *path, const char *inner);

#endif
