/* Reads the input as the rows of an ablation; accepted rows have unique names that are safe as
 * file names, and settings within their ranges. */
#include <math.h>
#include <string.h>

#include "lib/ablate/ablate.h"
#include "tests/fuzz/fuzz_input.h"

static void check_name(const vptq_ablate_row *rows, size_t n)
{
    const char *name = rows[n].name;
    if (!*name || *name == '.' || strchr(name, '/') || !rows[n].label)
        abort();
    for (size_t i = 0; i < n; i++)
        if (!strcmp(rows[i].name, name))
            abort();
}

static void check_settings(const vptq_ablate_row *row)
{
    char text[VPTQ_SETTING_TEXT];
    vptq_err err;
    size_t count;
    const vptq_setting *table = vptq_setting_table(&count);
    vptq_encoder_settings again = vptq_encoder_defaults();
    for (size_t i = 0; i < count; i++) {
        vptq_setting_print(&table[i], &row->settings, text, sizeof text);
        if (vptq_setting_parse(&table[i], text, &again, &err))
            abort();
    }
    if (!(row->bits >= 0) || !isfinite(row->bits))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_MAX];
    static const vptq_setting_text given[] = {{"sweeps", "1"}};
    const vptq_ablate_options opt = {.rows = path, .given = given, .given_count = 1};
    vptq_ablate_row *rows;
    vptq_arena arena;
    vptq_err err;
    size_t count;

    if (!fuzz_input_file(path, data, size))
        return 0;
    vptq_arena_init(&arena, NULL);
    const vptq_status st =
        vptq_ablate_rows(&(vptq_ctx){.threads = 1}, &opt, &arena, &rows, &count, &err);
    if (st != VPTQ_OK && st != VPTQ_E_FORMAT)
        abort();
    for (size_t i = 0; !st && i < count; i++) {
        check_name(rows, i);
        if (!rows[i].original)
            check_settings(&rows[i]);
    }
    vptq_arena_release(&arena);
    unlink(path);
    return 0;
}
