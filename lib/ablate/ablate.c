/* Runs an ablation: collects Hessians once, then quantizes, tunes, packs and measures row by
 * row. */
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json.h"
#include "lib/ablate/internal.h"
#include "lib/base/buf.h"
#include "lib/base/comm.h"
#include "lib/base/file.h"

#define MANIFEST "ablate.json"

enum { FORMAT = 1, MAX_ROW_FILE = 1 << 20, SECONDS_LINE = 40 };
#define MAX_SECONDS 1e15 /* so that the line holds them */

/* DIR/inner/name + suffix. */
static vptq_status make_path(const char *dir, const char *inner, const char *name,
                             const char *suffix, char path[PATH_MAX], vptq_err *err)
{
    const int n = snprintf(path, PATH_MAX, "%s/%s/%s%s", dir, inner, name, suffix);
    if (n < 0 || n >= PATH_MAX)
        return vptq_fail(err, VPTQ_E_ARG, "'%.60s...': the path is too long", dir);
    return VPTQ_OK;
}

/* ---- the row file ---- */

/* Loads the row file if it belongs to the same quantized matrices, else begins a new one. */
static vptq_status open_row(vptq_ablate_job *m, vptq_err *err)
{
    vptq_err why = {0};
    const char *made_of;
    vptq_status st = VPTQ_OK;
    if (vptq_path_exists(m->file))
        st = vptq_json_load(m->file, MAX_ROW_FILE, &m->doc, &why);
    if (m->doc)
        st = vptq_json_unseal(m->doc, m->file, &why);
    if (st && st != VPTQ_E_FORMAT && st != VPTQ_E_CHECKSUM)
        return vptq_fail(err, st, "%s", why.text);
    if (st)
        vptq_log(m->a->dev->ctx, VPTQ_LOG_WARN, "%s; the row is measured again", why.text);
    if (m->doc && (st || vptq_json_str_or(m->doc, m->file, "made_of", "", &made_of, &why) ||
                   strcmp(made_of, m->made_of) != 0)) {
        json_decref(m->doc);
        m->doc = NULL;
    }
    if (m->doc && json_is_object(json_object_get(m->doc, "scores")))
        return VPTQ_OK;
    json_decref(m->doc);
    m->doc = json_pack("{s:i, s:s, s:s, s:s, s:{}}", "format", FORMAT, "tool",
                       "vptq-eval " VPTQ_VERSION, "row", m->row->name, "made_of", m->made_of,
                       "scores");
    return m->doc ? VPTQ_OK : vptq_ablate_no_memory(err);
}

/* ---- seconds ---- */

/* line = the seconds and a checksum of their digits. */
static void write_seconds(double seconds, char line[SECONDS_LINE])
{
    const int n = snprintf(line, SECONDS_LINE, "%.3f", seconds);
    snprintf(line + n, SECONDS_LINE - (size_t)n, " %016" PRIx64 "\n",
             vptq_hash(line, (size_t)n, 0));
}

/* False, with 0, unless the text is what write_seconds makes of the number. */
static bool parse_seconds(const char *text, double *seconds)
{
    char line[SECONDS_LINE];
    *seconds = strtod(text, NULL);
    if (*seconds >= 0 && *seconds < MAX_SECONDS) {
        write_seconds(*seconds, line);
        if (strcmp(line, text) == 0)
            return true;
    }
    *seconds = 0;
    return false;
}

/* Adds to the seconds in the row's file, which outlive interruptions; `fresh` ignores the old
 * value. */
static vptq_status add_seconds(const vptq_ablate_job *m, double more, bool fresh, double *total,
                               vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char path[PATH_MAX], *text = NULL, line[SECONDS_LINE];
    size_t size;
    double before = 0;
    VPTQ_TRY(make_path(m->a->opt->dir, "rows", m->row->name, ".seconds", path, err));
    if (!fresh && vptq_path_exists(path)) {
        VPTQ_TRY(vptq_file_read(path, sizeof line, m->a->dev->ctx->mem, &text, &size, err));
        if (!parse_seconds(text, &before))
            vptq_log(m->a->dev->ctx, VPTQ_LOG_WARN,
                     "%s: the file is damaged; the seconds are counted again from 0", path);
    }
    *total = round((before + more) * 1000) / 1000; /* as the file, so as every later table */
    if (more > 0) {
        write_seconds(*total, line);
        VPTQ_TRY(vptq_file_replace(path, line, strlen(line), err));
    }
out:
    vptq_mem_free(m->a->dev->ctx->mem, text);
    return st;
}

