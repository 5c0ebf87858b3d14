import queue

import pytest

from everytoken.generation import PrefixReader
from everytoken.serving.model_thread import Ended, ModelTask, ModelThread
from everytoken.serving.refusals import Refusal
from everytoken.training import ExecutionParameters
from tests.generation.talking import talking_model

MODEL = talking_model()
ARITHMETIC = ExecutionParameters(threads=1, matmul_precision="highest")


@pytest.fixture
def started():
    threads = []

    def start(slots, waiting=0):
        readers = [PrefixReader(MODEL) for _ in range(slots)]
        threads.append(ModelThread(readers, waiting, ARITHMETIC))
        return threads[-1], readers

    yield start
    for thread in threads:
        thread.stop()
        thread.join(60)


class Asked:
    """A task whose steps a test lets happen one by one."""

    def __init__(self, prompt=(1,), fails=False):
        self.allowed, self.delivered = queue.Queue(), queue.Queue()
        self.reader, self.fails = None, fails
        self.task = ModelTask(list(prompt), self._work, self.delivered.put)

    def _work(self, reader):
        self.reader = reader
        reader.read_prompt(self.task.prompt)
        yield "read"
        while self.allowed.get(timeout=60):
            yield "more"
        if self.fails:
            raise ValueError("broken")

    def end(self):
        self.allowed.put(False)
        while isinstance(last := self.next(), str):
            pass
        return last

    def next(self):
        return self.delivered.get(timeout=60)


def test_a_task_gets_the_slot_that_has_read_most_of_its_prompt(started):
    thread, _ = started(2)
    prompts = [[1] * 200, [2] * 200]
    first = [Asked(prompt) for prompt in prompts]
    for one in first:
        thread.submit(one.task)
    for one in first:
        assert isinstance(one.end(), Ended)
    for prompt, before in ((prompts[1], first[1]), (prompts[0], first[0])):
        again = Asked([*prompt, 3])
        thread.submit(again.task)
        again.end()
        assert again.reader is before.reader
    assert first[0].reader is not first[1].reader


def test_an_error_ends_its_own_request_alone(started, caplog):
    thread, _ = started(2)
    broken, other = Asked(fails=True), Asked()
    for one in (broken, other):
        thread.submit(one.task)
    other.allowed.put(True)
    assert isinstance(broken.end(), ValueError)
    assert [other.next(), other.next()] == ["read", "more"]
    assert isinstance(other.end(), Ended)
    assert "A request failed" in caplog.text and "broken" in caplog.text


def test_more_than_slots_and_queue_hold_are_refused(started):
    thread, _ = started(1, waiting=1)
    asked = [Asked(), Asked()]
    for one in asked:
        thread.submit(one.task)
    with pytest.raises(Refusal) as refused:
        thread.submit(Asked().task)
    assert (refused.value.status, refused.value.code) == (429, "queue_full")
    thread.cancel(asked[1].task)
    replaced = Asked()
    thread.submit(replaced.task)
    for one in (asked[0], replaced):
        assert isinstance(one.end(), Ended)
    assert asked[1].delivered.empty()


def test_what_is_left_when_the_thread_stops_is_told(started):
    thread, _ = started(1, waiting=1)
    asked = [Asked(), Asked()]
    for one in asked:
        thread.submit(one.task)
    assert asked[0].next() == "read"
    thread.stop()
    assert [one.next().status for one in asked] == [503, 503]
    asked[0].allowed.put(True)
    thread.join(60)
    assert not thread.is_alive
    assert asked[0].delivered.empty()
    with pytest.raises(Refusal) as refused:
        thread.submit(Asked().task)
    assert refused.value.status == 503
