/* Times models that serve batches of prompts. */
#include "lib/bench/serve.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/rng.h"

/* Tokens of a warm-up: both prompts and decoding steps use every weight. */
enum { WARM_UP_INPUT = 64, WARM_UP_OUTPUT = 4 };

/* ---- configurations ---- */

static const vptq_serve_config named[] = {
    {"interactive", 1, 128, 64},       {"decode_bound", 1, 256, 512},
    {"prefill_bound", 1, 2048, 32},    {"long_context", 1, 16384, 32},
    {"medium_batch", 8, 256, 128},     {"base", 32, 256, 32},
    {"high_concurrency", 64, 256, 128}};
enum { NAMED = sizeof named / sizeof *named };

const vptq_serve_config *vptq_serve_named(size_t *count)
{
    *count = NAMED;
    return named;
}

/* Reads a number from 1 to 2^30 and the character `end` after it. */
static bool read_number(const char **text, char end, uint32_t *number)
{
    char *stop;
    if (**text < '0' || **text > '9')
        return false;
    const unsigned long long n = strtoull(*text, &stop, 10);
    if (*stop != end || n == 0 || n > 1U << 30)
        return false;
    *text = stop + (end != 0);
    *number = (uint32_t)n;
    return true;
}

vptq_status vptq_serve_parse(const char *text, vptq_serve_config *c, vptq_err *err)
{
    const char *rest = text;
    for (size_t i = 0; i < NAMED; i++)
        if (!strcmp(text, named[i].name)) {
            *c = named[i];
            return VPTQ_OK;
        }
    if (!read_number(&rest, ',', &c->batch) || !read_number(&rest, ',', &c->input) ||
        !read_number(&rest, 0, &c->output))
        return vptq_fail(
            err, VPTQ_E_ARG,
            "configuration '%.64s', expected BATCH,INPUT,OUTPUT or one of "
            "interactive, decode_bound, prefill_bound, long_context, medium_batch, "
            "base, high_concurrency",
            text);
    snprintf(c->name, sizeof c->name, "b%" PRIu32 "_i%" PRIu32 "_o%" PRIu32, c->batch, c->input,
             c->output);
    for (size_t i = 0; i < NAMED; i++)
        if (c->batch == named[i].batch && c->input == named[i].input &&
            c->output == named[i].output)
            *c = named[i];
    return VPTQ_OK;
}

vptq_serve_config vptq_serve_warm_up(const vptq_serve_config *c)
{
    vptq_serve_config w = *c;
    w.input = c->input < WARM_UP_INPUT ? c->input : WARM_UP_INPUT;
    w.output = c->output < WARM_UP_OUTPUT ? c->output : WARM_UP_OUTPUT;
    return w;
}

/* ---- memory ---- */

static uint64_t tensor_bytes(const vptq_tensor *t)
{
    return t ? t->bytes : 0;
}

static uint64_t weight_bytes(const vptq_model *m)
{
    uint64_t bytes = tensor_bytes(m->embedding) + tensor_bytes(m->final_norm) +
                     tensor_bytes(m->final_norm_bias);
    if (m->head != m->embedding)
        bytes += tensor_bytes(m->head);
    for (uint32_t layer = 0; layer < m->desc->layers; layer++) {
        const vptq_block *b = &m->blocks[layer];
        for (int n = 0; n < VPTQ_BLOCK_NORM_COUNT; n++)
            bytes += tensor_bytes(b->norm[n]) + tensor_bytes(b->norm_bias[n]);
        for (int l = 0; l < vptq_linear_count(m->desc); l++) {
            const vptq_weight *w = &b->linear[l];
            if (!vptq_linear_exists(m->desc, layer, l))
                continue;
            bytes += l < VPTQ_LINEAR_DENSE ? tensor_bytes(b->linear_bias[l]) : 0;
            bytes += w->packed ? (vptq_vq_count_bits(&w->packed->vq.shape).total + 7) / 8
                               : tensor_bytes(w->tensor);
        }
    }
    return bytes;
}

vptq_batch_options vptq_serve_batch_options(const vptq_serve_config *c, vptq_dtype kv,
                                            uint64_t seed)
{
    const size_t length = (size_t)c->input + c->output;
    return (vptq_batch_options){
        .sequences = c->batch, .length = length, .kv = kv, .top_p = 1, .seed = seed};
}

