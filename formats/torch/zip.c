/* Lists and writes zip files of stored entries. */
#include "formats/torch/zip.h"

#include <string.h>

#include "lib/base/le.h"

enum {
    LOCAL_BYTES = 30,
    CENTRAL_BYTES = 46,
    END_BYTES = 22,
    END64_BYTES = 56,
    LOCATOR_BYTES = 20,
    MAX_COMMENT = 65535,
    ALIGN = 64,   /* of an entry's bytes in the file, like PyTorch */
    VERSION = 45, /* of the format, which has zip64 */
    DATE = 0x21,  /* 1980-01-01 */
    ZIP64_EXTRA = 1,
    PADDING_EXTRA = 0x4246, /* "FB" */
    UTF8_NAME = 0x800,
    NOT_PLAIN = 0x2041 /* encrypted, strongly encrypted, masked */
};
static const uint32_t local_magic = 0x04034b50, central_magic = 0x02014b50,
                      end_magic = 0x06054b50, end64_magic = 0x06064b50,
                      locator_magic = 0x07064b50;

/* ---- checksum: eight bytes at a time; table k is for a byte followed by k others ---- */

void vptq_crc32_init(vptq_crc32 *c)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t r = i;
        for (int bit = 0; bit < 8; bit++)
            r = r & 1 ? r >> 1 ^ UINT32_C(0xedb88320) : r >> 1;
        c->table[0][i] = r;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t r = c->table[k - 1][i];
            c->table[k][i] = r >> 8 ^ c->table[0][r & 255];
        }
}

uint32_t vptq_crc32_of(const vptq_crc32 *c, const uint8_t *data, size_t n)
{
    uint32_t r = UINT32_MAX;
    for (; n >= 8; n -= 8, data += 8) {
        uint64_t x = vptq_get_le(data, 8) ^ r;
        r = 0;
        for (int k = 0; k < 8; k++)
            r ^= c->table[7 - k][x >> (8 * k) & 255];
    }
    for (; n > 0; n--, data++)
        r = r >> 8 ^ c->table[0][(r ^ *data) & 255];
    return ~r;
}

/* ---- reading ---- */

/* Location of the central directory. */
typedef struct central {
    uint64_t at, size, count; /* bytes, bytes, entries */
} central;

static vptq_status damaged(const char *path, const char *what, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: damaged zip file: %s", path, what);
}

/* Finds the end record, which only its comment may follow. */
static const uint8_t *find_end(const vptq_map *map)
{
    if (map->size < END_BYTES)
        return NULL;
    size_t last = map->size - END_BYTES;
    for (size_t comment = 0; comment <= last && comment <= MAX_COMMENT; comment++) {
        const uint8_t *p = map->data + last - comment;
        if (vptq_get_le(p, 4) == end_magic && vptq_get_le(p + 20, 2) == comment)
            return p;
    }
    return NULL;
}

static vptq_status find_central(const char *path, const vptq_map *map, central *c,
                                vptq_err *err)
{
    const uint8_t *end = find_end(map);
    if (!end)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: is not a zip file (no end of a central directory in %zu bytes)",
                         path, map->size);
    size_t limit = (size_t)(end - map->data);
    *c =
        (central){vptq_get_le(end + 16, 4), vptq_get_le(end + 12, 4), vptq_get_le(end + 10, 2)};
    if (limit >= LOCATOR_BYTES && vptq_get_le(end - LOCATOR_BYTES, 4) == locator_magic) {
        uint64_t at = vptq_get_le(end - LOCATOR_BYTES + 8, 8);
        limit -= LOCATOR_BYTES;
        if (limit < END64_BYTES || at > limit - END64_BYTES ||
            vptq_get_le(map->data + at, 4) != end64_magic)
            return damaged(path, "its zip64 end record is not where it should be", err);
        limit = (size_t)at;
        *c = (central){vptq_get_le(map->data + at + 48, 8), vptq_get_le(map->data + at + 40, 8),
                       vptq_get_le(map->data + at + 32, 8)};
    }
    if (c->at > limit || c->size > limit - c->at || c->count > c->size / CENTRAL_BYTES)
        return damaged(path, "its central directory does not fit into the file", err);
    return VPTQ_OK;
}

/* Takes the 64-bit values of the fields that are all ones, in this fixed order. */
static bool take_zip64(const uint8_t *extra, size_t n, uint64_t *fields[3])
{
    while (n >= 4) {
        size_t id = (size_t)vptq_get_le(extra, 2), size = (size_t)vptq_get_le(extra + 2, 2);
        if (size > n - 4)
            return false;
        size_t at = 0;
        for (int i = 0; id == ZIP64_EXTRA && i < 3; i++) {
            if (*fields[i] != UINT32_MAX)
                continue;
            if (size - at < 8)
                return false;
            *fields[i] = vptq_get_le(extra + 4 + at, 8);
            at += 8;
        }
        extra += 4 + size;
        n -= 4 + size;
    }
    return true;
}

