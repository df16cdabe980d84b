/* Compares an ablation between the ranks that share it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/ablate/internal.h"
#include "lib/base/comm.h"
#include "lib/base/file.h"
#include "lib/quantize/settings.h"

static void add(uint64_t *hash, const void *data, size_t size)
{
    *hash = vptq_hash(data, size, *hash);
}

/* Adds the settings that a row's method uses. */
static vptq_status add_settings(const vptq_encoder_settings *s, uint64_t *hash, vptq_err *err)
{
    char *text;
    json_t *doc = vptq_settings_json(s, NULL);
    if (!doc)
        return vptq_ablate_no_memory(err);
    const vptq_status st = vptq_json_text(doc, "settings", false, &text, err);
    json_decref(doc);
    VPTQ_CHECK(st);
    add(hash, text, strlen(text));
    free(text);
    return VPTQ_OK;
}

static vptq_status add_row(const vptq_ablation *a, size_t i, uint64_t *hash, vptq_err *err)
{
    const vptq_ablate_row *row = &a->rows[i];
    const double bits[] = {row->bits, a->report->rows[i].bits_per_weight};
    const uint32_t how[] = {row->tune, (uint32_t)row->allocate};
    add(hash, row->name, strlen(row->name));
    add(hash, bits, sizeof bits);
    add(hash, how, sizeof how);
    if (row->original)
        return VPTQ_OK;
    if (row->recipe)
        VPTQ_CHECK(vptq_ablate_hash_input(a, row->recipe, VPTQ_TEXT_JSON, hash, err));
    return add_settings(&row->settings, hash, err);
}

/* Adds the calibration, which tuning uses, too. */
static vptq_status add_calibration(const vptq_ablation *a, uint64_t *hash, vptq_err *err)
{
    const vptq_calibrate_options *c = &a->opt->collect.calibrate;
    const vptq_text_kind kind = c->corpus.lossy ? VPTQ_TEXT_LOSSY : VPTQ_TEXT_UTF8;
    const uint64_t numbers[] = {c->windows, c->length, c->seed, a->opt->collect.first_layer,
                                a->opt->collect.last_layer};
    char path[PATH_MAX];
    add(hash, numbers, sizeof numbers);
    for (size_t i = 0; i < c->corpus.text_count; i++)
        VPTQ_CHECK(vptq_ablate_hash_input(a, c->corpus.texts[i], kind, hash, err));
    for (size_t i = 0; i < c->corpus.token_count; i++)
        VPTQ_CHECK(vptq_ablate_hash_input(a, c->corpus.tokens[i], VPTQ_TEXT_BYTES, hash, err));
    if (!a->opt->hessians)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_path_join(path, sizeof path, a->opt->hessians, "hessian.json", err));
    return vptq_ablate_hash_input(a, path, VPTQ_TEXT_JSON, hash, err);
}

static vptq_status hash_all(const vptq_ablation *a, uint64_t *hash, vptq_err *err)
{
    const vptq_ablate_report *r = a->report;
    *hash = r->count;
    add(hash, a->text_hash, vptq_ablate_text_count(a->opt) * sizeof *a->text_hash);
    add(hash, a->task_hash, a->opt->task_count * sizeof *a->task_hash);
    for (size_t i = 0; i < r->count; i++)
        VPTQ_CHECK(add_row(a, i, hash, err));
    return add_calibration(a, hash, err);
}

vptq_status vptq_ablate_check_same(const vptq_ablation *a, vptq_err *err)
{
    char text[17];
    uint64_t hash;
    if (vptq_comm_size(a->dev->ctx) == 1)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_comm_agree(a->dev->ctx, hash_all(a, &hash, err), err));
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    return vptq_comm_same(a->dev->ctx, "the table, the Hessians or a text", text, err);
}
