/* Opens a model directory whose text files are hostile: the input is cut at 0 bytes into the
 * files below, all others are missing.  An accepted model is a description within its bounds.
 */
#include <string.h>

#include "formats/checkpoint.h"
#include "formats/vocab/vocab.h"
#include "tests/fuzz/fuzz_input.h"

static const char *const names[] = {"config.json", "model.safetensors.index.json",
                                    "tokenizer.json", "tokenizer_config.json",
                                    "model.safetensors"};
enum { NAMES = sizeof names / sizeof names[0] };

static void write_part(const char *dir, const char *name, const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || (size && fwrite(data, 1, size, f) != size))
        abort();
    fclose(f);
}

static void open_model(const char *dir)
{
    const vptq_ctx ctx = {.threads = 1};
    vptq_checkpoint c;
    vptq_vocab v;
    vptq_err err;
    if (vptq_checkpoint_open(&ctx, dir, NULL, &c, &err))
        return;
    if (c.desc.layers == 0 || c.desc.hidden == 0 || c.desc.vocab == 0)
        abort();
    if (!vptq_checkpoint_vocab(&c, &ctx, &v, &err))
        vptq_vocab_release(&v);
    vptq_checkpoint_release(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char dir[FUZZ_PATH_MAX], path[FUZZ_PATH_MAX + 64];
    fuzz_name(dir);
    if (!mkdtemp(dir))
        return 0;
    for (size_t i = 0, at = 0; i < NAMES && at < size; i++) {
        /* the last part is binary and has the rest */
        const uint8_t *end = i + 1 < NAMES ? memchr(data + at, 0, size - at) : NULL;
        size_t n = end ? (size_t)(end - data) - at : size - at;
        if (n > 0)
            write_part(dir, names[i], data + at, n);
        at += n + 1;
    }
    open_model(dir);
    for (size_t i = 0; i < NAMES; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
    return 0;
}
