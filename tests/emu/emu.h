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

/* Seed for the order of blocks, warps and lanes; 0: ascending. */
void cuda_emu_seed(uint64_t seed);
/* Limits the bytes that cudaMalloc provides in total; 0: no limit. VPTQ_EMU_MEMORY in the
 * environment sets the limit at program start. */
void cuda_emu_memory(size_t bytes);
size_t cuda_emu_memory_used(void);
size_t cuda_emu_memory_peak(void);
/* Selects how tensor cores add: "volta", "ampere" (the default) and "hopper" like the hardware,
 * with one rounding toward zero for 4, 8 or 16 products and 0, 1 or 2 bits more than a float
 * has; "ordered" in float, one product after the other. Returns false for other names.
 * VPTQ_EMU_MMA in the environment sets it at program start. */
bool cuda_emu_mma_model(const char *name);
/* With the guard on, the host faults if it touches device memory outside kernels and copies,
 * and launches fail if an argument points to host memory (pointers inside structs are not
 * checked). */
void cuda_emu_guard(bool on);
/* The machine to emulate: whether it has a device, versions of driver and run time (12020 for
 * 12.2; driver 0: none), the compute capability, and the bytes of shared memory of a block (0:
 * 227 KB). NULL: the default. */
typedef struct cuda_emu_machine {
    bool device;
    int driver, runtime, major, minor;
    size_t shared;
} cuda_emu_machine;
void cuda_emu_be(const cuda_emu_machine *machine);
/* Whether cuBLAS and cuSOLVER can be loaded (default: yes). */
void cuda_emu_libraries(bool there);

/* Makes the N-th call from now on fail, "HOW:N"; NULL ends all failures and repairs the device.
 * VPTQ_EMU_FAIL in the environment sets it at program start.
 *
 *     launch:N  the N-th launch is refused; later ones work again
 *     kernel:N  the N-th kernel dies: later work is not done, the first call that waits for the
 *               device reports it, and then every call does
 *     copy:N    the N-th copy and every call after it fails
 *     alloc:N   the N-th allocation and the one after it, which may repeat it, fail
 *     pinned:N  the N-th allocation of pinned host memory fails */
void cuda_emu_break(const char *how);
/* Calls fn before every launch, to raise a flag or change the memory limit within an op; NULL:
 * none. */
void cuda_emu_on_launch(void (*fn)(void *arg), void *arg);
/* Sets the limit on multiplications per launch (vptq_cuda_pace); 0: as on a GPU. */
void cuda_emu_work(double most);
/* Launches, copies and allocations so far, and the bytes that copies moved from the host to the
 * device and back (not memset, nor copies within the device). VPTQ_EMU_COUNTS names a file that
 * receives them and the peak memory when the program ends. */
typedef struct cuda_emu_counts {
    unsigned long launches, copies, allocations;
    unsigned long long uploaded, downloaded;
} cuda_emu_counts;
cuda_emu_counts cuda_emu_count(void);

#ifdef __cplusplus
}
#endif

#endif
