/* Writes .vptq archives.  Frames are compressed in batches with one zstd context per slot of
 * the batch, so that the bytes do not depend on the number of threads. */
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "formats/vptq/archive_internal.h"
#include "lib/base/buf.h"
#include "lib/base/parallel.h"

enum { MAX_BATCH = 64, INDEX_LEVEL = 3 };

/* One frame of the batch; raw_size > 0 until it is compressed. */
typedef struct slot {
    ZSTD_CCtx *zstd;
    uint8_t *raw, *planes;        /* FRAME_RAW bytes each */
    uint8_t *packed;              /* FRAME_PACKED bytes */
    size_t raw_size, packed_size; /* packed_size: a zstd error code on failure */
    uint64_t hash;
} slot;

struct vptq_archive_writer {
    vptq_mem *mem;
    vptq_file_writer file;
    vptq_arena arena;         /* names */
    vptq_strmap names[2];     /* by kind */
    vptq_buf frames, entries; /* index records in file form */
    uint32_t frame_count, entry_count;
    slot slots[MAX_BATCH];
    int slot_count, batch; /* allocated slots; slots compressed at a time */
    /* the entry being written */
    vptq_tensor entry; /* its name is in the arena */
    int kind, level;
    size_t planes, left; /* left: bytes not written yet */
    uint32_t first_frame;
    int filled; /* slots of the batch with a whole frame */
};

static void free_slots(vptq_archive_writer *w)
{
    for (int i = 0; i < w->slot_count; i++) {
        ZSTD_freeCCtx(w->slots[i].zstd);
        vptq_mem_free(w->mem, w->slots[i].raw);
        vptq_mem_free(w->mem, w->slots[i].planes);
        vptq_mem_free(w->mem, w->slots[i].packed);
    }
    w->slot_count = 0;
}

void vptq_archive_writer_abort(vptq_archive_writer *w)
{
    if (!w)
        return;
    free_slots(w);
    vptq_file_writer_abort(&w->file);
    vptq_buf_release(&w->frames);
    vptq_buf_release(&w->entries);
    vptq_strmap_release(&w->names[0]);
    vptq_strmap_release(&w->names[1]);
    vptq_arena_release(&w->arena);
    vptq_mem_free(w->mem, w);
}

static void make_header(uint8_t header[VPTQ_ARCHIVE_HEADER_BYTES])
{
    memset(header, 0, VPTQ_ARCHIVE_HEADER_BYTES);
    memcpy(header, VPTQ_ARCHIVE_MAGIC, VPTQ_ARCHIVE_MAGIC_BYTES);
    vptq_put_le(header + VPTQ_ARCHIVE_MAGIC_BYTES, VPTQ_ARCHIVE_VERSION, 4);
}

vptq_status vptq_archive_writer_open(const char *path, bool force, int threads, vptq_mem *mem,
                                     vptq_archive_writer **out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_archive_writer *w = vptq_mem_alloc(mem, 1, sizeof *w, err);
    if (!w)
        return VPTQ_E_NOMEM;
    memset(w, 0, sizeof *w);
    w->mem = mem;
    w->file.fd = -1;
    w->batch = threads < 1 ? 1 : threads > MAX_BATCH ? MAX_BATCH : threads;
    vptq_arena_init(&w->arena, mem);
    vptq_buf_init(&w->frames, mem);
    vptq_buf_init(&w->entries, mem);
    uint8_t header[VPTQ_ARCHIVE_HEADER_BYTES];
    make_header(header);
    VPTQ_TRY(vptq_strmap_init(&w->names[0], mem, 0, err));
    VPTQ_TRY(vptq_strmap_init(&w->names[1], mem, 0, err));
    VPTQ_TRY(vptq_file_writer_open(path, force, &w->file, err));
    VPTQ_TRY(vptq_file_write(&w->file, header, sizeof header, err));
    *out = w;
out:
    if (st)
        vptq_archive_writer_abort(w);
    return st;
}

/* ---- frames ---- */

static vptq_status no_memory(const vptq_archive_writer *w, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_NOMEM, "%s: out of memory for compression", w->file.path);
}

