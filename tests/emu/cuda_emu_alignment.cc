/* Alignment of loads and stores in kernels. g++ checks every access of the kernels' source
 * (-fsanitize=alignment) and calls the function below for a bad address; a GPU would stop the
 * kernel. All other reports are passed on to the sanitizer of the build, if it has one. */
#include "tests/emu/cuda_emu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

struct mismatch { /* as libubsan declares it */
    const char *file;
    uint32_t line, column;
    const void *type;
    unsigned char log_alignment, kind;
};

extern "C" [[noreturn]] void __ubsan_handle_type_mismatch_v1_abort(const mismatch *m,
                                                                   uintptr_t address);
void __ubsan_handle_type_mismatch_v1_abort(const mismatch *m, uintptr_t address)
{
    const unsigned bytes = 1u << m->log_alignment;
    if (address % bytes && cuda_emu_is_running()) {
        char what[96];
        snprintf(what, sizeof what, "an access whose address is not aligned to its %u bytes",
                 bytes);
        cuda_emu_fail({m->file, (int)m->line}, what);
    }
    typedef void (*handler)(const mismatch *, uintptr_t);
    const handler next =
        reinterpret_cast<handler>(dlsym(RTLD_NEXT, "__ubsan_handle_type_mismatch_v1_abort"));
    if (next)
        next(m, address);
    fprintf(stderr, "%s:%u: an address that is not aligned to %u bytes\n", m->file, m->line,
            bytes);
    abort();
}
