"""Computes mixtures of experts that do not use transformers' interface for experts, row by row.

Some mixtures sort the rows of a call by expert, so that an expert computes all its rows at once. ExecuTorch has no
kernel that sorts integers, and the number of rows of an expert depends on values. Other mixtures compute every row with
every expert. Where experts are modules of their own, in a loop over those that a row has chosen, every row is computed
with every expert here too, and multiplied by 0 for the others.
"""

from __future__ import annotations

import copy
import functools
import inspect
from contextlib import suppress
from typing import Any

import torch

from etbuild.model.module import set_methods
from etplugins.transformers.token_loop import for_each_token

_TRIAL_EXPERTS = 3
_TRIAL_SIZE = 8  # rows, and the size of rows in a trial
_FIRST = "expert_0"


def choose(model: Any) -> None:
    """Lets the mixtures of a model compute each row with its own experts.

    Args:
        model: The model of transformers.
    """
    experts = [part for part in model.modules() if _takes(part, "inputs", "expert_size")]
    gates = [part for part in model.modules() if _is_gate(part)] if experts else []
    kinds = {type(part) for part in experts}
    if gates and all(map(_chooses_alike, gates)) and all(map(_computes_rows_alike, kinds)):
        for part in gates:
            set_methods(part, forward=_gate)
        for part in experts:
            part.is_transposed = False  # as in transformers' interface: the weights are [experts, outputs, inputs]
            set_methods(part, forward=_compute_rows)
    mixtures = [part for part in model.modules() if _computes_all(part)]
    computes_alike = {kind: _mixes_alike(kind, model.config) for kind in {type(part) for part in mixtures}}
    for part in [part for part in mixtures if computes_alike[type(part)]]:
        part.experts.is_transposed = True
        set_methods(part, forward=_compute_chosen)
    modules = [part for part in model.modules() if _has_modules(part)]
    sums_alike = {kind: _sums_alike(part) for kind, part in {type(part): part for part in modules}.items()}
    for part in [part for part in modules if sums_alike[type(part)]]:
        set_methods(part, forward=_sum_of_all)
    for part in model.modules():
        layer = getattr(part, "classifier", None)
        if isinstance(layer, torch.nn.Linear) and _routes(part, layer.weight.dtype):
            set_methods(layer, to=_to)  # such a router converts its layer in each call, which an export refuses


def restore(model: Any) -> None:
    """Lets the mixtures of a model compute as in transformers.

    Args:
        model: The model of transformers.
    """
    for part in model.modules():
        if type(part).forward in (_gate, _compute_rows, _compute_chosen, _sum_of_all) or type(part).to is _to:
            part.__class__ = type(part).__base__


def _takes(part: Any, *names: str) -> bool:
    return [*inspect.signature(type(part).forward).parameters] == ["self", *names]


def _is_gate(part: Any) -> bool:
    return {"layer", "num_experts", "top_k"} <= {*vars(part), *part._modules}


def _computes_all(part: Any) -> bool:
    """Whether a module has a router, and experts that compute all rows without knowing which are chosen."""
    has_attributes = {"experts", "router", "shared_expert", "top_k", "hidden_dim"} <= {*vars(part), *part._modules}
    return (
        has_attributes
        and _takes(part.experts, "hidden_states")
        and {"gate_up_proj", "down_proj", "act_fn"} <= {*part.experts._parameters, *part.experts._modules}
    )


def _has_modules(part: Any) -> bool:
    """Whether a module has its experts by name, and takes rows, the chosen experts, and weights."""
    takes = len(inspect.signature(type(part).forward).parameters) == len(("self", "rows", "chosen", "weights"))
    return isinstance(part, torch.nn.ModuleDict) and takes and _FIRST in part and hasattr(part, "num_experts")


