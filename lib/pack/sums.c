/* SHA256SUMS: the SHA-256 of every file of a directory, in the format of sha256sum.  Writes the
 * list next to the weights and checks a directory against it. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/buf.h"
#include "lib/base/parallel.h"
#include "lib/base/strmap.h"
#include "lib/pack/package.h"

#define LIST "SHA256SUMS"

enum { HEX = VPTQ_SHA256_HEX, MAX_LIST = 1 << 20, PIECE = 1 << 16 };

/* A file of the directory, or of the list. */
typedef struct summed {
    const char *name, *expected; /* expected: HEX characters of a list that was read, or NULL */
    char hex[HEX + 1];
    vptq_status st;
    vptq_err err;
} summed;

typedef struct sums {
    const vptq_ctx *ctx;
    const char *dir;
    vptq_arena arena;
    summed *files;
    size_t count;
    uint8_t *pieces; /* [threads, PIECE] */
} sums;

static void sums_init(sums *s, const vptq_ctx *ctx, const char *dir)
{
    *s = (sums){.ctx = ctx, .dir = dir};
    vptq_arena_init(&s->arena, ctx->mem);
}

/* ---- digests ---- */

static vptq_status digest(const sums *s, const char *name, uint8_t *piece, char hex[HEX + 1],
                          vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char path[4096];
    vptq_sha256 hash = {0};
    vptq_file f;
    VPTQ_CHECK(vptq_path_join(path, sizeof path, s->dir, name, err));
    VPTQ_CHECK(vptq_file_open(path, &f, err));
    VPTQ_TRY(vptq_sha256_begin(&hash, err));
    for (uint64_t at = 0; at < f.size; at += PIECE) {
        const size_t bytes = f.size - at < PIECE ? (size_t)(f.size - at) : PIECE;
        VPTQ_TRY(vptq_check_cancel(s->ctx, err));
        VPTQ_TRY(vptq_file_read_at(&f, at, piece, bytes, err));
        VPTQ_TRY(vptq_sha256_add(&hash, piece, bytes, err));
    }
    st = vptq_sha256_finish(&hash, hex, err);
out:
    if (st == VPTQ_E_UNSUPPORTED)
        vptq_err_context(err, "%s", path);
    vptq_sha256_release(&hash);
    vptq_file_close(&f);
    return st;
}

static void digest_range(void *arg, size_t begin, size_t end, int thread)
{
    sums *s = arg;
    for (size_t i = begin; i < end; i++) {
        summed *f = &s->files[i];
        f->st = digest(s, f->name, s->pieces + (size_t)thread * PIECE, f->hex, &f->err);
    }
}

static vptq_status digest_all(sums *s, vptq_err *err)
{
    const int threads = s->ctx->threads > 1 ? s->ctx->threads : 1;
    s->pieces = vptq_arena_alloc(&s->arena, (size_t)threads, PIECE, err);
    if (!s->pieces)
        return VPTQ_E_NOMEM;
    vptq_parallel_for(threads, s->count, 1, digest_range, s);
    return VPTQ_OK;
}

static vptq_status allocate_files(sums *s, size_t most, vptq_err *err)
{
    s->files = vptq_arena_zalloc(&s->arena, most, sizeof *s->files, err);
    return s->files ? VPTQ_OK : VPTQ_E_NOMEM;
}

/* ---- writing ---- */

vptq_status vptq_sums_write(const vptq_ctx *ctx, const char *dir, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    sums s;
    vptq_buf text;
    char **names, path[4096];
    size_t count = 0;
    sums_init(&s, ctx, dir);
    vptq_buf_init(&text, ctx->mem);
    VPTQ_TRY(vptq_dir_list(dir, &s.arena, &names, &count, err));
    VPTQ_TRY(allocate_files(&s, count, err));
    for (size_t i = 0; i < count; i++)
        s.files[s.count++].name = names[i];
    VPTQ_TRY(digest_all(&s, err));
    for (size_t i = 0; i < count; i++) {
        if (s.files[i].st)
            VPTQ_TRY(vptq_fail(err, s.files[i].st, "%s", s.files[i].err.text));
        VPTQ_TRY(vptq_buf_printf(&text, err, "%s  %s\n", s.files[i].hex, names[i]));
    }
    VPTQ_TRY(vptq_path_join(path, sizeof path, dir, LIST, err));
    st = vptq_file_replace(path, text.data, text.len, err);
out:
    vptq_buf_release(&text);
    vptq_arena_release(&s.arena);
    return st;
}

/* ---- checking ---- */

