#!/usr/bin/python3
"""One rank of PyTorch's distributed package over gloo: torch_exchange.py RANK RANKS PORT.

Every result is checked; then it says how much it has added up, and waits for the end of its input.
"""

import sys

import torch
from torch import distributed

ROUNDS = 30


def main(rank, ranks, port):
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                                   world_size=ranks)
    total = 0
    for size in (1, 1000, 250_000):
        for round_ in range(ROUNDS):
            tensor = torch.arange(size, dtype=torch.int64) * (rank + 1) + round_
            distributed.all_reduce(tensor)
            expected = torch.arange(size, dtype=torch.int64) * (ranks * (ranks + 1) // 2) + ranks * round_
            assert torch.equal(tensor, expected), ("all_reduce", size, round_)
            total += int(tensor.sum())
    for source in range(ranks):
        tensor = torch.full((100_000,), float(source if rank == source else -1))
        distributed.broadcast(tensor, source)
        assert torch.equal(tensor, torch.full((100_000,), float(source))), ("broadcast", source)
    parts = [torch.zeros(5000) for _ in range(ranks)]
    distributed.all_gather(parts, torch.arange(5000.0) + rank)
    for other, part in enumerate(parts):
        assert torch.equal(part, torch.arange(5000.0) + other), ("all_gather", other)
    if rank == 0:
        distributed.send(torch.arange(300_000), 1)
    elif rank == 1:
        tensor = torch.zeros(300_000, dtype=torch.int64)
        distributed.recv(tensor, 0)
        assert torch.equal(tensor, torch.arange(300_000)), "recv"
    distributed.barrier()
    print(total, flush=True)
    sys.stdin.read()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
