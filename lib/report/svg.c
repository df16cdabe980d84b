/* Canvas, scales, ticks and texts of pictures. */
#include "lib/report/svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/utf8.h"
#include "lib/report/svg_internal.h"

/* ---- scales ---- */

double vptq_svg_at(const svg_scale *s, double value)
{
    double low = s->log ? log(s->low) : s->low, high = s->log ? log(s->high) : s->high;
    double v = s->log ? log(value) : value;
    return s->from + (s->to - s->from) * (high > low ? (v - low) / (high - low) : 0.5);
}

bool vptq_svg_shown(double v, bool log_axis)
{
    static const double largest = 1e30; /* keeps the ends of an axis finite */
    return fabs(v) <= largest && (!log_axis || v >= 1 / largest);
}

void vptq_svg_widen(double range[2], double v, bool log_axis)
{
    if (!vptq_svg_shown(v, log_axis))
        return;
    range[0] = range[0] < v ? range[0] : v;
    range[1] = range[1] > v ? range[1] : v;
}

/* The smallest round step with at most `max_count` values in the span. */
static double round_step(double span, size_t max_count)
{
    static const double steps[] = {1, 2, 2.5, 5, 10};
    double raw = span / (double)(max_count - 1), power = pow(10, floor(log10(raw)));
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (steps[i] * power >= raw * (1 - 1e-9))
            return steps[i] * power;
    return 10 * power;
}

static size_t linear_ticks(double low, double high, size_t max_count, double *ticks)
{
    size_t n = 0;
    double step = round_step(high - low, max_count);
    const double first = ceil(low / step - 1e-9);
    while (n < max_count && (first + (double)n) * step <= high + 1e-9 * step) {
        ticks[n] = (first + (double)n) * step + 0.0;
        n++;
    }
    return n;
}

/* Multiples of every `every`-th power of ten within the range; those after `max_count` are only
 * counted. */
static size_t log_ticks(double low, double high, const double *multiples, size_t multiple_count,
                        int every, size_t max_count, double *ticks)
{
    size_t n = 0;
    for (int p = (int)floor(log10(low)); p <= (int)ceil(log10(high)); p++)
        for (size_t i = 0; i < multiple_count && p % every == 0; i++) {
            double v = multiples[i] * pow(10, p);
            if (v < low * (1 - 1e-9) || v > high * (1 + 1e-9))
                continue;
            if (n < max_count)
                ticks[n] = v;
            n++;
        }
    return n;
}

size_t vptq_svg_ticks(double low, double high, bool log_axis, size_t max_count,
                      double ticks[VPTQ_SVG_TICKS])
{
    static const double fine[] = {1, 2, 5}, coarse[] = {1, 3};
    max_count = max_count > VPTQ_SVG_TICKS ? VPTQ_SVG_TICKS : max_count;
    if (!(high > low)) {
        ticks[0] = low;
        return 1;
    }
    if (!log_axis || high < 10 * low)
        return linear_ticks(low, high, max_count, ticks);
    size_t n = log_ticks(low, high, fine, 3, 1, max_count, ticks);
    if (n > max_count)
        n = log_ticks(low, high, coarse, 2, 1, max_count, ticks);
    for (int every = 1; n > max_count; every++)
        n = log_ticks(low, high, fine, 1, every, max_count, ticks);
    return n;
}

void vptq_svg_number(char text[32], double value)
{
    double size = fabs(value);
    if (size >= 1e5 || (size > 0 && size < 1e-4)) {
        snprintf(text, 32, "%.3g", value);
        return;
    }
    for (int decimals = 0; decimals <= 6; decimals++) {
        snprintf(text, 32, "%.*f", decimals, value + 0.0);
        double back;
        if (sscanf(text, "%lf", &back) == 1 && fabs(back - value) <= 1e-6 * size)
            return;
    }
}

/* ---- texts ---- */

/* In units of the font size, after the wider of the common sans serif fonts. */
static double character_width(uint32_t cp)
{
    if (cp >= 0x2e80)
        return 1.05; /* Chinese, Japanese, Korean, emoji */
    if (cp >= 0x80)
        return 0.7;
    if (strchr("ijl.,:;'|! ", (int)cp))
        return 0.32;
    if (strchr("frt()[]{}/\\-\"*`", (int)cp))
        return 0.45;
    if (strchr("mwMW@%", (int)cp))
        return 0.98;
    return cp >= 'A' && cp <= 'Z' ? 0.74 : 0.63;
}

