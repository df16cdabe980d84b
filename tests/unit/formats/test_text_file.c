/* Texts: UTF-8 and what is not, compressed files, pipes. */
#define _GNU_SOURCE /* usleep */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "formats/json.h"
#include "formats/text_file.h"
#include "formats/text_stream.h"
#include "tests/support/vtest.h"

static const vptq_ctx plain = {.threads = 1};

#define TEXT(s) s, sizeof(s) - 1

/* Writes DIR/t.txt and opens it. */
static vptq_status open_text(void **state, const void *data, size_t size, vptq_text_kind kind,
                             vptq_text_file *t, vptq_err *err)
{
    static char path[4096];
    vtest_path(path, sizeof path, *state, "t.txt");
    vtest_write_file(path, data, size);
    return vptq_text_file_open(&plain, path, kind, SIZE_MAX, t, err);
}

static void expect_text(const vptq_text_file *t, const void *want, size_t size)
{
    assert_int_equal(t->size, size);
    if (size > 0)
        assert_memory_equal(t->data, want, size);
}

/* ---- UTF-8 ---- */

static void test_valid(void **state)
{
    static const char all[] =
        "a\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf"
        "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf\x7f\x01";
    static const struct {
        const char *text, *want;
    } cases[] = {{"", ""},
                 {"a", "a"},
                 {all, all},
                 {"\xef\xbb\xbf", ""},
                 {"\xef\xbb\xbf"
                  "a\n",
                  "a\n"},
                 {"a\xef\xbb\xbf", "a\xef\xbb\xbf"}, /* only at the start */
                 {"\xef\xbb\xbf\xef\xbb\xbf", "\xef\xbb\xbf"}};
    vptq_err err = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int kind = VPTQ_TEXT_UTF8; kind <= VPTQ_TEXT_BYTES; kind++) {
            const bool raw = kind == VPTQ_TEXT_BYTES;
            const char *want = raw ? cases[i].text : cases[i].want;
            vptq_text_file t;
            assert_ok(open_text(state, cases[i].text, strlen(cases[i].text),
                                (vptq_text_kind)kind, &t, &err),
                      &err);
            expect_text(&t, want, strlen(want));
            vptq_text_file_close(&t);
        }
}

/* Replacements are those of Python's bytes.decode("utf-8", "replace"). */
#define FFFD "\xef\xbf\xbd"
static const struct {
    const char *what, *text;
    size_t size;
    const char *part, *repaired;
} not_text[] = {
    {"Latin-1", TEXT("caf\xe9 au"), "byte 3 (0xe9) is not UTF-8", "caf" FFFD " au"},
    {"after a mark", TEXT("\xef\xbb\xbf\xff"), "byte 3 (0xff) is not UTF-8", FFFD},
    {"continuations", TEXT("a\x80\xbf"), "byte 1 (0x80)", "a" FFFD FFFD},
    {"overlong, 2 bytes", TEXT("\xc0\xaf"), "byte 0 (0xc0)", FFFD FFFD},
    {"overlong, 3 bytes", TEXT("\xe0\x80\xaf"), "byte 0 (0xe0)", FFFD FFFD FFFD},
    {"overlong, 4 bytes", TEXT("\xf0\x80\x80\xaf"), "byte 0 (0xf0)", FFFD FFFD FFFD FFFD},
    {"surrogate", TEXT("a\xed\xa0\x80z"), "byte 1 (0xed)", "a" FFFD FFFD FFFD "z"},
    {"beyond U+10FFFF", TEXT("\xf4\x90\x80\x80"), "byte 0 (0xf4)", FFFD FFFD FFFD FFFD},
    {"never in UTF-8", TEXT("\xf8\x88\xfe"), "byte 0 (0xf8)", FFFD FFFD FFFD},
    {"cut, 2 bytes", TEXT("ab\xc3"), "byte 2 (0xc3)", "ab" FFFD},
    {"cut, 3 bytes", TEXT("ab\xe2\x82"), "byte 2 (0xe2)", "ab" FFFD},
    {"cut, 4 bytes", TEXT("ab\xf0\x9f\x98"), "byte 2 (0xf0)", "ab" FFFD},
    {"cut in the middle",
     TEXT("\xf0\x9f\x98"
          "a\xe2\x82z"),
     "byte 0 (0xf0)", FFFD "a" FFFD "z"},
    {"zero byte", TEXT("ab\0c"), "byte 2 is zero", "ab" FFFD "c"},
    {"zero byte at the end", TEXT("a\xc3\xa9\0"), "byte 3 is zero", "a\xc3\xa9" FFFD},
    {"zero before", TEXT("a\0\xff"), "byte 1 is zero", "a" FFFD FFFD},
    {"zero in a character", TEXT("a\xe2\0"), "byte 1 (0xe2)", "a" FFFD FFFD},
};

