/* vptq-pack: packs quantized matrices into checkpoints, unpacks, lists, checks and repairs
 * them. */
#include <string.h>

#include "cmd/cli/cli.h"
#include "cmd/cli/value.h"
#include "lib/vptq.h"

typedef struct pack_args {
    const char *model, *output, *base, *tokenizer, *dtype, *embeddings;
    uint64_t shard_bytes;
    uint32_t level;
    int form; /* index into "auto|hf|archive|gguf" */
    bool unpack, list, check, digest, repair, lm_head, partial;
} pack_args;

enum { FORM_AUTO, FORM_HF, FORM_ARCHIVE, FORM_GGUF };

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Parses the name of a stored type. The short names of GGUF's blocks mean the best ones of so
 * many bits. */
static bool parse_dtype(const char *name, vptq_dtype *type)
{
    static const struct {
        const char *name;
        vptq_dtype type;
    } types[] = {
        {"f16", VPTQ_F16},   {"bf16", VPTQ_BF16}, {"f32", VPTQ_F32},   {"q8", VPTQ_Q8_0},
        {"q8_0", VPTQ_Q8_0}, {"q6", VPTQ_Q6_K},   {"q6_k", VPTQ_Q6_K}, {"q5", VPTQ_Q5_K},
        {"q5_k", VPTQ_Q5_K}, {"q4", VPTQ_Q4_K},   {"q4_k", VPTQ_Q4_K}, {"q3", VPTQ_Q3_K},
        {"q3_k", VPTQ_Q3_K}, {"q2", VPTQ_Q2_K},   {"q2_k", VPTQ_Q2_K}, {"q5_1", VPTQ_Q5_1},
        {"q5_0", VPTQ_Q5_0}, {"q4_1", VPTQ_Q4_1}, {"q4_0", VPTQ_Q4_0},
    };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(name, types[i].name) == 0) {
            *type = types[i].type;
            return true;
        }
    return false;
}

static vptq_status choose_dtype(const pack_args *a, vptq_dtype *type, vptq_err *err)
{
    *type = a->unpack ? VPTQ_F16 : VPTQ_DTYPE_COUNT;
    if (!a->dtype)
        return VPTQ_OK;
    if (!parse_dtype(a->dtype, type))
        return vptq_fail(err, VPTQ_E_ARG,
                         "unknown storage type '%.32s' (expected f16, bf16 or f32, for a GGUF "
                         "file also q8, q6, q5, q4, q3 or q2)",
                         a->dtype);
    return VPTQ_OK;
}

/* Chooses the type of embedding and output head. */
static vptq_status choose_embeddings(const pack_args *a, vptq_dtype *type, vptq_err *err)
{
    static const vptq_dtype types[] = {VPTQ_F16, VPTQ_BF16, VPTQ_F32, VPTQ_Q8_0, VPTQ_Q6_K};
    *type = VPTQ_DTYPE_COUNT;
    if (!a->embeddings)
        return VPTQ_OK;
    if (parse_dtype(a->embeddings, type))
        for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
            if (*type == types[i])
                return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_ARG, "--embeddings %.40s: expected f16, bf16, f32, q8 or q6",
                     a->embeddings);
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

static vptq_status write_model(vptq_cli *cli, const pack_args *a, vptq_err *err)
{
    vptq_pack_options opt = {.input = a->model,
                             .output = a->output,
                             .base = a->base,
                             .partial = a->partial,
                             .tokenizer = a->tokenizer,
                             .form = choose_form(a),
                             .shard_bytes = a->shard_bytes,
                             .level = a->level,
                             .repair = a->repair,
                             .lm_head = a->lm_head,
                             .force = cli->common.force,
                             .dry_run = cli->common.dry_run};
    VPTQ_CHECK(choose_dtype(a, &opt.dtype, err));
    VPTQ_CHECK(choose_embeddings(a, &opt.embeddings, err));
    return a->unpack ? vptq_unpack(cli->ctx, &opt, &cli->out, err)
                     : vptq_pack(cli->ctx, &opt, &cli->out, err);
}

/* Returns a given option that this way of reading does not use, or NULL. */
static const char *given_for_writing(const vptq_cli *cli, const pack_args *a)
{
    return cli->common.force           ? "force"
           : cli->common.dry_run       ? "dry-run"
           : a->tokenizer && !a->check ? "tokenizer"
           : a->output                 ? "output"
           : a->form                   ? "to"
           : a->dtype                  ? "dtype"
           : a->embeddings             ? "embeddings"
           : a->shard_bytes            ? "shard-size"
           : a->level                  ? "level"
           : a->lm_head                ? "lm-head"
                                       : NULL;
}

/* Rejects contradictory options for writing. */
static int check_writing(const vptq_cli *cli, const pack_args *a)
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
    if (form != VPTQ_PACK_HF && a->shard_bytes)
        return vptq_cli_usage_error(cli, "--shard-size does not go with %s",
                                    form == VPTQ_PACK_GGUF ? "a GGUF file" : "an archive");
    if (form != VPTQ_PACK_ARCHIVE && a->level)
        return vptq_cli_usage_error(cli, "--level is for archives (OUT.vptq or --to archive)");
    return CLI_OK;
}

