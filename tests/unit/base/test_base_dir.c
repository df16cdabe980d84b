/* Tests directories, their writers and locks in a scratch directory. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/base/file_path.h"
#include "tests/support/vtest.h"

static void test_directories(void **state)
{
    const char *dir = *state;
    char path[4096];
    vptq_arena arena;
    char **names;
    size_t count;
    vptq_err err;
    vtest_path(path, sizeof path, dir, "a//b/c/");
    assert_ok(vptq_dir_make(path, &err), &err);
    assert_ok(vptq_dir_make(path, &err), &err);
    assert_true(vptq_path_is_dir(path));
    vtest_path(path, sizeof path, dir, "a/file");
    vtest_write_file(path, "", 0);
    assert_false(vptq_path_is_dir(path));
    assert_fails(vptq_dir_make(path, &err), VPTQ_E_IO, &err, "a/file': File exists");
    vtest_path(path, sizeof path, dir, "a/file/sub");
    assert_fails(vptq_dir_make(path, &err), VPTQ_E_IO, &err, "cannot create directory");
    assert_fails(vptq_dir_make("", &err), VPTQ_E_ARG, &err, "empty");
    vtest_path(path, sizeof path, dir, "a/Z");
    vtest_write_file(path, "", 0);
    vtest_path(path, sizeof path, dir, "a");
    vptq_arena_init(&arena, NULL);
    assert_ok(vptq_dir_list(path, &arena, &names, &count, &err), &err);
    assert_int_equal(count, 3);
    assert_string_equal(names[0], "Z");
    assert_string_equal(names[1], "b");
    assert_string_equal(names[2], "file");
    vtest_path(path, sizeof path, dir, "none");
    assert_fails(vptq_dir_list(path, &arena, &names, &count, &err), VPTQ_E_IO, &err,
                 "none': No such file");
    vptq_arena_release(&arena);
}

static void test_own_directory(void **state)
{
    char path[4096], file[4096];
    vptq_err err;
    vtest_path(path, sizeof path, *state, "none");
    assert_ok(vptq_dir_check_own(path, "all.json", "a list", NULL, &err), &err);
    vtest_path(path, sizeof path, *state, "own");
    assert_int_equal(mkdir(path, 0777), 0);
    vtest_path(file, sizeof file, path, "lock");
    vtest_write_file(file, "", 0);
    vtest_path(file, sizeof file, path, "all.json.tmp.12");
    vtest_write_file(file, "", 0);
    assert_ok(vptq_dir_check_own(path, "all.json", "a list", NULL, &err), &err);
    vtest_path(file, sizeof file, path, "other");
    vtest_write_file(file, "", 0);
    assert_fails(vptq_dir_check_own(path, "all.json", "a list", NULL, &err), VPTQ_E_MISMATCH,
                 &err, "own' is not a list: it holds 'other' and no all.json");
    vtest_path(file, sizeof file, path, "all.json");
    vtest_write_file(file, "", 0);
    assert_ok(vptq_dir_check_own(path, "all.json", "a list", NULL, &err), &err);
}

/* Whether a directory that is filled file by file has nothing yet. */
static bool is_unused(const char *path, const char *inner)
{
    vptq_err err;
    bool unused;
    assert_ok(vptq_dir_find_unused(path, "all.json", inner, NULL, &unused, &err), &err);
    return unused;
}

static void test_unused_directory(void **state)
{
    char path[4096], file[4096];
    vtest_path(path, sizeof path, *state, "begun");
    assert_true(is_unused(path, NULL));
    assert_int_equal(mkdir(path, 0777), 0);
    assert_true(is_unused(path, NULL));
    vtest_path(file, sizeof file, path, "lock");
    vtest_write_file(file, "", 0);
    vtest_path(file, sizeof file, path, "all.json");
    vtest_write_file(file, "", 0);
    vtest_path(file, sizeof file, path, "all.json.tmp.12");
    vtest_write_file(file, "", 0);
    assert_true(is_unused(path, NULL));
    vtest_path(file, sizeof file, path, "part");
    vtest_write_file(file, "", 0);
    assert_false(is_unused(path, NULL));
    assert_true(is_unused(path, "part"));
    vtest_path(file, sizeof file, path, "state");
    vtest_write_file(file, "", 0);
    assert_false(is_unused(path, "part"));
}

