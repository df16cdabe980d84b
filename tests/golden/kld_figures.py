"""All figures of `vptq-eval kld` in NumPy, by the formulas of llama.cpp's perplexity tool."""
import numpy as np


def mean_and_error(x):
    """As llama.cpp computes them: from the sum and the sum of squares."""
    n = x.size
    mean = x.sum() / n
    return mean, np.sqrt(((x * x).sum() / n - mean * mean) / (n - 1))


def levels(x, name, quantiles):
    return {f"{key}_{name}": np.quantile(x, q) for key, q in quantiles.items()}


def figures(kld, same, nll, nll_base):
    n = kld.size
    delta = np.exp(-nll) - np.exp(-nll_base)
    r = {"tokens": n}
    r["mean_kld"], r["kld_stderr"] = mean_and_error(kld)
    r |= levels(kld, "kld", {"max": 1, "p999": .999, "p99": .99, "p95": .95, "p90": .9, "p50": .5, "p10": .1,
                             "p05": .05, "p01": .01, "min": 0})
    r["same_top1"] = same.mean()
    r["same_top1_stderr"] = np.sqrt(same.mean() * (1 - same.mean()) / (n - 1))
    mean, error = mean_and_error(nll)
    mean_base, error_base = mean_and_error(nll_base)
    covariance = ((nll * nll_base).sum() / n - mean * mean_base) / (n - 1)
    r["ppl"], r["ppl_base"] = np.exp(mean), np.exp(mean_base)
    r["ppl_stderr"], r["ppl_base_stderr"] = r["ppl"] * error, r["ppl_base"] * error_base
    r["ln_ppl_correlation"] = covariance / (error * error_base)
    r["ln_ppl_ratio"] = mean - mean_base
    r["ln_ppl_ratio_stderr"] = np.sqrt(error**2 + error_base**2 - 2 * covariance)
    r["ppl_ratio"] = np.exp(r["ln_ppl_ratio"])
    r["ppl_ratio_stderr"] = r["ppl_ratio"] * r["ln_ppl_ratio_stderr"]
    r["ppl_difference"] = r["ppl"] - r["ppl_base"]
    r["ppl_difference_stderr"] = np.sqrt(r["ppl_stderr"]**2 + r["ppl_base_stderr"]**2 -
                                         2 * r["ppl"] * r["ppl_base"] * covariance)
    r["mean_delta_p"], r["delta_p_stderr"] = mean_and_error(delta)
    r |= levels(delta, "delta_p", {"max": 1, "p999": .999, "p99": .99, "p95": .95, "p90": .9, "p75": .75, "p50": .5,
                                   "p25": .25, "p10": .1, "p05": .05, "p01": .01, "p001": .001, "min": 0})
    square, square_error = mean_and_error(delta * delta)
    r["rms_delta_p"] = np.sqrt(square)
    r["rms_delta_p_stderr"] = square_error / (2 * r["rms_delta_p"])
    return {key: float(value) for key, value in r.items()}