/* ---- quantize ---- */

static vptq_quantize_options quantize_options(const vptq_ablation *a,
                                              const vptq_ablate_row *row, const char *work)
{
    const vptq_collect_options *c = &a->opt->collect;
    return (vptq_quantize_options){.model = a->opt->model,
                                   .work = work,
                                   .hessians = a->hessians,
                                   .kv_factor = NAN,
                                   .tokenizer = a->opt->tokenizer,
                                   .settings = &row->settings,
                                   .recipe = row->recipe,
                                   .bits = row->bits,
                                   .embeddings = VPTQ_F16,
                                   .allocate = row->allocate,
                                   .first_layer = c->first_layer,
                                   .last_layer = c->last_layer,
                                   .force = a->opt->force,
                                   .no_size_warnings = true,
                                   .packs = true};
}

static vptq_status hash_file(const char *dir, const char *name, uint64_t *hash, vptq_err *err)
{
    char path[PATH_MAX];
    vptq_map map;
    VPTQ_CHECK(vptq_path_join(path, sizeof path, dir, name, err));
    VPTQ_CHECK(vptq_map_open(path, &map, err));
    *hash = vptq_hash(map.data, map.size, *hash);
    vptq_map_release(&map);
    return VPTQ_OK;
}

/* Hashes report.jsonl, which has the losses and settings of every matrix, and quantize.json of
 * a tuned row, which has how and from what it was tuned. */
static vptq_status hash_work(vptq_ablate_job *m, vptq_err *err)
{
    uint64_t hash = 0;
    VPTQ_CHECK(hash_file(m->work, VPTQ_WORK_REPORT, &hash, err));
    if (m->row->tune)
        VPTQ_CHECK(hash_file(m->tuned, VPTQ_WORK_FILE, &hash, err));
    snprintf(m->made_of, sizeof m->made_of, "%016" PRIx64, hash);
    return VPTQ_OK;
}

static vptq_status quantize_row(vptq_ablate_job *m, vptq_err *err)
{
    vptq_quantize_result r = {0};
    vptq_err why = {0};
    const vptq_quantize_options o = quantize_options(m->a, m->row, m->work);
    const vptq_status st = vptq_quantize_model(m->a->dev, &o, NULL, NULL, &r, err);
    const bool worked = r.reused < r.matrices || (st && r.seconds > 0);
    const vptq_status kept =
        add_seconds(m, worked ? r.seconds : 0, !r.reused, &m->result->seconds, st ? &why : err);
    VPTQ_CHECK(st ? st : kept);
    m->result->bits_per_weight = r.bits_per_weight;
    m->result->mean_loss = r.mean_loss;
    m->result->mean_held_out = r.mean_held_out > 0 ? r.mean_held_out : (double)NAN;
    return VPTQ_OK;
}

/* ---- tune ---- */

/* A batch is at most half of the windows, so that few of them are enough. */
static vptq_tune_options tune_options(const vptq_ablate_job *m)
{
    const vptq_ablate_options *o = m->a->opt;
    const vptq_calibrate_options *c = &o->collect.calibrate;
    const size_t half = (c->windows + 1) / 2;
    vptq_tune_options t = vptq_tune_defaults();
    t.method = (vptq_tune_method)m->row->tune;
    t.from = m->work;
    t.model = o->model;
    t.work = m->tuned;
    t.tokenizer = o->tokenizer;
    t.corpus = c->corpus;
    t.windows = c->windows;
    t.length = c->length;
    t.batch = half < t.batch ? half : t.batch;
    t.seed = c->seed;
    t.force = o->force;
    return t;
}

