#include "cmd/cli_eval.h"

#include <math.h>
#include <stdio.h>

typedef struct error_command {
    const char *model, *base, *hessians;
    vptq_cli_range layers;
} error_command;

typedef struct error_table {
    int format; /* vptq_cli_format */
    bool began;
} error_table;

enum { ERROR_COLUMNS = 12 };
static const vptq_cli_column error_columns[ERROR_COLUMNS] = {{.name = "layer"},
                                                             {.name = "name", .width = -9},
                                                             {.name = "rows"},
                                                             {.name = "columns"},
                                                             {.name = "proxy_loss"},
                                                             {.name = "relative_mse"},
                                                             {.name = "bits_per_weight"},
                                                             {.name = "v"},
                                                             {.name = "k"},
                                                             {.name = "k_res"},
                                                             {.name = "groups"},
                                                             {.name = "outliers"}};

static void print_error_text(int format, const vptq_error_row *row)
{
    char cell[ERROR_COLUMNS][CLI_CELL];
    const uint32_t numbers[] = {row->shape.v, row->shape.k, row->shape.k_res, row->shape.groups,
                                row->shape.outliers};
    snprintf(cell[0], CLI_CELL, "%u", row->layer);
    snprintf(cell[1], CLI_CELL, "%s", row->name);
    snprintf(cell[2], CLI_CELL, "%u", row->rows);
    snprintf(cell[3], CLI_CELL, "%u", row->columns);
    snprintf(cell[4], CLI_CELL, "%.6f", row->proxy_loss);
    if (isnan(row->proxy_loss))
        snprintf(cell[4], CLI_CELL, "%s", format == CLI_CSV ? "" : "-");
    snprintf(cell[5], CLI_CELL, "%.6f", row->relative_mse);
    snprintf(cell[6], CLI_CELL, "%.4f", row->bits_per_weight);
    for (int i = 0; i < 5; i++)
        snprintf(cell[7 + i], CLI_CELL, "%u", numbers[i]);
    vptq_cli_table_row(format, error_columns, ERROR_COLUMNS, cell);
}

static void print_error_json(const vptq_error_row *row)
{
    vptq_cli_json j;
    vptq_cli_json_begin(&j);
    vptq_cli_json_u64(&j, "layer", row->layer);
    vptq_cli_json_str(&j, "name", row->name);
    vptq_cli_json_u64(&j, "rows", row->rows);
    vptq_cli_json_u64(&j, "columns", row->columns);
    vptq_cli_json_f64(&j, "proxy_loss", row->proxy_loss);
    vptq_cli_json_f64(&j, "relative_mse", row->relative_mse);
    vptq_cli_json_f64(&j, "bits_per_weight", row->bits_per_weight);
    vptq_cli_json_u64(&j, "v", row->shape.v);
    vptq_cli_json_u64(&j, "k", row->shape.k);
    vptq_cli_json_u64(&j, "k_res", row->shape.k_res);
    vptq_cli_json_u64(&j, "groups", row->shape.groups);
    vptq_cli_json_u64(&j, "outliers", row->shape.outliers);
    vptq_cli_json_end(&j);
}

static vptq_status print_error_row(void *arg, const vptq_error_row *row, vptq_err *err)
{
    error_table *t = arg;
    (void)err;
    if (t->format == CLI_JSON) {
        print_error_json(row);
        return VPTQ_OK;
    }
    if (!t->began)
        vptq_cli_table_head(t->format, error_columns, ERROR_COLUMNS);
    t->began = true;
    print_error_text(t->format, row);
    return VPTQ_OK;
}

static int run_error(vptq_cli *cli, const error_command *c)
{
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    vptq_cli_eval s = {.has_dev = false};
    vptq_checkpoint_options opt = {.tokenizer = NULL};
    error_table t = {.format = cli->common.format};
    VPTQ_TRY(vptq_cli_eval_open(&s, cli, c->model, NULL, c->base, false, &err));
    VPTQ_TRY(vptq_model_open(&cli->ctx, c->base, &opt, false, &s.base, &err));
    s.has_base = true;
    VPTQ_TRY(vptq_eval_error(&s.dev, &s.model, &s.base, c->hessians, c->layers.first,
                             c->layers.last, print_error_row, &t, &err));
out:
    vptq_cli_eval_close(&s);
    return vptq_cli_finish(cli, st, &err);
}

int vptq_cli_error(int argc, char **argv)
{
    error_command c = {.layers = {.first = 0, .last = UINT32_MAX}};
    const vptq_cli_option options[] = {
        {'m', "model", CLI_STRING, &c.model, "MODEL", "quantized model", true},
        {0, "base", CLI_STRING, &c.base, "MODEL", "the model it was made from", true},
        {'H', "hessians", CLI_STRING, &c.hessians, "HDIR",
         "Hessians; without them no proxy loss", false},
        {0, "layers", CLI_RANGE, &c.layers, "A-B", "only these layers", false},
        CLI_END};
    vptq_cli cli = {.tool = "vptq-eval",
                    .command = "error",
                    .summary = "error of every quantized matrix against its original",
                    .usage = "vptq-eval error -m MODEL --base MODEL [-H HDIR] [--layers A-B]",
                    .examples = "  vptq-eval error -m packed --base model.gguf -H hessians\n",
                    .options = options,
                    .formats = "text|json|csv|md",
                    .omit = "force|dry-run|seed"};
    int code;
    if (vptq_cli_parse(&cli, argc, argv, 2, &code))
        code = run_error(&cli, &c);
    vptq_cli_release(&cli);
    return code;
}
