/* Lines and points over two axes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/report/stats.h"
#include "lib/report/svg.h"
#include "lib/report/svg_internal.h"

enum { TOP = 26, LEGEND_GAP = 14, MAX_VALUES = 64 };

static const double nothing[2] = {(double)INFINITY, -(double)INFINITY};

static bool is_range(const double range[2])
{
    return range[0] <= range[1];
}

/* Puts x into the rising values where it is not among them and there is room. */
static size_t add_value(double *values, size_t n, double x)
{
    for (size_t i = 0; i < n; i++)
        if (values[i] == x)
            return n;
    if (n < MAX_VALUES)
        values[n++] = x;
    qsort(values, n, sizeof *values, vptq_stats_order);
    return n;
}

static void begin_or_say_empty(vptq_html *h, bool empty, double height, const char *title,
                               const char *description)
{
    vptq_svg_begin(h, empty ? 40 : height, title, description);
    if (empty)
        vptq_svg_text(h, SVG_WIDTH / 2.0, 24, SVG_FONT, "middle", "soft", "no values");
}

/* --- lines ------------------------------------------------------------------------------- */

static bool point_shown(const vptq_svg_lines_spec *s, const vptq_svg_line *line, size_t i)
{
    return vptq_svg_shown(line->x[i], s->x.log) && vptq_svg_shown(line->y[i], s->y.log);
}

static void lines_ranges(const vptq_svg_lines_spec *s, double rx[2], double ry[2],
                         double *values, size_t *n)
{
    for (size_t k = 0; k < s->count; k++)
        for (size_t i = 0; i < s->lines[k].count; i++) {
            const vptq_svg_line *line = &s->lines[k];
            if (!point_shown(s, line, i))
                continue;
            vptq_svg_widen(rx, line->x[i], s->x.log);
            vptq_svg_widen(ry, line->y[i], s->y.log);
            if (line->low)
                vptq_svg_widen(ry, line->low[i], s->y.log);
            if (line->high)
                vptq_svg_widen(ry, line->high[i], s->y.log);
            *n = add_value(values, *n, line->x[i]);
        }
    if (is_range(ry))
        vptq_svg_widen(ry, s->even, s->y.log);
}

static void draw_series(vptq_html *h, const vptq_svg_lines_spec *s, const svg_plot *p,
                        unsigned k)
{
    const vptq_svg_line *line = &s->lines[k];
    bool began = false;
    for (size_t i = 0; i < line->count; i++) {
        if (!point_shown(s, line, i))
            continue;
        if (!began)
            vptq_emit_format(&h->e, "<path class=\"l%u\" d=\"", k % VPTQ_SVG_SERIES);
        vptq_emit_format(&h->e, "%c%.1f %.1f", began ? 'L' : 'M',
                         vptq_svg_at(&p->x, line->x[i]), vptq_svg_at(&p->y, line->y[i]));
        began = true;
    }
    vptq_emit_text(&h->e, began ? "\"/>\n" : "");
    for (size_t i = 0; i < line->count; i++) {
        if (!point_shown(s, line, i))
            continue;
        double x = vptq_svg_at(&p->x, line->x[i]);
        if (line->low && line->high && vptq_svg_shown(line->low[i], s->y.log) &&
            vptq_svg_shown(line->high[i], s->y.log))
            vptq_svg_line_from(h, "whisker", x, vptq_svg_at(&p->y, line->low[i]), x,
                               vptq_svg_at(&p->y, line->high[i]));
        vptq_svg_mark(h, k, x, vptq_svg_at(&p->y, line->y[i]));
    }
}

void vptq_svg_lines(vptq_html *h, const vptq_svg_lines_spec *s)
{
    double rx[2] = {nothing[0], nothing[1]}, ry[2] = {nothing[0], nothing[1]},
           values[MAX_VALUES], y = 0;
    size_t n = 0;
    lines_ranges(s, rx, ry, values, &n);
    if (!is_range(rx)) {
        begin_or_say_empty(h, true, 0, s->title, s->description);
        vptq_svg_end(h);
        return;
    }
    svg_plot p = vptq_svg_plan(&s->x, &s->y, rx, ry, TOP, 230);
    double legend = p.bottom + SVG_BELOW + LEGEND_GAP;
    y = legend;
    for (unsigned k = 0; k < s->count; k++)
        y = vptq_svg_legend_row(NULL, k, true, y, s->lines[k].label);
    begin_or_say_empty(h, false, y - SVG_LINE + 8, s->title, s->description);
    vptq_svg_axes(h, &p, &s->x, &s->y, values, n);
    if (vptq_svg_shown(s->even, s->y.log)) {
        double at = vptq_svg_at(&p.y, s->even);
        vptq_svg_line_from(h, "even", p.left, at, p.right, at);
    }
    y = legend;
    for (unsigned k = 0; k < s->count; k++) {
        draw_series(h, s, &p, k);
        y = vptq_svg_legend_row(h, k, true, y, s->lines[k].label);
    }
    vptq_svg_end(h);
}

