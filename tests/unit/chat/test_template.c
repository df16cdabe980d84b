/* Chat templates: the texts that jinja2 gives (tests/golden/make_chat_templates.py), errors
 * with their lines, limits, and a failure of every allocation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/ctx.h"
#include "lib/chat/template.h"
#include "tests/support/vtest.h"

#define GOLDEN "tests/golden/chat_templates/"

static vptq_status render(const char *text, const json_t *variables, const char *date,
                          vptq_mem *mem, vptq_buf *out, vptq_err *err)
{
    vptq_template *t = NULL;
    vptq_template_input in = {.variables = variables, .date = date};
    vptq_status st = vptq_template_parse(text, strlen(text), "chat.jinja", mem, &t, err);
    if (!st)
        st = vptq_template_render(t, &in, out, err);
    vptq_template_free(t);
    return st;
}

/* Renders one case of a golden file; prints it and returns false if the result differs. */
static bool check_case(const char *what, const char *text, const json_t *variables,
                       const char *date, const json_t *expected)
{
    vptq_err err = {0};
    vptq_mem mem;
    vptq_buf out;
    vptq_mem_init(&mem, 0);
    vptq_buf_init(&out, &mem);
    vptq_status st = render(text, variables, date, &mem, &out, &err);
    const char *want = json_string_value(json_object_get(expected, "text"));
    bool same = want ? !st && strcmp(out.data, want) == 0 : st != VPTQ_OK;
    if (!same)
        print_error("%s:\n%s\nwanted: %s\nfound: %s\n", what, text, want ? want : "an error",
                    st ? err.text : out.data);
    vptq_buf_release(&out);
    assert_int_equal(mem.used, 0);
    return same;
}

static void test_chats(void **state)
{
    (void)state;
    vptq_err err = {0};
    json_t *cases, *c;
    size_t i, bad = 0, good = 0;
    assert_ok(vptq_json_load(GOLDEN "chats.json", 1 << 20, &cases, &err), &err);
    json_array_foreach(cases, i, c)
    {
        char path[256], what[300];
        const char *name = json_string_value(json_object_get(c, "template"));
        snprintf(path, sizeof path, GOLDEN "%s", name);
        snprintf(what, sizeof what, "%s, case %zu", name, i);
        char *text = vtest_read_file(path, &(size_t){0});
        bool same = check_case(what, text, json_object_get(c, "variables"),
                               json_string_value(json_object_get(c, "date")), c);
        bad += !same;
        good += same && json_object_get(c, "text");
        free(text);
    }
    assert_int_equal(bad, 0);
    assert_true(good >= 40);
    json_decref(cases);
}

static void test_expressions(void **state)
{
    (void)state;
    vptq_err err = {0};
    json_t *file, *c;
    size_t i, bad = 0;
    assert_ok(vptq_json_load(GOLDEN "expressions.json", 1 << 20, &file, &err), &err);
    json_array_foreach(json_object_get(file, "cases"), i, c)
    {
        bad += !check_case("expression", json_string_value(json_object_get(c, "template")),
                           json_object_get(file, "variables"),
                           json_string_value(json_object_get(file, "date")), c);
    }
    assert_int_equal(bad, 0);
    assert_true(i >= 500);
    json_decref(file);
}

typedef struct text_case {
    const char *template, *text;
} text_case;