/* Losses of matrices are omitted: they precede tuning. */
static vptq_status tune_row(vptq_ablate_job *m, vptq_err *err)
{
    char path[PATH_MAX];
    vptq_tune_result r = {0};
    vptq_err why = {0};
    const vptq_tune_options o = tune_options(m);
    VPTQ_CHECK(vptq_path_join(path, sizeof path, m->a->opt->dir, "tuned", err));
    VPTQ_CHECK(vptq_dir_make(path, err));
    const vptq_status st = vptq_tune_report(m->a->dev, &o, NULL, &r, err);
    const bool worked = st || isfinite(r.changed);
    const vptq_status kept =
        add_seconds(m, worked ? r.seconds : 0, false, &m->result->seconds, st ? &why : err);
    m->result->mean_loss = m->result->mean_held_out = (double)NAN;
    return st ? st : kept;
}

/* Reads the digest from the row file; false if it has none. */
static bool read_digest(const vptq_ablate_job *m)
{
    const char *text = json_string_value(json_object_get(m->doc, "digest"));
    snprintf(m->result->digest, VPTQ_DIGEST_SIZE, "%s", text ? text : "");
    return text != NULL;
}

/* ---- a row ---- */

/* Whether this run or an earlier one keeps the archive. */
static bool is_kept(const vptq_ablate_job *m)
{
    return m->a->opt->keep_packed || json_is_true(json_object_get(m->doc, "kept"));
}

/* Whether the row was packed with this tokenizer, and has an archive if this run keeps it. */
static bool is_packed(const vptq_ablate_job *m)
{
    const char *tokenizer = json_string_value(json_object_get(m->doc, "tokenizer"));
    return tokenizer && !strcmp(tokenizer, m->a->tokenizer) &&
           json_is_integer(json_object_get(m->doc, "archive_bytes")) &&
           (!m->a->opt->keep_packed ||
            (json_is_true(json_object_get(m->doc, "kept")) && vptq_path_exists(m->packed)));
}

/* Packs the row, so that it is measured as a reader of the packed file sees it. */
static vptq_status pack_row(vptq_ablate_job *m, vptq_err *err)
{
    vptq_pack_result r;
    vptq_digest_result d;
    const vptq_pack_options o = {.input = m->row->tune ? m->tuned : m->work,
                                 .output = m->packed,
                                 .tokenizer = m->a->opt->tokenizer,
                                 .form = VPTQ_PACK_ARCHIVE,
                                 .dtype = VPTQ_DTYPE_COUNT,
                                 .embeddings = VPTQ_DTYPE_COUNT,
                                 .force = true};
    VPTQ_CHECK(vptq_pack_model(m->a->dev->ctx, &o, &r, err));
    const vptq_checkpoint_options quiet = {.quiet = true};
    VPTQ_CHECK(vptq_digest_model(m->a->dev->ctx, m->packed, &quiet, NULL, &d, err));
    if (json_object_set_new(m->doc, "archive_bytes", json_integer((json_int_t)r.bytes)) ||
        json_object_set_new(m->doc, "digest", json_string(d.digest)) ||
        !vptq_ablate_set_real(m->doc, "bits_per_weight", m->result->bits_per_weight) ||
        !vptq_ablate_set_real(m->doc, "mean_loss", m->result->mean_loss) ||
        !vptq_ablate_set_real(m->doc, "mean_held_out", m->result->mean_held_out) ||
        json_object_set_new(m->doc, "tokenizer", json_string(m->a->tokenizer)) ||
        json_object_set_new(m->doc, "kept", json_boolean(is_kept(m))))
        VPTQ_CHECK(vptq_ablate_no_memory(err));
    return VPTQ_OK;
}

static vptq_status run_quantized(vptq_ablate_job *m, vptq_err *err)
{
    VPTQ_CHECK(quantize_row(m, err));
    if (m->row->tune)
        VPTQ_CHECK(tune_row(m, err));
    VPTQ_CHECK(hash_work(m, err));
    VPTQ_CHECK(open_row(m, err));
    if (!vptq_ablate_has_figures(m) || !read_digest(m) || !is_packed(m)) {
        VPTQ_CHECK(pack_row(m, err));
        VPTQ_CHECK(vptq_ablate_measure(m, m->packed, err));
        VPTQ_CHECK(vptq_json_save_sealed(m->file, m->doc, err));
        read_digest(m);
    }
    return is_kept(m) ? VPTQ_OK : vptq_file_remove(m->packed, err);
}