static vptq_status compression_failed(const vptq_archive_writer *w, size_t code, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_NOMEM, "%s: compression failed: %s", w->file.path,
                     ZSTD_getErrorName(code));
}

static vptq_status set_level(const vptq_archive_writer *w, ZSTD_CCtx *zstd, int level,
                             vptq_err *err)
{
    return ZSTD_isError(ZSTD_CCtx_setParameter(zstd, ZSTD_c_compressionLevel, level))
               ? no_memory(w, err)
               : VPTQ_OK;
}

static vptq_status add_slot(vptq_archive_writer *w, vptq_err *err)
{
    slot *s = &w->slots[w->slot_count++];
    *s = (slot){.zstd = ZSTD_createCCtx()};
    if (!s->zstd || ZSTD_isError(ZSTD_CCtx_setParameter(s->zstd, ZSTD_c_checksumFlag, 1)))
        return no_memory(w, err);
    s->raw = vptq_mem_alloc(w->mem, VPTQ_ARCHIVE_FRAME_RAW, 1, err);
    s->planes = vptq_mem_alloc(w->mem, VPTQ_ARCHIVE_FRAME_RAW, 1, err);
    s->packed = vptq_mem_alloc(w->mem, VPTQ_ARCHIVE_FRAME_PACKED, 1, err);
    return s->raw && s->planes && s->packed ? VPTQ_OK : VPTQ_E_NOMEM;
}

static void split_planes(const uint8_t *src, size_t n, size_t planes, uint8_t *dst)
{
    size_t count = n / planes;
    for (size_t p = 0; p < planes; p++)
        for (size_t e = 0; e < count; e++)
            dst[p * count + e] = src[e * planes + p];
}

static void compress_frames(void *arg, size_t begin, size_t end, int thread)
{
    (void)thread;
    vptq_archive_writer *w = arg;
    for (size_t i = begin; i < end; i++) {
        slot *s = &w->slots[i];
        const uint8_t *src = s->raw;
        if (w->planes > 1) {
            split_planes(s->raw, s->raw_size, w->planes, s->planes);
            src = s->planes;
        }
        s->packed_size =
            ZSTD_compress2(s->zstd, s->packed, VPTQ_ARCHIVE_FRAME_PACKED, src, s->raw_size);
        if (!ZSTD_isError(s->packed_size))
            s->hash = vptq_hash(s->packed, s->packed_size, 0);
    }
}

static vptq_status write_frame(vptq_archive_writer *w, const slot *s, vptq_err *err)
{
    if (ZSTD_isError(s->packed_size))
        return compression_failed(w, s->packed_size, err);
    uint8_t record[VPTQ_ARCHIVE_FRAME_BYTES];
    vptq_put_le(record, w->file.written, 8);
    vptq_put_le(record + 8, s->packed_size, 4);
    vptq_put_le(record + 12, s->raw_size, 4);
    vptq_put_le(record + 16, s->hash, 8);
    VPTQ_CHECK(vptq_buf_add(&w->frames, record, sizeof record, err));
    VPTQ_CHECK(vptq_file_write(&w->file, s->packed, s->packed_size, err));
    w->frame_count++;
    return VPTQ_OK;
}

static vptq_status flush_batch(vptq_archive_writer *w, vptq_err *err)
{
    for (int i = 0; i < w->filled; i++)
        VPTQ_CHECK(set_level(w, w->slots[i].zstd, w->level, err));
    vptq_parallel_for(w->batch, (size_t)w->filled, 1, compress_frames, w);
    for (int i = 0; i < w->filled; i++)
        VPTQ_CHECK(write_frame(w, &w->slots[i], err));
    w->filled = 0;
    return VPTQ_OK;
}

/* ---- entries ---- */

