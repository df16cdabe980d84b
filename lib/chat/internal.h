/* The parts of the template interpreter.  Not for other modules.
 *
 * template_lex.c     text -> tokens
 * template_parse.c   tokens -> expressions       template_stmt.c    tokens -> statements
 * template_eval.c    expressions -> values       template_run.c     statements, rendering
 * template_value.c   truth, order, equality      template_repr.c    values -> text, JSON
 * template_text.c    strings by characters       template_string.c  methods of strings
 * template_method.c  attributes, other methods, functions
 * template_filter.c, template_list.c, template_test.c   filters and tests by name
 *
 * Values are immutable but for namespaces and live, like everything a rendering makes, in one
 * arena until its end. */
#ifndef VPTQ_CHAT_INTERNAL_H
#define VPTQ_CHAT_INTERNAL_H

#include "lib/base/strmap.h"
#include "lib/base/utf8.h"
#include "lib/chat/template.h"

/* Functions of the interpreter own nothing but arena memory, so a failure is passed up as it
 * is. */
#define TPL_TRY(call)                                                                          \
    do {                                                                                       \
        vptq_status tpl_st = (call);                                                           \
        if (tpl_st)                                                                            \
            return tpl_st;                                                                     \
    } while (0)

enum {
    TPL_MAX_NESTING = 200,           /* of brackets and statements in a template */
    TPL_MAX_DEPTH = 300,             /* of expressions, calls and nested values */
    TPL_MAX_STEPS = 20 * 1000 * 1000 /* of a rendering: nodes visited, items looked at */
};
#define TPL_MAX_BYTES ((size_t)256 << 20) /* that a rendering makes, its text included */

/* ---- values ---- */

typedef enum {
    TPL_MISSING, /* an argument that was not given; no value */
    TPL_UNDEFINED,
    TPL_NONE,
    TPL_BOOL,
    TPL_INT,
    TPL_FLOAT,
    TPL_STR,
    TPL_LIST,
    TPL_DICT,
    TPL_NAMESPACE,
    TPL_MACRO,
    TPL_FUNCTION, /* a global one */
    TPL_METHOD,   /* bound to a value */
    TPL_LOOP
} tpl_kind;

typedef struct tpl_value tpl_value;
typedef struct tpl_list tpl_list;
typedef struct tpl_dict tpl_dict;
typedef struct tpl_macro tpl_macro;
typedef struct tpl_bound tpl_bound;
typedef struct tpl_loop tpl_loop;
typedef struct tpl_run tpl_run;
typedef struct tpl_args tpl_args;
typedef struct tpl_scope tpl_scope;
typedef struct tpl_node tpl_node;

struct tpl_value {
    uint8_t kind; /* tpl_kind */
    bool safe;    /* STR: marked so; joining it to another text by '+' would escape that */
    uint32_t len; /* STR, UNDEFINED: bytes of s */
    union {
        int64_t i; /* BOOL, INT */
        double f;
        const char *s; /* STR: valid UTF-8, no 0 behind it; UNDEFINED: what it is called */
        tpl_list *list;
        tpl_dict *dict; /* also NAMESPACE */
        tpl_macro *macro;
        const struct tpl_function *function;
        tpl_bound *bound;
        tpl_loop *loop;
    } u;
};

typedef enum {
    TPL_FORM_LIST,
    TPL_FORM_TUPLE,
    TPL_FORM_RANGE,
    TPL_FORM_VIEW, /* keys, values, items of a dict: has a length, cannot be indexed */
    TPL_FORM_LAZY  /* what a filter gives item by item: can only be gone through */
} tpl_form;

struct tpl_list {
    tpl_form form;
    size_t count;
    tpl_value *items;
    int64_t start, step; /* RANGE, for its text */
};

struct tpl_dict {
    size_t count, cap;
    tpl_value *keys, *values; /* in the order they came */
};

struct tpl_macro {
    const tpl_node *node;
    tpl_scope *scope; /* where it was defined */
};

struct tpl_loop {
    const tpl_list *items;
    size_t index;       /* from 0 */
    unsigned depth;     /* of loops around it */
    bool has_changed;   /* loop.changed was asked */
    tpl_value *changed; /* [changed_count] what it was asked with last */
    size_t changed_count;
};

