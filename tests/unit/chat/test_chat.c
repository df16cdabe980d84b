/* Chat prompts: the sources of the template and of its tokens, the messages and variables, and
 * the tokens that end a reply.  The expected texts follow from one-line templates. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/chat/chat.h"
#include "lib/eval/generate.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

enum { PATH = 4096 };

/* Copies the small trained model to `dir`; false if the data is missing. */
static bool copy_model(const char *dir)
{
    static const char *const names[] = {"config.json", "model.safetensors", "tokenizer.json"};
    for (int i = 0; i < 3; i++) {
        char name[128], path[PATH];
        snprintf(name, sizeof name, "models/stories260K-hf/%s", names[i]);
        if (!vtest_data(path, sizeof path, name))
            return false;
        vtest_copy_file(path, dir, names[i]);
    }
    return true;
}

static void put(const char *dir, const char *name, const char *text)
{
    char path[PATH];
    vtest_path(path, sizeof path, dir, name);
    if (text)
        vtest_write_file(path, text, strlen(text));
    else
        remove(path);
}

static void expect_prompt(vrig *r, const vptq_chat_options *o, const char *want)
{
    vptq_err err = {0};
    vptq_buf out;
    vptq_buf_init(&out, &r->mem);
    assert_ok(vptq_chat_prompt(&r->ctx, &r->m, o, &out, NULL, &err), &err);
    assert_string_equal(out.data, want);
    vptq_buf_release(&out);
}

static void refuse(vrig *r, const vptq_chat_options *o, vptq_status status, const char *part)
{
    vptq_err err = {0};
    vptq_buf out;
    vptq_buf_init(&out, &r->mem);
    assert_fails(vptq_chat_prompt(&r->ctx, &r->m, o, &out, NULL, &err), status, &err, part);
    vptq_buf_release(&out);
}

static void test_template_sources(void **state)
{
    const char *dir = *state;
    vrig r;
    char file[PATH];
    vptq_chat_options o = {.user = "Hi"};
    if (!copy_model(dir))
        skip();
    vrig_open(&r, dir, NULL, true);
    refuse(&r, &o, VPTQ_E_FORMAT, "the model has no chat template; pass --chat-template FILE");
    put(dir, "chat_template.json", "{\"chat_template\": \"json {{ messages[0].content }}\"}");
    expect_prompt(&r, &o, "json Hi");
    put(dir, "tokenizer_config.json",
        "{\"model_max_length\": 1000000000000000019884624838656, \"bos_token\": {\"content\": "
        "\"<s>\"}, \"eos_token\": \"</s>\", \"unk_token\": null, \"chat_template\": "
        "[{\"name\": "
        "\"tool_use\", \"template\": \"no\"}, {\"name\": \"default\", \"template\": "
        "\"{{ bos_token }}|{{ eos_token }}|{{ unk_token is defined }}|{{ tools }}|"
        "{{ messages[0].content }}\"}]}");
    expect_prompt(&r, &o, "<s>|</s>|False|None|Hi");
    put(dir, "tokenizer_config.json", "{\"chat_template\": \"config {{ bos_token }}\"}");
    expect_prompt(&r, &o, "config ");
    put(dir, "chat_template.jinja", "jinja {{ add_generation_prompt }}\n");
    expect_prompt(&r, &o, "jinja True");
    put(dir, "own.txt", "own");
    vtest_path(file, sizeof file, dir, "own.txt");
    o.template_file = file;
    expect_prompt(&r, &o, "own");
    put(dir, "own.txt", "own {{ messages[0]. }}");
    refuse(&r, &o, VPTQ_E_FORMAT, "own.txt: line 1: found '}}', expected a name");
    o.template_file = NULL;
    put(dir, "chat_template.jinja", "\n{{ raise_exception('no') }}");
    refuse(&r, &o, VPTQ_E_FORMAT, "chat_template.jinja: line 2: the template refuses: no");
    vrig_close(&r);
}

/* Without a tokenizer_config.json the tokens come from the ids of the vocabulary. */
static void test_tokens_by_id(void **state)
{
    vrig r;
    const vptq_chat_options o = {.user = "Hi"};
    if (!copy_model(*state))
        skip();
    put(*state, "chat_template.jinja", "{{ bos_token }}{{ eos_token }}{{ pad_token }}");
    vrig_open(&r, *state, NULL, true);
    r.m.vocab.bos = 1;
    r.m.vocab.eos = 2;
    expect_prompt(&r, &o, "<s></s>");
    vrig_close(&r);
}

static const char talk[] = "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}";

