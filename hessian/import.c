/* Imports Hessians of other programs into a Hessian directory (vptq-hessian --import). */
#include "hessian/import.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "hessian/dir.h"
#include "hessian/foreign.h"
#include "lib/base/text.h"

/* The model fingerprint of Hessians whose files name no model. */
static const char unknown_model[] = "0000000000000000";

bool vptq_hessian_is_of(const char *hessians, const char *model)
{
    return strcmp(hessians, model) == 0 || strcmp(hessians, unknown_model) == 0;
}

const char *vptq_foreign_form_name(vptq_foreign_form form)
{
    static const char *const names[] = {"pytorch covariance", "pytorch inverse", "numpy",
                                        "imatrix"};
    return names[form];
}

void vptq_foreign_name(char name[64], uint32_t layer, vptq_input input, const char *ending)
{
    snprintf(name, 64, "%" PRIu32 "_%s.%s", layer, vptq_input_name(input).text, ending);
}

/* ---- finding the files ---- */

typedef struct importer {
    vptq_device *dev;
    const char *from;
    const char *ending;   /* of its files, "pt" or "npy"; NULL: `from` is an imatrix file */
    vptq_imatrix imatrix; /* its content, if so */
    vptq_exchange *made;
    uint64_t hash;  /* of all numbers so far */
    uint64_t files; /* imported so far */
} importer;

static const char *const endings[] = {"pt", "npy"};
enum { ENDINGS = sizeof endings / sizeof endings[0] };

/* Parses "LAYER_INPUT.ENDING"; false for other files. */
static bool parse_name(const char *name, uint32_t *layer, const char **ending)
{
    enum { MAX_DIGITS = 4 };
    char expected[64];
    uint32_t x = 0;
    for (int i = 0; name[i] >= '0' && name[i] <= '9'; i++) {
        if (i == MAX_DIGITS)
            return false;
        x = x * 10 + (uint32_t)(name[i] - '0');
    }
    *layer = x;
    for (int e = 0; e < ENDINGS; e++)
        for (int i = 0; i < VPTQ_INPUT_DENSE; i++) {
            *ending = endings[e];
            vptq_foreign_name(expected, x, (vptq_input)i, *ending);
            if (strcmp(name, expected) == 0)
                return true;
        }
    return false;
}

static vptq_status include_layer(const importer *im, uint32_t layer, vptq_err *err)
{
    vptq_hessian_dir *h = &im->made->dir;
    if (layer >= VPTQ_HESSIAN_MAX_LAYERS)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "'%s' has Hessians of layer %" PRIu32 ", the maximum is %d layers",
                         im->from, layer, (int)VPTQ_HESSIAN_MAX_LAYERS);
    h->first_layer = layer < h->first_layer ? layer : h->first_layer;
    h->last_layer = layer > h->last_layer ? layer : h->last_layer;
    h->layers = h->last_layer + 1;
    return VPTQ_OK;
}

/* Fails unless all files of the layers exist. */
static vptq_status check_files(const importer *im, vptq_err *err)
{
    char name[64], path[4096];
    const vptq_hessian_dir *d = &im->made->dir;
    for (uint32_t layer = d->first_layer; layer <= d->last_layer; layer++)
        for (int i = 0; i < VPTQ_INPUT_DENSE; i++) {
            vptq_foreign_name(name, layer, (vptq_input)i, im->ending);
            VPTQ_CHECK(vptq_path_join(path, sizeof path, im->from, name, err));
            if (!vptq_path_exists(path))
                return vptq_fail(err, VPTQ_E_FORMAT,
                                 "'%s' has Hessians of layers %" PRIu32 "-%" PRIu32
                                 ", but %s is missing",
                                 im->from, d->first_layer, d->last_layer, name);
        }
    return VPTQ_OK;
}