static void test_not_utf8(void **state)
{
    for (size_t i = 0; i < sizeof not_text / sizeof *not_text; i++) {
        const char *text = not_text[i].text, *want = not_text[i].repaired;
        vptq_text_file t;
        vptq_err err = {0};
        assert_fails(open_text(state, text, not_text[i].size, VPTQ_TEXT_UTF8, &t, &err),
                     VPTQ_E_FORMAT, &err, not_text[i].part);
        assert_non_null(strstr(err.text, "/t.txt: byte "));
        assert_non_null(strstr(err.text, "--lossy"));
        assert_ok(open_text(state, text, not_text[i].size, VPTQ_TEXT_LOSSY, &t, &err), &err);
        expect_text(&t, want, strlen(want));
        vptq_text_file_close(&t);
        const size_t mark = strcmp(not_text[i].what, "after a mark") ? 0 : 3;
        assert_ok(open_text(state, text, not_text[i].size, VPTQ_TEXT_JSON, &t, &err), &err);
        expect_text(&t, text + mark, not_text[i].size - mark);
        vptq_text_file_close(&t);
    }
}

/* The sentence says what such a file is. */
static void test_named_kinds(void **state)
{
    static const struct {
        const char *text;
        size_t size;
        const char *part;
    } cases[] = {
        {TEXT("\xff\xfet\0h\0e\0"), "t.txt: looks like UTF-16, expected UTF-8 text; convert"},
        {TEXT("\xfe\xff\0t\0h"), "looks like UTF-16"},
        {TEXT("t\0h\0e\0"), "looks like UTF-16"},
        {TEXT("\0t\0h\0e"), "looks like UTF-16"},
        {TEXT("GGUF\3\0\0\0"), "t.txt: is a GGUF file, expected UTF-8 text"},
        {TEXT("PK\3\4\x14\0\0\0\0\0"), "is a zip file"},
        {TEXT("PAR1\x15\0\x15"), "is a Parquet file"},
        {TEXT("\xfd"
              "7zXZ\0\0"),
         "is compressed with xz"},
        {TEXT("BZh91AY&SY\xff"), "is compressed with bzip2"},
        {TEXT("\x40\0\0\0\0\0\0\0{\"a\":{}}"), "is a safetensors file"},
        {TEXT("\0\0\0\0\0\0\0\0"), "byte 0 is zero"},
        {TEXT("\0a\0"), "byte 0 is zero"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        vptq_text_file t;
        vptq_err err = {0};
        assert_fails(open_text(state, cases[i].text, cases[i].size, VPTQ_TEXT_UTF8, &t, &err),
                     VPTQ_E_FORMAT, &err, cases[i].part);
        if (i < 2) /* nothing repairs or parses these */
            for (int kind = VPTQ_TEXT_LOSSY; kind <= VPTQ_TEXT_JSON; kind++)
                assert_fails(open_text(state, cases[i].text, cases[i].size,
                                       (vptq_text_kind)kind, &t, &err),
                             VPTQ_E_FORMAT, &err, cases[i].part);
    }
}

static void count_log(void *user, vptq_log_level level, const char *text)
{
    assert_int_equal(level, VPTQ_LOG_WARN);
    assert_non_null(strstr(text, "t.txt: replaced 3 parts that are not UTF-8 with U+FFFD"));
    ++*(int *)user;
}

/* A repair is logged once per context. */
static void test_repair_is_logged(void **state)
{
    char path[4096];
    int logged = 0;
    struct vptq_text_input *inputs = NULL;
    const vptq_ctx ctx = {.threads = 1, .log = count_log, .user = &logged, .inputs = &inputs};
    vptq_err err = {0};
    vtest_path(path, sizeof path, *state, "t.txt");
    vtest_write_file(path, TEXT("\xff x \xe2\x82 y \0"));
    for (int i = 0; i < 2; i++) {
        vptq_text_file t;
        assert_ok(vptq_text_file_open(&ctx, path, VPTQ_TEXT_LOSSY, SIZE_MAX, &t, &err), &err);
        expect_text(&t, TEXT(FFFD " x " FFFD " y " FFFD));
        vptq_text_file_close(&t);
    }
    assert_int_equal(logged, 1);
    vptq_text_inputs_free(NULL, &inputs);
    assert_null(inputs);
}

/* ---- compression ---- */

static size_t gzip(const void *data, size_t size, uint8_t *out, size_t room)
{
    z_stream z = {.next_in = NULL};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY),
                     Z_OK);
    union {
        const void *in;
        Bytef *out;
    } from = {.in = data};
    z.next_in = from.out;
    z.avail_in = (uInt)size;
    z.next_out = out;
    z.avail_out = (uInt)room;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    const size_t n = z.total_out;
    deflateEnd(&z);
    return n;
}

