#!/usr/bin/env bash
# Checks that this nvcc compiles a kernel with the installed host compiler.  Prints the reason in
# one line if it does not, otherwise nothing.
# usage: cuda_probe.sh NVCC
set -u

nvcc=${1:?usage: cuda_probe.sh NVCC}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
echo '#include <cublas_v2.h>
#include <cuda_fp16.h>
#include <cusolverDn.h>
__global__ void probe(__half *p) { *p = __float2half_rn(1); }' >"$dir/probe.cu"
if ! "$nvcc" -std=c++20 -arch=sm_80 -c "$dir/probe.cu" -o "$dir/probe.o" >"$dir/log" 2>&1; then
    echo "$nvcc does not compile: $(grep -m 1 -i 'error\|unsupported' "$dir/log" || head -n 1 "$dir/log")"
fi
