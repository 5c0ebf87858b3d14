"""Splicing: the windows of the annotated stream with a reflection in each that has one."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.reflections.splicing.canary_stream import SplicedCanaryStatistics, write_spliced_canary_stream
    from everytoken.reflections.splicing.compared_windows import compare_reflected_stream
    from everytoken.reflections.splicing.reflected_stream import ReflectedStatistics, write_reflected_stream
    from everytoken.reflections.splicing.reflection_tokens import (
        EncodedReflections,
        ReflectionEncoder,
        open_reflection_encoder,
    )
    from everytoken.reflections.splicing.run_columns import CanaryRule, RunColumns, columns_of_run

__getattr__, __dir__ = exports(__name__, __file__)
