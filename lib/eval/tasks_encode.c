#include "lib/eval/tasks_encode.h"

#include <string.h>

#include "lib/eval/task_text.h"

vptq_status vptq_task_encoder_open(const vptq_model *m, vptq_mem *mem, vptq_task_encoder *e,
                                   vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    bool start = false;
    *e = (vptq_task_encoder){.m = m};
    vptq_buf_init(&e->prefix_text, mem);
    vptq_buf_init(&e->text, mem);
    vptq_ids_init(&e->whole, mem);
    vptq_ids_init(&e->context, mem);
    if (!m->tokenizer)
        return vptq_fail(err, VPTQ_E_ARG, "%s: tasks need a tokenizer, none is given",
                         m->ckpt.path);
    e->prefix = m->vocab.bos >= 0 ? m->vocab.bos : m->vocab.eos;
    if (e->prefix >= 0)
        VPTQ_TRY(vptq_tokenizer_decode(m->tokenizer, &e->prefix, 1, &start, true,
                                       &e->prefix_text, err));
out:
    if (st)
        vptq_task_encoder_close(e);
    return st;
}

void vptq_task_encoder_close(vptq_task_encoder *e)
{
    vptq_buf_release(&e->prefix_text);
    vptq_buf_release(&e->text);
    vptq_ids_release(&e->whole);
    vptq_ids_release(&e->context);
}

/* Special tokens that are written in the text count as such, and the tokenizer adds its own in
 * front unless the first one is there. */
static unsigned flags_of(const vptq_task_encoder *e, const char *s, size_t n)
{
    const vptq_buf *p = &e->prefix_text;
    const bool there = p->len && n >= p->len && memcmp(s, p->data, p->len) == 0;
    return VPTQ_ENCODE_SPECIAL | (there ? 0 : (unsigned)VPTQ_ENCODE_BOS);
}

/* e->context = the tokens of the context alone; the last one's are kept, since the choices of
 * an item share it. */
static vptq_status encode_context(vptq_task_encoder *e, vptq_task_text context, vptq_err *err)
{
    if (e->context_of.s == context.s && e->context_of.n == context.n)
        return VPTQ_OK;
    const size_t n = vptq_task_strip_end(context).n;
    e->context.count = 0;
    vptq_status st = vptq_tokenizer_encode(e->m->tokenizer, context.s, n,
                                           flags_of(e, context.s, n), &e->context, err);
    e->context_of = st ? (vptq_task_text){NULL, 0} : context;
    return st;
}

/* Nothing but the continuation: behind the prefix, unless it begins with that itself. */
static vptq_status encode_alone(vptq_task_encoder *e, vptq_task_text continuation,
                                vptq_ids *out, size_t *scored, vptq_err *err)
{
    e->whole.count = 0;
    VPTQ_CHECK(vptq_tokenizer_encode(e->m->tokenizer, continuation.s, continuation.n,
                                     VPTQ_ENCODE_SPECIAL, &e->whole, err));
    const bool there = e->whole.count && e->whole.data[0] == e->prefix;
    if (e->prefix < 0)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "a context is empty, and the tokenizer has neither a BOS nor an EOS "
                         "token to stand for it");
    if (!there)
        VPTQ_CHECK(vptq_ids_add(out, &e->prefix, 1, err));
    VPTQ_CHECK(vptq_ids_add(out, e->whole.data, e->whole.count, err));
    *scored = e->whole.count - there;
    return VPTQ_OK;
}

/* The continuation's tokens are those of the whole text behind as many as the context has
 * alone. */
static vptq_status encode_pair(vptq_task_encoder *e, const vptq_task_request *q, vptq_ids *out,
                               size_t *scored, vptq_err *err)
{
    vptq_buf_clear(&e->text);
    VPTQ_CHECK(vptq_buf_add(&e->text, q->context.s, q->context.n, err));
    VPTQ_CHECK(vptq_buf_add(&e->text, q->continuation.s, q->continuation.n, err));
    e->whole.count = 0;
    VPTQ_CHECK(vptq_tokenizer_encode(e->m->tokenizer, e->text.data, e->text.len,
                                     flags_of(e, e->text.data, e->text.len), &e->whole, err));
    VPTQ_CHECK(encode_context(e, q->context, err));
    const size_t n = e->context.count;
    if (n == 0)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "a context is nothing but white space, for which the tokenizer has no "
                         "token");
    *scored = e->whole.count > n ? e->whole.count - n : 0;
    VPTQ_CHECK(vptq_ids_add(out, e->context.data, n, err));
    if (*scored)
        VPTQ_CHECK(vptq_ids_add(out, e->whole.data + n, *scored, err));
    return VPTQ_OK;
}

vptq_status vptq_task_encode(vptq_task_encoder *e, const vptq_task_request *q, vptq_ids *out,
                             size_t *scored, vptq_err *err)
{
    vptq_status st = q->context.n ? encode_pair(e, q, out, scored, err)
                                  : encode_alone(e, q->continuation, out, scored, err);
    if (!st && *scored == 0)
        st = vptq_fail(err, VPTQ_E_FORMAT, "a continuation has no token");
    return st;
}
