/* Trees are built token by token, one node a token, and written out in preorder: a node whose
 * parent has other children too begins a sequence. */
#include "lib/eval/tasks_plan.h"

#include <string.h>

#include "lib/eval/tasks_encode.h"
#include "lib/model/forward.h"

enum { NONE = 0 }; /* node 0 is above the roots, wanted 0 ends a list */

typedef struct node {
    int32_t token;
    uint32_t parent, child, last_child, next; /* nodes */
    uint32_t wanted;                          /* tokens that are scored behind it */
    uint32_t sequence;
} node;

typedef struct wanted {
    int32_t token;
    uint32_t next;
    uint32_t pair;
} wanted;

typedef struct builder {
    const vptq_task_file *file;
    vptq_task_plan *plan;
    vptq_task_encoder encoder;
    vptq_ids ids;   /* of all requests */
    size_t *begin;  /* [requests + 1] in ids */
    size_t context; /* rows of a request at most */
    node *nodes;    /* of the tree that is being built; 0 is above its roots */
    wanted *wanted; /* from 1 on */
    uint32_t count, wanted_count;
    size_t first; /* in plan->scored_pair, of the tree's first request */
} builder;

/* ---- tokens ---- */

/* The tokens of a request that are left of b->ids behind `from`. */
static vptq_status keep_last(builder *b, size_t from, size_t scored, vptq_err *err)
{
    vptq_ids *ids = &b->ids;
    const size_t n = ids->count - from, most = b->context + 1;
    if (scored > b->context)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "a continuation has %zu tokens, more than the context of %zu", scored,
                         b->context);
    if (n > most) {
        memmove(ids->data + from, ids->data + from + n - most, most * sizeof *ids->data);
        ids->count = from + most;
    }
    return VPTQ_OK;
}

static vptq_status encode_item(builder *b, const vptq_task_item *item, size_t *request,
                               vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    for (uint32_t i = 0; i < item->count; i++, ++*request) {
        const size_t from = b->ids.count;
        size_t scored;
        VPTQ_TRY(vptq_task_encode(&b->encoder, &item->requests[i], &b->ids, &scored, err));
        VPTQ_TRY(keep_last(b, from, scored, err));
        b->begin[*request + 1] = b->ids.count;
        b->plan->scored[*request + 1] = b->plan->scored[*request] + scored;
        const size_t rows = b->ids.count - from - 1;
        b->plan->unshared += rows;
        b->plan->longest = rows > b->plan->longest ? rows : b->plan->longest;
    }
out:
    if (st)
        vptq_err_context(err, "%s: line %u", b->file->path, item->line);
    return st;
}

/* What is needed while building only is in `work`. */
static vptq_status encode_all(builder *b, vptq_arena *arena, vptq_arena *work, vptq_err *err)
{
    vptq_task_plan *p = b->plan;
    size_t request = 0;
    for (size_t i = 0; i < b->file->count; i++)
        p->requests += b->file->items[i].count;
    b->begin = vptq_arena_zalloc(work, p->requests + 1, sizeof *b->begin, err);
    p->scored = vptq_arena_zalloc(arena, p->requests + 1, sizeof *p->scored, err);
    if (!b->begin || !p->scored)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < b->file->count; i++)
        VPTQ_CHECK(encode_item(b, &b->file->items[i], &request, err));
    return vptq_ids_check(b->ids.data, b->ids.count, b->encoder.m->desc->vocab, b->file->path,
                          err);
}

/* ---- a tree ---- */

static void clear_tree(builder *b)
{
    b->nodes[0] = (node){.token = -1};
    b->count = b->wanted_count = 1;
}

static uint32_t child_of(const builder *b, uint32_t at, int32_t token)
{
    uint32_t c = b->nodes[at].child;
    while (c != NONE && b->nodes[c].token != token)
        c = b->nodes[c].next;
    return c;
}

/* How many of n tokens the tree begins with. */
static size_t matching(const builder *b, const int32_t *ids, size_t n)
{
    size_t i = 0;
    for (uint32_t at = 0; i < n && (at = child_of(b, at, ids[i])) != NONE;)
        i++;
    return i;
}

static uint32_t add_child(builder *b, uint32_t at, int32_t token)
{
    uint32_t c = child_of(b, at, token);
    if (c != NONE)
        return c;
    node *parent = &b->nodes[at];
    c = b->count++;
    b->nodes[c] = (node){.token = token, .parent = at};
    if (parent->child == NONE)
        parent->child = c;
    else
        b->nodes[parent->last_child].next = c;
    parent->last_child = c;
    return c;
}

static uint32_t add_wanted(builder *b, uint32_t at, int32_t token)
{
    uint32_t w = b->nodes[at].wanted;
    while (w != NONE && b->wanted[w].token != token)
        w = b->wanted[w].next;
    if (w != NONE)
        return w;
    w = b->wanted_count++;
    b->wanted[w] = (wanted){.token = token, .next = b->nodes[at].wanted};
    b->nodes[at].wanted = w;
    return w;
}

/* A request's tokens but the last are rows; the last `scored` are wanted, each behind the row
 * in front of it. */
static void add_request(builder *b, size_t request)
{
    vptq_task_plan *p = b->plan;
    const int32_t *ids = b->ids.data + b->begin[request];
    const size_t n = b->begin[request + 1] - b->begin[request];
    const size_t scored = p->scored[request + 1] - p->scored[request];
    uint32_t *out = p->scored_pair + p->scored[request];
    uint32_t at = 0;
    for (size_t i = 0; i + 1 < n; i++) {
        at = add_child(b, at, ids[i]);
        if (i + 1 >= n - scored)
            *out++ = add_wanted(b, at, ids[i + 1]);
    }
}

