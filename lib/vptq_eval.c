/* The public functions that measure models: perplexity, divergence, tasks, errors, generation,
 * benchmarks and the reports on them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/ablate/ablate.h"
#include "lib/bench/gemv.h"
#include "lib/bench/serve.h"
#include "lib/chat/chat.h"
#include "lib/eval/error.h"
#include "lib/eval/generate.h"
#include "lib/eval/kld.h"
#include "lib/eval/tasks.h"
#include "lib/report/report.h"
#include "lib/vptq_internal.h"

/* ---- Measuring -------------------------------------------------------------------------- */

vptq_status vptq_perplexity(vptq_ctx *ctx, const vptq_model *m, const vptq_ppl_options *opt,
                            vptq_window_fn window, vptq_losses_fn losses, void *arg,
                            vptq_ppl_result *result, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_device *dev;
    vptq_arena arena;
    double *nll = NULL;
    vptq_arena_init(&arena, ctx->mem);
    VPTQ_TRY(vptq_ctx_device(ctx, &dev, err));
    VPTQ_TRY(vptq_eval_ppl(dev, m, opt, window, arg, &arena,
                           losses && !opt->dry_run ? &nll : NULL, result, err));
    if (nll)
        VPTQ_TRY(losses(arg, nll, (size_t)result->tokens, err));
out:
    vptq_arena_release(&arena);
    return st;
}

/* Documents of the one text, each on its own. */
static vptq_status tokenize_documents(vptq_ctx *ctx, const vptq_model *m,
                                      const vptq_ppl_options *opt, vptq_ids_fn fn, void *arg,
                                      vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_ids ids;
    vptq_arena arena;
    size_t *offsets, count;
    vptq_ids_init(&ids, ctx->mem);
    vptq_arena_init(&arena, ctx->mem);
    VPTQ_TRY(vptq_corpus_documents(ctx, opt->corpus.texts[0], opt->documents, m->tokenizer,
                                   m->desc->vocab, &arena, &ids, &offsets, &count, err));
    if (opt->document_limit && count > opt->document_limit)
        count = opt->document_limit;
    for (size_t i = 0; i < count; i++)
        VPTQ_TRY(fn(arg, ids.data + offsets[i], offsets[i + 1] - offsets[i], err));
out:
    vptq_ids_release(&ids);
    vptq_arena_release(&arena);
    return st;
}

vptq_status vptq_tokenize(vptq_ctx *ctx, const vptq_model *m, const vptq_ppl_options *opt,
                          vptq_ids_fn fn, void *arg, vptq_err *err)
{
    vptq_corpus text = {.ids = {.data = NULL}};
    if (opt->documents)
        return tokenize_documents(ctx, m, opt, fn, arg, err);
    vptq_status st =
        vptq_corpus_load(ctx, &opt->corpus, m->tokenizer, m->desc->vocab, &text, err);
    if (!st)
        st = fn(arg, text.ids.data, text.ids.count, err);
    vptq_corpus_release(&text);
    return st;
}

vptq_status vptq_divergence(vptq_ctx *ctx, const vptq_model *m, const vptq_model *base,
                            const vptq_kld_options *opt, vptq_window_fn fn, void *arg,
                            vptq_kld_result *result, vptq_err *err)
{
    vptq_device *dev;
    VPTQ_CHECK(vptq_ctx_device(ctx, &dev, err));
    return vptq_eval_kld(dev, m, base, opt, fn, arg, result, err);
}

vptq_status vptq_task_open(vptq_ctx *ctx, const char *path, const vptq_task_file_options *opt,
                           vptq_task **task, vptq_err *err)
{
    *task = NULL;
    vptq_task_file *file = calloc(1, sizeof *file);
    if (!file)
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    const vptq_status st = vptq_task_file_read(path, opt, ctx->mem, file, err);
    if (st)
        free(file);
    else
        *task = file;
    return st;
}

void vptq_task_close(vptq_task *task)
{
    if (task)
        vptq_task_file_release(task);
    free(task);
}

