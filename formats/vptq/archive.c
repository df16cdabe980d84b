/* Reads .vptq archives: checks header, footer and index, then unpacks entries whole or in part.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "formats/vptq/archive_internal.h"
#include "lib/base/parallel.h"

/* A frame of zeros compresses to almost nothing, so sizes that agree with each other may still
 * be absurd.  An archive may unpack to MAX_RATIO times its size plus RATIO_SLACK bytes. */
enum { MAX_RATIO = 1024, RATIO_SLACK = 256 << 20 };

typedef struct archive_frame {
    uint64_t offset, hash; /* in the file; of the packed bytes */
    uint32_t packed, raw;  /* bytes */
} archive_frame;

struct vptq_archive {
    vptq_mem *mem;
    vptq_file file;
    const char *path;
    vptq_arena arena;
    archive_frame *frames;
    vptq_archive_entry *entries;
    size_t frame_count, entry_count;
    vptq_strmap names[2]; /* by kind */
};

/* Location and checksum of the index, from the footer. */
typedef struct index_info {
    uint64_t offset, hash;
    size_t packed, raw; /* bytes */
} index_info;

/* ---- identity ---- */

bool vptq_archive_is(const char *path)
{
    vptq_file f;
    char head[VPTQ_ARCHIVE_MAGIC_BYTES], tail[VPTQ_ARCHIVE_MAGIC_BYTES];
    if (vptq_file_open(path, &f, NULL))
        return false;
    bool is = f.size >= VPTQ_ARCHIVE_HEADER_BYTES + VPTQ_ARCHIVE_FOOTER_BYTES &&
              !vptq_file_read_at(&f, 0, head, sizeof head, NULL) &&
              !vptq_file_read_at(&f, f.size - sizeof tail, tail, sizeof tail, NULL);
    is = is && (memcmp(head, VPTQ_ARCHIVE_MAGIC, sizeof head) == 0 ||
                memcmp(tail, VPTQ_ARCHIVE_END_MAGIC, sizeof tail) == 0);
    vptq_file_close(&f);
    return is;
}

bool vptq_archive_tensor_ok(const char *name, size_t len)
{
    bool ok = len > 0 && len <= VPTQ_ARCHIVE_NAME_MAX;
    for (size_t i = 0; i < len && ok; i++)
        ok = (unsigned char)name[i] >= 0x20 && name[i] != 0x7f;
    return ok;
}

static bool is_listed(const char *name)
{
    static const char *const files[] = {
        "config.json",       "generation_config.json",  "preprocessor_config.json",
        "tokenizer.json",    "tokenizer_config.json",   "processor_config.json",
        "added_tokens.json", "special_tokens_map.json", "video_preprocessor_config.json",
        "vocab.json",        "chat_template.json",      "chat_template.jinja",
        "tekken.json",       "tokenizer.model",         "merges.txt"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (!strcmp(name, files[i]))
            return true;
    return false;
}

bool vptq_companion_ok(const char *name)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.";
    static const char *const texts[] = {"LICENSE", "LICENCE", "NOTICE", "COPYING"};
    const char *dot = strrchr(name, '.');
    const size_t len = strlen(name);
    if (len > 255 || name[0] == '.' || name[strspn(name, plain)])
        return false;
    if (dot)
        return is_listed(name) || !strcmp(dot, ".md") || !strcmp(dot, ".txt");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!strncmp(name, texts[i], strlen(texts[i])))
            return true;
    return false;
}

bool vptq_archive_stores(vptq_dtype type)
{
    return vptq_dtype_get(type)->safetensors || type == VPTQ_Q8_0 || type == VPTQ_Q6_K;
}

/* ---- header and footer ---- */

static vptq_status damaged(const vptq_archive *a, const char *what, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: damaged archive: %s", a->path, what);
}

static vptq_status bad_checksum(const vptq_archive *a, const char *what, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_CHECKSUM,
                     "%s: damaged archive: the %s does not match its checksum", a->path, what);
}