/* Opens a writer for `path` and writes one file into it. */
static void fill(vptq_dir_writer *w, const char *path, bool force, const char *text)
{
    char file[4200];
    vptq_err err;
    assert_ok(vptq_dir_writer_open(path, NULL, force, w, &err), &err);
    vtest_path(file, sizeof file, w->tmp, "file");
    vtest_write_file(file, text, strlen(text));
}

static void test_dir_writer(void **state)
{
    const char *dir = *state;
    char path[4096], slashed[4100], file[4200];
    vptq_dir_writer w;
    vptq_err err;
    vtest_path(path, sizeof path, dir, "out");
    vtest_path(file, sizeof file, path, "file");
    snprintf(slashed, sizeof slashed, "%s/", path);
    fill(&w, slashed, false, "one");
    assert_false(vptq_path_exists(path));
    assert_ok(vptq_dir_writer_commit(&w, &err), &err);
    vptq_dir_writer_abort(&w);
    vtest_expect_text(file, "one");
    assert_fails(vptq_dir_writer_open(path, NULL, false, &w, &err), VPTQ_E_EXISTS, &err,
                 "out' already exists");
    vptq_dir_writer_abort(&w);
    fill(&w, path, true, "two");
    vtest_expect_text(file, "one");
    vptq_dir_writer_abort(&w);
    vtest_expect_text(file, "one");
    fill(&w, path, true, "two");
    assert_ok(vptq_dir_writer_commit(&w, &err), &err);
    vtest_expect_text(file, "two");
    assert_int_equal(vtest_entries(dir), 1);
    assert_int_equal(vtest_entries(path), 1);
}

static void test_dir_writer_refusals(void **state)
{
    const char *dir = *state;
    char path[4096], inner[4200];
    vptq_dir_writer w;
    vptq_err err;
    vtest_path(path, sizeof path, dir, "out");
    vtest_path(inner, sizeof inner, path, "sub");
    assert_ok(vptq_dir_make(path, &err), &err);
    fill(&w, path, false, "one"); /* an empty directory counts as a missing one */
    assert_ok(vptq_dir_make(inner, &err), &err);
    assert_fails(vptq_dir_writer_commit(&w, &err), VPTQ_E_EXISTS, &err, "already exists");
    assert_int_equal(vtest_entries(dir), 1);
    assert_true(vptq_path_is_dir(inner));
    assert_fails(vptq_dir_writer_open(path, NULL, true, &w, &err), VPTQ_E_IO, &err,
                 "not hold only plain files");
    vtest_path(path, sizeof path, dir, "file");
    vtest_write_file(path, "x", 1);
    assert_fails(vptq_dir_writer_open(path, NULL, true, &w, &err), VPTQ_E_IO, &err,
                 "not a directory");
    vtest_path(inner, sizeof inner, dir, "link");
    assert_int_equal(symlink("out", inner), 0);
    assert_fails(vptq_dir_writer_open(inner, NULL, true, &w, &err), VPTQ_E_IO, &err,
                 "a symbolic link, which is not replaced");
    assert_fails(vptq_dir_writer_open("", NULL, true, &w, &err), VPTQ_E_ARG, &err, "empty");
}

