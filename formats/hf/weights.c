/* Reads the weights of a Hugging Face directory. */
#include "formats/hf/weights.h"

#include <limits.h>
#include <string.h>

#include "formats/hf/safetensors.h"
#include "formats/json.h"
#include "formats/torch/file.h"
#include "lib/base/text.h"

/* Names of a kind of files, and how one is read. */
typedef struct file_kind {
    const char *index, *single;
    vptq_status (*read)(const char *path, vptq_tensor_set *set, vptq_err *err);
} file_kind;

static vptq_status read_safetensors(const char *path, vptq_tensor_set *set, vptq_err *err)
{
    return vptq_safetensors_read(path, set, NULL, err);
}

static const file_kind kinds[] = {
    {VPTQ_SAFETENSORS_INDEX, VPTQ_SAFETENSORS_SINGLE, read_safetensors},
    {"pytorch_model.bin.index.json", "pytorch_model.bin", vptq_torch_read_tensors}};

typedef struct reader {
    const char *dir;
    const file_kind *kind;
    char index[4096]; /* path */
    vptq_tensor_set *set;
} reader;

/* Reads a shard after checking that its name cannot leave the directory. */
static vptq_status read_shard(const reader *r, const char *name, vptq_err *err)
{
    char path[4096];
    if (!*name || strlen(name) > NAME_MAX || strchr(name, '/') || strcmp(name, ".") == 0 ||
        strcmp(name, "..") == 0)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: '%.200s' is not the name of a file in the directory", r->index,
                         name);
    VPTQ_CHECK(vptq_path_join(path, sizeof path, r->dir, name, err));
    return r->kind->read(path, r->set, err);
}

/* Checks that each tensor of the index is in the shard it names. */
static vptq_status check_index(const reader *r, json_t *weights, vptq_err *err)
{
    const char *name;
    json_t *file;
    json_object_foreach(weights, name, file)
    {
        const vptq_tensor *t = vptq_tensor_find(r->set, name);
        const char *shard = json_string_value(file);
        if (!t || strcmp(vptq_path_base(t->file), shard) != 0)
            return vptq_fail(err, VPTQ_E_FORMAT, "%s: tensor '%.200s' is not in %.200s",
                             r->index, name, shard);
    }
    return VPTQ_OK;
}

/* Reads every shard once, in the order the index first names them. */
static vptq_status read_shards(const reader *r, json_t *weights, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_strmap seen = {0};
    const char *name;
    json_t *file;
    VPTQ_TRY(vptq_strmap_init(&seen, r->set->arena.mem, 0, err));
    json_object_foreach(weights, name, file)
    {
        bool fresh = false;
        const char *shard = json_string_value(file);
        if (!shard)
            VPTQ_TRY(vptq_fail(err, VPTQ_E_FORMAT,
                               "%s: the file of tensor '%.200s' is not a string", r->index,
                               name));
        VPTQ_TRY(vptq_strmap_add(&seen, shard, strlen(shard), 0, &fresh, err));
        if (fresh)
            VPTQ_TRY(read_shard(r, shard, err));
    }
    VPTQ_TRY(vptq_tensor_set_finish(r->set, err));
    VPTQ_TRY(check_index(r, weights, err));
out:
    vptq_strmap_release(&seen);
    return st;
}

static vptq_status read_by_index(const reader *r, vptq_err *err)
{
    json_t *index = NULL;
    VPTQ_CHECK(vptq_json_load(r->index, VPTQ_SAFETENSORS_MAX_HEADER, &index, err));
    json_t *weights = json_object_get(index, "weight_map");
    vptq_status st =
        json_is_object(weights)
            ? read_shards(r, weights, err)
            : vptq_fail(err, VPTQ_E_FORMAT, "%s: 'weight_map' is not an object", r->index);
    json_decref(index);
    return st;
}

/* Reads the index or the single file, if there is one. */
static vptq_status read_kind(reader *r, bool *found, vptq_err *err)
{
    char single[4096];
    VPTQ_CHECK(vptq_path_join(r->index, sizeof r->index, r->dir, r->kind->index, err));
    VPTQ_CHECK(vptq_path_join(single, sizeof single, r->dir, r->kind->single, err));
    *found = true;
    if (vptq_path_exists(r->index))
        return read_by_index(r, err);
    *found = vptq_path_exists(single);
    if (!*found)
        return VPTQ_OK;
    VPTQ_CHECK(r->kind->read(single, r->set, err));
    return vptq_tensor_set_finish(r->set, err);
}

/* Names the other weight file of the directory, if there is one, and the way out. */
static vptq_status no_weights(const char *dir, char **names, size_t count, vptq_err *err)
{
    for (size_t i = 0; i < count; i++)
        if (vptq_text_before(names[i], ".bin") || vptq_text_before(names[i], ".pth") ||
            vptq_text_before(names[i], ".bin.index.json"))
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: has neither a *.safetensors file nor pytorch_model.bin, only "
                             "%.200s; convert it with transformers: save_pretrained(DIR, "
                             "safe_serialization=True)",
                             dir, names[i]);
    return vptq_fail(err, VPTQ_E_FORMAT,
                     "%s: has neither a *.safetensors file nor pytorch_model.bin", dir);
}

/* Reads the *.safetensors files of another name. */
static vptq_status read_others(const reader *r, char **names, size_t count, bool *found,
                               vptq_err *err)
{
    *found = false;
    for (size_t i = 0; i < count; i++)
        if (vptq_text_before(names[i], ".safetensors")) {
            VPTQ_CHECK(read_shard(r, names[i], err));
            *found = true;
        }
    return *found ? vptq_tensor_set_finish(r->set, err) : VPTQ_OK;
}

vptq_status vptq_hf_read_weights(const char *dir, vptq_tensor_set *set, vptq_err *err)
{
    reader r = {.dir = dir, .kind = &kinds[0], .set = set};
    char **names = NULL;
    size_t count = 0;
    bool found;
    VPTQ_CHECK(read_kind(&r, &found, err));
    if (found)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_dir_list(dir, &set->arena, &names, &count, err));
    VPTQ_CHECK(read_others(&r, names, count, &found, err));
    if (found)
        return VPTQ_OK;
    r.kind = &kinds[1];
    VPTQ_CHECK(read_kind(&r, &found, err));
    return found ? VPTQ_OK : no_weights(dir, names, count, err);
}
