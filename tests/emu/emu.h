/* The CUDA backend under the emulator, and the emulator's controls for tests. */
#ifndef VPTQ_TESTS_EMU_EMU_H
#define VPTQ_TESTS_EMU_EMU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The ops of the cuda backend, compiled for the emulator, as backend "emu".  A program that
 * links this function has the backend registered from its start. */
typedef struct vptq_backend vptq_backend;
const vptq_backend *vptq_backend_emu(void);

/* 0: everything in ascending order; others: an order of their own in every round. */
void cuda_emu_seed(uint64_t seed);
/* Bytes that cudaMalloc gives altogether before it fails; 0: no limit.  Programs start with
 * VPTQ_EMU_MEMORY. */
void cuda_emu_memory(size_t bytes);
size_t cuda_emu_memory_used(void);
size_t cuda_emu_memory_peak(void);
/* On: outside of kernels and copies the host may not touch device memory (the program faults
 * where it does), and kernels take pointers to device memory only (the launch fails).  What
 * pointers inside of structs point at is not seen. */
void cuda_emu_guard(bool on);
/* The device is there or not, the driver's version as 12020 for 12.2 (0: there is none), what
 * the run time needs, and the compute capability; NULL: as at first. */
typedef struct cuda_emu_machine {
    bool device;
    int driver, runtime, major, minor;
} cuda_emu_machine;
void cuda_emu_be(const cuda_emu_machine *machine);
/* Whether cuBLAS and cuSOLVER can be loaded (at first: yes). */
void cuda_emu_libraries(bool there);

/* What goes wrong, "HOW:N", N counted from here on; NULL: nothing any more, and the device is
 * as new.  Programs start with what VPTQ_EMU_FAIL says.
 *
 * launch:N  the N-th launch is refused; what follows works again.
 *
 * kernel:N  the N-th kernel dies: nothing behind it is done, the first call that waits for the
 * device says so, and from then on every call does.
 *
 * copy:N  the N-th copy fails, and so does every call after it.
 *
 * alloc:N  there is no memory for the N-th allocation.
 *
 * pinned:N  there is none for the N-th allocation of pinned host memory. */
void cuda_emu_break(const char *how);
/* Called at every launch, before it: to raise a flag or to take memory away in the middle of a
 * row.  NULL: nobody. */
void cuda_emu_on_launch(void (*fn)(void *arg), void *arg);
/* Multiplications of a launch at most (vptq_cuda_pace); 0: as on a GPU. */
void cuda_emu_work(double most);
/* Launches, copies and allocations so far.  VPTQ_EMU_COUNTS names a file that gets the three,
 * and the most memory that was in use, at the end of the program. */
typedef struct cuda_emu_counts {
    unsigned long launches, copies, allocations;
} cuda_emu_counts;
cuda_emu_counts cuda_emu_count(void);

#ifdef __cplusplus
}
#endif

#endif
