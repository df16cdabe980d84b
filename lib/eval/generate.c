/* Continuing a prompt token by token, greedy or sampled, with its text as it comes. */
#include <math.h>
#include <string.h>

#include "lib/base/rng.h"
#include "lib/eval/eval.h"
#include "lib/model/forward.h"

/* ---- text ---- */

/* Bytes at the end of text [len] that begin a UTF-8 character without ending it. */
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
    bool special, at_start;
    vptq_emit_fn emit;
    void *arg;
    vptq_buf text; /* bytes that wait for the rest of their character */
} writer;

static vptq_status write_token(writer *w, int32_t id, vptq_err *err)
{
    if (!w->emit)
        return VPTQ_OK;
    vptq_status st =
        vptq_tokenizer_decode(w->t, &id, 1, &w->at_start, w->special, &w->text, err);
    if (st || w->text.len == 0)
        return st;
    size_t tail = incomplete_tail(w->text.data, w->text.len), ready = w->text.len - tail;
    if (ready)
        w->emit(w->arg, w->text.data, ready);
    memmove(w->text.data, w->text.data + ready, tail);
    w->text.len = tail;
    w->text.data[tail] = 0;
    return VPTQ_OK;
}

/* ---- the loop ---- */

static vptq_status check_options(const vptq_model *m, const vptq_generate_options *o,
                                 vptq_err *err)
{
    if (!m->tokenizer)
        return vptq_fail(err, VPTQ_E_ARG, "%s: generation needs a tokenizer", m->ckpt.path);
    if (!(o->temperature >= 0) || !isfinite(o->temperature))
        return vptq_fail(err, VPTQ_E_ARG, "temperature %g is not a number from 0 up",
                         o->temperature);
    if (!(o->top_p > 0 && o->top_p <= 1))
        return vptq_fail(err, VPTQ_E_ARG, "top-p %g is not above 0 and at most 1", o->top_p);
    return VPTQ_OK;
}

static bool is_end(const vptq_model *m, int32_t id)
{
    return id == m->desc->eos || id == m->vocab.eos;
}

/* Steps through the prompt, then token by token; *since: when the prompt was through. */
static vptq_status continue_prompt(vptq_forward *f, const vptq_model *m,
                                   const vptq_generate_options *o, writer *w, vptq_ids *ids,
                                   double *since, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_rng rng = vptq_rng_make(o->seed, 0, 0, VPTQ_RNG_GENERATE);
    const int32_t *feed = ids->data;
    size_t n = ids->count;
    for (size_t i = 0; i < o->tokens; i++) {
        const vptq_forward_choice choice = {
            .temperature = o->temperature, .top_p = o->top_p, .u = vptq_rng_uniform(&rng, i)};
        int32_t next;
        VPTQ_TRY(vptq_forward_next(f, feed, n, &choice, &next, err));
        if (i == 0)
            *since = vptq_seconds();
        if (next < 0)
            return vptq_fail(err, VPTQ_E_NUMERIC, "%s: the model's output is not a number",
                             m->ckpt.path);
        VPTQ_TRY(vptq_ids_add(ids, &next, 1, err));
        VPTQ_TRY(write_token(w, next, err));
        if (!o->ignore_eos && is_end(m, next))
            break;
        feed = &ids->data[ids->count - 1];
        n = 1;
    }
    if (w->text.len)
        w->emit(w->arg, w->text.data, w->text.len);
out:
    return st;
}

vptq_status vptq_eval_generate(vptq_device *dev, const vptq_model *m,
                               const vptq_generate_options *o, vptq_emit_fn emit, void *arg,
                               vptq_ids *ids, double *tokens_per_second, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_forward *f = NULL;
    writer w = {.t = m->tokenizer, .special = o->special, .emit = emit, .arg = arg};
    vptq_buf_init(&w.text, dev->ctx->mem);
    VPTQ_TRY(check_options(m, o, err));
    VPTQ_TRY(vptq_tokenizer_encode(m->tokenizer, o->prompt, strlen(o->prompt),
                                   VPTQ_ENCODE_BOS | (o->special ? VPTQ_ENCODE_SPECIAL : 0),
                                   ids, err));
    size_t prompt = ids->count;
    if (prompt == 0) {
        st = vptq_fail(err, VPTQ_E_ARG, "an empty prompt: this tokenizer adds nothing to it");
        goto out;
    }
    VPTQ_TRY(vptq_ids_check(ids->data, prompt, m->desc->vocab, m->vocab.source, err));
    w.at_start = o->prompt[0] == 0;
    size_t length;
    if (!vptq_size_add(prompt, o->tokens, &length)) {
        st = vptq_fail(err, VPTQ_E_ARG, "%zu tokens are too many", o->tokens);
        goto out;
    }
    VPTQ_TRY(vptq_forward_open(m, dev, length, &f, err));
    double since = 0;
    VPTQ_TRY(continue_prompt(f, m, o, &w, ids, &since, err));
    double seconds = vptq_seconds() - since;
    size_t steps = ids->count > prompt ? ids->count - prompt - 1 : 0;
    if (tokens_per_second)
        *tokens_per_second = steps && seconds > 0 ? (double)steps / seconds : 0;
out:
    vptq_forward_close(f);
    vptq_buf_release(&w.text);
    return st;
}
