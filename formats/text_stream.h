/* Internal to text_file.c: reads a file or pipe from its beginning to its end, and decompresses
 * it. */
#ifndef VPTQ_FORMATS_TEXT_STREAM_H
#define VPTQ_FORMATS_TEXT_STREAM_H

#include "lib/base/buf.h"
#include "lib/base/ctx.h"

typedef enum {
    VPTQ_COMPRESSION_NONE,
    VPTQ_COMPRESSION_GZIP, /* RFC 1952; any number of members */
    VPTQ_COMPRESSION_ZSTD  /* RFC 8878; any number of frames, windows up to 128 MiB */
} vptq_compression;

/* Recognizes compressed data by its first four bytes. */
vptq_compression vptq_compression_of(const void *data, size_t size);

/* Reads a path, or standard input for "-", into *out, initialized and empty.  With `decode`,
 * decompresses compressed data, and *decoded says so.  Errors as vptq_text_file_open. */
vptq_status vptq_stream_read(const vptq_ctx *ctx, const char *path, bool decode, size_t limit,
                             vptq_buf *out, bool *decoded, vptq_err *err) VPTQ_MUST_CHECK;

/* "'NAME' has more than the LIMIT bytes expected". */
vptq_status vptq_stream_fail_long(const char *name, size_t limit, vptq_err *err);

#endif
