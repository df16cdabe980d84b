/* Internal to cmd/cli: progress of a long operation on stderr.  On a terminal: one line with
 * rate and remaining time, redrawn at most 6 times a second.  Elsewhere: one line when a stage
 * begins and one when it ends; with `every`, also one per second in between. */
#ifndef VPTQ_CMD_CLI_PROGRESS_H
#define VPTQ_CMD_CLI_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cmd/cli/log.h"

typedef enum { CLI_PROGRESS_OFF, CLI_PROGRESS_LINE, CLI_PROGRESS_LOG } vptq_cli_progress_mode;

typedef struct vptq_cli_progress {
    vptq_cli_progress_mode mode;
    bool every;
    bool drawn;   /* the terminal shows a line without a newline */
    bool running; /* `stage` has begun and not ended */
    char stage[64];
    double start;   /* monotonic seconds when the stage began */
    uint64_t first; /* `done` at that time */
    uint64_t done, total;
    double shown;      /* time of the last output */
    vptq_cli_log *log; /* also gets the lines of a log, and one a minute; NULL = none */
    double logged;     /* time of its last line */
} vptq_cli_progress;

/* `wish`: -1 = a line on a terminal, log lines elsewhere; 0 = off; 1 = a line anywhere. */
void vptq_cli_progress_init(vptq_cli_progress *p, int wish, int quiet, int verbose);
void vptq_cli_progress_update(vptq_cli_progress *p, const char *stage, uint64_t done,
                              uint64_t total, const char *detail);
/* Clears the line so that something else can be printed; the next update redraws it. */
void vptq_cli_progress_clear(vptq_cli_progress *p);
/* Ends the running stage: prints its closing line. */
void vptq_cli_progress_end(vptq_cli_progress *p);

/* Formats a line: "stage  42% 21/50  3.5/s  8.3 s left  detail", cut to `width` columns. */
void vptq_cli_progress_text(char *text, size_t size, const vptq_cli_progress *p, double now,
                            const char *detail, unsigned width);

#endif
