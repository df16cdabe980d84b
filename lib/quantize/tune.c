/* Tunes a work directory end to end: training windows, resume, and the files of the result. */
#include "lib/quantize/tune.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/vptq/layer_file.h"
#include "lib/base/file.h"
#include "lib/model/corpus.h"
#include "lib/quantize/internal.h"
#include "lib/report/column.h"
#include "lib/tune/e2e.h"

enum { JSON_LIMIT = 8 << 20 };

typedef struct tuner {
    vptq_device *dev;
    const vptq_tune_options *opt;
    vptq_tune_result *result;
    vptq_model model, original; /* the work directory `from`; what it was made from */
    vptq_student student;
    vptq_trainer_options e2e;
    vptq_e2e *run;
    vptq_arena arena;
    int32_t *ids;
    json_t *manifest; /* quantize.json of the result */
    char fingerprint[17];
    vptq_printer *printer;
    double start; /* of the clock */
} tuner;

/* ---- the two models and the text ---- */

static vptq_status check_options(const vptq_tune_options *o, vptq_err *err)
{
    if (o->steps < 1 || o->batch < 1 || o->batch > o->windows || o->length < 2)
        return vptq_fail(
            err, VPTQ_E_ARG,
            "%u steps of %zu of %zu windows of %zu tokens: expected at least 1 step "
            "of 1 window of 2 tokens, and batches of at most all windows",
            o->steps, o->batch, o->windows, o->length);
    if (!(o->holdout > 0 && o->holdout < 1))
        return vptq_fail(err, VPTQ_E_ARG,
                         "a held-out share of %g, expected more than 0 and less than 1",
                         o->holdout);
    return o->rate >= 0 && o->rate <= 1
               ? VPTQ_OK
               : vptq_fail(err, VPTQ_E_ARG, "a rate of %g, expected 0 to 1", o->rate);
}

/* Starting over would remove what is to be tuned. */
static vptq_status check_directories(const vptq_tune_options *o, vptq_err *err)
{
    char from[PATH_MAX], work[PATH_MAX];
    if (realpath(o->from, from) && realpath(o->work, work) && !strcmp(from, work))
        return vptq_fail(err, VPTQ_E_ARG,
                         "'%s' is the directory to tune and cannot be the output", o->from);
    return VPTQ_OK;
}

/* Tuning a part of the model is possible, but rarely meant. */
static void warn_of_missing(const tuner *t)
{
    const size_t all = (size_t)t->model.desc->layers * VPTQ_LINEAR_COUNT;
    if (t->model.ckpt.quantized_count < all)
        vptq_log(t->dev->ctx, VPTQ_LOG_WARN,
                 "'%s' has %zu of %zu matrices; the others stay as the original's",
                 t->opt->from, t->model.ckpt.quantized_count, all);
}

static vptq_status open_models(tuner *t, vptq_err *err)
{
    const vptq_tune_options *o = t->opt;
    const vptq_checkpoint_options from = {.base = o->model};
    vptq_checkpoint_options plain = {.tokenizer = o->tokenizer};
    VPTQ_CHECK(vptq_model_open(t->dev->ctx, o->from, &from, false, &t->model, err));
    if (t->model.ckpt.kind != VPTQ_CKPT_WORK)
        return vptq_fail(err, VPTQ_E_ARG, "'%s' is a %s, expected a work directory", o->from,
                         vptq_checkpoint_kind_name(t->model.ckpt.kind));
    const char *path = t->model.ckpt.base->path;
    if (!plain.tokenizer)
        plain.tokenizer = t->model.ckpt.tokenizer;
    const bool texts = o->corpus.text_count > 0;
    VPTQ_CHECK(vptq_model_open(t->dev->ctx, path, &plain, texts, &t->original, err));
    VPTQ_CHECK(vptq_student_open(t->dev->ctx, &t->model, &t->student, err));
    warn_of_missing(t);
    return VPTQ_OK;
}

