"""Defines a Celery application whose tasks call a compiled model. The application's broker and results are folders."""

import importlib
import os
from typing import Any

import torch
from celery import Celery, Task

_ROOT = os.environ["CELERY_FOLDER"]
_MESSAGES = {"data_folder_in": f"{_ROOT}/messages", "data_folder_out": f"{_ROOT}/messages"}
app = Celery("applications", broker="filesystem://", backend=f"file://{_ROOT}/results")
app.conf.update(broker_transport_options={**_MESSAGES, "control_folder": f"{_ROOT}/control"})


class WithModel(Task):
    """The first task of each worker process makes the model."""

    abstract = True
    _model: Any = None

    @property
    def model(self) -> Any:
        if self._model is None:
            torch.manual_seed(0)
            layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
            self._model = torch.compile(layers.eval())
        return self._model


@app.task(base=WithModel, bind=True)
def classify(self: WithModel, points: list[list[float]]) -> list[list[float]]:
    with torch.no_grad():
        return torch.softmax(self.model(torch.tensor(points)), -1).tolist()


@app.task
def call(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)()
