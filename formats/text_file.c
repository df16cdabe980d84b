/* Opens texts: keeps what came through pipes, and checks or repairs UTF-8 (text_file.h).
 * text_stream.c reads and decompresses. */
#include "formats/text_file.h"

#include <string.h>
#include <sys/stat.h>

#include "formats/lfs.h"
#include "formats/text_stream.h"
#include "lib/base/utf8.h"

/* ---- inputs that the context remembers ---- */

/* A path that was opened in this context: a pipe with its content, or a text that was
 * repaired. */
struct vptq_text_input {
    struct vptq_text_input *next;
    bool kept;   /* `content` is that of a pipe */
    bool logged; /* that it was repaired */
    bool decompressed;
    vptq_buf content;
    char path[];
};

static struct vptq_text_input *find_input(const vptq_ctx *ctx, const char *path)
{
    struct vptq_text_input *i = ctx->inputs ? *ctx->inputs : NULL;
    while (i && strcmp(i->path, path) != 0)
        i = i->next;
    return i;
}

/* *input = the entry of a path, made if it is missing; NULL if the context keeps nothing. */
static vptq_status get_input(const vptq_ctx *ctx, const char *path,
                             struct vptq_text_input **input, vptq_err *err)
{
    const size_t n = strlen(path) + 1;
    *input = find_input(ctx, path);
    if (*input || !ctx->inputs)
        return VPTQ_OK;
    struct vptq_text_input *made = vptq_mem_alloc(ctx->mem, sizeof *made + n, 1, err);
    if (!made)
        return VPTQ_E_NOMEM;
    *made = (struct vptq_text_input){.next = *ctx->inputs};
    memcpy(made->path, path, n);
    vptq_buf_init(&made->content, ctx->mem);
    *input = *ctx->inputs = made;
    return VPTQ_OK;
}

void vptq_text_inputs_free(vptq_mem *mem, struct vptq_text_input **inputs)
{
    for (struct vptq_text_input *i = *inputs, *next; i; i = next) {
        next = i->next;
        vptq_buf_release(&i->content);
        vptq_mem_free(mem, i);
    }
    *inputs = NULL;
}

/* ---- bytes ---- */

static bool is_builtin(const char *path)
{
    return strcmp(path, VPTQ_BUILTIN_TEXT) == 0;
}

const char *vptq_text_file_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

/* Also a device, which reading refuses. */
static bool is_pipe(const char *path)
{
    struct stat sb;
    return strcmp(path, "-") == 0 ||
           (stat(path, &sb) == 0 && !S_ISREG(sb.st_mode) && !S_ISDIR(sb.st_mode));
}

/* Maps a regular file; *mapped is false for a compressed one, which is not mapped. */
static vptq_status map_plain(const char *path, vptq_text_kind kind, vptq_text_file *t,
                             bool *mapped, vptq_err *err)
{
    VPTQ_CHECK(vptq_map_open(path, &t->map, err));
    *mapped = kind == VPTQ_TEXT_BYTES ||
              vptq_compression_of(t->map.data, t->map.size) == VPTQ_COMPRESSION_NONE;
    if (!*mapped)
        vptq_map_release(&t->map);
    if (t->map.size > 0)
        t->data = (const char *)t->map.data;
    t->size = t->map.size;
    return VPTQ_OK;
}

/* Reads a pipe, or a compressed or small file, into memory. */
static vptq_status read_stream(const vptq_ctx *ctx, const char *path, vptq_text_kind kind,
                               size_t limit, bool keep, vptq_text_file *t, vptq_err *err)
{
    const size_t most = (size_t)4 << 30;
    struct vptq_text_input *input = NULL;
    if (keep)
        VPTQ_CHECK(get_input(ctx, path, &input, err));
    VPTQ_CHECK(vptq_stream_read(ctx, path, kind != VPTQ_TEXT_BYTES, limit < most ? limit : most,
                                &t->own, &t->decompressed, err));
    t->data = t->own.data;
    t->size = t->own.len;
    if (input) {
        input->kept = true;
        input->decompressed = t->decompressed;
        input->content = t->own; /* its bytes stay where they are */
        vptq_buf_init(&t->own, ctx->mem);
    }
    return VPTQ_OK;
}

