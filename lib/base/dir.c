/* Directories: creating, listing, writing as a whole, locking (file.h). */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/base/file_path.h"

/* --- making and listing ------------------------------------------------------------------ */

static vptq_status make_one(const char *path, vptq_err *err)
{
    if (mkdir(path, 0777) == 0)
        return VPTQ_OK;
    int errnum = errno;
    if (vptq_path_is_dir(path))
        return VPTQ_OK;
    return vptq_fail_errno(err, VPTQ_E_IO, errnum, "cannot create directory '%s'", path);
}

/* Calls `one` for the parents of a directory and then for itself. */
static vptq_status for_parts(const char *path,
                             vptq_status (*one)(const char *part, vptq_err *err), vptq_err *err)
{
    char part[VPTQ_PATH_MAX];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof part)
        return vptq_fail(err, VPTQ_E_ARG, "directory name '%.80s' is %s", path,
                         n ? "too long" : "empty");
    memcpy(part, path, n + 1);
    for (size_t i = 1; i < n; i++) {
        if (part[i] != '/' || part[i - 1] == '/')
            continue;
        part[i] = 0;
        VPTQ_CHECK(one(part, err));
        part[i] = '/';
    }
    return one(path, err);
}

/* Fails as make_one where something else has that name, or the folder may not be written to. */
static vptq_status check_one(const char *path, vptq_err *err)
{
    if (vptq_path_is_dir(path))
        return VPTQ_OK;
    return vptq_path_exists(path)
               ? vptq_fail_errno(err, VPTQ_E_IO, EEXIST, "cannot create directory '%s'", path)
               : vptq_path_check_parent(path, "create directory", err);
}

vptq_status vptq_dir_check_make(const char *path, vptq_err *err)
{
    return for_parts(path, check_one, err);
}

vptq_status vptq_dir_check_fill(const char *path, vptq_err *err)
{
    char lock[VPTQ_PATH_MAX];
    VPTQ_CHECK(vptq_dir_check_make(path, err));
    if (!vptq_path_is_dir(path))
        return VPTQ_OK;
    VPTQ_CHECK(vptq_path_join(lock, sizeof lock, path, "lock", err));
    const bool locked = vptq_path_exists(lock); /* once, or now */
    return access(locked ? lock : path, locked ? R_OK | W_OK : W_OK | X_OK)
               ? vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot open '%s'", lock)
               : VPTQ_OK;
}

vptq_status vptq_dir_make(const char *path, vptq_err *err)
{
    int fd;
    VPTQ_CHECK(for_parts(path, make_one, err));
    VPTQ_CHECK(vptq_dir_open(path, &fd, err));
    close(fd);
    return VPTQ_OK;
}

typedef struct name_node {
    struct name_node *next;
    char *name;
} name_node;

static int by_name(const void *a, const void *b)
{
    const char *const *x = a;
    const char *const *y = b;
    return strcmp(*x, *y);
}

static vptq_status read_names(DIR *d, const char *path, vptq_arena *arena, name_node **head,
                              size_t *count, vptq_err *err)
{
    for (;;) {
        errno = 0;
        struct dirent *e = readdir(d);
        if (!e && errno)
            return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot read directory '%s'", path);
        if (!e)
            return VPTQ_OK;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        name_node *node = vptq_arena_alloc(arena, 1, sizeof *node, err);
        char *name = node ? vptq_arena_strdup(arena, e->d_name, err) : NULL;
        if (!name)
            return VPTQ_E_NOMEM;
        *node = (name_node){.next = *head, .name = name};
        *head = node;
        ++*count;
    }
}

vptq_status vptq_dir_list(const char *path, vptq_arena *arena, char ***names, size_t *count,
                          vptq_err *err)
{
    *names = NULL;
    *count = 0;
    DIR *d = opendir(path);
    if (!d)
        return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot open directory '%s'", path);
    name_node *head = NULL;
    size_t n = 0;
    vptq_status st = read_names(d, path, arena, &head, &n, err);
    closedir(d);
    if (st)
        return st;
    char **list = vptq_arena_alloc(arena, n, sizeof *list, err);
    if (!list)
        return VPTQ_E_NOMEM;
    size_t i = 0;
    for (; head; head = head->next)
        list[i++] = head->name;
    if (n)
        qsort(list, n, sizeof *list, by_name);
    *names = list;
    *count = n;
    return VPTQ_OK;
}

