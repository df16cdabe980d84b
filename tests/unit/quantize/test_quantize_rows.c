/* Rows of report.jsonl as text. */
#include <math.h>
#include <stdlib.h>

#include "lib/quantize/internal.h"
#include "tests/support/vtest.h"

static void test_row_json(void **state)
{
    (void)state;
    vptq_err err = {0};
    vptq_encoder_settings s = vptq_encoder_defaults();
    s.v = 8;
    s.k = 16;
    vptq_quantize_row row = {
        .layer = 3,
        .name = "v_proj",
        .rows = 32,
        .columns = 64,
        .settings = &s,
        .shape = vptq_encoder_shape(&s, 32, 64),
        .predicted = NAN,
        .weighted = true,
        .held_out = true,
        .report = {.steps = {{"k-means", 0.5, 0.625, 0.75, false, 1},
                             {"pass", 0.25, 0.3125, 0.375, false, 1},
                             {"refit", 0.125, 0.15625, 0.1875, false, 1},
                             {"refit", 0.125, 0.15625, 0.1875, true, 1},
                             {"storage", 0.125, 0.15625, 0.1875, false, 1}},
                   .num_steps = 5,
                   .loss = 0.125,
                   .weighted = 0.15625,
                   .held_out = 0.1875,
                   .relative_mse = 0.1,
                   .kmeans_iterations = 11,
                   .kmeans_repaired = 1,
                   .damping_added = 0.01,
                   .dead_columns = 2,
                   .seconds = 99}};
    row.bits = vptq_vq_count_bits(&row.shape);
    char *text = NULL;
    assert_ok(vptq_row_json(&row, false, &text, &err), &err);
    /* 4 vector rows of 64 4-bit indices, 16 * 8 * 16 and 64 * 2 * 16 bits: 5120 over 2048
     * weights */
    assert_string_equal(
        text,
        "{\"layer\": 3, \"name\": \"v_proj\", \"rows\": 32, \"columns\": 64, "
        "\"proxy_loss\": 0.125, \"proxy_loss_weighted\": 0.15625, "
        "\"proxy_loss_held_out\": 0.1875, \"relative_mse\": 0.1, \"bits_per_weight\": 2.5, "
        "\"v\": 8, \"k\": 16, \"k_res\": 0, \"groups\": 1, \"outliers\": 0, "
        "\"loss_kmeans\": 0.5, \"loss_pass\": 0.25, \"loss_refit\": [0.125, 0.125], "
        "\"loss_storage\": 0.125, \"loss_kmeans_weighted\": 0.625, "
        "\"loss_pass_weighted\": 0.3125, \"loss_refit_weighted\": [0.15625, 0.15625], "
        "\"loss_storage_weighted\": 0.15625, \"loss_kmeans_held_out\": 0.75, "
        "\"loss_pass_held_out\": 0.375, \"loss_refit_held_out\": [0.1875, 0.1875], "
        "\"loss_storage_held_out\": 0.1875, \"undone\": [\"refit 2\"], "
        "\"kmeans_iterations\": 11, \"kmeans_repaired\": 1, \"damping_added\": 0.01, "
        "\"dead_columns\": 2, \"index_bits\": 1024, \"codebook_bits\": 2048, "
        "\"norm_bits\": 2048, \"perm_bits\": 0, \"outlier_index_bits\": 0, "
        "\"outlier_codebook_bits\": 0, \"total_bits\": 5120, "
        "\"settings\": {\"vector_length\": 8, \"centroids\": 16}}");
    free(text);
    row.predicted = 0.5;
    assert_ok(vptq_row_json(&row, true, &text, &err), &err);
    assert_string_equal(text,
                        "{\"layer\": 3, \"name\": \"v_proj\", \"rows\": 32, \"columns\": 64, "
                        "\"predicted_loss\": 0.5, \"bits_per_weight\": 2.5, "
                        "\"v\": 8, \"k\": 16, \"k_res\": 0, \"groups\": 1, \"outliers\": 0, "
                        "\"index_bits\": 1024, \"codebook_bits\": 2048, "
                        "\"norm_bits\": 2048, \"perm_bits\": 0, \"outlier_index_bits\": 0, "
                        "\"outlier_codebook_bits\": 0, \"total_bits\": 5120, "
                        "\"settings\": {\"vector_length\": 8, \"centroids\": 16}}");
    free(text);
}

VTEST_MAIN(cmocka_unit_test(test_row_json))
