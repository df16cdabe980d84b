/* A Hessian directory: its hessian.json, reading its files, and the rows of --show. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/json.h"
#include "hessian/dir.h"
#include "lib/base/file.h"

enum { DIR_FORMAT = 1, JSON_LIMIT = 1 << 20 };

static vptq_status get_hex(const json_t *doc, const char *path, const char *key, char out[17],
                           vptq_err *err)
{
    const char *s;
    VPTQ_CHECK(vptq_json_str_or(doc, path, key, NULL, &s, err));
    if (strlen(s) != 16 || strspn(s, "0123456789abcdef") != 16)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' is '%.40s', expected 16 hex digits",
                         path, key, s);
    memcpy(out, s, 17);
    return VPTQ_OK;
}

/* Reads the optional keys. */
static vptq_status get_weights(const json_t *doc, const char *path, vptq_hessian_dir *h,
                               vptq_err *err)
{
    const char *name;
    VPTQ_CHECK(vptq_json_str_or(doc, path, "weights", "plain", &name, err));
    VPTQ_CHECK(vptq_json_f64_or(doc, path, "weights_factor", 0, &h->factor, err));
    VPTQ_CHECK(vptq_json_u64_or(doc, path, "held_out_tokens", UINT64_MAX >> 1, 0,
                                &h->held_out_tokens, err));
    h->weights = vptq_token_weights_find(name, strlen(name));
    if (h->weights == VPTQ_WEIGHTS_COUNT)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: key 'weights' is '%.40s', expected plain, sink, attention or "
                         "guided",
                         path, name);
    if (vptq_term_check(h->weights, h->factor, NULL))
        return vptq_fail(
            err, VPTQ_E_FORMAT, "%s: key 'weights_factor' is %g, expected %s", path, h->factor,
            h->weights == VPTQ_WEIGHTS_GUIDED ? "0 to 1" : "zero or a positive number");
    return VPTQ_OK;
}

/* Reads the optional key `experts`: which inputs the layers have. */
static vptq_status get_experts(const json_t *doc, const char *path, uint64_t layers,
                               vptq_experts *x, vptq_err *err)
{
    uint64_t count;
    bool shared;
    const json_t *own = json_object_get(doc, "experts");
    const json_t *dense = json_object_get(own, "dense_layers");
    if (!own)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_json_u64(own, path, "count", VPTQ_EXPERTS_MAX, &count, err));
    VPTQ_CHECK(vptq_json_bool_or(own, path, "shared", false, &shared, err));
    x->count = (uint32_t)count;
    x->shared = shared;
    bool good = count > 0 && layers <= VPTQ_EXPERT_LAYERS_MAX && json_is_array(dense);
    for (size_t i = 0; good && i < json_array_size(dense); i++) {
        const json_t *item = json_array_get(dense, i);
        const json_int_t layer = json_is_integer(item) ? json_integer_value(item) : -1;
        good = layer >= 0 && layer < (json_int_t)layers;
        if (good)
            vptq_layer_set_dense(x, (uint32_t)layer);
    }
    return good ? VPTQ_OK
                : vptq_fail(err, VPTQ_E_FORMAT,
                            "%s: key 'experts' does not hold a number of experts and the "
                            "layers of %llu without them, at most %d",
                            path, (unsigned long long)layers, (int)VPTQ_EXPERT_LAYERS_MAX);
}

static json_t *experts_json(const vptq_hessian_dir *h)
{
    json_t *dense = json_array();
    for (uint32_t layer = 0; dense && layer < h->layers; layer++)
        if (!vptq_layer_has_experts(&h->experts, layer) &&
            json_array_append_new(dense, json_integer(layer))) {
            json_decref(dense);
            dense = NULL;
        }
    return json_pack("{s:i, s:b, s:o}", "count", (int)h->experts.count, "shared",
                     h->experts.shared != 0, "dense_layers", dense);
}

