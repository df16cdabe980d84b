/* Beam search over the codes of all rows (aqlm_state.h; Vahe1994/AQLM, beam_search_xtx.py).
 *
 * A row is taken through its vectors in a random order, and through the codebooks of a vector
 * in a random order, the same for all rows.  Each of up to `beam` hypotheses of the row has
 * every entry tried in place of its present one; those with the smallest losses are the next
 * hypotheses.  With G = E H of a hypothesis without the entry of one codebook, in units of the
 * row's scale, an entry c in vector t adds
 *
 *     2 c . G_t + c H_tt c^T
 *
 * to the loss.  The published code multiplies E by columns of H for every vector; here G is
 * kept up to date, inside a block of vectors as they change, elsewhere by one product per
 * block. */
#include <math.h>
#include <string.h>

#include "lib/backend/mirror.h"
#include "lib/base/cpu.h"
#include "lib/base/parallel.h"
#include "lib/base/rng.h"
#include "lib/uniform/aqlm_simd.h"
#include "lib/uniform/aqlm_state.h"

enum {
    COLUMNS = 128, /* of a block, at least one vector */
    ROWS = 16,     /* that a thread takes through a block together */
    TILE = 2048,   /* entries that stay in the cache for these rows */
    MAX_V = VPTQ_ADDITIVE_MAX_V,
    MAX_STAGES = VPTQ_ADDITIVE_MAX_STAGES
};

/* A hypothesis of a row within a block. */
typedef struct path {
    float loss;      /* compared with the best path when the block began */
    uint32_t root;   /* path before the block */
    float *g, *step; /* [block_ld] E H, and what the block added to Z */
    uint32_t *codes; /* [span, codebooks] */
} path;

/* A hypothesis within a vector. */
typedef struct node {
    float g[MAX_V], step[MAX_V], loss;
    uint32_t parent; /* path */
    uint32_t codes[MAX_STAGES];
} node;

/* Working memory of a thread for one row. */
typedef struct lane {
    size_t num_paths, num_nodes;
    path *paths, *next_paths; /* [beam] */
    node *nodes, *next_nodes; /* [beam] */
    float *y;                 /* [beam, v] */
    float *base;              /* [beam] */
    vptq_aqlm_picks best;
} lane;

typedef struct searching {
    vptq_aqlm_state *a;
    const vptq_aqlm_kernels *loops;
    vptq_arena *scratch;
    size_t beam, span;     /* vectors of a block */
    size_t ld, block_ld;   /* entries of a codebook and columns of a block, padded */
    uint32_t *order;       /* [vectors] */
    uint32_t *stage_order; /* [vectors, codebooks], by place in the order */
    float *columns;        /* [codebooks, v, ld] codebooks */
    lane *lanes;           /* [threads, ROWS] */
    float *kept;           /* [threads, beam, in] rows of eh on their way to other paths */
    /* of all rows between blocks */
    float *eh;           /* [beam, out, in] */
    float *loss;         /* [out, beam] */
    uint32_t *num_paths; /* [out] */
    uint32_t *roots;     /* [blocks, out, beam] */
    uint32_t *chosen;    /* [vectors, out, beam, codebooks], by place */
    /* of the present block */
    size_t block, first, vectors;
    float *norms;     /* [span, codebooks, ld] */
    float *h;         /* [span v, in] rows of H */
    float *h_block;   /* [span v, block_ld] their columns in the block */
    float *h_vectors; /* [span, v, v] and those of each vector */
    float *delta;     /* [beam, out, span v] change of scale * Z */
} searching;

/* ---- one vector ---- */

