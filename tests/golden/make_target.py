"""Writes problems of corrected targets and their solutions, computed with NumPy in double.

Inputs x~ and x = x~ + d with d in part a linear function of x~ ("drift": outputs that are to move by
W d); few enough tokens that all of the correction is too much for the held-out ones.  Of problem P:
    P_w.npy [out, in], P_lower.npy, P_shift.npy, P_held_lower.npy, P_held_shift.npy   the inputs
    P_delta.npy [out, in]    W E[d x~^T] (H~ + 0.01 mean diag I)^-1
    (of "drift" the shifts are W E[d x~^T] [out, in] themselves)
    P_errors.npy [5]         E|W_alpha x~ - W x|^2 - E|W x~ - W x|^2 over tr(W H~ W^T) of the
                             held-out tokens for alpha = 0, 1/4, 1/2, 3/4, 1, from the tokens
Needs: pip install numpy

    python3 tests/golden/make_target.py tests/golden/target
"""

import sys

import numpy as np

OUT, IN = 7, 24
# tokens, held-out tokens, share of d that x~ explains
PROBLEMS = {"few": (40, 200, 0.3), "many": (4000, 500, 0.8), "noise": (30, 300, 0.0), "drift": (60, 200, 0.4)}


def draw(rng, tokens, mix, follow, share):
    passed = rng.standard_normal((tokens, IN)) @ mix + 0.5
    d = share * passed @ follow + (1 - share) * rng.standard_normal((tokens, IN))
    return passed, 0.2 * d


def moments(passed, d):
    h, shift = passed.T @ passed / len(passed), d.T @ passed / len(passed)
    # as the program has them
    return h.astype(np.float32).astype(np.float64), shift.astype(np.float32).astype(np.float64)


def main():
    for seed, (name, (tokens, held, share)) in enumerate(PROBLEMS.items()):
        rng = np.random.default_rng(seed)
        mix, follow = rng.standard_normal((IN, IN)) / 3, rng.standard_normal((IN, IN)) / 5
        w = rng.standard_normal((OUT, IN)).astype(np.float32).astype(np.float64)
        h, shift = moments(*draw(rng, tokens, mix, follow, share))
        passed, d = draw(rng, held, mix, follow, share)
        held_h, held_shift = moments(passed, d)
        drift = name == "drift"
        if drift:
            shift = np.float32(w @ shift).astype(np.float64)
        delta = (shift if drift else w @ shift) @ np.linalg.inv(h + 0.01 * np.mean(np.diag(h)) * np.eye(IN))
        if drift:
            held_shift = w @ held_shift
        errors = [np.sum(((w + a * delta) @ passed.T - w @ (passed + d).T) ** 2) / held
                  for a in np.arange(5) / 4]
        errors = (np.array(errors) - errors[0]) / np.trace(w @ held_h @ w.T)
        print(name, errors)
        lower = np.tril_indices(IN)
        for part, array in (("w", w), ("lower", h[lower]), ("shift", shift), ("held_lower", held_h[lower]),
                            ("held_shift", held_shift)):
            np.save(f"{sys.argv[1]}/{name}_{part}.npy", array.astype(np.float32))
        np.save(f"{sys.argv[1]}/{name}_delta.npy", delta)
        np.save(f"{sys.argv[1]}/{name}_errors.npy", errors)


main()
