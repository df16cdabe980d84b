/* Writes the head and the rows of a table in every format, for tables in memory and for rows
 * that are printed one by one. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/text.h"
#include "lib/base/utf8.h"
#include "lib/report/table.h"

/* Bytes of a number for people (a double with decimals may have 309 digits), of a deviation and
 * a unit, and of them all. */
enum {
    NUMBER_TEXT = 384,
    SUFFIX_TEXT = NUMBER_TEXT + 64,
    SHOWN_TEXT = NUMBER_TEXT + SUFFIX_TEXT
};

/* ---- values ---- */

static vptq_cell integer_cell(const vptq_column *c, const void *at)
{
    uint64_t value;
    if (c->size == sizeof(uint32_t)) {
        uint32_t small;
        memcpy(&small, at, sizeof small);
        value = small;
    } else {
        VPTQ_BUG_IF(c->size != sizeof value);
        memcpy(&value, at, sizeof value);
    }
    if (!value && c->zero_missing)
        return (vptq_cell){.kind = VPTQ_CELL_MISSING};
    return (vptq_cell){.kind = VPTQ_CELL_INTEGER, .as.integer = value};
}

static vptq_cell real_cell(const vptq_column *c, const void *at, const char *row)
{
    double value, deviation = (double)NAN;
    memcpy(&value, at, sizeof value);
    if (isnan(value) || (value == 0 && c->zero_missing))
        return (vptq_cell){.kind = VPTQ_CELL_MISSING};
    if (c->deviation)
        memcpy(&deviation, row + c->deviation, sizeof deviation);
    return (vptq_cell){.kind = VPTQ_CELL_REAL, .as.real = value, .deviation = deviation};
}

static vptq_cell text_cell(const char *text)
{
    return (vptq_cell){.kind = text ? VPTQ_CELL_TEXT : VPTQ_CELL_MISSING, .as.text = text};
}

static bool flag_at(const void *row, size_t offset)
{
    bool flag;
    memcpy(&flag, (const char *)row + offset, sizeof flag);
    return flag;
}

static vptq_cell value_of(const vptq_column *c, const void *row)
{
    const char *at = (const char *)row + c->offset, *text;
    if (c->when && !flag_at(row, c->when))
        return (vptq_cell){.kind = VPTQ_CELL_ABSENT};
    switch (c->type) {
    case VPTQ_COLUMN_TEXT:
        memcpy(&text, at, sizeof text);
        return text_cell(text);
    case VPTQ_COLUMN_CHARS:
        return text_cell(*at ? at : NULL);
    case VPTQ_COLUMN_MEMBERS:
        memcpy(&text, at, sizeof text);
        return (vptq_cell){.kind = text ? VPTQ_CELL_MEMBERS : VPTQ_CELL_MISSING,
                           .as.text = text};
    case VPTQ_COLUMN_BOOL:
        return (vptq_cell){.kind = VPTQ_CELL_BOOL, .as.boolean = flag_at(row, c->offset)};
    case VPTQ_COLUMN_INTEGER:
        return integer_cell(c, at);
    case VPTQ_COLUMN_REAL:
        return real_cell(c, at, row);
    case VPTQ_COLUMN_IDS:
        return (vptq_cell){.kind = VPTQ_CELL_IDS, .as.ids = (const void *)at};
    case VPTQ_COLUMN_OBJECT:
        return (vptq_cell){.kind = VPTQ_CELL_OBJECT, .as.object = (const void *)at};
    }
    return (vptq_cell){.kind = VPTQ_CELL_MISSING};
}

vptq_cell vptq_cell_of(const vptq_column *c, const void *row)
{
    vptq_cell cell = value_of(c, row);
    cell.strong = c->strong && flag_at(row, c->strong);
    return cell;
}

/* ---- cells as text ---- */

static bool is_missing(const vptq_cell *cell)
{
    return cell->kind == VPTQ_CELL_MISSING || cell->kind == VPTQ_CELL_ABSENT;
}

static const char *column_title(const vptq_column *c)
{
    return c->title ? c->title : c->name;
}

static bool is_right(const vptq_column *c)
{
    const bool number = c->type == VPTQ_COLUMN_INTEGER || c->type == VPTQ_COLUMN_REAL;
    return c->align == VPTQ_ALIGN_AUTO ? number : c->align == VPTQ_ALIGN_RIGHT;
}

static void format_real(const vptq_column *c, double x, char text[NUMBER_TEXT])
{
    const int digits = c->decimals < 0 ? -c->decimals : c->decimals;
    x *= c->scale != 0 ? c->scale : 1;
    snprintf(text, NUMBER_TEXT, c->decimals < 0 ? "%.*g" : "%.*f", digits, x);
}

