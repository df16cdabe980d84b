/* Internal: reads the texts and JSON files that a user names: regular files, pipes and "-",
 * which is standard input, plain or compressed with gzip or zstd.  Compression is recognized by
 * the first bytes, never by the name.
 *
 * "builtin" is the text that ships with the program; a file of that name is "./builtin".
 *
 * A pipe can be read only once.  Its content is kept with the context, and opening the same
 * path again returns it. */
#ifndef VPTQ_FORMATS_TEXT_FILE_H
#define VPTQ_FORMATS_TEXT_FILE_H

#include "lib/base/buf.h"
#include "lib/base/ctx.h"
#include "lib/base/file.h"

typedef enum {
    VPTQ_TEXT_UTF8,  /* fails unless the text is valid UTF-8 without zero bytes */
    VPTQ_TEXT_LOSSY, /* replaces zero bytes, and each maximal invalid part, with U+FFFD */
    VPTQ_TEXT_JSON,  /* left to the caller's parser */
    VPTQ_TEXT_BYTES  /* not a text: as they are, never decompressed */
} vptq_text_kind;

typedef struct vptq_text_file {
    const char *name; /* for messages: the path, which is not copied, "standard input", or
                              "the built-in text" */
    const char *data; /* without a byte order mark; not terminated */
    size_t size;
    /* internal */
    bool decompressed;
    vptq_map map; /* what `data` points into, unless the context has it: a mapping ... */
    vptq_buf own; /* ... or memory */
} vptq_text_file;

/* Opens a text, which outlives neither the context nor `path`.  Fails for more than `limit`
 * bytes after decompression; SIZE_MAX: 4 GiB for pipes and compressed files, which are held in
 * memory, and no limit for others.  Also fails for a compressed file that decompresses to more
 * than 16 MiB and 100 times its size.  Waits for the writer of a pipe; VPTQ_E_CANCELLED when
 * the caller's flag is raised meanwhile.  VPTQ_E_FORMAT names the offset of the first byte that
 * is not text, or says that the compressed data is damaged or incomplete. */
vptq_status vptq_text_file_open(const vptq_ctx *ctx, const char *path, vptq_text_kind kind,
                                size_t limit, vptq_text_file *t, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_text_file_close(vptq_text_file *t); /* harmless after a failure */

/* Frees what a context keeps (vptq_ctx.inputs). */
void vptq_text_inputs_free(vptq_mem *mem, struct vptq_text_input **inputs);

/* Decompresses the built-in text (text_builtin.c). */
vptq_status vptq_text_builtin(vptq_buf *out, vptq_err *err) VPTQ_MUST_CHECK;

/* "standard input" for "-", else the path. */
const char *vptq_text_file_name(const char *path);

#endif
