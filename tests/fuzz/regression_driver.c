/* Runs a fuzz target without a fuzzer on files, or on all files of directories, each as it is
 * and in `-m N` damaged forms.  The damage depends only on the file's content and the count, so
 * that findings are reproducible.  Prints the name of an input on which the target crashes, and
 * a summary line at the end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/base/rng.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_LIMIT = 16 << 20 };

typedef struct damage {
    vptq_rng rng;
    uint64_t counter;
} damage;

static size_t below(damage *d, size_t n)
{
    return (size_t)vptq_rng_below(&d->rng, d->counter++, n);
}

/* A copy of the file, truncated or damaged in 1 to 4 places: a flipped bit, an extreme byte, or
 * a run of bytes from elsewhere in the file. */
static size_t spoil(damage *d, const char *data, size_t size, uint8_t *out)
{
    static const uint8_t extreme[] = {0x00, 0x01, 0x7f, 0x80, 0xff, '"', '{', '['};
    memcpy(out, data, size);
    if (size == 0 || below(d, 4) == 0)
        return size ? below(d, size) : 0;
    for (size_t hits = 1 + below(d, 4); hits; hits--) {
        /* headers and tables are at the beginning and get half of the damage */
        size_t at = below(d, below(d, 2) && size > 256 ? 256 : size);
        size_t from = below(d, size), run = 1 + below(d, 8);
        switch (below(d, 3)) {
        case 0:
            out[at] ^= (uint8_t)(1u << below(d, 8));
            break;
        case 1:
            out[at] = extreme[below(d, sizeof extreme)];
            break;
        default:
            for (size_t i = 0; i < run && at + i < size && from + i < size; i++)
                out[at + i] = (uint8_t)data[from + i];
        }
    }
    return size;
}

/* Passes a block of exactly the input's size, so that sanitizers see reads past its end. */
static void run_exact(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy)
        abort();
    if (size)
        memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static int run_file(const char *path, long mutations, size_t *runs)
{
    vptq_err err = {0};
    char *data;
    size_t size;
    if (vptq_file_read(path, INPUT_LIMIT, NULL, &data, &size, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    fprintf(stderr, "%s\n", path);
    run_exact((const uint8_t *)data, size);
    uint8_t *bad = malloc(size ? size : 1);
    if (!bad)
        abort();
    for (long m = 0; m < mutations; m++) {
        damage d = {.rng =
                        vptq_rng_make(vptq_hash(data, size, 0), (uint32_t)m, 0, VPTQ_RNG_TEST)};
        run_exact(bad, spoil(&d, data, size, bad));
    }
    *runs += 1 + (size_t)mutations;
    free(bad);
    vptq_mem_free(NULL, data);
    return 0;
}

static int run_dir(const char *path, long mutations, size_t *files, size_t *runs)
{
    vptq_arena arena;
    vptq_err err = {0};
    char **names, file[4096];
    size_t count;
    int bad = 0;
    vptq_arena_init(&arena, NULL);
    if (vptq_dir_list(path, &arena, &names, &count, &err)) {
        fprintf(stderr, "%s\n", err.text);
        bad = 1;
        count = 0;
    }
    for (size_t i = 0; i < count; i++) {
        if (vptq_path_join(file, sizeof file, path, names[i], &err))
            bad = 1;
        else
            bad |= run_file(file, mutations, runs);
    }
    *files += count;
    vptq_arena_release(&arena);
    return bad;
}

int main(int argc, char **argv)
{
    long mutations = 0;
    size_t files = 0, runs = 0;
    int bad = 0;
    for (int c = getopt(argc, argv, "m:"); c != -1; c = getopt(argc, argv, "m:")) {
        if (c != 'm')
            return 2;
        mutations = strtol(optarg, NULL, 10);
    }
    for (int i = optind; i < argc; i++) {
        if (vptq_path_is_dir(argv[i])) {
            bad |= run_dir(argv[i], mutations, &files, &runs);
        } else {
            bad |= run_file(argv[i], mutations, &runs);
            files++;
        }
    }
    if (!files)
        fprintf(stderr, "no input files\n");
    printf("%zu files, %zu inputs\n", files, runs);
    return bad || !files;
}