static uint32_t next_in_preorder(const builder *b, uint32_t at)
{
    if (b->nodes[at].child != NONE)
        return b->nodes[at].child;
    while (at != 0 && b->nodes[at].next == NONE)
        at = b->nodes[at].parent;
    return at ? b->nodes[at].next : NONE;
}

static void put_node(builder *b, uint32_t at)
{
    vptq_task_plan *p = b->plan;
    node *n = &b->nodes[at];
    const node *parent = &b->nodes[n->parent];
    if (n->parent == 0 || parent->child != parent->last_child) {
        p->starts[p->sequences] = p->rows;
        p->parents[p->sequences++] = n->parent ? parent->sequence : VPTQ_FORWARD_ROOT;
    }
    n->sequence = (uint32_t)(p->sequences - 1);
    for (uint32_t w = n->wanted; w != NONE; w = b->wanted[w].next) {
        b->wanted[w].pair = (uint32_t)p->pairs;
        p->pair_row[p->pairs] = (uint32_t)p->rows;
        p->pair_target[p->pairs++] = b->wanted[w].token;
    }
    p->ids[p->rows++] = n->token;
}

/* Writes the tree out, which holds the scored tokens up to `last`. */
static void end_tree(builder *b, size_t last)
{
    vptq_task_plan *p = b->plan;
    for (uint32_t at = next_in_preorder(b, 0); at != NONE; at = next_in_preorder(b, at))
        put_node(b, at);
    for (; b->first < last; b->first++)
        p->scored_pair[b->first] = b->wanted[p->scored_pair[b->first]].pair;
    p->starts[p->sequences] = p->rows;
    clear_tree(b);
}

/* ---- all trees ---- */

static vptq_status alloc_plan(builder *b, vptq_arena *arena, vptq_arena *work, vptq_err *err)
{
    vptq_task_plan *p = b->plan;
    const size_t scored = p->scored[p->requests], items = b->file->count;
    if (p->unshared > UINT32_MAX || b->ids.count > UINT32_MAX)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: %llu tokens are too many for one run",
                         b->file->path, (unsigned long long)p->unshared);
    /* a tree of n requests has at most n leaves and n - 1 nodes with several children */
    const size_t sequences = 2 * p->requests;
    p->ids = vptq_arena_alloc(arena, p->unshared, sizeof *p->ids, err);
    p->starts = vptq_arena_alloc(arena, sequences + 1, sizeof *p->starts, err);
    p->parents = vptq_arena_alloc(arena, sequences, sizeof *p->parents, err);
    p->pair_row = vptq_arena_alloc(arena, scored, sizeof *p->pair_row, err);
    p->pair_target = vptq_arena_alloc(arena, scored, sizeof *p->pair_target, err);
    p->scored_pair = vptq_arena_alloc(arena, scored, sizeof *p->scored_pair, err);
    p->item_rows = vptq_arena_alloc(arena, items, sizeof *p->item_rows, err);
    const size_t most = p->longest > VPTQ_FORWARD_ROWS ? p->longest : VPTQ_FORWARD_ROWS;
    b->nodes = vptq_arena_alloc(work, most + 1, sizeof *b->nodes, err);
    /* behind a row every child's token, and the last ones of requests */
    b->wanted =
        vptq_arena_alloc(work, most + 1 + VPTQ_TASK_CHOICES_MAX, sizeof *b->wanted, err);
    return p->ids && p->starts && p->parents && p->pair_row && p->pair_target &&
                   p->scored_pair && p->item_rows && b->nodes && b->wanted
               ? VPTQ_OK
               : VPTQ_E_NOMEM;
}

/* An item is one tree, or as many as keep to VPTQ_FORWARD_ROWS rows. */
static void build_all(builder *b)
{
    vptq_task_plan *p = b->plan;
    size_t request = 0;
    clear_tree(b);
    for (size_t i = 0; i < b->file->count; i++) {
        for (uint32_t k = 0; k < b->file->items[i].count; k++, request++) {
            const int32_t *ids = b->ids.data + b->begin[request];
            const size_t rows = b->begin[request + 1] - b->begin[request] - 1;
            const size_t more = rows - matching(b, ids, rows);
            if (b->count > 1 && b->count - 1 + more > VPTQ_FORWARD_ROWS)
                end_tree(b, p->scored[request]);
            add_request(b, request);
        }
        end_tree(b, p->scored[request]);
        p->item_rows[i] = p->rows;
    }
}

vptq_status vptq_task_plan_make(const vptq_model *m, const vptq_task_file *file, size_t context,
                                vptq_mem *mem, vptq_arena *arena, vptq_task_plan *plan,
                                vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena work;
    builder b = {.file = file, .plan = plan, .context = context};
    *plan = (vptq_task_plan){.requests = 0};
    vptq_arena_init(&work, mem);
    vptq_ids_init(&b.ids, mem);
    VPTQ_TRY(vptq_task_encoder_open(m, mem, &b.encoder, err));
    st = encode_all(&b, arena, &work, err);
    vptq_task_encoder_close(&b.encoder);
    if (st)
        goto out;
    VPTQ_TRY(alloc_plan(&b, arena, &work, err));
    build_all(&b);
out:
    vptq_ids_release(&b.ids);
    vptq_arena_release(&work);
    return st;
}
