/* A directory of Hessians as the source of a quantize run. */
#include "lib/quantize/hessians.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "hessian/import.h"
#include "lib/base/file.h"

void vptq_hessians_set_outputs(const vptq_hessian_source *s, uint32_t layer, vptq_input input,
                               vptq_input_hessians *h)
{
    for (int l = 0; s->outputs.k && l < VPTQ_LINEAR_DENSE; l++)
        if (vptq_linear_input((vptq_linear)l) == input)
            h->output[l] = vptq_outputs_load(&s->outputs, layer, (vptq_linear)l);
}

static void dir_close(vptq_hessian_source *s)
{
    vptq_outputs_close(&s->outputs);
}

static void dir_release(const vptq_hessian_source *s, vptq_input_hessians *h)
{
    vptq_hessian_file_release(&h->file);
    vptq_hessian_file_release(&h->held_out_file);
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
        vptq_mem_free(s->mem, h->mixed[l]);
    *h = (vptq_input_hessians){0};
}

/* Loads the terms of the linear layers that read `input`. */
static vptq_status load_terms(const vptq_hessian_source *s, uint32_t layer, vptq_input input,
                              vptq_input_hessians *h, vptq_err *err)
{
    for (int i = 0; i < VPTQ_LINEAR_DENSE; i++) {
        const vptq_linear l = (vptq_linear)i, term = vptq_term_of(s->weights, l);
        const vptq_hessian_mix mix = {s->weights, s->kv_factor, term};
        if (term == VPTQ_LINEAR_NONE || vptq_linear_input(l) != input)
            continue;
        if (term == l) { /* the first of those that share it */
            h->mixed[l] = vptq_mem_alloc(s->mem, vptq_triangle(h->file.n), sizeof(float), err);
            if (!h->mixed[l])
                return VPTQ_E_NOMEM;
            VPTQ_CHECK(vptq_hessian_dir_load_mixed(s->dir, layer, &mix, &h->file, s->mem,
                                                   h->mixed[l], err));
        }
        h->metric[l] = h->mixed[term];
    }
    return VPTQ_OK;
}

/* Loads one file and checks that it is a diagonal or a full matrix as the others. */
static vptq_status load_file(const vptq_hessian_source *s, const char *dir, uint32_t layer,
                             vptq_input input, uint32_t columns, vptq_hessian_file *f,
                             vptq_err *err)
{
    VPTQ_CHECK(vptq_hessian_dir_load(dir, layer, input, columns, s->mem, f, err));
    if ((f->diagonal != NULL) == s->diagonal)
        return VPTQ_OK;
    return vptq_fail(
        err, VPTQ_E_MISMATCH,
        "'%s': the Hessian of layer %u input %s is a %s, hessian.json expects a %s", dir, layer,
        vptq_input_name(input).text, f->diagonal ? "diagonal" : "full matrix",
        s->diagonal ? "diagonal" : "full matrix");
}

/* Fails if the directory has been filled again since the run began: its files have no
 * fingerprints of their own. */
static vptq_status check_unchanged(const char *dir, const char *fingerprint, vptq_err *err)
{
    vptq_hessian_dir h;
    VPTQ_CHECK(vptq_hessian_dir_open(dir, &h, err));
    return strcmp(h.fingerprint, fingerprint)
               ? vptq_fail(err, VPTQ_E_MISMATCH,
                           "'%s' has other Hessians now than when this run began: its "
                           "fingerprint was %s and is %s",
                           dir, fingerprint, h.fingerprint)
               : VPTQ_OK;
}

static vptq_status dir_load(const vptq_hessian_source *s, uint32_t layer, vptq_input input,
                            uint32_t columns, vptq_input_hessians *h, vptq_err *err)
{
    vptq_status st = VPTQ_OK;

    *h = (vptq_input_hessians){0};
    VPTQ_TRY(load_file(s, s->dir, layer, input, columns, &h->file, err));
    h->plain = h->file.lower;
    h->abs_mean = h->file.abs_mean;
    h->min = h->file.min;
    h->max = h->file.max;
    if (s->kv_factor > 0)
        VPTQ_TRY(load_terms(s, layer, input, h, err));
    if (s->held_out_dir[0]) {
        VPTQ_TRY(load_file(s, s->held_out_dir, layer, input, columns, &h->held_out_file, err));
        h->held_out = h->held_out_file.lower;
        VPTQ_TRY(check_unchanged(s->held_out_dir, s->held_out_fingerprint, err));
    }
    VPTQ_TRY(check_unchanged(s->dir, s->fingerprint, err));
    vptq_hessians_set_outputs(s, layer, input, h);
out:
    if (st)
        dir_release(s, h);
    return st;
}

