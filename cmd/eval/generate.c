/* vptq-eval generate: continues a prompt, or answers it with the chat template. */
#include "cmd/eval/eval.h"

#include <stdio.h>
#include <string.h>

enum { MAX_PROMPT = 64 << 20 }; /* bytes */

typedef struct generate_command {
    const char *model, *tokenizer, *base, *prompt, *prompt_file;
    uint64_t tokens;
    double temperature, top_p;
    bool special, ignore_eos, chat;
    const char *system, *messages, *template_file, *date;
    vptq_cli_strings args, stops;
} generate_command;

/* Generated text: printed as it comes, or collected for JSON. */
typedef struct generated {
    bool stream, began;
    const char *prompt; /* printed before it; NULL in a chat */
    vptq_buf text;
    vptq_status status;
    vptq_err *err;
} generated;

static void print_prompt(generated *g)
{
    if (!g->began && g->prompt)
        fputs(g->prompt, stdout);
    g->began = true;
}

static void take_text(void *arg, const char *text, size_t len)
{
    generated *g = arg;
    if (g->stream) {
        print_prompt(g);
        fwrite(text, 1, len, stdout);
        fflush(stdout);
    } else if (!g->status) {
        g->status = vptq_buf_add(&g->text, text, len, g->err);
    }
}

/* A prompt and its continuation, as printed. */
typedef struct generate_row {
    const char *prompt, *text, *model, *reason;
    size_t tokens;
    vptq_id_list ids;
    vptq_generate_result r;
} generate_row;

static void print_generated(const vptq_cli *cli, const generate_command *c, generated *g,
                            const char *prompt, const vptq_generate_result *r)
{
    if (g->stream) {
        print_prompt(g);
        putchar('\n');
        fflush(stdout);
        return;
    }
    const generate_row row = {.prompt = prompt,
                              .text = g->text.len ? g->text.data : "",
                              .model = c->model,
                              .reason = vptq_stop_reason_name(r->reason),
                              .tokens = r->prompt_tokens + r->new_tokens,
                              .r = *r};
    static const vptq_column columns[] = {
        {.name = "prompt", VPTQ_TEXT(generate_row, prompt)},
        {.name = "text", VPTQ_TEXT(generate_row, text)},
        {.name = "tokens", VPTQ_INTEGER(generate_row, tokens)},
        {.name = "prompt_tokens", VPTQ_INTEGER(generate_row, r.prompt_tokens)},
        {.name = "new_tokens", VPTQ_INTEGER(generate_row, r.new_tokens)},
        {.name = "tokens_per_second", VPTQ_REAL(generate_row, r.tokens_per_second)},
        {.name = "prompt_tokens_per_second",
         VPTQ_REAL(generate_row, r.prompt_tokens_per_second)},
        {.name = "stop_reason", VPTQ_TEXT(generate_row, reason)},
        {.name = "model", VPTQ_TEXT(generate_row, model)}};
    vptq_print_object(&cli->out, VPTQ_COLUMNS(columns), &row, NULL);
}

/* ---- the prompt ---- */

static vptq_status read_stdin(vptq_buf *text, vptq_err *err)
{
    char piece[4096];
    vptq_status st = VPTQ_OK;
    for (size_t n; !st && (n = fread(piece, 1, sizeof piece, stdin)) > 0;)
        st = text->len + n > MAX_PROMPT
                 ? vptq_fail(err, VPTQ_E_FORMAT, "stdin: more than %d bytes", MAX_PROMPT)
                 : vptq_buf_add(text, piece, n, err);
    if (!st && ferror(stdin))
        st = vptq_fail(err, VPTQ_E_IO, "stdin: cannot be read");
    return st;
}

static vptq_status read_file(const char *path, vptq_buf *text, vptq_err *err)
{
    char *data = NULL;
    size_t size = 0;
    vptq_status st = vptq_file_read(path, MAX_PROMPT, text->mem, &data, &size, err);
    if (!st)
        st = vptq_buf_add(text, data, size, err);
    vptq_mem_free(text->mem, data);
    return st;
}

/* Reads the prompt of -p, a file or stdin; the latter two lose one newline at the end.  Sets
 * *given if there is a prompt. */
static vptq_status read_prompt(const generate_command *c, vptq_buf *text, bool *given,
                               vptq_err *err)
{
    bool from_stdin = c->prompt && strcmp(c->prompt, "-") == 0;
    *given = c->prompt || c->prompt_file;
    if (c->prompt && !from_stdin)
        return vptq_buf_add(text, c->prompt, strlen(c->prompt), err);
    if (!*given)
        return VPTQ_OK;
    vptq_status st = from_stdin ? read_stdin(text, err) : read_file(c->prompt_file, text, err);
    const char *name = from_stdin ? "stdin" : c->prompt_file;
    if (!st && memchr(text->data, 0, text->len))
        st = vptq_fail(err, VPTQ_E_FORMAT, "%s: the prompt contains a zero byte", name);
    if (!st && text->len > 0 && text->data[text->len - 1] == '\n')
        text->data[--text->len] = 0;
    return st;
}

