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

typedef struct vptq_cli_stage {
    char name[64];
    const char *unit;     /* static */
    uint64_t done, total; /* units; total 0 = unknown */
    bool open;            /* has begun and not ended */
    double first;         /* share of its work that was done when it began */
    double share;         /* that is done now, 0 to 1 */
    double seconds;       /* that it took so far, */
    double measured;      /* and until `share` last grew: what rates are made of */
} vptq_cli_stage;

enum { CLI_PROGRESS_STAGES = 4 };

/* Stages may take turns, as calibrating and quantizing do: each begins and ends once, and has
 * the time between an update of any stage and its own. */
typedef struct vptq_cli_progress {
    vptq_cli_progress_mode mode;
    bool every;
    bool drawn; /* the terminal shows a line without a newline */
    vptq_cli_stage stages[CLI_PROGRESS_STAGES];
    double updated;    /* monotonic seconds of the last update */
    double shown;      /* of the last output */
    vptq_cli_log *log; /* also gets the lines of a log, and one a minute; NULL = none */
    double logged;     /* of its last line */
} vptq_cli_progress;

/* `wish`: -1 = a line on a terminal, log lines elsewhere; 0 = off; 1 = a line anywhere. */
void vptq_cli_progress_init(vptq_cli_progress *p, int wish, int quiet, int verbose);
void vptq_cli_progress_update(vptq_cli_progress *p, const vptq_progress_info *info);
/* Clears the line so that something else can be printed; the next update redraws it. */
void vptq_cli_progress_clear(vptq_cli_progress *p);
/* Ends the stages that have not ended: prints their closing lines. */
void vptq_cli_progress_end(vptq_cli_progress *p);

/* Formats a line: "stage  42% 21/50 windows  3.5/s  8.3 s left  detail", cut to `width` columns
 * unless that is 0.  The time left includes that of other open stages. */
void vptq_cli_progress_text(char *text, size_t size, const vptq_cli_progress *p,
                            const vptq_cli_stage *s, const char *detail, unsigned width);

#endif