/* Finds the bytes after the local header at `at`, which must not begin before `floor`. */
static bool find_bytes(const vptq_map *map, const central *c, const char *name, size_t name_len,
                       uint64_t at, uint64_t floor, vptq_zip_entry *e)
{
    if (at < floor || at > c->at || c->at - at < LOCAL_BYTES)
        return false;
    const uint8_t *local = map->data + at;
    size_t len = (size_t)vptq_get_le(local + 26, 2);
    size_t skip = LOCAL_BYTES + len + (size_t)vptq_get_le(local + 28, 2);
    if (vptq_get_le(local, 4) != local_magic || len != name_len || skip > c->at - at ||
        memcmp(local + LOCAL_BYTES, name, len) != 0 || e->size > c->at - at - skip)
        return false;
    e->data = local + skip;
    return true;
}

/* Takes the record of the central directory at *at and advances *at past it. */
static vptq_status take_entry(const char *path, const vptq_map *map, const central *c,
                              size_t *at, uint64_t floor, vptq_arena *arena, vptq_zip_entry *e,
                              vptq_err *err)
{
    const uint8_t *p = map->data + *at;
    size_t left = (size_t)(c->at + c->size) - *at;
    if (left < CENTRAL_BYTES || vptq_get_le(p, 4) != central_magic)
        return damaged(path, "its central directory ends early", err);
    size_t name_len = (size_t)vptq_get_le(p + 28, 2), extra = (size_t)vptq_get_le(p + 30, 2);
    size_t record = CENTRAL_BYTES + name_len + extra + (size_t)vptq_get_le(p + 32, 2);
    if (record > left || name_len == 0)
        return damaged(path, "its central directory ends early", err);
    const char *name = (const char *)p + CENTRAL_BYTES;
    if (memchr(name, 0, name_len))
        return damaged(path, "an entry's name contains a zero byte", err);
    e->name = vptq_arena_strndup(arena, name, name_len, err);
    if (!e->name)
        return VPTQ_E_NOMEM;
    uint64_t packed = vptq_get_le(p + 20, 4), size = vptq_get_le(p + 24, 4),
             local = vptq_get_le(p + 42, 4);
    uint64_t *fields[3] = {&size, &packed, &local};
    if (!take_zip64((const uint8_t *)name + name_len, extra, fields))
        return damaged(path, "an entry's zip64 field is truncated", err);
    if (vptq_get_le(p + 10, 2) != 0 || size != packed || vptq_get_le(p + 8, 2) & NOT_PLAIN)
        return vptq_fail(
            err, VPTQ_E_UNSUPPORTED,
            "%s: entry '%.200s' is compressed or encrypted, only stored entries are "
            "supported",
            path, e->name);
    e->size = (size_t)size;
    e->crc = (uint32_t)vptq_get_le(p + 16, 4);
    if (!find_bytes(map, c, name, name_len, local, floor, e))
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: entry '%.200s' is not at the offset in the central directory",
                         path, e->name);
    *at += record;
    return VPTQ_OK;
}

vptq_status vptq_zip_list(const char *path, const vptq_map *map, vptq_arena *arena,
                          vptq_zip *zip, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    central c = {0};
    *zip = (vptq_zip){.path = path};
    vptq_crc32_init(&zip->crc);
    VPTQ_TRY(find_central(path, map, &c, err));
    VPTQ_TRY(vptq_strmap_init(&zip->by_name, arena->mem, (size_t)c.count, err));
    zip->entries = vptq_arena_zalloc(arena, (size_t)c.count, sizeof *zip->entries, err);
    if (!zip->entries)
        VPTQ_TRY(VPTQ_E_NOMEM);
    size_t at = (size_t)c.at;
    uint64_t floor = 0;
    for (; zip->count < c.count; zip->count++) {
        vptq_zip_entry *e = &zip->entries[zip->count];
        bool fresh = false;
        VPTQ_TRY(take_entry(path, map, &c, &at, floor, arena, e, err));
        VPTQ_TRY(vptq_strmap_add(&zip->by_name, e->name, strlen(e->name), (uint32_t)zip->count,
                                 &fresh, err));
        if (!fresh)
            VPTQ_TRY(
                vptq_fail(err, VPTQ_E_FORMAT, "%s: duplicate entry '%.200s'", path, e->name));
        floor = (uint64_t)(e->data - map->data) + e->size;
    }
out:
    if (st)
        vptq_zip_release(zip);
    return st;
}

void vptq_zip_release(vptq_zip *zip)
{
    vptq_strmap_release(&zip->by_name);
}

vptq_zip_entry *vptq_zip_find(const vptq_zip *zip, const char *name, size_t len)
{
    uint32_t i;
    return vptq_strmap_get(&zip->by_name, name, len, &i) ? &zip->entries[i] : NULL;
}

