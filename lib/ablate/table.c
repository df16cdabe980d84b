/* The table of an ablation. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/ablate/ablate.h"
#include "lib/base/file.h"

/* Conditions of columns: some row has such a value, or seconds are requested. */
enum {
    NAMES = 1,
    BUDGET = 2,
    RECIPE = 4,
    HELD_OUT = 8,
    OUTLIERS = 16,
    FINETUNE = 32,
    PAPER = 64,
    SECONDS = 128,
    METHODS = 256,
    VECTORS = 512,
    KLD = 1024,
    SERVED = 2048
};

/* A row as it is printed.  NULL, NaN, and 0 where no such setting can be 0, are missing. */
typedef struct table_row {
    const char *label, *name, *independent, *finetune, *recipe, *status;
    char method[VPTQ_SETTING_TEXT]; /* "" = the original */
    uint32_t weight_bits, group_size;
    double outliers, k_res, budget;
    uint32_t v0, k0, v, k, groups;
    double bits, loss, held_out, seconds, paper_bits, paper_ppl[2];
    uint64_t archive_bytes, peak_memory;
    double speed;
    const char *digest;
    double score[]; /* [texts] SCORE_COLUMNS, then [tasks] TASK_COLUMNS */
} table_row;

#define COUNT(key, text, member, bits)                                                         \
    {                                                                                          \
        .name = key, .title = text, VPTQ_INTEGER(table_row, member), .zero_missing = true,     \
        .needs = bits                                                                          \
    }
#define FIGURE(key, text, member, digits, bits)                                                \
    {                                                                                          \
        .name = key, .title = text, VPTQ_REAL(table_row, member), .decimals = digits,          \
        .needs = bits                                                                          \
    }
#define WORD(key, text, member, bits)                                                          \
    {                                                                                          \
        .name = key, .title = text, VPTQ_TEXT(table_row, member), .needs = bits                \
    }

/* The columns before and after those of the texts. */
static const vptq_column settings_columns[] = {
    {.name = "row", .title = "", VPTQ_TEXT(table_row, label), .head = true},
    WORD("name", NULL, name, NAMES),
    {.name = "method", VPTQ_CHARS(table_row, method), .needs = METHODS},
    COUNT("weight_bits", "code bits", weight_bits, METHODS),
    COUNT("group_size", "group size", group_size, METHODS),
    WORD("channel_independent", "channel independent", independent, VECTORS),
    WORD("finetune", NULL, finetune, FINETUNE),
    FIGURE("outliers", "N%", outliers, -3, OUTLIERS),
    COUNT("v0", NULL, v0, OUTLIERS),
    COUNT("k0", NULL, k0, OUTLIERS),
    COUNT("v", "v1", v, VECTORS),
    COUNT("k", "k1", k, VECTORS),
    FIGURE("k_res", "k2", k_res, 0, VECTORS),
    COUNT("groups", NULL, groups, VECTORS),
    FIGURE("bits", "budget", budget, -4, BUDGET),
    WORD("recipe", NULL, recipe, RECIPE),
    {.name = "bits_per_weight",
     .title = "bits",
     VPTQ_REAL(table_row, bits),
     .decimals = 3,
     .major = true}};
static const vptq_column result_columns[] = {
    FIGURE("mean_loss", "mean loss", loss, 5, 0),
    FIGURE("mean_held_out", "held-out loss", held_out, 5, HELD_OUT),
    COUNT("archive_bytes", "archive bytes", archive_bytes, 0),
    FIGURE("seconds", NULL, seconds, 1, SECONDS),
    FIGURE("tokens_per_second", "tokens/s", speed, 1, SERVED),
    {.name = "peak_memory_bytes",
     .title = "peak MiB",
     VPTQ_INTEGER(table_row, peak_memory),
     .zero_missing = true,
     .scale = 1.0 / (1 << 20),
     .decimals = 1,
     .needs = SERVED},
    {.name = "digest",
     VPTQ_TEXT(table_row, digest),
     .formats = VPTQ_IN_JSON | VPTQ_IN_CSV | VPTQ_IN_MD},
    WORD("status", NULL, status, 0),
    FIGURE("paper_bits", "paper: bits", paper_bits, -3, PAPER),
    FIGURE("paper_ppl", "W2", paper_ppl[0], -5, PAPER),
    FIGURE("paper_ppl_2", "C4", paper_ppl[1], -5, PAPER)};