static vptq_status run_original(vptq_ablate_job *m, vptq_err *err)
{
    vptq_model model;
    VPTQ_CHECK(vptq_ablate_open_model(m->a, m->a->opt->model, &model, err));
    const vptq_status st =
        vptq_checkpoint_fingerprint(&model.ckpt, m->a->dev->ctx, m->made_of, err);
    m->result->bits_per_weight = vptq_model_bits_per_weight(&model);
    m->result->archive_bytes = 0;
    m->result->mean_loss = m->result->mean_held_out = (double)NAN;
    vptq_model_release(&model);
    VPTQ_CHECK(st);
    VPTQ_CHECK(open_row(m, err));
    return vptq_ablate_has_figures(m) ? VPTQ_OK : vptq_ablate_measure(m, m->a->opt->model, err);
}

static vptq_status run_row(vptq_ablation *a, const vptq_ablate_row *row,
                           vptq_ablate_result *result, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const char *dir = a->opt->dir;
    vptq_ablate_job m = {.a = a, .row = row, .result = result};
    VPTQ_TRY(vptq_check_cancel(a->dev->ctx, err));
    VPTQ_TRY(make_path(dir, "work", row->name, "", m.work, err));
    VPTQ_TRY(make_path(dir, "tuned", row->name, "", m.tuned, err));
    VPTQ_TRY(make_path(dir, "packed", row->name, ".vptq", m.packed, err));
    VPTQ_TRY(make_path(dir, "rows", row->name, ".json", m.file, err));
    result->scores = vptq_arena_alloc(&a->report->arena, vptq_ablate_text_count(a->opt),
                                      sizeof *result->scores, err);
    result->tasks =
        vptq_arena_alloc(&a->report->arena, a->opt->task_count, sizeof *result->tasks, err);
    if (!result->scores || !result->tasks)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(row->original ? run_original(&m, err) : run_quantized(&m, err));
    result->archive_bytes =
        (uint64_t)json_integer_value(json_object_get(m.doc, "archive_bytes"));
out:
    json_decref(m.doc);
    if (st)
        vptq_err_context(err, "row '%s'", row->name);
    return st;
}

/* ---- plan ---- */

static vptq_status plan_row(vptq_ablation *a, const vptq_ablate_row *row, double original_bits,
                            vptq_ablate_result *result, vptq_err *err)
{
    vptq_quantize_options o = quantize_options(a, row, NULL);
    vptq_quantize_result r;
    vptq_ablate_cost cost = {0, 0};
    o.hessians = NULL;
    o.dry_run = true;
    o.estimate = a->estimates && vptq_ablate_speed(a, row) == 0;
    const vptq_status st =
        vptq_quantize_model(a->dev, &o, vptq_ablate_add_cost, &cost, &r, err);
    if (st)
        return vptq_err_context(err, "row '%s'", row->name);
    if (a->estimates)
        vptq_ablate_add_row(a, row, &r, &cost);
    result->bits_per_weight = r.bits_per_weight;
    if (r.bits_per_weight > original_bits)
        vptq_log(a->dev->ctx, VPTQ_LOG_WARN,
                 "row '%s': %.2f bits per weight, the original has %.2f", row->name,
                 r.bits_per_weight, original_bits);
    return VPTQ_OK;
}

/* Rows are tuned on the calibration text, which given Hessians need not come with. */
static vptq_status check_text(const vptq_ablation *a, vptq_err *err)
{
    const vptq_corpus_options *c = &a->opt->collect.calibrate.corpus;
    const bool text = c->text_count + c->token_count > 0;
    bool tuned = false;
    for (size_t i = 0; i < a->report->count; i++) {
        tuned |= a->rows[i].tune != 0;
        if (a->rows[i].tune && !text)
            return vptq_fail(
                err, VPTQ_E_ARG,
                "row '%s': tuning needs a calibration text (-c TEXT), also with -H",
                a->rows[i].name);
    }
    return text && !tuned && a->opt->hessians
               ? vptq_fail(
                     err, VPTQ_E_ARG,
                     "-H and a calibration text exclude each other: no row is tuned on it")
               : VPTQ_OK;
}

