/* Progress of a long operation on stderr.  On a terminal: one line, redrawn at most 6 times a
 * second, with rate and time to go.  Elsewhere: a line where a stage starts and one where it
 * ends; with `every`, one a second in between.  Internal to cmd/cli*.c. */
#ifndef VPTQ_CMD_CLI_PROGRESS_H
#define VPTQ_CMD_CLI_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { CLI_PROGRESS_OFF, CLI_PROGRESS_LINE, CLI_PROGRESS_LOG } vptq_cli_progress_mode;

typedef struct vptq_cli_progress {
    vptq_cli_progress_mode mode;
    bool every;
    bool drawn;   /* a line without a newline stands on the terminal */
    bool running; /* `stage` has begun and not ended */
    char stage[64];
    double start;   /* seconds on the monotonic clock, when the stage began ... */
    uint64_t first; /* ... and how much of it was done already then */
    uint64_t done, total;
    double shown; /* when something was last drawn or printed */
} vptq_cli_progress;

/* `wish`: -1 = a line on a terminal, log lines elsewhere; 0 = off; 1 = a line anywhere. */
void vptq_cli_progress_init(vptq_cli_progress *p, int wish, int quiet, int verbose);
void vptq_cli_progress_update(vptq_cli_progress *p, const char *stage, uint64_t done,
                              uint64_t total, const char *detail);
/* Takes the line away, so that something else can be printed; the next update redraws it. */
void vptq_cli_progress_clear(vptq_cli_progress *p);
/* Ends the running stage: prints its closing line. */
void vptq_cli_progress_end(vptq_cli_progress *p);

/* The text of a line: "stage  42% 21/50  3.5/s  8.3 s left  detail", cut to `width` columns. */
void vptq_cli_progress_text(char *text, size_t size, const vptq_cli_progress *p, double now,
                            const char *detail, unsigned width);

#endif
