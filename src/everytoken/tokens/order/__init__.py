"""The order in which training reads windows: a pure function of parameters, sizes and the step."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.tokens.order.integer_schedules import IntegerSchedule, integer_schedule
    from everytoken.tokens.order.loader import (
        TrainingWindows,
        WindowStream,
        open_one_stream,
        open_training_windows,
        open_window_stream,
    )
    from everytoken.tokens.order.parameters import DataParameters, WeightsFrom
    from everytoken.tokens.order.sample_order import SampleOrder, StreamRange
    from everytoken.tokens.order.spp_schedule import SppSchedule, later_shares, window_of_sample
    from everytoken.tokens.order.stream_files import StreamFiles

__getattr__, __dir__ = exports(__name__, __file__)