/* Removes the entry of a codebook from a node: y and the loss without it. */
static void remove_entry(const searching *s, size_t place, size_t stage, lane *l, size_t i)
{
    const size_t v = s->a->s->v;
    node *n = &l->nodes[i];
    const float *h = s->h_vectors + place * v * v;
    const float *entry = s->a->codebooks + (stage * s->a->s->k + n->codes[stage]) * v;
    float dot = 0;
    for (size_t e = 0; e < v; e++) {
        float sum = 0;
        for (size_t j = 0; j < v; j++)
            sum += h[e * v + j] * entry[j];
        n->g[e] -= sum;
        n->step[e] -= entry[e];
        l->y[i * v + e] = 2 * n->g[e];
        dot += l->y[i * v + e] * entry[e];
    }
    l->base[i] = n->loss - dot -
                 s->norms[(place * s->a->s->codebooks + stage) * s->ld + n->codes[stage]];
}

/* Adds an entry to a node without one of that codebook. */
static void add_entry(const searching *s, size_t place, size_t stage, uint32_t code, node *n)
{
    const size_t v = s->a->s->v;
    const float *h = s->h_vectors + place * v * v;
    const float *entry = s->a->codebooks + (stage * s->a->s->k + code) * v;
    for (size_t e = 0; e < v; e++) {
        float sum = 0;
        for (size_t j = 0; j < v; j++)
            sum += h[e * v + j] * entry[j];
        n->g[e] += sum;
        n->step[e] += entry[e];
    }
    n->codes[stage] = code;
}

/* The next nodes from the best entries; without any, which are not numbers then, the same. */
static void take_best(const searching *s, size_t place, size_t stage, lane *l)
{
    for (size_t i = 0; i < l->best.n; i++) {
        const vptq_aqlm_pick *p = &l->best.pick[i];
        l->next_nodes[i] = l->nodes[p->node];
        l->next_nodes[i].loss = p->loss;
        add_entry(s, place, stage, p->code, &l->next_nodes[i]);
    }
    if (!l->best.n) {
        for (size_t i = 0; i < l->num_nodes; i++)
            add_entry(s, place, stage, l->nodes[i].codes[stage], &l->nodes[i]);
        return;
    }
    node *swap = l->nodes;
    l->nodes = l->next_nodes;
    l->next_nodes = swap;
    l->num_nodes = l->best.n;
}

/* Chooses the entry of one codebook for the vector at `place` of the block, in all rows. */
static void search_stage(const searching *s, size_t place, size_t stage, lane *lanes,
                         size_t rows)
{
    const uint32_t v = s->a->s->v, ld = (uint32_t)s->ld;
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < lanes[r].num_nodes; i++)
            remove_entry(s, place, stage, &lanes[r], i);
        lanes[r].best.n = 0;
    }
    for (uint32_t first = 0; first < ld; first += TILE)
        for (size_t r = 0; r < rows; r++)
            for (uint32_t i = 0; i < lanes[r].num_nodes; i++) {
                const vptq_aqlm_scan scan = {
                    .v = v,
                    .first = first,
                    .end = ld - first < TILE ? ld : first + TILE,
                    .node = i,
                    .ld = ld,
                    .columns = s->columns + stage * v * s->ld,
                    .norms = s->norms + (place * s->a->s->codebooks + stage) * s->ld,
                    .y = lanes[r].y + (size_t)i * v,
                    .base = lanes[r].base[i]};
                s->loops->scan(&scan, &lanes[r].best);
            }
    for (size_t r = 0; r < rows; r++)
        take_best(s, place, stage, &lanes[r]);
}

/* Nodes from the paths of a row, with its codes before the search. */
static void open_vector(const searching *s, size_t place, size_t row, lane *l)
{
    const vptq_aqlm_state *a = s->a;
    const size_t v = a->s->v, t = s->order[s->first + place];
    for (size_t i = 0; i < l->num_paths; i++) {
        node *n = &l->nodes[i];
        *n = (node){.loss = l->paths[i].loss, .parent = (uint32_t)i};
        memcpy(n->g, l->paths[i].g + place * v, v * sizeof *n->g);
        for (size_t m = 0; m < a->s->codebooks; m++)
            n->codes[m] = a->codes[(m * a->input->out + row) * a->vectors + t];
    }
    l->num_nodes = l->num_paths;
}

