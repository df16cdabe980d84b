/* Exports Hessians as PyTorch files (hessian/import.h). */
#include <math.h>
#include <stdio.h>

#include "formats/torch/file.h"
#include "hessian/dir.h"
#include "hessian/foreign.h"
#include "lib/backend/mirror.h"
#include "lib/base/text.h"

/* Reads the imported covariance, or computes it from H. */
static vptq_status lower_to_covariance(const vptq_hessian_file *h, float *covariance,
                                       vptq_err *err)
{
    const size_t entries = vptq_triangle(h->n);
    const vptq_tensor *kept = vptq_tensor_find(&h->set, VPTQ_COVARIANCE);
    if (kept) {
        VPTQ_CHECK(vptq_tensor_need(&h->set, VPTQ_COVARIANCE, 0, entries, &kept, err));
        VPTQ_CHECK(vptq_tensor_check_finite(kept, err));
        return vptq_tensor_read(kept, 0, 1, covariance, err);
    }
    for (size_t i = 0, at = 0; i < h->n; i++)
        for (size_t j = 0; j <= i; j++, at++) {
            covariance[at] =
                (float)((double)h->lower[at] - (double)h->mean[i] * (double)h->mean[j]);
            if (!isfinite(covariance[at]))
                return vptq_fail(err, VPTQ_E_FORMAT, "%s: the mean is too large at column %zu",
                                 h->set.tensors[0].file, i);
        }
    return VPTQ_OK;
}

static vptq_status export_covariance(vptq_device *dev, const vptq_hessian_file *h,
                                     const char *to, vptq_err *err)
{
    vptq_mem *mem = dev->ctx->mem;
    const size_t entries = vptq_triangle(h->n);
    float *covariance = vptq_mem_alloc(mem, entries, sizeof *covariance, err);
    if (!covariance)
        return VPTQ_E_NOMEM;
    const vptq_torch_item items[] = {
        {.name = "flatH",
         .kind = VPTQ_TORCH_TENSOR,
         .tensor = {.dims = 1, .shape = {entries}, .data = (const uint8_t *)covariance}},
        {.name = "mu",
         .kind = VPTQ_TORCH_TENSOR,
         .tensor = {.dims = 1, .shape = {h->n}, .data = (const uint8_t *)h->mean}},
        {.name = "n", .kind = VPTQ_TORCH_INT, .i = h->n},
        {.name = "ct", .kind = VPTQ_TORCH_INT, .i = (int64_t)h->tokens},
    };
    vptq_status st = lower_to_covariance(h, covariance, err);
    if (!st)
        st = vptq_torch_write(to, false, items, sizeof items / sizeof items[0], mem, err);
    vptq_mem_free(mem, covariance);
    return st;
}

/* u [n, n] = the factor of H / mean(diag H) + ridge. */
static vptq_status factor(vptq_device *dev, const vptq_hessian_file *h, float *u, vptq_err *err)
{
    static const double damping = 0.01; /* never needed, because of the ridge */
    vptq_status st = VPTQ_OK;
    vptq_mirror m = vptq_mirror_of(dev);
    const size_t n = h->n;
    double mean = 0, added = 0;
    for (size_t i = 0; i < n; i++)
        mean += (double)h->lower[i * (i + 1) / 2 + i];
    mean /= (double)n;
    if (!(mean > 0))
        return vptq_fail(
            err, VPTQ_E_NUMERIC,
            "%s: the mean of the Hessian's diagonal is %g, expected a positive one",
            h->set.tensors[0].file, mean);
    const vptq_metric_args metric = {
        .n = n,
        .lower = vptq_mirror_in(&m, h->lower, vptq_triangle(n), sizeof *h->lower),
        .divisor = mean,
        .ridge = VPTQ_INVERSE_RIDGE};
    float *on = vptq_mirror_take(&m, u, n * n, sizeof *u, VPTQ_MIRROR_DOWNLOAD);
    VPTQ_TRY(vptq_mirror_check(&m, err));
    VPTQ_TRY(vptq_hessian_factor(dev, &metric, damping, on, &added, err));
    if (added > 0)
        VPTQ_TRY(
            vptq_fail(err, VPTQ_E_NUMERIC,
                      "%s: the Hessian is not positive definite even with the ridge of the "
                      "inverse form",
                      h->set.tensors[0].file));
out:
    return vptq_mirror_end(&m, st, err);
}

