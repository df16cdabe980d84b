/* Numbers, sizes, ranges and choices from the command line. */
#include "cmd/cli/value.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads digits at *text and advances it past them. */
static bool take_digits(const char **text, uint64_t max, uint64_t *out)
{
    const char *p = *text;
    uint64_t x = 0;
    if (*p < '0' || *p > '9')
        return false;
    for (; *p >= '0' && *p <= '9'; p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        if (x > (max - digit) / 10 || digit > max)
            return false;
        x = x * 10 + digit;
    }
    *text = p;
    *out = x;
    return true;
}

bool vptq_cli_parse_u64(const char *text, uint64_t max, uint64_t *out)
{
    uint64_t x;
    if (!take_digits(&text, max, &x) || *text)
        return false;
    *out = x;
    return true;
}

/* Reads ".DIGITS", up to nine of them, as billionths; 0 if there are none. */
static bool take_billionths(const char **text, uint64_t *out)
{
    uint64_t scale = 1000000000;
    *out = 0;
    if (**text != '.')
        return true;
    for (++*text; **text >= '0' && **text <= '9' && scale > 1; ++*text) {
        scale /= 10;
        *out += (uint64_t)(**text - '0') * scale;
    }
    return scale < 1000000000;
}

bool vptq_cli_parse_size(const char *text, uint64_t *out)
{
    static const char units[] = "KMGT";
    uint64_t x, part;
    if (!take_digits(&text, UINT64_MAX, &x) || !take_billionths(&text, &part))
        return false;
    const char *unit = *text ? strchr(units, toupper((unsigned char)*text)) : NULL;
    unsigned shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;
    if (unit) {
        text++;
        if (!strcmp(text, "iB") || !strcmp(text, "B"))
            text += strlen(text);
    }
    if (*text || x > UINT64_MAX >> shift || (part && !unit))
        return false;
    *out = (x << shift) + (uint64_t)(ldexp((double)part, (int)shift) / 1e9);
    return true;
}

bool vptq_cli_parse_double(const char *text, double *out)
{
    char *end;
    /* strtod alone would accept leading space and hexadecimal digits. */
    if (!*text || strspn(text, "0123456789+-.eE") != strlen(text))
        return false;
    double x = strtod(text, &end);
    if (end == text || *end || !isfinite(x))
        return false;
    *out = x;
    return true;
}

bool vptq_cli_parse_range(const char *text, vptq_cli_range *out)
{
    uint64_t first, last;
    if (!take_digits(&text, UINT32_MAX, &first))
        return false;
    last = first;
    if (*text == '-') {
        text++;
        if (!take_digits(&text, UINT32_MAX, &last))
            return false;
    }
    if (*text || last < first)
        return false;
    *out = (vptq_cli_range){.first = (uint32_t)first, .last = (uint32_t)last};
    return true;
}

bool vptq_cli_parse_choice(const char *text, const char *choices, int *out)
{
    size_t len = strlen(text);
    int n = 0;
    for (const char *p = choices;; n++) {
        size_t item = strcspn(p, "|");
        if (item == len && !memcmp(p, text, len)) {
            *out = n;
            return true;
        }
        if (!p[item])
            return false;
        p += item + 1;
    }
}

void vptq_cli_choice_name(char *text, size_t size, const char *choices, int n)
{
    const char *p = choices;
    for (; n > 0; n--) {
        p += strcspn(p, "|");
        if (*p)
            p++;
    }
    snprintf(text, size, "%.*s", (int)strcspn(p, "|"), p);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Row i of the table has the distances of the first i letters of `name`. */
size_t vptq_cli_distance(const char *word, size_t n, const char *name)
{
    size_t row[3][64];
    const size_t m = strlen(name);
    n = least(n, 63);
    for (size_t j = 0; j <= n; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= m; i++) {
        size_t *now = row[i % 3], *above = row[(i - 1) % 3], *two_above = row[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= n; j++) {
            const bool same = name[i - 1] == word[j - 1];
            now[j] = least(above[j - 1] + !same, 1 + least(above[j], now[j - 1]));
            if (i > 1 && j > 1 && name[i - 1] == word[j - 2] && name[i - 2] == word[j - 1])
                now[j] = least(now[j], two_above[j - 2] + 1);
        }
    }
    return row[m % 3][n];
}
