/* Parts of the checkpoint module that are shared by its files: opening of the quantized kinds,
 * and what they hold. */
#ifndef VPTQ_FORMATS_CHECKPOINT_INTERNAL_H
#define VPTQ_FORMATS_CHECKPOINT_INTERNAL_H

#include "formats/checkpoint.h"

enum { VPTQ_CONFIG_LIMIT = 64 << 20 }; /* bytes of a config.json or quantize.json */

/* What kind a path is, by content; VPTQ_E_FORMAT saying what was looked for. */
vptq_status vptq_checkpoint_detect(const char *path, vptq_checkpoint_kind *kind,
                                   vptq_err *err) VPTQ_MUST_CHECK;

/* The rest of opening, with kind, path, arena and set of `c` in place; on failure the caller
 * releases c. */
vptq_status vptq_checkpoint_open_packed(bool shapes_only, vptq_checkpoint *c,
                                        vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_checkpoint_open_archive(const vptq_ctx *ctx, bool shapes_only,
                                         vptq_checkpoint *c, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_checkpoint_open_work(const vptq_ctx *ctx, const char *base, vptq_checkpoint *c,
                                      vptq_err *err) VPTQ_MUST_CHECK;
void vptq_checkpoint_release_extra(vptq_checkpoint *c);
/* tokenizer.json of an ARCHIVE. */
vptq_status vptq_checkpoint_archive_vocab(const vptq_checkpoint *c, const vptq_ctx *ctx,
                                          vptq_vocab *v, vptq_err *err) VPTQ_MUST_CHECK;
/* A file of an ARCHIVE that is no tensor; *text is NULL where there is none. */
vptq_status vptq_checkpoint_archive_text(const vptq_checkpoint *c, const char *name,
                                         size_t limit, vptq_arena *arena, char **text,
                                         size_t *len, vptq_err *err) VPTQ_MUST_CHECK;

#endif
