/* Prints the divergence of a model from its original, and logs that of each window. */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "lib/base/comm.h"
#include "lib/base/text.h"
#include "lib/eval/estimate.h"
#include "lib/eval/kld.h"
#include "lib/eval/units.h"
#include "lib/report/column.h"

/* Measured, planned or saved figures, and their options. */
typedef struct kld_row {
    const char *model, *base, *base_file, *protocol, *fingerprint;
    vptq_kld_result r;
    vptq_object totals;
} kld_row;

/* A key of JSON only. */
#define KEY(key, field)                                                                        \
    {                                                                                          \
        .name = key, field, .formats = VPTQ_IN_JSON                                            \
    }
/* A figure: key, title, member, decimals, and scale and unit for people. */
#define FIGURE(key, text, member, digits, factor, suffix, ...)                                 \
    {                                                                                          \
        .name = key, .title = text, VPTQ_REAL(kld_row, r.member), .decimals = digits,          \
        .scale = factor, .unit = suffix, .width = 10, __VA_ARGS__                              \
    }
#define LEVEL(key, text, member)  FIGURE(key, text " divergence", member, 6, 1, NULL, .needs = 0)
#define CHANGE(key, text, member) FIGURE(key, text " change", member, 3, 100, " %", .needs = 0)
/* A figure with the key and the member of its standard error. */
#define ESTIMATE(key, text, member, error_key, error, digits, factor, suffix)                  \
    FIGURE(key, text, member, digits, factor, suffix,                                          \
           .deviation = offsetof(kld_row, r.error)),                                           \
        KEY(error_key, VPTQ_REAL(kld_row, r.error))
#define NATS(key, text, member, error_key, error)                                              \
    ESTIMATE(key, text, member, error_key, error, 6, 1, NULL)
#define PERCENT(key, text, member, error_key, error)                                           \
    ESTIMATE(key, text, member, error_key, error, 3, 100, " %")

/* The keys of a comparison in the order of JSON; the text output orders the sections
 * differently. */
static const vptq_column divergence[] = {
    NATS("mean_kld", "mean     divergence", mean_kld, "kld_stderr", kld_stderr),
    LEVEL("max_kld", "maximum ", kld[0]),
    LEVEL("p999_kld", "99.9 %  ", kld[1]),
    LEVEL("p99_kld", "99.0 %  ", kld[2]),
    LEVEL("p95_kld", "95.0 %  ", kld[3]),
    LEVEL("p90_kld", "90.0 %  ", kld[4]),
    LEVEL("p50_kld", "median  ", kld[5]),
    LEVEL("p10_kld", "10.0 %  ", kld[6]),
    LEVEL("p05_kld", "5.0 %   ", kld[7]),
    LEVEL("p01_kld", "1.0 %   ", kld[8]),
    LEVEL("min_kld", "minimum ", kld[9])};
static const vptq_column same_token[] = {PERCENT("same_top1", "same likeliest token", same_top1,
                                                 "same_top1_stderr", same_top1_stderr)};
static const vptq_column perplexity[] = {
    NATS("ppl", "ppl", ppl, "ppl_stderr", ppl_stderr),
    NATS("ppl_base", "ppl of the base", ppl_base, "ppl_base_stderr", ppl_base_stderr),
    FIGURE("ln_ppl_correlation", "correlation of ln ppl", ln_ppl_correlation, 2, 100, " %",
           .missing = "nan %"),
    NATS("ln_ppl_ratio", "ln ratio of ppl", ln_ppl_ratio, "ln_ppl_ratio_stderr",
         ln_ppl_ratio_stderr),
    NATS("ppl_ratio", "ratio of ppl", ppl_ratio, "ppl_ratio_stderr", ppl_ratio_stderr),
    NATS("ppl_difference", "difference of ppl", ppl_difference, "ppl_difference_stderr",
         ppl_difference_stderr)};
static const vptq_column change[] = {
    PERCENT("mean_delta_p", "mean     change", mean_delta_p, "delta_p_stderr", delta_p_stderr),
    CHANGE("max_delta_p", "maximum ", delta_p[0]),
    CHANGE("p999_delta_p", "99.9 %  ", delta_p[1]),
    CHANGE("p99_delta_p", "99.0 %  ", delta_p[2]),
    CHANGE("p95_delta_p", "95.0 %  ", delta_p[3]),
    CHANGE("p90_delta_p", "90.0 %  ", delta_p[4]),
    CHANGE("p75_delta_p", "75.0 %  ", delta_p[5]),
    CHANGE("p50_delta_p", "median  ", delta_p[6]),
    CHANGE("p25_delta_p", "25.0 %  ", delta_p[7]),
    CHANGE("p10_delta_p", "10.0 %  ", delta_p[8]),
    CHANGE("p05_delta_p", "5.0 %   ", delta_p[9]),
    CHANGE("p01_delta_p", "1.0 %   ", delta_p[10]),
    CHANGE("p001_delta_p", "0.1 %   ", delta_p[11]),
    CHANGE("min_delta_p", "minimum ", delta_p[12]),
    PERCENT("rms_delta_p", "rms      change", rms_delta_p, "rms_delta_p_stderr",
            rms_delta_p_stderr)};
