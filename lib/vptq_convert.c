/* The public function from a model to a packed one: quantizes, packs, and writes the model
 * card.
 */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/gguf/gguf.h"
#include "formats/hf/hub.h"
#include "lib/base/buf.h"
#include "lib/base/comm.h"
#include "lib/base/file.h"
#include "lib/base/text.h"
#include "lib/pack/pack.h"
#include "lib/quantize/quantize.h"
#include "lib/quantize/tune.h"
#include "lib/report/column.h"
#include "lib/vptq_internal.h"

enum { MAX_CARD = 1 << 15, MAX_NAME = 64, MAX_PATH = 4096 };

/* ---- what the card says of the original ---- */

/* Copies a license's name up to the first character that such a name does not have. */
static void take_name(const char *from, size_t size, char license[MAX_NAME])
{
    size_t n = 0;
    while (n + 1 < MAX_NAME && n < size &&
           (isalnum((unsigned char)from[n]) || (from[n] && strchr("._-", from[n]))))
        n++;
    memcpy(license, from, n);
    license[n] = 0;
}

/* Of a GGUF file: its key general.license. */
static void find_gguf_license(const char *model, char license[MAX_NAME], vptq_mem *mem)
{
    vptq_gguf g;
    vptq_gguf_str value;
    if (vptq_gguf_open(model, mem, &g, NULL))
        return;
    if (!vptq_gguf_str_or(&g, "general.license", &value, NULL) && value.data)
        take_name(value.data, value.len, license);
    vptq_gguf_release(&g);
}

/* Copies the value of "license:" in the front matter of the original's README.md, or what its
 * GGUF file says; "" without one.  A card is text for people: a file that cannot be read does
 * not stop the run. */
static void find_license(const char *model, char license[MAX_NAME], vptq_mem *mem)
{
    char path[4096], text[MAX_CARD];
    vptq_file f;
    license[0] = 0;
    if (vptq_gguf_is(model)) {
        find_gguf_license(model, license, mem);
        return;
    }
    if (vptq_path_join(path, sizeof path, model, "README.md", NULL) ||
        !vptq_path_exists(path) || vptq_file_open(path, &f, NULL))
        return;
    const size_t size = f.size < sizeof text ? (size_t)f.size : sizeof text - 1;
    const vptq_status st = vptq_file_read_at(&f, 0, text, size, NULL);
    vptq_file_close(&f);
    text[st ? 0 : size] = 0;
    const char *end = !strncmp(text, "---", 3) ? strstr(text + 3, "\n---") : NULL;
    const char *at = end ? strstr(text, "\nlicense:") : NULL;
    if (!at || at > end)
        return;
    at += strlen("\nlicense:");
    at += strspn(at, " \"'");
    take_name(at, strlen(at), license);
}

/* The name of a file with the license's text in the original's directory; NULL = none. */
static const char *find_license_file(const char *model)
{
    static const char *const names[] = {"LICENSE", "LICENSE.txt", "LICENSE.md", "COPYING"};
    char path[4096];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!vptq_path_join(path, sizeof path, model, names[i], NULL) && vptq_path_exists(path))
            return names[i];
    return NULL;
}

/* The name of a model or text in the card: "org/name" of a snapshot in a Hugging Face cache,
 * else the last part of its path.  Quotes and control characters, which YAML and Markdown do
 * not take, become
 * "_". */
static void card_name(const char *file, char name[MAX_PATH])
{
    char path[MAX_PATH];
    const char *from = path;
    if (!realpath(file, path))
        snprintf(path, sizeof path, "%s", file);
    const char *cached = strstr(path, "/models--"), *org = NULL;
    size_t n;
    if (cached && strstr(cached, "/snapshots/")) {
        from = cached + strlen("/models--");
        n = strcspn(from, "/");
        org = strstr(from, "--");
    } else {
        from = vptq_path_base(path);
        n = strlen(from);
    }
    size_t out = 0;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)from[i];
        if (org && from + i == org) {
            name[out++] = '/';
            i++;
            continue;
        }
        name[out++] = c < ' ' || c == 127 || strchr("\"\\|`", c) ? '_' : from[i];
    }
    name[out] = 0;
}

/* ---- the card ---- */

