"""Defines a Flask application: a view that calls compiled code, and compiled code that reads ``request``."""

import torch
from flask import Flask, Response, current_app, jsonify, request

app = Flask(__name__)
app.config["TEMPERATURE"] = 2.0
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).eval()


@torch.compile
def classify(points: torch.Tensor, temperature: float) -> torch.Tensor:
    return torch.softmax(model(points) / temperature, -1)


@torch.compile
def embed() -> torch.Tensor:
    """The compiled function itself reads the request."""
    points = torch.tensor(request.json["points"])
    return torch.tanh(model[0](points)) * 2


@app.post("/classify")
def answer() -> Response:
    points = torch.tensor(request.get_json()["points"])
    with torch.no_grad():
        return jsonify(classify(points, current_app.config["TEMPERATURE"]).tolist())


@app.post("/embed")
def vectors() -> Response:
    with torch.no_grad():
        return jsonify(embed().tolist())
