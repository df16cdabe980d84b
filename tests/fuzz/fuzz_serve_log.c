/* Reads the input as a file of serving runs: it is refused and unchanged, or a prefix of it
 * that ends with a line, which reads again. */
#include <string.h>

#include "lib/base/file.h"
#include "lib/bench/serve.h"
#include "tests/fuzz/fuzz_input.h"

/* Returns the size of the file, whose content is a prefix of the input. */
static size_t size_of_prefix(const char *path, const uint8_t *data, size_t size)
{
    char *now = NULL;
    size_t len = 0;
    if (vptq_file_read(path, SIZE_MAX, NULL, &now, &len, NULL) || len > size ||
        (len && memcmp(now, data, len) != 0))
        abort();
    vptq_mem_free(NULL, now);
    return len;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_MAX];
    vptq_serve_log *log;
    if (!fuzz_input_file(path, data, size))
        return 0;
    bool opened = !vptq_serve_log_open(NULL, path, false, &log, NULL);
    if (opened)
        vptq_serve_log_close(log);
    size_t kept = size_of_prefix(path, data, size);
    if (!opened && kept < size)
        abort();
    if (opened && kept && data[kept - 1] != '\n')
        abort();
    unlink(path);
    return 0;
}
