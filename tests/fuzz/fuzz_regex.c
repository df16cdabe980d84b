/* Splits a text by a pattern: the input is the pattern, a 0, and the text, which repeats so
 * that matches cross the windows of a search.  Isolated words decode to the text again, and the
 * windows find what one search of the whole text finds. */
#include <string.h>

#include "lib/tokenizer/internal.h"
#include "tests/fuzz/fuzz_encode.h"

/* The text is longer than a window of 256 bytes and one that grew to 1024. */
enum { PATTERN_MAX = 128, TEXT_MAX = 1100, PLAIN_LIMIT = 10000 };

/* One plain search from `from`; false if it fails or ends at a limit. */
static bool plain_search(const pcre2_code *code, pcre2_match_data *match,
                         pcre2_match_context *limits, const char *text, size_t len, size_t from,
                         int *rc)
{
    *rc = pcre2_match(code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK, match, limits);
    return *rc >= 0 || *rc == PCRE2_ERROR_NOMATCH;
}

/* Walks over the matches and searches plainly from where each search began. */
static void check_windows(vptq_encode_run *e, const char *text, size_t len)
{
    const vptq_pattern *p = &e->t->split_code[0];
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    if (!match || !limits)
        abort();
    (void)pcre2_set_match_limit(limits, PLAIN_LIMIT);
    vptq_matches m = {.found = true};
    while (m.found) {
        const size_t from = m.from;
        const bool at_end = m.at_end;
        int rc = 0;
        if (vptq_regex_next(e, p, text, len, &m, NULL) ||
            !plain_search(p->code, match, limits, text, len, from, &rc))
            break;
        const PCRE2_SIZE *place = pcre2_get_ovector_pointer(match);
        if (rc >= 0 && at_end && place[0] <= from && place[1] <= from)
            continue; /* an empty match where the last one ended: the walk goes on */
        if (m.found != (rc >= 0))
            abort();
        if (m.found && (m.end != (place[1] > from ? place[1] : from) ||
                        m.begin != (place[0] < from    ? from
                                    : place[0] > m.end ? m.end
                                                       : place[0])))
            abort();
    }
    pcre2_match_data_free(match);
    pcre2_match_context_free(limits);
}

static void use_text(const vptq_tokenizer *t, const char *text, size_t len)
{
    vptq_encode_run e;
    fuzz_expect_bytes(t, text, len);
    if (!vptq_encode_open(&e, t, len, NULL, NULL))
        check_windows(&e, text, vptq_utf8_valid_prefix(text, len));
    vptq_encode_close(&e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char pattern[PATTERN_MAX + 1], text[TEXT_MAX];
    fuzz_bytes bytes;
    vptq_tokenizer *t = NULL;
    const uint8_t *zero =
        size ? memchr(data, 0, size < PATTERN_MAX ? size : PATTERN_MAX) : NULL;
    size_t n = zero ? (size_t)(zero - data) : 0, rest = zero ? size - n - 1 : 0;
    if (n == 0 || rest == 0)
        return 0;
    memcpy(pattern, data, n + 1);
    /* what the reader of tokenizer.json refuses */
    if (strstr(pattern, "(*") || strstr(pattern, "\\G") ||
        vptq_utf8_valid_prefix(pattern, n) < n)
        return 0;
    for (size_t i = 0; i < TEXT_MAX; i++)
        text[i] = (char)data[n + 1 + i % rest];
    vptq_split split = {.kind = VPTQ_SPLIT_ISOLATED, .pattern = pattern};
    vptq_vocab v = {.source = "fuzz", .splits = &split, .split_count = 1};
    fuzz_bytes_fill(&bytes, &v);
    if (!vptq_tokenizer_open(NULL, &v, &t, NULL)) {
        use_text(t, text, rest < TEXT_MAX ? rest : TEXT_MAX);
        use_text(t, text, TEXT_MAX);
    }
    vptq_tokenizer_close(t);
    return 0;
}
