/* The public function from a model to a packed one: quantizes, packs, and writes the model
 * card.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/buf.h"
#include "lib/base/file.h"
#include "lib/report/emit.h"
#include "lib/vptq_internal.h"

enum { MAX_CARD = 1 << 16, MAX_NAME = 64 };

/* ---- the original's license ---- */

/* Copies the value of "license:" in the front matter of the original's README.md; "" without
 * one. */
static vptq_status find_license(const vptq_ctx *ctx, const char *model, char license[MAX_NAME],
                                vptq_err *err)
{
    char path[4096], *text = NULL;
    size_t size;
    license[0] = 0;
    VPTQ_CHECK(vptq_path_join(path, sizeof path, model, "README.md", err));
    if (!vptq_path_exists(path) || vptq_file_read(path, MAX_CARD, ctx->mem, &text, &size, NULL))
        return VPTQ_OK; /* a card is text for people; the run does not depend on it */
    const char *end = size > 4 && !strncmp(text, "---\n", 4) ? strstr(text + 3, "\n---") : NULL;
    const char *at = end ? strstr(text, "\nlicense:") : NULL;
    if (at && at < end) {
        at += strlen("\nlicense:");
        at += strspn(at, " \"'");
        size_t n = 0;
        while (n + 1 < MAX_NAME && (isalnum((unsigned char)at[n]) || strchr("._-", at[n])) &&
               at[n])
            n++;
        memcpy(license, at, n);
        license[n] = 0;
    }
    vptq_mem_free(ctx->mem, text);
    return VPTQ_OK;
}

/* ---- the card ---- */

/* "org/name" as it was given, else the last part of the path. */
static const char *name_of(const char *model)
{
    return vptq_path_exists(model) ? vptq_path_base(model) : model;
}

/* One line of Markdown: no control characters. */
static vptq_status add_line(vptq_buf *b, const char *before, const char *text,
                            const char *after, vptq_err *err)
{
    VPTQ_CHECK(vptq_buf_printf(b, err, "%s", before));
    for (const char *c = text; *c; c++)
        VPTQ_CHECK(vptq_buf_printf(b, err, "%c", (unsigned char)*c < ' ' ? ' ' : *c));
    return vptq_buf_printf(b, err, "%s", after);
}

static vptq_status add_calibration(vptq_buf *b, const vptq_quantize_options *q, vptq_err *err)
{
    const vptq_calibrate_options *c = q->calibrate;
    if (!c)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_buf_printf(b, err, "| calibration | up to %zu windows of", c->windows));
    for (size_t i = 0; i < c->corpus.text_count; i++)
        VPTQ_CHECK(add_line(b, i ? ", " : " ", vptq_path_base(c->corpus.texts[i]), "", err));
    for (size_t i = 0; i < c->corpus.token_count; i++)
        VPTQ_CHECK(add_line(b, " ", vptq_path_base(c->corpus.tokens[i]), "", err));
    return vptq_buf_printf(b, err, "%s |\n", c->sequential ? ", layer after layer" : "");
}

static vptq_status write_card(const vptq_ctx *ctx, const vptq_convert_options *o,
                              const vptq_quantize_result *r, vptq_buf *b, vptq_err *err)
{
    const vptq_quantize_options *q = o->quantize;
    char license[MAX_NAME], model[4096];
    size_t n = strlen(q->model);
    while (n > 1 && q->model[n - 1] == '/')
        n--;
    snprintf(model, sizeof model, "%.*s", (int)(n < sizeof model ? n : sizeof model - 1),
             q->model);
    VPTQ_CHECK(find_license(ctx, model, license, err));
    const char *name = name_of(model);
    VPTQ_CHECK(add_line(b, "---\nbase_model: \"", name, "\"\n", err));
    if (*license)
        VPTQ_CHECK(vptq_buf_printf(b, err, "license: %s\n", license));
    VPTQ_CHECK(vptq_buf_printf(b, err, "tags:\n- vptq\n- quantized\n---\n\n"));
    VPTQ_CHECK(add_line(b, "# ", name, "", err));
    VPTQ_CHECK(vptq_buf_printf(b, err, ", %.3g bits per weight\n\n", r->bits_per_weight));
    VPTQ_CHECK(
        add_line(b, "Quantized from ", name, " by vptq-quantize " VPTQ_VERSION ".\n\n", err));
    VPTQ_CHECK(vptq_buf_printf(b, err,
                               "| | |\n| --- | --- |\n"
                               "| matrices | %u at %.4f bits per weight, everything stored "
                               "counted |\n"
                               "| mean loss of a matrix | %.6f of its output's energy |\n",
                               r->matrices, r->bits_per_weight, r->mean_loss));
    VPTQ_CHECK(add_calibration(b, q, err));
    if (*r->digest)
        VPTQ_CHECK(vptq_buf_printf(b, err, "| digest | `%s` |\n", r->digest));
    VPTQ_CHECK(vptq_buf_printf(
        b, err, "| license of the original | %s |\n",
        *license ? license : "not stated where its weights were; look before you share this"));
    if (o->command)
        VPTQ_CHECK(add_line(b, "\n    ", o->command, "\n", err));
    return VPTQ_OK;
}

/* ---- the run ---- */

static vptq_status work_path(char path[4096], const char *output, vptq_err *err)
{
    size_t n = strlen(output);
    while (n > 1 && output[n - 1] == '/')
        n--;
    const int length = snprintf(path, 4096, "%.*s.work", (int)n, output);
    return length > 0 && length < 4096
               ? VPTQ_OK
               : vptq_fail(err, VPTQ_E_ARG, "the path '%.80s...' is too long", output);
}

vptq_status vptq_convert(vptq_ctx *ctx, const vptq_convert_options *opt, const vptq_output *out,
                         vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char work[4096];
    vptq_quantize_result r;
    vptq_quantize_options quantize = *opt->quantize;
    vptq_pack_options pack = *opt->pack;
    vptq_buf card;
    VPTQ_CHECK(work_path(work, pack.output, err));
    if (!pack.force && vptq_path_exists(pack.output))
        return vptq_fail(err, VPTQ_E_EXISTS, "'%s' already exists", pack.output);
    quantize.work = pack.input = work;
    quantize.force = pack.force;
    quantize.dry_run = pack.dry_run = false;
    if (!pack.tokenizer)
        pack.tokenizer = quantize.tokenizer;
    vptq_buf_init(&card, ctx->mem);
    VPTQ_TRY(vptq_quantize(ctx, &quantize, out, &r, err));
    VPTQ_TRY(write_card(ctx, opt, &r, &card, err));
    pack.card = card.data;
    VPTQ_TRY(vptq_pack(ctx, &pack, out, err));
    if (!opt->keep_work)
        VPTQ_TRY(vptq_dir_remove(work, quantize.tune ? "untuned" : NULL, err));
out:
    vptq_buf_release(&card);
    return st;
}
