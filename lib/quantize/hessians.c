#include "lib/quantize/hessians.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "hessian/import.h"
#include "lib/base/file.h"

static void dir_release(const vptq_hessian_source *s, vptq_input_hessians *h)
{
    vptq_hessian_file_release(&h->file);
    vptq_hessian_file_release(&h->held_out_file);
    vptq_mem_free(s->mem, h->mixed);
    *h = (vptq_input_hessians){0};
}

static vptq_status load_kv(const vptq_hessian_source *s, uint32_t layer, uint32_t columns,
                           vptq_input_hessians *h, vptq_err *err)
{
    size_t count = (size_t)columns * ((size_t)columns + 1) / 2;

    h->mixed = vptq_mem_alloc(s->mem, count, sizeof *h->mixed, err);
    if (!h->mixed)
        return VPTQ_E_NOMEM;
    h->kv = h->mixed;
    return vptq_hessian_dir_load_kv(s->dir, layer, columns, s->kv_factor, s->mem, h->plain,
                                    h->mixed, err);
}

/* One file of the directory itself or of its held-out Hessians, which are all of one kind. */
static vptq_status load_file(const vptq_hessian_source *s, const char *dir, uint32_t layer,
                             vptq_input input, uint32_t columns, vptq_hessian_file *f,
                             vptq_err *err)
{
    vptq_status st = vptq_hessian_dir_load(dir, layer, input, columns, s->mem, f, err);
    if (!st && (f->diagonal != NULL) != s->diagonal)
        st = vptq_fail(err, VPTQ_E_MISMATCH,
                       "'%s': the Hessian of layer %u input %s is %s, but hessian.json says "
                       "that all are %s",
                       dir, layer, vptq_input_name(input), f->diagonal ? "a diagonal" : "whole",
                       s->diagonal ? "diagonals" : "whole");
    return st;
}

static vptq_status dir_load(const vptq_hessian_source *s, uint32_t layer, vptq_input input,
                            uint32_t columns, vptq_input_hessians *h, vptq_err *err)
{
    vptq_status st = VPTQ_OK;

    *h = (vptq_input_hessians){0};
    VPTQ_TRY(load_file(s, s->dir, layer, input, columns, &h->file, err));
    h->plain = h->file.lower;
    if (input == VPTQ_INPUT_QKV && s->kv_factor > 0)
        VPTQ_TRY(load_kv(s, layer, columns, h, err));
    if (s->held_out_dir[0]) {
        VPTQ_TRY(load_file(s, s->held_out_dir, layer, input, columns, &h->held_out_file, err));
        h->held_out = h->held_out_file.lower;
    }
out:
    if (st)
        dir_release(s, h);
    return st;
}

/* A directory of this model and of these layers. */
static vptq_status open_dir(const char *dir, const char *model, uint32_t first, uint32_t last,
                            vptq_hessian_dir *h, vptq_err *err)
{
    vptq_status st = vptq_hessian_dir_open(dir, h, err);
    if (st)
        return st;
    if (!vptq_hessian_is_of(h->model_fingerprint, model))
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "'%s' holds the hessians of another model: model_fingerprint is %s, "
                         "that of this one is %s",
                         dir, h->model_fingerprint, model);
    if (first < h->first_layer || last > h->last_layer)
        return vptq_fail(err, VPTQ_E_MISMATCH, "'%s' holds layers %u-%u, expected layers %u-%u",
                         dir, h->first_layer, h->last_layer, first, last);
    return VPTQ_OK;
}

static vptq_status take_factor(const char *dir, const vptq_hessian_dir *h, double factor,
                               double *taken, vptq_err *err)
{
    bool has_term = h->weights != VPTQ_WEIGHTS_PLAIN;

    *taken = isnan(factor) ? (has_term ? h->factor : 0) : factor;
    if (!(*taken >= 0 && isfinite(*taken)))
        return vptq_fail(err, VPTQ_E_ARG,
                         "the factor of the term of k and v is %g, expected 0 or more", *taken);
    if (*taken > 0 && !has_term)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "'%s' holds no term of k and v that a factor of %g could multiply "
                         "(vptq-hessian --weights)",
                         dir, *taken);
    return VPTQ_OK;
}

/* The place of held-out Hessians: `given`, or what `dir` keeps; "" = none. */
static vptq_status find_held_out(const char *dir, const vptq_hessian_dir *h, const char *given,
                                 char *path, size_t size, vptq_err *err)
{
    if (!given && h->held_out_tokens)
        return vptq_path_join(path, size, dir, VPTQ_HESSIAN_HOLDOUT, err);
    int n = snprintf(path, size, "%s", given ? given : "");
    if (n < 0 || (size_t)n >= size)
        return vptq_fail(err, VPTQ_E_ARG, "the path '%.80s...' is too long", given);
    return VPTQ_OK;
}

vptq_status vptq_hessian_source_open(const char *dir, const char *held_out, double kv_factor,
                                     const char *model, uint32_t first, uint32_t last,
                                     vptq_mem *mem, vptq_hessian_source *s, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_hessian_dir h, other;

    *s =
        (vptq_hessian_source){.load = dir_load, .release = dir_release, .mem = mem, .dir = dir};
    VPTQ_TRY(open_dir(dir, model, first, last, &h, err));
    VPTQ_TRY(take_factor(dir, &h, kv_factor, &s->kv_factor, err));
    memcpy(s->fingerprint, h.fingerprint, sizeof s->fingerprint);
    s->tokens = h.tokens;
    s->diagonal = h.diagonal;
    VPTQ_TRY(find_held_out(dir, &h, held_out, s->held_out_dir, sizeof s->held_out_dir, err));
    if (!s->held_out_dir[0])
        goto out;
    VPTQ_TRY(open_dir(s->held_out_dir, model, first, last, &other, err));
    if (other.diagonal != h.diagonal)
        st = vptq_fail(err, VPTQ_E_MISMATCH, "'%s' holds %s, expected %s as in '%s'",
                       s->held_out_dir,
                       other.diagonal ? "diagonals of Hessians" : "whole Hessians",
                       h.diagonal ? "diagonals" : "whole ones", dir);
    else if (!strcmp(other.fingerprint, h.fingerprint))
        st = vptq_fail(err, VPTQ_E_MISMATCH,
                       "'%s' and '%s' hold the hessians of the same tokens", dir,
                       s->held_out_dir);
    memcpy(s->held_out_fingerprint, other.fingerprint, sizeof s->held_out_fingerprint);
out:
    return st;
}

void vptq_hessians_of(const vptq_input_hessians *h, vptq_linear l, vptq_encoder_input *input)
{
    input->lower = h->plain;
    input->metric = l == VPTQ_LINEAR_K || l == VPTQ_LINEAR_V ? h->kv : NULL;
    input->held_out = h->held_out;
}
