/* Streams of hidden states and their checkpoint. */
#include "hessian/hidden_states.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/comm.h"
#include "lib/base/file.h"

enum { CHUNK = 256 }; /* rows of a checkpoint that are written, read and hashed at a time */

/* ---- the unnamed file ---- */

static vptq_status open_spill(vptq_hidden_states *s, const char *dir, vptq_err *err)
{
    char path[sizeof s->dir], name[sizeof VPTQ_SPILL_FILE + 16] = VPTQ_SPILL_FILE;
    const int rank = vptq_comm_rank(s->ctx);
    if (rank) /* else a rank could sweep the file of another machine, whose lock it may not see
               */
        snprintf(name, sizeof name, "%s-%d", VPTQ_SPILL_FILE, rank);
    VPTQ_CHECK(vptq_path_join(path, sizeof path, dir, name, err));
    snprintf(s->dir, sizeof s->dir, "%s", dir);
    return vptq_file_unnamed(path, &s->fd, err);
}

vptq_status vptq_hidden_states_open(const vptq_ctx *ctx, const char *dir, size_t reserve,
                                    vptq_hidden_states *s, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t left = vptq_mem_left(ctx->mem);
    size_t bytes, rows = s->rows ? s->rows : 1; /* a rank may have no windows */

    s->ctx = ctx;
    s->fd = -1;
    s->data = NULL;
    s->sums = NULL;
    if (!vptq_size_mul(rows, s->dim, &bytes) || !vptq_size_mul(bytes, sizeof *s->data, &bytes))
        return vptq_fail(err, VPTQ_E_NOMEM, "hidden states of %zu tokens are too large", rows);
    if (s->resident)
        rows = s->max_rows < CHUNK ? s->max_rows : CHUNK;
    else if (dir && s->max_rows < rows && (left < reserve || bytes > (left - reserve) / 2)) {
        VPTQ_TRY(open_spill(s, dir, err));
        vptq_log(ctx, VPTQ_LOG_MORE, "hidden states (%zu MiB) go to a file in '%s'",
                 bytes >> 20, dir);
        s->sums = vptq_mem_alloc(ctx->mem, rows, sizeof *s->sums, err);
        if (!s->sums)
            VPTQ_TRY(VPTQ_E_NOMEM);
        rows = s->max_rows;
    }
    s->data = vptq_mem_alloc(ctx->mem, rows, s->dim * sizeof *s->data, err);
    if (!s->data) {
        vptq_err_context(err, "hidden states of %zu tokens", rows);
        st = VPTQ_E_NOMEM;
    }
out:
    if (st)
        vptq_hidden_states_close(s);
    return st;
}

void vptq_hidden_states_close(vptq_hidden_states *s)
{
    if (!s->ctx)
        return;
    if (s->fd >= 0)
        close(s->fd);
    vptq_mem_free(s->ctx->mem, s->sums);
    vptq_mem_free(s->ctx->mem, s->data);
    *s = (vptq_hidden_states){.fd = -1};
}

/* Compares rows just read with their checksums. */
static vptq_status check_rows(const vptq_hidden_states *s, size_t first, size_t n,
                              vptq_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (vptq_hash(s->data + i * s->dim, s->dim * sizeof *s->data, 0) != s->sums[first + i])
            return vptq_fail(err, VPTQ_E_CHECKSUM,
                             "the file with the hidden states in '%s' is damaged: token %zu is "
                             "not what was written",
                             s->dir, first + i);
    return VPTQ_OK;
}

