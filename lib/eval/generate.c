/* Continues a prompt token by token and decodes the text as it grows. */
#include "lib/eval/generate.h"

#include <math.h>
#include <string.h>

#include "lib/base/rng.h"
#include "lib/eval/decode_estimate.h"
#include "lib/model/forward.h"
#include "lib/report/estimate.h"

static const double target_seconds = 0.5; /* of an estimate, of prompt and steps */

/* ---- text ---- */

/* Bytes at the end of text [len] that begin an incomplete UTF-8 character. */
static size_t incomplete_tail(const char *text, size_t len)
{
    for (size_t back = 1; back <= 3 && back <= len; back++) {
        unsigned char c = (unsigned char)text[len - back];
        if (c < 0x80)
            return 0;
        if (c >= 0xc0) {
            size_t need = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
            return need > back ? back : 0;
        }
    }
    return 0;
}

typedef struct writer {
    const vptq_tokenizer *t;
    const vptq_generate_options *o;
    bool at_start;
    bool stopped; /* found a stop string */
    vptq_write_fn emit;
    void *arg;
    vptq_buf text; /* held back: part of a character, or possibly of a stop string */
} writer;

/* Bytes at the end of the text that begin an incomplete stop string. */
static size_t begun_stop(const writer *w)
{
    size_t longest = 0;
    for (size_t i = 0; i < w->o->stop_count; i++) {
        const char *stop = w->o->stops[i];
        size_t n = strlen(stop) - 1;
        n = n < w->text.len ? n : w->text.len;
        while (n > longest && memcmp(w->text.data + w->text.len - n, stop, n) != 0)
            n--;
        longest = n > longest ? n : longest;
    }
    return longest;
}

/* Offset of the first `what` in text [len]; len if there is none. */
static size_t find_in(const char *text, size_t len, const char *what)
{
    size_t n = strlen(what);
    for (size_t i = 0; i + n <= len; i++)
        if (memcmp(text + i, what, n) == 0)
            return i;
    return len;
}

static vptq_status emit_text(writer *w, size_t n, vptq_err *err)
{
    if (n == 0)
        return VPTQ_OK; /* the buffer may not have been allocated */
    if (w->emit)
        VPTQ_CHECK(w->emit(w->arg, w->text.data, n, err));
    memmove(w->text.data, w->text.data + n, w->text.len - n);
    w->text.len -= n;
    w->text.data[w->text.len] = 0;
    return VPTQ_OK;
}

static vptq_status write_token(writer *w, int32_t id, vptq_err *err)
{
    vptq_status st =
        vptq_tokenizer_decode(w->t, &id, 1, &w->at_start, w->o->special, &w->text, err);
    if (st || w->text.len == 0)
        return st;
    size_t end = w->text.len;
    for (size_t i = 0; i < w->o->stop_count; i++) {
        size_t at = find_in(w->text.data, w->text.len, w->o->stops[i]);
        end = at < end ? at : end;
    }
    w->stopped = end < w->text.len;
    if (w->stopped) {
        VPTQ_CHECK(emit_text(w, end, err));
        vptq_buf_clear(&w->text);
        return VPTQ_OK;
    }
    size_t tail = incomplete_tail(w->text.data, w->text.len), begun = begun_stop(w);
    return emit_text(w, w->text.len - (tail > begun ? tail : begun), err);
}

/* ---- the loop ---- */

static vptq_status check_options(const vptq_model *m, const vptq_generate_options *o,
                                 vptq_err *err)
{
    if (!m->tokenizer)
        return vptq_fail(err, VPTQ_E_ARG, "%s: generation needs a tokenizer", m->ckpt.path);
    if (!(o->temperature >= 0) || !isfinite(o->temperature))
        return vptq_fail(err, VPTQ_E_ARG, "temperature %g: expected a number of at least 0",
                         o->temperature);
    if (!(o->top_p > 0 && o->top_p <= 1))
        return vptq_fail(err, VPTQ_E_ARG, "top-p %g: expected a number above 0 and at most 1",
                         o->top_p);
    for (size_t i = 0; i < o->stop_count; i++)
        if (!*o->stops[i])
            return vptq_fail(err, VPTQ_E_ARG, "a stop string is empty");
    return VPTQ_OK;
}

