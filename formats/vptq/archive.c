/* Opening .vptq archives: header, footer and index.  Frames: archive_load.c; writing:
 * archive_write.c; bytes: archive_layout.h. */
#include <inttypes.h>
#include <zstd.h>

#include "formats/vptq/archive_internal.h"
#include "formats/vptq/archive_layout.h"

/* A frame of zeros shrinks to almost nothing, so sizes that agree with each other may still be
 * absurd: an archive may unpack to this many times its size, and a small one to SLACK more. */
enum { MAX_RATIO = 1024, RATIO_SLACK = 256 << 20 };

/* Damage at one end does not make it something else. */
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

static vptq_status damaged(const vptq_archive *a, const char *what, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: damaged archive: %s", a->path, what);
}

static vptq_status bad_sum(const vptq_archive *a, const char *what, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_CHECKSUM,
                     "%s: damaged archive: the %s does not match its checksum", a->path, what);
}

typedef struct index_place {
    uint64_t offset, hash;
    size_t packed, raw; /* bytes */
} index_place;

/* Header and footer against their checksum, and then what they are: a flipped bit in the
 * version is damage, not another version. */
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
    memcpy(hashed, header, VPTQ_ARCHIVE_HEADER_BYTES);
    memcpy(hashed + VPTQ_ARCHIVE_HEADER_BYTES, footer, VPTQ_ARCHIVE_FOOTER_HASHED);
    if (!head)
        return damaged(a, "its header is damaged", err);
    if (vptq_hash(hashed, sizeof hashed, 0) !=
        vptq_get_le(footer + VPTQ_ARCHIVE_FOOTER_HASHED, 8))
        return bad_sum(a, version == VPTQ_ARCHIVE_VERSION ? "footer" : "header", err);
    if (version != VPTQ_ARCHIVE_VERSION)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: archive version %" PRIu64 ", expected %d", a->path, version,
                         (int)VPTQ_ARCHIVE_VERSION);
    if (vptq_get_le(header + VPTQ_ARCHIVE_MAGIC_BYTES + 4, 4) != 0)
        return damaged(a, "its header has something where zeros belong", err);
    return VPTQ_OK;
}

static vptq_status read_ends(const vptq_archive *a, index_place *p, vptq_err *err)
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
    *p = (index_place){offset, vptq_get_le(footer + 24, 8), (size_t)packed, (size_t)raw};
    return VPTQ_OK;
}

/* The unpacked index, in a.mem; the caller frees it. */
static vptq_status unpack_index(const vptq_archive *a, const index_place *p, uint8_t **raw,
                                vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    *raw = vptq_mem_alloc(a->mem, p->raw, 1, err);
    uint8_t *packed = vptq_mem_alloc(a->mem, p->packed, 1, err);
    if (!*raw || !packed)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(vptq_file_read_at(&a->file, p->offset, packed, p->packed, err));
    if (vptq_hash(packed, p->packed, 0) != p->hash)
        VPTQ_TRY(bad_sum(a, "index", err));
    if (ZSTD_getFrameContentSize(packed, p->packed) != p->raw ||
        ZSTD_findFrameCompressedSize(packed, p->packed) != p->packed ||
        ZSTD_decompress(*raw, p->raw, packed, p->packed) != p->raw)
        st = damaged(a, "its index is not what the footer says", err);
out:
    vptq_mem_free(a->mem, packed);
    return st;
}

