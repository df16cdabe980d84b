/* Opens tokenizers for tests and compares their ids and texts. */
#include "tests/support/vtok.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void vtok_open(vtok *k, const char *path)
{
    vptq_err err = {0};
    assert_ok(vptq_vocab_read(path, 0, NULL, &k->vocab, &err), &err);
    assert_ok(vptq_tokenizer_open(NULL, &k->vocab, &k->t, &err), &err);
}

void vtok_apply(json_t *tokenizer, json_t *change)
{
    const char *key;
    json_t *value;
    json_object_foreach(change, key, value)
    {
        if (strcmp(key, "model") == 0)
            assert_int_equal(json_object_update(json_object_get(tokenizer, key), value), 0);
        else
            assert_int_equal(json_object_set(tokenizer, key, value), 0);
    }
}

void vtok_open_base(const char *dir, vtok *k, const char *base, const char *change)
{
    char path[4096];
    vptq_err err = {0};
    json_t *root = NULL;
    assert_ok(vptq_json_load("tests/golden/tokenizer_steps.json", 1 << 20, &root, &err), &err);
    json_t *tokenizer = json_object_get(json_object_get(root, "bases"), base);
    if (change) {
        json_t *c = json_loads(change, 0, NULL);
        assert_non_null(c);
        vtok_apply(tokenizer, c);
        json_decref(c);
    }
    vtest_path(path, sizeof path, dir, "tokenizer.json");
    assert_ok(vptq_json_save(path, tokenizer, &err), &err);
    json_decref(root);
    vtok_open(k, path);
}

void vtok_close(vtok *k)
{
    vptq_tokenizer_close(k->t);
    vptq_vocab_release(&k->vocab);
}

static void copy_out(const char *from, const char *dir, const char *name)
{
    char command[3 * 4096];
    size_t n = strlen(from);
    const char *tool = n > 3 && strcmp(from + n - 3, ".xz") == 0 ? "xz -dc" : "cat";
    int len = snprintf(command, sizeof command, "%s '%s' >'%s/%s'", tool, from, dir, name);
    assert_true(len > 0 && (size_t)len < sizeof command);
    assert_int_equal(system(command), 0);
}

bool vtok_unpack(const char *dir, const char *name, const char *config)
{
    char path[4096], path2[4096];
    if (!vtest_data(path, sizeof path, name) ||
        (config && !vtest_data(path2, sizeof path2, config)))
        return false;
    copy_out(path, dir, "tokenizer.json");
    if (config)
        copy_out(path2, dir, "tokenizer_config.json");
    return true;
}

bool vtok_demo(char *path, size_t size)
{
    const char *env = getenv("VPTQ_DEMO_GGUF");
    if (!env) {
        print_message("VPTQ_DEMO_GGUF does not name the demo model\n");
        return false;
    }
    int n = snprintf(path, size, "%s", env);
    assert_true(n > 0 && (size_t)n < size);
    return true;
}

void vtok_encode(const vtok *k, const char *text, size_t len, unsigned flags, vptq_ids *ids)
{
    vptq_err err = {0};
    ids->count = 0;
    assert_ok(vptq_tokenizer_encode(k->t, text, len, flags, ids, &err), &err);
}

static void expect_ids(const vptq_ids *ids, const int32_t *want, size_t n, const char *what)
{
    size_t i = 0;
    while (i < n && i < ids->count && ids->data[i] == want[i])
        i++;
    if (i < n || i < ids->count)
        fail_msg("%s: %zu ids, expected %zu; first difference at %zu (%d, expected %d)", what,
                 ids->count, n, i, i < ids->count ? ids->data[i] : -1, i < n ? want[i] : -1);
}

void vtok_expect(const vtok *k, const char *text, size_t len, unsigned flags,
                 const int32_t *ids, size_t n, const char *what)
{
    vptq_ids got;
    vptq_ids_init(&got, NULL);
    vtok_encode(k, text, len, flags, &got);
    expect_ids(&got, ids, n, what);
    vptq_ids_release(&got);
}

void vtok_expect_same(const vtok *a, const vtok *b, const char *text, size_t len,
                      unsigned flags, const char *what)
{
    vptq_ids want;
    vptq_ids_init(&want, NULL);
    vtok_encode(b, text, len, flags, &want);
    vtok_expect(a, text, len, flags, want.data, want.count, what);
    vptq_ids_release(&want);
}

void vtok_expect_text(const vtok *k, const int32_t *ids, size_t n, bool special,
                      const char *text, size_t len, const char *what)
{
    vptq_err err = {0};
    vptq_buf b;
    bool start = true;
    vptq_buf_init(&b, NULL);
    assert_ok(vptq_tokenizer_decode(k->t, ids, n, &start, special, &b, &err), &err);
    if (b.len != len || memcmp(b.data, text, len) != 0)
        fail_msg("%s: decoding gives '%s', expected '%.*s'", what, b.data, (int)len, text);
    vptq_buf_release(&b);
}

bool vtok_vectors_load(vtok_vectors *v, const char *name)
{
    static const char between[] = "\n__ggml_vocab_test__\n";
    char rel[256], path[4096], path2[4096];
    (void)snprintf(rel, sizeof rel, "tokenizers/vectors/ggml-vocab-%s.gguf.inp", name);
    if (!vtest_data(path, sizeof path, rel))
        return false;
    (void)snprintf(rel, sizeof rel, "tokenizers/vectors/ggml-vocab-%s.gguf.out", name);
    if (!vtest_data(path2, sizeof path2, rel))
        return false;
    size_t size = 0, ids_size = 0;
    memset(v, 0, sizeof *v);
    v->file = vtest_read_file(path, &size);
    char *ids = vtest_read_file(path2, &ids_size), *line = ids;
    for (char *at = v->file; at && v->count < 64; v->count++) {
        char *end = strstr(at, between);
        v->of[v->count].text = at;
        v->of[v->count].len = end ? (size_t)(end - at) : size - (size_t)(at - v->file);
        at = end ? end + strlen(between) : NULL;
        char *stop = line + strcspn(line, "\n");
        while (line < stop && v->of[v->count].n < 512) {
            v->of[v->count].ids[v->of[v->count].n++] = (int32_t)strtol(line, &line, 10);
            line += strspn(line, " ");
        }
        line = stop + (*stop == '\n');
    }
    free(ids);
    return true;
}

void vtok_vectors_free(vtok_vectors *v)
{
    free(v->file);
}
