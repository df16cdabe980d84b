#include "lib/eval/task_file.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/file.h"
#include "lib/base/utf8.h"
#include "lib/eval/task_records.h"

enum { LINES_PER_ITEM = 6, ITEMS_MIN = 64 };

typedef struct cursor {
    const char *path, *at, *end;
    size_t line; /* number of the line that was taken last */
} cursor;

typedef struct job {
    const vptq_task_file_options *opt;
    vptq_task_file *file;
    size_t cap;
} job;

/* ---- lines ---- */

/* The next line without its end; false at the end of the file. */
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

/* The name of a known set is for that set's items alone. */
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
                             c->path, c->line, vptq_task_form_name(form), task);
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
    json_error_t je;
    *record = json_loadb(line.s, line.n, JSON_REJECT_DUPLICATES, &je);
    if (!*record && json_error_code(&je) == json_error_out_of_memory)
        return vptq_fail(err, VPTQ_E_NOMEM, "%s: out of memory while reading JSON", c->path);
    if (!*record)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: line %zu, column %d: not valid JSON: %s",
                         c->path, c->line, je.column, je.text);
    if (json_is_object(*record))
        return VPTQ_OK;
    json_decref(*record);
    *record = NULL;
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: line %zu is no JSON object", c->path, c->line);
}

/* One line of JSON. */
static vptq_status read_record(job *j, const cursor *c, vptq_task_text line, const char *name,
                               vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_task_reader r = {j->opt, &j->file->arena, name};
    vptq_task_item *item;
    vptq_task_form form;
    json_t *record = NULL;
    VPTQ_TRY(parse_record(c, line, &record, err));
    VPTQ_TRY(vptq_task_record_form(record, name, &form, err));
    if (j->file->count == 0)
        VPTQ_TRY(check_name(c, j->opt->task, form, err));
    else if (form != j->file->form)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_FORMAT, "%s: an item of the form %s in a file of %s",
                           name, vptq_task_form_name(form),
                           vptq_task_form_name(j->file->form)));
    j->file->form = form;
    VPTQ_TRY(next_item(j, c->line, &item, err));
    VPTQ_TRY(vptq_task_record_read(&r, form, record, item, err));
out:
    json_decref(record);
    return st;
}

/* Six lines, of which the first is `line`. */
static vptq_status read_lines(job *j, cursor *c, vptq_task_text line, const char *name,
                              vptq_err *err)
{
    const vptq_task_reader r = {j->opt, &j->file->arena, name};
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
    return vptq_task_lines_read(&r, lines, item, err);
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
                                vptq_mem *mem, vptq_task_file *file, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char *data = NULL;
    size_t size = 0;
    job j = {.opt = opt, .file = file};
    *file = (vptq_task_file){.path = path};
    vptq_arena_init(&file->arena, mem);
    VPTQ_TRY(vptq_file_read(path, VPTQ_TASK_FILE_MAX, mem, &data, &size, err));
    cursor c = {.path = path, .at = data, .end = data + size};
    VPTQ_TRY(read_all(&j, &c, err));
out:
    vptq_mem_free(mem, data);
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
