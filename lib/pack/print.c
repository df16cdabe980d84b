/* Reports of packing, unpacking, listing and checking, as text or JSON. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "formats/hf/hub.h"
#include "lib/base/text.h"
#include "lib/pack/pack.h"
#include "lib/report/column.h"
#include "lib/report/emit.h"
#include "lib/report/estimate.h"

static bool is_json(const vptq_output *out)
{
    return out && out->format == VPTQ_FORMAT_JSON;
}

/* ---- list ---- */

/* A row of the list with the bits per weight of its parts. */
typedef struct list_line {
    vptq_list_row r;
    double indices, codebooks, norm, perm, outliers, other;
} list_line;

#define BITS(key, text, member, where)                                                         \
    {                                                                                          \
        .name = key, .title = text, VPTQ_REAL(list_line, member), .decimals = 4, .width = 7,   \
        .missing = "", .when = offsetof(list_line, r.quantized), .formats = where              \
    }
#define SHAPE(key, text, member, columns)                                                      \
    {                                                                                          \
        .name = key, .title = text, VPTQ_INTEGER(list_line, r.shape.member), .width = columns, \
        .missing = "", .when = offsetof(list_line, r.vectors)                                  \
    }
static const vptq_column list_columns[] = {
    {.name = "name", VPTQ_TEXT(list_line, r.name), .width = 44},
    {.name = "quantized", VPTQ_BOOL(list_line, r.quantized), .formats = VPTQ_IN_JSON},
    {.name = "rows", VPTQ_INTEGER(list_line, r.rows), .width = 7},
    {.name = "columns", VPTQ_INTEGER(list_line, r.columns), .width = 7},
    {.name = "dtype", .title = "type", VPTQ_TEXT(list_line, r.dtype), .width = 5},
    {.name = "bytes", VPTQ_INTEGER(list_line, r.bytes), .width = 11},
    SHAPE("v", NULL, v, 3),
    SHAPE("k", NULL, k, 6),
    SHAPE("k_res", NULL, k_res, 6),
    SHAPE("groups", NULL, groups, 6),
    SHAPE("outliers", NULL, outliers, 8),
    {.name = "bits_per_weight",
     .title = "bits/w",
     VPTQ_REAL(list_line, r.bits.per_weight),
     .decimals = 4,
     .width = 7,
     .missing = "",
     .when = offsetof(list_line, r.quantized),
     .major = true},
    BITS("index_bits_per_weight", "index", indices, 0),
    BITS("codebook_bits_per_weight", "codebooks", codebooks, 0),
    BITS("norm_bits_per_weight", NULL, norm, VPTQ_IN_JSON),
    BITS("perm_bits_per_weight", NULL, perm, VPTQ_IN_JSON),
    BITS("outlier_bits_per_weight", NULL, outliers, VPTQ_IN_JSON),
    BITS("other", NULL, other, VPTQ_IN_TEXT)};

/* The last line of the list. */
typedef struct list_total {
    const char *model;
    uint64_t matrices, tensors, bytes;
    double bits_per_weight;
} list_total;
static const vptq_column total_columns[] = {
    {.name = "model", VPTQ_TEXT(list_total, model)},
    {.name = "matrices", VPTQ_INTEGER(list_total, matrices)},
    {.name = "tensors", VPTQ_INTEGER(list_total, tensors)},
    {.name = "bits_per_weight", VPTQ_REAL(list_total, bits_per_weight)},
    {.name = "total_bytes", VPTQ_INTEGER(list_total, bytes)}};

typedef struct list_state {
    vptq_printer printer;
    list_total total;
} list_state;

static vptq_status print_row(void *arg, const vptq_list_row *r, vptq_err *err)
{
    list_state *s = arg;
    const vptq_vq_bits *b = &r->bits;
    const double weights = (double)r->rows * r->columns;
    const list_line line = {.r = *r,
                            .indices = (double)b->indices / weights,
                            .codebooks = (double)b->codebooks / weights,
                            .norm = (double)b->norm / weights,
                            .perm = (double)b->perm / weights,
                            .outliers =
                                (double)(b->outlier_indices + b->outlier_codebook) / weights,
                            .other = (double)(b->total - b->indices - b->codebooks) / weights};
    if (r->quantized)
        s->total.matrices++;
    else
        s->total.tensors++;
    return vptq_print_row(&s->printer, &line, err);
}

