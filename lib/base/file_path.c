/* Temporary names, held directories and durable renames (file_path.h). */
#include "lib/base/file_path.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* The folder that holds `path` ("." for a bare name). */
static vptq_status parent_of(char out[VPTQ_PATH_MAX], const char *path, vptq_err *err)
{
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 1;
    if (n >= VPTQ_PATH_MAX)
        return vptq_fail(err, VPTQ_E_ARG, "path '%.80s...' is too long", path);
    if (!slash) {
        memcpy(out, ".", 2);
    } else if (n == 0) {
        memcpy(out, "/", 2);
    } else {
        memcpy(out, path, n);
        out[n] = 0;
    }
    return VPTQ_OK;
}

vptq_status vptq_path_beside(char *out, size_t size, const char *path, const char *name,
                             vptq_err *err)
{
    char dir[VPTQ_PATH_MAX];
    VPTQ_CHECK(parent_of(dir, path, err));
    return vptq_path_join(out, size, dir, name, err);
}

bool vptq_path_same(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool vptq_path_lies_in(const char *dir, const char *file)
{
    char parent[VPTQ_PATH_MAX];
    return !parent_of(parent, file, NULL) && vptq_path_same(dir, parent);
}

vptq_status vptq_path_check_output(const char *output, const char *input, vptq_err *err)
{
    return vptq_path_same(output, input)
               ? vptq_fail(err, VPTQ_E_ARG,
                           "the output '%s' is the input '%s'; give another file", output,
                           input)
               : VPTQ_OK;
}

vptq_status vptq_path_temporary(char out[VPTQ_PATH_MAX], const char *path, const char *kind,
                                vptq_err *err)
{
    uint64_t random;
    if (getentropy(&random, sizeof random))
        return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot make a temporary name");
    int n = snprintf(out, VPTQ_PATH_MAX, "%s.%s.%016" PRIx64, path, kind, random);
    if (n < 0 || n >= VPTQ_PATH_MAX)
        return vptq_fail(err, VPTQ_E_ARG, "path '%.80s...' is too long", path);
    return VPTQ_OK;
}

static bool is_entry(const struct dirent *e)
{
    return strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
}

/* --- held directories -------------------------------------------------------------------- */

/* Locks belong to the process, and so does this list. */
static vptq_held_dir *all_held;
static pthread_mutex_t held_mutex = PTHREAD_MUTEX_INITIALIZER;

/* Finds the held directory that is `path` or holds most of it; *n is the length of its path, 0
 * if there is none. */
static vptq_held_dir find_held(const char *path, size_t *n)
{
    vptq_held_dir found = {0};
    *n = 0;
    pthread_mutex_lock(&held_mutex);
    for (const vptq_held_dir *h = all_held; h; h = h->next) {
        const size_t length = strlen(h->path);
        if (length > *n && !strncmp(path, h->path, length) &&
            (path[length] == 0 || path[length] == '/')) {
            found = *h;
            *n = length;
        }
    }
    pthread_mutex_unlock(&held_mutex);
    return found;
}

/* Goes from the directory *fd down to the end of `path`, of which `below` is the rest, without
 * following links. */
static vptq_status go_down(const char *path, const char *below, int *fd, vptq_err *err)
{
    char name[NAME_MAX + 1];
    for (below += strspn(below, "/"); *below; below += strspn(below, "/")) {
        const size_t n = strcspn(below, "/");
        snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1),
                 below);
        const int inner = openat(*fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (inner < 0)
            return errno == ENOTDIR || errno == ELOOP
                       ? vptq_fail(err, VPTQ_E_IO,
                                   "'%s' is a link or not a directory; links in a directory "
                                   "that is written to are not followed",
                                   path)
                       : vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot open directory '%s'",
                                         path);
        close(*fd);
        *fd = inner;
        below += n;
    }
    return VPTQ_OK;
}