static size_t zstd(const void *data, size_t size, uint8_t *out, size_t room)
{
    const size_t n = ZSTD_compress(out, room, data, size, 3);
    assert_false(ZSTD_isError(n));
    return n;
}

typedef size_t (*compress_fn)(const void *data, size_t size, uint8_t *out, size_t room);
static const struct {
    compress_fn compress;
    const char *name;
} formats[] = {{gzip, "gzip"}, {zstd, "zstd"}};
enum { FORMATS = 2, LENGTH = 300000, ROOM = 1 << 20 };

/* A text of several pieces, with lines that compress and lines that do not. */
static char *long_text(void)
{
    char *text = vtest_alloc(LENGTH, 1);
    uint32_t x = 1;
    for (size_t i = 0; i < LENGTH; i++) {
        x = x * 1664525 + 1013904223;
        text[i] = i % 64 == 63 ? '\n' : i & 0x8000 ? 'a' : (char)(' ' + (x >> 24) % 90);
    }
    return text;
}

static void test_compressed(void **state)
{
    char *text = long_text();
    uint8_t *packed = vtest_alloc(ROOM, 1);
    for (int f = 0; f < FORMATS; f++) {
        vptq_err err = {0};
        vptq_text_file t;
        /* one member, two, and empty ones between */
        size_t n = formats[f].compress(text, LENGTH, packed, ROOM);
        assert_ok(open_text(state, packed, n, VPTQ_TEXT_UTF8, &t, &err), &err);
        expect_text(&t, text, LENGTH);
        vptq_text_file_close(&t);
        n = formats[f].compress(text, 1000, packed, ROOM);
        n += formats[f].compress("", 0, packed + n, ROOM - n);
        n += formats[f].compress(text + 1000, LENGTH - 1000, packed + n, ROOM - n);
        n += formats[f].compress("", 0, packed + n, ROOM - n);
        for (int kind = VPTQ_TEXT_UTF8; kind <= VPTQ_TEXT_JSON; kind++) {
            assert_ok(open_text(state, packed, n, (vptq_text_kind)kind, &t, &err), &err);
            expect_text(&t, text, LENGTH);
            vptq_text_file_close(&t);
        }
        assert_ok(open_text(state, packed, n, VPTQ_TEXT_BYTES, &t, &err), &err);
        expect_text(&t, packed, n);
        vptq_text_file_close(&t);
        n = formats[f].compress("", 0, packed, ROOM);
        assert_ok(open_text(state, packed, n, VPTQ_TEXT_UTF8, &t, &err), &err);
        expect_text(&t, "", 0);
        vptq_text_file_close(&t);
    }
    free(packed);
    free(text);
}

