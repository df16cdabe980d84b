/* Reads the input as a file of task items; accepted items have valid request positions, a
 * correct answer among the choices, and only UTF-8. */
#include "lib/base/utf8.h"
#include "lib/eval/task_file.h"
#include "tests/fuzz/fuzz_input.h"

static void check_text(vptq_task_text t)
{
    if (vptq_utf8_valid_prefix(t.s, t.n) != t.n)
        abort();
}

static void use(const vptq_task_file *f)
{
    const uint32_t least = f->form == VPTQ_TASK_LAMBADA ? 1 : 2;
    for (size_t i = 0; i < f->count; i++) {
        const vptq_task_item *item = &f->items[i];
        if (item->count < least || item->count > VPTQ_TASK_CHOICES_MAX ||
            item->gold >= item->count || item->line == 0)
            abort();
        for (uint32_t k = 0; k < item->count; k++) {
            check_text(item->requests[k].context);
            check_text(item->requests[k].continuation);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"x", "hellaswag"};
    char path[FUZZ_PATH_MAX];
    if (!fuzz_input_file(path, data, size))
        return 0;
    for (int i = 0; i < 2; i++) {
        vptq_task_file f;
        vptq_err err;
        const vptq_task_file_options opt = {.task = names[i], .delimiter = "\nAnswer: "};
        if (!vptq_task_file_read(path, &opt, &(vptq_ctx){.threads = 1}, &f, &err)) {
            use(&f);
            vptq_task_file_release(&f);
        }
    }
    unlink(path);
    return 0;
}
