/* Reads and writes the file of output Hessians. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hessian/outputs.h"
#include "lib/base/file.h"
#include "lib/base/text.h"

enum { ROWS = VPTQ_OUTPUT_ROWS, BLOCK = ROWS * ROWS, NAME_SIZE = 72 };
enum { KIND, FINGERPRINT, MODEL, WINDOWS, TOKENS, SUM, META_COUNT };
static const char *const keys[META_COUNT] = {"kind",    "fingerprint", "model_fingerprint",
                                             "windows", "tokens",      "xxh3"};
static const char kind[] = "outputs";

size_t vptq_output_entries(const vptq_model_desc *d, vptq_linear l)
{
    uint32_t out, in;
    vptq_linear_shape(d, l, &out, &in);
    return vptq_output_blocks(out) * BLOCK;
}

size_t vptq_output_layer_entries(const vptq_model_desc *d)
{
    size_t entries = 0;
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
        entries += vptq_output_entries(d, (vptq_linear)l);
    return entries;
}

/* "layer_003_q_proj" */
static void tensor_name(char name[NAME_SIZE], const vptq_model_desc *d, uint32_t layer,
                        vptq_linear l)
{
    snprintf(name, NAME_SIZE, "layer_%03u_%s", layer, vptq_linear_name(d, l).text);
}

/* ---- writing ---- */

static vptq_status list_tensors(const vptq_outputs_data *data, vptq_arena *arena,
                                vptq_tensor *list, vptq_err *err)
{
    const float *k = data->k;
    for (uint32_t layer = 0; layer < data->desc->layers; layer++)
        for (int l = 0; l < VPTQ_LINEAR_DENSE; l++) {
            const size_t n = vptq_output_entries(data->desc, (vptq_linear)l);
            char name[NAME_SIZE];
            tensor_name(name, data->desc, layer, (vptq_linear)l);
            *list = (vptq_tensor){.name = vptq_arena_strdup(arena, name, err),
                                  .type = VPTQ_F32,
                                  .dims = 3,
                                  .shape = {n / BLOCK, ROWS, ROWS},
                                  .data = (const uint8_t *)(const void *)k,
                                  .bytes = n * sizeof *k};
            if (!list->name)
                return VPTQ_E_NOMEM;
            k += n;
            list++;
        }
    return VPTQ_OK;
}

vptq_status vptq_outputs_write(const char *path, const vptq_outputs_data *data, vptq_mem *mem,
                               vptq_err *err)
{
    const size_t count = (size_t)data->desc->layers * VPTQ_LINEAR_DENSE;
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    char windows[24], tokens[24], sum[VPTQ_SAFETENSORS_SUM];
    const char *const values[META_COUNT] = {
        kind, data->fingerprint, data->model_fingerprint, windows, tokens, sum};
    vptq_metadata meta[META_COUNT];

    snprintf(windows, sizeof windows, "%" PRIu64, data->windows);
    snprintf(tokens, sizeof tokens, "%" PRIu64, data->tokens);
    for (int i = 0; i < META_COUNT; i++)
        meta[i] = (vptq_metadata){keys[i], values[i]};
    vptq_arena_init(&arena, mem);
    vptq_tensor *list = vptq_arena_alloc(&arena, count, sizeof *list, err);
    if (!list)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(list_tensors(data, &arena, list, err));
    qsort(list, count, sizeof *list, vptq_tensor_by_name);
    vptq_safetensors_sum(list, count, meta, SUM, sum);
    VPTQ_TRY(vptq_safetensors_save(path, list, count, meta, META_COUNT, err));
out:
    vptq_arena_release(&arena);
    return st;
}

/* ---- reading ---- */

/* The metadata in the order of writing. */
static vptq_status parse_metadata(const char *path, const vptq_metadata_list *found,
                                  vptq_metadata meta[META_COUNT], vptq_outputs *o,
                                  vptq_err *err)
{
    for (int i = 0; i < META_COUNT; i++) {
        meta[i] = (vptq_metadata){keys[i], vptq_metadata_find(found, keys[i])};
        if (!meta[i].value)
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: is not a file of output Hessians: '%s' is missing in its "
                             "metadata",
                             path, keys[i]);
    }
    if (strcmp(meta[KIND].value, kind) != 0)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: metadata '%s' is '%.40s', expected %s", path,
                         keys[KIND], meta[KIND].value, kind);
    for (int i = FINGERPRINT; i <= MODEL; i++)
        if (strlen(meta[i].value) != 16 || strspn(meta[i].value, "0123456789abcdef") != 16)
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: metadata '%s' is '%.40s', expected 16 hex digits", path,
                             keys[i], meta[i].value);
    o->fingerprint = meta[FINGERPRINT].value;
    o->model_fingerprint = meta[MODEL].value;
    VPTQ_CHECK(vptq_metadata_count(path, found, keys[WINDOWS], &o->windows, err));
    return vptq_metadata_count(path, found, keys[TOKENS], &o->tokens, err);
}

