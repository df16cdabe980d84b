/* Checks of HTML pages and their pictures. */
#include "tests/support/vpage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/report/svg_internal.h"
#include "tests/support/vtest.h"

/* ---- pages ---- */

static bool is_void(const char *tag)
{
    return !strcmp(tag, "meta") || !strcmp(tag, "wbr");
}

/* Every element closes in order; attributes are quoted. */
static void check_nesting(const char *page)
{
    char stack[64][16];
    size_t depth = 0;
    for (const char *p = strchr(page, '<'); p; p = strchr(p, '<')) {
        char tag[16];
        const char *end = strchr(p, '>');
        assert_non_null(end);
        if (p[1] == '!') {
            p = end;
            continue;
        }
        bool closing = p[1] == '/';
        assert_int_equal(sscanf(p + 1 + closing, "%15[a-z0-9]", tag), 1);
        p = end;
        if (closing) {
            assert_true(depth > 0);
            assert_string_equal(stack[--depth], tag);
        } else if (end[-1] != '/' && !is_void(tag)) {
            assert_true(depth < 64);
            memcpy(stack[depth++], tag, sizeof tag);
        }
    }
    assert_int_equal(depth, 0);
}

/* The page has no address, script or import; links stay within the page. */
static void check_self_contained(const char *page)
{
    static const char *const outside[] = {"http:", "https:",  "src=",    "@import", "url(",
                                          "<link", "<script", "<iframe", "<img",    "//"};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
        assert_null(strstr(page, outside[i]));
    for (const char *p = strstr(page, "href="); p; p = strstr(p + 1, "href="))
        assert_memory_equal(p, "href=\"#", 7);
}

/* Ids are unique, and every link finds its id. */
static void check_ids(const char *page)
{
    char id[64], want[80];
    for (const char *p = strstr(page, " id=\""); p; p = strstr(p + 1, " id=\"")) {
        assert_int_equal(sscanf(p, " id=\"%63[^\"]", id), 1);
        snprintf(want, sizeof want, " id=\"%s\"", id);
        assert_null(strstr(p + 1, want));
    }
    for (const char *p = strstr(page, "href=\"#"); p; p = strstr(p + 1, "href=\"#")) {
        assert_int_equal(sscanf(p, "href=\"#%63[^\"]", id), 1);
        snprintf(want, sizeof want, " id=\"%s\"", id);
        assert_non_null(strstr(page, want));
    }
}

/* ---- pictures ---- */

typedef struct text_box {
    double left, right, top, bottom;
    char text[256];
} text_box;

/* Copies a text with its entities decoded. */
static void decode_text(char *out, size_t size, const char *s, const char *end)
{
    static const char *const entities[][2] = {
        {"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&#39;", "'"}};
    size_t n = 0;
    while (s < end && n + 1 < size) {
        size_t skip = 0;
        for (size_t i = 0; i < 5 && !skip; i++)
            if (!strncmp(s, entities[i][0], strlen(entities[i][0]))) {
                skip = strlen(entities[i][0]);
                out[n++] = entities[i][1][0];
            }
        if (!skip)
            out[n++] = *s;
        s += skip ? skip : 1;
    }
    out[n] = 0;
}

static const char *read_text(const char *p, text_box *box)
{
    double x, y, width;
    int size;
    char anchor[8] = "start";
    const char *open = strchr(p, '>'), *end = strstr(p, "</text>"),
               *at = strstr(p, "text-anchor=\"");
    assert_int_equal(sscanf(p, "<text x=\"%lf\" y=\"%lf\" font-size=\"%d\"", &x, &y, &size), 3);
    if (at && at < open)
        sscanf(at, "text-anchor=\"%7[a-z]", anchor);
    decode_text(box->text, sizeof box->text, open + 1, end);
    width = vptq_svg_width(box->text, strlen(box->text), size);
    box->left = x - (anchor[0] == 'e' ? width : anchor[0] == 'm' ? width / 2 : 0);
    box->right = box->left + width;
    box->top = y - 0.75 * size;
    box->bottom = y + 0.2 * size;
    return end;
}

/* Returns the number of texts. */
static size_t check_picture(const char *svg)
{
    enum { MAX_TEXTS = 2000 };
    const char *end = strstr(svg, "</svg>");
    text_box *boxes = vtest_alloc(MAX_TEXTS, sizeof *boxes);
    double height;
    size_t n = 0;
    assert_int_equal(sscanf(svg, "<svg viewBox=\"0 0 380 %lf\"", &height), 1);
    assert_non_null(strstr(svg, "<title id="));
    assert_non_null(strstr(svg, "<desc id="));
    for (const char *p = strstr(svg, "<text"); p && p < end; p = strstr(p, "<text")) {
        assert_true(n < MAX_TEXTS);
        text_box *b = &boxes[n];
        p = read_text(p, b);
        if (b->left < -1 || b->right > SVG_WIDTH + 1 || b->top < -1 || b->bottom > height + 1)
            fail_msg("'%s' is cut off: %g to %g, %g to %g of %g", b->text, b->left, b->right,
                     b->top, b->bottom, height);
        for (size_t i = 0; i < n; i++)
            if (b->left < boxes[i].right && boxes[i].left < b->right &&
                b->top < boxes[i].bottom && boxes[i].top < b->bottom)
                fail_msg("'%s' overlaps '%s'", b->text, boxes[i].text);
        n++;
    }
    free(boxes);
    return n;
}

size_t vpage_check(const char *page)
{
    size_t pictures = 0;
    check_nesting(page);
    check_self_contained(page);
    check_ids(page);
    for (const char *p = strstr(page, "<svg"); p; p = strstr(p + 1, "<svg"), pictures++)
        assert_true(check_picture(p) > 0);
    return pictures;
}
