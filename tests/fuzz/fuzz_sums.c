/* Checks a directory of two small files against the input as its SHA256SUMS: an error, or a
 * finding for each file that is missing, differs or is not listed. */
#include <string.h>
#include <sys/stat.h>

#include "lib/pack/package.h"
#include "tests/fuzz/fuzz_input.h"

static const char *const names[] = {"config.json", "model.safetensors", "SHA256SUMS"};
enum { NAMES = sizeof names / sizeof *names };

static char dir[FUZZ_PATH_MAX];

static void name_file(char path[FUZZ_PATH_MAX + 32], size_t i)
{
    snprintf(path, FUZZ_PATH_MAX + 32, "%s/%s", dir, names[i]);
}

static void write_file(size_t i, const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_MAX + 32];
    name_file(path, i);
    FILE *f = fopen(path, "wb");
    if (!f || (size && fwrite(data, 1, size, f) != size))
        abort();
    fclose(f);
}

static void clean_up(void)
{
    char path[FUZZ_PATH_MAX + 32];
    for (size_t i = 0; i < NAMES; i++) {
        name_file(path, i);
        unlink(path);
    }
    rmdir(dir);
}

static void make_dir(void)
{
    fuzz_name(dir);
    if (!mkdtemp(dir) || atexit(clean_up))
        abort();
    write_file(0, (const uint8_t *)"{}\n", 3);
    write_file(1, (const uint8_t *)"weights", 7);
}

static void count_finding(void *arg, bool is_error, const char *text)
{
    size_t *found = arg;
    if (!text[0])
        abort();
    found[is_error]++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const vptq_ctx ctx = {.threads = 1};
    vptq_check_result r = {0};
    vptq_err err;
    size_t found[2] = {0};
    if (!dir[0])
        make_dir();
    write_file(2, data, size);
    const vptq_status st = vptq_sums_check(&ctx, dir, count_finding, found, &r, &err);
    /* each of the two files is confirmed or reported, and so is every other line */
    if (!r.has_sums || r.digests > 2 || (!st && r.digests + found[0] + found[1] < 2))
        abort();
    return 0;
}
