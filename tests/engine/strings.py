"""Strings with every difficulty for a tokenizer."""

from __future__ import annotations

import random
import sys
import unicodedata

ASSIGNED = "".join(
    letter for code in range(sys.maxunicode + 1) if unicodedata.category(letter := chr(code)) not in ("Cn", "Co", "Cs")
)
EACH_FIRST_BYTE = "".join(
    chr(code)
    for code in (
        *range(0x80, 0x800, 0x40),
        0x800,
        *range(0x1000, 0x10000, 0x1000),
        *range(0x10000, 0x110000, 0x30000),
        0x100000,
    )
)
POOLS = (
    "0123456789",
    " \t\n\r\u00a0\u3000",
    "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "éàüßñçøåœ",
    "你好世界日本語テスト한국어",
    "😀👍🏽👨‍👩‍👧🇫🇷",
    "!@#$%^&*()_+-=[]{};':\",./<>?\\|`~",
    "½²³ⅧⅣ①٣४",
    "def f(x):\n    return x ** 2  # don't\n",
    "'s 're 'll 've 'd 'm 't",
    "العربية עברית हिन्दी ไทย",
    "".join(map(chr, range(256))),
    ASSIGNED,
    EACH_FIRST_BYTE,
)
WORDS = (
    " the", "The", " don't", "I'LL", "naïve ", "  ", "\n\n", "\t\t", " 3.14", "1,000", " = ", "->", "(x)", "return", " ::",
    "https://", "你好", "。", "안녕", "🦙", " 😀", "\r\n", "    ", "_", "ß", " Ω", "v2", "x86_64", "½", " 2²",
)  # fmt: skip


def varied_strings(count: int) -> list[str]:
    """Digits, code, words, emoji, CJK, runs of white space and any letter of Unicode, mixed at random."""
    draw = random.Random(1)
    strings = []
    for _ in range(count):
        pool = draw.choice((*POOLS, WORDS, None))
        pieces = [draw.choice(pool or draw.choice((*POOLS, WORDS))) for _ in range(draw.randint(1, 60))]
        strings.append("".join(piece * draw.choice((1, 1, 1, 1, 4)) for piece in pieces))
    return strings
