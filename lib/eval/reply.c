/* Continues a prompt or answers a chat, and prints the prompt and the new text. */
#include <string.h>

#include "formats/text_file.h"
#include "lib/base/buf.h"
#include "lib/base/text.h"
#include "lib/chat/chat.h"
#include "lib/eval/generate.h"
#include "lib/report/column.h"
#include "lib/report/emit.h"
#include "lib/report/estimate.h"

/* A prompt as the model sees it, and its continuation. */
typedef struct reply {
    const vptq_ctx *ctx;
    const vptq_model *m;
    const vptq_generate_options *opt;
    const vptq_output *out;
    bool stream, began;           /* text is printed as it comes; some was */
    vptq_buf given, prompt, text; /* given: by the prompt file */
    vptq_ids ids, stop_tokens;
} reply;

/* ---- printing ---- */

/* Prints a text of the model or its user. */
static vptq_status write_text(const reply *r, const char *text, size_t length, vptq_err *err)
{
    vptq_buf shown;
    if (!r->out || !length)
        return VPTQ_OK;
    if (!r->opt->printable)
        return r->out->write(r->out->arg, text, length, err);
    vptq_buf_init(&shown, r->ctx->mem);
    vptq_emit e = {.buf = &shown, .err = err};
    vptq_emit_printable(&e, text, length, "\n\t");
    if (!e.st)
        e.st = r->out->write(r->out->arg, shown.data, shown.len, err);
    vptq_buf_release(&shown);
    return e.st;
}

/* Prints the prompt before the first text, except in a chat. */
static vptq_status begin_text(reply *r, vptq_err *err)
{
    const bool began = r->began;
    r->began = true;
    return began || r->opt->chat ? VPTQ_OK : write_text(r, r->prompt.data, r->prompt.len, err);
}

static vptq_status take_text(void *arg, const char *text, size_t length, vptq_err *err)
{
    reply *r = arg;
    if (!r->stream)
        return vptq_buf_add(&r->text, text, length, err);
    VPTQ_CHECK(begin_text(r, err));
    return write_text(r, text, length, err);
}

typedef struct reply_row {
    const char *prompt, *text, *model, *reason;
    size_t tokens;
    vptq_id_list ids;
    vptq_generate_result r;
    vptq_object totals;
} reply_row;

static vptq_status print_reply(reply *r, const vptq_generate_result *result, vptq_err *err)
{
    static const vptq_column columns[] = {
        {.name = "prompt", VPTQ_TEXT(reply_row, prompt)},
        {.name = "text", VPTQ_TEXT(reply_row, text)},
        {.name = "tokens", VPTQ_INTEGER(reply_row, tokens)},
        {.name = "prompt_tokens", VPTQ_INTEGER(reply_row, r.prompt_tokens)},
        {.name = "new_tokens", VPTQ_INTEGER(reply_row, r.new_tokens)},
        {.name = "tokens_per_second", VPTQ_REAL(reply_row, r.tokens_per_second)},
        {.name = "prompt_tokens_per_second", VPTQ_REAL(reply_row, r.prompt_tokens_per_second)},
        {.name = "stop_reason", VPTQ_TEXT(reply_row, reason)},
        {.name = "model", VPTQ_TEXT(reply_row, model)}};
    if (r->stream) {
        VPTQ_CHECK(begin_text(r, err));
        return vptq_print_text(r->out, err, "\n");
    }
    const reply_row row = {.prompt = r->prompt.data,
                           .text = r->text.data,
                           .model = r->m->ckpt.path,
                           .reason = vptq_stop_reason_name(result->reason),
                           .tokens = result->prompt_tokens + result->new_tokens,
                           .r = *result};
    return vptq_print_object(r->out, VPTQ_COLUMNS(columns), &row, err);
}

/* Prints text and ids of the prompt, and the estimate. */
static vptq_status print_prompt(const reply *r, const vptq_estimate *e, vptq_err *err)
{
    static const vptq_column columns[] = {
        {.name = "prompt", VPTQ_TEXT(reply_row, prompt)},
        {.name = "prompt_tokens", VPTQ_INTEGER(reply_row, ids.count)},
        {.name = "ids", VPTQ_IDS(reply_row, ids)},
        {.name = "model", VPTQ_TEXT(reply_row, model)},
        {.name = "totals", VPTQ_OBJECT(reply_row, totals)}};
    const reply_row row = {.prompt = r->prompt.data,
                           .model = r->m->ckpt.path,
                           .ids = {r->ids.data, r->ids.count},
                           .totals = vptq_estimate_object(e)};
    if (!r->stream)
        return vptq_print_object(r->out, VPTQ_COLUMNS(columns), &row, err);
    VPTQ_CHECK(write_text(r, r->prompt.data, r->prompt.len, err));
    VPTQ_CHECK(vptq_print_text(r->out, err, "\n%zu token%s:", r->ids.count,
                               vptq_plural(r->ids.count, "", "s")));
    for (size_t i = 0; i < r->ids.count; i++)
        VPTQ_CHECK(vptq_print_text(r->out, err, " %d", (int)r->ids.data[i]));
    VPTQ_CHECK(vptq_print_text(r->out, err, "\n"));
    return vptq_estimate_print(r->out, e, err);
}

