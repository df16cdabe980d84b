/* Tests the weights of Hugging Face directories in PyTorch files, whole and in shards, against
 * their safetensors twins (tests/golden/make_pytorch_models.py), and Git LFS pointers in place
 * of files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/checkpoint.h"
#include "formats/hf/weights.h"
#include "tests/support/vtest.h"

enum { PATH = 4096 };
#define TORCH "tests/golden/torch/"

static const vptq_ctx ctx = {.threads = 1};

static vptq_status read_weights(const char *dir, vptq_tensor_set *set, vptq_err *err)
{
    vptq_tensor_set_init(set, NULL);
    return vptq_hf_read_weights(dir, set, err);
}

static void refuse(const char *dir, vptq_status code, const char *part)
{
    vptq_tensor_set set;
    vptq_err err = {0};
    assert_fails(read_weights(dir, &set, &err), code, &err, part);
    vptq_tensor_set_release(&set);
}

static void write_text(const char *dir, const char *name, const char *text)
{
    char path[PATH];
    vtest_path(path, PATH, dir, name);
    vtest_write_file(path, text, strlen(text));
}

static void remove_file(const char *dir, const char *name)
{
    char path[PATH];
    vtest_path(path, PATH, dir, name);
    assert_int_equal(remove(path), 0);
}

static void copy_shards(const char *dir)
{
    vtest_copy_file(TORCH "mistral-00001-of-00002.bin", dir, "mistral-00001-of-00002.bin");
    vtest_copy_file(TORCH "mistral-00002-of-00002.bin", dir, "mistral-00002-of-00002.bin");
    vtest_copy_file(TORCH "mistral.index.json", dir, "pytorch_model.bin.index.json");
}

/* Every tensor of `twin` is in `dir`, with the same bytes; returns the number in `dir`. */
static size_t expect_same(const char *dir, const char *twin)
{
    vptq_tensor_set a, b;
    vptq_err err = {0};
    assert_ok(read_weights(dir, &a, &err), &err);
    assert_ok(read_weights(twin, &b, &err), &err);
    assert_true(b.count > 20);
    for (size_t i = 0; i < b.count; i++) {
        const vptq_tensor *y = &b.tensors[i], *x = vptq_tensor_find(&a, y->name);
        assert_non_null(x);
        assert_int_equal(x->type, y->type);
        assert_int_equal(x->dims, y->dims);
        assert_memory_equal(x->shape, y->shape, y->dims * sizeof *y->shape);
        assert_int_equal(x->bytes, y->bytes);
        assert_memory_equal(x->data, y->data, y->bytes);
        assert_true(x->mapped);
    }
    const size_t count = a.count;
    vptq_tensor_set_release(&a);
    vptq_tensor_set_release(&b);
    return count;
}

/* A state_dict with attributes, whose head shares the storage of the embedding. */
static void test_tied_file(void **state)
{
    vptq_checkpoint c;
    vptq_err err = {0};
    vtest_copy_file(TORCH "qwen2.bin", *state, "pytorch_model.bin");
    vtest_copy_file("tests/golden/tiny_qwen2/config.json", *state, "config.json");
    assert_int_equal(expect_same(*state, "tests/golden/tiny_qwen2"), 27);
    assert_ok(vptq_checkpoint_open(&ctx, *state, NULL, &c, &err), &err);
    assert_int_equal(c.kind, VPTQ_CKPT_HF);
    const vptq_tensor *head = vptq_tensor_find(&c.set, "lm_head.weight");
    assert_non_null(head);
    assert_ptr_equal(head->data, vptq_tensor_find(&c.set, "model.embed_tokens.weight")->data);
    vptq_checkpoint_release(&c);
}

static void fingerprint(const char *path, char hex[17])
{
    vptq_checkpoint c;
    vptq_err err = {0};
    assert_ok(vptq_checkpoint_open(&ctx, path, NULL, &c, &err), &err);
    assert_ok(vptq_checkpoint_fingerprint(&c, &ctx, hex, &err), &err);
    vptq_checkpoint_release(&c);
}

