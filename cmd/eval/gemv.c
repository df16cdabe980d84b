/* vptq-eval gemv: speed of products with packed matrices against dense ones. */
#include "cmd/eval/eval.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli/value.h"

enum { MAX_BATCHES = 32 };

typedef struct gemv_command {
    vptq_cli_strings shapes, codebooks, batches;
    uint32_t v;
    int dtype, cache, codes;
    double seconds;
} gemv_command;

/* The command line as lists of shapes, codebooks and batches. */
typedef struct gemv_plan {
    uint32_t batch[MAX_BATCHES];
    vptq_gemv_options options;
} gemv_plan;

typedef struct gemv_table {
    vptq_printer printer;
    const char *dtype, *cache;
    double log_ratio, worst;
} gemv_table;

/* ---- options ---- */

/* Parses "A<between>B", or A alone if `alone` is set. */
static bool parse_pair(const char *text, char between, bool alone, vptq_gemv_pair *pair)
{
    char first[16];
    uint64_t a = 0, b = 0;
    const char *at = strchr(text, between);
    size_t n = at ? (size_t)(at - text) : strlen(text);
    if (n >= sizeof first || (!at && !alone))
        return false;
    memcpy(first, text, n);
    first[n] = 0;
    if (!vptq_cli_parse_u64(first, UINT32_MAX, &a) ||
        (at && !vptq_cli_parse_u64(at + 1, UINT32_MAX, &b)))
        return false;
    *pair = (vptq_gemv_pair){(uint32_t)a, (uint32_t)b};
    return true;
}

static vptq_status take_pairs(const vptq_cli_strings *words, const char *option,
                              const char *form, char between, bool alone,
                              const vptq_gemv_pair *published, size_t published_count,
                              vptq_arena *arena, const vptq_gemv_pair **pairs, size_t *count,
                              vptq_err *err)
{
    *pairs = published;
    *count = published_count;
    if (words->count == 0)
        return VPTQ_OK;
    vptq_gemv_pair *own = vptq_arena_alloc(arena, words->count, sizeof *own, err);
    if (!own)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < words->count; i++)
        if (!parse_pair(words->items[i], between, alone, &own[i]))
            return vptq_fail(err, VPTQ_E_ARG, "--%s %.64s: expected %s", option,
                             words->items[i], form);
    *pairs = own;
    *count = words->count;
    return VPTQ_OK;
}

