/* File system faults and signals for tests: a library that is loaded before libc (LD_PRELOAD)
 * and makes chosen calls of a process fail, or signals arrive at them.
 *
 *     VPTQ_FAULT=CALL:HOW:WHEN
 *
 * CALL is read, pread, write, pwrite, fsync, ftruncate, close, open, rename, link, mkdir or
 * mmap. Of the first seven, only calls on regular files above descriptor 2 count. HOW is
 * ENOSPC, EIO, EINTR, EMFILE, ENOMEM, EACCES, EPERM or `short`, which transfers half of the
 * requested bytes, at least one; or, for mmap, `cut`, which halves the mapped file afterwards.
 * WHEN is N (the N-th call), N- (the N-th and all later calls) or N/M (every M-th call from the
 * N-th on). VPTQ_FAULT_LOG names a file that gets a line for every fault.
 *
 * With INT, TERM, HUP, PIPE or KILL as HOW the call is made, after the process has sent itself
 * that signal; with `none` it is only logged. CALL may then be `any`: every call above, on any
 * descriptor, removals and looks at the clock.
 *
 * VPTQ_FAULT_CLOCK=N puts the clock forward by N seconds at every look. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct fault {
    char call[16];
    int errnum; /* 0 = short; below that a signal or one of the next */
    long first, every;
    bool on, any;
} fault;

enum { CUT = -1000, NONE = -1001, UNKNOWN = -1002 };

static fault plan;
static atomic_long count;

static int errnum_of(const char *name)
{
    static const struct {
        const char *name;
        int errnum;
    } known[] = {{"short", 0},       {"ENOSPC", ENOSPC}, {"EIO", EIO},       {"EINTR", EINTR},
                 {"EMFILE", EMFILE}, {"ENOMEM", ENOMEM}, {"EACCES", EACCES}, {"EPERM", EPERM},
                 {"cut", CUT},       {"none", NONE},     {"INT", -SIGINT},   {"TERM", -SIGTERM},
                 {"HUP", -SIGHUP},   {"PIPE", -SIGPIPE}, {"KILL", -SIGKILL}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, name))
            return known[i].errnum;
    return UNKNOWN;
}

/* Reads the plan from VPTQ_FAULT. An invalid plan ends the process, so that no test passes
 * because of it. */
__attribute__((constructor)) static void take_plan(void)
{
    const char *text = getenv("VPTQ_FAULT");
    char how[16] = "", rest[24] = "";
    if (!text)
        return;
    if (sscanf(text, "%15[a-z]:%15[A-Za-z]:%ld%23s", plan.call, how, &plan.first, rest) < 3 ||
        (plan.errnum = errnum_of(how)) == UNKNOWN || plan.first < 1) {
        fprintf(stderr, "VPTQ_FAULT=%s is invalid, expected CALL:HOW:WHEN\n", text);
        _exit(99);
    }
    plan.every = !*rest ? 0 : *rest == '-' ? 1 : atol(rest + 1);
    plan.any = !strcmp(plan.call, "any");
    plan.on = true;
}

static void note(long n)
{
    const char *path = getenv("VPTQ_FAULT_LOG");
    char line[64];
    if (!path)
        return;
    const int length = snprintf(line, sizeof line, "%s %ld\n", plan.call, n);
    const long fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (fd < 0)
        return;
    syscall(SYS_write, fd, line, length);
    syscall(SYS_close, fd);
}

/* Whether this call must fail; it gets its signal here. */
static bool hit(const char *call)
{
    if (!plan.on || (!plan.any && strcmp(plan.call, call) != 0))
        return false;
    const long n = atomic_fetch_add(&count, 1) + 1;
    const bool yes = n == plan.first ||
                     (plan.every > 0 && n > plan.first && (n - plan.first) % plan.every == 0);
    if (yes)
        note(n);
    if (yes && plan.errnum < 0 && plan.errnum > CUT)
        raise(-plan.errnum);
    return yes && (plan.errnum >= 0 || plan.errnum == CUT);
}

static bool is_plain(int fd)
{
    struct stat sb;
    return fd > 2 && !fstat(fd, &sb) && S_ISREG(sb.st_mode);
}

/* For calls that transfer bytes. Returns false if the call is made, with *n bytes. */
static bool hit_bytes(const char *call, int fd, size_t *n)
{
    const int errnum = errno;
    const bool mine =
        plan.any || (plan.on && !strcmp(plan.call, call) && is_plain(fd)) ? hit(call) : false;
    errno = errnum;
    if (!mine)
        return false;
    if (!plan.errnum) {
        *n = *n > 1 ? *n / 2 : *n;
        return false;
    }
    errno = plan.errnum;
    return true;
}

