/* Internal to the emulator: stacks for threads of kernels, and switching between them and the
 * scheduler. AddressSanitizer and ThreadSanitizer follow each switch, if the program has
 * them. */
#ifndef VPTQ_TESTS_EMU_CUDA_EMU_STACKS_H
#define VPTQ_TESTS_EMU_CUDA_EMU_STACKS_H

#include <stddef.h>
#include <ucontext.h>

extern "C" {
/* Sanitizer interfaces, if the program has them. */
__attribute__((weak)) void __tsan_acquire(void *address);
__attribute__((weak)) void __tsan_release(void *address);
__attribute__((weak)) void __asan_poison_memory_region(void const volatile *p, size_t size);
__attribute__((weak)) void __asan_unpoison_memory_region(void const volatile *p, size_t size);
}

typedef struct cuda_emu_stack {
    bool started;
    void *sp; /* while it is suspended */
    ucontext_t context;
    unsigned char *memory; /* guard, then stack */
    size_t offset; /* unused at the top of the stack, so that stacks differ in cache sets */
    void *tsan, *asan;
} cuda_emu_stack;

/* Its first run calls entry, which calls cuda_emu_stack_begin and never returns. */
void cuda_emu_stack_open(cuda_emu_stack *s, void (*entry)(void));
/* For a stack that is not running. What ran on it happened before what follows; `order` is an
 * address for ThreadSanitizer. */
void cuda_emu_stack_close(cuda_emu_stack *s, void *order);

/* The calling thread becomes the scheduler. */
void cuda_emu_stack_schedule(void);
/* Switches from the scheduler to the stack; returns when that leaves.  Its first run (started
 * is false) is ordered after everything that the scheduler has done, later ones by barriers
 * only. */
void cuda_emu_stack_run(cuda_emu_stack *s);
void cuda_emu_stack_begin(void);
/* Switches from the running stack to the scheduler; returns when it runs again. */
void cuda_emu_stack_leave(cuda_emu_stack *s);

#endif
