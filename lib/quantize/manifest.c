/* The work directory and its quantize.json, which identifies the run. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/vptq/layer_file.h"
#include "hessian/hidden_states.h"
#include "hessian/outputs.h"
#include "hessian/saliency.h"
#include "lib/base/file.h"
#include "lib/quantize/internal.h"
#include "lib/quantize/self_text.h"
#include "lib/quantize/tune.h"
#include "lib/tune/e2e.h"

enum { JSON_LIMIT = 8 << 20, KEY = 256 };

/* Keys that affect the bytes of a matrix, in the order in which they are compared. */
static const char *const identity[] = {"tool",
                                       "base_fingerprint",
                                       "hessian_fingerprint",
                                       "held_out_fingerprint",
                                       "output_fingerprint",
                                       "kv_factor",
                                       "calibration",
                                       "dtype",
                                       "settings",
                                       "recipe",
                                       "matrices"};

/* Keys that affect nothing: the model may move. */
static const char *const paths[] = {"base_model", "tokenizer"};

/* ---- making it ---- */

static vptq_status hash_manifest(vptq_quantizer *q, vptq_err *err)
{
    uint64_t h = 0;
    for (size_t i = 0; i < sizeof identity / sizeof identity[0]; i++) {
        const json_t *value = json_object_get(q->manifest, identity[i]);
        if (!value)
            continue;
        char *part = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        if (!part)
            return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
        h = vptq_hash(part, strlen(part), h);
        free(part);
    }
    snprintf(q->fingerprint, sizeof q->fingerprint, "%016" PRIx64, h);
    return VPTQ_OK;
}

/* By name, the settings of matrices that differ from those of the whole model. */
static json_t *matrices_json(const vptq_quantizer *q)
{
    char name[VPTQ_NAME_MAX];
    json_t *doc = json_object();

    for (size_t i = 0; doc && i < vptq_linear_index(q->model.desc, q->model.desc->layers, 0);
         i++) {
        const vptq_matrix_settings *m = &q->matrix[i];
        if (!vptq_linear_exists(q->model.desc, m->layer, m->linear))
            continue;
        json_t *own = m->skip ? json_pack("{s:b}", "skip", 1)
                              : vptq_settings_json(&m->settings, q->opt->settings);
        bool bad = !own;
        vptq_linear_full_name(q->model.desc, name, m->layer, m->linear);
        if (!bad && json_object_size(own))
            bad = json_object_set(doc, name, own);
        json_decref(own);
        if (bad) {
            json_decref(doc);
            doc = NULL;
        }
    }
    return doc;
}

/* full = the absolute path of `what`, because the directory may be read from anywhere. */
static vptq_status resolve(const char *path, const char *what, char full[PATH_MAX],
                           vptq_err *err)
{
    if (!realpath(path, full))
        return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot resolve '%s'", path);
    return vptq_json_check_text("quantize.json", what, full, err);
}

vptq_status vptq_manifest_set_paths(json_t *manifest, const char *model, const char *tokenizer,
                                    vptq_err *err)
{
    char full[PATH_MAX];
    VPTQ_CHECK(resolve(model, "the model's path", full, err));
    if (json_object_set_new(manifest, "base_model", json_string(full)))
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    if (!tokenizer)
        return VPTQ_OK;
    VPTQ_CHECK(resolve(tokenizer, "the tokenizer's path", full, err));
    if (json_object_set_new(manifest, "tokenizer", json_string(full)))
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    return VPTQ_OK;
}

vptq_status vptq_manifest_text(const json_t *manifest, char **text, vptq_err *err)
{
    json_t *doc = json_copy((json_t *)(uintptr_t)manifest);
    if (!doc)
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        json_object_del(doc, paths[i]);
    const vptq_status st = vptq_json_text(doc, "quantize.json", false, text, err);
    json_decref(doc);
    return st;
}

