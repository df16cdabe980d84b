/* Shortens the time that idle OpenMP threads spin before they sleep.
 *
 * By default they spin for milliseconds.  On a machine that runs other programs this takes the
 * processor from the very thread they wait for: two threads are then slower than one.  The
 * OpenMP runtime reads its environment when it is loaded, before main, and has no function for
 * it.  Entries of .preinit_array run earlier still, but the C library then ignores setenv: the
 * environment is the array that the kernel left on the stack, without room for another entry.
 * So GOMP_SPINCOUNT takes the place of a variable that no library reads, which
 * vptq_cli_restore_environment puts back.  A value of the user's own is kept; without such a
 * variable (`env -i`), and in programs that are not ELF files, the default holds. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli/internal.h"

static char *displaced; /* "NAME=value" */

#ifdef __ELF__
static char spin_count[] = "GOMP_SPINCOUNT=2000";

static bool has_name(const char *entry, const char *name)
{
    const size_t n = strlen(name);
    return !strncmp(entry, name, n) && entry[n] == '=';
}

static void shorten_spin(int argc, char **argv, char **environment)
{
    static const char *const unread[] = {"_", "OLDPWD", "SHLVL", "PWD"};
    char **slot = NULL;
    size_t best = sizeof unread / sizeof *unread;

    (void)argc;
    (void)argv;
    for (char **e = environment; *e; e++) {
        if (has_name(*e, "GOMP_SPINCOUNT") || has_name(*e, "OMP_WAIT_POLICY"))
            return;
        for (size_t i = 0; i < best; i++)
            if (has_name(*e, unread[i])) {
                slot = e;
                best = i;
            }
    }
    if (!slot)
        return;
    displaced = *slot;
    *slot = spin_count;
}

__attribute__((section(".preinit_array"),
               used)) static void (*const before_libraries)(int, char **,
                                                            char **) = shorten_spin;
#endif

void vptq_cli_restore_environment(void)
{
    if (displaced)
        (void)putenv(displaced);
    displaced = NULL;
}
