#!/usr/bin/env python3
"""Checks files written by the tools with the `vptq` package and `transformers`; run by scripts/interop.sh.

    run.py WORK [PATTERN]        checks whose name contains PATTERN, in the empty directory WORK

One line per check: "ok NAME: figures", "not ok NAME: why", "skip NAME: why"; the last one is "N passed, N failed,
N skipped".  Differences of logits are the largest one over the largest logit.  $BIN has the tools, $LOGITS is the
program of tests/interop/logits.c, $VPTQ_DATA and $VPTQ_DEMO_GGUF are as for the other tests.
"""
import glob
import itertools
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import torch
from safetensors.torch import load_file

import branch
import evaluation
import upstream

SRC = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
BIN = os.environ.get("BIN", os.path.join(SRC, "build/bin"))
LOGITS = os.environ["LOGITS"]
DATA = os.environ.get("VPTQ_DATA", os.path.join(SRC, "../shared/data"))
GOLDEN = os.path.join(SRC, "tests/golden")
LIMIT = 1e-3  # of the largest logit
FAMILIES = ("llama3", "mistral", "qwen2", "qwen3")
TIED = ("qwen2", "qwen3")
PORTABLE = {"in_features", "out_features", "vector_lens", "num_centroids", "num_res_centroids", "group_num",
            "group_size", "outlier_size", "indices_as_float", "enable_norm", "enable_perm", "is_indice_packed", "bias"}


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


class Report:

    def __init__(self, pattern):
        self.pattern, self.counts, self.worst = pattern, [0, 0, 0], {}

    def run(self, name, check):
        """A check returns the figures to show, or raises."""
        if self.pattern not in name:
            return
        try:
            kind, text = 0, check()
        except Skipped as e:
            kind, text = 2, e
        except Exception as e:  # whatever upstream raises is a failed check and not the end
            kind, text = 1, e if isinstance(e, Failed) else f"{type(e).__name__}: {e}"
        self.counts[kind] += 1
        print(f"{('ok', 'not ok', 'skip')[kind]} {name}: {str(text)[:400]}", flush=True)

    def difference(self, what, a, b):
        """Of logits `a` from `b`, the reference; remembered as the worst of its kind."""
        if a.shape != b.shape or not np.isfinite(a).all():
            raise Failed(f"{what}: logits {a.shape}, expected finite {b.shape}")
        d = float(np.abs(a - b).max() / np.abs(b).max())
        if d > LIMIT:
            raise Failed(f"{what}: logits differ by {d:.2e}")
        self.worst[what] = max(d, self.worst.get(what, 0))
        return d


def stored(path):
    """All tensors of a directory."""
    return {name: t for file in glob.glob(os.path.join(path, "*.safetensors")) for name, t in load_file(file).items()}


# ---- our side ----


def tool(name, *arguments, status=0):
    run = subprocess.run([os.path.join(BIN, "vptq-" + name), *map(str, arguments), "-q"], capture_output=True,
                         text=True)
    if run.returncode != status:
        raise Failed(f"vptq-{name} {' '.join(map(str, arguments))}: exit {run.returncode}: {run.stderr.strip()}")
    return run.stdout


def our_logits(model, ids, work):
    given, out = os.path.join(work, "ids.i32"), os.path.join(work, "logits.f32")
    ids.astype("<i4").tofile(given)
    subprocess.run([LOGITS, model, given, out], check=True, capture_output=True)
    return np.fromfile(out, "<f4").reshape(len(ids), -1)


def our_losses(model, ids, work):
    given, out = os.path.join(work, "ids.i32"), os.path.join(work, "nll.f64")
    ids.astype("<i4").tofile(given)
    tool("eval", "ppl", "-m", model, "--tokens", given, "--context", len(ids), "--dump", out, "-f")
    return np.fromfile(out, "<f8")


def losses(logits, ids):
    x = logits[:-1].astype("f8")
    top = x.max(1)
    return np.log(np.exp(x - top[:, None]).sum(1)) + top - x[np.arange(len(x)), ids[1:]]


# ---- models that we write ----


def check_sound(packed):
    out = tool("pack", "--check", packed, "--format", "json").splitlines()
    found = [json.loads(line) for line in out[:-1]]
    other = [f["text"] for f in found if "no tokenizer" not in f["text"]]
    if other:
        raise Failed("; ".join(other))
    q = json.load(open(os.path.join(packed, "config.json")))["quantization_config"]
    for name, entry in q["config_for_layers"].items():
        if set(entry) != PORTABLE:
            raise Failed(f"{name} has the keys {sorted(entry)}")
    return f"{len(q['config_for_layers'])} entries with portable keys"


