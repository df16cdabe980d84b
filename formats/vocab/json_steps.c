/* Reads normalizer, pre_tokenizer, decoder and post_processor of a tokenizer.json. Every step
 * that is not supported is an error. */
#include <string.h>

#include "formats/vocab/internal.h"
#include "lib/base/utf8.h"

enum { DEPTH_MAX = 8 }; /* of nested Sequences */

const char *const vptq_norm_forms[4] = {[VPTQ_NORM_NFC] = "NFC",
                                        [VPTQ_NORM_NFD] = "NFD",
                                        [VPTQ_NORM_NFKC] = "NFKC",
                                        [VPTQ_NORM_NFKD] = "NFKD"};
const char *const vptq_prepend_schemes[3] = {"never", "first", "always"};
const char *const vptq_split_behaviors[] = {[VPTQ_SPLIT_ISOLATED] = "Isolated",
                                            [VPTQ_SPLIT_REMOVED] = "Removed",
                                            [VPTQ_SPLIT_CONTIGUOUS] = "Contiguous",
                                            [VPTQ_SPLIT_TO_LEFT] = "MergedWithPrevious",
                                            [VPTQ_SPLIT_TO_RIGHT] = "MergedWithNext"};

static vptq_status unsupported(const vptq_vocab *v, const char *what, const char *which,
                               vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_UNSUPPORTED, "%s: the %s '%.100s' is not supported", v->source,
                     what, which);
}

/* The steps of one part of the file, with Sequences flattened. */
typedef struct steps {
    const char *what; /* name of a step in messages */
    const char *list; /* the key of a Sequence's members */
    const json_t *of[VPTQ_STEPS_MAX];
    const char *type[VPTQ_STEPS_MAX];
    size_t count;
} steps;

/* Appends a step, or all members of a Sequence in order. */
static vptq_status flatten(const vptq_vocab *v, const json_t *step, int depth, steps *s,
                           vptq_err *err)
{
    const char *type = NULL;
    if (!step || json_is_null(step))
        return VPTQ_OK;
    if (!json_is_object(step))
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: the %s is not an object", v->source, s->what);
    VPTQ_CHECK(vptq_json_str_or(step, v->source, "type", NULL, &type, err));
    if (strcmp(type, "Sequence") != 0) {
        if (s->count == VPTQ_STEPS_MAX)
            return vptq_fail(err, VPTQ_E_UNSUPPORTED, "%s: a %s of more than %d steps",
                             v->source, s->what, VPTQ_STEPS_MAX);
        s->of[s->count] = step;
        s->type[s->count++] = type;
        return VPTQ_OK;
    }
    const json_t *members = json_object_get(step, s->list);
    if (!json_is_array(members))
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: the %s Sequence has no array '%s'", v->source,
                         s->what, s->list);
    if (depth == DEPTH_MAX)
        return unsupported(v, s->what, "Sequence nested deeply", err);
    for (size_t i = 0; i < json_array_size(members); i++)
        VPTQ_CHECK(flatten(v, json_array_get(members, i), depth + 1, s, err));
    return VPTQ_OK;
}

typedef vptq_status (*step_fn)(vptq_vocab *v, const json_t *step, const char *type,
                               vptq_err *err);

static vptq_status each(vptq_vocab *v, const json_t *part, const char *what, const char *list,
                        step_fn fn, vptq_err *err)
{
    steps s = {.what = what, .list = list};
    VPTQ_CHECK(flatten(v, part, 0, &s, err));
    for (size_t i = 0; i < s.count; i++)
        VPTQ_CHECK(fn(v, s.of[i], s.type[i], err));
    return VPTQ_OK;
}

