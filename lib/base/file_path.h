/* Internal to lib/base: helpers of the file and directory writers. */
#ifndef VPTQ_BASE_FILE_PATH_H
#define VPTQ_BASE_FILE_PATH_H

#include "lib/base/file.h"

enum { VPTQ_PATH_MAX = 4096 };

/* "PATH.KIND.PID" of this process. */
vptq_status vptq_path_temporary(char out[VPTQ_PATH_MAX], const char *path, const char *kind,
                                vptq_err *err);

/* Removes the "PATH.KIND.PID" of processes that no longer run.  Failures are ignored: the next
 * writer tries again.  `inner` as below. */
void vptq_path_sweep(const char *path, const char *kind, const char *inner);

/* Makes a rename inside the folder of `path` durable. */
vptq_status vptq_path_sync_parent(const char *path, vptq_err *err);

/* Whether every entry is a plain file, except for one directory of plain files named `inner`
 * (NULL = none); *entries counts them. */
bool vptq_dir_is_flat(const char *path, const char *inner, size_t *entries);
/* Removes such a directory; false if it holds anything else, is not a directory, or the system
 * refuses. */
bool vptq_dir_remove_flat(const char *path, const char *inner);

#endif
