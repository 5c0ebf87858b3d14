"""What a recurrent model keeps of the tokens it has read: a few tensors a layer, however many tokens there were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from everytoken.models.errors import ModelsError


class LayerState(NamedTuple):
    """State of one layer.

    ``phases`` (batch, heads, pairs) float64, angles in [0, 2 pi); ``state`` (batch, heads, P, N); and of the last token
    ``keys`` (batch, heads, rank, N), rotated, and ``inputs`` (batch, heads, P). The variant `complex_ssd_lite` needs
    no last token.
    """

    phases: Tensor
    state: Tensor
    keys: Tensor | None = None
    inputs: Tensor | None = None

    def copied(self) -> LayerState:
        """Return a copy that shares no tensor with this one."""
        keys, inputs = (None if last is None else last.clone() for last in (self.keys, self.inputs))
        return LayerState(self.phases.clone(), self.state.clone(), keys, inputs)

    @property
    def tensors(self) -> list[Tensor]:
        """Its tensors."""
        return [tensor for tensor in self if tensor is not None]


class RecurrentState:
    """The states of all layers after ``length`` tokens; it cannot go back to fewer."""

    can_truncate = False
    taken = None  # no block is looped

    def __init__(self, n_layers: int) -> None:
        self.length = 0
        self.layers: list[LayerState | None] = [None] * n_layers

    @property
    def bytes(self) -> int:
        """Bytes of its tensors."""
        return sum(tensor.nbytes for layer in self.layers if layer is not None for tensor in layer.tensors)

    def named_tensors(self) -> dict[str, Tensor]:
        """Return its tensors by name, as ``1.phases`` of the second layer; none before the first token."""
        return {
            f"{number}.{field}": tensor
            for number, layer in enumerate(self.layers)
            if layer is not None
            for field, tensor in layer._asdict().items()
            if tensor is not None
        }

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], n_layers: int, length: int) -> RecurrentState:
        """Return the state after ``length`` tokens whose `named_tensors` these are."""
        state = cls(n_layers)
        state.length = length
        if tensors:
            state.layers = [
                LayerState(**{name: tensors.get(f"{number}.{name}") for name in LayerState._fields})  # type: ignore[arg-type]
                for number in range(n_layers)
            ]
        return state

    def truncate(self, length: int) -> None:
        """Do nothing for all of its tokens. Raises ``ModelsError`` for fewer: a state holds no single token."""
        if length < self.length:
            raise ModelsError(
                f"a recurrent state of {self.length} tokens cannot go back to {length}; read the first {length} again"
            )

    def clone(self) -> RecurrentState:
        """Return a copy that shares no tensor with this one."""
        copied = RecurrentState(len(self.layers))
        copied.length = self.length
        copied.layers = [layer and layer.copied() for layer in self.layers]
        return copied
