/* A table that is filled once and written as text, Markdown, CSV, JSON lines or HTML.
 *
 *     static const vptq_column columns[] = {
 *         {.name = "model", .title = "Model", .type = VPTQ_COLUMN_TEXT, .head = true},
 *         {.name = "ppl", .title = "Perplexity", .type = VPTQ_COLUMN_REAL, .decimals = 4}};
 *     vptq_table t;
 *     vptq_table_init(&t, mem, "Ablation", columns, 2);
 *     vptq_table_row(&t);
 *     vptq_table_text(&t, name);
 *     vptq_table_real(&t, ppl);
 *     VPTQ_TRY(vptq_table_write(&t, VPTQ_FORMAT_MD, &buf, err));
 *     ...
 *     vptq_table_release(&t);
 *
 * CSV and JSON are for programs: they have the columns' names and every digit.  Text, Markdown
 * and HTML are for people: they have titles and as many digits as the column says. */
#ifndef VPTQ_REPORT_TABLE_H
#define VPTQ_REPORT_TABLE_H

#include "lib/report/emit.h"

/* In the order of the tools' --format. */
typedef enum {
    VPTQ_FORMAT_TEXT,
    VPTQ_FORMAT_JSON, /* one object per row and line */
    VPTQ_FORMAT_CSV,
    VPTQ_FORMAT_MD,
    VPTQ_FORMAT_HTML
} vptq_format;

typedef enum { VPTQ_COLUMN_TEXT, VPTQ_COLUMN_INTEGER, VPTQ_COLUMN_REAL } vptq_column_type;

typedef enum { VPTQ_ALIGN_AUTO, VPTQ_ALIGN_LEFT, VPTQ_ALIGN_RIGHT } vptq_align;

typedef struct vptq_column {
    const char *name;  /* key in snake_case, for CSV and JSON */
    const char *title; /* for people; NULL = the name */
    vptq_column_type type;
    int decimals;     /* of a REAL for people; negative: that many significant digits */
    vptq_align align; /* AUTO: text left, numbers right */
    bool head;        /* names the row: a row header in HTML */
} vptq_column;

enum { VPTQ_TABLE_COLUMNS = 96 }; /* at most */

typedef struct vptq_cell {
    enum { VPTQ_CELL_MISSING, VPTQ_CELL_TEXT, VPTQ_CELL_INTEGER, VPTQ_CELL_REAL } kind;
    bool strong; /* stands out in Markdown and HTML: the best of its column, ... */
    union {
        const char *text;
        int64_t integer;
        double real;
    } as;
} vptq_cell;

typedef struct vptq_table {
    const char *title; /* not copied; NULL = none */
    const vptq_column *columns;
    size_t column_count;
    vptq_cell *cells;                  /* [row_count, column_count] */
    size_t row_count, row_cap, filled; /* filled: cells of the last row */
    const char *notes[8];              /* what stands below it for people */
    size_t note_count;
    vptq_arena arena; /* texts */
    vptq_err err;     /* the first failure of filling it; code 0 = none */
} vptq_table;

/* `columns` and `title` must outlive the table.  Filling keeps its first failure (only memory
 * can run out), which vptq_table_write reports. */
void vptq_table_init(vptq_table *t, vptq_mem *mem, const char *title,
                     const vptq_column *columns, size_t column_count);
void vptq_table_release(vptq_table *t);

/* Begins a row, all of it missing; then its cells from left to right.  Texts are copied. */
void vptq_table_row(vptq_table *t);
void vptq_table_text(vptq_table *t, const char *text); /* NULL = missing */
void vptq_table_textf(vptq_table *t, const char *fmt, ...) VPTQ_PRINTF(2, 3);
void vptq_table_integer(vptq_table *t, int64_t value);
void vptq_table_real(vptq_table *t, double value); /* not finite = missing */
void vptq_table_skip(vptq_table *t);               /* missing */
void vptq_table_strong(vptq_table *t);             /* the cell that was put last stands out */
/* A sentence below the table; at most 8. */
void vptq_table_notef(vptq_table *t, const char *fmt, ...) VPTQ_PRINTF(2, 3);

/* Sorts rows by a column, missing cells last; equal rows keep their order. */
void vptq_table_sort(vptq_table *t, size_t column, bool descending);
/* Keeps at most the first `rows`. */
void vptq_table_cut(vptq_table *t, size_t rows);

/* Appended to `out`.  The title stands above the table in text and Markdown (as a line, not as
 * a heading) and is its caption in HTML, which is a fragment in a box of its own that scrolls;
 * notes come below.  CSV and JSON have neither.  A missing cell is "-" for people, nothing in
 * CSV, null in JSON. */
vptq_status vptq_table_write(const vptq_table *t, vptq_format format, vptq_buf *out,
                             vptq_err *err) VPTQ_MUST_CHECK;

#endif
