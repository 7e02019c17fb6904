"""Hidden tests of part 8, `optimizers`.

Two kinds of rows. Rows about the formula compare displacements with the reference's. All others hold a run of the
student's optimizer against another run of the *same* optimizer (a group against an optimizer of its own, a resumed
run against an uncut one), so that a wrong formula loses the rows about the formula and nothing else.

Everything is in float64. Gradients are drawn, not computed, with magnitudes between 0.5 and 1.5: no element is so small
that eps matters where it should not, whatever the seed.
"""

import copy
import io
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from gradescope_utils.autograder_utils.decorators import number, weight
from torch import Tensor, nn

from autograder.probing import refusal

SHAPES = ((3, 4), (5,), (3, 4), ())  # two of one shape, which must not share anything
# Against the reference, relative to the largest displacement. Right float64 implementations agree within 1e-12; the
# honest variants of AdamW (decay after the step, eps inside the correction) within 1e-4 where they are not meant to be
# told apart. Every mistake that a row is meant for is 2e-2 and more.
RTOL = 1e-3
# Between two runs of the same implementation. State kept in single precision departs by 1e-7, mistakes by 1e-3 and more.
OWN_RTOL = 1e-5

Gradients = Sequence[Sequence[Tensor | None]]  # for each step, a gradient for each parameter


def starts_and_gradients(seed: int, steps: int, shapes: Sequence[tuple[int, ...]] = SHAPES) -> tuple[list[Tensor], Any]:
    """Draw where parameters start, between 2 and 3 in magnitude, and their gradients, between 0.5 and 1.5."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: float, shape: tuple[int, ...]) -> Tensor:
        sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
        return sign * (low + torch.rand(shape, generator=generator, dtype=torch.float64))

    starts = [draw(2.0, shape) for shape in shapes]
    return starts, [[draw(0.5, shape) for shape in shapes] for _ in range(steps)]


def fading(gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    """Make gradients smaller from step to step, so that a second moment shrinks where it can."""
    return [[gradient * 0.7**i for gradient in row] for i, row in enumerate(gradients)]


def step_through(optimizer: Any, parameters: Sequence[nn.Parameter], gradients: Gradients) -> None:
    """Take a step with each row of gradients."""
    for row in gradients:
        for parameter, gradient in zip(parameters, row, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        optimizer.step()


def displacements(
    optimizer_class: Any,
    starts: Sequence[Tensor],
    gradients: Gradients,
    *,
    first_group: dict[str, Any] | None = None,
    **hyperparameters: Any,
) -> list[Tensor]:
    """Return how far an optimizer moves each parameter, as vectors; the first may be in a group of its own."""
    parameters = [nn.Parameter(start.clone()) for start in starts]
    groups: list[Any] = [*parameters]
    if first_group is not None:
        groups = [{"params": parameters[:1], **first_group}, {"params": parameters[1:]}]
    step_through(optimizer_class(groups, **hyperparameters), parameters, gradients)
    return moved(parameters, starts)


def moved(parameters: Sequence[nn.Parameter], starts: Sequence[Tensor]) -> list[Tensor]:
    """Return how far parameters are from where they started, as vectors."""
    return [(p.detach() - start).flatten() for p, start in zip(parameters, starts, strict=True)]


def require_close(got: Tensor, expected: Tensor, sentence: str, rtol: float = OWN_RTOL) -> None:
    """Assert that two displacements of the student's agree, and that there is a displacement at all."""
    scale = float(expected.abs().max())
    assert bool(got.isfinite().all() and expected.isfinite().all()), "The parameters end at NaN or infinity."
    assert scale > 0, "The optimizer does not move the parameters."
    assert got.shape == expected.shape and float((got - expected).abs().max()) <= rtol * scale, sentence


VECTOR = torch.zeros(0, dtype=torch.float64)  # for observe: any vector in float64


# What holds for every optimizer. `name` is the optimizer's, as in "optimizers.AdamW".


# What each optimizer's steps depend on beside lr, with values that change them by 1e-1 and more.
VARIED: dict[str, dict[str, Any]] = {
    "SGD": {},
    "AdaGrad": {"eps": 0.5},
    "AdamW": {"betas": (0.1, 0.6), "eps": 0.5, "weight_decay": 0.5},
}


