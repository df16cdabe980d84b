/* Internal to compressed*.c: what the reader, the writer and the config share. */
#ifndef VPTQ_FORMATS_HF_COMPRESSED_INTERNAL_H
#define VPTQ_FORMATS_HF_COMPRESSED_INTERNAL_H

#include "formats/hf/compressed.h"

enum {
    VPTQ_COMPRESSED_WORD_BITS = 32,
    VPTQ_COMPRESSED_BYTE_ZERO = 128 /* code of the stored byte 0 */
};

/* The last component of a module path. */
const char *vptq_compressed_last_component(const char *module);

/* Finds the config group of a module in a quantization_config; *group is NULL if the module
 * stays plain. */
vptq_status vptq_compressed_find_group(const json_t *quantization, const char *module,
                                       const char *file, const char **name,
                                       const json_t **group, vptq_err *err) VPTQ_MUST_CHECK;

/* The errors of vptq_compressed_tensors except those of scales. */
vptq_status vptq_compressed_check_writable(const vptq_compressed_matrix *m,
                                           vptq_err *err) VPTQ_MUST_CHECK;

/* The first group that does not have group_size columns in groups[in], all of which are valid;
 * *columns is their number.  The number of groups if there is none.  The library sorts columns
 * by group and cuts them into groups of equal size. */
vptq_status vptq_compressed_find_uneven(const vptq_uniform_shape *s, const int32_t *groups,
                                        vptq_arena *arena, uint32_t *group, uint32_t *columns,
                                        vptq_err *err) VPTQ_MUST_CHECK;

#endif
