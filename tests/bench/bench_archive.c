/* Measures the time to read one tensor, or a part of it, from an archive.
 *
 *     bench_archive ARCHIVE [NAME..]
 *
 * Prints one line for opening it, then for each tensor (by default the largest of each type)
 * its bytes, its bytes in the file, milliseconds to load it with one thread and with all, and
 * to load 1 KiB from its middle. The best of several rounds; the file is in the page cache. */
#include <stdio.h>
#include <stdlib.h>

#include "formats/vptq/archive.h"
#include "lib/base/ctx.h"
#include "lib/base/parallel.h"
#include "tests/bench/common.h"

enum { ROUNDS = 7, PART = 1024 };

static double open_ms(const char *path)
{
    double best = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        vptq_err err = {0};
        vptq_archive *a = NULL;
        double begin = bench_seconds();
        bench_need(vptq_archive_open(path, NULL, &a, &err), &err);
        double ms = 1e3 * (bench_seconds() - begin);
        vptq_archive_close(a);
        best = ms < best ? ms : best;
    }
    return best;
}

static double load_ms(const vptq_archive *a, const vptq_archive_entry *e, uint64_t at, size_t n,
                      int threads, uint8_t *dst)
{
    double best = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        vptq_err err = {0};
        double begin = threads == 1 ? bench_seconds() : vptq_seconds();
        bench_need(vptq_archive_load_part(a, e, at, n, threads, dst, &err), &err);
        double end = threads == 1 ? bench_seconds() : vptq_seconds();
        double ms = 1e3 * (end - begin);
        best = ms < best ? ms : best;
    }
    return best;
}

static void run(const vptq_archive *a, const vptq_archive_entry *e)
{
    uint8_t *dst = bench_alloc((size_t)e->size, 1);
    size_t part = e->size < PART ? (size_t)e->size : PART;
    double one = load_ms(a, e, 0, (size_t)e->size, 1, dst);
    double all = load_ms(a, e, 0, (size_t)e->size, vptq_cpu_count(), dst);
    double some = load_ms(a, e, e->size / 2 - part / 2, part, 1, dst);
    printf("%-44s %-4s %11llu %11llu %9.2f %9.2f %9.2f\n", e->name,
           vptq_dtype_get(e->tensor.type)->name, (unsigned long long)e->size,
           (unsigned long long)e->packed_size, one, all, some);
    free(dst);
}

/* The largest tensor of each type. */
static void run_largest(const vptq_archive *a)
{
    for (int type = 0; type < VPTQ_DTYPE_COUNT; type++) {
        const vptq_archive_entry *largest = NULL;
        for (size_t i = 0; i < vptq_archive_count(a); i++) {
            const vptq_archive_entry *e = vptq_archive_at(a, i);
            if (e->is_tensor && (int)e->tensor.type == type &&
                (!largest || e->size > largest->size))
                largest = e;
        }
        if (largest)
            run(a, largest);
    }
}

int main(int argc, char **argv)
{
    vptq_err err = {0};
    vptq_archive *a = NULL;
    if (argc == 1) {
        puts("needs ARCHIVE [NAME..]");
        return 0;
    }
    printf("%s: opened in %.2f processor ms\n", argv[1], open_ms(argv[1]));
    printf("%-44s %-4s %11s %11s %9s %9s %9s\n", "tensor", "type", "bytes", "packed", "CPU ms",
           "ms, all", "1 KiB");
    bench_need(vptq_archive_open(argv[1], NULL, &a, &err), &err);
    for (int i = 2; i < argc; i++) {
        const vptq_archive_entry *e = vptq_archive_find(a, argv[i], true);
        if (!e)
            bench_give_up("there is no such tensor");
        run(a, e);
    }
    if (argc == 2)
        run_largest(a);
    vptq_archive_close(a);
    return 0;
}
