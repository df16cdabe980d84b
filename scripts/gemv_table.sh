#!/usr/bin/env bash
# Prints the records of `vptq-eval gemv --format json` as a table, with the geometric mean of the ratio, in
# total and by pair of codebooks, and the largest ratio of small and of large matrices.
# usage: gemv_table.sh RECORDS.json
set -eu

tr -d '{}"' <"${1:?usage: gemv_table.sh RECORDS.json}" | awk -F', ' '
function row() {
    printf "%5s %7s %7s %3s %6s %5s %11s %11s %11s %6s %7s %6s\n", value["batch"], value["in_features"],
        value["out_features"], value["v"], value["k"], value["k_res"], value["time"], value["half"], value["library"],
        value["ratio"], value["rate"], value["floor"]
}
BEGIN {
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
}'
