#!/usr/bin/env bash
# Prints the records of `vptq-eval gemv --format json` as a table, with the geometric mean of the ratio, in
# total and by pair of codebooks, and the largest ratio of small and of large matrices.  The columns "their us",
# "torch us" and "their r" are those of the published kernel on its GPU (docs/results/published-gemv.csv).
# usage: gemv_table.sh RECORDS.json
set -eu
export LC_ALL=C # decimal points

src=$(cd "$(dirname "$0")/.." && pwd)
tr -d '{}"' <"${1:?usage: gemv_table.sh RECORDS.json}" |
    awk -F', ' -v published="$src/docs/results/published-gemv.csv" '
function row() {
    printf "%5s %7s %7s %3s %6s %5s %11s %11s %11s %6s %7s %6s %9s %9s %7s\n", value["batch"], value["in_features"],
        value["out_features"], value["v"], value["k"], value["k_res"], value["time"], value["half"], value["library"],
        value["ratio"], value["rate"], value["floor"], value["their"], value["torch"], value["their_ratio"]
}
BEGIN {
    while ((getline line <published) > 0) {
        split(line, field, ",")
        key = field[1] " " field[2] " " field[3] " " field[4]
        their[key] = sprintf("%.1f", 1e3 * field[5])
        torch[key] = sprintf("%.1f", 1e3 * field[6])
        their_ratio[key] = sprintf("%.3f", field[7])
    }
    value["their"] = "their us"; value["torch"] = "torch us"; value["their_ratio"] = "their r"
    value["batch"] = "batch"; value["in_features"] = "in"; value["out_features"] = "out"; value["v"] = "v"
    value["k"] = "k"; value["k_res"] = "k_res"; value["time"] = "packed us"; value["half"] = "16 bits us"
    value["library"] = "library us"; value["ratio"] = "ratio"; value["rate"] = "GB/s"; value["floor"] = "floor"
    row()
}
{
    for (i = 1; i <= NF; i++) {
        at = index($i, ": ")
        value[substr($i, 1, at - 1)] = substr($i, at + 2)
    }
    ratio = value["ratio"] + 0
    books = value["k"] "+" value["k_res"]
    large = value["dense_half_bytes"] + 0 >= 8e6 # 8 MB
    value["time"] = sprintf("%.1f", value["time_us"])
    value["half"] = sprintf("%.1f", value["dense_half_us"])
    value["library"] = value["dense_library_us"] == "null" ? "-" : sprintf("%.1f", value["dense_library_us"])
    value["ratio"] = sprintf("%.3f", ratio)
    value["rate"] = sprintf("%.1f", value["gb_per_second"])
    value["floor"] = sprintf("%.2f", value["floor_fraction"])
    key = value["in_features"] " " value["out_features"] " " value["k"] " " value["k_res"]
    known = key in their && value["v"] == 8 && value["batch"] == 1 && value["cache"] != "chain"
    value["their"] = known ? their[key] : "-"
    value["torch"] = known ? torch[key] : "-"
    value["their_ratio"] = known ? their_ratio[key] : "-"
    if (value["dense_library_us"] == "null") alone++
    row()
    if (!(books in count)) order[++kinds] = books
    count[books]++; sum[books] += log(ratio)
    n++; all += log(ratio)
    if (ratio > worst[large]) worst[large] = ratio
}
END {
    if (!n) { print "no records"; exit 1 }
    printf "\nratio of packed to the faster dense one, geometric mean of %d rows: %.3f\n", n, exp(all / n)
    for (i = 1; i <= kinds; i++)
        printf "  %-12s %.3f (%d rows)\n", order[i], exp(sum[order[i]] / count[order[i]]), count[order[i]]
    if (worst[1]) printf "largest where 16-bit weights take 8 MB or more: %.3f\n", worst[1]
    if (worst[0]) printf "largest where they take less: %.3f\n", worst[0]
    if (alone) printf "NO LIBRARY in %d rows: their ratio is to our own product alone\n", alone
}'
