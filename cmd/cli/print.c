#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli/cli.h"

void vptq_cli_human_bytes(char text[32], uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double x = (double)bytes;
    size_t u = 0;
    while (x >= 1024 && u + 1 < sizeof units / sizeof *units) {
        x /= 1024;
        u++;
    }
    snprintf(text, 32, u ? "%.1f %s" : "%.0f %s", x, units[u]);
}

void vptq_cli_human_seconds(char text[32], double seconds)
{
    if (!(seconds >= 0) || seconds > 1e9) {
        snprintf(text, 32, "?");
        return;
    }
    if (seconds < 59.95) {
        snprintf(text, 32, "%.1f s", seconds);
        return;
    }
    uint64_t s = (uint64_t)(seconds + 0.5);
    if (s < 3600)
        snprintf(text, 32, "%" PRIu64 " min %" PRIu64 " s", s / 60, s % 60);
    else
        snprintf(text, 32, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s % 3600 / 60);
}

/* --- tables ------------------------------------------------------------------------------ */

/* With a backslash in front of what would end a cell. */
static void put_md(const char *text)
{
    for (; *text; text++) {
        if (*text == '|')
            putchar('\\');
        putchar(*text);
    }
}

static void put_csv(const char *text)
{
    if (!strpbrk(text, ",\"\r\n")) {
        fputs(text, stdout);
        return;
    }
    putchar('"');
    for (; *text; text++) {
        if (*text == '"')
            putchar('"');
        putchar(*text);
    }
    putchar('"');
}

static void put_cell(int format, const vptq_cli_column *column, bool first, const char *text)
{
    int width = column->width ? column->width : (int)strlen(column->name);
    if (format == CLI_CSV) {
        fputs(first ? "" : ",", stdout);
        put_csv(text);
    } else if (format == CLI_MD) {
        fputs(first ? "| " : " ", stdout);
        put_md(text);
        fputs(" |", stdout);
    } else {
        printf("%s%*s", first ? "" : "  ", width, text);
    }
}

void vptq_cli_table_head(int format, const vptq_cli_column *columns, size_t count)
{
    for (size_t i = 0; i < count; i++)
        put_cell(format, &columns[i], i == 0, columns[i].name);
    putchar('\n');
    for (size_t i = 0; i < count && format == CLI_MD; i++)
        printf("%s --- |%s", i ? "" : "|", i + 1 < count ? "" : "\n");
}

void vptq_cli_table_row(int format, const vptq_cli_column *columns, size_t count,
                        char (*cells)[CLI_CELL])
{
    for (size_t i = 0; i < count; i++)
        put_cell(format, &columns[i], i == 0, cells[i]);
    putchar('\n');
}

void vptq_cli_table_texts(int format, const vptq_cli_column *columns, size_t count,
                          const char *const *cells)
{
    for (size_t i = 0; i < count; i++)
        put_cell(format, &columns[i], i == 0, cells[i]);
    putchar('\n');
}

vptq_printer vptq_cli_printer(const vptq_cli *cli, const vptq_column *columns,
                              size_t column_count)
{
    return vptq_printer_make(stdout, (vptq_format)cli->common.format, columns, column_count);
}

vptq_status vptq_cli_check_output(const vptq_cli *cli, const char *path, vptq_err *err)
{
    if (!path || !strcmp(path, "-") || cli->common.force || !vptq_path_exists(path))
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_EXISTS, "'%s' already exists", path);
}

vptq_status vptq_cli_deliver(const vptq_cli *cli, const char *path, const vptq_buf *text,
                             vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_file_writer w = {.fd = -1};
    if (!path || !strcmp(path, "-")) {
        fwrite(text->data, 1, text->len, stdout); /* vptq_cli_finish sees a failure */
        return VPTQ_OK;
    }
    VPTQ_TRY(vptq_file_writer_open(path, cli->common.force, &w, err));
    VPTQ_TRY(vptq_file_write(&w, text->data, text->len, err));
    VPTQ_TRY(vptq_file_writer_commit(&w, err));
out:
    vptq_file_writer_abort(&w);
    return st;
}

/* --- JSON -------------------------------------------------------------------------------- */

static void put_string(const char *s)
{
    size_t n = strlen(s);
    putchar('"');
    while (n) {
        uint32_t cp;
        size_t len = vptq_utf8_decode(s, n, &cp);
        if (!len) {
            fputs("\xef\xbf\xbd", stdout); /* U+FFFD */
            len = 1;
        } else if (cp == '"' || cp == '\\') {
            printf("\\%c", (int)cp);
        } else if (cp == '\n') {
            fputs("\\n", stdout);
        } else if (cp < 0x20 || cp == 0x7f) {
            printf("\\u%04x", (unsigned)cp);
        } else {
            fwrite(s, 1, len, stdout);
        }
        s += len;
        n -= len;
    }
    putchar('"');
}

static void put_key(vptq_cli_json *j, const char *key)
{
    if (!j->first)
        fputs(", ", stdout);
    j->first = false;
    put_string(key);
    fputs(": ", stdout);
}

void vptq_cli_json_begin(vptq_cli_json *j)
{
    j->first = true;
    putchar('{');
}

void vptq_cli_json_str(vptq_cli_json *j, const char *key, const char *value)
{
    put_key(j, key);
    if (value)
        put_string(value);
    else
        fputs("null", stdout);
}

void vptq_cli_json_u64(vptq_cli_json *j, const char *key, uint64_t value)
{
    put_key(j, key);
    printf("%" PRIu64, value);
}

void vptq_cli_json_ids(vptq_cli_json *j, const char *key, const int32_t *ids, size_t n)
{
    put_key(j, key);
    putchar('[');
    for (size_t i = 0; i < n; i++)
        printf("%s%" PRId32, i ? ", " : "", ids[i]);
    putchar(']');
}

void vptq_cli_json_f64(vptq_cli_json *j, const char *key, double value)
{
    char text[40];
    put_key(j, key);
    if (!isfinite(value)) {
        fputs("null", stdout);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    fputs(text, stdout);
}

void vptq_cli_json_bool(vptq_cli_json *j, const char *key, bool value)
{
    put_key(j, key);
    fputs(value ? "true" : "false", stdout);
}

void vptq_cli_json_end(vptq_cli_json *j)
{
    j->first = true;
    puts("}");
}
