/* Lists a model: one row per matrix and tensor. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/pack/package.h"

typedef struct listing {
    const vptq_checkpoint *c;
    vptq_archive *archive; /* NULL for other kinds */
    vptq_list_row *rows;
    size_t count;
    double bits, weights; /* of all quantized matrices */
} listing;

/* Compares numbers inside names as numbers, so that layer 10 comes after layer 9. */
static int compare_names(const char *a, const char *b)
{
    while (*a && *b) {
        size_t na = strspn(a, "0123456789"), nb = strspn(b, "0123456789");
        if (na && nb) {
            unsigned long long x = strtoull(a, NULL, 10), y = strtoull(b, NULL, 10);
            if (x != y)
                return x < y ? -1 : 1;
            a += na;
            b += nb;
            continue;
        }
        if (*a != *b)
            break;
        a++;
        b++;
    }
    return (unsigned char)*a - (unsigned char)*b;
}

static int by_name(const void *a, const void *b)
{
    const vptq_list_row *x = a, *y = b;
    int order = compare_names(x->name, y->name);
    return order ? order : strcmp(x->name, y->name);
}

/* Bytes of a tensor in the archive. */
static uint64_t archived_bytes(const listing *l, const char *tensor)
{
    const vptq_archive_entry *e = vptq_archive_find(l->archive, tensor, true);
    return e ? e->packed_size : 0;
}

/* Index of the weight of uniform or additive codes that an archived tensor is a part of; -1 if
 * it is none.  Parts are called MODULE.PART or MODULE.PART.STAGE. */
static ptrdiff_t coded_of(const vptq_checkpoint *c, const char *part)
{
    size_t n = strlen(part);
    char weight[VPTQ_NAME_MAX + 8];
    const vptq_tensor *same = vptq_tensor_find(&c->set, part), *t = NULL;
    if (same && !same->uniform && !same->additive)
        return -1; /* a bias */
    for (int i = 0; i < 2; i++) {
        while (n > 0 && part[n - 1] != '.')
            n--;
        if (n == 0 || n > VPTQ_NAME_MAX)
            return -1;
        snprintf(weight, sizeof weight, "%.*sweight", (int)n, part);
        t = vptq_tensor_find(&c->set, weight);
        if (t && (t->uniform || t->additive))
            return t - c->set.tensors;
        n--;
    }
    return -1;
}

/* Bytes of the weights of uniform and additive codes in an archive: sums over their parts. */
static void measure_coded(const listing *l, uint64_t *bytes)
{
    memset(bytes, 0, l->c->set.count * sizeof *bytes);
    for (size_t i = 0; l->archive && i < vptq_archive_count(l->archive); i++) {
        const vptq_archive_entry *e = vptq_archive_at(l->archive, i);
        const ptrdiff_t t = e->is_tensor ? coded_of(l->c, e->name) : -1;
        if (t >= 0)
            bytes[t] += e->packed_size;
    }
}

/* Bytes of each matrix; in an archive the sum over its tensors. */
static void measure_matrices(const listing *l, uint64_t *bytes)
{
    const vptq_checkpoint *c = l->c;
    for (size_t i = 0; i < c->quantized_count; i++)
        bytes[i] = l->archive ? 0 : vptq_vq_count_bits(&c->quantized[i].vq.shape).total / 8;
    for (size_t i = 0; l->archive && i < c->set.count; i++) {
        const char *name = c->set.tensors[i].name;
        const vptq_packed_matrix *m = vptq_package_matrix_of(c, name);
        if (m && vptq_packed_module_length(name))
            bytes[m - c->quantized] += archived_bytes(l, name);
    }
}

static void add_matrix(listing *l, const vptq_packed_matrix *m, uint64_t bytes)
{
    l->rows[l->count++] = (vptq_list_row){.name = m->name,
                                          .quantized = true,
                                          .vectors = true,
                                          .rows = m->vq.shape.out,
                                          .columns = m->vq.shape.in,
                                          .shape = m->vq.shape,
                                          .bits = vptq_vq_count_bits(&m->vq.shape),
                                          .dtype = vptq_dtype_get(m->storage)->name,
                                          .bytes = bytes};
}

