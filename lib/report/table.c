#include "lib/report/table.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/utf8.h"

/* Room for a number as people read it: a double with decimals may have 309 digits. */
enum { CELL_TEXT = 384 };

/* --- filling ----------------------------------------------------------------------------- */

void vptq_table_init(vptq_table *t, vptq_mem *mem, const char *title,
                     const vptq_column *columns, size_t column_count)
{
    VPTQ_BUG_IF(!column_count || column_count > VPTQ_TABLE_COLUMNS);
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
        put(t, (vptq_cell){.kind = VPTQ_CELL_REAL, .as.real = value});
    else
        vptq_table_skip(t);
}

void vptq_table_skip(vptq_table *t)
{
    put(t, (vptq_cell){.kind = VPTQ_CELL_MISSING});
}

void vptq_table_strong(vptq_table *t)
{
    if (t->err.code)
        return;
    VPTQ_BUG_IF(!t->row_count || !t->filled);
    t->cells[(t->row_count - 1) * t->column_count + t->filled - 1].strong = true;
}

/* --- order ------------------------------------------------------------------------------- */

/* < 0 when a belongs in front of b. */
static int order(const vptq_cell *a, const vptq_cell *b, bool descending)
{
    int sign = descending ? -1 : 1;
    if (a->kind == VPTQ_CELL_MISSING || b->kind == VPTQ_CELL_MISSING)
        return (a->kind == VPTQ_CELL_MISSING) - (b->kind == VPTQ_CELL_MISSING);
    if (a->kind == VPTQ_CELL_TEXT && b->kind == VPTQ_CELL_TEXT)
        return sign * strcmp(a->as.text, b->as.text);
    if (a->kind == VPTQ_CELL_INTEGER && b->kind == VPTQ_CELL_INTEGER)
        return sign * ((a->as.integer > b->as.integer) - (a->as.integer < b->as.integer));
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

static const char *column_title(const vptq_column *c)
{
    return c->title ? c->title : c->name;
}

static bool is_right(const vptq_column *c)
{
    return c->align == VPTQ_ALIGN_AUTO ? c->type != VPTQ_COLUMN_TEXT
                                       : c->align == VPTQ_ALIGN_RIGHT;
}

/* As people read it; the text of the cell, or `room`. */
static const char *shown(const vptq_column *c, const vptq_cell *cell, char room[CELL_TEXT])
{
    switch (cell->kind) {
    case VPTQ_CELL_TEXT:
        return cell->as.text;
    case VPTQ_CELL_INTEGER:
        snprintf(room, CELL_TEXT, "%" PRId64, cell->as.integer);
        break;
    case VPTQ_CELL_REAL:
        if (c->decimals < 0)
            snprintf(room, CELL_TEXT, "%.*g", -c->decimals, cell->as.real);
        else
            snprintf(room, CELL_TEXT, "%.*f", c->decimals, cell->as.real);
        break;
    case VPTQ_CELL_MISSING:
        return "-";
    }
    return room;
}

/* Columns of a terminal, a character being one. */
static size_t text_width(const char *s)
{
    size_t n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

static void emit_padded(vptq_emit *e, const char *s, size_t width, bool right, bool last)
{
    size_t n = text_width(s), pad = width > n ? width - n : 0;
    if (right)
        vptq_emit_format(e, "%*s", (int)pad, "");
    vptq_emit_text(e, s);
    if (!right && !last)
        vptq_emit_format(e, "%*s", (int)pad, "");
}

static void write_text(const vptq_table *t, vptq_emit *e)
{
    char room[CELL_TEXT];
    size_t width[VPTQ_TABLE_COLUMNS];
    for (size_t i = 0; i < t->column_count; i++) {
        width[i] = text_width(column_title(&t->columns[i]));
        for (size_t k = 0; k < t->row_count; k++) {
            size_t n =
                text_width(shown(&t->columns[i], &t->cells[k * t->column_count + i], room));
            width[i] = n > width[i] ? n : width[i];
        }
    }
    if (t->title)
        vptq_emit_format(e, "%s\n", t->title);
    for (size_t r = 0; r <= t->row_count; r++) {
        const vptq_cell *row = r ? t->cells + (r - 1) * t->column_count : NULL;
        for (size_t i = 0; i < t->column_count; i++) {
            const vptq_column *c = &t->columns[i];
            vptq_emit_text(e, i ? "  " : "");
            emit_padded(e, row ? shown(c, &row[i], room) : column_title(c), width[i],
                        is_right(c), i + 1 == t->column_count);
        }
        vptq_emit_text(e, "\n");
    }
    for (size_t i = 0; i < t->note_count; i++)
        vptq_emit_format(e, "%s\n", t->notes[i]);
}

static void write_csv(const vptq_table *t, vptq_emit *e)
{
    for (size_t i = 0; i < t->column_count; i++) {
        vptq_emit_text(e, i ? "," : "");
        vptq_emit_csv(e, t->columns[i].name);
    }
    vptq_emit_text(e, "\n");
    for (size_t k = 0; k < t->row_count * t->column_count; k++) {
        const vptq_cell *cell = &t->cells[k];
        vptq_emit_text(e, k % t->column_count ? "," : "");
        if (cell->kind == VPTQ_CELL_TEXT)
            vptq_emit_csv(e, cell->as.text);
        else if (cell->kind == VPTQ_CELL_INTEGER)
            vptq_emit_format(e, "%" PRId64, cell->as.integer);
        else if (cell->kind == VPTQ_CELL_REAL)
            vptq_emit_real(e, cell->as.real);
        vptq_emit_text(e, (k + 1) % t->column_count ? "" : "\n");
    }
}

static void write_json(const vptq_table *t, vptq_emit *e)
{
    for (size_t k = 0; k < t->row_count * t->column_count; k++) {
        const vptq_cell *cell = &t->cells[k];
        vptq_emit_text(e, k % t->column_count ? ", " : "{");
        vptq_emit_json(e, t->columns[k % t->column_count].name);
        vptq_emit_text(e, ": ");
        if (cell->kind == VPTQ_CELL_INTEGER)
            vptq_emit_format(e, "%" PRId64, cell->as.integer);
        else if (cell->kind == VPTQ_CELL_REAL)
            vptq_emit_real(e, cell->as.real);
        else
            vptq_emit_json(e, cell->kind == VPTQ_CELL_TEXT ? cell->as.text : NULL);
        vptq_emit_text(e, (k + 1) % t->column_count ? "" : "}\n");
    }
}

static void write_markdown(const vptq_table *t, vptq_emit *e)
{
    char room[CELL_TEXT];
    if (t->title) {
        vptq_emit_markdown(e, t->title);
        vptq_emit_text(e, "\n\n");
    }
    vptq_emit_text(e, "|");
    for (size_t i = 0; i < t->column_count; i++) {
        vptq_emit_text(e, " ");
        vptq_emit_markdown(e, column_title(&t->columns[i]));
        vptq_emit_text(e, " |");
    }
    vptq_emit_text(e, "\n|");
    for (size_t i = 0; i < t->column_count; i++)
        vptq_emit_text(e, is_right(&t->columns[i]) ? " ---: |" : " --- |");
    vptq_emit_text(e, "\n");
    for (size_t k = 0; k < t->row_count * t->column_count; k++) {
        const vptq_cell *cell = &t->cells[k];
        vptq_emit_text(e, k % t->column_count ? " " : "| ");
        vptq_emit_text(e, cell->strong ? "**" : "");
        vptq_emit_markdown(e, shown(&t->columns[k % t->column_count], cell, room));
        vptq_emit_text(e, cell->strong ? "** |" : " |");
        vptq_emit_text(e, (k + 1) % t->column_count ? "" : "\n");
    }
    for (size_t i = 0; i < t->note_count; i++) {
        vptq_emit_text(e, "\n");
        vptq_emit_markdown(e, t->notes[i]);
        vptq_emit_text(e, "\n");
    }
}

/* A name may be broken behind these, rather than anywhere. */
static void emit_breakable(vptq_emit *e, const char *s)
{
    while (*s) {
        char part[256];
        size_t n = strcspn(s, "_-/"), cut = n + (s[n] != 0);
        cut = cut < sizeof part ? cut : vptq_utf8_valid_prefix(s, sizeof part - 1);
        cut = cut ? cut : 1;
        memcpy(part, s, cut);
        part[cut] = 0;
        vptq_emit_xml(e, part);
        s += cut;
        vptq_emit_text(e, *s && cut == n + 1 ? "<wbr>" : "");
    }
}

static void write_html_cell(const vptq_column *c, const vptq_cell *cell, vptq_emit *e)
{
    enum { SHORT = 14 }; /* bytes of a text that is not broken and needs no room to be */
    char room[CELL_TEXT];
    const char *tag = c->head ? "th" : "td";
    const char *text = cell->kind == VPTQ_CELL_MISSING ? "\xe2\x80\x93" : shown(c, cell, room);
    const char *kind = is_right(c)             ? " class=\"n\""
                       : strlen(text) <= SHORT ? " class=\"s\""
                                               : "";
    vptq_emit_format(e, "<%s%s%s>", tag, c->head ? " scope=\"row\"" : "", kind);
    vptq_emit_text(e, cell->strong ? "<strong>" : "");
    if (c->head)
        emit_breakable(e, text);
    else
        vptq_emit_xml(e, text);
    vptq_emit_format(e, "%s</%s>", cell->strong ? "</strong>" : "", tag);
}

/* A box that scrolls must be reachable by keyboard, and then needs a name. */
static void write_html(const vptq_table *t, vptq_emit *e)
{
    vptq_emit_text(e, "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"");
    vptq_emit_xml(e, t->title ? t->title : "table");
    vptq_emit_text(e, "\">\n<table>\n");
    if (t->title) {
        vptq_emit_text(e, "<caption>");
        vptq_emit_xml(e, t->title);
        vptq_emit_text(e, "</caption>\n");
    }
    vptq_emit_text(e, "<thead><tr>");
    for (size_t i = 0; i < t->column_count; i++) {
        vptq_emit_format(e, "<th scope=\"col\"%s>",
                         is_right(&t->columns[i]) ? " class=\"n\"" : "");
        vptq_emit_xml(e, column_title(&t->columns[i]));
        vptq_emit_text(e, "</th>");
    }
    vptq_emit_text(e, "</tr></thead>\n<tbody>\n");
    for (size_t k = 0; k < t->row_count * t->column_count; k++) {
        vptq_emit_text(e, k % t->column_count ? "" : "<tr>");
        write_html_cell(&t->columns[k % t->column_count], &t->cells[k], e);
        vptq_emit_text(e, (k + 1) % t->column_count ? "" : "</tr>\n");
    }
    vptq_emit_text(e, "</tbody>\n</table>\n</div>\n");
    for (size_t i = 0; i < t->note_count; i++) {
        vptq_emit_text(e, "<p class=\"note\">");
        vptq_emit_xml(e, t->notes[i]);
        vptq_emit_text(e, "</p>\n");
    }
}

vptq_status vptq_table_write(const vptq_table *t, vptq_format format_of, vptq_buf *out,
                             vptq_err *err)
{
    static void (*const writers[])(const vptq_table *, vptq_emit *) = {
        write_text, write_json, write_csv, write_markdown, write_html};
    vptq_emit e = {.buf = out, .err = err};
    if (t->err.code)
        return vptq_fail(err, t->err.code, "%s", t->err.text);
    writers[format_of](t, &e);
    return e.st;
}
