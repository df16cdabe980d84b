/* Registers the ops of lib/backend/cuda, compiled for the emulator, as backend "emu". */
#include "lib/backend/cuda/cuda.h"

static vptq_backend table;

/* Closes device memory to the host, so that ops which touch it directly fault. */
static vptq_status open_guarded(const vptq_ctx *ctx, vptq_dev **dev, vptq_err *err)
{
    cuda_emu_guard(true);
    return vptq_backend_cuda()->open(ctx, dev, err);
}

const vptq_backend *vptq_backend_emu(void)
{
    return &table;
}

__attribute__((constructor)) static void register_backend(void)
{
    table = *vptq_backend_cuda();
    table.name = "emu";
    table.open = open_guarded;
    vptq_backend_register(&table);
}
