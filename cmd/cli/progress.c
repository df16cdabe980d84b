/* The progress line on a terminal, and the progress log elsewhere. */
#include "cmd/cli/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cmd/cli/cli.h"

/* Seconds between redraws of the line, between lines elsewhere, and in the file of a log. */
static const double redraw_seconds = 1.0 / 6;
static const double log_seconds = 1.0, file_seconds = 60;

void vptq_cli_progress_init(vptq_cli_progress *p, int wish, int quiet, int verbose)
{
    *p = (vptq_cli_progress){.mode = CLI_PROGRESS_OFF, .every = verbose > 0};
    if (wish > 0)
        p->mode = CLI_PROGRESS_LINE;
    else if (wish < 0 && !quiet)
        p->mode = isatty(STDERR_FILENO) ? CLI_PROGRESS_LINE : CLI_PROGRESS_LOG;
}

static double monotonic_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static unsigned terminal_width(void)
{
    struct winsize ws;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &ws) || ws.ws_col < 20)
        return 80;
    return ws.ws_col;
}

/* ---- what is shown of a stage ---- */

/* Units per second, 0 while unknown. */
static double rate_of(const vptq_cli_stage *s)
{
    static const double shortest = 0.05; /* seconds that say something */
    const double grown = s->share - s->first;
    if (s->measured < shortest || grown <= 0)
        return 0;
    return grown * (double)s->total / s->measured;
}

static bool is_bytes(const vptq_cli_stage *s)
{
    return !strcmp(s->unit, "bytes");
}

/* "21 of 50 windows" for " of "; "50 windows" for NULL, and where one number is unknown. */
static void count_text(char text[96], const vptq_cli_stage *s, const char *between)
{
    char first[32] = "";
    const uint64_t all = s->total ? s->total : s->done;
    between = s->total ? between : NULL;
    if (between && is_bytes(s))
        snprintf(first, sizeof first, "%.1f%s", 1e-6 * (double)s->done, between);
    else if (between)
        snprintf(first, sizeof first, "%" PRIu64 "%s", s->done, between);
    if (is_bytes(s))
        snprintf(text, 96, "%s%.1f MB", first, 1e-6 * (double)all);
    else
        snprintf(text, 96, "%s%" PRIu64 " %s", first, all, s->unit);
}

/* Formats "3.5/s", or "2.1 s each" for less than one per second; "" while it is unknown. */
static void rate_text(char text[32], const vptq_cli_stage *s)
{
    const double rate = rate_of(s);
    text[0] = 0;
    if (rate > 0 && is_bytes(s))
        snprintf(text, 32, "%.1f MB/s", 1e-6 * rate);
    else if (rate >= 100)
        snprintf(text, 32, "%.0f/s", rate);
    else if (rate >= 1)
        snprintf(text, 32, "%.1f/s", rate);
    else if (rate > 0)
        snprintf(text, 32, "%.1f s each", 1 / rate);
}

/* Seconds left of a stage; 0 while unknown. */
static double left_of(const vptq_cli_stage *s)
{
    const double rate = rate_of(s);
    if (!s->open || rate <= 0)
        return 0;
    const double left = (1 - s->share) * (double)s->total / rate - (s->seconds - s->measured);
    return left > 0 ? left : 0;
}

/* "8.3 s left" of all open stages; "" while that of this one is unknown. */
static void left_text(char text[48], const vptq_cli_progress *p, const vptq_cli_stage *s)
{
    char left[32];
    double seconds = 0;
    text[0] = 0;
    if (left_of(s) <= 0)
        return;
    for (int i = 0; i < CLI_PROGRESS_STAGES; i++)
        seconds += left_of(&p->stages[i]);
    vptq_human_seconds(left, seconds);
    snprintf(text, 48, "  %s left", left);
}

void vptq_cli_progress_text(char *text, size_t size, const vptq_cli_progress *p,
                            const vptq_cli_stage *s, const char *detail, unsigned width)
{
    char percent[16] = "", count[96], rate[32], left[48];
    rate_text(rate, s);
    left_text(left, p, s);
    count_text(count, s, "/");
    if (s->total)
        snprintf(percent, sizeof percent, " %3.0f%%", 100 * s->share);
    const int n = snprintf(text, size, "%s%s %s%s%s%s", s->name, percent, count,
                           *rate ? "  " : "", rate, left);
    if (n > 0 && (size_t)n < size && detail)
        snprintf(text + n, size - (size_t)n, "  %s", detail);
    if (width && strlen(text) > width) {
        while (width && ((unsigned char)text[width] & 0xC0) == 0x80)
            width--; /* cuts no character */
        text[width] = 0;
    }
}