static vptq_status set_name(vptq_archive_writer *w, const char *name, int kind, vptq_err *err)
{
    size_t len = strlen(name);
    bool fresh = false;
    if (kind == VPTQ_ARCHIVE_TENSOR ? !vptq_archive_tensor_ok(name, len)
                                    : !vptq_companion_ok(name))
        return vptq_fail(err, VPTQ_E_UNSUPPORTED, "%s: '%.100s' is not a valid entry name",
                         w->file.path, name);
    w->entry.name = vptq_arena_strndup(&w->arena, name, len, err);
    if (!w->entry.name)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(vptq_strmap_add(&w->names[kind], w->entry.name, len, 0, &fresh, err));
    if (!fresh)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED, "%s: duplicate entry '%.100s'", w->file.path,
                         name);
    return VPTQ_OK;
}

static vptq_status begin_entry(vptq_archive_writer *w, int kind, const vptq_tensor *t,
                               size_t planes, int level, vptq_err *err)
{
    VPTQ_BUG_IF(w->left || level < 1 || level > VPTQ_ARCHIVE_MAX_LEVEL);
    w->entry = *t;
    w->kind = kind;
    w->planes = planes;
    w->level = level;
    w->first_frame = w->frame_count;
    VPTQ_CHECK(set_name(w, t->name, kind, err));
    w->left = t->bytes;
    return VPTQ_OK;
}

vptq_status vptq_archive_put(vptq_archive_writer *w, const void *data, size_t n, vptq_err *err)
{
    const uint8_t *p = data;
    VPTQ_BUG_IF(n > w->left);
    while (n) {
        if (w->filled == w->slot_count)
            VPTQ_CHECK(add_slot(w, err));
        slot *s = &w->slots[w->filled];
        size_t space = VPTQ_ARCHIVE_FRAME_RAW - s->raw_size, part = n < space ? n : space;
        memcpy(s->raw + s->raw_size, p, part);
        s->raw_size += part;
        w->left -= part;
        p += part;
        n -= part;
        if (s->raw_size < VPTQ_ARCHIVE_FRAME_RAW && w->left)
            continue; /* the frame is not full yet */
        w->filled++;
        if (w->filled == w->batch || w->left == 0)
            VPTQ_CHECK(flush_batch(w, err));
        if (w->filled < w->slot_count)
            w->slots[w->filled].raw_size = 0;
    }
    return VPTQ_OK;
}

vptq_status vptq_archive_end(vptq_archive_writer *w, vptq_err *err)
{
    const vptq_tensor *t = &w->entry;
    size_t name_len = strlen(t->name);
    VPTQ_BUG_IF(w->left);
    uint8_t head[VPTQ_ARCHIVE_ENTRY_BYTES] = {(uint8_t)w->kind, (uint8_t)w->planes,
                                              (uint8_t)t->dims, 0};
    vptq_put_le(head + 4, name_len, 4);
    vptq_put_le(head + 8, w->first_frame, 4);
    vptq_put_le(head + 12, w->frame_count - w->first_frame, 4);
    vptq_put_le(head + 16, t->bytes, 8);
    if (w->kind == VPTQ_ARCHIVE_TENSOR) {
        const char *type = vptq_dtype_get(t->type)->name;
        memcpy(head + 24, type, strlen(type));
    }
    VPTQ_CHECK(vptq_buf_add(&w->entries, head, sizeof head, err));
    for (uint32_t i = 0; i < t->dims; i++) {
        uint8_t size[8];
        vptq_put_le(size, t->shape[i], 8);
        VPTQ_CHECK(vptq_buf_add(&w->entries, size, sizeof size, err));
    }
    VPTQ_CHECK(vptq_buf_add(&w->entries, t->name, name_len, err));
    VPTQ_CHECK(vptq_buf_add(&w->entries, "\0\0\0\0\0\0\0", (8 - name_len % 8) % 8, err));
    w->entry_count++;
    return VPTQ_OK;
}

uint64_t vptq_archive_written(const vptq_archive_writer *w)
{
    return w->file.written;
}

vptq_status vptq_archive_add_file(vptq_archive_writer *w, const char *name, const void *data,
                                  size_t n, int level, vptq_err *err)
{
    vptq_tensor t = {.name = name, .bytes = n};
    VPTQ_CHECK(begin_entry(w, VPTQ_ARCHIVE_FILE, &t, 1, level, err));
    VPTQ_CHECK(vptq_archive_put(w, data, n, err));
    return vptq_archive_end(w, err);
}

