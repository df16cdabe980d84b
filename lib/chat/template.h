/* Internal: chat templates: the part of Jinja that the templates of models use, with the
 * settings of transformers (trim_blocks, lstrip_blocks, no autoescape, its tojson).
 * Supported constructs give the text of jinja2 3.1's ImmutableSandboxedEnvironment;
 * docs/formats/chat-templates.md lists them. Anything else is an error that names it.
 *
 *     vptq_template_parse(text, len, "model/chat_template.jinja", mem, &t, err);
 *     vptq_template_render(t, &(vptq_template_input){.variables = object}, &out, err);
 *     vptq_template_free(t);
 *
 * Templates are untrusted programs: a rendering changes nothing outside of it, and its
 * recursion depth, steps and bytes are limited. */
#ifndef VPTQ_CHAT_TEMPLATE_H
#define VPTQ_CHAT_TEMPLATE_H

#include "formats/json.h"
#include "lib/base/buf.h"

typedef struct vptq_template vptq_template;

enum { VPTQ_TEMPLATE_LIMIT = 1 << 20 }; /* bytes of a template */

/* `name` is for messages; `text` is copied.  Errors name the line: VPTQ_E_FORMAT for syntax,
 * VPTQ_E_UNSUPPORTED for a construct that is not supported. */
vptq_status vptq_template_parse(const char *text, size_t len, const char *name, vptq_mem *mem,
                                vptq_template **t, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_template_free(vptq_template *t); /* accepts NULL */

typedef struct vptq_template_input {
    const json_t *variables; /* an object: messages, add_generation_prompt, bos_token ... */
    const char *date;    /* "2024-07-26" or "2024-07-26T16:00:00" for strftime_now; NULL: that
                            function is undefined, and templates use a date of their own or none */
    const vptq_ctx *ctx; /* its cancel flag stops the rendering; may be NULL */
    size_t max_steps;    /* nodes and items visited; 0: 20 million, a second or two */
} vptq_template_input;

/* Appends the text to `out`; after an error `out` may hold a part of it.  Errors name the line:
 * VPTQ_E_FORMAT for what Jinja or the template itself refuses and for a limit,
 * VPTQ_E_UNSUPPORTED, VPTQ_E_ARG for the date, VPTQ_E_CANCELLED. */
vptq_status vptq_template_render(const vptq_template *t, const vptq_template_input *in,
                                 vptq_buf *out, vptq_err *err) VPTQ_MUST_CHECK;

#endif