/* Verifies the checksum before the fields: a flipped bit in the version is damage, not another
 * version. */
static vptq_status check_ends(const vptq_archive *a, const uint8_t *header,
                              const uint8_t *footer, vptq_err *err)
{
    uint8_t hashed[VPTQ_ARCHIVE_HEADER_BYTES + VPTQ_ARCHIVE_FOOTER_HASHED];
    bool head = memcmp(header, VPTQ_ARCHIVE_MAGIC, VPTQ_ARCHIVE_MAGIC_BYTES) == 0;
    bool tail = memcmp(footer + VPTQ_ARCHIVE_FOOTER_HASHED + 8, VPTQ_ARCHIVE_END_MAGIC,
                       VPTQ_ARCHIVE_MAGIC_BYTES) == 0;
    uint64_t version = vptq_get_le(header + VPTQ_ARCHIVE_MAGIC_BYTES, 4);
    if (!head && !tail)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: not a .vptq archive", a->path);
    if (!tail)
        return damaged(a, "its end is missing or its footer is damaged", err);
    if (!head)
        return damaged(a, "its header is damaged", err);
    memcpy(hashed, header, VPTQ_ARCHIVE_HEADER_BYTES);
    memcpy(hashed + VPTQ_ARCHIVE_HEADER_BYTES, footer, VPTQ_ARCHIVE_FOOTER_HASHED);
    if (vptq_hash(hashed, sizeof hashed, 0) !=
        vptq_get_le(footer + VPTQ_ARCHIVE_FOOTER_HASHED, 8))
        return bad_checksum(a, version == VPTQ_ARCHIVE_VERSION ? "footer" : "header", err);
    if (version != VPTQ_ARCHIVE_VERSION)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: archive version %" PRIu64 ", expected %d", a->path, version,
                         (int)VPTQ_ARCHIVE_VERSION);
    if (vptq_get_le(header + VPTQ_ARCHIVE_MAGIC_BYTES + 4, 4) != 0)
        return damaged(a, "reserved bytes of its header are not zero", err);
    return VPTQ_OK;
}

static vptq_status read_ends(const vptq_archive *a, index_info *index, vptq_err *err)
{
    uint8_t header[VPTQ_ARCHIVE_HEADER_BYTES], footer[VPTQ_ARCHIVE_FOOTER_BYTES];
    uint64_t size = a->file.size;
    if (size < sizeof header + sizeof footer)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: not a .vptq archive", a->path);
    uint64_t end = size - sizeof footer;
    VPTQ_CHECK(vptq_file_read_at(&a->file, 0, header, sizeof header, err));
    VPTQ_CHECK(vptq_file_read_at(&a->file, end, footer, sizeof footer, err));
    VPTQ_CHECK(check_ends(a, header, footer, err));
    uint64_t offset = vptq_get_le(footer, 8), packed = vptq_get_le(footer + 8, 8);
    uint64_t raw = vptq_get_le(footer + 16, 8);
    if (offset < VPTQ_ARCHIVE_HEADER_BYTES || offset > end || packed != end - offset)
        return damaged(a, "the index is not between the frames and the footer", err);
    if (raw > VPTQ_ARCHIVE_INDEX_MAX || packed > VPTQ_ARCHIVE_INDEX_PACKED)
        return damaged(a, "the size of its index is wrong", err);
    *index = (index_info){offset, vptq_get_le(footer + 24, 8), (size_t)packed, (size_t)raw};
    return VPTQ_OK;
}

/* ---- index ---- */