/* Paths from the nodes of a row. */
static void close_vector(const searching *s, size_t place, lane *l)
{
    const size_t v = s->a->s->v, stages = s->a->s->codebooks;
    for (size_t i = 0; i < l->num_nodes; i++) {
        const node *n = &l->nodes[i];
        const path *from = &l->paths[n->parent];
        path *to = &l->next_paths[i];
        to->loss = n->loss - l->nodes[0].loss;
        to->root = from->root;
        memcpy(to->g, from->g, s->block_ld * sizeof *to->g);
        memcpy(to->step, from->step, place * v * sizeof *to->step);
        memcpy(to->step + place * v, n->step, v * sizeof *to->step);
        memcpy(to->codes, from->codes, place * stages * sizeof *to->codes);
        memcpy(to->codes + place * stages, n->codes, stages * sizeof *to->codes);
        s->loops->add(s->block_ld, (uint32_t)v, n->step, s->h_block + place * v * s->block_ld,
                      s->block_ld, to->g);
    }
    path *swap = l->paths;
    l->paths = l->next_paths;
    l->next_paths = swap;
    l->num_paths = l->num_nodes;
}

/* ---- one block ---- */

/* Reads the paths of a row. */
static void load_row(const searching *s, size_t row, lane *l)
{
    const size_t in = s->a->input->in, v = s->a->s->v;
    const float scale = s->a->scales[row], inverse = 1 / scale;
    l->num_paths = s->num_paths[row];
    for (size_t i = 0; i < l->num_paths; i++) {
        const float *eh = s->eh + (i * s->a->input->out + row) * in;
        path *p = &l->paths[i];
        p->loss = s->loss[row * s->beam + i];
        p->root = (uint32_t)i;
        memset(p->g, 0, s->block_ld * sizeof *p->g);
        for (size_t place = 0; place < s->vectors; place++)
            for (size_t e = 0; e < v; e++) {
                const float g = eh[s->order[s->first + place] * v + e];
                p->g[place * v + e] = scale != 0 ? g * inverse : 0;
            }
    }
}

/* Writes the paths of a row: `delta` still belongs to the rows of eh of their roots. */
static void store_row(const searching *s, size_t row, const lane *l)
{
    const size_t out = s->a->input->out, width = s->span * s->a->s->v;
    const size_t stages = s->a->s->codebooks, used = s->vectors * s->a->s->v;
    s->num_paths[row] = (uint32_t)l->num_paths;
    for (size_t i = 0; i < l->num_paths; i++) {
        const path *p = &l->paths[i];
        float *delta = s->delta + (i * out + row) * width;
        s->loss[row * s->beam + i] = p->loss;
        s->roots[(s->block * out + row) * s->beam + i] = p->root;
        for (size_t j = 0; j < used; j++)
            delta[j] = p->step[j] * s->a->scales[row];
        for (size_t place = 0; place < s->vectors; place++)
            memcpy(s->chosen + (((s->first + place) * out + row) * s->beam + i) * stages,
                   p->codes + place * stages, stages * sizeof *p->codes);
    }
}

/* Gives every path of a row the eh of its root. */
static void move_row(const searching *s, size_t row, float *kept)
{
    const size_t out = s->a->input->out, in = s->a->input->in;
    const uint32_t *root = s->roots + (s->block * out + row) * s->beam;
    for (size_t i = 0; i < s->num_paths[row]; i++)
        memcpy(kept + i * in, s->eh + (root[i] * out + row) * in, in * sizeof *kept);
    for (size_t i = 0; i < s->num_paths[row]; i++)
        memcpy(s->eh + (i * out + row) * in, kept + i * in, in * sizeof *kept);
}

