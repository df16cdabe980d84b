/* The table of an ablation. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/ablate/ablate.h"
#include "lib/base/file.h"

enum { MOST_COLUMNS = 48, TEXT_COLUMNS = 2, NAME = 24 };

/* What a column needs beside its place to fill it. */
typedef struct source {
    const vptq_ablate_report *report;
    size_t text; /* of perplexities */
} source;

typedef void (*fill_fn)(vptq_table *t, const source *s, const vptq_ablate_result *r);

typedef struct made_columns {
    vptq_column column[MOST_COLUMNS];
    fill_fn fill[MOST_COLUMNS];
    size_t text[MOST_COLUMNS];
    size_t count;
} made_columns;

/* ---- cells ---- */

static bool has_settings(const vptq_ablate_result *r)
{
    return !r->row->original;
}

/* v, k and k_res of rows that do not leave them to a budget. */
static bool has_shape(const vptq_ablate_result *r)
{
    return has_settings(r) && !(r->row->bits > 0);
}

static bool has_outliers(const vptq_ablate_result *r)
{
    return has_settings(r) && r->row->settings.outliers > 0;
}

static void put_count(vptq_table *t, bool there, uint32_t n)
{
    if (there)
        vptq_table_integer(t, n);
    else
        vptq_table_skip(t);
}

static void fill_label(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    (void)s;
    vptq_table_text(t, r->row->label);
}

static void fill_name(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    (void)s;
    vptq_table_text(t, r->row->name);
}

static void fill_independent(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    (void)s;
    const bool one = r->row->settings.pass_columns == 1;
    vptq_table_text(t, !has_settings(r) ? NULL : one ? "yes" : "no");
}

static void fill_finetune(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    (void)s;
    static const char *const names[] = {"no", "layer-wise", "layer-wise, e2e"};
    vptq_table_text(t, has_settings(r) ? names[r->row->finetune] : NULL);
}

static void fill_outliers(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    (void)s;
    if (has_settings(r))
        vptq_table_real(t, r->row->settings.outliers);
    else
        vptq_table_skip(t);
}

static void fill_v0(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    (void)s;
    put_count(t, has_outliers(r), r->row->settings.v0);
}

static void fill_k0(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    (void)s;
    put_count(t, has_outliers(r), r->row->settings.k0);
}

static void fill_v(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    (void)s;
    put_count(t, has_shape(r), r->row->settings.v);
}

static void fill_k(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    (void)s;
    put_count(t, has_shape(r), r->row->settings.k);
}

static void fill_k_res(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    (void)s;
    put_count(t, has_shape(r), r->row->settings.k_res);
}

static void fill_groups(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    (void)s;
    put_count(t, has_settings(r), r->row->settings.groups);
}

static void fill_budget(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    (void)s;
    vptq_table_real(t, r->row->bits > 0 ? r->row->bits : (double)NAN);
}

static void fill_recipe(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    (void)s;
    vptq_table_text(t, r->row->recipe ? vptq_path_base(r->row->recipe) : NULL);
}

static void fill_bits(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    (void)s;
    vptq_table_real(t, r->row->skipped ? (double)NAN : r->bits_per_weight);
}

static void fill_loss(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    (void)s;
    vptq_table_real(t, r->mean_loss);
}

static void fill_held_out(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    (void)s;
    vptq_table_real(t, r->mean_held_out);
}

static void fill_ppl(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    vptq_table_real(t, r->scores ? r->scores[s->text].ppl : (double)NAN);
}

static void fill_ppl_stderr(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    vptq_table_real(t, r->scores ? r->scores[s->text].ppl_stderr : (double)NAN);
}

static void fill_bytes(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    (void)s;
    if (r->packed_bytes)
        vptq_table_integer(t, (int64_t)r->packed_bytes);
    else
        vptq_table_skip(t);
}

static void fill_seconds(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    (void)s;
    vptq_table_real(t, r->seconds > 0 ? r->seconds : (double)NAN);
}

static void fill_status(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    const bool tuned = r->row->finetune != VPTQ_FINETUNE_NONE;
    vptq_table_text(t, r->row->skipped           ? "needs finetuning"
                       : s->report->opt->dry_run ? "planned"
                       : tuned                   ? "without finetuning"
                                                 : "done");
}

static void fill_paper_bits(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    (void)s;
    vptq_table_real(t, r->row->paper_bits);
}

static void fill_paper_w2(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    (void)s;
    vptq_table_real(t, r->row->paper_ppl[0]);
}

static void fill_paper_c4(vptq_table *t, const source *s, const vptq_ablate_result *r)
{
    (void)s;
    vptq_table_real(t, r->row->paper_ppl[1]);
}

/* ---- columns ---- */

static void add(made_columns *m, vptq_column column, fill_fn fill)
{
    VPTQ_BUG_IF(m->count == MOST_COLUMNS);
    m->column[m->count] = column;
    m->fill[m->count++] = fill;
}

static vptq_column number(const char *name, const char *title)
{
    return (vptq_column){.name = name, .title = title, .type = VPTQ_COLUMN_INTEGER};
}

static vptq_column real(const char *name, const char *title, int decimals)
{
    return (vptq_column){
        .name = name, .title = title, .type = VPTQ_COLUMN_REAL, .decimals = decimals};
}

static vptq_column text(const char *name, const char *title)
{
    return (vptq_column){.name = name, .title = title, .type = VPTQ_COLUMN_TEXT};
}

