/* Encodes and decodes requests from a pipe, for a script that compares the results with another
 * implementation (check_tokenizers.py).
 *
 *     tokenizer_pipe TOKENIZER
 *
 * A request is a uint32 kind, a uint32 count and its content; little endian, as the answers
 * are. Kind 0 to 3: the flags of vptq_encode_flags; content is `count` bytes of text, the
 * answer a uint32 count and as many int32 ids.  Kind 16 (special tokens hidden) and 17 (shown):
 * content is `count` int32 ids, the answer a uint32 count and as many bytes.  A failure is
 * answered by the count 0xffffffff, a uint32 count and a message of as many bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/tokenizer/tokenizer.h"

enum { DECODE = 16 };

static void put_count(size_t n)
{
    uint32_t count = (uint32_t)n;
    (void)fwrite(&count, sizeof count, 1, stdout);
}

static void put(size_t count, const void *data, size_t size)
{
    put_count(count);
    if (count > 0)
        (void)fwrite(data, size, count, stdout);
}

static void answer(const vptq_tokenizer *t, uint32_t kind, const void *content, uint32_t count)
{
    vptq_err err = {0};
    vptq_ids ids;
    vptq_buf text;
    bool start = true;
    vptq_ids_init(&ids, NULL);
    vptq_buf_init(&text, NULL);
    vptq_status st = kind < DECODE ? vptq_tokenizer_encode(t, content, count, kind, &ids, &err)
                                   : vptq_tokenizer_decode(t, content, count, &start,
                                                           kind > DECODE, &text, &err);
    if (st) {
        put_count(UINT32_MAX);
        put(strlen(err.text), err.text, 1);
    } else if (kind < DECODE) {
        put(ids.count, ids.data, sizeof *ids.data);
    } else {
        put(text.len, text.data, 1);
    }
    (void)fflush(stdout);
    vptq_buf_release(&text);
    vptq_ids_release(&ids);
}

static int give_up(const char *why)
{
    fprintf(stderr, "tokenizer_pipe: %s\n", why);
    return 1;
}

int main(int argc, char **argv)
{
    vptq_err err = {0};
    vptq_vocab v;
    vptq_tokenizer *t = NULL;
    uint32_t head[2];
    if (argc != 2)
        return give_up("expected one tokenizer");
    if (vptq_vocab_read(argv[1], 0, NULL, &v, &err))
        return give_up(err.text);
    if (vptq_tokenizer_open(NULL, &v, &t, &err))
        return give_up(err.text);
    while (fread(head, sizeof head, 1, stdin) == 1) {
        size_t size = head[0] < DECODE ? 1 : sizeof(int32_t);
        void *content = malloc((size_t)head[1] * size + 1);
        if (!content || fread(content, size, head[1], stdin) != head[1])
            return give_up("a request ends early");
        answer(t, head[0], content, head[1]);
        free(content);
    }
    vptq_tokenizer_close(t);
    vptq_vocab_release(&v);
    return 0;
}
