"""The net of hostile files: kinds, rows, what must happen, and how one row is run. See run.py.

A row is one line of a table in a rows_*.py:

    config = Kind("config", "m", "pack --list {}")
    config.row("hidden_size 2^31", setting(hidden_size=1 << 31), refused("'hidden_size' is 2147483648"))

It has a name, a function that damages the copy of the kind's input (`m` in a folder of its own, see inputs.py;
`B` there links to all good inputs), what must happen, and the commands if not those of the kind.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

SECRET = "the-password-is-swordfish"
KINDS = []
GROWTH = 20  # bytes of memory that a byte of a file may take: JSON of small values

# Control characters, those that change the direction of text or end lines, and bytes that are not UTF-8.
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# Differs between runs: times, and the estimated memory of a plan, which includes the names of tensors.
TIMES = re.compile(r"\d+\.\d+ s\b([^,\n]*, [^,\n]* of memory)?")
SUMS = "out/SHA256SUMS"  # differs where a file is missing
LEFT_OVER = re.compile(r"\.(tmp|old)\.")


class Limits:
    """What one command may cost. Sanitizers need more of everything, and address space without a limit."""

    def __init__(self, sanitized):
        self.seconds = 30 if sanitized else 10  # of processor time; three times that on the clock
        self.memory = (512 if sanitized else 96) << 20  # peak of resident memory
        self.hard = {"RLIMIT_CPU": self.seconds, "RLIMIT_FSIZE": 256 << 20, "RLIMIT_CORE": 0}
        if not sanitized:
            self.hard["RLIMIT_AS"] = 2 << 30


class Kind:
    """A kind of input. target: its name among the good inputs; commands: run on every row, {} is the target;
    memory: MiB that its rows may take besides, where a documented bound is larger than that of all rows."""

    def __init__(self, name, target, *commands, memory=0):
        self.name, self.target, self.commands, self.memory, self.rows = name, target, commands, memory << 20, []
        KINDS.append(self)

    def row(self, name, change, expect, *commands):
        assert name not in [r.name for r in self.rows], name
        self.rows.append(Row(self, name, change, expect, [c.format(self.target) for c in commands or self.commands]))


class Row:
    def __init__(self, kind, name, change, expect, commands):
        self.kind, self.name, self.change, self.expect, self.commands = kind, name, change, expect, commands


class Result:
    """One command: status (negative: the signal), texts, cost, and what is in the folder afterwards."""

    def __init__(self, command, status, out, err, seconds, memory):
        self.command, self.status, self.out, self.err = command, status, out, err
        self.seconds, self.memory = seconds, memory

    def sentences(self):
        return [x for x in self.err.splitlines() if ": warning: " not in x]

    def told(self):
        return f"exit {self.status}, {self.err[:400]!r} {self.out[:200]!r}"


# --- what must happen: functions of a result and of what the same command gives for good input ---


def refused(pattern, begun=(), status=1):
    """Exit 1 (2 for an impossible setting), nothing on stdout, no output but `begun`, one sentence with the pattern."""

    def check(r, _):
        if r.status != status or r.out or set(r.made) - set(begun):
            return f"expected a refusal: {r.told()}, made {sorted(r.made)[:3]}"
        if len(r.sentences()) != 1 or not re.match(r"vptq-[a-z]+: \S.*[^.]$", r.sentences()[0]):
            return f"expected one sentence: {r.err[:400]!r}"
        if not re.search(pattern, r.sentences()[0]):
            return f"expected the words {pattern!r}: {r.sentences()[0]}"
        return None

    return check


def same_result(r, good):
    if r.status != 0 or (TIMES.sub("", r.out), r.made) != (TIMES.sub("", good.out), good.made):
        return f"expected the result of the good input: {r.told()}"
    return None


def harmless(r, good):
    """The result of the good input, without a warning."""
    if same_result(r, good):
        return same_result(r, good)
    return f"expected no warning: {r.err}" if ": warning: " in r.err and ": warning: " not in good.err else None


def warned(pattern):
    """The result of the good input, with a warning that has the pattern."""

    def check(r, good):
        found = re.search(": warning: .*" + pattern, r.err)
        return same_result(r, good) if found else f"expected a warning {pattern!r}: {r.told()}"

    return check


def without(name):
    """The result of the good input, but that this file is not in the output."""

    def check(r, good):
        made, want = ({k: v for k, v in x.made.items() if k not in ("out/" + name, SUMS)} for x in (r, good))
        if r.status == 0 and made == want and "out/" + name not in r.made:
            return None
        return f"expected all but {name}: {r.told()}, made {sorted(r.made)}"

    return check


def found(pattern):
    """Exit 3 of --check, and the pattern in a line of its report."""

    def check(r, _):
        if r.status != 3:
            return f"expected a finding: {r.told()}"
        return None if re.search(pattern, r.out + r.err) else f"expected the words {pattern!r}: {r.told()}"

    return check


def shown(pattern):
    """Exit 0, and the pattern in what is printed."""

    def check(r, _):
        return None if r.status == 0 and re.search(pattern, r.out + r.err) else f"expected {pattern!r}: {r.told()}"

    return check


# --- running ---


class Launcher:
    """The process that starts this process's commands, see launch.py."""

    process = None

    @classmethod
    def ask(cls, *request):
        if not cls.process:
            cls.process = subprocess.Popen(
                [sys.executable, "-S", Path(__file__).parent / "launch.py"],
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        cls.process.stdin.write(json.dumps(request) + "\n")
        cls.process.stdin.flush()
        return json.loads(cls.process.stdout.readline())


def run(command, folder, tools, limits):
    """Runs a command in a folder."""
    tool, *words = command.split()
    env = {
        "PATH": os.environ["PATH"],
        "LC_ALL": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "HOME": str(folder),
        **{k: v for k, v in os.environ.items() if k.endswith("SAN_OPTIONS")},
    }
    words += ["-t", "1"] if words[0] != "compare" else []
    status, seconds, memory = Launcher.ask(
        [str(tools / ("vptq-" + tool)), *words], str(folder), env, limits.hard, 3 * limits.seconds
    )
    texts = []
    for name in ".stdout", ".stderr":
        texts.append((folder / name).read_bytes().decode("utf-8", "surrogateescape"))
        (folder / name).unlink()
    return Result(command, status, *texts, seconds, memory)


def tree(folder):
    """Everything in a folder: type and content by path; links are not followed."""
    found = {}
    for top, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(top, name)
            mode = os.lstat(path).st_mode
            key = os.path.relpath(path, folder)
            if stat.S_ISLNK(mode):
                found[key] = "link " + os.readlink(path)
            elif stat.S_ISREG(mode) and os.stat(path).st_size < 1 << 24:
                with open(path, "rb") as f:
                    found[key] = hashlib.sha256(f.read()).hexdigest()
            else:
                found[key] = stat.S_IFMT(mode), os.lstat(path).st_size if stat.S_ISREG(mode) else 0
    return found


def cost(r, limits, memory):
    """The complaint about a result that no row may have."""
    if r.status == -signal.SIGXCPU or r.seconds > limits.seconds:
        return f"more than {limits.seconds} seconds of processor time"
    if r.status == -signal.SIGKILL:
        return f"no answer within {3 * limits.seconds} seconds"
    if r.status not in (0, 1, 2, 3):
        return f"ended with status {r.status}: {r.err[-1500:]}"
    if r.memory > limits.memory + memory + GROWTH * r.read:
        return f"peak of {r.memory >> 20} MiB for {r.read >> 20} MiB of files"
    bad = FORBIDDEN.search(r.out + r.err)
    if bad:
        return f"raw character {bad.group()!r}: {(r.out + r.err)[max(bad.start() - 60, 0):][:120]!r}"
    if "out of memory" in r.err:
        return f"out of memory: {r.err}"
    if SECRET in r.out + r.err:
        return f"shows the secret: {r.out}{r.err}"
    return None


def leaked(folder, made):
    for name in made:
        path = folder / name
        if (
            path.is_file()
            and not path.is_symlink()
            and path.stat().st_size < 1 << 24
            and SECRET.encode() in path.read_bytes()
        ):
            return f"copies the secret to {name}"
    return None


class Place:
    """Runs rows: tools under test, good inputs, a folder for cases."""

    def __init__(self, tools, good, work, limits):
        self.tools, self.good, self.work, self.limits, self.results = tools, good, work, limits, {}

    def prepare(self, row, folder):
        """A folder with the kind's input, a link to all good ones, and a secret outside of the input."""
        folder.mkdir()
        source = self.good / row.kind.target
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, folder / row.kind.target)
        (folder / "B").symlink_to(self.good)
        (folder / "secret.txt").write_text(SECRET + "\n")
        return folder / row.kind.target

    def outcome(self, command, folder):
        """Runs a command; checks that it changed nothing but its output, which it removes afterwards."""
        before = tree(folder)
        size = sum(os.lstat(folder / k).st_blocks * 512 for k in before)
        r = run(command, folder, self.tools, self.limits)
        r.read = size
        after = tree(folder)
        words = command.split()
        output = words[words.index("-o") + 1] if "-o" in words else "out"
        mine = {k for k in before.keys() | after.keys() if k.split("/")[0] == output.split("/")[0]}
        r.made = {k: v for k, v in after.items() if k in mine} if output not in before else {}
        changed = sorted(k for k in (before.keys() | after.keys()) - mine if before.get(k) != after.get(k))
        r.wrong = (
            f"changed {changed[:3]}" if changed else leaked(folder, [k for k in mine if before.get(k) != after.get(k)])
        )
        left = [k for k in after if LEFT_OVER.search(k) and k not in before]
        r.wrong = r.wrong or (f"left {left[0]}" if left else None)
        r.made.pop(output + "/lock", None)
        for name in {k.split("/")[0] for k in r.made}:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        return r

    def good_result(self, row, command):
        if (row.kind.name, command) not in self.results:
            folder = self.work / ("good-%d" % os.getpid())
            self.prepare(row, folder)
            self.results[row.kind.name, command] = self.outcome(command, folder)
            shutil.rmtree(folder)
        return self.results[row.kind.name, command]

    def judge(self, row):
        """Runs a row. Returns (complaint or None, slowest seconds, highest peak, texts)."""
        folder = self.work / ("%s-%d" % (row.kind.name, row.kind.rows.index(row)))
        target = self.prepare(row, folder)
        row.change(target)
        complaint, seconds, memory, texts = None, 0, 0, []
        for command in row.commands:
            good = self.good_result(row, command)
            r = self.outcome(command, folder)
            seconds, memory = max(seconds, r.seconds), max(memory, r.memory)
            texts.append(f"vptq-{command}: {r.told()}")
            wrong = cost(r, self.limits, row.kind.memory) or r.wrong or row.expect(r, good)
            if wrong and not complaint:
                complaint = f"vptq-{command}: {wrong}"
        shutil.rmtree(folder)
        return complaint, seconds, memory, texts
