/* Measures the seconds to load a tokenizer and the megabytes of text per second that it encodes
 * on one thread: every TEXT whole, and line by line. bench_tokenizer.sh compares it with the
 * Python package `tokenizers`. --json prints one object per row. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/file.h"
#include "lib/tokenizer/tokenizer.h"
#include "tests/bench/common.h"

enum { ROUNDS = 3 };

/* One pass over the text; `lines`: a call for each line, its end included. */
static size_t encode(const vptq_tokenizer *t, const char *text, size_t len, int lines,
                     vptq_ids *ids)
{
    vptq_err err;
    ids->count = 0;
    for (size_t at = 0; at < len;) {
        const char *end = lines ? memchr(text + at, '\n', len - at) : NULL;
        size_t n = end ? (size_t)(end - text) + 1 - at : len - at;
        bench_need(vptq_tokenizer_encode(t, text + at, n, 0, ids, &err), &err);
        at += n;
    }
    return ids->count;
}

static void bench_text(const vptq_tokenizer *t, const char *path, int lines, bool json)
{
    vptq_err err;
    vptq_ids ids;
    char *text = NULL;
    size_t len = 0, count = 0;
    double best = 0;
    vptq_ids_init(&ids, NULL);
    bench_need(vptq_file_read(path, SIZE_MAX, NULL, &text, &len, &err), &err);
    for (int r = 0; r < ROUNDS; r++) {
        double from = bench_seconds();
        count = encode(t, text, len, lines, &ids);
        double seconds = bench_seconds() - from;
        if (r == 0 || seconds < best)
            best = seconds;
    }
    const char *way = lines ? "lines" : "whole";
    double speed = 1e-6 * (double)len / best;
    if (json)
        printf("{\"text\": \"%s\", \"way\": \"%s\", \"bytes\": %zu, \"ids\": %zu, "
               "\"seconds\": %.6f, \"mb_per_second\": %.3f}\n",
               vptq_path_base(path), way, len, count, best, speed);
    else
        printf("%-20s %5s %10zu %9zu %9.2f\n", vptq_path_base(path), way, len, count, speed);
    vptq_ids_release(&ids);
    vptq_mem_free(NULL, text);
}

static double load(const char *path, vptq_vocab *v, vptq_tokenizer **t)
{
    vptq_err err;
    double from = bench_seconds();
    bench_need(vptq_vocab_read(path, 0, NULL, v, &err), &err);
    bench_need(vptq_tokenizer_open(NULL, v, t, &err), &err);
    return bench_seconds() - from;
}

int main(int argc, char **argv)
{
    bool json = argc > 1 && strcmp(argv[1], "--json") == 0;
    int first = json ? 2 : 1;
    vptq_vocab v;
    vptq_tokenizer *t;
    if (argc <= first) {
        printf("usage: bench_tokenizer [--json] TOKENIZER TEXT..\n");
        return 0;
    }
    double best = load(argv[first], &v, &t);
    for (int r = 1; r < ROUNDS; r++) {
        vptq_tokenizer_close(t);
        vptq_vocab_release(&v);
        double seconds = load(argv[first], &v, &t);
        best = seconds < best ? seconds : best;
    }
    if (json)
        printf("{\"load_seconds\": %.6f, \"pieces\": %u}\n", best, v.count);
    else
        printf("one core, %u pieces, loaded in %.3f s\n%-20s %5s %10s %9s %9s\n", v.count, best,
               "text", "way", "bytes", "ids", "MB/s");
    for (int i = first + 1; i < argc; i++)
        for (int lines = 0; lines < 2; lines++)
            bench_text(t, argv[i], lines, json);
    vptq_tokenizer_close(t);
    vptq_vocab_release(&v);
    return 0;
}