vptq_status vptq_hidden_states_get(vptq_hidden_states *s, size_t first, size_t n, bool fresh,
                                   float **rows, vptq_err *err)
{
    const size_t row = s->dim * sizeof *s->data;
    VPTQ_BUG_IF(n > s->rows || first > s->rows - n || (s->fd >= 0 && n > s->max_rows));
    if (s->resident) {
        *rows = s->resident + first * s->dim;
        return VPTQ_OK;
    }
    *rows = s->fd < 0 ? s->data + first * s->dim : s->data;
    if (s->fd < 0 || fresh)
        return VPTQ_OK;
    if (vptq_read_at(s->fd, s->data, n * row, (uint64_t)first * row))
        return check_rows(s, first, n, err);
    if (errno)
        return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot read hidden states back in '%s'",
                               s->dir);
    return vptq_fail(err, VPTQ_E_IO,
                     "cannot read hidden states back in '%s': the file is too short", s->dir);
}

vptq_status vptq_hidden_states_keep(vptq_hidden_states *s, size_t first, size_t n,
                                    vptq_err *err)
{
    const size_t row = s->dim * sizeof *s->data;
    if (s->fd < 0)
        return VPTQ_OK;
    for (size_t i = 0; i < n; i++)
        s->sums[first + i] = vptq_hash(s->data + i * s->dim, row, 0);
    if (vptq_write_at(s->fd, s->data, n * row, (uint64_t)first * row))
        return VPTQ_OK;
    return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot write hidden states in '%s'", s->dir);
}

vptq_status vptq_hidden_states_spread(vptq_hidden_states *s, int root, size_t first, size_t n,
                                      vptq_err *err)
{
    const bool ours = vptq_comm_rank(s->ctx) == root;
    float *rows;
    VPTQ_BUG_IF(s->resident);
    if (vptq_comm_size(s->ctx) == 1)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_hidden_states_get(s, first, n, !ours, &rows, err));
    VPTQ_CHECK(vptq_comm_broadcast(s->ctx, root, rows, n * s->dim * sizeof *rows, err));
    return ours ? VPTQ_OK : vptq_hidden_states_keep(s, first, n, err);
}

/* ---- checkpoint: header, rows of every stream, checksum ---- */

typedef struct state_header {
    char magic[8];
    char fingerprint[16];
    uint64_t position, streams, rows, dim;
} state_header;

static const char state_magic[8] = "VPTQHS2";

static size_t chunk_rows(const vptq_hidden_states *s, size_t row)
{
    size_t n = s->max_rows < CHUNK ? s->max_rows : CHUNK;
    return s->rows - row < n ? s->rows - row : n;
}

/* As vptq_hidden_states_get for a chunk, in host memory. */
static vptq_status get_chunk(vptq_hidden_states *s, size_t first, size_t n, bool fresh,
                             float **rows, vptq_err *err)
{
    if (!s->resident)
        return vptq_hidden_states_get(s, first, n, fresh, rows, err);
    *rows = s->data;
    return fresh ? VPTQ_OK
                 : s->dev->ops->download(s->dev->state, s->data, s->resident + first * s->dim,
                                         n * s->dim * sizeof *s->data, err);
}

/* As vptq_hidden_states_keep for a chunk of get_chunk. */
static vptq_status keep_chunk(vptq_hidden_states *s, size_t first, size_t n, vptq_err *err)
{
    if (!s->resident)
        return vptq_hidden_states_keep(s, first, n, err);
    return s->dev->ops->upload(s->dev->state, s->resident + first * s->dim, s->data,
                               n * s->dim * sizeof *s->data, err);
}

static state_header header_of(vptq_hidden_states *const *s, size_t count,
                              const char fingerprint[16], uint64_t position)
{
    state_header h = {
        .position = position, .streams = count, .rows = s[0]->rows, .dim = s[0]->dim};
    memcpy(h.magic, state_magic, sizeof h.magic);
    memcpy(h.fingerprint, fingerprint, sizeof h.fingerprint);
    return h;
}

