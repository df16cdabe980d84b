/* Lists what is suspicious about the runs of a report: repeated, missing and misplaced ones. */
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
    vptq_buf buf;
    size_t count;
} list;

static vptq_status add_text(list *l, vptq_err *err, const char *text, const char *more)
{
    vptq_status st = VPTQ_OK;
    if (l->count < MAX_LISTED)
        st = vptq_buf_printf(&l->buf, err, "%s%s%s", l->count ? ", " : "", text, more);
    l->count++;
    return st;
}

/* Sets *out to the list as a text of the report, NULL if it is empty, and empties it. */
static vptq_status take_list(list *l, vptq_report *r, const char **out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    *out = NULL;
    if (l->count > MAX_LISTED)
        st = vptq_buf_printf(&l->buf, err, " and %zu more", l->count - MAX_LISTED);
    if (!st && l->count && !(*out = vptq_arena_strdup(&r->arena, l->buf.data, err)))
        st = VPTQ_E_NOMEM;
    vptq_buf_clear(&l->buf);
    l->count = 0;
    return st;
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

static vptq_status list_repeated(vptq_report *r, vptq_report_group *g, list *l, vptq_err *err)
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
            VPTQ_CHECK(add_text(l, err, short_name(g, name), times));
        }
    }
    return take_list(l, r, &g->repeated, err);
}

static vptq_status list_missing(vptq_report *r, vptq_report_group *g, unsigned last, list *l,
                                vptq_err *err)
{
    bool seen[MAX_RUN_NUMBER + 1] = {false};
    for (size_t i = 0; i < g->run_count; i++)
        seen[run_number(g->runs[i]->run_name)] = true;
    for (unsigned n = 1; n <= last && !seen[0]; n++)
        if (!seen[n]) {
            char text[32];
            snprintf(text, sizeof text, "run%u", n);
            VPTQ_CHECK(add_text(l, err, text, ""));
        }
    VPTQ_CHECK(take_list(l, r, &g->missing, err));
    for (size_t i = 0; i < g->run_count; i++) {
        const char *name = g->runs[i]->run_name;
        if (name[vptq_run_name_stem(name)] && short_name(g, name) == name)
            VPTQ_CHECK(add_text(l, err, name, ""));
    }
    return take_list(l, r, &g->elsewhere, err);
}

static vptq_status list_absent(vptq_report *r, vptq_report_config *c, list *l, vptq_err *err)
{
    for (size_t m = 0; m < r->model_count; m++) {
        bool present = false;
        for (size_t i = 0; i < c->count; i++)
            present |= r->groups[c->first + i].model_index == m;
        if (!present)
            VPTQ_CHECK(add_text(l, err, r->models[m].name, ""));
    }
    return take_list(l, r, &c->absent, err);
}

vptq_status vptq_report_remark(vptq_report *r, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    unsigned last = 0;
    list l = {.count = 0};
    vptq_buf_init(&l.buf, r->arena.mem);
    for (size_t i = 0; i < r->group_count; i++)
        for (size_t k = 0; k < r->groups[i].run_count; k++) {
            unsigned n = run_number(r->groups[i].runs[k]->run_name);
            last = n > last ? n : last;
        }
    for (size_t i = 0; i < r->group_count; i++) {
        VPTQ_TRY(list_repeated(r, &r->groups[i], &l, err));
        VPTQ_TRY(list_missing(r, &r->groups[i], last, &l, err));
    }
    for (size_t i = 0; i < r->config_count; i++)
        VPTQ_TRY(list_absent(r, &r->configs[i], &l, err));
out:
    vptq_buf_release(&l.buf);
    return st;
}
