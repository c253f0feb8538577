"""Generated graphs, which need no file: always the same ones, and what was planted is known.

Changing a number or a seed here makes other graphs, and the documentation's figures and the tests
are of these. They are small enough that a model is trained in seconds.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gnn_repair.budget import check_real, check_whole
from gnn_repair.checks import MASKS
from gnn_repair.datasets.splits import stratified_splits

SEED = 7


def _rounded(values: np.ndarray) -> Tensor:
    """Features as float32, rounded to 1/32, so that no platform's last bit matters."""
    return torch.from_numpy((np.round(values * 32) / 32).astype(np.float32))


# The built-in graph: a text that behaves like Roman-empire ----------------------------------------
#
# Tokens stand in one long chain. A sparse grammar decides which of the 18 classes may follow which,
# so neighbours almost never share a class and yet tell much about each other. Dependency links skip
# from a token to a nearby later one of the class that governs it. A token's features are noisy
# coordinates of its class, and some tokens are used in the place of another class (as words are),
# so neither the features nor the neighbours alone decide the class.

TOKENS = 3_000
FEATURES = 64
CLASSES = 18

COMMON = 3  # classes that may turn up anywhere
FOLLOW = (0.72, 0.86)  # cumulative probabilities of a class's three possible successors
AMBIGUOUS = 0.3  # share of tokens that look like another class
GOVERNED = 0.8  # share of tokens that look for their governor
REACH = range(2, 9)  # how far ahead a governor is looked for


def generate_builtin() -> Data:
    """The built-in graph before preprocessing; always the same one.

    Returns:
        ``x`` float32 [N, F], ``edge_index`` [2, links] (one direction), ``y`` long [N] and ten
        stratified 50/25/25 splits.
    """
    generator = np.random.default_rng(SEED)
    labels = _text(generator, _grammar(generator))
    links = _token_links(generator, labels)
    features = _token_features(generator, labels)
    y = torch.from_numpy(labels)
    masks = stratified_splits(y, (50, 25, 25), range(10), draw="numpy")
    return Data(
        x=features,
        edge_index=torch.from_numpy(links).t().contiguous(),
        y=y,
        **dict(zip(MASKS, masks, strict=True)),
    )


def _derangement(generator: np.random.Generator) -> np.ndarray:
    """For each class another class: one cycle through all of them in random order; [C]."""
    order = generator.permutation(CLASSES)
    other = np.empty(CLASSES, dtype=np.int64)
    other[order] = np.roll(order, -1)
    return other


def _grammar(generator: np.random.Generator) -> np.ndarray:
    """The three classes that may follow each class, likeliest first; [C, 3].

    The likeliest ones form a cycle, so that every class keeps coming back; the third is one of
    the few common classes, so that classes differ in size.
    """
    likely = [_derangement(generator), _derangement(generator)]
    return np.stack([*likely, generator.integers(COMMON, size=CLASSES)], axis=1)


def _text(generator: np.random.Generator, successors: np.ndarray) -> np.ndarray:
    """The class of each token along the chain; [N]."""
    choices = np.searchsorted(FOLLOW, generator.random(TOKENS))
    labels = np.zeros(TOKENS, dtype=np.int64)
    for token in range(1, TOKENS):
        labels[token] = successors[labels[token - 1], choices[token]]
    return labels