/* A directory of plain files may be written inside, where its name was given. */
static void test_dir_writer_inner(void **state)
{
    const char *dir = *state;
    char path[4096], file[4200], inside[4200];
    vptq_dir_writer w;
    vptq_err err;
    vtest_path(path, sizeof path, dir, "out");
    vtest_path(inside, sizeof inside, path, "sub");
    for (int round = 0; round < 3; round++) {
        assert_ok(vptq_dir_writer_open(path, "sub", round > 0, &w, &err), &err);
        vtest_path(file, sizeof file, w.tmp, "sub");
        assert_ok(vptq_dir_make(file, &err), &err);
        vtest_path(file, sizeof file, w.tmp, round ? "sub/new" : "sub/old");
        vtest_write_file(file, "x", 1);
        if (round < 2)
            assert_ok(vptq_dir_writer_commit(&w, &err), &err);
        else
            vptq_dir_writer_abort(&w);
        assert_int_equal(vtest_entries(dir), 1);
        assert_int_equal(vtest_entries(inside), 1);
    }
    vtest_path(file, sizeof file, inside, "new");
    vtest_expect_text(file, "x");
    assert_fails(vptq_dir_writer_open(path, "other", true, &w, &err), VPTQ_E_IO, &err,
                 "not hold only plain files");
    vtest_path(file, sizeof file, inside, "deeper");
    assert_ok(vptq_dir_make(file, &err), &err);
    assert_fails(vptq_dir_writer_open(path, "sub", true, &w, &err), VPTQ_E_IO, &err,
                 "not hold only plain files");
    assert_int_equal(vtest_entries(inside), 2);
}

static void test_dir_writer_stale(void **state)
{
    const char *dir = *state;
    char path[4096], stale[4200], file[4300];
    vptq_dir_writer a, b;
    vptq_err err;
    vtest_path(path, sizeof path, dir, "out");
    snprintf(stale, sizeof stale, "%s.tmp.0123456789abcdef", path);
    vtest_path(file, sizeof file, stale, "half");
    assert_ok(vptq_dir_make(stale, &err), &err);
    vtest_write_file(file, "x", 1);
    fill(&a, path, true, "one");
    assert_false(vptq_path_exists(stale));
    fill(&b, path, true, "two");
    assert_int_equal(vtest_entries(dir), 2);
    assert_ok(vptq_dir_writer_commit(&a, &err), &err);
    assert_ok(vptq_dir_writer_commit(&b, &err), &err);
    assert_int_equal(vtest_entries(dir), 1);
}

/* A directory that another run is replacing is left to it. */
static void test_dir_writer_claimed(void **state)
{
    const char *dir = *state;
    char path[4096], file[4200];
    vptq_dir_writer w;
    vptq_err err;
    vtest_path(path, sizeof path, dir, "out");
    vtest_path(file, sizeof file, path, "old");
    assert_ok(vptq_dir_make(path, &err), &err);
    vtest_write_file(file, "x", 1);
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(vptq_path_claim(AT_FDCWD, path, fd));
    fill(&w, path, true, "one");
    assert_fails(vptq_dir_writer_commit(&w, &err), VPTQ_E_LOCKED, &err,
                 "out' is being replaced by another process");
    close(fd);
    vtest_expect_text(file, "x");
    assert_int_equal(vtest_entries(dir), 1);
}

static void test_lock(void **state)
{
    const char *dir = *state;
    char path[4096], text[32];
    size_t size;
    vptq_lock a, b;
    vptq_err err;
    snprintf(text, sizeof text, "process %ld", (long)getpid());
    vtest_path(path, sizeof path, dir, "lock");
    assert_ok(vptq_lock_take(dir, &a, &err), &err);
    assert_fails(vptq_lock_take(dir, &b, &err), VPTQ_E_LOCKED, &err, text);
    assert_int_equal(b.fd, -1);
    vptq_lock_release(&b);
    vptq_lock_release(&a);
    vptq_lock_release(&a);
    free(vtest_read_file(path, &size));
    assert_int_equal(size, 0); /* directories with equal contents stay equal */
    assert_ok(vptq_lock_take(dir, &b, &err), &err);
    vptq_lock_release(&b);
    vtest_path(path, sizeof path, dir, "none");
    assert_fails(vptq_lock_take(path, &a, &err), VPTQ_E_IO, &err, "none': No such file");
}