def check_kind(observe: Any, name: str, seed: int) -> None:
    """Check that a step depends on what it should, so that another kind of optimizer cannot pass for this one.

    A run that is held against another run of the same optimizer shows nothing about the formula. Neither does this, much:
    one mistake in a formula takes one of these dependencies away at most. Sign-SGD in the place of AdamW lacks four.
    """
    (start,), [[first], [second]] = starts_and_gradients(seed, steps=2, shapes=((16,),))
    no_decay = {"weight_decay": 0.0} if name == "AdamW" else {}

    def probe(lib: Any) -> Any:
        def second_step(first: Tensor, second: Tensor, **hyperparameters: Any) -> Tensor:
            p = nn.Parameter(start.clone())
            optimizer = getattr(lib.optimizers, name)([p], **{"lr": 0.01, **no_decay, **hyperparameters})
            step_through(optimizer, [p], [[first]])
            before = p.detach().clone()
            step_through(optimizer, [p], [[second]])
            return p.detach() - before

        varied = [second_step(first, second, **{key: value}) for key, value in VARIED[name].items()]
        others = [second_step(factor * first, second) for factor in (3, -1)]
        return second_step(first, second), varied, others, second_step(9 * first, 9 * second)

    step = torch.zeros(16, dtype=torch.float64)
    like = (step, [step], [step, step], step)
    usual, varied, (after_larger, after_opposite), scaled = observe(f"optimizers.{name}", probe, like=like)

    def differs(step: Tensor, other: Tensor) -> bool:
        return not bool((step - other).abs().max() <= 1e-2 * other.abs().max())

    lacking = [key for key, step in zip(VARIED[name], varied, strict=True) if not differs(step, usual)]
    if differs(after_larger, usual) != (name != "SGD"):
        lacking.append("the size of earlier gradients")
    if name != "SGD" and differs(after_opposite, usual) != (name == "AdamW"):
        lacking.append("the sign of earlier gradients")
    if differs(scaled, usual * (9 if name == "SGD" else 1)):
        lacking.append("the gradients' scale")
    assert len(lacking) < 2, f"This is another kind of optimizer: its steps depend otherwise on {', '.join(lacking)}."


def check_groups(
    observe: Any, name: str, seed: int, defaults: dict[str, Any], overrides: dict[str, dict[str, Any]]
) -> None:
    """Check that a group's own value of each hyper-parameter counts, from any step on.

    Args:
        observe: the fixture.
        name: of the optimizer.
        seed: for the parameters and gradients.
        defaults: the optimizer's own hyper-parameters.
        overrides: what a group has in their place, by a name for the student.
    """
    starts, gradients = starts_and_gradients(seed, steps=5, shapes=((4,), (3,)))

    def probe(lib: Any) -> Any:
        optimizer_class = getattr(lib.optimizers, name)

        def changed(own: dict[str, Any]) -> Tensor:
            p = nn.Parameter(starts[0].clone())
            optimizer = optimizer_class([p], **defaults)
            step_through(optimizer, [p], [row[:1] for row in gradients[:2]])
            optimizer.param_groups[0].update(own)
            step_through(optimizer, [p], [row[:1] for row in gradients[2:]])
            return moved([p], starts[:1])[0]

        reply = []
        for own in overrides.values():
            mixed = displacements(optimizer_class, starts, gradients, first_group=own, **defaults)
            all_own = displacements(optimizer_class, starts, gradients, **{**defaults, **own})
            none_own = displacements(optimizer_class, starts, gradients, **defaults)
            reply.append((mixed, all_own[0], none_own, changed(own)))
        return reply

    reply = observe(f"optimizers.{name}", probe, like=[([VECTOR], VECTOR, [VECTOR], VECTOR)])
    for key, ((group, rest), all_own, (unchanged, none_own), in_mid_run) in zip(overrides, reply, strict=True):
        require_close(group, all_own, f"A group's own {key} is not what its parameters are stepped with.")
        require_close(rest, none_own, f"One group's {key} changes how another group's parameters are stepped.")
        # A formula without eps, without decay or without one of the moments is judged elsewhere.
        assert key not in ("lr", "betas") or not torch.equal(all_own, unchanged), f"Another {key} makes no difference."
        sentence = f"When a group's {key} changes between two steps, the steps go on as before: read it at each step."
        assert torch.equal(all_own, unchanged) or not torch.equal(in_mid_run, unchanged), sentence


def check_later_group(observe: Any, name: str, seed: int) -> None:
    """Check that a group added in mid-run starts as if it had an optimizer of its own."""
    starts, gradients = starts_and_gradients(seed, steps=8, shapes=((4,), (3,)))

    def probe(lib: Any) -> Any:
        optimizer_class = getattr(lib.optimizers, name)
        first, later = (nn.Parameter(start.clone()) for start in starts)
        optimizer = optimizer_class([first], lr=0.01)
        step_through(optimizer, [first], [row[:1] for row in gradients[:5]])
        optimizer.add_param_group({"params": [later], "lr": 0.02})
        step_through(optimizer, [first, later], gradients[5:])
        alone = displacements(optimizer_class, starts[1:], [row[1:] for row in gradients[5:]], lr=0.02)
        return moved([later], starts[1:])[0], alone[0]

    later, alone = observe(f"optimizers.{name}", probe, like=(VECTOR, VECTOR))
    require_close(
        later, alone, "A group that is added in mid-run is not stepped as it would be in an optimizer of its own."
    )


