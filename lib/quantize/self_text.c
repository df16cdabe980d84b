/* Windows of a model's own text, and the file that keeps them. */
#include "lib/quantize/self_text.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "formats/hf/safetensors.h"
#include "lib/base/comm.h"
#include "lib/base/file.h"
#include "lib/model/batch.h"

/* Sequences of a batch: a power of two, halved while their cache is larger. */
enum { MAX_SEQUENCES = 32, MAX_CACHE = 512 << 20 };
enum { ALGORITHM = 2 };                      /* 1: windows began with BOS */
static const double checkpoint_seconds = 30; /* at least this long between writes */

typedef struct writer {
    const vptq_self_text_args *a;
    size_t sequences; /* windows of a batch */
    size_t count;     /* windows to make: whole batches */
    size_t made;
    double saved; /* when the file was written */
    char fingerprint[17];
    char path[PATH_MAX];
    vptq_arena arena;
    int32_t *ids; /* [count, length] */
} writer;

static vptq_batch_options batch_options(const writer *w, size_t batch)
{
    /* Batches differ, and each is the same whether or not others were made before it. */
    const uint64_t key[] = {w->a->seed, batch};
    return (vptq_batch_options){.sequences = w->sequences,
                                .length = w->a->length,
                                .kv = VPTQ_F16,
                                .temperature = 1,
                                .top_p = 1,
                                .seed = vptq_hash(key, sizeof key, 0)};
}

/* From shapes alone, not from memory or threads: the number of sequences affects rounding. */
static vptq_status choose_sequences(writer *w, vptq_err *err)
{
    vptq_batch_memory memory;
    for (w->sequences = MAX_SEQUENCES;; w->sequences /= 2) {
        const vptq_batch_options o = batch_options(w, 0);
        VPTQ_CHECK(vptq_batch_plan(w->a->model, &o, &memory, err));
        if (w->sequences == 1 || memory.cache <= MAX_CACHE)
            return VPTQ_OK;
    }
}

/* Token that every sequence begins with; negative if the model has none. */
static int32_t first_token(const vptq_model *m)
{
    return m->desc->bos >= 0 ? m->desc->bos : m->desc->eos;
}

vptq_status vptq_self_text_check(const vptq_model *m, vptq_err *err)
{
    return first_token(m) >= 0
               ? VPTQ_OK
               : vptq_fail(err, VPTQ_E_UNSUPPORTED,
                           "%s: has neither a BOS nor an EOS token, one of which --self-text "
                           "begins with",
                           m->ckpt.path);
}

/* Fingerprint of all that the windows follow from.  Other versions, and other devices, may
 * round in other ways. */
static void make_fingerprint(writer *w)
{
    const vptq_self_text_args *a = w->a;
    const char *const texts[] = {VPTQ_VERSION, a->dev->ops->name, a->model_fingerprint};
    const uint64_t numbers[] = {ALGORITHM, w->sequences, a->length, a->seed,
                                (uint64_t)first_token(a->model)};
    uint64_t h = vptq_hash(numbers, sizeof numbers, 0);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        h = vptq_hash(texts[i], strlen(texts[i]) + 1, h);
    snprintf(w->fingerprint, sizeof w->fingerprint, "%016" PRIx64, h);
}

static vptq_status plan(writer *w, vptq_err *err)
{
    const vptq_self_text_args *a = w->a;
    size_t row;
    VPTQ_CHECK(choose_sequences(w, err));
    make_fingerprint(w);
    const size_t batches = (a->windows + w->sequences - 1) / w->sequences;
    if (!vptq_size_mul(a->length, sizeof *w->ids, &row) ||
        !vptq_size_mul(batches, w->sequences, &w->count))
        return vptq_fail(err, VPTQ_E_NOMEM, "%zu windows of %zu tokens are too large",
                         a->windows, a->length);
    w->ids = vptq_arena_alloc(&w->arena, w->count, row, err);
    if (!w->ids)
        return VPTQ_E_NOMEM;
    return vptq_path_join(w->path, sizeof w->path, a->dir, VPTQ_SELF_TEXT_FILE, err);
}

/* ---- the file ---- */

enum { FINGERPRINT, SUM, META_COUNT };

