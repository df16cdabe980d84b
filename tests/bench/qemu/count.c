/* A plugin of qemu-user (API version 1) that counts instructions by function, for
 * bench_instructions.sh: lines of "count name" in the file that COUNTS names, largest first.
 * A block of code, as qemu translates it, counts for the function in which it begins.
 * Debian has no header for plugins, so the part of it that this needs is repeated here. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { QEMU_PLUGIN_INLINE_ADD_U64 };
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t i);
const char *qemu_plugin_insn_symbol(const struct qemu_plugin_insn *insn);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id,
                                           void (*f)(uint64_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *tb, int op, void *to,
                                              uint64_t value);
void qemu_plugin_register_atexit_cb(uint64_t id, void (*f)(uint64_t, void *), void *arg);
int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv);
extern int qemu_plugin_version;
int qemu_plugin_version = 1;

enum { MAX = 1 << 16, NAME = 80 };
static struct function {
    char name[NAME];
    uint64_t count;
} table[MAX]; /* by hash of the name, free ones have none */

static uint64_t *count_of(const char *name)
{
    static size_t used;
    uint32_t at = 2166136261;
    for (const char *c = name; *c; c++)
        at = (at ^ (uint8_t)*c) * 16777619;
    for (at %= MAX; table[at].name[0]; at = (at + 1) % MAX)
        if (!strncmp(table[at].name, name, NAME - 1))
            return &table[at].count;
    if (++used == MAX) {
        fputs("count: too many functions\n", stderr);
        exit(1);
    }
    snprintf(table[at].name, NAME, "%s", name);
    return &table[at].count;
}

static void translated(uint64_t id, struct qemu_plugin_tb *tb)
{
    const char *name = qemu_plugin_insn_symbol(qemu_plugin_tb_get_insn(tb, 0));
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(tb, QEMU_PLUGIN_INLINE_ADD_U64,
                                             count_of(name && *name ? name : "?"),
                                             qemu_plugin_tb_n_insns(tb));
}

static int by_count(const void *a, const void *b)
{
    const struct function *f = a, *g = b;
    return (f->count < g->count) - (f->count > g->count);
}

static void finished(uint64_t id, void *arg)
{
    const char *path = getenv("COUNTS");
    FILE *to = path ? fopen(path, "w") : stderr;
    (void)id;
    (void)arg;
    if (!to) {
        perror(path);
        return;
    }
    qsort(table, MAX, sizeof *table, by_count);
    for (size_t i = 0; i < MAX && table[i].count; i++)
        fprintf(to, "%" PRIu64 " %s\n", table[i].count, table[i].name);
    if (path)
        fclose(to);
}

int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv)
{
    (void)info;
    (void)argc;
    (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, finished, NULL);
    return 0;
}
