/* Reads files and pipes in pieces and decompresses them (text_stream.h). */
#include "formats/text_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "formats/text_file.h"

/* PIECE: bytes per read and per step of a decompressor.  WAIT: milliseconds between two looks
 * at the cancel flag while a pipe has nothing. */
enum { PIECE = 1 << 15, WAIT = 200, MAGIC = 4 };
/* Texts shrink to a third or a tenth.  Of what shrinks to less than one part in MOST_RATIO,
 * only RATIO_FREE bytes are decompressed, so that no small file fills the memory. */
enum { MOST_RATIO = 100, RATIO_FREE = 16 << 20 };

typedef struct stream {
    const vptq_ctx *ctx;
    const char *path, *name; /* name: for messages */
    int fd;
    vptq_buf *out;
    size_t limit; /* bytes of `out` */
    bool packed;  /* `out` is decompressed */
    size_t total; /* bytes read */
    size_t have;  /* bytes of `piece` */
    uint8_t piece[PIECE];
} stream;

vptq_compression vptq_compression_of(const void *data, size_t size)
{
    const uint8_t *b = data;
    if (size >= 2 && b[0] == 0x1f && b[1] == 0x8b)
        return VPTQ_COMPRESSION_GZIP;
    /* a frame, or one that is skipped, with which files of parallel compressors begin */
    if (size >= MAGIC && ((b[0] == 0x28 && !memcmp(b + 1, "\xb5\x2f\xfd", 3)) ||
                          ((b[0] & 0xf0) == 0x50 && !memcmp(b + 1, "\x2a\x4d\x18", 3))))
        return VPTQ_COMPRESSION_ZSTD;
    return VPTQ_COMPRESSION_NONE;
}

vptq_status vptq_stream_fail_long(const char *name, size_t limit, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_FORMAT, "'%s' has more than the %zu bytes expected", name,
                     limit);
}

/* ---- reading ---- */

static vptq_status check_file(const stream *s, vptq_err *err)
{
    struct stat sb;
    if (fstat(s->fd, &sb))
        return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot open '%s'", s->name);
    if (S_ISDIR(sb.st_mode))
        return vptq_fail(err, VPTQ_E_IO, "cannot open '%s': is a directory", s->name);
    if (s->fd != STDIN_FILENO && !S_ISREG(sb.st_mode) && !S_ISFIFO(sb.st_mode))
        return vptq_fail(err, VPTQ_E_IO,
                         "cannot open '%s': is a device; only files and pipes can be read",
                         s->name);
    return VPTQ_OK;
}

/* A pipe is opened at once, also without a writer, for which read_more waits. */
static vptq_status open_stream(stream *s, vptq_err *err)
{
    s->fd = STDIN_FILENO;
    if (strcmp(s->path, "-") != 0)
        s->fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (s->fd < 0)
        return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot open '%s'", s->name);
    return check_file(s, err);
}

static void close_stream(const stream *s)
{
    if (s->fd > STDIN_FILENO)
        close(s->fd);
}

/* Adds to the piece, which must not be full, what the next read returns: nothing at the end.
 * poll is interrupted by a signal, whereas read would be restarted.  It waits for the first
 * writer of a named pipe, where read would return the end. */
static vptq_status read_more(stream *s, vptq_err *err)
{
    for (;;) {
        struct pollfd ready = {.fd = s->fd, .events = POLLIN};
        VPTQ_CHECK(vptq_check_cancel(s->ctx, err));
        if (poll(&ready, 1, WAIT) == 0)
            continue;
        const ssize_t n = ready.revents ? read(s->fd, s->piece + s->have, PIECE - s->have) : -1;
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n < 0)
            return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot read '%s'", s->name);
        s->have += (size_t)n;
        s->total += (size_t)n;
        return VPTQ_OK;
    }
}

static vptq_status read_next(stream *s, vptq_err *err)
{
    s->have = 0;
    return read_more(s, err);
}

/* Reads the bytes by which compressed data is recognized, unless the end comes first. */
static vptq_status read_magic(stream *s, vptq_err *err)
{
    size_t before;
    do {
        before = s->have;
        VPTQ_CHECK(read_more(s, err));
    } while (s->have > before && s->have < MAGIC);
    return VPTQ_OK;
}

/* Makes room for a piece in `out`.  Fails if that is over its limit. */
static vptq_status make_room(const stream *s, vptq_err *err)
{
    if (s->out->len > s->limit)
        return vptq_stream_fail_long(s->name, s->limit, err);
    if (s->packed && s->out->len > RATIO_FREE && s->out->len / MOST_RATIO > s->total)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "'%s' decompresses to more than %d times its size; decompress it "
                         "beforehand if that is intended",
                         s->name, (int)MOST_RATIO);
    const vptq_status st = vptq_buf_reserve(s->out, PIECE, err);
    return st && err ? vptq_err_context(err, "cannot read '%s'", s->name) : st;
}

