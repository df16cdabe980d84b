/* The loss of end-to-end tuning: the original's hidden states, and groups of windows forwards
 * and backwards through all blocks. */
#include "lib/tune/e2e.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "lib/base/comm.h"
#include "lib/base/file.h"
#include "lib/base/text.h"

struct vptq_e2e {
    vptq_trainer t;
    const vptq_model *teacher;
    vptq_arena arena;
    /* [windows + held_out][length, hidden] of the teacher, after its final norm */
    vptq_hidden_states wanted;
    /* rows: those of a group of windows. */
    size_t *starts;  /* [group + 1] of windows */
    int32_t *ids;    /* [rows] */
    float *embedded; /* [rows, hidden] */
    double *loss;    /* [rows] */
    /* Device memory. */
    float *states;  /* [layers + 1][rows, hidden] what went into every block */
    float *target;  /* [rows, hidden] the teacher's */
    float *dhidden; /* [rows, hidden] */
};

/* ---- the original ---- */

/* Hidden states of `count` windows after all blocks of the teacher and its final norm. */
static vptq_status teach(vptq_e2e *e, vptq_forward *f, size_t first, size_t count,
                         vptq_err *err)
{
    const size_t length = e->t.opt.length, rows = count * length;
    float *wanted;
    VPTQ_CHECK(vptq_hidden_states_get(&e->wanted, first * length, rows, true, &wanted, err));
    VPTQ_CHECK(vptq_forward_embed(f, e->t.opt.ids + first * length, rows, wanted, err));
    for (uint32_t l = 0; l < e->teacher->desc->layers; l++)
        VPTQ_CHECK(vptq_forward_block(f, l, e->starts, count, wanted, err));
    VPTQ_CHECK(vptq_forward_normalized(f, rows, wanted, wanted, err));
    return vptq_hidden_states_keep(&e->wanted, first * length, rows, err);
}

/* Windows of the group that begins at `first`, at most those before `end`. */
static size_t windows_of_group(const vptq_e2e *e, size_t first, size_t end)
{
    const size_t left = first < end ? end - first : 0;
    return left < e->t.opt.group ? left : e->t.opt.group;
}

/* Gives all ranks the groups of `ranks` ranks from window `first` on, in turns. */
static vptq_status spread(vptq_e2e *e, int ranks, size_t first, size_t end, vptq_err *err)
{
    const size_t length = e->t.opt.length;
    for (int rank = 0; rank < ranks && first < end; rank++, first += e->t.opt.group)
        VPTQ_CHECK(vptq_hidden_states_spread(&e->wanted, rank, first * length,
                                             windows_of_group(e, first, end) * length, err));
    return VPTQ_OK;
}

/* Windows [first, end): a round has a group for each rank. */
static vptq_status teach_range(vptq_e2e *e, vptq_forward *f, size_t first, size_t end,
                               vptq_err *err)
{
    const vptq_ctx *ctx = e->t.dev->ctx;
    const size_t all = e->t.opt.windows + e->t.opt.held_out;
    const size_t round = (size_t)vptq_comm_size(ctx) * e->t.opt.group;
    for (; first < end; first += round) {
        const size_t own = first + (size_t)vptq_comm_rank(ctx) * e->t.opt.group;
        VPTQ_CHECK(vptq_check_cancel(ctx, err));
        if (own < end)
            VPTQ_CHECK(teach(e, f, own, windows_of_group(e, own, end), err));
        VPTQ_CHECK(spread(e, vptq_comm_size(ctx), first, end, err));
        vptq_progress(ctx, "original", vptq_plural(all, "window", "windows"),
                      end - first < round ? end : first + round, all, NULL);
    }
    return VPTQ_OK;
}

/* *kept: whether the file has them, on rank 0. */
static vptq_status read_file(vptq_e2e *e, const char *path, bool *kept, vptq_err *err)
{
    vptq_hidden_states *const streams[] = {&e->wanted};
    uint64_t position;
    VPTQ_CHECK(
        vptq_hidden_states_load(streams, 1, path, e->t.opt.fingerprint, 0, &position, err));
    *kept = position == 0;
    if (*kept)
        vptq_log(e->t.dev->ctx, VPTQ_LOG_MORE,
                 "the original's hidden states are read from '%s'", path);
    return VPTQ_OK;
}