typedef struct tpl_named {
    const char *name;
    size_t len;
    tpl_value value;
} tpl_named;

struct tpl_args {
    size_t count, named_count;
    const tpl_value *items;
    const tpl_named *named;
};

typedef vptq_status (*tpl_call_fn)(tpl_run *r, const tpl_value *self, const tpl_args *args,
                                   tpl_value *out);
/* A function, method, filter or test; a NULL `call` is known and not handled, `changes` one
 * that would change its container. */
typedef struct tpl_function {
    const char *name;
    tpl_call_fn call;
    bool changes;
} tpl_function;

struct tpl_bound {
    tpl_value self;
    const tpl_function *function;
};

/* ---- syntax ---- */

typedef enum {
    TPL_T_EOF,
    TPL_T_DATA,
    TPL_T_VAR_BEGIN,
    TPL_T_VAR_END,
    TPL_T_BLOCK_BEGIN,
    TPL_T_BLOCK_END,
    TPL_T_NAME,
    TPL_T_STRING,
    TPL_T_INT,
    TPL_T_FLOAT,
    TPL_T_OP
} tpl_token_kind;

/* Operators of two characters; those of one are the character itself. */
enum { TPL_OP_EQ = 128, TPL_OP_NE, TPL_OP_GE, TPL_OP_LE, TPL_OP_FLOORDIV, TPL_OP_POW };
/* What no token is, for comparisons. */
enum { TPL_OP_IN = 200, TPL_OP_NOT_IN };

typedef struct tpl_token {
    uint8_t kind, op;
    uint32_t line;
    uint32_t len;
    union {
        const char *text; /* DATA, NAME, STRING (unescaped) */
        int64_t i;
        double f;
    } u;
} tpl_token;

typedef enum {
    /* expressions */
    TPL_N_CONST,
    TPL_N_NAME,
    TPL_N_LIST,
    TPL_N_TUPLE,
    TPL_N_DICT, /* list: keys and values in turn */
    TPL_N_ATTR,
    TPL_N_ITEM,
    TPL_N_SLICE, /* a, b, c: start, stop, step; NULL where not given */
    TPL_N_CALL,
    TPL_N_FILTER, /* a: NULL at the head of a block's chain */
    TPL_N_TEST,
    TPL_N_NOT,
    TPL_N_NEGATIVE,
    TPL_N_POSITIVE,
    TPL_N_AND,
    TPL_N_OR,
    TPL_N_BINARY,
    TPL_N_CONCAT,
    TPL_N_COMPARE, /* a, then list with the operator in each operand's `compare` */
    TPL_N_COND,    /* a if b else c (may be NULL) */
    TPL_N_NS_ATTR, /* target of a set: name.attribute */
    /* statements */
    TPL_N_DATA,
    TPL_N_PRINT,
    TPL_N_IF,        /* a: test, body, other */
    TPL_N_FOR,       /* a: target, b: what, c: filter or NULL, body, other */
    TPL_N_SET,       /* a: target, b: value */
    TPL_N_SET_BLOCK, /* a: target, b: filters or NULL, body */
    TPL_N_MACRO,     /* list: parameters (NAME, default in a), body */
    TPL_N_CALL_BLOCK,
    TPL_N_FILTER_BLOCK,
    TPL_N_WITH,       /* list: targets and values in turn */
    TPL_N_GENERATION, /* body */
    TPL_N_BREAK,
    TPL_N_CONTINUE
} tpl_node_kind;

typedef struct tpl_keyword {
    uint32_t name; /* symbol */
    tpl_node *value;
} tpl_keyword;

typedef struct tpl_call_node {
    tpl_node **items;
    tpl_keyword *named;
    uint32_t count, named_count;
    tpl_node *star, *star_star; /* NULL where there is none */
} tpl_call_node;

struct tpl_node {
    uint8_t kind, op, compare;
    bool varargs, kwargs, caller; /* MACRO: its body uses these names */
    uint32_t line;
    uint32_t name, attribute; /* symbols */
    uint32_t count;
    tpl_value value; /* CONST, DATA */
    tpl_node *a, *b, *c;
    tpl_node **list;
    tpl_call_node *call;
    tpl_node *body, *other; /* first statements */
    tpl_node *next;         /* statement */
};

