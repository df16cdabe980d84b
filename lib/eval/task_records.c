#include "lib/eval/task_records.h"

#include <string.h>

#include "lib/eval/task_text.h"

/* ---- values of a record ---- */

static vptq_task_text text_of(const char *s)
{
    return (vptq_task_text){s, strlen(s)};
}

/* A string of the record, copied. */
static vptq_status get_text(const vptq_task_reader *r, const json_t *record, const char *key,
                            vptq_task_text *out, vptq_err *err)
{
    const char *s;
    vptq_status st = vptq_json_str_or(record, r->name, key, NULL, &s, err);
    if (st)
        return st;
    s = vptq_arena_strdup(r->arena, s, err);
    if (!s)
        return VPTQ_E_NOMEM;
    *out = text_of(s);
    return VPTQ_OK;
}

/* An array of `least` to VPTQ_TASK_CHOICES_MAX strings, none of them empty. */
static vptq_status get_texts(const vptq_task_reader *r, const json_t *record, const char *key,
                             size_t least, vptq_task_text **out, uint32_t *count, vptq_err *err)
{
    const json_t *list = json_object_get(record, key);
    if (!json_is_array(list))
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' is %s, expected an array of strings",
                         r->name, key, list ? "no array" : "missing");
    const size_t n = json_array_size(list);
    if (n < least || n > VPTQ_TASK_CHOICES_MAX)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' has %zu entries, expected %zu to %d",
                         r->name, key, n, least, (int)VPTQ_TASK_CHOICES_MAX);
    vptq_task_text *texts = vptq_arena_alloc(r->arena, n, sizeof *texts, err);
    if (!texts)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const char *s = json_string_value(json_array_get(list, i));
        if (!s || !*s)
            return vptq_fail(err, VPTQ_E_FORMAT, "%s: entry %zu of '%s' is %s, expected a text",
                             r->name, i, key, s ? "empty" : "no string");
        s = vptq_arena_strdup(r->arena, s, err);
        if (!s)
            return VPTQ_E_NOMEM;
        texts[i] = text_of(s);
    }
    *out = texts;
    *count = (uint32_t)n;
    return VPTQ_OK;
}

/* The index of the right one of `count`; `first`: what the file calls the first.  A number, the
 * same as a string, or for two of them false and true. */
static vptq_status get_gold(const vptq_task_reader *r, const json_t *record, const char *key,
                            uint32_t first, uint32_t count, uint32_t *gold, vptq_err *err)
{
    const json_t *value = json_object_get(record, key);
    const char *s = json_string_value(value);
    json_int_t n = -1;
    if (!value)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' is missing", r->name, key);
    if (json_is_integer(value))
        n = json_integer_value(value);
    else if (json_is_boolean(value) && count == 2)
        n = first + json_is_true(value);
    else if (s && s[0] >= '0' && s[0] <= '9' && strlen(s) <= 2 &&
             (!s[1] || (s[1] >= '0' && s[1] <= '9')))
        n = s[1] ? (s[0] - '0') * 10 + (s[1] - '0') : s[0] - '0';
    if (n < (json_int_t)first || n >= (json_int_t)first + count)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: key '%s' is not the number of a choice, %u to %u", r->name, key,
                         first, first + count - 1);
    *gold = (uint32_t)n - first;
    return VPTQ_OK;
}

/* ---- requests ---- */

static vptq_status new_requests(const vptq_task_reader *r, uint32_t count, vptq_task_item *item,
                                vptq_task_request **requests, vptq_err *err)
{
    vptq_task_request *q = vptq_arena_zalloc(r->arena, count, sizeof *q, err);
    if (!q)
        return VPTQ_E_NOMEM;
    item->count = count;
    item->requests = *requests = q;
    return VPTQ_OK;
}

/* One context, with every choice behind it and a delimiter between them. */
static vptq_status put_choices(const vptq_task_reader *r, vptq_task_text context,
                               const char *delimiter, const vptq_task_text *choices,
                               uint32_t count, vptq_task_item *item, vptq_err *err)
{
    vptq_task_request *q;
    VPTQ_CHECK(new_requests(r, count, item, &q, err));
    for (uint32_t i = 0; i < count; i++) {
        const vptq_task_text parts[] = {text_of(delimiter), choices[i]};
        q[i].context = context;
        q[i].characters = vptq_task_characters(choices[i]);
        VPTQ_CHECK(vptq_task_join(parts, 2, r->arena, &q[i].continuation, err));
    }
    return VPTQ_OK;
}

