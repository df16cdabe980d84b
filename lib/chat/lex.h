/* Internal: the tokens of a template, and the state of its parser. */
#ifndef VPTQ_CHAT_LEX_H
#define VPTQ_CHAT_LEX_H

#include "lib/chat/internal.h"

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

#endif
