/* Runs the pickle of a PyTorch file on a machine that can only build plain values and tensors.
 */
#include "formats/torch/pickle.h"

#include <string.h>

#include "lib/base/le.h"
#include "lib/base/text.h"

/* The globals that a pickle may name. */
typedef struct known_global {
    const char *name; /* module and name */
    bool is_storage;
    vptq_dtype type;
} known_global;
enum { REBUILD_TENSOR, ORDERED_DICT };
static const known_global globals[] = {
    [REBUILD_TENSOR] = {"torch._utils._rebuild_tensor_v2", false, 0},
    [ORDERED_DICT] = {"collections.OrderedDict", false, 0},
    {"torch.FloatStorage", true, VPTQ_F32},
    {"torch.HalfStorage", true, VPTQ_F16},
    {"torch.BFloat16Storage", true, VPTQ_BF16},
    {"torch.LongStorage", true, VPTQ_I64},
    {"torch.BoolStorage", true, VPTQ_BOOL},
};
enum { GLOBALS = sizeof globals / sizeof globals[0] };

const char *vptq_pickle_storage_name(vptq_dtype type)
{
    for (int i = 0; i < GLOBALS; i++)
        if (globals[i].is_storage && globals[i].type == type)
            return globals[i].name;
    return NULL;
}

typedef struct machine machine;

/* The function of an opcode and its settings. */
typedef struct opcode {
    vptq_status (*run)(machine *m);
    uint32_t n;            /* bytes of its argument, values it takes, or a value */
    vptq_pickle_kind kind; /* of what it makes or fills */
} opcode;

/* Every opcode makes at most one value, and every cell takes one value off the stack, so that
 * the length of the pickle bounds all arrays. */
struct machine {
    const char *path;
    const opcode *op; /* the running one */
    const uint8_t *data;
    size_t size, at, op_at;
    vptq_pickle_value *values; /* value 0 is the mark */
    vptq_pickle_cell *cells;
    uint32_t *stack, *memo; /* memo 0 = empty */
    uint32_t value_count, cell_count, depth, memo_count;
    vptq_err *err;
};

static vptq_status broken(const machine *m, const char *what)
{
    return vptq_fail(m->err, VPTQ_E_FORMAT, "%s: broken pickle at byte %zu: %s", m->path,
                     m->op_at, what);
}

/* ---- bytes ---- */

static const uint8_t *take(machine *m, size_t n)
{
    if (n > m->size - m->at)
        return NULL;
    m->at += n;
    return m->data + m->at - n;
}

static bool take_number(machine *m, unsigned bytes, uint64_t *x)
{
    const uint8_t *p = take(m, bytes);
    if (p)
        *x = vptq_get_le(p, bytes);
    return p != NULL;
}

/* Takes text up to a line feed and skips the line feed. */
static const char *take_line(machine *m, size_t *len)
{
    const uint8_t *p = m->data + m->at, *end = memchr(p, '\n', m->size - m->at);
    if (!end)
        return NULL;
    *len = (size_t)(end - p);
    m->at += *len + 1;
    return (const char *)p;
}

/* ---- stack ---- */

static vptq_status push(machine *m, vptq_pickle_value v)
{
    m->values[++m->value_count] = v;
    m->stack[m->depth++] = m->value_count;
    return VPTQ_OK;
}

static vptq_pickle_value *pop(machine *m)
{
    if (m->depth == 0 || m->stack[m->depth - 1] == 0)
        return NULL;
    return &m->values[m->stack[--m->depth]];
}

/* Finds the stack index after the last mark, which stays on the stack. */
static bool find_mark(const machine *m, uint32_t *first)
{
    uint32_t d = m->depth;
    while (d > 0 && m->stack[d - 1] != 0)
        d--;
    *first = d;
    return d > 0;
}

/* Appends the stack from index `first` on to a container's items. */
static void move_items(machine *m, vptq_pickle_value *to, uint32_t first)
{
    for (uint32_t i = first; i < m->depth; i++) {
        m->cells[++m->cell_count] = (vptq_pickle_cell){m->stack[i], 0};
        if (to->as.items.last)
            m->cells[to->as.items.last].next = m->cell_count;
        else
            to->as.items.first = m->cell_count;
        to->as.items.last = m->cell_count;
        to->as.items.count++;
    }
    m->depth = first;
}

