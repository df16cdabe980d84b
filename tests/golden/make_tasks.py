#!/usr/bin/env python3
"""tests/golden/tasks: a few items of every form, written by hand with the corners of each, and what
lm-evaluation-harness 0.4.13 makes of them on stories260K in float32 (expected.jsonl; of some with
so short a context that they are cut from the left: expected_short.jsonl).

usage: make_tasks.py MODEL      MODEL: models/stories260K-hf of the data directory
"""
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "tasks")


def labelled(texts, labels="ABCDEFG"):
    return {"text": texts, "label": list(labels[: len(texts)])}


ITEMS = {
    "arc_easy": [
        {"id": "1", "question": "What do plants need to grow?", "choices": labelled(["stones", "light and water", "a red car", "noise"]), "answerKey": "B"},
        {"id": "2", "question": "Which of these is cold?", "choices": labelled(["ice", "fire", "ice cream"], "123"), "answerKey": "1"},
        {"id": "3", "question": "Où est le café?  ", "choices": labelled(["à côté", "là-bas", "à côté", "ici", "nulle part"]), "answerKey": "E"},
        {"id": "4", "question": "A bird can ...", "choices": labelled(["fly", "fly away", "fly away home", " sing "]), "answerKey": "D"},
    ],
    "openbookqa": [
        {"id": "1", "question_stem": "The sun is", "choices": labelled(["hot", "wet", "green", "a small dog"]), "answerKey": " A"},
        {"id": "2", "question_stem": "Lily was sad because she lost her", "choices": labelled(["toy", "sky", "day", "tree house"]), "answerKey": "A"},
        {"id": "3", "question_stem": "Once upon a time there was a ", "choices": labelled(["little girl", "number", "why", "of"]), "answerKey": "C"},
    ],
    "piqa": [
        {"goal": "How to keep a ball from rolling away?", "sol1": "Put it in a box.", "sol2": "Put it on a hill.", "label": 0},
        {"goal": "dry a wet cat", "sol1": "with a towel", "sol2": "with a bucket of water", "label": 1},
        {"goal": "Make \"soup\"\nfast", "sol1": "Heat it.", "sol2": "Heat it. Then eat it.", "label": 0},
    ],
    "hellaswag": [
        {"ind": 1, "activity_label": "Playing ball", "ctx_a": "Tom and Lily play with a ball in the park.", "ctx_b": "they", "ctx": "", "endings": ["are very happy.", "eat the park.", "is a ball.", "sleep in the sky."], "label": "0"},
        {"ind": 2, "activity_label": "Food and Drink", "ctx_a": "[header] How to bake [title] Take a bowl. [step] Mix  the flour.", "ctx_b": "Then YOU add Étoile [substeps] milk", "ctx": "", "endings": ["[substeps] Stir it. [title] Bake  it.", "Throw [it away.", "Sing] a song.", "Go   home. "], "label": "0"},
        {"ind": 3, "activity_label": "Walking", "ctx_a": "A dog walks.", "ctx_b": "", "ctx": "", "endings": ["It barks.", "It barks and runs.", "\t[title] Swim", "[a [b] c] fly"], "label": "3"},
    ],
    "winogrande": [
        {"sentence": "The dog chased the cat until _ was tired.", "option1": "the dog", "option2": "the cat", "answer": "1"},
        {"sentence": "Tim gave Sue a toy because _ liked it.", "option1": "Tim", "option2": "Sue", "answer": "2"},
        {"sentence": "Mom wanted Ben to sleep, but _ wanted to play with the snake_case ball .", "option1": "Mom", "option2": "Ben", "answer": "2"},
        {"sentence": "_ was big and _ was small.", "option1": "Ann", "option2": "Ann's cat", "answer": "1"},
    ],
    "copa": [
        {"premise": "The boy was happy.", "choice1": "He got a new toy.", "choice2": "He lost his shoe.", "question": "cause", "label": 0, "idx": 0},
        {"premise": " It rained all day. ", "choice1": "The sun was hot.", "choice2": "The grass was wet.", "question": "effect", "label": 1, "idx": 1},
        {"premise": "Elle est là…", "choice1": "Éva l'a dit.", "choice2": "I saw her.", "question": "cause", "label": 1, "idx": 2},
    ],
    "boolq": [
        {"passage": "Dogs are animals. They have four legs.", "question": "do dogs have four legs", "idx": 0, "label": 1},
        {"passage": "The sky is blue.", "question": "is the sky made of cheese", "idx": 1, "label": 0},
    ],
    "lambada_openai": [
        {"text": "Once upon a time, there was a little girl named Lily. She liked to play outside in the park"},
        {"text": "Tom had a red ball. He threw the ball to his friend Sam. Sam caught the ball"},
        {"text": "The cat sat on the mat, and the dog sat on the mat "},
        {"text": "Hello"},
        {"text": "He said \u201cno\u201d and went to his mom. His mom was very sad"},
    ],
    "choices": [
        {"query": "Question: What is a cat?", "choices": ["an animal", "a car", "a kind of bread"], "gold": 0},
        {"query": "Question: Where do fish live?\n", "choices": ["in the water", "in the sky"], "gold": 0},
        {"query": "<s>Question: one?", "choices": ["1", "one </s>"], "gold": 1},
        {"query": "", "choices": ["yes", "yes", "no"], "gold": 2},
    ],
    "schema": [
        {"context_options": ["Sam was faster than Tim so Sam", "Sam was faster than Tim so Tim"], "continuation": "won the race.", "gold": 0},
        {"context_options": ["The toy did not fit in the box because the toy ", "The toy did not fit in the box because the box "], "continuation": "was too small.", "gold": 1},
    ],
}
ENDINGS = [
    ["Swimming: A girl jumps into the water. she", "1", "is a fish.", "swims to her mom.", "eats a ball.", "is the water."],
    ["Cooking: A man cuts an apple.", "0", "He eats it.", "He is an apple.", "Then the apple cuts him.", "Blue."],
]


def main():
    os.makedirs(OUT, exist_ok=True)
    words = []
    for name, items in ITEMS.items():
        path = os.path.join(OUT, name + ".jsonl")
        with open(path, "w", encoding="utf-8") as f:
            for item in items:
                f.write(json.dumps(item, ensure_ascii=name == "piqa") + "\n")
        words.append(f"{name}={path}")
    path = os.path.join(OUT, "endings.txt")
    with open(path, "w", encoding="utf-8") as f:
        f.write("".join(line + "\n" for item in ENDINGS for line in item))
    words.append(f"endings={path}")
    run = os.path.join(HERE, "..", "interop", "lm_eval_run.py")
    subprocess.run([sys.executable, run, sys.argv[1], os.path.join(OUT, "expected.jsonl"), *words], check=True)
    short = [w for w in words if w.split("=")[0] in ("openbookqa", "winogrande", "boolq", "choices")]
    out = os.path.join(OUT, "expected_short.jsonl")
    subprocess.run([sys.executable, run, sys.argv[1], out, "--max-length", "20", *short], check=True)


if __name__ == "__main__":
    main()
