"""Writes chat_templates/chats.json and chat_templates/expressions.json: what jinja2 (3.1.6), with the settings of
transformers 4.57.6, makes of the templates in chat_templates for random conversations, and of random expressions.

    python3 tests/golden/make_chat_templates.py

A case has "text", or "error": true.  The conversations and expressions are those of tests/interop/check_templates.py,
without the expressions that are known to differ."""

import json
import os
import random
import re
import sys
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "interop"))
import check_templates as check  # noqa: E402

warnings.simplefilter("ignore")
# slices of constants, formatting, the text of a range or of what `items` gives, the order of lists, sums of floats,
# chains of comparisons
UNSUPPORTED = r"\be %|list\)* [<>]|<= .* >= |[-+%] ?\(*[fg]\b|\b[fg]\)* [-+%]|([<>=]=?|\bin) [^()]* ([<>!=]=?|in) |\)\[[^\]]*:|'[^']*' %[^}]|range\([^)]*\)(?!\|l)|\|items(?!\|)|(mixed|rows|ls?|el) [<>]|\+\([^)]*\b[fg]\b|[!=]= .* (>|!=) |\) % "
FOLDER = os.path.join(HERE, "chat_templates")


def case(got, **keys):
    keys["error" if "error" in got else "text"] = got.get("text", True)
    return keys


def save(name, value):
    with open(os.path.join(FOLDER, name), "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, indent=0)
        f.write("\n")


def chats(count):
    cases = []
    for name, text in check.templates([]):
        r = random.Random(name)
        for i in range(count):
            v = check.conversation(r)
            date = check.DATE if i % 2 else None
            cases.append(case(check.expected(text, v, date), template=name, variables=v, date=date))
    return cases


def expressions(count):
    r = random.Random(0)
    cases = []
    while len(cases) < count:
        text = check.snippet(r)
        got = check.expected(text, check.VARIABLES, check.DATE)
        # few errors, no texts of Python's objects, and nothing that the project does not support
        if ("error" in got and len(cases) % 5) or " object at 0x" in got.get("text", "") or len(text) > 300:
            continue
        if re.search(r"<|range\(", got.get("text", "")) or re.search(UNSUPPORTED, text):
            continue
        cases.append(case(got, template=text))
    return {"variables": check.VARIABLES, "date": check.DATE, "cases": cases}


save("chats.json", chats(10))
save("expressions.json", expressions(700))