vptq_status vptq_hessian_dir_open(const char *dir, vptq_hessian_dir *h, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char path[4096];
    json_t *doc = NULL;
    uint64_t format, layers, first, last;

    *h = (vptq_hessian_dir){0};
    VPTQ_TRY(vptq_path_join(path, sizeof path, dir, "hessian.json", err));
    if (!vptq_path_exists(path))
        VPTQ_TRY(vptq_fail(err, VPTQ_E_IO,
                           "'%s' is not a hessian directory (it has no hessian.json)", dir));
    VPTQ_TRY(vptq_json_load(path, JSON_LIMIT, &doc, err));
    VPTQ_TRY(vptq_json_u64(doc, path, "format", UINT32_MAX, &format, err));
    if (format != DIR_FORMAT)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_UNSUPPORTED,
                           "%s: format %" PRIu64 " (this build reads %d)", path, format,
                           DIR_FORMAT));
    VPTQ_TRY(get_hex(doc, path, "model_fingerprint", h->model_fingerprint, err));
    VPTQ_TRY(get_hex(doc, path, "fingerprint", h->fingerprint, err));
    VPTQ_TRY(vptq_json_u64(doc, path, "model_layers", VPTQ_HESSIAN_MAX_LAYERS, &layers, err));
    VPTQ_TRY(vptq_json_u64(doc, path, "first_layer", VPTQ_HESSIAN_MAX_LAYERS, &first, err));
    VPTQ_TRY(vptq_json_u64(doc, path, "last_layer", VPTQ_HESSIAN_MAX_LAYERS, &last, err));
    VPTQ_TRY(vptq_json_u64(doc, path, "tokens", UINT64_MAX >> 1, &h->tokens, err));
    VPTQ_TRY(vptq_json_bool_or(doc, path, "diagonal", false, &h->diagonal, err));
    VPTQ_TRY(vptq_json_bool_or(doc, path, "channel_ranges", false, &h->channel_ranges, err));
    VPTQ_TRY(get_weights(doc, path, h, err));
    VPTQ_TRY(get_experts(doc, path, layers, &h->experts, err));
    VPTQ_TRY(vptq_json_u64_or(json_object_get(doc, "settings"), path, "outputs",
                              UINT64_MAX >> 1, 0, &h->outputs, err));
    if (first > last || last >= layers)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_FORMAT,
                           "%s: layers %" PRIu64 "-%" PRIu64 " of a model of %" PRIu64
                           " layers",
                           path, first, last, layers));
    VPTQ_TRY(vptq_json_unseal(doc, path, err));
    h->layers = (uint32_t)layers;
    h->first_layer = (uint32_t)first;
    h->last_layer = (uint32_t)last;
out:
    json_decref(doc);
    return st;
}

vptq_status vptq_hessian_dir_save(const char *dir, const vptq_hessian_dir *h, json_t *details,
                                  vptq_err *err)
{
    char path[4096];
    VPTQ_CHECK(vptq_path_join(path, sizeof path, dir, "hessian.json", err));
    json_t *doc = json_pack("{s:i, s:s, s:s, s:i, s:i, s:i, s:I, s:O}", "format", DIR_FORMAT,
                            "fingerprint", h->fingerprint, "model_fingerprint",
                            h->model_fingerprint, "model_layers", (int)h->layers, "first_layer",
                            (int)h->first_layer, "last_layer", (int)h->last_layer, "tokens",
                            (json_int_t)h->tokens, "settings", details);
    bool whole = doc != NULL;
    if (whole && h->weights)
        whole = !json_object_set_new(doc, "weights",
                                     json_string(vptq_token_weights_name(h->weights))) &&
                !json_object_set_new(doc, "weights_factor", json_real(h->factor));
    if (whole && h->diagonal)
        whole = !json_object_set_new(doc, "diagonal", json_true());
    if (whole && h->channel_ranges)
        whole = !json_object_set_new(doc, "channel_ranges", json_true());
    if (whole && h->held_out_tokens)
        whole = !json_object_set_new(doc, "held_out_tokens",
                                     json_integer((json_int_t)h->held_out_tokens));
    if (whole && h->experts.count)
        whole = !json_object_set_new(doc, "experts", experts_json(h));
    vptq_status st = whole ? vptq_json_save_sealed(path, doc, err)
                           : vptq_fail(err, VPTQ_E_NOMEM, "%s: out of memory", path);
    json_decref(doc);
    return st;
}