/* Every context with the same text behind it, a space between them. */
static vptq_status put_contexts(const vptq_task_reader *r, const vptq_task_text *contexts,
                                uint32_t count, vptq_task_text behind, vptq_task_item *item,
                                vptq_err *err)
{
    vptq_task_request *q;
    vptq_task_text continuation;
    const vptq_task_text parts[] = {text_of(" "), behind};
    VPTQ_CHECK(new_requests(r, count, item, &q, err));
    VPTQ_CHECK(vptq_task_join(parts, 2, r->arena, &continuation, err));
    for (uint32_t i = 0; i < count; i++) {
        q[i].context = contexts[i];
        q[i].continuation = continuation;
        q[i].characters = vptq_task_characters(contexts[i]);
    }
    return VPTQ_OK;
}

static vptq_status join3(const vptq_task_reader *r, const char *a, vptq_task_text b,
                         const char *c, vptq_task_text *out, vptq_err *err)
{
    const vptq_task_text parts[] = {text_of(a), b, text_of(c)};
    return vptq_task_join(parts, 3, r->arena, out, err);
}

/* ---- the sets ---- */

/* choices {text[], label[]} and the label of the right one in `answerKey`. */
static vptq_status labelled_choices(const vptq_task_reader *r, const json_t *record,
                                    vptq_task_text **choices, uint32_t *count, uint32_t *gold,
                                    vptq_err *err)
{
    const json_t *both = json_object_get(record, "choices");
    vptq_task_text *labels, key;
    uint32_t label_count;
    if (!json_is_object(both))
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: key 'choices' is %s, expected an object with 'text' and 'label'",
                         r->name, both ? "none" : "missing");
    VPTQ_CHECK(get_texts(r, both, "text", 2, choices, count, err));
    VPTQ_CHECK(get_texts(r, both, "label", 2, &labels, &label_count, err));
    VPTQ_CHECK(get_text(r, record, "answerKey", &key, err));
    if (label_count != *count)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: %u labels for %u choices", r->name,
                         label_count, *count);
    key = vptq_task_strip(key);
    for (*gold = 0; *gold < *count; ++*gold)
        if (labels[*gold].n == key.n && memcmp(labels[*gold].s, key.s, key.n) == 0)
            return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: key 'answerKey' is '%.*s', which no choice has",
                     r->name, (int)(key.n < 32 ? key.n : 32), key.s);
}

static vptq_status read_arc(const vptq_task_reader *r, const json_t *record,
                            vptq_task_item *item, vptq_err *err)
{
    vptq_task_text question, context, *choices;
    uint32_t count;
    VPTQ_CHECK(get_text(r, record, "question", &question, err));
    VPTQ_CHECK(labelled_choices(r, record, &choices, &count, &item->gold, err));
    VPTQ_CHECK(join3(r, "Question: ", question, "\nAnswer:", &context, err));
    return put_choices(r, context, " ", choices, count, item, err);
}

static vptq_status read_openbookqa(const vptq_task_reader *r, const json_t *record,
                                   vptq_task_item *item, vptq_err *err)
{
    vptq_task_text question, *choices;
    uint32_t count;
    VPTQ_CHECK(get_text(r, record, "question_stem", &question, err));
    VPTQ_CHECK(labelled_choices(r, record, &choices, &count, &item->gold, err));
    return put_choices(r, question, " ", choices, count, item, err);
}

static vptq_status read_piqa(const vptq_task_reader *r, const json_t *record,
                             vptq_task_item *item, vptq_err *err)
{
    vptq_task_text goal, context, choices[2];
    VPTQ_CHECK(get_text(r, record, "goal", &goal, err));
    VPTQ_CHECK(get_text(r, record, "sol1", &choices[0], err));
    VPTQ_CHECK(get_text(r, record, "sol2", &choices[1], err));
    VPTQ_CHECK(get_gold(r, record, "label", 0, 2, &item->gold, err));
    VPTQ_CHECK(join3(r, "Question: ", goal, "\nAnswer:", &context, err));
    return put_choices(r, context, " ", choices, 2, item, err);
}

