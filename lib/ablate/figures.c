/* Figures of a row: perplexity and divergence on texts, accuracy on tasks, speed of serving.
 * The row file keeps them by hashes of what they were measured on. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/text_file.h"
#include "lib/ablate/internal.h"
#include "lib/base/file.h"
#include "lib/eval/kld.h"
#include "lib/eval/tasks.h"

#define TASK_DELIMITER "\nAnswer: "
enum { MAX_TEXTS = 8, MAX_TASKS = 8, KEY = 96, RUNS = 3 };
static const vptq_dtype serve_kv = VPTQ_F16;

vptq_status vptq_ablate_no_memory(vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
}

bool vptq_ablate_set_real(json_t *doc, const char *key, double x)
{
    return !json_object_set_new(doc, key, isfinite(x) ? json_real(x) : json_null());
}

static double get_real(const json_t *doc, const char *key)
{
    const json_t *value = json_object_get(doc, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

vptq_status vptq_ablate_open_model(const vptq_ablation *a, const char *path, vptq_model *model,
                                   vptq_err *err)
{
    const vptq_ablate_options *o = a->opt;
    const vptq_checkpoint_options opt = {.tokenizer = o->tokenizer, .quiet = true};
    const bool tokenizer = o->ppl.corpus.text_count > 0 || o->task_count > 0 || o->serve;
    return vptq_model_open(a->dev->ctx, path, &opt, tokenizer, model, err);
}

/* ---- what is measured ---- */

size_t vptq_ablate_text_count(const vptq_ablate_options *o)
{
    return o->ppl.corpus.text_count + o->ppl.corpus.token_count;
}

const char *vptq_ablate_text(const vptq_ablate_options *o, size_t i)
{
    const vptq_corpus_options *c = &o->ppl.corpus;
    return i < c->text_count ? c->texts[i] : c->tokens[i - c->text_count];
}

vptq_status vptq_ablate_hash_input(const vptq_ablation *a, const char *path,
                                   vptq_text_kind kind, uint64_t *hash, vptq_err *err)
{
    vptq_text_file t;
    VPTQ_CHECK(vptq_text_file_open(a->dev->ctx, path, kind, SIZE_MAX, &t, err));
    *hash = vptq_hash(t.data, t.size, *hash);
    vptq_text_file_close(&t);
    return VPTQ_OK;
}

/* The ids that the original's tokenizer makes of a text are added by count_texts. */
static vptq_status hash_text(const vptq_ablation *a, size_t i, uint64_t *hash, vptq_err *err)
{
    const vptq_ablate_options *o = a->opt;
    const bool tokens = i >= o->ppl.corpus.text_count;
    const uint64_t options[] = {tokens,         o->ppl.corpus.rows, o->ppl.context,
                                o->ppl.windows, o->ppl.stride,      (uint64_t)o->ppl.protocol};
    VPTQ_CHECK(vptq_json_check_text("ablate", "the text's name",
                                    vptq_path_base(vptq_ablate_text(o, i)), err));
    const vptq_text_kind kind = tokens                ? VPTQ_TEXT_BYTES
                                : o->ppl.corpus.lossy ? VPTQ_TEXT_LOSSY
                                                      : VPTQ_TEXT_UTF8;
    *hash = 0;
    VPTQ_CHECK(vptq_ablate_hash_input(a, vptq_ablate_text(o, i), kind, hash, err));
    *hash = vptq_hash(options, sizeof options, *hash);
    return VPTQ_OK;
}

static vptq_status hash_task(const vptq_ablation *a, size_t i, uint64_t *hash, vptq_err *err)
{
    const vptq_ablate_options *o = a->opt;
    const uint64_t limit = o->task_limit;
    for (size_t j = 0; j < i; j++)
        if (!strcmp(o->tasks[j].name, o->tasks[i].name))
            return vptq_fail(err, VPTQ_E_ARG, "two tasks with the name '%.60s'",
                             o->tasks[i].name);
    VPTQ_CHECK(vptq_json_check_text("ablate", "the task's name", o->tasks[i].name, err));
    *hash = 0;
    VPTQ_CHECK(vptq_ablate_hash_input(a, o->tasks[i].path, VPTQ_TEXT_JSON, hash, err));
    *hash = vptq_hash(&limit, sizeof limit,
                      vptq_hash(o->tasks[i].name, strlen(o->tasks[i].name), *hash));
    return VPTQ_OK;
}

