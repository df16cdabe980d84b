/* Finds models in the local cache of the Hugging Face hub. */
#include "formats/hf/hub.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/text.h"

enum {
    MAX_WORD = 96, /* the hub's limit for names */
    MAX_REF = 256, /* bytes of a file in refs/ */
    MAX_LIST = 400 /* bytes of snapshots listed in a message */
};
#define SNAPSHOTS "snapshots"

/* A model in a cache, and how the user named it. */
typedef struct repository {
    char dir[VPTQ_HUB_PATH];
    const char *given;
    char name[2 * MAX_WORD + 2]; /* ORG/NAME; "" = `given` is the directory */
    char revision[MAX_WORD + 1]; /* "" = the one of main */
} repository;

/* Whether these bytes may be a part of a hub's name and of a path: never ".", ".." or empty. */
static bool is_word(const char *s, size_t n)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789._-";
    if (n == 0 || n > MAX_WORD || strspn(s, letters) < n || *s == '.' || *s == '-')
        return false;
    /* "--" stands for the slash in the names of folders */
    for (size_t i = 0; i + 1 < n; i++)
        if ((s[i] == '-' || s[i] == '.') && s[i + 1] == s[i])
            return false;
    return true;
}

/* Takes ORG/NAME or ORG/NAME@REVISION. */
static bool parse_name(const char *text, repository *r)
{
    const size_t org = strcspn(text, "/");
    const size_t length = org + strcspn(text + org, "@");
    const char *revision = text[length] ? text + length + 1 : NULL;
    if (!text[org] || !is_word(text, org) || !is_word(text + org + 1, length - org - 1) ||
        (revision && !is_word(revision, strlen(revision))))
        return false;
    snprintf(r->name, sizeof r->name, "%.*s", (int)length, text);
    snprintf(r->revision, sizeof r->revision, "%s", revision ? revision : "");
    return true;
}

/* Finds the cache's directory; "" if the environment names none. */
static vptq_status find_cache(char cache[VPTQ_HUB_PATH], vptq_err *err)
{
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", NULL},
                  {"HF_HOME", "hub"},
                  {"XDG_CACHE_HOME", "huggingface/hub"},
                  {"HOME", ".cache/huggingface/hub"}};
    *cache = 0;
    for (size_t i = 0; i < sizeof places / sizeof places[0] && !*cache; i++) {
        const char *root = getenv(places[i].variable);
        if (root && *root && strlen(root) < VPTQ_HUB_PATH)
            memcpy(cache, root, strlen(root) + 1);
        if (*cache && places[i].below)
            VPTQ_CHECK(vptq_path_join(cache, VPTQ_HUB_PATH, cache, places[i].below, err));
    }
    return VPTQ_OK;
}

static vptq_status absent(const repository *r, const char *cache, vptq_err *err)
{
    if (!r->name[0])
        return vptq_fail(err, VPTQ_E_IO,
                         "'%s' has no complete snapshot of revision main; name another one: "
                         "%s/" SNAPSHOTS "/REVISION",
                         r->given, r->dir);
    return vptq_fail(
        err, VPTQ_E_IO,
        "cannot open '%s': No such file or directory, nor is it in the Hugging Face "
        "cache '%s'; download it with 'hf download %s%s%s'",
        r->given, cache, r->name, r->revision[0] ? " --revision " : "", r->revision);
}

/* Reads the commit that refs/NAME names; "" without that file. */
static vptq_status read_ref(const repository *r, const char *name, vptq_mem *mem,
                            char commit[MAX_WORD + 1], vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char path[VPTQ_HUB_PATH], *text = NULL;
    size_t size;
    *commit = 0;
    VPTQ_TRY(vptq_path_join(path, sizeof path, r->dir, "refs", err));
    VPTQ_TRY(vptq_path_join(path, sizeof path, path, name, err));
    if (!vptq_path_exists(path))
        goto out;
    VPTQ_TRY(vptq_file_read(path, MAX_REF, mem, &text, &size, err));
    const size_t n = strcspn(text, "\r\n");
    if (!is_word(text, n) || n + strspn(text + n, "\r\n") != size)
        VPTQ_TRY(
            vptq_fail(err, VPTQ_E_FORMAT, "%s: does not hold the name of a snapshot", path));
    memcpy(commit, text, n);
    commit[n] = 0;
out:
    vptq_mem_free(mem, text);
    return st;
}