vptq_status vptq_serve_need_of(const vptq_model *m, const vptq_serve_config *c, vptq_dtype kv,
                               vptq_serve_need *need, vptq_err *err)
{
    vptq_batch_memory memory;
    const vptq_batch_options o = vptq_serve_batch_options(c, kv, 0);
    VPTQ_CHECK(vptq_batch_plan(m, &o, &memory, err));
    *need = (vptq_serve_need){weight_bytes(m), memory.cache, memory.working};
    return VPTQ_OK;
}

/* ---- checks before the first run ---- */

static vptq_status check_names(const vptq_serve_plan *o, vptq_err *err)
{
    if (o->model_count == 0 || o->config_count == 0 || o->runs == 0)
        return vptq_fail(err, VPTQ_E_ARG,
                         "nothing to measure: %zu models, %zu configurations, %" PRIu32 " runs",
                         o->model_count, o->config_count, o->runs);
    for (size_t i = 0; i < o->model_count; i++) {
        VPTQ_CHECK(vptq_json_check_text("serve", "the model's name", o->models[i].name, err));
        for (size_t j = 0; j < i; j++)
            if (!strcmp(o->models[i].name, o->models[j].name))
                return vptq_fail(err, VPTQ_E_ARG,
                                 "two models have the name '%s'; name them with NAME=MODEL",
                                 o->models[i].name);
    }
    for (size_t i = 0; i < o->config_count; i++)
        for (size_t j = 0; j < i; j++)
            if (!strcmp(o->configs[i].name, o->configs[j].name))
                return vptq_fail(err, VPTQ_E_ARG, "configuration '%s' is given twice",
                                 o->configs[i].name);
    return VPTQ_OK;
}

vptq_status vptq_serve_check_lengths(const vptq_serve_plan *o, vptq_err *err)
{
    for (size_t c = 0; c < o->config_count && !o->allow_long; c++)
        for (size_t i = 0; i < o->model_count; i++) {
            const uint64_t length = (uint64_t)o->configs[c].input + o->configs[c].output;
            const uint32_t context = o->models[i].model->desc->context;
            if (length > context)
                return vptq_fail(err, VPTQ_E_ARG,
                                 "configuration '%s' has sequences of %" PRIu64
                                 " tokens, the context of '%s' is %" PRIu32
                                 "; pass --allow-long to run it anyway",
                                 o->configs[c].name, length, o->models[i].name, context);
        }
    return VPTQ_OK;
}

static vptq_status check_memory(const vptq_serve_plan *o, const vptq_device *dev, vptq_err *err)
{
    const uint64_t left = dev->ops->left(dev->state);
    for (size_t c = 0; c < o->config_count; c++) {
        uint64_t cache = 0, working = 0;
        for (size_t i = 0; i < o->model_count; i++) {
            vptq_serve_need need;
            VPTQ_CHECK(
                vptq_serve_need_of(o->models[i].model, &o->configs[c], o->kv, &need, err));
            cache += need.cache;
            working += need.working;
        }
        if (cache + working > left)
            return vptq_fail(
                err, VPTQ_E_NOMEM,
                "configuration '%s' needs %.1f MiB of cache and %.1f MiB of working "
                "memory, %.1f MiB are left",
                o->configs[c].name, (double)cache / 0x1p20, (double)working / 0x1p20,
                (double)left / 0x1p20);
    }
    return VPTQ_OK;
}

static vptq_status make_record(const vptq_ctx *ctx, const vptq_serve_plan *o,
                               const vptq_device *dev, size_t model, size_t config,
                               uint32_t run, vptq_serve_record *r, vptq_err *err)
{
    *r = (vptq_serve_record){.model = &o->models[model],
                             .config = &o->configs[config],
                             .run = run,
                             .bits_per_weight =
                                 vptq_model_bits_per_weight(o->models[model].model),
                             .kv = o->kv,
                             .threads = ctx->threads,
                             .backend = dev->ops->name,
                             .seed = o->seed};
    return vptq_serve_need_of(r->model->model, r->config, o->kv, &r->need, err);
}

/* Tokens of all runs and of the finished ones, for progress. */
typedef struct token_counts {
    uint64_t all, done;
} token_counts;

