/* Fills, sorts and writes a table in memory. */
#include "lib/report/table.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- filling ----------------------------------------------------------------------------- */

void vptq_table_init(vptq_table *t, vptq_mem *mem, const char *title,
                     const vptq_column *columns, size_t column_count)
{
    VPTQ_BUG_IF(!column_count || column_count > VPTQ_MAX_COLUMNS);
    *t = (vptq_table){.title = title, .columns = columns, .column_count = column_count};
    vptq_arena_init(&t->arena, mem);
}

void vptq_table_release(vptq_table *t)
{
    vptq_mem_free(t->arena.mem, t->cells);
    vptq_arena_release(&t->arena);
    *t = (vptq_table){.title = NULL};
}

static bool grow(vptq_table *t)
{
    size_t cap = t->row_cap ? 2 * t->row_cap : 16, cells;
    vptq_cell *to = NULL;
    if (vptq_size_mul(cap, t->column_count, &cells))
        to = vptq_mem_alloc(t->arena.mem, cells, sizeof *to, &t->err);
    else
        vptq_fail(&t->err, VPTQ_E_NOMEM, "out of memory: a table of %zu rows", cap);
    if (!to)
        return false;
    if (t->row_count)
        memcpy(to, t->cells, t->row_count * t->column_count * sizeof *to);
    vptq_mem_free(t->arena.mem, t->cells);
    t->cells = to;
    t->row_cap = cap;
    return true;
}

void vptq_table_row(vptq_table *t)
{
    if (t->err.code || (t->row_count == t->row_cap && !grow(t)))
        return;
    memset(t->cells + t->row_count * t->column_count, 0, t->column_count * sizeof *t->cells);
    t->row_count++;
    t->filled = 0;
}

static void put(vptq_table *t, vptq_cell cell)
{
    if (t->err.code)
        return;
    VPTQ_BUG_IF(!t->row_count || t->filled == t->column_count);
    t->cells[(t->row_count - 1) * t->column_count + t->filled++] = cell;
}

void vptq_table_text(vptq_table *t, const char *text)
{
    vptq_cell cell = {.kind = VPTQ_CELL_MISSING};
    if (text && !t->err.code) {
        cell.kind = VPTQ_CELL_TEXT;
        cell.as.text = vptq_arena_strdup(&t->arena, text, &t->err);
    }
    put(t, cell);
}

/* Formatted into the arena; NULL after a failure. */
static const char *format(vptq_table *t, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    VPTQ_BUG_IF(n < 0);
    char *text = t->err.code ? NULL : vptq_arena_alloc(&t->arena, (size_t)n + 1, 1, &t->err);
    if (text)
        vsnprintf(text, (size_t)n + 1, fmt, ap);
    return text;
}

void vptq_table_textf(vptq_table *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *text = format(t, fmt, ap);
    va_end(ap);
    put(t, (vptq_cell){.kind = VPTQ_CELL_TEXT, .as.text = text});
}

void vptq_table_notef(vptq_table *t, const char *fmt, ...)
{
    va_list ap;
    VPTQ_BUG_IF(t->note_count == sizeof t->notes / sizeof *t->notes);
    va_start(ap, fmt);
    const char *text = format(t, fmt, ap);
    va_end(ap);
    if (text)
        t->notes[t->note_count++] = text;
}

void vptq_table_integer(vptq_table *t, int64_t value)
{
    put(t, (vptq_cell){.kind = VPTQ_CELL_INTEGER, .as.integer = value});
}

void vptq_table_real(vptq_table *t, double value)
{
    if (isfinite(value))
        put(t, (vptq_cell){.kind = VPTQ_CELL_REAL, .as.real = value, .deviation = (double)NAN});
    else
        vptq_table_skip(t);
}

void vptq_table_skip(vptq_table *t)
{
    put(t, (vptq_cell){.kind = VPTQ_CELL_MISSING});
}

void vptq_table_add(vptq_table *t, const void *row)
{
    vptq_table_row(t);
    for (size_t i = 0; i < t->column_count; i++) {
        const vptq_cell cell = vptq_cell_of(&t->columns[i], row);
        if (cell.kind == VPTQ_CELL_TEXT)
            vptq_table_text(t, cell.as.text);
        else
            put(t, cell);
    }
}

void vptq_table_strong(vptq_table *t)
{
    if (t->err.code)
        return;
    VPTQ_BUG_IF(!t->row_count || !t->filled);
    t->cells[(t->row_count - 1) * t->column_count + t->filled - 1].strong = true;
}

/* --- order ------------------------------------------------------------------------------- */

/* < 0 if a comes before b. */
static int order(const vptq_cell *a, const vptq_cell *b, bool descending)
{
    int sign = descending ? -1 : 1;
    const bool a_missing = a->kind <= VPTQ_CELL_ABSENT, b_missing = b->kind <= VPTQ_CELL_ABSENT;
    if (a_missing || b_missing)
        return a_missing - b_missing;
    if (a->kind == VPTQ_CELL_TEXT && b->kind == VPTQ_CELL_TEXT)
        return sign * strcmp(a->as.text, b->as.text);
    if (a->kind == VPTQ_CELL_INTEGER && b->kind == VPTQ_CELL_INTEGER)
        return sign * ((a->as.integer > b->as.integer) - (a->as.integer < b->as.integer));
    if (a->kind == VPTQ_CELL_UNSIGNED && b->kind == VPTQ_CELL_UNSIGNED)
        return sign * ((a->as.natural > b->as.natural) - (a->as.natural < b->as.natural));
    if (a->kind == VPTQ_CELL_REAL && b->kind == VPTQ_CELL_REAL)
        return sign * ((a->as.real > b->as.real) - (a->as.real < b->as.real));
    return (int)a->kind - (int)b->kind;
}