enum {
    SETTINGS_COLUMNS = sizeof settings_columns / sizeof *settings_columns,
    RESULT_COLUMNS = sizeof result_columns / sizeof *result_columns,
    SCORE_COLUMNS = 4, /* per text: perplexity, divergence, and their standard errors */
    TASK_COLUMNS = 2   /* per task: accuracy and its standard error */
};

/* Whether the row has settings of vectors that the table shows. */
static bool has_vectors(const vptq_ablate_row *row)
{
    return !row->original && row->settings.method == VPTQ_METHOD_VPTQ &&
           !(row->bits > 0 && row->settings.groups == 1 && row->settings.pass_columns == 1);
}

/* Values that some row of the report has, or that are measured of all. */
static unsigned find_needs(const vptq_ablate_report *r)
{
    const vptq_ablate_options *o = r->opt;
    unsigned has = (o->no_seconds ? 0 : SECONDS) | (o->kld ? KLD : 0) |
                   (o->serve && !o->no_seconds ? SERVED : 0);
    for (size_t i = 0; i < r->count; i++) {
        const vptq_ablate_row *row = r->rows[i].row;
        has |= strcmp(row->name, row->label) ? NAMES : 0;
        has |= row->bits > 0 ? BUDGET : 0;
        has |= row->recipe ? RECIPE : 0;
        has |= isfinite(r->rows[i].mean_held_out) ? HELD_OUT : 0;
        has |= !row->original && row->settings.outliers > 0 ? OUTLIERS : 0;
        has |= row->tune ? FINETUNE : 0;
        has |= has_vectors(row) ? VECTORS : 0;
        has |= !row->original && row->settings.method != VPTQ_METHOD_VPTQ ? METHODS : 0;
        has |= isfinite(row->paper_bits) ? PAPER : 0;
    }
    return has;
}

static bool uses(const vptq_encoder_settings *s, const char *key)
{
    return vptq_setting_is_used(vptq_setting_find(key), s);
}

static void fill_settings(table_row *t, const vptq_ablate_row *row)
{
    static const char *const finetuning[] = {"no", "layer-wise", "e2e", "layer-wise, e2e"};
    const vptq_encoder_settings *s = &row->settings;
    if (row->original)
        return;
    vptq_setting_print(vptq_setting_find("method"), s, t->method, sizeof t->method);
    if (row->bits > 0)
        t->budget = row->bits;
    if (s->method != VPTQ_METHOD_VPTQ) {
        const bool chosen = row->bits > 0;
        t->weight_bits = uses(s, "weight_bits") && !chosen ? s->weight_bits : 0;
        t->group_size = uses(s, "group_size") ? s->group_size : 0;
        return;
    }
    t->independent = s->pass_columns == 1 ? "yes" : "no";
    t->finetune = finetuning[row->tune];
    t->outliers = s->outliers;
    t->v0 = s->outliers > 0 ? s->v0 : 0;
    t->k0 = s->outliers > 0 ? s->k0 : 0;
    t->groups = s->groups;
    if (row->bits > 0) /* the budget decides the others */
        return;
    t->v = s->v;
    t->k = s->k;
    t->k_res = s->k_res;
}

static void fill_row(table_row *t, const vptq_ablate_result *r, const vptq_ablate_options *o)
{
    const vptq_ablate_row *row = r->row;
    *t = (table_row){.label = row->label,
                     .name = row->name,
                     .recipe = row->recipe ? vptq_path_base(row->recipe) : NULL,
                     .status = o->dry_run ? "planned" : "done",
                     .outliers = (double)NAN,
                     .k_res = (double)NAN,
                     .budget = (double)NAN,
                     .bits = r->bits_per_weight,
                     .loss = r->mean_loss,
                     .held_out = r->mean_held_out,
                     .archive_bytes = r->archive_bytes,
                     .digest = *r->digest ? r->digest : NULL,
                     .seconds = r->seconds > 0 ? r->seconds : (double)NAN,
                     .speed = r->tokens_per_second,
                     .peak_memory = r->peak_memory,
                     .paper_bits = row->paper_bits,
                     .paper_ppl = {row->paper_ppl[0], row->paper_ppl[1]}};
    fill_settings(t, row);
    const size_t texts = vptq_ablate_text_count(o);
    double *score = t->score;
    for (size_t i = 0; i < texts; i++) {
        const vptq_ablate_score *s = r->scores ? &r->scores[i] : NULL;
        *score++ = s ? s->ppl : (double)NAN;
        *score++ = s ? s->ppl_stderr : (double)NAN;
        *score++ = s ? s->kld : (double)NAN;
        *score++ = s ? s->kld_stderr : (double)NAN;
    }
    for (size_t i = 0; i < o->task_count; i++) {
        *score++ = r->tasks ? r->tasks[i].acc : (double)NAN;
        *score++ = r->tasks ? r->tasks[i].acc_stderr : (double)NAN;
    }
}