/* Unpacks the index into memory of a->mem, which the caller frees, also after a failure. */
static vptq_status unpack_index(const vptq_archive *a, const index_info *index, uint8_t **raw,
                                vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    *raw = vptq_mem_alloc(a->mem, index->raw, 1, err);
    uint8_t *packed = vptq_mem_alloc(a->mem, index->packed, 1, err);
    if (!*raw || !packed)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(vptq_file_read_at(&a->file, index->offset, packed, index->packed, err));
    if (vptq_hash(packed, index->packed, 0) != index->hash)
        VPTQ_TRY(bad_checksum(a, "index", err));
    if (ZSTD_getFrameContentSize(packed, index->packed) != index->raw ||
        ZSTD_findFrameCompressedSize(packed, index->packed) != index->packed ||
        ZSTD_decompress(*raw, index->raw, packed, index->packed) != index->raw)
        st = damaged(a, "its index does not match the footer", err);
out:
    vptq_mem_free(a->mem, packed);
    return st;
}

/* Frames fill the file from the header to the index without gap or overlap. */
static vptq_status parse_frames(vptq_archive *a, const uint8_t *records, uint64_t index_offset,
                                vptq_err *err)
{
    a->frames = vptq_arena_alloc(&a->arena, a->frame_count, sizeof *a->frames, err);
    if (!a->frames)
        return VPTQ_E_NOMEM;
    uint64_t offset = VPTQ_ARCHIVE_HEADER_BYTES;
    for (size_t i = 0; i < a->frame_count; i++) {
        const uint8_t *r = records + i * VPTQ_ARCHIVE_FRAME_BYTES;
        archive_frame f = {.offset = vptq_get_le(r, 8),
                           .packed = (uint32_t)vptq_get_le(r + 8, 4),
                           .raw = (uint32_t)vptq_get_le(r + 12, 4),
                           .hash = vptq_get_le(r + 16, 8)};
        if (f.offset != offset || f.packed > index_offset - offset)
            return damaged(a, "a frame does not begin where the previous one ends", err);
        if (f.raw == 0 || f.raw > VPTQ_ARCHIVE_FRAME_RAW || f.packed == 0 ||
            f.packed > VPTQ_ARCHIVE_FRAME_PACKED)
            return damaged(a, "the size of a frame is wrong", err);
        offset += f.packed;
        a->frames[i] = f;
    }
    if (offset != index_offset)
        return damaged(a, "the frames do not reach the index", err);
    return VPTQ_OK;
}

static vptq_status parse_type(const vptq_archive *a, const uint8_t *record, vptq_tensor *t,
                              vptq_err *err)
{
    char name[9] = {0};
    memcpy(name, record + 24, 8);
    for (int i = 0; i < VPTQ_DTYPE_COUNT; i++)
        if (vptq_archive_stores((vptq_dtype)i) &&
            strcmp(name, vptq_dtype_get((vptq_dtype)i)->name) == 0) {
            t->type = (vptq_dtype)i;
            return VPTQ_OK;
        }
    return vptq_fail(err, VPTQ_E_UNSUPPORTED, "%s: tensor '%s': unknown element type '%s'",
                     a->path, t->name, name);
}

/* Parses type and shape of a tensor and checks them against its size. */
static vptq_status parse_shape(const vptq_archive *a, const uint8_t *record, vptq_tensor *t,
                               vptq_err *err)
{
    VPTQ_CHECK(parse_type(a, record, t, err));
    size_t elements = 1, bytes = 0;
    for (uint32_t i = 0; i < t->dims; i++) {
        t->shape[i] = vptq_get_le(record + VPTQ_ARCHIVE_ENTRY_BYTES + 8 * (size_t)i, 8);
        if (!vptq_size_mul(elements, (size_t)t->shape[i], &elements))
            return damaged(a, "the shape of a tensor overflows", err);
    }
    if (!vptq_dtype_bytes(t->type, elements, &bytes) || bytes != t->bytes)
        return damaged(a, "the size of a tensor does not match its type and shape", err);
    return VPTQ_OK;
}

/* An entry's frames follow those of the previous entry, are all full except the last, and hold
 * exactly its bytes. */
