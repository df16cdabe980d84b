/* Reads the records of a serving benchmark. */
#include "lib/report/records.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/json.h"
#include "formats/text_file.h"

enum {
    MAX_FILE = 256 << 20, /* bytes: half a million records */
    MAX_NAME = 1000,      /* bytes */
    MAX_COUNT =
        1000000000 /* requests or tokens: a product of three is exact enough in a double */
};

const char *const vptq_record_settings[VPTQ_RECORD_SETTINGS] = {"kv", "threads", "seed",
                                                                "model_fingerprint"};

/* Range of seconds, rates, bits and bytes; quotients and products of a few stay finite. */
static const double min_real = 1e-12, max_real = 1e18;

/* A record that is being read. */
typedef struct reader {
    vptq_records *to;
    const json_t *object;
    const char *where; /* "FILE: line N", for errors */
} reader;

void vptq_records_init(vptq_records *r, vptq_mem *mem)
{
    *r = (vptq_records){.items = NULL};
    vptq_arena_init(&r->arena, mem);
}

void vptq_records_release(vptq_records *r)
{
    vptq_mem_free(r->arena.mem, r->items);
    vptq_arena_release(&r->arena);
    *r = (vptq_records){.items = NULL};
}

size_t vptq_run_name_stem(const char *run_name)
{
    size_t n = strlen(run_name), digits = n;
    while (digits > 0 && run_name[digits - 1] >= '0' && run_name[digits - 1] <= '9')
        digits--;
    if (digits == n || digits <= 4 || memcmp(run_name + digits - 4, "_run", 4) != 0)
        return n;
    return digits - 4;
}

/* ---- keys ---- */

/* Fails with the value found at a key. */
static vptq_status refuse_value(const reader *p, const char *key, const json_t *found,
                                const char *expected, vptq_err *err)
{
    static const char *const kinds[] = {"an object", "a list", "a string", "an integer",
                                        "a real",    "true",   "false",    "null"};
    char text[64];
    snprintf(text, sizeof text, "%s", found ? kinds[json_typeof(found)] : "nothing");
    if (json_is_integer(found))
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(found));
    else if (json_is_real(found))
        snprintf(text, sizeof text, "%g", json_real_value(found));
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s': found %s, expected %s", p->where, key,
                     text, expected);
}

static vptq_status read_count(const reader *p, const char *key, uint32_t *out, vptq_err *err)
{
    const json_t *v = json_object_get(p->object, key);
    json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < 1 || n > MAX_COUNT)
        return refuse_value(p, key, v, "a whole number from 1 to 1000000000", err);
    *out = (uint32_t)n;
    return VPTQ_OK;
}

/* Sets *out to NaN if the key is missing or null, which fails if it is required. */
static vptq_status read_real(const reader *p, const char *key, bool required, double *out,
                             vptq_err *err)
{
    const json_t *v = json_object_get(p->object, key);
    double x = json_number_value(v);
    *out = (double)NAN;
    if (!required && (!v || json_is_null(v)))
        return VPTQ_OK;
    if (!json_is_number(v) || !(x > 0) || !isfinite(x))
        return refuse_value(p, key, v, "a number above 0", err);
    if (x < min_real || x > max_real)
        return refuse_value(p, key, v, "a number from 1e-12 to 1e18", err);
    *out = x;
    return VPTQ_OK;
}

static bool is_name(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f)
            return false;
    return n > 0 && n <= MAX_NAME;
}

static vptq_status read_name(const reader *p, const char *key, bool required, const char **out,
                             vptq_err *err)
{
    const json_t *v = json_object_get(p->object, key);
    *out = NULL;
    if (!required && (!v || json_is_null(v)))
        return VPTQ_OK;
    if (!json_is_string(v))
        return refuse_value(p, key, v, "a string", err);
    if (!is_name(json_string_value(v), json_string_length(v)))
        return vptq_fail(
            err, VPTQ_E_FORMAT,
            "%s: key '%s': found a string of %zu bytes, expected a name of 1 to %d "
            "bytes without control characters",
            p->where, key, json_string_length(v), (int)MAX_NAME);
    *out = vptq_arena_strdup(&p->to->arena, json_string_value(v), err);
    return *out ? VPTQ_OK : VPTQ_E_NOMEM;
}

/* Only compared with those of other runs: a value of another kind counts as not recorded. */
static vptq_status read_setting(const reader *p, const char *key, const char **out,
                                vptq_err *err)
{
    const json_t *v = json_object_get(p->object, key);
    char number[32];
    *out = NULL;
    if (json_is_string(v) && is_name(json_string_value(v), json_string_length(v)))
        return read_name(p, key, false, out, err);
    if (!json_is_integer(v))
        return VPTQ_OK;
    snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    *out = vptq_arena_strdup(&p->to->arena, number, err);
    return *out ? VPTQ_OK : VPTQ_E_NOMEM;
}

