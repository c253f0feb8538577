"""Products with an N × N matrix that a model's forward does itself: aggregations like any other.

The matrix's nonzero entries are the coefficients, the rows of the other operand the states.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from gnn_repair.exposure.batched_products import read_batch
from gnn_repair.exposure.sites import Call

PLAIN = {torch.mm, torch.matmul, torch.mv, torch.sparse.mm, Tensor.mm, Tensor.matmul, Tensor.mv}
"""Functions of (matrix, table); torch.spmm is torch.mm, and A @ h is Tensor.matmul."""
ADDED = {torch.addmm, Tensor.addmm, torch.sparse.addmm}
"""Functions of (added, matrix, table) with factors beta and alpha."""
CONTRACTED = re.compile(r"(\w)(\w),(?:\2)(\w?)->\1\3")
"""Of einsum, what is a matrix product: ij,jk->ik."""


@dataclass(frozen=True)
class MatrixProduct:
    """Stands where a convolution stands: it sums over the entries of a matrix."""

    node_dim: int = 0
    aggr: str = "sum"
    aggr_module: None = None
    """None: the aggregator adds nothing of its own."""


@dataclass(frozen=True, eq=False)
class Product:
    """One product A h, perhaps scaled and added to something."""

    matrix: Tensor
    """A [N, N], sparse or dense."""
    table: Tensor
    """h [N, D]."""
    vector: bool
    """Whether the model multiplied with a vector, [N]."""
    factor: float = 1.0
    added: Tensor | None = None
    """What the result is added to, its own factor included."""
    kind: ClassVar[str] = "matrix product"
    rule: ClassVar[str] = "α = the matrix's entry, h = the source's row"
    coefficients_from: ClassVar[str] = "the matrix itself"
    by_entry: ClassVar[bool] = False
    """Whether the table has a row per entry of the matrix instead of one per source."""

    def value(self, entries: Tensor | None = None) -> Tensor:
        """A h [N, D] times the factor, or with other numbers [T] for A's entries and the factor."""
        if entries is None:
            out = self.matrix @ self.table
            return out if self.factor == 1 else out * self.factor
        return _with_entries(self.matrix, entries.to(self.table.dtype)) @ self.table

    def finish(self, value: Tensor) -> Tensor:
        """What the model's own function returns, from the product."""
        value = value.squeeze(1) if self.vector else value
        return value if self.added is None else self.added + value


