/* Filters that go through lists and dicts. */
#ifndef VPTQ_MODEL_TEMPLATE_LIST_H
#define VPTQ_MODEL_TEMPLATE_LIST_H

#include "lib/model/template_impl.h"

const tpl_function *vptq_tpl_list_filter(const char *name, size_t len);

#endif