static void add_uniform(listing *l, const vptq_tensor *t, uint64_t archived)
{
    l->rows[l->count++] = (vptq_list_row){.name = t->name,
                                          .quantized = true,
                                          .rows = t->uniform->shape.out,
                                          .columns = t->uniform->shape.in,
                                          .bits = vptq_uniform_count_bits(&t->uniform->shape),
                                          .dtype = vptq_dtype_get(t->type)->name,
                                          .bytes = l->archive ? archived : t->bytes};
}

static void add_additive(listing *l, const vptq_tensor *t, uint64_t archived)
{
    const vptq_vq_bits bits = vptq_additive_count_bits(&t->additive->shape);
    l->rows[l->count++] = (vptq_list_row){.name = t->name,
                                          .quantized = true,
                                          .rows = t->additive->shape.out,
                                          .columns = t->additive->shape.in,
                                          .bits = bits,
                                          .dtype = vptq_dtype_get(t->type)->name,
                                          .bytes = l->archive ? archived : bits.total / 8};
}

static void add_plain(listing *l, const vptq_tensor *t)
{
    l->rows[l->count++] =
        (vptq_list_row){.name = t->name,
                        .rows = (uint32_t)vptq_tensor_rows(t),
                        .columns = (uint32_t)vptq_tensor_cols(t),
                        .dtype = vptq_dtype_get(t->type)->name,
                        .bytes = l->archive ? archived_bytes(l, t->name) : t->bytes};
}

static void add_tensor(listing *l, const vptq_tensor *t, uint64_t archived)
{
    if (t->uniform)
        add_uniform(l, t, archived);
    else if (t->additive)
        add_additive(l, t, archived);
    else
        add_plain(l, t);
}

static vptq_status list_rows(const vptq_ctx *ctx, listing *l, vptq_list_fn fn, void *arg,
                             vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_checkpoint *c = l->c;
    l->rows = vptq_mem_alloc(ctx->mem, c->set.count + c->quantized_count, sizeof *l->rows, err);
    uint64_t *bytes = vptq_mem_alloc(ctx->mem, c->quantized_count, sizeof *bytes, err);
    uint64_t *coded = vptq_mem_alloc(ctx->mem, c->set.count, sizeof *coded, err);
    if (!l->rows || !bytes || !coded)
        VPTQ_TRY(VPTQ_E_NOMEM);
    measure_coded(l, coded);
    measure_matrices(l, bytes);
    for (size_t i = 0; i < c->quantized_count; i++)
        add_matrix(l, &c->quantized[i], bytes[i]);
    for (size_t i = 0; i < c->set.count; i++)
        if (!vptq_package_matrix_of(c, c->set.tensors[i].name))
            add_tensor(l, &c->set.tensors[i], coded[i]);
    for (size_t i = 0; i < l->count; i++)
        if (l->rows[i].quantized) {
            l->bits += (double)l->rows[i].bits.total;
            l->weights += (double)l->rows[i].rows * l->rows[i].columns;
        }
    if (l->count)
        qsort(l->rows, l->count, sizeof *l->rows, by_name);
    for (size_t i = 0; i < l->count && !st; i++)
        st = fn(arg, &l->rows[i], err);
out:
    vptq_mem_free(ctx->mem, coded);
    vptq_mem_free(ctx->mem, bytes);
    vptq_mem_free(ctx->mem, l->rows);
    return st;
}

vptq_status vptq_list_model(const vptq_ctx *ctx, const char *path,
                            const vptq_checkpoint_options *open, vptq_list_fn fn, void *arg,
                            uint64_t *total_bytes, double *bits_per_weight, vptq_err *err)
{
    vptq_checkpoint_options shapes = open ? *open : (vptq_checkpoint_options){0};
    vptq_checkpoint c;
    shapes.shapes_only = true;
    shapes.partial = true; /* rows say what is there */
    vptq_status st = vptq_checkpoint_open(ctx, path, &shapes, &c, err);
    if (st)
        return st;
    listing l = {.c = &c};
    if (c.kind == VPTQ_CKPT_ARCHIVE)
        VPTQ_TRY(vptq_archive_open(c.path, ctx->mem, &l.archive, err));
    VPTQ_TRY(list_rows(ctx, &l, fn, arg, err));
    VPTQ_TRY(vptq_package_path_bytes(ctx, c.path, total_bytes, err));
    *bits_per_weight = l.weights > 0 ? l.bits / l.weights : (double)NAN;
out:
    vptq_archive_close(l.archive);
    vptq_checkpoint_release(&c);
    return st;
}