/* ---- the run ---- */

enum { PROMPT_LIMIT = 64 << 20 }; /* bytes */

/* Replaces the prompt, or the user's message of `chat`, by the text of the prompt file. */
static vptq_status read_prompt(reply *r, vptq_chat_options *chat, vptq_err *err)
{
    const vptq_generate_options *o = r->opt;
    const vptq_text_kind kind = o->lossy ? VPTQ_TEXT_LOSSY : VPTQ_TEXT_UTF8;
    vptq_text_file t;
    VPTQ_CHECK(vptq_text_file_open(r->ctx, o->prompt_file, kind, PROMPT_LIMIT, &t, err));
    const size_t n = t.size - (t.size > 0 && t.data[t.size - 1] == '\n');
    const vptq_status st = vptq_buf_add(&r->given, t.data, n, err);
    vptq_text_file_close(&t);
    chat->user = r->given.data;
    return st;
}

/* Makes the text that the model sees, its ids, and the stop tokens of a chat. */
static vptq_status make_prompt(reply *r, vptq_err *err)
{
    const vptq_generate_options *o = r->opt;
    unsigned flags = VPTQ_ENCODE_BOS | (o->special ? VPTQ_ENCODE_SPECIAL : 0);
    vptq_chat_options chat = {.user = NULL};
    if (o->chat)
        chat = *o->chat;
    if (o->prompt_file)
        VPTQ_CHECK(read_prompt(r, &chat, err));
    const char *prompt = o->prompt_file ? r->given.data : o->prompt;
    if (o->chat) {
        VPTQ_CHECK(vptq_chat_prompt(r->ctx, r->m, &chat, &r->prompt, &r->stop_tokens, err));
        flags = VPTQ_ENCODE_SPECIAL; /* the template writes the BOS */
    } else if (prompt) {
        VPTQ_CHECK(vptq_buf_add(&r->prompt, prompt, strlen(prompt), err));
    }
    return vptq_tokenizer_encode(r->m->tokenizer, r->prompt.data, r->prompt.len, flags, &r->ids,
                                 err);
}

static vptq_status continue_prompt(vptq_device *dev, reply *r, vptq_generate_result *result,
                                   vptq_err *err)
{
    vptq_generate_options plain = *r->opt;
    vptq_estimate e;
    const vptq_generate_args args = {.estimate = plain.dry_run ? &e : NULL,
                                     .opt = &plain,
                                     .stop_tokens = r->stop_tokens.data,
                                     .stop_token_count = r->stop_tokens.count,
                                     .ids = &r->ids,
                                     .emit = take_text,
                                     .arg = r};
    plain.prompt = r->prompt.len ? NULL : "";
    if (!r->prompt.len)
        r->ids.count = 0; /* the empty prompt is encoded again as the beginning of a text */
    const vptq_status st = vptq_eval_generate(dev, r->m, &args, result, err);
    /* an interrupted run prints its text, too */
    if (st == VPTQ_E_CANCELLED && result->new_tokens > 0) {
        const vptq_status printed = print_reply(r, result, NULL);
        (void)printed; /* the first failure counts */
        return st;
    }
    VPTQ_CHECK(st);
    if (plain.dry_run)
        return print_prompt(r, &e, err);
    VPTQ_CHECK(print_reply(r, result, err));
    vptq_log(r->ctx, VPTQ_LOG_MORE,
             "%zu token%s of prompt, %.1f per second; %zu new, %.1f per second; "
             "ended by %s",
             result->prompt_tokens, vptq_plural(result->prompt_tokens, "", "s"),
             result->prompt_tokens_per_second, result->new_tokens, result->tokens_per_second,
             vptq_stop_reason_name(result->reason));
    return VPTQ_OK;
}

vptq_status vptq_eval_reply(vptq_device *dev, const vptq_model *m,
                            const vptq_generate_options *opt, const vptq_output *out,
                            vptq_generate_result *result, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_generate_result unused;
    reply r = {.ctx = dev->ctx,
               .m = m,
               .opt = opt,
               .out = out,
               .stream = !out || out->format != VPTQ_FORMAT_JSON};
    result = result ? result : &unused;
    *result = (vptq_generate_result){.new_tokens = 0};
    vptq_buf_init(&r.given, dev->ctx->mem);
    vptq_buf_init(&r.prompt, dev->ctx->mem);
    vptq_buf_init(&r.text, dev->ctx->mem);
    vptq_ids_init(&r.ids, dev->ctx->mem);
    vptq_ids_init(&r.stop_tokens, dev->ctx->mem);
    VPTQ_TRY(make_prompt(&r, err));
    VPTQ_TRY(continue_prompt(dev, &r, result, err));
out:
    vptq_ids_release(&r.stop_tokens);
    vptq_ids_release(&r.ids);
    vptq_buf_release(&r.text);
    vptq_buf_release(&r.prompt);
    vptq_buf_release(&r.given);
    return st;
}
