/* Line charts and scatter plots. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/report/stats.h"
#include "lib/report/svg.h"
#include "lib/report/svg_internal.h"

enum { TOP = 26, LEGEND_GAP = 14, MAX_VALUES = 64 };

/* The ranges of a chart's values. */
typedef struct extent {
    double x[2], y[2];
    double values[MAX_VALUES]; /* of x, sorted */
    size_t count;
} extent;
static const extent no_extent = {.x = {(double)INFINITY, -(double)INFINITY},
                                 .y = {(double)INFINITY, -(double)INFINITY}};

/* Adds x to the values unless it is there or they are full. */
static void add_value(extent *e, double x)
{
    for (size_t i = 0; i < e->count; i++)
        if (e->values[i] == x)
            return;
    if (e->count < MAX_VALUES)
        e->values[e->count++] = x;
    qsort(e->values, e->count, sizeof *e->values, vptq_stats_order);
}

/* Draws a picture without values if there are none. */
static bool is_empty(vptq_html *h, const extent *e, const vptq_svg_about *about)
{
    if (e->count)
        return false;
    vptq_svg_begin(h, 40, about);
    vptq_svg_text(h, SVG_WIDTH / 2.0, 24, SVG_FONT, "middle", "soft", "no values");
    vptq_svg_end(h);
    return true;
}

/* ---- lines ---- */

static bool point_shown(const vptq_svg_lines_spec *s, const vptq_svg_line *line, size_t i)
{
    return vptq_svg_shown(line->x[i], s->x.log) && vptq_svg_shown(line->y[i], s->y.log);
}

static void lines_extent(const vptq_svg_lines_spec *s, extent *e)
{
    for (size_t k = 0; k < s->count; k++)
        for (size_t i = 0; i < s->lines[k].count; i++) {
            const vptq_svg_line *line = &s->lines[k];
            if (!point_shown(s, line, i))
                continue;
            vptq_svg_widen(e->x, line->x[i], s->x.log);
            vptq_svg_widen(e->y, line->y[i], s->y.log);
            if (line->low)
                vptq_svg_widen(e->y, line->low[i], s->y.log);
            if (line->high)
                vptq_svg_widen(e->y, line->high[i], s->y.log);
            add_value(e, line->x[i]);
        }
    vptq_svg_widen(e->y, s->even, s->y.log);
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
    extent e = no_extent;
    lines_extent(s, &e);
    if (is_empty(h, &e, &s->about))
        return;
    svg_plot p = vptq_svg_plan(&s->x, &s->y, e.x, e.y, TOP, 230);
    double legend = p.bottom + SVG_BELOW + LEGEND_GAP, y = legend;
    for (unsigned k = 0; k < s->count; k++)
        y = vptq_svg_legend_row(NULL, k, true, y, s->lines[k].label);
    vptq_svg_begin(h, y - SVG_LINE + 8, &s->about);
    vptq_svg_axes(h, &p, &s->x, &s->y, e.values, e.count);
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

/* ---- scatter ---- */

typedef struct box {
    double left, top, right, bottom;
} box;

enum { MAX_POINTS = 500 };

/* The position of a point's label or, if that does not fit, of its number in the legend. */
typedef struct label_position {
    double x, y;
    unsigned number; /* 0 = the label itself */
    bool left_out;   /* the number does not fit either: only the legend has it */
} label_position;

typedef struct label_list {
    label_position positions[MAX_POINTS]; /* of the points that are shown */
    box boxes[2 * MAX_POINTS];            /* the areas of marks and labels so far */
    size_t count;
} label_list;

static bool overlaps(const box *a, const box *b)
{
    return a->left < b->right && b->left < a->right && a->top < b->bottom && b->top < a->bottom;
}

/* Reserves the box of a text of that width whose base line begins at (left, base); false if it
 * is not free or leaves the area. */
static bool reserve(label_list *c, const box *area, double left, double base, double width)
{
    const box b = {left, base - 11, left + width, base + 4};
    if (b.left < area->left || b.right > area->right || b.top < area->top ||
        b.bottom > area->bottom)
        return false;
    for (size_t k = 0; k < c->count; k++)
        if (overlaps(&b, &c->boxes[k]))
            return false;
    c->boxes[c->count++] = b;
    return true;
}

/* Finds a free position for a text of that width next to (x, y) or, with `distant`, up to eight
 * lines above or below.  Sets *at_x, *at_y to the left end of its base line. */
static bool find_position(label_list *c, const box *area, double x, double y, double width,
                          bool distant, double *at_x, double *at_y)
{
    static const double offsets[][2] = {
        /* x as a share of the width, plus a gap of 9; y of the base line */
        {0, 4},      {-1, 4},     {-0.5, -9},   {-0.5, 19},   {0, -7},     {-1, -7},
        {0, 16},     {-1, 16},    {-0.5, -22},  {-0.5, 32},   {-0.15, -9}, {-0.85, -9},
        {-0.15, 19}, {-0.85, 19}, {-0.85, -22}, {-0.15, -22}, {-0.85, 32}, {-0.15, 32}};
    static const double shifts[] = {0, -20, 20};
    enum { FIRST_LINE = 2, END_LINE = 9, LINE = 13 };
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        const double share = offsets[i][0], gap = share == 0 ? 9 : share == -1 ? -9 : 0;
        *at_x = x + gap + share * width;
        *at_y = y + offsets[i][1];
        if (reserve(c, area, *at_x, *at_y, width))
            return true;
    }
    for (int line = FIRST_LINE; line < END_LINE && distant; line++)
        for (int side = 0; side < 6; side++) { /* above and below, centred, left and right */
            *at_x = x - width / 2 + shifts[side / 2];
            *at_y = y + (side % 2 ? 19 + line * LINE : -9 - line * LINE);
            if (reserve(c, area, *at_x, *at_y, width))
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

static void position_labels(const vptq_svg_scatter_spec *s, const svg_plot *p, label_list *c)
{
    const box area = {p->left + 2, p->top, SVG_WIDTH - 2, p->bottom - 2};
    unsigned numbers = 0;
    c->count = 0;
    for (size_t i = 0; i < s->count; i++)
        if (is_shown(s, i)) {
            double x = vptq_svg_at(&p->x, s->points[i].x),
                   y = vptq_svg_at(&p->y, s->points[i].y);
            c->boxes[c->count++] = (box){x - 6, y - 6, x + 6, y + 6};
        }
    for (size_t i = 0; i < s->count; i++) {
        if (!is_shown(s, i))
            continue;
        label_position *at = &c->positions[i];
        *at = (label_position){.number = 0};
        double x = vptq_svg_at(&p->x, s->points[i].x), y = vptq_svg_at(&p->y, s->points[i].y);
        const char *label = s->points[i].label;
        if (find_position(c, &area, x, y, vptq_svg_width(label, strlen(label), SVG_SMALL),
                          false, &at->x, &at->y))
            continue;
        char text[16];
        at->number = ++numbers;
        snprintf(text, sizeof text, "%u", numbers);
        at->left_out =
            !find_position(c, &area, x, y, vptq_svg_width(text, strlen(text), SVG_SMALL), true,
                           &at->x, &at->y);
    }
}

static bool has_points(const vptq_svg_scatter_spec *s, unsigned series)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->points[i].series == series && is_shown(s, i))
            return true;
    return false;
}