/* The name of a text or file of token ids. */
static void corpus_name(const vptq_corpus_options *c, size_t i, char name[MAX_PATH])
{
    const bool text = i < c->text_count;
    const char *path = text ? c->texts[i] : c->tokens[i - c->text_count];
    if (text && !strcmp(path, VPTQ_BUILTIN_TEXT))
        snprintf(name, MAX_PATH, "the built-in text");
    else if (!strcmp(path, "-"))
        snprintf(name, MAX_PATH, "standard input");
    else
        card_name(path, name);
}

static vptq_status add_corpus(vptq_buf *b, const vptq_corpus_options *c, vptq_err *err)
{
    for (size_t i = 0; i < c->text_count + c->token_count; i++) {
        char name[MAX_PATH];
        corpus_name(c, i, name);
        VPTQ_CHECK(vptq_buf_printf(b, err, "%s %s", i ? "," : "", name));
    }
    return VPTQ_OK;
}

static vptq_status add_calibration(vptq_buf *b, const vptq_quantize_options *q, vptq_err *err)
{
    const vptq_calibrate_options *c = q->calibrate;
    if (!c)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_buf_printf(b, err, "| calibration | up to %zu window%s of", c->windows,
                               vptq_plural(c->windows, "", "s")));
    VPTQ_CHECK(add_corpus(b, &c->corpus, err));
    return vptq_buf_printf(b, err, "%s |\n", c->sequential ? ", layer after layer" : "");
}

static vptq_status add_measured(vptq_buf *b, const vptq_corpus_options *c,
                                const vptq_kld_result *r, vptq_err *err)
{
    VPTQ_CHECK(vptq_buf_printf(b, err, "| perplexity | %.4f, of the original %.4f, on", r->ppl,
                               r->ppl_base));
    VPTQ_CHECK(add_corpus(b, c, err));
    return vptq_buf_printf(b, err,
                           " (%" PRIu64 " window%s of %zu tokens) |\n"
                           "| divergence from the original | %.6f nats per token |\n",
                           r->windows, vptq_plural(r->windows, "", "s"), r->context,
                           r->mean_kld);
}

/* `measured`: NULL = was not. */
static vptq_status write_card(const vptq_convert_options *o, const vptq_quantize_options *q,
                              const vptq_quantize_result *r, const vptq_kld_result *measured,
                              vptq_buf *b, vptq_err *err)
{
    char license[MAX_NAME], name[MAX_PATH];
    const char *file = find_license_file(q->model);
    find_license(q->model, license, b->mem);
    card_name(q->model, name);
    VPTQ_CHECK(vptq_buf_printf(b, err, "---\nbase_model: \"%s\"\n", name));
    if (*license)
        VPTQ_CHECK(vptq_buf_printf(b, err, "license: %s\n", license));
    VPTQ_CHECK(vptq_buf_printf(b, err,
                               "tags:\n- vptq\n- quantized\n---\n\n"
                               "# %s, %.3g bits per weight\n\n"
                               "Quantized from %s by vptq-quantize " VPTQ_VERSION ".\n\n"
                               "| | |\n| --- | --- |\n"
                               "| matrices | %u at %.4f bits per weight, everything stored "
                               "counted |\n"
                               "| mean loss of a matrix%s | %.6f of its output's energy |\n",
                               name, r->bits_per_weight, name, r->matrices, r->bits_per_weight,
                               q->tune ? " before tuning" : "", r->mean_loss));
    if (r->skipped)
        VPTQ_CHECK(vptq_buf_printf(b, err, "| matrices in 16 bits | %u |\n", r->skipped));
    VPTQ_CHECK(add_calibration(b, q, err));
    if (measured)
        VPTQ_CHECK(add_measured(b, &o->measure->corpus, measured, err));
    if (*r->digest)
        VPTQ_CHECK(vptq_buf_printf(b, err, VPTQ_CARD_DIGEST "%s` |\n", r->digest));
    VPTQ_CHECK(vptq_buf_printf(b, err, "| license of the original | %s%s |\n",
                               !*license && file ? "see " : "",
                               *license ? license
                               : file   ? file
                                        : "not found next to its weights"));
    if (o->command)
        VPTQ_CHECK(vptq_buf_printf(b, err, "\n    %s\n", o->command));
    return VPTQ_OK;
}

/* ---- the run ---- */

static vptq_status work_path(char path[MAX_PATH], const char *output, vptq_err *err)
{
    size_t n = strlen(output);
    while (n > 1 && output[n - 1] == '/')
        n--;
    if (n == 0)
        return vptq_fail(err, VPTQ_E_ARG, "the name of the output is empty");
    const int length = snprintf(path, MAX_PATH, "%.*s.work", (int)n, output);
    return length > 0 && length < MAX_PATH
               ? VPTQ_OK
               : vptq_fail(err, VPTQ_E_ARG, "the path '%.80s...' is too long", output);
}

