/* Internal to lib/pack: SHA-256 of bytes that arrive in pieces.
 *
 *     vptq_sha256 h = {0};
 *     VPTQ_TRY(vptq_sha256_begin(&h, err));
 *     VPTQ_TRY(vptq_sha256_add(&h, data, n, err));
 *     VPTQ_TRY(vptq_sha256_finish(&h, hex, err));
 * out:
 *     vptq_sha256_release(&h);
 */
#ifndef VPTQ_PACK_SHA256_H
#define VPTQ_PACK_SHA256_H

#include "lib/base/status.h"

enum { VPTQ_SHA256_HEX = 64 };

typedef struct vptq_sha256 {
    struct evp_md_ctx_st *state; /* of OpenSSL; kept from one hash to the next */
} vptq_sha256;

/* Begins a hash, the first one or another one.  VPTQ_E_UNSUPPORTED where OpenSSL has no
 * SHA-256. */
vptq_status vptq_sha256_begin(vptq_sha256 *h, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_sha256_add(vptq_sha256 *h, const void *data, size_t n,
                            vptq_err *err) VPTQ_MUST_CHECK;
/* Writes lower-case digits. */
vptq_status vptq_sha256_finish(vptq_sha256 *h, char hex[VPTQ_SHA256_HEX + 1],
                               vptq_err *err) VPTQ_MUST_CHECK;
void vptq_sha256_release(vptq_sha256 *h);

#endif