static vptq_status check_records(const vptq_ctx *ctx, const vptq_serve_plan *o,
                                 const vptq_device *dev, const vptq_serve_log *log,
                                 token_counts *tokens, vptq_err *err)
{
    *tokens = (token_counts){0, 0};
    for (size_t c = 0; c < o->config_count; c++)
        for (size_t i = 0; i < o->model_count; i++)
            for (uint32_t run = 1; run <= o->runs; run++) {
                vptq_serve_record r;
                bool found = false;
                const vptq_serve_config *k = &o->configs[c];
                const uint64_t n = (uint64_t)k->batch * ((uint64_t)k->input + k->output);
                VPTQ_CHECK(make_record(ctx, o, dev, i, c, run, &r, err));
                if (log)
                    VPTQ_CHECK(vptq_serve_log_find(log, &r, &found, err));
                tokens->all += n;
                tokens->done += found ? n : 0;
            }
    return VPTQ_OK;
}

static vptq_status check_all(const vptq_ctx *ctx, const vptq_serve_plan *o,
                             const vptq_device *dev, const vptq_serve_log *log,
                             token_counts *tokens, vptq_err *err)
{
    VPTQ_CHECK(check_names(o, err));
    VPTQ_CHECK(vptq_serve_check_lengths(o, err));
    VPTQ_CHECK(check_memory(o, dev, err));
    return check_records(ctx, o, dev, log, tokens, err);
}

vptq_status vptq_serve_check(const vptq_ctx *ctx, const vptq_serve_plan *o,
                             const vptq_serve_log *log, vptq_err *err)
{
    vptq_device dev;
    token_counts tokens;
    VPTQ_CHECK(vptq_device_open(ctx, o->backend, &dev, err));
    const vptq_status st = check_all(ctx, o, &dev, log, &tokens, err);
    vptq_device_close(&dev);
    return st;
}

/* ---- lanes ---- */

/* A model that serves.  Its own device keeps account of its memory. */
typedef struct lane {
    const vptq_serve_model *m;
    vptq_device dev;
    bool has_dev;
    vptq_batch *b;
    uint64_t held;        /* bytes allocated for it */
    size_t left_at_start; /* bytes left on its device before any allocation */
    int32_t *plain;       /* ids that are not special tokens */
    size_t plain_count;
} lane;

typedef struct server {
    const vptq_ctx *ctx;
    const vptq_serve_plan *o;
    lane *lanes;       /* [models] */
    int32_t *prompt;   /* of one sequence */
    size_t *sequences; /* [batch] handles of the batch */
    token_counts tokens;
} server;

static bool is_special(const vptq_model *m, uint32_t id)
{
    const vptq_vocab *v = &m->vocab;
    const int32_t i = (int32_t)id;
    const uint8_t type = v->pieces[id].type;
    if (i == v->bos || i == v->eos || i == v->unk || i == m->desc->bos || i == m->desc->eos ||
        type == VPTQ_PIECE_UNKNOWN || type == VPTQ_PIECE_CONTROL || type == VPTQ_PIECE_UNUSED)
        return true;
    for (uint32_t a = 0; a < v->added_count; a++)
        if (v->added[a].id == id && v->added[a].special)
            return true;
    return false;
}

vptq_status vptq_serve_plain_ids(const vptq_model *m, vptq_mem *mem, int32_t **ids,
                                 size_t *count, vptq_err *err)
{
    const uint32_t vocab = m->desc->vocab,
                   all = m->vocab.count < vocab ? m->vocab.count : vocab;
    *count = 0;
    *ids = vptq_mem_alloc(mem, all, sizeof **ids, err);
    if (!*ids)
        return VPTQ_E_NOMEM;
    for (uint32_t id = 0; id < all; id++)
        if (!is_special(m, id))
            (*ids)[(*count)++] = (int32_t)id;
    if (*count)
        return VPTQ_OK;
    vptq_mem_free(mem, *ids);
    *ids = NULL;
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: all tokens are special", m->vocab.source);
}

static size_t used_bytes(const server *s)
{
    return s->ctx->mem ? s->ctx->mem->used : 0;
}

static vptq_status lane_open(server *s, lane *l, const vptq_serve_config *c, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t before = used_bytes(s);
    const vptq_batch_options o = vptq_serve_batch_options(c, s->o->kv, s->o->seed);
    VPTQ_TRY(vptq_device_open(s->ctx, s->o->backend, &l->dev, err));
    l->has_dev = true;
    l->left_at_start = l->dev.ops->left(l->dev.state);
    VPTQ_TRY(vptq_serve_plain_ids(l->m->model, s->ctx->mem, &l->plain, &l->plain_count, err));
    VPTQ_TRY(vptq_batch_open(l->m->model, &l->dev, &o, &l->b, err));
    l->held = used_bytes(s) - before;
out:
    if (st)
        vptq_err_context(err, "%s", l->m->name);
    return st;
}

