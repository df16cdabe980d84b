#!/usr/bin/env python3
"""Makes share/calibration.txt, the text that the tools calibrate on by default: prose, articles, code, chat and
other languages, about 1.5 MB that may be passed on (share/README.md names sources and licences).

usage: make_calibration_text.py VOLUMES.txt.xz VOLUMES.list WIKI.utf8 CHAT.txt PYTHON_LIB LIBREOFFICE_HELP > calibration.txt
  VOLUMES     novels and others between lines '<|endoftext|>', and their names, one 'Author/Title.txt' a line
  WIKI        articles as WikiExtractor writes them
  CHAT        dialogues
  PYTHON_LIB  folder of Python's standard library
  LIBREOFFICE_HELP  folder with a folder of HTML pages for every language

Pieces of the five kinds follow each other in a fixed order, so that any part of the text has all of them. Prints the
titles of the articles, which their licence asks for, on stderr.
"""

import html
import itertools
import lzma
import re
import sys
from pathlib import Path

PASSAGE, PASSAGES = 14000, 26  # characters of each; how many
ARTICLES, ARTICLE = 330000, (1500, 9000)  # bytes in all, and of one
CODE, MODULE = 200000, 9000
LANGUAGE, PAGE = 46000, 1200  # bytes of a language, and least of a page
OWN = "lib/encoder/encoder.c lib/model/forward.c scripts/demo.sh tests/cli/lib.sh"
MODULES = "argparse bisect collections/__init__ csv dataclasses datetime difflib fractions functools glob heapq "
MODULES += "html/parser json/decoder json/encoder logging/__init__ random shutil statistics textwrap zipfile"


def passages(path, names):
    whole = lzma.open(path, "rt", encoding="utf8").read().split("<|endoftext|>")
    for i in range(PASSAGES):
        text = whole[i * len(whole) // PASSAGES].strip()
        begin = text.index("\n", len(text) // 3) + 1
        end = text.rfind("\n", begin, begin + PASSAGE)
        yield text[begin : end if end > begin else begin + PASSAGE] + "\n"


def articles(path):
    total = 0
    for m in re.finditer(r'<doc id="(\d+)" url="([^"]*)" title="([^"]*)">\n(.*?)</doc>', Path(path).read_text("utf8"), re.S):
        text = m[4].strip() + "\n"
        if not ARTICLE[0] <= len(text) <= ARTICLE[1]:
            continue
        total += len(text.encode())
        if total > ARTICLES:
            return
        print(f"{html.unescape(m[3])}  https://en.wikipedia.org/wiki?curid={m[1]}", file=sys.stderr)
        yield text


def code(library):
    for name in OWN.split():
        yield Path(name).read_text("utf8")[:MODULE].rsplit("\n", 1)[0] + "\n"
    total = 0
    for name in MODULES.split():
        text = Path(library, name + ".py").read_text("utf8")[:MODULE].rsplit("\n", 1)[0] + "\n"
        total += len(text)
        if total > CODE:
            return
        yield text


def pages(folder):
    total = 0
    for path in sorted(folder.rglob("*.html")):
        found = re.findall(r'<p[^>]*class="paragraph"[^>]*>(.*?)</p>', path.read_text("utf8"), re.S)
        lines = [" ".join(html.unescape(re.sub(r"<[^>]*>", "", p)).split()) for p in found]
        text = "\n".join(line for line in lines if len(line.encode()) > 90) + "\n"
        if len(text.encode()) < PAGE:
            continue
        total += len(text.encode())
        if total > LANGUAGE:
            return
        yield text


def languages(folder):
    each = [pages(f) for f in sorted(Path(folder).iterdir()) if f.is_dir()]
    for row in itertools.zip_longest(*each):
        yield from (text for text in row if text)


def dialogues(path):
    parts = re.split(r"\n\n(?=User: )", Path(path).read_text("utf8").strip())
    yield from (p.strip() + "\n" for p in parts if len(p) > 300)


def mixed(kinds):
    """Takes from the kind of which the smallest part is used so far."""
    lists = [list(k) for k in kinds]
    used = [0] * len(lists)
    while True:
        left = [i for i in range(len(lists)) if used[i] < len(lists[i])]
        if not left:
            return
        i = min(left, key=lambda n: used[n] / len(lists[n]))
        yield lists[i][used[i]]
        used[i] += 1


def main(book_file, names, wiki, chat, library, help_folder):
    kinds = passages(book_file, names), articles(wiki), code(library), dialogues(chat), languages(help_folder)
    sys.stdout.buffer.write("\n".join(mixed(kinds)).replace("\0", "").encode())


main(*sys.argv[1:])
