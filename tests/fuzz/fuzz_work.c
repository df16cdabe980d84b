/* Reads the input as the quantize.json of a work directory and as the one of an earlier run
 * with the same directory.  An object is read again with a valid checksum. */
#include <string.h>

#include "formats/checkpoint_internal.h"
#include "formats/json.h"
#include "lib/quantize/internal.h"
#include "tests/fuzz/fuzz_input.h"

static void read_header(const char *dir)
{
    vptq_checkpoint c = {.path = dir};
    vptq_work_header h;
    vptq_err err;
    vptq_arena_init(&c.arena, NULL);
    if (!vptq_checkpoint_read_work_header(&c, &h, &err) &&
        (!h.base || !h.fingerprint || !h.tokenizer ||
         (c.storage != VPTQ_F16 && c.storage != VPTQ_BF16)))
        abort();
    vptq_arena_release(&c.arena);
}

/* Ours replaces the other run's only if it is the same in what identifies it. */
static void continue_run(const char *dir)
{
    const vptq_ctx ctx = {.threads = 1};
    vptq_device dev = {.ctx = &ctx};
    const vptq_quantize_options opt = {.work = dir};
    vptq_quantizer q = {.dev = &dev, .opt = &opt};
    vptq_err err;
    q.manifest = json_pack("{s:i, s:s, s:s, s:{s:i, s:b}}", "format", 1, "base_model", "m",
                           "dtype", "f16", "settings", "centroids", 16, "norm", 1);
    const vptq_status st = vptq_manifest_open(&q, &err);
    if (st && !err.text[0])
        abort();
    json_decref(q.manifest);
}

static void use(const char *dir)
{
    read_header(dir);
    continue_run(dir);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_MAX], dir[FUZZ_PATH_MAX], file[FUZZ_PATH_MAX + 16];
    json_t *object = NULL;
    vptq_err err;
    fuzz_name(dir);
    if (!mkdtemp(dir) || !fuzz_input_file(path, data, size))
        abort();
    snprintf(file, sizeof file, "%s/%s", dir, VPTQ_WORK_FILE);
    if (rename(path, file))
        abort();
    use(dir);
    if (!vptq_json_parse((const char *)data, size, "input", &object, &err) &&
        json_is_object(object) && !vptq_json_save_sealed(file, object, &err))
        use(dir);
    json_decref(object);
    unlink(file);
    rmdir(dir);
    return 0;
}
