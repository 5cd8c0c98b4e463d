"""``train``: what ``lightgbm.train`` does, over all ranks; ``average_metrics``: so that all ranks see the same."""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Optional, Tuple
from weakref import WeakSet

import lightgbm
from lightgbm.basic import _ConfigAliases

import ddl
from ddl.adapter import metrics
from ddl.adapter.consistency import check_consistent
from ddl.adapter.step_record import note_step
from ddl_lightgbm.network import has_network, network

__all__ = ["average_metrics", "train"]

#: Data that was binned on all ranks together.
_binned_together: WeakSet[Any] = WeakSet()


def train(
    params: Mapping[str, Any],
    train_set: lightgbm.Dataset,
    *arguments: Any,
    callbacks: Optional[List[Callable[..., Any]]] = None,
    communicator: Optional[ddl.Communicator] = None,
    **options: Any,
) -> lightgbm.Booster:
    """Do what ``lightgbm.train`` does, with its arguments, over all ranks of ``communicator`` (None: of the job).

    Collective, blocking. Every rank passes its own rows, and the same params, and gets the same model. Metrics of
    ``valid_sets`` are averages over the ranks, weighted by their rows, so all ranks stop early at the same round.
    params: ``tree_learner`` is "data" unless it is given; do not give ``machines``.

    Raises ``InvalidArgument``, on all ranks, if params differ, or if data were binned by one rank alone; ``PeerLost``
    and the other errors of collectives.

    >>> booster = ddl_lightgbm.train({"objective": "binary"}, lightgbm.Dataset(x, y), 100)
    """
    communicator = ddl.world() if communicator is None else communicator
    alone = not has_network() and train_set._handle is not None and train_set not in _binned_together
    with network(communicator) as usual:
        if usual:
            check_consistent(
                *(communicator, "train", sorted(f"{name}={value!r}" for name, value in params.items())),
                advice="Pass the same parameters on all ranks.",
                mistake=_mistake(params, alone),
            )
        own = {name: value for name, value in usual.items() if not _ConfigAliases.get(name) & set(params)}
        steps = [average_metrics(communicator), _note, *(callbacks or [])]
        _binned_together.add(train_set)
        return lightgbm.train({**params, **own}, train_set, *arguments, callbacks=steps, **options)


def average_metrics(communicator: Optional[ddl.Communicator] = None) -> Callable[[Any], None]:
    """Return a callback for LightGBM: it replaces metrics by their averages over all ranks, weighted by rows.

    ``train`` has it. Where you train in ``network``, pass it in ``callbacks``, so that all ranks stop at the same
    round. Collective, if there are metrics.

    >>> model.fit(x, y, eval_set=[(x_test, y_test)], callbacks=[ddl_lightgbm.average_metrics()])
    """

    def average(environment: Any) -> None:
        results, model = environment.evaluation_result_list or [], environment.model
        rows = {model._train_data_name: model.train_set, **dict(zip(model.name_valid_sets, model.valid_sets))}
        for data in dict.fromkeys(result[0] for result in results):
            places = [place for place, result in enumerate(results) if result[0] == data]
            own = {results[place][1]: results[place][2] for place in places}
            means = metrics.average_metrics(own, weight=rows[data].num_data(), communicator=communicator)
            for place in places:
                _, name, _, *rest = results[place]
                results[place] = _same_kind(results[place], (data, name, means[name], *rest))

    average.order = -1  # type: ignore[attr-defined]  # before those that print, record and stop
    return average


def _same_kind(result: Any, values: Tuple[Any, ...]) -> Any:
    """Return ``values`` as ``result`` is: a tuple with names, from LightGBM 4.7 on."""
    return values if type(result) is tuple else type(result)(*values)


def _note(environment: Any) -> None:
    note_step()


def _mistake(params: Mapping[str, Any], alone: bool) -> str:
    given = _ConfigAliases.get("machines") & set(params)
    if given:
        return f"there is the parameter {given.pop()}: DDL is the network, and its ranks are the machines; leave it out"
    if alone:
        return (
            "train_set was constructed before, and so its bins are those of one rank; pass a new lightgbm.Dataset, or "
            "construct it within ddl_lightgbm.network()"
        )
    return ""
