/* vptq-eval gemv: speed of products with packed matrices against dense ones. */
#include "cmd/eval/eval.h"

#include <stdlib.h>
#include <string.h>

#include "cmd/cli/value.h"

enum { MAX_BATCHES = 32 };

typedef struct gemv_command {
    vptq_cli_strings shapes, codebooks, batches;
    uint32_t v;
    int dtype, cache, codes, grid;
    double seconds;
} gemv_command;

/* An option whose values are pairs "A<between>B", or A alone if `alone` is set. */
typedef struct pair_option {
    const char *name, *form;
    char between;
    bool alone;
} pair_option;

static const pair_option shape_option = {"shape", "INxOUT", 'x', false};
static const pair_option codebook_option = {"books", "K+KRES or K", '+', true};

static bool parse_pair(const pair_option *o, const char *text, vptq_gemv_pair *pair)
{
    char first[16];
    uint64_t a = 0, b = 0;
    const char *at = strchr(text, o->between);
    size_t n = at ? (size_t)(at - text) : strlen(text);
    if (n >= sizeof first || (!at && !o->alone))
        return false;
    memcpy(first, text, n);
    first[n] = 0;
    if (!vptq_cli_parse_u64(first, UINT32_MAX, &a) ||
        (at && !vptq_cli_parse_u64(at + 1, UINT32_MAX, &b)))
        return false;
    *pair = (vptq_gemv_pair){(uint32_t)a, (uint32_t)b};
    return true;
}

/* Allocates *pairs, which the caller frees. */
static vptq_status take_pairs(const pair_option *o, const vptq_cli_strings *words,
                              vptq_gemv_pair **pairs, vptq_err *err)
{
    *pairs = calloc(words->count + 1, sizeof **pairs);
    if (!*pairs)
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    for (size_t i = 0; i < words->count; i++)
        if (!parse_pair(o, words->items[i], &(*pairs)[i]))
            return vptq_fail(err, VPTQ_E_ARG, "--%s %.64s: expected %s", o->name,
                             words->items[i], o->form);
    return VPTQ_OK;
}

static vptq_status take_batches(const vptq_cli_strings *words, uint32_t batch[MAX_BATCHES],
                                vptq_err *err)
{
    if (words->count > MAX_BATCHES)
        return vptq_fail(err, VPTQ_E_ARG, "--batch: given %zu times, expected at most %d",
                         words->count, MAX_BATCHES);
    for (size_t i = 0; i < words->count; i++) {
        uint64_t n;
        if (!vptq_cli_parse_u64(words->items[i], UINT32_MAX, &n))
            return vptq_fail(err, VPTQ_E_ARG, "--batch %.64s: expected a whole number",
                             words->items[i]);
        batch[i] = (uint32_t)n;
    }
    return VPTQ_OK;
}

static int run_gemv(vptq_cli *cli, void *arg)
{
    const gemv_command *c = arg;
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    vptq_gemv_pair *shapes = NULL, *codebooks = NULL;
    uint32_t batch[MAX_BATCHES];
    VPTQ_TRY(take_pairs(&shape_option, &c->shapes, &shapes, &err));
    VPTQ_TRY(take_pairs(&codebook_option, &c->codebooks, &codebooks, &err));
    VPTQ_TRY(take_batches(&c->batches, batch, &err));
    const vptq_gemv_options opt = {.shapes = shapes,
                                   .codebooks = codebooks,
                                   .shape_count = c->shapes.count,
                                   .codebook_count = c->codebooks.count,
                                   .batch = batch,
                                   .batch_count = c->batches.count,
                                   .v = c->v,
                                   .dtype = c->dtype ? VPTQ_BF16 : VPTQ_F16,
                                   .cache = (vptq_gemv_cache)c->cache,
                                   .sequential = c->codes == 1,
                                   .grid = c->grid == 1,
                                   .seconds = c->seconds,
                                   .seed = cli->common.seed};
    VPTQ_TRY(vptq_gemv(cli->ctx, &opt, &cli->out, &err));
out:
    free(codebooks);
    free(shapes);
    return vptq_cli_finish(cli, st, &err);
}

int vptq_cli_gemv(vptq_cli *cli, int argc, char **argv)
{
    gemv_command c = {.v = 8, .seconds = 1};
    const vptq_cli_option options[] = {
        {0, "shape", CLI_STRINGS, &c.shapes, "INxOUT",
         "size of a matrix; may be repeated (default: the 30 of the published tables)"},
        {0, "books", CLI_STRINGS, &c.codebooks, "K+KRES",
         "centroids and residual centroids; may be repeated (default: the 4 of the tables)"},
        {'v', "vector-length", CLI_U32, &c.v, "N", "vector length: rows that share an index"},
        {0, "batch", CLI_STRINGS, &c.batches, "N",
         "activation vectors per product; may be repeated (default: 1)"},
        {0, "dtype", CLI_CHOICE, &c.dtype, "f16|bf16", "type of the dense 16-bit matrix"},
        {0, "cache", CLI_CHOICE, &c.cache, "cold|warm|chain",
         "cold: cycle through copies of three times the cache size; chain: a shape is "
         "HIDDENxINTERMEDIATE and means all matrices of a block"},
        {0, "codes", CLI_CHOICE, &c.codes, "random|sequential", "kind of indices"},
        {0, "codebook-grid", CLI_CHOICE, &c.grid, "none|int8",
         "int8: codebooks of whole numbers times a scale"},
        {0, "seconds", CLI_DOUBLE, &c.seconds, "S", "approximate time per row"},
        CLI_END};
    cli->usage = "vptq-eval gemv [--shape INxOUT].. [--books K+KRES].. [--batch N]..";
    cli->examples = "  vptq-eval gemv --format md                     # the published tables\n"
                    "  vptq-eval gemv --shape 4096x4096 --books 4096+256 --batch 1 --batch 8\n";
    cli->options = options;
    cli->formats = "text|json|csv|md";
    cli->omit = "force|dry-run";
    return vptq_cli_run(cli, argc, argv, run_gemv, &c);
}
