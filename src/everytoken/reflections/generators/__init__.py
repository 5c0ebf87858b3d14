"""Who writes the texts: a server with OpenAI's API, one that a rank starts, or a small model in the process itself."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.reflections.generators.asking import (
        FailureKind,
        Generator,
        GeneratorError,
        Question,
        RawReply,
        RequestFailed,
    )
    from everytoken.reflections.generators.embedded import open_embedded
    from everytoken.reflections.generators.endpoint import api_key, served_model
    from everytoken.reflections.generators.openai_client import Endpoint, open_endpoint
    from everytoken.reflections.generators.opening import first_pause, model_of_generator, open_generator
    from everytoken.reflections.generators.retries import pause_before_retry
    from everytoken.reflections.generators.server_of_task import RunningServer, ServerCommand, task_server

__getattr__, __dir__ = exports(__name__, __file__)
