#!/usr/bin/env python3
"""make style: the words that docs/style.md asks to avoid, in comments, strings and documents.

usage: check_style.py [--counts] [FILE..]      (default: every tracked source and document)
       check_style.py --self-test

Prints FILE:LINE: the words found and what to write instead, and exits with 1 if there are any.
scripts/style_allow.txt lists the exceptions, each with its reason.
"""
import fnmatch
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOW = ROOT / "scripts" / "style_allow.txt"

# (regular expression, what to write instead)
WORDS = [
    (r"\bbooks?\b", "codebook"),
    (r"\bfinders?\b", "search index"),
    (r"\bstrips?\b", "vector row, or tile"),
    (r"\btaps?\b", "hook"),
    (r"\brooms\b|\broom of\b", "module"),
    (r"\blinears\b", "linear layers, weight matrices"),
    (r"\brows of x\b", "tokens, batch rows"),
    (r"\b(is|are|was|were) (taken back|undone)\b|\btakes? back\b", "reverted"),
    (r"\b(made|make|makes|making) good\b", "compensate"),
    (r"\bheld against\b", "compared with, checked against"),
    (r"\bin the way\b", "the reason"),
    (r"\bby heart\b", "overfitted"),
    (r"\bheap of\b", "many"),
    (r"\brecorded base\b", "saved base logits"),
    (r"\bbehind\b", "after"),
    (r"\bin front of\b", "before"),
    (r"\bbeside\b", "next to, compared with"),
    (r"(?<![Tt]here )\b(is|are|was|were) no (?!longer\b|more\b)", "is not a"),
    (r"\b(is|are) there twice\b", "appears twice, duplicate"),
    (r"\b(is|are|was|were|be) told\b", "reported"),
    (r"\b(is|are|was|were|be) asked for\b", "required, requested"),
    (r"\b(is|are|was|were|be) looked (at|for)\b", "measured, checked, searched"),
    (r"\bthat (cannot|can not) be\b(?! [a-z])", "impossible, invalid"),
]
# At the beginning of a comment.
OPENINGS = (r"(What|Who|Whom|Whose|How many|How much)\b", "begin with a verb or the thing")

C_TOKEN = re.compile(
    r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S
)


def blank(text):
    """Spaces in place of text, so that offsets still tell lines."""
    return re.sub(r"[^\n]", " ", text)


def prose_of_c(text):
    """Comments and string literals of C at their places, without what marks them."""
    out, at, openings = [], 0, []
    for m in C_TOKEN.finditer(text):
        out.append(blank(text[at : m.start()]))
        token = m[0]
        if token.startswith("/"):
            openings.append(m.start() + len(re.match(r"/[*/]+[\s-]*", token)[0]))
            token = re.sub(r"^/[*/]", "  ", re.sub(r"\*/$", "  ", token))
            token = re.sub(r"(?m)^(\s*)\*", r"\1 ", token)
        elif token.startswith("'") or is_include(text, m.start()):
            token = blank(token)
        else:
            token = " " + re.sub(r"\\[nt]", "  ", token[1:-1]) + " "
        out.append(token)
        at = m.end()
    out.append(blank(text[at:]))
    return "".join(out), openings


def is_include(text, at):
    return text[text.rfind("\n", 0, at) + 1 : at].lstrip().startswith("#")


def prose_of_shell(text):
    """Comments and double-quoted strings of a shell script, a Makefile or a Python program."""
    out = []
    for line in text.splitlines():
        comment = re.search(r"(^|\s)#(?!!)(.*)", line)
        code = line[: comment.start()] if comment else line
        out.append(" ".join(re.findall(r'"[^"]*"', code)) + " " + (comment[2] if comment else ""))
    return "\n".join(out) + "\n", []