/* Makes the text that the model sees, its ids, and the stop tokens of a reply. */
static vptq_status make_prompt(const vptq_cli *cli, const generate_command *c,
                               const vptq_model *m, vptq_buf *prompt, vptq_ids *ids,
                               vptq_ids *stop_tokens, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    bool given;
    vptq_buf text;
    unsigned flags = VPTQ_ENCODE_BOS | (c->special ? VPTQ_ENCODE_SPECIAL : 0);
    vptq_buf_init(&text, cli->ctx->mem);
    VPTQ_TRY(read_prompt(c, &text, &given, err));
    if (c->chat) {
        const vptq_chat_options chat = {.template_file = c->template_file,
                                        .system = c->system,
                                        .messages = c->messages,
                                        .user = given ? text.data : NULL,
                                        .date = c->date,
                                        .args = c->args.items,
                                        .arg_count = c->args.count};
        VPTQ_TRY(vptq_chat_prompt(cli->ctx, m, &chat, prompt, stop_tokens, err));
        flags = VPTQ_ENCODE_SPECIAL; /* the template writes the BOS */
    } else {
        VPTQ_TRY(vptq_buf_add(prompt, text.data, text.len, err));
    }
    st = vptq_tokenizer_encode(m->tokenizer, prompt->data, prompt->len, flags, ids, err);
out:
    vptq_buf_release(&text);
    return st;
}

/* Prints text and ids of the prompt for --dry-run. */
static void show_prompt(const vptq_cli *cli, const generate_command *c, const vptq_buf *prompt,
                        const vptq_ids *ids)
{
    if (cli->common.format == CLI_JSON) {
        static const vptq_column columns[] = {
            {.name = "prompt", VPTQ_TEXT(generate_row, prompt)},
            {.name = "prompt_tokens", VPTQ_INTEGER(generate_row, ids.count)},
            {.name = "ids", VPTQ_IDS(generate_row, ids)},
            {.name = "model", VPTQ_TEXT(generate_row, model)}};
        const generate_row row = {
            .prompt = prompt->data, .model = c->model, .ids = {ids->data, ids->count}};
        vptq_print_object(&cli->out, VPTQ_COLUMNS(columns), &row, NULL);
        return;
    }
    printf("%s\n%zu tokens:", prompt->data, ids->count);
    for (size_t i = 0; i < ids->count; i++)
        printf(" %d", (int)ids->data[i]);
    putchar('\n');
}

/* ---- the command ---- */

static vptq_status generate(vptq_cli *cli, const generate_command *c, vptq_cli_eval *s,
                            const vptq_buf *prompt, vptq_ids *ids, const vptq_ids *stop_tokens,
                            vptq_err *err)
{
    vptq_generate_result r = {.new_tokens = 0};
    generated g = {.stream = cli->common.format != CLI_JSON,
                   .prompt = c->chat ? NULL : prompt->data,
                   .err = err};
    const vptq_generate_options opt = {.prompt = prompt->len ? NULL : "",
                                       .tokens = c->tokens,
                                       .temperature = c->temperature,
                                       .top_p = c->top_p,
                                       .seed = cli->common.seed,
                                       .special = c->special,
                                       .ignore_eos = c->ignore_eos,
                                       .stop_tokens = stop_tokens->data,
                                       .stop_token_count = stop_tokens->count,
                                       .stops = c->stops.items,
                                       .stop_count = c->stops.count};
    vptq_buf_init(&g.text, cli->ctx->mem);
    if (!prompt->len)
        ids->count = 0; /* the library encodes the empty prompt as the beginning of a text */
    vptq_status st = vptq_eval_generate(&s->dev, &s->model, &opt, take_text, &g, ids, &r, err);
    if (g.status)
        st = g.status;
    /* an interrupted run prints its text, too */
    if (!st || (st == VPTQ_E_CANCELLED && r.new_tokens > 0))
        print_generated(cli, c, &g, prompt->data, &r);
    if (!st)
        vptq_log(cli->ctx, VPTQ_LOG_MORE,
                 "%zu tokens of prompt, %.1f per second; %zu new ones, %.1f per second; "
                 "ended by %s",
                 r.prompt_tokens, r.prompt_tokens_per_second, r.new_tokens, r.tokens_per_second,
                 vptq_stop_reason_name(r.reason));
    vptq_buf_release(&g.text);
    return st;
}

