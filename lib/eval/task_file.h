/* Internal: items of choice tasks, with the texts that lm-evaluation-harness makes of them.
 *
 * A file is JSON lines with one record per line, or HellaSwag's text form with six lines per
 * item.  The first known key of a record decides its form; all records of a file share it:
 *
 *     ARC          question, choices {text[], label[]}, answerKey
 *     OpenBookQA   question_stem, choices {text[], label[]}, answerKey
 *     PIQA         goal, sol1, sol2, label
 *     HellaSwag    activity_label, ctx_a, ctx_b, endings[], label
 *     WinoGrande   sentence (with a "_"), option1, option2, answer
 *     COPA         premise, choice1, choice2, question, label
 *     BoolQ        passage, question, label (or answer: true, false)
 *     LAMBADA      text
 *     choices      query, choices[], gold
 *     schema       context_options[], continuation, gold
 *     endings      lines: context, index of the right ending, four endings
 *
 * A record becomes requests: pairs of a context and a continuation, whose log-likelihood is
 * measured.  Texts follow the harness's task definitions (docs/evaluation.md). */
#ifndef VPTQ_EVAL_TASK_FILE_H
#define VPTQ_EVAL_TASK_FILE_H

#include "lib/base/ctx.h"
#include "lib/base/mem.h"
#include "lib/vptq.h"

typedef enum {
    VPTQ_TASK_ARC,
    VPTQ_TASK_OPENBOOKQA,
    VPTQ_TASK_PIQA,
    VPTQ_TASK_HELLASWAG,
    VPTQ_TASK_WINOGRANDE,
    VPTQ_TASK_COPA,
    VPTQ_TASK_BOOLQ,
    VPTQ_TASK_LAMBADA,
    VPTQ_TASK_CHOICES,
    VPTQ_TASK_SCHEMA,
    VPTQ_TASK_ENDINGS
} vptq_task_form;

typedef struct vptq_task_text {
    const char *s; /* UTF-8, not terminated */
    size_t n;
} vptq_task_text;

typedef struct vptq_task_request {
    vptq_task_text context; /* choices that share it have the same s; may be "" */
    vptq_task_text continuation;
    uint32_t characters; /* code points of the choice, without the delimiter before it */
} vptq_task_request;

typedef struct vptq_task_item {
    uint32_t line;  /* in the file, from 1 */
    uint32_t count; /* of requests: 2 to VPTQ_TASK_CHOICES_MAX, or 1 (LAMBADA) */
    uint32_t gold;  /* index of the right request */
    const vptq_task_request *requests;
} vptq_task_item;

enum {
    VPTQ_TASK_CHOICES_MAX = 64,
    VPTQ_TASK_FILE_MAX =
        256 << 20,               /* bytes; the largest set, HellaSwag's training part: 50 MB */
    VPTQ_TASK_LINE_MAX = 1 << 20 /* bytes */
};

typedef struct vptq_task_file_options {
    const char *task;      /* name; that of another known set is an error */
    const char *delimiter; /* between query and choice of {query, choices, gold} */
    size_t limit;          /* the first items only; 0 = all */
} vptq_task_file_options;

typedef struct vptq_task_file {
    vptq_arena arena;
    const char *path; /* as given, not copied, or "standard input" */
    vptq_task_form form;
    vptq_task_item *items;
    size_t count;
} vptq_task_file;

/* VPTQ_E_FORMAT with file and line for an unknown form or another one than the first record's,
 * keys that are missing, duplicate or of a wrong type, text that is not UTF-8, fewer than two
 * choices or too many, a right answer that is not among them, a line that is too long, or a
 * file without items. */
vptq_status vptq_task_file_read(const char *path, const vptq_task_file_options *opt,
                                const vptq_ctx *ctx, vptq_task_file *file,
                                vptq_err *err) VPTQ_MUST_CHECK;
void vptq_task_file_release(vptq_task_file *file);

/* Whether accuracy by log-likelihood per character is meaningful: not if all requests of an
 * item share the continuation, nor for a single request. */
bool vptq_task_form_has_norm(vptq_task_form form);

#endif