/* The frames fill the file from the header to the index without gap or overlap. */
static vptq_status take_frames(vptq_archive *a, const uint8_t *records, uint64_t index_offset,
                               vptq_err *err)
{
    a->frames = vptq_arena_alloc(&a->arena, a->frame_count, sizeof *a->frames, err);
    if (!a->frames)
        return VPTQ_E_NOMEM;
    uint64_t at = VPTQ_ARCHIVE_HEADER_BYTES;
    for (size_t i = 0; i < a->frame_count; i++) {
        const uint8_t *r = records + i * VPTQ_ARCHIVE_FRAME_BYTES;
        vptq_archive_frame f = {.offset = vptq_get_le(r, 8),
                                .packed = (uint32_t)vptq_get_le(r + 8, 4),
                                .raw = (uint32_t)vptq_get_le(r + 12, 4),
                                .hash = vptq_get_le(r + 16, 8)};
        if (f.offset != at || f.packed > index_offset - at)
            return damaged(a, "a frame is not where the one before it ends", err);
        if (f.raw == 0 || f.raw > VPTQ_ARCHIVE_FRAME_RAW || f.packed == 0 ||
            f.packed > VPTQ_ARCHIVE_FRAME_PACKED)
            return damaged(a, "the size of a frame is wrong", err);
        at += f.packed;
        a->frames[i] = f;
    }
    if (at != index_offset)
        return damaged(a, "the frames do not reach the index", err);
    return VPTQ_OK;
}

/* Type and shape of a tensor against its size. */
static vptq_status take_shape(const vptq_archive *a, const uint8_t *record, vptq_tensor *t,
                              vptq_err *err)
{
    char type[9] = {0};
    memcpy(type, record + 24, 8);
    if (vptq_dtype_from_safetensors(type, &t->type, err))
        return vptq_err_context(err, "%s: tensor '%s'", a->path, t->name);
    size_t elements = 1, bytes = 0;
    for (uint32_t i = 0; i < t->dims; i++) {
        t->shape[i] = vptq_get_le(record + VPTQ_ARCHIVE_ENTRY_BYTES + 8 * (size_t)i, 8);
        if (!vptq_size_mul(elements, (size_t)t->shape[i], &elements))
            return damaged(a, "the shape of a tensor overflows", err);
    }
    if (!vptq_dtype_bytes(t->type, elements, &bytes) || bytes != t->bytes)
        return damaged(a, "the size of a tensor is not that of its type and shape", err);
    return VPTQ_OK;
}

/* An entry's frames are the next ones, all full but the last, and hold as much as it says. */
static vptq_status check_frames(const vptq_archive *a, const vptq_archive_entry *e,
                                size_t planes, size_t next_frame, vptq_err *err)
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

static vptq_status take_name(vptq_archive *a, const uint8_t *at, size_t len, size_t i,
                             vptq_archive_entry *e, vptq_err *err)
{
    const char *text = (const char *)at;
    if (!vptq_archive_name_ok(text, len, e->is_tensor))
        return damaged(a, "an entry has a name that none can have", err);
    char *name = vptq_arena_strndup(&a->arena, text, len, err);
    if (!name)
        return VPTQ_E_NOMEM;
    bool fresh = false;
    vptq_status st =
        vptq_strmap_add(&a->names[e->is_tensor], name, len, (uint32_t)i, &fresh, err);
    if (!st && !fresh)
        st = vptq_fail(err, VPTQ_E_FORMAT, "%s: two entries with the name '%.100s'", a->path,
                       name);
    e->name = name;
    return st;
}

/* Entry i, which begins at `at` with `left` bytes of index behind it; *used is its length. */
static vptq_status take_entry(vptq_archive *a, size_t i, const uint8_t *at, size_t left,
                              size_t *next_frame, size_t *used, vptq_err *err)
{
    if (left < VPTQ_ARCHIVE_ENTRY_BYTES || at[0] > VPTQ_ARCHIVE_TENSOR || at[3] != 0 ||
        at[2] > (at[0] == VPTQ_ARCHIVE_TENSOR ? VPTQ_MAX_DIMS : 0))
        return damaged(a, "an entry of its index is wrong", err);
    size_t dims = at[2], name_at = VPTQ_ARCHIVE_ENTRY_BYTES + 8 * dims;
    uint64_t name_len = vptq_get_le(at + 4, 4);
    if (name_at > left || name_len > left - name_at)
        return damaged(a, "an entry of its index is cut off", err);
    vptq_archive_entry *e = &a->entries[i];
    *e = (vptq_archive_entry){.is_tensor = at[0] == VPTQ_ARCHIVE_TENSOR,
                              .size = vptq_get_le(at + 16, 8),
                              .first_frame = (uint32_t)vptq_get_le(at + 8, 4),
                              .frame_count = (uint32_t)vptq_get_le(at + 12, 4)};
    a->planes[i] = at[1];
    VPTQ_CHECK(take_name(a, at + name_at, (size_t)name_len, i, e, err));
    VPTQ_CHECK(check_frames(a, e, at[1], *next_frame, err));
    for (size_t f = 0; f < e->frame_count; f++)
        e->packed_size += a->frames[*next_frame + f].packed;
    if (e->is_tensor) {
        e->tensor = (vptq_tensor){.name = e->name,
                                  .dims = (uint32_t)dims,
                                  .bytes = (size_t)e->size,
                                  .file = a->path,
                                  .round_to = VPTQ_F32};
        VPTQ_CHECK(take_shape(a, at, &e->tensor, err));
    }
    *next_frame += e->frame_count;
    size_t end = name_at + (size_t)name_len;
    *used = (end + 7) / 8 * 8;
    if (*used > left)
        return damaged(a, "an entry of its index is cut off", err);
    if (!all_zero(at + end, *used - end) || (!e->is_tensor && !all_zero(at + 24, 8)))
        return damaged(a, "an entry of its index has something where zeros belong", err);
    return VPTQ_OK;
}