static vptq_status check_options(const vptq_ablate_options *o, vptq_err *err)
{
    const size_t texts = vptq_ablate_text_count(o);
    if (texts == 0 || texts > MAX_TEXTS)
        return vptq_fail(err, VPTQ_E_ARG, "%zu texts to measure on, expected 1 to %d", texts,
                         (int)MAX_TEXTS);
    if (o->task_count > MAX_TASKS)
        return vptq_fail(err, VPTQ_E_ARG, "%zu tasks, expected at most %d", o->task_count,
                         (int)MAX_TASKS);
    VPTQ_CHECK(vptq_eval_check_stride(&o->ppl, err));
    if (o->kld && o->ppl.stride && o->ppl.stride != o->ppl.context)
        return vptq_fail(err, VPTQ_E_ARG,
                         "a divergence is measured on windows without overlap, but stride is "
                         "%zu and context %zu",
                         o->ppl.stride, o->ppl.context);
    return VPTQ_OK;
}

/* The corpus of text i alone; `path` must outlive it. */
static vptq_corpus_options corpus_of(const vptq_ablate_options *o, size_t i,
                                     const char *const *path)
{
    const bool tokens = i >= o->ppl.corpus.text_count;
    return (vptq_corpus_options){.texts = path,
                                 .text_count = !tokens,
                                 .tokens = path,
                                 .token_count = tokens,
                                 .rows = o->ppl.corpus.rows,
                                 .lossy = o->ppl.corpus.lossy};
}

/* A text that is too short, and one without tokens, fail here. */
static vptq_status count_texts(vptq_ablation *a, const vptq_model *m, vptq_err *err)
{
    vptq_ablate_passes *p = &a->text_passes;
    *p = (vptq_ablate_passes){.length = a->opt->ppl.context};
    for (size_t i = 0; i < vptq_ablate_text_count(a->opt); i++) {
        const char *path = vptq_ablate_text(a->opt, i);
        vptq_ppl_options o = a->opt->ppl;
        vptq_ppl_result r;
        uint64_t ids;
        const vptq_eval_watch watch = {.hash = &ids};
        o.corpus = corpus_of(a->opt, i, &path);
        o.dry_run = true;
        VPTQ_CHECK(vptq_eval_ppl(a->dev, m, &o, &watch, &r, err));
        a->text_hash[i] = vptq_hash(&ids, sizeof ids, a->text_hash[i]);
        p->tokens += (double)r.windows * (double)r.context;
        p->scored += (double)r.tokens;
    }
    return VPTQ_OK;
}

/* As do items that are none. */
static vptq_status count_tasks(vptq_ablation *a, const vptq_model *m, vptq_err *err)
{
    double requests = 0;
    vptq_ablate_passes *p = &a->task_passes;
    *p = (vptq_ablate_passes){.length = 1};
    for (size_t i = 0; i < a->opt->task_count; i++) {
        const vptq_task *task = &a->opt->tasks[i];
        const vptq_task_file_options options = {
            .task = task->name, .delimiter = TASK_DELIMITER, .limit = a->opt->task_limit};
        uint64_t ids = 0;
        const vptq_task_run count = {.name = task->name, .dry_run = true, .hash = &ids};
        vptq_task_file file;
        vptq_task_figures f;
        VPTQ_CHECK(vptq_task_file_read(task->path, &options, a->dev->ctx, &file, err));
        const vptq_status st = vptq_eval_task(a->dev, m, &file, &count, NULL, &f, err);
        vptq_task_file_release(&file);
        VPTQ_CHECK(st);
        a->task_hash[i] = vptq_hash(&ids, sizeof ids, a->task_hash[i]);
        p->tokens += (double)f.rows;
        requests += (double)f.requests;
    }
    p->scored = p->tokens;
    if (p->tokens > requests)
        p->length = (size_t)(p->tokens / requests);
    return VPTQ_OK;
}