/* ---- output ---- */

void vptq_cli_progress_clear(vptq_cli_progress *p)
{
    if (p->drawn)
        fputs("\r\033[K", stderr);
    p->drawn = false;
}

static void draw(vptq_cli_progress *p, const vptq_cli_stage *s, const char *detail)
{
    char text[512];
    vptq_cli_progress_text(text, sizeof text, p, s, detail, terminal_width() - 1);
    vptq_cli_progress_clear(p);
    fflush(stdout); /* results held back by the progress line */
    fputs(text, stderr);
    fflush(stderr);
    p->drawn = true;
}

static void end(vptq_cli_progress *p, vptq_cli_stage *s)
{
    char took[32], rate[32], count[96], text[256];
    if (!s->open)
        return;
    vptq_cli_progress_clear(p);
    fflush(stdout);
    vptq_human_seconds(took, s->seconds);
    rate_text(rate, s);
    count_text(count, s, s->share < 1 ? " of " : NULL);
    snprintf(text, sizeof text, "%s: %s in %s%s%s%s", s->name, count, took, *rate ? " (" : "",
             rate, *rate ? ")" : "");
    if (p->mode != CLI_PROGRESS_OFF)
        fprintf(stderr, "%s\n", text);
    vptq_cli_log_line(p->log, text);
    s->open = false;
}

void vptq_cli_progress_end(vptq_cli_progress *p)
{
    for (int i = 0; i < CLI_PROGRESS_STAGES; i++)
        end(p, &p->stages[i]);
}

/* Returns the slot of the stage, or one for it: a closed one, or the first, which is ended. */
static vptq_cli_stage *find(vptq_cli_progress *p, const char *name)
{
    vptq_cli_stage *closed = NULL;
    for (int i = 0; i < CLI_PROGRESS_STAGES; i++) {
        vptq_cli_stage *s = &p->stages[i];
        if (!strncmp(s->name, name, sizeof s->name - 1))
            return s;
        if (!s->open && !closed)
            closed = s;
    }
    if (!closed)
        end(p, &p->stages[0]);
    return closed ? closed : &p->stages[0];
}

static void begin(vptq_cli_progress *p, vptq_cli_stage *s, const vptq_progress_info *info)
{
    char count[96], text[256];
    *s = (vptq_cli_stage){.unit = info->unit,
                          .done = info->done,
                          .total = info->total,
                          .open = true,
                          .first = info->share,
                          .share = info->share};
    snprintf(s->name, sizeof s->name, "%s", info->stage);
    p->shown = p->logged = p->updated;
    count_text(count, s, s->done ? " of " : NULL);
    snprintf(text, sizeof text, "%s: %s ...", s->name, count);
    if (p->mode == CLI_PROGRESS_LOG)
        fprintf(stderr, "%s\n", text);
    vptq_cli_log_line(p->log, text);
}

/* Shows a stage that goes on, where it is due. */
static void show(vptq_cli_progress *p, const vptq_cli_stage *s, bool fresh, const char *detail)
{
    char text[512];
    if (p->log && p->updated - p->logged >= file_seconds) {
        vptq_cli_progress_text(text, sizeof text, p, s, detail, 0);
        vptq_cli_log_line(p->log, text);
        p->logged = p->updated;
    }
    if (p->mode == CLI_PROGRESS_LINE && (fresh || p->updated - p->shown >= redraw_seconds)) {
        draw(p, s, detail);
        p->shown = p->updated;
    } else if (p->mode == CLI_PROGRESS_LOG && p->every &&
               p->updated - p->shown >= log_seconds) {
        vptq_cli_progress_text(text, sizeof text, p, s, detail, 0);
        fprintf(stderr, "%s\n", text);
        p->shown = p->updated;
    }
}

void vptq_cli_progress_update(vptq_cli_progress *p, const vptq_progress_info *info)
{
    if (p->mode == CLI_PROGRESS_OFF && !p->log)
        return;
    const double now = monotonic_seconds(), elapsed = now - p->updated;
    vptq_cli_stage *s = find(p, info->stage);
    const bool ends = info->total && info->share >= 1;
    const bool fresh = !s->open;
    if (fresh && ends && s->share >= 1 && !strcmp(s->name, info->stage))
        return; /* its end again */
    p->updated = now;
    if (fresh)
        begin(p, s, info);
    else
        s->seconds += elapsed;
    if (info->share > s->share)
        s->measured = s->seconds;
    s->share = info->share;
    s->done = info->done;
    if (ends)
        end(p, s);
    else
        show(p, s, fresh, info->detail);
}
