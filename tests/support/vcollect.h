/* Collecting Hessians of a small model into directories, for tests of interrupted and other
 * runs. */
#ifndef VPTQ_TESTS_SUPPORT_VCOLLECT_H
#define VPTQ_TESTS_SUPPORT_VCOLLECT_H

#include <signal.h>

#include "hessian/collect.h"

/* Two layers, 8 windows of 16 ids. */
enum {
    VCOLLECT_VOCAB = 48,
    VCOLLECT_IDS = 128,
    VCOLLECT_WINDOWS = 8,
    VCOLLECT_LENGTH = 16,
    VCOLLECT_LAYERS = 2,
    VCOLLECT_PATH = 4096
};

typedef struct vcollect {
    vptq_mem mem;
    vptq_ctx ctx;
    vptq_device dev;
    vptq_model m;
    char ids[VCOLLECT_PATH];
    /* a step is a window that has passed a block: all; the first reported; to interrupt at */
    uint64_t steps, first, stop_at;
    sig_atomic_t stop;
    char warning[512];
    char one[VCOLLECT_PATH], two[VCOLLECT_PATH]; /* directories to collect into */
    bool spilled; /* a log line said that hidden states go to a file */
} vcollect;

typedef struct vcollect_request {
    uint32_t first, last;
    uint64_t seed, stop_at;
    bool force;
    vptq_token_weights weights;
    double factor, holdout;
    size_t windows; /* 0: VCOLLECT_WINDOWS, or half as many with a seed */
    bool dry_run;
} vcollect_request;

extern const vcollect_request vcollect_whole; /* all layers, plain Hessians */
extern const char vcollect_state[];           /* name of the checkpoint in a directory */

/* Opens the model and writes ids into the directory `dir`. */
void vcollect_open(vcollect *r, const char *dir);
void vcollect_close(vcollect *r);

vptq_status vcollect_run(vcollect *r, const char *dir, vcollect_request q,
                         vptq_collect_result *result, vptq_err *err);
void vcollect_must(vcollect *r, const char *dir, vcollect_request q,
                   vptq_collect_result *result);
/* A run that ends between the two layers and leaves its checkpoint. */
void vcollect_break_off(vcollect *r, const char *dir);

/* Checks that both directories have the same entries with the same bytes. */
void vcollect_expect_same(const char *a, const char *b);

#endif