/* Copies the string under `key` into the arena. */
static vptq_status copy_string(vptq_vocab *v, const json_t *obj, const char *key,
                               const char **out, vptq_err *err)
{
    const json_t *s = json_object_get(obj, key);
    if (!json_is_string(s) || strlen(json_string_value(s)) != json_string_length(s))
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: '%s' is missing or not a plain string",
                         v->source, key);
    *out = vptq_arena_strdup(&v->arena, json_string_value(s), err);
    return *out ? VPTQ_OK : VPTQ_E_NOMEM;
}

/* Returns whether the class member at p differs in PCRE and lib/tokenizer/regex.c does not
 * translate it. */
static bool class_differs(const char *p)
{
    static const char *const known[] = {"[:alpha:]", "[:alnum:]", "[:upper:]", "[:lower:]",
                                        "[:digit:]", "[:space:]", "[:word:]",  "[:punct:]"};
    if (*p == '&')
        return p[1] == '&';
    if (*p == '\\')
        return p[1] == 'W' || p[1] == 'h' || p[1] == 'H';
    if (*p != '[')
        return false;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strncmp(p, known[i], strlen(known[i])) == 0)
            return false;
    }
    return true;
}

/* Returns whether a quantifier {n,m}+ or {n}? is at p: PCRE reads the last sign as part of it.
 */
static bool repeat_differs(const char *p)
{
    size_t n = strspn(p + 1, "0123456789,") + 1;
    if (p[n] != '}')
        return false;
    return p[n + 1] == '+' || (p[n + 1] == '?' && !memchr(p, ',', n));
}

/* Returns whether a pattern, written for Oniguruma, has a part that means something else in
 * PCRE: \h, \G, verbs, classes inside classes, rare class names, intersections, the option m,
 * some quantifiers. */
static bool pattern_differs(const char *p)
{
    bool in_class = false;
    for (; *p; p++) {
        if (in_class && class_differs(p))
            return true;
        if (*p == '\\' && p[1] != 0) {
            p++;
            if (*p == 'h' || *p == 'H' || *p == 'G')
                return true;
            if (strchr("pPxk", *p) && p[1] == '{' && strchr(p, '}'))
                p = strchr(p, '}');
        } else if (in_class) {
            if (*p == '[')
                p = strstr(p, ":]") + 1;
            else if (*p == ']')
                in_class = false;
        } else if (*p == '[') {
            in_class = true;
            p += p[1] == '^';
            p += p[1] == ']'; /* a first ] is a member */
        } else if (*p == '{' && repeat_differs(p)) {
            return true;
        } else if (*p == '(' && p[1] == '*') {
            return true;
        } else if (*p == '(' && p[1] == '?') {
            size_t n = strspn(p + 2, "imsx-");
            if (memchr(p + 2, 'm', n))
                return true;
        }
    }
    return false;
}

/* Copies a pattern, {"String": ..} or {"Regex": ..}; *regex: which of them. */
static vptq_status copy_pattern(vptq_vocab *v, const json_t *step, const char **out,
                                bool *regex, vptq_err *err)
{
    const json_t *pattern = json_object_get(step, "pattern");
    *regex = json_object_get(pattern, "Regex") != NULL;
    VPTQ_CHECK(copy_string(v, pattern, *regex ? "Regex" : "String", out, err));
    size_t len = strlen(*out);
    if (len == 0 || len > VPTQ_PATTERN_MAX)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: a pattern has %zu bytes, expected between 1 and %d", v->source,
                         len, VPTQ_PATTERN_MAX);
    if (*regex && pattern_differs(*out))
        return unsupported(v, "pattern", *out, err);
    return VPTQ_OK;
}

/* --- normalizer --- */