/* Plans the rows.  Optional ones that this model cannot have are left out. */
static vptq_status plan_all(vptq_ablation *a, double bits, vptq_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < a->report->count; i++) {
        vptq_err why = {0};
        a->rows[n] = a->rows[i];
        a->report->rows[n] = (vptq_ablate_result){.row = &a->rows[n],
                                                  .bits_per_weight = bits,
                                                  .mean_loss = (double)NAN,
                                                  .mean_held_out = (double)NAN,
                                                  .tokens_per_second = (double)NAN};
        const vptq_status st = a->rows[n].original
                                   ? VPTQ_OK
                                   : plan_row(a, &a->rows[n], bits, &a->report->rows[n], &why);
        if ((st == VPTQ_E_ARG || st == VPTQ_E_SHAPE) && a->rows[n].optional) {
            vptq_log(a->dev->ctx, VPTQ_LOG_WARN, "%s; it is left out", why.text);
            continue;
        }
        if (st)
            return vptq_fail(err, st, "%s", why.text);
        n++;
    }
    a->report->count = n;
    return VPTQ_OK;
}

/* *bits = the original's per weight.  Replaces options of the run by what they are for it. */
static vptq_status open_original(vptq_ablation *a, double *bits, vptq_err *err)
{
    vptq_model model;
    vptq_ablate_options *own = vptq_arena_alloc(&a->report->arena, 1, sizeof *own, err);
    if (!own)
        return VPTQ_E_NOMEM;
    *own = *a->opt;
    VPTQ_CHECK(vptq_ablate_open_model(a, own->model, &model, err));
    vptq_model_warn_of_unused(a->dev->ctx, &model.ckpt); /* once, and not of every row */
    *bits = vptq_model_bits_per_weight(&model);
    own->ppl.context = vptq_model_window(&model, own->ppl.context);
    own->collect.calibrate.length = vptq_model_window(&model, own->collect.calibrate.length);
    if (own->collect.last_layer == UINT32_MAX)
        own->collect.last_layer = model.desc->layers - 1;
    a->all_layers =
        own->collect.first_layer == 0 && own->collect.last_layer == model.desc->layers - 1;
    a->opt = a->report->opt = own;
    const vptq_status st = vptq_ablate_plan_figures(a, &model, err);
    vptq_model_release(&model);
    return st;
}

static vptq_status plan_rows(vptq_ablation *a, vptq_err *err)
{
    double bits;
    VPTQ_CHECK(vptq_ablate_rows(a->dev->ctx, a->opt, &a->report->arena, &a->rows,
                                &a->report->count, err));
    VPTQ_CHECK(open_original(a, &bits, err));
    a->report->rows =
        vptq_arena_alloc(&a->report->arena, a->report->count, sizeof *a->report->rows, err);
    if (!a->report->rows)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(plan_all(a, bits, err));
    if (!a->opt->dry_run)
        return check_text(a, err);
    return a->estimates ? vptq_ablate_estimate(a, err) : VPTQ_OK;
}

/* Whether any row is quantized and so needs Hessians. */
static bool needs_hessians(const vptq_ablation *a)
{
    bool any = false;
    for (size_t i = 0; i < a->report->count; i++)
        any |= !a->rows[i].original;
    return any;
}

/* Fails for Hessians of another model before anything is measured; every rank reads them. */
static vptq_status check_hessians(const vptq_ablation *a, vptq_err *err)
{
    size_t i = 0;
    while (a->rows[i].original)
        i++;
    vptq_quantize_options o = quantize_options(a, &a->rows[i], NULL);
    vptq_quantize_result r;
    o.bits = 0;
    o.dry_run = true;
    vptq_comm_alone(a->dev->ctx, true);
    const vptq_status st = vptq_quantize_model(a->dev, &o, NULL, NULL, &r, err);
    vptq_comm_alone(a->dev->ctx, false);
    return st;
}

static vptq_status name_hessians(vptq_ablation *a, vptq_err *err)
{
    const vptq_ablate_options *o = a->opt;
    a->hessians = o->hessians ? o->hessians : a->hessian_path;
    return o->hessians ? VPTQ_OK
                       : vptq_path_join(a->hessian_path, sizeof a->hessian_path, o->dir,
                                        "hessians", err);
}

