/* Reads Hessians of other programs: PyTorch files of two forms, numpy arrays, an imatrix. */
#include "hessian/foreign.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "formats/torch/file.h"
#include "formats/torch/npy.h"
#include "hessian/hessian.h"
#include "lib/base/parallel.h"

/* A matrix is not symmetric if two entries differ by more than this share of sqrt(H_ii H_jj);
 * float sums in another order differ by far less. */
static const double MAX_ASYMMETRY = 1e-4;
/* Largest distance of the mean diagonal from 1 + ridge: the factor was computed in float from
 * an inverse. */
static const double RIDGE_TOLERANCE = 0.05;

static vptq_status allocate(vptq_foreign *f, vptq_arena *arena, vptq_err *err)
{
    f->mean = vptq_arena_zalloc(arena, f->n, sizeof *f->mean, err);
    f->lower =
        f->mean ? vptq_arena_alloc(arena, vptq_triangle(f->n), sizeof *f->lower, err) : NULL;
    return f->lower ? VPTQ_OK : VPTQ_E_NOMEM;
}

static vptq_status check_values(const char *path, const vptq_foreign *f, vptq_err *err)
{
    const float *x = f->lower;
    for (size_t i = 0; i < f->n; i++)
        for (size_t j = 0; j <= i; j++, x++)
            if (!vptq_hessian_usable(*x) || (i == j && *x < 0))
                return vptq_fail(err, VPTQ_E_NUMERIC,
                                 "%s: row %zu, column %zu of the Hessian is %g, expected %s",
                                 path, i, j, (double)*x,
                                 i == j ? "zero or a positive number below 1e24"
                                        : "a finite number below 1e24");
    return VPTQ_OK;
}

/* ---- PyTorch ---- */

static vptq_status need_item(const vptq_torch_file *t, const char *path, const char *name,
                             const vptq_torch_item **item, vptq_err *err)
{
    *item = vptq_torch_find(t, name);
    return *item ? VPTQ_OK
                 : vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' is missing", path, name);
}

static vptq_status need_vector(const vptq_torch_file *t, const char *path, const char *name,
                               const vptq_tensor **out, vptq_err *err)
{
    const vptq_torch_item *item;
    VPTQ_CHECK(need_item(t, path, name, &item, err));
    if (item->kind != VPTQ_TORCH_TENSOR || item->tensor.dims != 1 || !item->tensor.shape[0] ||
        !vptq_dtype_get(item->tensor.type)->is_float)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' is not a vector of real numbers",
                         path, name);
    *out = &item->tensor;
    return VPTQ_OK;
}

/* Reads a whole number of at least `min`, which may be stored as a real one. */
static vptq_status need_count(const vptq_torch_file *t, const char *path, const char *name,
                              int min, uint64_t *count, vptq_err *err)
{
    const vptq_torch_item *item;
    VPTQ_CHECK(need_item(t, path, name, &item, err));
    double f = item->kind == VPTQ_TORCH_FLOAT ? item->f : -1;
    if (f >= min && f < 0x1p53 && f == floor(f))
        *count = (uint64_t)f;
    else if (item->kind == VPTQ_TORCH_INT && item->i >= min)
        *count = (uint64_t)item->i;
    else
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: key '%s' is not a whole number of at least %d", path, name, min);
    return VPTQ_OK;
}

/* Computes H from the covariance, and drops the latter if H reproduces its bits. */
static vptq_status add_mean(const char *path, vptq_foreign *f, vptq_err *err)
{
    bool exact = true;
    for (size_t i = 0, at = 0; i < f->n; i++)
        for (size_t j = 0; j <= i; j++, at++) {
            double m = (double)f->mean[i] * (double)f->mean[j];
            f->lower[at] = (float)((double)f->covariance[at] + m);
            float back = (float)((double)f->lower[at] - m);
            exact = exact && back == f->covariance[at] &&
                    signbit(back) == signbit(f->covariance[at]);
        }
    if (exact)
        f->covariance = NULL;
    return check_values(path, f, err);
}

