"""Every model of every gallery in tests/, each with the call that exposes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data

import gnn_repair as gr
from tests.helpers.models import (
    census,
    convolutions,
    filter_models,
    gallery,
    gallery_models,
    link_form_models,
    link_models,
    output_models,
    pool_models,
    refused_models,
    spelled_models,
    typed_models,
)
from tests.helpers.oracle import head_graph
from tests.helpers.repair import toy_exposures

TESTS = Path(__file__).parents[1]
Exposure = Any
Gallery = dict[str, Callable[[], Exposure]]
"""What exposes each model; a model that cannot be exposed raises."""


def seeded(build: Callable[[], Exposure], seed: int) -> Exposure:
    torch.manual_seed(seed)
    return build()


def a_convolution(name: str) -> Exposure:
    case = convolutions.CASES[name]
    net = convolutions.Net(case).double().eval()
    with torch.no_grad():
        for parameter in net.parameters():  # biases that start as zero would hide their loss
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return gr.expose(net, convolutions.graph(), hops=case.hops)


def of_the_gallery(build: Callable[[], nn.Module]) -> Exposure:
    return gr.expose(gallery.built(build, torch.float64), gallery.graph())


def by_convention(name: str) -> Exposure:
    data = gallery.graph()
    model, settings = gallery_models.CONVENTIONS[name](data)
    return gr.expose(model.double().eval(), data, **settings)


def spelled(kind: type[nn.Module], how: str) -> Exposure:
    return gr.expose(kind(how).double(), spelled_models.graph())


def multiplied(way: str, signed: bool) -> Exposure:
    form, times = filter_models.WAYS[way]
    data = Data(x=convolutions.graph().x, adj=form(filter_models.weighed(signed)))
    return gr.expose(filter_models.Graphs(times).double().eval(), data)


def filtered(name: str, head: bool, hops: str) -> Exposure:
    model = filter_models.Filtered(filter_models.STEPS[name], head).double().eval()
    return gr.expose(model, filter_models.plain(), hops=hops)


def keeping_rows(name: str, bent: bool) -> Exposure:
    wide, classes = 2 * pool_models.WIDTH, pool_models.CLASSES
    head = pool_models.mlp(wide, classes) if bent else nn.Linear(wide, classes)
    layers = pool_models.LAYERS[name]()
    model = pool_models.Kept(layers, head, pool_models.global_add_pool)
    return gr.expose(model.double().eval(), pool_models.batch_of())


def links(name: str, vary: str) -> Exposure:
    case = {**link_models.EXACT, **link_models.BENT}[name]
    model, decoder = case[0]().double(), case[1] and case[1]()
    decoder = decoder.double() if isinstance(decoder, nn.Module) else decoder
    torch.manual_seed(5)
    asked = torch.randint(0, 50, (2, 40))
    data = Data(
        x=torch.randn(50, link_models.WIDTH).double(),
        edge_index=torch.randint(0, 50, (2, 180)),
        edge_label_index=asked[:, asked[0] != asked[1]][:, :12],
    )
    return gr.expose_links(model, data, decoder=decoder, vary=vary)


def a_link_form(form: Any, vary: str) -> Exposure:
    typed = issubclass(form, link_form_models.Ratings)
    data = link_form_models.ratings() if typed else link_form_models.graph()
    return seeded(lambda: gr.expose_links(form().double(), data, vary=vary), 0)


def refused(name: str) -> Exposure:
    whole = convolutions.graph(torch.float32)
    order = torch.argsort(whole.edge_index[1], stable=True)  # as the LSTM aggregator wants it
    data = Data(x=whole.x, edge_index=whole.edge_index[:, order])
    forward = (lambda model, data: model(data.x)) if name == "no messages" else None
    return gr.expose(refused_models.REFUSED[name](), data, forward=forward)


def outputs() -> Gallery:
    """Labels, values and classes, by what ``y`` says; in double precision."""
    several, made = output_models.several, {}
    truths = {
        "labels": several(3), "unknown labels": several(3).masked_fill(several(3) == 1, torch.nan),
        "values": torch.linspace(-1, 1, 120).view(40, 3), "classes": torch.arange(40) % 3,
    }  # fmt: skip
    for kind, y in truths.items():
        made[kind] = partial(_output, partial(output_models.Network, 3), y)
    for model in (output_models.PpiGat, output_models.OgbSage, output_models.HeadedGcn):
        made[model.__name__] = partial(_output, model, several(5))
    for name, after in (("ELU", nn.functional.elu), ("log_softmax", nn.LogSoftmax(1))):
        bent = partial(output_models.Network, 3, after)
        made[f"labels, {name}"] = partial(_output, bent, None, outputs="labels")
        made[f"values, {name}"] = partial(_output, bent, None, outputs="values")
    lone = partial(output_models.Network, 1, lambda z: z.squeeze(-1))
    for kind in ("classes", "labels", "values"):
        made[f"a lone output as {kind}"] = partial(_output, lone, None, outputs=kind)
    return made


def _output(build: Callable[[], nn.Module], y: Any, **settings: Any) -> Exposure:
    data = output_models.graph(y, torch.float64)
    return seeded(lambda: gr.expose(build().double().eval(), data, **settings), 1)


def views() -> Gallery:
    """Members, some recipients and several graphs, as the value itself gives them."""
    toy = toy_exposures.toy_exposure
    graphs = pool_models.GRAPHS
    pooled = partial(pool_models.Pooled, pool_models.global_mean_pool)
    return {
        **{f"backbone {name}": partial(toy, name) for name in gr.BACKBONES},
        "member 1": lambda: toy("gat").member(1),
        "some recipients": lambda: toy("mixhop").restrict(torch.tensor([9, 2, 25])),
        "a list of graphs": lambda: gr.expose(pooled().eval(), graphs),
        "one graph": lambda: gr.expose(pool_models.Alone().eval(), graphs[3]),
    }


def galleries() -> dict[str, Gallery]:
    """All of them, by name."""
    vary = ("source", "target")
    forms = [getattr(link_form_models, name) for name in (
        "OfData", "TrueAndSampled", "TwoClasses", "Ratings", "RatingsOfData")]  # fmt: skip
    pooled = {
        name: partial(lambda n: gr.expose(pool_models.built(n), pool_models.batch_of()), name)
        for name in pool_models.MODELS
    }
    pools = pool_models.REFUSED | {
        n: partial(pool_models.Pooled, pool) for n, (pool, _) in pool_models.ROWS.items()
    }
    pooled |= {
        f"{name}, other rows": partial(
            lambda b: gr.expose(b().double().eval(), pool_models.batch_of()), b
        )
        for name, b in pools.items()
    }
    pooled |= {
        f"keeps rows: {name}{', bent' * bent}": partial(keeping_rows, name, bent)
        for name in pool_models.LAYERS
        for bent in (False, True)
    }
    heads = {name: entry.build for name, entry in gallery.TAILED.items()}
    heads["refused: numpy"] = gallery_models.Detour
    found: dict[str, tuple[int, Gallery]] = {
        "convolutions": (5, {name: partial(a_convolution, name) for name in convolutions.CASES}),
        "head-gallery": (3, {n: partial(of_the_gallery, build) for n, build in heads.items()}),
        "conventions": (2, {n: partial(by_convention, n) for n in gallery_models.CONVENTIONS}),
        "census": (3, {
            n: partial(lambda n: gr.expose(*census.built(n)), n) for n in census.STYLES
        }),
        "spellings": (2, {
            **{n: partial(spelled, *case[:2]) for n, case in spelled_models.CASES.items()},
            "attention with a mask": partial(
                spelled, spelled_models.Dense, "scaled_dot_product_attention"),
            **{f"adds: {name}": partial(
                lambda b: gr.expose(b().double().eval(), spelled_models.graph()), build)
               for name, build in spelled_models.LINEAR.items()},
        }),
        "products": (0, {
            f"{way}{', signed' * signed}": partial(multiplied, way, signed)
            for way in filter_models.WAYS for signed in (False, True)
        }),
        "filters": (0, {
            f"{name}{', head' * head}, {hops}": partial(filtered, name, head, hops)
            for name in filter_models.STEPS for head in (False, True) for hops in ("paths", "last")
        }),
        "pools": (4, pooled),
        "node-types": (1, {
            n: partial(lambda n: gr.expose(*typed_models.build(n)), n) for n in typed_models.MODELS
        }),
        "links": (2, {
            **{f"{name}, {end}": partial(links, name, end)
               for name in (*link_models.EXACT, *link_models.BENT) for end in vary},
            **{f"form {form.__name__}, {end}": partial(a_link_form, form, end)
               for form in forms for end in vary},
        }),
        "outputs": (1, outputs()),
        "refusals": (1, {name: partial(refused, name) for name in refused_models.REFUSED}),
        "head-models": (3, {
            n: partial(lambda n: gr.expose(head_graph.model_of(n), head_graph.small_graph()), n)
            for n in head_graph.MODELS
        }),
        "views": (1, views()),
    }  # fmt: skip
    return {
        name: {key: partial(seeded, call, seed) for key, call in entries.items()}
        for name, (seed, entries) in found.items()
    }