def check_matrices(packed, model, work):
    """Upstream multiplies with the weights that we read, to the bit."""
    plain = os.path.join(work, "plain")
    tool("pack", "--unpack", packed, "-o", plain, "--dtype", "f32", "-f")
    ours = stored(plain)
    entries = json.load(open(os.path.join(packed, "config.json")))["quantization_config"]["config_for_layers"]
    count = 0
    for name, w in upstream.matrices(model):
        if not torch.equal(w, ours[name + ".weight"]):
            raise Failed(f"{name}: {int((w != ours[name + '.weight']).sum())} weights differ")
        count += 1
    if count != len(entries):
        raise Failed(f"{count} quantized layers, expected {len(entries)}")
    return f"{count} matrices equal to the bit"


def check_model(report, name, packed, ids, work):
    """All that is asked of a directory that we wrote."""
    report.run(name + " check", lambda: check_sound(packed))
    models = {}

    def loads(loader):
        models[loader] = upstream.LOADERS[loader](packed)
        theirs = upstream.logits(models[loader], ids)
        d = report.difference(loader, our_logits(packed, ids, work), theirs)
        ours, want = our_losses(packed, ids, work), losses(theirs, ids)
        off = float((np.abs(ours - want) / np.maximum(np.abs(want), 1)).max())
        if off > LIMIT:
            raise Failed(f"losses differ by {off:.2e}")
        report.worst["losses"] = max(off, report.worst.get("losses", 0))
        return f"logits {d:.1e}, losses {off:.1e}"

    for loader in upstream.LOADERS:
        report.run(f"{name} {loader}", lambda: loads(loader))
    if "transformers" in models:
        report.run(name + " matrices", lambda: check_matrices(packed, models["transformers"], work))


def write_model(model, calibration, packed, work, quantize, pack, tune=()):
    quantized, tuned = os.path.join(work, "quantized"), os.path.join(work, "tuned")
    for path in (quantized, tuned):
        shutil.rmtree(path, ignore_errors=True)
    tool("quantize", "-m", model, *calibration, "-o", quantized, *quantize)
    if tune:
        tool("quantize", "--from", quantized, *calibration, "-o", tuned, *tune)
    tool("pack", tuned if tune else quantized, "-o", packed, "-f", *pack)


def check_figures(base, packed, text, work):
    """Perplexity and divergence from the original, both protocols, from the logits of transformers."""
    plain = os.path.join(work, "original")
    tool("pack", "--unpack", base, "-o", plain, "--dtype", "f32", "-f")
    theirs = evaluation.Transformers(plain, packed, upstream.by_transformers).figures(text, 256, 4)
    for protocol, figures in theirs.items():
        shown = []
        wrong = evaluation.compare(*evaluation.ours(base, packed, text, 256, 4, protocol), figures, shown.append)
        if wrong:
            raise Failed("\n".join(line for line in shown if "WRONG" in line))
    return ", ".join(f"{protocol}: divergence {f['mean_kld']:.4f}, ppl {f['ppl']:.3f}" for protocol, f in theirs.items())


def written_models(report, work):
    """Every combination of groups, residual, outliers and normalization on a tiny model of every family; vector
    length, storage type, permutation and shards change from one to the next."""
    combinations = itertools.product((1, 4), (0, 1), (0, 1), (0, 1))
    for number, (groups, residual, outliers, norm) in enumerate(combinations):
        for f, family in enumerate(FAMILIES):
            base = os.path.join(GOLDEN, "tiny_" + family)
            packed = os.path.join(work, "packed")
            which = number + f
            v, k = ((4, 16), (6, 64), (8, 32), (2, 16))[which % 4]
            dtype, shards, perm = ("f16", "bf16")[which % 2], which // 2 % 2, which // 4 % 3
            quantize = ["-v", v, "-k", k, "-g", groups, "--dtype", dtype]
            quantize += ["-r", 16] if residual else []
            quantize += ["--outliers", "10:4:16"] if outliers else []
            quantize += [] if norm else ["--no-norm"]
            quantize += [] if perm else ["--no-perm"]
            pack = (["--shard-size", "8K"] if shards else []) + (["--lm-head"] if family in TIED else [])
            name = f"{family} G={groups} v={v} k={k}{' residual' * residual}{' outliers' * outliers}" \
                   f"{' norm' * norm}{' perm' * bool(perm)} {dtype}{' shards' * shards}"
            if report.pattern not in name:
                continue
            ids = np.fromfile(os.path.join(base, "ids.i32"), "<i4")
            calibration = ["--tokens", os.path.join(base, "ids.i32"), "-l", len(ids), "-n", 1]
            report.run(name + " write",
                       lambda: write_model(base, calibration, packed, work, quantize, pack) or "quantized and packed")
            check_model(report, name, packed, ids, work)


