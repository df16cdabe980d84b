/* Finds the config group whose targets match a module, in the order of compressed-tensors. */
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "formats/hf/compressed_internal.h"

/* Bounds of hostile files: a model asks for some hundred modules. */
enum { MAX_PATTERNS = 64, MAX_PATTERN = 1000, MATCH_STEPS = 100000, MATCH_HEAP_KB = 4096 };

/* Kinds of match, the later ones before the earlier ones. */
typedef enum match_kind { NO_MATCH, BY_CLASS, BY_LAST, BY_PATTERN, BY_PATH } match_kind;

typedef struct finder {
    const char *module, *file;
    size_t patterns; /* expressions run so far */
    vptq_err *err;
} finder;

/* ---- regular expressions ---- */

/* Returns whether an expression calls one of its groups, which may call itself: the limit on
 * steps does not bound such an expression, and Python has none. */
static bool calls_group(const char *p)
{
    for (; *p; p++) {
        if (*p == '\\' && p[1]) {
            p++;
            if (*p == 'g' && (p[1] == '<' || p[1] == '\''))
                return true;
        } else if (p[0] == '(' && p[1] == '?') {
            const char *call = p + 2 + (p[2] == '+' || p[2] == '-');
            if (*call == 'R' || *call == '&' || (*call >= '0' && *call <= '9') ||
                strncmp(call, "P>", 2) == 0)
                return true;
        }
    }
    return false;
}

static vptq_status fail_memory(const finder *f)
{
    return vptq_fail(f->err, VPTQ_E_NOMEM, "%s: out of memory for a regular expression",
                     f->file);
}

static vptq_status fail_pattern(const finder *f, const char *pattern, int code)
{
    PCRE2_UCHAR why[160] = {0};
    (void)pcre2_get_error_message(code, why, sizeof why);
    return vptq_fail(f->err, VPTQ_E_FORMAT, "%s: the expression 're:%.200s' is not valid: %s",
                     f->file, pattern, (const char *)why);
}

static vptq_status run_pattern(const finder *f, const char *pattern, const pcre2_code *code,
                               bool *matches)
{
    vptq_status st = VPTQ_OK;
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    int rc = PCRE2_ERROR_NOMEMORY;
    if (data && limits) {
        (void)pcre2_set_match_limit(limits, MATCH_STEPS);
        (void)pcre2_set_heap_limit(limits, MATCH_HEAP_KB);
        rc = pcre2_match(code, (PCRE2_SPTR)f->module, strlen(f->module), 0, 0, data, limits);
    }
    *matches = rc >= 0;
    if (rc == PCRE2_ERROR_NOMEMORY)
        st = fail_memory(f);
    else if (rc == PCRE2_ERROR_MATCHLIMIT || rc == PCRE2_ERROR_HEAPLIMIT)
        st = vptq_fail(f->err, VPTQ_E_UNSUPPORTED,
                       "%s: the expression 're:%.200s' takes too many steps for module '%s'",
                       f->file, pattern, f->module);
    else if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
        st = fail_pattern(f, pattern, rc);
    pcre2_match_context_free(limits);
    pcre2_match_data_free(data);
    return st;
}