/* Checks block b of a K; its first `rows` rows are those of the linear layer. */
static vptq_status check_block(const vptq_tensor *t, size_t b, size_t rows, const float *k,
                               vptq_err *err)
{
    for (size_t i = 0; i < ROWS; i++)
        for (size_t j = 0; j < ROWS; j++) {
            const float x = k[i * ROWS + j];
            const char *expected = NULL;
            if (!vptq_hessian_usable(x))
                expected = "a finite number below 1e24";
            else if (i == j && x < 0)
                expected = "0 or more on the diagonal";
            else if (x != k[j * ROWS + i])
                expected = "the same below and above the diagonal";
            else if ((i >= rows || j >= rows) && x != 0)
                expected = "0 after the last row of the linear layer";
            if (expected)
                return vptq_fail(err, VPTQ_E_NUMERIC,
                                 "%s: tensor '%s': block %zu, row %zu, column %zu is %g, "
                                 "expected %s",
                                 t->file, t->name, b, i, j, (double)x, expected);
        }
    return VPTQ_OK;
}

static vptq_status read_tensor(vptq_outputs *o, const char *path, const vptq_model_desc *d,
                               uint32_t layer, vptq_linear l, vptq_err *err)
{
    const size_t blocks = vptq_output_entries(d, l) / BLOCK;
    uint32_t out, in;
    char name[NAME_SIZE];

    vptq_linear_shape(d, l, &out, &in);
    tensor_name(name, d, layer, l);
    const vptq_tensor *t = vptq_tensor_find(&o->set, name);
    if (!t || t->type != VPTQ_F32 || t->dims != 3 || t->shape[0] != blocks ||
        t->shape[1] != ROWS || t->shape[2] != ROWS)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: tensor '%s' is missing or not F32 [%zu, %d, %d]", path, name,
                         blocks, ROWS, ROWS);
    const float *k = vptq_tensor_aligned(t, &o->set.arena, err);
    if (!k)
        return VPTQ_E_NOMEM;
    for (size_t b = 0; b < blocks; b++)
        VPTQ_CHECK(check_block(t, b, out - b * ROWS, k + b * BLOCK, err));
    o->k[(size_t)layer * VPTQ_LINEAR_DENSE + (size_t)l] = k;
    return VPTQ_OK;
}

static vptq_status read_tensors(vptq_outputs *o, const char *path, const vptq_model_desc *d,
                                vptq_err *err)
{
    const size_t count = (size_t)d->layers * VPTQ_LINEAR_DENSE;
    if (o->set.count != count)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: has %zu tensors, expected %zu for %u layers",
                         path, o->set.count, count, d->layers);
    o->k = vptq_arena_alloc(&o->set.arena, count, sizeof *o->k, err);
    if (!o->k)
        return VPTQ_E_NOMEM;
    for (uint32_t layer = 0; layer < d->layers; layer++)
        for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
            VPTQ_CHECK(read_tensor(o, path, d, layer, (vptq_linear)l, err));
    return VPTQ_OK;
}

vptq_status vptq_outputs_open(const char *path, const vptq_model_desc *d, vptq_mem *mem,
                              vptq_outputs *o, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_metadata_list found;
    vptq_metadata meta[META_COUNT];
    char sum[VPTQ_SAFETENSORS_SUM];

    *o = (vptq_outputs){0};
    vptq_tensor_set_init(&o->set, mem);
    VPTQ_TRY(vptq_safetensors_read(path, &o->set, &found, err));
    VPTQ_TRY(vptq_tensor_set_finish(&o->set, err));
    VPTQ_TRY(parse_metadata(path, &found, meta, o, err));
    if (d)
        VPTQ_TRY(read_tensors(o, path, d, err));
    vptq_safetensors_sum(o->set.tensors, o->set.count, meta, SUM, sum);
    VPTQ_TRY(vptq_safetensors_check_sum(path, sum, meta[SUM].value, err));
    vptq_tensor_set_forget(&o->set);
out:
    if (st)
        vptq_outputs_close(o);
    return st;
}

/* Fails unless the file is the one that hessian.json knows of. */
static vptq_status check_own(const char *path, const vptq_outputs *o, const vptq_hessian_dir *h,
                             vptq_err *err)
{
    if (o->windows != h->outputs)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "%s: has output Hessians of %" PRIu64
                         " window%s, hessian.json expects %" PRIu64
                         " (if its collection was interrupted, run vptq-hessian again)",
                         path, o->windows, vptq_plural(o->windows, "", "s"), h->outputs);
    if (strcmp(o->model_fingerprint, h->model_fingerprint) != 0)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "%s: is of another model: its model_fingerprint is %s, that of "
                         "hessian.json is %s",
                         path, o->model_fingerprint, h->model_fingerprint);
    return VPTQ_OK;
}

vptq_status vptq_outputs_open_dir(const char *dir, const vptq_hessian_dir *h,
                                  const vptq_model_desc *d, vptq_mem *mem, vptq_outputs *o,
                                  vptq_err *err)
{
    char path[4096];

    *o = (vptq_outputs){0};
    VPTQ_CHECK(vptq_path_join(path, sizeof path, dir, VPTQ_OUTPUTS_FILE, err));
    if (!vptq_path_exists(path)) {
        if (!h->outputs)
            return VPTQ_OK;
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "'%s' has no output Hessians of %" PRIu64
                         " window%s (%s is missing; if its collection was interrupted, run "
                         "vptq-hessian again)",
                         dir, h->outputs, vptq_plural(h->outputs, "", "s"), VPTQ_OUTPUTS_FILE);
    }
    VPTQ_CHECK(vptq_outputs_open(path, d, mem, o, err));
    const vptq_status st = check_own(path, o, h, err);
    if (st)
        vptq_outputs_close(o);
    return st;
}

void vptq_outputs_close(vptq_outputs *o)
{
    vptq_tensor_set_release(&o->set);
    *o = (vptq_outputs){0};
}
