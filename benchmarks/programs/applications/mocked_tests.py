"""A project's tests, which mock functions that compiled code calls. services.py runs these tests with pytest."""

from unittest import mock

import pytest
import torch

VALUES: list[torch.Tensor] = []


def remote_scale() -> float:
    raise ConnectionError("tests have no network")


def normalize(points: torch.Tensor) -> torch.Tensor:
    return points / points.norm()


class Client:
    def bias(self) -> float:
        raise ConnectionError("tests have no network")


client = Client()
model = torch.nn.Linear(8, 4)


@torch.compile
def score(points: torch.Tensor) -> torch.Tensor:
    return model(normalize(points)) * remote_scale() + client.bias()


@pytest.fixture
def points() -> torch.Tensor:
    return torch.ones(2, 8)


def halved(points: torch.Tensor) -> torch.Tensor:
    return points / 2


def test_a_function_in_the_place_of_another(points: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.normalize", halved)
    monkeypatch.setattr(f"{__name__}.remote_scale", lambda: 3.0)
    monkeypatch.setattr(client, "bias", lambda: 1.0)
    VALUES.append(score(points).detach())
    assert torch.allclose(VALUES[-1], model(points / 2) * 3.0 + 1.0, atol=1e-5)


@mock.patch(f"{__name__}.remote_scale", return_value=2.0)
def test_a_mock_counts_its_calls(scale: mock.Mock, points: torch.Tensor) -> None:
    with mock.patch.object(Client, "bias", autospec=True, return_value=0.5) as bias:
        VALUES.append(score(points).detach())
    assert torch.allclose(VALUES[-1], model(normalize(points)) * 2.0 + 0.5, atol=1e-5)
    scale.assert_called_once_with()
    bias.assert_called_once_with(client)


def test_an_error_of_a_mock_is_the_callers(points: torch.Tensor) -> None:
    with mock.patch(f"{__name__}.remote_scale", side_effect=TimeoutError("no answer")), pytest.raises(TimeoutError):
        score(points)