static bool is_in(const int32_t *ids, size_t n, int32_t id)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

typedef struct generation {
    vptq_forward *f;
    const vptq_model *m;
    const vptq_generate_args *args;
    const vptq_generate_options *o; /* of args */
    vptq_ids *ids, stop_ids;        /* ids: of args */
    size_t tokens;                  /* maximum number of new ones */
    writer w;
    double begin, prompt_done; /* seconds */
    vptq_stop_reason reason;
} generation;

/* Runs the prompt, then one token after the other. */
static vptq_status continue_prompt(generation *g, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_generate_options *o = g->o;
    const vptq_rng rng = vptq_rng_make(o->seed, 0, 0, VPTQ_RNG_GENERATE);
    const int32_t *feed = g->ids->data;
    size_t n = g->ids->count;
    for (size_t i = 0; i < g->tokens; i++) {
        const double u = vptq_rng_uniform(&rng, i);
        const vptq_forward_sampling choice = {
            .temperature = o->temperature, .top_p = o->top_p, .u = &u};
        int32_t next;
        VPTQ_TRY(vptq_forward_next(g->f, feed, n, &choice, &next, err));
        if (i == 0)
            g->prompt_done = vptq_seconds();
        if (next < 0)
            VPTQ_TRY(vptq_fail(err, VPTQ_E_NUMERIC, "%s: the model's output is not a number",
                               g->m->ckpt.path));
        VPTQ_TRY(vptq_ids_add(g->ids, &next, 1, err));
        VPTQ_TRY(write_token(&g->w, next, err));
        if (g->w.stopped) {
            g->reason = VPTQ_STOPPED_BY_STRING;
            break;
        }
        if (!o->ignore_eos && (is_in(g->stop_ids.data, g->stop_ids.count, next) ||
                               is_in(g->args->stop_tokens, g->args->stop_token_count, next))) {
            g->reason = VPTQ_STOPPED_BY_END;
            break;
        }
        feed = &g->ids->data[g->ids->count - 1];
        n = 1;
    }
out:
    if (st == VPTQ_E_CANCELLED)
        g->reason = VPTQ_STOPPED_BY_CANCEL;
    if (st && st != VPTQ_E_CANCELLED)
        return st;
    const vptq_status emitted = emit_text(&g->w, g->w.text.len, st ? NULL : err);
    return st ? st : emitted;
}

/* Encodes and checks the prompt; *length = its tokens plus the maximum of new ones. */
static vptq_status prepare_prompt(generation *g, size_t *length, vptq_err *err)
{
    const vptq_generate_options *o = g->o;
    const size_t context = g->m->desc->context;
    if (o->prompt)
        VPTQ_CHECK(vptq_tokenizer_encode(
            g->m->tokenizer, o->prompt, strlen(o->prompt),
            VPTQ_ENCODE_BOS | (o->special ? VPTQ_ENCODE_SPECIAL : 0), g->ids, err));
    size_t prompt = g->ids->count;
    if (prompt == 0)
        return vptq_fail(err, VPTQ_E_ARG,
                         "the prompt is empty, and this tokenizer adds no token to it");
    VPTQ_CHECK(
        vptq_ids_check(g->ids->data, prompt, g->m->desc->vocab, g->m->vocab.source, err));
    if (prompt >= context)
        return vptq_fail(err, VPTQ_E_ARG,
                         "the prompt has %zu tokens and fills the model's context of %zu",
                         prompt, context);
    g->w.at_start = o->prompt && o->prompt[0] == 0;
    g->tokens = o->tokens ? o->tokens : context - prompt;
    if (!vptq_size_add(prompt, g->tokens, length))
        return vptq_fail(err, VPTQ_E_ARG, "%zu tokens are too many", g->tokens);
    return VPTQ_OK;
}

