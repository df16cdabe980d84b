/* Tokens of requests, and the trees in which the requests of an item share common beginnings.
 */
#include "lib/eval/task_plan.h"

#include <string.h>

#include "lib/base/file.h"
#include "lib/eval/task_text.h"
#include "lib/model/forward.h"

/* ---- the tokens of a request ---- */

vptq_status vptq_task_encoder_open(const vptq_model *m, vptq_mem *mem, vptq_task_encoder *e,
                                   vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    bool start = false;
    *e = (vptq_task_encoder){.m = m};
    vptq_buf_init(&e->prefix_text, mem);
    vptq_buf_init(&e->text, mem);
    vptq_ids_init(&e->whole, mem);
    vptq_ids_init(&e->context, mem);
    if (!m->tokenizer)
        return vptq_fail(err, VPTQ_E_ARG, "%s: tasks need a tokenizer, none is given",
                         m->ckpt.path);
    e->prefix = m->vocab.bos >= 0 ? m->vocab.bos : m->vocab.eos;
    if (e->prefix >= 0)
        VPTQ_TRY(vptq_tokenizer_decode(m->tokenizer, &e->prefix, 1, &start, true,
                                       &e->prefix_text, err));
out:
    if (st)
        vptq_task_encoder_close(e);
    return st;
}

void vptq_task_encoder_close(vptq_task_encoder *e)
{
    vptq_buf_release(&e->prefix_text);
    vptq_buf_release(&e->text);
    vptq_ids_release(&e->whole);
    vptq_ids_release(&e->context);
}

/* Special tokens written in the text are recognized.  The tokenizer adds its own unless the
 * text begins with the first of them. */
static unsigned flags_of(const vptq_task_encoder *e, const char *s, size_t n)
{
    const vptq_buf *p = &e->prefix_text;
    const bool there = p->len && n >= p->len && memcmp(s, p->data, p->len) == 0;
    return VPTQ_ENCODE_SPECIAL | (there ? 0 : (unsigned)VPTQ_ENCODE_BOS);
}

/* Encodes the context alone into e->context.  Keeps the last result, because the choices of an
 * item share their context. */
static vptq_status encode_context(vptq_task_encoder *e, vptq_task_text context, vptq_err *err)
{
    if (e->context_of.s == context.s && e->context_of.n == context.n)
        return VPTQ_OK;
    const size_t n = vptq_task_trim_end(context).n;
    e->context.count = 0;
    vptq_status st = vptq_tokenizer_encode(e->m->tokenizer, context.s, n,
                                           flags_of(e, context.s, n), &e->context, err);
    e->context_of = st ? (vptq_task_text){NULL, 0} : context;
    return st;
}

/* Encodes a continuation without a context: after the prefix, unless it begins with it. */
static vptq_status encode_alone(vptq_task_encoder *e, vptq_task_text continuation,
                                vptq_ids *out, size_t *scored, vptq_err *err)
{
    e->whole.count = 0;
    VPTQ_CHECK(vptq_tokenizer_encode(e->m->tokenizer, continuation.s, continuation.n,
                                     VPTQ_ENCODE_SPECIAL, &e->whole, err));
    const bool there = e->whole.count && e->whole.data[0] == e->prefix;
    if (e->prefix < 0)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "a context is empty, and the tokenizer has neither a BOS nor an EOS "
                         "token to replace it");
    if (!there)
        VPTQ_CHECK(vptq_ids_add(out, &e->prefix, 1, err));
    VPTQ_CHECK(vptq_ids_add(out, e->whole.data, e->whole.count, err));
    *scored = e->whole.count - there;
    return VPTQ_OK;
}

/* Encodes context and continuation together: the tokens after as many as the context has alone
 * are the continuation's. */
static vptq_status encode_pair(vptq_task_encoder *e, const vptq_task_request *q, vptq_ids *out,
                               size_t *scored, vptq_err *err)
{
    vptq_buf_clear(&e->text);
    VPTQ_CHECK(vptq_buf_add(&e->text, q->context.s, q->context.n, err));
    VPTQ_CHECK(vptq_buf_add(&e->text, q->continuation.s, q->continuation.n, err));
    e->whole.count = 0;
    VPTQ_CHECK(vptq_tokenizer_encode(e->m->tokenizer, e->text.data, e->text.len,
                                     flags_of(e, e->text.data, e->text.len), &e->whole, err));
    VPTQ_CHECK(encode_context(e, q->context, err));
    const size_t n = e->context.count;
    if (n == 0)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "a context is only white space, for which the tokenizer has no token");
    *scored = e->whole.count > n ? e->whole.count - n : 0;
    VPTQ_CHECK(vptq_ids_add(out, e->context.data, n, err));
    if (*scored)
        VPTQ_CHECK(vptq_ids_add(out, e->whole.data + n, *scored, err));
    return VPTQ_OK;
}

