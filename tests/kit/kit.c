/* All programs of the GPU kit in one, so that the kit has the kernels once: runs the program
 * that it is called as, through a link `vptq-eval` or `test_gemv`, or the one named by its
 * first argument. */
#include <stdio.h>
#include <string.h>

/* KIT_PROGRAMS is PROGRAM(vptq_eval) PROGRAM(test_gemv) ..; kit_NAME is the main of a program,
 * renamed in its object (Makefile). */
#define PROGRAM(name) int kit_##name(int argc, char **argv);
KIT_PROGRAMS
#undef PROGRAM

typedef struct kit_program {
    const char *name;
    int (*run)(int argc, char **argv);
} kit_program;

#define PROGRAM(name) {#name, kit_##name},
static const kit_program programs[] = {KIT_PROGRAMS};
#undef PROGRAM

enum { PROGRAMS = sizeof programs / sizeof *programs };

/* The program of a path or name, in which '-' stands for '_'; NULL if there is none. */
static const kit_program *find(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    for (size_t i = 0; i < PROGRAMS; i++) {
        const char *a = name, *b = programs[i].name;
        while (*a && (*a == *b || (*a == '-' && *b == '_')))
            a++, b++;
        if (!*a && !*b)
            return &programs[i];
    }
    return NULL;
}

int main(int argc, char **argv)
{
    const kit_program *p = argc > 0 ? find(argv[0]) : NULL;
    if (p)
        return p->run(argc, argv);
    p = argc > 1 ? find(argv[1]) : NULL;
    if (p)
        return p->run(argc - 1, argv + 1);
    fprintf(stderr, "usage: vptq-kit PROGRAM [ARGUMENT..], with PROGRAM one of\n");
    for (size_t i = 0; i < PROGRAMS; i++)
        fprintf(stderr, "    %s\n", programs[i].name);
    return 2;
}
