"""Watching the pools of a model's run, and replacing what they pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gnn_repair.exposure.pooling.pool import GraphPool, Pool, PoolCall
from gnn_repair.exposure.pooling.reading import Pools
from gnn_repair.exposure.probes import perturbation
from gnn_repair.exposure.recording import Trace, Watch
from gnn_repair.exposure.sites import Site, in_blocks


class PoolWatch(Watch):
    """A watch whose aggregations are pools; propagates are recorded, as what comes before them."""

    def __init__(
        self, model: nn.Module, forward: Callable[[], Tensor], sizes: tuple[int, int]
    ) -> None:
        """Watch a model.

        Args:
            model: the model.
            forward: runs it.
            sizes: N nodes and B graphs.
        """
        super().__init__(model, forward)
        self.pools = Pools(
            sizes, self._pooled, self._divided, lambda: bool(self._inside or self._open)
        )
        self._products = self.pools  # type: ignore[assignment]
        self._divisors: dict[Site, Tensor] = {}
        self._quotients: list[tuple[Site, Tensor, Tensor]] = []
        self._moving: set[Site] = set()
        self._convolved: dict[tuple[str, int], tuple[Tensor, Counter[str]]] = {}

    def trace(self) -> Trace:
        """Run once and record every propagate and every pool."""
        trace = super().trace()
        pools = [call for call in trace.calls if isinstance(call, PoolCall)]
        # The number of nodes depends on nothing; any other divisor may come from the sum itself.
        doubtful = [call for call in pools if call.divisor is not None and not call.by_size]
        if doubtful:
            self._moving.clear()
            values = {call.site: trace.values[call.site] for call in doubtful}
            self.run({s: value + perturbation(value, seed=5) for s, value in values.items()})
            for call in doubtful:
                if call.site in self._moving:
                    self._undivide(trace, call)
        return trace

    def _undivide(self, trace: Trace, call: PoolCall) -> None:
        """What a sum is divided by depends on it: the division is part of what follows."""
        divisor = self._divisors.pop(call.site)
        value = call.value * divisor.unsqueeze(1)
        arguments = {name: given for name, given in call.arguments.items() if name != "divisor"}
        trace.calls[trace.calls.index(call)] = replace(call, value=value, arguments=arguments)
        trace.values[call.site] = in_blocks(value, 0)

    def _forward(
        self, name: str, original: Callable[..., Any], sites: bool, *args: Any, **kwargs: Any
    ) -> Any:
        """A convolution's run; those before every replaced site give what they gave in the trace.

        Runs go the same way up to there, so that counts are then what they were.
        """
        key = (name, self._counts[name])
        if self._trace is None and key in self._convolved:
            out, counts = self._convolved[key]
            if counts["propagate"] < self._reach:
                self._counts = counts.copy()
                return out.clone()  # what follows may change it in place
        out = super()._forward(name, original, sites, *args, **kwargs)
        if self._trace is not None and isinstance(out, Tensor) and not self._open:
            self._convolved[key] = out.detach().clone(), self._counts.copy()
        return out

    def _pooled(self, pool: Pool) -> Tensor:
        site = self._next(self._running[-1] if self._running else "")
        if self._seen is not None:
            self._seen[site] = {"x": pool.table, "weight": pool.weight}
        if self._trace is not None:
            out = pool.own()
            self._record_pool(site, pool, pool.read(out))
            return out
        divisor = self._divisors.get(site)
        if site in self._entries:
            entries = self._entries[site]
            # What is put in comes before the model's own division.
            raw = entries if divisor is None else entries * divisor[pool.graph]
            return pool.finish(pool.value(raw))
        if site in self._replaced:
            value = self._replaced[site][:, 0]
            if divisor is None:
                return pool.finish(value)
            out = pool.finish(value * divisor.unsqueeze(1))
            self._quotients.append((site, out, value.reshape(out.shape)))
            return out
        return pool.own()

    def _record_pool(self, site: Site, pool: Pool, value: Tensor) -> None:
        assert self._trace is not None
        order = self._counts[f"pools of {site.name}"]
        self._counts[f"pools of {site.name}"] += 1
        arguments = {"x": pool.table, "product": pool}
        self._trace.calls.append(
            PoolCall(site, GraphPool(), order, pool.table, None, None, arguments, value, None)
        )
        self._note(site, value, node_dim=0)

    def _divided(self, sums: Tensor, pool: Pool, divisor: Tensor) -> Tensor | None:
        """The model divides what a pool gave: from here on the quotient is what is pooled."""
        if self._trace is None:
            for site, out, value in self._quotients:
                if out is sums and torch.equal(divisor, self._divisors[site]):
                    return value
                if out is sums:
                    self._moving.add(site)
            return None
        for place, call in enumerate(self._trace.calls):
            if isinstance(call, PoolCall) and call.pool is pool and call.divisor is None:
                value = call.value / divisor.unsqueeze(1)
                arguments = {**call.arguments, "divisor": divisor}
                self._trace.calls[place] = replace(call, value=value, arguments=arguments)
                self._trace.values[call.site] = in_blocks(value, 0)
                self._divisors[call.site] = divisor
        return None

    def run(
        self,
        replaced: Mapping[Site, Tensor] | None = None,
        messages: Mapping[Site, Tensor] | None = None,
        entries: Mapping[Site, Tensor] | None = None,
        seen: dict[Site, Mapping[str, Any]] | None = None,
    ) -> Tensor:
        """The model's output when what some pools give, or their coefficients, is replaced."""
        self._quotients.clear()
        return super().run(replaced, messages, entries, seen)