static const vptq_column run[] = {KEY("tokens", VPTQ_INTEGER(kld_row, r.tokens)),
                                  KEY("windows", VPTQ_INTEGER(kld_row, r.windows)),
                                  KEY("context", VPTQ_INTEGER(kld_row, r.context)),
                                  KEY("protocol", VPTQ_TEXT(kld_row, protocol)),
                                  KEY("seconds", VPTQ_REAL(kld_row, r.seconds)),
                                  KEY("base_tail", VPTQ_REAL(kld_row, r.base_tail)),
                                  KEY("model", VPTQ_TEXT(kld_row, model)),
                                  KEY("base", VPTQ_TEXT(kld_row, base)),
                                  KEY("base_file", VPTQ_TEXT(kld_row, base_file)),
                                  KEY("base_fingerprint", VPTQ_TEXT(kld_row, fingerprint))};
static const vptq_column saved[] = {KEY("tokens", VPTQ_INTEGER(kld_row, r.tokens)),
                                    KEY("windows", VPTQ_INTEGER(kld_row, r.windows)),
                                    KEY("context", VPTQ_INTEGER(kld_row, r.context)),
                                    KEY("protocol", VPTQ_TEXT(kld_row, protocol)),
                                    KEY("seconds", VPTQ_REAL(kld_row, r.seconds)),
                                    KEY("base", VPTQ_TEXT(kld_row, base)),
                                    KEY("base_file", VPTQ_TEXT(kld_row, base_file))};
static const vptq_column planned[] = {KEY("tokens", VPTQ_INTEGER(kld_row, r.tokens)),
                                      KEY("windows", VPTQ_INTEGER(kld_row, r.windows)),
                                      KEY("context", VPTQ_INTEGER(kld_row, r.context)),
                                      KEY("model", VPTQ_TEXT(kld_row, model)),
                                      KEY("totals", VPTQ_OBJECT(kld_row, totals))};

static void append(vptq_column *columns, size_t *count, const vptq_column *more, size_t n)
{
    memcpy(columns + *count, more, n * sizeof *more);
    *count += n;
}

static vptq_status print_json(const vptq_output *out, const kld_row *row, vptq_err *err)
{
    vptq_column columns[VPTQ_MAX_COLUMNS];
    size_t n = 0;
    append(columns, &n, VPTQ_COLUMNS(divergence));
    append(columns, &n, VPTQ_COLUMNS(same_token));
    append(columns, &n, VPTQ_COLUMNS(perplexity));
    append(columns, &n, VPTQ_COLUMNS(change));
    append(columns, &n, VPTQ_COLUMNS(run));
    return vptq_print_object(out, columns, n, row, err);
}

/* Prints in the layout of llama.cpp's perplexity tool. */
static vptq_status print_text(const vptq_output *out, const kld_row *row, vptq_err *err)
{
    enum { TITLES = 30 };
    const vptq_kld_result *r = &row->r;
    VPTQ_CHECK(vptq_print_text(out, err, "perplexity\n"));
    VPTQ_CHECK(vptq_print_list(out, VPTQ_COLUMNS(perplexity), TITLES, row, err));
    VPTQ_CHECK(vptq_print_text(out, err, "\ndivergence in nats per token\n"));
    VPTQ_CHECK(vptq_print_list(out, VPTQ_COLUMNS(divergence), TITLES, row, err));
    VPTQ_CHECK(vptq_print_text(out, err, "\nchange of the correct token's probability\n"));
    VPTQ_CHECK(vptq_print_list(out, VPTQ_COLUMNS(change), TITLES, row, err));
    VPTQ_CHECK(vptq_print_list(out, VPTQ_COLUMNS(same_token), TITLES, row, err));
    VPTQ_CHECK(vptq_print_text(out, err,
                               "\n%" PRIu64 " token%s in %" PRIu64 " window%s of %zu, %.1f s\n",
                               r->tokens, vptq_plural(r->tokens, "", "s"), r->windows,
                               vptq_plural(r->windows, "", "s"), r->context, r->seconds));
    if (r->base_tail > 0)
        VPTQ_CHECK(vptq_print_text(
            out, err,
            "the divergence is a lower bound: %.3g %% of the probability of the saved "
            "base is not resolved\n",
            100 * r->base_tail));
    return VPTQ_OK;
}

