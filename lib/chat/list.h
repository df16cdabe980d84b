/* Filters that go through lists and dicts. */
#ifndef VPTQ_CHAT_LIST_H
#define VPTQ_CHAT_LIST_H

#include "lib/chat/internal.h"

const tpl_function *vptq_tpl_list_filter(const char *name, size_t len);

#endif
