/* Internal: a table in memory that is filled row by row and written as text, Markdown, CSV,
 * JSON lines or HTML.
 *
 *     vptq_table t;
 *     vptq_table_init(&t, mem, "Ablation", columns, column_count);
 *     for (...)
 *         vptq_table_add(&t, &row);
 *     VPTQ_TRY(vptq_table_write(&t, VPTQ_FORMAT_MD, &buf, err));
 *     ...
 *     vptq_table_release(&t); */
#ifndef VPTQ_REPORT_TABLE_H
#define VPTQ_REPORT_TABLE_H

#include "lib/report/column.h"
#include "lib/report/emit.h"

typedef struct vptq_cell {
    enum {
        VPTQ_CELL_MISSING,
        VPTQ_CELL_ABSENT, /* missing, and without a key in JSON */
        VPTQ_CELL_TEXT,
        VPTQ_CELL_BOOL,
        VPTQ_CELL_INTEGER,
        VPTQ_CELL_REAL,
        VPTQ_CELL_IDS,
        VPTQ_CELL_OBJECT,
        VPTQ_CELL_MEMBERS
    } kind;
    bool strong; /* emphasized in Markdown and HTML */
    union {
        const char *text;
        bool boolean;
        uint64_t integer;
        double real;
        const vptq_id_list *ids;
        const vptq_object *object;
    } as;
    double deviation; /* of a REAL; 0 = none */
} vptq_cell;

typedef struct vptq_table {
    const char *title; /* not copied; NULL = none */
    const vptq_column *columns;
    size_t column_count;
    unsigned has;     /* bits that vptq_column.needs asks for */
    vptq_cell *cells; /* [row_count, column_count] */
    size_t row_count, row_cap;
    const char *notes[8]; /* sentences below it, for people */
    size_t note_count;
    vptq_arena arena; /* texts */
    vptq_err err;     /* the first failure of filling it; code 0 = none */
    uint32_t width;   /* as in vptq_output */
} vptq_table;

/* `columns` and `title` must outlive the table.  Filling keeps its first failure (only memory
 * can run out), which vptq_table_write reports. */
void vptq_table_init(vptq_table *t, vptq_mem *mem, const char *title,
                     const vptq_column *columns, size_t column_count);
void vptq_table_release(vptq_table *t);

/* Adds a row from a struct; texts are copied. */
void vptq_table_add(vptq_table *t, const void *row);

/* Adds a sentence below the table, which is not copied; at most 8. */
void vptq_table_note(vptq_table *t, const char *text);

/* Appends the table to `out`.  The title is a line above the table in text and Markdown, and
 * its caption in HTML, which is a fragment in a scrolling box; notes come below.  CSV and JSON
 * have neither. */
vptq_status vptq_table_write(const vptq_table *t, vptq_format format, vptq_buf *out,
                             vptq_err *err) VPTQ_MUST_CHECK;
/* The same as a part of a longer text. */
void vptq_table_emit(const vptq_table *t, vptq_format format, vptq_emit *e);

/* The parts that tables and printers share, in write.c. */

/* The value of a column in a row struct, whose texts it points to. */
vptq_cell vptq_cell_of(const vptq_column *c, const void *row);

/* A table that is being written. */
typedef struct vptq_sheet {
    const vptq_column *columns;
    size_t column_count;
    unsigned has, gap; /* as in vptq_printer */
    bool exponents;    /* JSON numbers are the shortest texts: 2e+01 */
    vptq_format format;
    size_t width[VPTQ_MAX_COLUMNS]; /* in text */
    bool left_out[VPTQ_MAX_COLUMNS];
    vptq_emit *e;
} vptq_sheet;
void vptq_sheet_titles(vptq_sheet *s); /* widths of the titles, or those that columns fix */
void vptq_sheet_fit(vptq_sheet *s, const vptq_cell *row); /* widens columns to hold a row */
/* Leaves out minor columns, the last first, until a line of text fits into so many columns;
 * 0 = any.  The head names them. */
void vptq_sheet_narrow(vptq_sheet *s, uint32_t columns);
void vptq_sheet_head(vptq_sheet *s);
void vptq_sheet_row(vptq_sheet *s, const vptq_cell *row);

#endif