def _token_links(generator: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    """Chain links and dependency links; [links, 2]."""
    governor = _derangement(generator)
    links = [(token, token + 1) for token in range(TOKENS - 1)]
    for token in np.flatnonzero(generator.random(TOKENS) < GOVERNED):
        ahead = (token + step for step in REACH if token + step < TOKENS)
        dependent = next(
            (other for other in ahead if labels[other] == governor[labels[token]]), None
        )
        if dependent is not None:
            links.append((int(token), int(dependent)))
    return np.array(links)


def _token_features(generator: np.random.Generator, labels: np.ndarray) -> Tensor:
    """Noisy coordinates of the class each token looks like; float32 [N, F]."""
    centres = generator.standard_normal((CLASSES, FEATURES))
    disguise = _derangement(generator)
    ambiguous = generator.random(TOKENS) < AMBIGUOUS
    looks_like = np.where(ambiguous, disguise[labels], labels)
    features = centres[looks_like] + generator.standard_normal((TOKENS, FEATURES))
    return _rounded(features)


# Publications: several node types, the evidence in one relation -----------------------------------
#
# Papers are written by authors, appear in venues and cite other papers. Every paper has one senior
# author, who is of its class, and three juniors; venues and citations are drawn at random, and a
# paper's own features are noise. Of half of the papers the juniors mostly agree with the senior. Of
# others they *outvote* it, all three being of one other class: a model that averages a paper's
# authors is wrong there, and weighing the senior more puts it right. The authors of the rest are
# all of one other class: whatever weighs its messages, there is nothing to find.

PAPERS, AUTHORS, VENUES = 900, 240, 12
FIELDS = 6
WIDTHS = {"paper": 8, "author": 16, "venue": 8}
EXPERTS = (3, 1, 0)  # among a paper's four authors; the senior is one of them, or none is
JUNIORS = 3
SHARES = (0.5, 0.3, 0.2)  # of papers with so many experts
CITATIONS = 3
NOISE = 0.4  # of the authors' features, beside centres of size one a coordinate


def generate_publications() -> HeteroData:
    """The graph of publications; always the same one.

    Returns:
        Node types ``paper`` (``x``, ``y``, masks [N, 3] and ``experts``: how many of its four
        authors are of its class), ``author`` (``x``, ``field``: its class, ``senior``: its rank)
        and ``venue`` (``x``). Relations ``writes``, ``publishes`` and ``cites`` into papers, and
        the first two reversed.
    """
    generator = np.random.default_rng(11)
    labels, fields = (np.arange(count) % FIELDS for count in (PAPERS, AUTHORS))
    labels, fields = generator.permutation(labels), generator.permutation(fields)
    senior = np.arange(AUTHORS) % 2 == 0
    experts, writes = _writes(generator, labels, fields, senior)
    data = HeteroData()
    centres = generator.standard_normal((FIELDS, WIDTHS["author"]))
    looks = centres[fields] + NOISE * generator.standard_normal((AUTHORS, WIDTHS["author"]))
    looks[:, -1] = senior  # the one coordinate that tells ranks apart
    data["paper"].x = _rounded(generator.standard_normal((PAPERS, WIDTHS["paper"])))
    data["author"].x = _rounded(looks)
    data["venue"].x = _rounded(generator.standard_normal((VENUES, WIDTHS["venue"])))
    data["paper"].y, data["paper"].experts = torch.from_numpy(labels), torch.from_numpy(experts)
    data["author"].field, data["author"].senior = map(torch.from_numpy, (fields, senior))
    masks = stratified_splits(data["paper"].y, (50, 25, 25), range(3), draw="numpy")
    data["paper"].update(dict(zip(MASKS, masks, strict=True)))
    venue = np.stack([generator.integers(VENUES, size=PAPERS), np.arange(PAPERS)])
    _add(data, ("author", "writes", "paper"), writes, reverse=True)
    _add(data, ("venue", "publishes", "paper"), venue, reverse=True)
    _add(data, ("paper", "cites", "paper"), _citations(generator), reverse=False)
    return data


def _writes(
    generator: np.random.Generator, labels: np.ndarray, fields: np.ndarray, senior: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """How many experts every paper has [N], and who writes what [2, E]."""
    ranks = [np.flatnonzero((fields == field) & senior) for field in range(FIELDS)]
    juniors = [np.flatnonzero((fields == field) & ~senior) for field in range(FIELDS)]
    experts = generator.choice(EXPERTS, PAPERS, p=SHARES)
    pairs = []
    for paper, label in enumerate(labels):
        other = (label + generator.integers(1, FIELDS)) % FIELDS
        lead = generator.choice(ranks[label if experts[paper] else other])
        agreeing = max(experts[paper] - 1, 0)
        own = generator.choice(juniors[label], agreeing, replace=False)
        rest = generator.choice(juniors[other], JUNIORS - agreeing, replace=False)
        chosen = generator.permutation(np.concatenate([[lead], own, rest]))
        pairs += [(author, paper) for author in chosen]
    return experts, np.array(pairs).T


def _citations(generator: np.random.Generator) -> np.ndarray:
    """Who is cited by whom, [2, E]: other papers, each once a paper."""
    cited = [(paper + generator.choice(PAPERS - 1, CITATIONS, replace=False) + 1) % PAPERS
             for paper in range(PAPERS)]  # fmt: skip
    return np.stack([np.concatenate(cited), np.repeat(np.arange(PAPERS), CITATIONS)])


def _add(
    data: HeteroData, relation: tuple[str, str, str], edges: np.ndarray, reverse: bool
) -> None:
    source, name, target = relation
    data[relation].edge_index = torch.from_numpy(np.ascontiguousarray(edges))
    if reverse:
        turned = torch.from_numpy(np.ascontiguousarray(edges[::-1]))
        data[target, f"rev_{name}", source].edge_index = turned


# Graphs to classify: a ring in each decides its class, and nothing else does ----------------------
#
# A graph is a random tree with some more links. Its nodes are of a few types, seen through noise.
# One ring of six nodes is tied to it by a single link, and the order of the types along that ring
# is the class. Every ring holds the same six types, and the types outside are drawn independently
# of the class (now and then one of a ring's), so that no node outside the ring, and no count of
# types, says anything of it. ``motif`` marks the ring: a reweighting that makes the true class win
# for the right reason gives its mass there.

RINGS = ((0, 0, 1, 1, 2, 2), (0, 1, 2, 0, 1, 2), (0, 0, 1, 2, 2, 1))
"""The types along the ring of each class: the same six, in an order that no turning makes equal."""
TYPES = 3
"""Of the nodes of a ring; those outside have as many of their own."""
DISGUISED = 0.1  # share of the nodes outside that are of a ring's types
LINKED = 0.2  # further links of the tree, as a share of its nodes


def motif_graphs(
    count: int = 600, nodes: int = 30, *, noise: float = 0.5, seed: int = SEED
) -> list[Data]:
    """Graphs whose class is decided by one motif; the same ones for the same arguments.

    Args:
        count: how many graphs.
        nodes: nodes of each graph on average, at least 12; they differ by up to a quarter.
        noise: standard deviation of the features around those of a node's type.
        seed: of everything random.

    Returns:
        A ``Data`` a graph: ``x`` float32 [n, 8], ``edge_index`` [2, E] both ways, ``y`` [1] the
        class and ``motif`` bool [n], the nodes that decide it.
    """
    check_whole("motif_graphs", "count", count, 1)
    check_whole("motif_graphs", "nodes", nodes, 12)
    check_whole("motif_graphs", "seed", seed, 0)
    check_real("motif_graphs", "noise", noise, 0, 100)
    generator = np.random.default_rng(seed)
    centres = generator.standard_normal((2 * TYPES, 8))
    classes = generator.permutation(np.arange(count) % len(RINGS))
    return [_ring_graph(generator, centres, int(c), nodes, noise) for c in classes]


def _ring_graph(
    generator: np.random.Generator, centres: np.ndarray, label: int, nodes: int, noise: float
) -> Data:
    ring = np.array(RINGS[label])
    size = int(generator.integers(nodes - nodes // 4, nodes + nodes // 4 + 1))
    outside = size - len(ring)
    other = generator.integers(TYPES, size=outside)
    other[generator.random(outside) >= DISGUISED] += TYPES
    types = np.concatenate([ring, other])
    features = centres[types] + noise * generator.standard_normal((size, centres.shape[1]))
    # Nodes are shuffled, so that a place in the list says nothing.
    order = generator.permutation(size)
    x = np.empty_like(features)
    x[order] = features
    motif = torch.zeros(size, dtype=torch.bool)
    motif[torch.from_numpy(order[: len(ring)])] = True
    links = torch.from_numpy(order[_ring_links(generator, len(ring), outside)])
    both = torch.cat([links, links.flip(0)], dim=1)
    return Data(x=_rounded(x), edge_index=both, y=torch.tensor([label]), motif=motif)


def _ring_links(generator: np.random.Generator, ring: int, outside: int) -> np.ndarray:
    """The ring, a random tree behind it, one link between them and some more; [2, links]."""
    around = np.stack([np.arange(ring), (np.arange(ring) + 1) % ring])
    children = np.arange(1, outside)
    parents = (generator.random(outside - 1) * children).astype(np.int64)
    tree = np.stack([children, parents]) + ring
    tie = np.array([[int(generator.integers(ring))], [ring + int(generator.integers(outside))]])
    more = generator.integers(outside, size=(2, int(LINKED * outside))) + ring
    more = more[:, more[0] != more[1]]
    links = np.sort(np.concatenate([around, tree, tie, more], axis=1), axis=0)
    return np.unique(links, axis=1)


# Several labels per node, values, and links -------------------------------------------------------
#
# In each the evidence lies in single messages, so that it is known beforehand what a reweighting of
# them can do to a model that listens to its neighbours evenly, and what it cannot.

SPEAKS, MUTTERS = 2.0, -1.0
"""What a message says for a label that its sender speaks for, and against any other: one speaker
among three or more neighbours is overheard by an even mean."""
TALKS = 0.06  # share of pairs of node and label that are spoken for
LOST = 0.1  # share of pairs whose label is there though nobody speaks for it
OUTSIDE = 0.2  # share of nodes whose value no mixture of its neighbours' gives
SAME, OTHER = 1.0, -0.5
"""A node's coordinate in its own community and in the others: two nodes of one community agree
(a positive product), two of different ones disagree."""


def _neighbours(generator: np.random.Generator, nodes: int, count: int) -> Tensor:
    """``count`` different senders for every node, none of them itself; [2, nodes · count]."""
    steps = np.argsort(generator.random((nodes, nodes - 1)), axis=1)[:, :count] + 1
    senders = (np.arange(nodes)[:, None] + steps) % nodes
    return _edges(senders)


def _edges(senders: np.ndarray) -> Tensor:
    """Every node hears its row of senders [N, k]; [2, N · k]."""
    nodes, count = senders.shape
    return torch.from_numpy(np.stack([senders.ravel(), np.repeat(np.arange(nodes), count)]))


def _splits(generator: np.random.Generator, nodes: int) -> dict[str, Tensor]:
    part = torch.from_numpy(generator.permutation(nodes))
    return {
        name: part % 4 == k if k else part % 4 < 2 for name, k in zip(MASKS, (0, 2, 3), strict=True)
    }


def planted_labels(nodes: int = 800, labels: int = 6, neighbours: int = 5) -> Data:
    """Several labels per node, each of which one neighbour's message speaks for.

    Returns:
        ``x`` [N, K]: 2 where a node speaks for a label, about −1 elsewhere; ``y`` bool [N, K];
        ``evidence`` bool [N, K]: some neighbour speaks for the label, so that a weighing of the
        neighbours' features exists whose sum is positive. Of the labels that are there a tenth
        has no evidence. One split 50/25/25.
    """
    generator = np.random.default_rng(SEED)
    speaks = generator.random((nodes, labels)) < TALKS
    mutter = MUTTERS + 0.2 * generator.random((nodes, labels))
    features = np.where(speaks, SPEAKS, mutter).astype(np.float32)
    edges = _neighbours(generator, nodes, neighbours)
    evidence = np.zeros((nodes, labels), dtype=bool)
    np.logical_or.at(evidence, edges[1].numpy(), speaks[edges[0].numpy()])
    lost = ~evidence & (generator.random((nodes, labels)) < LOST * evidence.mean())
    return Data(
        x=torch.from_numpy(features),
        edge_index=edges,
        y=torch.from_numpy(evidence | lost),
        evidence=torch.from_numpy(evidence),
        **_splits(generator, nodes),
    )


def planted_values(nodes: int = 400, neighbours: int = 4) -> Data:
    """A value a node: that of one of its neighbours, whose readings are weighed by edges.

    Returns:
        ``x`` [N, 1] readings, ``edge_weight`` positive, ``y`` [N] float; ``low`` and ``high`` [N]:
        what the sum of weighed readings can be when the same total weight is spread anew;
        ``outside`` bool [N]: y was planted beyond them. One split.
    """
    generator = np.random.default_rng(SEED)
    readings = generator.normal(size=nodes)
    edges = _neighbours(generator, nodes, neighbours)
    weight = generator.random(edges.shape[1]) + 0.2
    heard = readings[edges[0].numpy()].reshape(nodes, neighbours)
    mass = weight.reshape(nodes, neighbours).sum(1)
    low, high = mass * heard.min(1), mass * heard.max(1)
    outside = generator.random(nodes) < OUTSIDE
    inside = mass * heard[np.arange(nodes), generator.integers(neighbours, size=nodes)]
    y = np.where(outside, high + 0.1 + generator.random(nodes), inside)
    planted = {"y": y, "low": low, "high": high, "edge_weight": weight}
    return Data(
        x=torch.from_numpy(readings).unsqueeze(1),
        edge_index=edges,
        outside=torch.from_numpy(outside),
        **{name: torch.from_numpy(value) for name, value in planted.items()},
        **_splits(generator, nodes),
    )


def planted_links(nodes: int = 300, communities: int = 3, neighbours: int = 4) -> Data:
    """Links between nodes of one community, some of which one neighbour still shows.

    The targets of the links hear only their own community; the sources hear strangers, and some
    of them one friend.

    Returns:
        ``x`` [N, C] coordinates of a node's community; ``edge_label_index`` [2, L] and
        ``edge_label`` bool [L]: whether the ends are of one community; ``friend`` bool [L]: some
        neighbour of the source is of the target's community, so that a weighing of the source's
        messages exists whose product with the target is positive.
    """
    generator = np.random.default_rng(SEED)
    community = np.arange(nodes) % communities
    half = nodes // 2
    senders = np.empty((nodes, neighbours), dtype=np.int64)
    for node in range(nodes):
        own = community == community[node]
        pool = np.flatnonzero(own if node >= half else ~own)
        senders[node] = generator.choice(pool[pool != node], neighbours, replace=False)
        if node < half and generator.random() < 0.5:
            others = np.flatnonzero(own & (np.arange(nodes) != node))
            senders[node, 0] = generator.choice(others)
    ends = np.stack([np.repeat(np.arange(half), 2), generator.integers(half, nodes, 2 * half)])
    friend = (community[senders[ends[0]]] == community[ends[1]][:, None]).any(1)
    features = np.where(np.eye(communities)[community] > 0, SAME, OTHER)
    return Data(
        x=torch.from_numpy(features.astype(np.float32)),
        edge_index=_edges(senders),
        edge_label_index=torch.from_numpy(ends),
        edge_label=torch.from_numpy(community[ends[0]] == community[ends[1]]),
        friend=torch.from_numpy(friend),
    )
