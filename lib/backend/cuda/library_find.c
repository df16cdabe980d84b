/* Finds shared libraries of CUDA in the usual places. */
#include "lib/backend/cuda/library_find.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A folder, as a pattern of glob, below the value of `root`. */
typedef struct place {
    enum { PROGRAM, ENVIRONMENT, ABSOLUTE } root;
    const char *variable; /* of ENVIRONMENT; skipped if it is not set */
    const char *below;
} place;

static const place places[] = {
    {PROGRAM, NULL, ""},
    {PROGRAM, NULL, "/lib"},
    {PROGRAM, NULL, "/../lib"},
    {ENVIRONMENT, "CUDA_HOME", "/lib64"},
    {ABSOLUTE, NULL, "/usr/local/cuda*/lib64"},
    {ENVIRONMENT, "VIRTUAL_ENV", "/lib/python3*/site-packages/nvidia/*/lib"},
    {ENVIRONMENT, "CONDA_PREFIX", "/lib"},
    {ENVIRONMENT, "CONDA_PREFIX", "/lib/python3*/site-packages/nvidia/*/lib"},
    {ENVIRONMENT, "HOME", "/.local/lib/python3*/site-packages/nvidia/*/lib"},
    {ABSOLUTE, NULL, "/usr/local/lib/python3*/*-packages/nvidia/*/lib"},
    {ABSOLUTE, NULL, "/usr/lib/python3*/*-packages/nvidia/*/lib"},
};

/* The folder of the running program, or "". */
static void program_folder(char to[PATH_MAX])
{
    const ssize_t n = readlink("/proc/self/exe", to, PATH_MAX - 1);
    char *end;
    to[n > 0 ? n : 0] = '\0';
    end = strrchr(to, '/');
    to[end ? end - to : 0] = '\0';
}

/* Writes the folder as a pattern; returns false if it has no root or is too long. */
static bool folder_of(const place *p, char to[PATH_MAX])
{
    char program[PATH_MAX];
    const char *root = "";
    if (p->root == PROGRAM) {
        program_folder(program);
        root = program;
    } else if (p->root == ENVIRONMENT)
        root = getenv(p->variable);
    if (!root || (p->root != ABSOLUTE && !*root))
        return false;
    return (size_t)snprintf(to, PATH_MAX, "%s%s", root, p->below) < PATH_MAX;
}

static void *open_file(const char *path)
{
    return dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

/* Opens the last match that loads: of several toolkits, the newest comes last. */
static void *open_in(const char *folder, const char *file, char *why, size_t size)
{
    char pattern[PATH_MAX];
    glob_t found;
    void *handle = NULL;
    if ((size_t)snprintf(pattern, sizeof pattern, "%s/%s", folder, file) >= sizeof pattern ||
        glob(pattern, 0, NULL, &found))
        return NULL;
    for (size_t i = found.gl_pathc; !handle && i-- > 0;) {
        handle = open_file(found.gl_pathv[i]);
        const char *reason = handle ? NULL : dlerror();
        snprintf(why, size, "%s", reason ? reason : found.gl_pathv[i]);
    }
    globfree(&found);
    return handle;
}

void *vptq_cuda_library_find(const char *const *files, char *why, size_t size)
{
    char folder[PATH_MAX], tried[1024] = "", reason[256] = "no such file";
    size_t length = 0;
    for (size_t i = 0; files[i]; i++) {
        void *handle = open_file(files[i]);
        if (handle) {
            snprintf(why, size, "%s", files[i]);
            return handle;
        }
    }
    for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
        if (!folder_of(&places[p], folder))
            continue;
        for (size_t i = 0; files[i]; i++) {
            void *handle = open_in(folder, files[i], reason, sizeof reason);
            if (handle) {
                snprintf(why, size, "%s", reason);
                return handle;
            }
        }
        if (length < sizeof tried)
            length += (size_t)snprintf(tried + length, sizeof tried - length, ", %s", folder);
    }
    snprintf(why, size, "%s; tried the loader's own folders%s", reason, tried);
    return NULL;
}