/* As read_file, on all ranks. */
static vptq_status read_kept(vptq_e2e *e, const char *path, bool *kept, vptq_err *err)
{
    const vptq_ctx *ctx = e->t.dev->ctx;
    const size_t all = e->t.opt.windows + e->t.opt.held_out;
    *kept = false;
    if (vptq_comm_rank(ctx) == 0)
        VPTQ_CHECK(read_file(e, path, kept, err));
    VPTQ_CHECK(vptq_comm_broadcast(ctx, 0, kept, sizeof *kept, err));
    for (size_t first = 0; *kept && first < all; first += e->t.opt.group)
        VPTQ_CHECK(spread(e, 1, first, all, err));
    return VPTQ_OK;
}

/* A run goes on without the file: it only saves time. */
static void keep(vptq_e2e *e, const char *path)
{
    vptq_hidden_states *const streams[] = {&e->wanted};
    vptq_err why = {0};
    if (vptq_hidden_states_save(streams, 1, path, e->t.opt.fingerprint, 0, &why))
        vptq_log(e->t.dev->ctx, VPTQ_LOG_WARN,
                 "%s; the original's hidden states are not kept for another run", why.text);
}

static vptq_status teach_all(vptq_e2e *e, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t all = e->t.opt.windows + e->t.opt.held_out;
    vptq_forward *f = NULL;
    char path[PATH_MAX];
    bool kept = false;
    if (e->t.opt.fingerprint) {
        VPTQ_CHECK(
            vptq_path_join(path, sizeof path, e->t.opt.dir, VPTQ_E2E_ORIGINAL_FILE, err));
        VPTQ_CHECK(read_kept(e, path, &kept, err));
    }
    if (kept)
        return VPTQ_OK;
    VPTQ_TRY(vptq_forward_open(e->teacher, e->t.dev, e->t.opt.length, &f, err));
    /* Targets of gradients are as precise as these; measurements are not rounded. */
    vptq_forward_use_bf16(f, e->t.opt.bf16);
    VPTQ_TRY(teach_range(e, f, 0, e->t.opt.windows, err));
    vptq_forward_use_bf16(f, false);
    VPTQ_TRY(teach_range(e, f, e->t.opt.windows, all, err));
    if (e->t.opt.fingerprint && vptq_comm_rank(e->t.dev->ctx) == 0)
        keep(e, path);
out:
    vptq_forward_close(f);
    return st;
}

/* ---- a group of windows ---- */

/* Loads the ids of the windows and the teacher's hidden states. */
static vptq_status load(vptq_e2e *e, const size_t *windows, size_t count, vptq_err *err)
{
    const size_t length = e->t.opt.length, size = length * e->teacher->desc->hidden;
    const vptq_device *dev = e->t.dev;
    for (size_t i = 0; i < count; i++) {
        float *wanted;
        memcpy(e->ids + i * length, e->t.opt.ids + windows[i] * length,
               length * sizeof *e->ids);
        VPTQ_CHECK(vptq_hidden_states_get(&e->wanted, windows[i] * length, length, false,
                                          &wanted, err));
        VPTQ_CHECK(dev->ops->upload(dev->state, e->target + i * size, wanted,
                                    size * sizeof *wanted, err));
    }
    vptq_backward_windows(e->t.b, count);
    return VPTQ_OK;
}

/* *sum = the mean divergences of the windows, added. */
static vptq_status sum_losses(const vptq_e2e *e, const size_t *windows, size_t count,
                              double *sum, vptq_err *err)
{
    const size_t length = e->t.opt.length;
    *sum = 0;
    for (size_t w = 0; w < count; w++) {
        double mean = 0;
        for (size_t i = 0; i < length; i++)
            mean += e->loss[w * length + i];
        mean /= (double)length;
        if (!isfinite(mean))
            return vptq_fail(err, VPTQ_E_NUMERIC, "the divergence of window %zu is not finite",
                             windows[w]);
        *sum += mean;
    }
    return VPTQ_OK;
}

static vptq_status group_loss(void *arg, const size_t *windows, size_t count, bool backward,
                              double *loss, vptq_err *err)
{
    vptq_e2e *e = arg;
    const size_t length = e->t.opt.length, layers = e->teacher->desc->layers;
    const size_t size = count * length * e->teacher->desc->hidden;
    const vptq_backward_loss head = {.hidden = e->states + layers * size,
                                     .teacher = e->target,
                                     .scale = (float)(1 / (double)(length * e->t.opt.batch))};
    VPTQ_CHECK(load(e, windows, count, err));
    VPTQ_CHECK(vptq_backward_run(e->t.b, e->ids, vptq_trainer_weights(&e->t, 0), e->embedded,
                                 e->states, err));
    VPTQ_CHECK(vptq_backward_head(e->t.b, &head, e->loss, backward ? e->dhidden : NULL, err));
    VPTQ_CHECK(sum_losses(e, windows, count, loss, err));
    for (uint32_t l = (uint32_t)layers; backward && l-- > 0;)
        VPTQ_CHECK(vptq_trainer_backward(&e->t, l, e->states + l * size, e->dhidden, err));
    return VPTQ_OK;
}

