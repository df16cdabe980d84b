/* Renders the input as the messages file of a chat, with a template that prints roles,
 * contents, tools and every variable it knows: an error, or valid UTF-8. */
#include <string.h>

#include "lib/base/utf8.h"
#include "lib/chat/chat.h"
#include "tests/fuzz/fuzz_encode.h"

static const char template_text[] =
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content | trim }}"
    "{% else %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endif %}"
    "{% for t in m.tool_calls or [] %}{{ t.function | tojson }}{% endfor %}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<a>{% endif %}";

static vptq_model make_model(vptq_vocab *v, const vptq_model_desc *desc, vptq_tokenizer *t)
{
    vptq_model m = {.desc = desc, .vocab = *v, .tokenizer = t};
    m.ckpt.path = "fuzz";
    return m;
}

/* The same for all inputs. */
static vptq_vocab v = {.source = "fuzz"};
static vptq_tokenizer *t;
static char template_file[FUZZ_PATH_MAX];

static void clean_up(void)
{
    unlink(template_file);
}

static void make_once(const vptq_ctx *ctx)
{
    static fuzz_bytes bytes;
    fuzz_bytes_fill(&bytes, &v);
    if (!fuzz_input_file(template_file, (const uint8_t *)template_text,
                         sizeof template_text - 1) ||
        atexit(clean_up) || vptq_tokenizer_open(ctx, &v, &t, NULL))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const vptq_model_desc desc = {.vocab = 256};
    const vptq_ctx ctx = {.threads = 1};
    char messages[FUZZ_PATH_MAX];
    vptq_err err;
    vptq_ids stop;
    vptq_buf out;
    if (!t)
        make_once(&ctx);
    if (!fuzz_input_file(messages, data, size))
        return 0;
    vptq_model m = make_model(&v, &desc, t);
    vptq_chat_options o = {.template_file = template_file,
                           .messages = messages,
                           .user = size % 2 ? "question" : NULL,
                           .system = size % 3 ? NULL : "be brief"};
    vptq_ids_init(&stop, NULL);
    vptq_buf_init(&out, NULL);
    if (!vptq_chat_prompt(&ctx, &m, &o, &out, &stop, &err) &&
        vptq_utf8_valid_prefix(out.data, out.len) < out.len)
        abort();
    vptq_buf_release(&out);
    vptq_ids_release(&stop);
    unlink(messages);
    return 0;
}
