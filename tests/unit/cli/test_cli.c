/* Parsing, help, messages and exit codes of a small command, run in a child process whose
 * output goes to files. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmd/cli/cli.h"
#include "lib/base/ctx.h"
#include "tests/support/vtest.h"

typedef struct settings {
    const char *model, *name;
    vptq_cli_strings texts;
    uint32_t v;
    uint64_t n, cache;
    double ridge;
    bool norm, rows;
    int dtype;
    vptq_cli_range layers;
} settings;

typedef struct outcome {
    int status;
    char *out, *err;
} outcome;

typedef int (*body_fn)(vptq_cli *cli, const settings *s);

static int print_all(vptq_cli *cli, const settings *s)
{
    printf("model=%s name=%s v=%" PRIu32 " n=%" PRIu64 " cache=%" PRIu64 " ridge=%g\n",
           s->model, s->name ? s->name : "-", s->v, s->n, s->cache, s->ridge);
    printf("norm=%d rows=%d dtype=%d layers=%" PRIu32 "-%" PRIu32 "\n", s->norm, s->rows,
           s->dtype, s->layers.first, s->layers.last);
    for (size_t i = 0; i < s->texts.count; i++)
        printf("text=%s\n", s->texts.items[i]);
    for (size_t i = 0; i < cli->arg_count; i++)
        printf("arg=%s\n", cli->args[i]);
    printf("threads=%d seed=%" PRIu64 " mem=%zu force=%d format=%d quiet=%d verbose=%d\n",
           cli->ctx->threads, cli->common.seed, cli->ctx->mem->cap, cli->common.force,
           cli->common.format, cli->common.quiet, cli->common.verbose);
    return vptq_cli_finish(cli, VPTQ_OK, NULL);
}

static int run_command(int argc, char **argv, bool operands, body_fn body)
{
    settings s = {.v = 8, .n = 128, .norm = true, .ridge = 0.01, .layers = {0, UINT32_MAX}};
    const vptq_cli_option options[] = {
        CLI_HEADING("Input"),
        {'m', "model", CLI_STRING, &s.model, "PATH", "model to read"},
        {'c', "text", CLI_STRINGS, &s.texts, "FILE", "text; may be repeated"},
        {0, "name", CLI_STRING, &s.name, "NAME", "a name"},
        CLI_HEADING("Settings"),
        {'v', "vector-length", CLI_U32, &s.v, "V", "rows of a vector"},
        {'n', "windows", CLI_U64, &s.n, "N", "windows at most"},
        {0, "cache", CLI_SIZE, &s.cache, "SIZE", "cache"},
        {0, "ridge", CLI_DOUBLE, &s.ridge, "X", "share of the mean diagonal"},
        {0, "no-norm", CLI_UNFLAG, &s.norm, NULL, "no normalization"},
        {0, "rows", CLI_FLAG, &s.rows, NULL,
         "a help text that is long enough to be broken into two lines of the narrow column "
         "where it stands"},
        {0, "dtype", CLI_CHOICE, &s.dtype, "f16|bf16", "storage type"},
        {0, "layers", CLI_RANGE, &s.layers, "A-B", "only these layers"},
        CLI_END};
    vptq_cli cli = {.tool = "vptq-test",
                    .command = "run",
                    .summary = "Does nothing.",
                    .usage = "vptq-test run -m MODEL [FILE..]\nvptq-test run --other",
                    .examples = "That is all.",
                    .options = options,
                    .required = "model",
                    .formats = "text|json",
                    .omit = "dry-run",
                    .operands = operands};
    int code;
    if (vptq_cli_parse(&cli, argc, argv, 2, &code))
        code = body(&cli, &s);
    vptq_cli_release(&cli);
    return code;
}

/* The child leaves with exit: it takes the test runner's state with it, but nothing is shared,
 * and standard output is flushed as in a real tool. */
static outcome run_tool(const char *dir, const char *words, bool operands, body_fn body)
{
    char text[512], out[4096], err[4096];
    char *argv[32] = {NULL};
    int argc = 0;
    size_t size;
    outcome o = {0};
    vtest_path(out, sizeof out, dir, "out");
    vtest_path(err, sizeof err, dir, "err");
    snprintf(text, sizeof text, "vptq-test run %s", words);
    for (char *p = text; *p;) {
        argv[argc++] = p;
        p += strcspn(p, " ");
        if (*p)
            *p++ = 0;
    }
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        if (!freopen(out, "w", stdout) || !freopen(err, "w", stderr))
            _exit(99);
        int code = run_command(argc, argv, operands, body);
        fflush(NULL);
        _exit(code);
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &o.status, 0), pid);
    o.out = vtest_read_file(out, &size);
    o.err = vtest_read_file(err, &size);
    return o;
}