/* Whether this is the lock, the manifest or a temporary of it. */
static bool is_begun(const char *name, const char *manifest)
{
    return !strcmp(name, "lock") || !strncmp(name, manifest, strlen(manifest));
}

vptq_status vptq_dir_check_own(const char *path, const char *manifest, const char *what,
                               vptq_mem *mem, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    char file[VPTQ_PATH_MAX], **names = NULL;
    size_t count = 0;

    vptq_arena_init(&arena, mem);
    VPTQ_TRY(vptq_path_join(file, sizeof file, path, manifest, err));
    if (!vptq_path_is_dir(path) || vptq_path_exists(file))
        goto out;
    VPTQ_TRY(vptq_dir_list(path, &arena, &names, &count, err));
    for (size_t i = 0; i < count && !st; i++)
        if (!is_begun(names[i], manifest))
            st = vptq_fail(err, VPTQ_E_MISMATCH, "'%s' is not %s: it holds '%s' and no %s",
                           path, what, names[i], manifest);
out:
    vptq_arena_release(&arena);
    return st;
}

vptq_status vptq_dir_find_unused(const char *path, const char *manifest, const char *inner,
                                 vptq_mem *mem, bool *unused, vptq_err *err)
{
    vptq_arena arena;
    char **names;
    size_t count = 0;

    *unused = true;
    if (!vptq_path_is_dir(path))
        return VPTQ_OK;
    vptq_arena_init(&arena, mem);
    const vptq_status st = vptq_dir_list(path, &arena, &names, &count, err);
    for (size_t i = 0; i < count; i++)
        if (!is_begun(names[i], manifest) && !(inner && !strcmp(names[i], inner)))
            *unused = false;
    vptq_arena_release(&arena);
    return st;
}

/* --- atomic directories ------------------------------------------------------------------ */

/* Copies a path without slashes at the end. */
static vptq_status take_path(char out[VPTQ_PATH_MAX], const char *path, vptq_err *err)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    if (n == 0 || n >= VPTQ_PATH_MAX)
        return vptq_fail(err, VPTQ_E_ARG, "directory name '%.80s' is %s", path,
                         n ? "too long" : "empty");
    memcpy(out, path, n);
    out[n] = 0;
    return VPTQ_OK;
}

/* The target must be missing or an empty directory or, with force, a directory of plain files
 * (and `inner`). */
static vptq_status check_target(const char *path, const char *inner, bool force, vptq_err *err)
{
    struct stat sb;
    size_t entries;
    if (lstat(path, &sb))
        return VPTQ_OK;
    if (!S_ISDIR(sb.st_mode))
        return vptq_fail(
            err, VPTQ_E_IO, "'%s' exists and is %s", path,
            S_ISLNK(sb.st_mode)
                ? "a symbolic link, which is not replaced; name the directory itself"
                : "not a directory");
    bool flat = vptq_dir_is_flat(path, inner, &entries);
    if (entries && !force)
        return vptq_fail(err, VPTQ_E_EXISTS, "directory '%s' already exists", path);
    if (!flat)
        return vptq_fail(err, VPTQ_E_IO,
                         "cannot replace directory '%s': it does not hold only plain files",
                         path);
    return VPTQ_OK;
}

vptq_status vptq_dir_check_target(const char *path, const char *inner, bool force,
                                  vptq_err *err)
{
    char target[VPTQ_PATH_MAX];
    VPTQ_CHECK(take_path(target, path, err));
    VPTQ_CHECK(check_target(target, inner, force, err));
    return vptq_path_is_dir(target) ? vptq_path_check_parent(target, "create directory", err)
                                    : vptq_dir_check_make(target, err);
}

/* Makes and claims the directory that is filled. */
static vptq_status create_temporary(vptq_dir_writer *w, vptq_err *err)
{
    char tmp[VPTQ_PATH_MAX];
    for (;;) {
        VPTQ_CHECK(vptq_path_temporary(tmp, w->path, "tmp", err));
        if (mkdir(tmp, 0777))
            return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot create directory '%s'",
                                   w->path);
        const vptq_status st = vptq_dir_hold(tmp, &w->held, err);
        if (!st && vptq_path_claim(AT_FDCWD, tmp, w->held.fd)) {
            memcpy(w->tmp, tmp,
                   sizeof tmp); /* only now, because abort removes this directory */
            return VPTQ_OK;
        }
        vptq_dir_unhold(&w->held);
        if (st && (rmdir(tmp) == 0 || errno != ENOENT))
            return st; /* no sweep was the cause */
    }
}

