"""Mixtures of experts that do not use transformers' interface for experts. Each row is computed with its own experts.

Some sort the rows of a call by expert, so that each expert computes its rows together. ExecuTorch has no kernel that
sorts integers, and how many rows an expert has depends on values. Others compute every row with every expert.
"""

from __future__ import annotations

import copy
import functools
import inspect
from contextlib import suppress
from typing import Any

import torch

from etbuild.model.module import set_methods
from etbuild.model.token_loop import each_token

_EXPERTS = 3
_TRIED = 8  # rows, and the size of what a tried mixture has instead of its own sizes


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
            set_methods(part, forward=_each_row)
    mixtures = [part for part in model.modules() if _computes_all(part)]
    alike = {kind: _sums_alike(kind, model.config) for kind in {type(part) for part in mixtures}}
    for part in [part for part in mixtures if alike[type(part)]]:
        part.experts.is_transposed = True
        set_methods(part, forward=_chosen_only)


def restore(model: Any) -> None:
    """Lets the mixtures of a model compute as in transformers.

    Args:
        model: The model of transformers.
    """
    for part in model.modules():
        if type(part).forward in (_gate, _each_row, _chosen_only):
            part.__class__ = type(part).__base__


def _takes(part: Any, *names: str) -> bool:
    return [*inspect.signature(type(part).forward).parameters] == ["self", *names]


def _is_gate(part: Any) -> bool:
    return {"layer", "num_experts", "top_k"} <= {*vars(part), *part._modules}


def _computes_all(part: Any) -> bool:
    """Whether a module has a router and experts that compute rows without knowing which of them are chosen."""
    named = {"experts", "router", "shared_expert", "top_k", "hidden_dim"} <= {*vars(part), *part._modules}
    return (
        named
        and _takes(part.experts, "hidden_states")
        and {"gate_up_proj", "down_proj", "act_fn"} <= {*part.experts._parameters, *part.experts._modules}
    )


def _gate(self: Any, hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The experts of each token, with rows in the order of the tokens.

    Args:
        self: The gate.
        hidden_states: The tokens, [seq, hidden].

    Returns:
        What the gate of transformers returns, for a row of each token and expert: the number of the row, int64 [rows];
        that of its token, int64 [rows]; the weight of its expert, [rows]; its expert, int64 [rows], in place of the
        number of rows of each expert; and the scores of all experts, [seq, experts].
    """
    scores = self.layer(hidden_states).float()
    best, experts = scores.topk(self.top_k, dim=1)
    weights = torch.softmax(best, dim=1).type_as(hidden_states)
    rows = torch.arange(hidden_states.shape[0] * self.top_k)
    return rows, rows // self.top_k, weights.flatten(), experts.flatten(), scores


def _each_row(self: Any, inputs: torch.Tensor, expert_size: torch.Tensor) -> torch.Tensor:
    """What experts compute, [rows, outputs].

    Args:
        self: The experts.
        inputs: The rows, [rows, inputs].
        expert_size: The expert of each row, int64 [rows], from `_gate`.
    """

    def step(before: torch.Tensor, given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        row, expert = given
        return before.clone(), torch.nn.functional.linear(row, self.weight[expert.view(1)][0])

    _, outputs = each_token(step, torch.zeros(1), [inputs, expert_size])
    return outputs


def _chosen_only(self: Any, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a mixture computes whose experts take rows that are multiplied by their scores.

    Args:
        self: The mixture. The score of an expert that is not chosen is 0, and experts compute 0 from 0.
        hidden_states: The tokens, [batch, seq, hidden].

    Returns:
        The sum of the experts of each token, [batch * seq, hidden], and the scores of the router.
    """
    tokens = hidden_states.reshape(-1, self.hidden_dim)
    scores, logits = self.router(tokens)
    weights, chosen = scores.topk(self.top_k, dim=1)

    def step(before: torch.Tensor, given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        token, experts, factors = given
        outputs = [_expert(self.experts, token * one, index) for one, index in zip(factors, experts, strict=True)]
        return before.clone(), functools.reduce(torch.add, outputs)

    _, outputs = each_token(step, torch.zeros(1), [tokens, chosen, weights])
    return self.shared_expert(tokens) + outputs, logits


def _expert(experts: Any, row: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """What one expert computes of a row, [hidden]."""
    gate, up = (row @ experts.gate_up_proj[index.view(1)][0]).chunk(2, dim=-1)
    result: torch.Tensor = (up * experts.act_fn(gate)) @ experts.down_proj[index.view(1)][0]
    return result


def _chooses_alike(gate: Any) -> bool:
    """Whether a gate of transformers chooses the experts and weights that `_gate` does."""
    tried = copy.deepcopy(gate)
    with torch.random.fork_rng(), torch.no_grad():
        _fill(tried)
        tokens = torch.randn(_TRIED, tried.layer.in_features, dtype=tried.layer.weight.dtype)
        rows, of_rows, weights, counts, scores = tried(tokens)
        own_rows, own_of_rows, own_weights, experts, own_scores = _gate(tried, tokens)
    pairs = ((own_rows[rows], rows), (own_of_rows[rows], of_rows), (own_weights[rows], weights), (own_scores, scores))
    sizes = torch.bincount(experts, minlength=tried.num_experts).tolist()
    in_order = torch.equal(experts[rows], experts.sort().values)
    return in_order and sizes == counts and all(torch.equal(one, other) for one, other in pairs)


def _computes_rows_alike(kind: Any) -> bool:
    """Whether experts of a class compute what `_each_row` does. Small ones are tried. False if they are not made by a
    number of experts and two sizes."""
    with suppress(Exception), torch.random.fork_rng(), torch.no_grad():  # it is code of others
        tried = kind(_EXPERTS, _TRIED, _TRIED + 1).float()
        _fill(tried)
        rows, experts = torch.randn(_TRIED, _TRIED), torch.arange(_TRIED) * _EXPERTS // _TRIED
        counts = torch.bincount(experts, minlength=_EXPERTS).tolist()
        return bool(torch.allclose(tried(rows, counts), _each_row(tried, rows, experts), rtol=1e-4, atol=1e-4))
    return False


def _sums_alike(kind: Any, config: Any) -> bool:
    """Whether mixtures of a class compute what `_chosen_only` does. A small one is tried."""
    small = copy.deepcopy(config.get_text_config(decoder=True))
    small.hidden_size = small.intermediate_size = _TRIED
    with suppress(Exception), torch.random.fork_rng(), torch.no_grad():  # it is code of others
        tried = kind(small).float()
        _fill(tried)
        tokens = torch.randn(1, _TRIED, _TRIED)
        pairs = zip(_chosen_only(tried, tokens), tried(tokens), strict=True)
        return all(torch.allclose(one, other, rtol=1e-4, atol=1e-4) for one, other in pairs)
    return False


def _fill(module: torch.nn.Module) -> None:
    """Gives a module random weights: they may be empty until they are loaded."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        parameter.normal_()
