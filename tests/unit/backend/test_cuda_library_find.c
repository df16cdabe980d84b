/* Tests where the cuda backend finds shared libraries: in a Python environment, with a report
 * of every place if there are none. The library of the test is a copy of another one. */
#define _GNU_SOURCE /* dladdr */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/backend/cuda/library_find.h"
#include "tests/support/vtest.h"

static const char *const files[] = {"libvptq-test.so.2", "libvptq-test.so.1", NULL};

/* Makes root/lib/python3.12/site-packages/nvidia/name/lib. */
static void make_wheel(const char *root, const char *name, char to[512])
{
    char path[512];
    snprintf(path, sizeof path, "%s/lib/python3.12/site-packages/nvidia/%s/lib", root, name);
    snprintf(to, 512, "%s", path);
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        (void)mkdir(path, 0700);
        *p = '/';
    }
    assert_int_equal(mkdir(path, 0700), 0);
}

static void put(const char *folder, const char *name, const char *library)
{
    char path[600], part[4096];
    size_t n;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *from = fopen(library, "rb"), *to = fopen(path, "wb");
    assert_non_null(from);
    assert_non_null(to);
    while ((n = fread(part, 1, sizeof part, from)) > 0)
        assert_int_equal(fwrite(part, 1, n, to), n);
    fclose(from);
    assert_int_equal(fclose(to), 0);
}

static void finds_libraries_of_a_python_environment(void **state)
{
    char folder[512], why[1024];
    Dl_info info;
    assert_int_equal(setenv("VIRTUAL_ENV", *state, 1), 0);
    assert_null(vptq_cuda_library_find(files, why, sizeof why));
    assert_non_null(strstr(why, "no such file; tried the loader's own folders, "));
    assert_non_null(strstr(why, "/usr/local/cuda*/lib64"));
    assert_non_null(strstr(why, "/site-packages/nvidia/*/lib"));

    make_wheel(*state, "cu13", folder);
    put(folder, files[0], "/etc/passwd"); /* the loader's reason is reported */
    assert_null(vptq_cuda_library_find(files, why, sizeof why));
    assert_non_null(strstr(why, "nvidia/cu13/lib/libvptq-test.so.2: "));

    assert_true(dladdr((void *)(size_t)&cmocka_set_message_output, &info));
    put(folder, files[1], info.dli_fname);
    void *handle = vptq_cuda_library_find(files, why, sizeof why);
    assert_non_null(handle);
    assert_non_null(strstr(why, "nvidia/cu13/lib/libvptq-test.so.1"));
    assert_non_null(dlsym(handle, "cmocka_set_message_output"));
    assert_int_equal(dlclose(handle), 0);
    assert_int_equal(unsetenv("VIRTUAL_ENV"), 0);
}

static void finds_libraries_of_the_loader(void **state)
{
    static const char *const libc[] = {"libvptq-test.so.3", "libc.so.6", NULL};
    char why[64];
    (void)state;
    void *handle = vptq_cuda_library_find(libc, why, sizeof why);
    assert_non_null(handle);
    assert_string_equal(why, "libc.so.6");
    assert_int_equal(dlclose(handle), 0);
}

VTEST_MAIN(scratch_test(finds_libraries_of_a_python_environment),
           cmocka_unit_test(finds_libraries_of_the_loader))