static double scatter_legend(vptq_html *h, const vptq_svg_scatter_spec *s,
                             const label_position *positions, double y)
{
    for (unsigned k = 0; k < s->series_count; k++)
        if (has_points(s, k))
            y = vptq_svg_legend_row(h, k, false, y, s->series[k]);
    for (size_t i = 0; i < s->count; i++)
        if (is_shown(s, i) && positions[i].number) {
            char text[1100];
            snprintf(text, sizeof text, "%u  %.1024s", positions[i].number, s->points[i].label);
            y = vptq_svg_legend_row(h, s->points[i].series, false, y, text);
        }
    return y;
}

static void draw_points(vptq_html *h, const vptq_svg_scatter_spec *s, const svg_plot *p,
                        const label_position *positions)
{
    for (size_t i = 0; i < s->count; i++) {
        char text[16];
        if (!is_shown(s, i))
            continue;
        vptq_svg_mark(h, s->points[i].series, vptq_svg_at(&p->x, s->points[i].x),
                      vptq_svg_at(&p->y, s->points[i].y));
        if (positions[i].left_out)
            continue;
        snprintf(text, sizeof text, "%u", positions[i].number);
        vptq_svg_text(h, positions[i].x, positions[i].y, SVG_SMALL, "start", "halo",
                      positions[i].number ? text : s->points[i].label);
    }
}

void vptq_svg_scatter(vptq_html *h, const vptq_svg_scatter_spec *s)
{
    extent e = no_extent;
    for (size_t i = 0; i < s->count; i++)
        if (is_shown(s, i)) {
            vptq_svg_widen(e.x, s->points[i].x, s->x.log);
            vptq_svg_widen(e.y, s->points[i].y, s->y.log);
            add_value(&e, s->points[i].x);
        }
    if (is_empty(h, &e, &s->about))
        return;
    label_list *c = vptq_mem_alloc(h->e.buf->mem, 1, sizeof *c, h->e.err);
    if (!c) {
        h->e.st = h->e.st ? h->e.st : VPTQ_E_NOMEM;
        return;
    }
    svg_plot p = vptq_svg_plan(&s->x, &s->y, e.x, e.y, TOP, 290);
    position_labels(s, &p, c);
    double legend = p.bottom + SVG_BELOW + LEGEND_GAP;
    vptq_svg_begin(h, scatter_legend(NULL, s, c->positions, legend) - SVG_LINE + 8, &s->about);
    vptq_svg_axes(h, &p, &s->x, &s->y, e.values, e.count);
    if (s->frontier)
        draw_frontier(h, s, &p);
    draw_points(h, s, &p, c->positions);
    scatter_legend(h, s, c->positions, legend);
    vptq_svg_end(h);
    vptq_mem_free(h->e.buf->mem, c);
}
