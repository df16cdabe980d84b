/* What the pictures share: the canvas, scales, ticks, texts. */
#ifndef VPTQ_REPORT_SVG_INTERNAL_H
#define VPTQ_REPORT_SVG_INTERNAL_H

#include "lib/report/svg.h"

enum { SVG_WIDTH = 380, SVG_FONT = 13, SVG_SMALL = 12, SVG_LINE = 17 };

typedef struct svg_scale {
    double low, high; /* values at `from` and `to` */
    double from, to;  /* positions */
    bool log;
} svg_scale;
double vptq_svg_at(const svg_scale *s, double value);

/* <svg> with title and description, and its end. */
void vptq_svg_begin(vptq_html *h, double height, const char *title, const char *description);
void vptq_svg_end(vptq_html *h);

/* anchor: "start", "middle", "end"; class may be NULL. */
void vptq_svg_text(vptq_html *h, double x, double y, int size, const char *anchor,
                   const char *class, const char *text);
void vptq_svg_line_from(vptq_html *h, const char *class, double x1, double y1, double x2,
                        double y2);
/* The mark of a series around (x, y). */
void vptq_svg_mark(vptq_html *h, unsigned series, double x, double y);
/* Marks of series with their names, from y on, wrapped; returns the y below.  With h NULL only
 * measures. */
double vptq_svg_legend_row(vptq_html *h, unsigned series, bool line, double y,
                           const char *text);

/* Estimated width of a text in this size. */
double vptq_svg_width(const char *text, size_t bytes, int size);
/* How many bytes of `text` go on a line of that width: up to behind the last of " _-/.,", or as
 * many characters as fit, at least one; all of it where it fits. */
size_t vptq_svg_fit(const char *text, int size, double width);

/* "0.25", "16000": the fewest digits (up to 6) that show the value. */
void vptq_svg_number(char text[32], double value);

/* The two axes of a plot area, its grid and the titles. */
typedef struct svg_plot {
    svg_scale x, y;
    double left, right, top, bottom;
} svg_plot;
/* Positions for values x in [x0, x1] and y in [y0, y1]; the area's left edge leaves room for
 * the numbers of the y axis. */
svg_plot vptq_svg_plan(const vptq_svg_axis *x, const vptq_svg_axis *y, const double range_x[2],
                       const double range_y[2], double top, double height);
/* `values` [n]: where ticks of an axis with at_values go, rising. */
void vptq_svg_axes(vptq_html *h, const svg_plot *p, const vptq_svg_axis *x,
                   const vptq_svg_axis *y, const double *values, size_t n);
/* Below the area: numbers and title of the x axis. */
enum { SVG_BELOW = 42 };

/* Widens range to hold v, where it is a value that the axis can show. */
bool vptq_svg_shown(double v, bool log);
void vptq_svg_widen(double range[2], double v, bool log);

#endif
