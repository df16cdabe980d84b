/* Runs the regular expressions of tokenizers with PCRE2. They are written for Oniguruma:
 * `^` and `$` match at line ends, and \s, \d, \w, \p follow Unicode. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/utf8.h"
#include "lib/tokenizer/internal.h"

/* A match looks at WINDOW bytes and takes BACKTRACKS steps per start position. Only if that is
 * not enough, larger bounds are tried, one start position at a time, and charged to the call:
 * PCRE2 does not tell what a match took. Patterns of real tokenizers need more only in a long
 * run of the same kind of characters. */
enum {
    WINDOW = 256,
    WINDOW_GROWS = 4,
    BACKTRACKS = 64,
    BACKTRACKS_GROW = 8,
    BACKTRACKS_MAX = 1 << 27, /* about a second, without a check of the flag */
    BACKTRACKS_STEP = 8,      /* backtracks in a window that count as one step */
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

/* Oniguruma's sets that differ from PCRE's: PCRE counts U+180E as white space, and neither
 * marks nor letters in circles and squares as parts of words. Outside of a class, Oniguruma's
 * \w also matches the superscripts and fractions of Latin-1. */
#define SPACES "\\t-\\r\\x{85}\\p{Z}"
#define WORDS                                                                                  \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{" \
    "1F169}"                                                                                   \
    "\\x{1F170}-\\x{1F189}"
#define WORD     "[" WORDS "\\xB2\\xB3\\xB9\\xBC-\\xBE]"
#define NOT_WORD "[^" WORDS "\\xB2\\xB3\\xB9\\xBC-\\xBE]"

typedef struct translation {
    const char *name, *alone, *in_class; /* NULL: unchanged */
} translation;

static const translation translations[] = {
    {"\\s", "[" SPACES "]", SPACES},
    {"\\S", "[^" SPACES "]", "\\P{White_Space}"},
    {"\\w", WORD, WORDS},
    {"\\W", NOT_WORD, NULL},
    {"\\b", "(?:(?<=" WORD ")(?!" WORD ")|(?<!" WORD ")(?=" WORD "))", NULL},
    {"\\B", "(?:(?<=" WORD ")(?=" WORD ")|(?<!" WORD ")(?!" WORD "))", NULL},
    {"\\u", "\\x", "\\x"}, /* four digits get braces */
    {"[:space:]", NULL, SPACES},
    {"[:word:]", NULL, WORDS},
    {"[:alpha:]", NULL, "\\p{Alphabetic}"},
    {"[:alnum:]", NULL, "\\p{Alphabetic}\\p{Nd}"},
    {"[:upper:]", NULL, "\\p{Uppercase}"},
    {"[:lower:]", NULL, "\\p{Lowercase}"},
    {"[:punct:]", NULL, "\\p{P}\\p{S}"},
};

static const translation *find_translation(const char *p)
{
    for (size_t i = 0; i < sizeof translations / sizeof translations[0]; i++) {
        if (strncmp(p, translations[i].name, strlen(translations[i].name)) == 0)
            return &translations[i];
    }
    return NULL;
}

static vptq_status compile_text(const vptq_tokenizer *t, const char *text, const char *pattern,
                                pcre2_code **out, vptq_err *err)
{
    int code = 0;
    PCRE2_SIZE at = 0;
    pcre2_compile_context *ctx = pcre2_compile_context_create(t->pcre);
    if (!ctx)
        return out_of_memory(t, err);
    (void)pcre2_set_newline(ctx, PCRE2_NEWLINE_LF);
    *out = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C |
                             PCRE2_USE_OFFSET_LIMIT,
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
    return VPTQ_OK;
}

/* Sets *before to the bytes up to the script name if p begins with one, as in "\\p{Han", else
 * 0. PCRE includes characters that scripts share unless the name has the prefix `sc:`. */
static vptq_status find_script(const vptq_tokenizer *t, const char *p, size_t *before,
                               vptq_err *err)
{
    char text[64];
    pcre2_code *script = NULL;
    size_t n = p[0] == '\\' && (p[1] == 'p' || p[1] == 'P') && p[2] == '{' ? 3 : 0;
    n += n > 0 && p[n] == '^';
    size_t name = n > 0 ? strcspn(p + n, "}") : 0;
    *before = 0;
    if (name < 2 || name > 40)
        return VPTQ_OK;
    (void)snprintf(text, sizeof text, "\\p{sc:%.*s}", (int)name, p + n);
    vptq_status st = compile_text(t, text, text, &script, err);
    if (!st)
        *before = n;
    pcre2_code_free(script);
    return st == VPTQ_E_NOMEM ? st : VPTQ_OK;
}

/* Returns whether the pattern calls one of its groups at p, which may call itself. What such a
 * pattern takes grows with the square of its backtracks: the limit on those does not bound it.
 * No tokenizer needs it. */
static bool calls_group(const char *p)
{
    if (p[0] == '\\')
        return p[1] == 'g' && (p[2] == '<' || p[2] == '\'');
    if (p[0] != '(' || p[1] != '?')
        return false;
    p += 2;
    p += *p == '+' || *p == '-';
    return *p == 'R' || *p == '&' || (*p >= '0' && *p <= '9') || strncmp(p, "P>", 2) == 0;
}

/* Appends the pattern translated to PCRE. */
static vptq_status translate(const vptq_tokenizer *t, const char *pattern, vptq_buf *out,
                             vptq_err *err)
{
    const char *p = pattern;
    bool in_class = false;
    while (*p) {
        const translation *s = find_translation(p);
        const char *put = !s ? NULL : in_class ? s->in_class : s->alone;
        size_t n = 1;
        if (put) {
            VPTQ_CHECK(vptq_buf_add(out, put, strlen(put), err));
            p += strlen(s->name);
            if (s->name[1] != 'u')
                continue;
            n = strspn(p, "0123456789abcdefABCDEF");
            n = n < 4 ? n : 4;
            VPTQ_CHECK(vptq_buf_printf(out, err, "{%.*s}", (int)n, p));
            p += n;
            continue;
        }
        if (calls_group(p)) /* also in what looks like a class: \Q[\E does not begin one */
            return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                             "%s: the pattern '%.200s' calls a group, which is not supported",
                             t->v->source, pattern);
        size_t script = 0;
        VPTQ_CHECK(find_script(t, p, &script, err));
        if (script > 0) {
            VPTQ_CHECK(vptq_buf_printf(out, err, "%.*ssc:", (int)script, p));
            p += script;
            continue;
        }
        if (*p == '\\' && p[1] != 0) {
            n = 2;
        } else if (!in_class && *p == '[') {
            in_class = true;
            n += p[1] == '^';
            n += p[n] == ']'; /* a first ] is a member */
        } else if (in_class && *p == '[' && p[1] == ':' && strstr(p, ":]")) {
            n = (size_t)(strstr(p, ":]") - p) + 2;
        } else if (*p == ']') {
            in_class = false;
        }
        VPTQ_CHECK(vptq_buf_add(out, p, n, err));
        p += n;
    }
    return VPTQ_OK;
}

