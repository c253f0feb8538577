"""``expose_links``: a trained model's links as mixtures of one end's messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure.certification import random_admissible
from gnn_repair.exposure.exactness import EXACT, deviation, excused, residual_limit
from gnn_repair.exposure.hetero.graph import Relation
from gnn_repair.exposure.links.affine import affine_by_probing
from gnn_repair.exposure.links.assembly import by_link, joined, link_mixture, rows_behind, split
from gnn_repair.exposure.links.calls import Decoder, LinkCall, link_call
from gnn_repair.exposure.links.questions import chosen_links, relation_of
from gnn_repair.exposure.links.value import ENDS, LinkExposure
from gnn_repair.exposure.model_call import Forward, one_graph
from gnn_repair.exposure.model_on_data import on_data
from gnn_repair.exposure.model_state import refuse_compiled, resting
from gnn_repair.exposure.record.exposing import Wanted, expose_subject
from gnn_repair.exposure.tails.building import Unfollowed
from gnn_repair.exposure.tails.logit_form import (
    TAKEN_OFF,
    ends_in_sigmoid,
    folded,
    is_affine,
    logit_of,
    without_sigmoid,
)
from gnn_repair.exposure.tails.opaque import Opaque
from gnn_repair.exposure.tails.operations import TailGraph
from gnn_repair.exposure.tails.simplify import simplified
from gnn_repair.exposure.tails.tracer import Tracer
from gnn_repair.exposure.value import Exposure, Replay

Scores = Callable[[Tensor], Tensor]
"""From the varied ends' embeddings, a row a link, to the links' logits [L, 1]."""


def expose_links(
    model: nn.Module,
    data: Any,
    links: Tensor | None = None,
    *,
    decoder: Decoder | None = None,
    vary: Literal["source", "target"] = "source",
    forward: Forward | None = None,
    hops: Literal["paths", "last"] = "paths",
    tolerance: float | None = None,
    relation: tuple[str, str, str] | None = None,
) -> LinkExposure:
    """Write a model's logit of every link as a mixture of the messages of one of its ends.

    Args:
        model: a trained model of links: with ``encode`` and ``decode``, with a forward that takes
            the links (such as ``edge_label_index``) beside the graph, or an encoder alone.
        data: the PyG data the model runs on.
        links: [2, L] the links to expose; ``data.edge_label_index`` unless given.
        decoder: with an encoder alone, what gives the logits: ``decoder(z, links)`` or
            ``decoder(z_source, z_target)``.
        vary: whose messages are reweighted; the other end stays as it is.
        forward: how the encoder is called, ``forward(model, data) -> z [N, d]``.
        hops: as for :func:`expose`.
        tolerance: the largest certified residual to accept; 1e-5 for float32 models and 1e-12
            for float64 unless given.
        relation: in a graph of several node types (HeteroData) the relation whose links are
            predicted; not needed where only one holds ``edge_label_index``.

    Returns:
        The links, certified by running the model on randomly reweighted messages.

    Raises:
        ExposureRefused: embeddings are no mixture of messages, or ends cannot be told apart.
        InputError: the model cannot be called as it is meant to be; the message says what to pass.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}; pass a torch module")
    if hops not in ("paths", "last"):
        raise InputError(f"hops is {hops!r}; choose 'paths' or 'last'")
    if vary not in ENDS:
        raise InputError(
            f"vary is {vary!r}; choose 'source' or 'target' (with both ends reweighted a logit is "
            "a product of two mixtures, which no linear program decides)"
        )
    refuse_compiled(model)
    data = one_graph(data, model, forward)
    kind = relation_of(data, relation)
    chosen = chosen_links(data, links, kind)
    with resting(model), torch.no_grad():
        call = link_call(model, data, decoder, forward, kind)
        return _Exposing(call, data, chosen, ENDS.index(vary), kind).expose(hops, tolerance)