def check_tokenizers(packed, text):
    ours = [int(x) for x in tool("eval", "ppl", "-m", packed, "--text", text, "--tokens-only").split()]
    with upstream.quiet():
        theirs = upstream.transformers.AutoTokenizer.from_pretrained(packed)(open(text).read()).input_ids
    if ours != theirs:
        raise Failed(f"{len(ours)} ids, expected {len(theirs)}; they differ")
    return f"{len(ours)} ids are the same"


def real_models(report, work):
    """Trained models: stories260K whole, and the first blocks of the demo model with large codebooks."""
    stories, text = os.path.join(DATA, "models/stories260K-hf"), os.path.join(DATA, "text/tinystories/tiny.utf8")
    grouped = ["-v", 4, "-k", 256, "-r", 16, "-g", 4, "--outliers", "5:4:32", "--dtype", "bf16"]
    settings = {"stories260K G=1": (["-v", 8, "-k", 256, "-r", 256], []),
                "stories260K G=4 outliers": (grouped, []),
                "stories260K tuned": (["-v", 4, "-k", 64], ["--tune", "e2e", "--steps", 20, "--batch", 2]),
                "stories260K G=4 outliers, tuned": (grouped, ["--tune", "layer,e2e", "--passes", 1, "--steps", 4,
                                                             "--batch", 2])}
    packed, piece = os.path.join(work, "packed"), os.path.join(work, "text")
    for name, (quantize, tune) in settings.items():
        if not os.path.exists(stories) or not os.path.exists(text):
            report.run(name, lambda: skip(f"{stories} or {text} is not there"))
            continue
        open(piece, "w").write(open(text).read()[:20000])
        report.run(name + " write", lambda: write_model(stories, ["-c", piece, "-n", 8, "-l", 256], packed, work,
                                                        quantize, ["--lm-head"], tune) or "written")
        ids = np.array(tool("eval", "ppl", "-m", stories, "--text", piece, "--tokens-only").split()[:256], "<i4")
        check_model(report, name, packed, ids, work)
        report.run(name + " tokenizer", lambda: check_tokenizers(packed, piece))
    demo = os.environ.get("VPTQ_DEMO_GGUF") or os.path.join(SRC, "build/demo/model.gguf")
    name = "demo model, blocks 0 to 1"
    if not os.path.exists(demo):
        report.run(name, lambda: skip(f"{demo} is not there (scripts/fetch_demo.sh --model-only build/demo)"))
        return
    ids = np.random.default_rng(0).integers(0, 49152, 4 * 512).astype("<i4")
    given = os.path.join(work, "calibration.i32")
    ids.tofile(given)
    quantize = ["--layers", "0-1", "-v", 8, "-k", 4096, "-r", 256, "--joint", 2, "--retrain", 0, "--sweeps", 1,
                "--refits", 0]
    report.run(name + " write", lambda: write_model(demo, ["--tokens", given, "-n", 4, "-l", 512], packed, work,
                                                    quantize, ["--lm-head"]) or "quantized and packed")
    check_model(report, name, packed, ids[:256], work)
    report.run(name + " tokenizer", lambda: check_tokenizers(packed, os.path.join(SRC, "docs/formats/work.md")))
    report.run(name + " figures", lambda: check_figures(demo, packed, os.path.join(SRC, "docs/formats/work.md"), work))


def skip(why):
    raise Skipped(why)


# ---- goldens ----


def goldens(report, work):
    """tests/golden/packed_*: the logits stored with the models are still what upstream gives."""
    for path in sorted(glob.glob(os.path.join(GOLDEN, "packed_*/"))):
        ids, want = np.fromfile(path + "ids.i32", "<i4"), np.load(path + "logits.npy")
        tied = json.load(open(path + "config.json"))["tie_word_embeddings"] and "lm_head.weight" not in stored(path)
        for loader, load in upstream.LOADERS.items():
            if tied and loader == "vptq":
                continue
            report.run(f"golden {os.path.basename(path[:-1])} {loader}",
                       lambda: f"{report.difference('golden', upstream.logits(load(path), ids), want):.1e}")
        if not tied:
            report.run(f"golden {os.path.basename(path[:-1])} vptq by default", lambda: by_default(path, ids, want))


