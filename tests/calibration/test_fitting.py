"""What made packs as they are is found again; what nothing explains is named."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from slurm_colloc.errors import NodeError, UsageProblem
from slurm_colloc.model.usage_profile import Load, ModeModel
from slurm_colloc.planning.contention import predict_slowdowns
from slurm_colloc.store.calibrations import find_calibration
from slurm_colloc_lab.calibration.calibrated_gpu import check_packages
from slurm_colloc_lab.calibration.calibration_words import render_fit
from slurm_colloc_lab.calibration.fit_model import (
    Fit,
    build_columns,
    fit,
    fit_mode,
    predict_columns,
)
from slurm_colloc_lab.calibration.measured_packs import (
    Alone,
    MeasuredPack,
    Measurements,
    build_measurements,
    read_rows,
)
from slurm_colloc_lab.calibration.model_error import (
    compute_errors,
    compute_noise,
    evaluate,
    judge,
    split,
)

from .tables import TABLES

pytest.importorskip("scipy")

MODELS = {
    "timeslice": ModeModel(turns=0.8, switching=0.2, copying=0.6),
    "mps": ModeModel(
        waiting=0.7,
        width=1.2,
        narrowing=0.4,
        dram=0.6,
        capacity=1.2,
        crowding=0.5,
        copying=1.1,
    ),
}
LOAD = Load(0.5, 0.2, 0.1)


def make_loads(chance: random.Random, count: int = 14) -> dict[str, Load]:
    loads = {}
    for number in range(count):
        engine = chance.uniform(0.2, 1.0)
        sm = engine * chance.uniform(0.1, 0.95)
        pcie = chance.uniform(0.2, 0.8) if number % 3 == 0 else 0.0
        loads[f"job{number}"] = Load(engine, sm, sm * chance.uniform(0.1, 0.9), pcie=pcie)
    return loads


def make_packs(
    loads: Mapping[str, Load], mode: str, chance: random.Random, noise: float = 0.0
) -> list[MeasuredPack]:
    packs = []
    for size, count in ((1, 8), (2, 60), (3, 30), (4, 8), (7, 6), (12, 4)):
        for _ in range(count):
            names = tuple(chance.choices(sorted(loads), k=size))
            limit = chance.choice((1.0, 0.66, 0.5, 0.33)) if mode == "mps" else 1.0
            limits = (limit,) * size
            own = tuple(loads[name] for name in names)
            slowdowns = predict_slowdowns(own, limits, MODELS[mode])
            progress = tuple(1 / each * (1 + chance.gauss(0, noise)) for each in slowdowns)
            packs.append(MeasuredPack(mode, limits, names, names, own, progress, "pair"))
    return packs


def measure(noise: float = 0.0, seed: int = 1) -> Measurements:
    chance = random.Random(seed)
    loads = make_loads(chance)
    packs = [pack for mode in MODELS for pack in make_packs(loads, mode, chance, noise)]
    alone = {("run", name): Alone(1.0, load) for name, load in loads.items()}
    return Measurements(alone, {}, tuple(packs), "NVIDIA H200", "580", 700.0, 79.0, 9.0)


@pytest.mark.parametrize("mode", MODELS)
def test_exact_packs_give_exactly_what_made_them(mode: str) -> None:
    chance = random.Random(5)
    loads = make_loads(chance)
    found = fit_mode(make_packs(loads, mode, chance), mode)
    for name, value in dataclasses.asdict(MODELS[mode]).items():
        assert getattr(found, name) == pytest.approx(value, abs=0.02), name


def test_noisy_packs_give_about_what_made_them_and_say_how_noisy_they_are() -> None:
    fitted = fit(measure(noise=0.05))
    calibration = fitted.calibration
    for mode, model in MODELS.items():
        for name, value in dataclasses.asdict(model).items():
            assert getattr(calibration.modes[mode], name) == pytest.approx(value, abs=0.15), name
    # Of packs, whose members' noise is averaged.
    assert 0.015 < calibration.residual < 0.045
    assert fitted.usual == pytest.approx(0.05, abs=0.015)
    assert (calibration.gpu_model, calibration.driver) == ("NVIDIA H200", "580")
    assert (calibration.power_limit_w, calibration.idle_power_w) == (700.0, 79.0)
    assert calibration.packs == 2 * 116
    assert not fitted.set_aside


def test_arrays_and_numbers_predict_alike() -> None:
    chance = random.Random(2)
    loads = make_loads(chance)
    packs = make_packs(loads, "mps", chance)
    predicted = predict_columns(build_columns(packs), MODELS["mps"])
    for number, pack in enumerate(packs):
        assert predicted[: len(pack.names), number] == pytest.approx(pack.progress, rel=1e-9)


@pytest.mark.long
def test_a_training_that_nothing_explains_is_named_and_spoils_no_fit() -> None:
    measured = measure(noise=0.03)
    packs = tuple(
        dataclasses.replace(
            pack,
            progress=tuple(
                each * (0.2 if name == "job3" and len(pack.names) > 1 else 1)
                for name, each in zip(pack.names, pack.progress, strict=True)
            ),
        )
        if pack.mode == "timeslice"
        else pack
        for pack in measured.packs
    )
    measured = dataclasses.replace(measured, packs=packs)
    fitted = fit(measured)
    assert list(fitted.set_aside) == ["timeslice"]
    assert list(fitted.set_aside["timeslice"]) == ["job3"]
    assert fitted.calibration.modes["timeslice"].turns == pytest.approx(0.8, abs=0.1)
    evaluated = evaluate(measured, fitted, draws=1)
    by_kind = {each.kind: each.all for each in evaluated if each.mode == "timeslice"}
    with_it, without = by_kind["all, with those set aside"], by_kind["all, as fitted"]
    assert with_it is not None
    assert without is not None
    assert with_it.mean > 2 * without.mean
    assert "without job3" in render_fit(fitted, evaluated, compute_noise(measured))


def test_a_mode_with_few_packs_is_not_fitted() -> None:
    measured = measure()
    of_mps = [pack for pack in measured.packs if pack.mode == "mps"]
    shared = [pack for pack in measured.packs if pack.mode == "timeslice" and len(pack.names) > 1]
    few = shared[:5]
    fitted = fit(dataclasses.replace(measured, packs=(*of_mps, *few)))
    assert set(fitted.calibration.modes) == {"mps"}
    assert fitted.not_fitted["timeslice"].startswith("only 5 packs of ")
    with pytest.raises(UsageProblem, match="nothing can be fitted: timeslice: only 5 packs"):
        fit(dataclasses.replace(measured, packs=tuple(few)))


def test_what_is_tested_was_never_fitted() -> None:
    packs = [pack for pack in measure().packs if pack.mode == "mps"]
    for seed in range(10):
        to_fit, to_test = split(packs, random.Random(seed))
        assert len(to_fit) + len(to_test) == len(packs)
        fitted_members = {tuple(sorted(pack.names)) for pack in to_fit}
        assert not fitted_members & {tuple(sorted(pack.names)) for pack in to_test}
        pairs = sum(len(pack.names) == 2 for pack in to_fit)
        triples = sum(len(pack.names) == 3 for pack in to_fit)
        assert 30 <= pairs <= 33
        assert 15 <= triples <= 17
        assert {len(pack.names) for pack in to_fit} == {1, 2, 3}


def test_a_model_that_is_true_has_no_errors_on_what_it_has_not_seen() -> None:
    measured = measure()
    found = evaluate(measured, Fit(fit(measured).calibration, {}, {}), draws=1)
    assert any(each.judgement.precision is not None for each in found)
    for each in found:
        assert each.all is not None
        assert each.all.mean < 0.01, each
        # None where no pack is taken to be a good one.
        assert each.judgement.precision in (None, pytest.approx(1.0, abs=0.1))


def test_errors_and_judgements_are_computed_right() -> None:
    one = MeasuredPack("mps", (1.0, 1.0), ("a", "b"), ("a", "b"), (LOAD, LOAD), (0.5, 0.8))
    other = MeasuredPack("mps", (1.0, 1.0), ("a", "b"), ("a", "b"), (LOAD, LOAD), (0.9, 1.0))
    found = [(one, (0.6, 0.8)), (other, (0.7, 0.9))]
    errors = compute_errors(found)
    assert errors is not None
    assert (errors.packs, errors.members) == (2, 4)
    assert errors.mean == pytest.approx(0.1)
    assert errors.relative == pytest.approx((0.2 + 0 + 0.2 / 0.9 + 0.1) / 4)
    assert errors.p95 == pytest.approx(0.2)
    assert errors.bias == pytest.approx(-0.05)
    judged = judge([*found, (one, (0.7, 0.9)), (other, (0.5, 0.9))])
    assert (judged.packs, judged.good, judged.precision, judged.recall) == (4, 2, 0.5, 0.5)
    assert judge([]).precision is None
    assert compute_errors([]) is None


def test_noise_is_what_alike_members_differ_by() -> None:
    measured = measure(noise=0.0)
    chance = random.Random(3)
    pack = MeasuredPack("mps", (1.0,) * 6, ("job1",) * 6, ("f",) * 6, (LOAD,) * 6, (0.5,) * 6)
    copies = tuple(
        dataclasses.replace(pack, progress=tuple(0.5 + chance.gauss(0, 0.05) for _ in range(6)))
        for _ in range(30)
    )
    noise = compute_noise(
        dataclasses.replace(measured, packs=copies, others={"job1": (0.5, 0.9), "job2": (1.0,)})
    )
    assert noise.members == 180
    # Of a normal distribution the mean distance is 0.8 standard deviations.
    assert noise.mean == pytest.approx(0.04, abs=0.006)
    assert noise.alone == pytest.approx(0.8)
    assert noise.alone_least == 0.5


def test_the_calibration_that_comes_with_csub_is_the_fit_of_our_tables(tmp_path: Path) -> None:
    shipped = find_calibration("NVIDIA H200", tmp_path, None).calibration
    fitted = fit(build_measurements(read_rows(TABLES))).calibration
    for mode, model in fitted.modes.items():
        for name, value in dataclasses.asdict(model).items():
            # Another release of SciPy may stop a little earlier or later.
            assert getattr(shipped.modes[mode], name) == pytest.approx(value, abs=0.02), name
    assert shipped.residual == pytest.approx(fitted.residual, abs=0.005)
    assert shipped.packs == fitted.packs
    assert shipped.made_at == fitted.made_at


def test_a_missing_package_is_named_with_the_extra() -> None:
    with pytest.raises(NodeError, match=r"no_such_package.*lab\[calibrate\]"):
        check_packages("csv", "no_such_package")