/* All ranks collect together. */
static vptq_status get_hessians(vptq_ablation *a, vptq_err *err)
{
    const vptq_ablate_options *o = a->opt;
    const vptq_checkpoint_options copt = {.tokenizer = o->tokenizer, .quiet = true};
    vptq_collect_result r;
    vptq_model model;
    if (!needs_hessians(a))
        return VPTQ_OK;
    if (o->hessians)
        return check_hessians(a, err);
    VPTQ_CHECK(vptq_model_open(a->dev->ctx, o->model, &copt,
                               o->collect.calibrate.corpus.text_count > 0, &model, err));
    const vptq_status st =
        vptq_hessian_collect(a->dev, &model, &o->collect, a->hessians, &r, err);
    vptq_model_release(&model);
    return st;
}

/* Writes the manifest, or compares the one that is there: work directories collect layers, so
 * that rows of other layers would mix with these. */
static vptq_status take_manifest(const vptq_ablation *a, const char *path, vptq_err *err)
{
    char layers[32] = "all";
    const char *before;
    json_t *doc = NULL;
    vptq_status st;
    if (!a->all_layers)
        snprintf(layers, sizeof layers, "%" PRIu32 "-%" PRIu32, a->opt->collect.first_layer,
                 a->opt->collect.last_layer);
    if (!vptq_path_exists(path)) {
        doc = json_pack("{s:i, s:s, s:s}", "format", FORMAT, "tool", "vptq-eval " VPTQ_VERSION,
                        "layers", layers);
        st = doc ? vptq_json_save(path, doc, err) : vptq_ablate_no_memory(err);
    } else {
        st = vptq_json_load(path, MAX_ROW_FILE, &doc, err);
        if (!st)
            st = vptq_json_str_or(doc, path, "layers", "all", &before, err);
        if (!st && strcmp(before, layers))
            st = vptq_fail(err, VPTQ_E_MISMATCH,
                           "%s: its key 'layers' is '%s', here it is '%s'; give another "
                           "directory",
                           path, before, layers);
    }
    json_decref(doc);
    return st;
}

static vptq_status make_directory(const vptq_ablation *a, vptq_err *err)
{
    static const char *const inner[] = {"work", "packed", "rows"};
    char path[PATH_MAX];
    const char *dir = a->opt->dir;
    VPTQ_CHECK(vptq_path_join(path, sizeof path, dir, MANIFEST, err));
    VPTQ_CHECK(take_manifest(a, path, err));
    for (size_t i = 0; i < sizeof inner / sizeof inner[0]; i++) {
        VPTQ_CHECK(vptq_path_join(path, sizeof path, dir, inner[i], err));
        VPTQ_CHECK(vptq_dir_make(path, err));
    }
    return VPTQ_OK;
}

static void log_row(const vptq_ablation *a, const vptq_ablate_result *r, size_t done)
{
    if (r->scores)
        vptq_log(a->dev->ctx, VPTQ_LOG_INFO, "row %zu of %zu: %s: %.3f bits, ppl %.4f ± %.4f",
                 done, a->report->count, r->row->name, r->bits_per_weight, r->scores[0].ppl,
                 r->scores[0].ppl_stderr);
}

/* Runs row i on this rank. */
static vptq_status run_one(vptq_ablation *a, size_t i, vptq_err *err)
{
    vptq_log(a->dev->ctx, VPTQ_LOG_INFO, "row %zu of %zu: %s", i + 1, a->report->count,
             a->rows[i].name);
    vptq_comm_alone(a->dev->ctx, true);
    const vptq_status st = run_row(a, &a->rows[i], &a->report->rows[i], err);
    vptq_comm_alone(a->dev->ctx, false);
    if (!st)
        log_row(a, &a->report->rows[i], i + 1);
    return st;
}

/* Runs rows until none is left; with several ranks each runs some. */
static vptq_status run_rows(vptq_ablation *a, vptq_err *err)
{
    const size_t count = a->report->count;
    const bool shared = vptq_comm_size(a->dev->ctx) > 1;
    char finished[64] = "";
    for (uint64_t i = 0;; i++) {
        vptq_status st = shared ? vptq_comm_next(a->dev->ctx, count, &i, err) : VPTQ_OK;
        if (!st && i == count)
            return VPTQ_OK;
        if (!st)
            st = run_one(a, i, err);
        if (!shared)
            snprintf(finished, sizeof finished, "%" PRIu64 " of %zu rows finished, ", i, count);
        if (st == VPTQ_E_CANCELLED)
            vptq_fail(err, st, "interrupted; %srun the same command to continue", finished);
        if (st)
            return st;
    }
}

