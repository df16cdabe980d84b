# VPTQ: vector post-training quantization of language models.  `make help` lists the targets.
#
# Knobs, all optional:
#   DEVELOPER=1                   warnings are errors
#   SANITIZE=address,undefined    instrumented build, kept apart from the plain one
#   STATIC=1                      tools that need no shared library (`make static`)
#   EXTRA_CFLAGS=...              added to the compiler's flags (a configuration of its own)
#   V=1                           show the commands
#   CUDA=auto|1                   also the CUDA backend: if a working nvcc is found, or required
#   MPI=1                         also ranks: the work of a run is shared by the processes that mpirun
#                                 starts (Open MPI or MPICH by pkg-config; MPI=mpich names one)
#   CUDA_SM=90                    compute capabilities to compile kernels for, without PTX
#                                 (default: 80, 90 and PTX of the newest)
#   CC, CXX, AR, CLANG_FORMAT, NVCC  the tools
#   CROSS=aarch64-linux-gnu-      a cross build with the compiler of that prefix
#   SYSROOT=DIR                   where its libraries are (default: build/sysroot, scripts/sysroot.sh)
#   UNDER='COMMAND ARGUMENTS'     runs programs of a cross build (default: qemu-user)
#   PREFIX, LIBDIR, DESTDIR       where `install` puts things
#   TEXT=, MODEL=                 inputs of `make demo`
#   T=, RUNS=                     tests to run, or seconds and executions of `make fuzz`
#
# Objects live in build/CONFIG, where CONFIG follows from the flags, so that a change of flags
# never mixes objects.  The four tools of the plain build are also in build/bin.

CLANG_FORMAT ?= clang-format
PREFIX       ?= /usr/local
LIBDIR       ?= $(PREFIX)/lib
DESTDIR      ?=
CROSS        ?=

# A tool that make knows by default or that is not set at all.
ifneq ($(filter default undefined,$(origin CC)),)
CC := $(CROSS)gcc
endif
ifneq ($(filter default undefined,$(origin CXX)),)
CXX := $(CROSS)g++
endif
ifneq ($(filter default undefined,$(origin AR)),)
AR := $(CROSS)ar
endif
ifneq ($(filter default undefined,$(origin LD)),)
LD := $(CROSS)ld
endif
OBJCOPY ?= $(CROSS)objcopy

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules

Q := @
ifeq ($(V),1)
Q :=
endif

# --- configuration -------------------------------------------------------------------------

# The processor that is compiled for: x86_64, aarch64, ...
TARGET := $(shell $(CC) -dumpmachine 2>/dev/null)
ARCH   := $(patsubst arm64,aarch64,$(firstword $(subst -, ,$(TARGET))))

WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion \
            -Wdouble-promotion -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wcast-qual \
            -Wpointer-arith -Wwrite-strings -Wundef -Wformat=2 -Wnull-dereference -fno-common
ifneq ($(findstring clang,$(CC)),)
WARNINGS += -Wno-double-promotion # clang takes INFINITY and NAN, floats by C, for promotions
endif
STANDARD := -std=c11 -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE
# Contraction would let the compiler fuse a*b+c at will: other bits from other compilers.
NUMERICS := -ffp-contract=off
OPTIMIZE := -O3 -g

# What costs nothing that can be measured: checked buffers and stacks, addresses at random, tables of
# the linker that cannot be written to.  Sanitizers check more, and clash with the first of these.
HARDEN      := -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -fstack-protector-strong -fstack-clash-protection \
               $(if $(filter x86_64,$(ARCH)),-fcf-protection) $(if $(filter aarch64,$(ARCH)),-mbranch-protection=standard)
HARDEN_LINK := -Wl,-z,relro,-z,now,-z,noexecstack

CONFIG := release
ifeq ($(DEVELOPER),1)
# gcc follows impossible null pointers through inlined calls: worth reading, but not an error.
WARNINGS += -Werror -Wno-error=null-dereference
CONFIG   := dev
endif

empty :=
space := $(empty) $(empty)
comma := ,
ifneq ($(SANITIZE),)
CONFIG   := $(CONFIG)-$(subst $(comma),-,$(SANITIZE))
OPTIMIZE := -O1 -g -fno-omit-frame-pointer
SAN      := -fsanitize=$(SANITIZE) -fno-sanitize-recover=all
# gcc's shared runtime takes a quarter of the time of emulated kernels: at every switch between threads it
# looks up its own.
SAN_LINK := $(if $(findstring clang,$(CC)),,$(if $(findstring address,$(SANITIZE)),-static-libasan))
HARDEN   :=
endif
ifeq ($(STATIC),1)
CONFIG      := $(CONFIG)-static
# libcrypto has functions for sockets, which nothing calls but the linker warns of.
STATIC_LINK := -static-pie -s $(if $(shell $(LD) --help | grep -e --no-warnings),-Wl$(comma)--no-warnings)
ifneq ($(filter-out 0,$(CUDA)),)
$(error STATIC=1: the CUDA backend needs shared libraries)
endif
endif
ifneq ($(strip $(EXTRA_CFLAGS)$(filter-out $(CROSS)gcc,$(CC))),)
CONFIG := $(CONFIG)-$(firstword $(shell printf '%s' '$(CC) $(EXTRA_CFLAGS)' | cksum))
endif
ifneq ($(CROSS),)
CONFIG  := $(CONFIG)-$(ARCH)
SYSROOT ?= $(CURDIR)/build/sysroot
# Debian's name of the processor.
SYSROOT_ARCH := $(patsubst aarch64,arm64,$(ARCH))
UNDER   ?= $(shell command -v qemu-$(ARCH) || echo qemu-$(ARCH)) -L $(SYSROOT)
UNDER   := $(UNDER)
endif

# nvcc compiles the kernels for the architectures in docs/backend-howto.md, and for the newest one it
# knows as PTX.  Without CUDA= nothing of this is probed.
NVCC       := $(or $(NVCC),$(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null))
CUDA_WHY   :=
HAVE_CUDA  :=
ifneq ($(filter-out 0,$(CUDA)),)
ifneq ($(SANITIZE),)
CUDA_WHY   := kernels cannot be instrumented
else ifeq ($(NVCC),)
CUDA_WHY   := nvcc is neither in PATH nor in /usr/local/cuda/bin
else
CUDA_WHY   := $(shell scripts/cuda_probe.sh $(NVCC) 2>&1)
HAVE_CUDA  := $(if $(CUDA_WHY),,1)
endif
ifneq ($(HAVE_CUDA),)
CONFIG     := $(CONFIG)-cuda
CUDA_HOME  := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDA_LIB   := $(firstword $(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/targets/x86_64-linux/lib \
                /usr/lib/x86_64-linux-gnu))
