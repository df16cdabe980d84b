/* Tests names of models on the Hugging Face hub: the cache, its environment, and damaged or
 * hostile caches. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/hf/hub.h"
#include "tests/support/vtest.h"

enum { PATH = 4096 };
#define REPO   "models--org--a.b-c"
#define FIRST  "0123456789abcdef0123456789abcdef01234567"
#define SECOND "89abcdef0123456789abcdef0123456789abcdef"

static void make_dir(void **state, const char *name)
{
    char path[PATH];
    vptq_err err = {0};
    vtest_path(path, PATH, *state, name);
    assert_ok(vptq_dir_make(path, &err), &err);
}

static void write_text(void **state, const char *name, const char *text)
{
    char path[PATH];
    vtest_path(path, PATH, *state, name);
    vtest_write_file(path, text, strlen(text));
}

static void remove_file(void **state, const char *name)
{
    char path[PATH];
    vtest_path(path, PATH, *state, name);
    assert_int_equal(remove(path), 0);
}

/* Two snapshots; refs/main names the second. */
static void make_cache(void **state)
{
    make_dir(state, REPO "/refs");
    make_dir(state, REPO "/snapshots/" FIRST);
    make_dir(state, REPO "/snapshots/" SECOND);
    write_text(state, REPO "/refs/main", SECOND);
    write_text(state, REPO "/refs/v1", FIRST "\n");
    assert_int_equal(setenv("HF_HUB_CACHE", *state, 1), 0);
}

/* Finds the model and compares with DIR/expected. */
static void finds(void **state, const char *model, const char *expected)
{
    char path[PATH], found[VPTQ_HUB_PATH];
    vptq_err err = {0};
    assert_ok(vptq_hub_find(model, NULL, found, &err), &err);
    vtest_path(path, PATH, *state, expected);
    assert_string_equal(found, path);
}

static void refuses(const char *model, vptq_status code, const char *part)
{
    char found[VPTQ_HUB_PATH];
    vptq_err err = {0};
    assert_fails(vptq_hub_find(model, NULL, found, &err), code, &err, part);
}

/* Takes it as a path, which is opened as it is. */
static void leaves(const char *model)
{
    char found[VPTQ_HUB_PATH];
    vptq_err err = {0};
    assert_ok(vptq_hub_find(model, NULL, found, &err), &err);
    assert_string_equal(found, model);
}

static void test_revisions(void **state)
{
    make_cache(state);
    finds(state, "org/a.b-c", REPO "/snapshots/" SECOND);
    finds(state, "org/a.b-c@v1", REPO "/snapshots/" FIRST);
    finds(state, "org/a.b-c@" FIRST, REPO "/snapshots/" FIRST);
    refuses("org/a.b-c@v2", VPTQ_E_IO,
            "download it with 'hf download org/a.b-c --revision v2'");
    refuses("org/b", VPTQ_E_IO,
            "cannot open 'org/b': No such file or directory, nor is it in "
            "the Hugging Face cache '");
    refuses("org/b", VPTQ_E_IO, "; download it with 'hf download org/b'");
    remove_file(state, REPO "/refs/main");
    refuses("org/a.b-c", VPTQ_E_FORMAT,
            "has several snapshots and no refs/main; name one of them, as in org/a.b-c@" SECOND
            ": " FIRST ", " SECOND);
    remove_file(state, REPO "/snapshots/" FIRST);
    finds(state, "org/a.b-c", REPO "/snapshots/" SECOND);
    remove_file(state, REPO "/snapshots/" SECOND);
    refuses("org/a.b-c", VPTQ_E_IO, "download it with 'hf download org/a.b-c'");
}

static void test_folders(void **state)
{
    char path[PATH], full[PATH + 8];
    make_cache(state);
    vtest_path(path, PATH, *state, REPO);
    finds(state, path, REPO "/snapshots/" SECOND);
    snprintf(full, sizeof full, "%s//", path);
    finds(state, full, REPO "/snapshots/" SECOND);
    /* under another name, unless it is a model itself */
    vtest_path(full, PATH, *state, "moved");
    assert_int_equal(symlink(path, full), 0);
    finds(state, full, "moved/snapshots/" SECOND);
    write_text(state, REPO "/config.json", "{}");
    leaves(full);
    remove_file(state, REPO "/config.json");
    remove_file(state, REPO "/refs/main");
    snprintf(full, sizeof full, "as in %.4000s/snapshots/", path);
    refuses(path, VPTQ_E_FORMAT, full);
    remove_file(state, REPO "/snapshots/" FIRST);
    remove_file(state, REPO "/snapshots/" SECOND);
    refuses(path, VPTQ_E_IO, "has no complete snapshot of revision main");
    vtest_path(path, PATH, *state, REPO "/refs");
    leaves(path);
}

