"""Following an aggregate through the rest of a model's run, operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure.tails.aliases import rewritten_aliases
from gnn_repair.exposure.tails.aten import TRANSLATIONS
from gnn_repair.exposure.tails.builder import Builder, Unfollowed
from gnn_repair.exposure.tails.layout import Frame, Lost, Traced, frame_of
from gnn_repair.exposure.tails.opaque import name_of
from gnn_repair.exposure.tails.opaque_capture import keep

State = Traced | Lost
SHAPED = {f"{kind}_like" for kind in ("empty", "zeros", "ones", "full")}
SHAPED |= {f"new_{kind}" for kind in ("empty", "empty_strided", "zeros", "ones", "full")}
"""Operations that take a tensor's shape and none of its values."""

BY_INDEX = ("index_select", "index", "embedding", "scatter_add", "index_add", "scatter_reduce",
            "index_reduce")  # fmt: skip
"""Operations that look up or write rows by number."""
CHOOSING = ("index", "masked_select")
"""Operations that pick entries of their first argument by the others."""
PICKS = (
    "picks entries by values that messages reach, as a boolean mask does; write that with "
    "torch.where"
)
MERGES = (
    "reads nodes and heads along one axis, which cannot be followed; keep the nodes on an axis of "
    "their own, as scaled_dot_product_attention on [N, heads, tokens, channels] does"
)


class Tracer(TorchDispatchMode):
    """While open, remembers how every tensor that the aggregate reaches was made.

    What no message reaches is computed as usual and enters as a constant.
    """

    def __init__(self, aggregate: Tensor, where: Callable[[], str] = lambda: "the model") -> None:
        """Follow an aggregate.

        Args:
            aggregate: the [N, D] tensor to follow.
            where: the title of the module that runs now.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._where = where
        nodes, width = aggregate.shape
        self.builder = Builder(width, nodes, aggregate.device)
        # The tensors themselves are kept as well, so that no other comes to bear their identity.
        self._known: dict[int, tuple[Tensor, State]] = {}
        shape = (nodes, width)
        self._remember(aggregate, Frame(shape, 0, shape).traced(0, aggregate.device))

    @classmethod
    def of_width(
        cls, width: int, nodes: int, device: torch.device, where: Callable[[], str]
    ) -> Tracer:
        """A tracer of aggregates that the run itself makes; see :meth:`adopt`."""
        return cls(torch.empty(1, 1, device=device).expand(nodes, width), where)

    def adopt(self, tensor: Tensor, place: tuple[Frame, int]) -> None:
        """From here on a tensor is part of the aggregate, its channels from a number on."""
        frame, first = place
        self._remember(tensor, frame.traced(0, self.builder.device, first))

    def output(self, logits: Tensor) -> Traced:
        """How the model's output was made."""
        state = self._state(logits)
        if state is None:
            raise ExposureRefused(
                "what follows the last sum over messages leaves PyTorch on the way to the logits "
                "(numpy, Python numbers), so it cannot be followed"
            )
        if isinstance(state, Lost):
            raise ExposureRefused(f"after the last sum over messages {state.reason}")
        found = frame_of(state, self.builder.num_nodes)
        if found is not None and found[0].places is not None:
            raise ExposureRefused(
                "after the last sum over messages rows of different nodes change places, or some "
                "are left out; return one row of logits for every node, in order"
            )
        return state

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        states = [self._state(leaf) for leaf in tree_leaves((args, kwargs))]
        if not any(states) or func._schema.name.partition("::")[2] in SHAPED:
            return func(*args, **kwargs)
        target = args[0] if _in_place(func) else None
        kept = None if target is None else target.clone()
        real = tree_map_only(Tensor, lambda t: kept if t is target else t, (args, kwargs))
        shown = tree_map_only(
            Tensor, lambda t: self._state(t) or (kept if t is target else t), (args, kwargs)
        )
        out = func(*args, **kwargs)
        lost = next((state for state in states if isinstance(state, Lost)), None)
        made = lost or self._translated(func, real, shown, out)
        if target is None:
            self._remember_all(out, made)
        else:
            self._overwrite(target, made)
        return out

    def _translated(
        self, func: Any, real: tuple[Any, Any], shown: tuple[Any, Any], out: Any
    ) -> Any:
        name = func._schema.name.partition("::")[2]
        name = name[:-1] if _in_place(func) else name
        why = ""
        if torch.Tag.dynamic_output_shape in func.tags and _traced(
            shown[0] if name not in CHOOSING else shown[0][1:]
        ):
            return Lost(f"{self._where()} {PICKS} (by `{name_of(func)}`)")
        if name in TRANSLATIONS:
            try:
                return TRANSLATIONS[name](self.builder, out, *shown[0], **shown[1])
            except Unfollowed as reason:
                why = str(reason)
        if name in BY_INDEX:
            # Never tried on fewer rows: on a GPU an index beyond them cannot be recovered from.
            why = why or "mixes the values of different nodes"
            return Lost(f"{self._where()} {why} (by `{name_of(func)}`)")
        try:
            functional = _functional(func, name)
            return keep(self.builder, functional, real, shown, out)
        except Unfollowed as reason:
            why = why or str(reason)
        frames = [frame_of(leaf, self.builder.num_nodes) for leaf in _traced(shown)]
        merged = any(found and found[0].shape != found[0].outer for found in frames)
        return Lost(f"{self._where()} {MERGES if merged else why} (by `{name_of(func)}`)")

    def forget(self, tensor: Tensor) -> None:
        """From here on a tensor is a constant: what is held as it is."""
        self._known.pop(id(tensor), None)

    # What is known of tensors -------------------------------------------------------------------

    def _state(self, leaf: Any) -> State | None:
        entry = self._known.get(id(leaf)) if isinstance(leaf, Tensor) else None
        return None if entry is None else entry[1]

    def _remember(self, tensor: Tensor, state: State) -> None:
        if tensor.numel():  # what holds no numbers is nobody's
            self._known[id(tensor)] = (tensor, state)

    def _remember_all(self, out: Any, made: Any) -> None:
        if isinstance(out, Tensor):
            if made is not None:
                self._remember(out, made)
        elif isinstance(out, tuple | list):
            several = made if isinstance(made, tuple) else [made] * len(out)
            for one, state in zip(out, several, strict=True):
                self._remember_all(one, state)

    def _overwrite(self, target: Tensor, made: Any) -> None:
        made = made[0] if isinstance(made, tuple) else made
        views = [entry for entry in self._known.values() if entry[0] is not target]
        for alias, state in rewritten_aliases(self.builder, target, made, views):
            self._remember(alias, state)
        self._remember(target, made)


def _in_place(func: Any) -> bool:
    """Whether an operation overwrites its first argument, such as ``relu_``."""
    name = func._schema.name
    return func._schema.is_mutable and name.endswith("_") and not name.endswith("__")


def _functional(func: Any, name: str) -> Any:
    """The form of an operation that writes nothing."""
    if not func._schema.is_mutable:
        return func
    packet = getattr(torch.ops.aten, name, None)
    found = getattr(packet, func._overloadname, None)
    if found is None or found._schema.is_mutable:
        raise Unfollowed("writes into another tensor, which cannot be followed")
    return found


def _traced(values: Any) -> list[Traced]:
    leaves = tree_leaves(values, is_leaf=lambda leaf: isinstance(leaf, Traced))
    return [leaf for leaf in leaves if isinstance(leaf, Traced)]
