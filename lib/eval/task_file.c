/* Files of choice tasks: lines, records of the known data sets, and the requests of each item.
 */
#include "lib/eval/task_file.h"

#include <stdio.h>
#include <string.h>

#include "formats/json.h"
#include "formats/text_file.h"
#include "lib/base/utf8.h"
#include "lib/eval/task_text.h"

enum { LINES_PER_ITEM = 6, ITEMS_MIN = 64 };

typedef struct cursor {
    const char *path, *at, *end;
    size_t line; /* number of the line read last */
} cursor;

typedef struct job {
    const vptq_task_file_options *opt;
    vptq_task_file *file;
    size_t cap;
} job;

/* Context of reading one item. */
typedef struct reader {
    const vptq_task_file_options *opt;
    vptq_arena *arena;
    const char *name; /* "FILE: line 12" */
} reader;

/* ---- values of a record ---- */

static vptq_task_text text_of(const char *s)
{
    return (vptq_task_text){s, strlen(s)};
}

/* Copies a string of the record. */
static vptq_status get_text(const reader *r, const json_t *record, const char *key,
                            vptq_task_text *out, vptq_err *err)
{
    const char *s;
    VPTQ_CHECK(vptq_json_str_or(record, r->name, key, NULL, &s, err));
    s = vptq_arena_strdup(r->arena, s, err);
    if (!s)
        return VPTQ_E_NOMEM;
    *out = text_of(s);
    return VPTQ_OK;
}

/* Copies an array of 2 to VPTQ_TASK_CHOICES_MAX strings, none of them empty. */
static vptq_status get_texts(const reader *r, const json_t *record, const char *key,
                             vptq_task_text **out, uint32_t *count, vptq_err *err)
{
    const json_t *list = json_object_get(record, key);
    if (!json_is_array(list))
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' is %s, expected an array of strings",
                         r->name, key, list ? "not an array" : "missing");
    const size_t n = json_array_size(list);
    if (n < 2 || n > VPTQ_TASK_CHOICES_MAX)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' has %zu entries, expected 2 to %d",
                         r->name, key, n, (int)VPTQ_TASK_CHOICES_MAX);
    vptq_task_text *texts = vptq_arena_alloc(r->arena, n, sizeof *texts, err);
    if (!texts)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const char *s = json_string_value(json_array_get(list, i));
        if (!s || !*s)
            return vptq_fail(err, VPTQ_E_FORMAT, "%s: entry %zu of '%s' is %s, expected a text",
                             r->name, i, key, s ? "empty" : "not a string");
        s = vptq_arena_strdup(r->arena, s, err);
        if (!s)
            return VPTQ_E_NOMEM;
        texts[i] = text_of(s);
    }
    *out = texts;
    *count = (uint32_t)n;
    return VPTQ_OK;
}

/* Reads the index of the right choice of `count`; `first` is the number that the file gives the
 * first choice.  Accepts a number, a string with a number, and false or true for two choices.
 */