typedef struct tpl_symbol {
    const char *text;
    uint32_t len;
} tpl_symbol;

struct vptq_template {
    vptq_mem *mem;
    vptq_arena arena;
    const char *name;
    vptq_strmap symbol_ids;
    tpl_symbol *symbols;
    uint32_t symbol_count, symbol_cap;
    tpl_node *body;
};

vptq_status vptq_tpl_lex(vptq_template *t, const char *text, size_t len, tpl_token **tokens,
                         vptq_err *err) VPTQ_MUST_CHECK;

typedef struct tpl_parser {
    vptq_template *t;
    const tpl_token *token; /* the current one */
    unsigned depth, loops;  /* nesting; loops that a break can leave */
    tpl_node *macro;        /* the innermost one */
    vptq_err *err;
} tpl_parser;

/* Fails at the current token. */
vptq_status vptq_tpl_syntax(tpl_parser *p, const char *fmt, ...) VPTQ_PRINTF(2, 3);
void vptq_tpl_token_text(const tpl_token *t, char text[64]);
bool vptq_tpl_is_op(const tpl_parser *p, int op);
bool vptq_tpl_is_name(const tpl_parser *p, const char *name);
bool vptq_tpl_take_op(tpl_parser *p, int op);
bool vptq_tpl_take_name(tpl_parser *p, const char *name);
vptq_status vptq_tpl_expect_op(tpl_parser *p, int op) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_symbol(tpl_parser *p, uint32_t *symbol) VPTQ_MUST_CHECK; /* of a NAME */
vptq_status vptq_tpl_node(tpl_parser *p, tpl_node_kind kind, tpl_node **n) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_enter(tpl_parser *p) VPTQ_MUST_CHECK;
void vptq_tpl_leave(tpl_parser *p);
/* A growing list of nodes. */
typedef struct tpl_nodes {
    tpl_node **items;
    uint32_t count, cap;
} tpl_nodes;
vptq_status vptq_tpl_push(tpl_parser *p, tpl_nodes *list, tpl_node *n) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_expression(tpl_parser *p, bool with_condition,
                                tpl_node **out) VPTQ_MUST_CHECK;
/* One expression, or several with commas as a tuple. */
vptq_status vptq_tpl_tuple(tpl_parser *p, bool with_condition, tpl_node **out) VPTQ_MUST_CHECK;
/* What is assigned to: a name, a tuple of them, with `ns` an attribute of a namespace. */
vptq_status vptq_tpl_target(tpl_parser *p, bool ns, tpl_node **out) VPTQ_MUST_CHECK;
/* "name(args) | name ..." with the head's `a` NULL; `*out` stays NULL where there is none. */
vptq_status vptq_tpl_filters(tpl_parser *p, bool inline_first, tpl_node **out) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_statements(tpl_parser *p) VPTQ_MUST_CHECK; /* the whole template */

/* ---- rendering ---- */

typedef struct tpl_var {
    uint32_t name;
    tpl_value value;
} tpl_var;

struct tpl_scope {
    tpl_scope *parent;
    tpl_var *vars;
    uint32_t count, cap;
};

typedef enum { TPL_FLOW_ON, TPL_FLOW_BREAK, TPL_FLOW_CONTINUE } tpl_flow;

struct tpl_run {
    const vptq_template *t;
    vptq_arena arena;
    vptq_err *err;
    uint32_t line; /* of the node being worked on */
    unsigned depth, loops;
    uint64_t steps;
    size_t bytes;
    tpl_flow flow;
    tpl_scope *scope;
    vptq_buf *out;
    bool has_date;
    int date[6]; /* year, month, day, hour, minute, second */
};

vptq_status vptq_tpl_fail(tpl_run *r, const char *fmt, ...) VPTQ_PRINTF(2, 3);
vptq_status vptq_tpl_unsupported(tpl_run *r, const char *fmt, ...) VPTQ_PRINTF(2, 3);
vptq_status vptq_tpl_step(tpl_run *r, size_t steps) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_charge(tpl_run *r, size_t bytes) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_deeper(tpl_run *r) VPTQ_MUST_CHECK; /* r->depth-- ends it */
vptq_status vptq_tpl_alloc(tpl_run *r, size_t count, size_t size, void **out) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_add(tpl_run *r, vptq_buf *b, const void *data, size_t n) VPTQ_MUST_CHECK;

