/* Reads the input as a GGUF file; of accepted input also the description, all tensors under
 * their Hugging Face names, and the tokenizer. */
#include "formats/gguf/model.h"
#include "formats/vocab/vocab.h"
#include "tests/fuzz/fuzz_tensor.h"

static void read_keys(const vptq_gguf *g)
{
    for (size_t i = 0; i < g->kv_count; i++)
        for (uint64_t e = 0; g->kv[i].type != VPTQ_GGUF_STRING && e < g->kv[i].count; e++)
            (void)vptq_gguf_num_at(&g->kv[i], e);
}

static void as_model(const vptq_gguf *g)
{
    vptq_err err;
    vptq_model_desc d;
    vptq_vocab v;
    vptq_tensor_set set;
    vptq_tensor_set_init(&set, NULL);
    if (!vptq_gguf_desc(g, &d, &err) && !vptq_gguf_hf_tensors(g, &d, &set, &err))
        for (size_t i = 0; i < set.count; i++)
            fuzz_read_tensor(&set.tensors[i]);
    vptq_tensor_set_release(&set);
    if (!vptq_vocab_read_gguf(g, NULL, &v, &err))
        vptq_vocab_release(&v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_MAX];
    if (!fuzz_input_file(path, data, size))
        return 0;
    vptq_err err;
    vptq_gguf g;
    if (!vptq_gguf_open(path, NULL, &g, &err)) {
        for (size_t i = 0; i < g.set.count; i++)
            fuzz_read_tensor(&g.set.tensors[i]);
        read_keys(&g);
        as_model(&g);
        vptq_gguf_release(&g);
    }
    unlink(path);
    return 0;
}
