/* Internal: what the tools still use besides lib/vptq.h. */
#ifndef VPTQ_INTERNAL_H
#define VPTQ_INTERNAL_H

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
