/* Internal: the interpreter of chat templates.
 *
 *   lex.c       text -> tokens
 *   parse.c     tokens -> tree
 *   template.c  tree -> text: expressions, statements, macros; limits and failures
 *   value.c     values: containers, operators, attributes, slices, their text
 *   builtins.c  filters, tests, methods and global functions by name
 *
 * Values never change, except namespaces, and live in one arena until the end of the run.  All
 * text is valid UTF-8.
 *
 * Failures are sticky, because every operation of a template can fail: vptq_tpl_fail records
 * the first one in run->status.  From then on expressions are undefined, containers are empty,
 * and vptq_tpl_step, which every loop calls, returns false.  After a failure to parse, the rest
 * of the template is its end. */
#ifndef VPTQ_CHAT_INTERNAL_H
#define VPTQ_CHAT_INTERNAL_H

#include <string.h>

#include "lib/base/ctx.h"
#include "lib/base/utf8.h"
#include "lib/chat/template.h"

enum {
    TPL_MAX_NESTING = 200,            /* brackets, operators and statements of a template */
    TPL_MAX_DEPTH = 300,              /* expressions, calls and values while rendering */
    TPL_MAX_STEPS = 20 * 1000 * 1000, /* nodes and items visited; text read: see TPL_READ */
    TPL_MAX_RANGE = 100000,           /* items of range(), as in jinja2's sandbox */
    TPL_MAX_PARAMS = 3                /* of a filter, test, method or function */
};
#define TPL_MAX_BYTES ((size_t)256 << 20) /* values and text made by a rendering */
#define TPL_READ(len) (1 + (len) / 16)    /* steps for reading `len` bytes of text */

/* ---- values ---- */

typedef enum {
    TPL_MISSING, /* an argument that was not given */
    TPL_UNDEFINED,
    TPL_NONE,
    TPL_BOOL,
    TPL_INT,
    TPL_FLOAT,
    TPL_STR,
    TPL_LIST,
    TPL_TUPLE,
    TPL_RANGE,
    TPL_VIEW, /* keys, values or items of a dict: has a length, no index */
    TPL_DICT,
    TPL_ITERATOR, /* result of map, select, ...: can only be iterated */
    TPL_NAMESPACE,
    TPL_MACRO,
    TPL_FUNCTION /* global, or a method of a value */
} tpl_kind;

typedef struct tpl_value tpl_value;
typedef struct tpl_node tpl_node;

struct tpl_value {
    uint8_t kind;
    bool safe;       /* STR: from the filter `safe`; '+' would escape what is added to it */
    uint8_t log_cap; /* lists built by vptq_tpl_append: log2 of the items they can hold */
    uint32_t len;    /* STR, UNDEFINED: bytes of s; LIST to ITERATOR: items */
    union {
        int64_t i; /* BOOL, INT */
        double f;
        const char *s;    /* STR: not terminated; UNDEFINED: the name to report */
        tpl_value *items; /* DICT: key, value, key, value, ... */
        tpl_value *dict;  /* NAMESPACE */
        const struct tpl_macro *macro;
        const struct tpl_method *method;
    } u;
};

#define TPL_NULL           ((tpl_value){.kind = TPL_NONE})
#define TPL_EMPTY          ((tpl_value){.kind = TPL_LIST})
#define TPL_BOOLEAN(b)     ((tpl_value){.kind = TPL_BOOL, .u.i = (b)})
#define TPL_INTEGER(n)     ((tpl_value){.kind = TPL_INT, .u.i = (n)})
#define TPL_TEXT(bytes, n) ((tpl_value){.kind = TPL_STR, .len = (uint32_t)(n), .u.s = (bytes)})
#define TPL_LITERAL(text)  TPL_TEXT(text, sizeof(text) - 1)
#define TPL_NO_VALUE(named)                                                                    \
    ((tpl_value){.kind = TPL_UNDEFINED, .len = (named).len, .u = (named).u})
#define TPL_NAME(v) (int)((v).len < 64 ? (v).len : 64), (v).u.s /* for "%.*s" */

typedef struct tpl_scope {
    struct tpl_scope *parent;
    tpl_value vars; /* as in a dict */
} tpl_scope;

typedef struct tpl_macro {
    const tpl_node *node;
    tpl_scope *scope; /* of the definition */
} tpl_macro;

static inline bool tpl_is(tpl_value v, const char *text)
{
    return v.kind == TPL_STR && v.len == strlen(text) && memcmp(v.u.s, text, v.len) == 0;
}

static inline bool tpl_is_integer(tpl_value v)
{
    return v.kind == TPL_INT || v.kind == TPL_BOOL;
}