/* Finds the model and rejects contradictory options. */
static int check_usage(const vptq_cli *cli, pack_args *a)
{
    const size_t models = cli->arg_count + (a->model != NULL);
    if (models == 0)
        return vptq_cli_missing_option(cli, "model");
    if (models > 1)
        return vptq_cli_usage_error(cli, "expected one model, got %zu", models);
    if (cli->arg_count)
        a->model = cli->args[0];
    if (a->unpack + a->list + a->check + a->digest + a->repair > 1)
        return vptq_cli_usage_error(
            cli, "--unpack, --list, --check, --digest and --repair exclude each other");
    const char *reading = a->list ? "list" : a->check ? "check" : a->digest ? "digest" : NULL;
    if (!reading)
        return check_writing(cli, a);
    const char *given = given_for_writing(cli, a);
    return given ? vptq_cli_usage_error(cli, "--%s does not go with --%s", given, reading)
                 : CLI_OK;
}

static int dispatch(vptq_cli *cli, void *arg)
{
    pack_args *a = arg;
    vptq_err err = {0};
    vptq_status st;
    uint32_t errors = 0;
    if (check_usage(cli, a))
        return CLI_USAGE;
    const vptq_model_options open = {
        .tokenizer = a->tokenizer, .base = a->base, .partial = a->partial};
    if (a->check)
        st = vptq_check(cli->ctx, a->model, &open, &cli->out, &errors, &err);
    else if (a->list)
        st = vptq_list(cli->ctx, a->model, &open, &cli->out, &err);
    else if (a->digest)
        st = vptq_digest(cli->ctx, a->model, &open, &cli->out, NULL, &err);
    else
        st = write_model(cli, a, &err);
    const int code = vptq_cli_finish(cli, st, &err);
    return code == CLI_OK && errors ? CLI_CHECK_FAILED : code;
}

int main(int argc, char **argv)
{
    pack_args a = {0};
    const vptq_cli_option options[] = {
        CLI_HEADING("What to do (default: pack)"),
        {0, "unpack", CLI_FLAG, &a.unpack, NULL,
         "write any model as a plain Hugging Face directory, or as a GGUF file"},
        {0, "list", CLI_FLAG, &a.list, NULL, "show all matrices and tensors with their bits"},
        {0, "check", CLI_FLAG, &a.check, NULL,
         "read everything and report every error; exit 3 if there is one"},
        {0, "digest", CLI_FLAG, &a.digest, NULL,
         "print one hash of a packed model or WORK, whatever its form"},
        {0, "repair", CLI_FLAG, &a.repair, NULL,
         "rewrite a packed model without the defects that other readers fail on"},
        CLI_HEADING("Input and output"),
        {'m', "model", CLI_STRING, &a.model, "MODEL", "the model, instead of an argument"},
        {'o', "output", CLI_STRING, &a.output, "OUT",
         "directory, archive or GGUF file to write"},
        {0, "to", CLI_CHOICE, &a.form, "auto|hf|archive|gguf",
         "directory or single file; auto: by the extension .vptq or .gguf of OUT"},
        {0, "dtype", CLI_STRING, &a.dtype, "f16|bf16|f32|q8|q6|q5|q4|q3|q2",
         "stored type (default: as quantized; f16 with --unpack); GGUF: q8 to q2 quantize the "
         "linear layers to Q8_0, Q6_K .. Q2_K"},
        {0, "embeddings", CLI_STRING, &a.embeddings, "f16|bf16|f32|q8|q6",
         "archive, GGUF: type of embedding and output head (default: --dtype, f16 with q8 to "
         "q2)"},
        {0, "shard-size", CLI_SIZE, &a.shard_bytes, "SIZE",
         "maximum size of a weights file in a directory; 0 = 4 GiB"},
        {0, "level", CLI_U32, &a.level, "1..22",
         "zstd level of an archive; 0 = chosen by kind of tensor"},
        {0, "lm-head", CLI_FLAG, &a.lm_head, NULL,
         "also store an output head that is tied to the embedding; vptq's own loader needs it"},
        {0, "base", CLI_STRING, &a.base, "PATH", "the original model of WORK, if it was moved"},
        {0, "partial", CLI_FLAG, &a.partial, NULL, "accept WORK although it is unfinished"},
        {0, "tokenizer", CLI_STRING, &a.tokenizer, "FILE", "tokenizer to store in the output"},
        CLI_END};
    vptq_cli cli = {
        .tool = "vptq-pack",
        .summary = "Packs quantized matrices into checkpoints, and unpacks them.",
        .usage = "vptq-pack WORK -o OUT [--to hf|archive] [--dtype f16|bf16]\n"
                 "vptq-pack --unpack MODEL -o DIR|FILE.gguf [--dtype TYPE]\n"
                 "vptq-pack --list MODEL\n"
                 "vptq-pack --check MODEL\n"
                 "vptq-pack --digest PACKED|WORK\n"
                 "vptq-pack --repair PACKED -o OUT",
        .examples = "vptq-pack work -o model-vptq          loads with transformers and vptq\n"
                    "vptq-pack work -o model.vptq          one compressed file\n"
                    "vptq-pack model.vptq -o model-vptq    converts an archive\n"
                    "vptq-pack --digest model.vptq         one hash, and work has the same\n"
                    "vptq-pack --unpack model.gguf -o model-f16\n"
                    "vptq-pack --unpack work -o model.gguf         runs with llama.cpp\n"
                    "vptq-pack --unpack model -o small.gguf --dtype q4\n"
                    "vptq-pack --repair published -o fixed",
        .options = options,
        .formats = "text|json",
        .omit = "seed",
        .operands = true};
    return vptq_cli_run(&cli, argc, argv, dispatch, &a);
}
