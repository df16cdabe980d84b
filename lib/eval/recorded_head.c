#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/eval/recorded.h"

/* XXH3 over the bytes of one id after the other, each with the sum so far as its seed: the same
 * for any file format of one tokenizer.  0 without a tokenizer. */
static vptq_status vocabulary_fingerprint(const vptq_ctx *ctx, const vptq_model *m,
                                          uint64_t *sum, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_buf text;
    *sum = 0;
    if (!m->tokenizer)
        return VPTQ_OK;
    vptq_buf_init(&text, ctx->mem);
    for (uint32_t i = 0; i < m->vocab.count; i++) {
        const int32_t id = (int32_t)i;
        bool start = false;
        vptq_buf_clear(&text);
        VPTQ_TRY(vptq_tokenizer_decode(m->tokenizer, &id, 1, &start, true, &text, err));
        *sum = vptq_hash(text.data, text.len, *sum);
    }
out:
    vptq_buf_release(&text);
    return st;
}

vptq_status vptq_kld_base_head_make(const vptq_ctx *ctx, const vptq_model *base,
                                    const vptq_kld_options *opt, const vptq_windows *w,
                                    vptq_kld_base_head *head, vptq_err *err)
{
    char hex[17];
    const uint32_t vocab = base->desc->vocab;
    const bool full = opt->precision == VPTQ_KLD_BASE_FULL;
    if (!full && opt->top == 0)
        return vptq_fail(err, VPTQ_E_ARG, "no likeliest ids of a token to record");
    if (w->count > UINT32_MAX || opt->context > INT32_MAX)
        return vptq_fail(err, VPTQ_E_ARG, "%zu windows of %zu tokens are too many to record",
                         w->count, opt->context);
    *head = (vptq_kld_base_head){
        .precision = opt->precision,
        .protocol =
            opt->protocol == VPTQ_PPL_LLAMA_CPP ? VPTQ_KLD_BASE_LLAMA_CPP : VPTQ_KLD_BASE_GPTQ,
        .vocab = vocab,
        .entries = full || opt->top > vocab ? vocab : (uint32_t)opt->top,
        .context = (uint32_t)opt->context,
        .windows = (uint32_t)w->count,
        .bos = w->bos,
    };
    VPTQ_CHECK(vptq_checkpoint_fingerprint(&base->ckpt, ctx, hex, err));
    head->model = strtoull(hex, NULL, 16);
    VPTQ_CHECK(vocabulary_fingerprint(ctx, base, &head->vocabulary, err));
    const char *name = vptq_path_base(base->ckpt.path);
    memcpy(head->name, name, strnlen(name, VPTQ_KLD_BASE_NAME_MAX));
    return VPTQ_OK;
}

/* ---- may it stand in ---- */

static const char *protocol_name(bool llama_cpp)
{
    return llama_cpp ? "llama.cpp" : "gptq";
}

static vptq_status check_settings(const vptq_kld_base_file *file, const vptq_model *m,
                                  const vptq_kld_options *opt, vptq_err *err)
{
    const vptq_kld_base_head *h = &file->head;
    const bool llama_cpp = h->protocol == VPTQ_KLD_BASE_LLAMA_CPP;
    if (h->vocab != m->desc->vocab)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "%s: recorded over a vocabulary of %" PRIu32 " ids, %s has %" PRIu32,
                         file->file.path, h->vocab, m->ckpt.path, m->desc->vocab);
    if (opt->context && opt->context != h->context)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "%s: recorded with a context of %" PRIu32 " tokens, not of %zu",
                         file->file.path, h->context, opt->context);
    if (!opt->any_protocol && llama_cpp != (opt->protocol == VPTQ_PPL_LLAMA_CPP))
        return vptq_fail(err, VPTQ_E_MISMATCH, "%s: recorded by the %s protocol, not by %s",
                         file->file.path, protocol_name(llama_cpp), protocol_name(!llama_cpp));
    return VPTQ_OK;
}

/* Whether the text has the recorded ids; `other`: with another vocabulary. */
static vptq_status check_text(const vptq_ctx *ctx, const vptq_kld_base_file *file,
                              const vptq_model *m, const vptq_kld_options *opt, bool other,
                              vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_corpus c = {.ids = {.data = NULL}};
    const size_t n = (size_t)file->head.windows * file->head.context;
    size_t i = 0;
    VPTQ_TRY(vptq_corpus_load(ctx, &opt->corpus, m->tokenizer, m->desc->vocab, &c, err));
    while (i < n && i < c.ids.count && c.ids.data[i] == file->ids[i])
        i++;
    if (i < n && other)
        st = vptq_fail(err, VPTQ_E_MISMATCH,
                       "%s: recorded with another tokenizer: that of %s gives %s other tokens "
                       "from token %zu on",
                       file->file.path, m->ckpt.path, c.name, i);
    else if (i < n && i == c.ids.count)
        st =
            vptq_fail(err, VPTQ_E_MISMATCH,
                      "%s: recorded from another text: %s has %zu tokens, the recorded windows "
                      "%zu",
                      file->file.path, c.name, c.ids.count, n);
    else if (i < n)
        st = vptq_fail(err, VPTQ_E_MISMATCH,
                       "%s: recorded from another text: %s has other tokens from token %zu on",
                       file->file.path, c.name, i);
out:
    vptq_corpus_release(&c);
    return st;
}

vptq_status vptq_kld_base_head_check(const vptq_ctx *ctx, const vptq_kld_base_file *file,
                                     const vptq_model *m, const vptq_kld_options *opt,
                                     vptq_err *err)
{
    const vptq_kld_base_head *h = &file->head;
    uint64_t vocabulary;
    VPTQ_CHECK(check_settings(file, m, opt, err));
    VPTQ_CHECK(vocabulary_fingerprint(ctx, m, &vocabulary, err));
    const bool other = h->vocabulary && vocabulary && h->vocabulary != vocabulary;
    if (opt->corpus.text_count + opt->corpus.token_count > 0)
        VPTQ_CHECK(check_text(ctx, file, m, opt, other, err));
    else if (other)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "%s: recorded with another tokenizer than that of %s", file->file.path,
                         m->ckpt.path);
    const int32_t bos = vptq_windows_bos(
        m, h->protocol == VPTQ_KLD_BASE_LLAMA_CPP ? VPTQ_PPL_LLAMA_CPP : VPTQ_PPL_GPTQ);
    if (m->tokenizer && bos != h->bos)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "%s: recorded with the id %" PRId32 " in place of a window's first "
                         "token, %s puts %" PRId32 " there (-1: none)",
                         file->file.path, h->bos, m->ckpt.path, bos);
    return VPTQ_OK;
}
