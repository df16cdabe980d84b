/* Writes the parts of an HTML page, and its style sheet. */
#include "lib/report/html.h"

/* The eight series have the hues of Okabe and Ito in their order, darkened to a contrast of 3
 * with the light background and lightened for the dark one; they also differ by mark and dash.
 * Text in the page's colour is readable on the heat colour at any strength.  Paper has the
 * light colours. */
static const char style[] =
    ":root{color-scheme:light dark;--bg:#fff;--panel:#f6f7f9;--fg:#1b1f24;--soft:#57606a;"
    "--line:#d0d7de;--grid:#e4e8ec;--link:#0b5cad;--heat:#f59331;--s0:#0072b2;--s1:#c44e00;"
    "--s2:#00805c;--s3:#9b4a8c;--s4:#8a6500;--s5:#2d7fb8;--s6:#b3364b;--s7:#4d4d4d}\n"
    "@media screen and "
    "(prefers-color-scheme:dark){:root{--bg:#14171b;--panel:#1c2026;--fg:#e6e9ed;"
    "--soft:#a3adb8;--line:#39414b;--grid:#2a3038;--link:#7cb8f0;--heat:#a8480f;--s0:#56b4e9;"
    "--s1:#ff9350;--s2:#35c49b;--s3:#e39aca;--s4:#e8bf4a;--s5:#9cc9ff;--s6:#ff8a97;"
    "--s7:#c4c9cf}}\n"
    "*{box-sizing:border-box}\n"
    "html{-webkit-text-size-adjust:100%;text-size-adjust:100%}\n"
    "body{margin:0 auto;padding:1.5rem 1rem 4rem;max-width:76rem;background:var(--bg);"
    "color:var(--fg);font:1rem/1.55 system-ui,-apple-system,\"Segoe UI\",Roboto,\"Helvetica "
    "Neue\",\"Noto Sans\",Arial,sans-serif;overflow-wrap:break-word}\n"
    "h1{font-size:1.7rem;line-height:1.2;margin:0 0 .4rem}\n"
    "h2{font-size:1.3rem;line-height:1.3;margin:2.8rem 0 .6rem;padding-top:.9rem;"
    "border-top:1px solid var(--line)}\n"
    "h3{font-size:1.05rem;margin:1.8rem 0 .4rem}\n"
    "p,ul{max-width:46rem;margin:.5rem 0 1rem}\n"
    ".lead{color:var(--soft);margin-top:0}\n"
    ".note{color:var(--soft);font-size:.875rem;margin:.4rem 0}\n"
    "a{color:var(--link)}\n"
    "nav ul{display:flex;flex-wrap:wrap;gap:.25rem 1.1rem;list-style:none;padding:0;"
    "max-width:none}\n"
    ".facts{display:flex;flex-wrap:wrap;gap:.75rem;margin:1.2rem 0;padding:0;list-style:none;"
    "max-width:none}\n"
    ".facts li{background:var(--panel);border:1px solid var(--line);border-radius:.5rem;"
    "padding:.6rem .9rem;min-width:8rem}\n"
    ".facts b{display:block;font-size:1.35rem;line-height:1.25;"
    "font-variant-numeric:tabular-nums}\n"
    ".facts span{color:var(--soft);font-size:.85rem}\n"
    ".scroll{overflow-x:auto;margin:1rem 0;border:1px solid var(--line);border-radius:.5rem}\n"
    ".scroll:focus-visible,summary:focus-visible,a:focus-visible{outline:2px solid "
    "var(--link);outline-offset:2px}\n"
    "table{border-collapse:collapse;width:100%;font-size:.875rem;line-height:1.4;"
    "font-variant-numeric:tabular-nums}\n"
    "caption{text-align:left;font-weight:600;padding:.6rem .75rem;background:var(--panel)}\n"
    "th,td{padding:.4rem .75rem;text-align:left;vertical-align:top;"
    "border-top:1px solid var(--grid)}\n"
    "thead th{background:var(--panel);font-weight:600;vertical-align:bottom;border-top:0;"
    "border-bottom:1px solid var(--line)}\n"
    "td:not(.n){min-width:8rem}\n"
    "th.n,td.n{text-align:right;white-space:nowrap}\n"
    "thead th.n{white-space:normal}\n"
    "tbody th{font-weight:500;min-width:min(14rem,38vw);overflow-wrap:anywhere;"
    "position:sticky;left:0;background:var(--bg)}\n"
    "tbody .s{min-width:0;white-space:nowrap}\n"
    "tbody tr:hover>*{background:var(--panel)}\n"
    ".figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,21rem),1fr));"
    "gap:1rem;margin:1rem 0;align-items:start}\n"
    "figure{margin:0;padding:.9rem;border:1px solid var(--line);border-radius:.5rem;"
    "min-width:0}\n"
    "figcaption{font-weight:600;font-size:.9rem;margin-bottom:.5rem}\n"
    "svg{display:block;width:100%;max-width:27rem;height:auto;margin:0 auto}\n"
    "svg text{fill:var(--fg);font-family:inherit;font-variant-numeric:tabular-nums}\n"
    "svg .soft{fill:var(--soft)}\n"
    "svg .grid{stroke:var(--grid);stroke-width:1;fill:none}\n"
    "svg .axis{stroke:var(--soft);stroke-width:1;fill:none}\n"
    "svg .even{stroke:var(--fg);stroke-width:1;stroke-dasharray:4 3;fill:none}\n"
    "svg .whisker{stroke:var(--fg);stroke-width:1.4;fill:none}\n"
    "svg .under{stroke:var(--bg);stroke-width:4;fill:none}\n"
    "svg .halo{paint-order:stroke;stroke:var(--bg);stroke-width:3px;stroke-linejoin:round}\n"
    "details{margin:1rem 0}\n"
    "summary{cursor:pointer;font-weight:600}\n"
    "@media(max-width:30rem){body{padding:1rem .75rem 3rem}figure{padding:.6rem}"
    "th,td{padding:.35rem .5rem}}\n"
    "@page{margin:12mm}\n"
    "@media print{html{font-size:10pt}body{max-width:none;padding:0}"
    ".scroll{overflow:visible}nav{display:none}"
    "table{font-size:.75rem}table:has(th:nth-child(12)){font-size:.6rem}"
    "th,td{padding:.25rem .35rem}td:not(.n),tbody th{min-width:0}tbody "
    "th{position:static;background:none}"
    "h2,h3,caption{break-after:avoid}.note{break-before:avoid}"
    "figure,tr,li,.scroll{break-inside:avoid}}\n";