static vptq_status find_files(importer *im, vptq_err *err)
{
    vptq_arena arena;
    char **names;
    size_t count = 0;
    vptq_arena_init(&arena, im->dev->ctx->mem);
    vptq_status st = vptq_dir_list(im->from, &arena, &names, &count, err);
    for (size_t i = 0; !st && i < count; i++) {
        uint32_t layer;
        const char *ending;
        if (!parse_name(names[i], &layer, &ending))
            continue;
        if (im->ending && im->ending != ending)
            st = vptq_fail(err, VPTQ_E_FORMAT,
                           "'%s' has Hessians in .%s and in .%s files, expected one kind",
                           im->from, im->ending, ending);
        else
            st = include_layer(im, layer, err);
        im->ending = ending;
    }
    if (!st && !im->ending)
        st = vptq_fail(
            err, VPTQ_E_FORMAT,
            "'%s' has no Hessian files, expected 0_qkv.pt, 0_o.pt, 0_up.pt, 0_down.pt .. "
            "(or .npy)",
            im->from);
    vptq_arena_release(&arena);
    return st ? st : check_files(im, err);
}

/* Fails unless the imatrix has all inputs of the layers. */
static vptq_status check_entries(const importer *im, vptq_err *err)
{
    const vptq_hessian_dir *d = &im->made->dir;
    for (uint32_t layer = d->first_layer; layer <= d->last_layer; layer++)
        for (int i = 0; i < VPTQ_INPUT_DENSE; i++)
            if (!vptq_imatrix_find(&im->imatrix, layer, (vptq_input)i))
                return vptq_fail(err, VPTQ_E_FORMAT,
                                 "%s: no entry for input %s of block %" PRIu32, im->from,
                                 vptq_input_name((vptq_input)i).text, layer);
    return VPTQ_OK;
}

static vptq_status find_entries(importer *im, vptq_err *err)
{
    VPTQ_CHECK(vptq_imatrix_read(im->from, im->dev->ctx->mem, &im->imatrix, err));
    im->made->dir.diagonal = true;
    for (size_t i = 0; i < im->imatrix.count; i++) {
        uint32_t layer;
        if (vptq_imatrix_layer(im->imatrix.entries[i].name, &layer))
            VPTQ_CHECK(include_layer(im, layer, err));
    }
    if (im->made->dir.layers == 0)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: the imatrix has no entry for a block (blk.0.attn_q.weight ..)",
                         im->from);
    return check_entries(im, err);
}

/* ---- importing them ---- */

static vptq_status read_one(importer *im, uint32_t layer, vptq_input input, vptq_arena *arena,
                            vptq_foreign *f, vptq_err *err)
{
    char name[64], path[4096];
    if (!im->ending)
        return vptq_foreign_take_imatrix(&im->imatrix, layer, input, arena, f, err);
    vptq_foreign_name(name, layer, input, im->ending);
    VPTQ_CHECK(vptq_path_join(path, sizeof path, im->from, name, err));
    if (im->ending == endings[0])
        VPTQ_CHECK(vptq_foreign_read_torch(im->dev, path, arena, f, err));
    else
        VPTQ_CHECK(vptq_foreign_read_npy(path, arena, f, err));
    if (im->files == 0)
        return VPTQ_OK;
    if (f->form != im->made->form)
        return vptq_fail(
            err, VPTQ_E_FORMAT, "%s: form is '%s', but that of the files before '%s'", path,
            vptq_foreign_form_name(f->form), vptq_foreign_form_name(im->made->form));
    if ((f->ridge > 0) != (im->made->ridge > 0))
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: its damping is%s that of the published tools, unlike the files "
                         "before",
                         path, f->ridge > 0 ? "" : " not");
    return VPTQ_OK;
}

static vptq_status write_one(const char *to, const vptq_foreign *f, vptq_err *err)
{
    const vptq_hessian_data data = {.n = f->n,
                                    .tokens = f->tokens,
                                    .values = f->diagonal ? f->diagonal : f->lower,
                                    .mean = f->mean,
                                    .diagonal = f->diagonal != NULL,
                                    .extra_name = f->covariance ? VPTQ_COVARIANCE : NULL,
                                    .extra = f->covariance};
    return vptq_hessian_file_write(to, &data, err);
}

