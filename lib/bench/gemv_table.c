/* Prints the table of the benchmark of products, row by row. */
#include <inttypes.h>
#include <math.h>

#include "lib/bench/gemv.h"
#include "lib/report/column.h"

/* A row of the benchmark and its conditions. */
typedef struct gemv_line {
    vptq_gemv_row r;
    const char *dtype, *cache, *grid;
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
    IN_JSON("codebook_grid", VPTQ_TEXT(gemv_line, grid)),
    IN_JSON("time_us", VPTQ_REAL(gemv_line, r.time_us)),
    IN_JSON("time_p10_us", VPTQ_REAL(gemv_line, r.time_p10_us)),
    IN_JSON("time_p90_us", VPTQ_REAL(gemv_line, r.time_p90_us)),
    IN_JSON("dense_us", VPTQ_REAL(gemv_line, r.dense_us)),
    IN_JSON("dense_half_us", VPTQ_REAL(gemv_line, r.half_us)),
    IN_JSON("dense_library_us", VPTQ_REAL(gemv_line, r.library_us)),
    IN_JSON("dense_library_way", VPTQ_INTEGER(gemv_line, r.way)),
    IN_JSON("ratio", VPTQ_REAL(gemv_line, r.ratio)),
    IN_JSON("gb_per_second", VPTQ_REAL(gemv_line, r.gb_per_second)),
    IN_JSON("floor_fraction", VPTQ_REAL(gemv_line, r.floor_fraction)),
    IN_JSON("packed_bytes", VPTQ_INTEGER(gemv_line, r.packed_bytes)),
    IN_JSON("dense_half_bytes", VPTQ_INTEGER(gemv_line, r.half_bytes)),
    IN_TABLE("main_centroids", VPTQ_INTEGER(gemv_line, r.k)),
    IN_TABLE("residual_centroids", VPTQ_INTEGER(gemv_line, r.k_res)),
    REAL_IN_TABLE("vptq (ms)", r.time_us, 4, 1e-3),
    REAL_IN_TABLE("dense (ms)", r.dense_us, 4, 1e-3),
    {.name = "ratio",
     VPTQ_REAL(gemv_line, r.ratio),
     .decimals = 2,
     .fixed = VPTQ_IN_CSV,
     .formats = TABLE,
     .major = true},
    REAL_IN_TABLE("GB/s", r.gb_per_second, 1, 1),
    REAL_IN_TABLE("floor", r.floor_fraction, 2, 1)};

typedef struct table {
    vptq_printer printer;
    const char *dtype, *cache, *grid;
    double log_ratio, worst;
} table;

static vptq_status print_row(void *arg, const vptq_gemv_row *row, vptq_err *err)
{
    table *t = arg;
    const gemv_line line = {*row, t->dtype, t->cache, t->grid};
    t->log_ratio += log(row->ratio);
    t->worst = row->ratio > t->worst ? row->ratio : t->worst;
    return vptq_print_row(&t->printer, &line, err);
}

/* Replaces lists that are not given by those of the published tables. */
static vptq_gemv_options fill_options(const vptq_gemv_options *opt)
{
    static const uint32_t one = 1;
    vptq_gemv_options o = *opt;
    const bool chain = o.cache == VPTQ_GEMV_CHAIN;
    if (!o.shape_count) {
        o.shapes = chain ? vptq_gemv_chain_shapes() : vptq_gemv_published_shapes();
        o.shape_count = chain ? VPTQ_GEMV_CHAINS : VPTQ_GEMV_SHAPES;
    }
    if (!o.codebook_count) {
        o.codebooks = vptq_gemv_published_codebooks();
        o.codebook_count = VPTQ_GEMV_CODEBOOKS;
    }
    if (!o.batch_count) {
        o.batch = &one;
        o.batch_count = 1;
    }
    return o;
}

vptq_status vptq_eval_gemv_table(vptq_device *dev, const vptq_gemv_options *opt,
                                 const vptq_output *out, vptq_err *err)
{
    static const char *const caches[] = {"cold", "warm", "chain"};
    char device[256];
    const vptq_gemv_options o = fill_options(opt);
    table t = {.printer = vptq_printer_make(out, VPTQ_COLUMNS(columns)),
               .dtype = o.dtype == VPTQ_BF16 ? "bf16" : "f16",
               .cache = caches[o.cache],
               .grid = o.grid ? "int8" : "none"};
    dev->ops->describe(dev->state, device, sizeof device);
    vptq_log(dev->ctx, VPTQ_LOG_MORE, "%s: %s", dev->ops->name, device);
    VPTQ_CHECK(vptq_eval_gemv(dev, &o, print_row, &t, err));
    if (!out || out->format != VPTQ_FORMAT_TEXT)
        return VPTQ_OK;
    return vptq_print_text(out, err,
                           "geometric mean of the ratio %.3f, largest %.2f (%zu rows, %s%s)\n",
                           exp(t.log_ratio / (double)t.printer.rows), t.worst, t.printer.rows,
                           t.cache, o.cache == VPTQ_GEMV_CHAIN ? "" : " caches");
}