vptq_status vptq_task_score(vptq_ctx *ctx, const vptq_task *task, const char *name,
                            const vptq_model *m, const vptq_model *base,
                            const vptq_task_options *opt, vptq_writer *samples,
                            vptq_task_result *result, vptq_task_result *base_result,
                            vptq_task_agreement *agreement, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_device *dev;
    vptq_arena arena;
    vptq_buf text;
    vptq_task_answer *answers = NULL, *base_answers = NULL;
    char base_name[96];
    vptq_arena_init(&arena, ctx->mem);
    vptq_buf_init(&text, ctx->mem);
    VPTQ_TRY(vptq_ctx_device(ctx, &dev, err));
    VPTQ_TRY(vptq_eval_task(dev, m, name, task, opt, &arena, &answers, result, err));
    if (opt->dry_run)
        goto out;
    if (base) {
        snprintf(base_name, sizeof base_name, "%.64s of the base", name);
        VPTQ_TRY(vptq_eval_task(dev, base, base_name, task, opt, &arena, &base_answers,
                                base_result, err));
        vptq_eval_task_compare(task, answers, base_answers, agreement);
    }
    if (samples) {
        VPTQ_TRY(vptq_eval_task_samples(name, task, answers, base_answers, &text, err));
        VPTQ_TRY(vptq_writer_write(samples, text.data, text.len, err));
    }
out:
    vptq_buf_release(&text);
    vptq_arena_release(&arena);
    return st;
}

/* ---- Reports ---------------------------------------------------------------------------- */

/* Appends a buffer of plain memory to the caller's text, or frees it after a failure. */
static vptq_status hand_over(vptq_status st, vptq_buf *buf, vptq_string *out, vptq_err *err)
{
    if (!st) {
        char *data = realloc(out->data, out->length + buf->len + 1);
        if (!data) {
            st = vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
        } else {
            memcpy(data + out->length, buf->data, buf->len + 1);
            out->data = data;
            out->length += buf->len;
        }
    }
    vptq_buf_release(buf);
    return st;
}

void vptq_string_free(vptq_string *text)
{
    free(text->data);
    *text = (vptq_string){0};
}

/* Rows as they come. */
typedef struct error_rows {
    vptq_buf buf; /* of vptq_error_row */
} error_rows;

static vptq_status keep_error_row(void *arg, const vptq_error_row *row, vptq_err *err)
{
    error_rows *r = arg;
    return vptq_buf_add(&r->buf, row, sizeof *row, err);
}

vptq_status vptq_measure_error(vptq_ctx *ctx, const vptq_model *m, const vptq_model *base,
                               const vptq_error_options *opt, vptq_format format,
                               vptq_string *out, vptq_err *err)
{
    vptq_device *dev;
    error_rows rows;
    vptq_buf text;
    VPTQ_CHECK(vptq_ctx_device(ctx, &dev, err));
    vptq_buf_init(&rows.buf, ctx->mem);
    vptq_buf_init(&text, ctx->mem);
    vptq_status st = vptq_eval_error(dev, m, base, opt->hessians, opt->first_layer,
                                     opt->last_layer, keep_error_row, &rows, err);
    if (!st) {
        const vptq_error_report report = {.rows = (const vptq_error_row *)(void *)rows.buf.data,
                                          .count = rows.buf.len / sizeof(vptq_error_row),
                                          .order = opt->order,
                                          .top = opt->top,
                                          .model = opt->model_name,
                                          .base = opt->base_name};
        st = vptq_error_report_write(&report, format, ctx->mem, &text, err);
    }
    vptq_buf_release(&rows.buf);
    return hand_over(st, &text, out, err);
}

/* ---- Generating text -------------------------------------------------------------------- */

/* A copy that outlives the list; NULL with VPTQ_E_NOMEM. */
static void *copy_of(const void *data, size_t bytes, vptq_err *err)
{
    void *copy = malloc(bytes + 1);
    if (!copy)
        vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    else if (bytes)
        memcpy(copy, data, bytes);
    return copy;
}

