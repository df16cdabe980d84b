/* Reads the input as serving records; accepted records can be compared and written in every
 * form, rows are valid JSON, and pages escape names. */
#include <string.h>

#include "formats/json.h"
#include "lib/report/report.h"
#include "tests/fuzz/fuzz_input.h"

static void check_rows(vptq_buf *out)
{
    for (char *rest = out->data, *line; (line = strtok_r(rest, "\n", &rest));) {
        json_t *row = NULL;
        if (vptq_json_parse(line, strlen(line), "row", &row, NULL))
            abort();
        json_decref(row);
    }
}

/* Positions are numbers. */
static bool has_wild_positions(const char *page)
{
    static const char *const parts[] = {"=\"nan",   "=\"-nan",  "=\"inf",    "=\"-inf",
                                        "d=\"Mnan", "d=\"Minf", "d=\"M-nan", "d=\"M-inf"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(page, parts[i]))
            return true;
    return false;
}

static void check_page(const vptq_buf *out)
{
    if (has_wild_positions(out->data) || strlen(out->data) != out->len ||
        strstr(out->data, "<script") || !strstr(out->data, "</html>"))
        abort();
}

static void write_all(const vptq_report *r, const char *source)
{
    vptq_buf out;
    vptq_buf_init(&out, NULL);
    if (vptq_report_write_classic(r, source, &out, NULL))
        abort();
    for (int f = VPTQ_FORMAT_TEXT; f <= VPTQ_FORMAT_HTML; f++) {
        vptq_buf_clear(&out);
        if (vptq_report_write(r, (vptq_format)f, source, &out, NULL))
            abort();
        if (f == VPTQ_FORMAT_HTML)
            check_page(&out);
        if (f == VPTQ_FORMAT_JSON)
            check_rows(&out);
    }
    vptq_buf_release(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    vptq_records records;
    vptq_report r;
    vptq_records_init(&records, NULL);
    if (!vptq_records_parse(&records, (const char *)data, size, "fuzz", NULL) &&
        !vptq_report_build(&records, NULL, NULL, &r, NULL)) {
        write_all(&r, records.items[0].run_name);
        vptq_report_release(&r);
    }
    vptq_records_release(&records);
    return 0;
}
