/* vptq-pack: packs quantized matrices into checkpoints, unpacks, lists, checks and repairs
 * them. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cmd/cli/cli.h"
#include "lib/internal.h"
#include "lib/vptq.h"

typedef struct pack_args {
    const char *model, *output, *base, *tokenizer, *dtype, *embeddings;
    uint64_t shard_bytes;
    uint32_t level;
    int form; /* index into "auto|hf|archive|gguf" */
    bool unpack, list, check, repair, lm_head;
} pack_args;

enum { FORM_AUTO, FORM_HF, FORM_ARCHIVE, FORM_GGUF };

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
        .missing = "", .when = offsetof(list_line, r.quantized)                                \
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
    BITS("bits_per_weight", "bits/w", r.bits.per_weight, 0),
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
    (void)err;
    vptq_print_row(&s->printer, &line, NULL);
    if (r->quantized)
        s->total.matrices++;
    else
        s->total.tensors++;
    return VPTQ_OK;
}

static vptq_model_options open_options(const pack_args *a)
{
    return (vptq_model_options){.tokenizer = a->tokenizer, .base = a->base};
}

static vptq_status list_model(vptq_cli *cli, const pack_args *a, vptq_err *err)
{
    const vptq_model_options open = open_options(a);
    list_state s = {.printer = vptq_printer_make(&cli->out, VPTQ_COLUMNS(list_columns)),
                    .total = {.model = a->model}};
    list_total *t = &s.total;
    char size[32];
    s.printer.gap = 1;
    VPTQ_CHECK(vptq_list(cli->ctx, a->model, &open, print_row, &s, &t->bytes,
                         &t->bits_per_weight, err));
    if (cli->common.format == CLI_JSON) {
        vptq_print_object(&cli->out, VPTQ_COLUMNS(total_columns), t, NULL);
        return VPTQ_OK;
    }
    vptq_cli_human_bytes(size, t->bytes);
    printf("%s: %" PRIu64 " quantized matrices", a->model, t->matrices);
    if (t->matrices)
        printf(" at %.4f bits per weight", t->bits_per_weight);
    printf(", %" PRIu64 " plain tensors, %s in all\n", t->tensors, size);
    return VPTQ_OK;
}

/* ---- check ---- */

typedef struct finding {
    const char *severity, *text;
} finding;
static const vptq_column finding_columns[] = {
    {.name = "severity", VPTQ_TEXT(finding, severity)},
    {.name = "text", VPTQ_TEXT(finding, text)}};

typedef struct check_result {
    const char *model;
    uint32_t errors, warnings;
} check_result;
static const vptq_column check_columns[] = {
    {.name = "model", VPTQ_TEXT(check_result, model)},
    {.name = "errors", VPTQ_INTEGER(check_result, errors)},
    {.name = "warnings", VPTQ_INTEGER(check_result, warnings)}};

static void print_finding(void *arg, bool is_error, const char *text)
{
    const vptq_cli *cli = arg;
    const finding f = {is_error ? "error" : "warning", text};
    if (cli->common.format == CLI_JSON)
        vptq_print_object(&cli->out, VPTQ_COLUMNS(finding_columns), &f, NULL);
    else
        printf("%s: %s\n", f.severity, text);
}

