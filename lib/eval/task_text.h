/* Texts of task items as the harness makes them: Python's string methods on UTF-8. */
#ifndef VPTQ_EVAL_TASK_TEXT_H
#define VPTQ_EVAL_TASK_TEXT_H

#include "lib/eval/task_file.h"

/* Without the white space at both ends (str.strip()), or at the end alone (str.rstrip()). */
vptq_task_text vptq_task_strip(vptq_task_text t);
vptq_task_text vptq_task_strip_end(vptq_task_text t);
/* Code points. */
uint32_t vptq_task_characters(vptq_task_text t);
/* All texts one after the other. */
vptq_status vptq_task_join(const vptq_task_text *parts, size_t count, vptq_arena *arena,
                           vptq_task_text *out, vptq_err *err) VPTQ_MUST_CHECK;
/* The first character in lower case, t[0].lower() + t[1:]; and str.capitalize(): the first one
 * in title case, the others in lower case.  By Unicode's mappings of one character to one; of
 * the special ones only that of U+0130. */
vptq_status vptq_task_lower_first(vptq_task_text t, vptq_arena *arena, vptq_task_text *out,
                                  vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_task_capitalize(vptq_task_text t, vptq_arena *arena, vptq_task_text *out,
                                 vptq_err *err) VPTQ_MUST_CHECK;
/* What the harness makes of HellaSwag's texts: strip; " [title]" becomes ". "; what stands in
 * brackets on one line goes; two spaces become one. */
vptq_status vptq_task_clean(vptq_task_text t, vptq_arena *arena, vptq_task_text *out,
                            vptq_err *err) VPTQ_MUST_CHECK;

#endif