static vptq_status print_result(const vptq_output *out, const vptq_kld_options *o,
                                const kld_row *row, vptq_err *err)
{
    const vptq_kld_result *r = &row->r;
    const bool json = out->format == VPTQ_FORMAT_JSON;
    if (o->dry_run && json)
        return vptq_print_object(out, VPTQ_COLUMNS(planned), row, err);
    if (o->dry_run) {
        VPTQ_CHECK(vptq_print_text(
            out, err, "would %s %" PRIu64 " token%s in %" PRIu64 " window%s\n",
            row->model ? "compare" : "save", r->tokens, vptq_plural(r->tokens, "", "s"),
            r->windows, vptq_plural(r->windows, "", "s")));
        return vptq_estimate_print(out, &r->estimate, err);
    }
    if (!row->model && json)
        return vptq_print_object(out, VPTQ_COLUMNS(saved), row, err);
    if (!row->model)
        return vptq_print_line(
            out, err, "saved %" PRIu64 " token%s in %" PRIu64 " window%s of %zu in %s, %.1f s",
            r->tokens, vptq_plural(r->tokens, "", "s"), r->windows,
            vptq_plural(r->windows, "", "s"), r->context, o->save_base, r->seconds);
    return json ? print_json(out, row, err) : print_text(out, row, err);
}

/* Running divergence. */
typedef struct window_log {
    const vptq_ctx *ctx;
    double sum;
    uint64_t tokens;
} window_log;

static void log_window(void *arg, uint64_t window, double kld, uint64_t tokens)
{
    window_log *w = arg;
    w->sum += kld * (double)tokens;
    w->tokens += tokens;
    vptq_log(w->ctx, VPTQ_LOG_MORE,
             "window %" PRIu64 ": divergence %.6f over %" PRIu64 " tokens, so far %.6f", window,
             kld, tokens, w->sum / (double)w->tokens);
}

static vptq_status measure(vptq_device *dev, const vptq_model *m, const vptq_model *base,
                           const vptq_kld_options *opt, const vptq_output *out,
                           vptq_kld_result *r, vptq_err *err)
{
    window_log log = {.ctx = dev->ctx};
    const vptq_eval_watch watch = {.window = log_window, .arg = &log};
    VPTQ_CHECK(vptq_units_same_model(dev->ctx, m, err));
    VPTQ_CHECK(vptq_units_same_model(dev->ctx, base, err));
    VPTQ_CHECK(vptq_eval_kld(dev, m, base, opt, &watch, r, err));
    if (opt->dry_run) {
        const double tokens = (double)r->windows * (double)r->context;
        const double scored = (double)r->tokens;
        r->estimate = vptq_estimate_make(opt->save_base);
        VPTQ_CHECK(vptq_eval_estimate(dev, m, tokens, scored, r->context, &r->estimate, err));
        VPTQ_CHECK(
            vptq_eval_estimate(dev, base, tokens, scored, r->context, &r->estimate, err));
        if (opt->save_base)
            vptq_estimate_leave_out(&r->estimate, "the saved file");
    }
    if (!out || vptq_comm_rank(dev->ctx))
        return VPTQ_OK;
    const kld_row row = {.model = m ? m->ckpt.path : NULL,
                         .base = base ? base->ckpt.path : r->base_name,
                         .base_file = m ? opt->base_file : opt->save_base,
                         .protocol = r->protocol == VPTQ_PPL_LLAMA_CPP ? "llama.cpp" : "gptq",
                         .fingerprint = r->base_fingerprint[0] ? r->base_fingerprint : NULL,
                         .r = *r,
                         .totals = vptq_estimate_object(&r->estimate)};
    return print_result(out, opt, &row, err);
}

vptq_status vptq_eval_divergence(vptq_device *dev, const vptq_model *m, const vptq_model *base,
                                 const vptq_kld_options *opt, const vptq_output *out,
                                 vptq_kld_result *r, vptq_err *err)
{
    vptq_status st = measure(dev, m, base, opt, out, r, err);
    if (st == VPTQ_E_CANCELLED && !opt->dry_run)
        st = vptq_fail(err, st,
                       "interrupted; nothing is kept, run the same command to start again");
    return vptq_comm_agree(dev->ctx, st, err);
}