/* Marks and offsets are those of the decompressed text. */
static void test_compressed_bytes(void **state)
{
    uint8_t packed[256];
    for (int f = 0; f < FORMATS; f++) {
        vptq_err err = {0};
        vptq_text_file t;
        size_t n = formats[f].compress(TEXT("\xef\xbb\xbf"
                                            "abc\xff"),
                                       packed, sizeof packed);
        assert_fails(open_text(state, packed, n, VPTQ_TEXT_UTF8, &t, &err), VPTQ_E_FORMAT, &err,
                     "t.txt: byte 6 of the decompressed text (0xff) is not UTF-8");
        assert_ok(open_text(state, packed, n, VPTQ_TEXT_LOSSY, &t, &err), &err);
        expect_text(&t, TEXT("abc" FFFD));
        vptq_text_file_close(&t);
        n = formats[f].compress(TEXT("abcd\0"), packed, sizeof packed);
        assert_fails(open_text(state, packed, n, VPTQ_TEXT_UTF8, &t, &err), VPTQ_E_FORMAT, &err,
                     "byte 4 of the decompressed text is zero");
    }
}

/* Every cut is noticed, and every change of a byte that matters. */
static void test_damaged(void **state)
{
    static const char text[] = "Once upon a time there was a time upon a time.\n";
    uint8_t packed[256];
    for (int f = 0; f < FORMATS; f++) {
        char part[64];
        vptq_err err = {0};
        vptq_text_file t;
        const size_t n = formats[f].compress(TEXT(text), packed, sizeof packed);
        snprintf(part, sizeof part, "/t.txt: the %s data is incomplete", formats[f].name);
        for (size_t cut = 4; cut < n; cut++)
            assert_fails(open_text(state, packed, cut, VPTQ_TEXT_UTF8, &t, &err),
                         VPTQ_E_CHECKSUM, &err, part);
        snprintf(part, sizeof part, "/t.txt: the %s data is damaged: ", formats[f].name);
        packed[n] = 'x'; /* something after the end */
        memset(packed + n, 'x', 16);
        assert_fails(open_text(state, packed, n + 16, VPTQ_TEXT_UTF8, &t, &err),
                     VPTQ_E_CHECKSUM, &err, part);
    }
    vptq_err err = {0};
    vptq_text_file t;
    const size_t n = gzip(TEXT(text), packed, sizeof packed);
    packed[n - 8] ^= 1; /* the checksum */
    assert_fails(open_text(state, packed, n, VPTQ_TEXT_UTF8, &t, &err), VPTQ_E_CHECKSUM, &err,
                 "the gzip data is damaged: incorrect data check");
}

/* A limit holds while data is decompressed. */
static void test_limit(void **state)
{
    enum { BOMB = 64 << 20, LIMIT = 100000 };
    char *zeros = vtest_alloc(BOMB, 1), path[4096];
    uint8_t *packed = vtest_alloc(ROOM, 1);
    vptq_mem mem;
    vptq_err err = {0};
    vptq_text_file t;
    memset(zeros, ' ', BOMB);
    vtest_path(path, sizeof path, *state, "t.txt");
    for (int f = 0; f < FORMATS + 1; f++) {
        vptq_mem_init(&mem, 0);
        const vptq_ctx ctx = {.mem = &mem, .threads = 1};
        for (size_t more = 0; more < 2; more++) {
            const size_t size = more && f < FORMATS ? (size_t)BOMB : (size_t)LIMIT + more;
            const size_t n =
                f < FORMATS ? formats[f].compress(zeros, size, packed, ROOM) : size;
            vtest_write_file(path, f < FORMATS ? (const void *)packed : zeros, n);
            const vptq_text_kind kind = more ? VPTQ_TEXT_UTF8 : VPTQ_TEXT_JSON;
            const vptq_status st = vptq_text_file_open(&ctx, path, kind, LIMIT, &t, &err);
            if (more) {
                assert_fails(st, VPTQ_E_FORMAT, &err,
                             "t.txt' has more than the 100000 bytes expected");
            } else {
                assert_ok(st, &err);
                assert_int_equal(t.size, LIMIT);
                vptq_text_file_close(&t);
            }
        }
        assert_int_equal(mem.used, 0);
        assert_true(mem.peak < 8 * (size_t)LIMIT);
    }
    free(packed);
    free(zeros);
}