static void search_rows(void *arg, size_t begin, size_t end, int thread)
{
    const searching *s = arg;
    const size_t stages = s->a->s->codebooks, rows = end - begin;
    lane *lanes = s->lanes + (size_t)thread * ROWS;
    for (size_t r = 0; r < rows; r++)
        load_row(s, begin + r, &lanes[r]);
    for (size_t place = 0; place < s->vectors; place++) {
        for (size_t r = 0; r < rows; r++)
            open_vector(s, place, begin + r, &lanes[r]);
        for (size_t m = 0; m < stages; m++)
            search_stage(s, place, s->stage_order[(s->first + place) * stages + m], lanes,
                         rows);
        for (size_t r = 0; r < rows; r++)
            close_vector(s, place, &lanes[r]);
    }
    for (size_t r = 0; r < rows; r++)
        store_row(s, begin + r, &lanes[r]);
    for (size_t r = 0; s->beam > 1 && r < rows; r++)
        move_row(s, begin + r, s->kept + (size_t)thread * s->beam * s->a->input->in);
}

/* The parts of H that belong to the vectors of a block. */
static void take_metric(searching *s)
{
    const size_t in = s->a->input->in, v = s->a->s->v;
    memset(s->h_block, 0, s->span * v * s->block_ld * sizeof *s->h_block);
    for (size_t i = 0; i < s->vectors * v; i++) {
        const float *row = s->a->h + (s->order[s->first + i / v] * v + i % v) * in;
        memcpy(s->h + i * in, row, in * sizeof *row);
        for (size_t j = 0; j < s->vectors * v; j++)
            s->h_block[i * s->block_ld + j] = row[s->order[s->first + j / v] * v + j % v];
        memcpy(s->h_vectors + i * v, s->h_block + i * s->block_ld + i / v * v, v * sizeof *row);
    }
}

static void take_norms(void *arg, size_t begin, size_t end, int thread)
{
    const searching *s = arg;
    const size_t v = s->a->s->v, stages = s->a->s->codebooks;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        float *norms = s->norms + i * s->ld;
        s->loops->norms(s->ld, (uint32_t)v, s->columns + i % stages * v * s->ld,
                        s->h_vectors + i / stages * v * v, norms);
        for (size_t c = s->a->s->k; c < s->ld; c++)
            norms[c] = INFINITY;
    }
}

/* delta and h belong to the block; adds delta * h to eh. */
static vptq_status search_block(searching *s, vptq_mirror *m, vptq_gemm_args *update,
                                vptq_err *err)
{
    const vptq_device *dev = s->a->dev;
    const size_t out = s->a->input->out, in = s->a->input->in, left = s->a->vectors - s->first;
    s->vectors = left < s->span ? left : s->span;
    take_metric(s);
    vptq_parallel_for(dev->ctx->threads, s->vectors * s->a->s->codebooks, 1, take_norms, s);
    VPTQ_CHECK(vptq_mirror_pull(m, s->eh, s->beam * out * in * sizeof *s->eh, err));
    vptq_parallel_for(dev->ctx->threads, out, ROWS, search_rows, s);
    update->k = s->vectors * s->a->s->v;
    VPTQ_CHECK(vptq_mirror_push(m, s->h, update->k * in * sizeof *s->h, err));
    VPTQ_CHECK(vptq_mirror_push(m, s->delta,
                                s->beam * out * s->span * s->a->s->v * sizeof *s->delta, err));
    if (s->beam > 1)
        VPTQ_CHECK(vptq_mirror_push(m, s->eh, s->beam * out * in * sizeof *s->eh, err));
    return dev->ops->gemm(dev->state, update, err);
}

/* ---- the search ---- */

