/* Reads and writes saved base logits. */
#include "formats/vptq/kld_base.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const uint8_t magic[8] = {0x8F, 'V', 'P', 'T', 'K', 0x0D, 0x0A, 0x1A};
enum { VERSION = 1, SUM = 8 };

/* Offsets in the head. */
enum {
    AT_VERSION = 8,
    AT_PRECISION = 12,
    AT_VOCAB = 16,
    AT_ENTRIES = 20,
    AT_CONTEXT = 24,
    AT_PROTOCOL = 28,
    AT_WINDOWS = 32,
    AT_BOS = 36,
    AT_MODEL = 40,
    AT_VOCABULARY = 48,
    AT_IDS_SUM = 56,
    AT_NAME = 64,
    AT_HEAD_SUM = AT_NAME + VPTQ_KLD_BASE_NAME_MAX + 1,
    HEAD_BYTES = AT_HEAD_SUM + SUM
};

/* Offsets in a record. */
enum {
    AT_TARGET = 0,
    AT_LIKELIEST = 4,
    AT_HIGHEST = 8,
    AT_LOWEST = 12,
    AT_TAIL = 16,
    AT_CODES = 24
};

/* Range of the stored log-probabilities below the highest.  All ids below it together are
 * negligible: e^-24 times a vocabulary of 2^18 is 1e-5 of the likeliest id's probability. */
static const double range = 24;

/* Tolerance for probabilities that round to slightly more than 1. */
static const float rounding = 1e-5f;

size_t vptq_kld_base_positions(const vptq_kld_base_head *h)
{
    return h->context - 1 - (h->protocol == VPTQ_KLD_BASE_LLAMA_CPP ? h->context / 2 : 0);
}

static unsigned id_bytes(const vptq_kld_base_head *h)
{
    if (h->precision == VPTQ_KLD_BASE_FULL)
        return 0;
    return h->vocab > VPTQ_KLD_BASE_CODES ? 4 : 2;
}

size_t vptq_kld_base_record_bytes(const vptq_kld_base_head *h)
{
    size_t bytes = AT_CODES + (size_t)h->entries * (2 + id_bytes(h));
    return (bytes + 7) / 8 * 8 + SUM;
}

static float get_float(const uint8_t *p)
{
    const uint32_t bits = (uint32_t)vptq_get_le(p, 4);
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void put_float(uint8_t *p, double x)
{
    const float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    vptq_put_le(p, bits, 4);
}

vptq_kld_base_record vptq_kld_base_record_at(const vptq_kld_base_head *h, const uint8_t *bytes)
{
    const unsigned wide = id_bytes(h);
    return (vptq_kld_base_record){
        .target = get_float(bytes + AT_TARGET),
        .highest = get_float(bytes + AT_HIGHEST),
        .lowest = get_float(bytes + AT_LOWEST),
        .tail = get_float(bytes + AT_TAIL),
        .likeliest = (uint32_t)vptq_get_le(bytes + AT_LIKELIEST, 4),
        .codes = bytes + AT_CODES,
        .ids = wide ? bytes + AT_CODES + 2 * (size_t)h->entries : NULL,
        .id_bytes = wide,
    };
}

void vptq_kld_base_record_fill(const vptq_kld_base_head *h, uint64_t number,
                               const vptq_kld_base_values *v, uint8_t *bytes)
{
    const double *values = v->values;
    const size_t size = vptq_kld_base_record_bytes(h);
    const unsigned wide = id_bytes(h);
    double highest = values[0], lowest = values[0];
    for (size_t i = 1; i < h->entries; i++) {
        highest = values[i] > highest ? values[i] : highest;
        lowest = values[i] < lowest ? values[i] : lowest;
    }
    lowest = lowest < highest - range ? highest - range : lowest;
    memset(bytes, 0, size);
    put_float(bytes + AT_TARGET, v->target);
    vptq_put_le(bytes + AT_LIKELIEST, v->likeliest, 4);
    put_float(bytes + AT_HIGHEST, highest);
    put_float(bytes + AT_LOWEST, lowest);
    put_float(bytes + AT_TAIL, v->tail);
    const double steps = highest > lowest ? (VPTQ_KLD_BASE_CODES - 1) / (highest - lowest) : 0;
    for (size_t i = 0; i < h->entries; i++) {
        const double above = values[i] > lowest ? values[i] - lowest : 0;
        vptq_put_le(bytes + AT_CODES + 2 * i, (uint64_t)(above * steps + 0.5), 2);
        if (wide)
            vptq_put_le(bytes + AT_CODES + 2 * (size_t)h->entries + wide * i, v->ids[i], wide);
    }
    vptq_put_le(bytes + size - SUM, vptq_hash(bytes, size - SUM, number), SUM);
}

/* ---- reading ---- */

static vptq_status damaged(const char *path, const char *what, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_CHECKSUM,
                     "%s: the file is damaged: the checksum of %s differs", path, what);
}

