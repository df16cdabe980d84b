/* Writing files atomically (file.h). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/base/file_path.h"

bool vptq_write_at(int fd, const void *data, size_t bytes, uint64_t offset)
{
    const char *at = data;
    while (bytes > 0) {
        const ssize_t n = pwrite(fd, at, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n < 0 ? errno : ENOSPC;
            return false;
        }
        at += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return true;
}

static vptq_status create_temporary(vptq_file_writer *w, vptq_err *err)
{
    for (;;) {
        VPTQ_CHECK(vptq_path_temporary(w->tmp, w->path, "tmp", err));
        const char *name = vptq_path_base(w->tmp);
        w->fd = openat(w->dir, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (w->fd < 0)
            return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot create '%s'", w->path);
        if (vptq_path_claim(w->dir, name, w->fd))
            return VPTQ_OK;
        close(w->fd);
    }
}

static vptq_status check_target(const char *path, bool force, vptq_err *err)
{
    struct stat sb;
    if (stat(path, &sb) == 0 && !S_ISREG(sb.st_mode))
        return vptq_fail(err, VPTQ_E_IO, "cannot replace '%s': %s", path,
                         S_ISDIR(sb.st_mode) ? "is a directory" : "is not a plain file");
    if (!force && lstat(path, &sb) == 0)
        return vptq_fail(err, VPTQ_E_EXISTS, "'%s' already exists", path);
    return VPTQ_OK;
}

vptq_status vptq_file_check_target(const char *path, bool force, vptq_err *err)
{
    VPTQ_CHECK(check_target(path, force, err));
    return vptq_path_check_create(path, "create", err);
}

vptq_status vptq_file_writer_open(const char *path, bool force, vptq_file_writer *w,
                                  vptq_err *err)
{
    *w = (vptq_file_writer){.fd = -1, .dir = -1, .force = force};
    if (!path) {
        w->fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
        return w->fd >= 0 ? VPTQ_OK
                          : vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot open '/dev/null'");
    }
    VPTQ_CHECK(check_target(path, force, err));
    size_t n = strlen(path);
    if (n >= sizeof w->path)
        return vptq_fail(err, VPTQ_E_ARG, "path '%.80s...' is too long", path);
    memcpy(w->path, path, n + 1);
    VPTQ_CHECK(vptq_path_make_parent(path, err));
    VPTQ_CHECK(vptq_path_open_parent(path, "create", &w->dir, err));
    vptq_path_sweep(path, "tmp", NULL);
    const vptq_status st = create_temporary(w, err);
    if (st)
        close(w->dir);
    return st;
}

/* Removes the name of the temporary file. */
static void discard(const vptq_file_writer *w)
{
    if (w->dir < 0)
        return;
    unlinkat(w->dir, vptq_path_base(w->tmp), 0);
    close(w->dir);
}

void vptq_file_writer_abort(vptq_file_writer *w)
{
    if (w->fd < 0)
        return;
    discard(w);
    close(w->fd);
    w->fd = -1;
}

/* A failed write discards the whole file. */
static vptq_status give_up(vptq_file_writer *w, int errnum, vptq_err *err)
{
    vptq_file_writer_abort(w);
    return vptq_fail_errno(err, VPTQ_E_IO, errnum, "cannot write '%s'", w->path);
}

vptq_status vptq_file_write(vptq_file_writer *w, const void *data, size_t n, vptq_err *err)
{
    /* One call never writes more than 2^31 bytes on Linux; asking for less keeps ssize_t safe
     * everywhere. */
    const size_t max_bytes = (size_t)1 << 30;
    const char *p = data;
    if (w->fd < 0)
        return vptq_fail(err, VPTQ_E_IO, "cannot write '%s': not open", w->path);
    while (n) {
        ssize_t m = write(w->fd, p, n < max_bytes ? n : max_bytes);
        if (m < 0 && errno == EINTR)
            continue;
        if (m <= 0)
            return give_up(w, m < 0 ? errno : ENOSPC, err);
        p += m;
        n -= (size_t)m;
        w->written += (uint64_t)m;
    }
    return VPTQ_OK;
}

/* Moves the finished temporary file to the target.  Without force a target that appeared in the
 * meantime is kept: link, unlike rename, refuses to replace.  On file systems without links
 * this is a rename. */
static int move_into_place(const vptq_file_writer *w)
{
    const char *tmp = vptq_path_base(w->tmp), *name = vptq_path_base(w->path);
    if (!w->force) {
        if (linkat(w->dir, tmp, w->dir, name, 0) == 0)
            return unlinkat(w->dir, tmp, 0);
        if (errno == EEXIST)
            return -1;
    }
    return renameat(w->dir, tmp, w->dir, name);
}

vptq_status vptq_file_writer_commit(vptq_file_writer *w, vptq_err *err)
{
    if (w->fd < 0)
        return vptq_fail(err, VPTQ_E_IO, "cannot write '%s': not open", w->path);
    /* Closing a copy reports what a network file system has held back; the claim stays until
     * the file has its name. */
    const int copy = fsync(w->fd) ? -1 : dup(w->fd);
    if (copy < 0 || close(copy))
        return give_up(w, errno, err);
    if (move_into_place(w)) {
        if (errno != EEXIST)
            return give_up(w, errno, err);
        vptq_file_writer_abort(w);
        return vptq_fail(err, VPTQ_E_EXISTS, "'%s' already exists", w->path);
    }
    close(w->fd);
    w->fd = -1;
    const vptq_status st = vptq_dir_sync(w->dir, w->path, err);
    close(w->dir);
    return st;
}

vptq_status vptq_file_replace(const char *path, const void *data, size_t n, vptq_err *err)
{
    vptq_file_writer w;
    vptq_status st = VPTQ_OK;
    VPTQ_TRY(vptq_file_writer_open(path, true, &w, err));
    VPTQ_TRY(vptq_file_write(&w, data, n, err));
    VPTQ_TRY(vptq_file_writer_commit(&w, err));
out:
    vptq_file_writer_abort(&w);
    return st;
}

vptq_status vptq_file_remove(const char *path, vptq_err *err)
{
    struct stat sb;
    vptq_status st = VPTQ_OK;
    int dir;
    vptq_path_sweep(path, "tmp", NULL);
    if (lstat(path, &sb) && errno == ENOENT)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_path_open_parent(path, "remove", &dir, err));
    if (unlinkat(dir, vptq_path_base(path), 0) && errno != ENOENT)
        st = vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot remove '%s'", path);
    close(dir);
    return st;
}

vptq_status vptq_file_unnamed(const char *path, int *fd, vptq_err *err)
{
    vptq_file_writer w;
    *fd = -1;
    VPTQ_CHECK(vptq_file_writer_open(path, true, &w, err));
    *fd = w.fd;
    discard(&w);
    return VPTQ_OK;
}