static vptq_status normalizer(vptq_vocab *v, const json_t *step, const char *type,
                              vptq_err *err)
{
    vptq_norm n = {0};
    for (int k = 0; k < 4; k++) {
        if (strcmp(type, vptq_norm_forms[k]) == 0) {
            n.kind = (vptq_norm_kind)k;
            return vptq_vocab_add_norm(v, n, err);
        }
    }
    if (strcmp(type, "Prepend") == 0) {
        n.kind = VPTQ_NORM_PREPEND;
        VPTQ_CHECK(copy_string(v, step, "prepend", &n.content, err));
    } else if (strcmp(type, "Replace") == 0) {
        bool regex = false;
        VPTQ_CHECK(copy_pattern(v, step, &n.pattern, &regex, err));
        VPTQ_CHECK(copy_string(v, step, "content", &n.content, err));
        n.kind = regex ? VPTQ_NORM_REGEX : VPTQ_NORM_REPLACE;
    } else if (strcmp(type, "Strip") == 0) {
        n.kind = VPTQ_NORM_STRIP;
        VPTQ_CHECK(vptq_json_bool_or(step, v->source, "strip_left", true, &n.left, err));
        VPTQ_CHECK(vptq_json_bool_or(step, v->source, "strip_right", true, &n.right, err));
    } else if (strcmp(type, "Lowercase") == 0) {
        n.kind = VPTQ_NORM_LOWER;
    } else if (strcmp(type, "StripAccents") == 0) {
        n.kind = VPTQ_NORM_UNMARK;
    } else {
        return unsupported(v, "normalizer", type, err);
    }
    return vptq_vocab_add_norm(v, n, err);
}

/* --- pre_tokenizer --- */

/* Returns a pattern that matches a plain string: escapes all special characters. */
static const char *quoted(vptq_vocab *v, const char *text, vptq_err *err)
{
    char *out = vptq_arena_alloc(&v->arena, 2 * strlen(text) + 1, 1, err);
    size_t n = 0;
    for (; out && *text; text++) {
        unsigned char c = (unsigned char)*text;
        bool plain = c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
                     (c >= 'a' && c <= 'z');
        if (!plain)
            out[n++] = '\\';
        out[n++] = *text;
    }
    if (out)
        out[n] = 0;
    return out;
}

/* Reads the behavior of a split; required if `fallback` is NULL. */
static vptq_status split_behavior(const vptq_vocab *v, const json_t *step, const char *fallback,
                                  vptq_split_kind *kind, vptq_err *err)
{
    const char *name = NULL;
    VPTQ_CHECK(vptq_json_str_or(step, v->source, "behavior", fallback, &name, err));
    for (int i = 0; i <= VPTQ_SPLIT_TO_RIGHT; i++)
        if (vptq_split_behaviors[i] && strcmp(name, vptq_split_behaviors[i]) == 0) {
            *kind = (vptq_split_kind)i;
            return VPTQ_OK;
        }
    return unsupported(v, "Split behavior", name, err);
}

static vptq_status split_step(vptq_vocab *v, const json_t *step, vptq_err *err)
{
    vptq_split s = {.kind = VPTQ_SPLIT_ISOLATED};
    bool regex = false;
    VPTQ_CHECK(copy_pattern(v, step, &s.pattern, &regex, err));
    if (!regex) {
        s.pattern = quoted(v, s.pattern, err);
        if (!s.pattern)
            return VPTQ_E_NOMEM;
    }
    VPTQ_CHECK(split_behavior(v, step, NULL, &s.kind, err));
    VPTQ_CHECK(vptq_json_bool_or(step, v->source, "invert", false, &s.invert, err));
    return vptq_vocab_add_split(v, s, err);
}

static vptq_status byte_level(vptq_vocab *v, const json_t *step, vptq_err *err)
{
    bool prefix = true, regex = true;
    VPTQ_CHECK(vptq_json_bool_or(step, v->source, "add_prefix_space", true, &prefix, err));
    VPTQ_CHECK(vptq_json_bool_or(step, v->source, "use_regex", true, &regex, err));
    if (prefix)
        VPTQ_CHECK(vptq_vocab_add_split(v, (vptq_split){.kind = VPTQ_SPLIT_PREFIX}, err));
    if (regex)
        VPTQ_CHECK(vptq_vocab_add_split(
            v, (vptq_split){.kind = VPTQ_SPLIT_ISOLATED, .pattern = vptq_pattern_gpt2()}, err));
    v->kind = VPTQ_VOCAB_BYTE_BPE;
    return VPTQ_OK;
}

