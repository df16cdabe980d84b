/* The files of a tuning run: quantize.json, the state, the matrices and report.jsonl. */
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/vptq/layer_file.h"
#include "lib/quantize/internal.h"
#include "lib/quantize/tune_internal.h"

enum { JSON_LIMIT = 8 << 20 };

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
static void hash_from(const vptq_tuner *t, const char *manifest, char hex[17])
{
    const vptq_student *s = &t->student;
    uint64_t h = vptq_hash(manifest, strlen(manifest), 0);
    h = vptq_hash(s->original, s->count * sizeof *s->original, h);
    for (size_t i = 0; i < (size_t)t->model.desc->layers * VPTQ_LINEAR_DENSE; i++)
        if (s->weight[i].packed)
            h = hash_indices(&s->matrix[i].vq, h);
    snprintf(hex, 17, "%016" PRIx64, h);
}

static int set_count(json_t *object, const char *key, uint64_t count)
{
    return json_object_set_new(object, key, json_integer((json_int_t)count));
}

static vptq_status add_tune_key(vptq_tuner *t, const char *from, const char *ids_fingerprint,
                                vptq_err *err)
{
    const vptq_trainer_options *p = &t->plan;
    const vptq_tune_method method = t->opt->method;
    json_t *tune =
        json_pack("{s:s, s:s, s:s, s:s}", "tool", "vptq-quantize " VPTQ_VERSION, "method",
                  vptq_tune_method_name(method), "from", from, "ids", ids_fingerprint);
    if (!tune || json_object_set_new(t->manifest, "tune", tune) ||
        (t->opt->self_windows && set_count(tune, "self_text", t->opt->self_windows)) ||
        set_count(tune, "windows", p->windows) || set_count(tune, "held_out", p->held_out) ||
        set_count(tune, "length", p->length) ||
        (method & VPTQ_TUNE_LAYER && set_count(tune, "passes", t->opt->passes)) ||
        (method & VPTQ_TUNE_E2E && set_count(tune, "steps", p->steps)) ||
        set_count(tune, "batch", p->batch) ||
        json_object_set_new(tune, "rate", isnan(p->rate) ? json_null() : json_real(p->rate)) ||
        json_object_set_new(tune, "precision", json_string(p->bf16 ? "bf16" : "float")) ||
        set_count(tune, "seed", p->seed))
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    return VPTQ_OK;
}

/* Weights, windows and precision: all that the original's hidden states follow from, so that
 * they serve every run with the same. */
void vptq_tuner_hash_original(vptq_tuner *t)
{
    const vptq_trainer_options *p = &t->plan;
    const uint64_t sizes[] = {p->length, p->windows, p->bf16};
    uint64_t h = vptq_hash(t->weights_fingerprint, strlen(t->weights_fingerprint), 0);
    h = vptq_hash(sizes, sizeof sizes, h);
    h = vptq_hash(p->ids, (p->windows + p->held_out) * p->length * sizeof *p->ids, h);
    snprintf(t->original_fingerprint, sizeof t->original_fingerprint, "%016" PRIx64, h);
}

vptq_status vptq_tuner_make_manifest(vptq_tuner *t, const char *ids_fingerprint, vptq_err *err)
{
    char path[PATH_MAX], from[17], *text;
    VPTQ_CHECK(vptq_path_join(path, sizeof path, t->opt->from, VPTQ_WORK_FILE, err));
    VPTQ_CHECK(vptq_json_load(path, JSON_LIMIT, &t->manifest, err));
    VPTQ_CHECK(vptq_json_unseal(t->manifest, path, err));
    VPTQ_CHECK(vptq_json_str_or(t->manifest, path, "base_fingerprint", NULL,
                                &t->weights_fingerprint, err));
    VPTQ_CHECK(vptq_manifest_text(t->manifest, &text, err));
    hash_from(t, text, from);
    free(text);
    VPTQ_CHECK(add_tune_key(t, from, ids_fingerprint, err));
    VPTQ_CHECK(
        vptq_manifest_set_paths(t->manifest, t->original.ckpt.path, t->opt->tokenizer, err));
    VPTQ_CHECK(vptq_manifest_text(t->manifest, &text, err));
    snprintf(t->fingerprint, sizeof t->fingerprint, "%016" PRIx64,
             vptq_hash(text, strlen(text), 0));
    free(text);
    return VPTQ_OK;
}

