/* The public face of libvptq: everything a program (our four tools included) may use.
 *
 * A program makes a vptq_ctx (threads, memory cap, log and progress callbacks, cancel flag),
 * opens a vptq_device on it, and calls one of the operations below with an options struct; each
 * returns a vptq_status and writes one sentence into vptq_err when it fails.  The library never
 * prints and never exits.
 *
 *     vptq_mem mem;
 *     vptq_mem_init(&mem, 0);
 *     vptq_ctx ctx = {.mem = &mem, .threads = vptq_cpu_count()};
 *     vptq_device dev;
 *     vptq_err err = {0};
 *     if (vptq_device_open(&ctx, "auto", &dev, &err))
 *         fprintf(stderr, "%s\n", err.text);
 */
#ifndef VPTQ_H
#define VPTQ_H

/* what everything needs, and devices */
#include "lib/backend/backend.h"
#include "lib/base/ctx.h"
#include "lib/base/file.h"
#include "lib/base/parallel.h"
#include "lib/base/utf8.h"

/* Hessians: collect, merge, show, import, export */
#include "hessian/collect.h"
#include "hessian/import.h"

/* quantize, pack, unpack, list, check; tables of settings */
#include "lib/ablate/ablate.h"
#include "lib/pack/pack.h"
#include "lib/quantize/quantize.h"

/* measuring models, text, and reports */
#include "lib/bench/gemv.h"
#include "lib/bench/serve.h" /* speed of serving */
#include "lib/chat/chat.h"
#include "lib/eval/error.h"
#include "lib/eval/generate.h"
#include "lib/eval/kld.h"
#include "lib/eval/perplexity.h"
#include "lib/eval/tasks.h"
#include "lib/report/report.h"
#include "lib/report/table.h"

#endif