static vptq_status read_hellaswag(const vptq_task_reader *r, const json_t *record,
                                  vptq_task_item *item, vptq_err *err)
{
    vptq_task_text activity, a, b, context, *endings;
    uint32_t count;
    VPTQ_CHECK(get_text(r, record, "activity_label", &activity, err));
    VPTQ_CHECK(get_text(r, record, "ctx_a", &a, err));
    VPTQ_CHECK(get_text(r, record, "ctx_b", &b, err));
    VPTQ_CHECK(get_texts(r, record, "endings", 2, &endings, &count, err));
    VPTQ_CHECK(get_gold(r, record, "label", 0, count, &item->gold, err));
    VPTQ_CHECK(vptq_task_capitalize(b, r->arena, &b, err));
    const vptq_task_text parts[] = {activity, text_of(": "), a, text_of(" "), b};
    VPTQ_CHECK(vptq_task_join(parts, 5, r->arena, &context, err));
    VPTQ_CHECK(vptq_task_clean(context, r->arena, &context, err));
    for (uint32_t i = 0; i < count; i++)
        VPTQ_CHECK(vptq_task_clean(endings[i], r->arena, &endings[i], err));
    return put_choices(r, context, " ", endings, count, item, err);
}

/* The options in place of the "_", up to there; what is behind it is to be continued with. */
static vptq_status read_winogrande(const vptq_task_reader *r, const json_t *record,
                                   vptq_task_item *item, vptq_err *err)
{
    vptq_task_text sentence, options[2];
    VPTQ_CHECK(get_text(r, record, "sentence", &sentence, err));
    VPTQ_CHECK(get_text(r, record, "option1", &options[0], err));
    VPTQ_CHECK(get_text(r, record, "option2", &options[1], err));
    VPTQ_CHECK(get_gold(r, record, "answer", 1, 2, &item->gold, err));
    const char *gap = memchr(sentence.s, '_', sentence.n);
    if (!gap)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key 'sentence' has no '_' for the options",
                         r->name);
    const vptq_task_text before = {sentence.s, (size_t)(gap - sentence.s)};
    const vptq_task_text behind =
        vptq_task_strip((vptq_task_text){gap + 1, sentence.n - before.n - 1});
    for (int i = 0; i < 2; i++) {
        const vptq_task_text parts[] = {before, options[i]};
        VPTQ_CHECK(vptq_task_join(parts, 2, r->arena, &options[i], err));
    }
    return put_contexts(r, options, 2, behind, item, err);
}

static vptq_status read_copa(const vptq_task_reader *r, const json_t *record,
                             vptq_task_item *item, vptq_err *err)
{
    static const char *const keys[] = {"choice1", "choice2"};
    vptq_task_text premise, question, context, choices[2];
    VPTQ_CHECK(get_text(r, record, "premise", &premise, err));
    VPTQ_CHECK(get_text(r, record, "question", &question, err));
    VPTQ_CHECK(get_gold(r, record, "label", 0, 2, &item->gold, err));
    const bool cause = question.n == 5 && memcmp(question.s, "cause", 5) == 0;
    if (!cause && (question.n != 6 || memcmp(question.s, "effect", 6) != 0))
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: key 'question' is neither 'cause' nor 'effect'", r->name);
    premise = vptq_task_strip(premise);
    while (premise.n > 0 && ((unsigned char)premise.s[--premise.n] & 0xC0) == 0x80)
        ; /* without its last character, a full stop */
    VPTQ_CHECK(join3(r, "", premise, cause ? " because" : " therefore", &context, err));
    for (int i = 0; i < 2; i++) {
        VPTQ_CHECK(get_text(r, record, keys[i], &choices[i], err));
        if (choices[i].n == 0)
            return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' is empty", r->name, keys[i]);
        VPTQ_CHECK(vptq_task_lower_first(choices[i], r->arena, &choices[i], err));
        VPTQ_CHECK(join3(r, " ", choices[i], "", &choices[i], err));
    }
    return put_choices(r, context, " ", choices, 2, item, err);
}

static vptq_status read_boolq(const vptq_task_reader *r, const json_t *record,
                              vptq_task_item *item, vptq_err *err)
{
    const vptq_task_text choices[] = {{"no", 2}, {"yes", 3}};
    const char *key = json_object_get(record, "label") ? "label" : "answer";
    vptq_task_text passage, question, context;
    VPTQ_CHECK(get_text(r, record, "passage", &passage, err));
    VPTQ_CHECK(get_text(r, record, "question", &question, err));
    VPTQ_CHECK(get_gold(r, record, key, 0, 2, &item->gold, err));
    const vptq_task_text parts[] = {passage, text_of("\nQuestion: "), question,
                                    text_of("?\nAnswer:")};
    VPTQ_CHECK(vptq_task_join(parts, 4, r->arena, &context, err));
    return put_choices(r, context, " ", choices, 2, item, err);
}