/* Draws the order of vectors and, for each, of codebooks. */
static void draw_order(searching *s, uint32_t round)
{
    const vptq_aqlm_settings *set = s->a->s;
    const size_t n = s->a->vectors, stages = set->codebooks;
    const vptq_rng rng = vptq_rng_make(set->seed, set->matrix, round, VPTQ_RNG_ORDER);
    uint64_t drawn = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t j = vptq_rng_below(&rng, drawn++, i + 1);
        s->order[i] = s->order[j];
        s->order[j] = (uint32_t)i;
    }
    for (size_t i = 0; i < n; i++)
        for (size_t m = 0; m < stages; m++) {
            uint32_t *order = s->stage_order + i * stages;
            const size_t j = vptq_rng_below(&rng, drawn++, m + 1);
            order[m] = order[j];
            order[j] = (uint32_t)m;
        }
}

/* Codebooks by columns; the first path of every row has all that is known. */
static void begin(searching *s)
{
    const vptq_aqlm_state *a = s->a;
    const size_t k = a->s->k, v = a->s->v, numbers = (size_t)a->input->out * a->input->in;
    memset(s->columns, 0, a->s->codebooks * v * s->ld * sizeof *s->columns);
    for (size_t i = 0; i < a->s->codebooks * k; i++)
        for (size_t e = 0; e < v; e++)
            s->columns[(i / k * v + e) * s->ld + i % k] = a->codebooks[i * v + e];
    memcpy(s->eh, a->eh, numbers * sizeof *s->eh);
    memset(s->eh + numbers, 0, (s->beam - 1) * numbers * sizeof *s->eh);
    memset(s->delta, 0, s->beam * a->input->out * s->span * v * sizeof *s->delta);
    for (size_t r = 0; r < a->input->out; r++) {
        s->loss[r * s->beam] = 0;
        s->num_paths[r] = 1;
    }
}

/* Codes of the best path of every row, from the last block to the first. */
static void trace_back(const searching *s)
{
    const vptq_aqlm_state *a = s->a;
    const size_t out = a->input->out, stages = a->s->codebooks;
    for (size_t r = 0; r < out; r++) {
        size_t at = 0;
        for (size_t place = a->vectors; place-- > 0;) {
            const uint32_t *codes = s->chosen + ((place * out + r) * s->beam + at) * stages;
            for (size_t m = 0; m < stages; m++)
                a->codes[(m * out + r) * a->vectors + s->order[place]] = codes[m];
            if (place % s->span == 0)
                at = s->roots[(place / s->span * out + r) * s->beam + at];
        }
    }
}

static vptq_status run(searching *s, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t out = s->a->input->out, in = s->a->input->in, width = s->span * s->a->s->v;
    vptq_mirror m = vptq_mirror_of(s->a->dev);
    begin(s);
    vptq_gemm_args update = {
        .m = s->beam * out,
        .n = in,
        .a = vptq_mirror_take(&m, s->delta, s->beam * out, width * sizeof(float), 0),
        .b = vptq_mirror_take(&m, s->h, width, in * sizeof(float), 0),
        .c = vptq_mirror_take(&m, s->eh, s->beam * out, in * sizeof(float), VPTQ_MIRROR_UPLOAD),
        .lda = width,
        .ldb = in,
        .ldc = in,
        .alpha = 1,
        .beta = 1};
    VPTQ_TRY(vptq_mirror_check(&m, err));
    for (; s->first < s->a->vectors; s->first += s->span, s->block++) {
        VPTQ_TRY(vptq_check_cancel(s->a->dev->ctx, err));
        VPTQ_TRY(search_block(s, &m, &update, err));
    }
    trace_back(s);
out:
    return vptq_mirror_end(&m, st, err);
}

/* ---- memory ---- */

/* Allocates `count` elements of `size` bytes unless something failed before. */
static void *take(searching *s, size_t count, size_t size, vptq_status *st, vptq_err *err)
{
    void *p = *st ? NULL : vptq_arena_alloc(s->scratch, count, size, err);
    if (!p)
        *st = VPTQ_E_NOMEM;
    return p;
}

