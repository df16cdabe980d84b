/* The factor of the column pass: U upper with A^-1 = U^T U (hessian.h), one Cholesky
 * factorization and one triangular inverse.  Reversing rows and columns turns the lower factor
 * of the reversed matrix into R with A = R R^T, R upper, hence U = R^-1. */
#include <math.h>
#include <string.h>

#include "hessian/hessian.h"
#include "lib/backend/mirror.h"

/* a = J a J in place for a symmetric a: (i, j) <-> (n-1-j, n-1-i) maps its lower triangle onto
 * itself. */
static void reverse_lower(size_t n, double *a)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++) {
            size_t ri = n - 1 - j;
            size_t rj = n - 1 - i;
            if (ri * n + rj <= i * n + j)
                continue; /* swapped before, or its own image */
            double t = a[i * n + j];
            a[i * n + j] = a[ri * n + rj];
            a[ri * n + rj] = t;
        }
}

static vptq_status check_finite(size_t n, const double *a, vptq_err *err)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++)
            if (!isfinite(a[i * n + j]))
                return vptq_fail(err, VPTQ_E_NUMERIC,
                                 "hessian entry (%zu, %zu) is %g, expected a finite number", i,
                                 j, a[i * n + j]);
    return VPTQ_OK;
}

/* The factorization destroys the lower triangle only, so the strict upper one keeps a copy. */
static void save_to_upper(size_t n, double *a, double *diag)
{
    for (size_t i = 0; i < n; i++) {
        diag[i] = a[i * n + i];
        for (size_t j = 0; j < i; j++)
            a[j * n + i] = a[i * n + j];
    }
}

static void restore_from_upper(size_t n, double *a, const double *diag, double add)
{
    for (size_t i = 0; i < n; i++) {
        a[i * n + i] = diag[i] + add;
        for (size_t j = 0; j < i; j++)
            a[i * n + j] = a[j * n + i];
    }
}

vptq_status vptq_hessian_cholesky(vptq_device *dev, size_t n, double *a, size_t *bad_pivot,
                                  vptq_err *err)
{
    vptq_mirror m = vptq_mirror_of(dev);
    double *on =
        vptq_mirror_take(&m, a, n * n, sizeof *a, VPTQ_MIRROR_UPLOAD | VPTQ_MIRROR_DOWNLOAD);
    vptq_status st = vptq_mirror_check(&m, err);
    if (!st)
        st = dev->ops->potrf(dev->state, n, on, n, bad_pivot, err);
    return vptq_mirror_end(&m, st, err);
}

vptq_status vptq_hessian_invert_lower(vptq_device *dev, size_t n, double *a, vptq_err *err)
{
    vptq_mirror m = vptq_mirror_of(dev);
    double *on =
        vptq_mirror_take(&m, a, n * n, sizeof *a, VPTQ_MIRROR_UPLOAD | VPTQ_MIRROR_DOWNLOAD);
    vptq_status st = vptq_mirror_check(&m, err);
    if (!st)
        st = dev->ops->trtri(dev->state, n, on, n, err);
    return vptq_mirror_end(&m, st, err);
}

vptq_status vptq_hessian_factor(vptq_device *dev, size_t n, double *a, double damping, float *u,
                                double *added, vptq_err *err)
{
    enum { MAX_RAISES = 8 };
    vptq_status st = VPTQ_OK;
    double *diag = NULL;

    VPTQ_TRY(check_finite(n, a, err));
    diag = vptq_mem_alloc(dev->ctx->mem, n, sizeof *diag, err);
    if (!diag)
        VPTQ_TRY(VPTQ_E_NOMEM);
    reverse_lower(n, a);
    save_to_upper(n, a, diag);
    double mean = 0;
    for (size_t i = 0; i < n; i++)
        mean += diag[i];
    mean /= (double)n;
    if (!(mean > 0))
        VPTQ_TRY(vptq_fail(err, VPTQ_E_NUMERIC,
                           "hessian has a mean diagonal of %g, expected a positive one", mean));

    double share = 0;
    for (int raise = 0;; raise++) {
        size_t pivot = 0;
        vptq_err why = {0};
        st = vptq_hessian_cholesky(dev, n, a, &pivot, &why);
        if (st != VPTQ_E_NUMERIC) {
            if (st && err)
                *err = why;
            break;
        }
        if (raise == MAX_RAISES) {
            st =
                vptq_fail(err, VPTQ_E_NUMERIC,
                          "hessian is not positive definite at column %zu, even with %g of the "
                          "mean diagonal added",
                          n - 1 - pivot, share);
            break;
        }
        share = share > 0 ? share * 10 : damping;
        restore_from_upper(n, a, diag, share * mean);
    }
    if (st)
        goto out;
    VPTQ_TRY(vptq_hessian_invert_lower(dev, n, a, err));
    for (size_t i = 0; i < n; i++) {
        memset(u + i * n, 0, i * sizeof *u);
        for (size_t j = i; j < n; j++)
            u[i * n + j] = (float)a[(n - 1 - i) * n + (n - 1 - j)];
    }
    *added = share;
out:
    vptq_mem_free(dev->ctx->mem, diag);
    return st;
}