static int run_generate(vptq_cli *cli, const generate_command *c)
{
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    vptq_cli_eval s = {.has_dev = false};
    vptq_ids ids, stop_tokens;
    vptq_buf prompt;
    vptq_ids_init(&ids, cli->ctx->mem);
    vptq_ids_init(&stop_tokens, cli->ctx->mem);
    vptq_buf_init(&prompt, cli->ctx->mem);
    VPTQ_TRY(vptq_cli_eval_open(&s, cli, c->model, c->tokenizer, c->base, true, &err));
    VPTQ_TRY(make_prompt(cli, c, &s.model, &prompt, &ids, &stop_tokens, &err));
    if (cli->common.dry_run)
        show_prompt(cli, c, &prompt, &ids);
    else
        VPTQ_TRY(generate(cli, c, &s, &prompt, &ids, &stop_tokens, &err));
out:
    vptq_cli_eval_close(&s);
    vptq_buf_release(&prompt);
    vptq_ids_release(&stop_tokens);
    vptq_ids_release(&ids);
    return vptq_cli_finish(cli, st, &err);
}

/* Returns 0 or CLI_USAGE. */
static int check_usage(const vptq_cli *cli, const generate_command *c)
{
    const struct {
        const char *name;
        bool given;
    } chat_only[] = {{"system", c->system != NULL},
                     {"messages", c->messages != NULL},
                     {"chat-template", c->template_file != NULL},
                     {"template-arg", c->args.count > 0},
                     {"date", c->date != NULL}};
    for (size_t i = 0; i < sizeof chat_only / sizeof *chat_only; i++)
        if (chat_only[i].given && !c->chat)
            return vptq_cli_usage_error(cli, "--%s needs --chat", chat_only[i].name);
    if (c->prompt && c->prompt_file)
        return vptq_cli_usage_error(cli, "--prompt and --prompt-file exclude each other");
    if (c->chat && !c->prompt && !c->prompt_file && !c->messages)
        return vptq_cli_usage_error(cli, "--chat needs --prompt, --prompt-file or --messages");
    return 0;
}

int vptq_cli_generate(int argc, char **argv)
{
    generate_command c = {.tokens = 64, .top_p = 1};
    const vptq_cli_option options[] = {
        {'m', "model", CLI_STRING, &c.model, "MODEL", "model to run", true},
        {0, "tokenizer", CLI_STRING, &c.tokenizer, "FILE", "tokenizer to use with the model",
         false},
        {0, "base", CLI_STRING, &c.base, "MODEL",
         "the original model of a work directory, if it was moved", false},
        {'p', "prompt", CLI_STRING, &c.prompt, "TEXT", "text to continue; '-' reads stdin",
         false},
        {0, "prompt-file", CLI_STRING, &c.prompt_file, "FILE", "text to continue, from a file",
         false},
        {'n', "max-tokens", CLI_U64, &c.tokens, "N",
         "maximum number of new tokens; 0 = until the text ends or the context is full", false},
        {0, "temperature", CLI_DOUBLE, &c.temperature, "X",
         "sampling temperature; 0 = the likeliest token", false},
        {0, "top-p", CLI_DOUBLE, &c.top_p, "X",
         "draw from the likeliest tokens whose probabilities sum to X", false},
        {0, "stop", CLI_STRINGS, &c.stops, "TEXT", "end before this text; may be repeated",
         false},
        {0, "special", CLI_FLAG, &c.special, NULL,
         "recognize special tokens in the prompt, and print them", false},
        {0, "ignore-eos", CLI_FLAG, &c.ignore_eos, NULL, "continue after a stop token", false},
        {0, NULL, CLI_FLAG, NULL, NULL, "Chats", false},
        {0, "chat", CLI_FLAG, &c.chat, NULL,
         "apply the model's chat template to the prompt as a user message", false},
        {0, "system", CLI_STRING, &c.system, "TEXT", "system message before the prompt", false},
        {0, "messages", CLI_STRING, &c.messages, "FILE",
         "JSON list of messages before the prompt", false},
        {0, "chat-template", CLI_STRING, &c.template_file, "FILE",
         "Jinja template instead of the model's", false},
        {0, "template-arg", CLI_STRINGS, &c.args, "NAME=JSON",
         "variable of the template; may be repeated", false},
        {0, "date", CLI_STRING, &c.date, "DATE",
         "YYYY-MM-DD[Thh:mm:ss], current date for templates that use one (default: none)",
         false},
        CLI_END};
    vptq_cli cli = {
        .tool = "vptq-eval",
        .command = "generate",
        .summary = "continue a prompt, or answer it",
        .usage = "vptq-eval generate -m MODEL -p PROMPT [-n N] [--temperature X] [--top-p X]\n"
                 "vptq-eval generate -m MODEL --chat -p QUESTION [--system TEXT]",
        .examples = "  vptq-eval generate -m packed -p 'Once upon a time' -n 100\n"
                    "  vptq-eval generate -m packed -p Hello --temperature 0.8 --seed 7\n"
                    "  vptq-eval generate -m packed --chat -p 'What is 2 + 2?' -n 0\n"
                    "  vptq-eval generate -m packed --chat -p Hello --dry-run\n",
        .options = options,
        .formats = "text|json",
        .omit = "force"};
    int code;
    if (vptq_cli_parse(&cli, argc, argv, 2, &code)) {
        code = check_usage(&cli, &c);
        if (!code)
            code = run_generate(&cli, &c);
    }
    vptq_cli_release(&cli);
    return code;
}