/* With an identity permutation, which is right for readers with and without act-order. */
static vptq_status export_inverse(vptq_device *dev, const vptq_hessian_file *h, const char *to,
                                  vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    const size_t n = h->n;
    vptq_arena_init(&arena, dev->ctx->mem);
    float *u = vptq_arena_alloc(&arena, n * n, sizeof *u, err);
    int64_t *order = u ? vptq_arena_alloc(&arena, n, sizeof *order, err) : NULL;
    uint8_t *dead = order ? vptq_arena_zalloc(&arena, n, 1, err) : NULL;
    if (!dead)
        VPTQ_TRY(VPTQ_E_NOMEM);
    for (size_t p = 0; p < n; p++)
        order[p] = (int64_t)p;
    VPTQ_TRY(factor(dev, h, u, err));
    const vptq_torch_item items[] = {
        {.name = "invH",
         .kind = VPTQ_TORCH_TENSOR,
         .tensor = {.dims = 2, .shape = {n, n}, .data = (const uint8_t *)u}},
        {.name = "perm",
         .kind = VPTQ_TORCH_TENSOR,
         .tensor = {.type = VPTQ_I64, .dims = 1, .shape = {n}, .data = (const uint8_t *)order}},
        {.name = "zero_idx",
         .kind = VPTQ_TORCH_TENSOR,
         .tensor = {.type = VPTQ_BOOL, .dims = 1, .shape = {n}, .data = dead}},
    };
    st = vptq_torch_write(to, false, items, sizeof items / sizeof items[0], dev->ctx->mem, err);
out:
    vptq_arena_release(&arena);
    return st;
}

/* The arrays of export_inverse. */
static uint64_t inverse_bytes(uint64_t n)
{
    return n * n * sizeof(float) + n * (sizeof(int64_t) + 1) + vptq_hessian_factor_bytes(n);
}

static vptq_status export_layers(vptq_device *dev, const char *dir, const char *to,
                                 const vptq_exchange *x, vptq_err *err)
{
    char name[64], target[4096];
    const vptq_hessian_dir *d = &x->dir;
    const uint64_t files = (uint64_t)(d->last_layer - d->first_layer + 1) * VPTQ_INPUT_DENSE;
    for (uint64_t done = 0; done < files; done++) {
        uint32_t layer = d->first_layer + (uint32_t)(done / VPTQ_INPUT_DENSE);
        vptq_input input = (vptq_input)(done % VPTQ_INPUT_DENSE);
        vptq_hessian_file h;
        VPTQ_CHECK(vptq_check_cancel(dev->ctx, err));
        vptq_foreign_name(name, layer, input, "pt");
        VPTQ_CHECK(vptq_path_join(target, sizeof target, to, name, err));
        VPTQ_CHECK(vptq_hessian_dir_load(dir, layer, input, 0, dev->ctx->mem, &h, err));
        vptq_status st = x->form == VPTQ_FOREIGN_INVERSE
                             ? export_inverse(dev, &h, target, err)
                             : export_covariance(dev, &h, target, err);
        vptq_hessian_file_release(&h);
        if (st)
            return st;
        vptq_progress(dev->ctx, "export", vptq_plural(files, "file", "files"), done + 1, files,
                      NULL);
    }
    return VPTQ_OK;
}

/* Reads the directory, and checks what it has; *inputs: without terms, which are not exported.
 */
static vptq_status begin(const char *dir, vptq_foreign_form form, vptq_exchange *read,
                         vptq_hessian_dir *inputs, vptq_err *err)
{
    *read = (vptq_exchange){.form = form,
                            .ridge = form == VPTQ_FOREIGN_INVERSE ? VPTQ_INVERSE_RIDGE : 0};
    VPTQ_CHECK(vptq_hessian_dir_open(dir, &read->dir, err));
    if (read->dir.experts.count)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "'%s' has Hessians of experts, which other programs have no names for",
                         dir);
    if (read->dir.diagonal)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "'%s' holds only the diagonals of Hessians, which cannot be exported",
                         dir);
    *inputs = read->dir;
    inputs->weights = VPTQ_WEIGHTS_PLAIN;
    return vptq_hessian_dir_check_files(dir, inputs, err);
}

vptq_status vptq_hessian_export_plan(const char *dir, vptq_foreign_form form,
                                     const char *out_dir, vptq_exchange *read,
                                     vptq_hessian_plan *plan, vptq_err *err)
{
    vptq_hessian_dir inputs;
    const bool inverse = form == VPTQ_FOREIGN_INVERSE;
    *plan = (vptq_hessian_plan){0};
    VPTQ_CHECK(begin(dir, form, read, &inputs, err));
    VPTQ_CHECK(vptq_dir_check_target(out_dir, NULL, false, err));
    VPTQ_CHECK(vptq_hessian_dir_measure(dir, &inputs, plan, err));
    plan->bytes *= inverse ? 2 : 1; /* a square, not a triangle */
    plan->memory =
        (inverse ? inverse_bytes(plan->columns) : plan->largest) + 2 * VPTQ_HESSIAN_OPEN_BYTES;
    return VPTQ_OK;
}

vptq_status vptq_hessian_export(vptq_device *dev, const char *dir, vptq_foreign_form form,
                                const char *out_dir, vptq_exchange *read, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_dir_writer writer = {0};
    vptq_hessian_dir inputs;

    VPTQ_TRY(begin(dir, form, read, &inputs, err));
    VPTQ_TRY(vptq_dir_writer_open(out_dir, NULL, false, &writer, err));
    VPTQ_TRY(export_layers(dev, dir, writer.tmp, read, err));
    VPTQ_TRY(vptq_dir_writer_commit(&writer, err));
out:
    if (st)
        vptq_dir_writer_abort(&writer);
    return st;
}