vptq_status vptq_manifest_make(vptq_quantizer *q, vptq_err *err)
{
    const vptq_encoder_settings *s = q->opt->settings;
    const vptq_hessian_source *h = &q->hessians;
    const bool sequential = q->opt->calibrate && q->opt->calibrate->sequential;
    char calibration[64] = "sequential";

    if (sequential && q->opt->calibrate->correction > 0)
        snprintf(calibration, sizeof calibration, "sequential, correction up to %.15g",
                 q->opt->calibrate->correction);
    q->manifest = json_pack(
        "{s:i, s:s, s:n, s:s, s:s, s:s?, s:f, s:s?, s:n, s:s, s:o, s:O?, s:o}", "format",
        VPTQ_WORK_FORMAT, "tool", "vptq-quantize " VPTQ_VERSION, "base_model",
        "base_fingerprint", q->base_fingerprint, "hessian_fingerprint", h->fingerprint,
        "held_out_fingerprint", h->held_out_fingerprint[0] ? h->held_out_fingerprint : NULL,
        "kv_factor", h->kv_factor, "calibration", sequential ? calibration : NULL, "tokenizer",
        "dtype", s->storage == VPTQ_BF16 ? "bf16" : "f16", "settings",
        vptq_settings_json(s, NULL), "recipe", q->rules, "matrices", matrices_json(q));
    if (!q->manifest ||
        (h->output_fingerprint[0] && json_object_set_new(q->manifest, "output_fingerprint",
                                                         json_string(h->output_fingerprint))))
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    VPTQ_CHECK(
        vptq_manifest_set_paths(q->manifest, q->model.ckpt.path, q->opt->tokenizer, err));
    return hash_manifest(q, err);
}

/* ---- comparing ---- */

static const json_t *member(const json_t *doc, const char *key)
{
    const json_t *value = json_object_get(doc, key);
    return json_is_null(value) ? NULL : value;
}

static bool same(const json_t *a, const json_t *b)
{
    return (!a && !b) || json_equal(a, b);
}

/* Descends to the first difference inside two objects: appends its path to `key` and sets *a
 * and *b to its values.  The parser bounds the depth. */
static void narrow(const json_t **a, const json_t **b, char key[KEY])
{
    while (json_is_object(*a) && json_is_object(*b)) {
        const char *name, *found = NULL;
        json_t *value;
        json_object_foreach((json_t *)(uintptr_t)*a, name, value)
        {
            if (!found && !same(member(*a, name), member(*b, name)))
                found = name;
        }
        json_object_foreach((json_t *)(uintptr_t)*b, name, value)
        {
            if (!found && !same(member(*a, name), member(*b, name)))
                found = name;
        }
        if (!found)
            return;
        size_t len = strlen(key);
        snprintf(key + len, KEY - len, ".%s", found);
        *a = member(*a, found);
        *b = member(*b, found);
    }
}

