"""What the rows do to the copy of an input: each function here returns a function of the input's path."""

import json
import os
import shutil

import forge

OUTSIDE = "/tmp/vptq-hostile-evil"  # a file that nothing may make

# Text that moves the cursor, rings, turns the direction of text, ends lines, and is not a number.
BAD = "x\x1b[2J\x07\x7f\x9b31m\u202e\u2028\u2066\rnew\nforged: line"


def both(*changes):
    def change(t):
        for c in changes:
            c(t)

    return change


def write(name, content):
    """A file of this text or these bytes, or of what a function returns; name "" is the input itself."""

    def change(t):
        data = content() if callable(content) else content
        (t / name if name else t).write_bytes(
            data if isinstance(data, bytes) else data.encode("utf-8", "surrogateescape")
        )

    return change


def remove(name):
    return lambda t: (t / name).unlink()


def _instead(name, make):
    def change(t):
        path = t / name if name else t
        if path.is_dir():
            shutil.rmtree(path)
        elif path.exists():
            path.unlink()
        make(path)

    return change


def link(name, to):
    return _instead(name, lambda path: path.symlink_to(to))


def fifo(name):
    return _instead(name, os.mkfifo)


def folder(name):
    return _instead(name, lambda path: path.mkdir())


def cut(name, n):
    """The first n bytes of a file, or all but the last -n."""
    return lambda t: (t / name if name else t).write_bytes((t / name if name else t).read_bytes()[:n])


def sparse(name, size):
    """A file that is followed by zeros up to this size without taking disk space."""
    return lambda t: os.truncate(t / name if name else t, size)


def json_file(name, change):
    return lambda t: forge.edit_json(t / name if name else t, change)


def setting(**values):
    """Other values of config.json."""
    return json_file("config.json", lambda c: c.update(values))


def replace(name, old, new):
    """Another text in place of the first `old` of a file."""

    def change(t):
        path = t / name if name else t
        raw = path.read_bytes()
        assert old.encode() in raw, f"no {old} in {name}"
        path.write_bytes(raw.replace(old.encode(), new if isinstance(new, bytes) else new.encode(), 1))

    return change


def at(name, offset, raw):
    """Other bytes at an offset; a negative one counts from the end."""

    def change(t):
        path = t / name if name else t
        data = bytearray(path.read_bytes())
        place = offset if offset >= 0 else len(data) + offset
        data[place : place + len(raw)] = raw
        path.write_bytes(data)

    return change


def tensors(change, name="model.safetensors", sealed=True):
    return lambda t: forge.edit_tensors(t / name, change, sealed)


def quantization(change):
    """Other values of config.json's quantization_config."""
    return json_file("config.json", lambda c: change(c["quantization_config"]))


def matrix_entry(name, **values):
    """Other values in the config entry of a work directory's matrix."""

    def change(s):
        meta = s.header["__metadata__"]
        meta["entry"] = json.dumps({**json.loads(meta["entry"]), **values})

    return tensors(change, name)


def gguf(change):
    return lambda t: forge.edit_gguf(t, change)


def archive(change):
    return lambda t: forge.edit_archive(t, change)
