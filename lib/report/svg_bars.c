/* Bar charts and heat maps. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/report/svg.h"
#include "lib/report/svg_internal.h"

/* ---- bars ---- */

enum { BAR_HEIGHT = 12, BAR_GAP = 10, BAR_LEFT = 2, BAR_RIGHT = SVG_WIDTH - 12 };
enum { VALUE_TEXT = 96 }; /* bytes */

/* Draws the wrapped label and the value from base line y on and returns the y of the bar.  With
 * h NULL it only measures. */
static double draw_bar_label(vptq_html *h, const vptq_svg_bar *b, int decimals, double y)
{
    char value[VALUE_TEXT] = "";
    if (vptq_svg_shown(b->value, false))
        snprintf(value, sizeof value, decimals < 0 ? "%.*g" : "%.*f", abs(decimals), b->value);
    const double width = vptq_svg_width(value, strlen(value), SVG_FONT) + 12;
    if (h && *value)
        vptq_svg_text(h, BAR_RIGHT, y, SVG_FONT, "end", NULL, value);
    y = vptq_svg_wrapped(h, BAR_LEFT, y, SVG_FONT, BAR_RIGHT - BAR_LEFT - width, b->label);
    return y - SVG_LINE + 5;
}

static void draw_bar(vptq_html *h, const svg_scale *x, const vptq_svg_bar *b, double y)
{
    if (vptq_svg_shown(b->value, false))
        vptq_emit_format(&h->e,
                         "<rect class=\"f%u\" x=\"%d\" y=\"%.1f\" width=\"%.1f\" "
                         "height=\"%d\"/>\n",
                         b->series % VPTQ_SVG_SERIES, (int)BAR_LEFT, y,
                         fmax(vptq_svg_at(x, b->value) - BAR_LEFT, 0), (int)BAR_HEIGHT);
    if (!vptq_svg_shown(b->low, false) || !vptq_svg_shown(b->high, false))
        return;
    double low = vptq_svg_at(x, fmax(b->low, 0)), high = vptq_svg_at(x, fmax(b->high, 0)),
           mid = y + BAR_HEIGHT / 2.0;
    /* an outline in the page's colour keeps it visible on the bar */
    for (int top = 0; top < 2; top++)
        vptq_emit_format(&h->e,
                         "<path class=\"%s\" d=\"M%.1f %.1fV%.1fM%.1f %.1fH%.1fM%.1f "
                         "%.1fV%.1f\"/>\n",
                         top ? "whisker" : "under", low, mid - 4, mid + 4, low, mid, high, high,
                         mid - 4, mid + 4);
}

void vptq_svg_bars(vptq_html *h, const vptq_svg_bars_spec *s)
{
    double range[2] = {0, 0}, ticks[VPTQ_SVG_TICKS], y = SVG_FONT + 2;
    for (size_t i = 0; i < s->count; i++) {
        vptq_svg_widen(range, s->bars[i].value, false);
        vptq_svg_widen(range, s->bars[i].high, false);
        y = draw_bar_label(NULL, &s->bars[i], s->decimals, y) + BAR_HEIGHT + BAR_GAP + SVG_FONT;
    }
    vptq_svg_widen(range, s->even, false);
    range[1] = range[1] > 0 ? range[1] : 1;
    svg_scale x = {0, range[1], BAR_LEFT, BAR_RIGHT, false};
    double bottom = y - SVG_FONT - BAR_GAP + 4;
    vptq_svg_begin(h, bottom + SVG_BELOW, &s->about);
    size_t n = vptq_svg_ticks(0, range[1], false, 6, ticks);
    for (size_t i = 0; i < n; i++) {
        char text[32];
        double at = vptq_svg_at(&x, ticks[i]);
        vptq_svg_number(text, ticks[i]);
        vptq_svg_line_from(h, "grid", at, 0, at, bottom);
        vptq_svg_text(h, at, bottom + 15, SVG_SMALL,
                      i == 0                ? "start"
                      : at > BAR_RIGHT - 20 ? "end"
                                            : "middle",
                      "soft", text);
    }
    vptq_svg_line_from(h, "axis", BAR_LEFT, bottom, BAR_RIGHT, bottom);
    y = SVG_FONT + 2;
    for (size_t i = 0; i < s->count; i++) {
        double bar = draw_bar_label(h, &s->bars[i], s->decimals, y);
        draw_bar(h, &x, &s->bars[i], bar);
        if (vptq_svg_shown(s->even, false)) {
            double at = vptq_svg_at(&x, s->even);
            vptq_svg_line_from(h, "even", at, bar - 3, at, bar + BAR_HEIGHT + 3);
        }
        y = bar + BAR_HEIGHT + BAR_GAP + SVG_FONT;
    }
    vptq_svg_text(h, SVG_WIDTH / 2.0, bottom + 34, SVG_SMALL, "middle", NULL, s->axis);
    vptq_svg_end(h);
}