/* Copies the windows: those that are held out, spread evenly over the text, to the end. */
static vptq_status copy_windows(tuner *t, const vptq_corpus *c, const size_t *starts,
                                size_t count, vptq_err *err)
{
    const size_t length = t->opt->length, held_out = t->e2e.held_out;
    size_t next = 0, next_held_out = count - held_out;
    t->ids = vptq_arena_alloc(&t->arena, count, length * sizeof *t->ids, err);
    if (!t->ids)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        const bool held = (i + 1) * held_out / count > i * held_out / count;
        memcpy(t->ids + (held ? next_held_out++ : next++) * length, c->ids.data + starts[i],
               length * sizeof *t->ids);
    }
    t->e2e.ids = t->ids;
    return VPTQ_OK;
}

static vptq_status choose_windows(tuner *t, const vptq_corpus *c, vptq_err *err)
{
    const vptq_tune_options *o = t->opt;
    size_t *starts, count;
    VPTQ_CHECK(
        vptq_corpus_sample(c, o->length, o->windows, o->seed, &t->arena, &starts, &count, err));
    const size_t held_out = (size_t)ceil(o->holdout * (double)count);
    if (held_out >= count || o->batch > count - held_out)
        return vptq_fail(
            err, VPTQ_E_FORMAT,
            "%s has %zu windows of %zu tokens: too few for %zu held out and %zu of "
            "a step (a shorter -l, a smaller --batch or more text)",
            c->name, count, o->length, held_out, o->batch);
    t->e2e = (vptq_trainer_options){.steps = o->steps,
                                    .batch = o->batch,
                                    .rate = o->rate,
                                    .length = o->length,
                                    .windows = count - held_out,
                                    .held_out = held_out,
                                    .every = 10,
                                    .seed = o->seed,
                                    .dir = o->work};
    t->result->windows = count - held_out;
    t->result->held_out_windows = held_out;
    return copy_windows(t, c, starts, count, err);
}

static vptq_status load_text(tuner *t, char fingerprint[17], vptq_err *err)
{
    vptq_corpus c;
    VPTQ_CHECK(vptq_corpus_load(t->dev->ctx, &t->opt->corpus, t->original.tokenizer,
                                t->original.desc->vocab, &c, err));
    memcpy(fingerprint, c.fingerprint, sizeof c.fingerprint);
    const vptq_status st = choose_windows(t, &c, err);
    vptq_corpus_release(&c);
    return st;
}

/* ---- the manifest ---- */

static uint64_t hash_indices(const vptq_vq *q, uint64_t h)
{
    const vptq_vq_shape *s = &q->shape;
    const size_t words = (size_t)s->groups * vptq_vq_vector_rows(s) * vptq_vq_row_words(s);
    h = vptq_hash(q->indices, words * sizeof *q->indices, h);
    if (s->outliers)
        h = vptq_hash(
            q->outlier_indices,
            (s->out + s->v0 - 1) / s->v0 * (size_t)s->outliers * sizeof *q->outlier_indices, h);
    return q->perm ? vptq_hash(q->perm, s->in * sizeof *q->perm, h) : h;
}

/* Fingerprint of what is tuned: the manifest of `from`, all stored numbers and indices. */
static void hash_from(const tuner *t, const char *manifest, char hex[17])
{
    const vptq_student *s = &t->student;
    uint64_t h = vptq_hash(manifest, strlen(manifest), 0);
    h = vptq_hash(s->original, s->count * sizeof *s->original, h);
    for (size_t i = 0; i < (size_t)t->model.desc->layers * VPTQ_LINEAR_COUNT; i++)
        if (s->weight[i].packed)
            h = hash_indices(&s->matrix[i].vq, h);
    snprintf(hex, 17, "%016" PRIx64, h);
}

/* The manifest of `from` with the key "tune". */
static vptq_status make_manifest(tuner *t, const char *ids_fingerprint, vptq_err *err)
{
    const vptq_trainer_options *e = &t->e2e;
    char path[PATH_MAX], from[17], *text;
    VPTQ_CHECK(vptq_path_join(path, sizeof path, t->opt->from, VPTQ_WORK_FILE, err));
    VPTQ_CHECK(vptq_json_load(path, JSON_LIMIT, &t->manifest, err));
    VPTQ_CHECK(vptq_json_unseal(t->manifest, path, err));
    VPTQ_CHECK(vptq_json_text(t->manifest, path, false, &text, err));
    hash_from(t, text, from);
    free(text);
    json_t *tune = json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:I}", "tool",
        "vptq-quantize " VPTQ_VERSION, "method", "e2e", "from", from, "ids", ids_fingerprint,
        "windows", (json_int_t)e->windows, "held_out", (json_int_t)e->held_out, "length",
        (json_int_t)e->length, "steps", (json_int_t)e->steps, "batch", (json_int_t)e->batch,
        "rate", e->rate, "seed", (json_int_t)e->seed);
    if (!tune || json_object_set_new(t->manifest, "tune", tune))
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    VPTQ_CHECK(vptq_json_text(t->manifest, path, false, &text, err));
    snprintf(t->fingerprint, sizeof t->fingerprint, "%016" PRIx64,
             vptq_hash(text, strlen(text), 0));
    free(text);
    return VPTQ_OK;
}