static bool hit_path(const char *call)
{
    if (!hit(call))
        return false;
    errno = plan.errnum;
    return true;
}

/* Declares `next`, the replaced function of this name. Pointers to functions and to data have
 * the same size here. */
#define NEXT(name)                                                                             \
    __typeof__(&(name)) next = NULL;                                                           \
    void *found = dlsym(RTLD_NEXT, #name);                                                     \
    memcpy(&next, &found, sizeof next)

ssize_t read(int fd, void *data, size_t n)
{
    NEXT(read);
    return hit_bytes("read", fd, &n) ? -1 : next(fd, data, n);
}

ssize_t pread(int fd, void *data, size_t n, off_t at)
{
    NEXT(pread);
    return hit_bytes("pread", fd, &n) ? -1 : next(fd, data, n, at);
}

ssize_t write(int fd, const void *data, size_t n)
{
    NEXT(write);
    return hit_bytes("write", fd, &n) ? -1 : next(fd, data, n);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at)
{
    NEXT(pwrite);
    return hit_bytes("pwrite", fd, &n) ? -1 : next(fd, data, n, at);
}

int fsync(int fd)
{
    size_t n = 0;
    NEXT(fsync);
    return hit_bytes("fsync", fd, &n) ? -1 : next(fd);
}

int ftruncate(int fd, off_t size)
{
    size_t n = 0;
    NEXT(ftruncate);
    return hit_bytes("ftruncate", fd, &n) ? -1 : next(fd, size);
}

/* The file is closed even if the call fails, as on Linux. */
int close(int fd)
{
    size_t n = 0;
    NEXT(close);
    const bool fails = hit_bytes("close", fd, &n);
    const int got = next(fd);
    if (!fails)
        return got;
    errno = plan.errnum;
    return -1;
}

int open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    NEXT(open);
    if (flags & O_CREAT) {
        va_list args;
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    return hit_path("open") ? -1 : next(path, flags, mode);
}

int openat(int dir, const char *path, int flags, ...)
{
    mode_t mode = 0;
    NEXT(openat);
    if (flags & O_CREAT) {
        va_list args;
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    /* as with opendir, looking into a directory does not count */
    return !(flags & O_DIRECTORY) && hit_path("open") ? -1 : next(dir, path, flags, mode);
}

int renameat(int a, const char *from, int b, const char *to)
{
    NEXT(renameat);
    return hit_path("rename") ? -1 : next(a, from, b, to);
}

int linkat(int a, const char *from, int b, const char *to, int flags)
{
    NEXT(linkat);
    return hit_path("link") ? -1 : next(a, from, b, to, flags);
}

int unlinkat(int dir, const char *path, int flags)
{
    NEXT(unlinkat);
    return hit_path("unlink") ? -1 : next(dir, path, flags);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static atomic_int looks;
    NEXT(clock_gettime);
    if ((plan.any && hit_path("clock")) || next(clock, now))
        return -1;
    const char *leap = getenv("VPTQ_FAULT_CLOCK");
    if (leap)
        now->tv_sec += atol(leap) * ++looks;
    return 0;
}

int rename(const char *from, const char *to)
{
    NEXT(rename);
    return hit_path("rename") ? -1 : next(from, to);
}

int link(const char *from, const char *to)
{
    NEXT(link);
    return hit_path("link") ? -1 : next(from, to);
}

int mkdir(const char *path, mode_t mode)
{
    NEXT(mkdir);
    return hit_path("mkdir") ? -1 : next(path, mode);
}

/* Halves the file of a descriptor that is open for reading. */
static void cut(int fd)
{
    char path[64];
    struct stat sb;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fstat(fd, &sb) || truncate(path, sb.st_size / 2)) {
        fprintf(stderr, "cannot cut a mapped file short\n");
        _exit(99);
    }
}

void *mmap(void *at, size_t size, int access, int flags, int fd, off_t offset)
{
    NEXT(mmap);
    if (fd < 0 || !is_plain(fd))
        return next(at, size, access, flags, fd, offset);
    const bool mine = hit("mmap");
    if (mine && plan.errnum != CUT) {
        errno = plan.errnum;
        return MAP_FAILED;
    }
    void *p = next(at, size, access, flags, fd, offset);
    if (mine)
        cut(fd);
    return p;
}