def check_none_gradients(observe: Any, name: str, seed: int) -> None:
    """Check that a step without a gradient leaves a parameter and its state alone, and the others as they were."""
    # Odd numbers of steps: whoever moves by the same length each time cannot end where they began.
    starts, gradients = starts_and_gradients(seed, steps=9, shapes=((4,), (3,), (2,)))
    present = [True, False, False, True, True, False, True, False, True]

    def probe(lib: Any) -> Any:
        optimizer_class = getattr(lib.optimizers, name)
        rows = [[None, row[1] if there else None, row[2]] for row, there in zip(gradients, present, strict=True)]
        together = displacements(optimizer_class, starts, rows, lr=0.01)
        own_rows = [[row[1]] for row, there in zip(gradients, present, strict=True) if there]
        sometimes = displacements(optimizer_class, starts[1:2], own_rows, lr=0.01)
        always = displacements(optimizer_class, starts[2:], [row[2:] for row in gradients], lr=0.01)
        return together, sometimes[0], always[0]

    together, sometimes, always = observe(f"optimizers.{name}", probe, like=([VECTOR], VECTOR, VECTOR))
    assert not together[0].any(), "A parameter that never has a gradient moves."
    require_close(together[2], always, "A parameter whose gradient is None changes how the others are stepped.")
    sentence = "A step in which a parameter's gradient is None changes its later steps: did its state age?"
    require_close(together[1], sometimes, sentence)


def check_changing_lr(observe: Any, name: str, seed: int, how: str, **hyperparameters: Any) -> None:
    """Check that each step is as long as the learning rate at that moment says."""
    starts, gradients = starts_and_gradients(seed, steps=6, shapes=((4,),))
    factors = [0.5 ** (i // 2) for i in range(6)] if how == "StepLR" else [1.0, 3.0, 0.25, 0.0, 2.0, 0.5]

    def probe(lib: Any) -> Any:
        optimizer_class = getattr(lib.optimizers, name)

        def steps(change: bool) -> list[Tensor]:
            p = nn.Parameter(starts[0].clone())
            optimizer = optimizer_class([p], lr=0.02, **hyperparameters)
            scheduler = (
                torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
                if how == "StepLR" and change
                else None
            )
            lengths = []
            for factor, row in zip(factors, gradients, strict=True):
                before = p.detach().clone()
                if change and scheduler is None:
                    optimizer.param_groups[0]["lr"] = 0.02 * factor
                step_through(optimizer, [p], [row])
                if scheduler is not None:
                    scheduler.step()
                lengths.append(p.detach() - before)
            return lengths

        return steps(change=False), steps(change=True)

    constant, changing = observe(f"optimizers.{name}", probe, like=([VECTOR], [VECTOR]))
    expected = torch.stack([factor * step for factor, step in zip(factors, constant, strict=True)])
    require_close(
        torch.stack(changing), expected, "When the learning rate in a group changes between two steps, the steps don't."
    )


def check_closure(observe: Any, name: str, seed: int) -> None:
    """Check when and how `step` calls its closure, and what it returns."""
    (start,), _ = starts_and_gradients(seed, steps=0, shapes=((4,),))

    def probe(lib: Any) -> Any:
        p = nn.Parameter(start.clone())
        optimizer = getattr(lib.optimizers, name)([p], lr=0.01)
        calls = []

        def closure() -> Tensor:
            calls.append((torch.is_grad_enabled(), p.detach().clone()))
            with torch.enable_grad():  # what is wrong shows in the calls, and needs no failure
                optimizer.zero_grad()
                loss = (p**2).sum()
                loss.backward()
            return loss

        loss = optimizer.step(closure)
        returned = [] if loss is None else [float(torch.as_tensor(loss).item())]
        return calls, returned, torch.sign(p.detach() - start), optimizer.step() is None

    calls, returned, direction, returns_none = observe(
        f"optimizers.{name}", probe, like=([(True, VECTOR)], [0.0], VECTOR, True)
    )
    assert calls, f"{name}: `step` never calls its closure, which computes the gradients."
    assert len(calls) == 1, f"{name}: `step` calls its closure {len(calls)} times: it is to be called once."
    assert calls[0][0], f"{name}: `step` calls its closure with gradients switched off."
    assert torch.equal(calls[0][1], start), f"{name}: the closure is called after the update: it comes before."
    expected = float((start**2).sum())
    right_loss = len(returned) == 1 and abs(returned[0] - expected) <= RTOL * expected
    assert right_loss, f"{name}: `step` does not return what its closure returned."
    sentence = f"{name}: the step does not go against the gradients that the closure has computed."
    assert torch.equal(direction, -torch.sign(start)), sentence
    assert returns_none, f"{name}: without a closure `step` should return None."


def check_gradients(compare: Any, name: str, seed: int) -> None:
    """Check that gradients stay as they were."""
    starts, gradients = starts_and_gradients(seed, steps=2)

    def probe(lib: Any) -> Any:
        parameters = [nn.Parameter(start.clone()) for start in starts]
        optimizer = getattr(lib.optimizers, name)(parameters, lr=0.01)
        seen = []
        for row in gradients:
            step_through(optimizer, parameters, [row])
            seen.append([p.grad for p in parameters])
        return seen

    compare(f"optimizers.{name}", probe, rtol=0.0)


def check_no_state(observe: Any, name: str, seed: int) -> None:
    """Check that nothing is remembered; an empty dict for a parameter is nothing."""
    starts, gradients = starts_and_gradients(seed, steps=2)

    def probe(lib: Any) -> Any:
        parameters = [nn.Parameter(start.clone()) for start in starts]
        optimizer = getattr(lib.optimizers, name)(parameters, lr=0.01)
        step_through(optimizer, parameters, gradients)
        return sum(len(state) for state in optimizer.state.values())

    kept = observe(f"optimizers.{name}", probe, like=0)
    assert kept == 0, f"{name}: `self.state` holds something after two steps: this optimizer keeps no state."


def check_graph(compare: Any, name: str, seed: int) -> None:
    """Check that parameters change in place, and that no autograd graph stays behind, even where the gradients have one (as for a
    second derivative)."""
    starts, _ = starts_and_gradients(seed, steps=0)

    def probe(lib: Any) -> Any:
        parameters = [nn.Parameter(start.clone()) for start in starts]
        aliases = [p.detach() for p in parameters]
        optimizer = getattr(lib.optimizers, name)(parameters, lr=0.01)
        for _ in range(2):
            loss = torch.stack([(p**3).sum() for p in parameters]).sum()
            for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters, create_graph=True), strict=True):
                p.grad = gradient
            optimizer.step()
        state = [value for p in parameters for value in optimizer.state[p].values() if isinstance(value, Tensor)]
        return {
            "whether each parameter is a leaf that needs a gradient": [
                (p.requires_grad, p.is_leaf) for p in parameters
            ],
            "whether the state is part of a graph": any(value.requires_grad for value in state),
            "whether what shares a parameter's memory changes with it": [
                alias.data_ptr() == p.data_ptr() for alias, p in zip(aliases, parameters, strict=True)
            ],
        }

    compare(f"optimizers.{name}", probe)