vptq_trainer *vptq_e2e_trainer(vptq_e2e *e)
{
    return &e->t;
}

/* ---- opening and closing ---- */

static vptq_status allocate(vptq_e2e *e, vptq_err *err)
{
    const size_t rows = e->t.opt.group * e->t.opt.length, hidden = e->teacher->desc->hidden;
    e->starts = vptq_arena_alloc(&e->arena, e->t.opt.group + 1, sizeof *e->starts, err);
    e->ids = vptq_arena_alloc(&e->arena, rows, sizeof *e->ids, err);
    e->embedded = vptq_arena_alloc(&e->arena, rows * hidden, sizeof *e->embedded, err);
    e->loss = vptq_arena_alloc(&e->arena, rows, sizeof *e->loss, err);
    if (!e->starts || !e->ids || !e->embedded || !e->loss)
        return VPTQ_E_NOMEM;
    for (size_t w = 0; w <= e->t.opt.group; w++)
        e->starts[w] = w * e->t.opt.length;
    VPTQ_CHECK(vptq_trainer_states(&e->t, e->teacher->desc->layers + 1, &e->states, err));
    VPTQ_CHECK(vptq_trainer_states(&e->t, 1, &e->target, err));
    return vptq_trainer_states(&e->t, 1, &e->dhidden, err);
}

/* The last allocation, since it gives way under a memory cap; the teacher's forward pass then
 * needs less than a backward pass. */
static vptq_status open_wanted(vptq_e2e *e, vptq_err *err)
{
    const vptq_trainer_options *o = &e->t.opt;
    e->wanted.rows = (o->windows + o->held_out) * o->length;
    e->wanted.dim = e->teacher->desc->hidden;
    e->wanted.max_rows = o->group * o->length;
    return vptq_hidden_states_open(e->t.dev->ctx, o->dir,
                                   vptq_backward_bytes(e->t.f, o->group * o->length),
                                   &e->wanted, err);
}

/* Of activations: at most half of what a memory cap leaves. */
static size_t kept_bytes(const vptq_ctx *ctx)
{
    static const size_t most = (size_t)2 << 30;
    const size_t half = vptq_mem_left(ctx->mem) / 2;
    return half < most ? half : most;
}

/* As many windows as make the overhead of decoding weights and of gathering gradients small,
 * whatever the memory: results depend on the size of a group. */
size_t vptq_e2e_group(const vptq_trainer_options *o)
{
    const size_t fit = o->length < VPTQ_FORWARD_ROWS ? VPTQ_FORWARD_ROWS / o->length : 1;
    return fit < o->batch ? fit : o->batch;
}

vptq_status vptq_e2e_open(vptq_device *dev, const vptq_model *teacher, vptq_student *student,
                          const vptq_trainer_options *opt, vptq_e2e **out,
                          vptq_trainer_report *start, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_tensor_range all = vptq_student_range(student, 0, student->m->desc->layers);
    vptq_trainer_options grouped = *opt;
    grouped.group = vptq_e2e_group(opt);
    *out = NULL;
    vptq_e2e *e = vptq_mem_alloc(dev->ctx->mem, 1, sizeof *e, err);
    if (!e)
        return VPTQ_E_NOMEM;
    *e = (vptq_e2e){.teacher = teacher};
    vptq_arena_init(&e->arena, dev->ctx->mem);
    VPTQ_TRY(vptq_trainer_open(dev, student, &grouped, group_loss, e, &e->t, err));
    VPTQ_TRY(allocate(e, err));
    VPTQ_TRY(open_wanted(e, err));
    VPTQ_TRY(teach_all(e, err));
    vptq_backward_keep(e->t.b, kept_bytes(dev->ctx));
    VPTQ_TRY(vptq_trainer_begin(&e->t, &all, start, err));
out:
    if (st)
        vptq_e2e_close(e);
    else
        *out = e;
    return st;
}

void vptq_e2e_close(vptq_e2e *e)
{
    if (!e)
        return;
    const vptq_device *dev = e->t.dev;
    vptq_mem *mem = e->arena.mem;
    float *const arrays[] = {e->states, e->target, e->dhidden};
    for (size_t i = 0; dev && i < sizeof arrays / sizeof *arrays; i++)
        dev->ops->release(dev->state, arrays[i]);
    vptq_hidden_states_close(&e->wanted);
    vptq_trainer_close(&e->t);
    vptq_arena_release(&e->arena);
    vptq_mem_free(mem, e);
}