def prose_of_document(text):
    """A document without its code: indented and fenced blocks and `code` are blanked."""
    text = re.sub(r"(?ms)^```.*?^```", lambda m: blank(m[0]), text)
    text = re.sub(r"(?m)^(    |\t).*$", lambda m: blank(m[0]), text)
    text = re.sub(r"`[^`\n]*`", lambda m: blank(m[0]), text)
    text = re.sub(r"\]\([^)]*\)", lambda m: blank(m[0]), text)
    return text, []


def prose(path, text):
    if path.suffix in (".c", ".h", ".cu", ".cc"):
        return prose_of_c(text)
    if path.suffix in (".md", ".scd"):
        return prose_of_document(text)
    return prose_of_shell(text)


def read_allowed():
    """[(file pattern, words)] of the allow-list."""
    allowed = []
    for number, line in enumerate(ALLOW.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 3 or not all(parts):
            sys.exit(f"{ALLOW.name}:{number}: expected FILE | WORDS | REASON")
        allowed.append((parts[0], parts[1].lower()))
    return allowed


def findings(path, name, text, allowed):
    """Yields (line, words, what to write instead)."""
    clean, openings = prose(path, text)
    for pattern, better in WORDS:
        for m in re.finditer(pattern, clean, re.I):
            line = clean[clean.rfind("\n", 0, m.start()) + 1 :].split("\n", 1)[0]
            if not is_allowed(allowed, name, line):
                yield clean.count("\n", 0, m.start()) + 1, m[0].strip(), better
    for at in openings:
        m = re.match(OPENINGS[0], clean[at:])
        if m and not is_allowed(allowed, name, clean[at:].split("\n", 1)[0]):
            yield clean.count("\n", 0, at) + 1, m[0], OPENINGS[1]


def is_allowed(allowed, name, line):
    line = re.sub(r"\s+", " ", line.lower())
    return any(fnmatch.fnmatch(name, files) and words in line for files, words in allowed)


def sources():
    names = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()
    for name in names:
        path = ROOT / name
        left_out = ("docs/results/", "tests/golden/", "tests/fuzz/corpus/", "docs/style.md", "scripts/check_style.py")
        known = path.suffix in (".c", ".h", ".cu", ".cc", ".md", ".scd", ".sh", ".py") or path.name == "Makefile"
        if known and not name.startswith(left_out) and path.is_file():
            yield name


def check(names, counts):
    allowed, total = read_allowed(), 0
    for name in names:
        text = (ROOT / name).read_text(encoding="utf-8")
        found = sorted(findings(ROOT / name, name, text, allowed))
        total += len(found)
        if counts and found:
            print(f"{len(found):5} {name}")
        for line, words, better in [] if counts else found:
            print(f"{name}:{line}: '{words}': write {better}")
    if total:
        print(f"style: {total} findings; docs/style.md has the rules", file=sys.stderr)
    return 1 if total else 0


def self_test():
    bad = 'int x; /* What is behind\n * the book */ f("is no number", "finder");\n'
    found = sorted(findings(Path("a.c"), "a.c", bad, []))
    assert [(line, words) for line, words, _ in found] == [
        (1, "What"), (1, "behind"), (2, "book"), (2, "finder"), (2, "is no")], found
    good = '#include "lib/book/strip.h"\n/* There is no codebook. */ int book = strip; f("codebook");\n'
    assert not list(findings(Path("a.c"), "a.c", good, []))
    assert not list(findings(Path("a.md"), "a.md", "Use `--books`.\n\n    book\n", []))
    assert list(findings(Path("a.md"), "a.md", "a book\n", []))
    assert list(findings(Path("a.sh"), "a.sh", "x=1 # behind it\n", []))
    assert not list(findings(Path("a.sh"), "a.sh", "behind=1\n", []))
    assert not list(findings(Path("a.md"), "a.md", "strip blanks\n", [("a.*", "strip blanks")]))
    return 0


def main():
    words = sys.argv[1:]
    if words == ["--self-test"]:
        return self_test()
    counts = "--counts" in words
    names = [w for w in words if w != "--counts"]
    return check(names or list(sources()), counts)


if __name__ == "__main__":
    sys.exit(main())
