/* Reports what a dry run expects of the run. */
#include "lib/report/estimate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/file.h"
#include "lib/report/emit.h"

/* A row that is an estimate. */
typedef struct vptq_holder {
    vptq_estimate e;
} vptq_holder;

vptq_estimate vptq_estimate_make(const char *output)
{
    return (vptq_estimate){.seconds = (double)NAN,
                           .disk_free_bytes = output ? vptq_path_disk_free(output) : 0};
}

void vptq_estimate_leave_out(vptq_estimate *e, const char *what)
{
    const size_t n = strlen(e->left_out);
    snprintf(e->left_out + n, sizeof e->left_out - n, "%s%s", n ? ", " : "", what);
}

static const vptq_column columns[] = {VPTQ_ESTIMATE_COLUMNS(vptq_holder, e)};

vptq_object vptq_estimate_object(const vptq_estimate *e)
{
    return (vptq_object){VPTQ_COLUMNS(columns), e};
}

vptq_status vptq_totals_print(const vptq_output *out, const vptq_column *of, size_t count,
                              const void *row, vptq_err *err)
{
    struct line {
        vptq_object totals;
    } line = {{of, count, row}};
    const vptq_column column = {.name = "totals", VPTQ_OBJECT(struct line, totals)};
    return vptq_print_object(out, &column, 1, &line, err);
}

vptq_status vptq_estimate_print(const vptq_output *out, const vptq_estimate *e, vptq_err *err)
{
    char seconds[48] = "time not estimated", memory[64] = "", disk[64] = "", free_[64] = "";
    char text[32];
    if (isfinite(e->seconds)) {
        vptq_human_seconds(text, e->seconds);
        snprintf(seconds, sizeof seconds, "about %s", text);
    }
    vptq_human_bytes(text, e->memory_bytes);
    if (e->memory_bytes)
        snprintf(memory, sizeof memory, ", %s of memory", text);
    vptq_human_bytes(text, e->disk_bytes);
    if (e->disk_bytes)
        snprintf(disk, sizeof disk, ", %s of disk", text);
    vptq_human_bytes(text, e->disk_free_bytes);
    if (e->disk_bytes && e->disk_free_bytes)
        snprintf(free_, sizeof free_, " (%s free)", text);
    return vptq_print_text(out, err, "%s%s%s%s%s%s\n", seconds, *e->left_out ? " without " : "",
                           e->left_out, memory, disk, free_);
}

bool vptq_estimate_is_shown(const vptq_output *out)
{
    return out && (out->format == VPTQ_FORMAT_TEXT || out->format == VPTQ_FORMAT_JSON);
}

vptq_status vptq_estimate_end(const vptq_output *out, const vptq_estimate *e, vptq_err *err)
{
    if (!vptq_estimate_is_shown(out))
        return VPTQ_OK;
    return out->format == VPTQ_FORMAT_JSON
               ? vptq_totals_print(out, VPTQ_COLUMNS(columns), e, err)
               : vptq_estimate_print(out, e, err);
}
