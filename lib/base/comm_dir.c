/* Whether all ranks see one directory. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/comm.h"
#include "lib/base/file.h"

/* Looks for a file that rank 0 has just written, with the given text. */
static bool sees_file(const char *path, const char *text)
{
    enum { TRIES = 100 }; /* a network may take seconds to show it */
    for (int i = 0; i < TRIES; i++) {
        const struct timespec t = {.tv_nsec = 100000000};
        vptq_map map;
        bool same = false;
        if (vptq_path_exists(path) && !vptq_map_open(path, &map, NULL)) {
            same = map.size == strlen(text) && !memcmp(map.data, text, map.size);
            vptq_map_release(&map);
        }
        if (same)
            return true;
        (void)nanosleep(&t, NULL);
    }
    return false;
}

vptq_status vptq_comm_see(const vptq_ctx *ctx, const char *dir, const char *advice,
                          vptq_err *err)
{
    static const char name[] = "ranks";
    const bool first = vptq_comm_rank(ctx) == 0;
    char path[PATH_MAX], text[64];
    if (vptq_comm_size(ctx) == 1)
        return VPTQ_OK;
    vptq_status st = vptq_path_join(path, sizeof path, dir, name, err);
    snprintf(text, sizeof text, "%ld %.9f\n", (long)getpid(), vptq_seconds());
    if (!st && first)
        st = vptq_file_replace(path, text, strlen(text), err);
    const bool written = !st && first;
    st = vptq_comm_agree(ctx, st, err);
    if (!st)
        st = vptq_comm_broadcast(ctx, 0, text, sizeof text, err);
    if (!st && !first && !sees_file(path, text))
        st = vptq_fail(err, VPTQ_E_IO,
                       "does not see the directory '%s' of rank 0; put it where all see it%s",
                       dir, advice);
    st = vptq_comm_agree(ctx, st, err);
    const vptq_status removed = written ? vptq_file_remove(path, st ? NULL : err) : VPTQ_OK;
    return st ? st : removed;
}