/* The columns of texts and tasks as they are being listed. */
typedef struct score_columns {
    vptq_arena *arena;
    vptq_column *next;
    size_t offset; /* in table_row */
} score_columns;

/* Lists PREFIX NAME and NAME_stderr; NAME ends in `number` ("", "_2"). */
static vptq_status add_score(score_columns *c, const char *prefix, const char *name,
                             const char *number, const char *title, int decimals,
                             unsigned needs, vptq_err *err)
{
    for (int k = 0; k < 2; k++) {
        const char *key = vptq_arena_printf(c->arena, err, "%s%s%s%s", k ? "" : prefix, name,
                                            number, k ? "_stderr" : "");
        if (!key)
            return VPTQ_E_NOMEM;
        *c->next++ = (vptq_column){.name = key,
                                   .title = k ? "±" : title,
                                   .type = VPTQ_COLUMN_REAL,
                                   .offset = c->offset,
                                   .size = sizeof(double),
                                   .decimals = decimals,
                                   .needs = needs,
                                   .major = k == 0};
        c->offset += sizeof(double);
    }
    return VPTQ_OK;
}

/* Perplexities of the first text are "ppl" and "ppl_stderr", those of the others "ppl_2" .. */
static vptq_status make_columns(vptq_ablate_report *r, vptq_column *columns, vptq_err *err)
{
    const vptq_ablate_options *o = r->opt;
    score_columns c = {&r->arena, columns + SETTINGS_COLUMNS, offsetof(table_row, score)};
    memcpy(columns, settings_columns, sizeof settings_columns);
    for (size_t i = 0; i < vptq_ablate_text_count(o); i++) {
        char number[12] = "";
        if (i > 0)
            snprintf(number, sizeof number, "_%u", (unsigned)(i + 1));
        VPTQ_CHECK(add_score(&c, "", "ppl", number, vptq_path_base(vptq_ablate_text(o, i)), 3,
                             0, err));
        VPTQ_CHECK(add_score(&c, "mean_", "kld", number, "KL", 4, KLD, err));
    }
    for (size_t i = 0; i < o->task_count; i++)
        VPTQ_CHECK(add_score(&c, "", "acc_", o->tasks[i].name, o->tasks[i].name, 3, 0, err));
    memcpy(c.next, result_columns, sizeof result_columns);
    return VPTQ_OK;
}

static void add_notes(vptq_table *t)
{
    vptq_table_note(t, "bits: everything that is stored of the quantized matrices (indices, "
                       "codebooks, scales, biases, permutations) over their weights");
    if (t->has & RECIPE)
        vptq_table_note(t, "recipe: matrices that it skips stay in 16 bits and count only in "
                           "archive bytes");
    if (t->has & PAPER)
        vptq_table_note(
            t, "paper: bits and perplexities (WikiText-2, C4) of Llama-2-13B at a context "
               "of 4096, finetuned where the row says so");
    if (t->has & KLD)
        vptq_table_note(t, "KL: mean KL(original || row) of the next token, nats");
    if (t->has & SERVED)
        vptq_table_note(t,
                        "tokens/s: decoded when served; peak MiB: weights as stored and what "
                        "serving allocated");
    if (t->has & FINETUNE)
        vptq_table_note(
            t, "finetune: codebooks, scales and biases trained on the calibration "
               "text after quantizing; mean losses are omitted, for they precede tuning");
}

vptq_status vptq_ablate_table(vptq_ablate_report *report, vptq_mem *mem, vptq_table *t,
                              vptq_err *err)
{
    const size_t scores = SCORE_COLUMNS * vptq_ablate_text_count(report->opt) +
                          TASK_COLUMNS * report->opt->task_count;
    const size_t count = SETTINGS_COLUMNS + scores + RESULT_COLUMNS;
    *t = (vptq_table){.title = NULL};
    vptq_column *columns = vptq_arena_alloc(&report->arena, count, sizeof *columns, err);
    table_row *row =
        vptq_arena_alloc(&report->arena, 1, sizeof *row + scores * sizeof(double), err);
    if (!columns || !row)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(make_columns(report, columns, err));
    vptq_table_init(t, mem, "Ablation", columns, count);
    t->has = find_needs(report);
    for (size_t i = 0; i < report->count; i++) {
        fill_row(row, &report->rows[i], report->opt);
        vptq_table_add(t, row);
    }
    add_notes(t);
    return VPTQ_OK;
}
