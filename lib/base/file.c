/* Reading files by mapping or in pieces, and paths (file.h). */
#include "lib/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* --- reading ----------------------------------------------------------------------------- */

/* Opens a regular file, to be `used` ("mapped"), and gets its size; the caller closes *fd. */
static vptq_status open_regular(const char *path, const char *used, int *fd, size_t *size,
                                vptq_err *err)
{
    struct stat sb;
    *size = 0;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* do not block on a FIFO */
    if (*fd < 0)
        return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot open '%s'", path);
    vptq_status st = VPTQ_OK;
    if (fstat(*fd, &sb))
        st = vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot open '%s'", path);
    else if (S_ISDIR(sb.st_mode))
        st = vptq_fail(err, VPTQ_E_IO, "cannot open '%s': is a directory", path);
    else if (!S_ISREG(sb.st_mode))
        st =
            vptq_fail(err, VPTQ_E_IO, "cannot open '%s': is a %s; only regular files can be %s",
                      path, S_ISFIFO(sb.st_mode) ? "pipe" : "device", used);
    else if ((uintmax_t)sb.st_size > SIZE_MAX - 1)
        st = vptq_fail(err, VPTQ_E_IO, "cannot open '%s': too large", path);
    if (st) {
        close(*fd);
        *fd = -1;
        return st;
    }
    *size = (size_t)sb.st_size;
    return VPTQ_OK;
}

vptq_status vptq_map_open(const char *path, vptq_map *map, vptq_err *err)
{
    *map = (vptq_map){0};
    int fd;
    size_t size;
    vptq_status st = open_regular(path, "mapped", &fd, &size, err);
    if (st)
        return st;
    if (size) {
        void *p = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            st = vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot map '%s' (%zu bytes)", path,
                                 size);
        else
            *map = (vptq_map){.data = p, .size = size};
    }
    close(fd);
    return st;
}

void vptq_map_release(vptq_map *map)
{
    if (map->data) {
        union {
            const uint8_t *in;
            void *out;
        } p = {.in = map->data};
        munmap(p.out, map->size);
    }
    *map = (vptq_map){0};
}

void vptq_map_forget(const void *p, size_t n)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)p + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)p + n) / page * page;
    if (begin < end)
        (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
}

void vptq_map_ahead(const void *p, size_t n)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = (uintptr_t)p / page * page, end = (uintptr_t)p + n;
    if (n)
        (void)posix_madvise((void *)begin, end - begin, POSIX_MADV_WILLNEED);
}

bool vptq_read_at(int fd, void *data, size_t bytes, uint64_t offset)
{
    char *at = data;
    while (bytes > 0) {
        const ssize_t n = pread(fd, at, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n < 0 ? errno : 0;
            return false;
        }
        at += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return true;
}

vptq_status vptq_file_open(const char *path, vptq_file *f, vptq_err *err)
{
    size_t size;
    *f = (vptq_file){.fd = -1, .path = path};
    vptq_status st = open_regular(path, "read", &f->fd, &size, err);
    f->size = size;
    return st;
}

void vptq_file_close(vptq_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
}

vptq_status vptq_file_read_at(const vptq_file *f, uint64_t offset, void *dst, size_t n,
                              vptq_err *err)
{
    if (vptq_read_at(f->fd, dst, n, offset))
        return VPTQ_OK;
    if (errno)
        return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot read '%s'", f->path);
    return vptq_fail(err, VPTQ_E_IO,
                     "cannot read '%s': it ends before byte %llu, where it was opened with "
                     "%llu",
                     f->path, (unsigned long long)(offset + n), (unsigned long long)f->size);
}

vptq_status vptq_file_read(const char *path, size_t limit, vptq_mem *mem, char **data,
                           size_t *size, vptq_err *err)
{
    vptq_file f;
    char *text = NULL;
    *data = NULL;
    *size = 0;
    vptq_status st = vptq_file_open(path, &f, err);
    if (st)
        return st;
    if (f.size > limit)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_FORMAT,
                           "'%s' has %llu bytes, more than the %zu expected", path,
                           (unsigned long long)f.size, limit));
    text = vptq_mem_alloc(mem, (size_t)f.size + 1, 1, err);
    if (!text) {
        st = err ? vptq_err_context(err, "cannot read '%s'", path) : VPTQ_E_NOMEM;
        goto out;
    }
    VPTQ_TRY(vptq_file_read_at(&f, 0, text, (size_t)f.size, err));
    text[f.size] = 0;
    *size = (size_t)f.size;
    *data = text;
out:
    if (st)
        vptq_mem_free(mem, text);
    vptq_file_close(&f);
    return st;
}

uint64_t vptq_hash(const void *data, size_t n, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, n, seed);
}

/* --- paths ------------------------------------------------------------------------------- */

bool vptq_path_exists(const char *path)
{
    struct stat sb;
    return stat(path, &sb) == 0;
}

bool vptq_path_is_dir(const char *path)
{
    struct stat sb;
    return stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
}

/* Content addresses of git and of git LFS. */
static bool is_hash(const char *name)
{
    const size_t n = strlen(name);
    return (n == 40 || n == 64) && strspn(name, "0123456789abcdef") == n;
}

bool vptq_path_leaves(const char *dir, const char *name, char target[4096])
{
    char path[4096], real[4096];
    if (vptq_path_join(path, sizeof path, dir, name, NULL) || !realpath(path, target) ||
        !realpath(dir, real))
        return false;
    size_t n = strlen(real);
    if (!strncmp(target, real, n) && target[n] == '/')
        return false;
    n = (size_t)(vptq_path_base(target) - target) - 1;
    return !is_hash(target + n + 1) ||
           vptq_path_join(path, sizeof path, dir, "../../blobs", NULL) ||
           !realpath(path, real) || strlen(real) != n || strncmp(target, real, n) != 0;
}

const char *vptq_path_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

vptq_status vptq_path_join(char *out, size_t size, const char *dir, const char *name,
                           vptq_err *err)
{
    size_t a = strlen(dir), b = strlen(name);
    bool slash = a > 0 && dir[a - 1] != '/';
    if (a >= size || b >= size || a + b + (slash ? 2 : 1) > size)
        return vptq_fail(err, VPTQ_E_ARG, "path '%.80s.../%.80s' is too long (limit %zu bytes)",
                         dir, name, size - 1);
    memmove(out, dir, a);
    if (slash)
        out[a++] = '/';
    memcpy(out + a, name, b + 1);
    return VPTQ_OK;
}