static inline bool tpl_is_number(tpl_value v)
{
    return tpl_is_integer(v) || v.kind == TPL_FLOAT;
}

static inline bool tpl_is_sequence(tpl_value v) /* can be indexed and sliced */
{
    return v.kind >= TPL_LIST && v.kind <= TPL_RANGE;
}

/* ---- the tree ---- */

typedef struct tpl_run tpl_run;

typedef enum {
    TPL_N_CONSTANT,  /* value */
    TPL_N_NAME,      /* value; of a parameter: left is its default */
    TPL_N_LIST,      /* items; op: TPL_LIST or TPL_TUPLE */
    TPL_N_DICT,      /* items: key, value, key, value, ...; op: TPL_LIST */
    TPL_N_ATTRIBUTE, /* left.value */
    TPL_N_SLICE,     /* left[items], three; op: TPL_LIST */
    TPL_N_CALL,      /* left(items) */
    TPL_N_KEYWORD,   /* an argument value=left */
    TPL_N_APPLY,     /* left | value(items), left is value(items); op: TPL_FILTER or TPL_TEST */
    TPL_N_NOT,       /* left */
    TPL_N_BINARY,    /* left op right; op: an operator, '&' and, '|' or, '[' left[right] */
    TPL_N_IF,        /* if left: body, else: other; statements, or one expression each */
    TPL_N_PRINT,     /* left */
    TPL_N_FOR,       /* left in right if filter: body, else: other */
    TPL_N_SET,       /* left = right, or left = text of body */
    TPL_N_MACRO,     /* value(items): body */
    TPL_N_SCOPE,     /* body */
    TPL_N_JUMP       /* op: the flow */
} tpl_node_kind;

struct tpl_node {
    uint8_t kind, op;
    uint32_t line, count;
    tpl_value value; /* constant, or name */
    tpl_node *left, *right, *filter;
    tpl_node *items; /* list of `count` elements, arguments or parameters */
    tpl_node *body, *other;
    tpl_node *next; /* in its list */
};

/* ---- a run: parsing, or rendering ---- */

typedef enum { TPL_FLOW_ON, TPL_FLOW_BREAK, TPL_FLOW_CONTINUE } tpl_flow;

struct tpl_run {
    const char *name;    /* of the template */
    uint32_t line;       /* of the token or node being worked on */
    const vptq_ctx *ctx; /* its cancel flag ends the run; may be NULL */
    vptq_status status;
    vptq_err *err;
    vptq_arena *arena;
    size_t steps, max_steps, bytes;
    unsigned depth;
    /* rendering */
    vptq_buf *text; /* output; strings are built after its end and cut off again */
    tpl_flow flow;
    tpl_scope *scope;
    const struct tm *date; /* NULL: none */
};

/* Records the first failure, with template and line.  Returns UNDEFINED. */
tpl_value vptq_tpl_fail(tpl_run *r, vptq_status code, const char *fmt, ...) VPTQ_PRINTF(3, 4);
#define TPL_ERROR(r, ...)       vptq_tpl_fail(r, VPTQ_E_FORMAT, __VA_ARGS__)
#define TPL_UNSUPPORTED(r, ...) vptq_tpl_fail(r, VPTQ_E_UNSUPPORTED, __VA_ARGS__)

/* The limits: loops charge steps, everything made charges bytes, recursion enters and leaves.
 * False and NULL after a failure; the cancel flag is one. */
bool vptq_tpl_step(tpl_run *r, size_t steps);
bool vptq_tpl_enter(tpl_run *r, unsigned max); /* r->depth-- leaves, also after a failure */
void *vptq_tpl_alloc(tpl_run *r, size_t count, size_t size);

/* Build a string: append to r->text from its length `start` on, then take that as a value. */
void vptq_tpl_add(tpl_run *r, const char *s, size_t len);
tpl_value vptq_tpl_take(tpl_run *r, size_t start);

tpl_node *vptq_tpl_parse(tpl_run *r, const char *text, size_t len); /* statements */

/* ---- lex.c ---- */

typedef enum {
    T_END,
    T_TEXT,
    T_OPEN,  /* {{ or {% */
    T_CLOSE, /* }} or %} */
    T_NAME,
    T_OPERATOR, /* also "in", "and", "or" */
    T_STRING,
    T_NUMBER
} tpl_token;