vptq_status vptq_tpl_eval(tpl_run *r, const tpl_node *n, tpl_value *out) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_eval_args(tpl_run *r, const tpl_call_node *c, tpl_args *args,
                               size_t spare_named) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_call(tpl_run *r, const tpl_value *f, const tpl_args *args,
                          tpl_value *out) VPTQ_MUST_CHECK;
/* The filters of a block over its text. */
vptq_status vptq_tpl_chain(tpl_run *r, const tpl_node *chain, tpl_value *v) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_call_macro(tpl_run *r, const tpl_macro *m, const tpl_args *args,
                                tpl_value *out) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_assign(tpl_run *r, const tpl_node *target,
                            const tpl_value *v) VPTQ_MUST_CHECK;
bool vptq_tpl_lookup(const tpl_run *r, uint32_t name, tpl_value *out);

/* ---- making values ---- */

tpl_value vptq_tpl_undefined(const char *name, size_t len);
tpl_value vptq_tpl_none(void);
tpl_value vptq_tpl_bool(bool b);
tpl_value vptq_tpl_int(int64_t i);
tpl_value vptq_tpl_float(double f);
tpl_value vptq_tpl_str(const char *s, size_t len); /* not copied */
vptq_status vptq_tpl_copy(tpl_run *r, const char *s, size_t len,
                          tpl_value *out) VPTQ_MUST_CHECK;
/* The buffer's content; releases it, also on failure. */
vptq_status vptq_tpl_take(tpl_run *r, vptq_buf *b, tpl_value *out) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_list(tpl_run *r, tpl_form form, size_t count,
                          tpl_value *out) VPTQ_MUST_CHECK; /* items not set */
vptq_status vptq_tpl_pair(tpl_run *r, const tpl_value *a, const tpl_value *b,
                          tpl_value *out) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_dict(tpl_run *r, tpl_kind kind, size_t cap,
                          tpl_value *out) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_put(tpl_run *r, tpl_dict *d, const tpl_value *key,
                         const tpl_value *value) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_find(tpl_run *r, const tpl_dict *d, const tpl_value *key,
                          const tpl_value **value) VPTQ_MUST_CHECK; /* NULL: not there */
vptq_status vptq_tpl_from_json(tpl_run *r, const json_t *j, tpl_value *out) VPTQ_MUST_CHECK;

/* ---- asking values ---- */

const char *vptq_tpl_type(const tpl_value *v); /* "a string", for messages */
bool vptq_tpl_truth(const tpl_value *v);
bool vptq_tpl_is_number(const tpl_value *v);
bool vptq_tpl_same_text(const tpl_value *v, const char *text);
double vptq_tpl_number(const tpl_value *v);
vptq_status vptq_tpl_equal(tpl_run *r, const tpl_value *a, const tpl_value *b,
                           bool *equal) VPTQ_MUST_CHECK;
/* An error for what cannot be a dict's key: lists, dicts, tuples that have one. */
vptq_status vptq_tpl_hashable(tpl_run *r, const tpl_value *key) VPTQ_MUST_CHECK;
/* < 0, 0, > 0; an error for what has no order. */
vptq_status vptq_tpl_order(tpl_run *r, const tpl_value *a, const tpl_value *b,
                           int *order) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_contains(tpl_run *r, const tpl_value *box, const tpl_value *item,
                              bool *found) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_compare(tpl_run *r, int op, const tpl_value *a, const tpl_value *b,
                             bool *is) VPTQ_MUST_CHECK;
/* What going through it gives, as a list that is not to be changed. */
vptq_status vptq_tpl_iterate(tpl_run *r, const tpl_value *v,
                             const tpl_list **items) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_length(tpl_run *r, const tpl_value *v, size_t *n) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_binary(tpl_run *r, int op, const tpl_value *a, const tpl_value *b,
                            tpl_value *out) VPTQ_MUST_CHECK;