static vptq_status differ(const char *path, const char *name, const json_t *then,
                          const json_t *now, vptq_err *err)
{
    char key[KEY];

    snprintf(key, sizeof key, "%s", name);
    narrow(&then, &now, key);
    char *t = json_dumps(then, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    char *n = json_dumps(now, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    vptq_status st = vptq_fail(err, VPTQ_E_MISMATCH,
                               "%s belongs to another run: its key '%s' is %.200s, here it is "
                               "%.200s (--force starts over)",
                               path, key, t ? t : "missing", n ? n : "missing");
    free(t);
    free(n);
    return st;
}

/* Whether a key counts before measuring: nothing is allocated yet, and a dry run may measure
 * for other settings. */
static bool counts_early(const vptq_quantizer *q, const char *key)
{
    static const char *const measured[] = {"base_fingerprint", "hessian_fingerprint",
                                           "kv_factor"};
    if (!q->opt->dry_run)
        return strcmp(key, "matrices") != 0;
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++)
        if (!strcmp(key, measured[i]))
            return true;
    return false;
}

/* VPTQ_E_MISMATCH with the first key in which an existing manifest differs from this run's,
 * `early` of those that count before measuring. */
static vptq_status compare_manifest(const vptq_quantizer *q, const char *path,
                                    const json_t *old, bool early, vptq_err *err)
{
    const json_t *now = member(q->manifest, "format"), *then = member(old, "format");

    if (!same(now, then))
        return differ(path, "format", then, now, err);
    for (size_t i = 0; i < sizeof identity / sizeof identity[0]; i++) {
        now = member(q->manifest, identity[i]);
        then = member(old, identity[i]);
        if ((!early || counts_early(q, identity[i])) && !same(now, then))
            return differ(path, identity[i], then, now, err);
    }
    then = early && q->opt->dry_run ? NULL : member(old, "tune");
    return then ? differ(path, "tune", then, NULL, err) : VPTQ_OK;
}

static bool is_path(const char *key)
{
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (!strcmp(key, paths[i]))
            return true;
    return false;
}

vptq_status vptq_manifest_expect(const char *path, const json_t *want, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    json_t *old = NULL, *value;
    const char *key;
    VPTQ_TRY(vptq_json_load(path, JSON_LIMIT, &old, err));
    VPTQ_TRY(vptq_json_unseal(old, path, err));
    json_object_foreach((json_t *)(uintptr_t)want, key, value)
    {
        if (!st && !is_path(key) && !same(member(old, key), member(want, key)))
            st = differ(path, key, member(old, key), member(want, key), err);
    }
    json_object_foreach(old, key, value)
    {
        if (!st && !is_path(key) && !same(member(old, key), member(want, key)))
            st = differ(path, key, member(old, key), member(want, key), err);
    }
out:
    json_decref(old);
    return st;
}

/* ---- the directory ---- */

vptq_status vptq_matrix_path(const vptq_quantizer *q, uint32_t layer, vptq_linear l,
                             char path[PATH_MAX], vptq_err *err)
{
    char name[VPTQ_LAYER_FILE_NAME_MAX];
    vptq_layer_file_name(name, layer, vptq_linear_name(q->model.desc, l).text);
    return vptq_path_join(path, PATH_MAX, q->opt->work, name, err);
}

/* Removes a file, if it is there. */
static vptq_status remove_file(const char *work, const char *name, vptq_err *err)
{
    char path[PATH_MAX];
    VPTQ_CHECK(vptq_path_join(path, sizeof path, work, name, err));
    return vptq_path_exists(path) ? vptq_file_remove(path, err) : VPTQ_OK;
}

vptq_status vptq_work_forget_outputs(const char *work, vptq_err *err)
{
    return remove_file(work, VPTQ_OUTPUTS_FILE, err);
}

vptq_status vptq_work_clear(const char *work, bool keep_self_text, vptq_mem *mem, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    char **names = NULL;
    size_t count = 0;

    vptq_arena_init(&arena, mem);
    VPTQ_TRY(remove_file(work, VPTQ_WORK_REPORT, err));
    VPTQ_TRY(remove_file(work, VPTQ_TUNE_STATE_FILE, err));
    VPTQ_TRY(remove_file(work, VPTQ_E2E_ORIGINAL_FILE, err));
    if (!keep_self_text)
        VPTQ_TRY(remove_file(work, VPTQ_SELF_TEXT_FILE, err));
    VPTQ_TRY(vptq_work_forget_outputs(work, err));
    VPTQ_TRY(vptq_dir_list(work, &arena, &names, &count, err));
    for (size_t i = 0; i < count; i++)
        if (vptq_layer_file_is(names[i]))
            VPTQ_TRY(remove_file(work, names[i], err));
out:
    vptq_arena_release(&arena);
    return st;
}

/* Whether the tools write a file of this name in a work directory, temporary ones included. */
static bool is_work_file(const char *name)
{
    static const char *const ours[] = {"lock",
                                       VPTQ_WORK_FILE,
                                       VPTQ_WORK_REPORT,
                                       VPTQ_SENSITIVITY_FILE,
                                       VPTQ_OUTPUTS_FILE,
                                       VPTQ_HIDDEN_FILE,
                                       VPTQ_SALIENCY_FILE,
                                       VPTQ_SELF_TEXT_FILE,
                                       VPTQ_TUNE_STATE_FILE,
                                       VPTQ_E2E_ORIGINAL_FILE,
                                       VPTQ_MEASURED_FILE};
    const char *end = strstr(name, ".tmp.");
    char base[VPTQ_LAYER_FILE_NAME_MAX];

    snprintf(base, sizeof base, "%.*s", end ? (int)(end - name) : (int)strlen(name), name);
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (!strcmp(base, ours[i]))
            return true;
    return vptq_layer_file_is(base) ||
           !strncmp(base, VPTQ_SPILL_FILE, sizeof VPTQ_SPILL_FILE - 1);
}

vptq_status vptq_work_remove(const char *dir, vptq_mem *mem, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    char path[PATH_MAX], **names;
    const char *other = NULL;
    size_t count = 0;

    vptq_arena_init(&arena, mem);
    VPTQ_TRY(vptq_dir_list(dir, &arena, &names, &count, err));
    for (size_t i = 0; i < count; i++) {
        if (is_work_file(names[i])) {
            VPTQ_TRY(vptq_path_join(path, sizeof path, dir, names[i], err));
            VPTQ_TRY(vptq_file_remove(path, err));
        } else {
            other = names[i];
        }
    }
    if (other)
        st = vptq_fail(err, VPTQ_E_EXISTS, "'%s' is kept: it holds '%s'", dir, other);
    else if (rmdir(dir))
        st = vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot remove directory '%s'", dir);
out:
    vptq_arena_release(&arena);
    return st;
}

vptq_status vptq_work_check_own(const vptq_quantizer *q, vptq_err *err)
{
    /* what measurements for a budget write comes before the manifest */
    static const char *const ours[] = {VPTQ_SENSITIVITY_FILE, VPTQ_SALIENCY_FILE};
    char path[PATH_MAX];

    VPTQ_CHECK(vptq_path_join(path, sizeof path, q->opt->work, "hessian.json", err));
    const bool hessians = vptq_path_exists(path); /* collecting them leaves saliencies, too */
    for (size_t i = 0; i < sizeof ours / sizeof *ours && !hessians; i++) {
        VPTQ_CHECK(vptq_path_join(path, sizeof path, q->opt->work, ours[i], err));
        if (vptq_path_exists(path))
            return VPTQ_OK;
    }
    return vptq_dir_check_own(q->opt->work, VPTQ_WORK_FILE, "a work directory",
                              q->dev->ctx->mem, err);
}

/* Reads the manifest at `path` and compares it. */
static vptq_status compare_file(const vptq_quantizer *q, const char *path, bool early,
                                vptq_err *err)
{
    json_t *old = NULL;
    vptq_status st = vptq_json_load(path, JSON_LIMIT, &old, err);
    if (!st)
        st = vptq_json_unseal(old, path, err);
    if (!st)
        st = compare_manifest(q, path, old, early, err);
    json_decref(old);
    return st;
}

/* *has: a manifest at `path`, in a directory that has something to lose. */
static vptq_status has_manifest(const vptq_quantizer *q, char path[PATH_MAX], bool *has,
                                vptq_err *err)
{
    bool unused;
    VPTQ_CHECK(vptq_path_join(path, PATH_MAX, q->opt->work, VPTQ_WORK_FILE, err));
    VPTQ_CHECK(vptq_dir_find_unused(q->opt->work, VPTQ_WORK_FILE, NULL, q->dev->ctx->mem,
                                    &unused, err));
    *has = !unused && vptq_path_exists(path);
    return VPTQ_OK;
}

bool vptq_manifest_exists(const vptq_quantizer *q)
{
    char path[PATH_MAX];
    return q->opt->work &&
           !vptq_path_join(path, sizeof path, q->opt->work, VPTQ_WORK_FILE, NULL) &&
           vptq_path_exists(path);
}

vptq_status vptq_manifest_check(vptq_quantizer *q, bool early, vptq_err *err)
{
    char path[PATH_MAX];
    bool has;
    if (q->opt->force)
        return VPTQ_OK;
    VPTQ_CHECK(has_manifest(q, path, &has, err));
    if (!has)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_manifest_make(q, err));
    const vptq_status st = compare_file(q, path, early, err);
    json_decref(q->manifest);
    q->manifest = NULL;
    return st;
}