/* A `lock` that the tools did not make keeps its bytes. */
static void test_foreign_lock(void **state)
{
    const char *dir = *state;
    char lock[4096], other[4096];
    const char text[] = "a thesis of more than thirty-two bytes";
    vptq_lock a;
    vptq_err err;
    vtest_path(lock, sizeof lock, dir, "lock");
    vtest_path(other, sizeof other, dir, "thesis");
    vtest_write_file(other, "12", 2); /* it even looks like a process number */
    assert_int_equal(symlink("thesis", lock), 0);
    assert_fails(vptq_lock_take(dir, &a, &err), VPTQ_E_IO, &err, "is a symbolic link");
    vtest_expect_file(other, "12", 2);
    assert_int_equal(unlink(lock), 0);
    assert_int_equal(link(other, lock), 0);
    assert_fails(vptq_lock_take(dir, &a, &err), VPTQ_E_IO, &err, "other names");
    vtest_expect_file(other, "12", 2);
    assert_int_equal(unlink(lock), 0);
    assert_int_equal(mkfifo(lock, 0600), 0);
    assert_fails(vptq_lock_take(dir, &a, &err), VPTQ_E_IO, &err, "not a plain file");
    assert_int_equal(unlink(lock), 0);
    vtest_write_file(lock, text, sizeof text);
    assert_fails(vptq_lock_take(dir, &a, &err), VPTQ_E_IO, &err, "is too large");
    vtest_write_file(lock, "thesis", 6);
    assert_fails(vptq_lock_take(dir, &a, &err), VPTQ_E_IO, &err, "something else");
    vtest_expect_file(lock, "thesis", 6);
    vtest_write_file(lock, "99999999\n", 9); /* of a process that was killed */
    assert_ok(vptq_lock_take(dir, &a, &err), &err);
    vptq_lock_release(&a);
}

/* A locked directory that becomes a link is not followed, nor is a link inside it. */
static void test_replaced_directory(void **state)
{
    const char *dir = *state;
    char work[4096], moved[4096], other[4096], file[4200], inner[4200];
    vptq_lock a;
    vptq_err err;
    vtest_path(work, sizeof work, dir, "work");
    vtest_path(moved, sizeof moved, dir, "moved");
    vtest_path(other, sizeof other, dir, "other");
    vtest_path(file, sizeof file, work, "row");
    vtest_path(inner, sizeof inner, work, "inner");
    assert_ok(vptq_dir_make(work, &err), &err);
    assert_ok(vptq_dir_make(other, &err), &err);
    assert_ok(vptq_lock_take(work, &a, &err), &err);
    assert_ok(vptq_file_replace(file, "1", 1, &err), &err);
    assert_int_equal(symlink("../other", inner), 0);
    vtest_path(inner, sizeof inner, work, "inner/row");
    assert_fails(vptq_file_replace(inner, "1", 1, &err), VPTQ_E_IO, &err, "are not followed");
    assert_int_equal(rename(work, moved), 0);
    assert_int_equal(symlink("other", work), 0);
    vtest_write_file(file, "x", 1);
    assert_fails(vptq_file_replace(file, "2", 1, &err), VPTQ_E_IO, &err, "moved or replaced");
    assert_fails(vptq_file_remove(file, &err), VPTQ_E_IO, &err, "moved or replaced");
    vtest_expect_file(file, "x", 1);
    assert_int_equal(vtest_entries(other), 1);
    vtest_path(file, sizeof file, moved, "row");
    vtest_expect_file(file, "1", 1);
    vptq_lock_release(&a);
}

VTEST_MAIN(scratch_test(test_directories), scratch_test(test_own_directory),
           scratch_test(test_unused_directory), scratch_test(test_dir_writer),
           scratch_test(test_dir_writer_refusals), scratch_test(test_dir_writer_inner),
           scratch_test(test_dir_writer_stale), scratch_test(test_dir_writer_claimed),
           scratch_test(test_lock), scratch_test(test_foreign_lock),
           scratch_test(test_replaced_directory))
