/* The public functions on contexts, models and quantizing: they open devices and models around
 * the operations of the modules.  Functions of lib/vptq.h that need neither are implemented by
 * the modules themselves. */
#include "lib/vptq.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/text_file.h"
#include "lib/base/comm.h"
#include "lib/base/file.h"
#include "lib/base/parallel.h"
#include "lib/model/model.h"
#include "lib/pack/pack.h"
#include "lib/quantize/quantize.h"
#include "lib/quantize/tune.h"
#include "lib/vptq_internal.h"

const char *vptq_version(void)
{
    return VPTQ_VERSION;
}

/* ---- Context ---------------------------------------------------------------------------- */

/* Every context that the caller holds is the first member of one of these. */
typedef struct context {
    vptq_ctx ctx;
    vptq_mem mem;
    vptq_device device;
    vptq_comm comm;
    struct vptq_text_input *inputs;
    bool has_device;
    char backend[32];
    char build[80]; /* version and build */
} context;

/* One for every processor; ranks that may use all of a machine share them. */
static int default_threads(const vptq_comm *c)
{
    const int usable = vptq_cpu_count();
    const bool bound = usable < sysconf(_SC_NPROCESSORS_ONLN);
    const int threads = bound ? usable : usable / c->local_size;
    return threads > 1 ? threads : 1;
}

static vptq_status open_ranks(context *c, const vptq_ctx_options *o, vptq_err *err)
{
    c->comm = (vptq_comm){.size = 1, .local_size = 1};
    if (!o->ranks)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_comm_open(&c->comm, err));
    c->ctx.comm = c->comm.size > 1 ? &c->comm : NULL;
    return VPTQ_OK;
}

vptq_status vptq_ctx_open(const vptq_ctx_options *options, vptq_ctx **ctx, vptq_err *err)
{
    const vptq_ctx_options o = options ? *options : (vptq_ctx_options){.threads = 0};
    const char *backend = o.backend ? o.backend : "auto";
    *ctx = NULL;
    if (o.threads < 0)
        return vptq_fail(err, VPTQ_E_ARG, "threads is %d, expected 0 or more", o.threads);
    context *c = calloc(1, sizeof *c);
    if (!c)
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    if (strlen(backend) >= sizeof c->backend) {
        free(c);
        return vptq_fail(err, VPTQ_E_UNSUPPORTED, "backend \"%.40s...\" is not in this build",
                         backend);
    }
    memcpy(c->backend, backend, strlen(backend) + 1);
    snprintf(c->build, sizeof c->build, VPTQ_VERSION "%s%s", o.build ? " of commit " : "",
             o.build ? o.build : "");
    vptq_mem_init(&c->mem, o.memory_cap > SIZE_MAX ? SIZE_MAX : (size_t)o.memory_cap);
    const vptq_status st = open_ranks(c, &o, err);
    if (st) {
        vptq_ctx_close(&c->ctx);
        return st;
    }
    c->ctx = (vptq_ctx){.mem = &c->mem,
                        .threads = o.threads ? o.threads : default_threads(&c->comm),
                        .log = o.log,
                        .progress = o.progress,
                        .user = o.user,
                        .cancel = o.cancel,
                        .inputs = &c->inputs,
                        .comm = c->ctx.comm};
    c->comm.threads = &c->ctx.threads;
    *ctx = &c->ctx;
    return VPTQ_OK;
}

void vptq_ctx_close(vptq_ctx *ctx)
{
    context *c = (context *)ctx;
    if (c && c->has_device)
        vptq_device_close(&c->device);
    if (c)
        vptq_text_inputs_free(&c->mem, &c->inputs);
    if (c)
        vptq_comm_close(&c->comm);
    free(c);
}

void vptq_ctx_ranks(const vptq_ctx *ctx, int *rank, int *size)
{
    *rank = vptq_comm_rank(ctx);
    *size = vptq_comm_size(ctx);
}

vptq_status vptq_ctx_agree(vptq_ctx *ctx, vptq_status st, vptq_err *err)
{
    return vptq_comm_agree(ctx, st, err);
}

