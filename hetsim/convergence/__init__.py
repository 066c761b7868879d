"""What a Schedule does to the loss, without training: predictors, the models behind them, and bounds.

predictor      the protocol: Setting, Target, Curve, Predictor
registry       predictors by name: nqm, noise-scale, and those other packages add
nqm            the noisy quadratic model driven by a Schedule
quadratic      its loss: curvatures, noise, start
plan, sequence the fast engine: one parameter sequence, any batches and delays
joint          the general engine: replicas, averages, several copies, any log
noise_scale    samples needed by the gradient noise scale; its estimator for unequal batches
stability      largest stable learning rates and noise floors
complexity     the time-complexity yardstick T*
constants      what the models know of each workload, with its source
fit            how the fitted constants were fitted
"""

from __future__ import annotations

from hetsim.convergence.predictor import Curve, Predictor, Setting, Target
from hetsim.convergence.registry import get_predictor, predictor_names

__all__ = ["Curve", "Predictor", "Setting", "Target", "get_predictor", "predictor_names"]