static vptq_status get_bytes(const vptq_ctx *ctx, const char *path, vptq_text_kind kind,
                             size_t limit, vptq_text_file *t, vptq_err *err)
{
    const struct vptq_text_input *input = find_input(ctx, path);
    const bool pipe = is_pipe(path);
    bool mapped = false;
    if (is_builtin(path) && (kind == VPTQ_TEXT_UTF8 || kind == VPTQ_TEXT_LOSSY)) {
        t->name = "the built-in text";
        VPTQ_CHECK(vptq_text_builtin(&t->own, err));
        t->data = t->own.data;
        t->size = t->own.len;
        return VPTQ_OK;
    }
    if (input && input->kept) {
        t->data = input->content.data;
        t->size = input->content.len;
        t->decompressed = input->decompressed;
        return VPTQ_OK;
    }
    if (!pipe && kind != VPTQ_TEXT_JSON)
        VPTQ_CHECK(map_plain(path, kind, t, &mapped, err));
    if (!mapped)
        return read_stream(ctx, path, kind, limit, pipe, t, err);
    return t->size <= limit ? VPTQ_OK : vptq_stream_fail_long(t->name, limit, err);
}

/* ---- what is not a text ---- */

/* Names the kind of a file that is not text, or NULL. */
static const char *foreign_kind(const char *data, size_t size)
{
    static const struct {
        const char *magic, *name;
    } kinds[] = {{"GGUF", "a GGUF file"},
                 {"PK\3\4", "a zip file"},
                 {"PAR1", "a Parquet file"},
                 {"BZh", "compressed with bzip2"},
                 {"\xfd"
                  "7zXZ",
                  "compressed with xz"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const size_t n = strlen(kinds[i].magic);
        if (size >= n && memcmp(data, kinds[i].magic, n) == 0)
            return kinds[i].name;
    }
    return size > 8 && memcmp(data + 4, "\0\0\0\0{", 5) == 0 ? "a safetensors file" : NULL;
}

static vptq_status fail_utf16(const vptq_text_file *t, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_FORMAT,
                     "%s: looks like UTF-16, expected UTF-8 text; convert it with iconv -f "
                     "UTF-16 -t UTF-8",
                     t->name);
}

/* Fails for byte `at` of the data, byte `at` + `skipped` of the file. */
static vptq_status fail_byte(const vptq_text_file *t, size_t at, size_t skipped, vptq_err *err)
{
    const unsigned byte = (unsigned char)t->data[at];
    const char *kind = foreign_kind(t->data, t->size);
    const char *where = t->decompressed ? " of the decompressed text" : "";
    if (kind)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: is %s, expected UTF-8 text", t->name, kind);
    if (byte == 0 && at < 2 && t->size > 3 && t->data[at ^ 1] && t->data[(at ^ 1) + 2])
        return fail_utf16(t, err); /* without a mark */
    if (byte == 0)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: byte %zu%s is zero, expected UTF-8 text; --lossy replaces such "
                         "bytes",
                         t->name, at + skipped, where);
    return vptq_fail(err, VPTQ_E_FORMAT,
                     "%s: byte %zu%s (0x%02x) is not UTF-8; convert the text with iconv -t "
                     "UTF-8, or replace such bytes with --lossy",
                     t->name, at + skipped, where, byte);
}

/* The first byte, at or after `from`, that is zero or not UTF-8; the size if all are text.
 * *zero keeps the first zero byte between calls; begin with 0. */
static size_t valid_end(const vptq_text_file *t, size_t from, size_t *zero)
{
    if (*zero <= from) {
        const char *z = from < t->size ? memchr(t->data + from, 0, t->size - from) : NULL;
        *zero = z ? (size_t)(z - t->data) : t->size;
    }
    return from + vptq_utf8_valid_prefix(t->data + from, *zero - from);
}