vptq_status vptq_prompt_new(vptq_ctx *ctx, const vptq_model *m, const char *text,
                            const vptq_chat_options *chat, bool special, vptq_prompt **prompt,
                            vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_ids ids, stop_tokens;
    vptq_buf buf;
    /* The chat template writes the BOS itself. */
    const unsigned flags =
        chat ? VPTQ_ENCODE_SPECIAL : VPTQ_ENCODE_BOS | (special ? VPTQ_ENCODE_SPECIAL : 0);
    vptq_prompt *p = calloc(1, sizeof *p);
    *prompt = NULL;
    vptq_ids_init(&ids, ctx->mem);
    vptq_ids_init(&stop_tokens, ctx->mem);
    vptq_buf_init(&buf, ctx->mem);
    if (!p)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_NOMEM, "out of memory"));
    if (chat)
        VPTQ_TRY(vptq_chat_prompt(ctx, m, chat, &buf, &stop_tokens, err));
    else
        VPTQ_TRY(vptq_buf_add(&buf, text, strlen(text), err));
    VPTQ_TRY(vptq_tokenizer_encode(m->tokenizer, buf.data, buf.len, flags, &ids, err));
    p->text = copy_of(buf.data, buf.len, err);
    p->ids = copy_of(ids.data, ids.count * sizeof *ids.data, err);
    p->stop_tokens =
        copy_of(stop_tokens.data, stop_tokens.count * sizeof *stop_tokens.data, err);
    if (!p->text || !p->ids || !p->stop_tokens)
        VPTQ_TRY(VPTQ_E_NOMEM);
    p->text[buf.len] = 0;
    p->text_length = buf.len;
    p->id_count = ids.count;
    p->stop_token_count = stop_tokens.count;
    *prompt = p;
    p = NULL;
out:
    vptq_prompt_free(p);
    vptq_buf_release(&buf);
    vptq_ids_release(&stop_tokens);
    vptq_ids_release(&ids);
    return st;
}

void vptq_prompt_free(vptq_prompt *prompt)
{
    if (!prompt)
        return;
    free(prompt->text);
    free(prompt->ids);
    free(prompt->stop_tokens);
    free(prompt);
}

vptq_status vptq_generate(vptq_ctx *ctx, const vptq_model *m, const vptq_prompt *prompt,
                          const vptq_generate_options *opt, vptq_emit_fn emit, void *arg,
                          vptq_generate_result *result, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_device *dev;
    vptq_ids ids;
    vptq_generate_options o = *opt;
    vptq_ids_init(&ids, ctx->mem);
    VPTQ_TRY(vptq_ctx_device(ctx, &dev, err));
    if (prompt) {
        /* The library encodes an empty prompt itself: it then knows that a text begins. */
        o.prompt = prompt->text_length ? NULL : "";
        o.stop_tokens = prompt->stop_tokens;
        o.stop_token_count = prompt->stop_token_count;
        if (prompt->text_length)
            VPTQ_TRY(vptq_ids_add(&ids, prompt->ids, prompt->id_count, err));
    }
    st = vptq_eval_generate(dev, m, &o, emit, arg, &ids, result, err);
out:
    vptq_ids_release(&ids);
    return st;
}

/* ---- Benchmarks and tables -------------------------------------------------------------- */

vptq_status vptq_gemv(vptq_ctx *ctx, const vptq_gemv_options *opt, vptq_gemv_fn fn, void *arg,
                      vptq_err *err)
{
    static const uint32_t one = 1;
    vptq_device *dev;
    vptq_gemv_options o = *opt;
    const bool chain = o.cache == VPTQ_GEMV_CHAIN;
    if (!o.shape_count) {
        o.shapes = chain ? vptq_gemv_chain_shapes() : vptq_gemv_published_shapes();
        o.shape_count = chain ? VPTQ_GEMV_CHAINS : VPTQ_GEMV_SHAPES;
    }
    if (!o.codebook_count) {
        o.codebooks = vptq_gemv_published_codebooks();
        o.codebook_count = VPTQ_GEMV_CODEBOOKS;
    }
    if (!o.batch_count) {
        o.batch = &one;
        o.batch_count = 1;
    }
    VPTQ_CHECK(vptq_ctx_device(ctx, &dev, err));
    return vptq_eval_gemv(dev, &o, fn, arg, err);
}

