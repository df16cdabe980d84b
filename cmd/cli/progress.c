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

/* Formats "3.5/s", or "2.1 s each" for less than one per second.  Returns the rate; 0 while it
 * is unknown. */
static double rate_text(char text[32], const vptq_cli_progress *p, double now)
{
    double seconds = now - p->start;
    double units = p->done >= p->first ? (double)(p->done - p->first) : 0;
    text[0] = 0;
    if (seconds < 0.05 || units <= 0)
        return 0;
    double rate = units / seconds;
    if (rate >= 100)
        snprintf(text, 32, "%.0f/s", rate);
    else if (rate >= 1)
        snprintf(text, 32, "%.1f/s", rate);
    else
        snprintf(text, 32, "%.1f s each", 1 / rate);
    return rate;
}

void vptq_cli_progress_text(char *text, size_t size, const vptq_cli_progress *p, double now,
                            const char *detail, unsigned width)
{
    char rate_part[48] = "", left_part[48] = "", rate[32], left[32];
    double per_second = rate_text(rate, p, now);
    if (per_second > 0) {
        snprintf(rate_part, sizeof rate_part, "  %s", rate);
        if (p->total > p->done) {
            vptq_human_seconds(left, (double)(p->total - p->done) / per_second);
            snprintf(left_part, sizeof left_part, "  %s left", left);
        }
    }
    int n;
    if (p->total)
        n = snprintf(text, size, "%s %3.0f%% %" PRIu64 "/%" PRIu64 "%s%s", p->stage,
                     100 * (double)p->done / (double)p->total, p->done, p->total, rate_part,
                     left_part);
    else
        n = snprintf(text, size, "%s %" PRIu64 "%s", p->stage, p->done, rate_part);
    if (n > 0 && (size_t)n < size && detail)
        snprintf(text + n, size - (size_t)n, "  %s", detail);
    if (width && strlen(text) > width) {
        while (width && ((unsigned char)text[width] & 0xC0) == 0x80)
            width--; /* cuts no character */
        text[width] = 0;
    }
}

void vptq_cli_progress_clear(vptq_cli_progress *p)
{
    if (p->drawn)
        fputs("\r\033[K", stderr);
    p->drawn = false;
}

static void draw(vptq_cli_progress *p, double now, const char *detail)
{
    char text[512];
    vptq_cli_progress_text(text, sizeof text, p, now, detail, terminal_width() - 1);
    vptq_cli_progress_clear(p);
    fflush(stdout); /* results held back by the progress line */
    fputs(text, stderr);
    fflush(stderr);
    p->drawn = true;
}

void vptq_cli_progress_end(vptq_cli_progress *p)
{
    if (!p->running)
        return;
    double now = monotonic_seconds();
    char took[32], rate[32], of[32] = "", text[256];
    vptq_cli_progress_clear(p);
    fflush(stdout);
    vptq_human_seconds(took, now - p->start);
    const bool known = rate_text(rate, p, now) > 0;
    if (p->done < p->total)
        snprintf(of, sizeof of, " of %" PRIu64, p->total);
    snprintf(text, sizeof text, "%s: %" PRIu64 "%s in %s%s%s%s", p->stage, p->done, of, took,
             known ? " (" : "", rate, known ? ")" : "");
    if (p->mode != CLI_PROGRESS_OFF)
        fprintf(stderr, "%s\n", text);
    vptq_cli_log_line(p->log, text);
    p->running = false;
}

static void begin(vptq_cli_progress *p, const char *stage, double now)
{
    snprintf(p->stage, sizeof p->stage, "%s", stage);
    p->running = true;
    p->start = now;
    p->first = p->done;
    p->shown = p->logged = now;
    char first[32] = "", total[32] = "", text[256];
    if (p->first)
        snprintf(first, sizeof first, " %" PRIu64 "%s", p->first, p->total ? " of" : "");
    if (p->total)
        snprintf(total, sizeof total, " %" PRIu64, p->total);
    snprintf(text, sizeof text, "%s:%s%s ...", p->stage, first, total);
    if (p->mode == CLI_PROGRESS_LOG)
        fprintf(stderr, "%s\n", text);
    vptq_cli_log_line(p->log, text);
}

/* Reports a stage that goes on, where it is due. */
static void report(vptq_cli_progress *p, double now, bool fresh, const char *detail)
{
    char text[512];
    if (p->log && now - p->logged >= file_seconds) {
        vptq_cli_progress_text(text, sizeof text, p, now, detail, 0);
        vptq_cli_log_line(p->log, text);
        p->logged = now;
    }
    if (p->mode == CLI_PROGRESS_LINE && (fresh || now - p->shown >= redraw_seconds)) {
        draw(p, now, detail);
        p->shown = now;
    } else if (p->mode == CLI_PROGRESS_LOG && p->every && now - p->shown >= log_seconds) {
        vptq_cli_progress_text(text, sizeof text, p, now, detail, 0);
        fprintf(stderr, "%s\n", text);
        p->shown = now;
    }
}

void vptq_cli_progress_update(vptq_cli_progress *p, const char *stage, uint64_t done,
                              uint64_t total, const char *detail)
{
    if (p->mode == CLI_PROGRESS_OFF && !p->log)
        return;
    double now = monotonic_seconds();
    bool same = !strncmp(p->stage, stage, sizeof p->stage - 1);
    if (same && !p->running && done == p->done && total == p->total)
        return; /* its end is already reported */
    bool fresh = !same || !p->running || done < p->done;
    if (fresh)
        vptq_cli_progress_end(p);
    p->done = done;
    p->total = total;
    if (fresh)
        begin(p, stage, now);
    if (total && done >= total) {
        vptq_cli_progress_end(p);
        return;
    }
    report(p, now, fresh, detail);
}