static void fill_result(const generation *g, size_t prompt, vptq_generate_result *r)
{
    double first = g->prompt_done - g->begin, rest = vptq_seconds() - g->prompt_done;
    size_t added = g->ids->count - prompt;
    *r = (vptq_generate_result){
        .reason = g->reason, .prompt_tokens = prompt, .new_tokens = added};
    if (added > 0 && first > 0)
        r->prompt_tokens_per_second = (double)prompt / first;
    if (added > 1 && rest > 0)
        r->tokens_per_second = (double)(added - 1) / rest;
}

const char *vptq_stop_reason_name(vptq_stop_reason r)
{
    static const char *const names[] = {"length", "end_of_text", "stop", "interrupted"};
    return names[r];
}

/* Checks the options and makes the prompt's ids; *length as prepare_prompt. */
static vptq_status begin(const vptq_device *dev, generation *g, size_t *length, vptq_err *err)
{
    VPTQ_CHECK(check_options(g->m, g->o, err));
    VPTQ_CHECK(prepare_prompt(g, length, err));
    return vptq_model_stop_tokens(dev->ctx, g->m, &g->stop_ids, err);
}

/* The time is that of a batch of one sequence, which takes more memory than generating.  If it
 * does not fit, the time is not estimated, and scratch memory of ops is left out. */
static vptq_status estimate(vptq_device *dev, const generation *g, vptq_estimate *e,
                            vptq_err *err)
{
    const size_t prompt = g->ids->count, length = prompt + g->tokens;
    const vptq_batch_options o = {.sequences = 1, .length = length, .kv = VPTQ_F32, .top_p = 1};
    const vptq_decode_load c = {.batch = 1, .input = prompt, .output = g->tokens};
    size_t bytes;
    vptq_decode_times t = {.packed_bytes = 0};
    VPTQ_CHECK(vptq_forward_next_bytes(g->m, length, prompt, &bytes, err));
    const vptq_status st = vptq_decode_measure(dev, g->m, &c, &o, target_seconds, &t, err);
    if (st && st != VPTQ_E_NOMEM)
        return st;
    *e = vptq_estimate_make(NULL);
    if (!st)
        e->seconds = vptq_decode_seconds(&t, &c);
    e->memory_bytes =
        (dev->ctx->mem ? dev->ctx->mem->used : 0) + bytes + (uint64_t)t.packed_bytes;
    return VPTQ_OK;
}

vptq_status vptq_eval_generate(vptq_device *dev, const vptq_model *m,
                               const vptq_generate_args *args, vptq_generate_result *result,
                               vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_generate_options *o = args->opt;
    generation g = {.m = m,
                    .args = args,
                    .o = o,
                    .ids = args->ids,
                    .w = {.t = m->tokenizer, .o = o, .emit = args->emit, .arg = args->arg}};
    vptq_buf_init(&g.w.text, dev->ctx->mem);
    vptq_ids_init(&g.stop_ids, dev->ctx->mem);
    size_t length = 0;
    VPTQ_TRY(begin(dev, &g, &length, err));
    if (args->estimate) {
        VPTQ_TRY(estimate(dev, &g, args->estimate, err));
        goto out;
    }
    VPTQ_TRY(vptq_forward_open(m, dev, length, &g.f, err));
    const size_t prompt = g.ids->count;
    g.begin = g.prompt_done = vptq_seconds();
    st = continue_prompt(&g, err);
    if (result && (!st || st == VPTQ_E_CANCELLED))
        fill_result(&g, prompt, result);
out:
    vptq_forward_close(g.f);
    vptq_ids_release(&g.stop_ids);
    vptq_buf_release(&g.w.text);
    return st;
}
