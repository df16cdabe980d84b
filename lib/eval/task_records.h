/* Records of the known sets as items.  Internal to formats. */
#ifndef VPTQ_EVAL_TASK_RECORDS_H
#define VPTQ_EVAL_TASK_RECORDS_H

#include "formats/json.h"
#include "lib/eval/task_file.h"

/* Where an item comes from and goes to. */
typedef struct vptq_task_reader {
    const vptq_task_file_options *opt;
    vptq_arena *arena;
    const char *name; /* "FILE: line 12" */
} vptq_task_reader;

/* The form that the record's keys say; VPTQ_E_FORMAT for none. */
vptq_status vptq_task_record_form(const json_t *record, const char *name, vptq_task_form *form,
                                  vptq_err *err) VPTQ_MUST_CHECK;
/* "PIQA" */
const char *vptq_task_form_name(vptq_task_form form);
/* Fills count, gold and requests of the item. */
vptq_status vptq_task_record_read(const vptq_task_reader *r, vptq_task_form form,
                                  const json_t *record, vptq_task_item *item,
                                  vptq_err *err) VPTQ_MUST_CHECK;
/* The same of the six lines of the text form. */
vptq_status vptq_task_lines_read(const vptq_task_reader *r, const vptq_task_text *lines,
                                 vptq_task_item *item, vptq_err *err) VPTQ_MUST_CHECK;

#endif