static vptq_status take_entries(vptq_archive *a, const uint8_t *at, size_t left, vptq_err *err)
{
    a->entries = vptq_arena_alloc(&a->arena, a->entry_count, sizeof *a->entries, err);
    a->planes = vptq_arena_alloc(&a->arena, a->entry_count, 1, err);
    if (!a->entries || !a->planes)
        return VPTQ_E_NOMEM;
    size_t next_frame = 0, used = 0;
    uint64_t total = 0;
    for (size_t i = 0; i < a->entry_count; i++, at += used, left -= used) {
        vptq_status st = take_entry(a, i, at, left, &next_frame, &used, err);
        if (st)
            return st;
        total += a->entries[i].size;
    }
    if (left || next_frame != a->frame_count)
        return damaged(a, "its index does not end where it should", err);
    if (total > RATIO_SLACK && (total - RATIO_SLACK) / MAX_RATIO > a->file.size)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: %" PRIu64 " bytes would unpack to %" PRIu64
                         ", more than %d times as many",
                         a->path, a->file.size, total, (int)MAX_RATIO);
    return VPTQ_OK;
}

static vptq_status take_index(vptq_archive *a, const index_place *p, const uint8_t *raw,
                              vptq_err *err)
{
    if (p->raw < 8)
        return damaged(a, "its index is cut off", err);
    a->frame_count = (size_t)vptq_get_le(raw, 4);
    a->entry_count = (size_t)vptq_get_le(raw + 4, 4);
    size_t left = p->raw - 8;
    if (a->frame_count > left / VPTQ_ARCHIVE_FRAME_BYTES)
        return damaged(a, "its index is cut off", err);
    size_t frames_size = a->frame_count * VPTQ_ARCHIVE_FRAME_BYTES;
    left -= frames_size;
    if (a->entry_count > left / VPTQ_ARCHIVE_ENTRY_BYTES)
        return damaged(a, "its index is cut off", err);
    VPTQ_CHECK(vptq_strmap_init(&a->names[0], a->mem, 0, err));
    VPTQ_CHECK(vptq_strmap_init(&a->names[1], a->mem, a->entry_count, err));
    VPTQ_CHECK(take_frames(a, raw + 8, p->offset, err));
    return take_entries(a, raw + 8 + frames_size, left, err);
}

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
    index_place place = {0};
    a->path = vptq_arena_strdup(&a->arena, path, err);
    if (!a->path) {
        st = VPTQ_E_NOMEM;
        goto out;
    }
    VPTQ_TRY(vptq_file_open(a->path, &a->file, err));
    VPTQ_TRY(read_ends(a, &place, err));
    VPTQ_TRY(unpack_index(a, &place, &raw, err));
    VPTQ_TRY(take_index(a, &place, raw, err));
    *out = a;
out:
    vptq_mem_free(mem, raw);
    if (st)
        vptq_archive_close(a);
    return st;
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