/* The last word, with the space in front of it, behind all others. */
static vptq_status read_lambada(const vptq_task_reader *r, const json_t *record,
                                vptq_task_item *item, vptq_err *err)
{
    vptq_task_text text;
    vptq_task_request *q;
    VPTQ_CHECK(get_text(r, record, "text", &text, err));
    size_t n = text.n;
    while (n > 0 && text.s[n - 1] != ' ')
        n--;
    const vptq_task_text word = {text.s + n, text.n - n};
    VPTQ_CHECK(new_requests(r, 1, item, &q, err));
    q->context = (vptq_task_text){text.s, n ? n - 1 : 0};
    q->characters = vptq_task_characters(word);
    VPTQ_CHECK(join3(r, " ", word, "", &q->continuation, err));
    item->gold = 0;
    return VPTQ_OK;
}

static vptq_status read_choices(const vptq_task_reader *r, const json_t *record,
                                vptq_task_item *item, vptq_err *err)
{
    vptq_task_text query, context, *choices;
    uint32_t count;
    VPTQ_CHECK(get_text(r, record, "query", &query, err));
    VPTQ_CHECK(get_texts(r, record, "choices", 2, &choices, &count, err));
    VPTQ_CHECK(get_gold(r, record, "gold", 0, count, &item->gold, err));
    VPTQ_CHECK(join3(r, "", query, r->opt->delimiter, &context, err));
    return put_choices(r, context, "", choices, count, item, err);
}

static vptq_status read_schema(const vptq_task_reader *r, const json_t *record,
                               vptq_task_item *item, vptq_err *err)
{
    vptq_task_text continuation, *contexts;
    uint32_t count;
    VPTQ_CHECK(get_texts(r, record, "context_options", 2, &contexts, &count, err));
    VPTQ_CHECK(get_text(r, record, "continuation", &continuation, err));
    VPTQ_CHECK(get_gold(r, record, "gold", 0, count, &item->gold, err));
    return put_contexts(r, contexts, count, continuation, item, err);
}

vptq_status vptq_task_lines_read(const vptq_task_reader *r, const vptq_task_text *lines,
                                 vptq_task_item *item, vptq_err *err)
{
    const vptq_task_text gold = lines[1];
    if (gold.n != 1 || gold.s[0] < '0' || gold.s[0] > '3')
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: the line behind it is '%.*s', expected the number of the right "
                         "ending, 0 to 3 (a file that is no JSON lines has six lines per item)",
                         r->name, (int)(gold.n < 32 ? gold.n : 32), gold.s);
    item->gold = (uint32_t)(gold.s[0] - '0');
    return put_choices(r, lines[0], " ", lines + 2, 4, item, err);
}

/* ---- forms ---- */

typedef struct form_row {
    const char *name;
    const char *key; /* that no form before it has */
    vptq_status (*read)(const vptq_task_reader *r, const json_t *record, vptq_task_item *item,
                        vptq_err *err);
} form_row;

/* By vptq_task_form. */
static const form_row forms[] = {
    {"ARC", "answerKey", read_arc},
    {"OpenBookQA", "question_stem", read_openbookqa},
    {"PIQA", "goal", read_piqa},
    {"HellaSwag", "endings", read_hellaswag},
    {"WinoGrande", "sentence", read_winogrande},
    {"COPA", "premise", read_copa},
    {"BoolQ", "passage", read_boolq},
    {"LAMBADA", "text", read_lambada},
    {"choices", "query", read_choices},
    {"schema", "context_options", read_schema},
    {"HellaSwag's text form", NULL, NULL},
};

const char *vptq_task_form_name(vptq_task_form form)
{
    return forms[form].name;
}

vptq_status vptq_task_record_form(const json_t *record, const char *name, vptq_task_form *form,
                                  vptq_err *err)
{
    /* OpenBookQA has ARC's keys and one of its own: it is asked first. */
    if (json_object_get(record, forms[VPTQ_TASK_OPENBOOKQA].key)) {
        *form = VPTQ_TASK_OPENBOOKQA;
        return VPTQ_OK;
    }
    for (int f = 0; forms[f].key; f++)
        if (json_object_get(record, forms[f].key)) {
            *form = (vptq_task_form)f;
            return VPTQ_OK;
        }
    return vptq_fail(err, VPTQ_E_FORMAT,
                     "%s: no known form of item: it has none of the keys 'answerKey' (ARC, "
                     "OpenBookQA), 'goal' (PIQA), 'endings' (HellaSwag), 'sentence' "
                     "(WinoGrande), 'premise' (COPA), 'passage' (BoolQ), 'text' (LAMBADA), "
                     "'query' and 'context_options'",
                     name);
}

vptq_status vptq_task_record_read(const vptq_task_reader *r, vptq_task_form form,
                                  const json_t *record, vptq_task_item *item, vptq_err *err)
{
    return forms[form].read(r, record, item, err);
}
