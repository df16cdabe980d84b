# VPTQ: vector post-training quantization of language models.  `make help` lists the targets.
#
# Knobs, all optional:
#   DEVELOPER=1                   warnings are errors
#   SANITIZE=address,undefined    instrumented build, kept apart from the plain one
#   EXTRA_CFLAGS=...              added to the compiler's flags (a configuration of its own)
#   V=1                           show the commands
#   CC, AR, CLANG_FORMAT          the tools
#   PREFIX, DESTDIR               where `install` puts things
#   TEXT=, MODEL=                 taken by `make demo`
#
# Objects live in build/CONFIG, where CONFIG follows from the flags, so that a change of flags
# never mixes objects.  The four tools of the plain build are also in build/bin.

CC           ?= cc
AR           ?= ar
CLANG_FORMAT ?= clang-format
PREFIX       ?= /usr/local
DESTDIR      ?=

ifeq ($(origin CC),default)
CC := gcc
endif

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules

Q := @
ifeq ($(V),1)
Q :=
endif

# --- configuration -------------------------------------------------------------------------

WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion \
            -Wdouble-promotion -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wcast-qual \
            -Wpointer-arith -Wwrite-strings -Wundef -Wformat=2 -Wnull-dereference -fno-common
STANDARD := -std=c11 -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE
# Contraction would let the compiler fuse a*b+c where it likes: other bits for other compilers.
NUMERICS := -ffp-contract=off
OPTIMIZE := -O3 -g

CONFIG := release
ifeq ($(DEVELOPER),1)
# gcc follows impossible null pointers through inlined calls: a hint worth reading, no error.
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
endif
ifneq ($(strip $(EXTRA_CFLAGS)$(filter-out gcc,$(CC))),)
CONFIG := $(CONFIG)-$(firstword $(shell printf '%s' '$(CC) $(EXTRA_CFLAGS)' | cksum))
endif

B   := build/$(CONFIG)
OBJ := $(B)/obj
BIN := $(B)/bin

# OpenBLAS is not among them: the cpu backend loads it when it is opened (lib/backend/cpu_blas.h).
PACKAGES  := jansson libpcre2-8 libzstd libxxhash libutf8proc
PKG       := pkg-config
MISSING   := $(shell for p in $(PACKAGES); do $(PKG) --exists $$p 2>/dev/null || echo $$p; done)
ifeq ($(MISSING),)
PKG_CFLAGS := $(patsubst -I%,-isystem %,$(shell $(PKG) --cflags $(PACKAGES)))
PKG_LIBS   := $(shell $(PKG) --libs $(PACKAGES))
endif

ALL_CFLAGS = $(STANDARD) $(OPTIMIZE) -fopenmp $(NUMERICS) $(WARNINGS) $(SAN) -I. $(PKG_CFLAGS) \
             $(EXTRA_CFLAGS)
LDLIBS     = $(PKG_LIBS) -lm -ldl

# --- sources -------------------------------------------------------------------------------

