/* Chat templates: the part of Jinja that the templates of models use, interpreted with the
 * settings of transformers (trim_blocks and lstrip_blocks on, no autoescape, loop controls,
 * {% generation %}, its own tojson, containers that cannot be changed).  The text that comes
 * out is what jinja2 3.1's ImmutableSandboxedEnvironment gives.
 *
 *     vptq_template_parse(text, len, "model/chat_template.jinja", mem, &t, err);
 *     vptq_template_render(t, &(vptq_template_input){.variables = object}, &out, err);
 *     vptq_template_free(t);
 *
 * Statements: for (else, if, tuples, break, continue), if, set (also blocks and attributes of a
 * namespace), macro, call, filter, with, generation, raw.  Expressions: everything but
 * formatting with '%' and recursive loops.  Filters, tests, methods and functions: the tables
 * in template_filter.c, template_list.c, template_test.c, template_string.c, template_method.c.
 * Whatever is not there is an error when it is reached, which names it.  Upper and lower case
 * go character by character.
 *
 * A template is a stranger's program: it cannot change anything outside of a rendering, and its
 * depth, its steps and the bytes it makes are bounded. */
#ifndef VPTQ_CHAT_TEMPLATE_H
#define VPTQ_CHAT_TEMPLATE_H

#include "formats/json.h"
#include "lib/base/buf.h"

typedef struct vptq_template vptq_template;

enum { VPTQ_TEMPLATE_LIMIT = 1 << 20 }; /* bytes of a template */

/* `name` is what messages call it; `text` need not stay.  Errors: VPTQ_E_FORMAT with name and
 * line for what is no template, VPTQ_E_UNSUPPORTED for a statement that is not handled. */
vptq_status vptq_template_parse(const char *text, size_t len, const char *name, vptq_mem *mem,
                                vptq_template **t, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_template_free(vptq_template *t); /* accepts NULL */

typedef struct vptq_template_input {
    const json_t *variables; /* an object: messages, add_generation_prompt, bos_token ... */
    /* "2024-07-26" or "2024-07-26T16:00:00", what strftime_now formats; NULL: that function is
     * not defined, upon which templates take a date of their own or do without */
    const char *date;
} vptq_template_input;

/* Appends the text to `out`.  Errors name template and line: VPTQ_E_FORMAT for what Jinja
 * refuses, a raise_exception of the template and a bound that is passed, VPTQ_E_UNSUPPORTED for
 * what is not handled, VPTQ_E_ARG for the date.  After an error `out` may hold a part. */
vptq_status vptq_template_render(const vptq_template *t, const vptq_template_input *in,
                                 vptq_buf *out, vptq_err *err) VPTQ_MUST_CHECK;

#endif