/* A small file cannot fill the memory. */
static void test_ratio(void **state)
{
    enum { BOMB = 32 << 20 };
    char *zeros = vtest_alloc(BOMB, 1), path[4096];
    uint8_t *packed = vtest_alloc(ROOM, 1);
    memset(zeros, ' ', BOMB);
    vtest_path(path, sizeof path, *state, "t.txt");
    for (int f = 0; f < FORMATS; f++) {
        vptq_mem mem;
        vptq_mem_init(&mem, 0);
        const vptq_ctx ctx = {.mem = &mem, .threads = 1};
        vptq_err err = {0};
        vptq_text_file t;
        vtest_write_file(path, packed, formats[f].compress(zeros, BOMB, packed, ROOM));
        assert_fails(
            vptq_text_file_open(&ctx, path, VPTQ_TEXT_UTF8, SIZE_MAX, &t, &err), VPTQ_E_FORMAT,
            &err, "t.txt' decompresses to more than 100 times its size; decompress it before");
        assert_true(mem.peak < (size_t)64 << 20);
        vtest_write_file(path, packed, formats[f].compress(zeros, 16 << 20, packed, ROOM));
        assert_ok(vptq_text_file_open(&ctx, path, VPTQ_TEXT_UTF8, SIZE_MAX, &t, &err), &err);
        assert_int_equal(t.size, 16 << 20);
        vptq_text_file_close(&t);
    }
    free(packed);
    free(zeros);
}

/* ---- pipes ---- */

typedef struct pipe_writer {
    pthread_t thread;
    char path[4096];
    const void *data;
    size_t size;
    size_t step; /* bytes per write */
} pipe_writer;

static void *write_pipe(void *arg)
{
    const pipe_writer *w = arg;
    usleep(20000); /* the reader waits for the first writer */
    const int fd = open(w->path, O_WRONLY | O_CLOEXEC);
    for (size_t i = 0; fd >= 0 && i < w->size;) {
        const size_t n = w->size - i < w->step ? w->size - i : w->step;
        const ssize_t done = write(fd, (const char *)w->data + i, n);
        if (done < 0)
            break;
        i += (size_t)done;
        if (i < 4)
            usleep(10000); /* also for the rest of a magic number */
    }
    if (fd >= 0)
        close(fd);
    return NULL;
}

static void start_pipe(pipe_writer *w, void **state, const void *data, size_t size, size_t step)
{
    *w = (pipe_writer){.data = data, .size = size, .step = step};
    vtest_path(w->path, sizeof w->path, *state, "pipe");
    unlink(w->path);
    assert_int_equal(mkfifo(w->path, 0600), 0);
    assert_int_equal(pthread_create(&w->thread, NULL, write_pipe, w), 0);
}

static void test_pipes(void **state)
{
    char *text = long_text();
    uint8_t *packed = vtest_alloc(ROOM, 1);
    for (int f = 0; f < FORMATS + 1; f++) {
        const size_t n =
            f < FORMATS ? formats[f].compress(text, LENGTH, packed, ROOM) : (size_t)LENGTH;
        struct vptq_text_input *inputs = NULL;
        const vptq_ctx ctx = {.threads = 1, .inputs = &inputs};
        pipe_writer w;
        vptq_err err = {0};
        start_pipe(&w, state, f < FORMATS ? (const void *)packed : text, n, f ? 1000 : 1);
        for (int i = 0; i < 2; i++) { /* the second time from memory */
            vptq_text_file t;
            assert_ok(vptq_text_file_open(&ctx, w.path, VPTQ_TEXT_UTF8, SIZE_MAX, &t, &err),
                      &err);
            expect_text(&t, text, LENGTH);
            vptq_text_file_close(&t);
        }
        pthread_join(w.thread, NULL);
        vptq_text_inputs_free(NULL, &inputs);
    }
    free(packed);
    free(text);
}

/* A text of fewer bytes than a magic number, and none. */
static void test_short_pipes(void **state)
{
    for (size_t n = 0; n < 5; n++) {
        pipe_writer w;
        vptq_err err = {0};
        vptq_text_file t;
        start_pipe(&w, state, "abcd", n, 1);
        assert_ok(vptq_text_file_open(&plain, w.path, VPTQ_TEXT_UTF8, SIZE_MAX, &t, &err),
                  &err);
        expect_text(&t, "abcd", n);
        vptq_text_file_close(&t);
        pthread_join(w.thread, NULL);
    }
}