static void lane_close(const server *s, lane *l)
{
    vptq_batch_close(l->b);
    vptq_mem_free(s->ctx->mem, l->plain);
    if (l->has_dev)
        vptq_device_close(&l->dev);
    *l = (lane){.m = l->m};
}

/* ---- a run ---- */

static vptq_status add_prompts(server *s, lane *l, const vptq_serve_config *c, uint32_t run,
                               vptq_err *err)
{
    for (uint32_t q = 0; q < c->batch; q++) {
        const vptq_rng rng = vptq_rng_make(s->o->seed, q, run, VPTQ_RNG_PROMPT);
        for (uint32_t i = 0; i < c->input; i++)
            s->prompt[i] = l->plain[vptq_rng_below(&rng, i, l->plain_count)];
        VPTQ_CHECK(vptq_batch_add(l->b, s->prompt, c->input, &s->sequences[q], err));
    }
    return VPTQ_OK;
}

static void report_progress(server *s, const lane *l, const vptq_serve_config *c, uint32_t run,
                            const char *what, uint64_t done)
{
    char detail[2 * VPTQ_SERVE_NAME + 64];
    snprintf(detail, sizeof detail, "%s %s run %" PRIu32 ", %s", l->m->name, c->name, run,
             what);
    vptq_progress(s->ctx, "serve", "tokens", s->tokens.done + done, s->tokens.all, detail);
}

/* Runs one batch and fills in its times.  Progress does not count run 0, a warm-up. */
static vptq_status run_batch(server *s, lane *l, const vptq_serve_config *c, uint32_t run,
                             vptq_serve_record *r, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const uint64_t prompts = run ? (uint64_t)c->batch * c->input : 0, each = run ? c->batch : 0;
    VPTQ_TRY(add_prompts(s, l, c, run, err));
    const double start = vptq_seconds();
    for (size_t left = 1; left;) {
        VPTQ_TRY(vptq_batch_prefill(l->b, &left, err));
        report_progress(s, l, c, run, "prompts", prompts - (run ? left * c->input : 0));
    }
    const double first = vptq_seconds();
    double last = first, end = first;
    for (uint32_t i = 1; i < c->output; i++) {
        last = end;
        VPTQ_TRY(vptq_batch_decode(l->b, err));
        end = vptq_seconds();
        report_progress(s, l, c, run, "output", prompts + i * each);
    }
    const double in = (double)c->batch * c->input, out = (double)c->batch * c->output;
    r->latency = end - start;
    r->ttft = first - start;
    r->output_throughput = c->output > 1 ? out / (r->latency - r->ttft) : (double)NAN;
    r->overall_throughput = (in + out) / r->latency;
    r->input_throughput = in / r->ttft;
    r->last_gen_throughput = c->output > 1 ? (double)c->batch / (end - last) : (double)NAN;
out:
    for (uint32_t q = 0; !st && q < c->batch; q++)
        vptq_batch_end(l->b, s->sequences[q]);
    return st;
}

/* Runs one batch and fills in its times and peak memory. */
static vptq_status measure_batch(server *s, lane *l, const vptq_serve_config *c, uint32_t run,
                                 vptq_serve_record *r, vptq_err *err)
{
    vptq_mem *mem = s->ctx->mem;
    const size_t used = used_bytes(s), peak = mem ? mem->peak : 0;
    if (mem)
        mem->peak = used;
    const vptq_status st = run_batch(s, l, c, run, r, err);
    const size_t run_peak = mem ? mem->peak : used, device = l->dev.ops->left(l->dev.state);
    r->peak_memory_bytes = r->need.weights + l->held + (run_peak - used);
    if (!l->dev.ops->host_memory && device < l->left_at_start)
        r->peak_memory_bytes += l->left_at_start - device;
    if (mem) {
        l->held += mem->used - used;
        mem->peak = peak > run_peak ? peak : run_peak;
    }
    if (st)
        vptq_err_context(err, "%s, %s", l->m->name, c->name);
    return st;
}

static vptq_status warm_up(server *s, const vptq_serve_config *c, vptq_err *err)
{
    const vptq_serve_config w = vptq_serve_warm_up(c);
    for (uint32_t i = 0; i < s->o->warmup; i++)
        for (size_t m = 0; m < s->o->model_count; m++) {
            vptq_serve_record r = {.latency = 0};
            VPTQ_CHECK(measure_batch(s, &s->lanes[m], &w, 0, &r, err));
        }
    return VPTQ_OK;
}

