/* Writes the logits of a model at every position of a sequence, for comparison with other
 * programs.
 *
 *     logits MODEL IDS OUT [BACKEND]
 *
 * MODEL is any kind that the tools read, IDS raw ids (int32, little endian), OUT raw float32
 * [ids, vocabulary]. */
#include <stdio.h>

#include "lib/base/file.h"
#include "lib/base/parallel.h"
#include "lib/model/corpus.h"
#include "lib/model/forward.h"

static vptq_status write_logits(const vptq_model *m, vptq_device *dev, const vptq_ids *ids,
                                const char *path, vptq_arena *arena, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_forward *f = NULL;
    size_t n = ids->count, vocab = m->desc->vocab, starts[2] = {0, n};
    float *hidden = vptq_arena_alloc(arena, n, m->desc->hidden * sizeof *hidden, err);
    float *logits = vptq_arena_alloc(arena, n, vocab * sizeof *logits, err);
    if (!hidden || !logits)
        return VPTQ_E_NOMEM;
    VPTQ_TRY(vptq_forward_open(m, dev, n, &f, err));
    VPTQ_TRY(vptq_forward_embed(f, ids->data, n, hidden, err));
    for (uint32_t l = 0; l < m->desc->layers; l++)
        VPTQ_TRY(vptq_forward_block(f, l, starts, 1, hidden, err));
    VPTQ_TRY(vptq_forward_logits(f, n, hidden, logits, err));
    VPTQ_TRY(vptq_file_replace(path, logits, n * vocab * sizeof *logits, err));
out:
    vptq_forward_close(f);
    return st;
}

static vptq_status run(vptq_device *dev, const vptq_model *m, const char *ids, const char *path,
                       vptq_err *err)
{
    vptq_arena arena;
    vptq_corpus corpus = {.ids = {.data = NULL}};
    vptq_corpus_options opt = {.tokens = &ids, .token_count = 1};
    vptq_arena_init(&arena, NULL);
    vptq_status st = vptq_corpus_load(dev->ctx, &opt, NULL, m->desc->vocab, &corpus, err);
    if (!st)
        st = write_logits(m, dev, &corpus.ids, path, &arena, err);
    vptq_corpus_release(&corpus);
    vptq_arena_release(&arena);
    return st;
}

int main(int argc, char **argv)
{
    vptq_ctx ctx = {.threads = vptq_cpu_count()};
    vptq_checkpoint_options open = {.tokenizer = NULL};
    vptq_err err = {0};
    vptq_device dev;
    vptq_model m;
    if (argc < 4 || argc > 5) {
        fprintf(stderr, "usage: logits MODEL IDS OUT [BACKEND]\n");
        return 2;
    }
    vptq_status st = vptq_device_open(&ctx, argc == 5 ? argv[4] : "auto", &dev, &err);
    if (!st) {
        st = vptq_model_open(&ctx, argv[1], &open, false, &m, &err);
        if (!st) {
            st = run(&dev, &m, argv[2], argv[3], &err);
            vptq_model_release(&m);
        }
        vptq_device_close(&dev);
    }
    if (st)
        fprintf(stderr, "logits: %s\n", err.text);
    return st ? 1 : 0;
}