static vptq_status take_covariance(const vptq_torch_file *t, const char *path,
                                   vptq_arena *arena, vptq_foreign *f, vptq_err *err)
{
    const vptq_tensor *flat = NULL, *mean = NULL;
    uint64_t n = 0;
    VPTQ_CHECK(need_vector(t, path, "flatH", &flat, err));
    VPTQ_CHECK(need_vector(t, path, "mu", &mean, err));
    VPTQ_CHECK(need_count(t, path, "n", 1, &n, err));
    VPTQ_CHECK(need_count(t, path, "ct", 0, &f->tokens, err));
    if (n > UINT32_MAX || mean->shape[0] != n || flat->shape[0] != vptq_triangle((size_t)n))
        return vptq_fail(err, VPTQ_E_SHAPE,
                         "%s: n is %" PRIu64 ", mu has %" PRIu64 " and flatH %" PRIu64
                         " numbers, expected n and n (n + 1) / 2",
                         path, n, mean->shape[0], flat->shape[0]);
    f->n = (uint32_t)n;
    VPTQ_CHECK(allocate(f, arena, err));
    f->covariance = vptq_arena_alloc(arena, vptq_triangle(f->n), sizeof *f->covariance, err);
    if (!f->covariance)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(vptq_tensor_read(mean, 0, 1, f->mean, err));
    VPTQ_CHECK(vptq_tensor_read(flat, 0, 1, f->covariance, err));
    return add_mean(path, f, err);
}

/* ---- PyTorch, inverse form ---- */

/* order [n] = column at each position. */
static vptq_status take_order(const vptq_torch_file *t, const char *path, vptq_arena *arena,
                              uint32_t n, uint32_t **order, vptq_err *err)
{
    const vptq_torch_item *item;
    VPTQ_CHECK(need_item(t, path, "perm", &item, err));
    if (item->kind != VPTQ_TORCH_TENSOR || item->tensor.type != VPTQ_I64 ||
        item->tensor.dims != 1 || item->tensor.shape[0] != n)
        return vptq_fail(err, VPTQ_E_SHAPE,
                         "%s: key 'perm' is not a vector of %" PRIu32 " whole numbers", path,
                         n);
    *order = vptq_arena_alloc(arena, n, sizeof **order, err);
    uint8_t *seen = *order ? vptq_arena_zalloc(arena, n, 1, err) : NULL;
    if (!seen)
        return VPTQ_E_NOMEM;
    for (uint32_t p = 0; p < n; p++) {
        int64_t column;
        memcpy(&column, item->tensor.data + p * sizeof column, sizeof column);
        if (column < 0 || column >= n || seen[column])
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: key 'perm' gives column %" PRId64 " at position %" PRIu32
                             ", expected each of the %" PRIu32 " columns once",
                             path, column, p, n);
        seen[column] = 1;
        (*order)[p] = (uint32_t)column;
    }
    return VPTQ_OK;
}

/* a [n, n] = J U J, a lower triangle; J reverses rows and columns. */
static vptq_status take_factor(const vptq_tensor *u, const char *path, vptq_arena *arena,
                               double *a, vptq_err *err)
{
    const size_t n = (size_t)u->shape[0];
    float *row = vptq_arena_alloc(arena, n, sizeof *row, err);
    if (!row)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        VPTQ_CHECK(vptq_tensor_read(u, i, 1, row, err));
        for (size_t j = 0; j < n; j++)
            if (!isfinite(row[j]) || (j < i && row[j] != 0) || (j == i && !(row[j] > 0)))
                return vptq_fail(err, VPTQ_E_NUMERIC,
                                 "%s: row %zu, column %zu of invH is %g, expected an upper "
                                 "triangle with a positive diagonal",
                                 path, i, j, (double)row[j]);
        for (size_t j = i; j < n; j++)
            a[(n - 1 - i) * n + (n - 1 - j)] = (double)row[j];
    }
    return VPTQ_OK;
}

typedef struct product {
    size_t n, row;
    const double *l; /* [n, n] lower triangle */
    const double *x; /* [n] its row `row` */
    double *out;     /* [n] */
} product;

