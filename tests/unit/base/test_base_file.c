/* Tests reading and atomic writing in a scratch directory. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/base/file_path.h"
#include "tests/support/vtest.h"

/* Opens a writer and writes this text. */
static void write_text(vptq_file_writer *w, const char *path, bool replace, const char *text)
{
    vptq_err err;
    assert_ok(vptq_file_writer_open(path, replace, w, &err), &err);
    assert_ok(vptq_file_write(w, text, strlen(text), &err), &err);
}

static void test_reading(void **state)
{
    const char *dir = *state;
    char path[4096], *data;
    size_t size;
    vptq_map map;
    vptq_err err;
    vtest_path(path, sizeof path, dir, "file");
    vtest_write_file(path, "hello", 5);
    assert_ok(vptq_map_open(path, &map, &err), &err);
    assert_int_equal(map.size, 5);
    assert_memory_equal(map.data, "hello", 5);
    vptq_map_release(&map);
    assert_null(map.data);
    vptq_map_release(&map);
    assert_ok(vptq_file_read(path, 5, NULL, &data, &size, &err), &err);
    assert_int_equal(size, 5);
    assert_string_equal(data, "hello");
    vptq_mem_free(NULL, data);
    assert_fails(vptq_file_read(path, 4, NULL, &data, &size, &err), VPTQ_E_FORMAT, &err,
                 "has 5 bytes, more than the 4");
    assert_null(data);
    vtest_write_file(path, "", 0);
    assert_ok(vptq_map_open(path, &map, &err), &err);
    assert_true(!map.data && !map.size);
    vptq_map_release(&map);
}

static void test_reading_refusals(void **state)
{
    const char *dir = *state;
    char path[4096];
    vptq_map map;
    vptq_file file;
    vptq_err err;
    vtest_path(path, sizeof path, dir, "none");
    assert_fails(vptq_map_open(path, &map, &err), VPTQ_E_IO, &err, "none': No such file");
    assert_fails(vptq_map_open(dir, &map, &err), VPTQ_E_IO, &err, "is a directory");
    assert_fails(vptq_map_open("/dev/null", &map, &err), VPTQ_E_IO, &err,
                 "is a device; only regular files can be mapped");
    vtest_path(path, sizeof path, dir, "pipe");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_fails(vptq_map_open(path, &map, &err), VPTQ_E_IO, &err,
                 "pipe': is a pipe; only regular files can be mapped");
    assert_fails(vptq_file_open(path, &file, &err), VPTQ_E_IO, &err,
                 "pipe': is a pipe; only regular files can be read");
}

static vptq_status read_scratch(void *arg, vptq_mem *mem, vptq_err *err)
{
    char *data;
    size_t size;
    vptq_status st = vptq_file_read(arg, 100, mem, &data, &size, err);
    vptq_mem_free(mem, data);
    return st;
}

static vptq_status list_scratch(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_arena arena;
    char **names;
    size_t count;
    vptq_arena_init(&arena, mem);
    vptq_status st = vptq_dir_list(arg, &arena, &names, &count, err);
    vptq_arena_release(&arena);
    return st;
}

/* Reads at offsets, from both ends. A file cut short is an error, and forgotten pages come
 * back. */
static void test_reading_at_offsets(void **state)
{
    char path[4096], got[16];
    vptq_err err = {0};
    vptq_file f;
    vptq_map map;
    uint8_t *big = malloc(1 << 20);
    assert_non_null(big);
    for (size_t i = 0; i < 1 << 20; i++)
        big[i] = (uint8_t)(i * 31 >> 7);
    vtest_path(path, sizeof path, *state, "big");
    vtest_write_file(path, big, 1 << 20);
    assert_ok(vptq_file_open(path, &f, &err), &err);
    assert_int_equal(f.size, 1 << 20);
    assert_ok(vptq_file_read_at(&f, (1 << 20) - 16, got, 16, &err), &err);
    assert_memory_equal(got, big + (1 << 20) - 16, 16);
    assert_ok(vptq_file_read_at(&f, 0, got, 16, &err), &err);
    assert_memory_equal(got, big, 16);
    assert_ok(vptq_file_read_at(&f, 1 << 20, got, 0, &err), &err);
    assert_fails(vptq_file_read_at(&f, (1 << 20) - 8, got, 16, &err), VPTQ_E_IO, &err,
                 "big': it ends before byte 1048584, where it was opened with 1048576");
    assert_int_equal(truncate(path, 100), 0);
    assert_fails(vptq_file_read_at(&f, 96, got, 8, &err), VPTQ_E_IO, &err, "ends before");
    vptq_file_close(&f);
    vptq_file_close(&f);
    assert_fails(vptq_file_open(*state, &f, &err), VPTQ_E_IO, &err, "is a directory");
    assert_int_equal(f.fd, -1);

    vtest_write_file(path, big, 1 << 20);
    assert_ok(vptq_map_open(path, &map, &err), &err);
    assert_memory_equal(map.data, big, 1 << 20);
    vptq_map_forget(map.data, map.size);
    assert_memory_equal(map.data, big, 1 << 20);
    vptq_map_release(&map);
    vptq_map_forget(map.data, map.size); /* does nothing */
    free(big);
}

