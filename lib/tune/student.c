/* Collects what a packed model stores into one array, and rounds it. */
#include "lib/tune/student.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/grid.h"
#include "lib/base/half.h"

enum { KINDS = VPTQ_TRAIN_BIAS + 1 };

/* The array of a kind within a matrix: `groups` tensors of `count` numbers, in vectors of v. */
typedef struct part {
    const float *from;
    size_t groups, count;
    uint32_t v;
} part;

static part part_of(const vptq_vq *q, vptq_train_kind kind)
{
    const vptq_vq_shape *s = &q->shape;
    switch (kind) {
    case VPTQ_TRAIN_CENTROIDS:
        return (part){q->centroids, s->groups, (size_t)s->k * s->v, s->v};
    case VPTQ_TRAIN_RES_CENTROIDS:
        return (part){q->res_centroids, s->k_res ? s->groups : 0, (size_t)s->k_res * s->v,
                      s->v};
    case VPTQ_TRAIN_OUTLIER_CENTROIDS:
        return (part){q->outlier_centroids, s->outliers > 0, (size_t)s->k0 * s->v0, s->v0};
    case VPTQ_TRAIN_SCALE:
        return (part){q->scale, q->scale != NULL, s->in, 1};
    case VPTQ_TRAIN_BIAS:
    default:
        return (part){q->bias, q->scale != NULL, s->in, 1};
    }
}

static size_t matrices_of(const vptq_model *m)
{
    return (size_t)m->desc->layers * VPTQ_LINEAR_DENSE;
}

static const vptq_weight *weight_of(const vptq_model *m, size_t i)
{
    return &m->blocks[i / VPTQ_LINEAR_DENSE].linear[i % VPTQ_LINEAR_DENSE];
}

static void count_all(vptq_student *s)
{
    for (size_t i = 0; i < matrices_of(s->m); i++)
        for (int k = 0; weight_of(s->m, i)->packed && k < KINDS; k++) {
            const part p = part_of(&weight_of(s->m, i)->packed->vq, (vptq_train_kind)k);
            s->tensor_count += p.groups;
            s->count += p.groups * p.count;
        }
}

static vptq_status allocate(vptq_student *s, vptq_err *err)
{
    const size_t matrices = matrices_of(s->m);
    float **const arrays[] = {&s->master, &s->stored, &s->original};
    s->weight = vptq_arena_alloc(&s->arena, matrices, sizeof *s->weight, err);
    s->matrix = vptq_arena_zalloc(&s->arena, matrices, sizeof *s->matrix, err);
    s->first = vptq_arena_zalloc(&s->arena, matrices, sizeof *s->first, err);
    s->tensors = vptq_arena_alloc(&s->arena, s->tensor_count, sizeof *s->tensors, err);
    if (!s->weight || !s->matrix || !s->first || !s->tensors)
        return VPTQ_E_NOMEM;
    s->ones = vptq_arena_alloc(&s->arena, VPTQ_VQ_MAX_K, sizeof *s->ones, err);
    for (size_t i = 0; s->ones && i < VPTQ_VQ_MAX_K; i++)
        s->ones[i] = 1;
    if (!s->ones)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        *arrays[i] = vptq_arena_alloc(&s->arena, s->count, sizeof **arrays[i], err);
        if (!*arrays[i])
            return VPTQ_E_NOMEM;
    }
    return VPTQ_OK;
}

/* Takes over the numbers of a packed matrix from *at on. */
static void take_matrix(vptq_student *s, size_t i, size_t *tensor, size_t *at)
{
    const vptq_packed_matrix *from = weight_of(s->m, i)->packed;
    vptq_packed_matrix *to = &s->matrix[i];
    const float *stored[KINDS];
    float scale;
    s->first[i] = *at;
    for (int k = 0; k < KINDS; k++) {
        const part p = part_of(&from->vq, (vptq_train_kind)k);
        stored[k] = p.groups ? s->stored + *at : NULL;
        if (p.groups)
            memcpy(s->original + *at, p.from, p.groups * p.count * sizeof *p.from);
        for (size_t g = 0; g < p.groups; g++, *at += p.count)
            s->tensors[(*tensor)++] = (vptq_trainable){
                .layer = (uint32_t)(i / VPTQ_LINEAR_DENSE),
                .group = (uint32_t)g,
                .linear = (vptq_linear)(i % VPTQ_LINEAR_DENSE),
                .kind = (vptq_train_kind)k,
                .at = *at,
                .count = p.count,
                .v = p.v,
                .grid = k < VPTQ_TRAIN_SCALE &&
                        vptq_grid_find(p.from + g * p.count, p.count, &scale, NULL)};
    }
    *to = *from;
    to->vq.centroids = stored[VPTQ_TRAIN_CENTROIDS];
    to->vq.res_centroids = stored[VPTQ_TRAIN_RES_CENTROIDS];
    to->vq.outlier_centroids = stored[VPTQ_TRAIN_OUTLIER_CENTROIDS];
    to->vq.scale = stored[VPTQ_TRAIN_SCALE];
    to->vq.bias = stored[VPTQ_TRAIN_BIAS];
    s->weight[i].packed = to;
}

