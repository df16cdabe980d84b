/* Adds whole tensors to archives of tests. */
#ifndef VPTQ_TESTS_SUPPORT_VARCHIVE_H
#define VPTQ_TESTS_SUPPORT_VARCHIVE_H

#include "formats/vptq/archive.h"

/* Adds a tensor whose data is in memory. */
static inline vptq_status varchive_add(vptq_archive_writer *w, const vptq_tensor *t, int level,
                                       vptq_err *err)
{
    VPTQ_CHECK(vptq_archive_begin_tensor(w, t, level, err));
    VPTQ_CHECK(vptq_archive_put(w, t->data, t->bytes, err));
    return vptq_archive_end(w, err);
}

#endif
