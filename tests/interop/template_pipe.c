/* Renders templates for check_templates.py: every line of stdin is an object {"template",
 * "variables", "date" (or null)}, every line of stdout one with "text", or with "error". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/chat/template.h"

static json_t *render(const json_t *job)
{
    const json_t *text = json_object_get(job, "template");
    vptq_err err = {0};
    vptq_buf out;
    vptq_template *t = NULL;
    vptq_template_input in = {.variables = json_object_get(job, "variables"),
                              .date = json_string_value(json_object_get(job, "date"))};
    vptq_buf_init(&out, NULL);
    vptq_status st = vptq_template_parse(json_string_value(text), json_string_length(text),
                                         "template", NULL, &t, &err);
    if (!st)
        st = vptq_template_render(t, &in, &out, &err);
    json_t *result =
        st ? json_pack("{s:s, s:s}", "error", err.text, "code", vptq_status_name(st))
           : json_pack("{s:s%}", "text", out.data, out.len);
    vptq_template_free(t);
    vptq_buf_release(&out);
    return result;
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;) {
        json_t *job = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        json_t *result = job ? render(job) : NULL;
        char *text = result ? json_dumps(result, JSON_ENSURE_ASCII) : NULL;
        puts(text ? text : "{\"error\": \"no job, or a text that JSON cannot hold\"}");
        fflush(stdout);
        free(text);
        json_decref(result);
        json_decref(job);
    }
    free(line);
    return 0;
}
