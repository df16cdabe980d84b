"""Opens a GGUF model with llama.cpp's Python package, for the checks of GGUF files."""
import llama_cpp.llama_cpp as lib
from llama_cpp import Llama

F32 = 0  # ggml's number of the type


def open_model(path, context):
    """Logits of every token, keys and values in F32, and weights where the file has them: kernels with
    a layout of their own (AMX and others) round differently, and die on some virtual machines."""
    default = lib.llama_model_default_params

    def plain():
        params = default()
        params.use_extra_bufts = False
        return params

    lib.llama_model_default_params = plain
    try:
        return Llama(path, n_ctx=context, n_batch=context, logits_all=True, type_k=F32, type_v=F32, verbose=False)
    finally:
        lib.llama_model_default_params = default
