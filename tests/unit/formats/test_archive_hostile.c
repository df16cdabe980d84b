/* Tests hostile .vptq archives, made byte by byte after docs/formats.md. */
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "formats/vptq/archive_internal.h"
#include "tests/support/vtest.h"

typedef struct hand_made {
    uint8_t bytes[4096], index[1024];
    size_t size, index_size;
    uint8_t *frame, *entry; /* the only records, in index */
} hand_made;

/* Compresses a frame with its size and a checksum. */
static size_t pack(void *dst, size_t size, const void *src, size_t n, bool checksum)
{
    ZSTD_CCtx *zstd = ZSTD_createCCtx();
    assert_non_null(zstd);
    ZSTD_CCtx_setParameter(zstd, ZSTD_c_checksumFlag, checksum);
    size_t packed = ZSTD_compress2(zstd, dst, size, src, n);
    assert_false(ZSTD_isError(packed));
    ZSTD_freeCCtx(zstd);
    return packed;
}

/* Frame and index of a file "NOTICE" of 5 bytes. */
static void begin_with(hand_made *h, bool checksum)
{
    memset(h, 0, sizeof *h);
    memcpy(h->bytes, VPTQ_ARCHIVE_MAGIC, 8);
    h->bytes[8] = 2;
    size_t n = pack(h->bytes + 16, 1024, "hello", 5, checksum);
    h->size = 16 + n;
    h->index[0] = 1; /* frames */
    h->index[4] = 1; /* entries */
    h->frame = h->index + 8;
    h->frame[0] = 16;
    vptq_put_le(h->frame + 8, n, 4);
    vptq_put_le(h->frame + 12, 5, 4);
    vptq_put_le(h->frame + 16, vptq_hash(h->bytes + 16, n, 0), 8);
    h->entry = h->index + 32;
    h->entry[1] = 1;  /* planes */
    h->entry[4] = 6;  /* name length */
    h->entry[12] = 1; /* frames */
    h->entry[16] = 5; /* size */
    memcpy(h->entry + 32, "NOTICE", 6);
    h->index_size = 32 + 40;
}

static void begin(hand_made *h)
{
    begin_with(h, true);
}

/* Appends index and footer to the `size` bytes at `file`, which has space for `max_packed`
 * bytes of packed index.  Returns the size of the file. */
static size_t put_end(uint8_t *file, size_t size, size_t max_packed, const uint8_t *index,
                      size_t index_size)
{
    uint8_t hashed[48];
    size_t n = pack(file + size, max_packed, index, index_size, true);
    uint8_t *footer = file + size + n;
    vptq_put_le(footer, size, 8);
    vptq_put_le(footer + 8, n, 8);
    vptq_put_le(footer + 16, index_size, 8);
    vptq_put_le(footer + 24, vptq_hash(file + size, n, 0), 8);
    memcpy(hashed, file, 16);
    memcpy(hashed + 16, footer, 32);
    vptq_put_le(footer + 32, vptq_hash(hashed, 48, 0), 8);
    memcpy(footer + 40, VPTQ_ARCHIVE_END_MAGIC, 8);
    return size + n + 48;
}

static void finish(hand_made *h, const char *path)
{
    h->size = put_end(h->bytes, h->size, 2048, h->index, h->index_size);
    vtest_write_file(path, h->bytes, h->size);
}

static void test_hand_made(void **state)
{
    hand_made h;
    char path[4096], copy[6] = {0};
    vptq_err err = {0};
    vptq_archive *a = NULL;
    vtest_path(path, sizeof path, *state, "a.vptq");
    begin(&h);
    finish(&h, path);
    assert_ok(vptq_archive_open(path, NULL, &a, &err), &err);
    assert_ok(vptq_archive_load(a, vptq_archive_find(a, "NOTICE", false), 1, copy, &err), &err);
    assert_string_equal(copy, "hello");
    vptq_archive_close(a);
}

/* A change to a hand-made archive and the error it must cause. */
typedef struct index_fault {
    enum { FILE_BYTES, INDEX_BYTES, FRAME_RECORD, ENTRY_RECORD } where;
    size_t offset, width; /* width 0: the part grows by `value` bytes */
    uint64_t value;
    const char *expect;
    const char *type; /* makes the entry a tensor of this type */
    vptq_status code; /* 0 = VPTQ_E_FORMAT */
} index_fault;