static void parse_head(const uint8_t *b, vptq_kld_base_head *h)
{
    *h = (vptq_kld_base_head){
        .precision = (vptq_kld_base_precision)vptq_get_le(b + AT_PRECISION, 4),
        .protocol = (vptq_kld_base_protocol)vptq_get_le(b + AT_PROTOCOL, 4),
        .vocab = (uint32_t)vptq_get_le(b + AT_VOCAB, 4),
        .entries = (uint32_t)vptq_get_le(b + AT_ENTRIES, 4),
        .context = (uint32_t)vptq_get_le(b + AT_CONTEXT, 4),
        .windows = (uint32_t)vptq_get_le(b + AT_WINDOWS, 4),
        .bos = (int32_t)vptq_get_le(b + AT_BOS, 4),
        .model = vptq_get_le(b + AT_MODEL, 8),
        .vocabulary = vptq_get_le(b + AT_VOCABULARY, 8),
    };
    memcpy(h->name, b + AT_NAME, VPTQ_KLD_BASE_NAME_MAX);
}

static vptq_status check_head(const char *path, const uint8_t *b, const vptq_kld_base_head *h,
                              vptq_err *err)
{
    const bool full = h->precision == VPTQ_KLD_BASE_FULL;
    const struct {
        bool wrong;
        const char *what;
    } checks[] = {
        {vptq_get_le(b + AT_PRECISION, 4) > VPTQ_KLD_BASE_FULL, "precision"},
        {vptq_get_le(b + AT_PROTOCOL, 4) >= VPTQ_KLD_BASE_PROTOCOLS, "protocol"},
        {h->vocab == 0 || h->vocab > INT32_MAX, "size of the vocabulary"},
        {h->entries == 0 || h->entries > h->vocab || (full && h->entries != h->vocab),
         "number of entries"},
        {h->context < 2 || h->context > INT32_MAX || vptq_kld_base_positions(h) == 0,
         "context"},
        {h->windows == 0, "number of windows"},
        {h->bos < -1 || (h->bos >= 0 && (uint32_t)h->bos >= h->vocab), "BOS id"},
        {b[AT_NAME + VPTQ_KLD_BASE_NAME_MAX] != 0, "name"},
    };
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
        if (checks[i].wrong)
            return vptq_fail(err, VPTQ_E_FORMAT, "%s: the head has an invalid %s", path,
                             checks[i].what);
    return VPTQ_OK;
}

/* Checks the size of the file.  *ids: bytes of the ids. */
static vptq_status check_size(const vptq_kld_base_file *f, size_t *ids, vptq_err *err)
{
    const vptq_kld_base_head *h = &f->head;
    size_t records = 0, bytes = 0;
    if (!vptq_size_mul(h->windows, h->context, ids) ||
        !vptq_size_mul(*ids, sizeof(int32_t), ids) ||
        !vptq_size_mul(h->windows, vptq_kld_base_positions(h), &records) ||
        !vptq_size_mul(records, vptq_kld_base_record_bytes(h), &bytes) ||
        !vptq_size_add(bytes, *ids, &bytes) || !vptq_size_add(bytes, HEAD_BYTES, &bytes))
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: the sizes in the head overflow",
                         f->file.path);
    if (bytes != f->file.size)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: the file has %" PRIu64 " bytes, but %" PRIu32
                         " windows of %" PRIu32 " tokens need %zu",
                         f->file.path, f->file.size, h->windows, h->context, bytes);
    return VPTQ_OK;
}