/* Texts that jinja2 gives for cases that random expressions rarely reach. */
static void test_texts(void **state)
{
    static const text_case cases[] = {
        {"", ""},
        {"a\r\nb\rc\n", "a\nb\nc"},
        {"a\n\n", "a\n"},
        {"  {% if true %}\n  x\n  {% endif %}\ny", "  x\ny"},
        {"  {%+ if true %}\n{% endif +%}\ny", "  \ny"},
        {"a {#- c -#} b{# d #}\nc", "abc"},
        {"{{ 'a' }}\n{{- 'b' }} {{ 'c' -}}\n d", "ab cd"},
        {"{{ {'a': {'b': 1}}.a.b }}", "1"},
        {"{{ \"a\" ~ 'b' ~ 1 ~ none ~ missing }}", "ab1None"},
        {"{{ '\xC3\xA9\\n\\t\\r\\'\\\"\\\\' }}", "\xC3\xA9\n\t\r'\"\\"},
        {"{{ 'Ünïcödé'[1:3] ~ 'Ünïcödé'|length ~ 'ß'|upper }}", "n\xC3\xAF"
                                                                "7SS"},
        {"{{ large }} {{ real }} {{ small }} {{ -7 % 3 }}",
         "1e+16 0.30000000000000004 1e-05 2"},
        {"{{ [1, 'a', none, true, real, \"it's\"] }}",
         "[1, 'a', None, True, 0.30000000000000004, \"it's\"]"},
        {"{{ {'a': '\\n\xE2\x80\xA8', 1: (2,)} }}", "{'a': '\\n\\u2028', 1: (2,)}"},
        {"{{ 'a<\\'&\xC3\xA9\\n'|tojson }}", "\"a<'&\xC3\xA9\\n\""},
        {"{{ {'a': [], 'b': [1, {}]}|tojson(indent=2) }}",
         "{\n  \"a\": [],\n  \"b\": [\n    1,\n    {}\n  ]\n}"},
        {"{{ 1 < 2 }} {{ 2 > 2 }} {{ 2 >= 2 }} {{ 1 in [true] }} {{ 'x' not in {} }}",
         "True False True True True"},
        {"{{ [1, 2, 3][::-1] ~ [1, 2, 3][-2:] }}", "[3, 2, 1][2, 3]"},
        {"{{ 2 if false }}|{{ not 1 == 2 }}|{{ -7|string }}|{{ 7 - 2 - 1 }}", "|True|-7|4"},
        {"{% for a, b in [(1, (2, 3))] %}{{ a }}{{ b[0] }}{{ b[1] }}{% endfor %}", "123"},
        {"{% for i in range(9) if i % 2 == 0 %}{{ loop.index }}{{ '-' if loop.last else ',' }}"
         "{% endfor %}",
         "1,2,3,4,5-"},
        {"{% for i in [] %}x{% else %}none{% endfor %}", "none"},
        {"{% for i in 'aab' %}{{ loop.index0 }}{{ loop.previtem }}{{ loop.nextitem }};{% "
         "endfor %}",
         "0a;1ab;2a;"},
        {"{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}",
         "12121"},
        {"{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}", "2"},
        {"{% macro m(a, b=a) %}{{ a }}{{ b }}{{ x }}{% endmacro %}{% set x = 3 %}{{ m(1) }}",
         "113"},
        {"{% macro m(n) %}{{ n }}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(3) }}",
         "3210"},
        {"{% set x %}ax{% endset %}{{ x | upper | replace('A', 'b') }}", "bX"},
        {"{% set d = {'items': 1} %}{{ d['items'] }}{{ d.items()|list }}", "1[('items', 1)]"},
        {"{{ '%d' is string }}{{ strftime_now is defined }}", "TrueFalse"},
        {"{% for i in range(3) %}{% for j in range(3) %}{% if j == 1 %}{% continue %}{% endif "
         "%}"
         "{% if i == 1 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}",
         "00 02 20 22 "},
        {"{{ '<'|safe ~ '<' }}", "<<"},
        {"{{ ['b', 'A', 'c']|sort|join }}{{ [2, 3]|min }}", "Abc2"},
        {"{{ 'a\\nb\\n\\nc'|indent(2) }}|{{ ' x '|trim }}", "a\n  b\n\n  c|x"},
        {"{{ '-' * 3 ~ 2 * 'ab' ~ 'x' * -1 ~ '' * 999999999999 ~ 3 * -4 ~ (1 + 2 * 3) }}",
         "---abab-127"},
        {"{{ 'a'|safe * 2 + 'b'|safe }}", "aab"},
        {"{{ {'b': 1, 'a': 2}|dictsort }}{{ 'a b'.split(' ') }}",
         "[('a', 2), ('b', 1)]['a', 'b']"},
    };
    (void)state;
    vptq_err err = {0};
    json_t *reals =
        json_pack("{s:f, s:f, s:f}", "large", 1e16, "real", 0.1 + 0.2, "small", 1e-5);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        vptq_buf out;
        vptq_buf_init(&out, NULL);
        assert_ok(render(cases[i].template, reals, NULL, NULL, &out, &err), &err);
        assert_string_equal(out.data, cases[i].text);
        vptq_buf_release(&out);
    }
    json_decref(reals);
}

