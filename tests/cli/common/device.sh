# --version --verbose of every tool names the device, its driver and the libraries, or the reason why the
# device cannot be opened.  A stub library with given answers replaces the driver.
emu_bin=${VPTQ_DEVICE_BIN-none}
tools="vptq-eval vptq-hessian vptq-pack vptq-quantize"
if [ -x "$emu_bin/vptq-quantize" ]; then
    for tool in $tools; do
        expect_exit 0 "$emu_bin/$tool" --version --verbose --backend emu > out
        expect_line out '^backend emu: emulated device (compute capability 9.0, .* MiB), driver 13.0, run time 13.0$'
        expect_line out '^libraries: emulated cuBLAS, emulated cuSOLVER$'
    done
fi

"$BIN/vptq-eval" --version --verbose --backend cuda > out
grep -q 'is not in this build' out && exit 0
command -v cc > /dev/null || skip "needs cc"
cat > driver.c << 'END'
#include <stdlib.h>
#include <string.h>
static int number(const char *name) { return getenv(name) ? atoi(getenv(name)) : 0; }
int cuInit(unsigned flags) { (void)flags; return number("STUB_INIT"); }
int cuDriverGetVersion(int *version) { *version = number("STUB_VERSION"); return 0; }
int cuGetProcAddress_v2(const char *name, void **p, int version, unsigned long long flags, int *found);
int cuGetProcAddress(const char *name, void **p, int version, unsigned long long flags)
{
    (void)flags;
    *p = !strcmp(name, "cuDriverGetVersion") ? (void *)cuDriverGetVersion
         : strcmp(name, "cuGetProcAddress")  ? (void *)cuInit
         : version >= 12000                  ? (void *)cuGetProcAddress_v2
                                             : (void *)cuGetProcAddress;
    return 0;
}
int cuGetProcAddress_v2(const char *name, void **p, int version, unsigned long long flags, int *found)
{
    if (found)
        *found = 0;
    return cuGetProcAddress(name, p, version, flags);
}
END
cc -shared -fPIC -o libcuda.so.1 driver.c
# says VERSION INIT PATTERN: a tool reports this with such a driver
says()
{
    LD_LIBRARY_PATH=$PWD STUB_VERSION=$1 STUB_INIT=$2 "$BIN/vptq-quantize" --version --verbose --backend cuda > out
    expect_line out "$3"
    LD_LIBRARY_PATH=$PWD STUB_VERSION=$1 STUB_INIT=$2 "$BIN/vptq-quantize" --version --verbose > out
    expect_line out '^backend cpu (automatic): '
}
says 12020 999 '^backend cuda: no CUDA device answers: the driver is for CUDA 12.2, this build needs one for 1[3-9]'
says 19000 100 '^backend cuda: no CUDA device answers: no CUDA-capable device is detected$'