/* Opens a directory; "cannot DOING 'WHAT'" is the sentence of a failure. */
static vptq_status open_dir(const char *path, const char *doing, const char *what, int *fd,
                            vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    struct stat sb;
    size_t n;
    const vptq_held_dir held = find_held(path, &n);

    *fd = open(n ? held.path : path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (n && (*fd < 0 || fstat(*fd, &sb) || (uint64_t)sb.st_dev != held.device ||
              (uint64_t)sb.st_ino != held.inode))
        VPTQ_TRY(vptq_fail(err, VPTQ_E_IO, "'%s' was moved or replaced while it was written to",
                           held.path));
    if (*fd < 0)
        VPTQ_TRY(vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot %s '%s'", doing, what));
    if (n)
        VPTQ_TRY(go_down(path, path + n, fd, err));
out:
    if (st && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return st;
}

vptq_status vptq_dir_open(const char *path, int *fd, vptq_err *err)
{
    return open_dir(path, "open directory", path, fd, err);
}

vptq_status vptq_path_open_parent(const char *path, const char *doing, int *fd, vptq_err *err)
{
    char parent[VPTQ_PATH_MAX];
    VPTQ_CHECK(parent_of(parent, path, err));
    return open_dir(parent, doing, path, fd, err);
}

vptq_status vptq_path_make_parent(const char *path, vptq_err *err)
{
    char parent[VPTQ_PATH_MAX];
    size_t n;
    VPTQ_CHECK(parent_of(parent, path, err));
    (void)find_held(parent, &n);
    return n || vptq_path_is_dir(parent) ? VPTQ_OK : vptq_dir_make(parent, err);
}

vptq_status vptq_path_check_parent(const char *path, const char *doing, vptq_err *err)
{
    char parent[VPTQ_PATH_MAX];
    VPTQ_CHECK(parent_of(parent, path, err));
    return vptq_path_is_dir(parent) && access(parent, W_OK | X_OK)
               ? vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot %s '%s'", doing, path)
               : VPTQ_OK;
}

vptq_status vptq_path_check_create(const char *path, const char *doing, vptq_err *err)
{
    char parent[VPTQ_PATH_MAX];
    VPTQ_CHECK(parent_of(parent, path, err));
    return vptq_path_is_dir(parent) ? vptq_path_check_parent(path, doing, err)
                                    : vptq_dir_check_make(parent, err);
}

vptq_status vptq_dir_hold(const char *path, vptq_held_dir *held, vptq_err *err)
{
    struct stat sb;
    size_t n = strlen(path);
    *held = (vptq_held_dir){.fd = -1};
    while (n > 1 && path[n - 1] == '/')
        n--;
    if (n >= sizeof held->path)
        return vptq_fail(err, VPTQ_E_ARG, "path '%.80s...' is too long", path);
    memcpy(held->path, path, n);
    VPTQ_CHECK(vptq_dir_open(held->path, &held->fd, err));
    if (fstat(held->fd, &sb)) {
        const int errnum = errno;
        vptq_dir_unhold(held);
        return vptq_fail_errno(err, VPTQ_E_IO, errnum, "cannot open directory '%s'", path);
    }
    held->device = (uint64_t)sb.st_dev;
    held->inode = (uint64_t)sb.st_ino;
    pthread_mutex_lock(&held_mutex);
    held->next = all_held;
    all_held = held;
    pthread_mutex_unlock(&held_mutex);
    return VPTQ_OK;
}

void vptq_dir_unhold(vptq_held_dir *held)
{
    pthread_mutex_lock(&held_mutex);
    for (vptq_held_dir **at = &all_held; *at; at = &(*at)->next)
        if (*at == held) {
            *at = held->next;
            break;
        }
    pthread_mutex_unlock(&held_mutex);
    if (held->fd >= 0)
        close(held->fd);
    held->fd = -1;
}

/* --- directories of plain files ---------------------------------------------------------- */

/* Opens the directory `name` in the directory `at`; NULL if it is something else, or a link. */
static DIR *open_entries(int at, const char *name)
{
    const int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d && fd >= 0)
        close(fd);
    return d;
}

static bool is_flat(int at, const char *path, const char *inner, size_t *entries)
{
    size_t inside;
    *entries = 0;
    DIR *d = open_entries(at, path);
    if (!d)
        return false;
    bool flat = true;
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        struct stat sb;
        if (!is_entry(e))
            continue;
        ++*entries;
        if (fstatat(dirfd(d), e->d_name, &sb, AT_SYMLINK_NOFOLLOW))
            flat = false;
        else if (!S_ISREG(sb.st_mode))
            flat = flat && inner && !strcmp(e->d_name, inner) &&
                   is_flat(dirfd(d), e->d_name, NULL, &inside);
    }
    closedir(d);
    return flat;
}

bool vptq_dir_is_flat(const char *path, const char *inner, size_t *entries)
{
    return is_flat(AT_FDCWD, path, inner, entries);
}

static bool remove_flat(int at, const char *path, const char *inner)
{
    size_t entries;
    if (!is_flat(at, path, inner, &entries))
        return false;
    DIR *d = open_entries(at, path);
    if (!d)
        return false;
    bool done = true;
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        if (!is_entry(e))
            continue;
        if (inner && !strcmp(e->d_name, inner) && remove_flat(dirfd(d), inner, NULL))
            continue;
        if (unlinkat(dirfd(d), e->d_name, 0))
            done = false;
    }
    closedir(d);
    return done && unlinkat(at, path, AT_REMOVEDIR) == 0;
}