def check_state_dtype(observe: Any, name: str, seed: int, num_moments: int) -> None:
    """Check that what is remembered for each element has the parameter's dtype, and that AdamW counts with an int."""
    dtypes = (torch.float32, torch.bfloat16, torch.float64)
    starts, gradients = starts_and_gradients(seed, steps=3, shapes=((4, 3), (2, 5), (6,)))

    def probe(lib: Any) -> Any:
        parameters = [nn.Parameter(start.to(dtype)) for start, dtype in zip(starts, dtypes, strict=True)]
        optimizer = getattr(lib.optimizers, name)(parameters, lr=0.01)
        rows = [[gradient.to(dtype) for gradient, dtype in zip(row, dtypes, strict=True)] for row in gradients]
        step_through(optimizer, parameters, rows)
        reply = []
        for p in parameters:
            state = optimizer.state[p]
            moments = [
                str(value.dtype) for value in state.values() if isinstance(value, Tensor) and value.shape == p.shape
            ]
            step = state.get("step")
            count = int(step) if isinstance(step, (int, float, Tensor)) else -1
            reply.append((str(p.dtype), moments, type(step).__name__, count))
        return reply

    reply = observe(f"optimizers.{name}", probe, like=[("", [""], "", 0)])
    for (own, moments, kind, count), dtype in zip(reply, dtypes, strict=True):
        kept = f"{num_moments} tensors of p's shape" if num_moments > 1 else "a tensor of p's shape"
        assert len(moments) >= num_moments, f"{name}: after a step `self.state[p]` should hold {kept}."
        if name == "AdamW":
            assert len(moments) == 2, (
                "AdamW: `self.state[p]` holds more than two tensors of p's shape: each costs memory."
            )
        assert set(moments) == {str(dtype)}, f"{name}: state has another dtype than its parameter."
        assert own == str(dtype), f"{name}: a parameter has another dtype than before."
        if name == "AdamW":
            assert kind != "NoneType", 'AdamW: `self.state[p]["step"]` is missing: it should count the steps of p.'
            assert kind == "int", 'AdamW: `self.state[p]["step"]` should be a Python int.'
            assert count == 3, 'AdamW: `self.state[p]["step"]` is not the number of steps that p has taken.'


def check_state_device(observe: Any, name: str) -> None:
    """Check that what is remembered for each element is on the parameter's device, where no accelerator is needed to see it."""

    def probe(lib: Any) -> Any:
        p = nn.Parameter(torch.ones(3, 4, device="meta"))
        optimizer = getattr(lib.optimizers, name)([p], lr=0.01)
        step_through(optimizer, [p], [[torch.ones(3, 4, device="meta")]])
        return [value.device.type for value in optimizer.state[p].values() if isinstance(value, Tensor) and value.dim()]

    places = observe(f"optimizers.{name}", probe, like=[""])
    assert set(places) <= {"meta"}, f"{name}: state is on another device than its parameter."


def check_resumed(observe: Any, name: str, seed: int, how: str, **hyperparameters: Any) -> None:
    """Check that a run that is cut and resumed from its state_dict ends where the uncut run does."""
    starts, gradients = starts_and_gradients(seed, steps=6)

    def probe(lib: Any) -> Any:
        optimizer_class = getattr(lib.optimizers, name)
        uncut = displacements(optimizer_class, starts, gradients, **hyperparameters)

        before = [nn.Parameter(start.clone()) for start in starts]
        optimizer = optimizer_class(before, **hyperparameters)
        step_through(optimizer, before, gradients[:3])
        if how == "a file":
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
        else:
            saved = copy.deepcopy(optimizer.state_dict())

        after = [nn.Parameter(p.detach().clone()) for p in before]
        resumed = optimizer_class(after)
        resumed.load_state_dict(saved)
        step_through(resumed, after, gradients[3:])
        return torch.cat(moved(after, starts)), torch.cat(uncut)

    cut, uncut = observe(f"optimizers.{name}", probe, like=(VECTOR, VECTOR))
    require_close(
        cut, uncut, "A run resumed from its state_dict departs from the uncut run: is all state in self.state[p]?"
    )