/* Reads the rows that others ran: nothing is left to do in them. */
static vptq_status read_rows(vptq_ablation *a, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_ablate_options *o = a->opt;
    vptq_ablate_options again = *o;
    again.force = false;
    a->opt = &again;
    for (size_t i = 0; i < a->report->count && !st; i++)
        if (!a->report->rows[i].scores)
            st = run_one(a, i, err);
    a->opt = o;
    return st;
}

/* Rank 0: takes the directory. */
static vptq_status prepare(const vptq_ablation *a, vptq_lock *lock, vptq_err *err)
{
    const char *dir = a->opt->dir;
    VPTQ_CHECK(vptq_dir_check_own(dir, MANIFEST, "an ablation", a->dev->ctx->mem, err));
    VPTQ_CHECK(vptq_dir_make(dir, err));
    VPTQ_CHECK(vptq_lock_take(dir, lock, err));
    return make_directory(a, err);
}

static vptq_status run_all(vptq_ablation *a, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_lock lock = {.fd = -1};
    const vptq_ctx *ctx = a->dev->ctx;
    const bool first = vptq_comm_rank(ctx) == 0;
    VPTQ_TRY(vptq_ablate_check_same(a, err));
    VPTQ_TRY(name_hessians(a, err));
    st = first ? prepare(a, &lock, err) : VPTQ_OK;
    VPTQ_TRY(vptq_comm_agree(ctx, st, err));
    st = vptq_comm_see(ctx, a->opt->dir, "", err);
    if (!st)
        st = get_hessians(a, err);
    if (!st)
        st = run_rows(a, err);
    VPTQ_TRY(vptq_comm_agree(ctx, st, err));
    st = first ? read_rows(a, err) : VPTQ_OK;
out:
    vptq_ablate_release_original(a);
    vptq_lock_release(&lock);
    return st;
}

/* Runs all rows after checking all of them. */
static vptq_status run_ablation(vptq_device *dev, const vptq_ablate_options *opt,
                                bool estimates, vptq_ablate_report *report, vptq_err *err)
{
    vptq_ablation a = {.dev = dev, .opt = opt, .report = report, .estimates = estimates};
    *report = (vptq_ablate_report){.opt = opt};
    vptq_arena_init(&report->arena, dev->ctx->mem);
    vptq_comm_alone(dev->ctx, true);
    const vptq_status st = plan_rows(&a, err);
    vptq_comm_alone(dev->ctx, false);
    VPTQ_CHECK(st);
    if (!opt->dry_run)
        return run_all(&a, err);
    if (!opt->dir || vptq_comm_rank(dev->ctx))
        return VPTQ_OK;
    VPTQ_CHECK(vptq_dir_check_own(opt->dir, MANIFEST, "an ablation", dev->ctx->mem, err));
    return vptq_dir_check_fill(opt->dir, err);
}

vptq_status vptq_eval_ablate(vptq_device *dev, const vptq_ablate_options *opt,
                             const vptq_output *out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_mem *mem = dev->ctx->mem;
    const vptq_format format = out ? out->format : VPTQ_FORMAT_TEXT;
    vptq_table table = {.title = NULL};
    vptq_ablate_report report = {0};
    vptq_buf text;
    vptq_buf_init(&text, mem);
    const bool estimates = opt->dry_run && vptq_estimate_is_shown(out);
    VPTQ_TRY(run_ablation(dev, opt, estimates, &report, err));
    if (vptq_comm_rank(dev->ctx))
        goto out;
    if (format == VPTQ_FORMAT_HTML) {
        VPTQ_TRY(vptq_ablate_page(&report, mem, &text, err));
    } else {
        VPTQ_TRY(vptq_ablate_table(&report, mem, &table, err));
        table.width = out ? out->width : 0;
        VPTQ_TRY(vptq_table_write(&table, format, &text, err));
    }
    if (out)
        VPTQ_TRY(out->write(out->arg, text.data, text.len, err));
    if (estimates)
        VPTQ_TRY(vptq_estimate_end(out, &report.estimate, err));
out:
    vptq_table_release(&table);
    vptq_arena_release(&report.arena);
    vptq_buf_release(&text);
    return vptq_comm_agree(dev->ctx, st, err);
}
