/* vptq-quantize: model + Hessians + settings -> a work directory of quantized matrices. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cmd/cli.h"
#include "lib/vptq.h"

typedef struct quantize_args {
    const char *model, *hessians, *output, *tokenizer;
    uint32_t v, k, iterations;
    bool norm, perm;
    double ridge;
    int dtype;
    vptq_cli_range layers;
} quantize_args;

typedef struct printer {
    int format;
    bool dry_run;
    uint64_t rows;
} printer;

static void print_json(const vptq_quantize_row *r, bool dry_run)
{
    vptq_cli_json j;
    vptq_cli_json_begin(&j);
    vptq_cli_json_u64(&j, "layer", r->layer);
    vptq_cli_json_str(&j, "name", r->name);
    vptq_cli_json_u64(&j, "rows", r->rows);
    vptq_cli_json_u64(&j, "columns", r->columns);
    if (!dry_run) {
        vptq_cli_json_f64(&j, "proxy_loss", r->report.loss);
        vptq_cli_json_f64(&j, "relative_mse", r->report.relative_mse);
    }
    vptq_cli_json_f64(&j, "bits_per_weight", r->bits.per_weight);
    vptq_cli_json_u64(&j, "v", r->shape.v);
    vptq_cli_json_u64(&j, "k", r->shape.k);
    vptq_cli_json_u64(&j, "k_res", r->shape.k_res);
    vptq_cli_json_u64(&j, "groups", r->shape.groups);
    vptq_cli_json_u64(&j, "outliers", r->shape.outliers);
    vptq_cli_json_u64(&j, "bytes", r->bits.total / 8);
    if (!dry_run) {
        vptq_cli_json_f64(&j, "loss_kmeans", r->report.step[0].loss);
        vptq_cli_json_f64(&j, "loss_pass", r->report.step[1].loss);
        vptq_cli_json_u64(&j, "kmeans_iterations", (uint64_t)r->report.kmeans_iterations);
        vptq_cli_json_f64(&j, "damping_added", r->report.damping_added);
        vptq_cli_json_bool(&j, "reused", r->reused);
        vptq_cli_json_f64(&j, "seconds", r->report.seconds);
    }
    vptq_cli_json_end(&j);
}

static vptq_status print_row(void *arg, const vptq_quantize_row *r, vptq_err *err)
{
    printer *p = arg;

    (void)err;
    p->rows++;
    if (p->format == CLI_JSON) {
        print_json(r, p->dry_run);
        return VPTQ_OK;
    }
    if (p->rows == 1 && p->dry_run)
        printf("%5s %-9s %6s %7s %3s %6s %8s %8s %8s %10s\n", "layer", "name", "rows",
               "columns", "v", "k", "index", "books", "total", "bytes");
    else if (p->rows == 1)
        printf("%5s %-9s %6s %7s %3s %6s %8s %10s %10s %8s\n", "layer", "name", "rows",
               "columns", "v", "k", "bits", "k-means", "loss", "seconds");
    double weights = (double)r->rows * r->columns;
    printf("%5u %-9s %6u %7u %3u %6u ", r->layer, r->name, r->rows, r->columns, r->shape.v,
           r->shape.k);
    if (p->dry_run)
        printf("%8.4f %8.4f %8.4f %10" PRIu64 "\n", (double)r->bits.indices / weights,
               (double)r->bits.codebooks / weights, r->bits.per_weight, r->bits.total / 8);
    else if (r->reused)
        printf("%8.4f %10.6f %10.6f %8s\n", r->bits.per_weight, r->report.step[0].loss,
               r->report.loss, "kept");
    else
        printf("%8.4f %10.6f %10.6f %8.2f\n", r->bits.per_weight, r->report.step[0].loss,
               r->report.loss, r->report.seconds);
    return VPTQ_OK;
}

static void print_summary(const vptq_cli *cli, const vptq_quantize_result *r)
{
    char bytes[32], seconds[32];

    if (cli->common.format == CLI_JSON)
        return;
    vptq_cli_human_bytes(bytes, r->packed_bytes);
    vptq_cli_human_seconds(seconds, r->seconds);
    printf("%u matrices", r->matrices);
    if (r->reused)
        printf(" (%u kept)", r->reused);
    printf(", %.4f bits per weight", r->bits_per_weight);
    if (!cli->common.dry_run)
        printf(", mean loss %.6f", r->mean_loss);
    printf(", weights file about %s, %s\n", bytes, seconds);
}

static int quantize(vptq_cli *cli, const quantize_args *a)
{
    vptq_err err = {0};
    vptq_device dev = {0};
    vptq_quantize_result r = {0};
    vptq_quantize_options opt = {.model = a->model,
                                 .hessians = a->hessians,
                                 .work = a->output,
                                 .tokenizer = a->tokenizer,
                                 .settings = vptq_quant_default(),
                                 .first_layer = a->layers.first,
                                 .last_layer = a->layers.last,
                                 .force = cli->common.force,
                                 .dry_run = cli->common.dry_run};
    printer p = {.format = cli->common.format, .dry_run = cli->common.dry_run};

    opt.settings.v = a->v;
    opt.settings.k = a->k;
    opt.settings.norm = a->norm;
    opt.settings.perm = a->perm;
    opt.settings.kmeans_iterations = a->iterations;
    opt.settings.ridge = a->ridge;
    opt.settings.storage = a->dtype ? VPTQ_BF16 : VPTQ_F16;
    opt.settings.seed = cli->common.seed;
    vptq_status st = vptq_device_open(&cli->ctx, cli->common.backend, &dev, &err);
    if (!st) {
        st = vptq_quantize_model(&dev, &opt, print_row, &p, &r, &err);
        vptq_device_close(&dev);
    }
    if (!st)
        print_summary(cli, &r);
    return vptq_cli_finish(cli, st, &err);
}

static int dispatch(vptq_cli *cli, const quantize_args *a)
{
    if (cli->arg_count)
        return vptq_cli_usage_error(cli, "unexpected argument '%s'", cli->args[0]);
    if (!cli->common.dry_run && !a->hessians)
        return vptq_cli_usage_error(cli, "-H HDIR is missing (made by vptq-hessian)");
    if (!cli->common.dry_run && !a->output)
        return vptq_cli_usage_error(cli, "-o WORK is missing");
    return quantize(cli, a);
}

int main(int argc, char **argv)
{
    vptq_quant_settings d = vptq_quant_default();
    quantize_args a = {.v = d.v,
                       .k = d.k,
                       .iterations = d.kmeans_iterations,
                       .norm = d.norm,
                       .perm = d.perm,
                       .ridge = d.ridge,
                       .layers = {0, UINT32_MAX}};
    const vptq_cli_option options[] = {
        {0, NULL, CLI_FLAG, NULL, NULL, "Input and output", false},
        {'m', "model", CLI_STRING, &a.model, "PATH", "model to quantize", true},
        {'H', "hessians", CLI_STRING, &a.hessians, "HDIR", "its Hessians", false},
        {'o', "output", CLI_STRING, &a.output, "WORK", "work directory to make or to continue",
         false},
        {0, "layers", CLI_RANGE, &a.layers, "A-B", "only these layers (default: all)", false},
        {0, "tokenizer", CLI_STRING, &a.tokenizer, "FILE", "tokenizer to use with the model",
         false},
        {0, NULL, CLI_FLAG, NULL, NULL, "Settings", false},
        {'v', "vector-length", CLI_U32, &a.v, "V", "rows that share one index, 1 to 64", false},
        {'k', "centroids", CLI_U32, &a.k, "K", "centroids, a power of two up to 65536", false},
        {0, "no-norm", CLI_UNFLAG, &a.norm, NULL, "do not scale columns by their deviation",
         false},
        {0, "no-perm", CLI_UNFLAG, &a.perm, NULL,
         "do the columns in their own order, not by importance", false},
        {0, "kmeans-iterations", CLI_U32, &a.iterations, "N", "k-means iterations at most",
         false},
        {0, "ridge", CLI_DOUBLE, &a.ridge, "X", "share of the mean diagonal added to a Hessian",
         false},
        {0, "dtype", CLI_CHOICE, &a.dtype, "f16|bf16", "type of codebooks, scale and bias",
         false},
        CLI_END};
    vptq_cli cli = {
        .tool = "vptq-quantize",
        .summary = "Vector-quantizes the linears of a model, matrix by matrix.",
        .usage = "vptq-quantize -m MODEL -H HDIR -o WORK [-v 4] [-k 256]\n"
                 "vptq-quantize -m MODEL --dry-run [-v 4] [-k 256]",
        .examples = "A run that was interrupted goes on when the same command is run again.\n"
                    "Here -v is the vector length; --verbose has no short form.",
        .options = options,
        .formats = "text|json"};
    int code;

    if (vptq_cli_parse(&cli, argc, argv, 1, &code))
        code = dispatch(&cli, &a);
    vptq_cli_release(&cli);
    return code;
}
