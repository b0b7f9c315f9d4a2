"""Shape -> WorkEstimate, without a tokenizer, learned online from ``usage``."""

from __future__ import annotations

from gateway.admission.config import EstimatorConfig
from gateway.model import Shape, Usage, WorkEstimate


class Estimator:
    """Predicts the tokens of a request and learns from what the backend reports."""

    def __init__(self, config: EstimatorConfig) -> None:
        """Start from the priors in ``config``."""
        raise NotImplementedError

    def estimate(self, shape: Shape, client: str = "") -> WorkEstimate:
        """Predicted work of a request of this shape."""
        raise NotImplementedError

    def learn(self, shape: Shape, usage: Usage, client: str = "") -> None:
        """Learn from a finished request."""
        raise NotImplementedError