vptq_status vptq_task_encode(vptq_task_encoder *e, const vptq_task_request *q, vptq_ids *out,
                             size_t *scored, vptq_err *err)
{
    vptq_status st = q->context.n ? encode_pair(e, q, out, scored, err)
                                  : encode_alone(e, q->continuation, out, scored, err);
    if (!st && *scored == 0)
        st = vptq_fail(err, VPTQ_E_FORMAT, "a continuation has no token");
    return st;
}

/* ---- trees ---- */

/* A tree is built with one node per token and written in preorder.  A node whose parent has
 * other children begins a sequence. */

enum { NONE = 0 }; /* node 0 is the parent of the roots, wanted 0 ends a list */

typedef struct node {
    int32_t token;
    uint32_t parent, child, last_child, next; /* nodes */
    uint32_t wanted;                          /* list of the tokens scored after it */
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
    size_t *begin;  /* [requests + 1] offset of each request in ids */
    size_t context; /* maximum rows of a request */
    node *nodes;    /* of the current tree */
    wanted *wanted; /* of the current tree, from 1 on */
    uint32_t count, wanted_count;
    size_t first; /* offset of the tree's first request in plan->scored_pair */
} builder;

/* ---- tokens of all requests ---- */

/* Cuts the request that begins at b->ids[from] down to its last context + 1 tokens. */
static vptq_status keep_last(builder *b, size_t from, size_t scored, vptq_err *err)
{
    vptq_ids *ids = &b->ids;
    const size_t n = ids->count - from, max = b->context + 1;
    if (scored > b->context)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "a continuation has %zu tokens, more than the context of %zu", scored,
                         b->context);
    if (n > max) {
        memmove(ids->data + from, ids->data + from + n - max, max * sizeof *ids->data);
        ids->count = from + max;
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

/* Encodes all requests; `work` has what only building needs. */
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
    p->hash = vptq_hash(b->ids.data, b->ids.count * sizeof *b->ids.data, 0);
    p->hash = vptq_hash(b->begin, (request + 1) * sizeof *b->begin, p->hash);
    p->hash = vptq_hash(p->scored, (request + 1) * sizeof *p->scored, p->hash);
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

/* Number of leading tokens of ids [n] that are already in the tree. */
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

/* Adds a request: all of its tokens but the last are rows, and each of the last `scored` ones
 * is wanted after the row before it. */
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

/* Writes the tree to the plan; `last` ends its requests in plan->scored_pair. */
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
    /* a tree of n requests has at most n leaves and n - 1 nodes with more than one child */
    const size_t sequences = 2 * p->requests;
    p->ids = vptq_arena_alloc(arena, p->unshared, sizeof *p->ids, err);
    p->starts = vptq_arena_alloc(arena, sequences + 1, sizeof *p->starts, err);
    p->parents = vptq_arena_alloc(arena, sequences, sizeof *p->parents, err);
    p->pair_row = vptq_arena_alloc(arena, scored, sizeof *p->pair_row, err);
    p->pair_target = vptq_arena_alloc(arena, scored, sizeof *p->pair_target, err);
    p->scored_pair = vptq_arena_alloc(arena, scored, sizeof *p->scored_pair, err);
    p->item_rows = vptq_arena_alloc(arena, items, sizeof *p->item_rows, err);
    const size_t rows = p->longest > VPTQ_FORWARD_ROWS ? p->longest : VPTQ_FORWARD_ROWS;
    b->nodes = vptq_arena_alloc(work, rows + 1, sizeof *b->nodes, err);
    /* every node's token after its parent, and the last token of each request */
    b->wanted =
        vptq_arena_alloc(work, rows + 1 + VPTQ_TASK_CHOICES_MAX, sizeof *b->wanted, err);
    return p->ids && p->starts && p->parents && p->pair_row && p->pair_target &&
                   p->scored_pair && p->item_rows && b->nodes && b->wanted
               ? VPTQ_OK
               : VPTQ_E_NOMEM;
}

/* Builds one tree per item, or several of at most VPTQ_FORWARD_ROWS rows. */
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
