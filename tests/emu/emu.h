/* The emulator's knobs, for tests in C. */
#ifndef TESTS_EMU_EMU_H
#define TESTS_EMU_EMU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 0: everything in ascending order; others: an order of their own in every round. */
void cuda_emu_seed(uint64_t seed);
/* Bytes that cudaMalloc gives altogether before it fails; 0: no limit. */
void cuda_emu_memory(size_t bytes);
size_t cuda_emu_memory_used(void);
/* On: outside of kernels and copies the host may not touch device memory (the program faults
 * where it does), and kernels take pointers to device memory only (the launch fails).  What
 * pointers inside of structs point at is not seen. */
void cuda_emu_guard(bool on);
/* Whether cuBLAS and cuSOLVER can be loaded (at first: yes). */
void cuda_emu_libraries(bool there);

#ifdef __cplusplus
}
#endif

#endif