vptq_status vptq_ctx_same(vptq_ctx *ctx, const char *what, const char *text, vptq_err *err)
{
    return vptq_comm_same(ctx, what, text, err);
}

/* Ranks whose numbers could differ refuse to work together.  On processors they are the same at
 * every SIMD level; GPUs and their libraries have numbers of their own. */
static vptq_status compare_ranks(const context *c, vptq_err *err)
{
    const vptq_device *dev = &c->device;
    char kind[512], name[160] = "", libraries[256] = "";
    if (!dev->ops->host_memory) {
        dev->ops->describe(dev->state, name, sizeof name);
        dev->ops->libraries(dev->state, libraries, sizeof libraries);
    }
    snprintf(kind, sizeof kind, "%s %s %s", dev->ops->name, name, libraries);
    VPTQ_CHECK(vptq_comm_same(&c->ctx, "the version of the tools", c->build, err));
    return vptq_comm_same(&c->ctx, "the backend", kind, err);
}

static vptq_status open_device(context *c, vptq_err *err)
{
    vptq_status st = vptq_device_open(&c->ctx, c->backend, &c->device, err);
    if (vptq_comm_size(&c->ctx) == 1)
        return st;
    const bool opened = !st;
    st = vptq_comm_agree(&c->ctx, st, err);
    if (!st)
        st = compare_ranks(c, err);
    if (st && opened)
        vptq_device_close(&c->device);
    return st;
}

vptq_status vptq_ctx_device(vptq_ctx *ctx, vptq_device **device, vptq_err *err)
{
    context *c = (context *)ctx;
    if (!c->has_device)
        VPTQ_CHECK(open_device(c, err));
    c->has_device = true;
    *device = &c->device;
    return VPTQ_OK;
}

const char *vptq_ctx_backend_name(const vptq_ctx *ctx)
{
    return ((const context *)ctx)->backend;
}

vptq_status vptq_ctx_backend(vptq_ctx *ctx, vptq_backend_info *info, vptq_err *err)
{
    vptq_device *dev;
    VPTQ_CHECK(vptq_ctx_device(ctx, &dev, err));
    if (!info)
        return VPTQ_OK;
    memset(info, 0, sizeof *info);
    info->name = dev->ops->name;
    dev->ops->describe(dev->state, info->device, sizeof info->device);
    dev->ops->libraries(dev->state, info->libraries, sizeof info->libraries);
    return VPTQ_OK;
}

/* ---- Models ----------------------------------------------------------------------------- */

vptq_checkpoint_options vptq_model_checkpoint_options(const vptq_model_options *o)
{
    return o ? (vptq_checkpoint_options){.tokenizer = o->tokenizer,
                                         .base = o->base,
                                         .partial = o->partial}
             : (vptq_checkpoint_options){.tokenizer = NULL};
}

vptq_status vptq_model_load(vptq_ctx *ctx, const char *path, const vptq_model_options *options,
                            vptq_model **m, vptq_err *err)
{
    const vptq_checkpoint_options opt = vptq_model_checkpoint_options(options);
    *m = NULL;
    if (options && options->work_only)
        VPTQ_CHECK(vptq_pack_check_work(path, opt.base, opt.partial, err));
    vptq_model *model = calloc(1, sizeof *model);
    if (!model)
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    const vptq_status st =
        vptq_model_open(ctx, path, &opt, options && options->need_tokenizer, model, err);
    if (st)
        free(model);
    else
        *m = model;
    return st;
}

void vptq_model_free(vptq_model *m)
{
    if (m)
        vptq_model_release(m);
    free(m);
}

/* ---- Quantizing ------------------------------------------------------------------------- */

vptq_quantize_options vptq_quantize_defaults(void)
{
    return (vptq_quantize_options){.kv_factor = (double)NAN,
                                   .embeddings = VPTQ_F16,
                                   .allocate = VPTQ_ALLOCATE_PROXY,
                                   .allocate_windows = 2,
                                   .allocate_length = 512,
                                   .last_layer = UINT32_MAX};
}

