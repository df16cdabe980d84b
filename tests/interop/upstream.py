"""Loads packed models with the `vptq` package and with `transformers`, both unmodified from PyPI, on a CPU."""
import contextlib
import io
import logging
import os
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
import transformers

with contextlib.redirect_stdout(io.StringIO()):  # it tells that there are no GPU kernels
    import vptq

transformers.logging.set_verbosity_error()
logging.disable(logging.WARNING)


@contextlib.contextmanager
def quiet():
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def by_transformers(path):
    """A model in float32; a tensor that is missing, left over or of another shape is an error."""
    with quiet():
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, device_map="cpu", attn_implementation="eager", output_loading_info=True)
    wrong = {k: v for k, v in info.items() if v}
    if wrong:
        raise ValueError(f"loading says {wrong}")
    return model.eval()


def by_vptq(path):
    """The package's own loader, which reads `dtype` apart from the configuration."""
    with quiet():
        return vptq.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, device_map="auto").eval()


LOADERS = {"transformers": by_transformers, "vptq": by_vptq}


def plain(path, weights=None):
    """An ordinary model in float32, with some of its tensors replaced."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for name, w in (weights or {}).items():
            model.get_parameter(name).copy_(w)
    return model.eval()


def logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor(ids[None].astype("i8"))).logits[0].float().numpy()


def matrices(model):
    """(name, weight that the layer multiplies with) of every quantized layer, by giving it the identity."""
    for name, layer in model.named_modules():
        if isinstance(layer, vptq.VQuantLinear):
            bias, layer.bias = layer.bias, None
            with torch.no_grad():
                w = layer(torch.eye(layer.in_features)).T
            layer.bias = bias
            yield name, w