def check_hyperparameters(
    compare: Any, name: str, wrong: Sequence[tuple[dict[str, Any], float]], right: Sequence[dict[str, Any]]
) -> None:
    """Check what the constructor refuses and accepts, and its defaults."""
    names = {key for hyperparameters, _ in wrong for key in hyperparameters}

    def probe(lib: Any) -> Any:
        optimizer_class = getattr(lib.optimizers, name)

        def build(hyperparameters: dict[str, Any]) -> Callable[[], Any]:
            # As `model.parameters()` does, the generator gives its parameters once.
            return lambda: optimizer_class((nn.Parameter(torch.ones(2)) for _ in range(1)), **hyperparameters)

        group = build({})().param_groups[0]
        defaults = {key: tuple(group[key]) if key == "betas" else group[key] for key in names}
        refused = [refusal(build(hyperparameters), names=value) for hyperparameters, value in wrong]
        return {
            "a value out of its range": refused,
            "a value within its range": [refusal(build(hyperparameters)) for hyperparameters in right],
            "the defaults": defaults,
        }

    compare(f"optimizers.{name}", probe)


# 8.1 SGD


@number("8.1")
@weight(1)
@pytest.mark.parametrize("hyperparameters", [{}, {"lr": 0.3}], ids=["defaults", "lr"])
def test_sgd_follows_the_reference(compare: Any, seed: int, hyperparameters: dict[str, Any]) -> None:
    """SGD: each step moves the parameters by lr times the gradient, downhill."""
    starts, gradients = starts_and_gradients(seed, steps=4)

    def probe(lib: Any) -> Any:
        return displacements(lib.optimizers.SGD, starts, gradients, **hyperparameters)

    compare("optimizers.SGD", probe, rtol=RTOL)


@number("8.1")
@weight(0.5)
@pytest.mark.parametrize("case", ["own lr", "added later", "lr by hand", "StepLR"])
def test_sgd_reads_lr_from_the_group(observe: Any, seed: int, case: str) -> None:
    """SGD: groups with their own lr, groups added later, and an lr that changes between steps."""
    if case == "own lr":
        check_kind(observe, "SGD", seed)
        check_groups(observe, "SGD", seed, {"lr": 0.1}, {"lr": {"lr": 0.02}})
    elif case == "added later":
        check_later_group(observe, "SGD", seed)
    else:
        check_changing_lr(observe, "SGD", seed, case)


@number("8.1")
@weight(0.5)
@pytest.mark.parametrize("case", ["None gradients", "closure", "gradients", "graph", "hyper-parameters"])
def test_sgd_is_a_proper_optimizer(compare: Any, observe: Any, seed: int, case: str) -> None:
    """SGD: None gradients, closures, unchanged gradients, no state, no graph, changes in place, a negative lr refused."""
    if case == "None gradients":
        check_none_gradients(observe, "SGD", seed)
    elif case == "closure":
        check_closure(observe, "SGD", seed)
    elif case == "gradients":
        check_gradients(compare, "SGD", seed)
        check_no_state(observe, "SGD", seed)
    elif case == "graph":
        check_graph(compare, "SGD", seed)
    else:
        wrong = [({"lr": -0.5}, -0.5), ({"lr": -1e-9}, -1e-9), ({"lr": -27.0}, -27.0)]
        check_hyperparameters(compare, "SGD", wrong, right=[{"lr": 0.0}, {"lr": 27.0}])


# 8.2 AdaGrad


@number("8.2")
@weight(1)
@pytest.mark.parametrize("hyperparameters", [{}, {"lr": 0.3, "eps": 1e-6}], ids=["defaults", "lr"])
def test_adagrad_follows_the_reference(compare: Any, seed: int, hyperparameters: dict[str, Any]) -> None:
    """AdaGrad: steps shrink with the root of all squared gradients so far."""
    starts, gradients = starts_and_gradients(seed, steps=8)

    def probe(lib: Any) -> Any:
        return [displacements(lib.optimizers.AdaGrad, starts, gradients[:n], **hyperparameters) for n in (1, 8)]

    compare("optimizers.AdaGrad", probe, rtol=RTOL)


@number("8.2")
@weight(0.5)
@pytest.mark.parametrize("case", ["large eps", "zero gradient"])
def test_adagrad_adds_eps_to_the_root(compare: Any, seed: int, case: str) -> None:
    """AdaGrad: eps is added to the root, not under it, and keeps 0 / 0 away."""
    starts, gradients = starts_and_gradients(seed, steps=4)
    if case == "zero gradient":  # of the first parameter, in the first two steps
        gradients = [[torch.zeros_like(row[0]) if i < 2 else row[0], *row[1:]] for i, row in enumerate(gradients)]
    eps = 0.5 if case == "large eps" else 1e-10

    def probe(lib: Any) -> Any:
        return displacements(lib.optimizers.AdaGrad, starts, gradients, lr=0.1, eps=eps)

    compare("optimizers.AdaGrad", probe, rtol=RTOL)