/* Predictions need no GPU. */
static vptq_status predict(vptq_ctx *ctx, const vptq_quantize_options *opt,
                           const vptq_output *out, vptq_quantize_result *result, vptq_err *err)
{
    vptq_device host;
    VPTQ_CHECK(vptq_device_open(ctx, "cpu", &host, err));
    vptq_status st = vptq_quantize_report(&host, opt, out, result, err);
    vptq_device_close(&host);
    return st;
}

/* Computes the digest of a finished work directory, packed with the types of `pack` (NULL = its
 * own).  A model that packing will refuse, as for a number that its type cannot hold, has none:
 * the matrices are finished all the same. */
static vptq_status add_digest(const vptq_ctx *ctx, const char *work,
                              const vptq_checkpoint_options *open,
                              const vptq_pack_options *pack, char digest[VPTQ_DIGEST_SIZE],
                              vptq_err *err)
{
    vptq_digest_result r;
    vptq_err why = {0};
    const vptq_status st = vptq_digest_model(ctx, work, open, pack, &r, &why);
    if (st && !vptq_checkpoint_is_fault(st))
        return vptq_fail(err, st, "%s", why.text);
    if (st)
        vptq_log(ctx, VPTQ_LOG_WARN, "%s; the digest was not computed", why.text);
    else
        memcpy(digest, r.digest, sizeof r.digest);
    return VPTQ_OK;
}

/* As add_digest of rank 0, on all ranks. */
static vptq_status share_digest(const vptq_ctx *ctx, const char *work,
                                const vptq_checkpoint_options *open,
                                const vptq_pack_options *pack, char digest[VPTQ_DIGEST_SIZE],
                                vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    if (vptq_comm_rank(ctx) == 0)
        st = add_digest(ctx, work, open, pack, digest, err);
    VPTQ_CHECK(vptq_comm_agree(ctx, st, err));
    return vptq_comm_broadcast(ctx, 0, digest, VPTQ_DIGEST_SIZE, err);
}

/* Finds the directory of a run with tuning, or fails before any work. */
static vptq_status find_stage(const vptq_ctx *ctx, const vptq_quantize_options *opt,
                              char *untuned, vptq_err *err)
{
    if (opt->no_shared_dir && vptq_comm_size(ctx) > 1)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "--tune reads the quantized matrices in every process and cannot run "
                         "with --no-shared-dir; quantize without --tune, copy the work "
                         "directory to every machine, and tune it with --from");
    return vptq_tune_find_stage(opt->work, opt->force, ctx->mem, untuned, err);
}

static vptq_status quantize_only(vptq_ctx *ctx, const vptq_quantize_options *opt,
                                 const vptq_pack_options *pack, const vptq_output *out,
                                 vptq_quantize_result *result, vptq_err *err)
{
    vptq_device *dev;
    const vptq_checkpoint_options open = {.tokenizer = opt->tokenizer, .base = opt->model};
    VPTQ_CHECK(vptq_ctx_device(ctx, &dev, err));
    VPTQ_CHECK(vptq_quantize_report(dev, opt, out, result, err));
    if (opt->dry_run)
        return VPTQ_OK;
    VPTQ_CHECK(share_digest(ctx, opt->work, &open, pack, result->digest, err));
    return vptq_quantize_report_end(opt, result, out, err);
}

static vptq_status tune(vptq_ctx *ctx, const vptq_tune_options *opt,
                        const vptq_pack_options *pack, const vptq_output *out,
                        vptq_tune_result *result, vptq_err *err)
{
    vptq_device *dev;
    vptq_tune_result own;
    const vptq_checkpoint_options open = {.tokenizer = opt->tokenizer, .base = opt->model};
    if (!result)
        result = &own;
    VPTQ_CHECK(vptq_ctx_device(ctx, &dev, err));
    VPTQ_CHECK(vptq_tune_report(dev, opt, out, result, err));
    if (opt->dry_run)
        return vptq_comm_rank(ctx) ? VPTQ_OK : vptq_tune_report_plan(opt, result, out, err);
    VPTQ_CHECK(share_digest(ctx, opt->work, &open, pack, result->digest, err));
    return vptq_tune_report_end(opt, result, out, err);
}