/* The cell for people, without deviation and unit: the text of the cell, or `number`. */
static const char *cell_value(const vptq_column *c, const vptq_cell *cell,
                              char number[NUMBER_TEXT])
{
    switch (cell->kind) {
    case VPTQ_CELL_TEXT:
    case VPTQ_CELL_MEMBERS:
        return cell->as.text;
    case VPTQ_CELL_BOOL:
        return cell->as.boolean ? "yes" : "no";
    case VPTQ_CELL_INTEGER:
        if (c->scale != 0)
            format_real(c, (double)cell->as.integer, number);
        else
            snprintf(number, NUMBER_TEXT, "%" PRIu64, cell->as.integer);
        return number;
    case VPTQ_CELL_REAL:
        format_real(c, cell->as.real, number);
        return number;
    default:
        return c->missing ? c->missing : "-";
    }
}

/* " ± 0.12", the unit, both or nothing. */
static void format_suffix(const vptq_column *c, const vptq_cell *cell, char text[SUFFIX_TEXT])
{
    char number[NUMBER_TEXT] = "";
    const bool deviates = cell->kind == VPTQ_CELL_REAL && isfinite(cell->deviation);
    const char *unit = c->unit && !is_missing(cell) ? c->unit : "";
    if (deviates)
        format_real(c, cell->deviation, number);
    snprintf(text, SUFFIX_TEXT, "%s%s%.40s", deviates ? " ± " : "", number, unit);
}

/* The cell for people: the text of the cell, or `text`. */
static const char *shown(const vptq_column *c, const vptq_cell *cell, char text[SHOWN_TEXT])
{
    const char *value = cell_value(c, cell, text);
    if (value == text)
        format_suffix(c, cell, text + strlen(text));
    return value;
}

/* ---- formats ---- */

static bool is_shown(const vptq_sheet *s, const vptq_column *c)
{
    return (!c->formats || (c->formats & 1u << s->format)) && !(c->needs & ~s->has);
}

/* The next column that the format has, from i on; column_count after the last. */
static size_t next_shown(const vptq_sheet *s, size_t i)
{
    while (i < s->column_count && (s->left_out[i] || !is_shown(s, &s->columns[i])))
        i++;
    return i;
}

void vptq_sheet_titles(vptq_sheet *s)
{
    VPTQ_BUG_IF(s->column_count > VPTQ_MAX_COLUMNS);
    if (s->format != VPTQ_FORMAT_TEXT)
        return;
    for (size_t i = next_shown(s, 0); i < s->column_count; i = next_shown(s, i + 1)) {
        const size_t least = (size_t)s->columns[i].width;
        const size_t title = vptq_text_width(column_title(&s->columns[i]));
        s->width[i] = least > title ? least : title;
    }
}

void vptq_sheet_fit(vptq_sheet *s, const vptq_cell *row)
{
    char text[SHOWN_TEXT];
    for (size_t i = 0; i < s->column_count; i++) {
        const size_t n = vptq_text_width(shown(&s->columns[i], &row[i], text));
        s->width[i] = n > s->width[i] ? n : s->width[i];
    }
}

static size_t gap_of(const vptq_sheet *s)
{
    return s->gap ? s->gap : 2;
}

void vptq_sheet_narrow(vptq_sheet *s, uint32_t columns)
{
    const size_t first = next_shown(s, 0);
    size_t line = 0;
    if (!columns || s->format != VPTQ_FORMAT_TEXT)
        return;
    for (size_t i = first; i < s->column_count; i = next_shown(s, i + 1))
        line += s->width[i] + (i > first ? gap_of(s) : 0);
    for (size_t i = s->column_count; i-- > first + 1 && line > columns;)
        if (is_shown(s, &s->columns[i]) && !s->columns[i].major) {
            s->left_out[i] = true;
            line -= s->width[i] + gap_of(s);
        }
}

/* Names the columns that a narrow terminal lacks. */
static void write_left_out(vptq_sheet *s)
{
    const char *separator = "not shown for lack of width: ";
    for (size_t i = 0; i < s->column_count; i++) {
        if (!s->left_out[i])
            continue;
        vptq_emit_text(s->e, separator);
        vptq_emit_line(s->e, column_title(&s->columns[i]));
        separator = ", ";
    }
    vptq_emit_text(s->e, *separator == ',' ? "\n" : "");
}

