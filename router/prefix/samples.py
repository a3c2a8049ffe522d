# ruff: noqa: RUF001 - what looks alike is meant to differ
"""Texts on which a shortcut must prove itself before it is trusted. Always the same; knows no tokenizer or template."""

import random
import string
from collections.abc import Iterator
from itertools import product

# One of each kind of character that the patterns of tokenizers tell apart.
_KINDS = "aSs1 \n\t'._é東\u0301🚂"

TEXTS: tuple[str, ...] = (
    "",
    "Hello",
    " a",
    "\n",
    "\n\n  x ",
    "12 34",
    "a<b>",
    "<|",
    "\u2581_",
    "don't  \t stop",
    "The railway worker sets the points, so that each train takes the right track. It's 07:45; don't you think we'll "
    "be late? I'd say they've left, he's sure, and you're IN TIME: THEY'RE never on time, they'll say (9 of 10).",
    'def points(track: int, *, speed=3.5e-7) -> list[str]:\n    """Set \'em."""\n    if track >= 1_000:  # far\n'
    "        return [f'{x!r}\\n' for x in range(2**track)]\n\n\nclass A(B): pass\n",
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i] & 0xFF;\r\n\t'status': \"x\\ty\"}\r\n\r\n// done\n",
    '{"a": [1, 22, 333, 4444, 55555], "b": {"c": null, "d": true}, "url": "https://example.org/a?b=c&d=%20#e"}',
    "# Title\n\n- one\n- **two** _three_ `four`\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```sh\nls -la | grep x\n```\n",
    "SELECT id, name FROM trains WHERE line_no IN (1, 2) AND name LIKE 'x%' ORDER BY id DESC LIMIT 10;",
    "Le café naïve coûte 12,50 €. Größe: 3 m². Ångström, İstanbul, ﬁn, “quoted” – dashes — and… ½ ①²",
    "東京都の鉄道員は、ポイントを切り替えます。列车在正确的轨道上行驶。서울에서 부산까지 기차로 2시간 30분",
    "Железнодорожник переводит стрелки. Ο σιδηροδρομικός. עובד הרכבת. عامل السكة الحديد ١٢٣ रेलवे कर्मचारी ไทย",
    "e\u0301a\u0308 n\u0303 क्षि 👨\u200d👩\u200d👧 🇩🇪 🚂\u200d 🏳️\u200d🌈 \u00a0\u2003\u3000\ufeff\x0b\x0c\x85 \x00\x07",
    "a" * 300 + " " * 70 + "\n" * 9 + "-" * 80 + "=" * 33 + "1" * 50 + " x" * 20 + " \n" * 9 + "\t" * 5,
)


def runs_of_kinds() -> Iterator[str]:
    """Every run of four kinds of characters, by the first of them: what depends on neighbours shows here."""
    for kind in _KINDS:
        yield "".join(kind + "".join(run) for run in product(_KINDS, repeat=3))


def random_words(num_texts: int) -> Iterator[str]:
    """Words that no vocabulary has whole, 100 a text: letters, digits or signs in runs of 1 to 40."""
    rng, letters = random.Random(1), string.ascii_letters
    alphabets = (letters, letters, letters, string.digits, letters + string.digits + "+/", string.punctuation)
    for _ in range(num_texts):
        yield " ".join("".join(rng.choices(rng.choice(alphabets), k=rng.randint(1, 40))) for _ in range(100))
