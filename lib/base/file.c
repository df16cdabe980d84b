/* Reading files by mapping or in pieces, and paths (file.h). */
#include "lib/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* --- reading ----------------------------------------------------------------------------- */

/* Opens a plain file and gets its size; the caller closes *fd. */
static vptq_status open_plain(const char *path, int *fd, size_t *size, vptq_err *err)
{
    struct stat sb;
    *size = 0;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* do not block on a FIFO */
    if (*fd < 0)
        return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot open '%s'", path);
    vptq_status st = VPTQ_OK;
    if (fstat(*fd, &sb))
        st = vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot open '%s'", path);
    else if (!S_ISREG(sb.st_mode))
        st = vptq_fail(err, VPTQ_E_IO, "cannot open '%s': %s", path,
                       S_ISDIR(sb.st_mode) ? "is a directory" : "is not a plain file");
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
    vptq_status st = open_plain(path, &fd, &size, err);
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
    vptq_status st = open_plain(path, &f->fd, &size, err);
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

/* Reads until `size` bytes or the end of the file. */
static vptq_status read_all(int fd, const char *path, char *data, size_t size, size_t *got,
                            vptq_err *err)
{
    *got = 0;
    while (*got < size) {
        ssize_t n = read(fd, data + *got, size - *got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot read '%s'", path);
        if (n == 0)
            break;
        *got += (size_t)n;
    }
    return VPTQ_OK;
}

vptq_status vptq_file_read(const char *path, size_t limit, vptq_mem *mem, char **data,
                           size_t *size, vptq_err *err)
{
    *data = NULL;
    *size = 0;
    int fd;
    size_t bytes;
    vptq_status st = open_plain(path, &fd, &bytes, err);
    if (st)
        return st;
    char *text = NULL;
    if (bytes > limit) {
        st = vptq_fail(err, VPTQ_E_FORMAT, "'%s' has %zu bytes, more than the %zu expected",
                       path, bytes, limit);
        goto out;
    }
    text = vptq_mem_alloc(mem, bytes + 1, 1, err);
    if (!text) {
        st = err ? vptq_err_context(err, "cannot read '%s'", path) : VPTQ_E_NOMEM;
        goto out;
    }
    VPTQ_TRY(read_all(fd, path, text, bytes, size, err));
    text[*size] = 0;
    *data = text;
out:
    if (st)
        vptq_mem_free(mem, text);
    close(fd);
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
