/* Opens the input as a text of every kind; accepted texts are UTF-8 without zero bytes,
 * repairing refuses no more than what cannot be read, and opening again gives the same bytes.
 */
#include "formats/text_file.h"

#include "lib/base/utf8.h"
#include "tests/fuzz/fuzz_input.h"

enum { LIMIT = 1 << 20 };

static void check_text(const vptq_text_file *t)
{
    if (t->size > 0 &&
        (memchr(t->data, 0, t->size) || vptq_utf8_valid_prefix(t->data, t->size) != t->size))
        abort();
}

/* Opens the input twice; *size = bytes of the text. */
static vptq_status open_twice(const char *path, vptq_text_kind kind, size_t *size)
{
    const vptq_ctx ctx = {.threads = 1};
    vptq_text_file t, again;
    vptq_err err;
    const vptq_status st = vptq_text_file_open(&ctx, path, kind, LIMIT, &t, &err);
    if (vptq_text_file_open(&ctx, path, kind, LIMIT, &again, NULL) != st)
        abort();
    *size = t.size;
    if (!st && (t.size != again.size || (t.size && memcmp(t.data, again.data, t.size) != 0)))
        abort();
    if (!st && kind <= VPTQ_TEXT_LOSSY)
        check_text(&t);
    vptq_text_file_close(&again);
    vptq_text_file_close(&t);
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_MAX];
    size_t strict, lossy, json, bytes;
    if (!fuzz_input_file(path, data, size))
        return 0;
    const vptq_status refused = open_twice(path, VPTQ_TEXT_UTF8, &strict);
    const vptq_status unread = open_twice(path, VPTQ_TEXT_LOSSY, &lossy);
    if ((!refused && (unread || lossy != strict)) || (refused && !unread && lossy == 0))
        abort();
    if (open_twice(path, VPTQ_TEXT_JSON, &json) && !unread && size <= LIMIT)
        abort();
    if (open_twice(path, VPTQ_TEXT_BYTES, &bytes) || bytes != size)
        abort();
    unlink(path);
    return 0;
}