static void test_environment(void **state)
{
    char home[PATH];
    make_cache(state);
    make_dir(state, "hub/models--org--x/snapshots/r");
    make_dir(state, "huggingface/hub/models--org--y/snapshots/r");
    make_dir(state, ".cache/huggingface/hub/models--org--z/snapshots/r");
    snprintf(home, sizeof home, "%s", getenv("HOME") ? getenv("HOME") : "");
    assert_int_equal(setenv("HF_HOME", *state, 1), 0);
    assert_int_equal(setenv("XDG_CACHE_HOME", *state, 1), 0);
    assert_int_equal(setenv("HOME", *state, 1), 0);
    refuses("org/x", VPTQ_E_IO, "hf download");
    assert_int_equal(setenv("HF_HUB_CACHE", "", 1), 0); /* as if it were not set */
    finds(state, "org/x", "hub/models--org--x/snapshots/r");
    assert_int_equal(unsetenv("HF_HOME"), 0);
    finds(state, "org/y", "huggingface/hub/models--org--y/snapshots/r");
    assert_int_equal(unsetenv("XDG_CACHE_HOME"), 0);
    finds(state, "org/z", ".cache/huggingface/hub/models--org--z/snapshots/r");
    assert_int_equal(unsetenv("HOME"), 0);
    leaves("org/z");
    assert_int_equal(setenv("HOME", home, 1), 0);
}

/* Paths, also missing ones, and texts that are not names. */
static void test_paths(void **state)
{
    static const char *const paths[] = {
        "org",    "org/a/b", "./a",      "../a",      "/a",        "org/",
        "org/..", "org/.a",  "org/a--b", "o--rg/a.b", "o g/a",     "org/a..b",
        "org/a@", "org/a@.", "org/-a",   "",          "org/a@b/c", "org/a@..",
        "a@b",    "org@v/a", "org/a\n",  "org/a@b@c"};
    char path[PATH];
    make_cache(state);
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        leaves(paths[i]);
    /* what exists wins */
    make_dir(state, "work/org/a.b-c");
    vtest_path(path, PATH, *state, "work");
    char *before = realpath(".", NULL);
    assert_non_null(before);
    assert_int_equal(chdir(path), 0);
    leaves("org/a.b-c");
    assert_int_equal(rmdir("org/a.b-c"), 0);
    finds(state, "org/a.b-c", REPO "/snapshots/" SECOND);
    assert_int_equal(chdir(before), 0);
    free(before);
}

static void test_hostile(void **state)
{
    static const char *const refs[] = {"",    "..",   "../../evil", "/etc", ".",
                                       "a/b", "a\nb", "a b",        "-x"};
    char path[PATH], target[PATH];
    make_cache(state);
    make_dir(state, "evil");
    for (size_t i = 0; i < sizeof refs / sizeof refs[0]; i++) {
        write_text(state, REPO "/refs/main", refs[i]);
        refuses("org/a.b-c", VPTQ_E_FORMAT, "refs/main: does not hold the name of a snapshot");
    }
    memset(path, 'a', 200);
    path[200] = 0;
    write_text(state, REPO "/refs/main", path);
    refuses("org/a.b-c", VPTQ_E_FORMAT, "refs/main: does not hold the name of a snapshot");
    memset(path, 'a', 1000);
    path[1000] = 0;
    write_text(state, REPO "/refs/main", path);
    refuses("org/a.b-c", VPTQ_E_FORMAT, "has 1000 bytes");
    write_text(state, REPO "/refs/main", "missing");
    refuses("org/a.b-c", VPTQ_E_IO, "hf download");
    vtest_path(path, PATH, *state, REPO "/snapshots/link");
    vtest_path(target, PATH, *state, "evil");
    assert_int_equal(symlink(target, path), 0);
    write_text(state, REPO "/refs/main", "link");
    refuses("org/a.b-c", VPTQ_E_FORMAT, "is a link to a directory outside");
    /* the model's folder may be a link: users move models to other disks */
    vtest_path(path, PATH, *state, "models--org--moved");
    vtest_path(target, PATH, *state, REPO);
    assert_int_equal(symlink(target, path), 0);
    write_text(state, REPO "/refs/main", FIRST);
    finds(state, "org/moved", "models--org--moved/snapshots/" FIRST);
}

VTEST_MAIN(scratch_test(test_revisions), scratch_test(test_folders),
           scratch_test(test_environment), scratch_test(test_paths), scratch_test(test_hostile))