static vptq_status read_ids(vptq_kld_base_file *f, size_t bytes, uint64_t sum, vptq_err *err)
{
    const size_t n = bytes / sizeof *f->ids;
    f->ids = vptq_mem_alloc(f->mem, bytes, 1, err);
    if (!f->ids)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(vptq_file_read_at(&f->file, HEAD_BYTES, f->ids, bytes, err));
    if (vptq_hash(f->ids, bytes, 0) != sum)
        return damaged(f->file.path, "the token ids", err);
    for (size_t i = 0; i < n; i++) {
        uint8_t b[sizeof *f->ids];
        memcpy(b, &f->ids[i], sizeof b);
        f->ids[i] = (int32_t)vptq_get_le(b, sizeof b);
        if (f->ids[i] < 0 || (uint32_t)f->ids[i] >= f->head.vocab)
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: token %zu has id %" PRId32 ", expected less than %" PRIu32,
                             f->file.path, i, f->ids[i], f->head.vocab);
    }
    return VPTQ_OK;
}

vptq_status vptq_kld_base_file_open(const char *path, vptq_mem *mem, vptq_kld_base_file *f,
                                    vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    uint8_t b[HEAD_BYTES];
    size_t ids;
    *f = (vptq_kld_base_file){.file = {.fd = -1}, .mem = mem};
    VPTQ_TRY(vptq_file_open(path, &f->file, err));
    size_t have = f->file.size < HEAD_BYTES ? (size_t)f->file.size : HEAD_BYTES;
    VPTQ_TRY(vptq_file_read_at(&f->file, 0, b, have, err));
    if (have < HEAD_BYTES || memcmp(b, magic, sizeof magic) != 0)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_FORMAT,
                           "%s: is not a file of saved base logits, as --save-base writes it",
                           path));
    if (vptq_get_le(b + AT_VERSION, 4) != VERSION)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_UNSUPPORTED,
                           "%s: version %" PRIu64 " of saved base logits, expected %d", path,
                           vptq_get_le(b + AT_VERSION, 4), VERSION));
    f->hash = vptq_hash(b, AT_HEAD_SUM, 0);
    if (f->hash != vptq_get_le(b + AT_HEAD_SUM, SUM))
        VPTQ_TRY(damaged(path, "the head", err));
    parse_head(b, &f->head);
    VPTQ_TRY(check_head(path, b, &f->head, err));
    VPTQ_TRY(check_size(f, &ids, err));
    VPTQ_TRY(read_ids(f, ids, vptq_get_le(b + AT_IDS_SUM, SUM), err));
out:
    if (st)
        vptq_kld_base_file_release(f);
    return st;
}

void vptq_kld_base_file_release(vptq_kld_base_file *f)
{
    vptq_file_close(&f->file);
    vptq_mem_free(f->mem, f->ids);
    f->ids = NULL;
}

/* True for a valid log-probability: not NaN, at most 0. */
static bool is_log(float x)
{
    return x <= rounding && x >= -FLT_MAX;
}

static bool check_record(const vptq_kld_base_head *h, const vptq_kld_base_record *r)
{
    if (!is_log(r->target) || !is_log(r->highest) || !is_log(r->lowest) ||
        r->lowest > r->highest || r->likeliest >= h->vocab ||
        !(is_log(r->tail) || (isinf(r->tail) && r->tail < 0)))
        return false;
    for (size_t i = 0; r->ids && i < h->entries; i++)
        if (vptq_kld_base_id(r, i) >= h->vocab ||
            (i > 0 && vptq_kld_base_id(r, i) <= vptq_kld_base_id(r, i - 1)))
            return false;
    return true;
}