static void test_messages(void **state)
{
    const char *dir = *state;
    vrig r;
    char file[PATH];
    if (!copy_model(dir))
        skip();
    put(dir, "chat_template.jinja", talk);
    vtest_path(file, sizeof file, dir, "talk.json");
    vrig_open(&r, dir, NULL, true);
    expect_prompt(&r, &(vptq_chat_options){.system = "S", .user = "U"}, "system: S;user: U;");
    put(dir, "talk.json",
        "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
        "\"content\": \"b\"}]");
    expect_prompt(&r, &(vptq_chat_options){.messages = file, .system = "S", .user = "c"},
                  "system: S;user: a;assistant: b;user: c;");
    put(dir, "talk.json", "[{\"role\": \"system\", \"content\": \"a\"}]");
    expect_prompt(&r, &(vptq_chat_options){.messages = file}, "system: a;");
    refuse(&r, &(vptq_chat_options){.messages = file, .system = "S"}, VPTQ_E_ARG,
           "talk.json: begins with a system message; drop --system");
    put(dir, "talk.json", "[{\"content\": \"a\"}]");
    refuse(&r, &(vptq_chat_options){.messages = file}, VPTQ_E_FORMAT,
           "talk.json: message 0 has no \"role\"");
    put(dir, "talk.json", "{\"x\": []}");
    refuse(&r, &(vptq_chat_options){.messages = file}, VPTQ_E_FORMAT,
           "expected a list of messages");
    put(dir, "talk.json", "[]");
    refuse(&r, &(vptq_chat_options){.messages = file}, VPTQ_E_ARG, "the chat has no messages");
    refuse(&r, &(vptq_chat_options){.user = "\xff"}, VPTQ_E_ARG, "not valid UTF-8");
    /* variables of the file, and arguments, which override them */
    put(dir, "chat_template.jinja", "{{ x }} {{ y.z }} {{ tools }} {{ strftime_now('%Y') }}");
    put(dir, "talk.json",
        "{\"messages\": [{\"role\": \"user\"}], \"x\": 1, \"y\": {\"z\": 2}, \"tools\": []}");
    const char *args[] = {"x=\"three\""};
    vptq_chat_options o = {
        .messages = file, .args = args, .arg_count = 1, .date = "2026-02-03"};
    expect_prompt(&r, &o, "three 2 [] 2026");
    o.date = "today";
    refuse(&r, &o, VPTQ_E_ARG, "'today' is not a date");
    args[0] = "x=three";
    refuse(&r, &o, VPTQ_E_ARG, "the value is not valid JSON");
    args[0] = "=3";
    refuse(&r, &o, VPTQ_E_ARG, "'=3': expected NAME=JSON");
    args[0] = "messages=[]";
    refuse(&r, &o, VPTQ_E_ARG, "'messages' cannot be set");
    vrig_close(&r);
}

static void expect_stop_tokens(vrig *r, const int32_t *want, size_t n, const char *template)
{
    vptq_err err = {0};
    vptq_ids stop;
    vptq_buf out;
    vptq_ids_init(&stop, &r->mem);
    vptq_buf_init(&out, &r->mem);
    if (template) {
        put(r->m.ckpt.path, "chat_template.jinja", template);
        assert_ok(vptq_chat_prompt(&r->ctx, &r->m, &(vptq_chat_options){.user = "x"}, &out,
                                   &stop, &err),
                  &err);
    } else {
        assert_ok(vptq_model_stop_tokens(&r->ctx, &r->m, &stop, &err), &err);
    }
    assert_int_equal(stop.count, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(stop.data[i], want[i]);
    vptq_buf_release(&out);
    vptq_ids_release(&stop);
}

static void test_stop_tokens(void **state)
{
    const char *dir = *state;
    vrig r;
    if (!copy_model(dir))
        skip();
    vrig_open(&r, dir, NULL, true);
    expect_stop_tokens(&r, (const int32_t[]){2}, 1, NULL);
    put(dir, "generation_config.json", "{\"eos_token_id\": 7}");
    expect_stop_tokens(&r, (const int32_t[]){2, 7}, 2, NULL);
    put(dir, "generation_config.json",
        "{\"eos_token_id\": [9, 2, 8, 100000, -1, 1e300, 7.5, \"x\"]}");
    expect_stop_tokens(&r, (const int32_t[]){2, 9, 8}, 3, NULL);
    put(dir, "generation_config.json", "[");
    vptq_err err = {0};
    vptq_ids none;
    vptq_ids_init(&none, NULL);
    assert_fails(vptq_model_stop_tokens(&r.ctx, &r.m, &none, &err), VPTQ_E_FORMAT, &err,
                 "generation_config.json: line 1");
    vptq_ids_release(&none);
    /* a template puts after a reply: a special token, a word, nothing; or omits the reply */
    static const char all[] = "{% for m in messages %}{{ m.content }}%s{% endfor %}";
    static const struct {
        const char *after;
        size_t count;
        int32_t id;
    } cases[] = {{" </s>", 1, 2}, {"\n<s>x", 1, 1}, {" end", 0, 0}, {"", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[128];
        const char *at = strstr(all, "%s");
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - all), all, cases[i].after, at + 2);
        expect_stop_tokens(&r, &cases[i].id, cases[i].count, text);
    }
    expect_stop_tokens(&r, NULL, 0, "{{ messages[0].content }}</s>");
    expect_stop_tokens(&r, NULL, 0,
                       "{% if messages|length > 1 %}{{ raise_exception('no') }}{% endif %}");
    vrig_close(&r);
}