typedef struct error_case {
    const char *template;
    vptq_status status;
    const char *part;
} error_case;

static void test_errors(void **state)
{
    static const error_case cases[] = {
        {"a\n{{ x", VPTQ_E_FORMAT, "chat.jinja: line 2: '{{' has no '}}'"},
        {"{# x", VPTQ_E_FORMAT, "line 1: a comment has no end"},
        {"{% raw %}x", VPTQ_E_UNSUPPORTED, "statement 'raw' is not supported"},
        {"{{ 'x }}", VPTQ_E_FORMAT, "a string has no end"},
        {"{{ 1.5 }}", VPTQ_E_UNSUPPORTED, "a number that is not a decimal integer"},
        {"{{ 99999999999999999999 }}", VPTQ_E_FORMAT, "a number exceeds 64 bits"},
        {"{{ (1] }}", VPTQ_E_FORMAT, "found ']', expected ')'"},
        {"{{ 1 + }}", VPTQ_E_FORMAT, "found '}}', expected an expression"},
        {"{{ a b }}", VPTQ_E_FORMAT, "found 'b', expected the end of the tag"},
        {"{{ $ }}", VPTQ_E_FORMAT, "unexpected character 0x24"},
        {"{{}}", VPTQ_E_FORMAT, "expected an expression"},
        {"{% if 1 %}\n\nx", VPTQ_E_FORMAT,
         "line 3: found the end of the template, expected 'endif'"},
        {"{% endfor %}", VPTQ_E_FORMAT, "unexpected 'endfor'"},
        {"{% break %}", VPTQ_E_FORMAT, "'break' or 'continue' outside of a loop"},
        {"{% for i in [1] %}{% macro m() %}{% break %}{% endmacro %}{{ m() }}{% endfor %}",
         VPTQ_E_FORMAT, "outside of a loop"},
        {"{% set 1 = 2 %}", VPTQ_E_FORMAT, "expected a name"},
        {"{% set true = 2 %}", VPTQ_E_FORMAT, "a constant cannot be assigned to"},
        {"{{ f(a=1, 2) }}", VPTQ_E_FORMAT, "an argument with a name before one without"},
        {"x\n{% include 'y' %}", VPTQ_E_UNSUPPORTED,
         "line 2: statement 'include' is not supported"},
        {"{% for a in b recursive %}{% endfor %}", VPTQ_E_UNSUPPORTED,
         "a recursive loop is not supported"},
        {"\n\n{{ 'x'|urlize }}", VPTQ_E_UNSUPPORTED,
         "line 3: filter 'urlize' is not supported"},
        {"{{ 1 is escaped }}", VPTQ_E_UNSUPPORTED, "test 'escaped' is not supported"},
        {"{{ 'x'.zfill(3) }}", VPTQ_E_UNSUPPORTED, "method 'zfill' is not supported"},
        {"{{ 1 < 2 < 3 }}", VPTQ_E_UNSUPPORTED, "a chain of comparisons is not supported"},
        {"{{ 'a' 'b' }}", VPTQ_E_UNSUPPORTED, "a string after another value"},
        {"{{ [1, 2][::2] }}", VPTQ_E_UNSUPPORTED, "a slice with a step is not supported"},
        {"{{ 'x'|capitalize }}", VPTQ_E_UNSUPPORTED, "filter 'capitalize' is not supported"},
        {"{{ {}.keys() }}", VPTQ_E_UNSUPPORTED, "method 'keys' is not supported"},
        {"{{ 1 is integer }}", VPTQ_E_UNSUPPORTED, "test 'integer' is not supported"},
        {"{{ (1, 2).0 }}", VPTQ_E_FORMAT, "found '0', expected a name"},
        {"{{ 'x'|safe + 'y' }}", VPTQ_E_UNSUPPORTED, "'+' of a safe text and another"},
        {"{{ x / 2 }}", VPTQ_E_UNSUPPORTED, "'/' is not supported"},
        {"{% for a, (b, c) in [] %}{% endfor %}", VPTQ_E_UNSUPPORTED,
         "names in parentheses are not supported"},
        {"{% set x | upper %}{% endset %}", VPTQ_E_UNSUPPORTED, "a filter of a block"},
        {"{% call m() %}{% endcall %}", VPTQ_E_UNSUPPORTED,
         "statement 'call' is not supported"},
        {"{{ 'a b'.split() }}", VPTQ_E_UNSUPPORTED, "split without a separator"},
        {"{{ {}|tojson(sort_keys=true) }}", VPTQ_E_UNSUPPORTED,
         "argument 'sort_keys' of 'tojson' is not supported"},
        {"{{ '%s' % 1 }}", VPTQ_E_UNSUPPORTED, "formatting with '%' is not supported"},
        {"{{ 2 ** 3 }}", VPTQ_E_UNSUPPORTED, "'*' is not supported"},
        {"{{ [1] * 2 }}", VPTQ_E_UNSUPPORTED, "'*' of a list is not supported"},
        {"{{ 'a' * 'b' }}", VPTQ_E_FORMAT, "'*' of a string and a string"},
        {"{{ 9223372036854775807 * 2 }}", VPTQ_E_FORMAT, "an integer exceeds 64 bits"},
        {"{{ [1] < [2] }}", VPTQ_E_UNSUPPORTED, "the order of lists is not supported"},
        {"{{ '\\101' }}", VPTQ_E_UNSUPPORTED, "the escape '\\1' in a string is not supported"},
        {"{{ f(*x) }}", VPTQ_E_UNSUPPORTED, "'*' is not supported"},
        {"{% with a = 1 %}{% endwith %}", VPTQ_E_UNSUPPORTED,
         "statement 'with' is not supported"},
        {"{% macro m() %}{{ varargs }}{% endmacro %}", VPTQ_E_UNSUPPORTED,
         "variable 'varargs' is not supported"},
        {"{{ x.y }}", VPTQ_E_FORMAT, "'x' is undefined and has no attributes"},
        {"{{ x['y'] }}", VPTQ_E_FORMAT, "'x' is undefined and has no items"},
        {"{{ {}.y.z }}", VPTQ_E_FORMAT, "'y' is undefined and has no attributes"},
        {"{{ x() }}", VPTQ_E_FORMAT, "'x' is undefined and cannot be called"},
        {"{{ 'a' + 1 }}", VPTQ_E_FORMAT, "'+' of a string and an integer"},
        {"{{ 1 % 0 }}", VPTQ_E_FORMAT, "division by zero"},
        {"{{ 9223372036854775807 + 2 }}", VPTQ_E_FORMAT, "an integer exceeds 64 bits"},
        {"{{ -9223372036854775807 - 2 }}", VPTQ_E_FORMAT, "an integer exceeds 64 bits"},
        {"{{ 1 < 'a' }}", VPTQ_E_FORMAT, "an integer and a string have no order"},
        {"{{ x|tojson }}", VPTQ_E_FORMAT, "undefined cannot be written as JSON"},
        {"{{ [].append(1) }}", VPTQ_E_UNSUPPORTED, "method 'append' is not supported"},
        {"{{ {}.update({}) }}", VPTQ_E_UNSUPPORTED, "method 'update' is not supported"},
        {"{{ {[]: 2} }}", VPTQ_E_FORMAT, "a list cannot be a key"},
        {"{{ 'x'|replace('a') }}", VPTQ_E_FORMAT, "'replace' needs 2 arguments"},
        {"{{ 'x'|trim(1) }}", VPTQ_E_FORMAT, "an argument is an integer, expected a string"},
        {"{% set a, b = [1] %}", VPTQ_E_FORMAT, "cannot assign 1 values to 2 names"},
        {"{% set x.y = 1 %}", VPTQ_E_FORMAT, "'x' is not a namespace"},
        {"{% macro m() %}{% endmacro %}{{ m(1) }}", VPTQ_E_FORMAT, "takes at most 0 arguments"},
        {"{% macro m() %}{% endmacro %}{{ m(a=1) }}", VPTQ_E_FORMAT,
         "the macro has no parameter for a named argument"},
        {"{{ 'a'|trim(q=1) }}", VPTQ_E_UNSUPPORTED, "argument 'q' of 'trim' is not supported"},
        {"{{ range(100001) }}", VPTQ_E_FORMAT, "range of more than 100000 items"},
        {"a\n{{ raise_exception('no ' ~ 'system role') }}", VPTQ_E_FORMAT,
         "chat.jinja: line 2: the template refuses: no system role"},
        {"{{ strftime_now('%d') }}", VPTQ_E_FORMAT, "'strftime_now' is undefined"},
    };
    (void)state;
    json_t *none = json_object();
    vptq_buf out;
    vptq_buf_init(&out, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        vptq_err err = {0};
        assert_fails(render(cases[i].template, none, NULL, NULL, &out, &err), cases[i].status,
                     &err, cases[i].part);
    }
    vptq_err err = {0};
    assert_fails(render("x", none, "2026-02-30", NULL, &out, &err), VPTQ_E_ARG, &err,
                 "'2026-02-30' is not a date");
    assert_fails(render("\xff", none, NULL, NULL, &out, &err), VPTQ_E_FORMAT, &err,
                 "not valid UTF-8 at byte 0");
    vptq_buf_release(&out);
    json_decref(none);
}