vptq_status vptq_list(const vptq_ctx *ctx, const char *path, const vptq_model_options *open,
                      const vptq_output *out, vptq_err *err)
{
    const vptq_checkpoint_options from = {.tokenizer = open ? open->tokenizer : NULL,
                                          .base = open ? open->base : NULL};
    list_state s = {.printer = vptq_printer_make(out, VPTQ_COLUMNS(list_columns)),
                    .total = {.model = path}};
    list_total *t = &s.total;
    char size[32], bits[64] = "";

    s.printer.gap = 1;
    VPTQ_CHECK(vptq_pack_check_work(path, from.base, open && open->partial, err));
    VPTQ_CHECK(
        vptq_list_model(ctx, path, &from, print_row, &s, &t->bytes, &t->bits_per_weight, err));
    if (is_json(out))
        return vptq_print_object(out, VPTQ_COLUMNS(total_columns), t, err);
    vptq_human_bytes(size, t->bytes);
    if (t->matrices)
        snprintf(bits, sizeof bits, " at %.4f bits per weight", t->bits_per_weight);
    return vptq_print_line(
        out, err, "%s: %" PRIu64 " quantized %s%s, %" PRIu64 " plain tensor%s, %s in all", path,
        t->matrices, vptq_plural(t->matrices, "matrix", "matrices"), bits, t->tensors,
        vptq_plural(t->tensors, "", "s"), size);
}

/* ---- check ---- */

typedef struct finding {
    const char *severity, *text;
} finding;
static const vptq_column finding_columns[] = {
    {.name = "severity", VPTQ_TEXT(finding, severity)},
    {.name = "text", VPTQ_TEXT(finding, text)}};

static const vptq_column check_columns[] = {
    {.name = "model", VPTQ_TEXT(vptq_check_result, model)},
    {.name = "errors", VPTQ_INTEGER(vptq_check_result, errors)},
    {.name = "warnings", VPTQ_INTEGER(vptq_check_result, warnings)},
    {.name = "digests", VPTQ_INTEGER(vptq_check_result, digests)}};

typedef struct check_state {
    const vptq_output *out;
    vptq_status st; /* the first failure of writing */
    vptq_err *err;
} check_state;

static void print_finding(void *arg, bool is_error, const char *text)
{
    check_state *s = arg;
    const finding f = {is_error ? "error" : "warning", text};
    if (s->st)
        return;
    s->st = is_json(s->out)
                ? vptq_print_object(s->out, VPTQ_COLUMNS(finding_columns), &f, s->err)
                : vptq_print_line(s->out, s->err, "%s: %s", f.severity, text);
}

vptq_status vptq_check_report(vptq_device *dev, const char *path,
                              const vptq_checkpoint_options *open, const vptq_output *out,
                              uint32_t *errors, vptq_err *err)
{
    char found[VPTQ_HUB_PATH];
    vptq_check_result r;
    check_state s = {out, VPTQ_OK, err};
    char digests[48] = "";

    VPTQ_CHECK(vptq_hub_find(path, dev->ctx->mem, found, err));
    VPTQ_CHECK(vptq_check_model(dev, found, open, print_finding, &s, &r, err));
    VPTQ_CHECK(s.st);
    if (errors)
        *errors = r.errors;
    if (is_json(out))
        return vptq_print_object(out, VPTQ_COLUMNS(check_columns), &r, err);
    if (r.has_sums)
        snprintf(digests, sizeof digests, ", %" PRIu32 " file%s with SHA256SUMS", r.digests,
                 vptq_plural(r.digests, " agrees", "s agree"));
    else if (vptq_path_is_dir(found))
        snprintf(digests, sizeof digests, ", no SHA256SUMS");
    return vptq_print_line(out, err, "%s: %" PRIu32 " error%s, %" PRIu32 " warning%s%s", path,
                           r.errors, vptq_plural(r.errors, "", "s"), r.warnings,
                           vptq_plural(r.warnings, "", "s"), digests);
}

/* ---- digest ---- */

static const vptq_column digest_columns[] = {
    {.name = "model", VPTQ_TEXT(vptq_digest_result, model)},
    {.name = "digest", VPTQ_CHARS(vptq_digest_result, digest)},
    {.name = "matrices", VPTQ_INTEGER(vptq_digest_result, matrices)},
    {.name = "tensors", VPTQ_INTEGER(vptq_digest_result, tensors)}};

vptq_status vptq_digest_report(const vptq_digest_result *r, const vptq_output *out,
                               vptq_err *err)
{
    return is_json(out) ? vptq_print_object(out, VPTQ_COLUMNS(digest_columns), r, err)
                        : vptq_print_text(out, err, "%s\n", r->digest);
}

/* ---- pack and unpack ---- */

typedef struct repair {
    const char *text;
    uint32_t matrices;
} repair;
static const vptq_column repair_columns[] = {
    {.name = "repair", VPTQ_TEXT(repair, text)},
    {.name = "matrices", VPTQ_INTEGER(repair, matrices)}};

/* Prints the defects of the input that were repaired in the output. */
static vptq_status print_repairs(const vptq_output *out, const vptq_pack_result *r,
                                 vptq_err *err)
{
    for (size_t i = 0; i < VPTQ_QUIRK_COUNT; i++) {
        const repair one = {vptq_quirk_repair((vptq_quirk)i), r->repaired[i]};
        if (one.matrices == 0)
            continue;
        VPTQ_CHECK(is_json(out)
                       ? vptq_print_object(out, VPTQ_COLUMNS(repair_columns), &one, err)
                       : vptq_print_text(out, err, "%" PRIu32 " %s: %s\n", one.matrices,
                                         vptq_plural(one.matrices, "matrix", "matrices"),
                                         one.text));
    }
    return VPTQ_OK;
}

