"""Fifty-six prompts that differ: scripts, code, chats, lengths from 1 to 4,000 tokens."""

from engine.tokenizer import Tokenizer

TEXTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "La capitale de l'Italie est",
    "Der schnelle braune Fuchs springt über",
    "El perro corre por el parque y",
    "Столица России - город",
    "Η πρωτεύουσα της Ελλάδας είναι η",  # noqa: RUF001
    "עיר הבירה של ישראל היא",
    "عاصمة مصر هي مدينة",
    "भारत की राजधानी है",
    "ประเทศไทยมีเมืองหลวงชื่อ",
    "日本の首都は",
    "中国的首都是",
    "대한민국의 수도는",
    "😀 😃 😄 😁",
    "∀x ∈ ℝ: x² ≥ 0, therefore",  # noqa: RUF001
    "def fibonacci(n):\n    ",
    "int main(int argc, char **argv) {\n\t",
    "SELECT name, count(*) FROM users WHERE",
    '{"name": "Ada", "born": 1815, "known_for": ["',
    "<html>\n<head>\n<title>",
    "#!/bin/sh\nset -eu\nfor file in",
    "fn main() {\n    let mut total = 0;\n",
    "| name | age |\n|---|---|\n| Ann |",
    "1, 1, 2, 3, 5, 8,",
    "3.14159265358979",
    "Q: What is the largest planet?\nA:",
    "To be, or not to be, that is the",
)
QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about rain.",
    "Was ist 17 mal 3?",
    "Explain recursion to a child.",
    "用一句话介绍北京。",
    "Fix this: `for i in range(10) print(i)`",
    "List three fruits.",
    "Say nothing.",
)
LENGTHS = (*(1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65), 127, 128, 255, 300, 500, 1000, 4000)


def prompts_that_differ(tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids."""
    prompts = [tokenizer.encode(text) for text in TEXTS]
    prompts += [tokenizer.encode_chat([{"role": "user", "content": question}]) for question in QUESTIONS]
    everything = [token for prompt in prompts for token in prompt] * 10
    for index, length in enumerate(LENGTHS):
        start = 37 * index
        prompts.append(everything[start : start + length])
    return prompts
