/* Measures the loss of every setting of lib/encoder/rates.c on matrices of a model, relative to
 * the quick encoding. Its table is made from these.
 *
 *     bench_rates [--quick] MODEL HDIR LAYER:LINEAR[:ROWS]..
 *
 * One line per matrix (or its first ROWS rows) and setting: layer, name, rows, columns, v, k,
 * k_res, loss of the quick encoding, loss.  --quick uses a lighter encoder, in half the time
 * and with nearly the same ratios.  scripts/fit_rates.py makes the table. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/parallel.h"
#include "lib/encoder/rates.h"
#include "lib/quantize/quantize.h"
#include "tests/bench/common.h"

typedef struct bench {
    vptq_ctx ctx;
    vptq_device dev;
    vptq_model m;
    const char *hessians;
    bool quick;
} bench;

static vptq_linear find_linear(const vptq_model_desc *d, const char *name)
{
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
        if (vptq_linear_exists(d, 0, (vptq_linear)l) &&
            !strcmp(vptq_linear_name(d, (vptq_linear)l).text, name))
            return (vptq_linear)l;
    fprintf(stderr, "benchmark: there is no linear '%s'\n", name);
    exit(1);
}

static double encode(bench *b, const vptq_encoder_settings *s, const vptq_encoder_input *input)
{
    vptq_err err = {0};
    vptq_arena arena;
    vptq_encoder_result r;
    vptq_arena_init(&arena, b->ctx.mem);
    bench_need(vptq_encode_matrix(&b->dev, s, input, &arena, &r, &err), &err);
    vptq_arena_release(&arena);
    return r.report.loss;
}

/* The first `rows` rows of a matrix; 0 = all of them. */
static void run_matrix(bench *b, uint32_t layer, vptq_linear l, uint32_t rows)
{
    vptq_err err = {0};
    vptq_hessian_file h;
    vptq_arena arena;
    const vptq_weight *w = &b->m.blocks[layer].linear[l];
    size_t count;
    if (rows == 0 || rows > w->rows)
        rows = (uint32_t)w->rows;
    const vptq_rate *rate = vptq_rate_table(&count);
    vptq_encoder_settings probe = vptq_rate_probe(rows, (uint32_t)w->cols, 0, VPTQ_F16),
                          s = vptq_encoder_defaults();
    vptq_arena_init(&arena, b->ctx.mem);
    float *x = vptq_arena_alloc(&arena, w->rows, w->cols * sizeof *x, &err);
    bench_need(x ? VPTQ_OK : VPTQ_E_NOMEM, &err);
    bench_need(vptq_weight_read(w, &b->dev, 0, w->rows, x, &err), &err);
    bench_need(vptq_hessian_dir_load(b->hessians, layer, vptq_linear_input(l),
                                     (uint32_t)w->cols, b->ctx.mem, &h, &err),
               &err);
    vptq_encoder_input input = {.matrix_id = layer * VPTQ_LINEAR_DENSE + (uint32_t)l,
                                .out = rows,
                                .in = (uint32_t)w->cols,
                                .w = x,
                                .lower = h.lower};
    double base = encode(b, &probe, &input);
    if (b->quick) {
        s.sweeps = s.refits = 1;
        s.beam = 8;
    }
    for (size_t i = 0; i < count; i++) {
        s.v = rate[i].v;
        s.k = rate[i].k;
        s.k_res = rate[i].k_res;
        printf("%u %s %u %zu %u %u %u %.9g %.9g\n", layer, vptq_linear_name(b->m.desc, l).text,
               rows, w->cols, s.v, s.k, s.k_res, base, encode(b, &s, &input));
        fflush(stdout);
    }
    vptq_hessian_file_release(&h);
    vptq_arena_release(&arena);
}

int main(int argc, char **argv)
{
    vptq_err err = {0};
    vptq_mem mem;
    vptq_checkpoint_options opt = {.tokenizer = NULL};
    bench b = {.quick = argc > 1 && !strcmp(argv[1], "--quick")};
    argv += b.quick;
    argc -= b.quick;
    if (argc == 1) {
        puts("needs MODEL HDIR LAYER:LINEAR..");
        return 0;
    }
    if (argc < 4) {
        fprintf(stderr, "usage: bench_rates [--quick] MODEL HDIR LAYER:LINEAR..\n");
        return 2;
    }
    vptq_mem_init(&mem, 0);
    b.ctx = (vptq_ctx){.mem = &mem, .threads = vptq_cpu_count()};
    b.hessians = argv[2];
    bench_need(vptq_device_open(&b.ctx, "auto", &b.dev, &err), &err);
    bench_need(vptq_model_open(&b.ctx, argv[1], &opt, false, &b.m, &err), &err);
    for (int i = 3; i < argc; i++) {
        char *name, *rows = strrchr(argv[i], ':');
        unsigned long layer = strtoul(argv[i], &name, 10);
        if (*name != ':' || layer >= b.m.desc->layers) {
            fprintf(stderr, "bench_rates: '%s' is not LAYER:LINEAR[:ROWS]\n", argv[i]);
            return 2;
        }
        unsigned long count = rows > name ? strtoul(rows + 1, NULL, 10) : 0;
        if (rows > name)
            *rows = 0;
        run_matrix(&b, (uint32_t)layer, find_linear(b.m.desc, name + 1), (uint32_t)count);
    }
    vptq_model_release(&b.m);
    vptq_device_close(&b.dev);
    return 0;
}
