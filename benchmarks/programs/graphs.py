"""Defines the programs that use PyTorch Geometric: graphs of fixed and of differing sizes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from benchmarks.programs.registry import STEPS, Values, program, trained

NODES, EDGES, FEATURES, CLASSES = 40, 160, 16, 4


def _graph(nodes: int = NODES, edges: int = EDGES) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(nodes, FEATURES), torch.randint(0, nodes, (2, edges)), torch.randint(0, CLASSES, (nodes,))


def _node_classes(model: torch.nn.Module) -> Iterator[Values]:
    compiled = torch.compile(model)
    features, edges, labels = _graph()
    yield from trained(model, lambda: functional.cross_entropy(compiled(features, edges), labels))


@program("torch_geometric")
def gcn() -> Iterator[Values]:
    """GCN."""
    from torch_geometric.nn import GCN

    yield from _node_classes(GCN(FEATURES, 32, 2, CLASSES))


@program("torch_geometric")
def gat() -> Iterator[Values]:
    """GATv2."""
    from torch_geometric.nn import GAT

    yield from _node_classes(GAT(FEATURES, 32, 2, CLASSES, v2=True, heads=2))


@program("torch_geometric")
def sampled_sage() -> Iterator[Values]:
    """GraphSAGE on subgraphs of different sizes (dynamic=True)."""
    from torch_geometric.nn import GraphSAGE

    model = GraphSAGE(FEATURES, 32, 2, CLASSES)
    compiled = torch.compile(model, dynamic=True)
    parts = iter([_graph(NODES + 3 * step, EDGES + 5 * step) for step in range(STEPS)])

    def loss() -> torch.Tensor:
        features, edges, labels = next(parts)
        return functional.cross_entropy(compiled(features, edges), labels)

    yield from trained(model, loss)


@program("torch_geometric")
def pooled_graphs() -> Iterator[Values]:
    """GINE over a batch of graphs."""
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GINEConv, global_mean_pool

    inner = torch.nn.Sequential(torch.nn.Linear(FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, CLASSES))
    model = GINEConv(inner, edge_dim=3)
    graphs = []
    for number in range(3):
        features, edges, _ = _graph(10 + number, 30)
        graphs.append(Data(x=features, edge_index=edges, edge_attr=torch.randn(30, 3)))
    batch = Batch.from_data_list(graphs)

    @torch.compile
    def forward(x: torch.Tensor, edges: torch.Tensor, attributes: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        return global_mean_pool(model(x, edges, attributes), of, size=3)

    labels = torch.tensor([0, 1, 2])
    yield from trained(
        model,
        lambda: functional.cross_entropy(forward(batch.x, batch.edge_index, batch.edge_attr, batch.batch), labels),
    )


@program("torch_geometric")
def graph_transformer() -> Iterator[Values]:
    """TransformerConv with edge features."""
    from torch_geometric.nn import TransformerConv

    model = TransformerConv(FEATURES, CLASSES, heads=2, concat=False, edge_dim=3)
    compiled = torch.compile(model)
    features, edges, labels = _graph()
    attributes = torch.randn(EDGES, 3)
    yield from trained(model, lambda: functional.cross_entropy(compiled(features, edges, attributes), labels))