/* Hands out what every model needs for every configuration. */
static vptq_status plan_serving(const vptq_ctx *ctx, const vptq_serve_options *o,
                                vptq_serve_fn fn, void *arg, vptq_err *err)
{
    for (size_t c = 0; c < o->config_count; c++)
        for (size_t m = 0; m < o->model_count; m++) {
            vptq_serve_record r = {.model = &o->models[m],
                                   .config = &o->configs[c],
                                   .run = 1,
                                   .kv = o->kv,
                                   .threads = ctx->threads,
                                   .backend = o->backend,
                                   .seed = o->seed};
            VPTQ_CHECK(vptq_serve_need_of(r.model->model, r.config, o->kv, &r.need, err));
            VPTQ_CHECK(fn(arg, &r, err));
        }
    return VPTQ_OK;
}

vptq_status vptq_serve(vptq_ctx *ctx, const vptq_serve_options *opt, vptq_serve_fn fn,
                       void *arg, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_serve_options o = *opt;
    vptq_serve_log *log = NULL;
    if (!o.backend)
        o.backend = vptq_ctx_backend_name(ctx);
    for (size_t i = 0; i < o.model_count; i++) {
        vptq_model *m = o.models[i].model;
        if (!m->fingerprint[0])
            VPTQ_TRY(vptq_checkpoint_fingerprint(&m->ckpt, ctx, m->fingerprint, err));
    }
    VPTQ_TRY(vptq_serve_check(ctx, &o, NULL, err)); /* before a file is touched */
    if (o.dry_run) {
        VPTQ_TRY(plan_serving(ctx, &o, fn, arg, err));
        goto out;
    }
    if (o.records)
        VPTQ_TRY(vptq_serve_log_open(ctx->mem, o.records, o.force, &log, err));
    st = vptq_eval_serve(ctx, &o, log, fn, arg, err);
out:
    vptq_serve_log_close(log);
    return st;
}

vptq_status vptq_compare(vptq_ctx *ctx, const char *const *records, size_t count,
                         const vptq_compare_options *opt, vptq_format format, vptq_string *out,
                         vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_records all;
    vptq_report report;
    vptq_buf text;
    vptq_records_init(&all, ctx->mem);
    vptq_buf_init(&text, ctx->mem);
    for (size_t i = 0; i < count; i++)
        VPTQ_TRY(vptq_records_read(&all, records[i], err));
    VPTQ_TRY(vptq_report_build(&all, opt->original, ctx->mem, &report, err));
    st = opt->classic ? vptq_report_write_classic(&report, opt->source, &text, err)
                      : vptq_report_write(&report, format, opt->source, &text, err);
    vptq_report_release(&report);
out:
    vptq_records_release(&all);
    return hand_over(st, &text, out, err);
}

typedef struct ablate_listener {
    void (*fn)(void *arg, const vptq_ablate_progress *row);
    void *arg;
} ablate_listener;

static void report_ablate_row(void *arg, const vptq_ablate_result *r, size_t done, size_t all)
{
    const ablate_listener *l = arg;
    if (l->fn && r->scores)
        l->fn(l->arg, &(vptq_ablate_progress){.name = r->row->name,
                                              .done = done,
                                              .count = all,
                                              .bits_per_weight = r->bits_per_weight,
                                              .ppl = r->scores[0].ppl,
                                              .ppl_stderr = r->scores[0].ppl_stderr});
}

vptq_status vptq_ablate(vptq_ctx *ctx, const vptq_ablate_options *opt,
                        void (*fn)(void *arg, const vptq_ablate_progress *row), void *arg,
                        vptq_format format, bool seconds, vptq_string *out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_device *dev;
    vptq_table table = {.title = NULL};
    vptq_ablate_report report = {0};
    vptq_buf text;
    ablate_listener listener = {fn, arg};
    vptq_buf_init(&text, ctx->mem);
    VPTQ_TRY(vptq_ctx_device(ctx, &dev, err));
    VPTQ_TRY(vptq_ablate_run(dev, opt, report_ablate_row, &listener, &report, err));
    if (format == VPTQ_FORMAT_HTML) {
        VPTQ_TRY(vptq_ablate_page(&report, seconds, ctx->mem, &text, err));
    } else {
        VPTQ_TRY(vptq_ablate_table(&report, seconds, ctx->mem, &table, err));
        VPTQ_TRY(vptq_table_write(&table, format, &text, err));
    }
out:
    vptq_table_release(&table);
    vptq_ablate_release(&report);
    return hand_over(st, &text, out, err);
}
