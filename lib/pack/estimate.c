/* Estimates how long writing a model takes, from about a second of it: tensors of one kind take
 * as long per byte as the largest of them does. */
#include <math.h>

#include "lib/pack/package.h"

enum { MAX_KINDS = 32 };
/* Of one kind: after the second, a tensor is cut; until the first, more tensors are made. */
static const double least_seconds = 0.05, most_seconds = 0.3;

typedef enum { COPIED, CONVERTED, OF_MATRIX, OF_CODES, FUSED } source_kind;

/* Tensors that take as long per byte. */
typedef struct kind {
    source_kind source;
    vptq_dtype from, to;
    size_t largest; /* its first tensor */
    uint64_t bytes, largest_bytes;
} kind;

static kind kind_of(const vptq_package_tensor *t)
{
    const vptq_package_source *s = &t->source;
    kind k = {.from = t->tensor.type, .to = t->tensor.type};
    if (t->part_count)
        k.source = FUSED;
    else if (s->plain) {
        k.from = s->plain->type;
        k.source = k.from == k.to ? COPIED : CONVERTED;
    } else
        k.source = s->matrix ? OF_MATRIX : OF_CODES;
    return k;
}

/* The tensor after those that are made together with tensor i: the parts of a matrix. */
static size_t end_of(const vptq_package *o, size_t i)
{
    const vptq_package_source *s = &o->tensors[i].source;
    size_t end = i + 1;
    while ((s->matrix || s->coded) && end < o->count &&
           o->tensors[end].source.matrix == s->matrix &&
           o->tensors[end].source.coded == s->coded)
        end++;
    return end;
}

static size_t find_kind(kind *kinds, size_t *count, const kind *k)
{
    size_t i = 0;
    while (i < *count &&
           !(kinds[i].source == k->source && kinds[i].from == k->from && kinds[i].to == k->to))
        i++;
    if (i == MAX_KINDS) /* more than there are: as the last */
        return MAX_KINDS - 1;
    if (i == *count)
        kinds[(*count)++] = *k;
    return i;
}

static size_t list_kinds(const vptq_package *o, kind kinds[MAX_KINDS])
{
    size_t count = 0;
    for (size_t i = 0, end; i < o->count; i = end) {
        const kind one = kind_of(&o->tensors[i]);
        kind *k = &kinds[find_kind(kinds, &count, &one)];
        uint64_t bytes = 0;
        for (end = i; end < end_of(o, i); end++)
            bytes += o->tensors[end].tensor.bytes;
        if (bytes >= k->largest_bytes) {
            k->largest = i;
            k->largest_bytes = bytes;
        }
        k->bytes += bytes;
    }
    return count;
}

bool vptq_package_is_late(const vptq_package_probe *p)
{
    return p && vptq_seconds() > p->until;
}

/* *seconds of a kind: from its largest tensor, and if that takes too little time to be measured
 * from all later ones of its kind. */
static vptq_status measure(const vptq_package *o, const kind *k, vptq_package_try fn, void *arg,
                           double *seconds, vptq_err *err)
{
    const double start = vptq_seconds();
    vptq_package_probe p = {.until = start + most_seconds};
    double taken = 0;
    for (size_t i = k->largest, end; i < o->count && taken < least_seconds; i = end) {
        const kind one = kind_of(&o->tensors[i]);
        end = end_of(o, i);
        if (one.source != k->source || one.from != k->from || one.to != k->to)
            continue;
        VPTQ_CHECK(fn(arg, &o->tensors[i], end - i, &p, err));
        taken = vptq_seconds() - start;
    }
    *seconds = p.bytes ? taken * (double)k->bytes / (double)p.bytes : 0;
    return VPTQ_OK;
}

vptq_status vptq_package_estimate(const vptq_package *o, vptq_package_try fn, void *arg,
                                  vptq_pack_result *r, vptq_err *err)
{
    vptq_mem *mem = o->ctx->mem;
    const size_t peak = mem ? mem->peak : 0;
    kind kinds[MAX_KINDS];
    const size_t count = list_kinds(o, kinds);
    vptq_status st = VPTQ_OK;
    if (mem)
        mem->peak = mem->used;
    r->estimated_seconds = 0;
    for (size_t i = 0; i < count && !st; i++) {
        double seconds = 0;
        st = measure(o, &kinds[i], fn, arg, &seconds, err);
        r->estimated_seconds += seconds;
    }
    if (mem) {
        r->memory_bytes = mem->peak;
        mem->peak = peak > mem->peak ? peak : mem->peak;
    }
    return st;
}