static vptq_status make_tuple(machine *m, uint32_t first, bool has_mark)
{
    vptq_pickle_value v = {.kind = VPTQ_PICKLE_TUPLE};
    move_items(m, &v, first);
    m->depth -= has_mark;
    return push(m, v);
}

static vptq_status make_marked_tuple(machine *m)
{
    uint32_t first;
    if (!find_mark(m, &first))
        return broken(m, "a tuple without a mark");
    return make_tuple(m, first, true);
}

static vptq_status make_short_tuple(machine *m)
{
    const uint32_t n = m->op->n;
    bool enough = m->depth >= n;
    for (uint32_t i = 0; enough && i < n; i++)
        enough = m->stack[m->depth - 1 - i] != 0;
    if (!enough)
        return broken(m, "a tuple of more values than the stack has");
    return make_tuple(m, m->depth - n, false);
}

/* Moves everything after the mark, or with n > 0 the last n values, into the container below.
 */
static vptq_status fill(machine *m)
{
    const uint32_t n = m->op->n;
    const vptq_pickle_kind kind = m->op->kind;
    uint32_t first = m->depth > n ? m->depth - n : 0;
    bool found = n > 0 ? first > 0 : find_mark(m, &first);
    uint32_t below = first - (n == 0);
    for (uint32_t i = first; found && i < m->depth; i++)
        found = m->stack[i] != 0;
    vptq_pickle_value *to = found && below > 0 ? &m->values[m->stack[below - 1]] : NULL;
    if (!to || to->kind != kind || (kind == VPTQ_PICKLE_DICT && (m->depth - first) % 2 != 0))
        return broken(m, "items for a value that is not a list or dictionary");
    move_items(m, to, first);
    m->depth = below;
    return VPTQ_OK;
}

/* BUILD gives an object attributes.  Those of an ordered dictionary, as the versions of modules
 * in a state_dict, are dropped. */
static vptq_status drop_attributes(machine *m)
{
    const vptq_pickle_value *state = pop(m);
    if (!state || state->kind != VPTQ_PICKLE_DICT || m->depth == 0 ||
        m->values[m->stack[m->depth - 1]].kind != VPTQ_PICKLE_DICT)
        return broken(m, "attributes of a value that is not an ordered dictionary");
    return VPTQ_OK;
}

/* ---- memo ---- */

static vptq_status put_memo(machine *m, uint64_t i)
{
    if (i >= m->size || m->depth == 0 || m->stack[m->depth - 1] == 0)
        return broken(m, "nothing to remember, or an index that is too large");
    m->memo[i] = m->stack[m->depth - 1];
    return VPTQ_OK;
}

/* ---- globals ---- */

static vptq_status push_global(machine *m, const char *module, size_t module_len,
                               const char *name, size_t name_len)
{
    for (int i = 0; i < GLOBALS; i++)
        if (strlen(globals[i].name) == module_len + 1 + name_len &&
            memcmp(globals[i].name, module, module_len) == 0 &&
            globals[i].name[module_len] == '.' &&
            memcmp(globals[i].name + module_len + 1, name, name_len) == 0)
            return push(m, (vptq_pickle_value){.kind = VPTQ_PICKLE_GLOBAL, .as.i = i});
    return vptq_fail(m->err, VPTQ_E_UNSUPPORTED,
                     "%s: the pickle needs '%.*s.%.*s', expected dictionaries, numbers and "
                     "tensors of float, half, bfloat16, long or bool",
                     m->path, (int)(module_len < 100 ? module_len : 100), module,
                     (int)(name_len < 100 ? name_len : 100), name);
}

static vptq_status read_global(machine *m)
{
    size_t module_len, name_len;
    const char *module = take_line(m, &module_len);
    const char *name = module ? take_line(m, &name_len) : NULL;
    if (!name)
        return broken(m, "a name without a line feed");
    return push_global(m, module, module_len, name, name_len);
}