CUDA_PTX   := $(shell $(NVCC) --list-gpu-arch | sort -V | tail -n 1)
ifneq ($(CUDA_SM),)
CONFIG     := $(CONFIG)-sm$(subst $(space),-,$(strip $(CUDA_SM)))
CUDA_CODE  := $(foreach sm,$(CUDA_SM),-gencode arch=compute_$(sm),code=sm_$(sm))
else
CUDA_CODE  := -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90] \
              -gencode arch=$(CUDA_PTX),code=$(CUDA_PTX)
endif
NVCC_FLAGS := -std=c++20 -O3 -fmad=false -I. -DVPTQ_CUDA -Xcompiler -Wall,-fno-exceptions,-fno-rtti,-fPIC,-fvisibility=hidden \
              $(CUDA_CODE)
else ifeq ($(CUDA),auto)
$(info cuda  ✗ $(CUDA_WHY); building without it)
else
$(error CUDA=$(CUDA): $(CUDA_WHY))
endif
endif

# MPI by the name of its pkg-config module.
ifneq ($(filter-out 0,$(MPI)),)
MPI_PACKAGE := $(if $(filter 1,$(MPI)),$(shell for p in ompi-c ompi mpich; do pkg-config --exists $$p && echo $$p && break; done),$(MPI))
ifeq ($(shell pkg-config --exists '$(MPI_PACKAGE)' && echo yes),)
$(error MPI=$(MPI): pkg-config does not know $(or $(MPI_PACKAGE),Open MPI or MPICH); install libopenmpi-dev or libmpich-dev)
endif
PLAIN      := $(CONFIG)
CONFIG     := $(CONFIG)-$(MPI_PACKAGE)
MPI_CFLAGS := -DVPTQ_MPI $(patsubst -I%,-isystem %,$(shell pkg-config --cflags $(MPI_PACKAGE)))
MPI_LIBS   := $(shell pkg-config --libs $(MPI_PACKAGE))
endif

B   := build/$(CONFIG)
OBJ := build/$(or $(PLAIN),$(CONFIG))/obj
BIN := $(B)/bin

# Without OpenBLAS, which benchmarks load (lib/backend/cpu/blas.h).
PACKAGES  := jansson libpcre2-8 libzstd libxxhash libutf8proc libcrypto zlib
PKG       := $(if $(CROSS),PKG_CONFIG_SYSROOT_DIR=$(SYSROOT) PKG_CONFIG_LIBDIR=$(SYSROOT)/usr/lib/$(TARGET)/pkgconfig )pkg-config
MISSING   := $(shell for p in $(PACKAGES); do $(PKG) --exists $$p 2>/dev/null || echo $$p; done)
ifeq ($(MISSING),)
PKG_CFLAGS := $(patsubst -I%,-isystem %,$(shell $(PKG) --cflags $(PACKAGES)))
PKG_LIBS   := $(shell $(PKG) $(if $(STATIC_LINK),--static) --libs $(PACKAGES))
endif

# The objects of libvptq.a are those of libvptq.so: with hidden symbols -fPIC costs no speed.
ALL_CFLAGS = $(if $(CROSS),--sysroot=$(SYSROOT)) $(STANDARD) $(OPTIMIZE) -fopenmp -fPIC -fvisibility=hidden $(NUMERICS) $(HARDEN) $(WARNINGS) $(SAN) -I. $(PKG_CFLAGS) \
             $(if $(HAVE_CUDA),-DVPTQ_CUDA) $(EXTRA_CFLAGS)
LDLIBS     = $(HARDEN_LINK) -Wl,--as-needed $(PKG_LIBS) $(MPI_LIBS) $(if $(HAVE_CUDA),-L$(CUDA_LIB) -lcudart_static -lrt -lpthread -lstdc++) -lm -ldl

# Kernels without a GPU: the .cu files compiled as C++ against tests/emu/cuda_emu.h, without a C++
# run-time library.  CUDA's own names and enumerations do not pass -Wpedantic.
EMU_CXXFLAGS = $(if $(CROSS),--sysroot=$(SYSROOT)) -std=c++20 -fno-exceptions -fno-rtti -fno-threadsafe-statics $(OPTIMIZE) \
               -fPIC $(NUMERICS) -Wall -Wextra -Wshadow -Wdouble-promotion -Wcast-qual -Wundef \
               -Wno-missing-field-initializers -Wno-deprecated-enum-enum-conversion \
               -Wno-deprecated-enum-float-conversion -Wno-unknown-pragmas \
               $(filter -Werror,$(WARNINGS)) -I. \
               -fsanitize=alignment -fno-sanitize-recover=alignment \
               -include tests/emu/cuda_emu.h '-DVPTQ_CUDA_PORT=<tests/emu/port.h>' $(EXTRA_CFLAGS)
# Frames of kernels cannot be used after they return; looking for that takes a fifth of an op test.
ifneq ($(findstring address,$(SANITIZE)),)
EMU_CXXFLAGS += $(if $(findstring clang,$(CXX)),-fsanitize-address-use-after-return=never,--param asan-use-after-return=0)
endif

# --- sources -------------------------------------------------------------------------------