/* Two runs: quantizes into work/untuned, and tunes that to `work`. */
static vptq_status quantize_and_tune(vptq_ctx *ctx, const vptq_quantize_options *opt,
                                     const vptq_pack_options *pack, const vptq_output *out,
                                     vptq_quantize_result *result, vptq_err *err)
{
    char untuned[PATH_MAX];
    vptq_tune_result tuned;
    vptq_quantize_options quantize = *opt;
    vptq_tune_options second = *opt->tune;
    VPTQ_CHECK(vptq_comm_agree(ctx, find_stage(ctx, opt, untuned, err), err));
    quantize.work = second.from = untuned;
    second.model = opt->model;
    second.work = opt->work;
    second.tokenizer = opt->tokenizer;
    second.force = opt->force;
    VPTQ_CHECK(quantize_only(ctx, &quantize, pack, out, result, err));
    VPTQ_CHECK(tune(ctx, &second, pack, out, &tuned, err));
    memcpy(result->digest, tuned.digest, sizeof tuned.digest);
    return VPTQ_OK;
}

vptq_status vptq_quantize_to_pack(vptq_ctx *ctx, const vptq_quantize_options *opt,
                                  const vptq_pack_options *pack, const vptq_output *out,
                                  vptq_quantize_result *result, vptq_err *err)
{
    vptq_quantize_result own;
    const vptq_encoder_settings best = vptq_encoder_defaults();
    vptq_quantize_options o = *opt;
    if (!o.settings)
        o.settings = &best;
    if (o.calibrate && isnan(o.kv_factor)) {
        vptq_token_weights weights;
        VPTQ_CHECK(vptq_token_weights_parse(vptq_token_weights_name(o.calibrate->weights),
                                            &weights, &o.kv_factor, err));
    }
    if (!result)
        result = &own;
    if (o.tune && !o.dry_run)
        return quantize_and_tune(ctx, &o, pack, out, result, err);
    if (o.dry_run && o.predict)
        return predict(ctx, &o, out, result, err);
    return quantize_only(ctx, &o, pack, out, result, err);
}

vptq_status vptq_quantize(vptq_ctx *ctx, const vptq_quantize_options *opt,
                          const vptq_output *out, vptq_quantize_result *result, vptq_err *err)
{
    return vptq_quantize_to_pack(ctx, opt, NULL, out, result, err);
}

/* ---- Tuning ----------------------------------------------------------------------------- */

vptq_status vptq_tune(vptq_ctx *ctx, const vptq_tune_options *opt, const vptq_output *out,
                      vptq_tune_result *result, vptq_err *err)
{
    return tune(ctx, opt, NULL, out, result, err);
}

/* ---- Output ----------------------------------------------------------------------------- */

vptq_status vptq_check_output(const char *output, const char *input, vptq_err *err)
{
    return vptq_path_check_output(output, input, err);
}

struct vptq_writer {
    vptq_file_writer file;
};

vptq_status vptq_writer_open(const char *path, bool force, vptq_writer **w, vptq_err *err)
{
    *w = NULL;
    vptq_writer *writer = calloc(1, sizeof *writer);
    if (!writer)
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    const vptq_status st = vptq_file_writer_open(path, force, &writer->file, err);
    if (st)
        free(writer);
    else
        *w = writer;
    return st;
}

vptq_status vptq_writer_check(const char *path, bool force, vptq_err *err)
{
    return vptq_file_check_target(path, force, err);
}

vptq_status vptq_writer_write(vptq_writer *w, const void *data, size_t bytes, vptq_err *err)
{
    return vptq_file_write(&w->file, data, bytes, err);
}

vptq_status vptq_writer_commit(vptq_writer *w, vptq_err *err)
{
    return vptq_file_writer_commit(&w->file, err);
}

vptq_status vptq_make_parents(const char *path, vptq_err *err)
{
    return vptq_path_make_parent(path, err);
}

void vptq_writer_close(vptq_writer *w)
{
    if (w)
        vptq_file_writer_abort(&w->file);
    free(w);
}