static vptq_status stack_global(machine *m)
{
    const vptq_pickle_value *name = pop(m), *module = name ? pop(m) : NULL;
    if (!module || name->kind != VPTQ_PICKLE_TEXT || module->kind != VPTQ_PICKLE_TEXT)
        return broken(m, "a global without a name");
    return push_global(m, module->as.text.at, module->as.text.len, name->as.text.at,
                       name->as.text.len);
}

/* Gets the indices of a tuple's items; false unless it has min to max items of these kinds. */
static bool unpack(const machine *m, const vptq_pickle_value *tuple, uint32_t min, uint32_t max,
                   const vptq_pickle_kind *kinds, uint32_t *items)
{
    if (!tuple || tuple->kind != VPTQ_PICKLE_TUPLE || tuple->as.items.count < min ||
        tuple->as.items.count > max)
        return false;
    uint32_t cell = tuple->as.items.first;
    for (uint32_t i = 0; i < tuple->as.items.count; i++, cell = m->cells[cell].next) {
        items[i] = m->cells[cell].value;
        if (m->values[items[i]].kind != kinds[i])
            return false;
    }
    return true;
}

/* BINPERSID of ("storage", storage type, key of its entry, device, elements). */
static vptq_status make_storage(machine *m)
{
    static const vptq_pickle_kind kinds[5] = {VPTQ_PICKLE_TEXT, VPTQ_PICKLE_GLOBAL,
                                              VPTQ_PICKLE_TEXT, VPTQ_PICKLE_TEXT,
                                              VPTQ_PICKLE_INT};
    uint32_t items[5];
    if (!unpack(m, pop(m), 5, 5, kinds, items))
        return broken(m, "a storage in a form that PyTorch does not write");
    const vptq_pickle_value *word = &m->values[items[0]];
    const known_global *g = &globals[m->values[items[1]].as.i];
    int64_t count = m->values[items[4]].as.i;
    if (!vptq_text_is(word->as.text.at, word->as.text.len, "storage") || !g->is_storage ||
        count < 0)
        return broken(m, "a storage in a form that PyTorch does not write");
    vptq_pickle_value v = {.kind = VPTQ_PICKLE_STORAGE};
    v.as.storage.count = (uint64_t)count;
    v.as.storage.key = items[2];
    v.as.storage.type = g->type;
    return push(m, v);
}

/* Arguments: (storage, offset, shape, strides, requires_grad, hooks), optionally then None for
 * metadata. */
static vptq_status rebuild_tensor(machine *m, const vptq_pickle_value *args)
{
    static const vptq_pickle_kind kinds[7] = {
        VPTQ_PICKLE_STORAGE, VPTQ_PICKLE_INT,  VPTQ_PICKLE_TUPLE, VPTQ_PICKLE_TUPLE,
        VPTQ_PICKLE_BOOL,    VPTQ_PICKLE_DICT, VPTQ_PICKLE_NONE};
    uint32_t items[7];
    if (!unpack(m, args, 6, 7, kinds, items))
        return broken(m, "a tensor in a form that PyTorch does not write");
    vptq_pickle_value v = {.kind = VPTQ_PICKLE_TENSOR};
    v.as.tensor.offset = m->values[items[1]].as.i;
    v.as.tensor.storage = items[0];
    v.as.tensor.shape = items[2];
    v.as.tensor.stride = items[3];
    return push(m, v);
}

static vptq_status reduce(machine *m)
{
    const vptq_pickle_value *args = pop(m), *what = args ? pop(m) : NULL;
    if (!what || what->kind != VPTQ_PICKLE_GLOBAL || globals[what->as.i].is_storage ||
        args->kind != VPTQ_PICKLE_TUPLE)
        return broken(m, "a call of a value that cannot be called");
    if (what->as.i == REBUILD_TENSOR)
        return rebuild_tensor(m, args);
    if (args->as.items.count > 0)
        return broken(m, "an ordered dictionary that does not begin empty");
    return push(m, (vptq_pickle_value){.kind = VPTQ_PICKLE_DICT});
}