vptq_status vptq_archive_begin_tensor(vptq_archive_writer *w, const vptq_tensor *t, int level,
                                      vptq_err *err)
{
    const vptq_dtype_info *info = vptq_dtype_get(t->type);
    VPTQ_BUG_IF(!vptq_archive_stores(t->type));
    /* exponents of neighbours are alike and compress well side by side, packed indices and
     * blocks do not */
    const bool split = info->is_float && info->block == 1;
    return begin_entry(w, VPTQ_ARCHIVE_TENSOR, t, split ? info->bytes : 1, level, err);
}

/* ---- index ---- */

static vptq_status write_index(vptq_archive_writer *w, const vptq_buf *raw,
                               uint8_t footer[VPTQ_ARCHIVE_FOOTER_BYTES], vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    size_t bound = ZSTD_compressBound(raw->len);
    uint8_t *packed = vptq_mem_alloc(w->mem, bound, 1, err);
    if (!packed)
        return VPTQ_E_NOMEM;
    if (w->slot_count == 0)
        VPTQ_TRY(add_slot(w, err));
    VPTQ_TRY(set_level(w, w->slots[0].zstd, INDEX_LEVEL, err));
    size_t n = ZSTD_compress2(w->slots[0].zstd, packed, bound, raw->data, raw->len);
    if (ZSTD_isError(n))
        VPTQ_TRY(compression_failed(w, n, err));
    vptq_put_le(footer, w->file.written, 8);
    vptq_put_le(footer + 8, n, 8);
    vptq_put_le(footer + 16, raw->len, 8);
    vptq_put_le(footer + 24, vptq_hash(packed, n, 0), 8);
    VPTQ_TRY(vptq_file_write(&w->file, packed, n, err));
out:
    vptq_mem_free(w->mem, packed);
    return st;
}

vptq_status vptq_archive_writer_commit(vptq_archive_writer *w, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_buf raw;
    vptq_buf_init(&raw, w->mem);
    uint8_t counts[8], footer[VPTQ_ARCHIVE_FOOTER_BYTES];
    uint8_t hashed[VPTQ_ARCHIVE_HEADER_BYTES + VPTQ_ARCHIVE_FOOTER_HASHED];
    vptq_put_le(counts, w->frame_count, 4);
    vptq_put_le(counts + 4, w->entry_count, 4);
    VPTQ_TRY(vptq_buf_add(&raw, counts, sizeof counts, err));
    VPTQ_TRY(vptq_buf_add(&raw, w->frames.data, w->frames.len, err));
    VPTQ_TRY(vptq_buf_add(&raw, w->entries.data, w->entries.len, err));
    if (raw.len > VPTQ_ARCHIVE_INDEX_MAX)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_UNSUPPORTED,
                           "%s: %u entries in %u frames need an index of %zu bytes; the format "
                           "allows %d",
                           w->file.path, (unsigned)w->entry_count, (unsigned)w->frame_count,
                           raw.len, (int)VPTQ_ARCHIVE_INDEX_MAX));
    VPTQ_TRY(write_index(w, &raw, footer, err));
    make_header(hashed);
    memcpy(hashed + VPTQ_ARCHIVE_HEADER_BYTES, footer, VPTQ_ARCHIVE_FOOTER_HASHED);
    vptq_put_le(footer + VPTQ_ARCHIVE_FOOTER_HASHED, vptq_hash(hashed, sizeof hashed, 0), 8);
    memcpy(footer + VPTQ_ARCHIVE_FOOTER_HASHED + 8, VPTQ_ARCHIVE_END_MAGIC,
           VPTQ_ARCHIVE_MAGIC_BYTES);
    VPTQ_TRY(vptq_file_write(&w->file, footer, sizeof footer, err));
    VPTQ_TRY(vptq_file_writer_commit(&w->file, err));
out:
    vptq_buf_release(&raw);
    return st;
}
