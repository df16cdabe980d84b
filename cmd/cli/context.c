/* Surroundings of a command and the context of its run: standard streams, signals, what the
 * library says, log and ranks. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cmd/cli/internal.h"
#include "cmd/cli/log.h"

enum { STDOUT_BUFFER = 64 * 1024 };

/* --- surroundings ------------------------------------------------------------------------ */

/* Reading and writing them fails, as it did while they were closed.  A file opened in their
 * place would get what is printed. */
static void hold_closed_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/", O_RDONLY | O_DIRECTORY) < 0)
            _exit(CLI_FAILED);
}

void vptq_cli_start(void)
{
    hold_closed_streams();
    vptq_cli_restore_environment();
    signal(SIGXFSZ, SIG_IGN); /* writing too much is an error like a full disk */
}

/* --- signals ----------------------------------------------------------------------------- */

/* Static because a signal handler takes no argument. */
static volatile sig_atomic_t cancelled; /* the signal that asked to stop ... */
static struct timespec cancelled_at;    /* ... first; CLOCK_MONOTONIC */

static double seconds_since(const struct timespec *begin)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - begin->tv_sec) + 1e-9 * (double)(now.tv_nsec - begin->tv_nsec);
}

/* timeout(1) sends its signal to the process and then to the group: the same signal within a
 * second is one request.  A later one, or another, ends the process at once. */
static void on_signal(int sig)
{
    if (!cancelled)
        clock_gettime(CLOCK_MONOTONIC, &cancelled_at);
    else if (cancelled != sig || seconds_since(&cancelled_at) >= 1)
        _exit(CLI_SIGNALLED + sig);
    else
        return;
    cancelled = sig;
}

static char lost_map[160]; /* the sentence of on_bus_error */

/* Memory whose file is shorter than it was, or on a disk that fails.  Any other reason is an
 * error of the program: the access is repeated and ends it. */
static void on_bus_error(int sig, siginfo_t *info, void *context)
{
    (void)context;
    if (info->si_code != BUS_ADRERR && info->si_code != BUS_OBJERR) {
        signal(sig, SIG_DFL);
        if (info->si_code <= 0) /* sent by a process */
            raise(sig);
        return;
    }
    const ssize_t ignored = write(STDERR_FILENO, lost_map, strlen(lost_map));
    (void)ignored;
    _exit(CLI_FAILED);
}

/* `on_line`: a progress line may have to make way for the sentence. */
static void catch_signals(const char *tool, bool on_line)
{
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old;
    sigemptyset(&sa.sa_mask);
    sigaddset(&sa.sa_mask, SIGINT); /* the handler does not interrupt itself */
    sigaddset(&sa.sa_mask, SIGTERM);
    sigaddset(&sa.sa_mask, SIGHUP);
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    if (!sigaction(SIGHUP, NULL, &old) && old.sa_handler != SIG_IGN) /* else of nohup */
        sigaction(SIGHUP, &sa, NULL);
    snprintf(lost_map, sizeof lost_map,
             "%s%s: an input file was cut short, or could no longer be read, while it was in "
             "use\n",
             on_line ? "\r\033[K" : "", tool);
    sa.sa_sigaction = on_bus_error;
    sa.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &sa, NULL);
}

int vptq_cli_signal(void)
{
    return cancelled;
}

/* --- the context ------------------------------------------------------------------------- */

static void on_log(void *user, vptq_log_level level, const char *text)
{
    vptq_cli *cli = user;
    const int quiet = cli->common.quiet, most = VPTQ_LOG_INFO + cli->common.verbose;
    const bool shown = quiet <= 1 && (int)level <= most - quiet;
    if ((int)level > most)
        return;
    if (shown)
        vptq_cli_progress_clear(&cli->state->progress);
    vptq_cli_report(cli, shown, "%s%s", level == VPTQ_LOG_WARN ? "warning: " : "", text);
}

static void on_progress(void *user, const vptq_progress_info *info)
{
    vptq_cli *cli = user;
    vptq_cli_progress_update(&cli->state->progress, info);
}

/* The log of this process: of --log-dir, or of --log-file for rank 0.  Ranks that say nothing
 * leave no file. */
static vptq_status open_log(vptq_cli *cli, int rank, vptq_err *err)
{
    char path[4096];
    const char *dir = cli->common.log_dir;
    vptq_cli_log **log = &cli->state->progress.log;
    if (!dir)
        return vptq_cli_log_open(rank ? NULL : cli->common.log_file, false, log, err);
    if (cli->common.log_file)
        return vptq_fail(err, VPTQ_E_ARG, "--log-file and --log-dir exclude each other");
    const int n = snprintf(path, sizeof path, "%s/rank-%d.log", dir, rank);
    if (n < 0 || (size_t)n >= sizeof path)
        return vptq_fail(err, VPTQ_E_ARG, "--log-dir %.80s...: the path is too long", dir);
    return vptq_cli_log_open(path, rank > 0, log, err);
}