@number("8.2")
@weight(0.5)
@pytest.mark.parametrize("case", ["own hyper-parameters", "added later", "lr by hand", "StepLR"])
def test_adagrad_reads_hyperparameters_from_the_group(observe: Any, seed: int, case: str) -> None:
    """AdaGrad: groups with their own lr or eps, groups added later, and an lr that changes between steps."""
    if case == "own hyper-parameters":
        check_kind(observe, "AdaGrad", seed)
        check_groups(observe, "AdaGrad", seed, {"lr": 0.1, "eps": 1e-10}, {"lr": {"lr": 0.02}, "eps": {"eps": 1.0}})
    elif case == "added later":
        check_later_group(observe, "AdaGrad", seed)
    else:
        check_changing_lr(observe, "AdaGrad", seed, case)


@number("8.2")
@weight(0.5)
@pytest.mark.parametrize("how", ["a copy", "a file"])
def test_adagrad_resumes_from_its_state_dict(observe: Any, seed: int, how: str) -> None:
    """AdaGrad: a run that is saved and resumed ends where the uncut run does."""
    check_resumed(observe, "AdaGrad", seed, how, lr=0.1)
    if how == "a copy":
        check_kind(observe, "AdaGrad", seed)


@number("8.2")
@weight(0.5)
@pytest.mark.parametrize(
    "case", ["None gradients", "closure", "gradients", "graph", "dtype and device of the state", "hyper-parameters"]
)
def test_adagrad_is_a_proper_optimizer(compare: Any, observe: Any, seed: int, case: str) -> None:
    """AdaGrad: None gradients, closures, unchanged gradients, no graph, the state's dtype and device, wrong values refused."""
    if case == "None gradients":
        check_none_gradients(observe, "AdaGrad", seed)
    elif case == "closure":
        check_closure(observe, "AdaGrad", seed)
    elif case == "gradients":
        check_gradients(compare, "AdaGrad", seed)
    elif case == "graph":
        check_graph(compare, "AdaGrad", seed)
    elif case == "dtype and device of the state":
        check_state_dtype(observe, "AdaGrad", seed, num_moments=1)
        check_state_device(observe, "AdaGrad")
    else:
        wrong: list[tuple[dict[str, Any], float]] = [
            ({"lr": -0.5}, -0.5),
            ({"eps": -1e-9}, -1e-9),
            ({"lr": -27.0}, -27.0),
            ({"eps": -27.0}, -27.0),
            ({"lr": -27.0, "eps": -27.0}, -27.0),
        ]
        check_hyperparameters(compare, "AdaGrad", wrong, right=[{"lr": 0.0}, {"eps": 0.0}, {"lr": 27.0, "eps": 27.0}])


# 8.3 AdamW


@number("8.3")
@weight(1)
@pytest.mark.parametrize(
    "hyperparameters",
    [{}, {"lr": 0.02, "betas": (0.7, 0.9)}, {"betas": (0.0, 0.9)}, {"betas": (0.9, 0.0)}],
    ids=["defaults", "lr and betas", "beta1 of 0", "beta2 of 0"],
)
def test_adamw_follows_the_reference(compare: Any, seed: int, hyperparameters: dict[str, Any]) -> None:
    """AdamW: without decay, ten steps with bias-corrected moments end where the reference's end."""
    starts, gradients = starts_and_gradients(seed, steps=10)
    gradients = fading(gradients)

    def probe(lib: Any) -> Any:
        optimizer_class = lib.optimizers.AdamW
        return [
            displacements(optimizer_class, starts, gradients[:n], weight_decay=0.0, **hyperparameters)
            for n in (1, 3, 10)
        ]

    compare("optimizers.AdamW", probe, rtol=RTOL)


@number("8.3")
@weight(1)
@pytest.mark.parametrize("hyperparameters", [{}, {"lr": 0.1, "weight_decay": 0.5}], ids=["defaults", "large"])
def test_adamw_decays_weights_apart_from_the_gradient(compare: Any, seed: int, hyperparameters: dict[str, Any]) -> None:
    """AdamW: where the gradient is 0, each step takes lr times weight_decay of the parameter, and nothing else."""
    starts, _ = starts_and_gradients(seed, steps=0)  # a gradient of 0 leaves the decay alone, whatever the moments are
    gradients = [[torch.zeros_like(start) for start in starts]] * 6

    def probe(lib: Any) -> Any:
        return displacements(lib.optimizers.AdamW, starts, gradients, **hyperparameters)

    compare("optimizers.AdamW", probe, rtol=RTOL)


@number("8.3")
@weight(0.5)
def test_adamw_follows_the_algorithm_line_by_line(compare: Any, seed: int) -> None:
    """AdamW: eps is added to the root of the corrected moment, and the decay is taken before the step."""
    # The one row that tells apart forms in honest use: here they are 4e-2 and more from the one that the handout states,
    # and 2e-2 from each other.
    starts, gradients = starts_and_gradients(seed, steps=6)
    gradients = fading(gradients)

    def probe(lib: Any) -> Any:
        hyperparameters: dict[str, Any] = {"lr": 0.5, "betas": (0.8, 0.9), "eps": 0.2, "weight_decay": 0.5}
        return displacements(lib.optimizers.AdamW, starts, gradients, **hyperparameters)

    compare("optimizers.AdamW", probe, rtol=RTOL)