static vptq_status check_frames(const vptq_archive *a, const vptq_archive_entry *e,
                                size_t next_frame, vptq_err *err)
{
    uint64_t full = VPTQ_ARCHIVE_FRAME_RAW;
    uint64_t need = e->size / full + (e->size % full != 0);
    if (e->first_frame != next_frame || e->frame_count != need ||
        need > a->frame_count - next_frame)
        return damaged(a, "the frames of an entry are wrong", err);
    for (size_t i = 0; i < need; i++) {
        uint64_t raw = i + 1 < need ? full : e->size - i * full;
        if (a->frames[next_frame + i].raw != raw)
            return damaged(a, "the sizes of an entry's frames are wrong", err);
    }
    unsigned planes = e->planes;
    if ((planes != 1 && planes != 2 && planes != 4 && planes != 8) || e->size % planes)
        return damaged(a, "an entry has a wrong number of byte planes", err);
    return VPTQ_OK;
}

static bool all_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return false;
    return true;
}

static vptq_status parse_name(vptq_archive *a, const uint8_t *p, size_t len, size_t i,
                              vptq_archive_entry *e, vptq_err *err)
{
    const char *text = (const char *)p;
    if (len == 0 || (e->is_tensor && !vptq_archive_tensor_ok(text, len)))
        return damaged(a, "an entry has an invalid name", err);
    e->name = vptq_arena_strndup(&a->arena, text, len, err);
    if (!e->name)
        return VPTQ_E_NOMEM;
    if (!e->is_tensor && (strlen(e->name) < len || !vptq_companion_ok(e->name)))
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: file '%.100s' does not belong in an archive, expected config, "
                         "tokenizer and texts",
                         a->path, e->name);
    bool fresh = false;
    VPTQ_CHECK(
        vptq_strmap_add(&a->names[e->is_tensor], e->name, len, (uint32_t)i, &fresh, err));
    if (!fresh)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: duplicate entry '%.100s'", a->path, e->name);
    return VPTQ_OK;
}

/* Parses entry i from the `left` bytes at `p`.  *used: bytes of its record. */
static vptq_status parse_entry(vptq_archive *a, size_t i, const uint8_t *p, size_t left,
                               size_t *next_frame, size_t *used, vptq_err *err)
{
    if (left < VPTQ_ARCHIVE_ENTRY_BYTES || p[0] > VPTQ_ARCHIVE_TENSOR || p[3] != 0 ||
        p[2] > (p[0] == VPTQ_ARCHIVE_TENSOR ? VPTQ_MAX_DIMS : 0))
        return damaged(a, "an entry of its index is wrong", err);
    size_t dims = p[2], name_offset = VPTQ_ARCHIVE_ENTRY_BYTES + 8 * dims;
    uint64_t name_len = vptq_get_le(p + 4, 4);
    if (name_offset > left || name_len > left - name_offset)
        return damaged(a, "an entry of its index is truncated", err);
    vptq_archive_entry *e = &a->entries[i];
    *e = (vptq_archive_entry){.is_tensor = p[0] == VPTQ_ARCHIVE_TENSOR,
                              .planes = p[1],
                              .size = vptq_get_le(p + 16, 8),
                              .first_frame = (uint32_t)vptq_get_le(p + 8, 4),
                              .frame_count = (uint32_t)vptq_get_le(p + 12, 4)};
    VPTQ_CHECK(parse_name(a, p + name_offset, (size_t)name_len, i, e, err));
    VPTQ_CHECK(check_frames(a, e, *next_frame, err));
    for (size_t f = 0; f < e->frame_count; f++)
        e->packed_size += a->frames[*next_frame + f].packed;
    if (e->is_tensor) {
        e->tensor = (vptq_tensor){.name = e->name,
                                  .dims = (uint32_t)dims,
                                  .bytes = (size_t)e->size,
                                  .file = a->path,
                                  .round_to = VPTQ_F32};
        VPTQ_CHECK(parse_shape(a, p, &e->tensor, err));
    }
    *next_frame += e->frame_count;
    size_t end = name_offset + (size_t)name_len;
    *used = (end + 7) / 8 * 8;
    if (*used > left)
        return damaged(a, "an entry of its index is truncated", err);
    if (!all_zero(p + end, *used - end) || (!e->is_tensor && !all_zero(p + 24, 8)))
        return damaged(a, "reserved bytes of an index entry are not zero", err);
    return VPTQ_OK;
}

