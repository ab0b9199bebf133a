"""Runs actors in an event loop, like Ray Serve's: a router, replicas with a queue each, and batches."""

import asyncio
from dataclasses import dataclass

import torch


@dataclass
class Query:
    points: torch.Tensor
    answer: asyncio.Future[torch.Tensor]


class Replica:
    """Has its own model and answers the queries of its queue in batches."""

    def __init__(self, batch: int) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).eval()
        self.queue: asyncio.Queue[Query] = asyncio.Queue()
        self.batch = batch

    @torch.compile
    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(self.model(points), -1)

    def answer(self, points: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self.forward(points)

    async def run(self) -> None:
        while True:
            queries = [await self.queue.get() for _ in range(self.batch)]
            rows = torch.stack([query.points for query in queries])
            for query, row in zip(queries, await asyncio.to_thread(self.answer, rows), strict=True):
                query.answer.set_result(row)


class Router:
    """Sends each query to the next replica."""

    def __init__(self, replicas: int, batch: int) -> None:
        self.replicas = [Replica(batch) for _ in range(replicas)]
        self.next = 0

    async def __aenter__(self) -> "Router":
        self.tasks = [asyncio.create_task(replica.run()) for replica in self.replicas]
        return self

    async def __aexit__(self, *exception: object) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def remote(self, points: torch.Tensor) -> torch.Tensor:
        replica = self.replicas[self.next % len(self.replicas)]
        self.next += 1
        query = Query(points, asyncio.get_running_loop().create_future())
        await replica.queue.put(query)
        return await query.answer
