/* Internal: canvas, scales, ticks and texts, shared by all pictures. */
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

/* Begins and ends the figure with caption and <svg>. */
void vptq_svg_begin(vptq_html *h, double height, const vptq_svg_about *about);
void vptq_svg_end(vptq_html *h);

/* anchor: "start", "middle", "end"; class may be NULL. */
void vptq_svg_text(vptq_html *h, double x, double y, int size, const char *anchor,
                   const char *class, const char *text);
void vptq_svg_line_from(vptq_html *h, const char *class, double x1, double y1, double x2,
                        double y2);
/* Draws the mark of a series around (x, y). */
void vptq_svg_mark(vptq_html *h, unsigned series, double x, double y);
/* Draws a text in lines of at most `width` from the base line y on and returns the y below.
 * With h NULL it only measures. */
double vptq_svg_wrapped(vptq_html *h, double x, double y, int size, double width,
                        const char *text);
/* Draws the mark of a series and its wrapped name from y on and returns the y below.  With h
 * NULL it only measures. */
double vptq_svg_legend_row(vptq_html *h, unsigned series, bool line, double y,
                           const char *text);

/* Estimated width of a text in this font size. */
double vptq_svg_width(const char *text, size_t bytes, int size);
/* Number of bytes of `text` that go on a line of that width: all if they fit, else up to and
 * including the last of " _-/.,", else as many characters as fit, at least one. */
size_t vptq_svg_fit(const char *text, int size, double width);

/* Formats a value with the fewest digits that show it, up to 6: "0.25", "16000". */
void vptq_svg_number(char text[32], double value);

/* A plot area between two axes. */
typedef struct svg_plot {
    svg_scale x, y;
    double left, right, top, bottom;
} svg_plot;
/* Lays out a plot of the given ranges; the left edge leaves space for the numbers of the y
 * axis. */
svg_plot vptq_svg_plan(const vptq_svg_axis *x, const vptq_svg_axis *y, const double range_x[2],
                       const double range_y[2], double top, double height);
/* Draws grid, numbers and titles.  `values` [n]: ticks of an axis with at_values, sorted. */
void vptq_svg_axes(vptq_html *h, const svg_plot *p, const vptq_svg_axis *x,
                   const vptq_svg_axis *y, const double *values, size_t n);
enum { SVG_BELOW = 42 }; /* height of numbers and title of the x axis, below the area */

/* Whether an axis can show v. */
bool vptq_svg_shown(double v, bool log);
/* Extends the range to v if the axis can show it. */
void vptq_svg_widen(double range[2], double v, bool log);

#endif
