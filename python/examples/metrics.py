"""How good predictions are: AUC, log loss, accuracy. NumPy alone."""

from __future__ import annotations

import numpy as np


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """The chance that a positive scores above a negative; a tie counts half. NaN where one class is missing."""
    labels = np.asarray(labels) > 0.5
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if positives == 0 or negatives == 0:
        return float("nan")
    # By ranks (Mann and Whitney): equal scores share the mean of their ranks.
    _, group, counts = np.unique(np.asarray(scores), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_rank = last - (counts - 1) / 2.0
    rank_sum = float(mean_rank[group][labels].sum())
    return (rank_sum - positives * (positives + 1) / 2.0) / (positives * negatives)


def log_loss(labels: np.ndarray, logits: np.ndarray) -> float:
    """Mean of -log P(label), from logits and in f64, so that sure predictions do not become infinite."""
    logits = np.asarray(logits, np.float64)
    return float(np.mean(np.logaddexp(0.0, logits) - np.asarray(labels, np.float64) * logits))


def accuracy(labels: np.ndarray, logits: np.ndarray) -> float:
    """The share of samples whose label is the likelier one."""
    return float(np.mean((np.asarray(logits) > 0) == (np.asarray(labels) > 0.5)))
