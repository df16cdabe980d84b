/* The emulator's tensor cores. A real one multiplies exactly and adds the products of a few k
 * (a k-step) and the sum so far as integers: all are aligned to the largest exponent among
 * them, bits below a fixed place are cut off, and so are the bits of the total that a float
 * cannot hold. The result does not depend on the order within a k-step. Lengths of a k-step and
 * the place are from Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor
 * cores" (2021), and Khattak and Mikaitis, "Accurate models of NVIDIA tensor cores" (2025). */
#include "tests/emu/cuda_emu.h"

#include <stdio.h>
#include <stdlib.h>

extern "C" {
#include "lib/base/half.h"
}

enum {
    ROWS = 16,
    COLUMNS = 8,
    DEPTH = 16,
    ABSENT = -10000 /* the exponent of zero */
};

struct mma_model {
    const char *name;
    unsigned step; /* k of a k-step; 0: float sums in ascending order, rounded to nearest */
    int bits;      /* kept below the largest exponent */
};
static const mma_model models[] = {
    {"ordered", 0, 0}, {"volta", 4, 23}, {"ampere", 8, 24}, {"hopper", 16, 25}};
static const mma_model *model;

bool cuda_emu_mma_model(const char *name)
{
    for (const mma_model &m : models)
        if (strcmp(m.name, name) == 0) {
            model = &m;
            return true;
        }
    return false;
}

/* Of the GPUs that the backend supports, Ampere's sums are the least accurate. */
static void choose_model(void)
{
    if (model)
        return;
    const char *name = getenv("VPTQ_EMU_MMA");
    if (cuda_emu_mma_model(name ? name : "ampere"))
        return;
    fprintf(stderr, "cuda_emu: no tensor cores '%s'\n", name);
    abort();
}

/* A row of A or a column of B; a significand is in [1, 2) but for denormals. */
struct line {
    float value[DEPTH];
    int exponent[DEPTH];
    bool finite;
};

struct matrices {
    line a[ROWS], b[COLUMNS];
};

static void set(line *to, unsigned k, uint32_t bits)
{
    const float value = vptq_f16_to_f32((uint16_t)bits);
    const int exponent = (int)(__float_as_uint(value) >> 23 & 0xff) - 127;
    to->value[k] = value;
    to->exponent[k] = value == 0 ? ABSENT : max(exponent, -14);
    to->finite = to->finite && isfinite(value);
}

/* The arguments of one lane; the layout is in port_gpu.h. */
struct fragments {
    float *d;
    const uint32_t *a, *b;
};

static void collect(matrices *m, const cuda_emu_words *given)
{
    for (line &l : m->a)
        l.finite = true;
    for (line &l : m->b)
        l.finite = true;
    for (unsigned lane = 0; lane < CUDA_EMU_LANES; lane++) {
        const fragments f = cuda_emu_unpack<fragments>(given[lane]);
        const unsigned g = lane / 4, t = lane % 4 * 2;
        for (unsigned i = 0; i < 8; i++)
            set(&m->a[g + i / 2 % 2 * 8], t + i / 4 * 8 + i % 2, f.a[i / 2] >> 16 * (i % 2));
        for (unsigned i = 0; i < 4; i++)
            set(&m->b[g], t + i / 2 * 8 + i % 2, f.b[i / 2] >> 16 * (i % 2));
    }
}

static double power_of_two(int exponent)
{
    const uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The integer n times 2^exponent as a float, rounded toward zero. */
static float truncated(int64_t n, int exponent)
{
    const uint64_t size = n < 0 ? -(uint64_t)n : (uint64_t)n;
    const int length = size ? 64 - __builtin_clzll(size) : 0;
    const int below_normal = -149 - exponent, surplus = max(length - 24, below_normal);
    const uint64_t kept = surplus <= 0 ? size : surplus > 63 ? 0 : size >> surplus << surplus;
    const double value = (double)kept * power_of_two(exponent);
    return (float)(n < 0 ? -value : value);
}

/* Adds the products of a k-step to c. */
static float add_step(float c, const line *a, const line *b, unsigned k, const mma_model *m)
{
    int most = c != 0 ? max((int)(__float_as_uint(c) >> 23 & 0xff) - 127, -126) : ABSENT;
    for (unsigned i = k; i < k + m->step; i++)
        most = max(most, a->exponent[i] + b->exponent[i]);
    if (most <= ABSENT / 2)
        return c;
    const double scale = power_of_two(m->bits - most);
    int64_t sum = (int64_t)((double)c * scale);
    for (unsigned i = k; i < k + m->step; i++)
        sum += (int32_t)((double)a->value[i] * (double)b->value[i] * scale);
    return truncated(sum, most - m->bits);
}

static float add_all(float c, const line *a, const line *b)
{
    if (model->step && a->finite && b->finite && isfinite(c)) {
        for (unsigned k = 0; k < DEPTH; k += model->step)
            c = add_step(c, a, b, k, model);
        return c;
    }
    for (unsigned k = 0; k < DEPTH; k++)
        c += a->value[k] * b->value[k];
    return c;
}

static void multiply(const cuda_emu_words *given)
{
    matrices m;
    collect(&m, given);
    for (unsigned lane = 0; lane < CUDA_EMU_LANES; lane++) {
        const fragments f = cuda_emu_unpack<fragments>(given[lane]);
        for (unsigned i = 0; i < 4; i++)
            f.d[i] = add_all(f.d[i], &m.a[lane / 4 + i / 2 * 8], &m.b[lane % 4 * 2 + i % 2]);
    }
}

void cuda_emu_mma(float d[4], const uint32_t a[4], const uint32_t b[2], cuda_emu_site site)
{
    const fragments mine = {d, a, b};
    choose_model();
    (void)cuda_emu_exchange("mma.f16", 0xffffffffu, cuda_emu_pack(mine), false, site, multiply);
}