#define LONG                                                                                   \
    "{% set s = 'x' * 9000000 %}{% set t = 'x' * 8999999 ~ 'y' %}{% for i in range(99999) %}"

/* Templates that would not end, or would use all memory. */
static void test_bounds(void **state)
{
    static const char *const cases[][2] = {
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested more than"},
        {"{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}"
         "{% endfor %}",
         "MiB of values"},
        {"{{ 'a\\nb'|indent(999999999999) }}", "the template"},
        {"{% set ns = namespace(x=[]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}"
         "{% endfor %}{{ ns.x }}",
         "the template"},
        {"{% set ns = namespace(x=[]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}"
         "{% endfor %}{{ ns.x|tojson }}",
         "nested more than"},
        {"{% set s = ('x'|indent(999999, true)) ~ 'y' %}{% for i in range(99999) %}"
         "{{ s.split(' x') }}{% endfor %}",
         "the template"},
        {"{% set r = range(90000) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
         "steps"},
        {"{% set s = 'x'|indent(9999999, true) %}{% for a in range(90000) %}{{ 'y' in s }}{% "
         "endfor %}",
         "steps"},
        {"{% set ns = namespace(x=[], y=[]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}"
         "{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
         "nested more than"},
        /* whatever reads long strings pays for their bytes */
        {LONG "{{ s.startswith(s) }}{% endfor %}", "steps"},
        {LONG "{{ s.endswith(('y', s)) }}{% endfor %}", "steps"},
        {LONG "{{ s ~ 'z' in s }}{{ s[1:] in s }}{% endfor %}", "the template"},
        {LONG "{{ 'y' in s }}{% endfor %}", "steps"},
        {LONG "{{ s == t }}{% endfor %}", "steps"},
        {LONG "{{ s < t }}{% endfor %}", "steps"},
        {LONG "{{ s.split('y') }}{% endfor %}", "the template"},
        {LONG "{% set u = s.split('y', 1)|length %}{% endfor %}", "steps"},
        {LONG "{% set u = s.replace('y', '') %}{% endfor %}", "MiB of values"},
        {LONG "{% set u = [s, s]|join %}{% endfor %}", "MiB of values"},
        {LONG "{% set u = s + s %}{% endfor %}", "MiB of values"},
        {LONG "{% set u = s ~ s %}{% endfor %}", "MiB of values"},
        {LONG "{% set u = s * 2 %}{% endfor %}", "MiB of values"},
        {LONG "{% set u = 'x'|trim(s) %}{{ s|trim('x') }}{% endfor %}", "steps"},
        {LONG "{{ [{}]|map(attribute=s)|list|length }}{% endfor %}", "steps"},
        {LONG "{{ s|length }}{{ s[5] }}{% endfor %}", "steps"},
        {"{{ 'x' * 999999999999 }}", "MiB of values"},
        {"{{ 'xy' * 9223372036854775807 }}", "MiB of values"},
    };
    (void)state;
    json_t *none = json_object();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        vptq_err err = {0};
        vptq_buf out;
        vptq_buf_init(&out, NULL);
        assert_fails(render(cases[i][0], none, NULL, NULL, &out, &err), VPTQ_E_FORMAT, &err,
                     cases[i][1]);
        vptq_buf_release(&out);
    }
    /* endless brackets, signs, statements and filters */
    static const char *const units[] = {"[", "-", "not ", "{% if 1 %}", "1|abs|", "x.", "("};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        vptq_err err = {0};
        vptq_buf text, out;
        vptq_buf_init(&text, NULL);
        vptq_buf_init(&out, NULL);
        assert_ok(vptq_buf_add(&text, "{{ ", units[i][0] == '{' ? 0 : 3, &err), &err);
        for (int k = 0; k < 50000; k++)
            assert_ok(vptq_buf_add(&text, units[i], strlen(units[i]), &err), &err);
        assert_ok(vptq_buf_add(&text, "x }}", 4, &err), &err);
        assert_fails(render(text.data, none, NULL, NULL, &out, &err), VPTQ_E_FORMAT, &err,
                     "chat.jinja: line 1: ");
        vptq_buf_release(&text);
        vptq_buf_release(&out);
    }
    json_decref(none);
}