vptq_status vptq_kld_base_file_read(const vptq_kld_base_file *f, uint64_t first, size_t n,
                                    uint8_t *bytes, vptq_err *err)
{
    const size_t size = vptq_kld_base_record_bytes(&f->head);
    const uint64_t ids = (uint64_t)f->head.windows * f->head.context * sizeof *f->ids;
    VPTQ_CHECK(
        vptq_file_read_at(&f->file, HEAD_BYTES + ids + first * size, bytes, n * size, err));
    for (size_t i = 0; i < n; i++) {
        const uint8_t *b = bytes + i * size;
        const uint64_t number = first + i;
        if (vptq_hash(b, size - SUM, number) != vptq_get_le(b + size - SUM, SUM))
            return vptq_fail(err, VPTQ_E_CHECKSUM,
                             "%s: the file is damaged: the checksum of record %" PRIu64
                             " differs",
                             f->file.path, number);
        const vptq_kld_base_record r = vptq_kld_base_record_at(&f->head, b);
        if (!check_record(&f->head, &r))
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: record %" PRIu64 " has an invalid probability or id",
                             f->file.path, number);
    }
    return VPTQ_OK;
}

/* ---- writing ---- */

vptq_status vptq_kld_base_writer_open(const char *path, bool force,
                                      const vptq_kld_base_head *head, const int32_t *ids,
                                      vptq_kld_base_writer *w, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    uint8_t b[HEAD_BYTES] = {0};
    const size_t count = (size_t)head->windows * head->context;
    const struct {
        int at;
        uint64_t value;
    } numbers[] = {{AT_VERSION, VERSION},       {AT_PRECISION, (uint64_t)head->precision},
                   {AT_VOCAB, head->vocab},     {AT_ENTRIES, head->entries},
                   {AT_CONTEXT, head->context}, {AT_PROTOCOL, (uint64_t)head->protocol},
                   {AT_WINDOWS, head->windows}, {AT_BOS, (uint32_t)head->bos}};
    w->file.fd = -1;
    w->head = *head;
    w->records = 0;
    memcpy(b, magic, sizeof magic);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        vptq_put_le(b + numbers[i].at, numbers[i].value, 4);
    vptq_put_le(b + AT_MODEL, head->model, 8);
    vptq_put_le(b + AT_VOCABULARY, head->vocabulary, 8);
    vptq_put_le(b + AT_IDS_SUM, vptq_hash(ids, count * sizeof *ids, 0), SUM);
    memcpy(b + AT_NAME, head->name, strnlen(head->name, VPTQ_KLD_BASE_NAME_MAX));
    vptq_put_le(b + AT_HEAD_SUM, vptq_hash(b, AT_HEAD_SUM, 0), SUM);
    VPTQ_TRY(vptq_file_writer_open(path, force, &w->file, err));
    VPTQ_TRY(vptq_file_write(&w->file, b, sizeof b, err));
    VPTQ_TRY(vptq_file_write(&w->file, ids, count * sizeof *ids, err));
out:
    if (st)
        vptq_kld_base_writer_abort(w);
    return st;
}

vptq_status vptq_kld_base_writer_add(vptq_kld_base_writer *w, const uint8_t *bytes, size_t n,
                                     vptq_err *err)
{
    w->records += n;
    return vptq_file_write(&w->file, bytes, n * vptq_kld_base_record_bytes(&w->head), err);
}

vptq_status vptq_kld_base_writer_commit(vptq_kld_base_writer *w, vptq_err *err)
{
    VPTQ_BUG_IF(w->records != (uint64_t)w->head.windows * vptq_kld_base_positions(&w->head));
    return vptq_file_writer_commit(&w->file, err);
}

void vptq_kld_base_writer_abort(vptq_kld_base_writer *w)
{
    vptq_file_writer_abort(&w->file);
}