/* A repaired pipe keeps its bytes: the second reader may be a strict one. */
static void test_repaired_pipe(void **state)
{
    struct vptq_text_input *inputs = NULL;
    const vptq_ctx ctx = {.threads = 1, .inputs = &inputs};
    pipe_writer w;
    vptq_err err = {0};
    vptq_text_file t;
    start_pipe(&w, state, "ab\xff", 3, 3);
    assert_ok(vptq_text_file_open(&ctx, w.path, VPTQ_TEXT_LOSSY, SIZE_MAX, &t, &err), &err);
    expect_text(&t, TEXT("ab" FFFD));
    vptq_text_file_close(&t);
    assert_fails(vptq_text_file_open(&ctx, w.path, VPTQ_TEXT_UTF8, SIZE_MAX, &t, &err),
                 VPTQ_E_FORMAT, &err, "pipe: byte 2 (0xff)");
    pthread_join(w.thread, NULL);
    vptq_text_inputs_free(NULL, &inputs);
}

static volatile sig_atomic_t cancel;

static void *raise_cancel(void *arg)
{
    (void)arg;
    usleep(50000);
    cancel = 1;
    return NULL;
}

/* A pipe without a writer waits, until it is cancelled. */
static void test_cancelled(void **state)
{
    char path[4096];
    pthread_t thread;
    vptq_err err = {0};
    vptq_text_file t;
    const vptq_ctx ctx = {.threads = 1, .cancel = &cancel};
    vtest_path(path, sizeof path, *state, "pipe");
    assert_int_equal(mkfifo(path, 0600), 0);
    cancel = 0;
    assert_int_equal(pthread_create(&thread, NULL, raise_cancel, NULL), 0);
    assert_fails(vptq_text_file_open(&ctx, path, VPTQ_TEXT_UTF8, SIZE_MAX, &t, &err),
                 VPTQ_E_CANCELLED, &err, "interrupted");
    pthread_join(thread, NULL);
}

/* "-" is standard input from where it is, also if that is a file. */
static void test_standard_input(void **state)
{
    char path[4096];
    vptq_err err = {0};
    vptq_text_file t;
    vtest_path(path, sizeof path, *state, "t.txt");
    vtest_write_file(path, TEXT("abcdef\xff"));
    const int before = dup(STDIN_FILENO), fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(lseek(fd, 2, SEEK_SET), 2);
    assert_int_equal(dup2(fd, STDIN_FILENO), STDIN_FILENO);
    assert_ok(vptq_text_file_open(&plain, "-", VPTQ_TEXT_LOSSY, SIZE_MAX, &t, &err), &err);
    expect_text(&t, TEXT("cdef" FFFD));
    assert_string_equal(t.name, "standard input");
    vptq_text_file_close(&t);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    assert_fails(vptq_text_file_open(&plain, "-", VPTQ_TEXT_UTF8, SIZE_MAX, &t, &err),
                 VPTQ_E_FORMAT, &err, "standard input: byte 6 (0xff)");
    dup2(before, STDIN_FILENO);
    close(before);
    close(fd);
}

/* ---- files that cannot be read ---- */

static void test_unreadable(void **state)
{
    char path[4096];
    vtest_path(path, sizeof path, *state, "none");
    for (int kind = VPTQ_TEXT_UTF8; kind <= VPTQ_TEXT_BYTES; kind++) {
        vptq_err err = {0};
        vptq_text_file t;
        assert_fails(
            vptq_text_file_open(&plain, path, (vptq_text_kind)kind, SIZE_MAX, &t, &err),
            VPTQ_E_IO, &err, "none': No such file");
        assert_fails(
            vptq_text_file_open(&plain, *state, (vptq_text_kind)kind, SIZE_MAX, &t, &err),
            VPTQ_E_IO, &err, "is a directory");
        assert_fails(
            vptq_text_file_open(&plain, "/dev/zero", (vptq_text_kind)kind, SIZE_MAX, &t, &err),
            VPTQ_E_IO, &err, "/dev/zero': is a device");
    }
}