/* A line of text: the titles, or the cells of a row.  No line ends in spaces. */
static void write_text(vptq_sheet *s, const vptq_cell *row)
{
    char text[SHOWN_TEXT];
    size_t pending = 0; /* spaces before the next character */
    if (!row)
        write_left_out(s);
    for (size_t i = next_shown(s, 0); i < s->column_count; i = next_shown(s, i + 1)) {
        const vptq_column *c = &s->columns[i];
        const char *cell = row ? shown(c, &row[i], text) : column_title(c);
        const size_t n = vptq_text_width(cell), pad = s->width[i] > n ? s->width[i] - n : 0;
        pending += is_right(c) ? pad : 0;
        if (n) {
            vptq_emit_format(s->e, "%*s", (int)pending, "");
            vptq_emit_line(s->e, cell);
            pending = 0;
        }
        pending += (is_right(c) ? 0 : pad) + gap_of(s);
    }
    vptq_emit_text(s->e, "\n");
}

static void write_csv(vptq_sheet *s, const vptq_cell *row)
{
    char number[NUMBER_TEXT];
    const char *separator = "";
    for (size_t i = next_shown(s, 0); i < s->column_count; i = next_shown(s, i + 1)) {
        const vptq_column *c = &s->columns[i];
        vptq_emit_text(s->e, separator);
        separator = ",";
        if (!row)
            vptq_emit_csv(s->e, c->name);
        else if (row[i].kind == VPTQ_CELL_BOOL)
            vptq_emit_text(s->e, row[i].as.boolean ? "true" : "false");
        else if (row[i].kind == VPTQ_CELL_REAL && !isfinite(row[i].as.real))
            continue;
        else if (row[i].kind == VPTQ_CELL_REAL && !(c->fixed & VPTQ_IN_CSV))
            vptq_emit_real(s->e, row[i].as.real);
        else if (row[i].kind == VPTQ_CELL_INTEGER)
            vptq_emit_format(s->e, "%" PRIu64, row[i].as.integer);
        else if (!is_missing(&row[i]))
            vptq_emit_csv(s->e, cell_value(c, &row[i], number));
    }
    vptq_emit_text(s->e, "\n");
}

static void write_members(const vptq_sheet *s, const vptq_cell *row);

static void write_object(vptq_emit *e, const vptq_object *o)
{
    vptq_cell cells[VPTQ_MAX_COLUMNS];
    const vptq_sheet s = {.columns = o->columns,
                          .column_count = o->column_count,
                          .format = VPTQ_FORMAT_JSON,
                          .e = e};
    if (!o->columns) {
        vptq_emit_text(e, "null");
        return;
    }
    VPTQ_BUG_IF(o->column_count > VPTQ_MAX_COLUMNS);
    for (size_t i = 0; i < o->column_count; i++)
        cells[i] = vptq_cell_of(&o->columns[i], o->row);
    vptq_emit_text(e, "{");
    write_members(&s, cells);
    vptq_emit_text(e, "}");
}

static void write_ids(vptq_emit *e, const vptq_id_list *ids)
{
    vptq_emit_text(e, "[");
    for (size_t i = 0; i < ids->count; i++)
        vptq_emit_format(e, "%s%" PRId32, i ? ", " : "", ids->data[i]);
    vptq_emit_text(e, "]");
}

static void write_json_value(vptq_emit *e, const vptq_column *c, const vptq_cell *cell,
                             bool exponents)
{
    char number[NUMBER_TEXT];
    switch (cell->kind) {
    case VPTQ_CELL_MISSING:
    case VPTQ_CELL_ABSENT:
        vptq_emit_text(e, "null");
        break;
    case VPTQ_CELL_TEXT:
    case VPTQ_CELL_MEMBERS:
        vptq_emit_json(e, cell->as.text);
        break;
    case VPTQ_CELL_BOOL:
        vptq_emit_text(e, cell->as.boolean ? "true" : "false");
        break;
    case VPTQ_CELL_REAL:
        if (c->fixed & VPTQ_IN_JSON && isfinite(cell->as.real))
            vptq_emit_text(e, cell_value(c, cell, number));
        else
            (exponents ? vptq_emit_shortest : vptq_emit_real)(e, cell->as.real);
        break;
    case VPTQ_CELL_INTEGER:
        vptq_emit_format(e, "%" PRIu64, cell->as.integer);
        break;
    case VPTQ_CELL_IDS:
        write_ids(e, cell->as.ids);
        break;
    case VPTQ_CELL_OBJECT:
        write_object(e, cell->as.object);
        break;
    }
}