static vptq_status get_gold(const reader *r, const json_t *record, const char *key,
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

static vptq_status new_requests(const reader *r, uint32_t count, vptq_task_item *item,
                                vptq_task_request **requests, vptq_err *err)
{
    vptq_task_request *q = vptq_arena_zalloc(r->arena, count, sizeof *q, err);
    if (!q)
        return VPTQ_E_NOMEM;
    item->count = count;
    item->requests = *requests = q;
    return VPTQ_OK;
}

/* Makes one request per choice: the same context, continued with delimiter and choice. */
static vptq_status put_choices(const reader *r, vptq_task_text context, const char *delimiter,
                               const vptq_task_text *choices, uint32_t count,
                               vptq_task_item *item, vptq_err *err)
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

/* Makes one request per context, each continued with a space and the same text. */
static vptq_status put_contexts(const reader *r, const vptq_task_text *contexts, uint32_t count,
                                vptq_task_text text, vptq_task_item *item, vptq_err *err)
{
    vptq_task_request *q;
    vptq_task_text continuation;
    const vptq_task_text parts[] = {text_of(" "), text};
    VPTQ_CHECK(new_requests(r, count, item, &q, err));
    VPTQ_CHECK(vptq_task_join(parts, 2, r->arena, &continuation, err));
    for (uint32_t i = 0; i < count; i++) {
        q[i].context = contexts[i];
        q[i].continuation = continuation;
        q[i].characters = vptq_task_characters(contexts[i]);
    }
    return VPTQ_OK;
}

static vptq_status join3(const reader *r, const char *a, vptq_task_text b, const char *c,
                         vptq_task_text *out, vptq_err *err)
{
    const vptq_task_text parts[] = {text_of(a), b, text_of(c)};
    return vptq_task_join(parts, 3, r->arena, out, err);
}

/* ---- records of the known data sets ---- */

/* Reads choices {text[], label[]}, and the label of the right one from `answerKey`. */
static vptq_status labelled_choices(const reader *r, const json_t *record,
                                    vptq_task_text **choices, uint32_t *count, uint32_t *gold,
                                    vptq_err *err)
{
    const json_t *both = json_object_get(record, "choices");
    vptq_task_text *labels, key;
    uint32_t label_count;
    if (!json_is_object(both))
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: key 'choices' is %s, expected an object with 'text' and 'label'",
                         r->name, both ? "not an object" : "missing");
    VPTQ_CHECK(get_texts(r, both, "text", choices, count, err));
    VPTQ_CHECK(get_texts(r, both, "label", &labels, &label_count, err));
    VPTQ_CHECK(get_text(r, record, "answerKey", &key, err));
    if (label_count != *count)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: %u labels for %u choices", r->name,
                         label_count, *count);
    key = vptq_task_trim(key);
    for (*gold = 0; *gold < *count; ++*gold)
        if (labels[*gold].n == key.n && memcmp(labels[*gold].s, key.s, key.n) == 0)
            return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: key 'answerKey' is '%.*s', which no choice has",
                     r->name, (int)(key.n < 32 ? key.n : 32), key.s);
}

static vptq_status read_arc(const reader *r, const json_t *record, vptq_task_item *item,
                            vptq_err *err)
{
    vptq_task_text question, context, *choices;
    uint32_t count;
    VPTQ_CHECK(get_text(r, record, "question", &question, err));
    VPTQ_CHECK(labelled_choices(r, record, &choices, &count, &item->gold, err));
    VPTQ_CHECK(join3(r, "Question: ", question, "\nAnswer:", &context, err));
    return put_choices(r, context, " ", choices, count, item, err);
}

static vptq_status read_openbookqa(const reader *r, const json_t *record, vptq_task_item *item,
                                   vptq_err *err)
{
    vptq_task_text question, *choices;
    uint32_t count;
    VPTQ_CHECK(get_text(r, record, "question_stem", &question, err));
    VPTQ_CHECK(labelled_choices(r, record, &choices, &count, &item->gold, err));
    return put_choices(r, question, " ", choices, count, item, err);
}

static vptq_status read_piqa(const reader *r, const json_t *record, vptq_task_item *item,
                             vptq_err *err)
{
    vptq_task_text goal, context, choices[2];
    VPTQ_CHECK(get_text(r, record, "goal", &goal, err));
    VPTQ_CHECK(get_text(r, record, "sol1", &choices[0], err));
    VPTQ_CHECK(get_text(r, record, "sol2", &choices[1], err));
    VPTQ_CHECK(get_gold(r, record, "label", 0, 2, &item->gold, err));
    VPTQ_CHECK(join3(r, "Question: ", goal, "\nAnswer:", &context, err));
    return put_choices(r, context, " ", choices, 2, item, err);
}

static vptq_status read_hellaswag(const reader *r, const json_t *record, vptq_task_item *item,
                                  vptq_err *err)
{
    vptq_task_text activity, a, b, context, *endings;
    uint32_t count;
    VPTQ_CHECK(get_text(r, record, "activity_label", &activity, err));
    VPTQ_CHECK(get_text(r, record, "ctx_a", &a, err));
    VPTQ_CHECK(get_text(r, record, "ctx_b", &b, err));
    VPTQ_CHECK(get_texts(r, record, "endings", &endings, &count, err));
    VPTQ_CHECK(get_gold(r, record, "label", 0, count, &item->gold, err));
    VPTQ_CHECK(vptq_task_capitalize(b, r->arena, &b, err));
    const vptq_task_text parts[] = {activity, text_of(": "), a, text_of(" "), b};
    VPTQ_CHECK(vptq_task_join(parts, 5, r->arena, &context, err));
    VPTQ_CHECK(vptq_task_clean(context, r->arena, &context, err));
    for (uint32_t i = 0; i < count; i++)
        VPTQ_CHECK(vptq_task_clean(endings[i], r->arena, &endings[i], err));
    return put_choices(r, context, " ", endings, count, item, err);
}

