/* Continuing a prompt token by token, greedy or sampled, with its text as it comes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/rng.h"
#include "lib/eval/eval.h"
#include "lib/model/forward.h"

typedef struct candidate {
    double p;
    int32_t id;
} candidate;

typedef struct sampler {
    double temperature, top_p;
    vptq_rng rng;
    uint64_t drawn;
    size_t vocab;
    candidate *order; /* [vocab]; NULL when greedy */
} sampler;

/* ---- choosing a token ---- */

static int by_probability(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->p != y->p)
        return x->p > y->p ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Index of the largest logit, the lowest on ties; -1 when one is not a number. */
static int32_t argmax(const float *logits, size_t n)
{
    size_t best = 0;
    for (size_t i = 0; i < n; i++) {
        if (isnan(logits[i]))
            return -1;
        if (logits[i] > logits[best])
            best = i;
    }
    return (int32_t)best;
}

/* Draws from softmax(logits / temperature), cut to the smallest set of likeliest tokens whose
 * probabilities reach top_p.  `best` is argmax(logits). */
static int32_t draw(sampler *s, const float *logits, int32_t best)
{
    double total = 0, kept = 0;
    size_t n = 0;
    for (size_t i = 0; i < s->vocab; i++) {
        double p = exp(((double)logits[i] - (double)logits[best]) / s->temperature);
        s->order[i] = (candidate){.p = p, .id = (int32_t)i};
        total += p;
    }
    qsort(s->order, s->vocab, sizeof *s->order, by_probability);
    do
        kept += s->order[n++].p;
    while (n < s->vocab && kept < s->top_p * total);
    double u = vptq_rng_uniform(&s->rng, s->drawn++) * kept;
    for (size_t i = 0; i + 1 < n; i++) {
        if (u < s->order[i].p)
            return s->order[i].id;
        u -= s->order[i].p;
    }
    return s->order[n - 1].id;
}

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
                                   const vptq_generate_options *o, sampler *s, writer *w,
                                   float *logits, vptq_ids *ids, double *since, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const int32_t *feed = ids->data;
    size_t n = ids->count;
    for (size_t i = 0; i < o->tokens; i++) {
        VPTQ_TRY(vptq_forward_step(f, feed, n, logits, err));
        if (i == 0)
            *since = vptq_seconds();
        int32_t next = argmax(logits, s->vocab);
        if (next < 0)
            return vptq_fail(err, VPTQ_E_NUMERIC, "%s: the model's output is not a number",
                             m->ckpt.path);
        if (s->order)
            next = draw(s, logits, next);
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

static vptq_status open_sampler(sampler *s, const vptq_model *m, const vptq_generate_options *o,
                                vptq_arena *arena, vptq_err *err)
{
    *s = (sampler){.temperature = o->temperature,
                   .top_p = o->top_p,
                   .rng = vptq_rng_make(o->seed, 0, 0, VPTQ_RNG_GENERATE),
                   .vocab = m->desc->vocab};
    if (o->temperature > 0) {
        s->order = vptq_arena_alloc(arena, s->vocab, sizeof *s->order, err);
        if (!s->order)
            return VPTQ_E_NOMEM;
    }
    return VPTQ_OK;
}

vptq_status vptq_eval_generate(vptq_device *dev, const vptq_model *m,
                               const vptq_generate_options *o, vptq_emit_fn emit, void *arg,
                               vptq_ids *ids, double *tokens_per_second, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_forward *f = NULL;
    vptq_arena arena;
    sampler s;
    writer w = {.t = m->tokenizer, .special = o->special, .emit = emit, .arg = arg};
    vptq_arena_init(&arena, dev->ctx->mem);
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
    VPTQ_TRY(open_sampler(&s, m, o, &arena, err));
    float *logits = vptq_arena_alloc(&arena, s.vocab, sizeof *logits, err);
    if (!logits)
        VPTQ_TRY(VPTQ_E_NOMEM);
    size_t length;
    if (!vptq_size_add(prompt, o->tokens, &length)) {
        st = vptq_fail(err, VPTQ_E_ARG, "%zu tokens are too many", o->tokens);
        goto out;
    }
    VPTQ_TRY(vptq_forward_open(m, dev, length, &f, err));
    double since = 0;
    VPTQ_TRY(continue_prompt(f, m, o, &s, &w, logits, ids, &since, err));
    double seconds = vptq_seconds() - since;
    size_t steps = ids->count > prompt ? ids->count - prompt - 1 : 0;
    if (tokens_per_second)
        *tokens_per_second = steps && seconds > 0 ? (double)steps / seconds : 0;
out:
    vptq_forward_close(f);
    vptq_buf_release(&w.text);
    vptq_arena_release(&arena);
    return st;
}
