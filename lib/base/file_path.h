/* What the file and directory writers share; internal to lib/base. */
#ifndef VPTQ_BASE_FILE_PATH_H
#define VPTQ_BASE_FILE_PATH_H

#include "lib/base/file.h"

enum { VPTQ_PATH_MAX = 4096 };

/* The folder that holds `path` ("." for a bare name). */
vptq_status vptq_path_parent(char out[VPTQ_PATH_MAX], const char *path, vptq_err *err);

/* "PATH.KIND.PID" of this process. */
vptq_status vptq_path_temporary(char out[VPTQ_PATH_MAX], const char *path, const char *kind,
                                vptq_err *err);

/* Removes "PATH.KIND.PID" left behind by processes that are gone.  A temporary of a living
 * process stays.  Failures are of no consequence: the next writer tries again. `inner`: as
 * below. */
void vptq_path_sweep(const char *path, const char *kind, const char *inner);

/* Makes a rename inside the folder of `path` durable. */
vptq_status vptq_path_sync_parent(const char *path, vptq_err *err);

/* Whether every entry is a plain file; *entries counts them.  One directory of plain files may
 * be among them, of the name `inner` (NULL = none). */
bool vptq_dir_is_flat(const char *path, const char *inner, size_t *entries);
/* Removes such a directory; false (nothing removed) when it holds anything else or is no
 * directory, and when the system refuses. */
bool vptq_dir_remove_flat(const char *path, const char *inner);

#endif