/* Writes the manifest, unless the directory has it.  With `force` what another run left is
 * removed. */
static vptq_status open_manifest(const tuner *t, vptq_err *err)
{
    vptq_err why = {0};
    char path[PATH_MAX];
    VPTQ_CHECK(vptq_path_join(path, sizeof path, t->opt->work, VPTQ_WORK_FILE, err));
    if (vptq_path_exists(path)) {
        const vptq_status st = vptq_manifest_expect(path, t->manifest, &why);
        if (!st)
            return VPTQ_OK;
        if (!t->opt->force)
            return vptq_fail(err, st, "%s", why.text);
        VPTQ_CHECK(vptq_work_clear(t->opt->work, t->dev->ctx->mem, err));
    }
    return vptq_json_save_sealed(path, t->manifest, err);
}

/* ---- the state of an interrupted run ---- */

typedef struct state_header {
    char magic[8];
    char fingerprint[16];
    uint64_t bytes, hash;
} state_header;
static const char state_magic[8] = "VPTQTUN1";

static vptq_status write_state(const tuner *t, vptq_err *err)
{
    char path[PATH_MAX];
    state_header h = {.bytes = vptq_trainer_state_bytes(vptq_e2e_trainer(t->run))};
    VPTQ_CHECK(vptq_path_join(path, sizeof path, t->opt->work, VPTQ_TUNE_STATE_FILE, err));
    char *data = vptq_mem_alloc(t->dev->ctx->mem, sizeof h + h.bytes, 1, err);
    if (!data)
        return VPTQ_E_NOMEM;
    vptq_trainer_get_state(vptq_e2e_trainer(t->run), data + sizeof h);
    memcpy(h.magic, state_magic, sizeof h.magic);
    memcpy(h.fingerprint, t->fingerprint, sizeof h.fingerprint);
    h.hash = vptq_hash(data + sizeof h, h.bytes, 0);
    memcpy(data, &h, sizeof h);
    const vptq_status st = vptq_file_replace(path, data, sizeof h + h.bytes, err);
    vptq_mem_free(t->dev->ctx->mem, data);
    return st;
}

/* A state that cannot be written costs time after an interruption, nothing else: the run goes
 * on. */
static void save_state(const tuner *t)
{
    vptq_err why = {0};
    if (write_state(t, &why))
        vptq_log(t->dev->ctx, VPTQ_LOG_WARN, "%s; the state is not saved", why.text);
}

/* Whether the file holds a state of this run. */
static bool is_state(const tuner *t, const vptq_map *map)
{
    const size_t bytes = vptq_trainer_state_bytes(vptq_e2e_trainer(t->run));
    state_header h;
    if (map->size != sizeof h + bytes)
        return false;
    memcpy(&h, map->data, sizeof h);
    return !memcmp(h.magic, state_magic, sizeof h.magic) &&
           !memcmp(h.fingerprint, t->fingerprint, sizeof h.fingerprint) && h.bytes == bytes &&
           h.hash == vptq_hash(map->data + sizeof h, bytes, 0);
}

/* Goes on from a saved state, if there is one of this run. */
static vptq_status load_state(const tuner *t, vptq_err *err)
{
    char path[PATH_MAX];
    vptq_map map;
    VPTQ_CHECK(vptq_path_join(path, sizeof path, t->opt->work, VPTQ_TUNE_STATE_FILE, err));
    if (!vptq_path_exists(path))
        return VPTQ_OK;
    VPTQ_CHECK(vptq_map_open(path, &map, err));
    if (!is_state(t, &map) ||
        vptq_trainer_set_state(vptq_e2e_trainer(t->run), map.data + sizeof(state_header), NULL))
        vptq_log(t->dev->ctx, VPTQ_LOG_WARN,
                 "%s is damaged or from another run; tuning starts at the first step", path);
    vptq_map_release(&map);
    return VPTQ_OK;
}