vptq_status vptq_hessian_dir_compare(const char *dir, const vptq_hessian_dir *old,
                                     const vptq_hessian_dir *new, vptq_err *err)
{
    if (strcmp(old->model_fingerprint, new->model_fingerprint))
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "'%s' holds hessians of another model: key 'model_fingerprint' is %s, "
                         "this run's is %s (--force starts again)",
                         dir, old->model_fingerprint, new->model_fingerprint);
    if (old->weights != new->weights)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "'%s' holds hessians of other token weights: key 'weights' is %s, "
                         "this run's is %s (--force starts again)",
                         dir, vptq_token_weights_name(old->weights),
                         vptq_token_weights_name(new->weights));
    if (old->held_out_tokens != new->held_out_tokens)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "'%s' is a collection with %llu tokens held out, this run holds out "
                         "%llu (--force starts again)",
                         dir, (unsigned long long)old->held_out_tokens,
                         (unsigned long long)new->held_out_tokens);
    if (strcmp(old->fingerprint, new->fingerprint))
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "'%s' holds hessians of another text, seed or window length: key "
                         "'fingerprint' is %s, this run's is %s (--force starts again)",
                         dir, old->fingerprint, new->fingerprint);
    if (old->first_layer != new->first_layer || old->last_layer != new->last_layer)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "'%s' is a collection of layers %u-%u, this run is of %u-%u (--force "
                         "starts again)",
                         dir, old->first_layer, old->last_layer, new->first_layer,
                         new->last_layer);
    return VPTQ_OK;
}

vptq_status vptq_hessian_dir_find_unused(const char *dir, vptq_mem *mem, bool *unused,
                                         vptq_err *err)
{
    static const char manifest[] = "hessian.json";
    char holdout[4096];

    VPTQ_CHECK(vptq_path_join(holdout, sizeof holdout, dir, VPTQ_HESSIAN_HOLDOUT, err));
    VPTQ_CHECK(vptq_dir_find_unused(dir, manifest, VPTQ_HESSIAN_HOLDOUT, mem, unused, err));
    return *unused ? vptq_dir_find_unused(holdout, manifest, NULL, mem, unused, err) : VPTQ_OK;
}

/* Fails unless `dir` and its `inner` may be replaced. */
static vptq_status check_own(const char *dir, const char *inner, vptq_mem *mem, vptq_err *err)
{
    static const char what[] = "a hessian directory";
    char path[4096];
    VPTQ_CHECK(vptq_dir_check_own(dir, "hessian.json", what, mem, err));
    if (!inner)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_path_join(path, sizeof path, dir, inner, err));
    return vptq_dir_check_own(path, "hessian.json", what, mem, err);
}

vptq_status vptq_hessian_dir_writer_open(const char *dir, const char *inner, bool force,
                                         vptq_mem *mem, vptq_dir_writer *w, vptq_lock *lock,
                                         vptq_err *err)
{
    if (force)
        VPTQ_CHECK(check_own(dir, inner, mem, err));
    VPTQ_CHECK(vptq_dir_writer_open(dir, inner, force, w, err));
    /* a collection may be writing into it */
    return force && vptq_path_is_dir(dir) ? vptq_lock_take(dir, lock, err) : VPTQ_OK;
}

/* ---- its files ---- */

vptq_status vptq_hessian_dir_file(char path[4096], const char *dir, uint32_t layer,
                                  const char *input, vptq_err *err)
{
    char name[64];
    vptq_hessian_file_name(name, layer, input);
    return vptq_path_join(path, 4096, dir, name, err);
}

vptq_status vptq_hessian_dir_writer_check(const char *dir, const char *inner, bool force,
                                          vptq_mem *mem, vptq_err *err)
{
    if (force)
        VPTQ_CHECK(check_own(dir, inner, mem, err));
    return vptq_dir_check_target(dir, inner, force, err);
}

/* Sets `path` to its file.  Fails if that is missing. */
static vptq_status find_entry(const vptq_hessian_entry *s, char path[4096], vptq_err *err)
{
    VPTQ_CHECK(vptq_hessian_dir_file(path, s->dir, s->layer, s->input, err));
    if (vptq_path_exists(path))
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_FORMAT,
                     "'%s' has no hessian of layer %u input %s (%s is missing; if its "
                     "collection was interrupted, run vptq-hessian again)",
                     s->dir, s->layer, s->input, vptq_path_base(path));
}

