/* The public functions on files of options (vptq_config). */
#include <stdlib.h>
#include <string.h>

#include "formats/json.h"
#include "formats/text_file.h"
#include "lib/base/file.h"
#include "lib/vptq_internal.h"

enum { MAX_FILE = 1 << 20, MAX_ITEMS = 4096 };

/* ---- reading ---- */

static const char *copy_text(vptq_arena *arena, const char *text, vptq_err *err)
{
    const size_t size = strlen(text) + 1;
    char *copy = vptq_arena_alloc(arena, size, 1, err);
    return copy ? memcpy(copy, text, size) : NULL;
}

/* Adds an option whose value is not a list. */
static vptq_status add_item(vptq_config *c, const char *path, const char *key,
                            const json_t *value, vptq_err *err)
{
    vptq_setting_text item = {.key = key, .value = NULL};
    char *number = NULL;
    if (json_is_null(value))
        return VPTQ_OK;
    if (json_is_object(value) || json_is_array(value))
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: the value of '%s' is not a text, a number, true or false, or a "
                         "list of them",
                         path, key);
    if (c->count == MAX_ITEMS)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: more than %d options", path, (int)MAX_ITEMS);
    if (json_is_number(value))
        VPTQ_CHECK(vptq_json_text(value, path, false, &number, err));
    if (!json_is_boolean(value)) {
        item.value = copy_text(c->memory, number ? number : json_string_value(value), err);
        free(number);
        if (!item.value)
            return VPTQ_E_NOMEM;
    }
    c->is_false[c->count] = json_is_false(value);
    c->items[c->count++] = item;
    return VPTQ_OK;
}

static vptq_status add_all(vptq_config *c, const char *path, json_t *object, vptq_err *err)
{
    const char *name;
    json_t *value, *element;
    json_object_foreach(object, name, value)
    {
        size_t i;
        const char *key = copy_text(c->memory, name, err);
        if (!key)
            return VPTQ_E_NOMEM;
        if (!json_is_array(value))
            VPTQ_CHECK(add_item(c, path, key, value, err));
        json_array_foreach(value, i, element) VPTQ_CHECK(add_item(c, path, key, element, err));
    }
    return VPTQ_OK;
}

vptq_status vptq_config_read(const char *path, vptq_config *c, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    json_t *object = NULL;
    const vptq_ctx ctx = {.threads = 1};
    *c = (vptq_config){.count = 0};
    VPTQ_TRY(vptq_json_read(&ctx, path, MAX_FILE, &object, err));
    path = vptq_text_file_name(path);
    if (!json_is_object(object))
        VPTQ_TRY(vptq_fail(err, VPTQ_E_FORMAT, "%s: expected a JSON object of options", path));
    c->memory = malloc(sizeof(vptq_arena));
    if (!c->memory)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_NOMEM, "out of memory"));
    vptq_arena_init(c->memory, NULL);
    c->items = vptq_arena_alloc(c->memory, MAX_ITEMS, sizeof *c->items, err);
    c->is_false = vptq_arena_alloc(c->memory, MAX_ITEMS, sizeof *c->is_false, err);
    if (!c->items || !c->is_false)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(add_all(c, path, object, err));
out:
    json_decref(object);
    if (st)
        vptq_config_free(c);
    return st;
}

void vptq_config_free(vptq_config *c)
{
    if (c->memory)
        vptq_arena_release(c->memory);
    free(c->memory);
    *c = (vptq_config){.count = 0};
}

/* ---- writing ---- */

/* true without a value; a number if it is written as numbers are; else a text.  NULL without
 * memory. */
static json_t *make_value(const char *text)
{
    char *again = NULL;
    if (!text)
        return json_true();
    json_t *number = json_loads(text, JSON_DECODE_ANY, NULL);
    const bool same = json_is_number(number) &&
                      !vptq_json_text(number, "", false, &again, NULL) && !strcmp(again, text);
    free(again);
    if (same)
        return number;
    json_decref(number);
    return json_string(text);
}

/* Sets a key, or adds to the list of a key that is there; nonzero on failure. */
static int set_item(json_t *object, const vptq_setting_text *item)
{
    json_t *old = json_object_get(object, item->key), *value = make_value(item->value);
    if (!value || !old)
        return json_object_set_new(object, item->key, value);
    if (json_is_array(old))
        return json_array_append_new(old, value);
    return json_object_set_new(object, item->key, json_pack("[O, o]", old, value));
}

/* An equal file is as good as a new one. */
static vptq_status check_old(const char *path, json_t *object, bool force, vptq_err *err)
{
    json_t *old = NULL;
    if (force || !vptq_path_exists(path))
        return VPTQ_OK;
    const bool same = !vptq_json_load(path, MAX_FILE, &old, NULL) && json_equal(object, old);
    json_decref(old);
    return same ? VPTQ_OK
                : vptq_fail(err, VPTQ_E_EXISTS, "'%s' already exists with other options", path);
}

vptq_status vptq_config_write(const char *path, const vptq_setting_text *items, size_t count,
                              bool force, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    json_t *object = json_object();
    int bad = !object;
    for (size_t i = 0; i < count && !bad; i++) {
        if (items[i].value)
            VPTQ_TRY(vptq_json_check_text(path, items[i].key, items[i].value, err));
        bad = set_item(object, &items[i]);
    }
    if (bad)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_NOMEM, "out of memory"));
    VPTQ_TRY(check_old(path, object, force, err));
    VPTQ_TRY(vptq_json_save(path, object, err));
out:
    json_decref(object);
    return st;
}
