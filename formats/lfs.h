/* Internal: recognizes Git LFS pointers, the texts that `git clone` leaves for large files
 * where Git LFS is not installed. */
#ifndef VPTQ_FORMATS_LFS_H
#define VPTQ_FORMATS_LFS_H

#include <stddef.h>

#include "lib/base/status.h"

/* VPTQ_E_FORMAT if a file's content is a pointer: "PATH: is a Git LFS pointer, not the WHAT;
 * run 'git lfs pull'". */
vptq_status vptq_lfs_check(const char *path, const void *data, size_t size, const char *what,
                           vptq_err *err) VPTQ_MUST_CHECK;

#endif