typedef struct tpl_parser {
    tpl_run *r;    /* its line: that of the current token */
    const char *s; /* the template with '\n' for every line end, and without the last one */
    size_t len, pos;
    uint32_t line;     /* at pos */
    bool line_starts;  /* at pos */
    char tag;          /* '{' or '%' if pos is in such a tag, else 0 */
    unsigned brackets; /* open ones of the tag */
    tpl_token kind;    /* of the current token, which ends at pos */
    tpl_value value;   /* STRING: without escapes; others: as written */
    tpl_node failed;   /* stands for nodes that cannot be allocated */
} tpl_parser;

/* Begins at the first token of a text, of which the parser keeps a copy. */
void vptq_tpl_lex(tpl_parser *p, const char *text, size_t len);
void vptq_tpl_next(tpl_parser *p); /* reads the next token */
/* Offset of what follows the white space at `at`. */
size_t vptq_tpl_skip_space(const tpl_parser *p, size_t at);

/* ---- builtins.c ---- */

typedef struct tpl_args {
    tpl_value list, named; /* named: name, value, name, value, ... */
} tpl_args;

typedef struct tpl_call {
    tpl_run *run;
    tpl_value self;                /* what a filter, test or method is applied to */
    tpl_value arg[TPL_MAX_PARAMS]; /* in the order of the row's parameters */
    tpl_args args;                 /* as the template gives them */
    int variant;
} tpl_call;

enum { TPL_FILTER = 1, TPL_TEST = 2, TPL_GLOBAL = 4, TPL_STR_METHOD = 8, TPL_DICT_METHOD = 16 };

typedef struct tpl_function {
    const char *name;
    uint8_t uses; /* TPL_FILTER ... */
    tpl_value (*call)(tpl_call *c);
    const char *params; /* names; "*": any arguments */
    uint8_t required;   /* parameters that must be given */
    int variant;        /* for functions with several rows */
} tpl_function;

typedef struct tpl_method {
    const tpl_function *function;
    tpl_value self;
} tpl_method;

const tpl_function *vptq_tpl_function(tpl_value name, int use); /* or NULL */
/* Checks the arguments against the parameters and calls. */
tpl_value vptq_tpl_call(tpl_run *r, const tpl_function *f, tpl_value self, tpl_args args);

/* ---- value.c ---- */

tpl_value vptq_tpl_list(tpl_run *r, tpl_kind kind, size_t count);  /* items: none */
void vptq_tpl_append(tpl_run *r, tpl_value *list, tpl_value item); /* list: from TPL_EMPTY on */
tpl_value vptq_tpl_namespace(tpl_run *r, tpl_value pairs);
tpl_value *vptq_tpl_dict_find(tpl_run *r, const tpl_value *dict, tpl_value key); /* or NULL */
void vptq_tpl_dict_set(tpl_run *r, tpl_value *dict, tpl_value key, tpl_value value);
tpl_value vptq_tpl_bound(tpl_run *r, const tpl_function *f, tpl_value self);
tpl_value vptq_tpl_from_json(tpl_run *r, const json_t *j); /* keeps the strings of j */

const char *vptq_tpl_type(tpl_value v); /* "a string", for messages */
bool vptq_tpl_truth(tpl_value v);
bool vptq_tpl_equal(tpl_run *r, tpl_value a, tpl_value b);
/* a op b: '=' '<' '>' give a boolean, as 'i' (a in b); '+' '-' '*' '%' '~' '[' a value. */
tpl_value vptq_tpl_binary(tpl_run *r, int op, tpl_value a, tpl_value b);

tpl_value vptq_tpl_iterate(tpl_run *r, tpl_value v); /* the items that a loop visits */
size_t vptq_tpl_length(tpl_run *r, tpl_value v);
/* v.key (attribute) or v[key]; UNDEFINED if there is none. */
tpl_value vptq_tpl_get(tpl_run *r, tpl_value v, tpl_value key, bool attribute);
/* bounds: start, stop, step; NONE where not given. */
tpl_value vptq_tpl_slice(tpl_run *r, tpl_value v, tpl_value bounds);

/* Bytes of the character at s, which has some; its code point in *cp. */
size_t vptq_tpl_char(const char *s, size_t len, uint32_t *cp);
/* v without the characters of `chars` (not STR: white space) at its ends. */
tpl_value vptq_tpl_strip(tpl_run *r, tpl_value v, tpl_value chars, bool left, bool right);
/* Byte offset of `part` in s from `from` on, or SIZE_MAX.  Takes linear time and charges it. */
size_t vptq_tpl_find(tpl_run *r, tpl_value s, tpl_value part, size_t from);

void vptq_tpl_print(tpl_run *r, tpl_value v); /* appends str(v) */
tpl_value vptq_tpl_str(tpl_run *r, tpl_value v);
tpl_value vptq_tpl_json(tpl_call *c); /* the filter tojson */

#endif