static void test_shards(void **state)
{
    char ours[17], theirs[17], path[PATH];
    copy_shards(*state);
    vtest_copy_file("tests/golden/tiny_mistral/config.json", *state, "config.json");
    assert_int_equal(expect_same(*state, "tests/golden/tiny_mistral"), 21);
    fingerprint(*state, ours);
    fingerprint("tests/golden/tiny_mistral", theirs);
    assert_string_equal(ours, theirs);
    /* safetensors come first, also in one file */
    vtest_copy_file("tests/golden/tiny_llama3/model.safetensors", *state,
                    "weights.safetensors");
    expect_same(*state, "tests/golden/tiny_llama3");
    remove_file(*state, "weights.safetensors");
    remove_file(*state, "mistral-00002-of-00002.bin");
    refuse(*state, VPTQ_E_IO, "mistral-00002-of-00002.bin': No such file");
    vtest_path(path, PATH, *state, "mistral-00001-of-00002.bin");
    vtest_copy_file(path, *state, "mistral-00002-of-00002.bin");
    refuse(*state, VPTQ_E_FORMAT, "duplicate tensor");
    write_text(*state, "pytorch_model.bin.index.json",
               "{\"weight_map\": {\"x\": \"../pytorch_model.bin\"}}");
    refuse(*state, VPTQ_E_FORMAT,
           "/pytorch_model.bin.index.json: '../pytorch_model.bin' is not the name of a file in "
           "the directory");
    write_text(*state, "pytorch_model.bin.index.json",
               "{\"weight_map\": {\"x\": \"mistral-00001-of-00002.bin\"}}");
    refuse(*state, VPTQ_E_FORMAT,
           "pytorch_model.bin.index.json: tensor 'x' is not in mistral-00001-of-00002.bin");
}

static void test_refused_files(void **state)
{
    vtest_copy_file(TORCH "legacy.bin", *state, "pytorch_model.bin");
    refuse(*state, VPTQ_E_UNSUPPORTED,
           "/pytorch_model.bin: is in the format of PyTorch before 1.6, expected a zip file; "
           "convert it in Python: torch.save(torch.load(FILE, weights_only=True), FILE)");
    vtest_copy_file(TORCH "types.pt", *state, "pytorch_model.bin");
    refuse(*state, VPTQ_E_UNSUPPORTED,
           "/pytorch_model.bin: tensor 'turned' is not contiguous; save it with .contiguous()");
    vtest_copy_file(TORCH "object.pt", *state, "pytorch_model.bin");
    refuse(*state, VPTQ_E_UNSUPPORTED, "the pickle needs 'fractions.Fraction'");
    remove_file(*state, "pytorch_model.bin");
    refuse(*state, VPTQ_E_FORMAT, ": has neither a *.safetensors file nor pytorch_model.bin");
    write_text(*state, "consolidated.00.pth", "x");
    refuse(*state, VPTQ_E_FORMAT, "only consolidated.00.pth; convert it with transformers");
}

static void refuse_model(const char *dir, const char *name, const char *part)
{
    char path[PATH];
    vptq_checkpoint c;
    vptq_err err = {0};
    vtest_path(path, PATH, dir, name);
    assert_fails(vptq_checkpoint_open(&ctx, path, NULL, &c, &err), VPTQ_E_FORMAT, &err, part);
}

static void test_lfs_pointers(void **state)
{
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\n"
                                  "oid sha256:0123\nsize 548105171\n";
    static const char sentence[] =
        ": is a Git LFS pointer, not the weights; run 'git lfs pull'";
    vptq_vocab v;
    vptq_err err = {0};
    char path[PATH];
    write_text(*state, "m.gguf", pointer);
    refuse_model(*state, "m.gguf", sentence);
    write_text(*state, "m.vptq", pointer);
    refuse_model(*state, "m.vptq", sentence);
    write_text(*state, "pytorch_model.bin", pointer);
    refuse(*state, VPTQ_E_FORMAT, sentence);
    copy_shards(*state);
    write_text(*state, "mistral-00002-of-00002.bin", pointer);
    refuse(*state, VPTQ_E_FORMAT, sentence);
    write_text(*state, "model.safetensors", pointer);
    refuse(*state, VPTQ_E_FORMAT, sentence);
    static const char *const names[] = {"tokenizer.json", "tokenizer.model"};
    for (size_t i = 0; i < 2; i++) {
        write_text(*state, names[i], pointer);
        vtest_path(path, PATH, *state, names[i]);
        assert_fails(vptq_vocab_read(path, 0, NULL, &v, &err), VPTQ_E_FORMAT, &err,
                     ": is a Git LFS pointer, not the tokenizer; run 'git lfs pull'");
    }
}

VTEST_MAIN(scratch_test(test_tied_file), scratch_test(test_shards),
           scratch_test(test_refused_files), scratch_test(test_lfs_pointers))