static vptq_status save(const writer *w, vptq_err *err)
{
    char sum[VPTQ_SAFETENSORS_SUM];
    const vptq_metadata meta[META_COUNT] = {{"fingerprint", w->fingerprint}, {"xxh3", sum}};
    const vptq_tensor ids = {.name = "ids",
                             .type = VPTQ_I32,
                             .dims = 2,
                             .shape = {w->made, w->a->length},
                             .data = (const uint8_t *)(const void *)w->ids,
                             .bytes = w->made * w->a->length * sizeof *w->ids};
    vptq_safetensors_sum(&ids, 1, meta, SUM, sum);
    return vptq_safetensors_save(w->path, &ids, 1, meta, META_COUNT, err);
}

/* Takes the windows of an open file. */
static vptq_status take(writer *w, const vptq_tensor_set *set, const vptq_metadata_list *found,
                        vptq_err *err)
{
    const char *fingerprint = vptq_metadata_find(found, "fingerprint"),
               *recorded = vptq_metadata_find(found, "xxh3");
    const vptq_tensor *t = vptq_tensor_find(set, "ids");
    char sum[VPTQ_SAFETENSORS_SUM];
    if (!fingerprint || !recorded || !t || t->type != VPTQ_I32 || t->dims != 2)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: is not a file of a model's own text",
                         w->path);
    if (strcmp(fingerprint, w->fingerprint) != 0)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "%s: is of another model, length, seed, backend or version", w->path);
    if (t->shape[1] != w->a->length || t->shape[0] % w->sequences)
        return vptq_fail(err, VPTQ_E_SHAPE,
                         "%s: has %" PRIu64 " windows of %" PRIu64
                         " tokens, expected a multiple of %zu of %zu",
                         w->path, t->shape[0], t->shape[1], w->sequences, w->a->length);
    const vptq_metadata meta[] = {{"fingerprint", fingerprint}};
    vptq_safetensors_sum(set->tensors, set->count, meta, SUM, sum);
    VPTQ_CHECK(vptq_safetensors_check_sum(w->path, sum, recorded, err));
    w->made = t->shape[0] < w->count ? (size_t)t->shape[0] : w->count;
    memcpy(w->ids, t->data, w->made * w->a->length * sizeof *w->ids);
    for (size_t i = 0; i < w->made * w->a->length; i++)
        if (w->ids[i] < 0 || (uint32_t)w->ids[i] >= w->a->model->desc->vocab)
            return vptq_fail(err, VPTQ_E_FORMAT, "%s: id %d is not in the vocabulary of %u",
                             w->path, w->ids[i], w->a->model->desc->vocab);
    return VPTQ_OK;
}

/* Rank 0: begins with the windows of an earlier run, if there are any. */
static vptq_status load(writer *w, vptq_err *err)
{
    vptq_tensor_set set;
    vptq_metadata_list found;
    vptq_err why = {0};
    if (!vptq_path_exists(w->path))
        return VPTQ_OK;
    vptq_tensor_set_init(&set, w->a->dev->ctx->mem);
    vptq_status st = vptq_safetensors_read(w->path, &set, &found, &why);
    if (!st)
        st = vptq_tensor_set_finish(&set, &why);
    if (!st)
        st = take(w, &set, &found, &why);
    vptq_tensor_set_release(&set);
    if (!st)
        return VPTQ_OK;
    w->made = 0;
    if (!vptq_checkpoint_is_fault(st)) /* the file may be intact */
        return vptq_fail(err, st, "%s", why.text);
    vptq_log(w->a->dev->ctx, VPTQ_LOG_WARN, "%s; the text is made anew", why.text);
    return VPTQ_OK;
}

/* As load, on all ranks. */
static vptq_status share_loaded(writer *w, vptq_err *err)
{
    const vptq_ctx *ctx = w->a->dev->ctx;
    if (vptq_comm_rank(ctx) == 0)
        VPTQ_CHECK(load(w, err));
    VPTQ_CHECK(vptq_comm_broadcast(ctx, 0, &w->made, sizeof w->made, err));
    return w->made ? vptq_comm_broadcast(ctx, 0, w->ids,
                                         w->made * w->a->length * sizeof *w->ids, err)
                   : VPTQ_OK;
}

/* ---- the text ---- */

