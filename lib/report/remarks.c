/* Lists what is suspicious about the runs of a report: repeated, missing and misplaced ones,
 * and those of other settings. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/report/internal.h"

enum {
    MAX_LISTED = 8,      /* texts in a list; the others are counted */
    MAX_RUN_NUMBER = 100 /* larger numbers do not show which runs are missing */
};

/* The first MAX_LISTED texts, joined with ", ". */
typedef struct list {
    vptq_emit e;
    size_t count;
} list;

static void add_text(list *l, const char *text, const char *more)
{
    if (l->count < MAX_LISTED)
        vptq_emit_format(&l->e, "%s%s%s", l->count ? ", " : "", text, more);
    l->count++;
}

/* Sets *out to the list as a text of the report, NULL if it is empty, and empties it. */
static void take_list(list *l, vptq_report *r, const char **out)
{
    *out = NULL;
    if (l->count > MAX_LISTED)
        vptq_emit_format(&l->e, " and %zu more", l->count - MAX_LISTED);
    if (!l->e.st && l->count &&
        !(*out = vptq_arena_strdup(&r->arena, l->e.buf->data, l->e.err)))
        l->e.st = VPTQ_E_NOMEM;
    vptq_buf_clear(l->e.buf);
    l->count = 0;
}

/* N of "..._runN" up to MAX_RUN_NUMBER, else 0. */
static unsigned run_number(const char *run_name)
{
    size_t stem = vptq_run_name_stem(run_name);
    unsigned long n = run_name[stem] ? strtoul(run_name + stem + 4, NULL, 10) : 0;
    return n <= MAX_RUN_NUMBER ? (unsigned)n : 0;
}

/* "run3" if the rest of the name is the group's, else the whole name. */
static const char *short_name(const vptq_report_group *g, const char *run_name)
{
    size_t stem = vptq_run_name_stem(run_name);
    return run_name[stem] && strncmp(run_name, g->name, stem) == 0 && !g->name[stem]
               ? run_name + stem + 1
               : run_name;
}

static void list_repeated(vptq_report *r, vptq_report_group *g, list *l)
{
    for (size_t i = 0; i < g->run_count; i++) {
        const char *name = g->runs[i]->run_name;
        size_t same = 0, before = 0;
        for (size_t k = 0; k < g->run_count; k++) {
            bool equal = strcmp(g->runs[k]->run_name, name) == 0;
            same += equal;
            before += equal && k < i;
        }
        if (same > 1 && !before) {
            char times[32] = " (twice)";
            if (same > 2)
                snprintf(times, sizeof times, " (%zu times)", same);
            add_text(l, short_name(g, name), times);
        }
    }
    take_list(l, r, &g->repeated);
}

static void list_missing(vptq_report *r, vptq_report_group *g, unsigned last, list *l)
{
    bool seen[MAX_RUN_NUMBER + 1] = {false};
    for (size_t i = 0; i < g->run_count; i++)
        seen[run_number(g->runs[i]->run_name)] = true;
    for (unsigned n = 1; n <= last && !seen[0]; n++)
        if (!seen[n]) {
            char text[32];
            snprintf(text, sizeof text, "run%u", n);
            add_text(l, text, "");
        }
    take_list(l, r, &g->missing);
    for (size_t i = 0; i < g->run_count; i++) {
        const char *name = g->runs[i]->run_name;
        if (name[vptq_run_name_stem(name)] && short_name(g, name) == name)
            add_text(l, name, "");
    }
    take_list(l, r, &g->elsewhere);
}

/* Runs that do not have a setting recorded are left out. */
static void list_mixed(vptq_report *r, vptq_report_group *g, list *l)
{
    for (size_t s = 0; s < VPTQ_RECORD_SETTINGS; s++) {
        const char *first = NULL;
        bool same = true;
        for (size_t i = 0; i < g->run_count; i++) {
            const char *value = g->runs[i]->settings[s];
            same = same && (!value || !first || strcmp(value, first) == 0);
            first = first ? first : value;
        }
        if (!same)
            add_text(l, vptq_record_settings[s], "");
    }
    take_list(l, r, &g->mixed);
}

static void list_absent(vptq_report *r, vptq_report_config *c, list *l)
{
    for (size_t m = 0; m < r->model_count; m++) {
        bool present = false;
        for (size_t i = 0; i < c->count; i++)
            present |= r->groups[c->first + i].model_index == m;
        if (!present)
            add_text(l, r->models[m].name, "");
    }
    take_list(l, r, &c->absent);
}

vptq_status vptq_report_remark(vptq_report *r, vptq_err *err)
{
    unsigned last = 0;
    vptq_buf buf;
    list l = {.e = {.buf = &buf, .err = err}};
    vptq_buf_init(&buf, r->arena.mem);
    for (size_t i = 0; i < r->group_count; i++)
        for (size_t k = 0; k < r->groups[i].run_count; k++) {
            unsigned n = run_number(r->groups[i].runs[k]->run_name);
            last = n > last ? n : last;
        }
    for (size_t i = 0; i < r->group_count; i++) {
        list_repeated(r, &r->groups[i], &l);
        list_missing(r, &r->groups[i], last, &l);
        list_mixed(r, &r->groups[i], &l);
    }
    for (size_t i = 0; i < r->config_count; i++)
        list_absent(r, &r->configs[i], &l);
    vptq_buf_release(&buf);
    return l.e.st;
}