/* Whether ranks may have different values of an option: their machines differ. */
static bool is_local(const vptq_cli_option *o)
{
    return vptq_cli_lists("threads|mem|log-file|log-dir|progress|no-progress|quiet|verbose",
                          o->name);
}

/* Whether the value is a file, whose content ranks compare. */
static bool is_place(const vptq_cli_option *o)
{
    static const char *const places[] = {"FILE", "DIR", "MODEL", "WORK", "OUT", "PATH"};
    bool place = o->type == CLI_INPUT || o->type == CLI_INPUTS;
    for (size_t i = 0; o->arg && i < sizeof places / sizeof *places; i++)
        place = place || strstr(o->arg, places[i]);
    return place;
}

/* Appends the option as it was given, if it was: all values of a list, else the last. */
static void list_option(const struct vptq_cli_state *s, const vptq_cli_option *o, FILE *list)
{
    const bool all = o->type == CLI_STRINGS || o->type == CLI_INPUTS;
    const char *value = NULL;
    bool given = false;
    for (size_t i = 0; i < s->given_count; i++) {
        if (s->given[i].option != o)
            continue;
        value = is_place(o) ? NULL : s->given[i].text;
        if (!given || all)
            fprintf(list, " --%s", o->name);
        if (all && value)
            fprintf(list, " %s", value);
        given = true;
    }
    if (value && !all)
        fprintf(list, " %s", value);
}

/* Compares the options, on which the course of a run depends, so that no rank waits for another
 * that does something else. */
static vptq_status compare_options(const vptq_cli *cli, vptq_err *err)
{
    const struct vptq_cli_state *s = cli->state;
    char *text = NULL;
    size_t size;
    FILE *list = open_memstream(&text, &size);
    if (list)
        fprintf(list, "%s", cli->command ? cli->command : cli->tool);
    for (size_t i = 0; list && i < s->count; i++)
        if (s->entries[i].option->name && !is_local(s->entries[i].option))
            list_option(s, s->entries[i].option, list);
    vptq_status st =
        list && !fclose(list) ? VPTQ_OK : vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    st = vptq_ctx_agree(cli->ctx, st, err);
    if (!st)
        st = vptq_ctx_same(cli->ctx, "the list of options", text, err);
    free(text);
    return st;
}

/* Only rank 0 speaks. */
static vptq_status join_ranks(vptq_cli *cli, vptq_err *err)
{
    int rank, size;
    vptq_ctx_ranks(cli->ctx, &rank, &size);
    cli->state->hushed = rank > 0;
    if (cli->state->hushed)
        cli->state->progress.mode = CLI_PROGRESS_OFF;
    if (size > 1 && !cli->ranks)
        return vptq_fail(err, VPTQ_E_ARG, "this command runs in one process, not in %d", size);
    for (size_t i = 0; size > 1 && i < cli->state->given_count; i++)
        if (vptq_cli_is_stdin(cli->state->given[i].option, cli->state->given[i].text))
            return vptq_fail(err, VPTQ_E_ARG,
                             "--%s %s: standard input reaches one of %d processes only; give a "
                             "file",
                             cli->state->given[i].option->name, cli->state->given[i].text,
                             size);
    if (size > 1)
        VPTQ_CHECK(compare_options(cli, err));
    return open_log(cli, rank, err);
}

vptq_status vptq_cli_make_context(vptq_cli *cli, vptq_err *err)
{
    vptq_cli_progress *p = &cli->state->progress;
    vptq_cli_progress_init(p, cli->common.progress, cli->common.quiet, cli->common.verbose);
    if (p->mode == CLI_PROGRESS_LINE)
        setvbuf(stdout, NULL, _IOFBF, STDOUT_BUFFER);
    const vptq_ctx_options options = {.threads = (int)cli->common.threads,
                                      .memory_cap = cli->common.mem,
                                      .backend = cli->common.backend,
                                      .log = on_log,
                                      .progress = on_progress,
                                      .user = cli,
                                      .cancel = &cancelled,
                                      .ranks = true,
                                      .build = vptq_cli_commit()};
    cli->out = (vptq_output){.format = (vptq_format)cli->common.format,
                             .write = vptq_cli_write_stdout,
                             .arg = cli,
                             .width = vptq_cli_stdout_width()};
    catch_signals(cli->tool, p->mode == CLI_PROGRESS_LINE);
    VPTQ_CHECK(vptq_ctx_open(&options, &cli->ctx, err));
    return join_ranks(cli, err);
}
