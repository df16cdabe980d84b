/* Reads llama2.c checkpoints by mapping. */
#include "formats/llama2c.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/le.h"

/* The header's seven numbers, in order. */
enum { DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCAB, SEQUENCE, HEADER_NUMBERS };
enum { HEADER_BYTES = HEADER_NUMBERS * 4 };

/* The format has neither theta nor epsilon nor special tokens; these are the values in
 * llama2.c's run.c. */
static vptq_status parse_header(const char *path, const vptq_map *map, vptq_model_desc *d,
                                vptq_err *err)
{
    if (map->size < HEADER_BYTES)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: %zu bytes are too few for a llama2.c checkpoint", path,
                         map->size);
    int32_t n[HEADER_NUMBERS];
    for (int i = 0; i < HEADER_NUMBERS; i++)
        n[i] = (int32_t)(uint32_t)vptq_get_le(map->data + i * 4, 4);
    for (int i = 0; i < HEADER_NUMBERS; i++)
        if (n[i] == INT32_MIN || (n[i] <= 0 && i != VOCAB))
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: number %d of the llama2.c header is %d, expected more than 0",
                             path, i + 1, n[i]);
    *d = (vptq_model_desc){
        .family = vptq_family_by_model_type("llama"),
        .hidden = (uint32_t)n[DIM],
        .intermediate = (uint32_t)n[HIDDEN],
        .layers = (uint32_t)n[LAYERS],
        .heads = (uint32_t)n[HEADS],
        .kv_heads = (uint32_t)n[KV_HEADS],
        .head_dim = (uint32_t)(n[DIM] / n[HEADS]),
        .vocab = (uint32_t)(n[VOCAB] < 0 ? -n[VOCAB] : n[VOCAB]),
        .context = (uint32_t)n[SEQUENCE],
        .norm_eps = 1e-5f,
        .tied = n[VOCAB] > 0,
        .rope_theta = 10000,
        .rope_factor = 1,
        .rope_attention_factor = 1,
        .bos = 1,
        .eos = 2,
    };
    if (d->hidden % d->heads != 0)
        return vptq_fail(
            err, VPTQ_E_FORMAT,
            "%s: dimension %u of the llama2.c header is not a multiple of %u heads", path,
            d->hidden, d->heads);
    return vptq_model_desc_check(d, path, err);
}

/* A kind of tensor, in file order. */
typedef struct part {
    const char *name; /* if per_layer without "model.layers.N."; NULL = skipped */
    bool per_layer;
    uint32_t rows, cols; /* rows 0 = a vector */
    uint32_t rope_heads; /* as in vptq_tensor */
} part;

enum { PARTS = 14 };

static void list_parts(const vptq_model_desc *d, part parts[PARTS])
{
    uint32_t dim = d->hidden, ffn = d->intermediate;
    uint32_t q = d->heads * d->head_dim, kv = d->kv_heads * d->head_dim;
    uint32_t half = d->head_dim / 2;
    const part list[PARTS] = {
        {"model.embed_tokens.weight", false, d->vocab, dim, 0},
        {"input_layernorm.weight", true, 0, dim, 0},
        {"self_attn.q_proj.weight", true, q, dim, d->heads},
        {"self_attn.k_proj.weight", true, kv, dim, d->kv_heads},
        {"self_attn.v_proj.weight", true, kv, dim, 0},
        {"self_attn.o_proj.weight", true, dim, q, 0},
        {"post_attention_layernorm.weight", true, 0, dim, 0},
        {"mlp.gate_proj.weight", true, ffn, dim, 0},
        {"mlp.down_proj.weight", true, dim, ffn, 0},
        {"mlp.up_proj.weight", true, ffn, dim, 0},
        {"model.norm.weight", false, 0, dim, 0},
        {NULL, false, d->context, half, 0}, /* cosines and sines: computed from theta */
        {NULL, false, d->context, half, 0},
        {"lm_head.weight", false, d->vocab, dim, 0},
    };
    memcpy(parts, list, sizeof list);
}

/* The last part, the output head, is only in the file if it is not tied to the embedding. */
static int part_count(const vptq_model_desc *d)
{
    return d->tied ? PARTS - 1 : PARTS;
}

static uint64_t part_bytes(const part *p)
{
    return (uint64_t)(p->rows ? p->rows : 1) * p->cols * sizeof(float);
}

/* Bytes of the whole file; false on overflow.  A single part cannot overflow: it has less than
 * 2^32 rows of at most 2^20 columns. */
static bool expected_size(const vptq_model_desc *d, const part parts[PARTS], size_t *size)
{
    *size = HEADER_BYTES;
    for (int i = 0; i < part_count(d); i++) {
        size_t bytes;
        if (!vptq_size_mul(parts[i].per_layer ? d->layers : 1, (size_t)part_bytes(&parts[i]),
                           &bytes) ||
            !vptq_size_add(*size, bytes, size))
            return false;
    }
    return true;
}

static vptq_status check_map(const char *path, const vptq_map *map, vptq_model_desc *d,
                             part parts[PARTS], vptq_err *err)
{
    size_t expected = 0;
    VPTQ_CHECK(parse_header(path, map, d, err));
    list_parts(d, parts);
    if (expected_size(d, parts, &expected) && expected == map->size)
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_FORMAT,
                     "%s: %zu bytes, expected %zu for the sizes in its llama2.c header", path,
                     map->size, expected);
}

bool vptq_llama2c_is(const char *path)
{
    vptq_map map;
    vptq_model_desc d;
    part parts[PARTS];
    if (vptq_map_open(path, &map, NULL))
        return false;
    bool is = check_map(path, &map, &d, parts, NULL) == VPTQ_OK;
    vptq_map_release(&map);
    return is;
}

static vptq_status add_tensor(vptq_tensor_set *set, const char *path, const part *p,
                              uint32_t layer, const uint8_t *data, vptq_err *err)
{
    char name[VPTQ_NAME_MAX];
    if (p->per_layer)
        snprintf(name, sizeof name, "model.layers.%u.%s", layer, p->name);
    else
        snprintf(name, sizeof name, "%s", p->name);
    vptq_tensor t = {.name = name,
                     .type = VPTQ_F32,
                     .data = data,
                     .mapped = true,
                     .bytes = (size_t)part_bytes(p),
                     .rope_heads = p->rope_heads,
                     .round_to = VPTQ_F32,
                     .file = path};
    if (p->rows)
        t.shape[t.dims++] = p->rows;
    t.shape[t.dims++] = p->cols;
    return vptq_tensor_set_add(set, &t, err);
}

vptq_status vptq_llama2c_read(const char *path, vptq_tensor_set *set, vptq_model_desc *desc,
                              vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_map map = {0};
    part parts[PARTS];
    vptq_model_desc d;
    VPTQ_TRY(vptq_map_open(path, &map, err));
    VPTQ_TRY(check_map(path, &map, &d, parts, err));
    const uint8_t *at = map.data + HEADER_BYTES;
    VPTQ_TRY(vptq_tensor_set_own_map(set, &map, err));
    for (int i = 0; i < part_count(&d); i++) {
        for (uint32_t layer = 0; layer < (parts[i].per_layer ? d.layers : 1); layer++) {
            if (parts[i].name)
                VPTQ_TRY(add_tensor(set, path, &parts[i], layer, at, err));
            at += part_bytes(&parts[i]);
        }
    }
    VPTQ_TRY(vptq_tensor_set_finish(set, err));
    *desc = d;
out:
    vptq_map_release(&map);
    return st;
}
