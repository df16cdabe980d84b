/* Internal to formats/checkpoint*.c: what an open checkpoint holds, and the steps of opening
 * one. Order of the files, each calling only those before it: checkpoint.c (an open
 * checkpoint), checkpoint_quantized.c (quantized matrices), checkpoint_open.c (detection and
 * opening). */
#ifndef VPTQ_FORMATS_CHECKPOINT_INTERNAL_H
#define VPTQ_FORMATS_CHECKPOINT_INTERNAL_H

#include "formats/checkpoint.h"
#include "formats/vptq/archive.h"
#include "formats/vptq/layer_file.h"

enum { VPTQ_CONFIG_LIMIT = 64 << 20 }; /* bytes of a config.json or quantize.json */
#define VPTQ_CONFIG_FILE "config.json"

typedef struct vptq_checkpoint_files {
    vptq_archive *archive;   /* ARCHIVE */
    int threads;             /* for unpacking it */
    vptq_layer_file *layers; /* WORK */
    size_t layer_count;
} vptq_checkpoint_files;

/* ---- checkpoint.c ---- */

vptq_status vptq_checkpoint_add_files(vptq_checkpoint *c, vptq_err *err) VPTQ_MUST_CHECK;
/* Reads a file of an archive, at most `limit` bytes, into `arena`. */
vptq_status vptq_checkpoint_archive_text(const vptq_checkpoint *c, const char *name,
                                         size_t limit, vptq_arena *arena, vptq_text *text,
                                         vptq_err *err) VPTQ_MUST_CHECK;

/* ---- checkpoint_quantized.c: c has kind, path, arena and set; on failure the caller releases
 * it ---- */

/* Reads the matrices that c->config lists from c->set. */
vptq_status vptq_checkpoint_read_matrices(bool shapes_only, vptq_checkpoint *c,
                                          vptq_err *err) VPTQ_MUST_CHECK;
/* Whether config.json describes uniformly quantized matrices. */
bool vptq_checkpoint_is_uniform(const json_t *config);
/* Reads the uniformly quantized matrices that c->config lists, and puts their weights in place
 * of the tensors that store them. */
vptq_status vptq_checkpoint_read_uniform(vptq_checkpoint *c, vptq_err *err) VPTQ_MUST_CHECK;
/* The same for matrices of additive codes, whose weights it decodes. */
vptq_status vptq_checkpoint_read_additive(const vptq_ctx *ctx, vptq_checkpoint *c,
                                          vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_checkpoint_open_archive(const vptq_ctx *ctx, bool shapes_only,
                                         vptq_checkpoint *c, vptq_err *err) VPTQ_MUST_CHECK;

/* The manifest of a work directory; the texts are in the arena of the checkpoint. */
typedef struct vptq_work_header {
    const char *base, *fingerprint;
    const char *tokenizer; /* "" = that of the base model */
} vptq_work_header;
/* Also sets c->storage and c->skipped. */
vptq_status vptq_checkpoint_read_work_header(vptq_checkpoint *c, vptq_work_header *h,
                                             vptq_err *err) VPTQ_MUST_CHECK;
/* Adds the tensors of c->base, rounded to c->storage, and the finished matrices.  Unless
 * `partial`, the last run must have finished: report.jsonl, which it writes at its end, has a
 * row for every matrix. */
vptq_status vptq_checkpoint_read_work(const vptq_ctx *ctx, bool partial, vptq_checkpoint *c,
                                      vptq_err *err) VPTQ_MUST_CHECK;

#endif