/* Merges the sorted runs [from, mid) and [mid, to) of row numbers. */
static void merge(const vptq_table *t, size_t column, bool descending, const size_t *rows,
                  size_t *out, size_t from, size_t mid, size_t to)
{
    size_t a = from, b = mid;
    for (size_t i = from; i < to; i++) {
        bool right = a == mid || (b < to && order(&t->cells[rows[b] * t->column_count + column],
                                                  &t->cells[rows[a] * t->column_count + column],
                                                  descending) < 0);
        out[i] = right ? rows[b++] : rows[a++];
    }
}

void vptq_table_sort(vptq_table *t, size_t column, bool descending)
{
    size_t n = t->row_count, width = t->column_count;
    if (t->err.code || n < 2)
        return;
    size_t *rows = vptq_arena_alloc(&t->arena, n, sizeof *rows, &t->err);
    size_t *spare = rows ? vptq_arena_alloc(&t->arena, n, sizeof *spare, &t->err) : NULL;
    vptq_cell *to =
        spare ? vptq_mem_alloc(t->arena.mem, t->row_cap * width, sizeof *to, &t->err) : NULL;
    if (!to)
        return;
    for (size_t i = 0; i < n; i++)
        rows[i] = i;
    for (size_t run = 1; run < n; run *= 2) {
        for (size_t i = 0; i < n; i += 2 * run)
            merge(t, column, descending, rows, spare, i, i + run < n ? i + run : n,
                  i + 2 * run < n ? i + 2 * run : n);
        size_t *swap = rows;
        rows = spare;
        spare = swap;
    }
    for (size_t i = 0; i < n; i++)
        memcpy(to + i * width, t->cells + rows[i] * width, width * sizeof *to);
    vptq_mem_free(t->arena.mem, t->cells);
    t->cells = to;
}

void vptq_table_cut(vptq_table *t, size_t rows)
{
    t->row_count = rows < t->row_count ? rows : t->row_count;
}

/* --- writing ----------------------------------------------------------------------------- */

/* A box that scrolls must be reachable by keyboard, and then needs a name. */
static void begin_html(const vptq_table *t, vptq_emit *e)
{
    vptq_emit_text(e, "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"");
    vptq_emit_xml(e, t->title ? t->title : "table");
    vptq_emit_text(e, "\">\n<table>\n");
    if (t->title) {
        vptq_emit_text(e, "<caption>");
        vptq_emit_xml(e, t->title);
        vptq_emit_text(e, "</caption>\n");
    }
}

static void begin(const vptq_table *t, vptq_format format, vptq_emit *e)
{
    if (format == VPTQ_FORMAT_HTML)
        begin_html(t, e);
    if (format == VPTQ_FORMAT_MD && t->title) {
        vptq_emit_markdown(e, t->title);
        vptq_emit_text(e, "\n\n");
    }
    if (format == VPTQ_FORMAT_TEXT && t->title)
        vptq_emit_format(e, "%s\n", t->title);
}

static void write_note(vptq_format format, const char *note, vptq_emit *e)
{
    if (format == VPTQ_FORMAT_TEXT)
        vptq_emit_format(e, "%s\n", note);
    if (format == VPTQ_FORMAT_MD) {
        vptq_emit_text(e, "\n");
        vptq_emit_markdown(e, note);
        vptq_emit_text(e, "\n");
    }
    if (format == VPTQ_FORMAT_HTML) {
        vptq_emit_text(e, "<p class=\"note\">");
        vptq_emit_xml(e, note);
        vptq_emit_text(e, "</p>\n");
    }
}

vptq_status vptq_table_write(const vptq_table *t, vptq_format format_of, vptq_buf *out,
                             vptq_err *err)
{
    vptq_sheet s = {.columns = t->columns,
                    .column_count = t->column_count,
                    .has = t->has,
                    .format = format_of,
                    .e = {.buf = out, .err = err}};
    if (t->err.code)
        return vptq_fail(err, t->err.code, "%s", t->err.text);
    vptq_sheet_titles(&s);
    for (size_t i = 0; format_of == VPTQ_FORMAT_TEXT && i < t->row_count; i++)
        vptq_sheet_fit(&s, t->cells + i * t->column_count);
    begin(t, format_of, &s.e);
    vptq_sheet_head(&s);
    vptq_emit_text(&s.e, format_of == VPTQ_FORMAT_HTML ? "<tbody>\n" : "");
    for (size_t i = 0; i < t->row_count; i++)
        vptq_sheet_row(&s, t->cells + i * t->column_count);
    vptq_emit_text(&s.e, format_of == VPTQ_FORMAT_HTML ? "</tbody>\n</table>\n</div>\n" : "");
    for (size_t i = 0; i < t->note_count; i++)
        write_note(format_of, t->notes[i], &s.e);
    return s.e.st;
}
