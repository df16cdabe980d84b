/* Internal to hessian/: files of a Hessian directory. */
#ifndef VPTQ_HESSIAN_DIR_H
#define VPTQ_HESSIAN_DIR_H

#include "hessian/collect.h"
#include "lib/base/file.h"

enum { VPTQ_HESSIAN_MAX_LAYERS = 4096 }; /* of a model */

/* path = "DIR/layer_003_INPUT.safetensors" */
vptq_status vptq_hessian_dir_file(char path[4096], const char *dir, uint32_t layer,
                                  const char *input, vptq_err *err) VPTQ_MUST_CHECK;

/* One file of a Hessian directory. */
typedef struct vptq_hessian_entry {
    const char *dir;
    uint32_t layer;
    const char *input;       /* or vptq_term_name */
    vptq_token_weights kind; /* of the term; VPTQ_WEIGHTS_PLAIN for a Hessian */
} vptq_hessian_entry;
/* Reads a Hessian or a term with `n` columns (0 = any) and checks that all numbers are finite;
 * VPTQ_E_MISMATCH unless it is of that kind.  `lower` is always set: a diagonal is expanded
 * with zeros, or VPTQ_E_UNSUPPORTED with n = 0, when its size cannot be checked. */
vptq_status vptq_hessian_entry_load(const vptq_hessian_entry *s, uint32_t n, vptq_mem *mem,
                                    vptq_hessian_file *h, vptq_err *err) VPTQ_MUST_CHECK;

/* Fails with VPTQ_E_MISMATCH unless a collection `new` may continue `old`, that of the
 * directory: compares the keys of hessian.json that decide the files, most telling first.  The
 * factor is not one of them. */
vptq_status vptq_hessian_dir_compare(const char *dir, const vptq_hessian_dir *old,
                                     const vptq_hessian_dir *new,
                                     vptq_err *err) VPTQ_MUST_CHECK;

/* *unused: the directory and that of its held-out part have nothing to lose, as
 * vptq_dir_find_unused says. */
vptq_status vptq_hessian_dir_find_unused(const char *dir, vptq_mem *mem, bool *unused,
                                         vptq_err *err) VPTQ_MUST_CHECK;

/* Fails unless all files of a directory exist: those of the inputs and terms that `h` has. */
vptq_status vptq_hessian_dir_check_files(const char *dir, const vptq_hessian_dir *h,
                                         vptq_err *err) VPTQ_MUST_CHECK;

enum { VPTQ_HESSIAN_OPEN_BYTES = 8 << 10 }; /* memory for an open file, without its numbers */

/* Adds the sizes of these files to a plan. */
vptq_status vptq_hessian_dir_measure(const char *dir, const vptq_hessian_dir *h,
                                     vptq_hessian_plan *p, vptq_err *err) VPTQ_MUST_CHECK;

/* Opens the writer of a whole directory.  One that exists is replaced with `force`, if it and
 * `inner` (NULL = none) are Hessian directories, and is locked until the caller releases
 * *lock. */
vptq_status vptq_hessian_dir_writer_open(const char *dir, const char *inner, bool force,
                                         vptq_mem *mem, vptq_dir_writer *w, vptq_lock *lock,
                                         vptq_err *err) VPTQ_MUST_CHECK;
/* Makes the checks of vptq_hessian_dir_writer_open, and writes nothing. */
vptq_status vptq_hessian_dir_writer_check(const char *dir, const char *inner, bool force,
                                          vptq_mem *mem, vptq_err *err) VPTQ_MUST_CHECK;

#endif