static vptq_status need_meta(const vptq_vocab *v, const json_t *step, vptq_err *err)
{
    const char *replacement = NULL;
    VPTQ_CHECK(vptq_json_str_or(step, v->source, "replacement", VPTQ_META, &replacement, err));
    if (strcmp(replacement, VPTQ_META) != 0)
        return unsupported(v, "Metaspace replacement", replacement, err);
    return VPTQ_OK;
}

static vptq_status prepend_scheme(const vptq_vocab *v, const json_t *step, vptq_prepend *out,
                                  vptq_err *err)
{
    bool prefix = true;
    const char *scheme = NULL;
    VPTQ_CHECK(vptq_json_bool_or(step, v->source, "add_prefix_space", true, &prefix, err));
    VPTQ_CHECK(vptq_json_str_or(step, v->source, "prepend_scheme", prefix ? "always" : "never",
                                &scheme, err));
    for (int i = 0; i < 3; i++)
        if (strcmp(scheme, vptq_prepend_schemes[i]) == 0) {
            *out = (vptq_prepend)i;
            return VPTQ_OK;
        }
    return unsupported(v, "prepend_scheme", scheme, err);
}

static vptq_status metaspace(vptq_vocab *v, const json_t *step, vptq_err *err)
{
    vptq_split s = {.kind = VPTQ_SPLIT_METASPACE};
    VPTQ_CHECK(need_meta(v, step, err));
    VPTQ_CHECK(prepend_scheme(v, step, &s.prepend, err));
    VPTQ_CHECK(vptq_json_bool_or(step, v->source, "split", true, &s.individual, err));
    return vptq_vocab_add_split(v, s, err);
}

/* Matches single characters of \p{P} and of ASCII punctuation. */
static vptq_status punctuation(vptq_vocab *v, const json_t *step, vptq_err *err)
{
    vptq_split s = {.pattern = "[\\p{P}$+<=>^`|~]"};
    VPTQ_CHECK(split_behavior(v, step, "Isolated", &s.kind, err));
    return vptq_vocab_add_split(v, s, err);
}

/* Words, and runs of characters that are neither words nor space. The original is not an
 * Oniguruma pattern: joiners belong to words. */
static vptq_status whitespace(vptq_vocab *v, vptq_err *err)
{
    static const char pattern[] = "[\\w\\x{200C}\\x{200D}]+|[^\\w\\x{200C}\\x{200D}\\s]+";
    return vptq_vocab_add_split(
        v, (vptq_split){.kind = VPTQ_SPLIT_REMOVED, .pattern = pattern, .invert = true}, err);
}

static vptq_status char_delimiter(vptq_vocab *v, const json_t *step, vptq_err *err)
{
    vptq_split s = {.kind = VPTQ_SPLIT_REMOVED};
    const char *delimiter = NULL;
    VPTQ_CHECK(vptq_json_str_or(step, v->source, "delimiter", NULL, &delimiter, err));
    uint32_t cp = 0;
    size_t len = strlen(delimiter);
    if (len == 0 || vptq_utf8_decode(delimiter, len, &cp) != len)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: the delimiter '%.100s' is not one character",
                         v->source, delimiter);
    s.pattern = quoted(v, delimiter, err);
    return s.pattern ? vptq_vocab_add_split(v, s, err) : VPTQ_E_NOMEM;
}

static vptq_status digits(vptq_vocab *v, const json_t *step, vptq_err *err)
{
    vptq_split s = {.kind = VPTQ_SPLIT_DIGITS};
    VPTQ_CHECK(
        vptq_json_bool_or(step, v->source, "individual_digits", false, &s.individual, err));
    return vptq_vocab_add_split(v, s, err);
}

