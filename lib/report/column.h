/* Internal: columns of a table, and printing rows as they come.
 *
 * A row is a plain struct.  A column is one entry of a table: its key, its title and where its
 * value lies in the struct.
 *
 *     typedef struct score { const char *model; uint64_t tokens; double ppl; } score;
 *     static const vptq_column columns[] = {
 *         {.name = "model", VPTQ_TEXT(score, model), .width = 24},
 *         {.name = "tokens", VPTQ_INTEGER(score, tokens)},
 *         {.name = "ppl", .title = "Perplexity", VPTQ_REAL(score, ppl), .decimals = 4}};
 *     vptq_printer p = vptq_printer_make(out, VPTQ_COLUMNS(columns));
 *     while (next_score(&row))
 *         VPTQ_CHECK(vptq_print_row(&p, &row, err));
 *
 * CSV and JSON are for programs: they have the names of the columns and every digit.  Text,
 * Markdown and HTML are for people: they have titles and as many digits as a column says.
 * A missing value (a NULL text, a NaN) is null in JSON, nothing in CSV and "-" for people. */
#ifndef VPTQ_REPORT_COLUMN_H
#define VPTQ_REPORT_COLUMN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/vptq.h"

/* Bits of vptq_column.formats. */
#define VPTQ_IN_TEXT (1u << VPTQ_FORMAT_TEXT)
#define VPTQ_IN_JSON (1u << VPTQ_FORMAT_JSON)
#define VPTQ_IN_CSV  (1u << VPTQ_FORMAT_CSV)
#define VPTQ_IN_MD   (1u << VPTQ_FORMAT_MD)

typedef enum {
    VPTQ_COLUMN_TEXT,    /* const char * */
    VPTQ_COLUMN_CHARS,   /* char[] within the struct; empty = missing */
    VPTQ_COLUMN_BOOL,    /* bool */
    VPTQ_COLUMN_INTEGER, /* unsigned integer of 4 or 8 bytes */
    VPTQ_COLUMN_REAL,    /* double */
    /* JSON only: */
    VPTQ_COLUMN_IDS,    /* vptq_id_list: an array of integers */
    VPTQ_COLUMN_OBJECT, /* vptq_object: a nested object */
    VPTQ_COLUMN_MEMBERS /* const char *: a JSON object whose members are inserted here */
} vptq_column_type;

typedef enum { VPTQ_ALIGN_AUTO, VPTQ_ALIGN_LEFT, VPTQ_ALIGN_RIGHT } vptq_align;

typedef struct vptq_column {
    const char *name;  /* key in snake_case, for CSV and JSON */
    const char *title; /* for people; NULL = the name */
    vptq_column_type type;
    /* Of a REAL, or an INTEGER with a scale, for people; negative: significant digits. */
    int decimals;
    unsigned
        fixed; /* VPTQ_IN_CSV, VPTQ_IN_JSON: these show the same decimals, not every digit */

    /* Where the value lies in a row; set by VPTQ_TEXT and its siblings. */
    size_t offset, size;
    /* Offset of a double: people see "value ± that" where it is finite; 0 = none. */
    size_t deviation;
    /* Offset of a bool: without it a row has no such value, and no such key in JSON; 0 = none.
     */
    size_t when;
    bool zero_missing; /* 0 is a missing value */
    size_t strong;     /* offset of a bool: the value is emphasized, as the best; 0 = never */
    double scale;      /* where `decimals` count, value * scale is shown; 0 = 1 */

    vptq_align align;    /* AUTO: text left, numbers right */
    bool head;           /* names the row: a row header in HTML */
    int width;           /* in text, of rows printed one by one; 0 = that of the title */
    const char *unit;    /* follows the number, for people: " %" */
    const char *missing; /* a missing value, for people; NULL = "-" */

    unsigned formats; /* VPTQ_IN_... of the formats that have the column; 0 = all */
    unsigned needs;   /* the column is left out unless the table has all these bits */
    bool major;       /* stays, as the first does, where a terminal is too narrow for all */
} vptq_column;

#define VPTQ_FIELD_(kind, row, member)                                                         \
    .type = (kind), .offset = offsetof(row, member), .size = sizeof(((row *)0)->member)
#define VPTQ_TEXT(row, member)    VPTQ_FIELD_(VPTQ_COLUMN_TEXT, row, member)
#define VPTQ_CHARS(row, member)   VPTQ_FIELD_(VPTQ_COLUMN_CHARS, row, member)
#define VPTQ_BOOL(row, member)    VPTQ_FIELD_(VPTQ_COLUMN_BOOL, row, member)
#define VPTQ_INTEGER(row, member) VPTQ_FIELD_(VPTQ_COLUMN_INTEGER, row, member)
#define VPTQ_REAL(row, member)    VPTQ_FIELD_(VPTQ_COLUMN_REAL, row, member)
#define VPTQ_IDS(row, member)     VPTQ_FIELD_(VPTQ_COLUMN_IDS, row, member)
#define VPTQ_OBJECT(row, member)  VPTQ_FIELD_(VPTQ_COLUMN_OBJECT, row, member)
#define VPTQ_MEMBERS(row, member) VPTQ_FIELD_(VPTQ_COLUMN_MEMBERS, row, member)

typedef struct vptq_id_list {
    const int32_t *data;
    size_t count;
} vptq_id_list;

typedef struct vptq_object {
    const vptq_column *columns; /* NULL columns = the object is missing */
    size_t column_count;
    const void *row;
} vptq_object;

enum { VPTQ_MAX_COLUMNS = 96 };

/* An array of columns as the two arguments (columns, column_count). */
#define VPTQ_COLUMNS(array) (array), sizeof(array) / sizeof *(array)

/* Printing composes a text and hands it to `out` in one piece; a NULL `out` takes none. */

/* Prints rows one by one, as anything but HTML; owns nothing. */
typedef struct vptq_printer {
    const vptq_output *out;
    const vptq_column *columns;
    size_t column_count;
    unsigned has; /* bits that vptq_column.needs asks for */
    unsigned gap; /* spaces between the columns of text; 0 = 2 */
    bool plain;   /* JSON has 20 and not 2e+01, the shortest text that reads back */
    size_t rows;  /* printed so far; the head comes before the first */
} vptq_printer;
vptq_printer vptq_printer_make(const vptq_output *out, const vptq_column *columns,
                               size_t column_count);
vptq_status vptq_print_row(vptq_printer *p, const void *row, vptq_err *err);
/* Prints `count` rows of `size` bytes each; in text, columns are as wide as their content. */
vptq_status vptq_print_rows(vptq_printer *p, const void *rows, size_t count, size_t size,
                            vptq_err *err);

/* Prints a text of our own and figures, as it is. */
vptq_status vptq_print_text(const vptq_output *out, vptq_err *err, const char *fmt, ...)
    VPTQ_PRINTF(3, 4);
/* Prints a line that contains names or paths, in printable form (text.h). */
vptq_status vptq_print_line(const vptq_output *out, vptq_err *err, const char *fmt, ...)
    VPTQ_PRINTF(3, 4);
/* Prints one JSON object on a line. */
vptq_status vptq_print_object(const vptq_output *out, const vptq_column *columns,
                              size_t column_count, const void *row, vptq_err *err);
/* Prints for people a line per column, "title    value ± deviation": titles of at least
 * `title_width` characters, and values of at least the width of their column.  A column of size
 * 0 is a heading. */
vptq_status vptq_print_list(const vptq_output *out, const vptq_column *columns,
                            size_t column_count, int title_width, const void *row,
                            vptq_err *err);

#endif