vptq_status vptq_manifest_check_write(const vptq_quantizer *q, vptq_err *err)
{
    char path[PATH_MAX];
    VPTQ_CHECK(vptq_dir_check_fill(q->opt->work, err));
    VPTQ_CHECK(vptq_path_join(path, sizeof path, q->opt->work, VPTQ_WORK_FILE, err));
    return vptq_file_check_target(path, true, err);
}

vptq_status vptq_manifest_drop_unused(const vptq_quantizer *q, vptq_err *err)
{
    char path[PATH_MAX];
    bool has;
    VPTQ_CHECK(has_manifest(q, path, &has, err));
    return has ? VPTQ_OK : remove_file(q->opt->work, VPTQ_WORK_FILE, err);
}

vptq_status vptq_manifest_open(const vptq_quantizer *q, vptq_err *err)
{
    char path[PATH_MAX];
    vptq_err why = {0};
    bool has;

    VPTQ_CHECK(has_manifest(q, path, &has, err));
    const vptq_status st = has ? compare_file(q, path, false, &why) : VPTQ_OK;
    if (st && !q->opt->force)
        return vptq_fail(err, st, "%s", why.text);
    if (st)
        VPTQ_CHECK(vptq_work_clear(q->opt->work, false, q->dev->ctx->mem, err));
    return vptq_json_save_sealed(path, q->manifest, err);
}
