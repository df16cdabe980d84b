/* The file of records of serving runs: one JSON object per line, appended run by run. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/json.h"
#include "lib/base/buf.h"
#include "lib/base/file.h"
#include "lib/bench/serve.h"

enum { MAX_FILE = 256 << 20 }; /* bytes */

struct vptq_serve_log {
    vptq_mem *mem;
    const char *path;
    int fd;
    off_t end;    /* offset after the last whole line */
    json_t *runs; /* run name -> record, with "line" */
};

/* ---- names ---- */

void vptq_serve_group(const vptq_serve_record *r, char name[VPTQ_SERVE_RUN_NAME])
{
    snprintf(name, VPTQ_SERVE_RUN_NAME, "%s_%s", r->model->name, r->config->name);
}

void vptq_serve_run_name(const vptq_serve_record *r, char name[VPTQ_SERVE_RUN_NAME])
{
    snprintf(name, VPTQ_SERVE_RUN_NAME, "%s_%s_run%" PRIu32, r->model->name, r->config->name,
             r->run);
}

/* ---- reading ---- */

static vptq_status read_line(vptq_serve_log *log, const char *line, size_t n, size_t number,
                             vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    json_t *record = NULL;
    const char *name;
    char where[4200];
    snprintf(where, sizeof where, "%s:%zu", log->path, number);
    VPTQ_TRY(vptq_json_parse(line, n, where, &record, err));
    VPTQ_TRY(vptq_json_unseal_if(record, where, err));
    VPTQ_TRY(vptq_json_str_or(record, where, "run_name", NULL, &name, err));
    if (json_object_get(log->runs, name)) {
        st = vptq_fail(err, VPTQ_E_EXISTS, "%s: run '%s' appears twice", where, name);
    } else if (json_object_set_new(record, "line", json_integer((json_int_t)number)) ||
               json_object_set(log->runs, name, record)) {
        st = vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    }
out:
    json_decref(record);
    return st;
}

/* Accepts a partial last line only if it begins as records do, as a killed run leaves it;
 * anything else is not removed. */
static vptq_status check_partial_line(const vptq_serve_log *log, const char *text, size_t n,
                                      size_t number, vptq_err *err)
{
    static const char start[] = "{\"run_name\": ";
    const size_t start_len = sizeof start - 1;
    if (memcmp(text, start, n < start_len ? n : start_len) == 0)
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_FORMAT,
                     "%s:%zu: the last line has no end and is not a record of a run", log->path,
                     number);
}

static vptq_status read_text(vptq_serve_log *log, const char *text, size_t size, vptq_err *err)
{
    for (size_t at = 0, number = 1; at < size; number++) {
        const char *end = memchr(text + at, '\n', size - at);
        if (!end)
            return check_partial_line(log, text + at, size - at, number, err);
        VPTQ_CHECK(read_line(log, text + at, (size_t)(end - text) - at, number, err));
        at = (size_t)(end - text) + 1;
        log->end = (off_t)at;
    }
    return VPTQ_OK;
}

static vptq_status fail_file(const char *path, const char *what, vptq_err *err)
{
    return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot %s '%s'", what, path);
}

vptq_status vptq_serve_log_check(const char *path, vptq_err *err)
{
    if (!vptq_path_exists(path))
        return vptq_path_check_create(path, "write", err);
    return access(path, W_OK) ? fail_file(path, "write", err) : VPTQ_OK;
}

static vptq_status open_file(vptq_serve_log *log, bool force, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char *text = NULL;
    size_t size;
    struct stat sb;
    VPTQ_TRY(vptq_path_make_parent(log->path, err));
    /* the file is changed in place, and so must be the one that was named */
    log->fd = open(log->path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (log->fd < 0 && errno == ELOOP)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_IO,
                           "'%s' is a symbolic link; name the file of records itself",
                           log->path));
    if (log->fd < 0 || fstat(log->fd, &sb))
        VPTQ_TRY(fail_file(log->path, "write", err));
    if (!S_ISREG(sb.st_mode))
        VPTQ_TRY(
            vptq_fail(err, VPTQ_E_IO, "cannot write '%s': is not a plain file", log->path));
    /* two processes would overwrite each other's records */
    if (flock(log->fd, LOCK_EX | LOCK_NB))
        VPTQ_TRY(
            errno == EWOULDBLOCK
                ? vptq_fail(err, VPTQ_E_LOCKED, "'%s' is in use by another process", log->path)
                : fail_file(log->path, "lock", err));
    if (!force) {
        VPTQ_TRY(vptq_file_read(log->path, MAX_FILE, log->mem, &text, &size, err));
        VPTQ_TRY(read_text(log, text, size, err));
    }
    if (ftruncate(log->fd, log->end))
        VPTQ_TRY(fail_file(log->path, "cut", err));
out:
    vptq_mem_free(log->mem, text);
    return st;
}

vptq_status vptq_serve_log_open(vptq_mem *mem, const char *path, bool force,
                                vptq_serve_log **out, vptq_err *err)
{
    *out = NULL;
    vptq_serve_log *log = vptq_mem_alloc(mem, 1, sizeof *log, err);
    if (!log)
        return VPTQ_E_NOMEM;
    *log = (vptq_serve_log){.mem = mem, .path = path, .fd = -1, .runs = json_object()};
    const vptq_status st =
        log->runs ? open_file(log, force, err) : vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    if (st)
        vptq_serve_log_close(log);
    else
        *out = log;
    return st;
}