static void write_members(const vptq_sheet *s, const vptq_cell *row)
{
    vptq_emit *e = s->e;
    const char *separator = "";
    for (size_t i = next_shown(s, 0); i < s->column_count; i = next_shown(s, i + 1)) {
        if (row[i].kind == VPTQ_CELL_ABSENT)
            continue;
        vptq_emit_text(e, separator);
        separator = ", ";
        if (row[i].kind == VPTQ_CELL_MEMBERS) { /* without its braces */
            vptq_emit_bytes(e, row[i].as.text + 1, strlen(row[i].as.text) - 2);
            continue;
        }
        vptq_emit_json(e, s->columns[i].name);
        vptq_emit_text(e, ": ");
        write_json_value(e, &s->columns[i], &row[i], s->exponents);
    }
}

static void write_json(vptq_sheet *s, const vptq_cell *row)
{
    if (!row)
        return;
    vptq_emit_text(s->e, "{");
    write_members(s, row);
    vptq_emit_text(s->e, "}\n");
}

static void write_markdown(vptq_sheet *s, const vptq_cell *row)
{
    char text[SHOWN_TEXT];
    vptq_emit_text(s->e, "|");
    for (size_t i = next_shown(s, 0); i < s->column_count; i = next_shown(s, i + 1)) {
        const vptq_column *c = &s->columns[i];
        const char *mark = row && row[i].strong ? "**" : "";
        vptq_emit_format(s->e, " %s", mark);
        vptq_emit_markdown(s->e, row ? shown(c, &row[i], text) : column_title(c));
        vptq_emit_format(s->e, "%s |", mark);
    }
    vptq_emit_text(s->e, "\n");
    if (row)
        return;
    vptq_emit_text(s->e, "|");
    for (size_t i = next_shown(s, 0); i < s->column_count; i = next_shown(s, i + 1))
        vptq_emit_text(s->e, is_right(&s->columns[i]) ? " ---: |" : " --- |");
    vptq_emit_text(s->e, "\n");
}

/* Allows a line break after each of "_-/" rather than anywhere. */
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

static void write_html_cell(vptq_emit *e, const vptq_column *c, const vptq_cell *cell)
{
    enum { SHORT = 14 }; /* bytes of a text that the page never breaks */
    char number[SHOWN_TEXT];
    const char *tag = c->head ? "th" : "td";
    const char *text = is_missing(cell) ? "\xe2\x80\x93" : shown(c, cell, number);
    const bool is_short = strlen(text) <= SHORT;
    const char *class = is_right(c) ? " class=\"n\"" : is_short ? " class=\"s\"" : "";
    vptq_emit_format(e, "<%s%s%s>", tag, c->head ? " scope=\"row\"" : "", class);
    vptq_emit_text(e, cell->strong ? "<strong>" : "");
    if (c->head && !is_short)
        emit_breakable(e, text);
    else
        vptq_emit_xml(e, text);
    vptq_emit_format(e, "%s</%s>", cell->strong ? "</strong>" : "", tag);
}

static void write_html(vptq_sheet *s, const vptq_cell *row)
{
    vptq_emit_text(s->e, row ? "<tr>" : "<thead><tr>");
    for (size_t i = next_shown(s, 0); i < s->column_count; i = next_shown(s, i + 1)) {
        const vptq_column *c = &s->columns[i];
        if (row) {
            write_html_cell(s->e, c, &row[i]);
            continue;
        }
        vptq_emit_format(s->e, "<th scope=\"col\"%s>", is_right(c) ? " class=\"n\"" : "");
        vptq_emit_xml(s->e, column_title(c));
        vptq_emit_text(s->e, "</th>");
    }
    vptq_emit_text(s->e, row ? "</tr>\n" : "</tr></thead>\n");
}

/* In the order of vptq_format; a NULL row is the head. */
static void (*const writers[])(vptq_sheet *, const vptq_cell *) = {
    write_text, write_json, write_csv, write_markdown, write_html};

void vptq_sheet_head(vptq_sheet *s)
{
    writers[s->format](s, NULL);
}

void vptq_sheet_row(vptq_sheet *s, const vptq_cell *row)
{
    writers[s->format](s, row);
}

/* ---- printing ---- */

/* Hands a text, unless composing it failed, to `out`, and releases it. */
static vptq_status hand_over(vptq_status st, const vptq_output *out, vptq_buf *text,
                             vptq_err *err)
{
    if (!st && out && text->len)
        st = out->write(out->arg, text->data, text->len, err);
    vptq_buf_release(text);
    return st;
}

vptq_printer vptq_printer_make(const vptq_output *out, const vptq_column *columns,
                               size_t column_count)
{
    return (vptq_printer){.out = out, .columns = columns, .column_count = column_count};
}

