"""Matching of queries to objects, against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codetr.training.criterion import compute_losses
from codetr.training.matching import assign
from tests.training.loss_batches import random_outputs, random_targets


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(any),
    st.integers(1, 4),
    st.integers(1, 2),
    st.integers(0, 2**32 - 1),
)
def test_is_the_best_of_all(counts, queries, layers, seed):
    costs = np.random.default_rng(seed).normal(size=(layers, sum(counts), queries)).astype(np.float32)
    targets, matched = assign(costs, counts)
    assert targets.dtype == matched.dtype == np.int64
    assert targets.shape == matched.shape == (layers, sum(min(count, queries) for count in counts))
    for layer in range(layers):
        start = pair = 0
        for count in counts:
            pairs = min(count, queries)
            got_targets = targets[layer, pair : pair + pairs]
            got_queries = matched[layer, pair : pair + pairs]
            assert ((start <= got_targets) & (got_targets < start + count)).all()
            assert len({*got_targets}) == len({*got_queries}) == pairs
            best = min(
                sum(costs[layer, start + t, q] for t, q in zip(chosen, order))
                for chosen in itertools.combinations(range(count), pairs)
                for order in itertools.permutations(range(queries), pairs)
            )
            assert costs[layer, got_targets, got_queries].sum() == pytest.approx(best, abs=1e-5)
            start, pair = start + count, pair + pairs


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_divergence_is_an_error(value):
    outputs = random_outputs(2)
    with torch.no_grad():
        outputs.boxes_cxcywh[1, 1, 3, 2] = value
    with pytest.raises(FloatingPointError, match="training diverged"):
        compute_losses(outputs, random_targets([1, 2]))
