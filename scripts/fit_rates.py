"""Makes the table of lib/encoder/rates.c from the output of tests/bench/bench_rates.

Model: loss(matrix, setting) = loss of the quick encoding * rate(setting) * S(x) / S(x0), where x
is the number of vectors per centroid (both codebooks together) and S(x) = (1 - 1/x)^EXPONENT; x0 is
that of the quick encoding.  A rate is the geometric mean over the matrices, after dividing each by its
own level over all settings, because not every matrix has every setting.  Prints the rows, by index bits
per weight, and the deviation of single matrices.

    build/release/tests/bench/bench_rates --quick MODEL HDIR 15:o_proj .. > rates.txt
    python3 scripts/fit_rates.py rates.txt

Settings below 4 vectors per centroid are left out of the fit.  Needs nothing but Python.
"""

import math
import sys

EXPONENT, PROBE_V, PROBE_K, LEAST = 3.2, 4, 256, 4


def vectors(out, columns, v):
    return -(-out // v) * columns


def share(x):
    return (1 - 1 / x) ** EXPONENT


def read(paths):
    """{matrix: {setting: (ratio of losses, predicted part without the rate)}}"""
    found = {}
    for path in paths:
        for line in open(path, encoding="ascii"):
            layer, name, out, columns, v, k, k_res, base, loss = line.split()
            out, columns, v, k, k_res = (int(a) for a in (out, columns, v, k, k_res))
            x = vectors(out, columns, v) / (k + k_res)
            if x < LEAST:
                continue
            x0 = vectors(out, columns, PROBE_V) / PROBE_K
            rows = found.setdefault(f"{layer} {name} {out}x{columns}", {})
            rows[v, k, k_res] = (float(loss) / float(base), share(x) / share(x0))
    return found


def index_bits(c):
    return (math.log2(c[1]) + (math.log2(c[2]) if c[2] else 0)) / c[0]


def rank_correlation(a, b):
    def ranks(x):
        order = sorted(range(len(x)), key=lambda i: x[i])
        return [order.index(i) for i in range(len(x))]
    a, b = ranks(a), ranks(b)
    n = len(a)
    return 1 - 6 * sum((x - y) ** 2 for x, y in zip(a, b)) / (n * (n * n - 1))


def main(paths):
    found = read(paths)
    own = dict.fromkeys(found, 0.0)
    for _ in range(50):
        logs = {}
        for matrix, rows in found.items():
            for c, (ratio, part) in rows.items():
                logs.setdefault(c, []).append(math.log(ratio / part) - own[matrix])
        rate = {c: math.exp(sum(x) / len(x)) for c, x in logs.items()}
        for matrix, rows in found.items():
            own[matrix] = sum(math.log(ratio / part / rate[c])
                              for c, (ratio, part) in rows.items()) / len(rows)
        middle = sum(own.values()) / len(own)
        own = {matrix: x - middle for matrix, x in own.items()}
    for c in sorted(rate, key=lambda c: (index_bits(c), c)):
        spread = [math.exp(x - math.log(rate[c])) for x in logs[c]]
        print(f"    {{{c[0]}, {c[1]}, {c[2]}, {rate[c]:.4f}}}, /* {index_bits(c):.3f} bits, "
              f"{len(spread)} matrices within {min(spread):.2f} .. {max(spread):.2f} */")
    for matrix, rows in found.items():
        errors = [math.log(rate[c] * part / ratio) for c, (ratio, part) in rows.items()]
        rms = math.sqrt(sum(e * e for e in errors) / len(errors))
        order = rank_correlation([r for r, _ in rows.values()],
                                 [rate[c] * p for c, (_, p) in rows.items()])
        print(f"{matrix}: {len(rows)} settings, level {math.exp(own[matrix]):.3f}, error {100 * rms:.1f} % rms, "
              f"rank correlation {order:.4f}", file=sys.stderr)


main(sys.argv[1:])