static outcome run_body(const char *dir, const char *words, body_fn body)
{
    return run_tool(dir, words, true, body);
}

static outcome run(const char *dir, const char *words)
{
    return run_body(dir, words, print_all);
}

static void done(outcome *o)
{
    free(o->out);
    free(o->err);
}

/* Exit code and a part of each stream ("" = must be empty). */
static void expect(outcome o, int code, const char *out, const char *err)
{
    bool good = WIFEXITED(o.status) && WEXITSTATUS(o.status) == code;
    good = good && (*out ? strstr(o.out, out) != NULL : !*o.out);
    good = good && (*err ? strstr(o.err, err) != NULL : !*o.err);
    if (!good)
        print_error("status %d\nstdout: %s\nstderr: %s\nexpected %d, '%s', '%s'\n", o.status,
                    o.out, o.err, code, out, err);
    done(&o);
    assert_true(good);
}

static void test_values(void **state)
{
    expect(run(*state, "-m A"), 0,
           "model=A name=- v=8 n=128 cache=0 ridge=0.01\n"
           "norm=1 rows=0 dtype=0 layers=0-4294967295\n",
           "");
    expect(run(*state, "x --model=A -v4 --name B y -n 5 --cache 2K -- -z"), 0,
           "model=A name=B v=4 n=5 cache=2048", "");
    expect(run(*state, "x -m A y -- -z"), 0, "arg=x\narg=y\narg=-z\n", "");
    expect(run(*state, "-mA -c1 -c 2 --text=3"), 0, "text=1\ntext=2\ntext=3\n", "");
    expect(run(*state, "-m A --no-norm --rows --dtype bf16 --layers 2-5"), 0,
           "norm=0 rows=1 dtype=1 layers=2-5\n", "");
    expect(run(*state, "-m A --cache 1.5G"), 0, " cache=1610612736 ", "");
    expect(run(*state, "-m A --cache 0.001k"), 0, " cache=1 ", "");
    expect(run(*state, "-m A --cache 16777215.999999999T"), 0, " cache=18446744073709550516 ",
           "");
    expect(run(*state, "-m A -t 3 --seed 9 --mem 1M -f --format json -qq --verbose"), 0,
           "threads=3 seed=9 mem=1048576 force=1 format=1 quiet=2 verbose=1\n", "");
}