vptq_status vptq_zip_check(const vptq_zip *zip, vptq_zip_entry *e, vptq_err *err)
{
    uint32_t crc = e->checked ? e->crc : vptq_crc32_of(&zip->crc, e->data, e->size);
    if (crc != e->crc)
        return vptq_fail(err, VPTQ_E_CHECKSUM,
                         "%s: entry '%.200s' is damaged: its CRC-32 is %08x, expected %08x",
                         zip->path, e->name, crc, e->crc);
    e->checked = true;
    vptq_map_forget(e->data, e->size); /* models are larger than memory */
    return VPTQ_OK;
}

/* ---- writing ---- */

vptq_status vptq_zip_writer_open(const char *path, bool force, vptq_mem *mem,
                                 vptq_zip_writer *w, vptq_err *err)
{
    w->count = 0;
    vptq_crc32_init(&w->crc);
    vptq_buf_init(&w->directory, mem);
    return vptq_file_writer_open(path, force, &w->file, err);
}

/* Puts consecutive numbers; `widths` has the bytes of each as a digit. */
static void put_numbers(uint8_t *p, const char *widths, const uint64_t *numbers)
{
    for (; *widths; p += *widths++ - '0')
        vptq_put_le(p, *numbers++, (unsigned)(*widths - '0'));
}

vptq_status vptq_zip_write(vptq_zip_writer *w, const char *name, const void *data, size_t n,
                           vptq_err *err)
{
    enum { LOCAL64 = 20, CENTRAL64 = 28 };
    const uint64_t at = w->file.written;
    const size_t len = strlen(name);
    const uint32_t crc = vptq_crc32_of(&w->crc, data, n);
    const size_t pad = (ALIGN - (at + LOCAL_BYTES + len + LOCAL64 + 4) % ALIGN) % ALIGN;
    uint8_t local[LOCAL_BYTES], extra[LOCAL64 + 4 + ALIGN] = {0};
    uint8_t record[CENTRAL_BYTES], wide[CENTRAL64];

    put_numbers(local, "42222244422",
                (uint64_t[]){local_magic, VERSION, UTF8_NAME, 0, 0, DATE, crc, UINT32_MAX,
                             UINT32_MAX, len, LOCAL64 + 4 + pad});
    put_numbers(extra, "228822",
                (uint64_t[]){ZIP64_EXTRA, LOCAL64 - 4, n, n, PADDING_EXTRA, pad});
    VPTQ_CHECK(vptq_file_write(&w->file, local, sizeof local, err));
    VPTQ_CHECK(vptq_file_write(&w->file, name, len, err));
    VPTQ_CHECK(vptq_file_write(&w->file, extra, LOCAL64 + 4 + pad, err));
    VPTQ_CHECK(vptq_file_write(&w->file, data, n, err));

    put_numbers(record, "42222224442222244",
                (uint64_t[]){central_magic, VERSION, VERSION, UTF8_NAME, 0, 0, DATE, crc,
                             UINT32_MAX, UINT32_MAX, len, CENTRAL64, 0, 0, 0, 0, UINT32_MAX});
    put_numbers(wide, "22888", (uint64_t[]){ZIP64_EXTRA, CENTRAL64 - 4, n, n, at});
    VPTQ_CHECK(vptq_buf_add(&w->directory, record, sizeof record, err));
    VPTQ_CHECK(vptq_buf_add(&w->directory, name, len, err));
    VPTQ_CHECK(vptq_buf_add(&w->directory, wide, sizeof wide, err));
    w->count++;
    return VPTQ_OK;
}

vptq_status vptq_zip_writer_commit(vptq_zip_writer *w, vptq_err *err)
{
    const uint64_t at = w->file.written, end64 = at + w->directory.len;
    uint8_t tail[END64_BYTES + LOCATOR_BYTES + END_BYTES];
    uint8_t *locator = tail + END64_BYTES, *end = locator + LOCATOR_BYTES;

    put_numbers(tail, "4822448888",
                (uint64_t[]){end64_magic, END64_BYTES - 12, VERSION, VERSION, 0, 0, w->count,
                             w->count, w->directory.len, at});
    put_numbers(locator, "4484", (uint64_t[]){locator_magic, 0, end64, 1});
    put_numbers(
        end, "42222442",
        (uint64_t[]){end_magic, 0, 0, UINT16_MAX, UINT16_MAX, UINT32_MAX, UINT32_MAX, 0});
    VPTQ_CHECK(vptq_file_write(&w->file, w->directory.data, w->directory.len, err));
    VPTQ_CHECK(vptq_file_write(&w->file, tail, sizeof tail, err));
    return vptq_file_writer_commit(&w->file, err);
}

void vptq_zip_writer_abort(vptq_zip_writer *w)
{
    vptq_buf_release(&w->directory);
    if (w->file.fd >= 0)
        vptq_file_writer_abort(&w->file);
}
