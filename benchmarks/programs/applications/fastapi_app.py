"""Defines a FastAPI application. The lifespan makes a model; one view runs in the event loop, one in a thread pool."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import torch
from fastapi import Depends, FastAPI, Request
from pydantic import BaseModel


class Points(BaseModel):
    points: list[list[float]]
    scale: float = 1.0


class Scorer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))

    @torch.compile
    def score(self, points: torch.Tensor, options: Points) -> torch.Tensor:
        return self.layers(points).squeeze(-1) * options.scale


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.scorer = Scorer().eval()
    yield


app = FastAPI(lifespan=lifespan)


def scorer(request: Request) -> Any:
    return request.app.state.scorer


@app.post("/score")
async def score(body: Points, scorer: Scorer = Depends(scorer)) -> list[float]:  # noqa: B008 - FastAPI's way
    with torch.inference_mode():
        return scorer.score(torch.tensor(body.points), body).tolist()


@app.post("/rank")
def rank(body: Points, scorer: Scorer = Depends(scorer)) -> list[int]:  # noqa: B008 - FastAPI's way
    with torch.inference_mode():
        return scorer.score(torch.tensor(body.points), body).argsort().tolist()