@number("8.3")
@weight(0.5)
def test_adamw_steps_do_not_shrink_with_the_gradient(observe: Any, seed: int) -> None:
    """AdamW: while eps is far below the gradients, steps do not depend on the gradients' scale."""
    starts, gradients = starts_and_gradients(seed, steps=5)
    small = [[gradient * 1e-4 for gradient in row] for row in gradients]

    def probe(lib: Any) -> Any:
        hyperparameters: dict[str, Any] = {"betas": (0.9, 0.9), "eps": 1e-8, "weight_decay": 0.0}
        runs = [displacements(lib.optimizers.AdamW, starts, g, **hyperparameters) for g in (small, gradients)]
        return torch.cat(runs[0]), torch.cat(runs[1])

    shrunk, usual = observe("optimizers.AdamW", probe, like=(VECTOR, VECTOR))
    # eps beside the root, in or out of the correction, changes steps by 1e-3 at most; under the root, by 0.2 and more.
    sentence = "With smaller gradients, all far above eps, the steps are smaller: is eps added under the root?"
    require_close(shrunk, usual, sentence, rtol=1e-2)
    check_kind(observe, "AdamW", seed)


@number("8.3")
@weight(0.5)
def test_adamw_reads_hyperparameters_from_the_group(observe: Any, seed: int) -> None:
    """AdamW: a group may override lr, betas, eps and weight_decay, for itself alone, at first or between two steps."""
    defaults: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
    overrides: dict[str, dict[str, Any]] = {
        "lr": {"lr": 0.03},
        "betas": {"betas": (0.5, 0.6)},
        "beta1": {
            "betas": (0.5, 0.99)
        },  # each by itself as well: where both change, one that is read hides one that is not
        "beta2": {"betas": (0.9, 0.6)},
        "eps": {"eps": 0.5},
        "weight_decay": {"weight_decay": 2.0},
    }
    check_kind(observe, "AdamW", seed)
    check_groups(observe, "AdamW", seed, defaults, overrides)


@number("8.3")
@weight(0.5)
@pytest.mark.parametrize("case", ["None gradients", "added later"])
def test_adamw_counts_each_parameters_steps(observe: Any, seed: int, case: str) -> None:
    """AdamW: parameters without a gradient and groups added later keep moments and step counters of their own."""
    if case == "None gradients":
        check_none_gradients(observe, "AdamW", seed)
        check_kind(observe, "AdamW", seed)
    else:
        check_later_group(observe, "AdamW", seed)


@number("8.3")
@weight(0.5)
@pytest.mark.parametrize("case", ["lr by hand", "StepLR"])
def test_adamw_follows_a_changing_lr(observe: Any, seed: int, case: str) -> None:
    """AdamW: a learning rate that changes between steps, by hand or by a scheduler, counts from the next step on."""
    check_changing_lr(observe, "AdamW", seed, case, weight_decay=0.0)
    if case == "lr by hand":
        check_kind(observe, "AdamW", seed)


@number("8.3")
@weight(0.5)
def test_adamw_runs_its_closure(observe: Any, seed: int) -> None:
    """AdamW: a closure is called once, before the update, with gradients enabled, and its loss is returned."""
    check_closure(observe, "AdamW", seed)
    check_kind(observe, "AdamW", seed)


@number("8.3")
@weight(0.5)
@pytest.mark.parametrize("case", ["gradients", "graph", "dtype of the state"])
def test_adamw_leaves_only_its_state_behind(compare: Any, observe: Any, seed: int, case: str) -> None:
    """AdamW: changes in place, unchanged gradients, no graph left; moments in the parameter's dtype, an int for `step`."""
    if case == "gradients":
        check_gradients(compare, "AdamW", seed)
    elif case == "graph":
        check_graph(compare, "AdamW", seed)
    else:
        check_state_dtype(observe, "AdamW", seed, num_moments=2)


@number("8.3")
@weight(0.5)
@pytest.mark.parametrize("how", ["a copy", "a file"])
def test_adamw_resumes_from_its_state_dict(observe: Any, seed: int, how: str) -> None:
    """AdamW: a run that is saved and resumed ends where the uncut run does."""
    check_resumed(observe, "AdamW", seed, how, lr=0.02, betas=(0.8, 0.95), weight_decay=0.1)
    if how == "a copy":
        check_kind(observe, "AdamW", seed)


