/* Reads the input as a Hessian file and as the hessian.json of a directory.  Accepted input is
 * described, pooled with itself and, if small, expanded to the whole triangle.  An input with a
 * wrong checksum is read again with the right one, so that mutations get past it. */
#include "hessian/collect.h"
#include "hessian/hessian.h"
#include "tests/fuzz/fuzz_input.h"

enum { MAX_COLUMNS = 32 };

static void describe(const vptq_hessian_file *h)
{
    vptq_ctx ctx = {.threads = 1};
    vptq_device dev;
    vptq_hessian_stats s;
    vptq_err err;
    if (vptq_device_open(&ctx, "ref", &dev, &err))
        return;
    if (!vptq_hessian_describe(&dev, h, &s, &err) && (s.n != h->n || !s.verdict))
        abort();
    vptq_device_close(&dev);
}

static void pool(const vptq_hessian_file *h)
{
    enum { MAX_NUMBERS = MAX_COLUMNS * (MAX_COLUMNS + 1) / 2 };
    const vptq_hessian_file parts[2] = {*h, *h};
    float lower[MAX_NUMBERS], mean[MAX_COLUMNS];
    float abs_mean[MAX_COLUMNS], min[MAX_COLUMNS], max[MAX_COLUMNS];
    uint64_t tokens;
    vptq_err err;
    if (vptq_hessian_pool(NULL, parts, 2, lower, mean, &tokens, &err))
        return;
    if (tokens != 2 * h->tokens && tokens != 2 * h->windows)
        abort();
    if (vptq_hessian_pool_range(parts, 2, abs_mean, min, max) != (h->abs_mean != NULL))
        abort();
    if (h->abs_mean && (memcmp(min, h->min, h->n * sizeof *min) || abs_mean[0] < 0))
        abort();
}

static void use_file(const char *path)
{
    vptq_hessian_file h;
    vptq_err err = {0};
    if (vptq_hessian_file_read(path, 0, NULL, &h, &err) &&
        (!fuzz_correct(path, err.text) || vptq_hessian_file_read(path, 0, NULL, &h, &err)))
        return;
    bool finite = vptq_hessian_file_check(&h, path, &err) == VPTQ_OK;
    if (h.n <= MAX_COLUMNS) {
        describe(&h);
        if (h.diagonal && vptq_hessian_file_expand(&h, &err))
            abort();
        if (finite)
            pool(&h);
    }
    vptq_hessian_file_release(&h);
}

static void use_dir(const char *path, const char *json)
{
    vptq_hessian_dir d;
    vptq_err err = {0};
    if (vptq_hessian_dir_open(path, &d, &err) &&
        (!fuzz_correct(json, err.text) || vptq_hessian_dir_open(path, &d, &err)))
        return;
    if (d.first_layer > d.last_layer || d.last_layer >= d.layers || !(d.factor >= 0))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_MAX], dir[FUZZ_PATH_MAX], json[FUZZ_PATH_MAX + 16];
    if (!fuzz_input_file(path, data, size))
        return 0;
    use_file(path);
    fuzz_name(dir);
    if (size && data[0] == '{' && mkdtemp(dir)) {
        snprintf(json, sizeof json, "%s/hessian.json", dir);
        if (!rename(path, json))
            use_dir(dir, json);
        unlink(json);
        rmdir(dir);
    }
    unlink(path);
    return 0;
}