static vptq_status plan_serve(vptq_ablation *a, const vptq_model *m, vptq_err *err)
{
    const char *text = a->opt->serve;
    if (!text)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_serve_parse(text, &a->serve, err));
    const uint64_t length = (uint64_t)a->serve.input + a->serve.output;
    if (a->serve.output < 2)
        return vptq_fail(err, VPTQ_E_ARG,
                         "'%.40s': decoding is timed from the second token on, expected at "
                         "least 2 tokens of output",
                         text);
    return length > m->desc->context ? vptq_fail(err, VPTQ_E_ARG,
                                                 "'%.40s': sequences have %" PRIu64
                                                 " tokens, the model's context has %" PRIu32,
                                                 text, length, m->desc->context)
                                     : VPTQ_OK;
}

/* Names the files that a packed model takes its tokenizer from by their content. */
static vptq_status hash_tokenizer(vptq_ablation *a, const vptq_model *m, vptq_err *err)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                        "special_tokens_map.json", "added_tokens.json"};
    vptq_status st = VPTQ_OK;
    uint64_t hash = 0;
    vptq_arena arena;
    vptq_arena_init(&arena, a->dev->ctx->mem);
    const char *own = m->ckpt.tokenizer;
    if (own && own != m->ckpt.path && !vptq_path_is_dir(own))
        VPTQ_TRY(vptq_ablate_hash_input(a, own, VPTQ_TEXT_BYTES, &hash, err));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        vptq_text text;
        VPTQ_TRY(vptq_checkpoint_companion(&m->ckpt, names[i], true, VPTQ_TOKENIZER_LIMIT,
                                           &arena, &text, err));
        hash = vptq_hash(text.data, text.len, hash);
    }
    snprintf(a->tokenizer, sizeof a->tokenizer, "%016" PRIx64, hash);
out:
    vptq_arena_release(&arena);
    return st;
}

vptq_status vptq_ablate_plan_figures(vptq_ablation *a, const vptq_model *m, vptq_err *err)
{
    const vptq_ablate_options *o = a->opt;
    const size_t texts = vptq_ablate_text_count(o);
    VPTQ_CHECK(check_options(o, err));
    VPTQ_CHECK(plan_serve(a, m, err));
    a->text_hash = vptq_arena_alloc(&a->report->arena, texts, sizeof *a->text_hash, err);
    a->task_hash =
        vptq_arena_alloc(&a->report->arena, o->task_count, sizeof *a->task_hash, err);
    if (!a->text_hash || !a->task_hash)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < texts; i++)
        VPTQ_CHECK(hash_text(a, i, &a->text_hash[i], err));
    for (size_t i = 0; i < o->task_count; i++)
        VPTQ_CHECK(hash_task(a, i, &a->task_hash[i], err));
    VPTQ_CHECK(count_texts(a, m, err));
    VPTQ_CHECK(count_tasks(a, m, err));
    return hash_tokenizer(a, m, err);
}

/* ---- the row file ---- */

static void hash_key(uint64_t hash, char key[KEY])
{
    snprintf(key, KEY, "%016" PRIx64, hash);
}

/* Everything that a speed depends on, besides the machine. */
static void serve_key(const vptq_ablation *a, char key[KEY])
{
    snprintf(key, KEY,
             "%" PRIu32 ",%" PRIu32 ",%" PRIu32 " kv %s, %d threads, %.16s, " VPTQ_VERSION,
             a->serve.batch, a->serve.input, a->serve.output, vptq_dtype_get(serve_kv)->name,
             a->dev->ctx->threads, a->dev->ops->name);
}

/* Saves doc[section][key] = entry. */
static vptq_status save(vptq_ablate_job *m, const char *section, const char *key, json_t *entry,
                        vptq_err *err)
{
    json_t *in = json_object_get(m->doc, section);
    if (!json_is_object(in)) {
        in = json_object();
        if (json_object_set_new(m->doc, section, in))
            in = NULL;
    }
    if (!in || !entry || json_object_set_new(in, key, entry))
        return vptq_ablate_no_memory(err);
    return vptq_json_save_sealed(m->file, m->doc, err);
}

static const json_t *find(const vptq_ablate_job *m, const char *section, const char *key)
{
    return json_object_get(json_object_get(m->doc, section), key);
}

static const json_t *find_hash(const vptq_ablate_job *m, const char *section, uint64_t hash)
{
    char key[KEY];
    hash_key(hash, key);
    return find(m, section, key);
}

