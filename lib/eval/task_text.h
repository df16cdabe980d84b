/* Internal to lib/eval: Python's string methods on UTF-8, as lm-evaluation-harness uses them to
 * make the texts of task items. */
#ifndef VPTQ_EVAL_TASK_TEXT_H
#define VPTQ_EVAL_TASK_TEXT_H

#include "lib/eval/task_file.h"

/* Removes white space at both ends, or at the end only, as Python does. */
vptq_task_text vptq_task_trim(vptq_task_text t);
vptq_task_text vptq_task_trim_end(vptq_task_text t);
/* Code points. */
uint32_t vptq_task_characters(vptq_task_text t);
/* Concatenates all texts. */
vptq_status vptq_task_join(const vptq_task_text *parts, size_t count, vptq_arena *arena,
                           vptq_task_text *out, vptq_err *err) VPTQ_MUST_CHECK;
/* t[0].lower() + t[1:], and str.capitalize(): the first character in title case, the others in
 * lower case.  Uses Unicode's one-to-one case mappings; of the special ones only U+0130's. */
vptq_status vptq_task_lower_first(vptq_task_text t, vptq_arena *arena, vptq_task_text *out,
                                  vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_task_capitalize(vptq_task_text t, vptq_arena *arena, vptq_task_text *out,
                                 vptq_err *err) VPTQ_MUST_CHECK;
/* The harness's clean-up of HellaSwag texts: trims, replaces " [title]" by ". ", removes
 * bracketed text on one line, replaces two spaces by one. */
vptq_status vptq_task_clean(vptq_task_text t, vptq_arena *arena, vptq_task_text *out,
                            vptq_err *err) VPTQ_MUST_CHECK;

#endif