/* Removes the work directory.  The packed model is complete: a failure is a warning. */
static void remove_work(const vptq_ctx *ctx, const char *work)
{
    vptq_err err;
    char untuned[MAX_PATH];
    vptq_status st = vptq_path_join(untuned, sizeof untuned, work, VPTQ_UNTUNED_DIR, &err);
    if (!st && vptq_path_is_dir(untuned))
        st = vptq_work_remove(untuned, ctx->mem, &err);
    if (st)
        vptq_log(ctx, VPTQ_LOG_WARN, "%s", err.text);
    if (vptq_work_remove(work, ctx->mem, &err))
        vptq_log(ctx, VPTQ_LOG_WARN, "%s", err.text);
}

/* Compares the packed model, an archive, with its original; NULL: only reads what that needs,
 * and estimates. */
static vptq_status compare(vptq_ctx *ctx, const vptq_convert_options *o,
                           const vptq_quantize_options *q, const char *packed,
                           vptq_kld_result *r, vptq_err *err)
{
    vptq_status st;
    vptq_model *original = NULL, *m = NULL;
    const vptq_model_options open = {.tokenizer = q->tokenizer,
                                     .need_tokenizer = o->measure->corpus.text_count > 0};
    const vptq_kld_options opt = {.corpus = o->measure->corpus,
                                  .context = o->measure->context,
                                  .windows = o->measure->windows,
                                  .dry_run = !packed};
    VPTQ_TRY(vptq_model_load(ctx, q->model, &open, &original, err));
    if (packed)
        VPTQ_TRY(vptq_model_load(ctx, packed, &open, &m, err));
    VPTQ_TRY(vptq_divergence(ctx, m ? m : original, original, &opt, NULL, r, err));
out:
    if (st == VPTQ_E_CANCELLED) /* the matrices are kept */
        vptq_fail(err, st, "interrupted; run the same command to continue");
    vptq_model_free(m);
    vptq_model_free(original);
    return st;
}

typedef struct measured_row {
    const char *model;
    vptq_kld_result r;
} measured_row;
static const vptq_column measured_columns[] = {
    {.name = "model", VPTQ_TEXT(measured_row, model)},
    {.name = "ppl", VPTQ_REAL(measured_row, r.ppl)},
    {.name = "ppl_base", VPTQ_REAL(measured_row, r.ppl_base)},
    {.name = "mean_kld", VPTQ_REAL(measured_row, r.mean_kld)},
    {.name = "tokens", VPTQ_INTEGER(measured_row, r.tokens)},
    {.name = "windows", VPTQ_INTEGER(measured_row, r.windows)},
    {.name = "context", VPTQ_INTEGER(measured_row, r.context)}};

static vptq_status report_measured(const vptq_output *out, const char *model,
                                   const vptq_kld_result *r, vptq_err *err)
{
    const measured_row row = {model, *r};
    if (!out)
        return VPTQ_OK;
    if (out->format == VPTQ_FORMAT_JSON)
        return vptq_print_object(out, VPTQ_COLUMNS(measured_columns), &row, err);
    return vptq_print_text(out, err,
                           "perplexity %.4f, of the original %.4f; divergence %.6f nats per "
                           "token\n",
                           r->ppl, r->ppl_base, r->mean_kld);
}

/* Nobody has the lock of the work directory while it is measured: fails if its matrices are no
 * longer those with that digest. */
static vptq_status check_unchanged(const vptq_ctx *ctx, const vptq_quantize_options *q,
                                   const vptq_pack_options *pack, const char *digest,
                                   vptq_err *err)
{
    vptq_digest_result now;
    const vptq_checkpoint_options open = {.tokenizer = q->tokenizer, .base = q->model};
    if (!*digest)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_digest_model(ctx, q->work, &open, pack, &now, err));
    return strcmp(now.digest, digest) == 0
               ? VPTQ_OK
               : vptq_fail(
                     err, VPTQ_E_MISMATCH,
                     "another run changed '%s' while this one measured; nothing is packed",
                     q->work);
}

/* Packs into the work directory and measures that, which is removed in any case.  The card is
 * part of the output, which has the same weights. */
