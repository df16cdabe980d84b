/* Chooses which copy of a codebook each lane reads. */
#include "lib/backend/cuda/plan_copies.h"

enum { MAX_PHASE = 16 };

/* The different ranks of a phase and the copy that each reads. */
typedef struct phase {
    const vptq_cuda_table *table;
    uint32_t count, limit;               /* items; capacity of a slot */
    uint32_t rank[MAX_PHASE];            /* [count] */
    uint32_t of_lane[MAX_PHASE];         /* item of a lane; UINT32_MAX: padding */
    uint32_t copy[MAX_PHASE];            /* of each placed item */
    uint32_t load[MAX_PHASE];            /* items in a slot */
    uint32_t item[MAX_PHASE][MAX_PHASE]; /* the items of each slot */
} phase;

static uint32_t slot_of(const phase *p, uint32_t item, uint32_t copy)
{
    return (p->rank[item] + p->table->copy[copy].rotation) & (p->table->slots - 1);
}

static bool holds(const phase *p, uint32_t item, uint32_t copy)
{
    return p->rank[item] < p->table->copy[copy].ranks;
}

static void put(phase *p, uint32_t item, uint32_t copy, uint32_t slot)
{
    p->copy[item] = copy;
    p->item[slot][p->load[slot]++] = item;
}

/* Places an item in a slot with room, or moves an item of a full slot elsewhere (an augmenting
 * path). *seen is the set of slots already visited. Recursion is at fullest `slots` deep. */
static bool place(phase *p, uint32_t item, uint32_t *seen)
{
    uint32_t copies = p->table->copies;
    for (uint32_t c = 0; c < copies; c++) {
        uint32_t s = slot_of(p, item, c);
        if (holds(p, item, c) && p->load[s] < p->limit) {
            put(p, item, c, s);
            return true;
        }
    }
    for (uint32_t c = 0; c < copies; c++) {
        uint32_t s = slot_of(p, item, c);
        if (!holds(p, item, c) || (*seen >> s & 1))
            continue;
        *seen |= 1U << s;
        for (uint32_t i = 0; i < p->load[s]; i++) {
            uint32_t other = p->item[s][i];
            if (!place(p, other, seen))
                continue;
            p->item[s][i] = item; /* takes the place of the item that moved */
            p->copy[item] = c;
            return true;
        }
    }
    return false;
}

static void find_items(phase *p, const uint32_t *ranks)
{
    p->count = 0;
    for (uint32_t l = 0; l < p->table->slots; l++) {
        p->of_lane[l] = UINT32_MAX;
        if (ranks[l] == UINT32_MAX)
            continue;
        uint32_t i = 0;
        while (i < p->count && p->rank[i] != ranks[l])
            i++;
        if (i == p->count)
            p->rank[p->count++] = ranks[l];
        p->of_lane[l] = i;
    }
}

/* Places all items with the smallest possible capacity. Placed items keep a place while others
 * are added, so the capacity only grows when an item finds none. */
static void match(phase *p)
{
    uint32_t slots = p->table->slots;
    for (uint32_t s = 0; s < slots; s++)
        p->load[s] = 0;
    p->limit = 1;
    for (uint32_t i = 0; i < p->count; i++) {
        uint32_t seen = 0;
        while (!place(p, i, &seen)) {
            p->limit++;
            seen = 0;
        }
    }
}

static uint32_t own_rows(const vptq_cuda_table *t, const uint32_t *ranks, uint32_t lane,
                         uint16_t *rows)
{
    uint32_t different[MAX_PHASE][MAX_PHASE], load[MAX_PHASE] = {0}, fullest = 1;
    for (uint32_t l = 0; l < t->slots; l++) {
        uint32_t row =
            vptq_cuda_replica_row(t, ranks[l] == UINT32_MAX ? 0 : ranks[l], lane + l);
        uint32_t s = row & (t->slots - 1), i = 0;
        rows[l] = (uint16_t)row;
        while (i < load[s] && different[s][i] != row)
            i++;
        if (i == load[s])
            different[s][load[s]++] = row;
        fullest = load[s] > fullest ? load[s] : fullest;
    }
    return fullest;
}

uint32_t vptq_cuda_choose_rows(const vptq_cuda_table *t, const uint32_t *ranks, uint32_t lane,
                               uint16_t *rows)
{
    if (t->replicas)
        return own_rows(t, ranks, lane, rows);
    phase p;
    p.table = t;
    find_items(&p, ranks);
    match(&p);
    uint32_t spare = p.count ? vptq_cuda_row(t, p.copy[0], p.rank[0]) : 0;
    for (uint32_t l = 0; l < t->slots; l++) {
        uint32_t i = p.of_lane[l];
        rows[l] = (uint16_t)(i == UINT32_MAX ? spare : vptq_cuda_row(t, p.copy[i], p.rank[i]));
    }
    uint32_t fullest = p.count ? 0 : 1;
    for (uint32_t s = 0; s < t->slots && p.count; s++)
        fullest = p.load[s] > fullest ? p.load[s] : fullest;
    return fullest;
}
