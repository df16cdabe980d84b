#!/usr/bin/env python3
"""Chat templates and expressions through our interpreter and through jinja2 with the settings of transformers: same
texts, and an error where jinja2 has one.

    python3 tests/interop/check_templates.py [--pipe PROGRAM] [--seed N] [--chats N] [--expressions N] [FILE..]

PROGRAM is template_pipe (make build/release/tests/interop/template_pipe).  FILE is a template, or a directory of *.jinja;
those of tests/golden/chat_templates are always taken.  Every template renders N random conversations; N random
expressions are rendered as they are.  What we say is not supported is counted apart and shown.  Exit 1 when anything
differs.  Needs jinja2."""

import argparse
import collections
import copy
import datetime
import glob
import json
import os
import random
import re
import subprocess
import sys
import warnings

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
DATE = "2026-02-03T16:05:09"


class Generation(jinja2.ext.Extension):
    """{% generation %}, a function of its own as in transformers' AssistantTracker."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(line)

    def _support(self, caller):
        return caller()


def environment(date):
    """As transformers 4.57.6 makes it, with a given date."""
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    if date:
        env.globals["strftime_now"] = datetime.datetime.fromisoformat(date).strftime
    return env


def expected(text, variables, date):
    try:
        return {"text": environment(date).from_string(text).render(**copy.deepcopy(variables))}
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"}


class Pipe:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def render(self, text, variables, date):
        job = json.dumps({"template": text, "variables": variables, "date": date})
        self.process.stdin.write(job.encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the program ended at: {job}")
        return json.loads(line)


# --- conversations ---

TEXTS = [
    "Hello", " What is 2 + 2?\n", "", "  \n", "Zażółć gęślą jaźń 😀", "<think>\nhm\n</think>\n\nFour.", "a<|im_end|>b",
    "line one\nline two\r\nline three", "</think>", "{{ x }} {% if %}", "<tool_response>\n1\n</tool_response>", "\"quoted\" 'text' \\ \t",
    "日本語のテキスト", "<think>", "[INST] x [/INST]", "1", "None",
]
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Weather of a <place> & 'time'", "parameters": {
        "type": "object", "required": ["place"], "properties": {
            "place": {"type": "string", "description": "Where?"}, "days": {"type": "integer", "enum": [1, 2, 3]},
            "units": {"type": ["string", "null"], "default": None}}}}},
    {"type": "function", "function": {"name": "zero", "description": "Nothing", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "half", "description": "", "parameters": {"type": "object", "properties": {
        "x": {"type": "number", "default": 0.5}, "flag": {"type": "boolean", "default": True},
        "list": {"type": "array", "items": {"type": "string"}}}}, "strict": True}},
]


def content(r):
    kind = r.random()
    if kind < 0.96:
        return r.choice(TEXTS)
    if kind < 0.98:
        return None
    return [{"type": "text", "text": r.choice(TEXTS)} if r.random() < 0.8 else {"type": "image", "image": "x.png"}
            for _ in range(r.randrange(3))]


def call(r):
    arguments = r.choice([{}, {"place": "Łódź"}, {"x": 1.5, "n": None, "deep": {"a": [1, True, "b"]}}, '{"place": "x"}'])
    function = {"name": r.choice(["weather", "zero"]), "arguments": arguments}
    return {"id": "call_%04d" % r.randrange(9999), "type": "function", "function": function} if r.random() < 0.8 else function


def message(r, role):
    m = {"role": role, "content": content(r)}
    if role == "assistant" and r.random() < 0.25:
        m["tool_calls"] = [call(r) for _ in range(r.randrange(1, 3))]
        if r.random() < 0.5:
            m["content"] = r.choice(["", None])
    if role == "assistant" and r.random() < 0.2:
        m["reasoning_content"] = r.choice(TEXTS)
    if role == "tool":
        m["tool_call_id"] = "call_0001"
        m["name"] = "weather"
    if r.random() < 0.02:
        del m["content"]
    return m


def conversation(r):
    roles = ["system"] * (r.random() < 0.5)
    for _ in range(r.randrange(1, 5)):
        roles += ["user", "assistant"]
        if r.random() < 0.2:
            roles += ["tool"] * r.randrange(1, 3) + ["assistant"]
    if r.random() < 0.7:
        roles.pop()
    if r.random() < 0.1:
        r.shuffle(roles)
    if r.random() < 0.05:
        roles.append(r.choice(["developer", "system", "critic"]))
    v = {"messages": [message(r, role) for role in roles], "add_generation_prompt": r.random() < 0.7}
    v["tools"] = r.sample(TOOLS, r.randrange(1, 4)) if r.random() < 0.3 else None
    v["documents"] = None
    for name, text in (("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")):
        if r.random() < 0.9:
            v[name] = text
    for name, values in (("enable_thinking", [True, False]), ("thinking", [True, False]), ("date_string", ["26 Jul 2024"]),
                         ("reasoning_effort", ["low", "high"]), ("custom_tools", [None]), ("preserve_thinking", [True, False]),
                         ("add_vision_id", [True]), ("tools_in_user_message", [True, False]), ("builtin_tools", [["web_search"]])):
        if r.random() < 0.25:
            v[name] = r.choice(values)
    return v


# --- expressions ---

VARIABLES = {
    "s": "Hello, World", "t": "  żółw\n ", "e": "", "n": 7, "z": 0, "m": -3, "f": 2.5, "g": -0.125, "yes": True, "no": False, "nil": None,
    "l": [3, 1, 2], "ls": ["b", "a", "C", "a"], "d": {"b": 1, "a": [1, "x"], "items": 5}, "el": [], "ed": {},
    "rows": [{"k": "x", "v": 1}, {"k": "Y", "v": 2, "deep": {"q": [9]}}, {"k": "z", "v": None}], "mixed": [1, "1", 1.0, None, True, [2], {"a": 2}],
}
NAMES = list(VARIABLES) + ["missing"]
CONSTANTS = ["0", "1", "-1", "2", "3", "100", "'a'", "'l'", "''", "' '", "'\\n'", "\"it's\"", "'o, W'",
             "'ßé'", "'\\t'", "true", "False", "none", "[]", "{}", "()", "(1,)", "[1, 'a', none]", "{'a': 1, 'b': [true]}", "'\\\\d'"]
FILTERS = ["trim", "upper", "lower", "length", "first", "last", "list", "string",
           "tojson", "tojson(indent=2)", "tojson(ensure_ascii=true)",
           "tojson(separators=(',', ':'))", "join", "join(', ')", "default('x')", "default('x', true)", "sort",
           "dictsort", "items|list", "min", "safe", "indent", "indent(2, true)", "replace('l', 'L')", "map('upper')|list",
           "map(attribute='k')|list", "map(attribute='v', default=5)|list",
           "selectattr('v')|list", "selectattr('v', 'none')|list", "rejectattr('k', 'equalto', 'x')|list",
           "reject('number')|list", "reject('string')|list", "map('default', 1)|join('/')",
           "selectattr('k', 'eq', 'x')|map(attribute='k')|join(',')", "trim('H d')", "sort(attribute='k')", "items",
           "map('string')|list|tojson"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number",
         "boolean", "true", "false", "eq 7", "equalto('x')"]
METHODS = ["upper()", "title()", "strip()", "lstrip()", "rstrip()", "strip('H ')",
           "split(',')", "split('l', 1)", "startswith('He')", "startswith(('x', 'H'))",
           "endswith('d')", "replace('l', 'LL')", "items()|list", "get('a')", "get('zz', 5)", "get('b')", "append(1)", "items", "k", "a", "b",
           "v", "update({})", "pop()"]
SUBSCRIPTS = ["0", "1", "-1", "5", "'a'", "'b'", "'items'", "'k'", "1:", ":1", "::-1", "-2:", "1:-1", "5:", ":-5", "none", "true", "-100:100"]
BINARY = ["+", "-", "%", "~", "==", "!=", "<", ">", "<=", ">=", "in", "not in", "and", "or"]
GLOBALS = ["range(3)|list", "range(1, 7, 2)|list", "range(5, 0, -2)|list", "namespace(a=1).a", "range(3)",
           "strftime_now('%d %b %Y %H:%M')", "strftime_now('%A, %-d %B %y %j %I %p')", "range(n)|length"]


def expression(r, depth):
    if depth == 0 or r.random() < 0.12:
        return r.choice(NAMES if r.random() < 0.65 else CONSTANTS)
    sub = lambda: expression(r, depth - 1)
    kind = r.randrange(13)
    if kind == 0:
        return f"({sub()} {r.choice(BINARY)} {sub()})"
    if kind == 1:
        return f"{sub()} {r.choice(BINARY)} {sub()}"
    if kind in (2, 3):
        return f"{sub()}|{r.choice(FILTERS)}"
    if kind == 4:
        return f"{sub()} is {r.choice(['', 'not '])}{r.choice(TESTS)}"
    if kind in (5, 6):
        return f"({sub()}).{r.choice(METHODS)}"
    if kind == 7:
        return f"{r.choice(NAMES)}.{r.choice(METHODS)}"
    if kind == 8:
        return f"({sub()})[{r.choice(SUBSCRIPTS)}]"
    if kind == 9:
        return f"({sub()} if {sub()} else {sub()})"
    if kind == 10:
        return r.choice([f"not {sub()}", f"-{sub()}", f"+({sub()})", f"({sub()} if {sub()})"])
    if kind == 11:
        return r.choice([f"[{sub()}, {sub()}]", f"({sub()}, {sub()})", f"{{'a': {sub()}, {r.choice(CONSTANTS[:18])}: {sub()}}}"])
    return r.choice(GLOBALS)


def snippet(r):
    """An expression, or a few statements with expressions in them and odd white space around."""
    x = lambda: expression(r, r.randrange(1, 4))
    space = lambda: r.choice(["", " ", "\n", "  \n  ", "\n\n", "x", " x\n", "\t", "\r\n"])
    o = lambda: r.choice(["{%", "{%-", "{%+", "{%", "{%"])
    c = lambda: r.choice(["%}", "-%}", "+%}", "%}", "%}"])
    v = lambda e: f"{r.choice(['{{', '{{-', '{{'])} {e} {r.choice(['}}', '-}}', '}}'])}"
    kind = r.randrange(12)
    if kind < 6:
        return v(x())
    inner = lambda: space() + v(r.choice([x(), "item", "loop.index", "ns.x", "y"])) + space()
    if kind == 6:
        return f"{space()}{o()} for item in {x()} {c()}{inner()}{o()} else {c()}{inner()}{o()} endfor {c()}{space()}"
    if kind == 7:
        return f"{space()}{o()} if {x()} {c()}{inner()}{o()} elif {x()} {c()}{inner()}{o()} else {c()}{inner()}{o()} endif {c()}{space()}"
    if kind == 8:
        return (f"{o()} set ns = namespace(x=0) {c()}{space()}{o()} set y = {x()} {c()}{space()}{o()} for a, item in {r.choice(['d.items()', 'd|dictsort', 'rows|map(attribute=0)', '[[1, 2], (3, 4)]'])} {c()}"
                f"{o()} set ns.x = ns.x + loop.index {c()}{o()} set y = item {c()}{inner()}{o()} if loop.{r.choice(['first', 'last', 'index0', 'revindex', 'previtem', 'nextitem'])} {c()}{inner()}{o()} {r.choice(['break', 'continue'])} {c()}{o()} endif {c()}{inner()}{o()} endfor {c()}{inner()}")
    if kind == 9:
        return (f"{o()} macro mac(item, y={x()}) {c()}{inner()}{v(r.choice(['y', 'n']))}{o()} endmacro {c()}{space()}"
                f"{v(r.choice(['mac(1)', 'mac()', 'mac(1, 2)', 'mac(y=3, item=[4])', 'mac(1, 2, 3)', 'mac(q=1)']))}")
    if kind == 10:
        return f"{o()} set y {c()}{inner()}{o()} endset {c()}{space()}{{# {space()} #}}{space()}{inner()}{{#- z -#}}{space()}"
    return f"{inner()}{o()} generation {c()}{o()} set y = 3 {c()}{inner()}{o()} endgeneration {c()}{inner()}{space()}"


# --- comparing ---


class Tally:
    def __init__(self, show):
        self.same = self.errors = self.differ = 0
        self.unsupported = collections.Counter()
        self.show = show

    def compare(self, what, text, variables, want, got):
        if want == got:
            self.same += 1
        elif re.search("<generator object|<bound method|<built-in method|<function|<filter object", want.get("text", "")):
            self.unsupported["the text of a Python object"] += 1
        elif "error" in want and "error" in got:
            self.errors += 1
        elif re.search("items of .*, expected a dict", got.get("error", "")):
            self.unsupported["items of a value that is not a dict and is never iterated"] += 1
        elif "Markup(" in want.get("text", ""):
            self.unsupported["the text of a list with a text marked safe"] += 1
        elif "a slice of" in got.get("error", ""):
            self.unsupported["a slice of a constant, which jinja2 takes for undefined"] += 1
        elif got.get("code") == "VPTQ_E_UNSUPPORTED":
            self.unsupported[got["error"].split(": ", 2)[-1]] += 1
        else:
            self.differ += 1
            if self.show > 0:
                self.show -= 1
                print(f"differs: {what}\n  wanted {want}\n  found  {got}")
                if os.environ.get("FULL"):
                    print(json.dumps({"template": text, "variables": variables}))


def templates(paths):
    for path in [os.path.join(ROOT, "tests/golden/chat_templates")] + paths:
        for name in sorted(glob.glob(os.path.join(path, "*.jinja"))) if os.path.isdir(path) else [path]:
            with open(name, encoding="utf-8") as f:
                yield os.path.basename(name), f.read()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--pipe", default=os.path.join(ROOT, "build/release/tests/interop/template_pipe"))
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--chats", type=int, default=40)
    p.add_argument("--expressions", type=int, default=20000)
    p.add_argument("--show", type=int, default=10)
    p.add_argument("files", nargs="*")
    a = p.parse_args()
    warnings.simplefilter("ignore")
    pipe = Pipe(a.pipe)
    chats, snippets = Tally(a.show), Tally(a.show)
    names = list(templates(a.files))
    for name, text in names:
        r = random.Random(f"{a.seed} {name}")
        for i in range(a.chats):
            v = conversation(r)
            date = DATE if r.random() < 0.5 else None
            chats.compare(f"{name}, conversation {i}", text, v, expected(text, v, date), pipe.render(text, v, date))
    r = random.Random(a.seed)
    for _ in range(a.expressions):
        text = snippet(r)
        snippets.compare(repr(text), text, None, expected(text, VARIABLES, DATE), pipe.render(text, VARIABLES, DATE))
    for what, t in ((f"{len(names)} templates, {a.chats} conversations each", chats), (f"{a.expressions} expressions", snippets)):
        print(f"{what}: {t.same} the same text, {t.errors} an error in both, {sum(t.unsupported.values())} not supported, {t.differ} differ")
        for text, n in t.unsupported.most_common(20):
            print(f"    {n} {text}")
    sys.exit(1 if chats.differ or snippets.differ else 0)


if __name__ == "__main__":
    main()