vptq_status vptq_student_open(const vptq_ctx *ctx, const vptq_model *m, vptq_student *s,
                              vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    size_t tensor = 0, at = 0;
    *s = (vptq_student){.m = m};
    vptq_arena_init(&s->arena, ctx->mem);
    count_all(s);
    if (!s->count)
        return vptq_fail(err, VPTQ_E_ARG,
                         "'%s' has nothing to train: none of its linear layers is packed",
                         m->ckpt.path);
    VPTQ_TRY(allocate(s, err));
    for (size_t i = 0; i < matrices_of(m); i++) {
        s->weight[i] = *weight_of(m, i);
        if (s->weight[i].packed)
            take_matrix(s, i, &tensor, &at);
    }
    memcpy(s->master, s->original, s->count * sizeof *s->master);
    memcpy(s->stored, s->original, s->count * sizeof *s->stored);
out:
    if (st)
        vptq_student_release(s);
    return st;
}

void vptq_student_release(vptq_student *s)
{
    vptq_arena_release(&s->arena);
    *s = (vptq_student){.m = NULL};
}

/* Rounds a codebook to the grid that changes it least; one that has left the range of the
 * storage type stays as it is. */
static void round_to_grid(const vptq_student *s, const vptq_trainable *t, vptq_dtype storage)
{
    const float scale =
        vptq_grid_choose(storage, t->count / t->v, t->v, s->master + t->at, s->ones);
    if (scale == 0)
        return;
    memcpy(s->stored + t->at, s->master + t->at, t->count * sizeof *s->stored);
    vptq_grid_round(scale, s->stored + t->at, t->count);
}

vptq_tensor_range vptq_student_range(const vptq_student *s, uint32_t first, uint32_t end)
{
    vptq_tensor_range r = {0};
    while (r.first < s->tensor_count && s->tensors[r.first].layer < first)
        r.at += s->tensors[r.first++].count;
    for (r.end = r.first; r.end < s->tensor_count && s->tensors[r.end].layer < end; r.end++)
        r.count += s->tensors[r.end].count;
    return r;
}

void vptq_student_round(vptq_student *s, const vptq_tensor_range *range)
{
    memcpy(s->stored + range->at, s->master + range->at, range->count * sizeof *s->stored);
    for (size_t i = range->first; i < range->end; i++) {
        const vptq_trainable *t = &s->tensors[i];
        const size_t matrix = (size_t)t->layer * VPTQ_LINEAR_DENSE + (size_t)t->linear;
        vptq_round_to_n(s->matrix[matrix].storage, s->stored + t->at, t->count);
        if (t->grid)
            round_to_grid(s, t, s->matrix[matrix].storage);
    }
}

double vptq_student_changed(const vptq_student *s)
{
    size_t changed = 0;
    for (size_t i = 0; i < s->count; i++)
        changed += s->stored[i] != s->original[i];
    return (double)changed / (double)s->count;
}

vptq_stored_gradients vptq_student_gradients(const vptq_student *s, uint32_t layer,
                                             vptq_linear l, double *all)
{
    const size_t i = (size_t)layer * VPTQ_LINEAR_DENSE + (size_t)l;
    double *at = all + s->first[i], *of[KINDS];
    for (int k = 0; k < KINDS; k++) {
        const part p = part_of(&s->matrix[i].vq, (vptq_train_kind)k);
        of[k] = p.groups ? at : NULL;
        at += p.groups * p.count;
    }
    return (vptq_stored_gradients){of[VPTQ_TRAIN_CENTROIDS], of[VPTQ_TRAIN_RES_CENTROIDS],
                                   of[VPTQ_TRAIN_OUTLIER_CENTROIDS], of[VPTQ_TRAIN_SCALE],
                                   of[VPTQ_TRAIN_BIAS]};
}

void vptq_trainable_name(const vptq_model_desc *d, const vptq_trainable *t,
                         char name[VPTQ_TRAINABLE_NAME_MAX])
{
    static const char *const kinds[KINDS] = {"centroids", "residual centroids",
                                             "outlier centroids", "scale", "bias"};
    snprintf(name, VPTQ_TRAINABLE_NAME_MAX, "layer %u %s: %s", t->layer,
             vptq_linear_name(d, t->linear).text, kinds[t->kind]);
    if (t->kind <= VPTQ_TRAIN_RES_CENTROIDS) {
        const size_t used = strlen(name);
        snprintf(name + used, VPTQ_TRAINABLE_NAME_MAX - used, " of group %u", t->group);
    }
}