vptq_status vptq_hessian_dir_find(const char *dir, uint32_t layer, const char *input,
                                  vptq_err *err)
{
    char path[4096];
    return find_entry(&(vptq_hessian_entry){.dir = dir, .layer = layer, .input = input}, path,
                      err);
}

static vptq_status measure_file(const char *dir, uint32_t layer, const char *input,
                                vptq_hessian_plan *p, vptq_err *err)
{
    const vptq_hessian_entry e = {.dir = dir, .layer = layer, .input = input};
    char path[4096];
    vptq_file file;
    VPTQ_CHECK(find_entry(&e, path, err));
    VPTQ_CHECK(vptq_file_open(path, &file, err));
    p->bytes += file.size;
    p->largest = file.size > p->largest ? file.size : p->largest;
    vptq_file_close(&file);
    return VPTQ_OK;
}

vptq_status vptq_hessian_dir_measure(const char *dir, const vptq_hessian_dir *h,
                                     vptq_hessian_plan *p, vptq_err *err)
{
    for (uint32_t layer = h->first_layer; layer <= h->last_layer; layer++) {
        for (int i = 0; i < vptq_input_count(&h->experts); i++)
            if (vptq_input_exists(&h->experts, layer, i))
                VPTQ_CHECK(measure_file(dir, layer, vptq_input_name(i).text, p, err));
        for (int i = 0; i < VPTQ_LINEAR_DENSE; i++)
            if (vptq_term_of(h->weights, (vptq_linear)i) == (vptq_linear)i)
                VPTQ_CHECK(measure_file(dir, layer, vptq_term_name(h->weights, (vptq_linear)i),
                                        p, err));
    }
    /* a triangle is more than half of its square */
    p->columns = (uint64_t)ceil(sqrt((double)p->largest * 2 / sizeof(float)));
    return VPTQ_OK;
}

vptq_status vptq_hessian_dir_check_files(const char *dir, const vptq_hessian_dir *h,
                                         vptq_err *err)
{
    for (uint32_t layer = h->first_layer; layer <= h->last_layer; layer++) {
        for (int i = 0; i < vptq_input_count(&h->experts); i++) {
            const vptq_short_name name = vptq_input_name(i);
            if (vptq_input_exists(&h->experts, layer, i))
                VPTQ_CHECK(vptq_hessian_dir_find(dir, layer, name.text, err));
        }
        for (int i = 0; i < VPTQ_LINEAR_DENSE; i++) {
            const vptq_linear l = (vptq_linear)i;
            if (vptq_term_of(h->weights, l) == l)
                VPTQ_CHECK(
                    vptq_hessian_dir_find(dir, layer, vptq_term_name(h->weights, l), err));
        }
    }
    return VPTQ_OK;
}

/* Reads a Hessian, its diagonal or a term, NaN included; `path` is that of the file. */
static vptq_status read_entry(const vptq_hessian_entry *s, uint32_t n, vptq_mem *mem,
                              char path[4096], vptq_hessian_file *h, vptq_err *err)
{
    VPTQ_CHECK(find_entry(s, path, err));
    VPTQ_CHECK(vptq_hessian_file_read(path, n, mem, h, err));
    if (h->kind == s->kind)
        return VPTQ_OK;
    const vptq_token_weights found = h->kind;
    vptq_hessian_file_release(h);
    return vptq_fail(err, VPTQ_E_MISMATCH, "%s holds token weights of kind %s, expected %s",
                     path, vptq_token_weights_name(found), vptq_token_weights_name(s->kind));
}

vptq_status vptq_hessian_entry_load(const vptq_hessian_entry *s, uint32_t n, vptq_mem *mem,
                                    vptq_hessian_file *h, vptq_err *err)
{
    char path[4096];
    VPTQ_CHECK(read_entry(s, n, mem, path, h, err));
    vptq_status st = vptq_hessian_file_check(h, path, err);
    if (!st && h->diagonal && !n)
        st =
            vptq_fail(err, VPTQ_E_UNSUPPORTED, "%s holds only the diagonal of a Hessian", path);
    else if (!st && h->diagonal)
        st = vptq_hessian_file_expand(h, err);
    if (st)
        vptq_hessian_file_release(h);
    return st;
}