vptq_status vptq_tuner_open_manifest(const vptq_tuner *t, vptq_err *err)
{
    vptq_err why = {0};
    char path[PATH_MAX];
    bool unused; /* the stage of this run has a manifest of its own */
    VPTQ_CHECK(vptq_path_join(path, sizeof path, t->opt->work, VPTQ_WORK_FILE, err));
    VPTQ_CHECK(vptq_dir_find_unused(t->opt->work, VPTQ_WORK_FILE, VPTQ_UNTUNED_DIR,
                                    t->dev->ctx->mem, &unused, err));
    if (!unused && vptq_path_exists(path)) {
        const vptq_status st = vptq_manifest_expect(path, t->manifest, &why);
        if (st && !t->opt->force)
            return vptq_fail(err, st, "%s", why.text);
        if (st && !t->opt->dry_run)
            VPTQ_CHECK(
                vptq_work_clear(t->opt->work, t->opt->self_windows > 0, t->dev->ctx->mem, err));
    }
    return t->opt->dry_run ? vptq_file_check_target(path, true, err)
                           : vptq_json_save_sealed(path, t->manifest, err);
}

/* ---- the state of an interrupted run ---- */

typedef struct state_header {
    char magic[8];
    char fingerprint[16];
    uint64_t bytes, hash;
} state_header;
static const char state_magic[8] = "VPTQTUN1";

static vptq_status state_path(const vptq_tuner *t, char path[PATH_MAX], vptq_err *err)
{
    return vptq_path_join(path, PATH_MAX, t->opt->work, VPTQ_TUNE_STATE_FILE, err);
}

static vptq_status write_state(const vptq_tuner *t, vptq_err *err)
{
    char path[PATH_MAX];
    const vptq_trainer *e2e = t->e2e ? vptq_e2e_trainer(t->e2e) : NULL;
    const size_t layer_bytes = t->layer_state_bytes;
    state_header h = {.bytes = layer_bytes + (e2e ? vptq_trainer_state_bytes(e2e) : 0)};
    VPTQ_CHECK(state_path(t, path, err));
    char *data = vptq_mem_alloc(t->dev->ctx->mem, sizeof h + h.bytes, 1, err);
    if (!data)
        return VPTQ_E_NOMEM;
    if (layer_bytes)
        memcpy(data + sizeof h, t->layer_state, layer_bytes);
    if (e2e)
        vptq_trainer_get_state(e2e, data + sizeof h + layer_bytes);
    memcpy(h.magic, state_magic, sizeof h.magic);
    memcpy(h.fingerprint, t->fingerprint, sizeof h.fingerprint);
    h.hash = vptq_hash(data + sizeof h, h.bytes, 0);
    memcpy(data, &h, sizeof h);
    const vptq_status st = vptq_file_replace(path, data, sizeof h + h.bytes, err);
    vptq_mem_free(t->dev->ctx->mem, data);
    return st;
}

void vptq_tuner_save_state(const vptq_tuner *t)
{
    vptq_err why = {0};
    if (write_state(t, &why))
        vptq_log(t->dev->ctx, VPTQ_LOG_WARN, "%s; the state is not saved", why.text);
}

/* Whether the file holds a state of this run. */
static bool is_state(const vptq_tuner *t, const vptq_map *map)
{
    state_header h;
    if (map->size < sizeof h)
        return false;
    memcpy(&h, map->data, sizeof h);
    return !memcmp(h.magic, state_magic, sizeof h.magic) &&
           !memcmp(h.fingerprint, t->fingerprint, sizeof h.fingerprint) &&
           h.bytes == map->size - sizeof h &&
           h.hash == vptq_hash(map->data + sizeof h, h.bytes, 0);
}

void vptq_tuner_warn_of_state(const vptq_tuner *t)
{
    vptq_log(t->dev->ctx, VPTQ_LOG_WARN,
             "%s/" VPTQ_TUNE_STATE_FILE
             " is damaged or from another run; tuning starts at the first step",
             t->opt->work);
}

vptq_status vptq_tuner_map_state(vptq_tuner *t, vptq_err *err)
{
    char path[PATH_MAX];
    VPTQ_CHECK(state_path(t, path, err));
    if (!vptq_path_exists(path))
        return VPTQ_OK;
    VPTQ_CHECK(vptq_map_open(path, &t->saved, err));
    if (!is_state(t, &t->saved)) {
        vptq_tuner_warn_of_state(t);
        vptq_map_release(&t->saved);
    }
    return VPTQ_OK;
}

