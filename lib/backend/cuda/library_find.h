/* Internal: finds shared libraries of CUDA where people have them: anywhere the loader looks,
 * next to the program, in a CUDA toolkit, or in a Python environment, whose wheels bring them
 * as nvidia/.../lib. Plain C, no CUDA. */
#ifndef VPTQ_BACKEND_CUDA_LIBRARY_FIND_H
#define VPTQ_BACKEND_CUDA_LIBRARY_FIND_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Opens the first library that loads: each file of the NULL-terminated list by its name alone,
 * then in each folder above. `why` says where it came from, or, on failure (NULL), every place
 * tried and the loader's last reason. A library stays loaded until the program ends, because
 * its state on a device does not survive unloading. */
void *vptq_cuda_library_find(const char *const *files, char *why, size_t size);

#ifdef __cplusplus
}
#endif

#endif