typedef struct written {
    const char *input, *output, *form;
    bool dry_run;
    vptq_pack_result r;
    vptq_object totals; /* of a dry run */
} written;
static const vptq_column written_columns[] = {
    {.name = "input", VPTQ_TEXT(written, input)},
    {.name = "output", VPTQ_TEXT(written, output)},
    {.name = "form", VPTQ_TEXT(written, form)},
    {.name = "dry_run", VPTQ_BOOL(written, dry_run)},
    {.name = "matrices", VPTQ_INTEGER(written, r.quantized)},
    {.name = "tensors", VPTQ_INTEGER(written, r.plain)},
    {.name = "bits_per_weight", VPTQ_REAL(written, r.bits_per_weight)},
    {.name = "total_bytes", VPTQ_INTEGER(written, r.bytes)},
    {.name = "file_bits_per_weight", VPTQ_REAL(written, r.file_bits_per_weight)},
    {.name = "layer_type", VPTQ_TEXT(written, r.layers.type)},
    {.name = "layer_relative_mse", VPTQ_REAL(written, r.layers.relative_mse)},
    {.name = "embedding_type", VPTQ_TEXT(written, r.embedding.type)},
    {.name = "embedding_bytes", VPTQ_INTEGER(written, r.embedding.bytes)},
    {.name = "embedding_relative_mse", VPTQ_REAL(written, r.embedding.relative_mse)},
    {.name = "seconds", VPTQ_REAL(written, r.seconds)},
    {.name = "totals", VPTQ_OBJECT(written, totals), .when = offsetof(written, dry_run)}};

enum { MSE_TEXT = 64 };

static void mse_text(char text[MSE_TEXT], double relative_mse)
{
    text[0] = 0;
    if (relative_mse > 0) /* known, and something was lost */
        snprintf(text, MSE_TEXT, ", relative mean square error %.3g", relative_mse);
}

/* Prints the linear layers of a GGUF file in blocks, and what is in the file besides matrices.
 */
static vptq_status print_file(const vptq_pack_result *r, const vptq_output *out, vptq_err *err)
{
    const vptq_pack_embedding *e = &r->embedding;
    char size[32], mse[MSE_TEXT];
    if (r->layers.type) {
        mse_text(mse, r->layers.relative_mse);
        VPTQ_CHECK(vptq_print_text(out, err,
                                   "linear layers: quantized to %s, %.4f bits per weight%s\n",
                                   r->layers.type, r->bits_per_weight, mse));
    }
    if (!e->type)
        return VPTQ_OK;
    vptq_human_bytes(size, e->bytes);
    mse_text(mse, e->relative_mse);
    return vptq_print_text(out, err, "embedding: %s, %s%s; whole file: %.4f bits per weight\n",
                           e->type, size, mse, r->file_bits_per_weight);
}

vptq_status vptq_pack_report(const vptq_pack_options *opt, bool unpacked,
                             const vptq_pack_result *r, const vptq_output *out, vptq_err *err)
{
    const bool dry = opt->dry_run, archive = opt->form == VPTQ_PACK_ARCHIVE;
    const char *form = opt->form == VPTQ_PACK_GGUF ? "gguf"
                       : unpacked                  ? "plain"
                       : archive                   ? "archive"
                                                   : "hf";
    vptq_estimate e = vptq_estimate_make(opt->output);
    e.seconds = r->estimated_seconds;
    vptq_estimate_leave_out(&e, "the disk");
    e.memory_bytes = r->memory_bytes;
    e.disk_bytes = r->bytes;
    const written w = {opt->input, opt->output, form, dry, *r, vptq_estimate_object(&e)};
    char size[32], seconds[32], matrices[96] = "";

    if (opt->repair)
        VPTQ_CHECK(print_repairs(out, r, err));
    if (is_json(out))
        return vptq_print_object(out, VPTQ_COLUMNS(written_columns), &w, err);
    vptq_human_bytes(size, r->bytes);
    vptq_human_seconds(seconds, r->seconds);
    if (r->quantized)
        snprintf(matrices, sizeof matrices, "%" PRIu32 " %s at %.4f bits per weight, ",
                 r->quantized, vptq_plural(r->quantized, "matrix", "matrices"),
                 r->bits_per_weight);
    VPTQ_CHECK(vptq_print_line(out, err, "%s%s: %s, %s%" PRIu32 " plain tensor%s, %s%s%s%s",
                               dry ? "plan: " : "", opt->output ? opt->output : "(no output)",
                               form, matrices, r->plain, vptq_plural(r->plain, "", "s"), size,
                               dry && archive ? " before compression" : "", dry ? "" : ", ",
                               dry ? "" : seconds));
    VPTQ_CHECK(print_file(r, out, err));
    return dry ? vptq_estimate_print(out, &e, err) : VPTQ_OK;
}