static void fill_cells(const vptq_printer *p, const void *row, vptq_cell *cells)
{
    VPTQ_BUG_IF(p->column_count > VPTQ_MAX_COLUMNS);
    for (size_t i = 0; i < p->column_count; i++)
        cells[i] = vptq_cell_of(&p->columns[i], row);
}

/* Fits the columns of text to these rows; without `fit` they have the widths of the titles,
 * which rows that come later share. */
static vptq_status print_rows(vptq_printer *p, const void *rows, size_t count, size_t size,
                              bool fit, vptq_err *err)
{
    vptq_cell cells[VPTQ_MAX_COLUMNS];
    vptq_buf text;
    vptq_buf_init(&text, NULL);
    vptq_emit e = {.buf = &text, .err = err};
    vptq_sheet s = {.columns = p->columns,
                    .column_count = p->column_count,
                    .has = p->has,
                    .gap = p->gap,
                    .exponents = !p->plain,
                    .format = p->out ? p->out->format : VPTQ_FORMAT_TEXT,
                    .e = &e};
    vptq_sheet_titles(&s);
    for (size_t i = 0; fit && i < count; i++) {
        fill_cells(p, (const char *)rows + i * size, cells);
        vptq_sheet_fit(&s, cells);
    }
    vptq_sheet_narrow(&s, p->out ? p->out->width : 0);
    if (p->rows == 0)
        vptq_sheet_head(&s);
    for (size_t i = 0; i < count; i++, p->rows++) {
        fill_cells(p, (const char *)rows + i * size, cells);
        vptq_sheet_row(&s, cells);
    }
    return hand_over(e.st, p->out, &text, err);
}

vptq_status vptq_print_rows(vptq_printer *p, const void *rows, size_t count, size_t size,
                            vptq_err *err)
{
    return print_rows(p, rows, count, size, true, err);
}

vptq_status vptq_print_row(vptq_printer *p, const void *row, vptq_err *err)
{
    return print_rows(p, row, 1, 0, false, err);
}

vptq_status vptq_print_object(const vptq_output *out, const vptq_column *columns,
                              size_t column_count, const void *row, vptq_err *err)
{
    if (!out)
        return VPTQ_OK;
    const vptq_output json = {.format = VPTQ_FORMAT_JSON, .write = out->write, .arg = out->arg};
    vptq_printer p = vptq_printer_make(&json, columns, column_count);
    return vptq_print_row(&p, row, err);
}

vptq_status vptq_print_text(const vptq_output *out, vptq_err *err, const char *fmt, ...)
{
    va_list ap;
    vptq_buf text;
    vptq_buf_init(&text, NULL);
    va_start(ap, fmt);
    const vptq_status st = vptq_buf_vprintf(&text, err, fmt, ap);
    va_end(ap);
    return hand_over(st, out, &text, err);
}

vptq_status vptq_print_line(const vptq_output *out, vptq_err *err, const char *fmt, ...)
{
    va_list ap;
    vptq_buf text, line;
    vptq_buf_init(&text, NULL);
    vptq_buf_init(&line, NULL);
    vptq_emit e = {.buf = &line, .err = err};
    va_start(ap, fmt);
    e.st = vptq_buf_vprintf(&text, err, fmt, ap);
    va_end(ap);
    vptq_emit_line(&e, text.data);
    vptq_emit_text(&e, "\n");
    vptq_buf_release(&text);
    return hand_over(e.st, out, &line, err);
}

vptq_status vptq_print_list(const vptq_output *out, const vptq_column *columns,
                            size_t column_count, int title_width, const void *row,
                            vptq_err *err)
{
    char number[NUMBER_TEXT], suffix[SUFFIX_TEXT];
    vptq_buf text;
    vptq_buf_init(&text, NULL);
    vptq_emit e = {.buf = &text, .err = err};
    for (size_t i = 0; i < column_count; i++) {
        const vptq_column *c = &columns[i];
        if (c->formats && !(c->formats & VPTQ_IN_TEXT))
            continue;
        if (c->size == 0) {
            vptq_emit_format(&e, "%s\n", column_title(c));
            continue;
        }
        const vptq_cell cell = vptq_cell_of(c, row);
        format_suffix(c, &cell, suffix);
        const char *value = cell_value(c, &cell, number);
        const int n = (int)vptq_text_width(value);
        vptq_emit_format(&e, "%-*s %*s", title_width, column_title(c),
                         c->width > n ? c->width - n : 0, "");
        vptq_emit_line(&e, value);
        vptq_emit_format(&e, "%s\n", suffix);
    }
    return hand_over(e.st, out, &text, err);
}