vptq_status vptq_hessian_dir_load(const char *dir, uint32_t layer, vptq_input input, uint32_t n,
                                  vptq_mem *mem, vptq_hessian_file *h, vptq_err *err)
{
    const vptq_short_name name = vptq_input_name(input);
    const vptq_hessian_entry s = {.dir = dir, .layer = layer, .input = name.text};
    return vptq_hessian_entry_load(&s, n, mem, h, err);
}

vptq_status vptq_hessian_dir_load_mixed(const char *dir, uint32_t layer,
                                        const vptq_hessian_mix *m,
                                        const vptq_hessian_file *plain, vptq_mem *mem,
                                        float *mixed, vptq_err *err)
{
    const vptq_hessian_entry e = {dir, layer, vptq_term_name(m->kind, m->term), m->kind};
    vptq_hessian_file term;

    VPTQ_CHECK(vptq_hessian_entry_load(&e, plain->n, mem, &term, err));
    vptq_term_mix(m->kind, m->factor, vptq_triangle(plain->n), plain->lower, term.lower, mixed);
    vptq_hessian_file_release(&term);
    return VPTQ_OK;
}

/* ---- show ---- */

typedef struct show {
    vptq_device *dev;
    vptq_hessian_entry entry;
    vptq_hessian_row_fn fn;
    void *arg;
    bool expert;
} show;

static vptq_status show_file(const show *s, const vptq_hessian_file *file, vptq_err *err)
{
    vptq_hessian_stats stats;
    VPTQ_CHECK(vptq_hessian_describe(s->dev, file, &stats, err));
    if (s->expert && !file->tokens)
        stats.verdict = "no tokens";
    return s->fn(s->arg, s->entry.layer, s->entry.input, &stats, err);
}

/* The row of the Hessian that linear layers with a term are quantized with. */
static vptq_status show_mixed(show *s, const vptq_hessian_dir *h, vptq_linear l,
                              const vptq_hessian_file *plain, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char path[4096];
    vptq_mem *mem = s->dev->ctx->mem;
    vptq_hessian_file term = {.n = 0}, mixed = *plain;
    float *lower = vptq_mem_alloc(mem, vptq_triangle(plain->n), sizeof *lower, err);

    if (!lower)
        return VPTQ_E_NOMEM;
    s->entry.input = vptq_term_name(h->weights, l);
    s->entry.kind = h->weights;
    VPTQ_TRY(read_entry(&s->entry, plain->n, mem, path, &term, err));
    vptq_term_mix(h->weights, h->factor, vptq_triangle(plain->n), plain->lower, term.lower,
                  lower);
    mixed.lower = lower;
    VPTQ_TRY(show_file(s, &mixed, err));
out:
    vptq_hessian_file_release(&term);
    vptq_mem_free(mem, lower);
    return st;
}

vptq_status vptq_hessian_show(vptq_device *dev, const char *dir, vptq_hessian_row_fn fn,
                              void *arg, vptq_err *err)
{
    char path[4096];
    vptq_hessian_dir h;
    vptq_status st = vptq_hessian_dir_open(dir, &h, err);

    for (uint32_t layer = h.first_layer; !st && layer <= h.last_layer; layer++)
        for (int i = 0; !st && i < vptq_input_count(&h.experts); i++) {
            vptq_hessian_file file;
            const vptq_short_name name = vptq_input_name(i);
            show s = {dev, {dir, layer, name.text, 0}, fn, arg, vptq_input_expert(i) >= 0};
            if (!vptq_input_exists(&h.experts, layer, i))
                continue;
            st = vptq_check_cancel(dev->ctx, err);
            if (!st)
                st = read_entry(&s.entry, 0, dev->ctx->mem, path, &file, err);
            if (st)
                break;
            st = show_file(&s, &file, err);
            for (int l = 0; !st && !file.diagonal && l < VPTQ_LINEAR_DENSE; l++)
                if ((int)vptq_linear_input((vptq_linear)l) == i &&
                    vptq_term_of(h.weights, (vptq_linear)l) == (vptq_linear)l)
                    st = show_mixed(&s, &h, (vptq_linear)l, &file, err);
            vptq_hessian_file_release(&file);
        }
    return st;
}
