/* Quantizes a model with the library and measures it: the shortest useful program.
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
    const vptq_model_options options = {.need_tokenizer = true};
    const vptq_ppl_options measure = {.corpus = corpus, .context = 256, .windows = 4};
    char work[4096];
    vptq_quantize_options quantize = vptq_quantize_defaults();
    vptq_settings *settings = NULL;
    vptq_quantize_result quantized;
    vptq_model *packed = NULL;
    vptq_ppl_result ppl;
    vptq_status st;

    snprintf(work, sizeof work, "%s.work", out);
    const vptq_pack_options pack = {.input = work,
                                    .output = out,
                                    .form = VPTQ_PACK_ARCHIVE,
                                    .dtype = VPTQ_DTYPE_COUNT,
                                    .embeddings = VPTQ_DTYPE_COUNT};
    if ((st = vptq_settings_new(NULL, NULL, chosen, 2, &settings, err)))
        return st;
    quantize.model = model, quantize.work = work;
    quantize.calibrate = &calibration, quantize.settings = settings;
    st = vptq_quantize(ctx, &quantize, NULL, &quantized, err);
    vptq_settings_free(settings);
    if (st || (st = vptq_pack(ctx, &pack, NULL, err)) ||
        (st = vptq_model_load(ctx, out, &options, &packed, err)))
        return st;
    st = vptq_perplexity(ctx, packed, &measure, NULL, &ppl, err);
    vptq_model_free(packed);
    if (!st)
        printf("%llu matrices, %.3f bits per weight, perplexity %.3f\n",
               (unsigned long long)quantized.matrices, quantized.bits_per_weight, ppl.ppl);
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
    vptq_ctx_close(ctx);
    if (st)
        fprintf(stderr, "quantize: %s\n", err.text);
    return st != VPTQ_OK;
}