vptq_status vptq_hidden_states_save(vptq_hidden_states *const *s, size_t count,
                                    const char *path, const char fingerprint[16],
                                    uint64_t position, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_file_writer w = {.fd = -1};
    const state_header h = header_of(s, count, fingerprint, position);
    uint64_t sum = vptq_hash(&h, sizeof h, 0);
    float *rows;

    VPTQ_TRY(vptq_file_writer_open(path, true, &w, err));
    VPTQ_TRY(vptq_file_write(&w, &h, sizeof h, err));
    for (size_t i = 0; i < count; i++)
        for (size_t row = 0, n; row < s[i]->rows; row += n) {
            n = chunk_rows(s[i], row);
            const size_t bytes = n * s[i]->dim * sizeof *rows;
            VPTQ_TRY(get_chunk(s[i], row, n, false, &rows, err));
            sum = vptq_hash(rows, bytes, sum);
            VPTQ_TRY(vptq_file_write(&w, rows, bytes, err));
        }
    VPTQ_TRY(vptq_file_write(&w, &sum, sizeof sum, err));
    VPTQ_TRY(vptq_file_writer_commit(&w, err));
out:
    vptq_file_writer_abort(&w);
    return st;
}

/* Reads the bytes after the header into the streams; *whole if the checksum is right. */
static vptq_status load_rows(vptq_hidden_states *const *s, size_t count, int fd, uint64_t sum,
                             bool *whole, vptq_err *err)
{
    uint64_t offset = sizeof(state_header), end;
    float *rows;

    for (size_t i = 0; i < count; i++)
        for (size_t row = 0, n; row < s[i]->rows; row += n) {
            n = chunk_rows(s[i], row);
            const size_t bytes = n * s[i]->dim * sizeof *rows;
            VPTQ_CHECK(get_chunk(s[i], row, n, true, &rows, err));
            if (!vptq_read_at(fd, rows, bytes, offset))
                return VPTQ_OK;
            sum = vptq_hash(rows, bytes, sum);
            offset += bytes;
            VPTQ_CHECK(keep_chunk(s[i], row, n, err));
        }
    *whole = vptq_read_at(fd, &end, sizeof end, offset) && end == sum;
    return VPTQ_OK;
}

/* The file of a checkpoint, and its header, which fits. */
typedef struct checkpoint {
    int fd; /* -1: there is none */
    state_header h;
} checkpoint;

static vptq_status open_checkpoint(vptq_hidden_states *const *s, size_t count, const char *path,
                                   const char fingerprint[16], uint64_t last, checkpoint *c,
                                   vptq_err *err)
{
    c->fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (c->fd < 0 && errno == ENOENT)
        return VPTQ_OK;
    if (c->fd < 0)
        return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot open '%s'", path);
    if (vptq_read_at(c->fd, &c->h, sizeof c->h, 0) && c->h.position <= last) {
        const state_header want = header_of(s, count, fingerprint, c->h.position);
        if (!memcmp(&c->h, &want, sizeof want))
            return VPTQ_OK;
    }
    close(c->fd);
    c->fd = -1;
    return VPTQ_OK;
}

vptq_status vptq_hidden_states_find(vptq_hidden_states *const *s, size_t count,
                                    const char *path, const char fingerprint[16], uint64_t last,
                                    uint64_t *position, vptq_err *err)
{
    checkpoint c;
    VPTQ_CHECK(open_checkpoint(s, count, path, fingerprint, last, &c, err));
    *position = c.fd < 0 ? UINT64_MAX : c.h.position;
    if (c.fd >= 0)
        close(c.fd);
    return VPTQ_OK;
}

vptq_status vptq_hidden_states_load(vptq_hidden_states *const *s, size_t count,
                                    const char *path, const char fingerprint[16], uint64_t last,
                                    uint64_t *position, vptq_err *err)
{
    checkpoint c;
    bool whole = false;

    *position = UINT64_MAX;
    VPTQ_CHECK(open_checkpoint(s, count, path, fingerprint, last, &c, err));
    if (c.fd < 0)
        return VPTQ_OK;
    const vptq_status st =
        load_rows(s, count, c.fd, vptq_hash(&c.h, sizeof c.h, 0), &whole, err);
    if (whole)
        *position = c.h.position;
    close(c.fd);
    return st;
}