static vptq_status parse_entries(vptq_archive *a, const uint8_t *p, size_t left, vptq_err *err)
{
    a->entries = vptq_arena_alloc(&a->arena, a->entry_count, sizeof *a->entries, err);
    if (!a->entries)
        return VPTQ_E_NOMEM;
    size_t next_frame = 0, used = 0;
    uint64_t total = 0;
    for (size_t i = 0; i < a->entry_count; i++, p += used, left -= used) {
        VPTQ_CHECK(parse_entry(a, i, p, left, &next_frame, &used, err));
        total += a->entries[i].size;
    }
    if (left || next_frame != a->frame_count)
        return damaged(a, "its index does not end with its last entry and frame", err);
    if (total > RATIO_SLACK && (total - RATIO_SLACK) / MAX_RATIO > a->file.size)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: %" PRIu64 " bytes would unpack to %" PRIu64
                         ", more than %d times as many",
                         a->path, a->file.size, total, (int)MAX_RATIO);
    return VPTQ_OK;
}

static vptq_status parse_index(vptq_archive *a, const index_info *index, const uint8_t *raw,
                               vptq_err *err)
{
    if (index->raw < 8)
        return damaged(a, "its index is truncated", err);
    a->frame_count = (size_t)vptq_get_le(raw, 4);
    a->entry_count = (size_t)vptq_get_le(raw + 4, 4);
    size_t left = index->raw - 8;
    if (a->frame_count > left / VPTQ_ARCHIVE_FRAME_BYTES)
        return damaged(a, "its index is truncated", err);
    size_t frames_size = a->frame_count * VPTQ_ARCHIVE_FRAME_BYTES;
    left -= frames_size;
    if (a->entry_count > left / VPTQ_ARCHIVE_ENTRY_BYTES)
        return damaged(a, "its index is truncated", err);
    VPTQ_CHECK(vptq_strmap_init(&a->names[0], a->mem, 0, err));
    VPTQ_CHECK(vptq_strmap_init(&a->names[1], a->mem, a->entry_count, err));
    VPTQ_CHECK(parse_frames(a, raw + 8, index->offset, err));
    return parse_entries(a, raw + 8 + frames_size, left, err);
}

/* ---- open and look up ---- */

vptq_status vptq_archive_open(const char *path, vptq_mem *mem, vptq_archive **out,
                              vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_archive *a = vptq_mem_alloc(mem, 1, sizeof *a, err);
    if (!a)
        return VPTQ_E_NOMEM;
    *a = (vptq_archive){.mem = mem, .file.fd = -1};
    vptq_arena_init(&a->arena, mem);
    uint8_t *raw = NULL;
    index_info index = {0};
    a->path = vptq_arena_strdup(&a->arena, path, err);
    if (!a->path)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(vptq_file_open(a->path, &a->file, err));
    VPTQ_TRY(read_ends(a, &index, err));
    VPTQ_TRY(unpack_index(a, &index, &raw, err));
    VPTQ_TRY(parse_index(a, &index, raw, err));
    *out = a;
out:
    vptq_mem_free(mem, raw);
    if (st)
        vptq_archive_close(a);
    return st;
}

void vptq_archive_close(vptq_archive *a)
{
    if (!a)
        return;
    vptq_strmap_release(&a->names[0]);
    vptq_strmap_release(&a->names[1]);
    vptq_arena_release(&a->arena);
    vptq_file_close(&a->file);
    vptq_mem_free(a->mem, a);
}

size_t vptq_archive_count(const vptq_archive *a)
{
    return a->entry_count;
}