/* Pages of the mapping in memory, whether of this process or of the system's cache. */
static size_t resident(const vptq_map *map)
{
    enum { MOST = 64 };
    unsigned char in[MOST];
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = map->size / page;
    size_t n = 0;
    assert_true(pages <= MOST);
    assert_int_equal(mincore((void *)(uintptr_t)map->data, map->size, in), 0);
    for (size_t i = 0; i < pages; i++)
        n += in[i] & 1;
    return n;
}

/* Reading ahead leaves the contents unchanged. */
static void test_reading_ahead(void **state)
{
    enum { PAGES = 16 };
    if (vtest_emulated()) /* qemu does not pass the advice on */
        skip();
    char path[4096];
    vptq_map map;
    vptq_err err;
    const size_t size = PAGES * (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *bytes = calloc(size, 1);
    assert_non_null(bytes);
    vtest_path(path, sizeof path, *state, "weights");
    vtest_write_file(path, bytes, size);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(fsync(fd), 0);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    assert_ok(vptq_map_open(path, &map, &err), &err);
    const bool evicted = resident(&map) == 0;
    vptq_map_ahead(map.data + 5, 0); /* does nothing */
    vptq_map_ahead(map.data + 5, size - 7);
    for (int i = 0; i < 500 && resident(&map) < PAGES; i++)
        usleep(10000);
    assert_int_equal(resident(&map), PAGES);
    vptq_map_release(&map);
    free(bytes);
    if (!evicted) /* this file system keeps its pages */
        skip();
}

static void test_memory_walks(void **state)
{
    const char *dir = *state;
    char path[4096];
    vtest_path(path, sizeof path, dir, "file");
    vtest_write_file(path, "hello", 5);
    assert_int_equal(vtest_oom_walk(read_scratch, path), 1);
    assert_int_equal(vtest_oom_walk(list_scratch, *state), 3);
}

static void test_writer(void **state)
{
    const char *dir = *state;
    char path[4096];
    vptq_file_writer w;
    vptq_err err;
    vtest_path(path, sizeof path, dir, "out");
    write_text(&w, path, false, "one ");
    assert_ok(vptq_file_write(&w, "two", 3, &err), &err);
    assert_int_equal(w.written, 7);
    assert_false(vptq_path_exists(path)); /* it does not appear before commit */
    assert_ok(vptq_file_writer_commit(&w, &err), &err);
    vptq_file_writer_abort(&w);
    vtest_expect_text(path, "one two");
    assert_fails(vptq_file_writer_open(path, false, &w, &err), VPTQ_E_EXISTS, &err,
                 "out' already exists");
    vptq_file_writer_abort(&w);
    write_text(&w, path, true, "half");
    vtest_expect_text(path, "one two"); /* still the old file, until commit */
    vptq_file_writer_abort(&w);
    vtest_expect_text(path, "one two");
    assert_ok(vptq_file_replace(path, "new", 3, &err), &err);
    vtest_expect_text(path, "new");
    assert_int_equal(vtest_entries(dir), 1);
    assert_fails(vptq_file_write(&w, "x", 1, &err), VPTQ_E_IO, &err, "not open");
    assert_fails(vptq_file_writer_commit(&w, &err), VPTQ_E_IO, &err, "not open");
}

/* Folders of outputs that do not exist are created, but not a held one that is gone. */
static void writers_make_folders(void **state)
{
    const char *dir = *state;
    char path[4096], held[4096];
    vptq_file_writer w;
    vptq_dir_writer d;
    vptq_lock lock;
    vptq_err err;
    vtest_path(path, sizeof path, dir, "a/b/out");
    assert_ok(vptq_file_replace(path, "new", 3, &err), &err);
    vtest_expect_text(path, "new");
    vtest_path(path, sizeof path, dir, "c/d/out/");
    assert_ok(vptq_dir_writer_open(path, NULL, false, &d, &err), &err);
    assert_ok(vptq_dir_writer_commit(&d, &err), &err);
    assert_true(vptq_path_is_dir(path));

    vtest_path(held, sizeof held, dir, "work");
    assert_ok(vptq_dir_make(held, &err), &err);
    assert_ok(vptq_lock_take(held, &lock, &err), &err);
    vtest_path(path, sizeof path, dir, "moved");
    assert_int_equal(rename(held, path), 0);
    vtest_path(path, sizeof path, dir, "work/rows/out");
    assert_fails(vptq_file_writer_open(path, true, &w, &err), VPTQ_E_IO, &err,
                 "was moved or replaced");
    assert_false(vptq_path_exists(held));
    vptq_lock_release(&lock);
}

static void test_writer_refusals(void **state)
{
    const char *dir = *state;
    char path[4096], longer[5000];
    vptq_file_writer w;
    vptq_err err;
    vtest_path(path, sizeof path, dir, "file");
    vtest_write_file(path, "", 0);
    vtest_path(path, sizeof path, dir, "file/out");
    assert_fails(vptq_file_writer_open(path, true, &w, &err), VPTQ_E_IO, &err,
                 "file': File exists");
    assert_fails(vptq_file_writer_open(dir, true, &w, &err), VPTQ_E_IO, &err, "is a directory");
    assert_fails(vptq_file_writer_open("/dev/null", true, &w, &err), VPTQ_E_IO, &err,
                 "not a plain file");
    memset(longer, 'a', sizeof longer);
    longer[sizeof longer - 1] = 0;
    assert_fails(vptq_file_writer_open(longer, true, &w, &err), VPTQ_E_ARG, &err, "too long");
}

/* A file that somebody else creates while ours is being written is kept. */
static void test_writer_races(void **state)
{
    const char *dir = *state;
    char path[4096];
    vptq_file_writer w;
    vptq_err err;
    vtest_path(path, sizeof path, dir, "out");
    write_text(&w, path, false, "ours");
    vtest_write_file(path, "theirs", 6);
    assert_fails(vptq_file_writer_commit(&w, &err), VPTQ_E_EXISTS, &err, "already exists");
    vtest_expect_text(path, "theirs");
    assert_int_equal(vtest_entries(dir), 1);
}

/* A temporary is swept unless it is claimed, whoever holds the claim. */
static void test_stale_temporaries(void **state)
{
    const char *dir = *state;
    char path[4096], stale[4200], claimed[4200], other[4096], link[4200];
    vptq_err err;
    vtest_path(path, sizeof path, dir, "out");
    vtest_path(other, sizeof other, dir, "out.tmp.0123456789abcdeg");
    snprintf(stale, sizeof stale, "%s.tmp.0123456789abcdef", path);
    snprintf(claimed, sizeof claimed, "%s.tmp.0000000000000000", path);
    snprintf(link, sizeof link, "%s.tmp.1111111111111111", path);
    vtest_write_file(stale, "s", 1);
    vtest_write_file(claimed, "c", 1);
    vtest_write_file(other, "o", 1);
    assert_int_equal(symlink(other, link), 0);
    const int fd = open(claimed, O_RDWR | O_CLOEXEC);
    assert_true(vptq_path_claim(AT_FDCWD, claimed, fd));
    assert_ok(vptq_file_replace(path, "x", 1, &err), &err);
    assert_false(vptq_path_exists(stale));
    assert_true(vptq_path_exists(claimed));
    vtest_expect_text(other, "o");
    assert_int_equal(vtest_entries(dir), 4);
    close(fd);
    assert_ok(vptq_file_replace(path, "x", 1, &err), &err);
    assert_false(vptq_path_exists(claimed));
}

/* A claim fails where somebody else holds it and where the name is gone. */
static void test_claim(void **state)
{
    const char *dir = *state;
    char path[4096];
    vtest_path(path, sizeof path, dir, "out");
    vtest_write_file(path, "x", 1);
    const int a = open(path, O_RDWR | O_CLOEXEC), b = open(path, O_RDWR | O_CLOEXEC);
    assert_true(vptq_path_claim(AT_FDCWD, path, a));
    assert_false(vptq_path_claim(AT_FDCWD, path, b));
    close(a);
    assert_true(vptq_path_claim(AT_FDCWD, path, b));
    assert_int_equal(unlink(path), 0);
    assert_false(vptq_path_claim(AT_FDCWD, path, b));
    close(b);
}

/* Two writers of one path, in one process: neither sweeps the other's file. */
static void test_two_writers(void **state)
{
    const char *dir = *state;
    char path[4096];
    vptq_file_writer a, b;
    vptq_err err;
    vtest_path(path, sizeof path, dir, "out");
    write_text(&a, path, true, "first");
    write_text(&b, path, true, "second");
    assert_int_equal(vtest_entries(dir), 2);
    assert_ok(vptq_file_writer_commit(&a, &err), &err);
    vtest_expect_text(path, "first");
    assert_ok(vptq_file_writer_commit(&b, &err), &err);
    vtest_expect_text(path, "second");
    assert_int_equal(vtest_entries(dir), 1);
}

/* Simulates a full disk by a limit on file sizes: the write stops half-way. */
static void test_full_disk(void **state)
{
    const char *dir = *state;
    char path[4096];
    static const char block[3000] = "x";
    vptq_file_writer w;
    vptq_err err;
    struct rlimit old, small;
    vtest_path(path, sizeof path, dir, "out");
    vtest_write_file(path, "old", 3);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 4096;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_ok(vptq_file_writer_open(path, true, &w, &err), &err);
    assert_ok(vptq_file_write(&w, block, sizeof block, &err), &err);
    vptq_status st = vptq_file_write(&w, block, sizeof block, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_fails(st, VPTQ_E_IO, &err, "out': File too large");
    assert_int_equal(vtest_entries(dir), 1); /* the temporary file is already gone */
    vtest_expect_text(path, "old");
    vptq_file_writer_abort(&w);
}

static void test_paths(void **state)
{
    (void)state;
    char out[8];
    vptq_err err;
    assert_ok(vptq_path_join(out, sizeof out, "abc", "def", &err), &err);
    assert_string_equal(out, "abc/def");
    assert_ok(vptq_path_join(out, sizeof out, "abc/", "def", &err), &err);
    assert_string_equal(out, "abc/def");
    assert_ok(vptq_path_join(out, sizeof out, "", "def", &err), &err);
    assert_string_equal(out, "def");
    assert_fails(vptq_path_join(out, sizeof out, "abcd", "def", &err), VPTQ_E_ARG, &err,
                 "too long");
    assert_string_equal(vptq_path_base("a/b/c"), "c");
    assert_string_equal(vptq_path_base("c"), "c");
    assert_string_equal(vptq_path_base("a/"), "");
}

/* With force, a link to a file is replaced, not its target. */
static void test_output_is_a_link(void **state)
{
    const char *dir = *state;
    char path[4096], target[4096];
    struct stat sb;
    vptq_err err;
    vtest_path(path, sizeof path, dir, "out");
    vtest_path(target, sizeof target, dir, "target");
    vtest_write_file(target, "x", 1);
    assert_int_equal(symlink("target", path), 0);
    assert_ok(vptq_file_replace(path, "new", 3, &err), &err);
    assert_int_equal(lstat(path, &sb), 0);
    assert_true(S_ISREG(sb.st_mode));
    vtest_expect_file(path, "new", 3);
    vtest_expect_file(target, "x", 1);
}

/* XXH3 of nothing and of "abc" (published test values), and chained seeds. */
static void test_hash(void **state)
{
    (void)state;
    assert_true(vptq_hash("", 0, 0) == UINT64_C(0x2d06800538d394c2));
    assert_true(vptq_hash("abc", 3, 0) == UINT64_C(0x78af5f94892f3950));
    assert_true(vptq_hash("abc", 3, 1) != vptq_hash("abc", 3, 0));
}

VTEST_MAIN(scratch_test(test_reading), scratch_test(test_reading_refusals),
           scratch_test(test_reading_at_offsets), scratch_test(test_reading_ahead),
           scratch_test(test_memory_walks), scratch_test(test_writer),
           scratch_test(writers_make_folders), scratch_test(test_writer_refusals),
           scratch_test(test_writer_races), scratch_test(test_stale_temporaries),
           scratch_test(test_claim), scratch_test(test_two_writers),
           scratch_test(test_full_disk), cmocka_unit_test(test_paths),
           scratch_test(test_output_is_a_link), cmocka_unit_test(test_hash))
