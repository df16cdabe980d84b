#!/usr/bin/env python3
"""Runs the net of hostile files (make run-hostile): directories, archives, tokenizers, templates and records whose
names, links, sizes, characters or growth are meant to harm, each with what must happen.

usage: run.py --bin DIR [-v] [--time] [PATTERN..]
  --bin DIR   tools to test
  -v          what every row's commands answer
  --time      the slowest and the largest rows
  PATTERN     only rows whose KIND/NAME match one of these shell patterns

Whatever a row expects, each of its commands must end within Limits (net.py) with status 0, 1 or 3, print no raw
control character and no secret, leave its input and everything else as it was, and leave no temporary file.

The files:  net.py     rows, expectations, limits, how a row is run and judged
            launch.py  starts commands
            inputs.py  the good inputs, made once by the tools under test
            forge.py   every format, read and written with room for lies
            rows_*.py  the tables
Needs Python 3.9 and nothing else; without it `make check` skips the net by name. Prints a line per kind, then
"N passed, N failed"; with TALLY=FILE a line per kind is appended to FILE, as scripts/test_pool.sh does.
"""

import fnmatch
import importlib
import multiprocessing
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import changes  # noqa: E402
import inputs  # noqa: E402
import net  # noqa: E402

for table in sorted(Path(__file__).parent.glob("rows_*.py")):
    importlib.import_module(table.stem)


def judge(job):
    kind, row, place = job
    try:
        return place.judge(net.KINDS[kind].rows[row])
    except Exception as e:  # a row that cannot be made is a failed row
        return f"cannot run: {type(e).__name__}: {e}", 0, 0, []


def main(words):
    options = [w for w in words if w in ("-v", "--time")]
    words = [w for w in words if w not in options]
    tools = Path(words[words.index("--bin") + 1]).resolve()
    patterns = [w for i, w in enumerate(words) if w != "--bin" and words[i - 1] != "--bin"] or ["*"]
    work = Path(tempfile.mkdtemp(prefix="hostile."))
    try:
        return run_all(tools, work, options, patterns)
    finally:
        shutil.rmtree(work)


def run_all(tools, work, options, patterns):
    sanitized = "address" in str(tools)
    if sanitized:  # a huge allocation is a finding, too
        os.environ["ASAN_OPTIONS"] = ":".join(
            filter(
                None, [os.environ.get("ASAN_OPTIONS"), "max_allocation_size_mb=1024:intercept_memmem=0", "exitcode=99"]
            )
        )
    limits = net.Limits(sanitized)
    inputs.make(work / "good", tools)
    before = net.tree(work / "good")
    place = net.Place(tools, work / "good", work, limits)
    jobs = [
        (k, r, place)
        for k, kind in enumerate(net.KINDS)
        for r, row in enumerate(kind.rows)
        if any(fnmatch.fnmatch(f"{kind.name}/{row.name}", p) for p in patterns)
    ]
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        answers = dict(zip([j[:2] for j in jobs], pool.imap(judge, jobs, chunksize=4)))
    passed = failed = 0
    tally = []
    if net.tree(work / "good") != before or os.path.exists(changes.OUTSIDE):
        failed += 1
        tally.append("0 1 0 hostile")
        print("not ok hostile: a row changed the good inputs or wrote outside of its folder")
    for k, kind in enumerate(net.KINDS):
        mine = {r: a for (i, r), a in answers.items() if i == k}
        bad = {r: a for r, a in mine.items() if a[0]}
        passed, failed = passed + len(mine) - len(bad), failed + len(bad)
        tally.append(f"{len(mine) - len(bad)} {len(bad)} 0 hostile/{kind.name}")
        if bad:
            print(f"not ok hostile/{kind.name}: {len(bad)} of {len(mine)} failed")
        elif mine:
            print(f"ok hostile/{kind.name}: {len(mine)}")
        for r, (complaint, _, _, texts) in mine.items():
            if complaint:
                print(f"    {kind.rows[r].name}: {complaint}")
            if "-v" in options:
                print("\n".join(f"    {kind.rows[r].name}: {t}" for t in texts))
    if "--time" in options:
        names = {(k, r): f"{net.KINDS[k].name}/{net.KINDS[k].rows[r].name}" for k, r in answers}
        for key, unit in (1, 1), (2, 1 << 20):
            for at in sorted(answers, key=lambda a: -answers[a][key])[:8]:
                print(f"# {names[at]}: {answers[at][key] / unit:.2f} {'seconds' if key == 1 else 'MiB'}")
    print(f"{passed} passed, {failed} failed")
    if os.environ.get("TALLY"):
        with open(os.environ["TALLY"], "a") as f:
            f.write("\n".join(tally) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