def by_default(path, ids, want):
    """Loaded as upstream's documentation does it, a model computes in the type that its config names."""
    with upstream.quiet():
        model = upstream.vptq.AutoModelForCausalLM.from_pretrained(path, device_map="auto")
    stated = json.load(open(path + "config.json"))["torch_dtype"]
    found = {str(p.dtype) for p in model.parameters() if p.is_floating_point()}
    d = float(np.abs(upstream.logits(model.eval(), ids) - want).max() / np.abs(want).max())
    if found != {"torch." + stated} or not d < 0.1:
        raise Failed(f"types {sorted(found)}, logits differ by {d:.1e}")
    return f"{stated}, {d:.1e}"


# ---- models that others wrote ----

REFUSES, WRONG, LOADS = "refuses", "is wrong", "loads"
BOTH = ("mistral", "qwen2")  # without biases and with them
# name: (what is different from branch.SHAPES and the branch's usual form, what upstream makes of it as it is)
DAMAGE = {
    "as the branch writes it": (dict(), dict(vptq=REFUSES, transformers=LOADS)),
    "in bfloat16": (dict(dtype=torch.bfloat16), dict(vptq=REFUSES, transformers=LOADS)),
    "shared entries": (dict(shared=True), dict(vptq=REFUSES, transformers=LOADS)),
    "training form": (dict(packed=False, clean_keys=True), dict(vptq=REFUSES, transformers=REFUSES)),
    "training form as float": (dict(packed=False, float_indices=True), dict(vptq=REFUSES, transformers=REFUSES)),
    "indices as float": (dict(float_indices=True), dict(vptq=REFUSES)),
    "absorbed, entries not": (dict(absorbed=True, clean_keys=True), dict(vptq=REFUSES)),
    "more residual than main": (dict(clean_keys=True, shapes={"q_proj": dict(k=16, k_res=256)}),
                                dict(vptq=WRONG, transformers=WRONG)),
    "padding bits set": (dict(padding=1), dict(vptq=REFUSES)),
    "bias not in the entries": (dict(clean_keys=True, forget_bias=True, head=True), dict(vptq=WRONG)),
}


def as_it_is(loader, path, ids, want):
    try:
        got = upstream.logits(upstream.LOADERS[loader](path), ids)
    except Exception as e:
        return REFUSES, type(e).__name__
    d = float(np.abs(got - want).max() / np.abs(want).max())
    return (LOADS, f"{d:.1e}") if d < LIMIT else (WRONG, f"by {d:.1e}")


def repaired_models(report, work):
    """A broken directory is what it is supposed to be, is read by us all the same, and after --repair gives the logits
    of its plain weights everywhere."""
    bad, good, archive = (os.path.join(work, x) for x in ("bad", "good", "good.vptq"))
    for (damage, (form, before)), family in itertools.product(DAMAGE.items(), BOTH):
        name = f"repair {family}, {damage}"
        if report.pattern not in name or (form.get("forget_bias") and family != "qwen2"):
            continue
        base = os.path.join(GOLDEN, "tiny_" + family)
        ids = np.fromfile(os.path.join(base, "ids.i32"), "<i4")
        shutil.rmtree(bad, ignore_errors=True)
        form = dict(dict(dtype=torch.float16), **form)
        weights = branch.write(base, bad, **form)
        rounded = {n: t.to(form["dtype"]).float() for n, t in load_file(base + "/model.safetensors").items()}
        want = upstream.logits(upstream.plain(base, dict(rounded, **weights)), ids)

        def upstream_before():
            found = {loader: as_it_is(loader, bad, ids, want) for loader in upstream.LOADERS}
            if family in TIED and not form.get("head"):  # without it this loader stops in any case
                found.pop("vptq")
            for loader, expected in before.items():
                if found.get(loader, (expected,))[0] != expected:
                    raise Failed(f"{loader} {' '.join(found[loader])}, expected {expected}")
            return ", ".join(f"{loader} {what} ({how})" for loader, (what, how) in found.items())

        def reads():
            return f"our logits {report.difference('ours', our_logits(bad, ids, work), want):.1e}"

        def mended(loader):
            return f"{report.difference('repaired', upstream.logits(upstream.LOADERS[loader](good), ids), want):.1e}"

        report.run(name + ": before", upstream_before)
        report.run(name + ": read", reads)
        report.run(name + ": mended",
                   lambda: tool("pack", "--repair", bad, "-o", good, "-f", "--lm-head", "--shard-size", "16K") and None
                   or check_sound(good))
        for loader in upstream.LOADERS:
            report.run(f"{name}: {loader}", lambda: mended(loader))
        report.run(name + ": by way of an archive",
                   lambda: tool("pack", "--repair", bad, "-o", archive, "-f", "--lm-head") and
                   tool("pack", archive, "-o", good, "-f") and mended("transformers"))