LIB_SRC  := $(sort $(wildcard lib/*.c lib/*/*.c lib/backend/*/*.c formats/*.c formats/*/*.c hessian/*.c kmeans/*.c))
ifeq ($(MPI_PACKAGE),)
LIB_SRC  := $(filter-out %_mpi.c,$(LIB_SRC))
endif
CLI_SRC  := $(sort $(wildcard cmd/cli/*.c))
EVAL_SRC := $(sort $(wildcard cmd/eval/*.c))
TOOL_SRC := $(sort $(wildcard cmd/vptq_*.c))
HELP_SRC := $(sort $(wildcard tests/support/*.c))
# Compiled once per SIMD level: lib/base/simd.h.
SIMD_SRC := $(filter %_simd.c,$(LIB_SRC))
SIMD_LEVELS := none $(if $(filter x86_64,$(ARCH)),avx2 avx512) $(if $(filter aarch64,$(ARCH)),neon)

TOOLS := $(TOOL_SRC:cmd/vptq_%.c=vptq-%)
UNIT_SRC := $(sort $(wildcard tests/unit/*/test_*.c))
UNIT  := $(patsubst test_%.c,%,$(notdir $(UNIT_SRC)))
OPS   := $(patsubst tests/ops/test_%.c,%,$(sort $(wildcard tests/ops/test_*.c)))
EMU   := $(patsubst tests/emu/test_%.cc,%,$(sort $(wildcard tests/emu/test_*.cc)))
CU_SRC := $(sort $(wildcard lib/backend/cuda/*.cu))
# A few tests of arithmetic, for scripts/check_arm.sh.
ifeq ($(TESTS),short)
UNIT_SRC := $(filter %/test_base_half.c %/test_base_rng.c %/test_base_file.c %/test_base_dir.c,$(UNIT_SRC))
OPS      := $(filter array_ops gather model nan ops,$(OPS))
EMU      :=
endif
FUZZ  := $(patsubst tests/fuzz/fuzz_%.c,%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))
BENCH := $(patsubst tests/bench/bench_%.c,%,$(sort $(wildcard tests/bench/bench_*.c)))
BENCH_SRC := $(filter-out tests/bench/bench_%,$(sort $(wildcard tests/bench/*.c)))

HAVE_TSAN := $(if $(findstring clang,$(CC)),,$(findstring /,$(shell $(CXX) \
               -print-file-name=libtsan.so)))
LIBVPTQ := $(B)/libvptq.a
# The version is the one of lib/vptq.h; the major number is that of the ABI.
VERSION := $(shell sed -n 's/^\#define VPTQ_VERSION "\([^"]*\)".*/\1/p' lib/vptq.h)
SONAME  := libvptq.so.$(firstword $(subst ., ,$(VERSION)))
SHARED  := $(B)/libvptq.so.$(VERSION)
LIBCLI  := $(B)/libcli.a
LIBTEST := $(B)/libvtest.a

LIBEMU  := $(B)/libemu.a

# In the plain build the emulator's tests run a second time under ThreadSanitizer.
EMU_BIN   := $(EMU:%=$(B)/tests/emu/test_%)
ifeq ($(SANITIZE)$(CROSS),)
EMU_BIN   += $(if $(HAVE_TSAN),$(EMU:%=$(B)/tests/emu/test_%_tsan))
endif
EMU_TOOLS := $(TOOLS:%=$(B)/tests/emu/%)
# What tests run: the tools, or scripts that run those of a cross build.
RUN_BIN   := $(if $(CROSS),$(B)/run/bin,$(BIN))
UNIT_BIN  := $(UNIT_SRC:%.c=$(B)/%) $(EMU_BIN)
OPS_BIN   := $(OPS:%=$(B)/tests/ops/test_%)
FUZZ_BIN  := $(FUZZ:%=$(B)/tests/fuzz/fuzz_%)
BENCH_BIN := $(BENCH:%=$(B)/tests/bench/bench_%)

# --- products ------------------------------------------------------------------------------

.PHONY: all lib tools static
all: tools
lib: $(LIBVPTQ) $(SHARED)

# README, demo and scripts call the tools of the plain build.
tools: $(TOOLS:%=$(BIN)/%) $(TOOLS:%=$(RUN_BIN)/%)
ifeq ($(SANITIZE)$(CROSS)$(STATIC),)
	$(Q)mkdir -p build/bin
	$(Q)for t in $(TOOLS); do cmp -s $(BIN)/$$t build/bin/$$t || \
		{ cp $(BIN)/$$t build/bin/$$t.new && mv build/bin/$$t.new build/bin/$$t; } || exit 1; done
endif

static:
	+$(Q)$(MAKE) STATIC=1 tools
	@echo "build/$(CONFIG:%-static=%)-static/bin has the static tools"

$(B)/probe: Makefile
	$(Q)mkdir -p $(@D)
ifneq ($(MISSING),)
	@echo "missing libraries: $(MISSING); $(if $(CROSS),make sysroot CROSS=$(CROSS) fetches,scripts/deps.sh installs) them" >&2; exit 1
endif
	$(Q)touch $@

SIMD_none   := -DVPTQ_SIMD_LEVEL=0
SIMD_avx2   := -DVPTQ_SIMD_LEVEL=1 -mavx2 -mfma -mf16c
SIMD_avx512 := -DVPTQ_SIMD_LEVEL=2 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c
SIMD_neon   := -DVPTQ_SIMD_LEVEL=3
ifneq ($(SANITIZE),)
# gcc takes up to 80 seconds for one of these.  The levels share their source, so undefined behaviour is
# looked for in plain C alone.
SIMD_none   += -g1
SIMD_avx2   += -g1 -fno-sanitize=undefined
SIMD_avx512 += -g1 -fno-sanitize=undefined
# Accumulators stay in registers: a quarter less time for a conversion, and half a second more to compile.
$(foreach level,avx2 avx512,$(OBJ)/lib/backend/cpu/math_simd.$(level).o): private OPTIMIZE := -O2 -g -fno-omit-frame-pointer
endif

define cc
	$(Q)mkdir -p $(@D)
	$(Q)$(if $(V),,echo "  CC    $<$(if $(1), $(1))";) $(CC) $(ALL_CFLAGS) $(if $(1),$(SIMD_$(1))) -MMD -MP -c $< -o $@
endef
$(OBJ)/formats/text_builtin.o: share/calibration.txt.zst
$(OBJ)/%.o: %.c | $(B)/probe
	$(call cc)
$(OBJ)/%.none.o: %.c | $(B)/probe
	$(call cc,none)
$(OBJ)/%.avx2.o: %.c | $(B)/probe
	$(call cc,avx2)
$(OBJ)/%.avx512.o: %.c | $(B)/probe
	$(call cc,avx512)
$(OBJ)/%.neon.o: %.c | $(B)/probe
	$(call cc,neon)

ifneq ($(STATIC_LINK),)
$(OBJ)/lib/backend/cpu/blas.o: private override EXTRA_CFLAGS += -DVPTQ_STATIC
endif

# A build with MPI has the objects of the plain one but for these.
OF_MPI   := $(if $(MPI_PACKAGE),.$(MPI_PACKAGE)).o
with_mpi  = $(patsubst %.o,%$(OF_MPI),$(filter %/comm.o %/comm_mpi.o %/version.o,$(1))) \
            $(filter-out %/comm.o %/comm_mpi.o %/version.o,$(1))
ifneq ($(MPI_PACKAGE),)
$(OBJ)/%$(OF_MPI): %.c | $(B)/probe
	$(call cc)
$(OBJ)/lib/base/comm$(OF_MPI) $(OBJ)/lib/base/comm_mpi$(OF_MPI): private override EXTRA_CFLAGS += $(MPI_CFLAGS)
endif

# What --version prints.
COMMIT   := $(shell scripts/commit.sh)
FEATURES := $(strip $(filter-out none,$(SIMD_LEVELS)) $(if $(HAVE_CUDA),cuda) $(MPI_PACKAGE) $(if $(STATIC_LINK),static) \
                    $(subst $(comma),$(space),$(SANITIZE)))
$(OBJ)/version: FORCE
	$(Q)mkdir -p $(@D)
	$(Q)echo '$(COMMIT)' | cmp -s - $@ || echo '$(COMMIT)' >$@
$(OBJ)/cmd/cli/version$(OF_MPI): $(OBJ)/version
$(OBJ)/cmd/cli/version$(OF_MPI): private override EXTRA_CFLAGS += -DVPTQ_COMMIT='"$(COMMIT)"' -DVPTQ_FEATURES='"$(or $(FEATURES),none)"'

EMU_PARTS := cuda_emu cuda_emu_stacks cuda_emu_device cuda_emu_memory cuda_emu_faults cuda_emu_streams cuda_emu_mma \
             cuda_emu_alignment cuda_emu_graphs
# Instrumented builds search the kernels for errors, not the emulator, which runs at every step of every thread.
$(EMU_PARTS:%=$(OBJ)/tests/emu/%.o): private SAN :=
$(EMU_PARTS:%=$(OBJ)/tests/emu/%.o): private OPTIMIZE := -O2 -g

define cxx
	$(Q)mkdir -p $(@D)
	$(Q)$(if $(V),,echo "  CXX   $<";) $(CXX) $(EMU_CXXFLAGS) $(1) -MMD -MP -c $< -o $@
endef
$(OBJ)/%.emu.o: %.cu | $(B)/probe
	$(call cxx,$(SAN) -x c++)
$(OBJ)/%.o: %.cc | $(B)/probe
	$(call cxx,$(SAN))
$(OBJ)/%.tsan.o: %.cc | $(B)/probe
	$(call cxx,-fsanitize=thread)

# Hides all names but one, so that a program can have both the cuda backend and this one.
# cuda_emu_library.cc stands in for library.cu, which loads cuBLAS and cuSOLVER.
$(OBJ)/backend_emu.o: $(patsubst %.cu,$(OBJ)/%.emu.o,$(filter-out %/library.cu,$(CU_SRC))) \
                      $(OBJ)/tests/emu/cuda_emu_library.o $(OBJ)/tests/emu/backend_emu.o
	$(Q)$(LD) -r -o $@ $^ && $(OBJCOPY) --wildcard --keep-global-symbol='vptq_backend_emu' $@

$(OBJ)/%.cuda.o: %.cu | $(B)/probe
	$(Q)mkdir -p $(@D)
	$(Q)$(if $(V),,echo "  NVCC  $<";) $(NVCC) $(NVCC_FLAGS) -MMD -MF $(@:.o=.d) -MP -c $< -o $@

$(LIBEMU): $(EMU_PARTS:%=$(OBJ)/tests/emu/%.o) $(OBJ)/backend_emu.o
LIB_OBJ := $(patsubst %.c,$(OBJ)/%.o,$(filter-out $(SIMD_SRC),$(LIB_SRC))) \
           $(foreach level,$(SIMD_LEVELS),$(SIMD_SRC:%.c=$(OBJ)/%.$(level).o))
$(LIBVPTQ): $(call with_mpi,$(LIB_OBJ)) $(if $(HAVE_CUDA),$(CU_SRC:%.cu=$(OBJ)/%.cuda.o))
$(LIBCLI): $(call with_mpi,$(CLI_SRC:%.c=$(OBJ)/%.o))
$(LIBTEST): $(HELP_SRC:%.c=$(OBJ)/%.o)
$(LIBVPTQ) $(LIBCLI) $(LIBTEST) $(LIBEMU): | $(B)/probe
	$(Q)$(if $(V),,echo "  AR    $@";) rm -f $@ && $(AR) qcsD $@ $^

define link
	$(Q)mkdir -p $(@D)
	$(Q)$(if $(V),,echo "  LINK  $@";) $(CC) $(ALL_CFLAGS) $(SAN_LINK) $(or $(STATIC_LINK),-pie) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LDLIBS)
endef

$(SHARED): $(LIBVPTQ)
	$(Q)$(if $(V),,echo "  LINK  $@";) $(CC) $(ALL_CFLAGS) -shared -Wl,-soname,$(SONAME) -Wl,--no-undefined \
		-o $@ -Wl,--whole-archive $< -Wl,--no-whole-archive $(LDLIBS)

$(BIN)/vptq-%: $(OBJ)/cmd/vptq_%.o $(LIBCLI) $(LIBVPTQ)
	$(link)
$(BIN)/vptq-eval $(B)/tests/emu/vptq-eval: $(EVAL_SRC:%.c=$(OBJ)/%.o)

$(B)/run/%: $(B)/%
	$(Q)mkdir -p $(@D)
	$(Q)printf '#!/bin/sh\nexec %s %s "$$@"\n' '$(UNDER)' '$(abspath $<)' >$@
	$(Q)chmod +x $@

# The tools with the emulated device, for end-to-end runs on it.
$(B)/tests/emu/vptq-%: $(OBJ)/cmd/vptq_%.o $(LIBCLI) $(OBJ)/backend_emu.o $(LIBEMU) $(LIBVPTQ)
	$(link)

$(B)/tests/unit/% $(B)/tests/ops/test_% $(B)/tests/emu/test_%: LDLIBS += -lcmocka
$(B)/tests/unit/%: $(OBJ)/tests/unit/%.o $(LIBTEST) $(LIBEMU) $(LIBCLI) $(LIBVPTQ)
	$(link)
$(B)/tests/ops/test_%: $(OBJ)/tests/ops/test_%.o $(LIBTEST) $(LIBEMU) $(LIBVPTQ)
	$(link)
$(B)/tests/emu/test_%: $(OBJ)/tests/emu/test_%.o $(LIBTEST) $(LIBEMU) $(LIBVPTQ)
	$(link)
$(B)/tests/emu/test_%_tsan: private SAN := -fsanitize=thread
$(B)/tests/emu/test_%_tsan: $(OBJ)/tests/emu/test_%.tsan.o $(LIBTEST) $(LIBEMU) $(LIBVPTQ)
	$(link)
# The tools and op tests of the GPU kit as one program (tests/kit/kit.c), which has the kernels once.
KIT          := $(B)/tests/kit/vptq-kit
# Without the op tests that only the emulator can run.
KIT_OPS      := $(filter-out faults pace,$(OPS))
KIT_PROGRAMS := $(TOOLS:%=cmd/%) $(KIT_OPS:%=tests/ops/test_%) tests/bench/bench_device tests/bench/bench_columns \
                tests/kit/synthetic
KIT_NAMES    := $(subst -,_,$(notdir $(KIT_PROGRAMS)))
$(OBJ)/kit/%.o: $(OBJ)/%.o
	$(Q)mkdir -p $(@D)
	$(Q)$(OBJCOPY) --redefine-sym main=kit_$(subst -,_,$(notdir $*)) $< $@
$(OBJ)/kit/cmd/vptq-%.o: $(OBJ)/cmd/vptq_%.o
	$(Q)mkdir -p $(@D)
	$(Q)$(OBJCOPY) --redefine-sym main=kit_vptq_$* $< $@
$(OBJ)/tests/kit/names: FORCE
	$(Q)mkdir -p $(@D)
	$(Q)echo '$(KIT_NAMES)' | cmp -s - $@ || echo '$(KIT_NAMES)' >$@
.PHONY: FORCE
$(OBJ)/tests/kit/kit.o: $(OBJ)/tests/kit/names
$(OBJ)/tests/kit/kit.o: private override EXTRA_CFLAGS += -DKIT_PROGRAMS='$(foreach name,$(KIT_NAMES),PROGRAM($(name)))'
$(KIT): LDLIBS += -lcmocka
$(KIT): $(OBJ)/tests/kit/kit.o $(KIT_PROGRAMS:%=$(OBJ)/kit/%.o) $(BENCH_SRC:%.c=$(OBJ)/%.o) $(EVAL_SRC:%.c=$(OBJ)/%.o) \
        $(LIBTEST) $(LIBCLI) $(LIBEMU) $(LIBVPTQ)
	$(link)

# Linked with libFuzzer's main, or with the driver that runs a corpus.
FUZZ_MAIN := $(if $(LIBFUZZER),,$(OBJ)/tests/fuzz/regression_driver.o)
# LIBFUZZER: 1, or the flags that link another engine's main.
$(B)/tests/fuzz/fuzz_%: LDLIBS += $(if $(LIBFUZZER),$(if $(filter 1,$(LIBFUZZER)),-fsanitize=fuzzer,$(LIBFUZZER)))
$(B)/tests/fuzz/fuzz_%: $(OBJ)/tests/fuzz/fuzz_%.o $(FUZZ_MAIN) $(LIBVPTQ)
	$(link)
$(B)/tests/interop/%: $(OBJ)/tests/interop/%.o $(LIBVPTQ)
	$(link)
# Preloaded by command-line tests; never instrumented.
FAULTS := $(B)/tests/faults.so
$(FAULTS): tests/faults/faults.c | $(B)/probe
	$(Q)mkdir -p $(@D)
	$(Q)$(if $(V),,echo "  CC    $@";) $(CC) $(if $(CROSS),--sysroot=$(SYSROOT)) $(STANDARD) $(WARNINGS) -O1 -fPIC -shared -o $@ $< -ldl

$(B)/tests/bench/bench_%: $(OBJ)/tests/bench/bench_%.o $(BENCH_SRC:%.c=$(OBJ)/%.o) $(LIBVPTQ)
	$(link)

-include $(shell find $(OBJ) -name '*.d' 2>/dev/null)
.SECONDARY:

# --- tests ---------------------------------------------------------------------------------

.PHONY: $(UNIT:%=test-%) $(OPS:%=op-%) $(EMU:%=test-%) unit ops check-cli fuzz-check fuzz check interop bench demo \
        test-programs check-hostile check-ranks run-unit run-ops run-cli run-hostile run-fuzz

# Runs one program; T='PATTERN' selects tests.
define unit_target
test-$(patsubst test_%,%,$(notdir $(1))): $(1)
	$(Q)$(UNDER) $$< $$(if $$(T),-t '$$(T)')
endef
$(foreach program,$(filter $(B)/tests/unit/%,$(UNIT_BIN)),$(eval $(call unit_target,$(program))))
$(EMU:%=test-%): test-%: $(B)/tests/emu/test_% $(if $(filter %_tsan,$(EMU_BIN)),$(B)/tests/emu/test_%_tsan)
	$(Q)for t in $^; do $(UNDER) $$t $(if $(T),-t '$(T)') || exit 1; done
$(OPS:%=op-%): op-%: $(B)/tests/ops/test_%
	$(Q)$(UNDER) $< $(if $(T),-t '$(T)')

# The script of the kit is tested with the plain build only: its programs are those of other tests.
test-programs: $(UNIT_BIN) $(OPS_BIN) $(FAULTS) $(EMU_TOOLS) $(if $(SANITIZE),$(FUZZ_BIN),$(KIT))

# The run-* targets build nothing: a program that does not compile counts as a failed test.
unit: $(UNIT_BIN) run-unit
ops: $(OPS_BIN) run-ops
check-cli: tools $(FAULTS) run-cli
# Tests with several processes, which need a build with MPI.
# Launchers wait for a second or two before they end a failed run, so more tests run side by side.
check-ranks: tools $(FAULTS)
	+$(Q)JOBS=$${JOBS:-$$((2 * $$(nproc)))} $(MAKE) -s run-cli T='ranks/*'
fuzz-check: $(FUZZ_BIN) run-fuzz
check-hostile: tools run-hostile
run-unit run-ops run-cli: export UNDER := $(UNDER)
run-unit: | $(if $(filter unit,$(MAKECMDGOALS)),$(UNIT_BIN))
	$(Q)scripts/run_tests.sh $(UNIT_BIN)
# Emulated tensor cores round like Hopper's in instrumented builds, like Ampere's (the default) in plain ones.
run-ops: | $(if $(filter ops,$(MAKECMDGOALS)),$(OPS_BIN))
	$(Q)$(if $(SANITIZE),VPTQ_EMU_MMA=$${VPTQ_EMU_MMA-hopper} )scripts/run_tests.sh $(OPS_BIN)
run-cli: | $(if $(filter check-cli,$(MAKECMDGOALS)),tools $(FAULTS) $(EMU_TOOLS) $(KIT))
	$(Q)set -f; FAULTS=$(abspath $(FAULTS)) $(if $(CROSS),,VPTQ_DEVICE_BIN=$(abspath $(B))/tests/emu )\
		scripts/run_cli_tests.sh --bin $(RUN_BIN) $(T)
run-hostile: | $(if $(filter check-hostile,$(MAKECMDGOALS)),tools)
	$(Q)set -f; if command -v python3 >/dev/null; then python3 tests/hostile/run.py --bin $(BIN) $(T); \
		else echo "skip hostile: python3 is not installed"; echo "0 0 1 hostile" >>"$${TALLY:-/dev/null}"; fi
run-fuzz: | $(if $(filter fuzz-check,$(MAKECMDGOALS)),$(FUZZ_BIN))
	$(Q)scripts/run_fuzz.sh $(FUZZ_BIN)

# Fuzzes with clang's libFuzzer, T seconds or RUNS executions per target, whichever comes first;
# FUZZ='gguf npy' selects targets; STATE=DIR keeps corpora and counts, so that a later run continues.
LIBFUZZER_MAKE = $(MAKE) CC=clang SANITIZE=fuzzer-no-link,address,undefined LIBFUZZER=1
fuzz:
	+$(Q)$(LIBFUZZER_MAKE) run-libfuzzer
fuzz-programs:
	+$(Q)$(LIBFUZZER_MAKE) libfuzzer-programs
.PHONY: fuzz-programs libfuzzer-programs run-libfuzzer
libfuzzer-programs: $(FUZZ_BIN)
run-libfuzzer: $(FUZZ_BIN)
	$(Q)STATE=$(STATE) scripts/fuzz.sh $(or $(T),$(if $(RUNS),0,60)) $(or $(RUNS),0) $(FUZZ_BIN)
# All fuzz programs copied to FUZZ_OUT, for tests/fuzz/build.sh.
.PHONY: fuzz-oss
fuzz-oss: $(FUZZ_BIN)
	$(Q)cp $^ $(FUZZ_OUT)

# Runs our GGUF files with llama.cpp's Python package (PyPI); not part of check.
.PHONY: interop-gguf
interop-gguf: tools
	$(Q)BIN=$(abspath $(BIN)) scripts/interop_gguf.sh

# Compares choice tasks with lm-evaluation-harness (PyPI); not part of check.
.PHONY: interop-tasks
interop-tasks: tools
	$(Q)BIN=$(abspath $(BIN)) scripts/interop_tasks.sh

# Compares AWQ, SmoothQuant and SparseGPT with llm-compressor (PyPI); not part of check.
.PHONY: interop-compressor
interop-compressor: tools
	$(Q)BIN=$(abspath $(BIN)) scripts/interop_compressor.sh $(T)

# Lines of formats/ that the tests reach (MODULE=lib/model selects another module), counted even
# if a test fails.
coverage:
	+$(Q)$(MAKE) EXTRA_CFLAGS='--coverage -O1' run-coverage
.PHONY: coverage run-coverage
run-coverage: tools $(UNIT_BIN) $(FUZZ_BIN)
	$(Q)find $(B) -name '*.gcda' -delete
	-$(Q)scripts/run_tests.sh $(UNIT_BIN)
	-$(Q)scripts/run_cli_tests.sh --bin $(BIN)
	-$(Q)scripts/run_fuzz.sh $(FUZZ_BIN)
	$(Q)scripts/coverage.sh $(B) $(or $(MODULE),formats)

# For a machine with a GPU; the kit is for one that has only the driver.
.PHONY: gpu-test gpu-bench gpu-kit run-gpu-test run-gpu-bench run-gpu-kit
gpu-test gpu-bench:
	+$(Q)$(MAKE) CUDA=1 run-$@
gpu-kit:
	+$(Q)$(MAKE) CUDA=1 CUDA_SM='$(or $(CUDA_SM),90)' run-$@
run-gpu-test: tools $(KIT_OPS:%=$(B)/tests/ops/test_%)
	$(Q)BIN=$(abspath $(BIN)) scripts/gpu_test.sh $(KIT_OPS:%=$(B)/tests/ops/test_%)
run-gpu-bench: tools
	$(Q)BIN=$(abspath $(BIN)) scripts/device_bench.sh cuda $(T)
run-gpu-kit: $(KIT)
	$(Q)scripts/gpu_kit.sh build/gpu-kit $(KIT) $(notdir $(KIT_PROGRAMS))

.PHONY: cpu-bench
cpu-bench: tools
	$(Q)BIN=$(abspath $(BIN)) scripts/device_bench.sh cpu $(T)

check:
	+$(Q)MAKE='$(MAKE)' scripts/check.sh

# The tests for ARM under qemu-user; check runs a short part of them.
.PHONY: check-arm sysroot
check-arm:
	+$(Q)MAKE='$(MAKE)' scripts/check_arm.sh
# Compares the tools of a cross build with those in build/bin.
.PHONY: run-compare
run-compare: tools
	$(Q)scripts/compare_builds.sh --short build/bin $(RUN_BIN)
sysroot:
	$(Q)scripts/sysroot.sh $(SYSROOT_ARCH) $(SYSROOT)

# The tests that check runs in part, whole: about a quarter of an hour.
.PHONY: check-long
check-long:
	+$(Q)VPTQ_LONG=1 $(MAKE) check-cli T='common/limits'
	+$(Q)VPTQ_LONG=1 TEST_TIMEOUT=3600 $(MAKE) check-cli T='common/bit_rot'
	+$(Q)VPTQ_SIGNAL_MOMENTS=100 TEST_TIMEOUT=3600 $(MAKE) check-cli T='common/signals'
	+$(Q)pkg-config --exists ompi-c || exit 0; VPTQ_RANK_MOMENTS=20 TEST_TIMEOUT=3600 $(MAKE) MPI=ompi-c check-ranks

# Needs packages from PyPI; not part of check.
interop: tools $(B)/tests/interop/logits
	$(Q)BIN=$(abspath $(BIN)) LOGITS=$(abspath $(B))/tests/interop/logits scripts/interop.sh $(if $(T),'$(T)')

bench: tools $(BENCH_BIN)
	$(Q)for b in $(BENCH_BIN); do echo "== $$(basename $$b)"; $$b || exit 1; done
	$(Q)for b in $(sort $(wildcard tests/bench/bench_*.sh)); do echo "== $$(basename $$b)"; \
		BIN=$(abspath $(BIN)) $$b || exit 1; done

# Installs the packages before starting a make that finds them.
demo:
	$(Q)scripts/deps.sh build $(if $(and $(MODEL),$(TEXT)),,demo)
	+$(Q)$(MAKE) tools
	$(Q)scripts/demo.sh

# --- source checks -------------------------------------------------------------------------

.PHONY: format format-check lint shellcheck style layers portable symbols cuda-check
C_FILES  := $(sort $(shell find lib formats hessian kmeans cmd tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cc' 2>/dev/null))
# gcc's analyzer finds double frees, uses after a free and lost descriptors.  It does not know that vptq_fail
# returns its status, and so takes failures for successes without a result: the kinds left out are of that sort.
ANALYZER_FLAGS = $(STANDARD) -O1 -fopenmp -I. $(PKG_CFLAGS) -mavx2 -mfma -mf16c -fanalyzer -Werror \
                 -Wno-analyzer-use-of-uninitialized-value -Wno-analyzer-null-dereference -Wno-analyzer-null-argument \
                 -Wno-analyzer-malloc-leak
LINT_SRC := $(LIB_SRC) $(CLI_SRC) $(EVAL_SRC) $(TOOL_SRC)
SH_FILES := $(sort $(wildcard scripts/*.sh tests/cli/*.sh tests/cli/*/*.sh tests/bench/*.sh packaging/*.sh examples/*.sh examples/*/*.sh) \
            .ci/run)

format:
	$(Q)$(CLANG_FORMAT) -i $(C_FILES)
format-check:
	$(Q)$(CLANG_FORMAT) --dry-run -Werror $(C_FILES)
shellcheck:
	$(Q)shellcheck -x -s bash $(SH_FILES)
# cppcheck does not follow arrays through helper functions: gcc and the sanitizers check those.
# ANALYZE=deep follows paths through more calls, which takes ten times as long.
ANALYZE    ?= shallow
TIDY_FLAGS := $(STANDARD) -I. $(PKG_CFLAGS) -mavx2 -mfma -mf16c -Xclang -analyzer-config -Xclang mode=$(ANALYZE)
lint: shellcheck
	$(Q)if command -v cppcheck >/dev/null; then cppcheck -q -j $$(nproc) --std=c11 --inline-suppr -I. -D__GNUC__ \
		--enable=warning,portability --suppress=missingIncludeSystem --suppress=uninitvar --suppress=legacyUninitvar --suppress=arrayIndexThenCheck \
		--error-exitcode=1 \
		lib formats hessian kmeans cmd; else echo "cppcheck is not installed"; fi
	$(Q)if command -v clang-tidy >/dev/null; then printf '%s\n' $(filter-out %_avx512.c,$(LINT_SRC)) | \
		xargs -n 8 -P $$(nproc) sh -c 'clang-tidy --quiet "$$@" -- $(TIDY_FLAGS) 2>/dev/null' clang-tidy; \
		else echo "clang-tidy is not installed"; fi
	$(Q)printf '%s\n' $(LINT_SRC) | xargs -n 4 -P $$(nproc) sh -c 'for f; do gcc $(ANALYZER_FLAGS) -c $$f -o /dev/null || exit 255; done' gcc
style:
	$(Q)scripts/check_style.py --self-test
	$(Q)scripts/check_style.py
portable:
	$(Q)CC='$(CC)' FLAGS='$(ALL_CFLAGS)' scripts/check_portable.sh
layers:
	$(Q)scripts/check_layers.sh --self-test
	$(Q)scripts/check_layers.sh
cuda-check:
	$(Q)NVCC=$(NVCC) OUT=build/cuda scripts/cuda_check.sh $(CU_SRC)
symbols: $(LIBVPTQ) $(SHARED) $(BIN)/vptq-eval
	$(Q)scripts/check_symbols.sh $(LIBVPTQ) $(SHARED) lib/vptq.h $(if $(SANITIZE),,$(BIN)/vptq-eval)

# --- installing ----------------------------------------------------------------------------

.PHONY: install install-tools install-lib uninstall
BINDIR   := $(DESTDIR)$(PREFIX)/bin
TO_LIB   := $(DESTDIR)$(LIBDIR)
INCDIR   := $(DESTDIR)$(PREFIX)/include
PCDIR    := $(TO_LIB)/pkgconfig
SHAREDIR := $(DESTDIR)$(PREFIX)/share
MANDIR   := $(SHAREDIR)/man/man1
PAGES  := $(sort $(wildcard docs/man/*.1.scd))
SCDOC  := $(shell command -v scdoc 2>/dev/null)

# scdoc builds the manual pages; without it there are none.
.PHONY: man
man: $(PAGES:docs/man/%.scd=$(B)/man/%)
$(B)/man/%: docs/man/%.scd
	$(Q)mkdir -p $(@D)
	$(Q)scdoc <$< >$@

define PC_FILE
prefix=$(PREFIX)
libdir=$(patsubst $(PREFIX)/%,$${prefix}/%,$(LIBDIR))
includedir=$${prefix}/include

Name: vptq
Description: Vector post-training quantization of language models
Version: $(VERSION)
Requires.private: $(PACKAGES)
Libs: -L$${libdir} -lvptq
Libs.private: -fopenmp -lm -ldl$(if $(HAVE_CUDA), -lcudart_static -lrt -lpthread -lstdc++)
Cflags: -I$${includedir}
endef

install: install-tools install-lib
install-lib: lib
	$(Q)mkdir -p $(TO_LIB) $(INCDIR) $(PCDIR)
	$(Q)install -m 644 $(LIBVPTQ) $(TO_LIB)/
	$(Q)install -m 755 $(SHARED) $(TO_LIB)/
	$(Q)ln -sf $(notdir $(SHARED)) $(TO_LIB)/$(SONAME)
	$(Q)ln -sf $(SONAME) $(TO_LIB)/libvptq.so
	$(Q)install -m 644 lib/vptq.h $(INCDIR)/
	$(file >$(B)/vptq.pc,$(PC_FILE))
	$(Q)install -m 644 $(B)/vptq.pc $(PCDIR)/
install-tools: tools completions $(if $(SCDOC),man)
	$(Q)mkdir -p $(BINDIR)
	$(Q)install -m 755 $(TOOLS:%=$(BIN)/%) $(BINDIR)/
	$(Q)for f in $(COMPLETIONS); do install -D -m 644 $(B)/share/$$f $(SHAREDIR)/$$f || exit 1; done
ifneq ($(SCDOC),)
	$(Q)mkdir -p $(MANDIR)
	$(Q)install -m 644 $(PAGES:docs/man/%.scd=$(B)/man/%) $(MANDIR)/
else
	@echo "scdoc is not installed: no manual pages" >&2
endif
uninstall:
	$(Q)rm -f $(TOOLS:%=$(BINDIR)/%) $(PAGES:docs/man/%.scd=$(MANDIR)/%) $(INCDIR)/vptq.h \
		$(PCDIR)/vptq.pc $(TO_LIB)/libvptq.a $(TO_LIB)/libvptq.so $(TO_LIB)/$(SONAME) \
		$(TO_LIB)/$(notdir $(SHARED)) $(COMPLETIONS:%=$(SHAREDIR)/%)

# --- release -------------------------------------------------------------------------------

include packaging/release.mk

# --- about ---------------------------------------------------------------------------------

.PHONY: help info clean
help:
	@printf '%s\n' \
	'make               the four tools, in build/bin' \
	'make lib           build/CONFIG/libvptq.a and libvptq.so' \
	'make static        tools that need no shared library, in build/CONFIG-static/bin' \
	'make demo          convert a real model end to end (TEXT=, MODEL= override)' \
	'make check         every test and check, plain and sanitized; ends with a count' \
	'make check-long    the tests that check runs in part, whole' \
	'make check-arm     the tests for ARM, cross-compiled and under qemu-user' \
	'make unit          unit tests             make test-NAME   tests/unit/*/test_NAME.c' \
	'make test-emu      the CUDA emulator, plain and with ThreadSanitizer (also test-emu_memory, test-emu_mma)' \
	'make ops           backend op tests       make op-NAME     tests/ops/test_NAME.c' \
	'make check-cli     command-line tests (with T=PATTERN: some)' \
	'make check-ranks MPI=1  tests with several processes that mpirun starts' \
	'make check-hostile files that are meant to harm (with T=KIND/PATTERN: some)' \
	'make fuzz-check    fuzz targets over their corpora' \
	'make fuzz T=60     each fuzz target for 60 seconds with libFuzzer (clang); FUZZ=NAME..: some' \
	'make fuzz RUNS=N   each fuzz target for N executions, and T seconds at most if T is given' \
	'make fuzz-programs libFuzzer programs only' \
	'make coverage      lines of formats/ that the tests reach (gcovr)' \
	'make interop       against the vptq package and transformers, in build/interop (T=PATTERN)' \
	'make interop-compressor AWQ, SmoothQuant and SparseGPT against llm-compressor (PyPI; T=METHODS)' \
	'make interop-gguf  the demo model as a GGUF file, run by llama.cpp (PyPI; builds for minutes)' \
	'make bench         benchmarks' \
	'make format        clang-format           make format-check' \
	'make lint          shellcheck, cppcheck, clang-tidy' \
	'make style         words that docs/style.md rules out     make layers      make symbols' \
	'make cuda-check    every CUDA kernel for every architecture, against its budget (nvcc)' \
	'make gpu-test      the CUDA backend on a GPU: op tests, compute-sanitizer, whole runs' \
	'make gpu-bench     its figures, into docs/results/DEVICE (T=STEP..)' \
	'make cpu-bench     the same of the processor (T=STEP..)' \
	'make gpu-kit       four calls for a machine with nothing but a driver, in build/gpu-kit' \
	'make man           manual pages, in build/CONFIG/man (scdoc)' \
	'make completions   for bash, zsh and fish, in build/CONFIG/share' \
	'make dist          the source archive of HEAD, in build/packages' \
	'make wheel         the static tools as a Python package, in build/packages' \
	'make deb           Debian packages of the last commit, in build/packages (scripts/deps.sh package)' \
	'make docs          manual pages and documents as HTML, in build/docs (cmark-gfm, mandoc)' \
	'make sbom          what static tools consist of (SPDX), in build/CONFIG/vptq.spdx.json' \
	'make install       to $$(DESTDIR)$$(PREFIX) = $(DESTDIR)$(PREFIX)    make uninstall' \
	'make info          compiler and libraries found here' \
	'make clean         remove build/' \
	'' \
	'DEVELOPER=1 SANITIZE=address,undefined CUDA=auto EXTRA_CFLAGS=... V=1 CC=clang CROSS=aarch64-linux-gnu-'

# Prints whether a tool is found, or the package that has it.
define probe
	@if $(1) >/dev/null 2>&1; then printf '  \342\234\223 %s\n' '$(2)'; \
		else printf '  \342\234\227 %-12s install %s\n' '$(2)' '$(3)'; fi
endef

info:
	@echo "configuration $(CONFIG), objects in $(OBJ)"
	@echo "compiler      $$($(CC) --version 2>/dev/null | head -n 1 || echo 'none')"
	@echo "flags         $(STANDARD) $(OPTIMIZE) -fopenmp $(NUMERICS) $(SAN) $(EXTRA_CFLAGS)"
	@echo "required:"
	$(call probe,command -v $(CC),$(CC),gcc)
	$(call probe,$(PKG) --exists jansson,jansson,libjansson-dev)
	$(call probe,$(PKG) --exists libpcre2-8,pcre2,libpcre2-dev)
	$(call probe,$(PKG) --exists libzstd,zstd,libzstd-dev)
	$(call probe,$(PKG) --exists libxxhash,xxhash,libxxhash-dev)
	$(call probe,$(PKG) --exists libutf8proc,utf8proc,libutf8proc-dev)
	$(call probe,$(PKG) --exists libcrypto,libcrypto,libssl-dev)
	$(call probe,$(PKG) --exists zlib,zlib,zlib1g-dev)
	@echo "cuda          $(if $(HAVE_CUDA),$(NVCC),$(or $(CUDA_WHY),not requested (CUDA=auto)))"
	@echo "for the tests:"
	$(call probe,PATH="$$PATH:/sbin" ldconfig -p | grep -q libopenblas.so.0,openblas,libopenblas0-openmp)
	$(call probe,$(PKG) --exists cmocka,cmocka,libcmocka-dev)
	$(call probe,command -v $(CLANG_FORMAT),clang-format,clang-format)
	$(call probe,command -v shellcheck,shellcheck,shellcheck)
	@echo "optional:"
	$(call probe,command -v cppcheck,cppcheck,cppcheck)
	$(call probe,command -v clang,clang,clang)
	$(call probe,command -v scdoc,scdoc,scdoc)

clean:
	$(Q)rm -rf build