/* out[q] = sum_k<=q x_k l_qk, in four sums of fixed order. */
static void multiply(void *arg, size_t begin, size_t end, int thread)
{
    const product *p = arg;
    (void)thread;
    for (size_t q = begin; q < end; q++) {
        const double *l = p->l + q * p->n;
        double s[4] = {0};
        size_t k = 0;
        for (; k + 4 <= q + 1; k += 4)
            for (size_t i = 0; i < 4; i++)
                s[i] += p->x[k + i] * l[k + i];
        for (; k <= q; k++)
            s[0] += p->x[k] * l[k];
        p->out[q] = s[0] + s[1] + (s[2] + s[3]);
    }
}

/* l = the lower triangle of L L^T, in place: rows from last to first, because row p needs only
 * the rows up to p. */
static vptq_status square(const vptq_ctx *ctx, size_t n, double *l, double *work, vptq_err *err)
{
    enum { CHUNK = 64 };
    for (size_t p = n; p-- > 0;) {
        if (p % CHUNK == 0)
            VPTQ_CHECK(vptq_check_cancel(ctx, err));
        product m = {.n = n, .row = p, .l = l, .x = l + p * n, .out = work};
        vptq_parallel_for(ctx->threads, p + 1, CHUNK, multiply, &m);
        memcpy(l + p * n, work, (p + 1) * sizeof *work);
    }
    return VPTQ_OK;
}

/* f->lower = H by column, without the ridge, from J A J by position (lower triangle).  A column
 * whose diagonal would be negative had no input and becomes zero. */
static void restore_columns(const double *a, const uint32_t *order, vptq_foreign *f)
{
    const size_t n = f->n;
    for (size_t p = 0; p < n; p++)
        for (size_t q = 0; q <= p; q++) {
            size_t hi = order[p] > order[q] ? order[p] : order[q];
            size_t lo = order[p] > order[q] ? order[q] : order[p];
            double x = a[(n - 1 - q) * n + (n - 1 - p)] - (p == q ? f->ridge : 0);
            f->lower[hi * (hi + 1) / 2 + lo] = (float)x;
        }
    for (size_t c = 0; c < n; c++)
        if (f->lower[c * (c + 1) / 2 + c] < 0)
            for (size_t d = 0; d < n; d++)
                f->lower[d < c ? c * (c + 1) / 2 + d : d * (d + 1) / 2 + c] = 0;
}

static vptq_status take_inverse(vptq_device *dev, const vptq_torch_file *t, const char *path,
                                vptq_arena *arena, vptq_foreign *f, vptq_err *err)
{
    const vptq_torch_item *item = vptq_torch_find(t, "invH");
    const vptq_tensor *u = &item->tensor;
    uint32_t *order = NULL;
    double mean = 0;
    size_t square_size;

    f->form = VPTQ_FOREIGN_INVERSE;
    if (item->kind != VPTQ_TORCH_TENSOR || u->dims != 2 || u->shape[0] != u->shape[1] ||
        !u->shape[0] || u->shape[0] > UINT32_MAX || !vptq_dtype_get(u->type)->is_float ||
        !vptq_size_mul((size_t)u->shape[0], (size_t)u->shape[0], &square_size))
        return vptq_fail(err, VPTQ_E_SHAPE,
                         "%s: key 'invH' is not a square matrix of real numbers", path);
    f->n = (uint32_t)u->shape[0];
    const size_t n = f->n;
    VPTQ_CHECK(allocate(f, arena, err));
    VPTQ_CHECK(take_order(t, path, arena, f->n, &order, err));
    double *work = vptq_arena_alloc(arena, n, sizeof *work, err);
    double *a = work ? vptq_arena_alloc(arena, square_size, sizeof *a, err) : NULL;
    if (!a)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(take_factor(u, path, arena, a, err));
    VPTQ_CHECK(vptq_hessian_invert_lower(dev, n, a, err));
    VPTQ_CHECK(square(dev->ctx, n, a, work, err));
    for (size_t i = 0; i < n; i++)
        mean += a[i * n + i];
    mean /= (double)n;
    if (fabs(mean - (1 + VPTQ_INVERSE_RIDGE)) < RIDGE_TOLERANCE)
        f->ridge = VPTQ_INVERSE_RIDGE;
    restore_columns(a, order, f);
    return check_values(path, f, err);
}