@number("8.3")
@weight(0.5)
def test_adamw_refuses_wrong_hyperparameters(compare: Any) -> None:
    """AdamW: wrong hyper-parameters are refused by name, borderline ones accepted, and the defaults are as stated."""
    wrong: list[tuple[dict[str, Any], float]] = [
        ({"lr": -0.5}, -0.5),
        ({"eps": -1e-9}, -1e-9),
        ({"weight_decay": -0.25}, -0.25),
        ({"betas": (1.0, 0.999)}, 1.0),
        ({"betas": (0.9, 1.0)}, 1.0),
        ({"betas": (-0.125, 0.999)}, -0.125),
        ({"betas": (0.9, -0.125)}, -0.125),
        ({"betas": (1.5, 0.5)}, 1.5),
        ({"betas": (-0.125, -0.125)}, -0.125),
        ({"lr": -27.0}, -27.0),
        ({"lr": -27.0, "weight_decay": -27.0}, -27.0),
    ]
    right: list[dict[str, Any]] = [
        {"lr": 0.0},
        {"eps": 0.0},
        {"weight_decay": 0.0},
        {"betas": (0.0, 0.5)},
        {"betas": (0.5, 0.0)},
        {"betas": (0.9, 0.5)},
        {"lr": 27.0, "eps": 27.0, "weight_decay": 27.0},
    ]
    check_hyperparameters(compare, "AdamW", wrong, right)


@number("8.3")
@weight(0.5)
def test_adamw_keeps_its_state_with_the_parameter(observe: Any, seed: int, device: str) -> None:
    """AdamW: on an accelerator it takes the steps that it takes on the CPU, and its state is where the parameter is."""
    starts, gradients = starts_and_gradients(seed, steps=4, shapes=SHAPES[:3])

    def probe(lib: Any) -> Any:
        def run(place: str) -> tuple[Tensor, list[str]]:
            parameters = [nn.Parameter(start.to(place).clone()) for start in starts]
            optimizer = lib.optimizers.AdamW(parameters, lr=0.02, weight_decay=0.1)
            step_through(optimizer, parameters, [[gradient.to(place) for gradient in row] for row in gradients])
            state = [value for p in parameters for value in optimizer.state[p].values() if isinstance(value, Tensor)]
            places = sorted({value.device.type for value in state if value.dim() > 0})  # a counter may be anywhere
            return torch.cat(moved([p.detach().cpu() for p in parameters], starts)), places

        return run("cpu")[0], *run(device)

    here, there, places = observe("optimizers.AdamW", probe, like=(VECTOR, VECTOR, [""]))
    require_close(there, here, "Other steps on an accelerator than on the CPU.")
    assert set(places) <= {device}, "The state is not on the accelerator, where its parameter is."
    check_kind(observe, "AdamW", seed)


# 8.4 optimizer_state_bytes


def optimizers_with_state(seed: int) -> list[Any]:
    """Build optimizers of PyTorch's, with all sorts of state."""
    generator = torch.Generator().manual_seed(seed)

    def model(dtype: torch.dtype, with_gradients: int = 3) -> list[nn.Parameter]:
        shapes = torch.randint(1, 12, (3, 2), generator=generator).tolist()
        parameters = [nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in shapes]
        for p in parameters[:with_gradients]:
            p.grad = torch.ones_like(p)
        return parameters

    built = [
        torch.optim.AdamW(model(torch.float32)),
        torch.optim.AdamW(model(torch.bfloat16)),
        torch.optim.AdamW(model(torch.float64, with_gradients=1)),
        torch.optim.Adam(model(torch.float32), amsgrad=True),
        torch.optim.SGD(model(torch.float32), lr=0.1),
        torch.optim.SGD(model(torch.float64), lr=0.1, momentum=0.9),
        torch.optim.Adagrad(model(torch.float32)),
        torch.optim.RMSprop(model(torch.float32), momentum=0.5),
    ]
    for optimizer in built:
        optimizer.step()
    built.append(torch.optim.AdamW(model(torch.float32)))  # has taken no step

    flat = torch.optim.SGD(model(torch.float32), lr=0.1)  # a Python counter, and moments that are views of one buffer
    buffer = torch.zeros(1 + int(torch.randint(20, 90, (), generator=generator)))
    for p in flat.param_groups[0]["params"]:
        flat.state[p] = {"step": 3, "m": buffer[:10], "v": buffer[10:], "t": torch.tensor(1.0)}
    pair = torch.zeros(30)
    flat.state["slices of one"] = {"m": pair[10:20], "v": pair[20:]}  # neither begins where it does
    flat.state["of no parameter"] = {"history": torch.zeros(5, requires_grad=True)}
    return [*built, flat]


@number("8.4")
@weight(1)
def test_optimizer_state_bytes_is_what_state_holds(observe: Any, seed: int) -> None:
    """optimizer_state_bytes: the bytes that the state of PyTorch's own optimizers really holds."""

    def probe(lib: Any) -> Any:
        return [lib.optimizers.optimizer_state_bytes(optimizer) for optimizer in optimizers_with_state(seed)]

    got = observe("optimizers.optimizer_state_bytes", probe, like=[0])
    for answer, optimizer in zip(got, optimizers_with_state(seed), strict=True):
        tensors = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
        measured = sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())
        assert answer == measured, f"Wrong for {describe(optimizer)}."


def describe(optimizer: Any) -> str:
    """Say which optimizer a wrong answer is about."""
    tensors = sum(isinstance(value, Tensor) for state in optimizer.state.values() for value in state.values())
    return (
        f"{type(optimizer).__name__} with {tensors} tensors in its state" if tensors else "an optimizer without state"
    )
