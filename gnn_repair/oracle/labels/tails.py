"""Labels after a nonlinear tail: an output against zero is a question about two classes.

Output k above θ is class 1 of (0, z_k − θ) winning, and below it class 0; so the solver of tails,
its three-valued answers and its proofs serve unchanged, one exposure of two classes an output.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gnn_repair.exposure.tails.operations import Affine, TailGraph
from gnn_repair.exposure.tails.simplify import simplified
from gnn_repair.exposure.value import Exposure, Replay
from gnn_repair.oracle.flat_arrays import PER_TERM, support_entries
from gnn_repair.oracle.labels.questions import Asked
from gnn_repair.oracle.labels.solution import LabelSolution
from gnn_repair.oracle.tails.solution import TailSolution
from gnn_repair.oracle.tails.solve import solve_tails


@dataclass(frozen=True, eq=False)
class TailPart:
    """The answers about one output, as the solver of tails gave them."""

    output: int
    threshold: float | Tensor
    """θ, or one for every node, [N]."""
    solution: TailSolution

    def exposure(self, whole: Exposure) -> Exposure:
        """The exposure of two classes that they are about."""
        return against_zero(whole, self.output, self.threshold)


def against_zero(exposure: Exposure, output: int, threshold: float | Tensor = 0.0) -> Exposure:
    """The exposure of the two classes (0, z_k − θ)."""
    frozen = exposure.frozen_logits
    limit = torch.as_tensor(threshold, dtype=torch.float64, device=frozen.device)
    column = frozen[0, :, output] - limit
    replay = exposure.replay
    assert exposure.head is not None
    return replace(
        exposure,
        outputs="classes",
        head=_one_output(exposure.head, exposure.num_classes, output, limit),
        frozen_logits=torch.stack([torch.zeros_like(column), column], 1).unsqueeze(0),
        replay=None if replay is None else _against(replay, output, limit),
    )


def _one_output(tail: TailGraph, width: int, output: int, limit: Tensor) -> TailGraph:
    weight = limit.new_zeros(2, width)
    weight[1, output] = 1.0
    bias = torch.stack([torch.zeros_like(limit), -limit], -1)
    operations = [*tail.operations, Affine((len(tail.operations),), weight, bias)]
    nodes = torch.zeros(1, dtype=torch.long, device=limit.device)
    values = TailGraph(tail.width, tuple(operations)).values(limit.new_zeros(1, tail.width), nodes)
    widths = [value.shape[1] for value in values]
    return TailGraph(tail.width, tuple(simplified(operations, widths, len(operations))))


def _against(replay: Replay, output: int, limit: Tensor) -> Replay:
    def run(coefficients: Tensor) -> Tensor:
        said = replay(coefficients)[:, output].double()
        column = said - limit.to(said.device)
        return torch.stack([torch.zeros_like(column), column], 1)

    return run


def solve_tail_labels(
    exposure: Exposure, asked: Asked, threshold: float, effort: str | float
) -> LabelSolution:
    """The answers about every output, three-valued."""
    parts = [
        solve_part(exposure, asked, column, threshold, effort)
        for column in range(len(asked.outputs))
        if asked.known[:, column].any()
    ]
    return joined(exposure, parts, asked, threshold)


def solve_part(
    exposure: Exposure,
    asked: Asked,
    column: int,
    threshold: float | Tensor,
    effort: str | float,
) -> TailPart:
    """The answers about one of the outputs asked about."""
    known = asked.known[:, column]
    position = torch.from_numpy(asked.position[known])
    nodes = exposure.recipients.cpu()[position]
    target = torch.full((exposure.num_nodes,), -1)
    target[nodes] = torch.from_numpy(asked.wanted[known, column].astype(np.int64))
    output = int(asked.outputs[column])
    two = against_zero(exposure, output, threshold)
    return TailPart(output, threshold, solve_tails(two, target, nodes, effort=effort))


def joined(
    exposure: Exposure, parts: list[TailPart], asked: Asked, threshold: float
) -> LabelSolution:
    """The parts' answers as one solution: recipients as they were asked about, then outputs."""
    solutions = [part.solution for part in parts]
    output = np.concatenate([np.full(len(p.solution), p.output) for p in parts])
    arrays = {
        name: np.concatenate([getattr(one, name) for one in solutions])
        for name in ("member", "recipient", "node", "target", "margin", "bound", *PER_TERM)
    }
    counts = np.concatenate([np.diff(one.indptr) for one in solutions])
    columns = np.searchsorted(asked.outputs, [part.output for part in parts])
    order = np.lexsort((output, np.nonzero(asked.known.T[columns])[1]))
    indptr, entries = support_entries(np.append(0, np.cumsum(counts)), order)
    terms = {name: arrays.pop(name)[entries] for name in PER_TERM}
    arrays = {name: value[order] for name, value in arrays.items()}
    wanted = arrays.pop("target") == 1
    return LabelSolution(
        **arrays,
        **terms,
        target=output[order].astype(np.int64),
        wanted=wanted,
        indptr=indptr,
        threshold=threshold,
        skipped=asked.skipped,
        noun="value" if exposure.outputs == "values" else "label",
        scope=exposure.scope,
        names=exposure.term_names,
        n_id=None if exposure.n_id is None else exposure.n_id.cpu().numpy(),
        parts=tuple(parts),
    )


def verify_parts(solution: LabelSolution, exposure: Exposure) -> tuple[int, int]:
    """How many answers are not the parts', and how many parts' certificates do not hold."""
    told: dict[tuple[int, int, bool], list[tuple[float, float]]] = {}
    unproven = 0
    for part in solution.parts:
        unproven += not part.solution.check(part.exposure(exposure)).ok
        shift = _shift(part, solution.threshold)
        for i in range(len(part.solution)):
            place, wanted = int(part.solution.recipient[i]), bool(part.solution.target[i])
            moved = float(shift[int(part.solution.node[i])]) * (1 if wanted else -1)
            pair = part.solution.margin[i] + moved, part.solution.bound[i] + moved
            told.setdefault((place, part.output, wanted), []).append(pair)
    strange = 0
    keys = zip(solution.recipient, solution.target, solution.wanted, strict=True)
    for i, (place, target, wanted) in enumerate(keys):
        pairs = told.get((int(place), int(target), bool(wanted)), [])
        attained = any(np.isclose(m, solution.margin[i], rtol=1e-12) for m, _ in pairs)
        proved = any(b == solution.bound[i] or np.isclose(b, solution.bound[i]) for _, b in pairs)
        strange += not (attained and proved)
    return strange, unproven


def _shift(part: TailPart, threshold: float) -> Tensor:
    """What a part's margins lack of those against ``threshold``, by node."""
    nodes = int(part.solution.node.max(initial=0)) + 1
    limit = torch.as_tensor(part.threshold, dtype=torch.float64) - threshold
    return limit.expand(nodes) if limit.dim() == 0 else limit
