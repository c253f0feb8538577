"""The peer in repair benchmarks: x_{v,a} built term by term, as the definition reads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gnn_repair.exposure import Exposure
from gnn_repair.training import Budget

CHUNK = 65_536
"""Terms encoded at a time, as in the paper."""


def mlp(inputs: int, outputs: int, hidden: int = 128) -> nn.Sequential:
    """Affine, ReLU, dropout, affine."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hidden, outputs)
    )


class LiteralRepair(nn.Module):
    """Set translation or reweighting of one member, one row x_{v,a} per term and pass."""

    def __init__(self, exposure: Exposure, reweighting: bool) -> None:
        super().__init__()
        self.exposure, self.reweighting = exposure, reweighting
        d, c = exposure.state.shape[2], exposure.num_classes
        pair, context = 3 * d + 3 * c + 2, d + c + 128 + 1
        self.encoder = mlp(pair, 128)
        self.head = mlp(pair + context, 1) if reweighting else mlp(context, c)
        last = self.head[3]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        row, state = exposure.rows.long(), exposure.state[0]
        self.h, self.z = state, exposure.frozen_logits[0].to(state.dtype)
        self.messages = exposure.messages[0]
        self.message, self.source = exposure.message_rows[row].long(), exposure.sources[row].long()
        self.owner = exposure.terms_by_recipient.recipients.long()
        self.segment = torch.repeat_interleave(exposure.segments.diff())
        self.alpha = exposure.coefficients[0]
        self.contributions = exposure.contributions[0].to(state.dtype)[row]
        self.fixed = exposure.fixed_logits[0].to(state.dtype)

    def pairs(self, part: slice) -> Tensor:
        """x_{v,a} of a chunk of terms, [K, 3d + 3C + 2]."""
        node = self.exposure.recipients[self.owner[part]]
        h_v, h_a = self.h[node], self.messages[self.message[part]]
        z_v, z_a = self.z[node], self.z[self.source[part]]
        cosine = torch.cosine_similarity(h_v, h_a, dim=1).unsqueeze(1)
        distance = (h_a - h_v).norm(dim=1, keepdim=True)
        return torch.cat([h_v, h_a, h_a - h_v, z_v, z_a, z_a - z_v, cosine, distance], dim=1)

    def forward(self) -> Tensor:
        """Repaired logits, [N, C]."""
        count, terms = self.exposure.num_recipients, self.owner.numel()
        parts = [slice(i, i + CHUNK) for i in range(0, terms, CHUNK)]
        encoded = self.h.new_zeros(count, 128)
        for part in parts:
            message = self.alpha[part, None] * self.encoder(self.pairs(part))
            encoded = encoded.index_add(0, self.owner[part], message)
        total = self.h.new_zeros(count).index_add(0, self.owner, self.alpha).unsqueeze(1)
        own = self.exposure.recipients
        context = torch.cat([self.h[own], self.z[own], encoded / total, total], dim=1)
        if not self.reweighting:
            shift = 4 * self.head(context).tanh()
            return self.z[own] + shift - shift.mean(1, keepdim=True)
        return self._mixture(context, parts)

    def _mixture(self, context: Tensor, parts: list[slice]) -> Tensor:
        raw = [
            self.head(torch.cat([self.pairs(part), context[self.owner[part]]], dim=1))
            for part in parts
        ]
        tilted = self.alpha * (4 * torch.cat(raw).squeeze(1).tanh()).exp()
        groups = self.exposure.segments.numel() - 1
        zeros = tilted.new_zeros(groups)
        mass = zeros.index_add(0, self.segment, self.alpha)
        # An empty group has no terms to divide among; 0 / 1e-30 is nothing.
        share = mass / zeros.index_add(0, self.segment, tilted).clamp(min=1e-30)
        weighted = (tilted * share[self.segment]).unsqueeze(1) * self.contributions
        return self.fixed[self.exposure.recipients].index_add(0, self.owner, weighted)


def literal_loop(
    model: LiteralRepair,
    y: Tensor,
    train: Tensor,
    val: Tensor,
    budget: Budget,
    on_epoch: Callable[[int], None],
) -> float:
    """Train, clip and validate every epoch; returns the best validation accuracy."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=budget.learning_rate, weight_decay=budget.weight_decay
    )
    best = 0.0
    for epoch in range(budget.epochs):
        model.train()
        optimizer.zero_grad()
        cross_entropy(model()[train], y[train]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), budget.clip)
        optimizer.step()
        model.eval()
        with torch.no_grad():
            predicted = model().argmax(1)
        best = max(best, float((predicted[val] == y[val]).float().mean()))
        on_epoch(epoch + 1)
    return best