const void *vptq_tuner_saved(const vptq_tuner *t, size_t at, size_t bytes)
{
    const size_t size = t->saved.data ? t->saved.size - sizeof(state_header) : 0;
    return bytes <= size && at <= size - bytes ? t->saved.data + sizeof(state_header) + at
                                               : NULL;
}

/* ---- the result ---- */

/* The report row of a matrix without the losses, which tuning changes. */
static vptq_status row_text(const char *report, const char *path, const char *method,
                            char **text, vptq_err *err)
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
    vptq_status st = json_object_set_new(row, "tuned", json_string(method))
                         ? vptq_fail(err, VPTQ_E_NOMEM, "out of memory")
                         : vptq_json_text(row, path, false, text, err);
    json_decref(row);
    return st;
}

static vptq_status matrix_path(const vptq_tuner *t, size_t i, char path[PATH_MAX],
                               vptq_err *err)
{
    char name[VPTQ_LAYER_FILE_NAME_MAX];
    vptq_layer_file_name(
        name, (uint32_t)(i / VPTQ_LINEAR_DENSE),
        vptq_linear_name(t->model.desc, (vptq_linear)(i % VPTQ_LINEAR_DENSE)).text);
    return vptq_path_join(path, PATH_MAX, t->opt->work, name, err);
}

/* The report row of matrix i as `from` had it when it was opened. */
static const char *old_report(const vptq_tuner *t, size_t i)
{
    const vptq_checkpoint *c = &t->model.ckpt;
    size_t at = 0;
    while (strcmp(c->quantized[at].name, t->student.matrix[i].name) != 0)
        at++;
    return vptq_checkpoint_layer(c, at)->report;
}

/* Writes matrix i and appends its row to `report`. */
static vptq_status write_matrix(const vptq_tuner *t, size_t i, vptq_buf *report, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char path[PATH_MAX], *row = NULL;
    const vptq_packed_matrix *m = &t->student.matrix[i];
    const float *masters = t->student.master, *stored = t->student.stored;
    VPTQ_TRY(matrix_path(t, i, path, err));
    VPTQ_TRY(
        row_text(old_report(t, i), path, vptq_tune_method_name(t->opt->method), &row, err));
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

static vptq_status remove_file(const vptq_tuner *t, const char *name, vptq_err *err)
{
    char path[PATH_MAX];
    VPTQ_CHECK(vptq_path_join(path, sizeof path, t->opt->work, name, err));
    return vptq_path_exists(path) ? vptq_file_remove(path, err) : VPTQ_OK;
}

/* Writes report.jsonl and removes the states, the large one first: a finished run does not look
 * for it. */
static vptq_status write_report(const vptq_tuner *t, const vptq_buf *report, vptq_err *err)
{
    char path[PATH_MAX];
    VPTQ_CHECK(remove_file(t, VPTQ_E2E_ORIGINAL_FILE, err));
    VPTQ_CHECK(vptq_path_join(path, sizeof path, t->opt->work, VPTQ_WORK_REPORT, err));
    VPTQ_CHECK(vptq_file_replace(path, report->data, report->len, err));
    return remove_file(t, VPTQ_TUNE_STATE_FILE, err);
}

vptq_status vptq_tuner_write_result(const vptq_tuner *t, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_buf report;
    vptq_buf_init(&report, t->dev->ctx->mem);
    for (size_t i = 0; i < (size_t)t->model.desc->layers * VPTQ_LINEAR_DENSE; i++)
        if (t->student.weight[i].packed)
            VPTQ_TRY(write_matrix(t, i, &report, err));
    st = write_report(t, &report, err);
out:
    vptq_buf_release(&report);
    return st;
}

/* *found: whether this matrix of the result is there, whole and of this run; appends its row.
 */
static vptq_status find_matrix(const vptq_tuner *t, size_t i, vptq_buf *report, bool *found,
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

vptq_status vptq_tuner_find_result(const vptq_tuner *t, bool *finished, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_buf report;
    vptq_buf_init(&report, t->dev->ctx->mem);
    *finished = true;
    for (size_t i = 0; *finished && i < (size_t)t->model.desc->layers * VPTQ_LINEAR_DENSE; i++)
        if (t->student.weight[i].packed)
            VPTQ_TRY(find_matrix(t, i, &report, finished, err));
    if (*finished && !t->opt->dry_run)
        st = write_report(t, &report, err);
out:
    vptq_buf_release(&report);
    return st;
}
