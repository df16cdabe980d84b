/* Tells which tensors of a file the model does not use. */
#include <stdio.h>
#include <string.h>

#include "lib/base/text.h"
#include "lib/model/model.h"

/* Whether a name is the weight or bias of a norm at `path`, which may be NULL. */
static bool is_norm(const vptq_family *f, const char *name, const char *path)
{
    size_t length = vptq_text_before(name, ".weight");
    if (!length && f->layer_norm)
        length = vptq_text_before(name, ".bias");
    return path && length == strlen(path) && strncmp(name, path, length) == 0;
}

/* Whether the rest of a name in a block is the weight of its router or shared gate. */
static bool is_router(const vptq_family *f, const char *rest)
{
    const char *const paths[] = {vptq_router_path(f), VPTQ_SHARED_GATE_PATH};
    const size_t length = vptq_text_before(rest, ".weight");
    for (int i = 0; i < (f->shared_expert ? 2 : 1); i++)
        if (f->experts && length == strlen(paths[i]) && strncmp(rest, paths[i], length) == 0)
            return true;
    return false;
}

bool vptq_model_knows(const vptq_checkpoint *c, const char *name)
{
    static const char *const top[] = {VPTQ_EMBEDDING_NAME, VPTQ_HEAD_NAME};
    const char *rest = vptq_name_in_block(&c->desc, name);
    vptq_linear l;
    for (size_t i = 0; i < sizeof top / sizeof top[0]; i++)
        if (strcmp(name, top[i]) == 0)
            return true;
    if (rest && is_router(c->desc.family, rest))
        return true;
    for (int n = 0; rest && n < VPTQ_BLOCK_NORM_COUNT; n++)
        if (is_norm(c->desc.family, rest,
                    vptq_block_norm_path(c->desc.family, (vptq_block_norm)n)))
            return true;
    return is_norm(c->desc.family, name, "model.norm") ||
           vptq_text_before(name, ".rotary_emb.inv_freq") ||
           vptq_text_before(name, ".masked_bias") ||
           vptq_linear_of_module(&c->desc, name, vptq_text_before(name, ".weight"), &l) ||
           vptq_linear_of_module(&c->desc, name, vptq_text_before(name, ".bias"), &l);
}

/* The first of some tensors, as text for a warning. */
typedef struct summary {
    char names[3 * (VPTQ_NAME_MAX + 4)];
    size_t count;
} summary;

static void add_name(const vptq_ctx *ctx, summary *s, const char *name)
{
    const size_t named = 3, length = strlen(s->names);
    if (s->count < named)
        snprintf(s->names + length, sizeof s->names - length, "%s'%.*s'", length ? ", " : "",
                 VPTQ_NAME_MAX - 1, name);
    else if (s->count == named)
        snprintf(s->names + length, sizeof s->names - length, ", ..");
    s->count++;
    vptq_log(ctx, VPTQ_LOG_MORE, "unused tensor '%s'", name);
}

static void warn_of_biases(const vptq_ctx *ctx, const vptq_checkpoint *c)
{
    summary s = {.count = 0};
    for (size_t i = 0; i < c->ignored_count; i++)
        add_name(ctx, &s, c->ignored[i]);
    if (s.count)
        vptq_log(ctx, VPTQ_LOG_WARN,
                 "%s: ignored %zu bias%s that config.json does not declare, as transformers "
                 "does: %s",
                 c->path, s.count, vptq_plural(s.count, "", "es"), s.names);
}

void vptq_model_warn_of_unused(const vptq_ctx *ctx, const vptq_checkpoint *c)
{
    summary s = {.count = 0};
    if (!c->config)
        return;
    warn_of_biases(ctx, c);
    if (c->other_parts)
        vptq_log(ctx, VPTQ_LOG_WARN,
                 "%s: only the text model is read; %zu tensor%s of its other parts %s left out",
                 c->path, c->other_parts, vptq_plural(c->other_parts, "", "s"),
                 vptq_plural(c->other_parts, "is", "are"));
    for (size_t i = 0; i < c->set.count; i++) {
        const char *name = c->set.tensors[i].name;
        /* parts of quantized matrices were checked when these were read */
        if (!vptq_packed_module_length(name) && !vptq_model_knows(c, name))
            add_name(ctx, &s, name);
    }
    if (s.count)
        vptq_log(ctx, VPTQ_LOG_WARN,
                 "%s: a model of this architecture does not use %zu of its "
                 "tensors: %s",
                 c->path, s.count, s.names);
}