static vptq_status run_one(server *s, vptq_serve_log *log, size_t config, size_t model,
                           uint32_t run, vptq_serve_fn fn, void *arg, vptq_err *err)
{
    lane *l = &s->lanes[model];
    const vptq_serve_config *c = &s->o->configs[config];
    vptq_serve_record r;
    bool found = false;
    VPTQ_CHECK(make_record(s->ctx, s->o, &l->dev, model, config, run, &r, err));
    if (log)
        VPTQ_CHECK(vptq_serve_log_find(log, &r, &found, err));
    if (!found) {
        VPTQ_CHECK(measure_batch(s, l, c, run, &r, err));
        if (log)
            VPTQ_CHECK(vptq_serve_log_add(log, &r, err));
        s->tokens.done += (uint64_t)c->batch * ((uint64_t)c->input + c->output);
    }
    return fn(arg, &r, err);
}

static vptq_status run_config(server *s, vptq_serve_log *log, size_t config, vptq_serve_fn fn,
                              void *arg, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_serve_plan *o = s->o;
    const vptq_serve_config *c = &o->configs[config];
    s->prompt = vptq_mem_alloc(s->ctx->mem, c->input, sizeof *s->prompt, err);
    s->sequences =
        s->prompt ? vptq_mem_alloc(s->ctx->mem, c->batch, sizeof *s->sequences, err) : NULL;
    if (!s->sequences)
        VPTQ_TRY(VPTQ_E_NOMEM);
    for (size_t m = 0; m < o->model_count; m++)
        VPTQ_TRY(lane_open(s, &s->lanes[m], c, err));
    VPTQ_TRY(warm_up(s, c, err));
    for (uint32_t run = 1; run <= o->runs; run++)
        for (size_t m = 0; m < o->model_count; m++)
            VPTQ_TRY(run_one(s, log, config, m, run, fn, arg, err));
out:
    for (size_t m = 0; m < o->model_count; m++)
        lane_close(s, &s->lanes[m]);
    vptq_mem_free(s->ctx->mem, s->sequences);
    vptq_mem_free(s->ctx->mem, s->prompt);
    s->sequences = NULL;
    s->prompt = NULL;
    return st;
}

/* Sets *whole and passes all records to fn if the log has all runs of a configuration, so that
 * nothing needs to be opened for it. */
static vptq_status resume_config(const server *s, const vptq_device *dev,
                                 const vptq_serve_log *log, size_t config, vptq_serve_fn fn,
                                 void *arg, bool *whole, vptq_err *err)
{
    const vptq_serve_plan *o = s->o;
    *whole = log != NULL;
    for (int pass_on = 0; pass_on < 2 && *whole; pass_on++)
        for (uint32_t run = 1; run <= o->runs && *whole; run++)
            for (size_t m = 0; m < o->model_count && *whole; m++) {
                vptq_serve_record r;
                VPTQ_CHECK(make_record(s->ctx, o, dev, m, config, run, &r, err));
                VPTQ_CHECK(vptq_serve_log_find(log, &r, whole, err));
                if (pass_on)
                    VPTQ_CHECK(fn(arg, &r, err));
            }
    return VPTQ_OK;
}

vptq_status vptq_eval_serve(const vptq_ctx *ctx, const vptq_serve_plan *o, vptq_serve_log *log,
                            vptq_serve_fn fn, void *arg, vptq_err *err)
{
    server s = {.ctx = ctx, .o = o};
    vptq_device dev;
    VPTQ_CHECK(vptq_device_open(ctx, o->backend, &dev, err));
    vptq_status st = check_all(ctx, o, &dev, log, &s.tokens, err);
    s.lanes = st ? NULL : vptq_mem_alloc(ctx->mem, o->model_count, sizeof *s.lanes, err);
    if (!st && !s.lanes)
        st = VPTQ_E_NOMEM;
    for (size_t m = 0; s.lanes && m < o->model_count; m++)
        s.lanes[m] = (lane){.m = &o->models[m]};
    for (size_t c = 0; c < o->config_count && !st; c++) {
        bool whole;
        st = resume_config(&s, &dev, log, c, fn, arg, &whole, err);
        if (!st && !whole)
            st = run_config(&s, log, c, fn, arg, err);
    }
    if (!st)
        vptq_progress(ctx, "serve", "tokens", s.tokens.done, s.tokens.all, NULL);
    vptq_mem_free(ctx->mem, s.lanes);
    vptq_device_close(&dev);
    return st;
}