/* ---- the result ---- */

/* The report row of a matrix without the losses, which tuning changes. */
static vptq_status row_text(const char *report, const char *path, char **text, vptq_err *err)
{
    static const char *const lost[] = {"predicted_loss", "proxy_loss", "proxy_loss_weighted",
                                       "proxy_loss_held_out", "relative_mse"};
    json_t *row = NULL;
    void *next;
    const char *key;
    json_t *value;
    VPTQ_CHECK(vptq_json_parse(report, strlen(report), path, &row, err));
    if (!json_is_object(row)) {
        json_decref(row);
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: its report row is not an object", path);
    }
    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++)
        json_object_del(row, lost[i]);
    json_object_foreach_safe(row, next, key, value)
    {
        if (!strncmp(key, "loss_", 5))
            json_object_del(row, key);
    }
    vptq_status st = json_object_set_new(row, "tuned", json_string("e2e"))
                         ? vptq_fail(err, VPTQ_E_NOMEM, "out of memory")
                         : vptq_json_text(row, path, false, text, err);
    json_decref(row);
    return st;
}

static vptq_status matrix_path(const tuner *t, size_t i, char path[PATH_MAX], vptq_err *err)
{
    char name[VPTQ_LAYER_FILE_NAME_MAX];
    vptq_layer_file_name(name, (uint32_t)(i / VPTQ_LINEAR_COUNT),
                         vptq_linear_name((vptq_linear)(i % VPTQ_LINEAR_COUNT)));
    return vptq_path_join(path, PATH_MAX, t->opt->work, name, err);
}

/* The report row of matrix i as `from` had it when it was opened. */
static const char *old_report(const tuner *t, size_t i)
{
    const vptq_checkpoint *c = &t->model.ckpt;
    size_t at = 0;
    while (strcmp(c->quantized[at].name, t->student.matrix[i].name) != 0)
        at++;
    return vptq_checkpoint_layer(c, at)->report;
}

/* Writes matrix i and appends its row to `report`. */
static vptq_status write_matrix(const tuner *t, size_t i, vptq_buf *report, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char path[PATH_MAX], *row = NULL;
    const vptq_packed_matrix *m = &t->student.matrix[i];
    const float *masters = t->student.master, *stored = t->student.stored;
    VPTQ_TRY(matrix_path(t, i, path, err));
    VPTQ_TRY(row_text(old_report(t, i), path, &row, err));
    vptq_layer_file file = {.matrix = *m,
                            .centroids_f32 = masters + (m->vq.centroids - stored),
                            .fingerprint = t->fingerprint,
                            .report = row};
    if (m->vq.res_centroids)
        file.res_centroids_f32 = masters + (m->vq.res_centroids - stored);
    VPTQ_TRY(vptq_layer_file_write(path, &file, t->dev->ctx->mem, err));
    VPTQ_TRY(vptq_buf_printf(report, err, "%s\n", row));
out:
    free(row);
    return st;
}

/* Writes report.jsonl and removes the state. */
static vptq_status write_report(const tuner *t, const vptq_buf *report, vptq_err *err)
{
    char path[PATH_MAX];
    VPTQ_CHECK(vptq_path_join(path, sizeof path, t->opt->work, "report.jsonl", err));
    VPTQ_CHECK(vptq_file_replace(path, report->data, report->len, err));
    VPTQ_CHECK(vptq_path_join(path, sizeof path, t->opt->work, VPTQ_TUNE_STATE_FILE, err));
    return vptq_path_exists(path) ? vptq_file_remove(path, err) : VPTQ_OK;
}

static vptq_status write_result(const tuner *t, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_buf report;
    vptq_buf_init(&report, t->dev->ctx->mem);
    for (size_t i = 0; i < (size_t)t->model.desc->layers * VPTQ_LINEAR_COUNT; i++)
        if (t->student.weight[i].packed)
            VPTQ_TRY(write_matrix(t, i, &report, err));
    st = write_report(t, &report, err);
out:
    vptq_buf_release(&report);
    return st;
}

/* *found: whether this matrix of the result is there, whole and of this run; appends its row.
 */