static const index_fault index_faults[] = {
    {FILE_BYTES, 8, 1, 3, .expect = "archive version 3, expected 2",
     .code = VPTQ_E_UNSUPPORTED},
    {INDEX_BYTES, 3, 1, 0xff, .expect = "index is truncated"}, /* four billion frames */
    {INDEX_BYTES, 7, 1, 0xff, .expect = "index is truncated"},
    {FRAME_RECORD, 0, 1, 17, .expect = "does not begin where the previous one ends"},
    {FRAME_RECORD, 11, 1, 0x7f, .expect = "does not begin where the previous one ends"},
    {FRAME_RECORD, 8, 4, 0, .expect = "size of a frame is wrong"},
    {FRAME_RECORD, 12, 4, VPTQ_ARCHIVE_FRAME_RAW + 1, .expect = "size of a frame is wrong"},
    {FILE_BYTES, 0, 0, 1, .expect = "do not reach the index"}, /* a byte outside all frames */
    {INDEX_BYTES, 0, 0, 8, .expect = "does not end with its last entry"},
    {ENTRY_RECORD, 0, 1, 2, .expect = "entry of its index is wrong"},
    {ENTRY_RECORD, 3, 1, 1, .expect = "entry of its index is wrong"},
    {ENTRY_RECORD, 24, 1, 'F', .expect = "index entry are not zero"}, /* a file has no type */
    {ENTRY_RECORD, 39, 1, 1, .expect = "index entry are not zero"},   /* after the name */
    {FILE_BYTES, 12, 1, 1, .expect = "header are not zero"},
    {ENTRY_RECORD, 1, 1, 3, .expect = "byte planes"},
    {ENTRY_RECORD, 1, 1, 2, .expect = "byte planes"}, /* 5 bytes are not whole pairs */
    {ENTRY_RECORD, 4, 1, 200, .expect = "truncated"},
    {ENTRY_RECORD, 8, 1, 1, .expect = "frames of an entry"},
    {ENTRY_RECORD, 12, 1, 2, .expect = "frames of an entry"},
    {ENTRY_RECORD, 16, 1, 4, .expect = "sizes of an entry's frames"},
    {ENTRY_RECORD, 22, 1, 1, .expect = "frames of an entry"}, /* 2^48 bytes */
    {ENTRY_RECORD, 32, 1, '/', .expect = "does not belong in an archive"},
    {ENTRY_RECORD, 0, 1, 1, .expect = "F99", .type = "F99", .code = VPTQ_E_UNSUPPORTED},
    /* a scalar of 5 bytes */
    {ENTRY_RECORD, 0, 1, 1, .expect = "does not match its type and shape", .type = "F32"},
    /* a part of a block, and blocks that archives do not have */
    {ENTRY_RECORD, 0, 1, 1, .expect = "does not match its type and shape", .type = "Q8_0"},
    {ENTRY_RECORD, 0, 1, 1, .expect = "does not match its type and shape", .type = "Q6_K"},
    {ENTRY_RECORD, 0, 1, 1, .expect = "unknown element type 'Q4_0'", .type = "Q4_0",
     .code = VPTQ_E_UNSUPPORTED},
    /* nine dimensions */
    {ENTRY_RECORD, 2, 1, 9, .expect = "entry of its index is wrong", .type = ""},
};

static void plant_fault(hand_made *h, const index_fault *f)
{
    uint8_t *const parts[] = {h->bytes, h->index, h->frame, h->entry};
    if (f->width)
        vptq_put_le(parts[f->where] + f->offset, f->value, (unsigned)f->width);
    else if (f->where == FILE_BYTES)
        h->size += f->value;
    else
        h->index_size += f->value;
    if (f->type) {
        h->entry[0] = 1;
        memcpy(h->entry + 24, f->type, strlen(f->type));
    }
}

static void test_bad_index(void **state)
{
    char path[4096];
    vtest_path(path, sizeof path, *state, "a.vptq");
    for (size_t i = 0; i < sizeof index_faults / sizeof index_faults[0]; i++) {
        const index_fault *f = &index_faults[i];
        hand_made h;
        vptq_archive *a = NULL;
        vptq_err err = {0};
        begin(&h);
        plant_fault(&h, f);
        finish(&h, path);
        assert_fails(vptq_archive_open(path, NULL, &a, &err), f->code ? f->code : VPTQ_E_FORMAT,
                     &err, f->expect);
    }
}

