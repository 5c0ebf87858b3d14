"""Language bands: documents told apart by UTF-8 bytes a character, which is a property of the script.

No language is guessed: the ratio needs no model, no list and no threshold of confidence, and it is what decides how
well a byte-level vocabulary fits a text. English and source code have 1.00; other languages in Latin letters 1.02
(German) to 1.3 (Vietnamese); Cyrillic, Greek, Hebrew and Arabic, with their spaces, about 1.8; Korean 2.4, Indic
scripts, Thai, Japanese and Chinese 2.6 to 3. A document that mixes scripts is between them.
"""

from __future__ import annotations

import numpy as np

BANDS = ("nearly_ascii", "mostly_latin", "two_byte_scripts", "three_byte_scripts")
"""Names of the bands, from few to many bytes a character."""

LOWER_BOUNDS = (0, 101, 150, 220)
"""The least ``utf8_bytes * 100 // characters`` of each band; each reaches to the next one's. In whole numbers: no
rounding can move a document."""


def language_band(utf8_bytes: np.ndarray, characters: np.ndarray) -> np.ndarray:
    """Return the index in `BANDS` of each document, int64 (n,); an empty text is in the first band.

    Args:
        utf8_bytes: UTF-8 bytes of each text, integers (n,).
        characters: code points of each text, integers (n,).
    """
    percent = np.asarray(utf8_bytes, np.int64) * 100 // np.maximum(np.asarray(characters, np.int64), 1)
    return np.searchsorted(LOWER_BOUNDS, percent, side="right") - 1