/* Contexts: the sentence up to "_", ending with each option.  Continuation: the rest of it. */
static vptq_status read_winogrande(const reader *r, const json_t *record, vptq_task_item *item,
                                   vptq_err *err)
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
    const vptq_task_text rest =
        vptq_task_trim((vptq_task_text){gap + 1, sentence.n - before.n - 1});
    for (int i = 0; i < 2; i++) {
        const vptq_task_text parts[] = {before, options[i]};
        VPTQ_CHECK(vptq_task_join(parts, 2, r->arena, &options[i], err));
    }
    return put_contexts(r, options, 2, rest, item, err);
}

static vptq_status read_copa(const reader *r, const json_t *record, vptq_task_item *item,
                             vptq_err *err)
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
    premise = vptq_task_trim(premise);
    while (premise.n > 0 && vptq_utf8_continues(premise.s[--premise.n]))
        ; /* drops its last character, a full stop */
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

static vptq_status read_boolq(const reader *r, const json_t *record, vptq_task_item *item,
                              vptq_err *err)
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

/* Continuation: the last word with the space before it.  Context: all other words. */
static vptq_status read_lambada(const reader *r, const json_t *record, vptq_task_item *item,
                                vptq_err *err)
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

static vptq_status read_choices(const reader *r, const json_t *record, vptq_task_item *item,
                                vptq_err *err)
{
    vptq_task_text query, context, *choices;
    uint32_t count;
    VPTQ_CHECK(get_text(r, record, "query", &query, err));
    VPTQ_CHECK(get_texts(r, record, "choices", &choices, &count, err));
    VPTQ_CHECK(get_gold(r, record, "gold", 0, count, &item->gold, err));
    VPTQ_CHECK(join3(r, "", query, r->opt->delimiter, &context, err));
    return put_choices(r, context, "", choices, count, item, err);
}

static vptq_status read_schema(const reader *r, const json_t *record, vptq_task_item *item,
                               vptq_err *err)
{
    vptq_task_text continuation, *contexts;
    uint32_t count;
    VPTQ_CHECK(get_texts(r, record, "context_options", &contexts, &count, err));
    VPTQ_CHECK(get_text(r, record, "continuation", &continuation, err));
    VPTQ_CHECK(get_gold(r, record, "gold", 0, count, &item->gold, err));
    return put_contexts(r, contexts, count, continuation, item, err);
}

static vptq_status read_six_lines(const reader *r, const vptq_task_text *lines,
                                  vptq_task_item *item, vptq_err *err)
{
    const vptq_task_text gold = lines[1];
    if (gold.n != 1 || gold.s[0] < '0' || gold.s[0] > '3')
        return vptq_fail(
            err, VPTQ_E_FORMAT,
            "%s: the next line is '%.*s', expected the number of the right ending, "
            "0 to 3 (a file that is not JSON lines has six lines per item)",
            r->name, (int)(gold.n < 32 ? gold.n : 32), gold.s);
    item->gold = (uint32_t)(gold.s[0] - '0');
    return put_choices(r, lines[0], " ", lines + 2, 4, item, err);
}

/* ---- forms ---- */

typedef struct form_row {
    const char *name;
    const char *key; /* that no earlier form has */
    vptq_status (*read)(const reader *r, const json_t *record, vptq_task_item *item,
                        vptq_err *err);
} form_row;

/* Indexed by vptq_task_form. */
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

static const char *form_name(vptq_task_form form)
{
    return forms[form].name;
}

static vptq_status record_form(const json_t *record, const char *name, vptq_task_form *form,
                               vptq_err *err)
{
    /* first, because OpenBookQA has ARC's keys and one more */
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
                     "%s: not a known form of item: it has none of the keys 'answerKey' (ARC, "
                     "OpenBookQA), 'goal' (PIQA), 'endings' (HellaSwag), 'sentence' "
                     "(WinoGrande), 'premise' (COPA), 'passage' (BoolQ), 'text' (LAMBADA), "
                     "'query' and 'context_options'",
                     name);
}

