"""What belongs to a sum: masks, divisors, copied weights, and what is a sum of its own."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.functional import one_hot
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

import gnn_repair as gr
from tests.helpers.models.made import Made
from tests.helpers.models.terms import dense

NODES, WIDTH, CLASSES = 14, 5, 3


def graph():
    torch.manual_seed(2)
    edges = torch.cat([torch.randint(NODES - 2, (2, 30)), torch.tensor([[1, 1], [2, 2]])], 1)
    x = torch.randn(NODES, WIDTH, dtype=torch.float64)
    return Data(x=x, edge_index=edges, y=torch.randint(CLASSES, (NODES,)))


def counts(edges, size=NODES):
    return torch.zeros(size, size).double().index_put(
        (edges[1], edges[0]), torch.ones(edges.shape[1]).double(), accumulate=True
    )  # fmt: skip


def test_labels_of_neighbours_are_messages():
    def forward(self, x, edge_index, y):
        adjacency, codes = counts(edge_index), one_hot(y, CLASSES).double()
        return adjacency @ self.lin(x) + adjacency @ codes

    data = graph()
    exposure = gr.expose(Made(forward, lin=nn.Linear(WIDTH, CLASSES)).double(), data)
    assert exposure.num_groups == 2 and not exposure.held
    one = exposure.restrict([3])
    assert sorted(one.mass[0, 0].tolist()) == [float((data.edge_index[1] == 3).sum())] * 2


def test_messages_to_and_from_an_appended_node():
    class Hub(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.hub = GCNConv(WIDTH, CLASSES), nn.Parameter(torch.randn(1, WIDTH))

        def forward(self, x, edge_index):
            each = torch.arange(NODES)
            hub = torch.full((NODES,), NODES)
            edges = torch.cat([edge_index, torch.stack([each, hub]), torch.stack([hub, each])], 1)
            return self.conv(torch.cat([x, self.hub]), edges)[:NODES]

    data = graph()
    exposure = gr.expose(Hub().double(), data)
    assert exposure.num_recipients == NODES and int(exposure.sources.max()) < NODES
    assert exposure.residual <= 1e-12


def _blanked(m, keep):
    m = m.clone()
    m[~keep] = 0
    return m


ZEROED = {
    "times": lambda m, keep: m * keep[..., None],
    "times as wide": lambda m, keep: m * keep[..., None].expand_as(m),
    "masked_fill": lambda m, keep: m.masked_fill(~keep[..., None], 0.0),
    "where": lambda m, keep: torch.where(keep[..., None], m, 0.0),
    "where not": lambda m, keep: torch.where(~keep[..., None], torch.zeros_like(m), m),
    "written": _blanked,
}


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("name", ZEROED)
@pytest.mark.parametrize("pairs", [False, True])
def test_rows_that_a_mask_puts_to_zero_are_no_messages(name, pairs, width):
    """Padded tables of neighbours, or all pairs of nodes, before a mean."""

    def forward(self, x, table, keep):
        rows = self.lin(x)
        m = rows.expand(len(x), *rows.shape) if pairs else rows[table]
        around = ZEROED[name](m, keep).sum(1) / keep.sum(1, keepdim=True)
        return self.own(x) + (around if width > 1 else around * self.scale)

    torch.manual_seed(4)
    a = (torch.rand(NODES, NODES) < 0.3) | torch.eye(NODES, dtype=torch.bool)
    most = int(a.sum(1).max())
    table = torch.stack([F.pad(row.nonzero().view(-1), (0, most))[:most] for row in a])
    keep = a if pairs else torch.arange(most) < a.sum(1, keepdim=True)
    model = Made(forward, lin=nn.Linear(3, width), own=nn.Linear(3, 4)).double()
    model.scale = torch.randn(4).double()
    exposure = gr.expose(model, {"x": torch.randn(NODES, 3).double(), "table": table, "keep": keep})
    matrix = dense(exposure)[0]
    torch.testing.assert_close(matrix, a.double() / a.sum(1, keepdim=True))
    assert not exposure.held


DIVISORS = {
    "a small number": lambda r: 1 / (r + 1e-12),
    "clamp": lambda r: r.clamp(min=1e-9).reciprocal(),
    "written": lambda r: 1 / r.index_put((r == 0,), torch.ones(()).double()),
    "where": lambda r: 1 / torch.where(r == 0, torch.ones_like(r), r),
    "masked_fill": lambda r: r.masked_fill(r == 0, 1).pow(-1),
    "maximum": lambda r: 1 / torch.maximum(r, 1e-9 * torch.ones_like(r)),
    "inverse": lambda r: (1 / r).masked_fill(torch.isinf(1 / r), 0),
    "inverse, nan_to_num": lambda r: (1 / r).nan_to_num(0, 0),
}


@pytest.mark.parametrize("name", DIVISORS)
@pytest.mark.parametrize("divides", [False, True])
def test_a_divisor_that_is_kept_from_zero_belongs_to_the_coefficients(name, divides):
    """Attention that is normalised after its sum: one group, with shares that add up to one."""

    def forward(self, x, edge_index):
        w = torch.cat([x[edge_index[0]], x[edge_index[1]]], 1).matmul(self.score).exp()[:, None]
        zeros = x.new_zeros(len(x), 1)
        share = DIVISORS[name](zeros.index_add(0, edge_index[1], w))
        rows = self.lin(x)
        added = torch.zeros_like(rows).index_add(0, edge_index[1], w * rows[edge_index[0]])
        return (added / (1 / share) if divides else added * share) + self.own(x)

    data = graph()
    torch.manual_seed(4)
    width = data.x.shape[1]
    model = Made(forward, lin=nn.Linear(width, 4), own=nn.Linear(width, 4)).double()
    model.score = torch.randn(2 * width).double()
    exposure = gr.expose(model, data)
    assert exposure.num_groups == 1 and exposure.head is None and not exposure.held
    heard = exposure.mass[exposure.mass > 0]
    torch.testing.assert_close(heard, torch.ones_like(heard), rtol=1e-6, atol=0)


COPIED = {
    "broadcast": lambda w, h: w.unsqueeze(2) * h.view(len(h), 2, -1),
    "interleaved": lambda w, h: w.repeat_interleave(h.shape[1] // 2, 1) * h,
    "expanded": lambda w, h: w.unsqueeze(2).expand(len(h), 2, h.shape[1] // 2).reshape(h.shape) * h,
    "repeated": lambda w, h: h.view(len(h), 2, -1) * w.unsqueeze(2).repeat(1, 1, h.shape[1] // 2),
}


@pytest.mark.parametrize("name", COPIED)
def test_weights_that_are_copied_to_the_channels_are_coefficients(name):
    def forward(self, x, edge_index):
        rows = COPIED[name](self.weigh(x).sigmoid()[edge_index[0]], self.lin(x)[edge_index[0]])
        return self.last(x.new_zeros(len(x), 6).index_add(0, edge_index[1], rows.flatten(1)))

    data = graph()
    torch.manual_seed(5)
    parts = {
        "weigh": nn.Linear(WIDTH, 2),
        "lin": nn.Linear(WIDTH, 6),
        "last": nn.Linear(6, CLASSES),
    }
    model = Made(forward, **parts).double()
    found = dense(gr.expose(model, data))
    shares = model.weigh(data.x).sigmoid().detach()
    for head in range(2):
        torch.testing.assert_close(found[head], counts(data.edge_index) * shares[:, head])


def test_a_sum_of_weights_that_multiplies_is_a_sum_of_its_own():
    def forward(self, x, edge_index):
        w, rows = x[edge_index[0], :1].exp(), self.lin(x)[edge_index[0]]
        ends, zeros = edge_index[1], x.new_zeros(len(x), CLASSES)
        return zeros.index_add(0, ends, w * rows) * zeros[:, :1].index_add(0, ends, w)

    exposure = gr.expose(Made(forward, lin=nn.Linear(WIDTH, CLASSES)).double(), graph())
    assert exposure.num_groups == 2 and exposure.head is not None


def test_a_guard_that_other_nodes_decide_is_held():
    def forward(self, x, edge_index):
        ends, zeros = edge_index[1], x.new_zeros(len(x), CLASSES)
        w, rows = x[edge_index[0], :1].exp(), self.lin(x)[edge_index[0]]
        total = zeros[:, :1].index_add(0, ends, w)
        others = zeros[:, :1].index_add(0, edge_index[0], x[ends, 1:2])
        return zeros.index_add(0, ends, w * rows) / torch.where(others > 0, total + 1, 1.0)

    exposure = gr.expose(Made(forward, lin=nn.Linear(WIDTH, CLASSES)).double(), graph())
    assert exposure.num_groups == 1 and [part.beside for part in exposure.held] == [True]


def test_zeros_of_a_kernel_are_messages_where_both_factors_are_learned():
    """Of linear attention all nodes send; of learned weights per hyperedge those that share one."""

    def attention(self, x):
        return self.key(x).relu() @ (self.query(x).relu().t() @ self.lin(x))

    def incidence(self, x, hyper):
        return hyper @ ((hyper * self.weigh.exp()).t() @ self.lin(x))

    torch.manual_seed(1)
    parts = {name: nn.Linear(WIDTH, 4) for name in ("key", "query")} | {"lin": nn.Linear(WIDTH, 3)}
    models = [Made(how, **parts).double() for how in (attention, incidence)]
    models[1].weigh = nn.Parameter(torch.randn(4).double())
    hyper = (torch.rand(NODES, 4) < 0.3).double()
    hyper[torch.arange(NODES), torch.arange(NODES) % 4] = 1
    found = [gr.expose(model, {"x": graph().x, "hyper": hyper}).num_terms for model in models]
    key, query = (models[0].get_submodule(n)(graph().x).relu() for n in ("key", "query"))
    heard = int(((key @ query.t()).sum(1) > 0).sum())
    assert 0 < heard < NODES
    assert found == [heard * NODES, int((hyper @ hyper.t() > 0).sum())]


@pytest.mark.parametrize("whole", [False, True])
def test_what_a_mask_leaves_out_may_be_infinite(whole):
    """Rows divided by distances, where loops have none."""

    def forward(self, x, edge_index):
        start, end = edge_index
        far = (x[start] - x[end]).square().sum(1, keepdim=True)
        rows = self.both(torch.cat([x[start], x[end]], 1)) if whole else self.lin(x)[start]
        if whole:
            rows = rows + torch.where(far == 0, torch.nan, 0.0)
        near = (rows / far).masked_fill(far == 0, 0.0)
        return x.new_zeros(len(x), CLASSES).index_add(0, end, near)

    data = graph()
    layers = {"lin": nn.Linear(WIDTH, CLASSES), "both": nn.Linear(2 * WIDTH, CLASSES)}
    exposure = gr.expose(Made(forward, **layers).double(), data)
    assert exposure.num_terms == int((data.edge_index[0] != data.edge_index[1]).sum())