bool vptq_dir_remove_flat(const char *path, const char *inner)
{
    return remove_flat(AT_FDCWD, path, inner);
}

/* --- temporary names --------------------------------------------------------------------- */

/* Whether the name is that of a temporary of `base`. */
static bool is_temporary(const char *name, const char *base, const char *kind)
{
    size_t b = strlen(base), k = strlen(kind);
    if (strncmp(name, base, b) || name[b] != '.' || strncmp(name + b + 1, kind, k) ||
        name[b + 1 + k] != '.')
        return false;
    const char *random = name + b + k + 2;
    return strlen(random) == 16 && strspn(random, "0123456789abcdef") == 16;
}

bool vptq_path_claim(int dir, const char *name, int fd)
{
    struct stat mine, there;
    if (flock(fd, LOCK_EX | LOCK_NB))
        return errno != EWOULDBLOCK; /* without locks nobody sweeps either */
    return fstat(fd, &mine) == 0 && fstatat(dir, name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
           mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
}

/* Removes a temporary that nobody has claimed. */
static void sweep_entry(int dir, const char *name, const char *inner)
{
    struct stat sb;
    if (fstatat(dir, name, &sb, AT_SYMLINK_NOFOLLOW) ||
        (!S_ISREG(sb.st_mode) && !S_ISDIR(sb.st_mode)))
        return;
    /* Network file systems lock only files that are open for writing. */
    const int mode = S_ISDIR(sb.st_mode) ? O_RDONLY | O_DIRECTORY : O_RDWR | O_NONBLOCK;
    const int fd = openat(dir, name, mode | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && unlinkat(dir, name, 0))
        remove_flat(dir, name, inner);
    close(fd);
}

void vptq_path_sweep(const char *path, const char *kind, const char *inner)
{
    const char *base = vptq_path_base(path);
    int fd;
    if (vptq_path_open_parent(path, "sweep", &fd, NULL))
        return;
    DIR *d = open_entries(fd, ".");
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d))
        if (is_temporary(e->d_name, base, kind))
            sweep_entry(fd, e->d_name, inner);
    if (d)
        closedir(d);
    close(fd);
}

vptq_status vptq_dir_sync(int fd, const char *path, vptq_err *err)
{
    /* Some file systems cannot sync a folder; the rename itself has succeeded. */
    if (fsync(fd) && errno != EINVAL && errno != ENOTSUP)
        return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot sync the folder of '%s'", path);
    return VPTQ_OK;
}

uint64_t vptq_path_disk_free(const char *path)
{
    char dir[PATH_MAX];
    struct statvfs fs;
    size_t n = strlen(path);
    if (n >= sizeof dir)
        return 0;
    memcpy(dir, path, n + 1);
    while (statvfs(n ? dir : ".", &fs)) {
        if (!n)
            return 0;
        while (n && dir[n - 1] != '/')
            n--;
        while (n > 1 && dir[n - 1] == '/') /* the root keeps its name */
            n--;
        n = n == 1 && dir[0] == '/' && dir[1] == 0 ? 0 : n;
        dir[n] = 0;
    }
    return (uint64_t)fs.f_bavail * fs.f_frsize;
}