class _Exposing:
    """One model's links on the way to their exposure."""

    def __init__(
        self, call: LinkCall, data: Any, links: Tensor, end: int, relation: Relation | None
    ) -> None:
        call = call.with_still(links, data)
        self.call, self.data, self.links, self.end = call, data, links, end
        self.node_type = None if relation is None else relation[2 * end]
        self.frozen, self.tables = call.run(links)
        self.z = None if call.encode is None else call.encode()
        self.nodes = self.tables[end].shape[0]
        behind = [rows_behind(self.nodes, one) for one in links]
        self.behind, self.all_links = behind[end], torch.stack(behind)
        self.fixed = self.tables[1 - end][behind[1 - end]]
        self._check_lookups()

    def _check_lookups(self) -> None:
        """With its own embeddings put in the place of what it looks up, the model is itself."""
        again = self.scores(self.tables[self.end][self.links[self.end]])
        gap = float(deviation(again, self.frozen).max())
        if not gap <= 10 * EXACT[self.frozen.dtype]:
            raise ExposureRefused(
                f"{self.call.text} looks up rows of several tables for the ends of a link, and "
                "which of them are embeddings cannot be told; hand the decoder one table that "
                "holds both, such as torch.cat([z, other], dim=1)"
            )

    def expose(self, hops: str, tolerance: float | None) -> LinkExposure:
        table = self._table
        subject = on_data(self.call.model, self.data, lambda *_: table(), self.node_type)
        exposed = expose_subject(subject, Wanted(hops, tolerance, outputs="values"))
        encoder, embed = exposed.exposure, exposed.replay
        nodes, before = split(encoder)
        mixture, terms = link_mixture(nodes, self.links[self.end])
        words = {"called": self.call.text, "origin": type(self.call.model).__name__}
        mixture = replace(mixture, **words)  # type: ignore[arg-type]
        found = self._with_decoder(mixture, by_link(before, self.behind, self.nodes))
        replay = _Replay(self, embed, nodes, mixture, terms)
        residual = self._certify(found, replay)
        dtype = self.frozen.dtype
        limit = residual_limit(tolerance, dtype)
        if not residual <= limit:
            raise ExposureRefused(
                f"with reweighted messages of the links' {ENDS[self.end]}s the model differs from "
                f"their mixture by {residual:.1e} (relative), more than {limit:.0e}; "
                + excused(residual, dtype)
            )
        if found.head is not None:
            run: Replay = logit_of(replay) if self.off else replay
            found = replace(found, replay=run)
        return LinkExposure(replace(found, residual=residual), self.links, ENDS[self.end])

    def _table(self) -> Tensor:
        """The embeddings that the varied ends are looked up in."""
        return self.call.run(self.links)[1][self.end]

    def scores(self, varied: Tensor) -> Tensor:
        """What the model says of links whose varied ends have these embeddings, a row each.

        Args:
            varied: [L, d] of the links, or [N + L, d] with what stands behind the nodes before.
        """
        few = len(varied) == self.links.shape[1]
        fixed = (self.fixed[self.nodes :] if few else self.fixed).to(varied)
        rows = [fixed, fixed]
        rows[self.end] = varied
        return self.call.run(self.links if few else self.all_links, rows, self.z)[0]

    def _with_decoder(self, mixture: Exposure, before: TailGraph) -> Exposure:
        """The mixture of logits where the rest is affine, else with a tail."""
        tail = joined(before, self._decoder(self.tables[self.end][self.behind]))
        self.off = ends_in_sigmoid(tail)
        if self.off:
            tail = without_sigmoid(tail)
            mixture = replace(mixture, called=mixture.called + TAKEN_OFF)
        if is_affine(tail):
            return folded(mixture, tail, None)
        everyone = torch.arange(mixture.num_nodes, device=mixture.recipients.device)
        frozen = tail(mixture.frozen_logits[0], everyone).unsqueeze(0)
        return mixture.with_head(tail, frozen)

    def _decoder(self, embedding: Tensor) -> TailGraph:
        """What the model does to the varied end's embedding, the other end being fixed.

        The links alone are decoded, as many as their user gave: a decoder may know more of each.
        """
        count, own = self.links.shape[1], embedding[self.nodes :]
        first = torch.arange(count, device=own.device)
        behind = rows_behind(self.nodes, first)
        try:
            followed = self._followed(own)
        except (ExposureRefused, Unfollowed) as refusal:
            return by_link(affine_by_probing(self.scores, own, refusal), behind, count)
        if not any(isinstance(step, Opaque) for step in followed.operations):
            return by_link(followed, behind, count)
        try:  # what was not understood may still be affine
            opaque = ExposureRefused("it is opaque")
            return by_link(affine_by_probing(self.scores, own, opaque), behind, count)
        except ExposureRefused:
            return self._followed(embedding)

    def _followed(self, embedding: Tensor) -> TailGraph:
        """The decoder's steps from these embeddings on."""
        with Tracer(embedding) as tracer:
            logits = self.scores(embedding)
        value, _ = tracer.builder.flat(tracer.output(logits))
        steps = simplified(tracer.builder.operations, tracer.builder.widths, value)
        return TailGraph(embedding.shape[1], tuple(steps))

    def _certify(self, found: Exposure, replay: _Replay) -> float:
        """Largest difference between the model run with reweighted messages and what was found."""
        mixture = found.aggregate
        worst = 0.0
        for seed in range(2):
            of_nodes = replay.random(seed)
            coefficients = of_nodes[replay.terms].to(mixture.coefficients.dtype)
            expected = found.logits(coefficients.unsqueeze(0))[0]
            expected = expected.sigmoid() if self.off else expected
            seen = replay.of_nodes(of_nodes)[self.nodes :].double()
            frozen = self.frozen.double()
            gap = deviation(seen, expected, frozen)
            worst = max(worst, float(gap.nan_to_num(nan=torch.inf).max()))
        return worst


