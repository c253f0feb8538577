"""The one loop that trains everything: backbones, repairs and controls.

What is trained has a leading member axis S on every parameter, and the S members (one per split)
learn side by side without influencing each other: losses are summed, so gradients separate; Adam
is elementwise; clipping, selection, patience and divergence are decided per member. On a GPU the
two kinds of step, an epoch's first (which also evaluates) and the later ones, are each captured as
a CUDA graph and replayed; all decisions stay on the device and the host looks only now and then.
"""

from __future__ import annotations

import logging
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from gnn_repair.budget import LONG as LONG
from gnn_repair.budget import SHORT as SHORT
from gnn_repair.budget import Budget as Budget
from gnn_repair.checks import require_derivatives
from gnn_repair.errors import InputError
from gnn_repair.kernels import kernel_module

CHECK_EVERY = 10
"""Steps, at least, between two looks of the host, which come at the end of an epoch. Later epochs
of a stopped member change nothing, so this number does not influence results."""

WARM_UP = 3
"""Steps run before a CUDA graph is captured (they count as training like any other)."""


Parameters = Mapping[str, Tensor]
"""Trained parameters by the PyG network's names, each with a leading member axis [S, …];
matrices are stored input × output."""


class Trainee(ABC):
    """Something that can be trained: parameters, a loss and a validation score per member."""

    parameters: dict[str, Tensor]
    """Leaf tensors [S, …]."""
    steps_per_epoch: int = 1
    captures: bool = True
    """Whether a step may be captured as a CUDA graph: never waits for the device."""

    def trunk(self) -> Any:
        """What the evaluation and the first update of an epoch share (with gradients)."""
        return None

    def begin_epoch(self) -> None:  # noqa: B027 - nothing unless there is something to shuffle
        """Called before an epoch's first loss: where minibatches are shuffled."""

    @abstractmethod
    def losses(self, trunk: Any) -> Tensor:
        """Training loss of every member on the next batch, [S]."""

    def learning(self) -> Tensor | None:
        """[S] bool: which members had something in the batch of the last losses; None: all.

        The others are not updated, neither by momentum nor by weight decay.
        """
        return None

    @abstractmethod
    def scores(self, trunk: Any) -> Tensor:
        """What selects checkpoints: correct validation predictions of every member, [S]."""


@dataclass(frozen=True)
class Progress:
    """Where training stands."""

    epoch: int
    epochs: int
    active: int
    """Members still training."""
    best: float
    """Mean over members of the best score so far."""


ProgressCallback = Callable[[Progress], None]


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """The selected checkpoints and how they came about."""

    parameters: Mapping[str, Tensor]
    """[S, …]: each member's best state."""
    best_epoch: Tensor
    """[S]: the epoch it was taken at (0: untrained)."""
    best_score: Tensor
    """[S]."""
    epochs_run: Tensor
    """[S]: epochs until the member stopped."""
    diverged: Tensor
    """[S] bool: stopped because its loss was not finite."""


def check_progress(on_progress: object) -> None:
    """Raise InputError unless it can be called, or is None."""
    if not (on_progress is None or callable(on_progress)):
        raise InputError(
            f"on_progress is {on_progress!r:.60}; give a function of one Progress, or None"
        )


