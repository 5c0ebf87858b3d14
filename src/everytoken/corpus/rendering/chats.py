"""Chats of every public shape as one: a list of turns, each a role and what it says.

The shapes are functions from a record to turns (`SHAPES`), with the record's fields under the names that the shape's
authors gave them. Whatever does not fit is a `BadRow` that says where in the record; what a turn says is never
changed: not stripped, not normalised, not cut. Two things are joined, as the functions say: an instruction with its
input, and what an assistant says with the calls of tools that it makes. `read_chat` adds what the keys of a whole
record mean, see `everytoken.corpus.rendering.meanings`.

A message's null counts as absent: parquet has one for every key that only other rows have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from everytoken.corpus.errors import BadRow
from everytoken.corpus.rendering.meanings import (
    Shape,
    fields_of_shape,
    not_honoured,
    reasoning_of,
    require_honoured,
    says_something,
    weight_of,
)
from everytoken.corpus.rendering.messages import definitions_of, messages_in, turn_of_message, turn_with_keys
from everytoken.corpus.rendering.trees import best_path, gather_tree
from everytoken.corpus.rendering.turns import Role, Turn, list_of, objects_of, role_of, string_of, type_found

_SHAREGPT_ROLES: dict[str, Role] = {
    "system": "system",
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bard", "bing", "function_call"), "assistant"),
    **dict.fromkeys(("tool", "function", "function_response", "observation"), "tool"),
}
_OASST_ROLES: dict[str, Role] = {"prompter": "user", "assistant": "assistant"}
_SPEAKER = re.compile(r"(?:\A|\n\n)(Human|Assistant):(?: |(?=\n)|\Z)")


def read_chat(record: Mapping[str, Any], shape: Shape) -> list[Turn]:
    """Return the turns of a record: its system text and tools first, each turn with whether it is trained.

    Raises:
        BadRow: the record is not of the shape; carries meaning that is not read (``chat_not_honoured``); or its label
            says that its answer is bad (``chat_not_wanted``).
    """
    require_honoured(record, shape)
    turns = _masked(SHAPES[shape].turns(record), record)
    return _with_tools(_with_system(turns, record.get("system")), definitions_of(record, "the record"))


def turns_of_messages(record: Mapping[str, Any]) -> list[Turn]:
    """Read ``messages: [{role, content}]`` as OpenAI's API and LLaMA-Factory have them, see `turn_of_message`.

    A message in ``chosen`` is the answer, as in `turns_of_sharegpt`. An object in parquet has a null for every key that
    another row's has, so arguments of calls are better kept as text, as the API does. A tool's ``name`` and
    ``tool_call_id`` are not kept: a turn has no place for them.
    """
    return _with_chosen(messages_in(record, "messages"), record, turn_of_message)


def turns_of_sharegpt(record: Mapping[str, Any]) -> list[Turn]:
    """Read ``conversations: [{from, value}]`` as ShareGPT and LLaMA-Factory have them.

    ``function_call`` is the assistant's turn, ``observation`` the tool's; what the value holds is text already. A
    message in ``chosen`` is the answer to the conversation, of which nothing else is trained.
    """
    turns = [_sharegpt_turn(turn, where) for where, turn in objects_of(record, "conversations")]
    return _with_chosen(turns, record, _sharegpt_turn)


def turns_of_alpaca(record: Mapping[str, Any]) -> list[Turn]:
    """Read ``instruction, input, output``: the user says the instruction and, after a blank line, any input.

    A text in ``chosen`` is the output of records without one, as LLaMA-Factory has preferences.
    """
    answer = "output"
    if says_something(record.get("chosen")):
        if says_something(record.get("output")):
            raise not_honoured("chosen", "the record", "is given with 'output': expected one answer")
        answer = "chosen"
    return _pair(record, _with_context(record, "instruction", "input"), answer)


def turns_of_dolly(record: Mapping[str, Any]) -> list[Turn]:
    """Read ``instruction, context, response``: as `turns_of_alpaca`, the context in the place of the input."""
    return _pair(record, _with_context(record, "instruction", "context"), "response")


def turns_of_chosen(record: Mapping[str, Any]) -> list[Turn]:
    """Read the preferred answer of a pair: ``chosen`` is the whole chat as messages, or the answer to ``prompt``.

    Where ``prompt`` is messages too, those of ``chosen`` follow it, unless they begin with it. What was rejected is not
    read.
    """
    if isinstance(record.get("chosen"), str):
        if isinstance(record.get("prompt"), list):
            return [*_context(messages_in(record, "prompt")), Turn("assistant", string_of(record, "chosen"))]
        return [Turn("user", string_of(record, "prompt")), Turn("assistant", string_of(record, "chosen"))]
    chosen = messages_in(record, "chosen")
    if not isinstance(record.get("prompt"), list):
        return chosen
    prompt = messages_in(record, "prompt")
    return chosen if chosen[: len(prompt)] == prompt else [*_context(prompt), *chosen]


def turns_of_completion(record: Mapping[str, Any]) -> list[Turn]:
    """Read ``prompt, completion`` as TRL has them: two texts, or two lists of messages.

    Only the completion is trained.
    """
    if isinstance(record.get("prompt"), str):
        prompt = [Turn("user", string_of(record, "prompt"))]
    else:
        prompt = _context(messages_in(record, "prompt"))
    if isinstance(record.get("completion"), str):
        return [*prompt, Turn("assistant", string_of(record, "completion"))]
    return [*prompt, *messages_in(record, "completion")]


def turns_of_transcript(record: Mapping[str, Any]) -> list[Turn]:
    r"""Read a chat in one text, as hh-rlhf has it in ``chosen``: ``\n\nHuman: Hi\n\nAssistant: Hello``.

    Every mark of a speaker after a blank line begins a turn, also where somebody only quotes one.
    """
    text = string_of(record, "chosen")
    marks = list(_SPEAKER.finditer(text))
    if not marks or marks[0].start() != 0:
        raise BadRow("cannot_render", "'chosen' of the record does not begin with 'Human:' or 'Assistant:'")
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    said = ((mark[1], text[mark.end() : end]) for mark, end in zip(marks, ends, strict=True))
    return [Turn("user" if speaker == "Human" else "assistant", content) for speaker, content in said]


def turns_of_strings(record: Mapping[str, Any]) -> list[Turn]:
    """Read ``data: [text, text, ...]``, where the user speaks first and then every other time."""
    turns: list[Turn] = []
    for number, text in enumerate(list_of(record, "data")):
        if not isinstance(text, str):
            raise BadRow("cannot_render", f"data[{number}] is {type_found(text)}, expected a string")
        turns.append(Turn("assistant" if number % 2 else "user", text))
    return turns


def turns_of_tree(record: Mapping[str, Any]) -> list[Turn]:
    """Read the best path of a tree of messages: at every message the reply that people ranked best.

    Deleted messages and those that the review rejected (``review_result`` false) are left out with all that hangs on
    them. A record of which a path was taken has it in ``messages``.
    """
    path = record["messages"] if "prompt" not in record and "messages" in record else best_path(gather_tree(record))
    turns = []
    for depth, message in enumerate(path):
        where = f"message {depth}"
        role = role_of(message, "role", where, _OASST_ROLES)
        turns.append(turn_with_keys(message, role, string_of(message, "text", where), where))
    return turns


def _of_pair(question: str, answer: str) -> Callable[[Mapping[str, Any]], list[Turn]]:
    def turns_of_pair(record: Mapping[str, Any]) -> list[Turn]:
        return _pair(record, string_of(record, question), answer)

    turns_of_pair.__doc__ = f"Read ``{question}, {answer}``; reasoning in the answer stays as it is, to its last sign."
    return turns_of_pair


class ShapeOf(NamedTuple):
    """How a shape is read: its fields, and the function."""

    fields: tuple[str, ...]
    turns: Callable[[Mapping[str, Any]], list[Turn]]


_TURNS: dict[Shape, Callable[[Mapping[str, Any]], list[Turn]]] = {
    "messages": turns_of_messages,
    "sharegpt": turns_of_sharegpt,
    "alpaca": turns_of_alpaca,
    "dolly": turns_of_dolly,
    "prompt_response": _of_pair("prompt", "response"),
    "query_response": _of_pair("query", "response"),
    "question_answer": _of_pair("question", "answer"),
    "prompt_completion": turns_of_completion,
    "chosen": turns_of_chosen,
    "transcript": turns_of_transcript,
    "strings": turns_of_strings,
    "oasst_tree": turns_of_tree,
}
SHAPES: dict[Shape, ShapeOf] = {shape: ShapeOf(fields_of_shape(shape), _TURNS[shape]) for shape in get_args(Shape)}


def _sharegpt_turn(turn: Mapping[str, Any], where: str) -> Turn:
    role = role_of(turn, "from", where, _SHAREGPT_ROLES)
    return turn_with_keys(turn, role, string_of(turn, "value", where), where)


def _with_chosen(
    turns: list[Turn], record: Mapping[str, Any], turn_of: Callable[[Mapping[str, Any], str], Turn]
) -> list[Turn]:
    """Add the preferred answer to a conversation that is its prompt."""
    chosen = record.get("chosen")
    if not says_something(chosen):
        return turns
    if not isinstance(chosen, Mapping):
        raise not_honoured("chosen", "the record", f"is {type_found(chosen)}, expected the message that answers")
    return [*_context(turns), turn_of(chosen, "chosen")]


def _pair(record: Mapping[str, Any], question: str, answer: str) -> list[Turn]:
    """Return what was said before (``history``: pairs of texts), the question, and the answer with its reasoning."""
    turns = []
    history = record.get("history")
    for number, pair in enumerate(list_of(record, "history") if says_something(history) else ()):
        if not isinstance(pair, list) or [type(text) for text in pair] != [str, str]:
            raise not_honoured("history", "the record", f"has an item {number} that is no pair of texts")
        turns += [Turn("user", pair[0]), Turn("assistant", pair[1])]
    said = Turn("assistant", string_of(record, answer), reasoning_of(record, "the record"))
    return [*turns, Turn("user", question), said]


def _context(turns: Sequence[Turn]) -> list[Turn]:
    """Return turns that are read and not trained."""
    return [turn._replace(trained=False) for turn in turns]


def _with_context(record: Mapping[str, Any], instruction: str, context: str) -> str:
    asked = string_of(record, instruction)
    return f"{asked}\n\n{string_of(record, context)}" if record.get(context) not in (None, "") else asked


def _masked(turns: list[Turn], record: Mapping[str, Any]) -> list[Turn]:
    """Apply the weights of the record: one for all turns, and a ``loss_mask`` with one for each of the assistant's.

    A mask may also have an entry for every turn, with 0 for those that nobody trains.
    """
    mask = record.get("loss_mask")
    if isinstance(mask, list):
        if any(not isinstance(one, bool | int | float) or one not in (0, 1) for one in mask):
            raise not_honoured("loss_mask", "the record", "has an entry that is neither 0 nor 1")
        spoken = [turn.role == "assistant" for turn in turns]
        if len(mask) == sum(spoken):
            entries = iter(mask)
            mask = [next(entries) if one else 0 for one in spoken]
        if len(mask) != len(turns):
            problem = f"has {len(mask)} entries, and the chat {sum(spoken)} turns of the assistant among {len(turns)}"
            raise not_honoured("loss_mask", "the record", problem)
        if any(one and not assistant for one, assistant in zip(mask, spoken, strict=True)):
            raise not_honoured("loss_mask", "the record", "trains another role than the assistant")
        turns = [turn._replace(trained=turn.trained and bool(one)) for turn, one in zip(turns, mask, strict=True)]
        record = {name: value for name, value in record.items() if name != "loss_mask"}
    return _context(turns) if weight_of(record, "the record") is False else turns


def _with_system(turns: list[Turn], system: Any) -> list[Turn]:
    """Put the system text of the record before the turns; null and empty are none."""
    if system is None or system == "":
        return turns
    if not isinstance(system, str):
        raise BadRow("cannot_render", f"the system column is {type_found(system)}, expected a string or null")
    return [Turn("system", system), *turns]


def _with_tools(turns: list[Turn], tools: tuple[str, ...]) -> list[Turn]:
    """Give the definitions to the system turn at the start, or to a new one that says nothing else."""
    if not tools:
        return turns
    if not turns or turns[0].role != "system":
        return [Turn("system", "", tools=tools), *turns]
    if turns[0].tools:
        raise not_honoured("tools", "the record", "is given with tools of its system turn: expected one list of tools")
    return [turns[0]._replace(tools=tools), *turns[1:]]