double vptq_svg_width(const char *text, size_t bytes, int size)
{
    double width = 0;
    while (bytes) {
        uint32_t cp = 0xfffd;
        size_t n = vptq_utf8_decode(text, bytes, &cp);
        n = n ? n : 1;
        width += character_width(cp);
        text += n;
        bytes -= n;
    }
    return width * size;
}

size_t vptq_svg_fit(const char *text, int size, double width)
{
    size_t all = strlen(text), fits = 0, soft_break = 0;
    while (fits < all) {
        uint32_t cp = 0xfffd;
        size_t n = vptq_utf8_decode(text + fits, all - fits, &cp);
        n = n ? n : 1;
        if (fits && vptq_svg_width(text, fits + n, size) > width)
            break;
        fits += n;
        if (cp < 0x80 && strchr(" _-/.,", (int)cp))
            soft_break = fits;
    }
    return fits < all && soft_break ? soft_break : fits;
}

/* Rounds to a tenth; + 0.0 because -0.0 is printed with its sign. */
static double position(double x)
{
    return round(x * 10) / 10 + 0.0;
}

void vptq_svg_text(vptq_html *h, double x, double y, int size, const char *anchor,
                   const char *class, const char *text)
{
    vptq_emit_format(&h->e, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%d\"", position(x),
                     position(y), size);
    if (strcmp(anchor, "start") != 0)
        vptq_emit_format(&h->e, " text-anchor=\"%s\"", anchor);
    if (class)
        vptq_emit_format(&h->e, " class=\"%s\"", class);
    vptq_emit_text(&h->e, ">");
    vptq_emit_xml(&h->e, text);
    vptq_emit_text(&h->e, "</text>\n");
}

void vptq_svg_line_from(vptq_html *h, const char *class, double x1, double y1, double x2,
                        double y2)
{
    vptq_emit_format(&h->e, "<path class=\"%s\" d=\"M%.1f %.1fL%.1f %.1f\"/>\n", class,
                     position(x1), position(y1), position(x2), position(y2));
}

/* ---- canvas ---- */

void vptq_svg_begin(vptq_html *h, double height, const vptq_svg_about *about)
{
    unsigned id = ++h->pictures;
    vptq_emit_text(&h->e, "<figure>\n<figcaption>");
    vptq_emit_xml(&h->e, about->caption ? about->caption : about->title);
    vptq_emit_format(&h->e,
                     "</figcaption>\n"
                     "<svg viewBox=\"0 0 %d %.0f\" role=\"img\" aria-labelledby=\"t%u d%u\">\n"
                     "<title id=\"t%u\">",
                     (int)SVG_WIDTH, ceil(height), id, id, id);
    vptq_emit_xml(&h->e, about->title);
    vptq_emit_format(&h->e, "</title>\n<desc id=\"d%u\">", id);
    vptq_emit_xml(&h->e, about->description);
    vptq_emit_text(&h->e, "</desc>\n");
}

void vptq_svg_end(vptq_html *h)
{
    vptq_emit_text(&h->e, "</svg>\n</figure>\n");
}

/* The last three paths are open and drawn as strokes. */
void vptq_svg_mark(vptq_html *h, unsigned series, double x, double y)
{
    static const char *const paths[VPTQ_SVG_SERIES] = {"m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
                                                       "m-3.6-3.6h7.2v7.2h-7.2z",
                                                       "m0-4.8l4.6 8h-9.2z",
                                                       "m0-5l5 5l-5 5l-5-5z",
                                                       "m0 4.8l4.6-8h-9.2z",
                                                       "m-4-4l8 8m0-8l-8 8",
                                                       "m0-5v10m-5-5h10",
                                                       "m-4.5-2.5h9m-9 5h9"};
    unsigned kind = series % VPTQ_SVG_SERIES;
    vptq_emit_format(&h->e, "<path class=\"%c%u\" d=\"M%.1f %.1f%s\"/>\n", kind < 5 ? 'f' : 'm',
                     kind, position(x), position(y), paths[kind]);
}

double vptq_svg_wrapped(vptq_html *h, double x, double y, int size, double width,
                        const char *text)
{
    do {
        char line[1024];
        size_t n = vptq_svg_fit(text, size, width);
        snprintf(line, sizeof line, "%.*s", (int)(n < 1000 ? n : 1000), text);
        if (h)
            vptq_svg_text(h, x, y, size, "start", NULL, line);
        text += n;
        y += SVG_LINE;
    } while (*text);
    return y;
}