static void test_cancel(void **state)
{
    static const char text[] =
        "{% set r = range(9000) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}";
    (void)state;
    const volatile sig_atomic_t raised = 1;
    vptq_ctx ctx = {.threads = 1, .cancel = &raised};
    vptq_err err = {0};
    vptq_template *t = NULL;
    vptq_buf out;
    vptq_buf_init(&out, NULL);
    assert_ok(vptq_template_parse(text, strlen(text), "chat.jinja", NULL, &t, &err), &err);
    json_t *none = json_object();
    vptq_template_input in = {.variables = none, .ctx = &ctx};
    assert_fails(vptq_template_render(t, &in, &out, &err), VPTQ_E_CANCELLED, &err,
                 "interrupted");
    in = (vptq_template_input){.variables = none, .max_steps = 30000};
    assert_fails(vptq_template_render(t, &in, &out, &err), VPTQ_E_FORMAT, &err,
                 "the template takes more than 30000 steps");
    json_decref(none);
    vptq_template_free(t);
    vptq_buf_release(&out);
}

static vptq_status render_chat(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_buf out;
    char *text = vtest_read_file(GOLDEN "tools.jinja", &(size_t){0});
    vptq_buf_init(&out, mem);
    vptq_status st = render(text, arg, NULL, mem, &out, err);
    vptq_buf_release(&out);
    free(text);
    return st;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    json_t *variables = json_pack("{s:[{s:s, s:s}, {s:s, s:s}], s:b}", "messages", "role",
                                  "user", "content", "Hi", "role", "assistant", "content",
                                  "<think></think>\n\nHo", "add_generation_prompt", 1);
    assert_non_null(variables);
    vtest_oom_walk(render_chat, variables);
    json_decref(variables);
}

VTEST_MAIN(cmocka_unit_test(test_chats), cmocka_unit_test(test_expressions),
           cmocka_unit_test(test_texts), cmocka_unit_test(test_errors),
           cmocka_unit_test(test_bounds), cmocka_unit_test(test_cancel),
           cmocka_unit_test(test_out_of_memory))
