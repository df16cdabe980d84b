/* Recognizes Git LFS pointers. */
#include "formats/lfs.h"

#include <string.h>

vptq_status vptq_lfs_check(const char *path, const void *data, size_t size, const char *what,
                           vptq_err *err)
{
    static const char start[] = "version https://git-lfs.github.com/spec/";
    if (size < sizeof start - 1 || memcmp(data, start, sizeof start - 1) != 0)
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_FORMAT,
                     "%s: is a Git LFS pointer, not the %s; run 'git lfs pull'", path, what);
}