/* Whether an expression matches the beginning of the module path, as Python's re.match. */
static vptq_status match_pattern(finder *f, const char *pattern, bool *matches)
{
    int code = 0;
    PCRE2_SIZE at = 0;
    if (++f->patterns > MAX_PATTERNS)
        return vptq_fail(f->err, VPTQ_E_UNSUPPORTED,
                         "%s: quantization_config has more than %d regular expressions",
                         f->file, MAX_PATTERNS);
    if (strlen(pattern) > MAX_PATTERN || calls_group(pattern))
        return vptq_fail(
            f->err, VPTQ_E_UNSUPPORTED,
            "%s: the expression 're:%.200s' is not supported (more than %d bytes, or "
            "calls of a group)",
            f->file, pattern, MAX_PATTERN);
    pcre2_code *compiled = pcre2_compile(
        (PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
        PCRE2_ANCHORED | PCRE2_NEVER_UTF | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
    if (!compiled)
        return code == PCRE2_ERROR_HEAP_FAILED ? fail_memory(f)
                                               : fail_pattern(f, pattern, code);
    vptq_status st = run_pattern(f, pattern, compiled, matches);
    pcre2_code_free(compiled);
    return st;
}

/* ---- targets ---- */

const char *vptq_compressed_last_component(const char *module)
{
    const char *dot = strrchr(module, '.');
    return dot ? dot + 1 : module;
}

static vptq_status match_text(finder *f, const char *target, match_kind *kind)
{
    static const char prefix[] = "re:";
    bool matches = false;
    *kind = NO_MATCH;
    if (strncmp(target, prefix, sizeof prefix - 1) == 0) {
        VPTQ_CHECK(match_pattern(f, target + sizeof prefix - 1, &matches));
        *kind = matches ? BY_PATTERN : NO_MATCH;
    } else if (strcmp(target, f->module) == 0) {
        *kind = BY_PATH;
    } else if (strcmp(target, "Linear") == 0) {
        *kind = BY_CLASS;
    } else if (strcmp(target, vptq_compressed_last_component(f->module)) == 0) {
        *kind = BY_LAST;
    }
    return VPTQ_OK;
}

static vptq_status check_texts(const finder *f, const json_t *list, const char *where,
                               const char *key)
{
    bool fine = json_is_array(list);
    for (size_t i = 0; fine && i < json_array_size(list); i++)
        fine = json_is_string(json_array_get(list, i));
    return fine ? VPTQ_OK
                : vptq_fail(f->err, VPTQ_E_FORMAT, "%s: %s: key '%s' is not a list of names",
                            f->file, where, key);
}

static vptq_status is_ignored(finder *f, const json_t *quantization, bool *ignored)
{
    const json_t *list = json_object_get(quantization, "ignore");
    *ignored = false;
    if (!list || json_is_null(list))
        return VPTQ_OK;
    VPTQ_CHECK(check_texts(f, list, "quantization_config", "ignore"));
    for (size_t i = 0; i < json_array_size(list) && !*ignored; i++) {
        match_kind kind;
        VPTQ_CHECK(match_text(f, json_string_value(json_array_get(list, i)), &kind));
        *ignored = kind != NO_MATCH && kind != BY_LAST;
    }
    return VPTQ_OK;
}

typedef struct best_target {
    match_kind kind;
    const char *text, *name;
    const json_t *group;
} best_target;

/* The same target in two groups means the later one. */
static bool is_better(const best_target *best, match_kind kind, const char *text)
{
    if (kind != best->kind)
        return kind > best->kind;
    return kind != BY_PATTERN || strcmp(text, best->text) <= 0;
}

static vptq_status match_group(finder *f, const char *name, const json_t *group,
                               best_target *best)
{
    char where[128];
    const json_t *list = json_object_get(group, "targets");
    snprintf(where, sizeof where, "group '%.100s'", name);
    if (!json_is_object(group))
        return vptq_fail(f->err, VPTQ_E_UNSUPPORTED,
                         "%s: %s is not an object with targets and weights", f->file, where);
    VPTQ_CHECK(check_texts(f, list, where, "targets"));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        match_kind kind;
        VPTQ_CHECK(match_text(f, text, &kind));
        if (kind == BY_CLASS &&
            strcmp(vptq_compressed_last_component(f->module), "lm_head") == 0)
            kind = NO_MATCH;
        if (kind != NO_MATCH && is_better(best, kind, text))
            *best = (best_target){kind, text, name, group};
    }
    return VPTQ_OK;
}

vptq_status vptq_compressed_find_group(const json_t *quantization, const char *module,
                                       const char *file, const char **name,
                                       const json_t **group, vptq_err *err)
{
    finder f = {.module = module, .file = file, .err = err};
    best_target best = {.kind = NO_MATCH};
    const json_t *groups = json_object_get(quantization, "config_groups");
    bool ignored;
    *group = NULL;
    if (!json_is_object(groups))
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: quantization_config: key 'config_groups' is not an object", file);
    VPTQ_CHECK(is_ignored(&f, quantization, &ignored));
    if (ignored)
        return VPTQ_OK;
    json_t *all = (json_t *)(uintptr_t)groups; /* jansson's iterators are not const */
    for (void *it = json_object_iter(all); it; it = json_object_iter_next(all, it))
        VPTQ_CHECK(
            match_group(&f, json_object_iter_key(it), json_object_iter_value(it), &best));
    *name = best.name;
    *group = best.group;
    return VPTQ_OK;
}