const vptq_archive_entry *vptq_archive_at(const vptq_archive *a, size_t i)
{
    VPTQ_BUG_IF(i >= a->entry_count);
    return &a->entries[i];
}

const vptq_archive_entry *vptq_archive_find(const vptq_archive *a, const char *name,
                                            bool is_tensor)
{
    uint32_t i = 0;
    return vptq_strmap_get(&a->names[is_tensor], name, strlen(name), &i) ? &a->entries[i]
                                                                         : NULL;
}

/* ---- unpacking ---- */

/* Buffers of one thread, each large enough for any frame of the job. */
typedef struct worker {
    ZSTD_DCtx *zstd;
    uint8_t *packed, *planes, *raw;
} worker;

typedef enum { SOUND, UNREADABLE, BAD_HASH, BAD_FRAME } verdict;

typedef struct load_job {
    const vptq_archive *archive;
    const archive_frame *frames; /* of the entry */
    size_t first, planes;        /* index of the first frame to load */
    uint64_t begin, end;         /* range of the entry's bytes to load */
    uint8_t *dst;                /* for that range; NULL = verify only */
    worker *workers;
    uint8_t *verdicts; /* one per loaded frame */
} load_job;

/* Verifies our checksum of the packed bytes before zstd sees them; zstd verifies its own of the
 * unpacked ones. */
static verdict unpack_frame(const load_job *job, const archive_frame *f, worker *w,
                            uint8_t *dst)
{
    enum { DESCRIPTOR = 4, HAS_CHECKSUM = 4 };
    if (vptq_file_read_at(&job->archive->file, f->offset, w->packed, f->packed, NULL))
        return UNREADABLE;
    if (vptq_hash(w->packed, f->packed, 0) != f->hash)
        return BAD_HASH;
    if (ZSTD_getFrameContentSize(w->packed, f->packed) != f->raw ||
        ZSTD_findFrameCompressedSize(w->packed, f->packed) != f->packed ||
        !(w->packed[DESCRIPTOR] & HAS_CHECKSUM))
        return BAD_FRAME;
    size_t n = ZSTD_decompressDCtx(w->zstd, dst, f->raw, w->packed, f->packed);
    return ZSTD_isError(n) || n != f->raw ? BAD_FRAME : SOUND;
}

static void join_planes(const uint8_t *src, size_t n, size_t planes, uint8_t *dst)
{
    size_t count = n / planes;
    for (size_t p = 0; p < planes; p++)
        for (size_t e = 0; e < count; e++)
            dst[e * planes + p] = src[p * count + e];
}

/* Unpacks frame i of the entry, directly into job->dst if all of it is wanted. */
static verdict load_frame(const load_job *job, size_t i, worker *w)
{
    const archive_frame *f = &job->frames[i];
    uint64_t begin = (uint64_t)i * VPTQ_ARCHIVE_FRAME_RAW, end = begin + f->raw;
    bool whole = job->dst && begin >= job->begin && end <= job->end;
    uint8_t *raw = whole ? job->dst + (begin - job->begin) : w->raw;
    verdict v = unpack_frame(job, f, w, job->planes > 1 ? w->planes : raw);
    if (v || !job->dst)
        return v;
    if (job->planes > 1)
        join_planes(w->planes, f->raw, job->planes, raw);
    if (whole)
        return SOUND;
    uint64_t from = begin > job->begin ? begin : job->begin;
    uint64_t to = end < job->end ? end : job->end;
    memcpy(job->dst + (from - job->begin), raw + (from - begin), (size_t)(to - from));
    return SOUND;
}

static void load_frames(void *arg, size_t begin, size_t end, int thread)
{
    const load_job *job = arg;
    for (size_t i = begin; i < end; i++)
        job->verdicts[i] = (uint8_t)load_frame(job, job->first + i, &job->workers[thread]);
}