/* --- scatter ----------------------------------------------------------------------------- */

typedef struct box {
    double left, top, right, bottom;
} box;

/* Boxes that are taken: marks and labels so far. */
enum { MAX_POINTS = 500 };
typedef struct crowd {
    box taken[2 * MAX_POINTS];
    size_t count;
} crowd;

static bool overlaps(const box *a, const box *b)
{
    return a->left < b->right && b->left < a->right && a->top < b->bottom && b->top < a->bottom;
}

/* Takes the place of a text of that width whose base line begins at (left, base), if it is free
 * and within the area. */
static bool take(crowd *c, const box *area, double left, double base, double width)
{
    const box b = {left, base - 11, left + width, base + 4};
    if (b.left < area->left || b.right > area->right || b.top < area->top ||
        b.bottom > area->bottom)
        return false;
    for (size_t k = 0; k < c->count; k++)
        if (overlaps(&b, &c->taken[k]))
            return false;
    c->taken[c->count++] = b;
    return true;
}

/* Finds a place for a text of that width beside (x, y), or, where it may, up to some lines
 * above or below; the left end of its base line in *at_x, *at_y. */
static bool place(crowd *c, const box *area, double x, double y, double width, bool far,
                  double *at_x, double *at_y)
{
    static const double offsets[][2] = {
        /* times the width, plus a gap of 9; y of the base line */
        {0, 4},      {-1, 4},     {-0.5, -9},   {-0.5, 19},   {0, -7},     {-1, -7},
        {0, 16},     {-1, 16},    {-0.5, -22},  {-0.5, 32},   {-0.15, -9}, {-0.85, -9},
        {-0.15, 19}, {-0.85, 19}, {-0.85, -22}, {-0.15, -22}, {-0.85, 32}, {-0.15, 32}};
    static const double aside[] = {0, -20, 20};
    enum { NEAR_LINES = 2, FAR_LINES = 9, LINE = 13 };
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        const double share = offsets[i][0], gap = share == 0 ? 9 : share == -1 ? -9 : 0;
        *at_x = x + gap + share * width;
        *at_y = y + offsets[i][1];
        if (take(c, area, *at_x, *at_y, width))
            return true;
    }
    for (int line = NEAR_LINES; line < FAR_LINES && far; line++)
        for (int side = 0; side < 6; side++) { /* above and below; over it, left, right */
            *at_x = x - width / 2 + aside[side / 2];
            *at_y = y + (side % 2 ? 19 + line * LINE : -9 - line * LINE);
            if (take(c, area, *at_x, *at_y, width))
                return true;
        }
    return false;
}

static bool is_shown(const vptq_svg_scatter_spec *s, size_t i)
{
    return i < MAX_POINTS && vptq_svg_shown(s->points[i].x, s->x.log) &&
           vptq_svg_shown(s->points[i].y, s->y.log);
}

static bool on_frontier(const vptq_svg_scatter_spec *s, size_t i)
{
    const vptq_svg_point *p = &s->points[i];
    for (size_t k = 0; k < s->count; k++) {
        const vptq_svg_point *q = &s->points[k];
        if (k != i && is_shown(s, k) && q->x <= p->x && q->y <= p->y &&
            (q->x < p->x || q->y < p->y || k < i))
            return false;
    }
    return is_shown(s, i);
}

static void draw_frontier(vptq_html *h, const vptq_svg_scatter_spec *s, const svg_plot *p)
{
    double last = -(double)INFINITY;
    for (bool began = false;; began = true) {
        size_t next = s->count;
        for (size_t i = 0; i < s->count; i++)
            if (on_frontier(s, i) && s->points[i].x > last &&
                (next == s->count || s->points[i].x < s->points[next].x))
                next = i;
        if (next == s->count) {
            vptq_emit_text(&h->e, began ? "\"/>\n" : "");
            return;
        }
        last = s->points[next].x;
        vptq_emit_format(&h->e, "%s%.1f %.1f", began ? "L" : "<path class=\"even\" d=\"M",
                         vptq_svg_at(&p->x, last), vptq_svg_at(&p->y, s->points[next].y));
    }
}

/* Where the labels go, in the order of the points; numbers where there is no room, and in the
 * thickest crowd only the line of the legend. */
typedef struct label_place {
    double x, y;
    unsigned number; /* 0 = the label itself */
    bool left_out;   /* of the picture */
} label_place;