/* ---- heat map ---- */

enum { HEAT_ROW = 18, HEAT_SCALE = 46 };

/* From 0 for the smallest value to 1 for the largest. */
static double strength(const vptq_svg_heat_spec *s, const double range[2], double v)
{
    if (!(range[1] > range[0]))
        return 0.5;
    return s->log ? log(v / range[0]) / log(range[1] / range[0])
                  : (v - range[0]) / (range[1] - range[0]);
}

static void draw_cell(vptq_html *h, double x, double y, double width, double t)
{
    vptq_emit_format(&h->e,
                     "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" "
                     "fill=\"var(--heat)\" fill-opacity=\"%.2f\"/>\n",
                     x, y, width - 1, HEAT_ROW - 1, 0.06 + 0.94 * t);
}

static void draw_heat_row(vptq_html *h, const vptq_svg_heat_spec *s, const double range[2],
                          size_t row, double left, double cell, double y)
{
    char text[32];
    vptq_svg_text(h, left - 6, y + 13, SVG_SMALL, "end", "soft", s->rows[row]);
    for (size_t i = 0; i < s->column_count; i++) {
        double v = s->values[row * s->column_count + i], x = left + cell * (double)i;
        if (!vptq_svg_shown(v, s->log))
            continue;
        draw_cell(h, x, y, cell, strength(s, range, v));
        snprintf(text, sizeof text, "%.*f", s->decimals, v);
        if (vptq_svg_width(text, strlen(text), 11) < cell)
            vptq_svg_text(h, x + (cell - 1) / 2, y + 13, 11, "middle", NULL, text);
    }
}

/* Draws the legend of the colours in five steps. */
static void draw_heat_scale(vptq_html *h, const vptq_svg_heat_spec *s, const double range[2],
                            double left, double y)
{
    enum { STEPS = 5 };
    double cell = (SVG_WIDTH - left - 2) / STEPS;
    for (int i = 0; i < STEPS; i++) {
        char text[32];
        double t = (double)i / (STEPS - 1);
        double v = s->log ? range[0] * pow(range[1] / range[0], t)
                          : range[0] + t * (range[1] - range[0]);
        draw_cell(h, left + cell * i, y, cell, t);
        snprintf(text, sizeof text, "%.*f", s->decimals, v);
        vptq_svg_text(h, left + cell * (i + 0.5), y + HEAT_ROW + 13, SVG_SMALL, "middle",
                      "soft", text);
    }
}

void vptq_svg_heat(vptq_html *h, const vptq_svg_heat_spec *s)
{
    double range[2] = {(double)INFINITY, -(double)INFINITY}, left = 0, top = 40;
    for (size_t i = 0; i < s->row_count * s->column_count; i++)
        vptq_svg_widen(range, s->values[i], s->log);
    for (size_t i = 0; i < s->row_count; i++)
        left = fmax(left, vptq_svg_width(s->rows[i], strlen(s->rows[i]), SVG_SMALL));
    left = fmax(left, vptq_svg_width(s->row_title, strlen(s->row_title), SVG_SMALL)) + 10;
    double cell = (SVG_WIDTH - left - 2) / (double)s->column_count;
    double bottom = top + HEAT_ROW * (double)s->row_count;
    vptq_svg_begin(h, bottom + 10 + HEAT_SCALE, &s->about);
    vptq_svg_text(h, left - 6, top - 8, SVG_SMALL, "end", NULL, s->row_title);
    for (size_t i = 0; i < s->column_count; i++) {
        double width = vptq_svg_width(s->columns[i], strlen(s->columns[i]), 11);
        double x = fmin(left + cell * ((double)i + 0.5), SVG_WIDTH - width / 2);
        bool fits = width < cell - 2;
        vptq_svg_text(h, x, top - (fits || i % 2 ? 8 : 24), 11, "middle", NULL, s->columns[i]);
    }
    for (size_t i = 0; i < s->row_count; i++)
        draw_heat_row(h, s, range, i, left, cell, top + HEAT_ROW * (double)i);
    if (range[0] <= range[1])
        draw_heat_scale(h, s, range, left, bottom + 12);
    vptq_svg_end(h);
}
