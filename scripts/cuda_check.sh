#!/usr/bin/env bash
# Compiles every kernel for sm_80, sm_90 and the newest architecture, and compares the report of ptxas with the
# budgets in comments next to the kernels:
#     /* budget: NAME REGISTERS registers */      (for all instances of a template)
#     /* budget: NAME REGISTERS registers, no dynamic shared memory */
#     /* budget: NAME REGISTERS registers, BYTES bytes of static shared memory */
# Fails on register spills and stack frames, on a kernel without a budget or over it, and, unless it is
# launched without dynamic shared memory, on more static one than its budget or 24 KiB (PORT_MAX_STATIC of port.h).
# Without nvcc, prints a line that says so and exits with 0.
# usage: cuda_check.sh FILE.cu..      NVCC= the compiler, OUT= a folder for its output
set -u

nvcc=${NVCC:-nvcc}
command -v "$nvcc" >/dev/null || nvcc=/usr/local/cuda/bin/nvcc
if ! command -v "$nvcc" >/dev/null; then
    echo "skip cuda-check: nvcc is not installed"
    exit 0
fi
out=${OUT:-$(mktemp -d)}
mkdir -p "$out"
if [ $# -gt 1 ]; then # one process for each file
    printf '%s\0' "$@" | OUT=$out xargs -0 -n 1 -P "$(nproc)" "$0"
    exit
fi
newest=$("$nvcc" --list-gpu-arch | sort -V | tail -n 1)
targets=(-gencode "arch=compute_80,code=sm_80" -gencode "arch=compute_90,code=sm_90"
    -gencode "arch=$newest,code=sm_${newest#compute_}")
bad=0

# judge FILE REPORT: prints one line for each violation.
judge()
{
    c++filt -p <"$2" | sed -E 's/\(anonymous namespace\):://g' | awk -v file="$1" '
        FNR == NR {
            if (match($0, /budget: [A-Za-z0-9_]+ [0-9]+ registers/)) {
                split(substr($0, RSTART, RLENGTH), word, " ")
                budget[word[2]] = word[3]
                fixed[word[2]] = $0 ~ /no dynamic shared memory/
                static[word[2]] = 24576
                if (match($0, /[0-9]+ bytes of static/))
                    static[word[2]] = substr($0, RSTART, RLENGTH) + 0
            }
            next
        }
        /Compiling entry function/ {
            match($0, /function .*for /)
            name = substr($0, RSTART + 9, RLENGTH - 13)
            sub(/^[^A-Za-z_]*/, "", name)
            gsub(/[<(].*|\x27| *$/, "", name)
            sub(/.* /, "", name)
            sub(/.*::/, "", name)
            arch = $NF
            gsub(/[^a-z0-9_]/, "", arch)
        }
        /bytes stack frame/ {
            for (i = 1; i < NF; i++)
                if ($i == "bytes" && ($(i + 1) == "spill" || $(i + 1) == "stack") && $(i - 1) > 0)
                    complain("has " $(i - 1) " bytes of " $(i + 1) " in local memory")
        }
        /: Used [0-9]+ registers/ {
            kernels++
            match($0, /Used [0-9]+/)
            used = substr($0, RSTART + 5, RLENGTH - 5)
            if (!(name in budget))
                complain("has no budget; it uses " used " registers")
            else if (used + 0 > budget[name] + 0)
                complain("uses " used " registers, its budget is " budget[name])
            if (!fixed[name] && match($0, /[0-9]+ bytes smem/) && substr($0, RSTART, RLENGTH) + 0 > static[name])
                complain("has more than " static[name] " bytes of static shared memory")
        }
        function complain(what) {
            print "cuda_check: " file ": " name " (" arch ") " what
            wrong = 1
        }
        END {
            for (n in budget)
                count++
            if (count && !kernels) {
                print "cuda_check: " file ": no kernel was compiled"
                wrong = 1
            }
            printf "%s: %d kernels and architectures\n", file, kernels
            exit wrong
        }' "$1" -
}

for file in "$@"; do
    report=$out/$(basename "$file").ptxas
    if ! "$nvcc" -std=c++20 -O3 -fmad=false -I. "${targets[@]}" -Xptxas -v -Xcompiler -Wall \
        -c "$file" -o "$out/$(basename "$file").o" >"$report" 2>&1; then
        cat "$report" >&2
        bad=1
        continue
    fi
    grep -i 'warning' "$report" && bad=1
    judge "$file" "$report" || bad=1
done
exit "$bad"