static int check(vptq_cli *cli, const pack_args *a)
{
    const vptq_model_options open = open_options(a);
    vptq_err err = {0};
    check_result r = {.model = a->model};
    vptq_status st =
        vptq_check(cli->ctx, a->model, &open, print_finding, cli, &r.errors, &r.warnings, &err);
    if (!st && cli->common.format == CLI_JSON)
        vptq_print_object(&cli->out, VPTQ_COLUMNS(check_columns), &r, NULL);
    else if (!st)
        printf("%s: %" PRIu32 " error%s, %" PRIu32 " warning%s\n", a->model, r.errors,
               r.errors == 1 ? "" : "s", r.warnings, r.warnings == 1 ? "" : "s");
    int code = vptq_cli_finish(cli, st, &err);
    return code == CLI_OK && r.errors ? CLI_CHECK_FAILED : code;
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
static void print_repairs(const vptq_cli *cli, const vptq_pack_result *r)
{
    for (size_t i = 0; i < VPTQ_REPAIR_COUNT; i++) {
        const repair one = {vptq_repair_text(i), r->repaired[i]};
        if (one.matrices == 0)
            continue;
        if (cli->common.format == CLI_JSON)
            vptq_print_object(&cli->out, VPTQ_COLUMNS(repair_columns), &one, NULL);
        else
            printf("%" PRIu32 " %s: %s\n", one.matrices,
                   one.matrices == 1 ? "matrix" : "matrices", one.text);
    }
}

typedef struct written {
    const char *input, *output, *form;
    bool dry_run;
    vptq_pack_result r;
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
    {.name = "seconds", VPTQ_REAL(written, r.seconds)}};

static void print_written(const vptq_cli *cli, const pack_args *a, const char *form,
                          const vptq_pack_result *r)
{
    const bool dry = cli->common.dry_run;
    if (cli->common.format == CLI_JSON) {
        const written w = {a->model, a->output, form, dry, *r};
        vptq_print_object(&cli->out, VPTQ_COLUMNS(written_columns), &w, NULL);
        return;
    }
    char size[32], seconds[32];
    vptq_cli_human_bytes(size, r->bytes);
    vptq_cli_human_seconds(seconds, r->seconds);
    printf("%s%s: %s, ", dry ? "plan: " : "", a->output ? a->output : "(no output)", form);
    if (r->quantized)
        printf("%" PRIu32 " matrices at %.4f bits per weight, ", r->quantized,
               r->bits_per_weight);
    printf("%" PRIu32 " plain tensors, %s%s", r->plain, size,
           dry && strcmp(form, "archive") == 0 ? " before compression" : "");
    printf(dry ? "\n" : ", %s\n", seconds);
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static vptq_status choose_dtype(const pack_args *a, vptq_dtype *type, vptq_err *err)
{
    *type = a->unpack ? VPTQ_F16 : VPTQ_DTYPE_COUNT;
    if (!a->dtype)
        return VPTQ_OK;
    vptq_status st = vptq_dtype_from_option(a->dtype, type, err);
    if (!st && !a->unpack && *type == VPTQ_F32)
        st = vptq_fail(err, VPTQ_E_ARG,
                       "--dtype f32 cannot be packed: the layout stores f16 or bf16");
    return st;
}

/* Chooses the type of a GGUF file's embeddings, which may also be q8_0. */
static vptq_status choose_embeddings(const pack_args *a, vptq_dtype dtype, vptq_dtype *type,
                                     vptq_err *err)
{
    *type = dtype;
    if (!a->embeddings)
        return VPTQ_OK;
    if (strcmp(a->embeddings, "q8_0") == 0) {
        *type = VPTQ_Q8_0;
        return VPTQ_OK;
    }
    if (vptq_dtype_from_option(a->embeddings, type, NULL))
        return vptq_fail(err, VPTQ_E_ARG, "--embeddings %.40s: expected f16, bf16, f32 or q8_0",
                         a->embeddings);
    return VPTQ_OK;
}

/* Chooses the form of the output by --to and the extension of its name. */
static vptq_pack_form choose_form(const pack_args *a)
{
    const char *ending = a->unpack ? ".gguf" : ".vptq";
    const vptq_pack_form one_file = a->unpack ? VPTQ_PACK_GGUF : VPTQ_PACK_ARCHIVE;
    if (a->form == FORM_AUTO)
        return a->output && ends_with(a->output, ending) ? one_file : VPTQ_PACK_HF;
    return a->form == FORM_HF ? VPTQ_PACK_HF : one_file;
}

static int write_model(vptq_cli *cli, const pack_args *a)
{
    vptq_err err = {0};
    vptq_pack_result r = {0};
    const vptq_pack_form form = choose_form(a);
    const char *name = form == VPTQ_PACK_GGUF      ? "gguf"
                       : a->unpack                 ? "plain"
                       : form == VPTQ_PACK_ARCHIVE ? "archive"
                                                   : "hf";
    vptq_pack_options opt = {.input = a->model,
                             .output = a->output,
                             .base = a->base,
                             .tokenizer = a->tokenizer,
                             .form = form,
                             .shard_bytes = a->shard_bytes,
                             .level = a->level,
                             .repair = a->repair,
                             .lm_head = a->lm_head,
                             .force = cli->common.force,
                             .dry_run = cli->common.dry_run};
    vptq_status st = choose_dtype(a, &opt.dtype, &err);
    if (!st)
        st = choose_embeddings(a, opt.dtype, &opt.embeddings, &err);
    if (!st && opt.dry_run)
        st = list_model(cli, a, &err);
    if (!st && a->unpack)
        st = vptq_unpack(cli->ctx, &opt, &r, &err);
    else if (!st)
        st = vptq_pack(cli->ctx, &opt, &r, &err);
    if (!st && a->repair)
        print_repairs(cli, &r);
    if (!st)
        print_written(cli, a, name, &r);
    return vptq_cli_finish(cli, st, &err);
}

/* Returns a given option that only writing reads, or NULL. */
static const char *given_for_writing(const pack_args *a)
{
    return a->output        ? "output"
           : a->form        ? "to"
           : a->dtype       ? "dtype"
           : a->embeddings  ? "embeddings"
           : a->shard_bytes ? "shard-size"
           : a->level       ? "level"
           : a->lm_head     ? "lm-head"
                            : NULL;
}

/* Rejects contradictory options for writing. */
static int check_usage(const vptq_cli *cli, const pack_args *a)
{
    if (!a->output && !cli->common.dry_run)
        return vptq_cli_missing_option(cli, "output");
    if (a->unpack && a->lm_head)
        return vptq_cli_usage_error(cli, "--lm-head does not go with --unpack");
    if (a->unpack ? a->form == FORM_ARCHIVE : a->form == FORM_GGUF)
        return vptq_cli_usage_error(cli, a->unpack ? "--to archive does not go with --unpack"
                                                   : "--to gguf goes with --unpack only");
    if (a->form == FORM_AUTO && a->output &&
        ends_with(a->output, a->unpack ? ".vptq" : ".gguf"))
        return vptq_cli_usage_error(
            cli, "'%s': %s --unpack; --to hf makes a directory of that name", a->output,
            a->unpack ? "an archive is written without" : "a GGUF file is written with");
    const vptq_pack_form form = choose_form(a);
    if (form != VPTQ_PACK_GGUF && a->embeddings)
        return vptq_cli_usage_error(cli, "--embeddings goes with --unpack to a GGUF file");
    if (form != VPTQ_PACK_HF && a->shard_bytes)
        return vptq_cli_usage_error(cli, "--shard-size does not go with %s",
                                    form == VPTQ_PACK_GGUF ? "a GGUF file" : "an archive");
    if (form != VPTQ_PACK_ARCHIVE && a->level)
        return vptq_cli_usage_error(cli, "--level is for archives (OUT.vptq or --to archive)");
    return CLI_OK;
}

static int dispatch(vptq_cli *cli, pack_args *a)
{
    const size_t models = cli->arg_count + (a->model != NULL);
    if (models == 0)
        return vptq_cli_missing_option(cli, "model");
    if (models > 1)
        return vptq_cli_usage_error(cli, "expected one model, got %zu", models);
    if (cli->arg_count)
        a->model = cli->args[0];
    if (a->unpack + a->list + a->check + a->repair > 1)
        return vptq_cli_usage_error(
            cli, "--unpack, --list, --check and --repair exclude each other");
    if ((a->list || a->check) && given_for_writing(a))
        return vptq_cli_usage_error(cli, "--%s does not go with --%s", given_for_writing(a),
                                    a->list ? "list" : "check");
    if (a->check)
        return check(cli, a);
    if (a->list) {
        vptq_err err = {0};
        return vptq_cli_finish(cli, list_model(cli, a, &err), &err);
    }
    if (check_usage(cli, a) != CLI_OK)
        return CLI_USAGE;
    return write_model(cli, a);
}

int main(int argc, char **argv)
{
    pack_args a = {0};
    const vptq_cli_option options[] = {
        {0, NULL, CLI_FLAG, NULL, NULL, "What to do (default: pack)", false},
        {0, "unpack", CLI_FLAG, &a.unpack, NULL,
         "write any model as a plain Hugging Face directory, or as a GGUF file", false},
        {0, "list", CLI_FLAG, &a.list, NULL, "show all matrices and tensors with their bits",
         false},
        {0, "check", CLI_FLAG, &a.check, NULL,
         "read everything and report every error; exit 3 if there is one", false},
        {0, "repair", CLI_FLAG, &a.repair, NULL,
         "rewrite a packed model without the defects that other readers fail on", false},
        {0, NULL, CLI_FLAG, NULL, NULL, "Input and output", false},
        {'m', "model", CLI_STRING, &a.model, "MODEL", "the model, instead of an argument",
         false},
        {'o', "output", CLI_STRING, &a.output, "OUT",
         "directory, archive or GGUF file to write", false},
        {0, "to", CLI_CHOICE, &a.form, "auto|hf|archive|gguf",
         "directory or single file; auto: by the extension .vptq or .gguf of OUT", false},
        {0, "dtype", CLI_STRING, &a.dtype, "f16|bf16|f32",
         "stored type (default: as quantized; f16 with --unpack)", false},
        {0, "embeddings", CLI_STRING, &a.embeddings, "f16|bf16|f32|q8_0",
         "GGUF: type of embedding and output head (default: --dtype)", false},
        {0, "shard-size", CLI_SIZE, &a.shard_bytes, "SIZE",
         "maximum size of a weights file in a directory; 0 = 4 GiB", false},
        {0, "level", CLI_U32, &a.level, "1..22",
         "zstd level of an archive; 0 = chosen by kind of tensor", false},
        {0, "lm-head", CLI_FLAG, &a.lm_head, NULL,
         "also store an output head that is tied to the embedding; vptq's own loader needs it",
         false},
        {0, "base", CLI_STRING, &a.base, "PATH", "the original model of WORK, if it was moved",
         false},
        {0, "tokenizer", CLI_STRING, &a.tokenizer, "FILE", "tokenizer to store in the output",
         false},
        CLI_END};
    vptq_cli cli = {
        .tool = "vptq-pack",
        .summary = "Packs quantized matrices into checkpoints, and unpacks them.",
        .usage = "vptq-pack WORK -o OUT [--to hf|archive] [--dtype f16|bf16]\n"
                 "vptq-pack --unpack MODEL -o DIR|FILE.gguf [--dtype f16|bf16|f32]\n"
                 "vptq-pack --list MODEL\n"
                 "vptq-pack --check MODEL\n"
                 "vptq-pack --repair PACKED -o OUT",
        .examples = "vptq-pack work -o model-vptq          loads with transformers and vptq\n"
                    "vptq-pack work -o model.vptq          one compressed file\n"
                    "vptq-pack model.vptq -o model-vptq    converts an archive\n"
                    "vptq-pack --unpack model.gguf -o model-f16\n"
                    "vptq-pack --unpack work -o model.gguf         runs with llama.cpp\n"
                    "vptq-pack --repair published -o fixed",
        .options = options,
        .formats = "text|json",
        .omit = "seed",
        .operands = true};
    int code;
    if (vptq_cli_parse(&cli, argc, argv, 1, &code))
        code = dispatch(&cli, &a);
    vptq_cli_release(&cli);
    return code;
}