static vptq_status read_plain(stream *s, vptq_err *err)
{
    while (s->have > 0) {
        VPTQ_CHECK(make_room(s, err));
        memcpy(s->out->data + s->out->len, s->piece, s->have);
        s->out->len += s->have;
        VPTQ_CHECK(read_next(s, err));
    }
    return make_room(s, err);
}

/* ---- decompressing ---- */

static vptq_status fail_damaged(const stream *s, const char *format, const char *why,
                                vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_CHECKSUM, "%s: the %s data is damaged: %s", s->name, format,
                     why);
}

static vptq_status fail_incomplete(const stream *s, const char *format, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_CHECKSUM, "%s: the %s data is incomplete", s->name, format);
}

static vptq_status inflate_all(stream *s, z_stream *z, vptq_err *err)
{
    int r = Z_OK;
    bool full = false; /* the decompressor may hold more output */
    z->next_in = s->piece;
    z->avail_in = (uInt)s->have;
    for (;;) {
        if (z->avail_in == 0 && !full) {
            VPTQ_CHECK(read_next(s, err));
            z->next_in = s->piece;
            z->avail_in = (uInt)s->have;
            if (s->have == 0)
                break;
        }
        if (r == Z_STREAM_END)
            inflateReset(z); /* the next member */
        VPTQ_CHECK(make_room(s, err));
        z->next_out = (Bytef *)s->out->data + s->out->len;
        z->avail_out = PIECE;
        r = inflate(z, Z_NO_FLUSH);
        s->out->len += PIECE - z->avail_out;
        if (r != Z_OK && r != Z_STREAM_END && r != Z_BUF_ERROR)
            return fail_damaged(s, "gzip", z->msg ? z->msg : "unknown error", err);
        full = r != Z_STREAM_END && z->avail_out == 0;
    }
    return r == Z_STREAM_END ? make_room(s, err) : fail_incomplete(s, "gzip", err);
}

static vptq_status read_gzip(stream *s, vptq_err *err)
{
    const int gzip_only = 16 + MAX_WBITS;
    z_stream z = {.next_in = NULL};
    if (inflateInit2(&z, gzip_only) != Z_OK)
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory for decompression");
    const vptq_status st = inflate_all(s, &z, err);
    inflateEnd(&z);
    return st;
}

static vptq_status decompress_all(stream *s, ZSTD_DCtx *z, vptq_err *err)
{
    ZSTD_inBuffer in = {s->piece, s->have, 0};
    size_t r = 0;
    bool full = false; /* the decompressor may hold more output */
    for (;;) {
        if (in.pos == in.size && !full) {
            VPTQ_CHECK(read_next(s, err));
            in = (ZSTD_inBuffer){s->piece, s->have, 0};
            if (s->have == 0)
                break;
        }
        VPTQ_CHECK(make_room(s, err));
        ZSTD_outBuffer out = {s->out->data + s->out->len, PIECE, 0};
        r = ZSTD_decompressStream(z, &out, &in);
        s->out->len += out.pos;
        if (ZSTD_isError(r))
            return fail_damaged(s, "zstd", ZSTD_getErrorName(r), err);
        full = r != 0 && out.pos == out.size;
    }
    return r == 0 ? make_room(s, err) : fail_incomplete(s, "zstd", err);
}

static vptq_status read_zstd(stream *s, vptq_err *err)
{
    ZSTD_DCtx *z = ZSTD_createDCtx();
    if (!z)
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory for decompression");
    const vptq_status st = decompress_all(s, z, err);
    ZSTD_freeDCtx(z);
    return st;
}

vptq_status vptq_stream_read(const vptq_ctx *ctx, const char *path, bool decode, size_t limit,
                             vptq_buf *out, bool *decoded, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_compression kind = VPTQ_COMPRESSION_NONE;
    stream s = {.ctx = ctx,
                .path = path,
                .name = vptq_text_file_name(path),
                .fd = -1,
                .out = out,
                .limit = limit};
    VPTQ_TRY(open_stream(&s, err));
    VPTQ_TRY(read_magic(&s, err));
    if (decode)
        kind = vptq_compression_of(s.piece, s.have);
    *decoded = s.packed = kind != VPTQ_COMPRESSION_NONE;
    VPTQ_TRY(kind == VPTQ_COMPRESSION_GZIP   ? read_gzip(&s, err)
             : kind == VPTQ_COMPRESSION_ZSTD ? read_zstd(&s, err)
                                             : read_plain(&s, err));
    out->data[out->len] = 0;
out:
    close_stream(&s);
    return st;
}