static vptq_status pre_tokenizer(vptq_vocab *v, const json_t *step, const char *type,
                                 vptq_err *err)
{
    /* ByteLevel turns text into its alphabet: a later step would see that */
    if (v->kind == VPTQ_VOCAB_BYTE_BPE)
        return unsupported(v, "pre-tokenizer after ByteLevel,", type, err);
    if (strcmp(type, "Split") == 0)
        return split_step(v, step, err);
    if (strcmp(type, "ByteLevel") == 0)
        return byte_level(v, step, err);
    if (strcmp(type, "Metaspace") == 0)
        return metaspace(v, step, err);
    if (strcmp(type, "Digits") == 0)
        return digits(v, step, err);
    if (strcmp(type, "Punctuation") == 0)
        return punctuation(v, step, err);
    if (strcmp(type, "CharDelimiterSplit") == 0)
        return char_delimiter(v, step, err);
    if (strcmp(type, "WhitespaceSplit") == 0)
        return vptq_vocab_add_split(
            v, (vptq_split){.kind = VPTQ_SPLIT_REMOVED, .pattern = "\\s"}, err);
    if (strcmp(type, "Whitespace") == 0)
        return whitespace(v, err);
    return unsupported(v, "pre-tokenizer", type, err);
}

/* --- decoder --- */

/* Accepts only U+2581 to a space, which decoding does anyway. */
static vptq_status decoder_replace(const vptq_vocab *v, const json_t *step, vptq_err *err)
{
    const char *from = NULL, *to = NULL;
    VPTQ_CHECK(vptq_json_str_or(json_object_get(step, "pattern"), v->source, "String", NULL,
                                &from, err));
    VPTQ_CHECK(vptq_json_str_or(step, v->source, "content", NULL, &to, err));
    if (strcmp(from, VPTQ_META) != 0 || strcmp(to, " ") != 0)
        return unsupported(v, "decoder Replace of", from, err);
    return VPTQ_OK;
}

/* Accepts only a Strip of at most one space at the start of the whole text. */
static vptq_status decoder_strip(vptq_vocab *v, const json_t *step, bool fused, vptq_err *err)
{
    const char *content = NULL;
    uint64_t start = 0, stop = 0;
    VPTQ_CHECK(vptq_json_str_or(step, v->source, "content", NULL, &content, err));
    VPTQ_CHECK(vptq_json_u64_or(step, v->source, "start", UINT32_MAX, 0, &start, err));
    VPTQ_CHECK(vptq_json_u64_or(step, v->source, "stop", UINT32_MAX, 0, &stop, err));
    if (strcmp(content, " ") != 0 || start > 1 || stop > 0)
        return unsupported(v, "decoder Strip of", content, err);
    if (start > 0 && !fused)
        return unsupported(v, "decoder", "Strip before Fuse", err);
    v->strip_start = v->strip_start || start == 1;
    return VPTQ_OK;
}

static vptq_status decoder_metaspace(vptq_vocab *v, const json_t *step, bool fused,
                                     vptq_err *err)
{
    vptq_prepend scheme = VPTQ_PREPEND_NEVER;
    VPTQ_CHECK(need_meta(v, step, err));
    VPTQ_CHECK(prepend_scheme(v, step, &scheme, err));
    if (fused)
        return unsupported(v, "decoder", "Metaspace after Fuse", err);
    v->strip_marks = scheme != VPTQ_PREPEND_NEVER;
    return VPTQ_OK;
}

/* Decoding is the inverse of the model's kind; refuses any other decoder. `fused`: a Fuse came
 * before. */