static bool read_ppl(const vptq_ablate_job *m, size_t i)
{
    const json_t *s = find_hash(m, "scores", m->a->text_hash[i]);
    const vptq_ablate_score score = {
        .ppl = get_real(s, "ppl"),
        .ppl_stderr = get_real(s, "ppl_stderr"),
        .nll = get_real(s, "nll"),
        .tokens = (uint64_t)json_integer_value(json_object_get(s, "tokens")),
        .kld = get_real(s, "mean_kld"),
        .kld_stderr = get_real(s, "kld_stderr")};
    m->result->scores[i] = score;
    return isfinite(score.ppl) && isfinite(score.ppl_stderr) && isfinite(score.nll) &&
           score.tokens > 0;
}

/* After read_ppl. */
static bool has_kld(const vptq_ablate_job *m, size_t i)
{
    const vptq_ablate_score *s = &m->result->scores[i];
    return !m->a->opt->kld || m->row->original || (isfinite(s->kld) && isfinite(s->kld_stderr));
}

static bool read_task(const vptq_ablate_job *m, size_t i)
{
    const json_t *t = find_hash(m, "tasks", m->a->task_hash[i]);
    const vptq_ablate_accuracy acc = {get_real(t, "acc"), get_real(t, "acc_stderr")};
    m->result->tasks[i] = acc;
    return isfinite(acc.acc);
}

/* Speeds are measured, and shown, only where times are. */
static bool read_serve(const vptq_ablate_job *m)
{
    char key[KEY];
    m->result->tokens_per_second = (double)NAN;
    m->result->peak_memory = 0;
    if (!m->a->opt->serve || m->a->opt->no_seconds)
        return true;
    serve_key(m->a, key);
    const json_t *s = find(m, "serve", key);
    const json_int_t bytes = json_integer_value(json_object_get(s, "peak_memory_bytes"));
    m->result->tokens_per_second = get_real(s, "tokens_per_second");
    m->result->peak_memory = bytes > 0 ? (uint64_t)bytes : 0;
    return isfinite(m->result->tokens_per_second) && bytes > 0;
}

bool vptq_ablate_has_figures(const vptq_ablate_job *m)
{
    bool all = read_serve(m);
    for (size_t i = 0; i < vptq_ablate_text_count(m->a->opt); i++)
        all = read_ppl(m, i) && has_kld(m, i) && all;
    for (size_t i = 0; i < m->a->opt->task_count; i++)
        all = read_task(m, i) && all;
    return all;
}

/* ---- measuring ---- */

static vptq_status score_text(vptq_ablate_job *m, const vptq_model *model, size_t i,
                              vptq_err *err)
{
    const char *path = vptq_ablate_text(m->a->opt, i);
    char key[KEY];
    vptq_ppl_options o = m->a->opt->ppl;
    vptq_ppl_result r;
    o.corpus = corpus_of(m->a->opt, i, &path);
    VPTQ_CHECK(vptq_eval_ppl(m->a->dev, model, &o, NULL, &r, err));
    hash_key(m->a->text_hash[i], key);
    return save(m, "scores", key,
                json_pack("{s:s, s:f, s:f, s:f, s:I, s:I}", "text", vptq_path_base(path), "ppl",
                          r.ppl, "ppl_stderr", r.ppl_stderr, "nll", r.nll, "tokens",
                          (json_int_t)r.tokens, "windows", (json_int_t)r.windows),
                err);
}

/* Adds the divergence from the original to the text's score. */
static vptq_status compare_text(vptq_ablate_job *m, const vptq_model *model, size_t i,
                                vptq_err *err)
{
    vptq_ablation *a = m->a;
    const char *path = vptq_ablate_text(a->opt, i);
    const vptq_kld_options o = {.corpus = corpus_of(a->opt, i, &path),
                                .context = a->opt->ppl.context,
                                .windows = a->opt->ppl.windows,
                                .protocol = a->opt->ppl.protocol};
    char key[KEY];
    vptq_kld_result r;
    if (!a->has_original)
        VPTQ_CHECK(vptq_ablate_open_model(a, a->opt->model, &a->original, err));
    a->has_original = true;
    VPTQ_CHECK(vptq_eval_kld(a->dev, model, &a->original, &o, NULL, &r, err));
    json_t *score = json_deep_copy(find_hash(m, "scores", a->text_hash[i]));
    if (!score || !vptq_ablate_set_real(score, "mean_kld", r.mean_kld) ||
        !vptq_ablate_set_real(score, "kld_stderr", r.kld_stderr)) {
        json_decref(score);
        return vptq_ablate_no_memory(err);
    }
    hash_key(a->text_hash[i], key);
    return save(m, "scores", key, score, err);
}