/* Replaces everything that is not text; `at`: the first such byte. */
static vptq_status repair(const vptq_ctx *ctx, const char *path, size_t at, vptq_text_file *t,
                          vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    struct vptq_text_input *input;
    size_t count = 0, from = 0, zero = 0;
    vptq_buf repaired;
    vptq_buf_init(&repaired, ctx->mem);
    VPTQ_TRY(get_input(ctx, path, &input, err));
    VPTQ_TRY(vptq_buf_reserve(&repaired, t->size, err));
    for (; at < t->size; count++) {
        VPTQ_TRY(vptq_check_cancel(ctx, err));
        VPTQ_TRY(vptq_buf_add(&repaired, t->data + from, at - from, err));
        VPTQ_TRY(vptq_buf_add(&repaired, "\xef\xbf\xbd", 3, err));
        from = at + vptq_utf8_invalid_part(t->data + at, t->size - at);
        at = valid_end(t, from, &zero);
    }
    VPTQ_TRY(vptq_buf_add(&repaired, t->data + from, t->size - from, err));
    if (!input || !input->logged)
        vptq_log(ctx, VPTQ_LOG_WARN, "%s: replaced %zu part%s that %s not UTF-8 with U+FFFD",
                 t->name, count, count == 1 ? "" : "s", count == 1 ? "is" : "are");
    if (input)
        input->logged = true;
    vptq_text_file_close(t);
    t->own = repaired;
    t->data = t->own.data;
    t->size = t->own.len;
out:
    if (st)
        vptq_buf_release(&repaired);
    return st;
}

/* ---- opening ---- */

/* Removes a byte order mark, then checks the text or repairs it. */
static vptq_status check_text(const vptq_ctx *ctx, const char *path, vptq_text_kind kind,
                              vptq_text_file *t, vptq_err *err)
{
    size_t skipped = 0, zero = 0;
    if (t->size >= 2 && (!memcmp(t->data, "\xff\xfe", 2) || !memcmp(t->data, "\xfe\xff", 2)))
        return fail_utf16(t, err);
    if (t->size >= 3 && !memcmp(t->data, "\xef\xbb\xbf", 3))
        skipped = 3;
    t->data += skipped;
    t->size -= skipped;
    if (kind == VPTQ_TEXT_JSON)
        return VPTQ_OK;
    const size_t valid = valid_end(t, 0, &zero);
    if (valid == t->size)
        return VPTQ_OK;
    if (kind == VPTQ_TEXT_LOSSY)
        return repair(ctx, path, valid, t, err);
    return fail_byte(t, valid, skipped, err);
}

vptq_status vptq_text_file_open(const vptq_ctx *ctx, const char *path, vptq_text_kind kind,
                                size_t limit, vptq_text_file *t, vptq_err *err)
{
    static const char *const contents[] = {[VPTQ_TEXT_UTF8] = "text",
                                           [VPTQ_TEXT_LOSSY] = "text",
                                           [VPTQ_TEXT_JSON] = "JSON file",
                                           [VPTQ_TEXT_BYTES] = "token ids"};
    vptq_status st = VPTQ_OK;
    *t = (vptq_text_file){.name = vptq_text_file_name(path), .data = ""};
    vptq_buf_init(&t->own, ctx->mem);
    VPTQ_TRY(get_bytes(ctx, path, kind, limit, t, err));
    VPTQ_TRY(vptq_lfs_check(t->name, t->data, t->size, contents[kind], err));
    if (kind != VPTQ_TEXT_BYTES)
        VPTQ_TRY(check_text(ctx, path, kind, t, err));
out:
    if (st)
        vptq_text_file_close(t);
    return st;
}

void vptq_text_file_close(vptq_text_file *t)
{
    vptq_map_release(&t->map);
    vptq_buf_release(&t->own);
    t->data = "";
    t->size = 0;
}