static vptq_status measure(vptq_ctx *ctx, const vptq_convert_options *o,
                           const vptq_quantize_options *q, const vptq_pack_options *pack,
                           const char *digest, vptq_kld_result *r, vptq_err *err)
{
    char path[MAX_PATH];
    vptq_ctx quiet = *ctx; /* packing the output says the same */
    vptq_pack_options archive = *pack;
    vptq_status st = VPTQ_OK;
    VPTQ_CHECK(vptq_path_join(path, sizeof path, q->work, VPTQ_MEASURED_FILE, err));
    quiet.log = NULL;
    quiet.progress = NULL;
    archive.output = path;
    archive.form = VPTQ_PACK_ARCHIVE;
    archive.force = true;
    if (!vptq_comm_rank(ctx))
        st = vptq_pack(&quiet, &archive, NULL, err);
    VPTQ_TRY(vptq_comm_agree(ctx, st, err));
    VPTQ_TRY(compare(ctx, o, q, path, r, err));
    if (!vptq_comm_rank(ctx))
        VPTQ_TRY(check_unchanged(&quiet, q, pack, digest, err));
out:
    if (!vptq_comm_rank(ctx)) {
        const vptq_status removed = vptq_file_remove(path, st ? NULL : err);
        st = st ? st : removed;
    }
    return st;
}

/* Removes what a measurement left that was killed; this run may not measure. */
static vptq_status remove_measured(const char *work, vptq_err *err)
{
    char path[MAX_PATH];
    VPTQ_CHECK(vptq_path_join(path, sizeof path, work, VPTQ_MEASURED_FILE, err));
    return vptq_path_exists(path) ? vptq_file_remove(path, err) : VPTQ_OK;
}

static vptq_status run(vptq_ctx *ctx, const vptq_convert_options *opt,
                       const vptq_quantize_options *quantize, vptq_pack_options *pack,
                       const vptq_output *out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_quantize_result r;
    vptq_kld_result measured;
    vptq_buf card;
    vptq_buf_init(&card, ctx->mem);
    VPTQ_TRY(vptq_quantize_to_pack(ctx, quantize, pack, out, &r, err));
    if (opt->measure)
        VPTQ_TRY(measure(ctx, opt, quantize, pack, r.digest, &measured, err));
    if (vptq_comm_rank(ctx)) /* only the first packs */
        goto out;
    VPTQ_TRY(remove_measured(quantize->work, err));
    if (opt->measure)
        VPTQ_TRY(report_measured(out, pack->output, &measured, err));
    VPTQ_TRY(write_card(opt, quantize, &r, opt->measure ? &measured : NULL, &card, err));
    pack->card = card.data;
    VPTQ_TRY(vptq_pack(ctx, pack, out, err));
    if (!opt->keep_work)
        remove_work(ctx, quantize->work);
out:
    vptq_buf_release(&card);
    return vptq_comm_agree(ctx, st, err);
}

vptq_status vptq_convert(vptq_ctx *ctx, const vptq_convert_options *opt, const vptq_output *out,
                         vptq_err *err)
{
    char work[MAX_PATH], model[VPTQ_HUB_PATH];
    vptq_kld_result planned;
    vptq_quantize_options quantize = *opt->quantize;
    vptq_pack_options pack = *opt->pack;
    pack.dry_run = quantize.dry_run;
    quantize.work = NULL;
    if (pack.output || !pack.dry_run) {
        VPTQ_CHECK(work_path(work, pack.output, err));
        quantize.work = pack.input = work;
    }
    VPTQ_CHECK(vptq_hub_find(quantize.model, ctx->mem, model, err));
    quantize.model = model;
    quantize.force = pack.force;
    quantize.packs = true;
    quantize.packs_dir = pack.form == VPTQ_PACK_HF;
    if (pack.embeddings != VPTQ_DTYPE_COUNT)
        quantize.embeddings = pack.embeddings;
    if (!pack.tokenizer)
        pack.tokenizer = quantize.tokenizer;
    VPTQ_CHECK(vptq_pack_check_output(ctx, quantize.model, &pack, err));
    if (opt->measure) {
        if (quantize.no_shared_dir)
            return vptq_fail(err, VPTQ_E_ARG,
                             "the packed model cannot be measured without a shared directory");
        VPTQ_CHECK(compare(ctx, opt, &quantize, NULL, &planned, err));
        quantize.measuring = &planned.estimate;
    }
    if (quantize.dry_run)
        return vptq_quantize(ctx, &quantize, out, NULL, err);
    return run(ctx, opt, &quantize, &pack, out, err);
}
