/* Launching kernels in the emulator's own tests. */
#ifndef VPTQ_TESTS_EMU_LAUNCH_H
#define VPTQ_TESTS_EMU_LAUNCH_H

#include "lib/backend/cuda/port.h"

extern "C" {
#include "tests/support/vtest.h"
}

/* Runs the kernel to its end; the test fails if the kernel does. */
template <class... P, class... A>
static void run(void (*kernel)(P...), dim3 grid, dim3 block, size_t dynamic, A... args)
{
    cudaError_t e = port_launch(kernel, grid, block, dynamic, NULL, args...);
    if (!e)
        e = cudaStreamSynchronize(NULL);
    if (e)
        fail_msg("the kernel failed: %s", cudaGetErrorString(e));
}

#endif
