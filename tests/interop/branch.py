"""Makes models as the algorithm branch of VPTQ and its users leave them, with the plain weights that they encode.

Random codebooks and indices; everything is computed here from the description of the layout in docs/formats/vptq-layout.md, with
NumPy, and no code is shared with the tools.
"""
import json
import os

import numpy as np
import torch
from safetensors.torch import load_file, save_file

LINEARS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
           "mlp.up_proj", "mlp.down_proj")
# What the branch gives each kind of linear here: every part of the layout occurs, padding rows and words among them.
SHAPES = {
    "q_proj": dict(v=4, k=256, k_res=16, perm=True),
    "k_proj": dict(v=4, k=64, perm=True),
    "v_proj": dict(v=6, k=32, k_res=32),
    "o_proj": dict(v=8, k=128, norm=False),
    "gate_proj": dict(v=4, k=64, k_res=16, groups=4, perm=True),
    "up_proj": dict(v=10, k=256, k_res=256),
    "down_proj": dict(v=4, k=64, k_res=8, groups=4, outliers=8, v0=6, k0=16, perm=True),
}


class Matrix:
    """One linear: parts rounded to `dtype`, and w, the float32 weight that a reader must get."""

    def __init__(self, rng, rows, columns, dtype, v, k, k_res=0, groups=1, outliers=0, v0=4, k0=16, perm=False,
                 norm=True):
        self.rows, self.columns, self.dtype = rows, columns, dtype
        self.v, self.k, self.k_res, self.groups, self.v0, self.k0 = v, k, k_res, groups, v0, k0
        self.outliers, self.group_size = outliers, (columns - outliers) // groups
        assert outliers + groups * self.group_size == columns
        self.has_perm, self.has_norm = perm, norm
        strips = -(-rows // v)
        self.main = rng.integers(0, k, (groups, strips, self.group_size))
        self.res = rng.integers(0, k_res, self.main.shape) if k_res else None
        self.outlier = rng.integers(0, k0, (1, -(-rows // v0), outliers)) if outliers else None
        spread = columns**-0.5
        self.book = self.draw(rng, (groups, k, v), spread)
        self.res_book = self.draw(rng, (groups, k_res, v), spread / 3) if k_res else None
        self.outlier_book = self.draw(rng, (1, k0, v0), spread) if outliers else None
        self.scale = self.round(1 + rng.normal(0, 0.3, columns))
        self.bias = self.draw(rng, columns, spread / 10)
        self.perm = rng.permutation(columns) if perm else np.arange(columns)
        self.w = self.weight()

    def round(self, x):
        return torch.tensor(x, dtype=torch.float32).to(self.dtype).float().numpy()

    def draw(self, rng, shape, spread):
        return self.round(rng.normal(0, spread, shape))

    def weight(self):
        q = np.empty((self.rows, self.columns), np.float32)
        row = np.arange(self.rows)
        for p in range(self.columns):
            if p < self.outliers:
                x = self.outlier_book[0, self.outlier[0, row // self.v0, p], row % self.v0]
            else:
                g, c = divmod(p - self.outliers, self.group_size)
                x = self.book[g, self.main[g, row // self.v, c], row % self.v]
                if self.k_res:
                    x = x + self.res_book[g, self.res[g, row // self.v, c], row % self.v]
            q[:, self.perm[p]] = x
        return q * self.scale + self.bias if self.has_norm else q

    def absorb(self):
        """The permutation into the indices; what is stored must be without groups and outliers."""
        assert self.groups == 1 and not self.outliers
        order = np.argsort(self.perm)
        self.main = self.main[..., order]
        self.res = self.res[..., order] if self.k_res else None
        self.perm = np.arange(self.columns)

    def words(self, padding):
        """Fields of log2 k + log2 k_res bits, least significant first, each row filled up with `padding` bits."""
        bits = (self.k - 1).bit_length() + (max(self.k_res, 1) - 1).bit_length()
        field = self.main.astype(np.int64)
        if self.k_res:
            field = field | self.res.astype(np.int64) << (self.k - 1).bit_length()
        stream = (field[..., None] >> np.arange(bits) & 1).reshape(*field.shape[:2], -1)
        stream = np.pad(stream, ((0, 0), (0, 0), (0, -stream.shape[2] % 32)), constant_values=padding)
        packed = np.packbits(stream.astype(np.uint8), axis=2, bitorder="little")
        return torch.from_numpy(packed.view("<i4").copy())


def short(x):
    return torch.from_numpy(x.astype(np.uint16).view(np.int16).copy())


def tensors(m, packed, padding, float_indices):
    """The parts by their names; `packed` False is the form that training uses."""
    number = lambda x: torch.tensor(x).to(m.dtype)
    index = lambda x: short(x).view(torch.float16) if float_indices else short(x)
    t = {"centroids.weight": number(m.book.reshape(m.groups, -1))}
    if m.k_res:
        t["res_centroids.weight"] = number(m.res_book.reshape(m.groups, -1))
    if packed:
        t["indices"] = m.words(padding)
    else:
        t["indices"] = index(m.main)
        if m.k_res:
            t["res_indices"] = index(m.res)
    if m.outliers:
        t["outlier_centroids.weight"] = number(m.outlier_book.reshape(1, -1))
        t["outlier_indices"] = index(m.outlier)
    if m.has_perm:
        t["perm"] = index(m.perm) if packed else torch.from_numpy(m.perm.astype(np.int64))
    if m.has_norm:
        t["weight_scale"], t["weight_bias"] = number(m.scale), number(m.bias)
    return t


def entry(m, bias, packed, float_indices):
    """As the branch writes it: two keys that the main branch stops at, and null where that wants false."""
    return {"bias": bias, "enable_norm": m.has_norm, "enable_perm": m.has_perm, "enable_proxy_error": False,
            "group_num": m.groups, "group_size": m.group_size, "in_features": m.columns,
            "indices_as_float": True if float_indices else None, "is_indice_packed": packed, "norm_dim": 0,
            "num_centroids": [m.k0 if m.outliers else -1, m.k], "num_res_centroids": [-1, m.k_res or -1],
            "out_features": m.rows, "outlier_size": m.outliers, "vector_lens": [m.v0 if m.outliers else -1, m.v]}


def portable(e):
    e = {k: x for k, x in e.items() if k not in ("norm_dim", "enable_proxy_error")}
    e["indices_as_float"] = bool(e["indices_as_float"])
    return e


def write(base, out, dtype, seed=0, shapes=None, shared=False, packed=True, padding=0, float_indices=False,
          absorbed=False, clean_keys=False, forget_bias=False, head=False):
    """A packed model of the shape of the plain model `base`, in directory `out`; `shapes` changes SHAPES per kind.
    shared: entries by kind of linear.  absorbed: permutations went into the indices where they can, but the entries
    still name them.  clean_keys: with the keys that the main branch takes.  forget_bias: entries say that there is no
    bias.  head: a head that is tied is stored, too.  Returns the plain weights of all linears."""
    rng = np.random.default_rng(seed)
    config = json.load(open(os.path.join(base, "config.json")))
    plain = load_file(os.path.join(base, "model.safetensors"))
    store, entries, weights = {}, {}, {}
    for name, t in plain.items():
        if not name.endswith(tuple(kind + ".weight" for kind in LINEARS)):
            store[name] = t.to(dtype)
    if head and "lm_head.weight" not in store:
        store["lm_head.weight"] = store["model.embed_tokens.weight"].clone()
    for name in sorted(plain):
        module = name[:-len(".weight")]
        if not module.endswith(LINEARS):
            continue
        kind = module.split(".")[-1]
        settings = dict(SHAPES[kind], **(shapes or {}).get(kind, {}))
        m = Matrix(rng, *plain[name].shape, dtype, **settings)
        weights[name] = torch.from_numpy(m.w)
        e = entry(m, module + ".bias" in plain and not forget_bias, packed, float_indices)
        if absorbed and m.has_perm and m.groups == 1 and not m.outliers:
            m.absorb()
            m.has_perm = False
        store.update({f"{module}.{part}": t for part, t in tensors(m, packed, padding, float_indices).items()})
        entries[kind if shared else module] = portable(e) if clean_keys else e
    config["quantization_config"] = {"quant_method": "vptq",
                                     "shared_layer_config" if shared else "config_for_layers": entries}
    config["dtype"] = str(dtype).split(".")[-1]
    os.makedirs(out)
    json.dump(config, open(os.path.join(out, "config.json"), "w"), indent=2)
    save_file(store, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    return weights
