/* Passes an input as a file to readers that take a path. */
#ifndef VPTQ_TESTS_FUZZ_FUZZ_INPUT_H
#define VPTQ_TESTS_FUZZ_FUZZ_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The entry point that fuzzing engines call. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_PATH_MAX = 64 };

/* A template for mkstemp or mkdtemp, on a file system in memory if there is one. */
static inline void fuzz_name(char path[FUZZ_PATH_MAX])
{
    const char *dir = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(path, FUZZ_PATH_MAX, "%s/vptq-fuzz-XXXXXX", dir);
}

/* Makes a file with these bytes, which the caller unlinks. Returns false on an error. */
static inline bool fuzz_input_file(char path[FUZZ_PATH_MAX], const uint8_t *data, size_t size)
{
    fuzz_name(path);
    int fd = mkstemp(path);
    if (fd < 0)
        return false;
    bool written = write(fd, data, size) == (ssize_t)size;
    close(fd);
    if (!written)
        unlink(path);
    return written;
}

#endif
