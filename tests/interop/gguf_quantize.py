#!/usr/bin/env python3
"""Has llama.cpp quantize the linear layers of a GGUF file: gguf_quantize.py IN OUT FILE_TYPE

All of them to the one type of this file type; embedding and output head become F16.  Needs: llama-cpp-python.
"""
import ctypes
import sys

import llama_cpp.llama_cpp as lib

F16 = 1  # ggml's number of the type

params = lib.llama_model_quantize_default_params()
params.ftype = int(sys.argv[3])
params.pure = True
params.token_embedding_type = params.output_tensor_type = F16
sys.exit(lib.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), ctypes.byref(params)))