static vptq_status import_one(importer *im, uint32_t layer, vptq_input input, const char *to,
                              vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    vptq_foreign f;
    vptq_hessian_dir *d = &im->made->dir;
    char target[4096];
    vptq_arena_init(&arena, im->dev->ctx->mem);
    VPTQ_TRY(read_one(im, layer, input, &arena, &f, err));
    VPTQ_TRY(vptq_hessian_dir_file(target, to, layer, vptq_input_name(input).text, err));
    VPTQ_TRY(write_one(target, &f, err));
    const float *numbers = f.diagonal ? f.diagonal : f.lower;
    const size_t entries = f.diagonal ? f.n : vptq_triangle(f.n);
    im->hash = vptq_hash(&f.tokens, sizeof f.tokens, im->hash);
    im->hash = vptq_hash(f.mean, f.n * sizeof *f.mean, im->hash);
    im->hash = vptq_hash(numbers, entries * sizeof *numbers, im->hash);
    if (im->files == 0 || f.tokens < d->tokens)
        d->tokens = f.tokens;
    im->made->form = f.form;
    im->made->ridge = f.ridge;
    im->files++;
out:
    vptq_arena_release(&arena);
    return st;
}

static vptq_status import_all(importer *im, const char *to, vptq_err *err)
{
    vptq_hessian_dir *d = &im->made->dir;
    const uint64_t files = (uint64_t)(d->last_layer - d->first_layer + 1) * VPTQ_INPUT_DENSE;
    for (uint64_t i = 0; i < files; i++) {
        VPTQ_CHECK(vptq_check_cancel(im->dev->ctx, err));
        VPTQ_CHECK(import_one(im, d->first_layer + (uint32_t)(i / VPTQ_INPUT_DENSE),
                              (vptq_input)(i % VPTQ_INPUT_DENSE), to, err));
        vptq_progress(im->dev->ctx, "import", vptq_plural(files, "file", "files"), i + 1, files,
                      NULL);
    }
    memcpy(d->model_fingerprint, unknown_model, sizeof unknown_model);
    snprintf(d->fingerprint, sizeof d->fingerprint, "%016" PRIx64, im->hash);
    return VPTQ_OK;
}

/* Writes hessian.json; its settings record the form and what was removed from the Hessians. */
static vptq_status save_origin(const importer *im, const char *to, vptq_err *err)
{
    const vptq_exchange *made = im->made;
    json_t *details = json_pack("{s:s}", "imported_from", vptq_foreign_form_name(made->form));
    bool whole = details != NULL;
    if (whole && made->form == VPTQ_FOREIGN_INVERSE)
        whole = !json_object_set_new(details, "divided_by_mean_diagonal", json_true()) &&
                !json_object_set_new(details, "ridge_removed", json_real(made->ridge));
    vptq_status st = whole ? vptq_hessian_dir_save(to, &made->dir, details, err)
                           : vptq_fail(err, VPTQ_E_NOMEM, "%s: out of memory", to);
    json_decref(details);
    return st;
}

vptq_status vptq_hessian_import(vptq_device *dev, const char *from, const char *out_dir,
                                bool force, vptq_exchange *made, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_dir_writer writer = {0};
    vptq_lock lock = {.fd = -1};
    importer im = {.dev = dev, .from = from, .made = made};

    *made = (vptq_exchange){.dir = {.first_layer = UINT32_MAX}};
    if (vptq_path_exists(from) && !vptq_path_is_dir(from))
        VPTQ_TRY(find_entries(&im, err));
    else
        VPTQ_TRY(find_files(&im, err));
    VPTQ_TRY(
        vptq_hessian_dir_writer_open(out_dir, NULL, force, dev->ctx->mem, &writer, &lock, err));
    VPTQ_TRY(import_all(&im, writer.tmp, err));
    VPTQ_TRY(save_origin(&im, writer.tmp, err));
    VPTQ_TRY(vptq_dir_writer_commit(&writer, err));
out:
    vptq_imatrix_release(&im.imatrix);
    if (st)
        vptq_dir_writer_abort(&writer);
    vptq_lock_release(&lock);
    return st;
}