static void emit_series_styles(vptq_emit *e)
{
    static const char *const dashes[] = {"none", "6 3",     "2 3", "8 3 2 3",
                                         "10 4", "4 2 1 2", "1 2", "12 3 3 3"};
    for (int i = 0; i < 8; i++)
        vptq_emit_format(e,
                         ".f%d{fill:var(--s%d)}.l%d{stroke:var(--s%d);fill:none;"
                         "stroke-width:2;stroke-dasharray:%s}.m%d{stroke:var(--s%d);"
                         "stroke-width:2;fill:none}\n",
                         i, i, i, i, dashes[i], i, i);
}

static void emit_element(vptq_html *h, const char *open, const char *text, const char *close)
{
    vptq_emit_text(&h->e, open);
    vptq_emit_xml(&h->e, text);
    vptq_emit_text(&h->e, close);
}

void vptq_html_begin(vptq_html *h, vptq_buf *out, vptq_err *err, const char *title,
                     const char *lead)
{
    *h = (vptq_html){.e = {.buf = out, .err = err}};
    vptq_emit_text(&h->e, "<!doctype html>\n<html lang=\"en\">\n<head>\n"
                          "<meta charset=\"utf-8\">\n"
                          "<meta name=\"viewport\" content=\"width=device-width, "
                          "initial-scale=1\">\n");
    emit_element(h, "<title>", title, "</title>\n<style>\n");
    vptq_emit_text(&h->e, style);
    emit_series_styles(&h->e);
    emit_element(h, "</style>\n</head>\n<body>\n<header>\n<h1>", title, "</h1>\n");
    if (lead)
        emit_element(h, "<p class=\"lead\">", lead, "</p>\n");
    vptq_emit_text(&h->e, "</header>\n<main>\n");
}

vptq_status vptq_html_end(vptq_html *h)
{
    vptq_emit_text(&h->e, "</main>\n</body>\n</html>\n");
    return h->e.st;
}

void vptq_html_heading(vptq_html *h, int level, const char *id, const char *text)
{
    vptq_emit_format(&h->e, "<h%d", level);
    if (id)
        vptq_emit_format(&h->e, " id=\"%s\"", id);
    emit_element(h, ">", text, "");
    vptq_emit_format(&h->e, "</h%d>\n", level);
}

void vptq_html_links_begin(vptq_html *h, const char *label)
{
    emit_element(h, "<nav aria-label=\"", label, "\">\n<ul>\n");
}

void vptq_html_link(vptq_html *h, const char *id, const char *text)
{
    vptq_emit_format(&h->e, "<li><a href=\"#%s\">", id);
    emit_element(h, "", text, "</a></li>\n");
}

void vptq_html_links_end(vptq_html *h)
{
    vptq_emit_text(&h->e, "</ul>\n</nav>\n");
}

void vptq_html_paragraph(vptq_html *h, const char *text)
{
    emit_element(h, "<p>", text, "</p>\n");
}

void vptq_html_table(vptq_html *h, const vptq_table *t)
{
    vptq_table_emit(t, VPTQ_FORMAT_HTML, &h->e);
}

void vptq_html_facts(vptq_html *h, const vptq_html_fact *facts, size_t count)
{
    vptq_emit_text(&h->e, "<ul class=\"facts\">\n");
    for (size_t i = 0; i < count; i++) {
        emit_element(h, "<li><b>", facts[i].value, "</b> ");
        emit_element(h, "<span>", facts[i].name, "</span></li>\n");
    }
    vptq_emit_text(&h->e, "</ul>\n");
}

void vptq_html_figures_begin(vptq_html *h)
{
    vptq_emit_text(&h->e, "<div class=\"figures\">\n");
}

void vptq_html_figures_end(vptq_html *h)
{
    vptq_emit_text(&h->e, "</div>\n");
}

void vptq_html_details_begin(vptq_html *h, const char *summary)
{
    emit_element(h, "<details>\n<summary>", summary, "</summary>\n");
}

void vptq_html_details_end(vptq_html *h)
{
    vptq_emit_text(&h->e, "</details>\n");
}