void vptq_ablate_release_original(vptq_ablation *a)
{
    if (a->has_original)
        vptq_model_release(&a->original);
    a->has_original = false;
}

static vptq_status score_task(vptq_ablate_job *m, const vptq_model *model, size_t i,
                              vptq_err *err)
{
    const vptq_task *task = &m->a->opt->tasks[i];
    const vptq_task_options o = {.tasks = task,
                                 .task_count = 1,
                                 .delimiter = TASK_DELIMITER,
                                 .limit = m->a->opt->task_limit};
    char key[KEY];
    vptq_task_result r;
    VPTQ_CHECK(vptq_eval_tasks(m->a->dev, model, NULL, &o, NULL, &r, err));
    json_t *entry =
        json_pack("{s:s, s:I}", "task", task->name, "items", (json_int_t)r.model.items);
    if (!entry || !vptq_ablate_set_real(entry, "acc", r.model.acc) ||
        !vptq_ablate_set_real(entry, "acc_stderr", r.model.acc_stderr)) {
        json_decref(entry);
        return vptq_ablate_no_memory(err);
    }
    hash_key(m->a->task_hash[i], key);
    return save(m, "tasks", key, entry, err);
}

/* ---- serving ---- */

typedef struct serve_runs {
    double speed[RUNS];
    uint64_t peak;
    size_t count;
} serve_runs;

static vptq_status take_run(void *arg, const vptq_serve_record *r, vptq_err *err)
{
    serve_runs *s = arg;
    (void)err;
    if (s->count < RUNS)
        s->speed[s->count++] = r->output_throughput;
    if (r->peak_memory_bytes > s->peak)
        s->peak = r->peak_memory_bytes;
    return VPTQ_OK;
}

static int by_value(const void *a, const void *b)
{
    double x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

/* The median of a few runs. */
static vptq_status serve_model(vptq_ablate_job *m, vptq_model *model, vptq_err *err)
{
    const vptq_ablation *a = m->a;
    serve_runs s = {.count = 0};
    char key[KEY];
    vptq_serve_model served = {.model = model};
    const vptq_serve_plan plan = {.models = &served,
                                  .model_count = 1,
                                  .configs = &a->serve,
                                  .config_count = 1,
                                  .runs = RUNS,
                                  .warmup = 1,
                                  .kv = serve_kv,
                                  .backend = a->dev->ops->name};
    snprintf(served.name, sizeof served.name, "%.*s", (int)sizeof served.name - 1,
             m->row->name);
    VPTQ_CHECK(vptq_eval_serve(a->dev->ctx, &plan, NULL, take_run, &s, err));
    qsort(s.speed, s.count, sizeof *s.speed, by_value);
    serve_key(a, key);
    return save(m, "serve", key,
                json_pack("{s:f, s:I}", "tokens_per_second", s.speed[s.count / 2],
                          "peak_memory_bytes", (json_int_t)s.peak),
                err);
}

static vptq_status measure_all(vptq_ablate_job *m, vptq_model *model, vptq_err *err)
{
    for (size_t i = 0; i < vptq_ablate_text_count(m->a->opt); i++) {
        if (!read_ppl(m, i))
            VPTQ_CHECK(score_text(m, model, i, err));
        if (!has_kld(m, i))
            VPTQ_CHECK(compare_text(m, model, i, err));
    }
    for (size_t i = 0; i < m->a->opt->task_count; i++)
        if (!read_task(m, i))
            VPTQ_CHECK(score_task(m, model, i, err));
    if (!read_serve(m))
        VPTQ_CHECK(serve_model(m, model, err));
    if (!vptq_ablate_has_figures(m))
        return vptq_fail(err, VPTQ_E_NUMERIC,
                         "a divergence, an accuracy or a speed is not finite");
    return VPTQ_OK;
}

vptq_status vptq_ablate_measure(vptq_ablate_job *m, const char *path, vptq_err *err)
{
    vptq_model model;
    VPTQ_CHECK(vptq_ablate_open_model(m->a, path, &model, err));
    const vptq_status st = measure_all(m, &model, err);
    vptq_model_release(&model);
    return st;
}