vptq_status vptq_dir_writer_open(const char *path, const char *inner, bool force,
                                 vptq_dir_writer *w, vptq_err *err)
{
    *w = (vptq_dir_writer){.inner = inner, .force = force};
    VPTQ_CHECK(take_path(w->path, path, err));
    VPTQ_CHECK(vptq_path_make_parent(w->path, err));
    VPTQ_CHECK(check_target(w->path, inner, force, err));
    vptq_path_sweep(w->path, "tmp", inner);
    return create_temporary(w, err);
}

vptq_status vptq_dir_remove(const char *path, const char *inner, vptq_err *err)
{
    size_t entries;
    if (!vptq_dir_is_flat(path, inner, &entries))
        return vptq_fail(err, VPTQ_E_IO,
                         "cannot remove directory '%s': it does not hold only plain files",
                         path);
    errno = 0;
    if (!vptq_dir_remove_flat(path, inner))
        return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot remove directory '%s'", path);
    return VPTQ_OK;
}

void vptq_dir_writer_abort(vptq_dir_writer *w)
{
    if (!w->tmp[0])
        return;
    vptq_dir_unhold(&w->held);
    vptq_dir_remove_flat(w->tmp, w->inner);
    w->tmp[0] = 0;
}

/* Replaces a directory that is not empty: moves it aside, and back if the new one does not get
 * its name. */
static vptq_status replace_old(const vptq_dir_writer *w, vptq_err *err)
{
    char aside[VPTQ_PATH_MAX];
    VPTQ_CHECK(vptq_path_temporary(aside, w->path, "old", err));
    vptq_path_sweep(w->path, "old", w->inner);
    if (rename(w->path, aside))
        return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot replace directory '%s'", w->path);
    if (rename(w->tmp, w->path)) {
        int errnum = errno;
        if (rename(aside, w->path))
            return vptq_fail_errno(err, VPTQ_E_IO, errnum,
                                   "cannot replace directory '%s' (its content is in '%s')",
                                   w->path, aside);
        return vptq_fail_errno(err, VPTQ_E_IO, errnum, "cannot replace directory '%s'",
                               w->path);
    }
    vptq_dir_remove_flat(aside, w->inner);
    return VPTQ_OK;
}

static vptq_status swap_in(const vptq_dir_writer *w, vptq_err *err)
{
    int old;
    if (rename(w->tmp, w->path) == 0) /* there is none, or an empty one */
        return VPTQ_OK;
    if (errno != ENOTEMPTY && errno != EEXIST)
        return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot create directory '%s'", w->path);
    VPTQ_CHECK(check_target(w->path, w->inner, w->force, err));
    VPTQ_CHECK(vptq_dir_open(w->path, &old, err));
    const vptq_status st =
        vptq_path_claim(AT_FDCWD, w->path, old)
            ? replace_old(w, err)
            : vptq_fail(err, VPTQ_E_LOCKED, "'%s' is being replaced by another process",
                        w->path);
    close(old);
    return st;
}

/* Makes the names inside a directory durable. */
static vptq_status sync_names(const char *path, vptq_err *err)
{
    int fd;
    VPTQ_CHECK(vptq_dir_open(path, &fd, err));
    const vptq_status st = vptq_dir_sync(fd, path, err);
    close(fd);
    return st;
}

/* The same for the folder of a path. */
static vptq_status sync_parent(const char *path, vptq_err *err)
{
    int fd;
    VPTQ_CHECK(vptq_path_open_parent(path, "sync the folder of", &fd, err));
    const vptq_status st = vptq_dir_sync(fd, path, err);
    close(fd);
    return st;
}

