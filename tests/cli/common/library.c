/* Uses the installed library to collect Hessians, quantize, pack and evaluate a model.
 * usage: library MODEL TOKENIZER TEXT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vptq.h>

/* Lines of a report, each with a positive number after `key`. */
typedef struct lines {
    const char *key;
    unsigned long long count;
} lines;

static vptq_status count_lines(void *arg, const char *text, size_t length, vptq_err *err)
{
    lines *l = arg;
    char line[8192];
    snprintf(line, sizeof line, "%.*s", (int)length, text);
    const char *at = strstr(line, l->key);
    if (length == 0 || text[length - 1] != '\n' || !at || !(atof(at + strlen(l->key)) > 0))
        return vptq_fail(err, VPTQ_E_NUMERIC, "unexpected line: %s", line);
    l->count++;
    return VPTQ_OK;
}

static vptq_status run(vptq_ctx *ctx, char **argv, vptq_model **model, vptq_err *err)
{
    const char *const texts[] = {argv[3]};
    const vptq_model_options open = {.tokenizer = argv[2], .need_tokenizer = true},
                             packed = {.need_tokenizer = true};
    const vptq_setting_text chosen[] = {{"vector_length", "4"}, {"centroids", "16"}};
    vptq_settings *settings = NULL;
    vptq_collect_options collect = {.last_layer = 0, .factor = 0.3};
    vptq_quantize_options quantize = vptq_quantize_defaults();
    const vptq_pack_options pack = {.input = "work",
                                    .output = "out.vptq",
                                    .form = VPTQ_PACK_ARCHIVE,
                                    .dtype = VPTQ_DTYPE_COUNT,
                                    .embeddings = VPTQ_DTYPE_COUNT};
    vptq_ppl_options ppl = {.context = 256, .windows = 2};
    vptq_ppl_result measured;
    vptq_quantize_result q;
    char digest[VPTQ_DIGEST_SIZE];
    lines rows = {"\"bits_per_weight\": ", 0}, hessians = {"\"trace\": ", 0};
    const vptq_output shown = {
        .format = VPTQ_FORMAT_JSON, .write = count_lines, .arg = &hessians};
    const vptq_output quantized = {
        .format = VPTQ_FORMAT_JSON, .write = count_lines, .arg = &rows};
    vptq_status st;

    collect.calibrate.corpus.texts = ppl.corpus.texts = texts;
    collect.calibrate.corpus.text_count = ppl.corpus.text_count = 1;
    collect.calibrate.windows = 4, collect.calibrate.length = 256;
    if ((st = vptq_model_load(ctx, argv[1], &open, model, err)) ||
        (st = vptq_hessians_collect(ctx, *model, &collect, "h", NULL, err)) ||
        (st = vptq_hessians_show(ctx, "h", &shown, err)) ||
        (st = vptq_settings_new(NULL, NULL, chosen, 2, &settings, err)))
        return st;
    quantize.model = argv[1], quantize.tokenizer = argv[2], quantize.work = "work";
    quantize.hessians = "h", quantize.settings = settings, quantize.last_layer = 0;
    quantize.bits = 4, quantize.allocate = VPTQ_ALLOCATE_AUTO; /* and no text */
    if (vptq_quantize(ctx, &quantize, NULL, &q, err) != VPTQ_E_ARG ||
        !strstr(err->text, "allocate_text"))
        return vptq_fail(err, VPTQ_E_NUMERIC, "allocating without a text");
    quantize.bits = 0;
    st = vptq_quantize(ctx, &quantize, &quantized, &q, err);
    vptq_settings_free(settings);
    vptq_model_free(*model);
    *model = NULL;
    if (st || (st = vptq_pack(ctx, &pack, NULL, err)) ||
        (st = vptq_digest(ctx, "out.vptq", NULL, NULL, digest, err)) ||
        (st = vptq_model_load(ctx, "out.vptq", &packed, model, err)) ||
        (st = vptq_perplexity(ctx, *model, &ppl, NULL, &measured, err)))
        return st;
    if (rows.count != 8 || q.matrices != 7 || *q.digest || hessians.count < 4 ||
        measured.windows != 2)
        return vptq_fail(err, VPTQ_E_NUMERIC, "%llu rows, %llu Hessians", rows.count,
                         hessians.count);
    printf("version %s bits %.6f digest %s ppl %.10f\n", vptq_version(), q.bits_per_weight,
           digest, measured.ppl);
    return VPTQ_OK;
}

int main(int argc, char **argv)
{
    vptq_err err = {VPTQ_OK, ""};
    vptq_ctx_options options = {.threads = 2, .backend = "cpu"};
    vptq_ctx *ctx = NULL;
    vptq_model *model = NULL;
    vptq_status st = argc == 4 ? vptq_ctx_open(&options, &ctx, &err) : VPTQ_E_ARG;
    if (!st)
        st = run(ctx, argv, &model, &err);
    if (st)
        fprintf(stderr, "%s: %s\n", vptq_status_name(st), err.text);
    vptq_model_free(model);
    vptq_ctx_close(ctx);
    return st != VPTQ_OK;
}
