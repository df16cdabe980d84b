#include "cmd/eval/eval.h"

#include <stdlib.h>
#include <string.h>

typedef struct error_command {
    const char *model, *base, *hessians, *output;
    vptq_cli_range layers;
    uint32_t top;
    int sort; /* vptq_error_order */
} error_command;

/* The rows as they come. */
typedef struct error_rows {
    vptq_mem *mem;
    vptq_error_row *items;
    size_t count, cap;
} error_rows;

static vptq_status keep_row(void *arg, const vptq_error_row *row, vptq_err *err)
{
    error_rows *r = arg;
    if (r->count == r->cap) {
        size_t cap = r->cap ? 2 * r->cap : 64;
        vptq_error_row *items = vptq_mem_alloc(r->mem, cap, sizeof *items, err);
        if (!items)
            return VPTQ_E_NOMEM;
        if (r->count)
            memcpy(items, r->items, r->count * sizeof *items);
        vptq_mem_free(r->mem, r->items);
        r->items = items;
        r->cap = cap;
    }
    r->items[r->count++] = *row;
    return VPTQ_OK;
}

static vptq_status print_rows(const vptq_cli *cli, const error_command *c,
                              const error_rows *rows, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_buf out;
    vptq_error_report report = {.rows = rows->items,
                                .count = rows->count,
                                .order = (vptq_error_order)c->sort,
                                .top = c->top,
                                .model = vptq_path_base(c->model),
                                .base = vptq_path_base(c->base)};
    vptq_buf_init(&out, cli->ctx.mem);
    VPTQ_TRY(vptq_error_report_write(&report, (vptq_format)cli->common.format, cli->ctx.mem,
                                     &out, err));
    VPTQ_TRY(vptq_cli_deliver(cli, c->output, &out, err));
out:
    vptq_buf_release(&out);
    return st;
}

static int run_error(vptq_cli *cli, const error_command *c)
{
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    vptq_cli_eval s = {.has_dev = false};
    vptq_checkpoint_options opt = {.tokenizer = NULL};
    error_rows rows = {.mem = cli->ctx.mem};
    VPTQ_TRY(vptq_cli_check_output(cli, c->output, &err));
    VPTQ_TRY(vptq_cli_eval_open(&s, cli, c->model, NULL, c->base, false, &err));
    VPTQ_TRY(vptq_model_open(&cli->ctx, c->base, &opt, false, &s.base, &err));
    s.has_base = true;
    VPTQ_TRY(vptq_eval_error(&s.dev, &s.model, &s.base, c->hessians, c->layers.first,
                             c->layers.last, keep_row, &rows, &err));
    VPTQ_TRY(print_rows(cli, c, &rows, &err));
out:
    vptq_mem_free(rows.mem, rows.items);
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
         "Hessians; without them no error of outputs", false},
        {0, "layers", CLI_RANGE, &c.layers, "A-B", "only these layers", false},
        {0, "sort", CLI_CHOICE, &c.sort, "auto|worst|layer",
         "order of rows; auto: by layer in json and csv, else worst first", false},
        {0, "top", CLI_U32, &c.top, "N", "show the first N rows only; 0 = all", false},
        {'o', "output", CLI_STRING, &c.output, "FILE", "write there and not to stdout", false},
        CLI_END};
    vptq_cli cli = {
        .tool = "vptq-eval",
        .command = "error",
        .summary = "error of every quantized matrix against its original",
        .usage = "vptq-eval error -m MODEL --base MODEL [-H HDIR] [--layers A-B] [--top N]",
        .examples = "  vptq-eval error -m packed --base model.gguf -H hessians --top 10\n"
                    "  vptq-eval error -m packed --base model.gguf -H hessians --format html "
                    "-o error.html\n",
        .options = options,
        .formats = "text|json|csv|md|html",
        .omit = "dry-run|seed"};
    int code;
    if (vptq_cli_parse(&cli, argc, argv, 2, &code))
        code = run_error(&cli, &c);
    vptq_cli_release(&cli);
    return code;
}