static vptq_status find_matrix(const tuner *t, size_t i, vptq_buf *report, bool *found,
                               vptq_err *err)
{
    char path[PATH_MAX];
    vptq_layer_file file;
    vptq_err why = {0};
    *found = false;
    VPTQ_CHECK(matrix_path(t, i, path, err));
    if (!vptq_path_exists(path))
        return VPTQ_OK;
    vptq_status st = vptq_layer_file_read(path, t->dev->ctx->mem, &file, &why);
    if (st && !vptq_checkpoint_is_fault(st)) /* the file may be intact */
        return vptq_fail(err, st, "%s", why.text);
    if (st) {
        vptq_log(t->dev->ctx, VPTQ_LOG_WARN, "%s; tuning is repeated", why.text);
        return VPTQ_OK;
    }
    *found = !strcmp(file.fingerprint, t->fingerprint);
    if (*found)
        st = vptq_buf_printf(report, err, "%s\n", file.report);
    vptq_layer_file_release(&file);
    return st;
}

/* *finished: whether all matrices are there; report.jsonl is then written anew. */
static vptq_status find_result(const tuner *t, bool *finished, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_buf report;
    vptq_buf_init(&report, t->dev->ctx->mem);
    *finished = true;
    for (size_t i = 0; *finished && i < (size_t)t->model.desc->layers * VPTQ_LINEAR_COUNT; i++)
        if (t->student.weight[i].packed)
            VPTQ_TRY(find_matrix(t, i, &report, finished, err));
    if (*finished)
        st = write_report(t, &report, err);
out:
    vptq_buf_release(&report);
    return st;
}

/* ---- the report ---- */

typedef struct step_line {
    vptq_trainer_report r;
    double seconds;
} step_line;

static const vptq_column columns[] = {
    {.name = "step", VPTQ_INTEGER(step_line, r.step), .width = 5},
    {.name = "loss", VPTQ_REAL(step_line, r.loss), .decimals = 5, .width = 8},
    {.name = "held_out_loss",
     .title = "held-out",
     VPTQ_REAL(step_line, r.held_out),
     .decimals = 5,
     .width = 8},
    {.name = "gradient_norm",
     .title = "gradient",
     VPTQ_REAL(step_line, r.norm),
     .decimals = -4,
     .width = 9},
    {.name = "rate", VPTQ_REAL(step_line, r.rate), .decimals = -3, .width = 9},
    {.name = "changed", VPTQ_REAL(step_line, r.changed), .decimals = 4, .width = 7},
    {.name = "seconds", VPTQ_REAL(step_line, seconds), .decimals = 1, .width = 8}};

static vptq_status print_step(const tuner *t, const vptq_trainer_report *r, vptq_err *err)
{
    const step_line line = {*r, vptq_seconds() - t->start};
    return t->printer ? vptq_print_row(t->printer, &line, err) : VPTQ_OK;
}

/* ---- the run ---- */

static vptq_status take_steps(tuner *t, vptq_err *err)
{
    vptq_trainer_report r;
    while (!vptq_trainer_done(vptq_e2e_trainer(t->run))) {
        const vptq_status st = vptq_trainer_step(vptq_e2e_trainer(t->run), &r, err);
        t->result->steps = vptq_e2e_trainer(t->run)->optimizer.step;
        if (st == VPTQ_E_CANCELLED)
            save_state(t);
        VPTQ_CHECK(st);
        VPTQ_CHECK(print_step(t, &r, err));
        vptq_progress(t->dev->ctx, "tune", r.step, t->e2e.steps, NULL);
        if (r.step % t->e2e.every == 0 && !vptq_trainer_done(vptq_e2e_trainer(t->run)))
            save_state(t);
    }
    return VPTQ_OK;
}

static vptq_status tune(tuner *t, vptq_err *err)
{
    vptq_trainer_report start;
    VPTQ_CHECK(vptq_e2e_open(t->dev, &t->original, &t->student, &t->e2e, &t->run, &start, err));
    t->result->held_out_before = start.held_out;
    VPTQ_CHECK(print_step(t, &start, err));
    VPTQ_CHECK(load_state(t, err));
    t->result->steps = vptq_e2e_trainer(t->run)->optimizer.step;
    VPTQ_CHECK(take_steps(t, err));
    t->result->held_out = vptq_trainer_best(vptq_e2e_trainer(t->run), &t->result->best_step);
    t->result->changed = vptq_student_changed(&t->student);
    return write_result(t, err);
}