static vptq_status read_record(const reader *p, vptq_record *r, vptq_err *err)
{
    VPTQ_CHECK(read_name(p, "run_name", true, &r->run_name, err));
    VPTQ_CHECK(read_name(p, "group", false, &r->group, err));
    VPTQ_CHECK(read_count(p, "batch_size", &r->batch_size, err));
    VPTQ_CHECK(read_count(p, "input_len", &r->input_len, err));
    VPTQ_CHECK(read_count(p, "output_len", &r->output_len, err));
    VPTQ_CHECK(read_real(p, "latency", true, &r->latency, err));
    VPTQ_CHECK(read_real(p, "output_throughput", false, &r->output_throughput, err));
    VPTQ_CHECK(read_real(p, "overall_throughput", false, &r->overall_throughput, err));
    VPTQ_CHECK(read_real(p, "input_throughput", false, &r->input_throughput, err));
    VPTQ_CHECK(read_real(p, "ttft", false, &r->ttft, err));
    VPTQ_CHECK(read_real(p, "bits_per_weight", false, &r->bits_per_weight, err));
    VPTQ_CHECK(read_real(p, "peak_memory_bytes", false, &r->peak_memory_bytes, err));
    VPTQ_CHECK(read_name(p, "config", false, &r->config, err));
    VPTQ_CHECK(read_name(p, "backend", false, &r->backend, err));
    for (size_t i = 0; i < VPTQ_RECORD_SETTINGS; i++)
        VPTQ_CHECK(read_setting(p, vptq_record_settings[i], &r->settings[i], err));
    if (!r->group) {
        r->group = vptq_arena_strndup(&p->to->arena, r->run_name,
                                      vptq_run_name_stem(r->run_name), err);
        if (!r->group)
            return VPTQ_E_NOMEM;
    }
    return VPTQ_OK;
}

/* ---- lines ---- */

static vptq_status append(vptq_records *r, const vptq_record *record, vptq_err *err)
{
    if (r->count == r->cap) {
        size_t cap = r->cap ? 2 * r->cap : 64;
        vptq_record *items = vptq_mem_alloc(r->arena.mem, cap, sizeof *items, err);
        if (!items)
            return VPTQ_E_NOMEM;
        if (r->count)
            memcpy(items, r->items, r->count * sizeof *items);
        vptq_mem_free(r->arena.mem, r->items);
        r->items = items;
        r->cap = cap;
    }
    r->items[r->count++] = *record;
    return VPTQ_OK;
}

static vptq_status parse_line(vptq_records *r, const char *text, size_t len, const char *name,
                              size_t line, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    json_t *value = NULL;
    vptq_record record;
    char where[512];
    snprintf(where, sizeof where, "%.450s: line %zu", name, line);
    VPTQ_TRY(vptq_json_parse_at(text, len, name, line, &value, err));
    if (!json_is_object(value)) {
        st = vptq_fail(err, VPTQ_E_FORMAT, "%s: not an object, expected a record {...}", where);
        goto out;
    }
    VPTQ_TRY(vptq_json_unseal_if(value, where, err));
    VPTQ_TRY(read_record(&(reader){.to = r, .object = value, .where = where}, &record, err));
    VPTQ_TRY(append(r, &record, err));
out:
    json_decref(value);
    return st;
}

static bool is_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r", s[i]) || !s[i])
            return false;
    return true;
}

vptq_status vptq_records_parse(vptq_records *r, const char *text, size_t len, const char *name,
                               vptq_err *err)
{
    size_t before = r->count, line = 1;
    for (size_t at = 0; at < len; line++) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - (text + at)) : len - at;
        if (!is_blank(text + at, n))
            VPTQ_CHECK(parse_line(r, text + at, n, name, line, err));
        at += n + 1;
    }
    if (r->count == before)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: has no records", name);
    return VPTQ_OK;
}

vptq_status vptq_records_read(const vptq_ctx *ctx, vptq_records *r, const char *path,
                              vptq_err *err)
{
    vptq_text_file t;
    VPTQ_CHECK(vptq_text_file_open(ctx, path, VPTQ_TEXT_JSON, MAX_FILE, &t, err));
    const vptq_status st = vptq_records_parse(r, t.data, t.size, t.name, err);
    vptq_text_file_close(&t);
    return st;
}