static vptq_status read_form(const reader *r, vptq_task_form form, const json_t *record,
                             vptq_task_item *item, vptq_err *err)
{
    return forms[form].read(r, record, item, err);
}

/* ---- lines ---- */

/* Reads the next line without its line break; false at the end of the file. */
static bool take_line(cursor *c, vptq_task_text *line)
{
    if (c->at == c->end)
        return false;
    const size_t left = (size_t)(c->end - c->at);
    const char *end = memchr(c->at, '\n', left);
    *line = (vptq_task_text){c->at, end ? (size_t)(end - c->at) : left};
    c->at += line->n + (end != NULL);
    c->line++;
    if (line->n && line->s[line->n - 1] == '\r')
        line->n--;
    return true;
}

static bool is_blank(vptq_task_text line)
{
    size_t i = 0;
    while (i < line.n && (line.s[i] == ' ' || line.s[i] == '\t' || line.s[i] == '\r'))
        i++;
    return i == line.n;
}

static vptq_status check_line(const cursor *c, vptq_task_text line, vptq_err *err)
{
    if (line.n > VPTQ_TASK_LINE_MAX)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: line %zu has %zu bytes, expected at most %d",
                         c->path, c->line, line.n, (int)VPTQ_TASK_LINE_MAX);
    const size_t valid = vptq_utf8_valid_prefix(line.s, line.n);
    if (valid < line.n)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: line %zu is not UTF-8 at byte %zu", c->path,
                         c->line, valid);
    return VPTQ_OK;
}

/* ---- items ---- */

/* Checks that a task named after a known data set has items of that set. */
static vptq_status check_name(const cursor *c, const char *task, vptq_task_form form,
                              vptq_err *err)
{
    static const struct {
        const char *task;
        vptq_task_form form;
    } known[] = {{"arc_easy", VPTQ_TASK_ARC},
                 {"arc_challenge", VPTQ_TASK_ARC},
                 {"openbookqa", VPTQ_TASK_OPENBOOKQA},
                 {"piqa", VPTQ_TASK_PIQA},
                 {"hellaswag", VPTQ_TASK_HELLASWAG},
                 {"winogrande", VPTQ_TASK_WINOGRANDE},
                 {"copa", VPTQ_TASK_COPA},
                 {"boolq", VPTQ_TASK_BOOLQ},
                 {"lambada", VPTQ_TASK_LAMBADA},
                 {"lambada_openai", VPTQ_TASK_LAMBADA}};
    if (form == VPTQ_TASK_CHOICES || form == VPTQ_TASK_SCHEMA)
        return VPTQ_OK;
    if (form == VPTQ_TASK_ENDINGS)
        form = VPTQ_TASK_HELLASWAG;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(task, known[i].task) == 0 && known[i].form != form)
            return vptq_fail(err, VPTQ_E_FORMAT, "%s: line %zu is an item of %s, not of %s",
                             c->path, c->line, form_name(form), task);
    return VPTQ_OK;
}

static vptq_status next_item(job *j, size_t line, vptq_task_item **item, vptq_err *err)
{
    vptq_task_file *f = j->file;
    if (f->count == j->cap) {
        const size_t cap = j->cap ? 2 * j->cap : ITEMS_MIN;
        vptq_task_item *items = vptq_arena_alloc(&f->arena, cap, sizeof *items, err);
        if (!items)
            return VPTQ_E_NOMEM;
        if (f->count)
            memcpy(items, f->items, f->count * sizeof *items);
        f->items = items;
        j->cap = cap;
    }
    *item = &f->items[f->count++];
    **item = (vptq_task_item){.line = (uint32_t)line};
    return VPTQ_OK;
}

static vptq_status parse_record(const cursor *c, vptq_task_text line, json_t **record,
                                vptq_err *err)
{
    *record = NULL;
    VPTQ_CHECK(vptq_json_parse_at(line.s, line.n, c->path, c->line, record, err));
    if (json_is_object(*record))
        return VPTQ_OK;
    json_decref(*record);
    *record = NULL;
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: line %zu is not a JSON object", c->path, c->line);
}