/* What any row has. */
typedef struct wanted {
    bool names, budget, recipe, held_out, outliers, finetune, paper;
} wanted;

static wanted look(const vptq_ablate_report *r)
{
    wanted w = {.names = false};
    for (size_t i = 0; i < r->count; i++) {
        const vptq_ablate_row *row = r->rows[i].row;
        w.names |= strcmp(row->name, row->label) != 0;
        w.budget |= row->bits > 0;
        w.recipe |= row->recipe != NULL;
        w.held_out |= isfinite(r->rows[i].mean_held_out);
        w.outliers |= !row->original && row->settings.outliers > 0;
        w.finetune |= row->finetune != VPTQ_FINETUNE_NONE;
        w.paper |= isfinite(row->paper_bits);
    }
    return w;
}

static void add_settings(made_columns *m, const wanted *w)
{
    add(m, text("channel_independent", "channel independent"), fill_independent);
    if (w->finetune)
        add(m, text("finetune", "finetune"), fill_finetune);
    if (w->outliers) {
        add(m, real("outliers", "N%", -3), fill_outliers);
        add(m, number("v0", "v0"), fill_v0);
        add(m, number("k0", "k0"), fill_k0);
    }
    add(m, number("v", "v1"), fill_v);
    add(m, number("k", "k1"), fill_k);
    add(m, number("k_res", "k2"), fill_k_res);
    add(m, number("groups", "groups"), fill_groups);
    if (w->budget)
        add(m, real("bits", "budget", -4), fill_budget);
    if (w->recipe)
        add(m, text("recipe", "recipe"), fill_recipe);
}

/* The first text is "ppl"; the others are numbered. */
static vptq_status add_texts(made_columns *m, vptq_ablate_report *r, vptq_err *err)
{
    const size_t n = r->opt->text_count;
    char(*names)[TEXT_COLUMNS][NAME] = vptq_arena_alloc(&r->arena, n, sizeof *names, err);
    if (!names)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < n && m->count + TEXT_COLUMNS < MOST_COLUMNS; i++) {
        char number[12] = "";
        if (i > 0)
            snprintf(number, sizeof number, "_%u", (unsigned)(i + 1));
        snprintf(names[i][0], NAME, "ppl%s", number);
        snprintf(names[i][1], NAME, "ppl%s_stderr", number);
        m->text[m->count] = i;
        add(m, real(names[i][0], vptq_path_base(r->opt->texts[i].path), 3), fill_ppl);
        m->text[m->count] = i;
        add(m, real(names[i][1], "±", 3), fill_ppl_stderr);
    }
    return VPTQ_OK;
}

static vptq_status add_columns(made_columns *m, vptq_ablate_report *r, bool seconds,
                               vptq_err *err)
{
    const wanted w = look(r);
    vptq_column label = text("row", "");
    label.head = true;
    add(m, label, fill_label);
    if (w.names)
        add(m, text("name", "name"), fill_name);
    add_settings(m, &w);
    add(m, real("bits_per_weight", "bits", 3), fill_bits);
    VPTQ_CHECK(add_texts(m, r, err));
    add(m, real("mean_loss", "mean loss", 5), fill_loss);
    if (w.held_out)
        add(m, real("mean_held_out", "held-out loss", 5), fill_held_out);
    add(m, number("packed_bytes", "archive bytes"), fill_bytes);
    if (seconds)
        add(m, real("seconds", "seconds", 1), fill_seconds);
    add(m, text("status", "status"), fill_status);
    if (w.paper) {
        add(m, real("paper_bits", "paper: bits", -3), fill_paper_bits);
        add(m, real("paper_ppl", "W2", -5), fill_paper_w2);
        add(m, real("paper_ppl_2", "C4", -5), fill_paper_c4);
    }
    return VPTQ_OK;
}

static void add_notes(vptq_table *t, const vptq_ablate_report *r)
{
    const wanted w = look(r);
    vptq_table_notef(t, "bits: everything that is stored of the quantized matrices (indices, "
                        "codebooks, scales, biases, permutations) over their weights");
    if (w.paper)
        vptq_table_notef(
            t, "paper: bits and perplexities (WikiText-2, C4) of Llama-2-13B at a context "
               "of 4096, finetuned where the row says so");
    if (w.finetune)
        vptq_table_notef(t, "finetune: what the paper's row was trained with; it is not done "
                            "here, and rows that differ by it alone are not run");
}

vptq_status vptq_ablate_table(vptq_ablate_report *report, bool seconds, vptq_mem *mem,
                              vptq_table *t, vptq_err *err)
{
    made_columns *m = vptq_arena_alloc(&report->arena, 1, sizeof *m, err);
    *t = (vptq_table){.title = NULL};
    if (!m)
        return VPTQ_E_NOMEM;
    memset(m, 0, sizeof *m);
    VPTQ_CHECK(add_columns(m, report, seconds, err));
    vptq_table_init(t, mem, "Ablation", m->column, m->count);
    for (size_t i = 0; i < report->count; i++) {
        vptq_table_row(t);
        for (size_t c = 0; c < m->count; c++) {
            const source s = {.report = report, .text = m->text[c]};
            m->fill[c](t, &s, &report->rows[i]);
        }
    }
    add_notes(t, report);
    return VPTQ_OK;
}
