"""Small modules in double precision: files to profile and to train in a pipeline."""

TRANSFORMER = '''
import torch
from torch import nn


class Tied(nn.Module):
    """Transformer whose head shares the weights of the embedding, so that they are in two stages."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(3)
        )
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        rows = embedded = self.embedding(tokens)
        for layer in self.layers:
            rows = layer(rows)
        return self.head(rows + embedded)


def make():
    return Tied().double()


def loss(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def batch(samples):
    tokens = torch.randint(0, 50, (samples, 9))
    return (tokens[:, :-1],), tokens[:, 1:]
'''

RESNET = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.first, self.norm = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.second, self.last = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.GroupNorm(4, outer)
        self.relu = nn.ReLU(inplace=True)
        self.skip = nn.Conv2d(inner, outer, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, images):
        rows = self.last(self.second(self.relu(self.norm(self.first(images)))))
        rows += self.skip(images)
        return self.relu(rows)


def make():
    blocks = (Block(8, 8, 1), Block(8, 16, 2), Block(16, 16, 1))
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), *blocks, nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(16, 10),
    ).double()


def loss(output, target):
    return nn.functional.cross_entropy(output, target)


def batch(samples):
    return (torch.randn(samples, 3, 16, 16, dtype=torch.float64),), torch.randint(0, 10, (samples,))
"""

WIDE_RESNET = (
    RESNET.replace(
        "Block(8, 8, 1), Block(8, 16, 2), Block(16, 16, 1)",
        "Block(32, 32, 1), Block(32, 64, 2), Block(64, 64, 1)",
    )
    .replace("(3, 8, 3), nn.BatchNorm2d(8)", "(3, 32, 3), nn.BatchNorm2d(32)")
    .replace("Linear(16", "Linear(64")
)
"""The same network of 32 and 64 channels."""

ENCODER_DECODER = """
import torch
from torch import nn


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = {"d_model": 16, "nhead": 2, "dim_feedforward": 32, "dropout": 0.0, "batch_first": True}
        self.source, self.target = nn.Embedding(40, 16), nn.Embedding(50, 16)
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(**sizes) for _ in range(2))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(**sizes) for _ in range(3))
        self.head = nn.Linear(16, 50)

    def forward(self, source, target):
        memory, rows = self.source(source), self.target(target)
        for layer in self.encoder:
            memory = layer(memory)
        later = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool, device=target.device).triu(1)
        for layer in self.decoder:
            rows = layer(rows, memory, tgt_mask=later)
        return self.head(rows)


def make():
    return Translator().double()


def loss(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def batch(samples):
    source, target = torch.randint(0, 40, (samples, 6)), torch.randint(0, 50, (samples, 9))
    return (source, target[:, :-1]), target[:, 1:]
"""