static void place_labels(const vptq_svg_scatter_spec *s, const svg_plot *p, crowd *c,
                         label_place *places)
{
    const box area = {p->left + 2, p->top, SVG_WIDTH - 2, p->bottom - 2};
    unsigned numbers = 0;
    c->count = 0;
    for (size_t i = 0; i < s->count; i++)
        if (is_shown(s, i)) {
            double x = vptq_svg_at(&p->x, s->points[i].x),
                   y = vptq_svg_at(&p->y, s->points[i].y);
            c->taken[c->count++] = (box){x - 6, y - 6, x + 6, y + 6};
        }
    for (size_t i = 0; i < s->count; i++) {
        label_place *at = &places[i];
        *at = (label_place){.number = 0};
        if (!is_shown(s, i))
            continue;
        double x = vptq_svg_at(&p->x, s->points[i].x), y = vptq_svg_at(&p->y, s->points[i].y);
        const char *label = s->points[i].label;
        if (place(c, &area, x, y, vptq_svg_width(label, strlen(label), SVG_SMALL), false,
                  &at->x, &at->y))
            continue;
        char text[16];
        at->number = ++numbers;
        snprintf(text, sizeof text, "%u", numbers);
        at->left_out = !place(c, &area, x, y, vptq_svg_width(text, strlen(text), SVG_SMALL),
                              true, &at->x, &at->y);
    }
}

static double scatter_legend(vptq_html *h, const vptq_svg_scatter_spec *s,
                             const label_place *places, double y)
{
    for (unsigned k = 0; k < s->series_count; k++)
        y = vptq_svg_legend_row(h, k, false, y, s->series[k]);
    for (size_t i = 0; i < s->count; i++)
        if (is_shown(s, i) && places[i].number) {
            char text[1100];
            snprintf(text, sizeof text, "%u  %.1024s", places[i].number, s->points[i].label);
            y = vptq_svg_legend_row(h, s->points[i].series, false, y, text);
        }
    return y;
}

static void draw_points(vptq_html *h, const vptq_svg_scatter_spec *s, const svg_plot *p,
                        const label_place *places)
{
    for (size_t i = 0; i < s->count; i++) {
        char text[16];
        if (!is_shown(s, i))
            continue;
        vptq_svg_mark(h, s->points[i].series, vptq_svg_at(&p->x, s->points[i].x),
                      vptq_svg_at(&p->y, s->points[i].y));
        if (places[i].left_out)
            continue;
        snprintf(text, sizeof text, "%u", places[i].number);
        vptq_svg_text(h, places[i].x, places[i].y, SVG_SMALL, "start", "halo",
                      places[i].number ? text : s->points[i].label);
    }
}

void vptq_svg_scatter(vptq_html *h, const vptq_svg_scatter_spec *s)
{
    double rx[2] = {nothing[0], nothing[1]}, ry[2] = {nothing[0], nothing[1]},
           values[MAX_VALUES];
    size_t n = 0;
    for (size_t i = 0; i < s->count; i++)
        if (is_shown(s, i)) {
            vptq_svg_widen(rx, s->points[i].x, s->x.log);
            vptq_svg_widen(ry, s->points[i].y, s->y.log);
            n = add_value(values, n, s->points[i].x);
        }
    if (!is_range(rx)) {
        begin_or_say_empty(h, true, 0, s->title, s->description);
        vptq_svg_end(h);
        return;
    }
    size_t points = s->count < MAX_POINTS ? s->count : MAX_POINTS;
    crowd *c = vptq_mem_alloc(h->e.buf->mem, 1, sizeof *c, h->e.err);
    label_place *places =
        c ? vptq_mem_alloc(h->e.buf->mem, points, sizeof *places, h->e.err) : NULL;
    if (!places) {
        h->e.st = h->e.st ? h->e.st : VPTQ_E_NOMEM;
        vptq_mem_free(h->e.buf->mem, c);
        return;
    }
    vptq_svg_scatter_spec shown = *s;
    shown.count = points;
    svg_plot p = vptq_svg_plan(&s->x, &s->y, rx, ry, TOP, 290);
    place_labels(&shown, &p, c, places);
    double legend = p.bottom + SVG_BELOW + LEGEND_GAP;
    begin_or_say_empty(h, false, scatter_legend(NULL, &shown, places, legend) - SVG_LINE + 8,
                       s->title, s->description);
    vptq_svg_axes(h, &p, &s->x, &s->y, values, n);
    if (s->frontier)
        draw_frontier(h, &shown, &p);
    draw_points(h, &shown, &p, places);
    scatter_legend(h, &shown, places, legend);
    vptq_svg_end(h);
    vptq_mem_free(h->e.buf->mem, places);
    vptq_mem_free(h->e.buf->mem, c);
}
