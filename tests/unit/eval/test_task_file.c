/* Files of task items: the texts of every form as the harness makes them, Python's string
 * methods, errors with file and line, no memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/eval/task_file.h"
#include "lib/eval/task_text.h"
#include "tests/support/vtest.h"

#define GOLDEN "tests/golden/tasks/"

static const vptq_ctx ctx = {.threads = 1};
static const vptq_task_file_options plain = {.task = "x", .delimiter = "\nAnswer: "};

static void check_text(vptq_task_text got, const char *want)
{
    if (got.n != strlen(want) || memcmp(got.s, want, got.n) != 0)
        fail_msg("'%.*s', expected '%s'", (int)got.n, got.s, want);
}

/* ---- texts ---- */

typedef struct text_case {
    const char *text, *clean, *capital, *lower; /* results of Python 3.11 */
} text_case;

static void test_texts(void **state)
{
    (void)state;
    const text_case cases[] = {
        {"a [x\n] b [y] [z", "a [x\n] b [z", "A [x\n] b [y] [z", "a [x\n] b [y] [z"},
        {"[[[[", "[[[[", "[[[[", "[[[["},
        {"   ", "", "   ", "   "},
        {"\x1c\xe2\x80\x83"
         "a[b]  c   d \xe3\x80\x80",
         "a c  d",
         "\x1c\xe2\x80\x83"
         "a[b]  c   d \xe3\x80\x80",
         "\x1c\xe2\x80\x83"
         "a[b]  c   d \xe3\x80\x80"},
        {"[title] [title]  [title]x", ". . x", "[title] [title]  [title]x",
         "[title] [title]  [title]x"},
        {"ǅUNGLA ÀB", "ǅUNGLA ÀB", "ǅungla àb", "ǆUNGLA ÀB"},
        {"ǆ İI", "ǆ İI", "ǅ i̇i", "ǆ İI"},
        {"İI", "İI", "İi", "i̇I"},
        {"", "", "", ""},
    };
    vptq_arena arena;
    vptq_err err = {0};
    vptq_arena_init(&arena, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const vptq_task_text t = {cases[i].text, strlen(cases[i].text)};
        vptq_task_text out;
        assert_ok(vptq_task_clean(t, &arena, &out, &err), &err);
        check_text(out, cases[i].clean);
        assert_ok(vptq_task_capitalize(t, &arena, &out, &err), &err);
        check_text(out, cases[i].capital);
        assert_ok(vptq_task_lower_first(t, &arena, &out, &err), &err);
        check_text(out, cases[i].lower);
    }
    check_text(vptq_task_trim_end((vptq_task_text){" x \n\x1f", 5}), " x");
    check_text(vptq_task_trim((vptq_task_text){" \xc2\xa0x\xe2\x80\xa9\n", 8}), "x");
    assert_int_equal(vptq_task_characters((vptq_task_text){"là…", 6}), 3);
    vptq_arena_release(&arena);
}

/* A line full of brackets that are never closed takes no noticeable time. */
static void test_many_brackets(void **state)
{
    (void)state;
    enum { N = VPTQ_TASK_LINE_MAX };
    vptq_arena arena;
    vptq_err err = {0};
    char *s = vtest_alloc(N, 1);
    vptq_task_text out;
    memset(s, '[', N);
    vptq_arena_init(&arena, NULL);
    assert_ok(vptq_task_clean((vptq_task_text){s, N}, &arena, &out, &err), &err);
    assert_int_equal(out.n, N);
    vptq_arena_release(&arena);
    free(s);
}

/* ---- forms ---- */

typedef struct form_case {
    const char *file;
    vptq_task_form form;
    size_t item, request;
    const char *context, *continuation;
    uint32_t count, gold, characters;
} form_case;

static void check_form(const form_case *c)
{
    vptq_task_file f;
    vptq_err err = {0};
    char path[128];
    snprintf(path, sizeof path, GOLDEN "%s", c->file);
    assert_ok(vptq_task_file_read(path, &plain, &ctx, &f, &err), &err);
    assert_int_equal(f.form, c->form);
    assert_true(c->item < f.count);
    const vptq_task_item *item = &f.items[c->item];
    assert_int_equal(item->count, c->count);
    assert_int_equal(item->gold, c->gold);
    assert_int_equal(item->line, (c->form == VPTQ_TASK_ENDINGS ? 6 : 1) * c->item + 1);
    check_text(item->requests[c->request].context, c->context);
    check_text(item->requests[c->request].continuation, c->continuation);
    assert_int_equal(item->requests[c->request].characters, c->characters);
    vptq_task_file_release(&f);
}