double vptq_svg_legend_row(vptq_html *h, unsigned series, bool line, double y, const char *text)
{
    double left = line ? 44 : 24;
    if (h && line) {
        char class[8];
        snprintf(class, sizeof class, "l%u", series % VPTQ_SVG_SERIES);
        vptq_svg_line_from(h, class, 4, y - 4, 38, y - 4);
    }
    if (h)
        vptq_svg_mark(h, series, line ? 21 : 12, y - 4);
    return vptq_svg_wrapped(h, left, y, SVG_SMALL, SVG_WIDTH - left - 4, text);
}

/* ---- axes ---- */

/* Extends a range by `margin` of its span on both sides; a single value gets some width. */
static void pad_range(double range[2], bool log_axis, double margin)
{
    double span = log_axis ? log(range[1] / range[0]) : range[1] - range[0];
    if (!(span > 0))
        span = log_axis ? 0.2 : range[0] != 0 ? 0.2 * fabs(range[0]) : 1;
    if (log_axis) {
        range[0] /= exp(margin * span);
        range[1] *= exp(margin * span);
    } else {
        range[0] -= margin * span;
        range[1] += margin * span;
    }
}

enum { Y_TICKS = 6, X_TICKS = 7 };

svg_plot vptq_svg_plan(const vptq_svg_axis *x, const vptq_svg_axis *y, const double range_x[2],
                       const double range_y[2], double top, double height)
{
    double rx[2] = {range_x[0], range_x[1]}, ry[2] = {range_y[0], range_y[1]};
    double ticks[VPTQ_SVG_TICKS], widest = 0;
    pad_range(rx, x->log, 0.06);
    pad_range(ry, y->log, 0.08);
    size_t n = vptq_svg_ticks(ry[0], ry[1], y->log, Y_TICKS, ticks);
    for (size_t i = 0; i < n; i++) {
        char text[32];
        vptq_svg_number(text, ticks[i]);
        double width = vptq_svg_width(text, strlen(text), SVG_SMALL);
        widest = width > widest ? width : widest;
    }
    svg_plot p = {.left = widest + 14, .right = SVG_WIDTH - 10, .top = top};
    p.bottom = top + height;
    p.x = (svg_scale){rx[0], rx[1], p.left, p.right, x->log};
    p.y = (svg_scale){ry[0], ry[1], p.bottom, p.top, y->log};
    return p;
}

static void draw_x_axis(vptq_html *h, const svg_plot *p, const vptq_svg_axis *x,
                        const double *values, size_t n)
{
    double ticks[VPTQ_SVG_TICKS], end = -1e9;
    if (!x->at_values) {
        n = vptq_svg_ticks(p->x.low, p->x.high, x->log, X_TICKS, ticks);
        values = ticks;
    }
    for (size_t i = 0; i < n; i++) {
        char text[32];
        double at = vptq_svg_at(&p->x, values[i]);
        vptq_svg_number(text, values[i]);
        double half = vptq_svg_width(text, strlen(text), SVG_SMALL) / 2;
        vptq_svg_line_from(h, "grid", at, p->top, at, p->bottom);
        if (at - half < end + 6)
            continue;
        vptq_svg_text(h, at + half > SVG_WIDTH ? SVG_WIDTH - half : at, p->bottom + 16,
                      SVG_SMALL, "middle", "soft", text);
        end = at + half;
    }
    vptq_svg_text(h, (p->left + p->right) / 2, p->bottom + 35, SVG_SMALL, "middle", NULL,
                  x->title);
}

void vptq_svg_axes(vptq_html *h, const svg_plot *p, const vptq_svg_axis *x,
                   const vptq_svg_axis *y, const double *values, size_t n)
{
    double ticks[VPTQ_SVG_TICKS];
    size_t count = vptq_svg_ticks(p->y.low, p->y.high, y->log, Y_TICKS, ticks);
    for (size_t i = 0; i < count; i++) {
        char text[32];
        double at = vptq_svg_at(&p->y, ticks[i]);
        vptq_svg_number(text, ticks[i]);
        vptq_svg_line_from(h, "grid", p->left, at, p->right, at);
        vptq_svg_text(h, p->left - 6, at + 4, SVG_SMALL, "end", "soft", text);
    }
    draw_x_axis(h, p, x, values, n);
    vptq_emit_format(&h->e, "<path class=\"axis\" d=\"M%.1f %.1fV%.1fH%.1f\"/>\n", p->left,
                     p->top, p->bottom, p->right);
    vptq_svg_text(h, 2, p->top - 9, SVG_SMALL, "start", NULL, y->title);
}