/* Opens a directory and checks its model and layers. */
static vptq_status open_dir(const char *dir, const vptq_hessian_source_options *o,
                            vptq_hessian_dir *h, vptq_err *err)
{
    VPTQ_CHECK(vptq_hessian_dir_open(dir, h, err));
    if (!vptq_hessian_is_of(h->model_fingerprint, o->model_fingerprint))
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "'%s' has the Hessians of another model: its model_fingerprint is %s, "
                         "this model's is %s",
                         dir, h->model_fingerprint, o->model_fingerprint);
    if (o->first_layer < h->first_layer || o->last_layer > h->last_layer)
        return vptq_fail(err, VPTQ_E_MISMATCH, "'%s' has layers %u-%u, expected layers %u-%u",
                         dir, h->first_layer, h->last_layer, o->first_layer, o->last_layer);
    return VPTQ_OK;
}

static vptq_status choose_factor(const vptq_hessian_source_options *o,
                                 const vptq_hessian_dir *h, double *factor, vptq_err *err)
{
    bool has_term = h->weights != VPTQ_WEIGHTS_PLAIN;

    *factor = isnan(o->kv_factor) ? (has_term ? h->factor : 0) : o->kv_factor;
    if (*factor > 0 && !has_term)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "'%s' has no token weights for the factor of %g; collect them with "
                         "vptq-hessian --weights",
                         o->dir, *factor);
    return vptq_term_check(h->weights, *factor, err);
}

/* Writes the directory of held-out Hessians to path: the given one, or that of o->dir; "" =
 * none.
 */
static vptq_status find_held_out(const vptq_hessian_source_options *o,
                                 const vptq_hessian_dir *h, char *path, size_t size,
                                 vptq_err *err)
{
    if (!o->held_out && h->held_out_tokens)
        return vptq_path_join(path, size, o->dir, VPTQ_HESSIAN_HOLDOUT, err);
    int n = snprintf(path, size, "%s", o->held_out ? o->held_out : "");
    if (n < 0 || (size_t)n >= size)
        return vptq_fail(err, VPTQ_E_ARG, "the path '%.80s...' is too long", o->held_out);
    return VPTQ_OK;
}

vptq_status vptq_hessian_source_open(const vptq_hessian_source_options *o, vptq_mem *mem,
                                     vptq_hessian_source *s, vptq_err *err)
{
    vptq_hessian_dir h, other;

    *s = (vptq_hessian_source){.load = dir_load,
                               .release = dir_release,
                               .close = dir_close,
                               .mem = mem,
                               .dir = o->dir};
    VPTQ_CHECK(open_dir(o->dir, o, &h, err));
    VPTQ_CHECK(choose_factor(o, &h, &s->kv_factor, err));
    memcpy(s->fingerprint, h.fingerprint, sizeof s->fingerprint);
    s->weights = h.weights;
    s->tokens = h.tokens;
    s->diagonal = h.diagonal;
    if (!o->no_outputs)
        VPTQ_CHECK(vptq_outputs_open_dir(o->dir, &h, o->desc, mem, &s->outputs, err));
    if (s->outputs.k)
        memcpy(s->output_fingerprint, s->outputs.fingerprint, sizeof s->output_fingerprint);
    VPTQ_CHECK(find_held_out(o, &h, s->held_out_dir, sizeof s->held_out_dir, err));
    if (!s->held_out_dir[0])
        return VPTQ_OK;
    VPTQ_CHECK(open_dir(s->held_out_dir, o, &other, err));
    if (other.diagonal != h.diagonal)
        return vptq_fail(err, VPTQ_E_MISMATCH, "'%s' has %s, expected %s as in '%s'",
                         s->held_out_dir,
                         other.diagonal ? "diagonals of Hessians" : "full Hessians",
                         h.diagonal ? "diagonals" : "full Hessians", o->dir);
    if (!strcmp(other.fingerprint, h.fingerprint))
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "'%s' and '%s' have the Hessians of the same tokens", o->dir,
                         s->held_out_dir);
    memcpy(s->held_out_fingerprint, other.fingerprint, sizeof s->held_out_fingerprint);
    return VPTQ_OK;
}

vptq_status vptq_hessian_source_find(const vptq_hessian_source *s, uint32_t layer,
                                     vptq_input input, vptq_err *err)
{
    const vptq_short_name name = vptq_input_name(input);
    VPTQ_CHECK(vptq_hessian_dir_find(s->dir, layer, name.text, err));
    for (int i = 0; s->kv_factor > 0 && i < VPTQ_LINEAR_DENSE; i++) {
        const vptq_linear l = (vptq_linear)i;
        if (vptq_linear_input(l) == input && vptq_term_of(s->weights, l) == l)
            VPTQ_CHECK(
                vptq_hessian_dir_find(s->dir, layer, vptq_term_name(s->weights, l), err));
    }
    return s->held_out_dir[0] ? vptq_hessian_dir_find(s->held_out_dir, layer, name.text, err)
                              : VPTQ_OK;
}

void vptq_hessians_of(const vptq_input_hessians *h, vptq_linear l, vptq_encoder_input *input)
{
    input->lower = h->plain;
    input->metric = l < VPTQ_LINEAR_DENSE ? h->metric[l] : NULL;
    input->held_out = h->held_out;
    input->output = l < VPTQ_LINEAR_DENSE ? h->output[l] : NULL;
}
