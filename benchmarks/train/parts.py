"""The parts of a run: which ways take turns with which."""

from typing import Any

from benchmarks.train.plan import Plan
from benchmarks.train.turns import Place, Tell, take_turns
from benchmarks.train.way import Way

PLAIN, SAME = "Model.fit, float32", "penstock, same settings"
PLAIN_MIXED, AUTO = "Model.fit, mixed precision", "penstock, mixed precision, auto"
BFLOAT = "penstock, mixed_bfloat16, auto"


def rate(plan: Plan, place: Place, tell: Tell) -> None:
    """The same settings, and what is chosen."""
    mixed, chosen = {"precision": plan.precision}, {"micro_batch": "auto", "jit": "auto"}
    ways = {
        PLAIN: _way(plan, "plain"),
        SAME: _way(plan, "penstock"),
        PLAIN_MIXED: _way(plan, "plain", **mixed),
        AUTO: _way(plan, "penstock", **mixed, options=chosen),
        # No loss scale, and nothing to be looked at in every step.
        BFLOAT: _way(plan, "penstock", precision="mixed_bfloat16", options=chosen),
    }
    _take(plan, place, ways, plan.steps, tell, plan.trace)


def remat(plan: Plan, place: Place, tell: Tell) -> None:
    """Kept or recomputed, with XLA and without."""
    ways = {
        f"{'recomputed' if again else 'kept'}, {'XLA' if jit else 'no XLA'}": _way(
            plan, "penstock", batch=plan.remat_batch, options={"remat": again, "jit": jit}
        )
        for jit in (False, True)
        for again in (False, True)
    }
    _take(plan, place, ways, plan.remat_steps, tell)


def large(plan: Plan, place: Place, tell: Tell) -> None:
    """One after the other: each has the card to itself."""
    asked: dict[str, Any] = {
        "batch": plan.large_batch,
        "rows": plan.large_batch,
        "warm_up": 1,
        "jit": False,
    }
    ours = {"micro_batch": "auto", "jit": False}
    ways = {
        f"Model.fit, batch {plan.large_batch}": _way(plan, "plain", **asked),
        f"penstock, batch {plan.large_batch}": _way(plan, "penstock", **asked, options=ours),
    }
    for title, way in _wanted(plan, ways).items():
        alone = {title: way}
        take_turns(alone, place, tell, rounds=1, steps=plan.large_steps, within=plan.within)


PARTS = {"rate": rate, "remat": remat, "large": large}


def _take(
    plan: Plan, place: Place, ways: dict[str, Way], steps: int, tell: Tell, trace: str = ""
) -> None:
    wanted, rounds = _wanted(plan, ways), plan.rounds
    take_turns(wanted, place, tell, rounds=rounds, steps=steps, within=plan.within, trace=trace)


def _wanted(plan: Plan, ways: dict[str, Way]) -> dict[str, Way]:
    words = [word.strip() for word in plan.ways.split(",")]
    return {title: way for title, way in ways.items() if any(word in title for word in words)}


def _way(plan: Plan, kind: str, **changes: Any) -> Way:
    settings = {
        "network": plan.network,
        "batch": plan.batch,
        "rows": plan.rows,
        "warm_up": plan.warm_up,
    }
    return Way(kind, **settings | changes)
