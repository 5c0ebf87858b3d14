"""The canary stream: documents that the user brings, in conditions with triggers and coverage of reflections.

In the order of the flow: `documents` (JSON Lines to rows), `triggers`, `encode` (rows to tokens), `stream` (windows);
`parameters`, `errors`.
"""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.tokens.canary.documents import CanaryCounts, CanaryFile, canary_files, read_canary_file
    from everytoken.tokens.canary.encode import CanaryEncodedCounts, encode_canary_part
    from everytoken.tokens.canary.errors import CanaryError
    from everytoken.tokens.canary.parameters import CanaryParameters, CanarySplicing
    from everytoken.tokens.canary.stream import write_canary_stream
    from everytoken.tokens.canary.triggers import Trigger, TriggerRecord, TriggerRule, draw_trigger

__getattr__, __dir__ = exports(__name__, __file__)
