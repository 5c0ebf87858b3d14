"""Characters and ranges of code points that tokenizers treat in special ways, written down once.

They do not come from Python's ``unicodedata``: its tables change with the Python version, and a generated set of texts
must not.
"""

from __future__ import annotations

from typing import Literal

# Planes in use: basic and supplementary multilingual, CJK extensions B to J, tags and variation selectors.
IN_USE = ((0x0, 0xD800), (0xE000, 0x20000), (0x20000, 0x33480), (0xE0000, 0xE1000))

NEWLINES = ["\n", "\r\n", "\r", "\v", "\f", "\x85", "\u2028", "\u2029"]
SPACES = [" ", "\t", "\xa0", "\u1680", *map(chr, range(0x2000, 0x200B)), "\u202f", "\u205f", "\u3000"]
NEARLY_SPACES = ["\u180e", "\u200b", "\u2060", "\ufeff", "\xad", "\u115f", "\u3164", "\x1c", "\x1d", "\x1e", "\x1f"]
BLANKS = [*NEWLINES, *SPACES, *NEARLY_SPACES]
MIXED = [" ", "\n", "\r", "\t", "\xa0", "a", "1", "."]

# Zeros of the decimal digits, then ranges of numbers that are no decimal digits, and letters that look like numbers.
ZEROS = [
    *(0x30, 0x660, 0x6F0, 0x7C0, 0x966, 0x9E6, 0xA66, 0xAE6, 0xB66, 0xBE6, 0xC66, 0xCE6, 0xD66, 0xDE6, 0xE50, 0xED0),
    *(0xF20, 0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1A90, 0x1B50, 0x1BB0, 0x1C40, 0x1C50, 0xA620),
    *(0xA8D0, 0xA900, 0xA9D0, 0xA9F0, 0xAA50, 0xABF0, 0xFF10, 0x104A0, 0x10D30, 0x10D40, 0x11066, 0x110F0, 0x11136),
    *(0x111D0, 0x112F0, 0x11450, 0x114D0, 0x11650, 0x116C0, 0x116D0, 0x116DA, 0x11730, 0x118E0, 0x11950, 0x11BF0),
    *(0x11C50, 0x11D50, 0x11DA0, 0x11F50, 0x16130, 0x16A60, 0x16AC0, 0x16B50, 0x16D70, 0x1CCF0, 0x1D7CE, 0x1D7D8),
    *(0x1E140, 0x1E2F0, 0x1E4F0, 0x1E5F1, 0x1E950, 0x1FBF0),
]
NUMBERS = (
    *((0xB2, 0xB4), (0xB9, 0xBA), (0xBC, 0xBF), (0x9F4, 0x9FA), (0xBF0, 0xBF3), (0xF2A, 0xF34), (0x1369, 0x137D)),
    *((0x16EE, 0x16F1), (0x2070, 0x208A), (0x2150, 0x218A), (0x2460, 0x249C), (0x24EA, 0x2500), (0x2776, 0x2794)),
    *((0x3007, 0x3008), (0x3021, 0x302A), (0x3220, 0x322A), (0x3251, 0x3260), (0x4E00, 0x4E0A), (0xA6E6, 0xA6F0)),
    *((0x10107, 0x10134), (0x10140, 0x10179), (0x12400, 0x1246F), (0x1D360, 0x1D379), (0x1F100, 0x1F10D)),
)

APOSTROPHES = ["'", "\u2019", "\u2018", "\u02bc", "\u2032", "\uff07", "`", "''", "'\u0301", " '", "\n'"]
ENDINGS = ["s", "t", "re", "ve", "m", "ll", "d", "\u017f", "\u212a", "\ufb06", "\u0131", "\xdf", "x", ""]  # long s

PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
ASCII_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
LETTERS = (
    ASCII_LETTERS + "\xe9\xdf\xf1\xf8\u0142\u01c6\u03c3\u03c2\u03a3\u0416\u05d0\u0639\u0915\u0e01\u3042\u6f22\uac00"
)
MARKS = "\u0300\u0301\u0308\u0323\u0327\u0338\u0345\u034f\u05b4\u064b\u093c\u093f\u0e31\u20dd\u3099\ufe0f\U000e0100"
EDGES = (
    "\x00\x01\x07\x08\x1a\x1b\x7f\x80\x85\x9f\xa0\xad\u07ff\u0800\ud7ff\ue000\uf8ff\ufdd0\ufdef\ufeff\ufff9\ufffc\ufffd"
    "\ufffe\uffff\U00010000\U0001fffe\U0001ffff\U0002fffe\U000e0001\U000e007f\U000f0000\U0010fffd\U0010fffe\U0010ffff"
)
EMOJI = [
    *("\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f3f3\ufe0f\u200d\U0001f308", "\u263a\ufe0e"),
    *("\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea", "\U0001f1fa\U0001f1f3\U0001f1ea", "1\ufe0f\u20e3", "\xa9\ufe0f"),
    *("\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "\u2764\ufe0f\u200d\U0001f525"),
    *("\U0001f9d1\U0001f3ff\u200d\U0001f4bb", "\U0001fae8", "\U0001f600", "\u200d", "\ufe0f", "\U0001f3fb"),
]
DIRECTIONS = "\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2069"
RIGHT_TO_LEFT = (
    *((0x591, 0x5F5), (0x600, 0x700), (0x710, 0x74B), (0xFB1D, 0xFE00), (0x10800, 0x10860), (0x1E900, 0x1E960)),
)
COMPOSED = (
    *((0xC0, 0x180), (0x1CD, 0x1DD), (0x3AA, 0x3CF), (0x400, 0x460), (0x1E00, 0x1F00), (0xAC00, 0xD7A4)),
    *((0x3041, 0x3097), (0xF900, 0xFA2E), (0x2126, 0x212C), (0x958, 0x960)),
)
JAMO = ((0x1100, 0x1113), (0x1161, 0x1176), (0x11A7, 0x11C3), (0x3131, 0x318F), (0xFFA1, 0xFFBF))
FORMS: tuple[Literal["NFC", "NFD", "NFKC", "NFKD"], ...] = ("NFC", "NFD", "NFKC", "NFKD")

RUN_LENGTHS = (2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513)
LONG_RUN_LENGTHS = (1023, 1025, 4095, 4096, 4097, 8191, 8193, 16_383, 16_385, 32_769, 65_535, 65_537)
