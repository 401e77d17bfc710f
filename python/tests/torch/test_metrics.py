"""The metrics of the examples and the study against their definitions."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import metrics  # noqa: E402


def pair_by_pair(labels: np.ndarray, scores: np.ndarray) -> float:
    positive, negative = scores[labels == 1], scores[labels == 0]
    wins = (positive[:, None] > negative).sum() + 0.5 * (positive[:, None] == negative).sum()
    return wins / (len(positive) * len(negative))


@pytest.mark.parametrize("distinct", [2, 5, 1000])  # few distinct scores: many ties
def test_auc_is_the_share_of_ordered_pairs(distinct: int) -> None:
    rng = np.random.default_rng(distinct)
    for _ in range(20):
        labels = (rng.random(200) < 0.3).astype(np.float32)
        scores = rng.integers(0, distinct, 200).astype(np.float32)
        assert metrics.auc(labels, scores) == pytest.approx(pair_by_pair(labels, scores), abs=1e-12)


def test_auc_of_one_class_is_not_a_number() -> None:
    assert np.isnan(metrics.auc(np.ones(3), np.arange(3.0)))


def test_log_loss_and_accuracy() -> None:
    labels, logits = np.array([1.0, 0.0, 1.0]), np.array([2.0, -1.0, -0.5])
    chances = 1 / (1 + np.exp(-logits))
    expected = -np.mean(np.log(np.where(labels == 1, chances, 1 - chances)))
    assert metrics.log_loss(labels, logits) == pytest.approx(expected)
    assert metrics.accuracy(labels, logits) == pytest.approx(2 / 3)
    assert metrics.log_loss(np.array([0.0]), np.array([1000.0])) == pytest.approx(1000.0)  # sure and wrong, but finite
