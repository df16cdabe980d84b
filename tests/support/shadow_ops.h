/* Internal to shadow: how an op gets copies of its arrays. */
#ifndef VPTQ_TESTS_SUPPORT_SHADOW_OPS_H
#define VPTQ_TESTS_SUPPORT_SHADOW_OPS_H

#include "lib/backend/backend.h"

enum { SHADOW_MAX_COPIES = 12 };

/* One array of an op. */
typedef struct shadow_array {
    void *device, *host;
    size_t bytes;
    bool output;
} shadow_array;

typedef struct shadow {
    const vptq_backend *ops; /* of the real device */
    vptq_dev *dev;
    vptq_backend table; /* the table that tests call */
    shadow_array copies[SHADOW_MAX_COPIES];
    size_t count;
    vptq_kv_rows rows; /* of the op in progress, with device arrays */
    vptq_kv_pool pool;
} shadow;

static inline shadow *shadow_state(vptq_dev *dev)
{
    return (shadow *)(void *)dev;
}

/* Return the device's copy of an array that the op reads, or writes; NULL for NULL. */
const void *shadow_in(shadow *s, const void *host, size_t count, size_t size);
void *shadow_out(shadow *s, void *host, size_t count, size_t size);
/* Ends an op: downloads the outputs, even if it failed. */
vptq_status shadow_done(shadow *s, vptq_status st);

/* Elements from the first to the last of `rows` rows of `columns` elements, ld apart. */
size_t shadow_span(size_t rows, size_t columns, size_t ld);

/* Replace an array of the args `a` by its copy in `d`, the args for the device. */
#define IN(field, count)  (d->field = shadow_in(s, a->field, count, sizeof *a->field))
#define OUT(field, count) (d->field = shadow_out(s, a->field, count, sizeof *a->field))

/* Defines shadow_OP for an op with an args struct, whose arrays OP_arrays replaces. */
#define SHADOW_OP(op, type)                                                                    \
    vptq_status shadow_##op(vptq_dev *dev, const type *a, vptq_err *err)                       \
    {                                                                                          \
        shadow *s = shadow_state(dev);                                                         \
        type d = *a;                                                                           \
        op##_arrays(s, a, &d);                                                                 \
        return shadow_done(s, s->ops->op(s->dev, &d, err));                                    \
    }

#define SHADOW_DECLARE(op) vptq_op_##op shadow_##op;
VPTQ_BACKEND_OPS(SHADOW_DECLARE)

#endif
