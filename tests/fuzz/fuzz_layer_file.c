/* Reads the input as a matrix of a work directory, as it is and with a valid checksum, because
 * the checksum would reject almost all damage. */
#include <inttypes.h>
#include <string.h>

#include "formats/vptq/layer_file.h"
#include "tests/fuzz/fuzz_input.h"

enum { KEYS = 6, MAX_WEIGHTS = 1 << 20 };

static const char *const keys[KEYS] = {"format",      "name",   "entry",
                                       "fingerprint", "report", "xxh3"};

/* The weights of a dense or uniform matrix can be read; dense ones are finite. */
static void use_weight(const vptq_layer_file *f)
{
    const size_t cols = vptq_tensor_cols(&f->weight), rows = vptq_tensor_rows(&f->weight);
    vptq_err err;
    if (!rows || !cols || cols > MAX_WEIGHTS)
        return;
    float *row = malloc(cols * sizeof *row);
    double sum = 0;
    if (!row || vptq_tensor_read(&f->weight, rows - 1, 1, row, &err))
        abort();
    for (size_t i = 0; i < cols; i++)
        sum += (double)row[i];
    if (f->dense && sum != sum)
        abort();
    free(row);
}

static void use_codebooks(const vptq_layer_file *f)
{
    const vptq_vq_shape *s = &f->matrix.vq.shape;
    double sum = 0;
    if (vptq_vq_count_bits(s).total == 0)
        abort();
    for (size_t i = 0; i < (size_t)s->groups * s->k * s->v && i < MAX_WEIGHTS; i++)
        sum += (double)f->centroids_f32[i] - (double)f->matrix.vq.centroids[i];
    if (sum != sum) /* codebooks are finite */
        abort();
}

/* Additive codes decode, unless a weight is too large. */
static void use_additive(vptq_layer_file *f)
{
    const vptq_ctx ctx = {.threads = 1};
    const vptq_additive_shape *s = &f->additive.a.shape;
    vptq_err err;
    if (vptq_additive_count_bits(s).total == 0)
        abort();
    if ((uint64_t)s->out * s->in > MAX_WEIGHTS)
        return;
    if (!vptq_layer_file_decode(&ctx, f, &err))
        use_weight(f);
    else if (err.code != VPTQ_E_NUMERIC && err.code != VPTQ_E_NOMEM)
        abort();
}

static void use(const char *path)
{
    vptq_layer_file f;
    vptq_err err;
    if (vptq_layer_file_read(path, NULL, &f, &err))
        return;
    if (strlen(f.report) + strlen(f.fingerprint) > SIZE_MAX / 2)
        abort();
    if (f.dense || f.is_uniform)
        use_weight(&f);
    else if (f.is_additive)
        use_additive(&f);
    else
        use_codebooks(&f);
    vptq_layer_file_release(&f);
}

/* Checksum after docs/formats.md over the metadata of `keys` and the tensors. */
static void checksum(const vptq_tensor_set *set, const vptq_metadata *meta, char hex[17])
{
    uint64_t hash = 0;
    for (size_t i = 0; i < KEYS - 1; i++) {
        hash = vptq_hash(meta[i].key, strlen(meta[i].key) + 1, hash);
        hash = vptq_hash(meta[i].value, strlen(meta[i].value) + 1, hash);
    }
    for (size_t i = 0; i < set->count; i++) {
        const vptq_tensor *t = &set->tensors[i];
        hash = vptq_hash(t->name, strlen(t->name) + 1, hash);
        hash = vptq_hash(t->data, t->bytes, hash);
    }
    snprintf(hex, 17, "%016" PRIx64, hash);
}

/* Replaces the checksum in the copy `data` of the file; false if it has none of that length. */
static bool seal(const char *path, uint8_t *data, size_t size)
{
    enum { DIGITS = 16 };
    vptq_tensor_set set;
    vptq_metadata_list found = {0};
    vptq_metadata meta[KEYS];
    size_t have = 0;
    char hex[DIGITS + 1];
    vptq_err err;
    vptq_tensor_set_init(&set, NULL);
    bool read =
        !vptq_safetensors_read(path, &set, &found, &err) && !vptq_tensor_set_finish(&set, &err);
    for (size_t k = 0; read && k < KEYS; k++)
        for (size_t i = 0; i < found.count; i++)
            if (have == k && strcmp(found.items[i].key, keys[k]) == 0)
                meta[have++] = found.items[i];
    bool sealed = false;
    if (have == KEYS && strlen(meta[KEYS - 1].value) == DIGITS) {
        checksum(&set, meta, hex);
        for (size_t i = 0; i + DIGITS <= size && !sealed; i++)
            if (memcmp(data + i, meta[KEYS - 1].value, DIGITS) == 0) {
                memcpy(data + i, hex, DIGITS);
                sealed = true;
            }
    }
    vptq_tensor_set_release(&set);
    return sealed;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_MAX], sealed[FUZZ_PATH_MAX];
    if (!fuzz_input_file(path, data, size))
        return 0;
    use(path);
    uint8_t *copy = malloc(size + 1);
    if (copy && size) {
        memcpy(copy, data, size);
        if (seal(path, copy, size) && fuzz_input_file(sealed, copy, size)) {
            use(sealed);
            unlink(sealed);
        }
    }
    free(copy);
    unlink(path);
    return 0;
}