def fit(
    trainee: Trainee, budget: Budget, on_progress: ProgressCallback | None = None
) -> TrainingResult:
    """Train every member of ``trainee`` within ``budget`` and keep its best state."""
    check_progress(on_progress)
    require_derivatives()
    run = _Run(trainee, budget)
    first_step, later_step = _Replayed(run, first=True), _Replayed(run, first=False)
    every = max(1, CHECK_EVERY // trainee.steps_per_epoch)
    for epoch in range(budget.epochs):
        if epoch % every == 0 and not run.look(epoch, on_progress):
            break
        first_step()
        for _ in range(1, trainee.steps_per_epoch):
            later_step()
    else:
        run.last_look()
    run.look(budget.epochs, on_progress)
    return run.result()


class _Run:
    """The state of one call of :func:`fit`; every tensor is updated in place."""

    def __init__(self, trainee: Trainee, budget: Budget) -> None:
        self.trainee, self.budget = trainee, budget
        self.parameters = FlatParameters(trainee.parameters)
        self.matrix = self.parameters.matrix
        self.optimizer = MemberAdam(self.matrix, budget)
        self.device = self.matrix.device
        members = self.matrix.shape[0]
        self.best = self.matrix.detach().clone()
        self.best_score = torch.full((members,), -1.0, device=self.device)
        self.best_epoch = torch.zeros(members, dtype=torch.long, device=self.device)
        self.epochs_run = torch.zeros_like(self.best_epoch)
        self.active = torch.ones(members, dtype=torch.bool, device=self.device)
        self.diverged = torch.zeros_like(self.active)
        self.now = torch.zeros((), dtype=torch.long, device=self.device)
        self.tally = torch.zeros(members, device=self.device)
        self.ones = torch.ones(members, device=self.device, dtype=self.matrix.dtype)

    def step(self, first: bool) -> None:
        """Train on the next batch; an epoch's first step evaluates the present state before."""
        self.trainee.parameters = self.parameters.views(self.matrix)
        trunk = self.trainee.trunk()
        if first:
            self.trainee.begin_epoch()
        losses = self.trainee.losses(trunk)
        self.tally.add_(losses.detach())
        if first:
            self._stop_diverged()
            self._evaluate(trunk)
            self.now.add_(1)
            self.epochs_run.add_(self.active)
        self.optimizer.forget()
        # The gradient of their sum, without a sum to be formed.
        losses.backward(self.ones.to(losses.dtype))
        self.optimizer.step(self.trainee.learning())
        # A graph that is still referred to would tie the next step to this one's CUDA stream.
        self.trainee.parameters = self.parameters.views(self.matrix.detach())

    @torch.no_grad()
    def last_look(self) -> None:
        """Evaluate the state after the last epoch."""
        self.trainee.parameters = self.parameters.views(self.matrix)
        trunk = self.trainee.trunk()
        self.trainee.begin_epoch()
        self.tally.add_(self.trainee.losses(trunk))
        self._stop_diverged()
        self._evaluate(trunk)

    def _stop_diverged(self) -> None:
        """Stop members that had a loss that is not finite, before their state can be kept."""
        finite = self.tally.isfinite()
        self.diverged.logical_or_(self.active & ~finite)
        self.active.logical_and_(finite)

    @torch.no_grad()
    def _evaluate(self, trunk: Any) -> None:
        """Score the current state; keep it where it is a member's best."""
        scores = self.trainee.scores(trunk).to(self.best_score.dtype)
        better = self.active & (scores > self.best_score)
        if not self.budget.epoch_zero:
            better &= self.now > 0
        self.best_score.copy_(torch.where(better, scores, self.best_score))
        self.best_epoch.copy_(torch.where(better, self.now, self.best_epoch))
        self._keep(better)
        if self.budget.patience is not None:
            self.active.logical_and_(self.now - self.best_epoch < self.budget.patience)

    def _keep(self, better: Tensor) -> None:
        if self.device.type == "cuda":
            self.best.copy_(torch.where(better.unsqueeze(1), self.matrix, self.best))
            return
        for member in better.nonzero().view(-1).tolist():
            self.best[member] = self.matrix[member]

    def look(self, epoch: int, on_progress: ProgressCallback | None) -> bool:
        """Report progress; tell whether any member is still training."""
        if on_progress is None and self.budget.patience is None:
            return True
        active = int(self.active.sum())
        if on_progress is not None:
            best = float(self.best_score.mean())
            on_progress(Progress(epoch, self.budget.epochs, active, best))
        return active > 0

    def result(self) -> TrainingResult:
        """The outcome, on the training device."""
        best = {name: value.clone() for name, value in self.parameters.views(self.best).items()}
        return TrainingResult(
            best, self.best_epoch, self.best_score, self.epochs_run, self.diverged
        )


class _Replayed:
    """A kind of step that on a GPU is captured as a CUDA graph after a few calls, then replayed.

    Where it cannot be captured it stays what it is, with a warning.
    """

    def __init__(self, run: _Run, *, first: bool) -> None:
        self.run, self.first = run, first
        self.calls = 0
        self.replay: Callable[[], None] | None = None

    def __call__(self) -> None:
        on_gpu = self.run.device.type == "cuda"
        if self.calls == WARM_UP and on_gpu and self.run.trainee.captures:
            self.replay = self._captured()
        self.calls += 1
        if self.replay is None:
            self.run.step(self.first)
        else:
            self.replay()

    def _captured(self) -> Callable[[], None] | None:
        graph, device = torch.cuda.CUDAGraph(), self.run.device
        self.run.optimizer.forget()
        torch.cuda.synchronize(device)
        try:
            with torch.cuda.graph(graph):
                self.run.step(self.first)
        except RuntimeError as error:
            _forget_capture(device)
            reason = str(error).splitlines()[0]
            warnings.warn(f"training without a CUDA graph: {reason}", stacklevel=4)
            return None
        return graph.replay


def _forget_capture(device: torch.device) -> None:
    """Give the device's generator a fresh state: after a failed capture it still awaits one."""
    torch.cuda.synchronize(device)
    generator = torch.cuda.default_generators[device.index or torch.cuda.current_device()]
    fresh = torch.Generator(device).manual_seed(generator.initial_seed())
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


# Who hears how it goes ----------------------------------------------------------------------------

LOG = logging.getLogger("gnn_repair.repair")
"""Epochs at DEBUG, what was learned at INFO."""
SELDOM = 10.0
"""Seconds between two states of a bar that cannot be written over, in a file or a pipe."""


class Listener:
    """Hears how something is fitted and reports it."""

    def __init__(
        self, title: str, on_progress: Any, progress: Any, outputs: str = "classes"
    ) -> None:
        check_progress(on_progress)
        if not isinstance(progress, bool):
            raise InputError(f"progress is {progress!r:.60}; give True or False")
        self.title, self.user, self.outputs = title, on_progress, outputs
        # A program without a terminal may have no stream for errors at all.
        shown = progress and sys.stderr is not None
        live = shown and (sys.stderr.isatty() or "ipykernel" in sys.modules)
        often = 0.1 if live else SELDOM
        self.bar = tqdm(desc=title, unit="epoch", disable=not shown, mininterval=often)

    @property
    def callback(self) -> ProgressCallback | None:
        """What the loop calls; None where nobody listens, so that it need not look."""
        heard = self.user is not None or not self.bar.disable or LOG.isEnabledFor(logging.DEBUG)
        return self._hear if heard else None

    def _hear(self, progress: Progress) -> None:
        if self.user is not None:
            self.user(progress)
        words = in_words(progress, self.outputs)
        self.bar.total = progress.epochs
        self.bar.set_postfix_str(words, refresh=False)
        self.bar.update(progress.epoch - self.bar.n)
        LOG.debug("%s: epoch %d of %d, %s", self.title, progress.epoch, progress.epochs, words)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.close()


def in_words(progress: Progress, outputs: str = "classes") -> str:
    """Such as ``2 members training, 61.5 validation nodes right``.

    Before the first epoch was scored nothing is said of a score; of labels it is their micro-F1.
    """
    text = f"{progress.active} member{'s' * (progress.active != 1)} training"
    if progress.best < 0:
        return text
    if outputs == "labels":
        return f"{text}, validation micro-F1 {100 * progress.best:.1f} %"
    return f"{text}, {progress.best:g} validation nodes right"


def mask_weights(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """1/|mask| on the nodes of each member's mask [N, S], 0 elsewhere: weights of a mean."""
    return mask.to(dtype) / mask.sum(0).clamp(min=1)


def member_losses(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Weighted cross-entropy of every member, [S], of logits [N, S, C] and weights [N, S].

    Labels [N] lie in 0..C−1 wherever a weight is positive.
    """
    index = labels.clamp(min=0).view(-1, 1, 1).expand(-1, logits.shape[1], 1)
    chosen = logits.log_softmax(2).gather(2, index).squeeze(2)
    return -(chosen * weights).sum(0)


def member_correct(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Correct predictions of every member within its mask [N, S], [S]."""
    return ((logits.argmax(2) == labels.unsqueeze(1)) & mask).sum(0)


# Adam and AdamW for stacked members, each clipped by its own gradient norm ------------------------
#
# All parameters of S members lie in one matrix [S, Q], so an update is two passes over it however
# many tensors a model has: the norms (4·S·Q bytes), then clipping and update together (28·S·Q).
# Every member counts its own updates: one that is not learning in a step stays as it is.

BETAS = (0.9, 0.999)  # as PyTorch
EPSILON = 1e-8
"""PyTorch's own defaults, as are the betas; the Triton kernel holds the same numbers."""


def stack_parameters(network: nn.Module, members: int) -> dict[str, Tensor]:
    """A network's parameters for S members, all alike; matrices turned to input × output."""
    return {
        name: (value.t() if value.dim() == 2 else value)
        .detach()
        .unsqueeze(0)
        .repeat(members, *[1] * value.dim())
        .contiguous()
        for name, value in network.named_parameters()
    }


def unstack_parameters(p: Parameters, member: int) -> dict[str, Tensor]:
    """One member's parameters in PyG's own layout: the inverse of :func:`stack_parameters`."""
    chosen = {name: value[member] for name, value in p.items()}
    return {
        name: (value.t() if value.dim() == 2 else value).contiguous().clone()
        for name, value in chosen.items()
    }


class FrozenDict(Mapping[str, Tensor]):
    """Tensors by name, fixed when it is built; unlike ``MappingProxyType``, it can be pickled."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Tensor:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"{{{', '.join(self._values)}}}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._values,)


class FlatParameters:
    """Parameters [S, …] by name, kept in one matrix."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.shapes = {name: value.shape for name, value in parameters.items()}
        self.matrix = torch.cat([value.detach().flatten(1) for value in parameters.values()], dim=1)
        """[S, Q]: what is trained."""
        self.matrix.requires_grad_()

    def views(self, matrix: Tensor) -> dict[str, Tensor]:
        """The parameters within a matrix like ours; gradients flow back to it."""
        sizes = [shape[1:].numel() for shape in self.shapes.values()]
        parts = matrix.split(sizes, dim=1)
        return {
            name: part.view(shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }


class MemberAdam:
    """The optimiser of one matrix [S, Q]."""

    def __init__(self, matrix: Tensor, budget: Budget) -> None:
        self.matrix, self.budget = matrix, budget
        self.update = getattr(kernel_module("aggregate", matrix), "adam", plain_adam)
        self.rows = list(matrix.detach())
        if matrix.device.type == "cpu":
            method = torch.optim.AdamW if budget.decoupled else torch.optim.Adam
            rate, decay = budget.learning_rate, budget.weight_decay
            self.optimizer = method(
                self.rows, lr=rate, betas=BETAS, eps=EPSILON, weight_decay=decay, fused=True
            )
        else:
            self.moments = torch.zeros_like(matrix), torch.zeros_like(matrix)
            self.steps = torch.zeros(matrix.shape[0], dtype=torch.long, device=matrix.device)
            self.everyone = torch.ones_like(self.steps, dtype=torch.bool)

    @torch.no_grad()
    def step(self, learning: Tensor | None = None) -> None:
        """Clip every member's gradient to the budget's norm, then update those that learn [S]."""
        gradient = self.matrix.grad
        assert gradient is not None
        norm = torch.linalg.vector_norm(gradient, dim=1)
        # As torch.nn.utils.clip_grad_norm_ has it, small number included.
        scale = (self.budget.clip / (norm + 1e-6)).clamp(max=1.0)
        if self.matrix.device.type == "cpu":
            self._step_rows(gradient.mul_(scale.unsqueeze(1)), learning)
            return
        learning = self.everyone if learning is None else learning
        self.steps.add_(learning)
        self.update(self.matrix, gradient, self.moments, self.steps, scale, learning, self.budget)

    def _step_rows(self, gradient: Tensor, learning: Tensor | None) -> None:
        """PyTorch's own optimiser, which leaves a row without gradient alone."""
        chosen = [True] * len(self.rows) if learning is None else learning.tolist()
        for row, own, learns in zip(self.rows, gradient, chosen, strict=True):
            row.grad = own if learns else None
        self.optimizer.step()

    def forget(self) -> None:
        """Drop the gradient."""
        self.matrix.grad = None


def plain_adam(
    matrix: Tensor,
    gradient: Tensor,
    moments: tuple[Tensor, Tensor],
    steps: Tensor,
    scale: Tensor,
    learning: Tensor,
    budget: Budget,
) -> None:
    """The same update written out, for precisions that the GPU's kernel does not take.

    Matrix and moments, [S, Q] each, are changed in place. ``steps`` [S] are the updates of each
    member with this one, ``scale`` [S] what clipping multiplies the gradient by, ``learning`` [S]
    the members to update.
    """
    chosen, rate = learning.unsqueeze(1), budget.learning_rate
    value, own = matrix.detach(), gradient * scale.unsqueeze(1)
    if budget.decoupled:
        value = value * (1 - rate * budget.weight_decay)
    else:
        own = own + budget.weight_decay * value
    corrections = [1 - beta ** steps.double().unsqueeze(1).clamp(min=1) for beta in BETAS]
    first, second = (
        beta * moment + (1 - beta) * power
        for beta, moment, power in zip(BETAS, moments, (own, own.square()), strict=True)
    )
    size = (second / corrections[1]).sqrt() + EPSILON
    moved = (value - rate * (first / corrections[0]) / size).to(matrix.dtype)
    for target, new in zip((matrix, *moments), (moved, first, second), strict=True):
        target.copy_(torch.where(chosen, new, target))