typedef struct oom_run {
    vrig *r;
} oom_run;

static vptq_status prompt_with(void *arg, vptq_mem *mem, vptq_err *err)
{
    static const char *const args[] = {"x=1"};
    vrig *r = ((oom_run *)arg)->r;
    vptq_ctx ctx = r->ctx;
    vptq_buf out;
    vptq_ids stop;
    const vptq_chat_options o = {.system = "S", .user = "U", .args = args, .arg_count = 1};
    ctx.mem = mem;
    vptq_buf_init(&out, mem);
    vptq_ids_init(&stop, mem);
    vptq_status st = vptq_chat_prompt(&ctx, &r->m, &o, &out, &stop, err);
    if (!st)
        st = vptq_model_stop_tokens(&ctx, &r->m, &stop, err);
    vptq_ids_release(&stop);
    vptq_buf_release(&out);
    return st;
}

static void test_out_of_memory(void **state)
{
    vrig r;
    if (!copy_model(*state))
        skip();
    put(*state, "tokenizer_config.json",
        "{\"chat_template\": \"{{ messages[-1].content }}</s>\"}");
    put(*state, "generation_config.json", "{\"eos_token_id\": [7, 8]}");
    vrig_open(&r, *state, NULL, true);
    vtest_oom_walk(prompt_with, &(oom_run){&r});
    vrig_close(&r);
}

/* ---- the demo model ---- */

static void expect_ids(const int32_t *ids, size_t n, const json_t *want)
{
    assert_int_equal(n, json_array_size(want));
    for (size_t i = 0; i < n; i++)
        assert_int_equal(ids[i], json_integer_value(json_array_get(want, i)));
}

static vptq_status collect(void *arg, const char *text, size_t len, vptq_err *err)
{
    return vptq_buf_add(arg, text, len, err);
}

/* The prompt ids and the greedy reply must be those of transformers. */
static void check_reply(vrig *r, const char *dir, const json_t *c, size_t tokens)
{
    vptq_err err = {0};
    char file[PATH];
    vptq_buf prompt, reply;
    vptq_ids ids, stop;
    vptq_generate_result result;
    vptq_buf_init(&prompt, &r->mem);
    vptq_buf_init(&reply, &r->mem);
    vptq_ids_init(&ids, &r->mem);
    vptq_ids_init(&stop, &r->mem);
    vtest_path(file, sizeof file, dir, "talk.json");
    assert_ok(vptq_json_save(file, json_object_get(c, "messages"), &err), &err);
    assert_ok(vptq_chat_prompt(&r->ctx, &r->m, &(vptq_chat_options){.messages = file}, &prompt,
                               &stop, &err),
              &err);
    assert_ok(vptq_tokenizer_encode(r->m.tokenizer, prompt.data, prompt.len,
                                    VPTQ_ENCODE_SPECIAL, &ids, &err),
              &err);
    size_t n = ids.count;
    expect_ids(ids.data, n, json_object_get(c, "prompt_ids"));
    const vptq_generate_options o = {.tokens = tokens, .top_p = 1};
    const vptq_generate_args args = {.opt = &o,
                                     .stop_tokens = stop.data,
                                     .stop_token_count = stop.count,
                                     .ids = &ids,
                                     .emit = collect,
                                     .arg = &reply};
    assert_ok(vptq_eval_generate(&r->dev, &r->m, &args, &result, &err), &err);
    expect_ids(ids.data + n, ids.count - n, json_object_get(c, "reply_ids"));
    assert_string_equal(reply.data, json_string_value(json_object_get(c, "reply")));
    assert_int_equal(result.reason,
                     result.new_tokens < tokens ? VPTQ_STOPPED_BY_END : VPTQ_STOPPED_BY_LENGTH);
    vptq_ids_release(&stop);
    vptq_ids_release(&ids);
    vptq_buf_release(&reply);
    vptq_buf_release(&prompt);
}

static void test_demo_replies(void **state)
{
    const char *model = getenv("VPTQ_DEMO_F16");
    vptq_err err = {0};
    vrig r;
    json_t *golden, *c;
    size_t i;
    if (!model) {
        print_message("VPTQ_DEMO_F16 does not name the demo model\n");
        skip();
    }
    assert_ok(vptq_json_load("tests/golden/chat_demo.json", 1 << 20, &golden, &err), &err);
    vrig_open(&r, model, NULL, true);
    json_array_foreach(json_object_get(golden, "cases"), i, c)
    {
        check_reply(&r, *state, c,
                    (size_t)json_integer_value(json_object_get(golden, "new_tokens")));
    }
    assert_int_equal(i, 3);
    vrig_close(&r);
    json_decref(golden);
}

VTEST_MAIN(scratch_test(test_template_sources), scratch_test(test_tokens_by_id),
           scratch_test(test_messages), scratch_test(test_stop_tokens),
           scratch_test(test_out_of_memory), scratch_test(test_demo_replies))