/* Parses the line that begins at `line`, ends it with a 0 and adds its file.  A name is one of
 * the same directory. */
static vptq_status parse_line(sums *s, vptq_strmap *names, char *line, size_t number,
                              vptq_err *err)
{
    char *name = line + HEX + 2;
    bool fresh = false;
    if (strspn(line, "0123456789abcdef") != HEX || line[HEX] != ' ' ||
        (line[HEX + 1] != ' ' && line[HEX + 1] != '*') || !*name || strchr(name, '/') ||
        name[0] == '.')
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s/" LIST ": line %zu is not 64 lower-case hexadecimal digits, two "
                         "spaces and the name of a file next to it",
                         s->dir, number);
    VPTQ_CHECK(vptq_strmap_add(names, name, strlen(name), 0, &fresh, err));
    if (!fresh)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s/" LIST ": '%.100s' appears twice", s->dir,
                         name);
    s->files[s->count++] = (summed){.name = name, .expected = line};
    return VPTQ_OK;
}

static vptq_status parse_list(sums *s, vptq_strmap *names, char *text, size_t size,
                              vptq_err *err)
{
    size_t lines = 1, number = 0;
    for (size_t i = 0; i < size; i++)
        lines += text[i] == '\n';
    VPTQ_CHECK(allocate_files(s, lines, err));
    for (char *line = text, *end; line < text + size; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text + size - line));
        if (!end || memchr(line, 0, (size_t)(end - line)))
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s/" LIST ": line %zu is cut short or has a NUL byte", s->dir,
                             number + 1);
        *end = 0;
        VPTQ_CHECK(parse_line(s, names, line, ++number, err));
    }
    return VPTQ_OK;
}

/* Reports files that are not on the list: a companion may have been added, but nothing that
 * could be weights.  Hidden files do not count. */
static vptq_status find_unlisted(sums *s, const vptq_strmap *names, vptq_finding_fn report,
                                 void *arg, vptq_err *err)
{
    char **found, text[512];
    size_t count = 0;
    VPTQ_CHECK(vptq_dir_list(s->dir, &s->arena, &found, &count, err));
    for (size_t i = 0; i < count; i++) {
        const char *name = found[i];
        uint32_t ignored;
        if (name[0] == '.' || !strcmp(name, LIST) ||
            vptq_strmap_get(names, name, strlen(name), &ignored))
            continue;
        snprintf(text, sizeof text, "%.200s: '%.200s' is not in " LIST, s->dir, name);
        report(arg, !vptq_companion_ok(name), text);
    }
    return VPTQ_OK;
}

static vptq_status check_listed(sums *s, vptq_finding_fn report, void *arg,
                                vptq_check_result *r, vptq_err *err)
{
    char text[512];
    VPTQ_CHECK(digest_all(s, err));
    for (size_t i = 0; i < s->count; i++) {
        const summed *f = &s->files[i];
        if (f->st == VPTQ_E_CANCELLED || f->st == VPTQ_E_UNSUPPORTED)
            return vptq_fail(err, f->st, "%s", f->err.text);
        r->digests += !f->st && !strncmp(f->hex, f->expected, HEX);
        if (f->st)
            report(arg, true, f->err.text);
        else if (strncmp(f->hex, f->expected, HEX) != 0) {
            snprintf(text, sizeof text,
                     "%.200s/%.200s: does not match " LIST ": damaged or changed", s->dir,
                     f->name);
            report(arg, true, text);
        }
    }
    return VPTQ_OK;
}

vptq_status vptq_sums_check(const vptq_ctx *ctx, const char *dir, vptq_finding_fn report,
                            void *arg, vptq_check_result *r, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    sums s;
    vptq_strmap names = {0};
    char path[4096], *text = NULL;
    size_t size = 0;
    VPTQ_CHECK(vptq_path_join(path, sizeof path, dir, LIST, err));
    if (!vptq_path_is_dir(dir) || !vptq_path_exists(path))
        return VPTQ_OK;
    r->has_sums = true;
    sums_init(&s, ctx, dir);
    VPTQ_TRY(vptq_strmap_init(&names, ctx->mem, 0, err));
    VPTQ_TRY(vptq_file_read(path, MAX_LIST, ctx->mem, &text, &size, err));
    VPTQ_TRY(parse_list(&s, &names, text, size, err));
    VPTQ_TRY(check_listed(&s, report, arg, r, err));
    st = find_unlisted(&s, &names, report, arg, err);
out:
    vptq_mem_free(ctx->mem, text);
    vptq_strmap_release(&names);
    vptq_arena_release(&s.arena);
    return st;
}
