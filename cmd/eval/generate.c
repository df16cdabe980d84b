/* vptq-eval generate: continues a prompt, or answers it with the chat template. */
#include "cmd/eval/eval.h"

#include <string.h>
#include <unistd.h>

typedef struct generate_command {
    const char *model, *tokenizer, *base, *prompt, *prompt_file;
    uint64_t tokens;
    double temperature, top_p;
    bool special, raw, ignore_eos, chat, partial, lossy;
    const char *system, *messages, *template_file, *date;
    vptq_cli_strings args, stops;
} generate_command;

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
    static const char *const sampling[] = {"top-p", "seed"};
    for (size_t i = 0; i < sizeof chat_only / sizeof *chat_only; i++)
        if (chat_only[i].given && !c->chat)
            return vptq_cli_usage_error(cli, "--%s needs --chat", chat_only[i].name);
    if (c->prompt && c->prompt_file)
        return vptq_cli_usage_error(cli, "--prompt and --prompt-file exclude each other");
    if (c->chat && !c->prompt && !c->prompt_file && !c->messages)
        return vptq_cli_usage_error(cli, "--chat needs --prompt, --prompt-file or --messages");
    for (size_t i = 0; i < sizeof sampling / sizeof *sampling; i++)
        if (c->temperature == 0 && vptq_cli_given(cli, sampling[i]))
            return vptq_cli_usage_error(cli, "--%s needs --temperature X above 0", sampling[i]);
    return 0;
}

static int run_generate(vptq_cli *cli, void *arg)
{
    const generate_command *c = arg;
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    vptq_model *model = NULL;
    const bool from_stdin = c->prompt && strcmp(c->prompt, "-") == 0;
    const char *prompt = from_stdin ? NULL : c->prompt;
    const vptq_model_options open = {.tokenizer = c->tokenizer,
                                     .base = c->base,
                                     .partial = c->partial,
                                     .need_tokenizer = true,
                                     .work_only = true};
    if (check_usage(cli, c))
        return CLI_USAGE;
    VPTQ_TRY(vptq_ctx_backend(cli->ctx, NULL, &err));
    VPTQ_TRY(vptq_model_load(cli->ctx, c->model, &open, &model, &err));
    const vptq_chat_options chat = {.template_file = c->template_file,
                                    .system = c->system,
                                    .messages = c->messages,
                                    .user = prompt,
                                    .date = c->date,
                                    .args = c->args.items,
                                    .arg_count = c->args.count};
    const vptq_generate_options opt = {.prompt = prompt,
                                       .chat = c->chat ? &chat : NULL,
                                       .tokens = c->tokens,
                                       .temperature = c->temperature,
                                       .top_p = c->top_p,
                                       .seed = cli->common.seed,
                                       .special = c->special,
                                       .ignore_eos = c->ignore_eos,
                                       .stops = c->stops.items,
                                       .stop_count = c->stops.count,
                                       .printable = !c->raw && isatty(STDOUT_FILENO),
                                       .dry_run = cli->common.dry_run,
                                       .prompt_file = from_stdin ? "-" : c->prompt_file,
                                       .lossy = c->lossy};
    VPTQ_TRY(vptq_generate(cli->ctx, model, &opt, &cli->out, NULL, &err));
out:
    vptq_model_free(model);
    return vptq_cli_finish(cli, st, &err);
}

int vptq_cli_generate(vptq_cli *cli, int argc, char **argv)
{
    generate_command c = {.tokens = 64, .top_p = 1};
    const vptq_cli_option options[] = {
        {'m', "model", CLI_STRING, &c.model, "MODEL", "model to run"},
        {0, "tokenizer", CLI_STRING, &c.tokenizer, "FILE", "tokenizer to use with the model"},
        {0, "base", CLI_STRING, &c.base, "MODEL",
         "the original model of a work directory, if it was moved"},
        {0, "partial", CLI_FLAG, &c.partial, NULL, "accept an unfinished work directory"},
        {'p', "prompt", CLI_INPUT, &c.prompt, "TEXT",
         "text to continue; '-' reads standard input"},
        {0, "prompt-file", CLI_INPUT, &c.prompt_file, "FILE", "text to continue, from a file"},
        CLI_LOSSY_OPTION(&c.lossy),
        {'n', "max-tokens", CLI_U64, &c.tokens, "N",
         "maximum number of new tokens; 0 = until the text ends or the context is full"},
        {0, "temperature", CLI_DOUBLE, &c.temperature, "X",
         "sampling temperature; 0 = the likeliest token"},
        {0, "top-p", CLI_DOUBLE, &c.top_p, "X",
         "draw from the likeliest tokens whose probabilities sum to X"},
        {0, "stop", CLI_STRINGS, &c.stops, "TEXT", "end before this text; may be repeated"},
        {0, "special", CLI_FLAG, &c.special, NULL,
         "recognize special tokens in the prompt, and print them"},
        {0, "raw", CLI_FLAG, &c.raw, NULL,
         "print control characters on a terminal as they are, not as \\x1b"},
        {0, "ignore-eos", CLI_FLAG, &c.ignore_eos, NULL, "continue after a stop token"},
        CLI_HEADING("Chats"),
        {0, "chat", CLI_FLAG, &c.chat, NULL,
         "apply the model's chat template to the prompt as a user message"},
        {0, "system", CLI_STRING, &c.system, "TEXT", "system message before the prompt"},
        {0, "messages", CLI_INPUT, &c.messages, "FILE",
         "JSON list of messages before the prompt"},
        {0, "chat-template", CLI_INPUT, &c.template_file, "FILE",
         "Jinja template instead of the model's"},
        {0, "template-arg", CLI_STRINGS, &c.args, "NAME=JSON",
         "variable of the template; may be repeated"},
        {0, "date", CLI_STRING, &c.date, "DATE",
         "YYYY-MM-DD[Thh:mm:ss], current date for templates that use one (default: none)"},
        CLI_END};
    cli->usage = "vptq-eval generate -m MODEL -p PROMPT [-n N] [--temperature X] [--top-p X]\n"
                 "vptq-eval generate -m MODEL --chat -p QUESTION [--system TEXT]";
    cli->examples = "  vptq-eval generate -m packed -p 'Once upon a time' -n 100\n"
                    "  vptq-eval generate -m packed -p Hello --temperature 0.8 --seed 7\n"
                    "  vptq-eval generate -m packed --chat -p 'What is 2 + 2?' -n 0\n"
                    "  vptq-eval generate -m packed --chat -p Hello --dry-run\n";
    cli->options = options;
    cli->formats = "text|json";
    cli->omit = "force";
    cli->required = "model";
    return vptq_cli_run(cli, argc, argv, run_generate, &c);
}