/* ---- opcodes ---- */

/* Pushes a little-endian number, in two's complement if signed. */
static vptq_status push_bytes(machine *m, unsigned bytes, bool is_signed)
{
    uint64_t x = 0;
    if (bytes > 8)
        return broken(m, "a number of more than 64 bits");
    if (!take_number(m, bytes, &x))
        return broken(m, "it ends within a number");
    if (is_signed && bytes > 0 && bytes < 8 && x >> (8 * bytes - 1))
        x |= UINT64_MAX << (8 * bytes);
    vptq_pickle_value v = {.kind = VPTQ_PICKLE_INT};
    memcpy(&v.as.i, &x, sizeof x);
    return push(m, v);
}

static vptq_status push_long(machine *m)
{
    uint64_t bytes;
    if (!take_number(m, 1, &bytes))
        return broken(m, "it ends within a number");
    return push_bytes(m, (unsigned)bytes, true);
}

static vptq_status push_float(machine *m)
{
    const uint8_t *p = take(m, 8);
    uint64_t x = 0;
    if (!p)
        return broken(m, "it ends within a number");
    for (int i = 0; i < 8; i++)
        x = x << 8 | p[i];
    vptq_pickle_value v = {.kind = VPTQ_PICKLE_FLOAT};
    memcpy(&v.as.f, &x, sizeof x);
    return push(m, v);
}

static vptq_status push_text(machine *m)
{
    uint64_t len;
    const uint8_t *p = take_number(m, m->op->n, &len) ? take(m, (size_t)len) : NULL;
    if (!p)
        return broken(m, "it ends within a text");
    vptq_pickle_value v = {.kind = VPTQ_PICKLE_TEXT};
    v.as.text.at = (const char *)p;
    v.as.text.len = (uint32_t)len;
    return push(m, v);
}

static vptq_status skip(machine *m)
{
    return take(m, m->op->n) ? VPTQ_OK : broken(m, "it ends early");
}

static vptq_status push_mark(machine *m)
{
    m->stack[m->depth++] = 0;
    return VPTQ_OK;
}

/* Pushes a bool, None or an empty container. */
static vptq_status push_new(machine *m)
{
    vptq_pickle_value v = {.kind = m->op->kind};
    if (v.kind == VPTQ_PICKLE_BOOL)
        v.as.i = m->op->n;
    return push(m, v);
}

static vptq_status push_unsigned(machine *m)
{
    return push_bytes(m, m->op->n, false);
}

static vptq_status push_signed(machine *m)
{
    return push_bytes(m, m->op->n, true);
}

static vptq_status put(machine *m)
{
    uint64_t i;
    return take_number(m, m->op->n, &i) ? put_memo(m, i) : broken(m, "it ends within a number");
}

static vptq_status get(machine *m)
{
    uint64_t i;
    if (!take_number(m, m->op->n, &i))
        return broken(m, "it ends within a number");
    if (i >= m->size || m->memo[i] == 0)
        return broken(m, "it recalls a value that was not remembered");
    m->stack[m->depth++] = m->memo[i];
    return VPTQ_OK;
}

static vptq_status memoize(machine *m)
{
    return put_memo(m, m->memo_count++);
}