class _Replay:
    """λ of the links' terms → the model's own logits of all rows, run with these messages.

    A run reweights every node once, so links that share an end take turns.
    """

    def __init__(
        self, owner: _Exposing, embed: Replay, nodes: Exposure, mixture: Exposure, terms: Tensor
    ) -> None:
        self.owner, self.embed, self.terms, self.whole = owner, embed, terms, nodes
        self.alpha = nodes.coefficients[0].double()
        self.lengths = mixture.segments[:: mixture.num_groups].diff()
        ends = owner.links[owner.end]
        order = torch.argsort(ends, stable=True)
        sorted_ends = ends[order]
        first = torch.searchsorted(sorted_ends, sorted_ends)
        turn = torch.empty_like(order)
        turn[order] = torch.arange(len(order), device=order.device) - first
        self.turn = turn

    def random(self, seed: int) -> Tensor:
        """Random admissible λ of every node, [T of the nodes]."""
        return random_admissible(self.whole, seed)

    def of_nodes(self, coefficients: Tensor) -> Tensor:
        """Logits of all rows when every node has its own λ."""
        table = self.embed(coefficients)[:, 1:]
        owner = self.owner
        with torch.no_grad(), resting(owner.call.model):
            varied = table[owner.links[owner.end]].to(owner.tables[owner.end].dtype)
            told = owner.scores(varied)
            # Nobody reads what stands behind the nodes.
            return torch.cat([told.new_zeros(owner.nodes, 1), told])

    def __call__(self, coefficients: Tensor) -> Tensor:
        given = coefficients.reshape(-1).double().to(self.alpha.device)
        out: Tensor | None = None
        for turn in range(int(self.turn.max()) + 1):
            mine = self.turn == turn
            whole = self.alpha.clone()
            own = torch.repeat_interleave(mine, self.lengths)
            whole[self.terms[own]] = given[own]
            seen = self.of_nodes(whole).double()
            rows = torch.cat([torch.ones(self.owner.nodes, dtype=torch.bool), mine.cpu()])
            out = seen if out is None else torch.where(rows.to(seen.device).unsqueeze(1), seen, out)
        assert out is not None
        return out