static void test_forms(void **state)
{
    (void)state;
    const form_case cases[] = {
        {"arc_easy.jsonl", VPTQ_TASK_ARC, 1, 2,
         "Question: Which of these is cold?\nAnswer:", " ice cream", 3, 0, 9},
        {"arc_easy.jsonl", VPTQ_TASK_ARC, 2, 0,
         "Question: Où est le café?  \nAnswer:", " à côté", 5, 4, 6},
        {"openbookqa.jsonl", VPTQ_TASK_OPENBOOKQA, 2, 1, "Once upon a time there was a ",
         " number", 4, 2, 6},
        {"piqa.jsonl", VPTQ_TASK_PIQA, 2, 1,
         "Question: Make \"soup\"\nfast\nAnswer:", " Heat it. Then eat it.", 2, 0, 21},
        {"hellaswag.jsonl", VPTQ_TASK_HELLASWAG, 1, 0,
         "Food and Drink: How to bake. Take a bowl. Mix the flour. Then you add étoile milk",
         "  Stir it.. Bake it.", 4, 0, 19},
        {"hellaswag.jsonl", VPTQ_TASK_HELLASWAG, 1, 3,
         "Food and Drink: How to bake. Take a bowl. Mix the flour. Then you add étoile milk",
         " Go  home.", 4, 0, 9},
        {"hellaswag.jsonl", VPTQ_TASK_HELLASWAG, 2, 3, "Walking: A dog walks.", "  c] fly", 4,
         3, 7},
        {"winogrande.jsonl", VPTQ_TASK_WINOGRANDE, 0, 1, "The dog chased the cat until the cat",
         " was tired.", 2, 0, 36},
        {"winogrande.jsonl", VPTQ_TASK_WINOGRANDE, 2, 0, "Mom wanted Ben to sleep, but Mom",
         " wanted to play with the snake_case ball .", 2, 1, 32},
        {"copa.jsonl", VPTQ_TASK_COPA, 1, 0, "It rained all day therefore",
         "  the sun was hot.", 2, 1, 17},
        {"copa.jsonl", VPTQ_TASK_COPA, 2, 0, "Elle est là because", "  éva l'a dit.", 2, 1, 13},
        {"boolq.jsonl", VPTQ_TASK_BOOLQ, 1, 1,
         "The sky is blue.\nQuestion: is the sky made of cheese?\nAnswer:", " yes", 2, 0, 3},
        {"lambada_openai.jsonl", VPTQ_TASK_LAMBADA, 2, 0,
         "The cat sat on the mat, and the dog sat on the mat", " ", 1, 0, 0},
        {"lambada_openai.jsonl", VPTQ_TASK_LAMBADA, 3, 0, "", " Hello", 1, 0, 5},
        {"choices.jsonl", VPTQ_TASK_CHOICES, 1, 0,
         "Question: Where do fish live?\n\nAnswer: ", "in the water", 2, 0, 12},
        {"schema.jsonl", VPTQ_TASK_SCHEMA, 1, 1,
         "The toy did not fit in the box because the box ", " was too small.", 2, 1, 47},
        {"endings.txt", VPTQ_TASK_ENDINGS, 1, 2, "Cooking: A man cuts an apple.",
         " Then the apple cuts him.", 4, 0, 24},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_form(&cases[i]);
}

/* ---- files ---- */

static vptq_status read_text(const char *dir, const char *text, size_t size,
                             const vptq_task_file_options *opt, vptq_task_file *f,
                             vptq_err *err)
{
    static char path[4096];
    vtest_path(path, sizeof path, dir, "items");
    vtest_write_file(path, text, size);
    return vptq_task_file_read(path, opt, &ctx, f, err);
}

static void test_lines(void **state)
{
    const char text[] = "\n{\"text\": \"a b\"}\r\n \t\n  {\"text\": \"c\", \"more\": [1]}";
    vptq_task_file f;
    vptq_err err = {0};
    assert_ok(read_text(*state, text, sizeof text - 1, &plain, &f, &err), &err);
    assert_int_equal(f.count, 2);
    assert_int_equal(f.items[0].line, 2);
    assert_int_equal(f.items[1].line, 4);
    vptq_task_file_release(&f);
    assert_ok(read_text(*state, "\xef\xbb\xbf{\"text\": \"a b\"}", 18, &plain, &f, &err), &err);
    assert_int_equal(f.items[0].line, 1);
    vptq_task_file_release(&f);
    vptq_task_file_options one = plain;
    one.limit = 1; /* the limit ends reading before the next line */
    assert_ok(read_text(*state, "{\"text\": \"a b\"}\n{", 17, &one, &f, &err), &err);
    assert_int_equal(f.count, 1);
    vptq_task_file_release(&f);
}

/* All spellings of the right answer, and a delimiter. */
static void test_gold(void **state)
{
    const char boolq[] = "{\"passage\": \"p\", \"question\": \"q\", \"answer\": true}";
    const char choices[] =
        "{\"query\": \"q\", \"choices\": [\"a\", \"b\", \"c\"], \"gold\": \"2\"}";
    vptq_task_file f;
    vptq_err err = {0};
    assert_ok(read_text(*state, boolq, sizeof boolq - 1, &plain, &f, &err), &err);
    assert_int_equal(f.items[0].gold, 1);
    vptq_task_file_release(&f);
    vptq_task_file_options spaced = plain;
    spaced.delimiter = " -> ";
    assert_ok(read_text(*state, choices, sizeof choices - 1, &spaced, &f, &err), &err);
    assert_int_equal(f.items[0].gold, 2);
    check_text(f.items[0].requests[2].context, "q -> ");
    check_text(f.items[0].requests[2].continuation, "c");
    vptq_task_file_release(&f);
}

typedef struct bad_case {
    const char *text, *part;
} bad_case;

#define CHOICES(list, gold) "{\"query\":\"q\",\"choices\":" list ",\"gold\":" gold "}"
#define ARC(labels, key)                                                                       \
    "{\"question\":\"q\",\"choices\":{\"text\":[\"a\",\"b\"],\"label\":" labels                \
    "},\"answerKey\":\"" key "\"}"

static void test_refused(void **state)
{
    const bad_case cases[] = {
        {"", "items: the file has no items"},
        {"\n \n", "items: the file has no items"},
        {"{}", "items: line 1: not a known form of item: it has none of the keys 'answerKey'"},
        {"\n{\"q\": 1}", "items: line 2: not a known form"},
        {"{\"text\": \"a\"\n", "items: line 1, column"},
        {"{\"text\": \"a\", \"text\": \"b\"}", "duplicate key 'text'"},
        {"{\"text\": \"\\u0000\"}", "items: line 1, column"},
        {"{\"text\": 3}", "items: line 1: key 'text' is a whole number, expected a string"},
        {"{\"text\": \"\xff\"}", "items: line 1 is not UTF-8 at byte 10"},
        {"{\"text\": \"\xed\xa0\x80\"}", "is not UTF-8"},
        {"{\"text\": \"a\"}\n[]", "items: line 2"},
        {"{\"text\": \"a\"}\n{\"query\": \"a\"}",
         "items: line 2: an item of the form choices in a file of LAMBADA"},
        {CHOICES("[]", "0"), "key 'choices' has 0 entries, expected 2 to 64"},
        {CHOICES("[\"a\"]", "0"), "key 'choices' has 1 entries"},
        {CHOICES("\"ab\"", "0"), "key 'choices' is not an array, expected an array of strings"},
        {CHOICES("[\"a\",1]", "0"), "entry 1 of 'choices' is not a string"},
        {CHOICES("[\"a\",\"\"]", "0"), "entry 1 of 'choices' is empty"},
        {CHOICES("[\"a\",\"b\"]", "2"), "key 'gold' is not the number of a choice, 0 to 1"},
        {CHOICES("[\"a\",\"b\"]", "-1"), "key 'gold' is not"},
        {CHOICES("[\"a\",\"b\"]", "0.0"), "key 'gold' is not"},
        {CHOICES("[\"a\",\"b\"]", "\"\""), "key 'gold' is not"},
        {CHOICES("[\"a\",\"b\"]", "\"1x\""), "key 'gold' is not"},
        {CHOICES("[\"a\",\"b\",\"c\"]", "true"), "key 'gold' is not"},
        {CHOICES("[\"a\",\"b\"]", "99999999999999"), "key 'gold' is not"},
        {"{\"query\":\"q\",\"choices\":[\"a\",\"b\"]}", "line 1: key 'gold' is missing"},
        {"{\"query\":\"q\",\"gold\":0}", "key 'choices' is missing, expected an array"},
        {ARC("[\"A\"]", "A"), "key 'label' has 1 entries"},
        {ARC("[\"A\",\"B\",\"C\"]", "A"), "3 labels for 2 choices"},
        {ARC("[\"A\",\"B\"]", "C"), "key 'answerKey' is 'C', which no choice has"},
        {"{\"answerKey\":\"A\",\"question\":\"q\",\"choices\":[\"a\"]}",
         "key 'choices' is not an object, expected an object"},
        {"{\"goal\":\"g\",\"sol1\":\"a\",\"label\":0}", "line 1: key 'sol2' is missing"},
        {"{\"goal\":\"g\",\"sol1\":\"a\",\"sol2\":\"b\",\"label\":-1}", "key 'label' is not"},
        {"{\"sentence\":\"no gap\",\"option1\":\"a\",\"option2\":\"b\",\"answer\":\"1\"}",
         "key 'sentence' has no '_'"},
        {"{\"sentence\":\"a _\",\"option1\":\"a\",\"option2\":\"b\",\"answer\":\"0\"}",
         "key 'answer' is not the number of a choice, 1 to 2"},
        {"{\"premise\":\"p.\",\"choice1\":\"a\",\"choice2\":\"b\",\"question\":\"why\","
         "\"label\":0}",
         "neither 'cause' nor 'effect'"},
        {"{\"premise\":\"p.\",\"choice1\":\"\",\"choice2\":\"b\",\"question\":\"cause\","
         "\"label\":0}",
         "key 'choice1' is empty"},
        {"context\n4\na\nb\nc\nd\n",
         "items: line 1: the next line is '4', expected the number of the right ending"},
        {"context\nnot a number\na\nb\nc\nd\n", "the next line is 'not a number'"},
        {"context\n1\na\nb\nc\n", "items: line 1: the file ends within the item of six lines"},
        {"context\n1\na\nb\n\nd\n", "items: line 5 is empty within an item"},
        {"context\n1\na\n\xff\nc\nd\n", "items: line 4 is not UTF-8 at byte 0"},
        {"context\n1\na\nb\nc\nd\ncontext\n1\n", "items: line 7: the file ends"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        vptq_task_file f;
        vptq_err err = {0};
        assert_fails(read_text(*state, cases[i].text, strlen(cases[i].text), &plain, &f, &err),
                     VPTQ_E_FORMAT, &err, cases[i].part);
    }
}

/* The name of a known set accepts only that set; too long a text. */
static void test_names_and_sizes(void **state)
{
    vptq_task_file f;
    vptq_err err = {0};
    const vptq_task_file_options piqa = {.task = "piqa", .delimiter = ""};
    const vptq_task_file_options lambada = {.task = "lambada", .delimiter = ""};
    const char endings[] = "context\n1\na\nb\nc\nd\n", text[] = "{\"text\": \"a\"}";
    assert_fails(read_text(*state, endings, sizeof endings - 1, &piqa, &f, &err), VPTQ_E_FORMAT,
                 &err, "items: line 1 is an item of HellaSwag, not of piqa");
    assert_fails(read_text(*state, text, sizeof text - 1, &piqa, &f, &err), VPTQ_E_FORMAT, &err,
                 "items: line 1 is an item of LAMBADA, not of piqa");
    assert_ok(read_text(*state, text, sizeof text - 1, &lambada, &f, &err), &err);
    vptq_task_file_release(&f);
    char *line = vtest_alloc(VPTQ_TASK_LINE_MAX + 1, 1);
    memset(line, 'x', VPTQ_TASK_LINE_MAX + 1);
    assert_fails(read_text(*state, line, VPTQ_TASK_LINE_MAX + 1, &plain, &f, &err),
                 VPTQ_E_FORMAT, &err, "items: line 1 has 1048577 bytes, expected at most");
    free(line);
    assert_fails(vptq_task_file_read("no-such-items", &plain, &ctx, &f, &err), VPTQ_E_IO, &err,
                 "no-such-items");
}

static vptq_status read_all(void *arg, vptq_mem *mem, vptq_err *err)
{
    static const char *const names[] = {"arc_easy.jsonl", "hellaswag.jsonl", "copa.jsonl",
                                        "endings.txt"};
    const vptq_ctx capped = {.mem = mem, .threads = 1};
    vptq_status st = VPTQ_OK;
    (void)arg;
    for (size_t i = 0; i < sizeof names / sizeof *names && !st; i++) {
        char path[128];
        vptq_task_file f;
        snprintf(path, sizeof path, GOLDEN "%s", names[i]);
        st = vptq_task_file_read(path, &plain, &capped, &f, err);
        if (!st)
            vptq_task_file_release(&f);
    }
    return st;
}

static void test_no_memory(void **state)
{
    (void)state;
    vtest_oom_walk(read_all, NULL);
}

VTEST_MAIN(cmocka_unit_test(test_texts), cmocka_unit_test(test_many_brackets),
           cmocka_unit_test(test_forms), scratch_test(test_lines), scratch_test(test_gold),
           scratch_test(test_refused), scratch_test(test_names_and_sizes),
           cmocka_unit_test(test_no_memory))
