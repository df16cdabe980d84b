/* Converts a model with the library and measures it: the shortest useful program.
 * usage: quantize MODEL TEXT OUT.vptq
 * An interrupted run continues; its finished matrices are in OUT.vptq.work. */
#include <stdio.h>
#include <vptq.h>

static void show(void *user, vptq_log_level level, const char *text)
{
    (void)user;
    if (level <= VPTQ_LOG_INFO)
        fprintf(stderr, "%s\n", text);
}

static vptq_status convert(vptq_ctx *ctx, const char *model, const char *text, const char *out,
                           vptq_err *err)
{
    const char *const texts[] = {text};
    const vptq_corpus_options corpus = {.texts = texts, .text_count = 1};
    const vptq_calibrate_options calibration = {.corpus = corpus, .windows = 4, .length = 256};
    const vptq_setting_text chosen[] = {{"vector_length", "4"}, {"centroids", "256"}};
    const vptq_pack_options pack = {.output = out,
                                    .form = VPTQ_PACK_ARCHIVE,
                                    .dtype = VPTQ_DTYPE_COUNT,
                                    .embeddings = VPTQ_DTYPE_COUNT};
    vptq_quantize_options quantize = vptq_quantize_defaults();
    const vptq_convert_options options = {.quantize = &quantize, .pack = &pack};
    vptq_settings *settings = NULL;
    vptq_status st = vptq_settings_new(NULL, NULL, chosen, 2, &settings, err);
    if (st)
        return st;
    quantize.model = model, quantize.calibrate = &calibration, quantize.settings = settings;
    st = vptq_convert(ctx, &options, NULL, err);
    vptq_settings_free(settings);
    return st;
}

static vptq_status measure(vptq_ctx *ctx, const char *path, const char *text, vptq_err *err)
{
    const char *const texts[] = {text};
    const vptq_model_options options = {.need_tokenizer = true};
    const vptq_ppl_options measure = {
        .corpus = {.texts = texts, .text_count = 1}, .context = 256, .windows = 4};
    vptq_model *model = NULL;
    vptq_ppl_result ppl;
    vptq_status st = vptq_model_load(ctx, path, &options, &model, err);
    if (st)
        return st;
    st = vptq_perplexity(ctx, model, &measure, NULL, &ppl, err);
    vptq_model_free(model);
    if (!st)
        printf("%.3f bits per weight, perplexity %.3f\n", ppl.bits_per_weight, ppl.ppl);
    return st;
}

int main(int argc, char **argv)
{
    const vptq_ctx_options options = {.log = show};
    vptq_err err = {VPTQ_OK, ""};
    vptq_ctx *ctx = NULL;
    if (argc != 4) {
        fprintf(stderr, "usage: quantize MODEL TEXT OUT.vptq\n");
        return 2;
    }
    vptq_status st = vptq_ctx_open(&options, &ctx, &err);
    if (!st)
        st = convert(ctx, argv[1], argv[2], argv[3], &err);
    if (!st)
        st = measure(ctx, argv[3], argv[2], &err);
    vptq_ctx_close(ctx);
    if (st)
        fprintf(stderr, "quantize: %s\n", err.text);
    return st != VPTQ_OK;
}