vptq_status vptq_dir_writer_commit(vptq_dir_writer *w, vptq_err *err)
{
    char inside[VPTQ_PATH_MAX];
    vptq_status st = VPTQ_OK;
    VPTQ_BUG_IF(!w->tmp[0]);
    if (w->inner) {
        VPTQ_TRY(vptq_path_join(inside, sizeof inside, w->tmp, w->inner, err));
        if (vptq_path_is_dir(inside))
            VPTQ_TRY(sync_names(inside, err));
    }
    VPTQ_TRY(sync_names(w->tmp, err));
    VPTQ_TRY(swap_in(w, err));
    vptq_dir_unhold(&w->held);
    w->tmp[0] = 0;
    VPTQ_TRY(sync_parent(w->path, err));
out:
    vptq_dir_writer_abort(w);
    return st;
}

/* --- lock -------------------------------------------------------------------------------- */

enum { LOCK_BYTES = 32 };

static const char NOT_A_LOCK[] =
    "'%s' %s, so it is not a lock of these tools; move it, or name another directory";

static vptq_status report_holder(int fd, const char *dir, vptq_err *err)
{
    char text[LOCK_BYTES];
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    text[strspn(text, "0123456789")] = 0;
    if (!text[0])
        return vptq_fail(err, VPTQ_E_LOCKED, "'%s' is in use by another process", dir);
    return vptq_fail(err, VPTQ_E_LOCKED, "'%s' is in use by process %s", dir, text);
}

/* Fails unless the open file may be emptied and overwritten: it must look like what this tool
 * writes, a process number in the only file of that name. */
static vptq_status check_lock(int fd, const char *path, vptq_err *err)
{
    struct stat sb;
    char text[LOCK_BYTES + 1] = "";
    if (fstat(fd, &sb))
        return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot open '%s'", path);
    const char *why = !S_ISREG(sb.st_mode)      ? "is not a plain file"
                      : sb.st_nlink > 1         ? "has other names (hard links)"
                      : sb.st_size > LOCK_BYTES ? "is too large"
                                                : NULL;
    /* errno is 0 when its holder has just emptied it */
    if (!why && !vptq_read_at(fd, text, (size_t)sb.st_size, 0) && errno)
        return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot read '%s'", path);
    if (text[strspn(text, "0123456789\n")])
        why = "holds something else than a process number";
    return why ? vptq_fail(err, VPTQ_E_IO, NOT_A_LOCK, path, why) : VPTQ_OK;
}

/* Opens and locks `path`, the file `lock` of the directory held. */
static vptq_status take(vptq_lock *lock, const char *path, vptq_err *err)
{
    char text[LOCK_BYTES];
    lock->fd = openat(lock->held.fd, "lock",
                      O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
    if (lock->fd < 0 && errno == ELOOP)
        return vptq_fail(err, VPTQ_E_IO, NOT_A_LOCK, path, "is a symbolic link");
    if (lock->fd < 0)
        return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot open '%s'", path);
    VPTQ_CHECK(check_lock(lock->fd, path, err));
    if (flock(lock->fd, LOCK_EX | LOCK_NB))
        return errno == EWOULDBLOCK
                   ? report_holder(lock->fd, lock->held.path, err)
                   : vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot lock '%s'", path);
    const int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(lock->fd, 0) || !vptq_write_at(lock->fd, text, (size_t)n, 0))
        return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot write '%s'", path);
    return VPTQ_OK;
}

vptq_status vptq_lock_take(const char *dir, vptq_lock *lock, vptq_err *err)
{
    char path[VPTQ_PATH_MAX];
    vptq_status st = VPTQ_OK;
    *lock = (vptq_lock){.fd = -1, .held = {.fd = -1}};
    VPTQ_TRY(vptq_path_join(path, sizeof path, dir, "lock", err));
    VPTQ_TRY(vptq_dir_hold(dir, &lock->held, err));
    VPTQ_TRY(take(lock, path, err));
out:
    if (st) {
        if (lock->fd >= 0)
            close(lock->fd);
        lock->fd = -1;
        vptq_dir_unhold(&lock->held);
    }
    return st;
}

/* Keeps the file, empty: removing it would let two processes lock two files of the same name,
 * and an empty file leaves equal directories equal. */
void vptq_lock_release(vptq_lock *lock)
{
    if (lock->fd < 0)
        return;
    /* After a failure the next holder overwrites the process number. */
    int ignored = ftruncate(lock->fd, 0);
    (void)ignored;
    close(lock->fd);
    lock->fd = -1;
    vptq_dir_unhold(&lock->held);
}
