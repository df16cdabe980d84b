/* Changes JSON objects of tests. */
#ifndef VPTQ_TESTS_SUPPORT_VJSON_H
#define VPTQ_TESTS_SUPPORT_VJSON_H

#include "formats/json.h"

/* Sets a key to a value, as JSON text, or removes it if that is NULL. */
static inline void vjson_set(json_t *object, const char *key, const char *value)
{
    if (value)
        json_object_set_new(object, key, json_loads(value, JSON_DECODE_ANY, NULL));
    else
        json_object_del(object, key);
}

#endif
