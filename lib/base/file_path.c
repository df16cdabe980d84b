/* Temporary names and durable renames (file_path.h). */
#include "lib/base/file_path.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

vptq_status vptq_path_temporary(char out[VPTQ_PATH_MAX], const char *path, const char *kind,
                                vptq_err *err)
{
    int n = snprintf(out, VPTQ_PATH_MAX, "%s.%s.%ld", path, kind, (long)getpid());
    if (n < 0 || n >= VPTQ_PATH_MAX)
        return vptq_fail(err, VPTQ_E_ARG, "path '%.80s...' is too long", path);
    return VPTQ_OK;
}

static bool is_entry(const struct dirent *e)
{
    return strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
}

/* Whether an entry of `path` is the directory `inner`, and holds plain files only. */
static bool is_inner(const char *path, const char *name, const char *inner)
{
    char inside[VPTQ_PATH_MAX];
    size_t entries;
    return inner && !strcmp(name, inner) &&
           !vptq_path_join(inside, sizeof inside, path, name, NULL) &&
           vptq_dir_is_flat(inside, NULL, &entries);
}

bool vptq_dir_is_flat(const char *path, const char *inner, size_t *entries)
{
    *entries = 0;
    DIR *d = opendir(path);
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
            flat = flat && S_ISDIR(sb.st_mode) && is_inner(path, e->d_name, inner);
    }
    closedir(d);
    return flat;
}

bool vptq_dir_remove_flat(const char *path, const char *inner)
{
    char inside[VPTQ_PATH_MAX];
    size_t entries;
    if (!vptq_dir_is_flat(path, inner, &entries))
        return false;
    DIR *d = opendir(path);
    if (!d)
        return false;
    bool done = true;
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        if (!is_entry(e))
            continue;
        if (inner && !strcmp(e->d_name, inner) &&
            !vptq_path_join(inside, sizeof inside, path, inner, NULL) &&
            vptq_dir_remove_flat(inside, NULL))
            continue;
        if (unlinkat(dirfd(d), e->d_name, 0))
            done = false;
    }
    closedir(d);
    return done && rmdir(path) == 0;
}

/* The process number at the end of "BASE.KIND.PID", 0 when the name is another one. */
static long owner_of(const char *name, const char *base, const char *kind)
{
    size_t b = strlen(base), k = strlen(kind);
    if (strncmp(name, base, b) || name[b] != '.' || strncmp(name + b + 1, kind, k) ||
        name[b + 1 + k] != '.')
        return 0;
    const char *digits = name + b + k + 2;
    if (*digits < '1' || *digits > '9' || strspn(digits, "0123456789") != strlen(digits))
        return 0;
    return strtol(digits, NULL, 10);
}

void vptq_path_sweep(const char *path, const char *kind, const char *inner)
{
    char parent[VPTQ_PATH_MAX], victim[VPTQ_PATH_MAX];
    const char *base = vptq_path_base(path);
    if (parent_of(parent, path, NULL))
        return;
    DIR *d = opendir(parent);
    if (!d)
        return;
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        long pid = owner_of(e->d_name, base, kind);
        if (pid <= 0 || (pid != (long)getpid() && (kill((pid_t)pid, 0) == 0 || errno != ESRCH)))
            continue;
        if (vptq_path_join(victim, sizeof victim, parent, e->d_name, NULL))
            continue;
        if (unlink(victim))
            vptq_dir_remove_flat(victim, inner);
    }
    closedir(d);
}

vptq_status vptq_path_sync_parent(const char *path, vptq_err *err)
{
    char parent[VPTQ_PATH_MAX];
    vptq_status st = parent_of(parent, path, err);
    if (st)
        return st;
    int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot open the folder of '%s'", path);
    /* Some file systems cannot sync a folder; the rename itself has succeeded. */
    if (fsync(fd) && errno != EINVAL && errno != ENOTSUP)
        st = vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot sync the folder of '%s'", path);
    close(fd);
    return st;
}