static vptq_status compile(vptq_tokenizer *t, const char *pattern, vptq_pattern *out,
                           vptq_err *err)
{
    out->text = pattern;
    vptq_buf text;
    vptq_buf_init(&text, t->arena.mem);
    vptq_status st = translate(t, pattern, &text, err);
    if (!st)
        st = compile_text(t, text.data, pattern, &out->code, err);
    if (!st) /* without a JIT compiler the interpreter runs */
        out->jit = !pcre2_jit_compile(out->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
    vptq_buf_release(&text);
    return st;
}

vptq_status vptq_regex_prepare(vptq_tokenizer *t, vptq_err *err)
{
    const vptq_vocab *v = t->v;
    t->pcre = pcre2_general_context_create(take, give, t->arena.mem);
    if (!t->pcre)
        return out_of_memory(t, err);
    t->norm_code = vptq_arena_zalloc(&t->arena, v->norm_count, sizeof *t->norm_code, err);
    t->split_code = vptq_arena_zalloc(&t->arena, v->split_count, sizeof *t->split_code, err);
    if (!t->norm_code || !t->split_code)
        return VPTQ_E_NOMEM;
    for (uint32_t i = 0; i < v->norm_count; i++) {
        if (v->norms[i].kind == VPTQ_NORM_REGEX)
            VPTQ_CHECK(compile(t, v->norms[i].pattern, &t->norm_code[i], err));
    }
    for (uint32_t i = 0; i < v->split_count; i++) {
        if (v->splits[i].pattern)
            VPTQ_CHECK(compile(t, v->splits[i].pattern, &t->split_code[i], err));
    }
    return VPTQ_OK;
}

void vptq_regex_release(vptq_tokenizer *t)
{
    for (uint32_t i = 0; t->norm_code && i < t->v->norm_count; i++)
        pcre2_code_free(t->norm_code[i].code);
    for (uint32_t i = 0; t->split_code && i < t->v->split_count; i++)
        pcre2_code_free(t->split_code[i].code);
    pcre2_general_context_free(t->pcre);
}

vptq_status vptq_regex_open(const vptq_tokenizer *t, vptq_regex_run *run, vptq_err *err)
{
    *run = (vptq_regex_run){0};
    run->match = pcre2_match_data_create(1, t->pcre);
    run->limits = pcre2_match_context_create(t->pcre);
    if (!run->match || !run->limits) {
        vptq_regex_close(run);
        return out_of_memory(t, err);
    }
    (void)pcre2_set_match_limit(run->limits, BACKTRACKS);
    (void)pcre2_set_heap_limit(run->limits, HEAP_LIMIT_KB);
    return VPTQ_OK;
}

/* One attempt to match and its bounds. */
typedef struct attempt {
    size_t from, window;
    uint32_t backtracks;
    bool single; /* tries the start position `from` alone */
    size_t end;  /* of the window: before the end of the text if `cut` */
    bool cut;
} attempt;

static inline size_t window_end(vptq_span s, size_t from, size_t window)
{
    if (s.len - from <= window)
        return s.len;
    size_t end = from + window;
    while (end < s.len && vptq_utf8_continues(s.text[end]))
        end++;
    return end;
}

static attempt first_attempt(size_t from)
{
    return (attempt){.from = from, .window = WINDOW, .backtracks = BACKTRACKS};
}

/* Tries the match. Compiled patterns use 32 KiB of the machine's stack; one that needs more
 * gets a stack of its own, created once. */
static vptq_status match_once(vptq_encode_run *e, const pcre2_code *code, vptq_span s,
                              attempt *a, int *rc, vptq_err *err)
{
    vptq_regex_run *run = &e->regex;
    PCRE2_SPTR text = (PCRE2_SPTR)s.text;
    a->end = window_end(s, a->from, a->window);
    a->cut = a->end < s.len;
    /* PARTIAL_HARD: PCRE2_ERROR_PARTIAL as soon as the end of the window plays a part */
    uint32_t options = PCRE2_NO_UTF_CHECK | (a->cut ? PCRE2_PARTIAL_HARD : 0);
    if (a->single || run->single) {
        (void)pcre2_set_match_limit(run->limits, a->backtracks);
        (void)pcre2_set_offset_limit(run->limits, a->single ? a->from : PCRE2_UNSET);
        run->single = a->single;
    }
    *rc = pcre2_match(code, text, a->end, a->from, options, run->match, run->limits);
    if (*rc != PCRE2_ERROR_JIT_STACKLIMIT || run->stack)
        return VPTQ_OK;
    run->stack = pcre2_jit_stack_create(STACK_START, STACK_MAX, e->t->pcre);
    if (!run->stack)
        return out_of_memory(e->t, err);
    pcre2_jit_stack_assign(run->limits, NULL, run->stack);
    *rc = pcre2_match(code, text, a->end, a->from, options, run->match, run->limits);
    return VPTQ_OK;
}

/* Charges an attempt that tried the start positions up to `to`. */
static vptq_status charge_attempt(vptq_encode_run *e, const attempt *a, size_t to,
                                  vptq_err *err)
{
    size_t starts = a->single || to <= a->from ? 1 : to - a->from;
    return vptq_charge(e, a->backtracks / BACKTRACKS_STEP * starts * (a->window / WINDOW), err);
}

/* Returns the position of the character after text[at]. */
static size_t next_char(vptq_span s, size_t at)
{
    at++;
    while (at < s.len && vptq_utf8_continues(s.text[at]))
        at++;
    return at;
}

/* Goes on after an attempt that did not match, as far as needed. */
static vptq_status search_on(vptq_encode_run *e, const vptq_pattern *p, vptq_span s, attempt a,
                             int *rc, vptq_err *err)
{
    for (;;) {
        bool started = *rc >= 0 || *rc == PCRE2_ERROR_PARTIAL;
        size_t start = started ? pcre2_get_startchar(e->regex.match) : a.end;
        VPTQ_CHECK(charge_attempt(e, &a, start, err));
        if (*rc == PCRE2_ERROR_PARTIAL && start > a.from) {
            a = first_attempt(start); /* those before do not match */
        } else if (*rc == PCRE2_ERROR_PARTIAL) {
            a.single = true;
            a.window *= WINDOW_GROWS;
        } else if (*rc == PCRE2_ERROR_MATCHLIMIT && a.backtracks < BACKTRACKS_MAX) {
            a.backtracks *= a.single ? BACKTRACKS_GROW : 1;
            a.single = true;
        } else if (*rc == PCRE2_ERROR_NOMATCH && a.single && a.from < s.len) {
            a = first_attempt(next_char(s, a.from));
        } else if (*rc == PCRE2_ERROR_NOMATCH && !a.single && a.cut) {
            a = first_attempt(a.end);
        } else {
            return VPTQ_OK;
        }
        VPTQ_CHECK(match_once(e, p->code, s, &a, rc, err));
    }
}

/* Searches from `from`; *rc as that of one match of the whole text. */
static vptq_status search(vptq_encode_run *e, const vptq_pattern *p, vptq_span s, size_t from,
                          int *rc, vptq_err *err)
{
    const size_t end = window_end(s, from, WINDOW);
    const uint32_t options = PCRE2_NO_UTF_CHECK | (end < s.len ? PCRE2_PARTIAL_HARD : 0);
    vptq_regex_run *run = &e->regex;
    e->pattern = p->text;
    if (!run->single) { /* the limits are the first ones, and nearly always enough */
        /* without the checks of pcre2_match, which take as long as most matches */
        *rc = (p->jit ? pcre2_jit_match : pcre2_match)(p->code, (PCRE2_SPTR)s.text, end, from,
                                                       options, run->match, run->limits);
        if (*rc >= 0) {
            size_t start = pcre2_get_ovector_pointer(run->match)[0];
            start = start > from ? start - from : 0;
            return vptq_charge(e, (start + 1) * (BACKTRACKS / BACKTRACKS_STEP), err);
        }
    }
    attempt a = first_attempt(from);
    a.end = end;
    a.cut = end < s.len;
    if (run->single || *rc == PCRE2_ERROR_JIT_STACKLIMIT)
        VPTQ_CHECK(match_once(e, p->code, s, &a, rc, err));
    return search_on(e, p, s, a, rc, err);
}

void vptq_regex_close(vptq_regex_run *run)
{
    pcre2_match_data_free(run->match);
    pcre2_match_context_free(run->limits);
    pcre2_jit_stack_free(run->stack);
    *run = (vptq_regex_run){0};
}

static vptq_status match_failed(const vptq_encode_run *e, int code, size_t at, vptq_err *err)
{
    const vptq_tokenizer *t = e->t;
    if (code == PCRE2_ERROR_NOMEMORY)
        return out_of_memory(t, err);
    PCRE2_UCHAR why[160];
    (void)pcre2_get_error_message(code, why, sizeof why);
    return vptq_fail(err, VPTQ_E_FORMAT,
                     "%s: the pattern '%.200s' failed at byte %zu of a section: %s",
                     t->v->source, e->pattern, at, (const char *)why);
}

vptq_status vptq_regex_next(vptq_encode_run *e, const vptq_pattern *p, const char *text,
                            size_t len, vptq_matches *m, vptq_err *err)
{
    const vptq_span s = {text, len};
    m->found = false;
    while (m->from <= len) {
        int rc = 0;
        VPTQ_CHECK(search(e, p, s, m->from, &rc, err));
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0)
            return match_failed(e, rc, m->from, err);
        const PCRE2_SIZE *place = pcre2_get_ovector_pointer(e->regex.match);
        /* \K can move the start of a match before the search start or past its end */
        size_t end = place[1] > m->from ? place[1] : m->from;
        size_t begin = place[0] < m->from ? m->from : place[0] > end ? end : place[0];
        if (begin == end && m->at_end && end == m->end) {
            m->from = next_char(s, m->from);
            continue;
        }
        *m = (vptq_matches){begin, end, true, end, true};
        return VPTQ_OK;
    }
    m->begin = m->end = len;
    return VPTQ_OK;
}