static vptq_status open_both(void *arg, vptq_mem *mem, vptq_err *err)
{
    struct vptq_text_input *inputs = NULL;
    const vptq_ctx ctx = {.mem = mem, .threads = 1, .inputs = &inputs};
    vptq_text_file t;
    vptq_status st = vptq_text_file_open(&ctx, arg, VPTQ_TEXT_LOSSY, SIZE_MAX, &t, err);
    vptq_text_file_close(&t);
    vptq_text_inputs_free(mem, &inputs);
    return st;
}

static void test_no_memory(void **state)
{
    char path[4096];
    uint8_t packed[64];
    vtest_path(path, sizeof path, *state, "t.txt");
    vtest_write_file(path, packed, gzip(TEXT("ab\xff"), packed, sizeof packed));
    assert_true(vtest_oom_walk(open_both, path) >= 3);
}

/* ---- JSON ---- */

static void test_json(void **state)
{
    char path[4096];
    uint8_t packed[128];
    vptq_err err = {0};
    json_t *value;
    vtest_path(path, sizeof path, *state, "t.json");
    vtest_write_file(path, packed,
                     gzip(TEXT("\xef\xbb\xbf{\"a\": [1]}"), packed, sizeof packed));
    assert_ok(vptq_json_read(&plain, path, 100, &value, &err), &err);
    assert_int_equal(json_array_size(json_object_get(value, "a")), 1);
    json_decref(value);
    assert_fails(vptq_json_read(&plain, path, 3, &value, &err), VPTQ_E_FORMAT, &err,
                 "t.json' has more than the 3 bytes expected");
    vtest_write_file(path, TEXT("{\"a\": \"\xff\"}"));
    assert_fails(vptq_json_read(&plain, path, 100, &value, &err), VPTQ_E_FORMAT, &err,
                 "t.json: line 1, column 7: not valid JSON: unable to decode byte 0xff");
}

/* Repairing takes time in proportion to the text. */
static void test_many_repairs(void **state)
{
    enum { PAIRS = 1 << 21 };
    char *text = malloc(2 * PAIRS);
    vptq_text_file t;
    vptq_err err = {0};
    for (size_t i = 0; i < PAIRS; i++) {
        text[2 * i] = 'a';
        text[2 * i + 1] = '\xe9';
    }
    assert_ok(open_text(state, text, 2 * PAIRS, VPTQ_TEXT_LOSSY, &t, &err), &err);
    assert_int_equal(t.size, 4 * PAIRS);
    assert_memory_equal(t.data + t.size - 8,
                        "a\xef\xbf\xbd"
                        "a\xef\xbf\xbd",
                        8);
    vptq_text_file_close(&t);
    free(text);
}

/* The text that ships with the tools is text, and has every kind in its first half. */
static void test_builtin(void **state)
{
    static const char *const parts[] = {
        "\nUser: ", "\nAssistant: ", "\nstatic ", "\nimport ", "\xe3\x81\xae" /* Japanese */,
        "\xd0\xb8" /* Russian */};
    vptq_text_file t;
    vptq_err err = {0};
    (void)state;
    assert_ok(
        vptq_text_file_open(&plain, VPTQ_BUILTIN_TEXT, VPTQ_TEXT_UTF8, SIZE_MAX, &t, &err),
        &err);
    assert_string_equal(t.name, "the built-in text");
    assert_in_range(t.size, 1200000, 1700000);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_non_null(memmem(t.data, t.size / 2, parts[i], strlen(parts[i])));
    vptq_text_file_close(&t);
    assert_fails(
        vptq_text_file_open(&plain, VPTQ_BUILTIN_TEXT, VPTQ_TEXT_BYTES, SIZE_MAX, &t, &err),
        VPTQ_E_IO, &err, "builtin");
}

VTEST_MAIN(scratch_test(test_builtin), scratch_test(test_many_repairs),
           scratch_test(test_valid), scratch_test(test_not_utf8),
           scratch_test(test_named_kinds), scratch_test(test_repair_is_logged),
           scratch_test(test_compressed), scratch_test(test_compressed_bytes),
           scratch_test(test_damaged), scratch_test(test_limit), scratch_test(test_ratio),
           scratch_test(test_pipes), scratch_test(test_short_pipes),
           scratch_test(test_repaired_pipe), scratch_test(test_cancelled),
           scratch_test(test_standard_input), scratch_test(test_unreadable),
           scratch_test(test_no_memory), scratch_test(test_json))