static vptq_status take_batches(const vptq_cli_strings *words, uint32_t batch[MAX_BATCHES],
                                size_t *count, vptq_err *err)
{
    batch[0] = 1;
    *count = words->count ? words->count : 1;
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

static vptq_status take_options(const vptq_cli *cli, const gemv_command *c, vptq_arena *arena,
                                gemv_plan *plan, vptq_err *err)
{
    vptq_gemv_options *o = &plan->options;
    *o = (vptq_gemv_options){.batch = plan->batch,
                             .v = c->v,
                             .dtype = c->dtype ? VPTQ_BF16 : VPTQ_F16,
                             .cache = (vptq_gemv_cache)c->cache,
                             .sequential = c->codes == 1,
                             .seconds = c->seconds,
                             .seed = cli->common.seed};
    const bool chain = o->cache == VPTQ_GEMV_CHAIN;
    VPTQ_CHECK(take_pairs(&c->shapes, "shape", "INxOUT", 'x', false,
                          chain ? vptq_gemv_chain_shapes() : vptq_gemv_published_shapes(),
                          chain ? VPTQ_GEMV_CHAINS : VPTQ_GEMV_SHAPES, arena, &o->shapes,
                          &o->shape_count, err));
    VPTQ_CHECK(take_pairs(&c->codebooks, "books", "K+KRES or K", '+', true,
                          vptq_gemv_published_codebooks(), VPTQ_GEMV_CODEBOOKS, arena,
                          &o->codebooks, &o->codebook_count, err));
    return take_batches(&c->batches, plan->batch, &o->batch_count, err);
}

/* ---- the table ---- */

/* A row of the benchmark and its conditions. */
typedef struct gemv_line {
    vptq_gemv_row r;
    const char *dtype, *cache;
} gemv_line;

enum { TABLE = VPTQ_IN_TEXT | VPTQ_IN_CSV | VPTQ_IN_MD };

/* Columns of the table, named as in the published tables; CSV has the same digits. */
#define IN_TABLE(title, field)                                                                 \
    {                                                                                          \
        .name = title, field, .formats = TABLE                                                 \
    }
#define REAL_IN_TABLE(title, field, digits, unit)                                              \
    {                                                                                          \
        .name = title, VPTQ_REAL(gemv_line, field), .decimals = digits, .scale = unit,         \
        .fixed = VPTQ_IN_CSV, .formats = TABLE                                                 \
    }
/* A key of the JSON rows. */
#define IN_JSON(key, field)                                                                    \
    {                                                                                          \
        .name = key, field, .formats = VPTQ_IN_JSON                                            \
    }

static const vptq_column columns[] = {
    IN_TABLE("batch_size", VPTQ_INTEGER(gemv_line, r.batch)),
    {.name = "in_features", VPTQ_INTEGER(gemv_line, r.in_features)},
    {.name = "out_features", VPTQ_INTEGER(gemv_line, r.out_features)},
    IN_JSON("v", VPTQ_INTEGER(gemv_line, r.v)),
    IN_JSON("k", VPTQ_INTEGER(gemv_line, r.k)),
    IN_JSON("k_res", VPTQ_INTEGER(gemv_line, r.k_res)),
    IN_JSON("batch", VPTQ_INTEGER(gemv_line, r.batch)),
    IN_JSON("dtype", VPTQ_TEXT(gemv_line, dtype)),
    IN_JSON("cache", VPTQ_TEXT(gemv_line, cache)),
    IN_JSON("time_us", VPTQ_REAL(gemv_line, r.time_us)),
    IN_JSON("time_p10_us", VPTQ_REAL(gemv_line, r.time_p10_us)),
    IN_JSON("time_p90_us", VPTQ_REAL(gemv_line, r.time_p90_us)),
    IN_JSON("dense_us", VPTQ_REAL(gemv_line, r.dense_us)),
    IN_JSON("dense_half_us", VPTQ_REAL(gemv_line, r.half_us)),
    IN_JSON("dense_library_us", VPTQ_REAL(gemv_line, r.library_us)),
    IN_JSON("ratio", VPTQ_REAL(gemv_line, r.ratio)),
    IN_JSON("gb_per_second", VPTQ_REAL(gemv_line, r.gb_per_second)),
    IN_JSON("floor_fraction", VPTQ_REAL(gemv_line, r.floor_fraction)),
    IN_JSON("packed_bytes", VPTQ_INTEGER(gemv_line, r.packed_bytes)),
    IN_JSON("dense_half_bytes", VPTQ_INTEGER(gemv_line, r.half_bytes)),
    IN_TABLE("main_centroids", VPTQ_INTEGER(gemv_line, r.k)),
    IN_TABLE("residual_centroids", VPTQ_INTEGER(gemv_line, r.k_res)),
    REAL_IN_TABLE("vptq (ms)", r.time_us, 4, 1e-3),
    REAL_IN_TABLE("dense (ms)", r.dense_us, 4, 1e-3),
    REAL_IN_TABLE("ratio", r.ratio, 2, 1),
    REAL_IN_TABLE("GB/s", r.gb_per_second, 1, 1),
    REAL_IN_TABLE("floor", r.floor_fraction, 2, 1)};

static vptq_status print_row(void *arg, const vptq_gemv_row *row, vptq_err *err)
{
    gemv_table *t = arg;
    const gemv_line line = {*row, t->dtype, t->cache};
    (void)err;
    t->log_ratio += log(row->ratio);
    t->worst = row->ratio > t->worst ? row->ratio : t->worst;
    vptq_print_row(&t->printer, &line, NULL);
    fflush(stdout); /* a table takes minutes */
    return VPTQ_OK;
}

static int run_gemv(vptq_cli *cli, const gemv_command *c)
{
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    vptq_backend_info about;
    gemv_plan plan;
    vptq_arena arena;
    static const char *const caches[] = {"cold", "warm", "chain"};
    gemv_table t = {.printer = vptq_printer_make(&cli->out, VPTQ_COLUMNS(columns)),
                    .dtype = c->dtype ? "bf16" : "f16",
                    .cache = caches[c->cache]};
    vptq_arena_init(&arena, cli->ctx->mem);
    VPTQ_TRY(take_options(cli, c, &arena, &plan, &err));
    VPTQ_TRY(vptq_ctx_backend(cli->ctx, &about, &err));
    vptq_log(cli->ctx, VPTQ_LOG_MORE, "%s: %s", about.name, about.device);
    VPTQ_TRY(vptq_gemv(cli->ctx, &plan.options, print_row, &t, &err));
    if (cli->common.format == CLI_TEXT)
        printf("geometric mean of the ratio %.3f, largest %.2f (%zu rows, %s%s)\n",
               exp(t.log_ratio / (double)t.printer.rows), t.worst, t.printer.rows, t.cache,
               c->cache == VPTQ_GEMV_CHAIN ? "" : " caches");
out:
    vptq_arena_release(&arena);
    return vptq_cli_finish(cli, st, &err);
}

int vptq_cli_gemv(int argc, char **argv)
{
    gemv_command c = {.v = 8, .seconds = 1};
    const vptq_cli_option options[] = {
        {0, "shape", CLI_STRINGS, &c.shapes, "INxOUT",
         "size of a matrix; may be repeated (default: the 30 of the published tables)", false},
        {0, "books", CLI_STRINGS, &c.codebooks, "K+KRES",
         "centroids and residual centroids; may be repeated (default: the 4 of the tables)",
         false},
        {'v', "vector-length", CLI_U32, &c.v, "N", "vector length: rows that share an index",
         false},
        {0, "batch", CLI_STRINGS, &c.batches, "N",
         "activation vectors per product; may be repeated (default: 1)", false},
        {0, "dtype", CLI_CHOICE, &c.dtype, "f16|bf16", "type of the dense 16-bit matrix",
         false},
        {0, "cache", CLI_CHOICE, &c.cache, "cold|warm|chain",
         "cold: cycle through copies of three times the cache size; chain: a shape is "
         "HIDDENxINTERMEDIATE and means all matrices of a block",
         false},
        {0, "codes", CLI_CHOICE, &c.codes, "random|sequential", "kind of indices", false},
        {0, "seconds", CLI_DOUBLE, &c.seconds, "S", "approximate time per row", false},
        CLI_END};
    vptq_cli cli = {
        .tool = "vptq-eval",
        .command = "gemv",
        .summary = "speed of products with packed matrices against dense ones",
        .usage = "vptq-eval gemv [--shape INxOUT].. [--books K+KRES].. [--batch N]..",
        .examples = "  vptq-eval gemv --format md                     # the published tables\n"
                    "  vptq-eval gemv --shape 4096x4096 --books 4096+256 --batch 1 --batch 8\n",
        .options = options,
        .formats = "text|json|csv|md",
        .omit = "force|dry-run"};
    int code;
    if (vptq_cli_parse(&cli, argc, argv, 2, &code))
        code = run_gemv(&cli, &c);
    vptq_cli_release(&cli);
    return code;
}