static vptq_status allocate_workers(load_job *job, size_t frames, size_t threads,
                                    vptq_arena *arena, vptq_err *err)
{
    size_t packed = 0, raw = 0;
    for (size_t i = job->first; i < job->first + frames; i++) {
        packed = job->frames[i].packed > packed ? job->frames[i].packed : packed;
        raw = job->frames[i].raw > raw ? job->frames[i].raw : raw;
    }
    job->verdicts = vptq_arena_zalloc(arena, frames, 1, err);
    job->workers = vptq_arena_zalloc(arena, threads, sizeof *job->workers, err);
    if (!job->verdicts || !job->workers)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < threads; i++) {
        worker *w = &job->workers[i];
        w->packed = vptq_arena_alloc(arena, packed, 1, err);
        w->raw = vptq_arena_alloc(arena, raw, 1, err);
        w->planes = vptq_arena_alloc(arena, job->planes > 1 ? raw : 0, 1, err);
        if (!w->packed || !w->raw || !w->planes)
            return VPTQ_E_NOMEM;
        w->zstd = ZSTD_createDCtx();
        if (!w->zstd)
            return vptq_fail(err, VPTQ_E_NOMEM, "%s: out of memory for decompression",
                             job->archive->path);
    }
    return VPTQ_OK;
}

/* Describes the first frame that is not sound. */
static vptq_status report_verdicts(const load_job *job, const vptq_archive_entry *e,
                                   size_t frames, vptq_err *err)
{
    size_t i = 0;
    while (i < frames && job->verdicts[i] == SOUND)
        i++;
    if (i == frames)
        return VPTQ_OK;
    const archive_frame *f = &job->frames[job->first + i];
    const char *what = e->is_tensor ? "tensor" : "file";
    unsigned number = (unsigned)(job->first + i) + 1;
    if (job->verdicts[i] == UNREADABLE) /* read again for the system's error message */
        return vptq_file_read_at(&job->archive->file, f->offset, job->workers[0].packed,
                                 f->packed, err)
                   ? VPTQ_E_IO
                   : vptq_fail(err, VPTQ_E_IO, "cannot read '%s'", job->archive->path);
    return vptq_fail(err, VPTQ_E_CHECKSUM, "%s: %s '%s' is damaged: frame %u of %u %s",
                     job->archive->path, what, e->name, number, (unsigned)e->frame_count,
                     job->verdicts[i] == BAD_HASH ? "does not match its checksum"
                                                  : "does not match its record");
}

vptq_status vptq_archive_load_part(const vptq_archive *a, const vptq_archive_entry *e,
                                   uint64_t begin, uint64_t n, int threads, void *dst,
                                   vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    VPTQ_BUG_IF(begin > e->size || n > e->size - begin);
    if (n == 0)
        return VPTQ_OK;
    size_t first = (size_t)(begin / VPTQ_ARCHIVE_FRAME_RAW);
    size_t frames = (size_t)((begin + n - 1) / VPTQ_ARCHIVE_FRAME_RAW) + 1 - first;
    size_t used = threads < 1 ? 1 : (size_t)threads;
    used = used < frames ? used : frames;
    vptq_arena arena;
    vptq_arena_init(&arena, a->mem);
    load_job job = {.archive = a,
                    .frames = a->frames + e->first_frame,
                    .first = first,
                    .planes = e->planes,
                    .begin = begin,
                    .end = begin + n,
                    .dst = dst};
    VPTQ_TRY(allocate_workers(&job, frames, used, &arena, err));
    vptq_parallel_for((int)used, frames, 1, load_frames, &job);
    st = report_verdicts(&job, e, frames, err);
out:
    for (size_t i = 0; job.workers && i < used; i++)
        ZSTD_freeDCtx(job.workers[i].zstd);
    vptq_arena_release(&arena);
    return st;
}

vptq_status vptq_archive_load(const vptq_archive *a, const vptq_archive_entry *e, int threads,
                              void *dst, vptq_err *err)
{
    return vptq_archive_load_part(a, e, 0, e->size, threads, dst, err);
}