static void allocate_paths(searching *s, path **paths, vptq_status *st, vptq_err *err)
{
    *paths = take(s, s->beam, sizeof **paths, st, err);
    for (size_t i = 0; i < s->beam && !*st; i++)
        (*paths)[i] =
            (path){.g = take(s, s->block_ld, sizeof(float), st, err),
                   .step = take(s, s->block_ld, sizeof(float), st, err),
                   .codes = take(s, s->span, s->a->s->codebooks * sizeof(uint32_t), st, err)};
}

static void allocate_lanes(searching *s, vptq_status *st, vptq_err *err)
{
    const size_t threads = (size_t)s->a->dev->ctx->threads, beam = s->beam;
    s->kept = take(s, threads * beam, s->a->input->in * sizeof(float), st, err);
    s->lanes = take(s, threads * ROWS, sizeof *s->lanes, st, err);
    for (size_t i = 0; i < threads * ROWS && !*st; i++) {
        lane *l = &s->lanes[i];
        allocate_paths(s, &l->paths, st, err);
        allocate_paths(s, &l->next_paths, st, err);
        l->nodes = take(s, beam, sizeof *l->nodes, st, err);
        l->next_nodes = take(s, beam, sizeof *l->next_nodes, st, err);
        l->y = take(s, beam, s->a->s->v * sizeof(float), st, err);
        l->base = take(s, beam, sizeof(float), st, err);
        l->best = (vptq_aqlm_picks){.max = beam,
                                    .pick = take(s, beam, sizeof(vptq_aqlm_pick), st, err)};
    }
}

static vptq_status allocate(searching *s, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_aqlm_state *a = s->a;
    const size_t out = a->input->out, in = a->input->in, v = a->s->v, m = a->s->codebooks;
    const size_t vectors = a->vectors, blocks = (vectors + s->span - 1) / s->span;
    s->order = take(s, vectors, sizeof *s->order, &st, err);
    s->stage_order = take(s, vectors * m, sizeof *s->stage_order, &st, err);
    s->columns = take(s, m * v, s->ld * sizeof(float), &st, err);
    s->eh = take(s, s->beam * out, in * sizeof(float), &st, err);
    s->loss = take(s, out, s->beam * sizeof(float), &st, err);
    s->num_paths = take(s, out, sizeof *s->num_paths, &st, err);
    s->roots = take(s, blocks * out, s->beam * sizeof(uint32_t), &st, err);
    s->chosen = take(s, vectors * out, s->beam * m * sizeof(uint32_t), &st, err);
    s->norms = take(s, s->span * m, s->ld * sizeof(float), &st, err);
    s->h = take(s, s->span * v, in * sizeof(float), &st, err);
    s->h_block = take(s, s->span * v, s->block_ld * sizeof(float), &st, err);
    s->h_vectors = take(s, s->span * v, v * sizeof(float), &st, err);
    s->delta = take(s, s->beam * out, s->span * v * sizeof(float), &st, err);
    allocate_lanes(s, &st, err);
    return st;
}

static size_t padded(size_t n)
{
    return (n + VPTQ_AQLM_PAD - 1) / VPTQ_AQLM_PAD * VPTQ_AQLM_PAD;
}

vptq_status vptq_aqlm_search(vptq_aqlm_state *a, uint32_t round, vptq_err *err)
{
    vptq_arena scratch;
    const size_t most = COLUMNS / a->s->v, span = most < a->vectors ? most : a->vectors;
    vptq_arena_init(&scratch, a->dev->ctx->mem);
    searching s = {.a = a,
                   .loops = VPTQ_SIMD_SELECT(vptq_cpu_simd(), vptq_aqlm_kernels),
                   .scratch = &scratch,
                   .beam = a->s->beam,
                   .span = span,
                   .ld = padded(a->s->k),
                   .block_ld = padded(span * a->s->v)};
    vptq_status st = allocate(&s, err);
    if (!st) {
        draw_order(&s, round);
        st = run(&s, err);
    }
    vptq_arena_release(&scratch);
    return st;
}
