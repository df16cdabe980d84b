/* Measures a step of training: windows forwards and backwards, with the loss of the next token
 * and the gradients of every linear layer's weights and every norm.  Prints one line of JSON:
 * seconds and mean loss per window, and the largest entry of a gradient, which needs all of it.
 *     bench_backward [MODEL [IDS [CONTEXT [THREADS [WINDOWS [float|bf16 [MIB]]]]]]]
 * (default: build/demo/model.gguf, the ids 0, 1, .., 2048, 2, 1, float, 0)
 * MIB: memory in which activations are kept instead of computed again. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/model/backward.h"
#include "tests/bench/common.h"

typedef struct bench {
    vptq_mem mem;
    vptq_ctx ctx;
    vptq_device dev;
    vptq_model m;
    vptq_forward *f;
    vptq_backward *b;
    size_t tokens;
    bool bf16;
    int32_t *ids, *targets;
    float *embedded; /* [tokens, hidden] */
    float *states;   /* [layers + 1][tokens, hidden] */
    float *dhidden;  /* [tokens, hidden] */
    float *dw;       /* of the largest linear layer */
    double *norms;   /* [hidden] */
    double *loss;    /* [tokens] */
    double largest;
} bench;

/* The gradient of the weights, transposed as the codebooks' gradients need it. */
static vptq_status weight_gradient(void *arg, uint32_t layer, vptq_linear l, size_t rows,
                                   const float *x, const float *dz, vptq_err *err)
{
    bench *b = arg;
    uint32_t out, in;
    (void)layer;
    vptq_linear_shape(b->m.desc, l, &out, &in);
    const vptq_gemm_args g = {.m = in,
                              .n = out,
                              .k = rows,
                              .a = x,
                              .b = dz,
                              .c = b->dw,
                              .lda = in,
                              .ldb = out,
                              .ldc = out,
                              .trans_a = true,
                              .alpha = 1,
                              .bf16 = b->bf16};
    VPTQ_CHECK(b->dev.ops->gemm(b->dev.state, &g, err));
    for (size_t i = 0; i < (size_t)in * out; i++)
        b->largest = fmax(b->largest, fabs((double)b->dw[i]));
    return VPTQ_OK;
}

static void read_ids(bench *b, const char *path)
{
    FILE *file = path ? fopen(path, "rb") : NULL;
    if (path && (!file || fread(b->ids, sizeof *b->ids, b->tokens, file) != b->tokens))
        bench_give_up("the file of ids is missing or too short");
    if (file)
        fclose(file);
    for (size_t i = 0; !path && i < b->tokens; i++)
        b->ids[i] = (int32_t)(i % b->m.desc->vocab);
    for (size_t i = 0; i < b->tokens; i++)
        b->targets[i] = i + 1 < b->tokens ? b->ids[i + 1] : -1;
}

static void open_all(bench *b, const char *model, const char *ids)
{
    vptq_err err;
    const vptq_checkpoint_options none = {.tokenizer = NULL};
    size_t largest = 0;
    bench_need(vptq_device_open(&b->ctx, "cpu", &b->dev, &err), &err);
    bench_need(vptq_model_open(&b->ctx, model, &none, false, &b->m, &err), &err);
    bench_need(vptq_forward_open(&b->m, &b->dev, b->tokens, &b->f, &err), &err);
    vptq_forward_use_bf16(b->f, b->bf16);
    bench_need(vptq_backward_open(b->f, b->tokens, 1, &b->b, &err), &err);
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++) {
        uint32_t out, in;
        vptq_linear_shape(b->m.desc, (vptq_linear)l, &out, &in);
        largest = (size_t)out * in > largest ? (size_t)out * in : largest;
    }
    const size_t dim = b->m.desc->hidden;
    b->ids = bench_alloc(b->tokens, sizeof *b->ids);
    b->targets = bench_alloc(b->tokens, sizeof *b->targets);
    b->embedded = bench_alloc(b->tokens, dim * sizeof *b->embedded);
    b->states = bench_alloc((b->m.desc->layers + 1) * b->tokens, dim * sizeof *b->states);
    b->dhidden = bench_alloc(b->tokens, dim * sizeof *b->dhidden);
    b->dw = bench_alloc(largest, sizeof *b->dw);
    b->norms = bench_alloc(dim, sizeof *b->norms);
    b->loss = bench_alloc(b->tokens, sizeof *b->loss);
    memset(b->norms, 0, dim * sizeof *b->norms);
    read_ids(b, ids);
}

static void close_all(bench *b)
{
    void *const arrays[] = {b->ids, b->targets, b->states, b->dhidden,
                            b->dw,  b->norms,   b->loss,   b->embedded};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    vptq_backward_close(b->b);
    vptq_forward_close(b->f);
    vptq_model_release(&b->m);
    vptq_device_close(&b->dev);
}

/* One window; returns the mean loss. */
static double run_window(bench *b)
{
    vptq_err err;
    const size_t size = b->tokens * b->m.desc->hidden;
    const uint32_t layers = b->m.desc->layers;
    const vptq_backward_hooks hooks = {.linear = weight_gradient,
                                       .arg = b,
                                       .input_norm = b->norms,
                                       .post_norm = b->norms,
                                       .q_norm = b->norms,
                                       .k_norm = b->norms};
    const vptq_backward_loss loss = {.hidden = b->states + layers * size,
                                     .targets = b->targets,
                                     .scale = 1 / (float)(b->tokens - 1),
                                     .final_norm = b->norms};
    double sum = 0;
    bench_need(vptq_backward_run(b->b, b->ids, NULL, b->embedded, b->states, &err), &err);
    bench_need(vptq_backward_head(b->b, &loss, b->loss, b->dhidden, &err), &err);
    for (uint32_t l = layers; l-- > 0;)
        bench_need(vptq_backward_block(b->b, l, b->states + l * size, b->dhidden, &hooks, &err),
                   &err);
    for (size_t i = 0; i < b->tokens; i++)
        sum += b->loss[i];
    return sum / (double)(b->tokens - 1);
}

int main(int argc, char **argv)
{
    const char *model = argc > 1 ? argv[1] : "build/demo/model.gguf";
    const size_t windows = argc > 5 ? strtoul(argv[5], NULL, 10) : 1;
    bench b = {.tokens = argc > 3 ? strtoul(argv[3], NULL, 10) : 2048,
               .bf16 = argc > 6 && !strcmp(argv[6], "bf16")};
    if (argc < 2 && access(model, R_OK)) {
        printf("skipped: %s is not there (scripts/fetch_demo.sh --model-only build/demo)\n",
               model);
        return 0;
    }
    vptq_mem_init(&b.mem, 0);
    b.ctx =
        (vptq_ctx){.mem = &b.mem, .threads = argc > 4 ? (int)strtoul(argv[4], NULL, 10) : 2};
    open_all(&b, model, argc > 2 ? argv[2] : NULL);
    vptq_backward_keep(b.b, argc > 7 ? strtoul(argv[7], NULL, 10) << 20 : 0);
    double loss = run_window(&b); /* touches the memory for the first time */
    const double start = vptq_seconds();
    for (size_t i = 0; i < windows; i++)
        loss = run_window(&b);
    printf("{\"seconds\": %.4f, \"loss\": %.6f, \"largest\": %.6g}\n",
           (vptq_seconds() - start) / (double)windows, loss, b.largest);
    close_all(&b);
    return 0;
}