static void test_usage_errors(void **state)
{
    static const char *const cases[][2] = {
        {"", "missing option: -m/--model PATH"},
        {"-m", "option '-m' needs a value"},
        {"-m A --seed", "option '--seed' needs a value"},
        {"-m A --nonsense", "unknown option '--nonsense'\n"},
        {"-m A --tokens=1", "unknown option '--tokens=1'\n"},
        {"-m A --thraeds 2", "unknown option '--thraeds'; did you mean --threads?"},
        {"-m A --vectorlength=4", "'--vectorlength=4'; did you mean --vector-length?"},
        {"-m A --dry-run", "unknown option '--dry-run'"},
        {"-m A --no", "ambiguous option '--no'"},
        {"-m A -x", "unknown option '-x'"},
        {"-m A --rows=1", "option '--rows=1' takes no value"},
        {"-m A -t x", "--threads x: expected 0 to 4096"},
        {"-m A -t 5000", "--threads 5000: expected"},
        {"-m A -v 1e3", "--vector-length 1e3: expected"},
        {"-m A --seed -1", "--seed -1: expected a whole number"},
        {"-m A --mem 1.5", "--mem 1.5: expected a number of bytes"},
        {"-m A --mem 1.G", "--mem 1.G: expected a number of bytes"},
        {"-m A --mem 1.0123456789G", "--mem 1.0123456789G: expected a number of bytes"},
        {"-m A --ridge nan", "--ridge nan: expected a number"},
        {"-m A --layers 5-2", "--layers 5-2: expected A-B"},
        {"-m A --dtype f32", "--dtype f32: expected f16|bf16"},
        {"-m A --format csv", "--format csv: expected text|json"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect(run(*state, cases[i][0]), 2, "", cases[i][1]);
        expect(run(*state, cases[i][0]), 2, "", "try 'vptq-test run --help'\n");
    }
    expect(run_tool(*state, "-m A x y", false, print_all), 2, "", "unexpected argument 'x'");
    expect(run_tool(*state, "-m A -- -z", false, print_all), 2, "", "unexpected argument '-z'");
    expect(run_tool(*state, "-m A", false, print_all), 0, "model=A", "");
}

static void test_help(void **state)
{
    static const char *const parts[] = {
        "usage: vptq-test run -m MODEL [FILE..]\n       vptq-test run --other\n",
        "\nDoes nothing.\n",
        "\nInput:\n  -m, --model PATH            model to read (required)\n",
        "\nSettings:\n  -v, --vector-length V       rows of a vector (default: 8)\n",
        "      --ridge X               share of the mean diagonal (default: 0.01)\n",
        "      --rows                  a help text that is long enough to be broken into two "
        "lines of the\n                              narrow column where it stands\n",
        "      --dtype f16|bf16        storage type (default: f16)\n",
        "      --layers A-B            only these layers\n",
        "\nCommon options:\n  -t, --threads N ",
        "      --verbose               print more", /* -v is the vector length here */
        "  -h, --help                  show this help\n",
        "\nThat is all.\n"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        expect(run(*state, "--help"), 0, parts[i], "");
    /* Defaults are those before the command line, errors in it do not matter. */
    expect(run(*state, "-v 4 --nonsense -h"), 0, "rows of a vector (default: 8)", "");
    outcome o = run(*state, "-h");
    assert_null(strstr(o.out, "dry-run"));
    done(&o);
}

static void test_version(void **state)
{
    expect(run(*state, "-V"), 0, "vptq-test " VPTQ_VERSION "\n", "");
    expect(run(*state, "-V"), 0, "\ncommit: ", "");
    expect(run(*state, "-V"), 0, "\nfeatures: ", "");
    expect(run(*state, "--version --verbose --backend ref"), 0, "compiler: ", "");
    expect(run(*state, "--version --verbose --backend ref"), 0, "backend ref: ", "");
}

static int fail_with(vptq_cli *cli, vptq_status code)
{
    vptq_err err = {0};
    return vptq_cli_finish(cli, vptq_fail(&err, code, "'x' is bad"), &err);
}

static int body_format(vptq_cli *cli, const settings *s)
{
    (void)s;
    return fail_with(cli, VPTQ_E_FORMAT);
}

static int body_exists(vptq_cli *cli, const settings *s)
{
    (void)s;
    return fail_with(cli, VPTQ_E_EXISTS);
}

static int body_arg(vptq_cli *cli, const settings *s)
{
    (void)s;
    return fail_with(cli, VPTQ_E_ARG);
}

static int body_usage(vptq_cli *cli, const settings *s)
{
    (void)s;
    return vptq_cli_usage_error(cli, "give %s", "-o");
}

static int body_full(vptq_cli *cli, const settings *s)
{
    (void)s;
    if (!freopen("/dev/full", "w", stdout))
        return 98;
    puts("a result");
    return vptq_cli_finish(cli, VPTQ_OK, NULL);
}

static void test_exit_codes(void **state)
{
    expect(run_body(*state, "-mA", body_format), 1, "", "vptq-test: 'x' is bad\n");
    expect(run_body(*state, "-mA", body_exists), 1, "",
           "vptq-test: 'x' is bad (--force replaces it)\n");
    expect(run_body(*state, "-mA", body_arg), 2, "", "vptq-test: 'x' is bad\n");
    expect(run_body(*state, "-mA", body_usage), 2, "",
           "vptq-test: give -o\ntry 'vptq-test run --help'\n");
    expect(run_body(*state, "-mA", body_full), 1, "",
           "cannot write to standard output: No space left on device");
}

static int body_signal_once(vptq_cli *cli, const settings *s)
{
    vptq_err err = {0};
    (void)s;
    vptq_status before = vptq_check_cancel(cli->ctx, &err);
    raise(SIGTERM);
    raise(SIGTERM); /* so soon it is the same request */
    vptq_status after = vptq_check_cancel(cli->ctx, &err);
    printf("%d %d\n", before, after);
    return vptq_cli_finish(cli, after, &err);
}

static int body_signal_twice(vptq_cli *cli, const settings *s)
{
    (void)cli;
    (void)s;
    raise(SIGTERM);
    raise(SIGINT); /* another */
    return 97;     /* not reached */
}

static void test_signals(void **state)
{
    expect(run_body(*state, "-mA", body_signal_once), 143, "0 70\n",
           "vptq-test: interrupted\n");
    expect(run_body(*state, "-mA", body_signal_twice), 130, "", "");
}

static int body_messages(vptq_cli *cli, const settings *s)
{
    (void)s;
    vptq_log(cli->ctx, VPTQ_LOG_WARN, "w");
    vptq_log(cli->ctx, VPTQ_LOG_INFO, "i");
    vptq_log(cli->ctx, VPTQ_LOG_MORE, "m");
    vptq_log(cli->ctx, VPTQ_LOG_DEBUG, "d");
    return vptq_cli_finish(cli, VPTQ_OK, NULL);
}

static void test_message_levels(void **state)
{
    static const char *const cases[][2] = {
        {"-mA", "vptq-test: warning: w\nvptq-test: i\n"},
        {"-mA -q", "vptq-test: warning: w\n"},
        {"-mA -qq", ""},
        {"-mA --verbose", "vptq-test: warning: w\nvptq-test: i\nvptq-test: m\n"},
        {"-mA --verbose --verbose",
         "vptq-test: warning: w\nvptq-test: i\nvptq-test: m\nvptq-test: d\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        outcome o = run_body(*state, cases[i][0], body_messages);
        assert_string_equal(o.err, cases[i][1]);
        done(&o);
    }
}

static int body_progress(vptq_cli *cli, const settings *s)
{
    (void)s;
    for (uint64_t i = 2; i <= 5; i++) {
        vptq_progress(cli->ctx, "first", "windows", i, 5, "detail");
        printf("row %" PRIu64 "\n", i);
    }
    vptq_progress(cli->ctx, "first", "windows", 5, 5, NULL); /* its end again: nothing new */
    vptq_progress(cli->ctx, "second", "bytes", 0, 3000000, NULL);
    vptq_progress(cli->ctx, "second", "bytes", 1000000, 3000000, NULL);
    vptq_progress(cli->ctx, "third", "tokens", 7, 0, NULL);
    return vptq_cli_finish(cli, VPTQ_OK, NULL);
}

static void test_progress(void **state)
{
    outcome o = run_body(*state, "-mA", body_progress);
    assert_string_equal(o.out, "row 2\nrow 3\nrow 4\nrow 5\n");
    assert_string_equal(o.err, "first: 2 of 5 windows ...\nfirst: 5 windows in 0.0 s\n"
                               "second: 3.0 MB ...\nthird: 7 tokens ...\n"
                               "second: 1.0 of 3.0 MB in 0.0 s\nthird: 7 tokens in 0.0 s\n");
    done(&o);
    o = run_body(*state, "-mA --no-progress", body_progress);
    assert_string_equal(o.err, "");
    done(&o);
    o = run_body(*state, "-mA -q", body_progress);
    assert_string_equal(o.err, "");
    done(&o);
    o = run_body(*state, "-mA --progress", body_progress);
    assert_string_equal(o.out, "row 2\nrow 3\nrow 4\nrow 5\n");
    assert_non_null(strstr(o.err, "first  40% 2/5 windows  detail\r\033[K"
                                  "first: 5 windows in 0.0 s\n"));
    assert_non_null(strstr(o.err, "second   0% 0.0/3.0 MB\r\033[K"));
    done(&o);
}

/* Two stages that take turns begin and end once. */
static int body_turns(vptq_cli *cli, const settings *s)
{
    (void)s;
    for (uint64_t layer = 0; layer < 3; layer++) {
        vptq_progress_share(cli->ctx, "hessian", "layers", layer, 3, ((double)layer + 0.5) / 3,
                            NULL);
        vptq_progress(cli->ctx, "hessian", "layers", layer + 1, 3, NULL);
        for (uint64_t i = 1; i <= 2; i++)
            vptq_progress(cli->ctx, "quantize", "matrices", 2 * layer + i, 6, NULL);
    }
    return vptq_cli_finish(cli, VPTQ_OK, NULL);
}

static void test_stages_in_turns(void **state)
{
    outcome o = run_body(*state, "-mA", body_turns);
    assert_string_equal(o.err, "hessian: 3 layers ...\nquantize: 1 of 6 matrices ...\n"
                               "hessian: 3 layers in 0.0 s\nquantize: 6 matrices in 0.0 s\n");
    done(&o);
}

VTEST_MAIN(scratch_test(test_values), scratch_test(test_usage_errors), scratch_test(test_help),
           scratch_test(test_version), scratch_test(test_exit_codes),
           scratch_test(test_signals), scratch_test(test_message_levels),
           scratch_test(test_progress), scratch_test(test_stages_in_turns))
