/* vptq-eval: measures a model. */
#include "cmd/eval/eval.h"

int main(int argc, char **argv)
{
    static const vptq_cli_command commands[] = {
        {"ppl", "perplexity of a model on texts", vptq_cli_ppl},
        {"kld", "divergence of a model from its original on a text", vptq_cli_kld},
        {"tasks", "accuracy of a model on choice tasks", vptq_cli_tasks},
        {"error", "error of every quantized matrix against its original", vptq_cli_error},
        {"generate", "continue a prompt, or answer it", vptq_cli_generate},
        {"gemv", "speed of products with packed matrices against dense ones", vptq_cli_gemv},
        {"ablate", "table of settings, each quantized, packed and measured", vptq_cli_ablate},
        {"compare", "tables and pages that compare served models", vptq_cli_compare},
        {"serve", "speed of models that serve many sequences at once", vptq_cli_serve},
        {NULL, NULL, NULL}};
    return vptq_cli_run_command("vptq-eval", "Measures a model.", commands, argc, argv);
}
