/* Items and answers as JSON lines. */
#include "lib/eval/tasks.h"
#include "lib/report/emit.h"

static void key(vptq_emit *e, const char *prefix, const char *name)
{
    vptq_emit_format(e, ", \"%s%s\": ", prefix, name);
}

/* Which of the lists of an answer. */
typedef enum { LIST_LOGLIKELIHOODS, LIST_GREEDY, LIST_TOKENS, LIST_CHARACTERS } list;

static void put_list(vptq_emit *e, const char *prefix, const char *name, list what,
                     const vptq_task_item *item, const vptq_task_answer *a)
{
    key(e, prefix, name);
    for (uint32_t i = 0; i < item->count; i++) {
        vptq_emit_text(e, i ? ", " : "[");
        if (what == LIST_LOGLIKELIHOODS)
            vptq_emit_real(e, a->loglikelihoods[i]);
        else if (what == LIST_GREEDY)
            vptq_emit_text(e, a->greedy[i] ? "true" : "false");
        else
            vptq_emit_format(e, "%u",
                             what == LIST_TOKENS ? a->tokens[i] : item->requests[i].characters);
    }
    vptq_emit_text(e, "]");
}

static void put_choice(vptq_emit *e, const char *prefix, const char *name, uint32_t choice,
                       bool there)
{
    key(e, prefix, name);
    if (there)
        vptq_emit_format(e, "%u", choice);
    else
        vptq_emit_text(e, "null");
}

static void put_answer(vptq_emit *e, const char *prefix, bool norm, const vptq_task_item *item,
                       const vptq_task_answer *a)
{
    put_choice(e, prefix, "choice", a->choice, item->count > 1);
    put_choice(e, prefix, "choice_norm", a->choice_norm, norm);
    key(e, prefix, "correct");
    vptq_emit_text(e, a->correct ? "true" : "false");
    put_list(e, prefix, "loglikelihoods", LIST_LOGLIKELIHOODS, item, a);
    put_list(e, prefix, "greedy", LIST_GREEDY, item, a);
}

vptq_status vptq_eval_task_samples(const char *name, const vptq_task_file *file,
                                   const vptq_task_answer *answers,
                                   const vptq_task_answer *base, vptq_buf *out, vptq_err *err)
{
    vptq_emit e = {.buf = out, .err = err};
    const bool norm = vptq_task_form_has_norm(file->form);
    for (size_t i = 0; i < file->count; i++) {
        const vptq_task_item *item = &file->items[i];
        vptq_emit_text(&e, "{\"task\": ");
        vptq_emit_json(&e, name);
        vptq_emit_format(&e, ", \"item\": %zu, \"line\": %u", i, item->line);
        put_choice(&e, "", "gold", item->gold, item->count > 1);
        put_answer(&e, "", norm, item, &answers[i]);
        put_list(&e, "", "tokens", LIST_TOKENS, item, &answers[i]);
        put_list(&e, "", "characters", LIST_CHARACTERS, item, &answers[i]);
        if (base)
            put_answer(&e, "base_", norm, item, &base[i]);
        vptq_emit_text(&e, "}\n");
    }
    return e.st;
}