/* Takes the only snapshot; commit "" if there is none. */
static vptq_status take_only(const repository *r, const char *cache, vptq_mem *mem,
                             char commit[MAX_WORD + 1], vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    char path[VPTQ_HUB_PATH], **names = NULL, list[MAX_LIST] = "";
    size_t count = 0, found = 0, length = 0;
    vptq_arena_init(&arena, mem);
    *commit = 0;
    VPTQ_TRY(vptq_path_join(path, sizeof path, r->dir, SNAPSHOTS, err));
    if (!vptq_path_is_dir(path))
        VPTQ_TRY(absent(r, cache, err));
    VPTQ_TRY(vptq_dir_list(path, &arena, &names, &count, err));
    for (size_t i = 0; i < count; i++) {
        if (!is_word(names[i], strlen(names[i])))
            continue;
        snprintf(commit, MAX_WORD + 1, "%s", names[i]);
        if (length + strlen(commit) + 3 < sizeof list)
            length += (size_t)snprintf(list + length, sizeof list - length, "%s%s",
                                       found ? ", " : "", commit);
        found++;
    }
    if (found > 1)
        st = vptq_fail(err, VPTQ_E_FORMAT,
                       "%s: has several snapshots and no refs/main; name one of them, as in "
                       "%s%s%s: %s",
                       r->dir, r->name[0] ? r->name : r->dir,
                       r->name[0] ? "@" : "/" SNAPSHOTS "/", commit, list);
out:
    vptq_arena_release(&arena);
    return st;
}

/* Fails unless the snapshot is a directory in the model's folder. */
static vptq_status check_inside(const repository *r, const char *snapshot, vptq_err *err)
{
    char real[PATH_MAX], expected[PATH_MAX];
    VPTQ_CHECK(vptq_path_join(expected, sizeof expected, realpath(r->dir, real) ? real : r->dir,
                              SNAPSHOTS, err));
    VPTQ_CHECK(
        vptq_path_join(expected, sizeof expected, expected, vptq_path_base(snapshot), err));
    if (realpath(snapshot, real) && strcmp(real, expected) == 0)
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_FORMAT,
                     "'%s' is a link to a directory outside the model's folder in the cache; "
                     "name that directory itself",
                     snapshot);
}

static vptq_status find_snapshot(const repository *r, const char *cache, vptq_mem *mem,
                                 char found[VPTQ_HUB_PATH], vptq_err *err)
{
    char commit[MAX_WORD + 1];
    VPTQ_CHECK(read_ref(r, r->revision[0] ? r->revision : "main", mem, commit, err));
    if (!*commit && r->revision[0])
        memcpy(commit, r->revision, sizeof commit);
    else if (!*commit)
        VPTQ_CHECK(take_only(r, cache, mem, commit, err));
    VPTQ_CHECK(vptq_path_join(found, VPTQ_HUB_PATH, r->dir, SNAPSHOTS, err));
    VPTQ_CHECK(vptq_path_join(found, VPTQ_HUB_PATH, found, commit, err));
    if (!*commit || !vptq_path_is_dir(found))
        return absent(r, cache, err);
    return check_inside(r, found, err);
}

static bool has(const char *dir, const char *name)
{
    char path[VPTQ_HUB_PATH];
    return !vptq_path_join(path, sizeof path, dir, name, NULL) && vptq_path_exists(path);
}

/* Whether a directory is a model's folder in a cache, or one that was moved out of it or that a
 * link names. */
static bool is_repository(const char *dir)
{
    const bool named = strncmp(vptq_path_base(dir), "models--", 8) == 0;
    return has(dir, SNAPSHOTS) && (named || (has(dir, "refs") && !has(dir, "config.json")));
}

/* Names the model's folder in the cache. */
static vptq_status set_folder(repository *r, const char *cache, vptq_err *err)
{
    char folder[sizeof "models----" + sizeof r->name];
    const int org = (int)strcspn(r->name, "/");
    snprintf(folder, sizeof folder, "models--%.*s--%s", org, r->name, r->name + org + 1);
    return vptq_path_join(r->dir, sizeof r->dir, cache, folder, err);
}

vptq_status vptq_hub_find(const char *path, vptq_mem *mem, char found[VPTQ_HUB_PATH],
                          vptq_err *err)
{
    repository r = {.given = path};
    char cache[VPTQ_HUB_PATH] = "";
    size_t n = strlen(path);
    if (n >= VPTQ_HUB_PATH)
        return vptq_fail(err, VPTQ_E_IO, "path '%.80s...' is too long", path);
    memcpy(found, path, n + 1);
    if (vptq_path_exists(path)) {
        while (n > 1 && path[n - 1] == '/')
            n--;
        memcpy(r.dir, path, n); /* which ends with 0 */
        return is_repository(r.dir) ? find_snapshot(&r, cache, mem, found, err) : VPTQ_OK;
    }
    if (!parse_name(path, &r))
        return VPTQ_OK;
    VPTQ_CHECK(find_cache(cache, err));
    if (!*cache)
        return VPTQ_OK;
    VPTQ_CHECK(set_folder(&r, cache, err));
    return find_snapshot(&r, cache, mem, found, err);
}
