/* The emulator's stacks. */
#include "tests/emu/cuda_emu_stacks.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

extern "C" {
__attribute__((weak)) void *__tsan_create_fiber(unsigned flags);
__attribute__((weak)) void __tsan_destroy_fiber(void *fiber);
__attribute__((weak)) void *__tsan_get_current_fiber(void);
__attribute__((weak)) void __tsan_switch_to_fiber(void *fiber, unsigned flags);
__attribute__((weak)) void __sanitizer_start_switch_fiber(void **save, const void *bottom,
                                                          size_t size);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void *save, const void **bottom,
                                                           size_t *size);
}

enum { STACK = 256 << 10, GUARD = 4 << 10, TSAN_NO_SYNC = 1 };

/* The thread that runs stacks. */
static struct {
    void *sp, *tsan, *asan;
    ucontext_t context;
    const void *bottom;
    size_t size;
    size_t stacks; /* made so far */
} scheduler;

#if defined(__x86_64__)
/* Saves the callee-saved registers on the stack and switches stacks. */
extern "C" void cuda_emu_switch(void **save, void *load);
__asm__(".text\n.globl cuda_emu_switch\n.type cuda_emu_switch,@function\ncuda_emu_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size cuda_emu_switch,.-cuda_emu_switch\n");
static void prepare(cuda_emu_stack *s, void (*entry)(void))
{
    void **top = reinterpret_cast<void **>(s->memory + GUARD + STACK - s->offset);
    *--top = NULL; /* aligned as after a call */
    *--top = reinterpret_cast<void *>(entry);
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    s->sp = top;
}
static void switch_to(cuda_emu_stack *s)
{
    cuda_emu_switch(&scheduler.sp, s->sp);
}
static void switch_back(cuda_emu_stack *s)
{
    cuda_emu_switch(&s->sp, scheduler.sp);
}
#else
static void prepare(cuda_emu_stack *s, void (*entry)(void))
{
    getcontext(&s->context);
    s->context.uc_stack.ss_sp = s->memory + GUARD;
    s->context.uc_stack.ss_size = STACK - s->offset;
    makecontext(&s->context, entry, 0);
}
static void switch_to(cuda_emu_stack *s)
{
    swapcontext(&scheduler.context, &s->context);
}
static void switch_back(cuda_emu_stack *s)
{
    swapcontext(&s->context, &scheduler.context);
}
#endif

void cuda_emu_stack_schedule(void)
{
    if (__tsan_get_current_fiber)
        scheduler.tsan = __tsan_get_current_fiber();
}

void cuda_emu_stack_leave(cuda_emu_stack *s)
{
    if (__sanitizer_start_switch_fiber)
        __sanitizer_start_switch_fiber(&s->asan, scheduler.bottom, scheduler.size);
    if (__tsan_switch_to_fiber)
        __tsan_switch_to_fiber(scheduler.tsan, TSAN_NO_SYNC);
    switch_back(s);
    if (__sanitizer_finish_switch_fiber)
        __sanitizer_finish_switch_fiber(s->asan, NULL, NULL);
}

void cuda_emu_stack_run(cuda_emu_stack *s)
{
    if (__sanitizer_start_switch_fiber)
        __sanitizer_start_switch_fiber(&scheduler.asan, s->memory + GUARD, STACK);
    if (__tsan_switch_to_fiber)
        __tsan_switch_to_fiber(s->tsan, s->started ? TSAN_NO_SYNC : 0);
    s->started = true;
    switch_to(s);
    if (__sanitizer_finish_switch_fiber)
        __sanitizer_finish_switch_fiber(scheduler.asan, NULL, NULL);
}

void cuda_emu_stack_begin(void)
{
    if (__sanitizer_finish_switch_fiber)
        __sanitizer_finish_switch_fiber(NULL, &scheduler.bottom, &scheduler.size);
}

void cuda_emu_stack_open(cuda_emu_stack *s, void (*entry)(void))
{
    void *m = mmap(NULL, GUARD + STACK, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED || mprotect(m, GUARD, PROT_NONE)) {
        perror("cuda_emu: no memory for a stack");
        abort();
    }
    s->memory = static_cast<unsigned char *>(m);
    s->offset = scheduler.stacks++ * 7 % 256 * 64;
    if (__tsan_create_fiber)
        s->tsan = __tsan_create_fiber(0);
    prepare(s, entry);
}

void cuda_emu_stack_close(cuda_emu_stack *s, void *order)
{
    if (__tsan_switch_to_fiber) {
        __tsan_switch_to_fiber(s->tsan, TSAN_NO_SYNC);
        __tsan_release(order);
        __tsan_switch_to_fiber(scheduler.tsan, TSAN_NO_SYNC);
        __tsan_acquire(order);
        __tsan_destroy_fiber(s->tsan);
    }
    if (__asan_unpoison_memory_region)
        __asan_unpoison_memory_region(s->memory, GUARD + STACK);
    munmap(s->memory, GUARD + STACK);
}
