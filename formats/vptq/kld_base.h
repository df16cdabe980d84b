/* Internal: saved base logits: an original model's predictions on a text, so that other models
 * can be compared with it without loading it.  The file has the token ids of the windows and,
 * for every scored token, 16-bit log-probabilities of the next one: of all ids (full), or of
 * the likeliest ids and the total of the rest (compact).  Byte layout:
 * docs/formats/kld-base.md.
 *
 *     vptq_kld_base_file f;
 *     VPTQ_TRY(vptq_kld_base_file_open(path, mem, &f, err));
 *     uint8_t *bytes = vptq_arena_alloc(&arena, n, vptq_kld_base_record_bytes(&f.head), err);
 *     VPTQ_TRY(vptq_kld_base_file_read(&f, first, n, bytes, err));
 *     vptq_kld_base_record r = vptq_kld_base_record_at(&f.head, bytes);
 *     for (size_t i = 0; i < f.head.entries; i++)
 *         use(vptq_kld_base_id(&r, i), vptq_kld_base_log(&r, i));
 *     vptq_kld_base_file_release(&f); */
#ifndef VPTQ_FORMATS_VPTQ_KLD_BASE_H
#define VPTQ_FORMATS_VPTQ_KLD_BASE_H

#include "lib/base/file.h"
#include "lib/base/le.h"
#include "lib/base/mem.h"

typedef enum {
    VPTQ_KLD_BASE_GPTQ,
    VPTQ_KLD_BASE_LLAMA_CPP,
    VPTQ_KLD_BASE_PROTOCOLS
} vptq_kld_base_protocol;

enum { VPTQ_KLD_BASE_CODES = 65536 };

typedef struct vptq_kld_base_head {
    vptq_kld_base_precision precision;
    vptq_kld_base_protocol protocol;
    uint32_t vocab;
    uint32_t entries; /* per record; vocab if full */
    uint32_t context; /* ids per window */
    uint32_t windows;
    int32_t bos;         /* replaces the first id of every window; -1 = none */
    uint64_t model;      /* fingerprint */
    uint64_t vocabulary; /* fingerprint of the bytes of every id; 0 = unknown */
    char name[VPTQ_KLD_BASE_NAME_MAX + 1]; /* of the model, for messages */
} vptq_kld_base_head;

/* Scored tokens per window: the ids after the first, or after the middle (llama.cpp). */
size_t vptq_kld_base_positions(const vptq_kld_base_head *h);
/* Bytes of a record; a multiple of 8. */
size_t vptq_kld_base_record_bytes(const vptq_kld_base_head *h);

/* One record; codes and ids point into its bytes. */
typedef struct vptq_kld_base_record {
    float target;          /* log-probability of the correct id */
    float highest, lowest; /* values of the codes 65535 and 0 */
    float tail;            /* log of the total probability of all other ids; -inf = 0 */
    uint32_t likeliest;    /* id */
    const uint8_t *codes;  /* [entries] u16 */
    const uint8_t *ids;    /* [entries] u16, or u32 over a large vocabulary; NULL = all */
    unsigned id_bytes;
} vptq_kld_base_record;

/* View of the bytes of a record. */
vptq_kld_base_record vptq_kld_base_record_at(const vptq_kld_base_head *h, const uint8_t *bytes);

/* Log-probability of entry i. */
static inline double vptq_kld_base_log(const vptq_kld_base_record *r, size_t i)
{
    const double step = ((double)r->highest - (double)r->lowest) / (VPTQ_KLD_BASE_CODES - 1);
    return (double)r->lowest + step * (double)vptq_get_le(r->codes + 2 * i, 2);
}

static inline size_t vptq_kld_base_id(const vptq_kld_base_record *r, size_t i)
{
    return r->ids ? (size_t)vptq_get_le(r->ids + r->id_bytes * i, r->id_bytes) : i;
}

/* Contents of a record to write. */
typedef struct vptq_kld_base_values {
    uint32_t likeliest;
    double target, tail;
    const double *values; /* log-probabilities of ids[i], or of i if ids is NULL */
    const uint32_t *ids;  /* ascending */
} vptq_kld_base_values;
/* Fills record `number` of the file (from 0).  Values more than 24 below the highest are stored
 * as 24 below it. */
void vptq_kld_base_record_fill(const vptq_kld_base_head *h, uint64_t number,
                               const vptq_kld_base_values *v, uint8_t *bytes);

typedef struct vptq_kld_base_file {
    vptq_kld_base_head head;
    int32_t *ids;  /* [windows][context]; owned */
    uint64_t hash; /* of the head, which has those of model and ids */
    vptq_file file;
    vptq_mem *mem;
} vptq_kld_base_file;

/* Reads and checks head, ids and the size of the file.  VPTQ_E_FORMAT, or VPTQ_E_CHECKSUM for a
 * damaged file. */
vptq_status vptq_kld_base_file_open(const char *path, vptq_mem *mem, vptq_kld_base_file *f,
                                    vptq_err *err) VPTQ_MUST_CHECK;
void vptq_kld_base_file_release(vptq_kld_base_file *f);
/* Reads and checks records [first, first + n). */
vptq_status vptq_kld_base_file_read(const vptq_kld_base_file *f, uint64_t first, size_t n,
                                    uint8_t *bytes, vptq_err *err) VPTQ_MUST_CHECK;

/* Writes to a temporary file, which commit renames. */
typedef struct vptq_kld_base_writer {
    vptq_file_writer file;
    vptq_kld_base_head head;
    uint64_t records; /* written so far */
} vptq_kld_base_writer;

/* The head must be valid; ids [windows][context]. */
vptq_status vptq_kld_base_writer_open(const char *path, bool force,
                                      const vptq_kld_base_head *head, const int32_t *ids,
                                      vptq_kld_base_writer *w, vptq_err *err) VPTQ_MUST_CHECK;
/* Appends n records. */
vptq_status vptq_kld_base_writer_add(vptq_kld_base_writer *w, const uint8_t *bytes, size_t n,
                                     vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_kld_base_writer_commit(vptq_kld_base_writer *w, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_kld_base_writer_abort(vptq_kld_base_writer *w); /* harmless after commit */

#endif
