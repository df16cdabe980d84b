/* Writing .vptq archives.  Frames are compressed in batches, a context per place in the batch,
 * so that the bytes do not depend on the number of threads. */
#include <stdlib.h>
#include <zstd.h>

#include "formats/archive.h"
#include "formats/archive_layout.h"
#include "lib/base/buf.h"
#include "lib/base/parallel.h"

/* Weights gain nothing from higher levels once their bytes are in planes. */
enum { LEVEL = 3, MAX_BATCH = 64 };

typedef struct slot {
    ZSTD_CCtx *zstd;
    uint8_t *planes;              /* FRAME_RAW bytes */
    uint8_t *packed;              /* ZSTD_compressBound of it */
    size_t raw_size, packed_size; /* packed_size: ZSTD_isError on failure */
    uint64_t hash;
} slot;

struct vptq_archive_writer {
    vptq_mem *mem;
    vptq_file_writer file;
    vptq_arena arena;         /* names */
    vptq_strmap names[2];     /* by kind */
    vptq_buf frames, entries; /* index records as they will be written */
    uint32_t frame_count, entry_count;
    slot slots[MAX_BATCH];
    int slot_count;
};

static void free_slots(vptq_archive_writer *w)
{
    for (int i = 0; i < w->slot_count; i++) {
        ZSTD_freeCCtx(w->slots[i].zstd);
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

vptq_status vptq_archive_writer_open(const char *path, bool force, vptq_mem *mem,
                                     vptq_archive_writer **out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_archive_writer *w = vptq_mem_alloc(mem, 1, sizeof *w, err);
    if (!w)
        return VPTQ_E_NOMEM;
    memset(w, 0, sizeof *w);
    w->mem = mem;
    w->file.fd = -1;
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

static vptq_status need_slots(vptq_archive_writer *w, int count, vptq_err *err)
{
    while (w->slot_count < count) {
        slot *s = &w->slots[w->slot_count++];
        *s = (slot){0};
        s->zstd = ZSTD_createCCtx();
        if (!s->zstd ||
            ZSTD_isError(ZSTD_CCtx_setParameter(s->zstd, ZSTD_c_compressionLevel, LEVEL)) ||
            ZSTD_isError(ZSTD_CCtx_setParameter(s->zstd, ZSTD_c_checksumFlag, 1)))
            return vptq_fail(err, VPTQ_E_NOMEM, "%s: out of memory for compression",
                             w->file.path);
        s->planes = vptq_mem_alloc(w->mem, VPTQ_ARCHIVE_FRAME_RAW, 1, err);
        s->packed = vptq_mem_alloc(w->mem, ZSTD_compressBound(VPTQ_ARCHIVE_FRAME_RAW), 1, err);
        if (!s->planes || !s->packed)
            return VPTQ_E_NOMEM;
    }
    return VPTQ_OK;
}

/* One batch: frame i of it is data[i * FRAME_RAW ..] and goes through slot i. */
typedef struct batch {
    slot *slots;
    const uint8_t *data;
    size_t size, planes;
} batch;

static void compress_frames(void *arg, size_t begin, size_t end, int thread)
{
    (void)thread;
    const batch *b = arg;
    for (size_t i = begin; i < end; i++) {
        slot *s = &b->slots[i];
        const uint8_t *raw = b->data + i * VPTQ_ARCHIVE_FRAME_RAW;
        size_t left = b->size - i * VPTQ_ARCHIVE_FRAME_RAW;
        size_t n = left < VPTQ_ARCHIVE_FRAME_RAW ? left : VPTQ_ARCHIVE_FRAME_RAW;
        s->raw_size = n;
        s->hash = vptq_hash(raw, n, 0);
        const uint8_t *src = raw;
        if (b->planes > 1) {
            size_t count = n / b->planes;
            for (size_t p = 0; p < b->planes; p++)
                for (size_t e = 0; e < count; e++)
                    s->planes[p * count + e] = raw[e * b->planes + p];
            src = s->planes;
        }
        s->packed_size = ZSTD_compress2(s->zstd, s->packed,
                                        ZSTD_compressBound(VPTQ_ARCHIVE_FRAME_RAW), src, n);
    }
}

static vptq_status write_frame(vptq_archive_writer *w, const slot *s, vptq_err *err)
{
    if (ZSTD_isError(s->packed_size))
        return vptq_fail(err, VPTQ_E_NOMEM, "%s: compression failed: %s", w->file.path,
                         ZSTD_getErrorName(s->packed_size));
    uint8_t record[VPTQ_ARCHIVE_FRAME_BYTES];
    vptq_put_le(record, w->file.written, 8);
    vptq_put_le(record + 8, s->packed_size, 4);
    vptq_put_le(record + 12, s->raw_size, 4);
    vptq_put_le(record + 16, s->hash, 8);
    vptq_status st = vptq_buf_add(&w->frames, record, sizeof record, err);
    if (!st)
        st = vptq_file_write(&w->file, s->packed, s->packed_size, err);
    w->frame_count++;
    return st;
}

static vptq_status write_frames(vptq_archive_writer *w, const uint8_t *data, size_t size,
                                size_t planes, int threads, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    size_t frames = size / VPTQ_ARCHIVE_FRAME_RAW + (size % VPTQ_ARCHIVE_FRAME_RAW != 0);
    size_t batch_size = threads < 1 ? 1 : threads > MAX_BATCH ? MAX_BATCH : (size_t)threads;
    if (batch_size > frames)
        batch_size = frames;
    VPTQ_TRY(need_slots(w, (int)batch_size, err));
    for (size_t f = 0; f < frames; f += batch_size) {
        size_t n = frames - f < batch_size ? frames - f : batch_size;
        size_t at = f * VPTQ_ARCHIVE_FRAME_RAW;
        batch b = {.slots = w->slots, .data = data + at, .size = size - at, .planes = planes};
        vptq_parallel_for(threads, n, 1, compress_frames, &b);
        for (size_t i = 0; i < n; i++)
            VPTQ_TRY(write_frame(w, &w->slots[i], err));
    }
out:
    return st;
}

static vptq_status check_name(vptq_archive_writer *w, const char *name, int kind, vptq_err *err)
{
    size_t len = strlen(name);
    bool fresh = false;
    if (!vptq_archive_name_ok(name, len, kind == VPTQ_ARCHIVE_TENSOR))
        return vptq_fail(err, VPTQ_E_UNSUPPORTED, "%s: '%.100s' is no name for an entry",
                         w->file.path, name);
    char *copy = vptq_arena_strndup(&w->arena, name, len, err);
    if (!copy)
        return VPTQ_E_NOMEM;
    vptq_status st = vptq_strmap_add(&w->names[kind], copy, len, 0, &fresh, err);
    if (!st && !fresh)
        st = vptq_fail(err, VPTQ_E_UNSUPPORTED, "%s: two entries with the name '%.100s'",
                       w->file.path, name);
    return st;
}

static vptq_status add_record(vptq_archive_writer *w, int kind, const vptq_tensor *t,
                              size_t planes, uint32_t first_frame, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    size_t name_len = strlen(t->name);
    uint8_t head[VPTQ_ARCHIVE_ENTRY_BYTES] = {(uint8_t)kind, (uint8_t)planes, (uint8_t)t->dims,
                                              0};
    vptq_put_le(head + 4, name_len, 4);
    vptq_put_le(head + 8, first_frame, 4);
    vptq_put_le(head + 12, w->frame_count - first_frame, 4);
    vptq_put_le(head + 16, t->bytes, 8);
    if (kind == VPTQ_ARCHIVE_TENSOR) {
        const char *type = vptq_dtype_get(t->type)->safetensors;
        memcpy(head + 24, type, strlen(type));
    }
    VPTQ_TRY(vptq_buf_add(&w->entries, head, sizeof head, err));
    for (uint32_t i = 0; i < t->dims; i++) {
        uint8_t size[8];
        vptq_put_le(size, t->shape[i], 8);
        VPTQ_TRY(vptq_buf_add(&w->entries, size, sizeof size, err));
    }
    VPTQ_TRY(vptq_buf_add(&w->entries, t->name, name_len, err));
    VPTQ_TRY(vptq_buf_add(&w->entries, "\0\0\0\0\0\0\0", (8 - name_len % 8) % 8, err));
    w->entry_count++;
out:
    return st;
}

static vptq_status add_entry(vptq_archive_writer *w, int kind, const vptq_tensor *t,
                             size_t planes, int threads, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    uint32_t first = w->frame_count;
    VPTQ_TRY(check_name(w, t->name, kind, err));
    VPTQ_TRY(write_frames(w, t->data, t->bytes, planes, threads, err));
    VPTQ_TRY(add_record(w, kind, t, planes, first, err));
out:
    return st;
}

vptq_status vptq_archive_add_file(vptq_archive_writer *w, const char *name, const void *data,
                                  size_t n, vptq_err *err)
{
    vptq_tensor t = {.name = name, .data = data, .bytes = n};
    return add_entry(w, VPTQ_ARCHIVE_FILE, &t, 1, 1, err);
}

vptq_status vptq_archive_add_tensor(vptq_archive_writer *w, const vptq_tensor *t, int threads,
                                    vptq_err *err)
{
    const vptq_dtype_info *info = vptq_dtype_get(t->type);
    VPTQ_BUG_IF(!info->safetensors);
    return add_entry(w, VPTQ_ARCHIVE_TENSOR, t, info->bytes, threads, err);
}

static vptq_status write_index(vptq_archive_writer *w, const vptq_buf *raw,
                               uint8_t footer[VPTQ_ARCHIVE_FOOTER_BYTES], vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    size_t bound = ZSTD_compressBound(raw->len);
    uint8_t *packed = vptq_mem_alloc(w->mem, bound, 1, err);
    if (!packed)
        return VPTQ_E_NOMEM;
    VPTQ_TRY(need_slots(w, 1, err));
    size_t n = ZSTD_compress2(w->slots[0].zstd, packed, bound, raw->data, raw->len);
    if (ZSTD_isError(n)) {
        st = vptq_fail(err, VPTQ_E_NOMEM, "%s: compression failed: %s", w->file.path,
                       ZSTD_getErrorName(n));
        goto out;
    }
    vptq_put_le(footer, w->file.written, 8);
    vptq_put_le(footer + 8, n, 8);
    vptq_put_le(footer + 16, raw->len, 8);
    vptq_put_le(footer + 24, vptq_hash(raw->data, raw->len, 0), 8);
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
    if (raw.len > VPTQ_ARCHIVE_INDEX_MAX) {
        st = vptq_fail(err, VPTQ_E_UNSUPPORTED,
                       "%s: %u entries in %u frames need an index of %zu bytes, more than the "
                       "%d of the format",
                       w->file.path, (unsigned)w->entry_count, (unsigned)w->frame_count,
                       raw.len, (int)VPTQ_ARCHIVE_INDEX_MAX);
        goto out;
    }
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