static vptq_status decoder(vptq_vocab *v, const json_t *step, const char *type, bool fused,
                           vptq_err *err)
{
    bool bytes = v->kind == VPTQ_VOCAB_BYTE_BPE;
    if (strcmp(type, "ByteLevel") == 0)
        return bytes ? VPTQ_OK
                     : unsupported(v, "decoder", "ByteLevel without pre-tokenizer", err);
    if (strcmp(type, "Fuse") == 0)
        return VPTQ_OK;
    if (bytes)
        return unsupported(v, "decoder", type, err);
    if (strcmp(type, "ByteFallback") == 0) {
        vptq_vocab_mark_bytes(v);
        return VPTQ_OK;
    }
    if (strcmp(type, "Metaspace") == 0)
        return decoder_metaspace(v, step, fused, err);
    if (strcmp(type, "Replace") == 0)
        return decoder_replace(v, step, err);
    if (strcmp(type, "Strip") == 0)
        return decoder_strip(v, step, fused, err);
    return unsupported(v, "decoder", type, err);
}

static vptq_status each_decoder(vptq_vocab *v, const json_t *part, vptq_err *err)
{
    steps s = {.what = "decoder", .list = "decoders"};
    bool fused = false;
    VPTQ_CHECK(flatten(v, part, 0, &s, err));
    for (size_t i = 0; i < s.count; i++) {
        VPTQ_CHECK(decoder(v, s.of[i], s.type[i], fused, err));
        fused = fused || strcmp(s.type[i], "Fuse") == 0;
    }
    return VPTQ_OK;
}

/* --- post_processor --- */

/* Reads the id of a special token of the template. */
static vptq_status template_id(const vptq_vocab *v, const json_t *step, const json_t *token,
                               int32_t *id, vptq_err *err)
{
    const char *name = NULL;
    VPTQ_CHECK(vptq_json_str_or(token, v->source, "id", NULL, &name, err));
    const json_t *special = json_object_get(json_object_get(step, "special_tokens"), name);
    const json_t *ids = json_object_get(special, "ids");
    const json_t *first = json_array_get(ids, 0);
    if (json_array_size(ids) != 1 || !json_is_integer(first) || json_integer_value(first) < 0 ||
        json_integer_value(first) >= (json_int_t)v->count)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: the template's token '%.100s' is not one id of the vocabulary",
                         v->source, name);
    *id = (int32_t)json_integer_value(first);
    return VPTQ_OK;
}

static vptq_status post_processor(vptq_vocab *v, const json_t *step, const char *type,
                                  vptq_err *err)
{
    if (strcmp(type, "ByteLevel") == 0)
        return VPTQ_OK; /* concerns offsets only */
    if (strcmp(type, "TemplateProcessing") != 0)
        return unsupported(v, "post-processor", type, err);
    const json_t *single = json_object_get(step, "single");
    if (!json_is_array(single))
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: the template has no array 'single'",
                         v->source);
    bool after_text = false;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *part = json_array_get(single, i);
        const json_t *token = json_object_get(part, "SpecialToken");
        bool *adds = after_text ? &v->add_eos : &v->add_bos;
        if (json_object_get(part, "Sequence") && !after_text) {
            after_text = true;
            continue;
        }
        if (!token || *adds)
            return unsupported(v, "template with",
                               token ? "two tokens at one end" : "two texts", err);
        *adds = true;
        VPTQ_CHECK(template_id(v, step, token, after_text ? &v->eos : &v->bos, err));
    }
    return after_text ? VPTQ_OK : unsupported(v, "template without", "a text", err);
}

vptq_status vptq_vocab_json_steps(vptq_vocab *v, const json_t *root, vptq_err *err)
{
    v->kind = VPTQ_VOCAB_SPM_BPE; /* until a ByteLevel step says otherwise */
    VPTQ_CHECK(each(v, json_object_get(root, "normalizer"), "normalizer", "normalizers",
                    normalizer, err));
    VPTQ_CHECK(each(v, json_object_get(root, "pre_tokenizer"), "pre-tokenizer", "pretokenizers",
                    pre_tokenizer, err));
    VPTQ_CHECK(each_decoder(v, json_object_get(root, "decoder"), err));
    return each(v, json_object_get(root, "post_processor"), "post-processor", "processors",
                post_processor, err);
}