@dataclass(frozen=True, eq=False)
class ProductCall(Call):
    """One recorded product, in the form of a propagate."""

    @property
    def kind(self) -> str:
        """What aggregates."""
        product: Product = self.arguments["product"]
        return product.kind

    @property
    def last(self) -> str:
        """The title of the last one."""
        return f"the last {self.kind}" + (f", in `{self.site.name}`," * bool(self.site.name))

    @property
    def num_nodes(self) -> int:
        """Rows of the matrix."""
        return int(self.value.shape[0])

    @cached_property
    def entries(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Source, recipient and value of every nonzero entry, the product's factor included."""
        product: Product = self.arguments["product"]
        rows, columns, values = entries_of(product.matrix)
        return columns, rows, values * product.factor

    def messages(self) -> Tensor:
        """Entry times state, [T, 1, D]."""
        sources, _, values = self.entries
        assert values is not None
        product: Product = self.arguments["product"]
        states = product.table if product.by_entry else product.table[sources]
        return (values.view(-1, 1) * states).unsqueeze(1)

    def aggregated(self, messages: Tensor) -> Tensor:
        """The sum of other messages [T, 1, D] at each recipient."""
        return torch.zeros_like(self.value).index_add_(0, self.entries[1], messages[:, 0])


def entries_of(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, columns and values of a matrix's entries (of a dense one: those not zero)."""
    if matrix.layout == torch.strided:
        rows, columns = matrix.nonzero().unbind(1)
        return rows, columns, matrix[rows, columns]
    if matrix.layout != torch.sparse_coo:
        # Through COO: CSC and blocked layouts too, in an order that _with_entries repeats.
        matrix = matrix.to_sparse_coo()
    index = matrix._indices()
    return index[0], index[1], matrix._values()


def _with_entries(matrix: Tensor, values: Tensor) -> Tensor:
    """The matrix with other values at its entries."""
    rows, columns, _ = entries_of(matrix)
    if matrix.layout == torch.strided:
        out = torch.zeros_like(matrix, dtype=values.dtype)
        out[rows, columns] = values
        return out
    index = torch.stack([rows, columns])
    return torch.sparse_coo_tensor(index, values, matrix.shape, check_invariants=False)


def read_product(
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    nodes: int,
    senders: frozenset[int] = frozenset(),
) -> Product | None:
    """The product that a call of a torch function does, if it is one with an N × N matrix.

    Or with a sparse N × M one, where M nodes of another type may send.
    """
    options = {k: v for k, v in kwargs.items() if v is not None}
    added: Tensor | None = None
    factor = 1.0
    if function is torch.einsum and len(args) == 3 and isinstance(args[0], str):
        if not CONTRACTED.fullmatch(args[0].replace(" ", "")):
            return None
        left, right = args[1:]
    elif function in PLAIN and len(args) == 2 and not options:
        left, right = args
    elif function is linear and len(args) + len(options) >= 2:
        left, right, added = _of_linear(*args, **options)
    elif function in ADDED and len(args) == 3 and options.keys() <= {"alpha", "beta"}:
        base, left, right = args
        factor, beta = float(options.get("alpha", 1)), float(options.get("beta", 1))
        added = base if beta == 1 else base * beta
    else:
        return None
    if not _fits(left, right, nodes, senders):
        return None
    vector = right.dim() == 1
    return Product(left, right.unsqueeze(1) if vector else right, vector, factor, added)


def _of_linear(input: Any, weight: Tensor, bias: Tensor | None = None) -> tuple[Any, Any, Any]:
    """A linear layer on the rows of a matrix: the matrix times a trained row for every column."""
    return input, weight.t(), bias


def _fits(left: Any, right: Any, nodes: int, senders: frozenset[int]) -> bool:
    tensors = isinstance(left, Tensor) and isinstance(right, Tensor)
    if not tensors or left.dim() != 2 or left.shape[0] != nodes:
        return False
    columns = left.shape[1]
    return (
        (columns == nodes or (columns in senders and left.layout != torch.strided))
        and right.dim() in (1, 2)
        and right.shape[0] == columns
        and right.layout == torch.strided
        and right.is_floating_point()
        and left.dtype == right.dtype
    )


def is_feature_map(product: Product, features: Any, fields: Sequence[Any]) -> bool:
    """Whether a product maps features by a weight: its matrix is N × N only by coincidence.

    Args:
        product: the product.
        features: what the model was given as x.
        fields: the other tensors of the data, among which a dense graph would be.
    """
    matrix = product.matrix
    if matrix is features:
        return True
    if matrix.layout != torch.strided:
        return False
    if _same_memory(matrix, features):
        return True
    known = any(_same_memory(matrix, other) for other in fields)
    table = product.table
    holder = table._base if table._is_view() else table
    return isinstance(holder, nn.Parameter) and not known


def _same_memory(matrix: Tensor, other: Any) -> bool:
    strided = isinstance(other, Tensor) and other.layout == torch.strided
    return strided and other.data_ptr() == matrix.data_ptr()


class Products(TorchFunctionMode):
    """While open, products with an N × N matrix are handed to a function that does them."""

    def __init__(
        self,
        nodes: int,
        seen: Callable[[Product], Tensor],
        busy: Callable[[], bool],
        senders: frozenset[int] = frozenset(),
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        """Watch products of one size.

        Args:
            nodes: N.
            seen: does a product.
            busy: whether a convolution is running, whose own sums are none of ours.
            senders: further numbers of columns that a sparse matrix may have.
            clock: how many aggregations have been seen in this run.
        """
        from gnn_repair.exposure.sums_by_hand import HandSums

        super().__init__()
        self.nodes, self.seen, self.busy, self.senders = nodes, seen, busy, senders
        self.sums = HandSums(nodes, senders, clock)

    @property
    def unread(self) -> str:
        """A sum over edges by hand that could not be read, in words."""
        return self.sums.other

    def forget(self) -> None:
        """Let go of what the last run gathered."""
        self.sums.forget()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let a torch function run, or hand over the product that it is."""
        given = kwargs or {}
        product = read_product(func, args, given, self.nodes, self.senders)
        batch = read_batch(func, args, given, self.nodes) if product is None else None
        if batch is not None:
            return batch.results(lambda matrix, table: self.seen(Product(matrix, table, False)))
        if product is None and not self.busy():
            self.sums.note(func, args, given)
            by_head = self.sums.read(func, args, given)
            if by_head is not None:
                return by_head.results(self.seen)
        return func(*args, **given) if product is None else self.seen(product)