/* Opcodes of protocols 2 to 5. */
static const opcode opcodes[256] = {
    [0x80] = {skip, 1, 0},                    /* PROTO */
    [0x95] = {skip, 8, 0},                    /* FRAME */
    ['('] = {push_mark, 0, 0},                /* MARK */
    ['N'] = {push_new, 0, VPTQ_PICKLE_NONE},  /* NONE */
    [0x88] = {push_new, 1, VPTQ_PICKLE_BOOL}, /* NEWTRUE */
    [0x89] = {push_new, 0, VPTQ_PICKLE_BOOL}, /* NEWFALSE */
    ['J'] = {push_signed, 4, 0},              /* BININT */
    ['K'] = {push_unsigned, 1, 0},            /* BININT1 */
    ['M'] = {push_unsigned, 2, 0},            /* BININT2 */
    [0x8a] = {push_long, 0, 0},               /* LONG1 */
    ['G'] = {push_float, 0, 0},               /* BINFLOAT */
    ['X'] = {push_text, 4, 0},                /* BINUNICODE */
    [0x8c] = {push_text, 1, 0},               /* SHORT_BINUNICODE */
    ['}'] = {push_new, 0, VPTQ_PICKLE_DICT},  /* EMPTY_DICT */
    [']'] = {push_new, 0, VPTQ_PICKLE_LIST},  /* EMPTY_LIST */
    [')'] = {push_new, 0, VPTQ_PICKLE_TUPLE}, /* EMPTY_TUPLE */
    ['t'] = {make_marked_tuple, 0, 0},        /* TUPLE */
    [0x85] = {make_short_tuple, 1, 0},        /* TUPLE1 */
    [0x86] = {make_short_tuple, 2, 0},        /* TUPLE2 */
    [0x87] = {make_short_tuple, 3, 0},        /* TUPLE3 */
    ['a'] = {fill, 1, VPTQ_PICKLE_LIST},      /* APPEND */
    ['e'] = {fill, 0, VPTQ_PICKLE_LIST},      /* APPENDS */
    ['s'] = {fill, 2, VPTQ_PICKLE_DICT},      /* SETITEM */
    ['u'] = {fill, 0, VPTQ_PICKLE_DICT},      /* SETITEMS */
    ['b'] = {drop_attributes, 0, 0},          /* BUILD */
    ['q'] = {put, 1, 0},                      /* BINPUT */
    ['r'] = {put, 4, 0},                      /* LONG_BINPUT */
    ['h'] = {get, 1, 0},                      /* BINGET */
    ['j'] = {get, 4, 0},                      /* LONG_BINGET */
    [0x94] = {memoize, 0, 0},                 /* MEMOIZE */
    ['c'] = {read_global, 0, 0},              /* GLOBAL */
    [0x93] = {stack_global, 0, 0},            /* STACK_GLOBAL */
    ['Q'] = {make_storage, 0, 0},             /* BINPERSID */
    ['R'] = {reduce, 0, 0},                   /* REDUCE */
};

static vptq_status run(machine *m)
{
    while (m->at < m->size) {
        m->op_at = m->at;
        uint8_t op = m->data[m->at++];
        if (op == '.')
            return m->depth == 1 && m->stack[0] ? VPTQ_OK
                                                : broken(m, "it ends with more than one value");
        m->op = &opcodes[op];
        if (!m->op->run)
            return vptq_fail(m->err, VPTQ_E_UNSUPPORTED,
                             "%s: pickle opcode 0x%02x at byte %zu, expected one that makes "
                             "dictionaries, numbers or tensors",
                             m->path, op, m->op_at);
        VPTQ_CHECK(m->op->run(m));
    }
    m->op_at = m->size;
    return broken(m, "it has no STOP opcode");
}

vptq_status vptq_pickle_run(const char *path, const uint8_t *data, size_t size,
                            vptq_arena *arena, vptq_pickle *p, vptq_err *err)
{
    machine m = {.path = path, .data = data, .size = size, .err = err};
    if (size > VPTQ_PICKLE_MAX)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: the pickle has %zu bytes, expected at most %d", path, size,
                         VPTQ_PICKLE_MAX);
    m.values = vptq_arena_zalloc(arena, size + 1, sizeof *m.values, err);
    m.cells = m.values ? vptq_arena_zalloc(arena, size + 1, sizeof *m.cells, err) : NULL;
    m.stack = m.cells ? vptq_arena_zalloc(arena, size + 1, sizeof *m.stack, err) : NULL;
    m.memo = m.stack ? vptq_arena_zalloc(arena, size + 1, sizeof *m.memo, err) : NULL;
    if (!m.memo)
        return VPTQ_E_NOMEM;
    vptq_status st = run(&m);
    if (!st)
        *p = (vptq_pickle){m.values, m.cells, m.stack[0]};
    return st;
}
