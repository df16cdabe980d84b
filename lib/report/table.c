/* Fills and writes a table in memory. */
#include "lib/report/table.h"

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

void vptq_table_add(vptq_table *t, const void *row)
{
    if (t->err.code || (t->row_count == t->row_cap && !grow(t)))
        return;
    vptq_cell *cells = t->cells + t->row_count++ * t->column_count;
    for (size_t i = 0; i < t->column_count; i++) {
        cells[i] = vptq_cell_of(&t->columns[i], row);
        if (cells[i].kind == VPTQ_CELL_TEXT)
            cells[i].as.text = vptq_arena_strdup(&t->arena, cells[i].as.text, &t->err);
    }
}

void vptq_table_note(vptq_table *t, const char *text)
{
    VPTQ_BUG_IF(t->note_count == sizeof t->notes / sizeof *t->notes);
    t->notes[t->note_count++] = text;
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
    if (format == VPTQ_FORMAT_TEXT && t->title) {
        vptq_emit_line(e, t->title);
        vptq_emit_text(e, "\n");
    }
}

static void write_note(vptq_format format, const char *note, vptq_emit *e)
{
    if (format == VPTQ_FORMAT_TEXT) {
        vptq_emit_line(e, note);
        vptq_emit_text(e, "\n");
    }
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

void vptq_table_emit(const vptq_table *t, vptq_format format, vptq_emit *e)
{
    const bool html = format == VPTQ_FORMAT_HTML;
    vptq_sheet s = {.columns = t->columns,
                    .column_count = t->column_count,
                    .has = t->has,
                    .format = format,
                    .e = e};
    if (t->err.code && !e->st)
        e->st = vptq_fail(e->err, t->err.code, "%s", t->err.text);
    if (e->st)
        return;
    vptq_sheet_titles(&s);
    for (size_t i = 0; format == VPTQ_FORMAT_TEXT && i < t->row_count; i++)
        vptq_sheet_fit(&s, t->cells + i * t->column_count);
    vptq_sheet_narrow(&s, t->width);
    begin(t, format, e);
    vptq_sheet_head(&s);
    vptq_emit_text(e, html ? "<tbody>\n" : "");
    for (size_t i = 0; i < t->row_count; i++)
        vptq_sheet_row(&s, t->cells + i * t->column_count);
    vptq_emit_text(e, html ? "</tbody>\n</table>\n</div>\n" : "");
    for (size_t i = 0; i < t->note_count; i++)
        write_note(format, t->notes[i], e);
}

vptq_status vptq_table_write(const vptq_table *t, vptq_format format, vptq_buf *out,
                             vptq_err *err)
{
    vptq_emit e = {.buf = out, .err = err};
    vptq_table_emit(t, format, &e);
    return e.st;
}
