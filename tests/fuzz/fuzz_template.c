/* Renders any bytes as a chat template, for a conversation with all fields that templates use:
 * the result must be an error or valid UTF-8. */
#include <string.h>

#include "lib/base/utf8.h"
#include "lib/chat/template.h"
#include "tests/fuzz/fuzz_input.h"

static const char conversation[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"},"
    " {\"role\": \"user\", \"content\": \" za\\u017c\\u00f3\\u0142\\u0107\\n\"},"
    " {\"role\": \"assistant\", \"content\": \"<think>a</think>b\", \"tool_calls\":"
    "  [{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1.5, \"y\": [null, true]}}}]},"
    " {\"role\": \"tool\", \"content\": [{\"type\": \"text\", \"text\": \"t\"}]}],"
    " \"tools\": [{\"function\": {\"name\": \"f\", \"parameters\": {}}}], \"n\": 3,"
    " \"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"add_generation_prompt\": true}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    vptq_err err;
    vptq_template *t;
    vptq_buf out;
    static json_t *variables; /* of all inputs */
    vptq_mem mem; /* bounded, as steps are: most of the time goes into long texts and loops */

    if (!variables &&
        vptq_json_parse(conversation, strlen(conversation), "conversation", &variables, &err))
        abort();
    vptq_mem_init(&mem, (size_t)1 << 20);
    vptq_buf_init(&out, &mem);
    if (!vptq_template_parse((const char *)data, size, "template", &mem, &t, &err)) {
        const vptq_template_input in = {.variables = variables,
                                        .date = size % 2 ? "2026-02-03" : NULL,
                                        .max_steps = 100000};
        if (!vptq_template_render(t, &in, &out, &err) &&
            vptq_utf8_valid_prefix(out.data, out.len) < out.len)
            abort();
        vptq_template_free(t);
    }
    vptq_buf_release(&out);
    if (mem.used)
        abort();
    return 0;
}