vptq_status vptq_foreign_read_torch(vptq_device *dev, const char *path, vptq_arena *arena,
                                    vptq_foreign *f, vptq_err *err)
{
    vptq_torch_file t;
    *f = (vptq_foreign){.form = VPTQ_FOREIGN_COVARIANCE};
    VPTQ_CHECK(vptq_torch_read(path, arena->mem, &t, err));
    vptq_status st = vptq_torch_find(&t, "invH") ? take_inverse(dev, &t, path, arena, f, err)
                                                 : take_covariance(&t, path, arena, f, err);
    vptq_torch_release(&t);
    return st;
}

/* ---- numpy ---- */

/* f->lower = the mean of both triangles, which must agree. */
static vptq_status take_symmetric(const vptq_npy *a, const char *path, vptq_foreign *f,
                                  vptq_err *err)
{
    enum { BLOCK = 64 }; /* square blocks: fast for either memory order */
    const size_t n = f->n;
    for (size_t ib = 0; ib < n; ib += BLOCK)
        for (size_t jb = 0; jb <= ib; jb += BLOCK)
            for (size_t i = ib; i < n && i < ib + BLOCK; i++)
                for (size_t j = jb; j <= i && j < jb + BLOCK; j++) {
                    double x = vptq_npy_at(a, i, j), y = vptq_npy_at(a, j, i);
                    double bound = sqrt(fabs(vptq_npy_at(a, i, i) * vptq_npy_at(a, j, j)));
                    if (fabs(x - y) > MAX_ASYMMETRY * bound)
                        return vptq_fail(
                            err, VPTQ_E_NUMERIC,
                            "%s: row %zu, column %zu is %g, but row %zu, column %zu is %g: not "
                            "a symmetric matrix",
                            path, i, j, x, j, i, y);
                    f->lower[i * (i + 1) / 2 + j] = (float)((x + y) / 2);
                }
    return check_values(path, f, err);
}

vptq_status vptq_foreign_read_npy(const char *path, vptq_arena *arena, vptq_foreign *f,
                                  vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_npy a;
    *f = (vptq_foreign){.form = VPTQ_FOREIGN_NUMPY};
    VPTQ_CHECK(vptq_npy_open(path, &a, err));
    const vptq_tensor *t = &a.tensor;
    if (t->dims != 2 || t->shape[0] != t->shape[1] || !t->shape[0] || t->shape[0] > UINT32_MAX)
        st = vptq_fail(err, VPTQ_E_SHAPE, "%s: not a square matrix", path);
    f->n = (uint32_t)t->shape[0];
    if (!st)
        st = allocate(f, arena, err);
    if (!st)
        st = take_symmetric(&a, path, f, err);
    vptq_npy_release(&a);
    return st;
}

/* ---- imatrix ---- */

vptq_status vptq_foreign_take_imatrix(const vptq_imatrix *im, uint32_t layer, vptq_input input,
                                      vptq_arena *arena, vptq_foreign *f, vptq_err *err)
{
    const vptq_imatrix_entry *e = vptq_imatrix_find(im, layer, input);
    *f = (vptq_foreign){.form = VPTQ_FOREIGN_IMATRIX};
    VPTQ_BUG_IF(!e);
    f->n = e->n;
    f->tokens = e->tokens;
    f->diagonal = vptq_arena_alloc(arena, e->n, sizeof *f->diagonal, err);
    f->mean = f->diagonal ? vptq_arena_zalloc(arena, e->n, sizeof *f->mean, err) : NULL;
    if (!f->mean)
        return VPTQ_E_NOMEM;
    memcpy(f->diagonal, e->mean_square, e->n * sizeof *f->diagonal);
    if (e->mean)
        memcpy(f->mean, e->mean, e->n * sizeof *f->mean);
    return VPTQ_OK;
}