void vptq_serve_log_close(vptq_serve_log *log)
{
    if (!log)
        return;
    if (log->fd >= 0)
        close(log->fd);
    json_decref(log->runs);
    vptq_mem_free(log->mem, log);
}

/* ---- one record ---- */

static const char *kv_name(vptq_dtype kv)
{
    return kv == VPTQ_F16 ? "f16" : "f32";
}

static json_t *real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *integer(uint64_t x)
{
    return json_integer((json_int_t)x);
}

static json_t *to_json(const vptq_serve_record *r)
{
    char group[VPTQ_SERVE_RUN_NAME], name[VPTQ_SERVE_RUN_NAME];
    vptq_serve_group(r, group);
    vptq_serve_run_name(r, name);
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
        "s:o, s:o, s:s, s:o, s:s, s:o, s:s}",
        "run_name", name, "group", group, "model", r->model->name, "config", r->config->name,
        "run", integer(r->run), "batch_size", integer(r->config->batch), "input_len",
        integer(r->config->input), "output_len", integer(r->config->output), "latency",
        real(r->latency), "ttft", real(r->ttft), "output_throughput",
        real(r->output_throughput), "overall_throughput", real(r->overall_throughput),
        "input_throughput", real(r->input_throughput), "last_gen_throughput",
        real(r->last_gen_throughput), "peak_memory_bytes", integer(r->peak_memory_bytes),
        "weight_bytes", integer(r->need.weights), "cache_bytes", integer(r->need.cache),
        "working_bytes", integer(r->need.working), "bits_per_weight", real(r->bits_per_weight),
        "kv", kv_name(r->kv), "threads", integer((uint64_t)r->threads), "backend", r->backend,
        "seed", integer(r->seed), "model_fingerprint", r->model->model->fingerprint);
}

/* Settings that must be equal for a run to be reused. */
static const char *const settings[] = {"batch_size",        "input_len", "output_len",
                                       "model_fingerprint", "kv",        "bits_per_weight",
                                       "threads",           "backend",   "seed"};

static vptq_status check_setting(const vptq_serve_log *log, const json_t *have,
                                 const json_t *want, const char *key, vptq_err *err)
{
    const json_t *a = json_object_get(have, key), *b = json_object_get(want, key);
    if (a && json_equal(a, b))
        return VPTQ_OK;
    char *was = a ? json_dumps(a, JSON_ENCODE_ANY) : NULL,
         *now = json_dumps(b, JSON_ENCODE_ANY);
    const vptq_status st = vptq_fail(
        err, VPTQ_E_MISMATCH,
        "%s:%" JSON_INTEGER_FORMAT ": run '%s' has %s %s, expected %s; use another file, or "
        "-f to replace this one",
        log->path, json_integer_value(json_object_get(have, "line")),
        json_string_value(json_object_get(want, "run_name")), key, was ? was : "missing",
        now ? now : "another");
    free(was);
    free(now);
    return st;
}

static vptq_status read_figure(const vptq_serve_log *log, const json_t *have, const char *key,
                               double *x, vptq_err *err)
{
    return vptq_json_f64_or(have, log->path, key, (double)NAN, x, err);
}

vptq_status vptq_serve_log_find(const vptq_serve_log *log, vptq_serve_record *r, bool *found,
                                vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char name[VPTQ_SERVE_RUN_NAME];
    vptq_serve_run_name(r, name);
    const json_t *have = json_object_get(log->runs, name);
    *found = have != NULL;
    if (!have)
        return VPTQ_OK;
    json_t *want = to_json(r);
    if (!want)
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        VPTQ_TRY(check_setting(log, have, want, settings[i], err));
    VPTQ_TRY(read_figure(log, have, "latency", &r->latency, err));
    VPTQ_TRY(read_figure(log, have, "ttft", &r->ttft, err));
    VPTQ_TRY(read_figure(log, have, "output_throughput", &r->output_throughput, err));
    VPTQ_TRY(read_figure(log, have, "overall_throughput", &r->overall_throughput, err));
    VPTQ_TRY(read_figure(log, have, "input_throughput", &r->input_throughput, err));
    VPTQ_TRY(read_figure(log, have, "last_gen_throughput", &r->last_gen_throughput, err));
    VPTQ_TRY(vptq_json_u64_or(have, log->path, "peak_memory_bytes", UINT64_MAX, 0,
                              &r->peak_memory_bytes, err));
    r->resumed = true;
out:
    json_decref(want);
    return st;
}

vptq_status vptq_serve_log_add(vptq_serve_log *log, const vptq_serve_record *r, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char *text = NULL;
    vptq_buf line;
    json_t *record = to_json(r);
    vptq_buf_init(&line, log->mem);
    if (!record)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_NOMEM, "out of memory"));
    VPTQ_TRY(vptq_json_seal(record, log->path, err));
    VPTQ_TRY(vptq_json_text(record, log->path, false, &text, err));
    VPTQ_TRY(vptq_buf_printf(&line, err, "%s\n", text));
    if (!vptq_write_at(log->fd, line.data, line.len, (uint64_t)log->end) || fsync(log->fd))
        VPTQ_TRY(fail_file(log->path, "write", err));
    log->end += (off_t)line.len;
out:
    vptq_buf_release(&line);
    free(text);
    json_decref(record);
    return st;
}