static vptq_status grow(const writer *w, vptq_batch *b, size_t *sequence, vptq_err *err)
{
    const int32_t first = first_token(w->a->model);
    const size_t length = w->a->length, all = w->count / w->sequences * length;
    for (size_t i = 0; i < w->sequences; i++)
        VPTQ_CHECK(vptq_batch_add(b, &first, 1, &sequence[i], err));
    for (size_t left = 1; left;)
        VPTQ_CHECK(vptq_batch_prefill(b, &left, err));
    for (size_t n = 2; n <= length; n++) {
        vptq_progress(w->a->dev->ctx, "self-text", "tokens",
                      w->made / w->sequences * length + n, all, NULL);
        if (n < length)
            VPTQ_CHECK(vptq_batch_decode(b, err));
    }
    return VPTQ_OK;
}

/* Cuts the batch's windows out of its sequences, which follow each other in a circle, from the
 * middle of one to that of the next: windows of a text do not begin with BOS either, and a
 * model trained on those that do is worse by 2 % (docs/tuning.md). */
static void cut(const writer *w, size_t batch, const vptq_batch *b, const size_t *sequence)
{
    const size_t length = w->a->length, half = length / 2, rest = length - half;
    size_t count;
    for (size_t i = 0; i < w->sequences; i++) {
        int32_t *window = w->ids + (batch * w->sequences + i) * length;
        const size_t next = sequence[(i + 1) % w->sequences];
        memcpy(window, vptq_batch_ids(b, sequence[i], &count) + half, rest * sizeof *window);
        memcpy(window + rest, vptq_batch_ids(b, next, &count), half * sizeof *window);
    }
}

static vptq_status make_batch(const writer *w, size_t batch, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_batch_options o = batch_options(w, batch);
    vptq_batch *b = NULL;
    size_t sequence[MAX_SEQUENCES];
    VPTQ_TRY(vptq_batch_open(w->a->model, w->a->dev, &o, &b, err));
    VPTQ_TRY(grow(w, b, sequence, err));
    cut(w, batch, b, sequence);
out:
    vptq_batch_close(b);
    return st;
}

/* The next batches, one on each rank. */
static vptq_status make_batches(writer *w, vptq_err *err)
{
    const vptq_ctx *ctx = w->a->dev->ctx;
    const size_t first = w->made / w->sequences, left = w->count / w->sequences - first;
    const size_t ranks = (size_t)vptq_comm_size(ctx), rank = (size_t)vptq_comm_rank(ctx);
    const size_t parts = left < ranks ? left : ranks, size = w->sequences * w->a->length;
    if (rank < parts)
        VPTQ_CHECK(make_batch(w, first + rank, err));
    for (size_t r = 0; r < parts; r++)
        VPTQ_CHECK(vptq_comm_broadcast(ctx, (int)r, w->ids + (first + r) * size,
                                       size * sizeof *w->ids, err));
    w->made += parts * w->sequences;
    return VPTQ_OK;
}

/* A file that cannot be written costs time after an interruption, nothing else. */
static void keep(writer *w)
{
    vptq_err why = {0};
    if (vptq_comm_rank(w->a->dev->ctx) == 0 && save(w, &why))
        vptq_log(w->a->dev->ctx, VPTQ_LOG_WARN, "%s; the text is not kept", why.text);
    w->saved = vptq_seconds();
}

/* Makes the windows that the file does not have. */
static vptq_status make(writer *w, vptq_err *err)
{
    const size_t had = w->made;
    w->saved = vptq_seconds();
    while (w->made < w->count) {
        const vptq_status st = make_batches(w, err);
        if (st == VPTQ_E_CANCELLED && w->made > had)
            keep(w);
        if (st == VPTQ_E_CANCELLED)
            return vptq_fail(err, st,
                             "interrupted after %zu of %zu windows of the original's own text; "
                             "run the same command to continue",
                             w->made, w->count);
        VPTQ_CHECK(st);
        if (w->made == w->count || vptq_seconds() - w->saved >= checkpoint_seconds)
            keep(w);
    }
    return VPTQ_OK;
}

vptq_status vptq_self_text(const vptq_self_text_args *a, int32_t *ids, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    writer w = {.a = a};
    vptq_arena_init(&w.arena, a->dev->ctx->mem);
    VPTQ_TRY(plan(&w, err));
    VPTQ_TRY(share_loaded(&w, err));
    VPTQ_TRY(make(&w, err));
    memcpy(ids, w.ids, a->windows * a->length * sizeof *ids);
out:
    vptq_arena_release(&w.arena);
    return st;
}