def _gate(self: Any, hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The experts of each token, with rows in the order of the tokens.

    Args:
        self: The gate.
        hidden_states: The tokens, [seq, hidden].

    Returns:
        The results of transformers' gate, with a row for each token and expert: the number of the row, int64 [rows];
        the number of its token, int64 [rows]; the weight of its expert, [rows]; its expert, int64 [rows], where
        transformers has the number of rows of each expert; and the scores of all experts, [seq, experts].
    """
    scores = self.layer(hidden_states).float()
    best, experts = scores.topk(self.top_k, dim=1)
    weights = torch.softmax(best, dim=1).type_as(hidden_states)
    rows = torch.arange(hidden_states.shape[0] * self.top_k)
    return rows, rows // self.top_k, weights.flatten(), experts.flatten(), scores


def _compute_rows(self: Any, inputs: torch.Tensor, expert_size: torch.Tensor) -> torch.Tensor:
    """The outputs of experts, [rows, outputs].

    Args:
        self: The experts.
        inputs: The rows, [rows, inputs].
        expert_size: The expert of each row, int64 [rows], from `_gate`.
    """

    def step(before: torch.Tensor, step_inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        row, expert = step_inputs
        return before.clone(), torch.nn.functional.linear(row, self.weight[expert.view(1)][0])

    _, outputs = for_each_token(step, torch.zeros(1), [inputs, expert_size])
    return outputs


def _compute_chosen(self: Any, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The result of a mixture whose experts take rows multiplied by their scores. Computes only the chosen experts.

    The score of an expert that is not chosen is 0, and an expert computes 0 from 0.

    Args:
        self: The mixture.
        hidden_states: The tokens, [batch, seq, hidden].

    Returns:
        The sum of the experts of each token, [batch * seq, hidden], and the scores of the router.
    """
    tokens = hidden_states.reshape(-1, self.hidden_dim)
    scores, logits = self.router(tokens)
    weights, chosen = scores.topk(self.top_k, dim=1)

    def step(before: torch.Tensor, step_inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        token, experts, factors = step_inputs
        outputs = [_expert(self.experts, token * factor, index) for factor, index in zip(factors, experts, strict=True)]
        return before.clone(), functools.reduce(torch.add, outputs)

    _, outputs = for_each_token(step, torch.zeros(1), [tokens, chosen, weights])
    return self.shared_expert(tokens) + outputs, logits


def _sum_of_all(self: Any, rows: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The sum of the experts of each row, [rows, hidden].

    Args:
        self: The experts.
        rows: The rows, [rows, hidden].
        chosen: 1 for the experts of each choice of a row, [rows, choices, experts], or the number of the expert, int64
            [rows, choices].
        weights: The weight of each choice, [rows, choices].
    """
    if chosen.dim() == weights.dim():
        chosen = torch.nn.functional.one_hot(chosen, self.num_experts)
    factors = (chosen * weights.unsqueeze(-1)).sum(dim=1) * (1 - getattr(self, "moe_token_dropout", 0.0))
    outputs = [expert(rows) * factors[:, index, None] for index, expert in enumerate(_experts(self))]
    return functools.reduce(torch.add, outputs)


def _routes(part: Any, dtype: torch.dtype) -> bool:
    """Whether a module chooses among experts, and computes in a dtype."""
    return hasattr(part, "num_experts") and getattr(part, "dtype", None) is dtype


def _to(self: Any, *wanted: Any, **named: Any) -> Any:
    """The layer itself if it has the dtype."""
    return self if wanted == (self.weight.dtype,) else torch.nn.Linear.to(self, *wanted, **named)


def _experts(part: Any) -> list[Any]:
    return [part[f"{_FIRST[:-1]}{index}"] for index in range(part.num_experts)]


def _expert(experts: Any, row: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The output of one expert for a row, [hidden]."""
    gate, up = (row @ experts.gate_up_proj[index.view(1)][0]).chunk(2, dim=-1)
    result: torch.Tensor = (up * experts.act_fn(gate)) @ experts.down_proj[index.view(1)][0]
    return result


def _chooses_alike(gate: Any) -> bool:
    """Whether a gate of transformers chooses the same experts and weights as `_gate`."""
    trial_gate = copy.deepcopy(gate)
    with torch.random.fork_rng(), torch.no_grad():
        _fill(trial_gate)
        tokens = torch.randn(_TRIAL_SIZE, trial_gate.layer.in_features, dtype=trial_gate.layer.weight.dtype)
        rows, tokens_of_rows, weights, counts, scores = trial_gate(tokens)
        our_rows, our_tokens, our_weights, experts, our_scores = _gate(trial_gate, tokens)
    pairs = (
        (our_rows[rows], rows),
        (our_tokens[rows], tokens_of_rows),
        (our_weights[rows], weights),
        (our_scores, scores),
    )
    sizes = torch.bincount(experts, minlength=trial_gate.num_experts).tolist()
    in_order = torch.equal(experts[rows], experts.sort().values)
    return in_order and sizes == counts and all(torch.equal(ours, original) for ours, original in pairs)


def _computes_rows_alike(kind: Any) -> bool:
    """Whether experts of a class compute the same as `_compute_rows`, in a small trial. False if the class takes other
    arguments than a number of experts and two sizes."""
    with suppress(Exception), torch.random.fork_rng(), torch.no_grad():  # the model's code may raise anything
        trial_experts = kind(_TRIAL_EXPERTS, _TRIAL_SIZE, _TRIAL_SIZE + 1).float()
        _fill(trial_experts)
        rows, experts = torch.randn(_TRIAL_SIZE, _TRIAL_SIZE), torch.arange(_TRIAL_SIZE) * _TRIAL_EXPERTS // _TRIAL_SIZE
        counts = torch.bincount(experts, minlength=_TRIAL_EXPERTS).tolist()
        ours = _compute_rows(trial_experts, rows, experts)
        return bool(torch.allclose(trial_experts(rows, counts), ours, rtol=1e-4, atol=1e-4))
    return False


def _mixes_alike(kind: Any, config: Any) -> bool:
    """Whether mixtures of a class compute the same as `_compute_chosen`, in a small trial."""
    small = copy.deepcopy(config.get_text_config(decoder=True))
    small.hidden_size = small.intermediate_size = _TRIAL_SIZE
    with suppress(Exception), torch.random.fork_rng(), torch.no_grad():  # the model's code may raise anything
        trial_mixture = kind(small).float()
        _fill(trial_mixture)
        tokens = torch.randn(1, _TRIAL_SIZE, _TRIAL_SIZE)
        pairs = zip(_compute_chosen(trial_mixture, tokens), trial_mixture(tokens), strict=True)
        return all(torch.allclose(ours, original, rtol=1e-4, atol=1e-4) for ours, original in pairs)
    return False


def _sums_alike(part: Any) -> bool:
    """Whether experts of the class of a module compute the same as `_sum_of_all`, in a small trial with other experts
    in their place."""
    with suppress(Exception), torch.random.fork_rng(), torch.no_grad():  # the model's code may raise anything
        trial = copy.copy(part)
        names = [f"{_FIRST[:-1]}{index}" for index in range(_TRIAL_EXPERTS)]
        trial._modules = {**part._modules, **{name: torch.nn.Linear(_TRIAL_SIZE, _TRIAL_SIZE) for name in names}}
        trial.num_experts, trial.training = _TRIAL_EXPERTS, False
        _fill(torch.nn.ModuleList(_experts(trial)))
        rows, weights = torch.randn(_TRIAL_SIZE, _TRIAL_SIZE), torch.rand(_TRIAL_SIZE, _TRIAL_EXPERTS)
        numbers = torch.randint(_TRIAL_EXPERTS, (_TRIAL_SIZE, _TRIAL_EXPERTS))
        one_choice = torch.nn.functional.one_hot(numbers[:, :1], _TRIAL_EXPERTS)
        for chosen in (one_choice, numbers):
            with suppress(Exception):
                factors = weights[:, : chosen.shape[1]]
                expected = trial(rows, chosen, factors)
                return bool(torch.allclose(_sum_of_all(trial, rows, chosen, factors), expected, rtol=1e-4, atol=1e-4))
    return False


def _fill(module: torch.nn.Module) -> None:
    """Gives a module random weights for a trial: they may be empty until they are loaded."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        parameter.normal_()