ROOMS    := lib lib/base lib/backend lib/model lib/quant lib/tune lib/eval formats hessian kmeans
LIB_SRC  := $(sort $(wildcard $(ROOMS:%=%/*.c)))
CLI_SRC  := $(sort $(wildcard cmd/cli*.c))
TOOL_SRC := $(sort $(wildcard cmd/vptq_*.c))
HELP_SRC := $(sort $(wildcard tests/*.c))
ifneq ($(shell uname -m),x86_64)
LIB_SRC := $(filter-out %_avx2.c %_avx512.c,$(LIB_SRC))
endif

TOOLS := $(TOOL_SRC:cmd/vptq_%.c=vptq-%)
UNIT  := $(patsubst tests/unit/test_%.c,%,$(sort $(wildcard tests/unit/test_*.c)))
OPS   := $(patsubst tests/ops/test_%.c,%,$(sort $(wildcard tests/ops/test_*.c)))
FUZZ  := $(patsubst tests/fuzz/fuzz_%.c,%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))
BENCH := $(patsubst tests/bench/bench_%.c,%,$(sort $(wildcard tests/bench/bench_*.c)))

LIBVPTQ := $(B)/libvptq.a
LIBCLI  := $(B)/libcli.a
LIBTEST := $(B)/libvtest.a

UNIT_BIN  := $(UNIT:%=$(B)/tests/unit/test_%)
OPS_BIN   := $(OPS:%=$(B)/tests/ops/test_%)
BENCH_BIN := $(BENCH:%=$(B)/tests/bench/bench_%)

# --- products ------------------------------------------------------------------------------

.PHONY: all lib tools
all: tools
lib: $(LIBVPTQ)

# The plain build's tools are what README, demo and scripts call.
tools: $(TOOLS:%=$(BIN)/%)
ifeq ($(SANITIZE),)
	$(Q)mkdir -p build/bin
	$(Q)for t in $(TOOLS); do cmp -s $(BIN)/$$t build/bin/$$t || \
		{ cp $(BIN)/$$t build/bin/$$t.new && mv build/bin/$$t.new build/bin/$$t; } || exit 1; done
endif

$(B)/probe: Makefile
	$(Q)mkdir -p $(@D)
ifneq ($(MISSING),)
	@echo "missing libraries: $(MISSING); scripts/deps.sh installs them" >&2; exit 1
endif
	$(Q)touch $@

$(OBJ)/%_avx2.o: SIMD := -mavx2 -mfma -mf16c
$(OBJ)/%_avx512.o: SIMD := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c

$(OBJ)/%.o: %.c | $(B)/probe
	$(Q)mkdir -p $(@D)
	$(Q)$(if $(V),,echo "  CC    $<";) $(CC) $(ALL_CFLAGS) $(SIMD) -MMD -MP -c $< -o $@

$(LIBVPTQ): $(LIB_SRC:%.c=$(OBJ)/%.o)
$(LIBCLI): $(CLI_SRC:%.c=$(OBJ)/%.o)
$(LIBTEST): $(HELP_SRC:%.c=$(OBJ)/%.o)
$(LIBVPTQ) $(LIBCLI) $(LIBTEST): | $(B)/probe
	$(Q)$(if $(V),,echo "  AR    $@";) rm -f $@ && $(AR) rcsD $@ $^

define link
	$(Q)mkdir -p $(@D)
	$(Q)$(if $(V),,echo "  LINK  $@";) $(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)
endef

$(BIN)/vptq-%: $(OBJ)/cmd/vptq_%.o $(LIBCLI) $(LIBVPTQ)
	$(link)

$(B)/tests/unit/test_% $(B)/tests/ops/test_%: LDLIBS += -lcmocka
$(B)/tests/unit/test_%: $(OBJ)/tests/unit/test_%.o $(LIBTEST) $(LIBCLI) $(LIBVPTQ)
	$(link)
$(B)/tests/ops/test_%: $(OBJ)/tests/ops/test_%.o $(LIBTEST) $(LIBVPTQ)
	$(link)
$(B)/tests/bench/bench_%: $(OBJ)/tests/bench/bench_%.o $(LIBVPTQ)
	$(link)

-include $(shell find $(OBJ) -name '*.d' 2>/dev/null)
.SECONDARY:

# --- tests ---------------------------------------------------------------------------------

.PHONY: $(UNIT:%=test-%) $(OPS:%=op-%) unit ops
$(UNIT:%=test-%): test-%: $(B)/tests/unit/test_%
	$(Q)$< $(if $(T),-t '$(T)')
$(OPS:%=op-%): op-%: $(B)/tests/ops/test_%
	$(Q)$< $(if $(T),-t '$(T)')
unit: $(UNIT_BIN)
	$(Q)rc=0; for t in $(UNIT_BIN); do $$t || rc=1; done; exit $$rc
ops: $(OPS_BIN)
	$(Q)rc=0; for t in $(OPS_BIN); do $$t || rc=1; done; exit $$rc

.PHONY: format clean
format:
	$(Q)git ls-files '*.c' '*.h' | xargs $(CLANG_FORMAT) -i
clean:
	$(Q)rm -rf build
