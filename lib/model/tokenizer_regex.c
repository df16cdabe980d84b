/* Regular expressions of tokenizers through PCRE2.  They are written for Oniguruma, so `^` and
 * `$` are ends of lines and \s, \d, \w, \p follow Unicode. */
#include <inttypes.h>
#include <string.h>

#include "lib/model/tokenizer_impl.h"

/* Bounds on one match.  Patterns of real tokenizers do not backtrack over more than the run of
 * white space at hand. */
enum {
    MATCH_LIMIT = 10000000,
    HEAP_LIMIT_KB = 65536,
    STACK_START = 32 * 1024,
    STACK_MAX = 8 * 1024 * 1024
};

static void *take(size_t size, void *mem)
{
    return vptq_mem_alloc(mem, size, 1, NULL);
}

static void give(void *ptr, void *mem)
{
    vptq_mem_free(mem, ptr);
}

static vptq_status out_of_memory(const vptq_tokenizer *t, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_NOMEM, "%s: out of memory for the patterns", t->v->source);
}

/* PCRE counts U+180E as white space, Unicode since 6.3 does not: \s and \S are spelled out. */
static char *spelled_out(vptq_tokenizer *t, const char *pattern, vptq_err *err)
{
#define SPACES "\\t-\\r\\x{85}\\p{Z}"
    static const char *const sets[2] = {"[" SPACES "]", "[^" SPACES "]"};
    size_t longest = strlen(sets[1]);
    char *out = vptq_arena_alloc(&t->arena, strlen(pattern) + 1, longest, err);
    size_t n = 0;
    bool in_class = false;
    for (const char *p = pattern; out && *p; p++) {
        const char *put = NULL;
        if (*p == '\\' && p[1] == 's')
            put = in_class ? SPACES : sets[0];
        else if (*p == '\\' && p[1] == 'S' && !in_class)
            put = sets[1];
        if (put) {
            memcpy(out + n, put, strlen(put));
            n += strlen(put);
            p++;
            continue;
        }
        out[n++] = *p;
        if ((*p == '\\' && p[1] != 0) || (in_class && *p == '[' && p[1] == ':') ||
            (in_class && *p == ':' && p[1] == ']'))
            out[n++] = *++p; /* an escape, or an end of a name like [:alpha:] */
        else if (*p == '[' && !in_class)
            in_class = true;
        else if (*p == ']')
            in_class = false;
    }
    if (out)
        out[n] = 0;
    return out;
#undef SPACES
}

static vptq_status compile(vptq_tokenizer *t, const char *pattern, pcre2_code **out,
                           vptq_err *err)
{
    int code = 0;
    PCRE2_SIZE at = 0;
    const char *text = spelled_out(t, pattern, err);
    if (!text)
        return VPTQ_E_NOMEM;
    pcre2_compile_context *ctx = pcre2_compile_context_create(t->pcre);
    if (!ctx)
        return out_of_memory(t, err);
    *out = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                         &code, &at, ctx);
    pcre2_compile_context_free(ctx);
    if (!*out && code == PCRE2_ERROR_HEAP_FAILED)
        return out_of_memory(t, err);
    if (!*out) {
        PCRE2_UCHAR why[160];
        (void)pcre2_get_error_message(code, why, sizeof why);
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: the pattern '%.200s' is not valid: %s",
                         t->v->source, pattern, (const char *)why);
    }
    /* without a JIT compiler the interpreter serves */
    (void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE);
    return VPTQ_OK;
}

vptq_status vptq_regex_prepare(vptq_tokenizer *t, vptq_err *err)
{
    const vptq_vocab *v = t->v;
    vptq_status st = VPTQ_OK;
    t->pcre = pcre2_general_context_create(take, give, t->arena.mem);
    if (!t->pcre)
        return out_of_memory(t, err);
    t->norm_code = vptq_arena_zalloc(&t->arena, v->norm_count, sizeof(pcre2_code *), err);
    t->split_code = vptq_arena_zalloc(&t->arena, v->split_count, sizeof(pcre2_code *), err);
    if (!t->norm_code || !t->split_code)
        return VPTQ_E_NOMEM;
    for (uint32_t i = 0; i < v->norm_count; i++) {
        if (v->norms[i].kind == VPTQ_NORM_REGEX)
            VPTQ_TRY(compile(t, v->norms[i].pattern, &t->norm_code[i], err));
    }
    for (uint32_t i = 0; i < v->split_count; i++) {
        if (v->splits[i].pattern)
            VPTQ_TRY(compile(t, v->splits[i].pattern, &t->split_code[i], err));
    }
out:
    return st;
}

void vptq_regex_release(vptq_tokenizer *t)
{
    for (uint32_t i = 0; t->norm_code && i < t->v->norm_count; i++)
        pcre2_code_free(t->norm_code[i]);
    for (uint32_t i = 0; t->split_code && i < t->v->split_count; i++)
        pcre2_code_free(t->split_code[i]);
    pcre2_general_context_free(t->pcre);
}

vptq_status vptq_regex_open(const vptq_tokenizer *t, vptq_regex_run *run, vptq_err *err)
{
    *run = (vptq_regex_run){0};
    run->match = pcre2_match_data_create(1, t->pcre);
    run->limits = pcre2_match_context_create(t->pcre);
    run->stack = pcre2_jit_stack_create(STACK_START, STACK_MAX, t->pcre);
    if (!run->match || !run->limits || !run->stack) {
        vptq_regex_close(run);
        return out_of_memory(t, err);
    }
    (void)pcre2_set_match_limit(run->limits, MATCH_LIMIT);
    (void)pcre2_set_heap_limit(run->limits, HEAP_LIMIT_KB);
    pcre2_jit_stack_assign(run->limits, NULL, run->stack);
    return VPTQ_OK;
}

void vptq_regex_close(vptq_regex_run *run)
{
    pcre2_match_data_free(run->match);
    pcre2_match_context_free(run->limits);
    pcre2_jit_stack_free(run->stack);
    *run = (vptq_regex_run){0};
}

static vptq_status match_failed(const vptq_tokenizer *t, int code, size_t at, vptq_err *err)
{
    if (code == PCRE2_ERROR_NOMEMORY)
        return out_of_memory(t, err);
    PCRE2_UCHAR why[160];
    (void)pcre2_get_error_message(code, why, sizeof why);
    return vptq_fail(err, VPTQ_E_FORMAT,
                     "%s: a pattern of the tokenizer gives up at byte %zu of a section: %s",
                     t->v->source, at, (const char *)why);
}

vptq_status vptq_regex_find(const vptq_tokenizer *t, const pcre2_code *code,
                            vptq_regex_run *run, const char *text, size_t len, size_t from,
                            size_t *begin, size_t *end, vptq_err *err)
{
    *begin = *end = len;
    while (from < len) {
        int rc = pcre2_match(code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK, run->match,
                             run->limits);
        if (rc == PCRE2_ERROR_NOMATCH)
            return VPTQ_OK;
        if (rc < 0)
            return match_failed(t, rc, from, err);
        const PCRE2_SIZE *place = pcre2_get_ovector_pointer(run->match);
        if (place[1] > place[0] && place[0] >= from) {
            *begin = place[0];
            *end = place[1];
            return VPTQ_OK;
        }
        /* an empty match: go on behind the next character */
        from = place[0] >= from ? place[0] + 1 : from + 1;
        while (from < len && ((unsigned char)text[from] & 0xC0) == 0x80)
            from++;
    }
    return VPTQ_OK;
}
