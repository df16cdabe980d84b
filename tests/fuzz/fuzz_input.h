/* Passes an input as a file to readers that take a path. */
#ifndef VPTQ_TESTS_FUZZ_FUZZ_INPUT_H
#define VPTQ_TESTS_FUZZ_FUZZ_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* Puts the checksum that an error names into the file's first 4096 bytes; false if it names
 * none. */
static inline bool fuzz_correct(const char *path, const char *text)
{
    static const char is[] = "its checksum is ", expected[] = ", expected ";
    const char *found = strstr(text, is), *old = found ? strstr(found, expected) : NULL;
    if (!old || strlen(old) != sizeof expected - 1 + 16)
        return false;
    FILE *f = fopen(path, "r+b");
    char data[4096];
    const size_t n = f ? fread(data, 1, sizeof data, f) : 0;
    bool done = false;
    for (size_t i = 0; n >= 16 && i <= n - 16 && !done; i++) {
        done = memcmp(data + i, old + sizeof expected - 1, 16) == 0;
        if (done &&
            (fseek(f, (long)i, SEEK_SET) || fwrite(found + sizeof is - 1, 16, 1, f) != 1))
            abort();
    }
    if (f)
        fclose(f);
    return done;
}

#endif