/* v.name and v[key] with their order of looking, UNDEFINED where there is nothing. */
vptq_status vptq_tpl_attribute(tpl_run *r, const tpl_value *v, const char *name, size_t len,
                               tpl_value *out) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_subscript(tpl_run *r, const tpl_value *v, const tpl_value *key,
                               tpl_value *out) VPTQ_MUST_CHECK;
/* bounds[3]: start, stop, step; NONE where not given. */
vptq_status vptq_tpl_slice(tpl_run *r, const tpl_value *v, const tpl_value bounds[3],
                           tpl_value *out) VPTQ_MUST_CHECK;
const tpl_function *vptq_tpl_global(const char *name, size_t len, bool has_date);
const tpl_function *vptq_tpl_filter(const char *name, size_t len);
const tpl_function *vptq_tpl_test(const char *name, size_t len);
const tpl_function *vptq_tpl_string_method(const char *name, size_t len);
const tpl_function *vptq_tpl_lookup_function(const tpl_function *table, size_t count,
                                             const char *name, size_t len);

/* ---- text ---- */

/* str(v) into a buffer, or as a value. */
vptq_status vptq_tpl_print(tpl_run *r, vptq_buf *b, const tpl_value *v) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_string(tpl_run *r, const tpl_value *v, tpl_value *out) VPTQ_MUST_CHECK;

typedef struct tpl_json_style {
    bool ascii, sort;
    bool indented;
    tpl_value indent; /* STR: of one level */
    tpl_value item, key;
} tpl_json_style;
vptq_status vptq_tpl_json(tpl_run *r, vptq_buf *b, const tpl_value *v,
                          const tpl_json_style *s) VPTQ_MUST_CHECK;

bool vptq_tpl_space(uint32_t cp); /* str.isspace of a character */
size_t vptq_tpl_chars(const tpl_value *s);
size_t vptq_tpl_char_at(const tpl_value *s, size_t index); /* its byte; len when behind */
uint32_t vptq_tpl_char(const char *s, size_t left, size_t *bytes);
/* chars: NULL for white space. */
tpl_value vptq_tpl_strip(const tpl_value *s, const tpl_value *chars, bool left, bool right);
/* The first, or last, place of a text within a text from byte `from` on; SIZE_MAX: none. */
size_t vptq_tpl_search(const tpl_value *s, const tpl_value *what, size_t from, bool last);
typedef enum { TPL_UPPER, TPL_LOWER, TPL_TITLE, TPL_CAPITALIZE } tpl_case;
vptq_status vptq_tpl_to_case(tpl_run *r, const tpl_value *s, tpl_case how,
                             tpl_value *out) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_replace(tpl_run *r, const tpl_value *s, const tpl_value *old,
                             const tpl_value *with, int64_t count,
                             tpl_value *out) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_lines(tpl_run *r, const tpl_value *s, bool keep,
                           tpl_value *out) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_join(tpl_run *r, const tpl_value *between, const tpl_list *items,
                          bool strings_only, tpl_value *out) VPTQ_MUST_CHECK;
/* Decimal text as Python's int() and float() take it, with white space around. */
bool vptq_tpl_read_int(const tpl_value *s, int base, int64_t *out);
bool vptq_tpl_read_float(const tpl_value *s, double *out);
vptq_status vptq_tpl_date(tpl_run *r, const tpl_value *format, tpl_value *out) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_read_date(const char *text, int date[6], vptq_err *err) VPTQ_MUST_CHECK;

/* ---- arguments ---- */

/* Arguments into slots by place and name; slots that were not given stay as they are.  `what`
 * is what messages call the function. */
vptq_status vptq_tpl_bind(tpl_run *r, const char *what, const tpl_args *args,
                          const char *const *names, size_t count,
                          tpl_value *slots) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_want_str(tpl_run *r, const char *what, const tpl_value *v) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_no_arguments(tpl_run *r, const char *what,
                                  const tpl_args *args) VPTQ_MUST_CHECK;
/* Strings by place alone, `min` to `max` of them. */
vptq_status vptq_tpl_strings_only(tpl_run *r, const char *what, const tpl_args *args,
                                  size_t min, size_t max) VPTQ_MUST_CHECK;
vptq_status vptq_tpl_want_int(tpl_run *r, const char *what, const tpl_value *v,
                              int64_t *out) VPTQ_MUST_CHECK;

#endif