static void expect_bad_frame(hand_made *h, const char *path)
{
    vptq_archive *a = NULL;
    vptq_err err = {0};
    char copy[16];
    finish(h, path);
    assert_ok(vptq_archive_open(path, NULL, &a, &err), &err);
    assert_fails(vptq_archive_load(a, vptq_archive_at(a, 0), 1, copy, &err), VPTQ_E_CHECKSUM,
                 &err, "file 'NOTICE' is damaged: frame 1 of 1 does not match its record");
    vptq_archive_close(a);
}

/* Extends the frame to the end of the file and gives it the right checksum. */
static void seal_frame(hand_made *h)
{
    vptq_put_le(h->frame + 8, h->size - 16, 4);
    vptq_put_le(h->frame + 16, vptq_hash(h->bytes + 16, h->size - 16, 0), 8);
}

/* Frames that violate the format but have the right checksum. */
static void test_bad_frames(void **state)
{
    hand_made h;
    char path[4096];
    vtest_path(path, sizeof path, *state, "a.vptq");
    begin_with(&h, false);
    expect_bad_frame(&h, path);
    begin(&h);
    h.frame[12] = h.entry[16] = 6; /* zstd's own header says 5 */
    expect_bad_frame(&h, path);
    begin(&h); /* two zstd frames in one */
    h.size += pack(h.bytes + h.size, 1024, "", 0, true);
    seal_frame(&h);
    expect_bad_frame(&h, path);
    begin(&h); /* zstd's checksum of other data */
    h.bytes[h.size - 1] ^= 1;
    seal_frame(&h);
    expect_bad_frame(&h, path);
    begin(&h);
    memset(h.bytes + 16, 0x55, h.size - 16); /* not zstd data */
    seal_frame(&h);
    expect_bad_frame(&h, path);
}

/* Frames of zeros are tiny: an archive of almost nothing else is refused before the claimed
 * size is allocated. */
static void test_compression_bomb(void **state)
{
    enum { FRAMES = 100 };
    uint8_t *zeros = calloc(VPTQ_ARCHIVE_FRAME_RAW, 1), *index, packed[1024];
    char path[4096];
    vptq_err err = {0};
    vptq_archive *a = NULL;
    size_t n = ZSTD_compress(packed, sizeof packed, zeros, VPTQ_ARCHIVE_FRAME_RAW, 1);
    size_t index_size = 8 + FRAMES * 24 + 40;
    index = calloc(index_size, 1);
    uint8_t *file = calloc(16 + FRAMES * n + 65536, 1);
    assert_true(!ZSTD_isError(n) && zeros && index && file);
    memcpy(file, VPTQ_ARCHIVE_MAGIC, 8);
    file[8] = 2;
    vptq_put_le(index, FRAMES, 4);
    index[4] = 1;
    for (size_t i = 0; i < FRAMES; i++) {
        uint8_t *r = index + 8 + i * 24;
        memcpy(file + 16 + i * n, packed, n);
        vptq_put_le(r, 16 + i * n, 8);
        vptq_put_le(r + 8, n, 4);
        vptq_put_le(r + 12, VPTQ_ARCHIVE_FRAME_RAW, 4);
        vptq_put_le(r + 16, vptq_hash(packed, n, 0), 8);
    }
    uint8_t *e = index + 8 + FRAMES * 24;
    e[1] = 1;
    e[4] = 6;
    vptq_put_le(e + 12, FRAMES, 4);
    vptq_put_le(e + 16, (uint64_t)FRAMES * VPTQ_ARCHIVE_FRAME_RAW, 8);
    memcpy(e + 32, "NOTICE", 6);
    size_t size = put_end(file, 16 + FRAMES * n, 60000, index, index_size);
    vtest_path(path, sizeof path, *state, "a.vptq");
    vtest_write_file(path, file, size);
    assert_fails(vptq_archive_open(path, NULL, &a, &err), VPTQ_E_FORMAT, &err,
                 "would unpack to 419430400");
    free(file);
    free(index);
    free(zeros);
}

VTEST_MAIN(scratch_test(test_hand_made), scratch_test(test_bad_frames),
           scratch_test(test_bad_index), scratch_test(test_compression_bomb))
