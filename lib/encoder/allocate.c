/* Bit allocation by dynamic programming (allocate.h). */
#include "lib/encoder/allocate.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A useful option: more bits and less cost than the one before it. */
typedef struct step {
    uint64_t bits; /* more than the first step */
    double cost;
    uint32_t option;
    uint32_t cells;
} step;

typedef struct plan {
    const vptq_allocate_problem *p;
    size_t *first; /* [count + 1] into steps */
    step *steps;
    uint64_t unit;    /* bits per cell */
    size_t cells;     /* of the budget */
    double *cost;     /* [cells + 1] least cost by cells */
    double *next;     /* [cells + 1] */
    uint16_t *chosen; /* [count][cells + 1] step of the matrix */
} plan;

static uint64_t fewest_bits(const vptq_allocate_problem *p, size_t i)
{
    uint64_t min = UINT64_MAX;
    for (size_t o = p->first[i]; o < p->first[i + 1]; o++)
        min = p->options[o].bits < min ? p->options[o].bits : min;
    return min;
}

uint64_t vptq_allocate_least(const vptq_allocate_problem *p)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < p->count; i++)
        sum += fewest_bits(p, i);
    return sum;
}

uint64_t vptq_allocate_most(const vptq_allocate_problem *p)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < p->count; i++) {
        uint64_t max = 0;
        for (size_t o = p->first[i]; o < p->first[i + 1]; o++)
            max = p->options[o].bits > max ? p->options[o].bits : max;
        sum += max;
    }
    return sum;
}

static int compare_steps(const void *x, const void *y)
{
    const step *a = x, *b = y;
    if (a->bits != b->bits)
        return a->bits < b->bits ? -1 : 1;
    if (a->cost < b->cost || a->cost > b->cost)
        return a->cost < b->cost ? -1 : 1;
    return a->option < b->option ? -1 : a->option > b->option;
}

/* Writes the steps of matrix i to `s`; returns their number. */
static size_t make_steps(const vptq_allocate_problem *p, size_t i, step *s)
{
    const uint64_t least = fewest_bits(p, i);
    size_t n = p->first[i + 1] - p->first[i], kept = 0;
    for (size_t o = 0; o < n; o++) {
        const vptq_allocate_option *a = &p->options[p->first[i] + o];
        s[o] = (step){.bits = a->bits - least, .cost = a->cost, .option = (uint32_t)o};
    }
    qsort(s, n, sizeof *s, compare_steps);
    for (size_t o = 0; o < n; o++)
        if (kept == 0 || s[o].cost < s[kept - 1].cost)
            s[kept++] = s[o];
    return kept;
}

static vptq_status check(const vptq_allocate_problem *p, vptq_err *err)
{
    for (size_t i = 0; i < p->count; i++) {
        size_t n = p->first[i + 1] - p->first[i];
        if (p->first[i + 1] <= p->first[i] || n > UINT16_MAX)
            return vptq_fail(err, VPTQ_E_ARG, "matrix %zu has %zu options, expected 1 to %d", i,
                             n, UINT16_MAX);
        for (size_t o = p->first[i]; o < p->first[i + 1]; o++)
            if (!isfinite(p->options[o].cost))
                return vptq_fail(err, VPTQ_E_NUMERIC,
                                 "the cost of option %zu of matrix %zu is "
                                 "not finite",
                                 o - p->first[i], i);
    }
    return VPTQ_OK;
}

/* Makes the steps, counts their cells and allocates the tables. */
static vptq_status prepare(plan *a, uint64_t budget, vptq_arena *arena, vptq_err *err)
{
    const vptq_allocate_problem *p = a->p;
    uint64_t range = 0, max_cells = 0, left = budget - vptq_allocate_least(p);
    a->first = vptq_arena_alloc(arena, p->count + 1, sizeof *a->first, err);
    a->steps = vptq_arena_alloc(arena, p->first[p->count], sizeof *a->steps, err);
    if (!a->first || !a->steps)
        return VPTQ_E_NOMEM;
    a->first[0] = 0;
    for (size_t i = 0; i < p->count; i++) {
        a->first[i + 1] = a->first[i] + make_steps(p, i, a->steps + a->first[i]);
        range += a->steps[a->first[i + 1] - 1].bits;
    }
    a->unit = range / VPTQ_ALLOCATE_CELLS + 1;
    for (size_t i = 0; i < p->count; i++) {
        for (size_t s = a->first[i]; s < a->first[i + 1]; s++)
            a->steps[s].cells = (uint32_t)((a->steps[s].bits + a->unit - 1) / a->unit);
        max_cells += a->steps[a->first[i + 1] - 1].cells;
    }
    a->cells = (size_t)(left / a->unit < max_cells ? left / a->unit : max_cells);
    a->cost = vptq_arena_zalloc(arena, a->cells + 1, sizeof *a->cost, err);
    a->next = vptq_arena_alloc(arena, a->cells + 1, sizeof *a->next, err);
    a->chosen = vptq_arena_zalloc(arena, p->count, (a->cells + 1) * sizeof *a->chosen, err);
    return a->cost && a->next && a->chosen ? VPTQ_OK : VPTQ_E_NOMEM;
}

/* Updates the least costs with matrix i. */
static void add_matrix(plan *a, size_t i)
{
    const step *s = a->steps + a->first[i];
    const size_t n = a->first[i + 1] - a->first[i];
    uint16_t *chosen = a->chosen + i * (a->cells + 1);
    for (size_t c = 0; c <= a->cells; c++)
        a->next[c] = a->cost[c] + s[0].cost;
    for (size_t o = 1; o < n; o++)
        for (size_t c = s[o].cells; c <= a->cells; c++) {
            double cost = a->cost[c - s[o].cells] + s[o].cost;
            if (cost < a->next[c]) {
                a->next[c] = cost;
                chosen[c] = (uint16_t)o;
            }
        }
    double *old = a->cost;
    a->cost = a->next;
    a->next = old;
}

vptq_status vptq_allocate(const vptq_allocate_problem *p, uint64_t budget, vptq_mem *mem,
                          size_t *choice, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    plan a = {.p = p};
    vptq_arena arena;
    vptq_arena_init(&arena, mem);
    VPTQ_TRY(check(p, err));
    if (budget < vptq_allocate_least(p))
        VPTQ_TRY(vptq_fail(err, VPTQ_E_ARG,
                           "a budget of %" PRIu64
                           " bits is below the smallest possible, %" PRIu64,
                           budget, vptq_allocate_least(p)));
    VPTQ_TRY(prepare(&a, budget, &arena, err));
    for (size_t i = 0; i < p->count; i++)
        add_matrix(&a, i);
    size_t left = a.cells;
    for (size_t i = p->count; i-- > 0;) {
        const step *s = &a.steps[a.first[i] + a.chosen[i * (a.cells + 1) + left]];
        choice[i] = s->option;
        left -= s->cells;
    }
out:
    vptq_arena_release(&arena);
    return st;
}