static vptq_status run(tuner *t, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_lock lock = {.fd = -1};
    bool finished;
    VPTQ_TRY(vptq_dir_check_own(t->opt->work, VPTQ_WORK_FILE, "a work directory",
                                t->dev->ctx->mem, err));
    VPTQ_TRY(vptq_dir_make(t->opt->work, err));
    VPTQ_TRY(vptq_lock_take(t->opt->work, &lock, err));
    VPTQ_TRY(open_manifest(t, err));
    VPTQ_TRY(find_result(t, &finished, err));
    if (finished) {
        t->result->steps = t->opt->steps;
        vptq_log(t->dev->ctx, VPTQ_LOG_INFO, "'%s' is finished", t->opt->work);
    } else {
        VPTQ_TRY(tune(t, err));
    }
out:
    vptq_lock_release(&lock);
    return st;
}

vptq_status vptq_tune_report(vptq_device *dev, const vptq_tune_options *opt,
                             const vptq_output *out, vptq_tune_result *r, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char ids[17];
    vptq_printer printer = vptq_printer_make(out, VPTQ_COLUMNS(columns));
    printer.gap = 1;
    tuner t = {.dev = dev,
               .opt = opt,
               .result = r,
               .printer = out ? &printer : NULL,
               .start = vptq_seconds()};
    *r = (vptq_tune_result){
        .held_out_before = (double)NAN, .held_out = (double)NAN, .changed = (double)NAN};
    vptq_arena_init(&t.arena, dev->ctx->mem);
    VPTQ_TRY(check_options(opt, err));
    VPTQ_TRY(check_directories(opt, err));
    VPTQ_TRY(open_models(&t, err));
    VPTQ_TRY(load_text(&t, ids, err));
    VPTQ_TRY(make_manifest(&t, ids, err));
    VPTQ_TRY(run(&t, err));
out:
    r->seconds = vptq_seconds() - t.start;
    if (st == VPTQ_E_CANCELLED && t.run)
        vptq_fail(err, st, "interrupted after step %u of %u; run the same command to continue",
                  r->steps, opt->steps);
    vptq_e2e_close(t.run);
    vptq_student_release(&t.student);
    vptq_model_release(&t.original);
    vptq_model_release(&t.model);
    json_decref(t.manifest);
    vptq_arena_release(&t.arena);
    return st;
}

typedef struct end_line {
    const char *work;
    vptq_tune_result r;
} end_line;
static const vptq_column end_columns[] = {
    {.name = "work", VPTQ_TEXT(end_line, work)},
    {.name = "steps", VPTQ_INTEGER(end_line, r.steps)},
    {.name = "best_step", VPTQ_INTEGER(end_line, r.best_step)},
    {.name = "windows", VPTQ_INTEGER(end_line, r.windows)},
    {.name = "held_out_windows", VPTQ_INTEGER(end_line, r.held_out_windows)},
    {.name = "held_out_before", VPTQ_REAL(end_line, r.held_out_before)},
    {.name = "held_out_loss", VPTQ_REAL(end_line, r.held_out)},
    {.name = "changed", VPTQ_REAL(end_line, r.changed)},
    {.name = "seconds", VPTQ_REAL(end_line, r.seconds)},
    {.name = "digest", VPTQ_CHARS(end_line, r.digest)}};

vptq_status vptq_tune_report_end(const vptq_tune_options *opt, const vptq_tune_result *r,
                                 const vptq_output *out, vptq_err *err)
{
    const end_line line = {opt->work, *r};
    if (out && out->format == VPTQ_FORMAT_JSON)
        return vptq_print_object(out, VPTQ_COLUMNS(end_columns), &line, err);
    if (isfinite(r->held_out))
        VPTQ_CHECK(vptq_print_text(out, err,
                                   "held-out divergence %.5f -> %.5f (step %u), %.1f %% of the "
                                   "stored numbers changed\n",
                                   r->held_out_before, r->held_out, r->best_step,
                                   100 * r->changed));
    return *r->digest ? vptq_print_text(out, err, "digest %s\n", r->digest) : VPTQ_OK;
}
