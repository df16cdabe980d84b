#!/usr/bin/env python3
"""Writes a wheel with programs, from a folder in which `make install-tools` has put them.

usage: wheel.py STAGE OUT NAME VERSION PLATFORM README SBOM LICENSE..

STAGE/bin becomes scripts, which pip puts into PATH, and STAGE/share goes to share of the environment. The same
files give the same bytes; times are SOURCE_DATE_EPOCH. LICENSE is FILE, or NAME=FILE for a library in the programs.
"""
import base64
import hashlib
import os
import sys
import time
import zipfile
from pathlib import Path

SUMMARY = "Vector post-training quantization of language models: command-line tools"


def contents(stage, info, data, version, platform, readme, sbom, licenses):
    """Yields (name in the wheel, bytes, mode) of all files but RECORD."""
    for path in sorted(p for p in stage.rglob("*") if p.is_file()):
        place = path.relative_to(stage)
        if place.parts[0] == "bin":
            yield f"{data}/scripts/{place.name}", path.read_bytes(), 0o755
        else:
            yield f"{data}/data/{place.as_posix()}", path.read_bytes(), 0o644
    names = []
    for given in licenses:
        name, _, path = given.rpartition("=")
        names.append(name + ".txt" if name else Path(path).name)
        yield f"{info}/licenses/{names[-1]}", Path(path).read_bytes(), 0o644
    yield f"{info}/sboms/{sbom.name}", sbom.read_bytes(), 0o644
    head = [
        "Metadata-Version: 2.4",
        "Name: vptq-tools",
        f"Version: {version}",
        f"Summary: {SUMMARY}",
        "License-Expression: MIT",
        *(f"License-File: {name}" for name in names),
        "Requires-Python: >=3.8",
        "Description-Content-Type: text/markdown",
    ]
    yield f"{info}/METADATA", ("\n".join(head) + "\n\n" + readme.read_text()).encode(), 0o644
    tag = f"Wheel-Version: 1.0\nGenerator: wheel.py\nRoot-Is-Purelib: false\nTag: py3-none-{platform}\n"
    yield f"{info}/WHEEL", tag.encode(), 0o644


def main(stage, out, name, version, platform, readme, sbom, *licenses):
    module = name.replace("-", "_")
    info, data = f"{module}-{version}.dist-info", f"{module}-{version}.data"
    # Zip archives know no time before 1980.
    date = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", 0)), 315532800))[:6]
    path = Path(out) / f"{module}-{version}-py3-none-{platform}.whl"
    record = ""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(str(path) + ".tmp", "w") as wheel:

        def add(member, content, mode):
            entry = zipfile.ZipInfo(member, date)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, on every system
            entry.external_attr = (0o100000 | mode) << 16
            wheel.writestr(entry, content)

        for member, content, mode in contents(
            Path(stage), info, data, version, platform, Path(readme), Path(sbom), licenses
        ):
            add(member, content, mode)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record += f"{member},sha256={digest},{len(content)}\n"
        add(f"{info}/RECORD", (record + f"{info}/RECORD,,\n").encode(), 0o644)
    os.replace(str(path) + ".tmp", path)
    print(path)


if __name__ == "__main__":
    if len(sys.argv) < 9:
        sys.exit(__doc__)
    main(*sys.argv[1:])
