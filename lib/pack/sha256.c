/* SHA-256 by OpenSSL's libcrypto. */
#include "lib/pack/sha256.h"

#include <openssl/evp.h>
#include <stdio.h>

static vptq_status check(int ok, vptq_err *err)
{
    return ok ? VPTQ_OK : vptq_fail(err, VPTQ_E_UNSUPPORTED, "OpenSSL has no SHA-256");
}

vptq_status vptq_sha256_begin(vptq_sha256 *h, vptq_err *err)
{
    if (!h->state)
        h->state = EVP_MD_CTX_new();
    return check(h->state && EVP_DigestInit_ex(h->state, EVP_sha256(), NULL), err);
}

vptq_status vptq_sha256_add(vptq_sha256 *h, const void *data, size_t n, vptq_err *err)
{
    return check(EVP_DigestUpdate(h->state, data, n), err);
}

vptq_status vptq_sha256_finish(vptq_sha256 *h, char hex[VPTQ_SHA256_HEX + 1], vptq_err *err)
{
    unsigned char md[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    VPTQ_CHECK(check(EVP_DigestFinal_ex(h->state, md, &n) && 2 * n == VPTQ_SHA256_HEX, err));
    for (unsigned i = 0; i < n; i++)
        snprintf(hex + 2 * i, 3, "%02x", md[i]);
    return VPTQ_OK;
}

void vptq_sha256_release(vptq_sha256 *h)
{
    EVP_MD_CTX_free(h->state);
    h->state = NULL;
}
