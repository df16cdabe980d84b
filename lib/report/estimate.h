/* Internal: reports what a dry run expects of the run. */
#ifndef VPTQ_REPORT_ESTIMATE_H
#define VPTQ_REPORT_ESTIMATE_H

#include "lib/report/column.h"

/* Starts an estimate: nothing is known but the free disk of `output`, which may be NULL. */
vptq_estimate vptq_estimate_make(const char *output);
/* Adds to what the time leaves out. */
void vptq_estimate_leave_out(vptq_estimate *e, const char *what);

/* Columns of the estimate that is `member` of a row, for JSON. */
#define VPTQ_ESTIMATE_COLUMNS(row, member)                                                     \
    {.name = "estimated_seconds", VPTQ_REAL(row, member.seconds)},                             \
        {.name = "seconds_left_out", VPTQ_CHARS(row, member.left_out)},                        \
        {.name = "peak_memory_bytes",                                                          \
         VPTQ_INTEGER(row, member.memory_bytes),                                               \
         .zero_missing = true},                                                                \
        {.name = "disk_needed_bytes", VPTQ_INTEGER(row, member.disk_bytes)},                   \
    {                                                                                          \
        .name = "disk_free_bytes", VPTQ_INTEGER(row, member.disk_free_bytes),                  \
        .zero_missing = true                                                                   \
    }

/* The same as one object, for a column "totals". */
vptq_object vptq_estimate_object(const vptq_estimate *e);
/* The last object of a dry run: {"totals": {..}}. */
vptq_status vptq_totals_print(const vptq_output *out, const vptq_column *columns,
                              size_t column_count, const void *row,
                              vptq_err *err) VPTQ_MUST_CHECK;

/* Prints "about 3 min 20 s without tuning, 410.2 MiB of memory, 1.2 GiB of disk (80.0 GiB
 * free)" and a new line. */
vptq_status vptq_estimate_print(const vptq_output *out, const vptq_estimate *e,
                                vptq_err *err) VPTQ_MUST_CHECK;

/* Whether a dry run whose rows are printed as `out` says (may be NULL) ends with an estimate:
 * in text the line above, in JSON the last object; other formats have none. */
bool vptq_estimate_is_shown(const vptq_output *out);
vptq_status vptq_estimate_end(const vptq_output *out, const vptq_estimate *e,
                              vptq_err *err) VPTQ_MUST_CHECK;

#endif