/* Reads an item from one line of JSON. */
static vptq_status read_record(job *j, const cursor *c, vptq_task_text line, const char *name,
                               vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const reader r = {j->opt, &j->file->arena, name};
    vptq_task_item *item;
    vptq_task_form form = VPTQ_TASK_ARC;
    json_t *record = NULL;
    VPTQ_TRY(parse_record(c, line, &record, err));
    VPTQ_TRY(record_form(record, name, &form, err));
    if (j->file->count == 0)
        VPTQ_TRY(check_name(c, j->opt->task, form, err));
    else if (form != j->file->form)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_FORMAT, "%s: an item of the form %s in a file of %s",
                           name, form_name(form), form_name(j->file->form)));
    j->file->form = form;
    VPTQ_TRY(next_item(j, c->line, &item, err));
    VPTQ_TRY(read_form(&r, form, record, item, err));
out:
    json_decref(record);
    return st;
}

/* Reads an item from six lines, of which `line` is the first. */
static vptq_status read_lines(job *j, cursor *c, vptq_task_text line, const char *name,
                              vptq_err *err)
{
    const reader r = {j->opt, &j->file->arena, name};
    const size_t first = c->line;
    vptq_task_item *item;
    vptq_task_text lines[LINES_PER_ITEM] = {line};
    if (j->file->count == 0)
        VPTQ_CHECK(check_name(c, j->opt->task, VPTQ_TASK_ENDINGS, err));
    j->file->form = VPTQ_TASK_ENDINGS;
    for (int i = 0; i < LINES_PER_ITEM; i++) {
        if (i > 0 && !take_line(c, &lines[i]))
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: the file ends within the item of six lines that begins here",
                             name);
        VPTQ_CHECK(check_line(c, lines[i], err));
        if (is_blank(lines[i]))
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: line %zu is empty within an item of six lines", c->path,
                             c->line);
        lines[i].s = vptq_arena_strndup(&j->file->arena, lines[i].s, lines[i].n, err);
        if (!lines[i].s)
            return VPTQ_E_NOMEM;
    }
    VPTQ_CHECK(next_item(j, first, &item, err));
    return read_six_lines(&r, lines, item, err);
}

static vptq_status read_all(job *j, cursor *c, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena names;
    vptq_task_text line;
    vptq_arena_init(&names, j->file->arena.mem);
    const vptq_arena_mark mark = vptq_arena_get_mark(&names);
    while ((!j->opt->limit || j->file->count < j->opt->limit) && take_line(c, &line)) {
        if (is_blank(line))
            continue;
        VPTQ_TRY(check_line(c, line, err));
        const char *name = vptq_arena_printf(&names, err, "%s: line %zu", c->path, c->line);
        if (!name)
            VPTQ_TRY(VPTQ_E_NOMEM);
        const bool json = line.s[strspn(line.s, " \t")] == '{';
        if (j->file->count ? j->file->form != VPTQ_TASK_ENDINGS : json)
            VPTQ_TRY(read_record(j, c, line, name, err));
        else
            VPTQ_TRY(read_lines(j, c, line, name, err));
        vptq_arena_rewind(&names, mark);
    }
    if (j->file->count == 0)
        st = vptq_fail(err, VPTQ_E_FORMAT, "%s: the file has no items", c->path);
out:
    vptq_arena_release(&names);
    return st;
}

vptq_status vptq_task_file_read(const char *path, const vptq_task_file_options *opt,
                                const vptq_ctx *ctx, vptq_task_file *file, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_text_file text;
    job j = {.opt = opt, .file = file};
    *file = (vptq_task_file){.path = vptq_text_file_name(path)};
    vptq_arena_init(&file->arena, ctx->mem);
    VPTQ_TRY(vptq_text_file_open(ctx, path, VPTQ_TEXT_JSON, VPTQ_TASK_FILE_MAX, &text, err));
    cursor c = {.path = text.name, .at = text.data, .end = text.data + text.size};
    VPTQ_TRY(read_all(&j, &c, err));
out:
    vptq_text_file_close(&text);
    if (st)
        vptq_task_file_release(file);
    return st;
}

void vptq_task_file_release(vptq_task_file *file)
{
    vptq_arena_release(&file->arena);
    *file = (vptq_task_file){.arena = file->arena};
}

bool vptq_task_form_has_norm(vptq_task_form form)
{
    return form != VPTQ_TASK_WINOGRANDE && form != VPTQ_TASK_SCHEMA &&
           form != VPTQ_TASK_LAMBADA;
}