def published_model(report, work):
    """The golden model that the algorithm branch itself wrote, with its own config and with shared entries."""
    golden, bad, good = os.path.join(DATA, "golden/vptq_model_stories260K"), os.path.join(work, "bad"), os.path.join(
        work, "good")
    if not os.path.exists(golden):
        report.run("repair golden model", lambda: skip(f"{golden} is not there"))
        return
    ids = np.array(json.load(open(os.path.join(golden, "prompt_ids.json"))), "<i4").ravel()
    want = np.load(os.path.join(golden, "logits_f32.npy"))
    for config in ("config_algorithm_raw.json", "config_shared.json"):
        name = "repair golden model, " + config
        shutil.rmtree(bad, ignore_errors=True)
        os.makedirs(bad)
        shutil.copyfile(os.path.join(golden, "model.safetensors"), os.path.join(bad, "model.safetensors"))
        shutil.copyfile(os.path.join(golden, config), os.path.join(bad, "config.json"))

        def mended(loader):
            return f"{report.difference('repaired', upstream.logits(upstream.LOADERS[loader](good), ids), want):.1e}"

        report.run(name + ": read",
                   lambda: f"our logits {report.difference('ours', our_logits(bad, ids, work), want):.1e}")
        report.run(name + ": refused as it is", lambda: expect(REFUSES, as_it_is("vptq", bad, ids, want)))
        report.run(name + ": mended", lambda: tool("pack", "--repair", bad, "-o", good, "-f", "--lm-head") and None or
                   check_sound(good))
        for loader in upstream.LOADERS:
            report.run(f"{name}: {loader}", lambda: mended(loader))


# ---- hessians ----


def same_entries(a, b):
    """Of two .pt files as PyTorch reads them: keys, types, shapes and the bits of every number."""
    a, b = (torch.load(path, weights_only=True) for path in (a, b))
    if a.keys() != b.keys():
        raise Failed(f"keys {list(b)}, expected {list(a)}")
    count = 0
    for key, want in a.items():
        found = b[key]
        if not isinstance(want, torch.Tensor):
            if found != want:
                raise Failed(f"{key} is {found}, expected {want}")
            continue
        if (found.dtype, found.shape) != (want.dtype, want.shape):
            raise Failed(f"{key} is {found.dtype} {found.shape}, expected {want.dtype} {want.shape}")
        different = int((found.view(torch.int32) != want.view(torch.int32)).sum())
        if different:
            raise Failed(f"{key}: {different} of {want.numel()} numbers differ")
        count += want.numel()
    return f"{count} numbers equal to the bit"


def hessians(report, work):
    """Covariances that PyTorch wrote, imported and exported again."""
    theirs, ours = os.path.join(work, "theirs"), os.path.join(work, "ours")
    generator = torch.Generator().manual_seed(1)
    sizes = {"qkv": 48, "o": 64, "up": 48, "down": 100}
    for path in (theirs, ours):
        shutil.rmtree(path, ignore_errors=True)
    os.makedirs(theirs)
    names = [f"{layer}_{part}.pt" for layer in range(2) for part in sizes]
    for name in names:
        n = sizes[name[2:-3]]
        x = torch.randn(300, n, generator=generator) * (1 + 9 * torch.rand(n, generator=generator)) \
            + torch.randn(n, generator=generator)
        rows, columns = torch.tril_indices(n, n)
        torch.save({"flatH": (x - x.mean(0)).T.matmul(x - x.mean(0))[rows, columns] / 300, "mu": x.mean(0), "n": n,
                    "ct": 300}, os.path.join(theirs, name))

    def there_and_back():
        imported = os.path.join(work, "imported")
        tool("hessian", "--import", theirs, "-o", imported, "-f")
        tool("hessian", "--export", imported, "-o", ours)
        return f"{len(names)} files"

    report.run("hessian import and export", there_and_back)
    for name in names:
        report.run(f"hessian {name}",
                   lambda: same_entries(os.path.join(theirs, name), os.path.join(ours, name)))


def expect(want, found):
    if found[0] != want:
        raise Failed(f"it {' '.join(found)}, expected that it {want}")
    return " ".join(found)


def main():
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // 2))
    work, report = sys.argv[1], Report(sys.argv[2] if len(sys.argv) > 2 else "")
    for part in (hessians, goldens, written_models, real_models, repaired_models, published_model):
        part(report, work)
    for what, worst in report.worst.items():
        print(f"# {what}: {worst:.1e} at most")
    passed, failed, skipped = report.counts
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
