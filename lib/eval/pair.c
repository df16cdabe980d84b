#include "lib/eval/pair.h"

vptq_status vptq_eval_check_shapes(const vptq_model *m, const vptq_model *base, vptq_err *err)
{
    const vptq_model_desc *a = m->desc, *b = base->desc;
    if (a->vocab != b->vocab)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "%s (vocabulary of %u) is not a version of %s (vocabulary of %u)",
                         m->ckpt.path, a->vocab, base->ckpt.path, b->vocab);
    if (a->layers == b->layers && a->hidden == b->hidden &&
        a->intermediate == b->intermediate && a->heads == b->heads &&
        a->kv_heads == b->kv_heads && a->head_dim == b->head_dim)
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_MISMATCH,
                     "%s (%u layers of %u, %u) is not a version of %s (%u layers of %u, %u)",
                     m->ckpt.path, a->layers, a->hidden, a->intermediate, base->ckpt.path,
                     b->layers, b->hidden, b->intermediate);
}
