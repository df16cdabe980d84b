#!/usr/bin/env python3
"""Compares the logits that llama.cpp computes for a GGUF file with stored ones: gguf_logits.py FILE IDS LOGITS N

IDS: int32; LOGITS: .npy [tokens, vocabulary].  The first N tokens are compared: prints the largest
difference as a share of the largest logit, and fails from 1e-4 on.  Needs: llama-cpp-python, numpy.
"""
import sys

import numpy as np
from gguf_model import open_model


def main():
    path, ids, want, n = sys.argv[1], np.fromfile(sys.argv[2], "<i4"), np.load(sys.argv[3]), int(sys.argv[4])
    model = open_model(path, 64)
    model.eval(ids[:n].tolist())
    got = np.asarray(model.scores[:n], dtype=np.float64)
    error = np.abs(got - want[:n]).max() / np.abs(want[:n]).max()
    print(f"{error:.1e}")
    sys.exit(not error < 1e-4)


main()
