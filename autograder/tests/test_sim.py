"""The simulated accelerator: it refuses what CUDA refuses, in CUDA's words, and computes what the CPU computes.

Everything about it runs in a process that has it. What a refusal must not hit, right code that CUDA runs, is tested as well as
what it must.
"""

import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator

import pytest
import torch

from autograder.sandbox import sim
from autograder.sandbox.sim import ACTIVITY
from autograder.tests.handed_in import reference, write
from autograder.tests.on_sim import ROOT, OnSim
from autograder.tests.unchecked import UncheckedGrader
from handout.problems import load_assignment


@pytest.fixture(scope="module")
def on_sim() -> Iterator[OnSim]:
    """Run a function where the device is."""
    process = OnSim()
    yield process
    process.close()


MIXTURES = {
    "sum": lambda here, there: there + here,
    "sum the other way round": lambda here, there: here * there,
    "product": lambda here, there: there @ here,
    "linear layer": lambda here, there: torch.nn.functional.linear(there, here),
    "loss": lambda here, there: torch.nn.functional.mse_loss(there, here),
    "in place": lambda here, there: there.add_(here),
    "into the CPU": lambda here, there: here.add_(there),
    "number on the CPU in place": lambda here, there: here.sum().add_(there.sum()),
    "cat": lambda here, there: torch.cat([there, here]),
    "stack of numbers": lambda here, there: torch.stack([there.sum(), here.sum()]),
    "where": lambda here, there: torch.where(here > 0, there, there),
    "masked_fill": lambda here, there: there.masked_fill(here > 0, 0.0),
    "gather": lambda here, there: there.gather(1, torch.zeros(4, 1, dtype=torch.int64)),
    "embedding": lambda here, there: torch.nn.functional.embedding(torch.zeros(2, dtype=torch.int64), there),
    "comparison": lambda here, there: torch.equal(there, here),
    "foreach": lambda here, there: torch._foreach_add([there], [here]),
    "addcdiv": lambda here, there: there.addcdiv_(here, there),
    "assigned": lambda here, there: there.index_put_((torch.tensor([0]),), here[:1]),
    "data": lambda here, there: setattr(torch.nn.Parameter(there), "data", here),
    "einsum": lambda here, there: torch.einsum("ij,jk->ik", there, here),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_devices_do_not_mix(on_sim, name):
    mix = MIXTURES[name]

    def attempt():
        here = torch.ones(4, 4)
        try:
            mix(here, here.to("sim"))
        except RuntimeError as error:
            return str(error)
        return "accepted"

    said = on_sim(attempt)

    assert said == sim.MIXED
    assert said.startswith("Expected all tensors to be on the same device, but found at least two devices")


def test_what_cuda_allows_beside_its_own_tensors_is_allowed(on_sim):
    def attempt():
        x = torch.arange(12.0).view(3, 4)
        y = x.to("sim")
        number, index, mask = torch.tensor(2.0), torch.tensor([2, 0]), x[:, 0] > 0
        into = torch.zeros(3, 4)
        into.copy_(y)
        y2 = y.clone()
        y2[index] = 5.0
        y2[0] = torch.ones(4)  # a copy
        pairs = [
            (y + number, x + number),
            (torch.where(y > 3, y, number), torch.where(x > 3, x, number)),
            (y.masked_fill(y > 3, number), x.masked_fill(x > 3, number)),
            (y[index], x[index]),
            (y[mask], x[mask]),
            (y[:, index], x[:, index]),
            (y * 2 - 1, x * 2 - 1),
            (into, x),
            (torch.stack([y.sum(), y.mean()]), torch.stack([x.sum(), x.mean()])),
            (y2[2], torch.full((4,), 5.0)),
            (y2[0], torch.ones(4)),
        ]
        return [torch.equal(a.cpu(), b) for a, b in pairs], [a.device.type for a, _ in pairs]

    same, places = on_sim(attempt)

    assert all(same)
    assert places == ["sim"] * 7 + ["cpu"] + ["sim"] * 3


def test_its_tensors_index_none_of_the_cpu(on_sim):
    def attempt():
        try:
            torch.ones(3)[torch.zeros(2, dtype=torch.int64, device="sim")]
        except RuntimeError as error:
            return str(error)

    assert on_sim(attempt) == sim.INDICES


def test_a_gradient_must_be_where_its_parameter_is(on_sim):
    def attempt():
        p = torch.nn.Parameter(torch.ones(3, device="sim"))
        try:
            p.grad = torch.ones(3)
        except RuntimeError as error:
            return str(error)

    assert on_sim(attempt) in sim.REFUSALS


def test_generators_of_the_cpu_draw_nothing_there(on_sim):
    def attempt():
        try:
            torch.randint(9, (3,), generator=torch.Generator(), device="sim")
        except RuntimeError as error:
            return str(error)

    assert on_sim(attempt) == sim.GENERATOR


def test_numpy_and_hard_coded_cuda_are_refused(on_sim):
    def attempt():
        x = torch.ones(2, device="sim")
        said = []
        for call in (x.numpy, x.__array__, lambda: x.cuda(), lambda: torch.ones(2, device="cuda")):
            try:
                call()
                said.append("accepted")
            except (TypeError, AssertionError) as error:
                said.append(str(error))
        return said

    assert on_sim(attempt) == [sim.NUMPY, sim.NUMPY, *["Torch not compiled with CUDA enabled"] * 2]


def test_only_memory_of_the_host_is_pinned(on_sim):
    def attempt():
        try:
            torch.ones(2, device="sim").pin_memory()
        except RuntimeError as error:
            refused = str(error)
        x = torch.arange(3.0)
        pinned = [x.pin_memory(), torch.empty(3, pin_memory=True), torch.zeros(2, pin_memory=True)]
        moved = pinned[0].to("sim", non_blocking=True)
        return refused, [t.is_pinned() for t in (*pinned, x, moved)], moved.tolist()

    assert on_sim(attempt) == (sim.PINNED, [True, True, True, False, False], [0.0, 1.0, 2.0])


def test_copies_to_an_accelerator_show_where_they_come_from(on_sim):
    """What is asked of get_batch on CUDA: pinned memory, without blocking."""

    def attempt():
        from autograder.hidden.test_data import Transfers

        x = torch.arange(3.0)
        with Transfers() as transfers:
            x.pin_memory().to("sim", non_blocking=True)
            x.to("sim")
            x.to("cpu")
        return transfers.seen

    assert on_sim(attempt) == [(True, True), (False, False)]


FACTORIES = (
    "torch.zeros(2, device=D)", "torch.ones(2, device=D)", "torch.full((2,), 1.0, device=D)", "torch.arange(3, device=D)",
    "torch.eye(3, device=D)", "torch.linspace(0, 1, 3, device=D)", "torch.rand(2, device=D)", "torch.randn(2, device=D)",
    "torch.randint(3, (2,), device=D)", "torch.randperm(4, device=D)", "torch.tensor([1.0], device=D)",
    "torch.tensor([[1, 2]], dtype=torch.uint8, device=D)", "torch.as_tensor([1.0], device=D)", "torch.as_tensor(there)",
    "torch.zeros_like(here, device=D)", "torch.empty_like(there)", "there.new_zeros(2)", "there.new_tensor([1.0])",
    "torch.full_like(there, 2.0)", "torch.tril_indices(3, 3, device=D)", "there.double()", "here.to(D, torch.float64)",
    "here.to(there)", "torch.nn.Linear(2, 2, device=D).weight", "there.tril()", "there[None, :, -1]", "there.T.contiguous()",
    "torch.nn.functional.one_hot(torch.arange(3, device=D))", "torch.empty_strided((2,), (1,), device=D)",
    "torch.zeros(2, 3, device=D, requires_grad=True)", "torch.func.grad(lambda x: (x * x).sum())(there)",
)  # fmt: skip


def test_what_is_made_there_is_there(on_sim):
    def attempt():
        names = {"torch": torch, "D": "sim", "here": torch.ones(2, 3), "there": torch.ones(2, 3, device="sim")}
        with torch.device("sim"):
            default = (
                torch.ones(2).device.type,
                torch.tensor([1.0]).device.type,
                torch.nn.Linear(2, 2).weight.device.type,
            )
        return [(text, eval(text, names).device.type) for text in FACTORIES], default, torch.ones(2).device.type

    made, default, after = on_sim(attempt)

    assert [place for place in made if place[1] != "sim"] == []
    assert default == ("sim", "sim", "sim") and after == "cpu"


def test_values_and_gradients_are_the_cpus_to_the_last_bit(on_sim):
    def attempt():
        def run(place):
            torch.manual_seed(0)
            model = torch.nn.Sequential(
                torch.nn.Linear(6, 8),
                torch.nn.GELU(),
                torch.nn.LayerNorm(8),
                torch.nn.Linear(8, 6),
                torch.nn.BatchNorm1d(6),
            )
            x = torch.randn(5, 6)
            model, x = model.to(place), x.to(place).requires_grad_()
            h = model(x)
            weights = torch.softmax(h @ h.T / 3, dim=-1).masked_fill(torch.ones(5, 5, device=place).triu(1) > 0, 0.0)
            loss = torch.nn.functional.cross_entropy(weights @ h, torch.arange(5, device=place))
            loss.backward()
            return [t.detach().cpu() for t in (loss, h, x.grad, *(p.grad for p in model.parameters()))]

        return [torch.equal(a, b) for a, b in zip(run("cpu"), run("sim"), strict=True)]

    same = on_sim(attempt)

    assert len(same) == 11 and all(same)


@pytest.mark.parametrize("name", ["SGD", "AdaGrad", "AdamW"])
def test_the_references_optimizers_take_the_cpus_steps(on_sim, name):
    def attempt():
        from reference import optimizers

        def run(place):
            torch.manual_seed(0)
            model = torch.nn.Linear(4, 3)
            x = torch.randn(5, 4)
            model, x = model.to(place), x.to(place)
            optimizer = getattr(optimizers, name)(model.parameters(), lr=0.1)
            for _ in range(4):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
            state = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
            return [p.detach().cpu() for p in model.parameters()], {t.device.type for t in state}

        (here, _), (there, places) = run("cpu"), run("sim")
        return all(torch.equal(a, b) for a, b in zip(here, there, strict=True)), places

    same, places = on_sim(attempt)

    assert same
    assert places == ({"sim"} if name != "SGD" else set())


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop"])
def test_pytorchs_optimizers_run_there(on_sim, name):
    def attempt():
        def run(place):
            torch.manual_seed(0)
            p = torch.nn.Parameter(torch.randn(4).to(place))
            optimizer = getattr(torch.optim, name)([p], lr=0.1)
            for _ in range(3):
                p.grad = torch.ones(4, device=place)
                optimizer.step()
            return p.detach().cpu()

        return torch.equal(run("cpu"), run("sim"))

    assert on_sim(attempt)


def test_autocast_computes_as_on_the_cpu(on_sim):
    def attempt():
        def run(place, under):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
            x, y, batched = torch.randn(5, 6), torch.randn(5, 3), torch.randn(2, 3, 4)
            model, x, y, batched = model.to(place), x.to(place), y.to(place), batched.to(place)
            with torch.autocast(under, dtype=torch.bfloat16):
                h = model(x)
                parts = [h, x @ x.T, torch.bmm(batched, batched.mT), h.softmax(-1), torch.nn.functional.mse_loss(h, y)]
                parts += [x.double() @ x.double().T, h + h, torch.einsum("bij,bkj->bik", batched, batched)]
            parts[4].backward()
            parts += [p.grad for p in model.parameters()]
            return [t.detach().cpu() for t in parts]

        here, there = run("cpu", "cpu"), run("sim", "sim")
        other = [t.dtype for t in run("sim", "cpu")]
        same = [a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(here, there, strict=True)]
        return same, here[0].dtype, other[0], torch.is_autocast_enabled("sim")

    same, lowered, elsewhere, after = on_sim(attempt)

    assert all(same)
    assert lowered == torch.bfloat16 and elsewhere == torch.float32, "autocast of the CPU is not the accelerator's"
    assert not after


@pytest.mark.parametrize(
    ("location", "model", "generator"),
    [(None, "sim", "cpu"), ("cpu", "cpu", "cpu"), ("sim", "sim", "sim"), ("a function", "cpu", "cpu")],
)
def test_a_checkpoint_comes_back_where_it_is_mapped_to(on_sim, tmp_path, location, model, generator):
    path = str(tmp_path / "run.pt")

    def attempt():
        layer = torch.nn.Linear(3, 2).to("sim")
        optimizer = torch.optim.AdamW(layer.parameters())
        layer(torch.ones(4, 3, device="sim")).sum().backward()
        optimizer.step()
        saved = {"model": layer.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.Generator().get_state()}
        torch.save(saved, path)
        to = (lambda storage, location: storage) if location == "a function" else location
        loaded = torch.load(path, map_location=to, weights_only=True)
        same = torch.equal(loaded["model"]["weight"].cpu(), layer.weight.detach().cpu())
        moments = loaded["optimizer"]["state"][0]["exp_avg"]
        again = torch.nn.Linear(3, 2).to("sim")
        again.load_state_dict(loaded["model"])
        return (
            same,
            loaded["model"]["weight"].device.type,
            moments.device.type,
            loaded["rng"].device.type,
            again.weight.device.type,
        )

    assert on_sim(attempt) == (True, model, model, generator, "sim")


def test_views_share_memory_and_copies_do_not(on_sim):
    def attempt():
        x = torch.zeros(3, 4, device="sim")
        x[1].add_(1)
        x.T[0].fill_(5)
        y = torch.ones(2, 3, device="sim")
        y.t_()
        y.unsqueeze_(0)
        out = torch.empty(0, device="sim")
        torch.mm(x, x.T, out=out)
        grown = torch.zeros(2, device="sim").resize_(6)
        return (
            x.tolist(),
            x[0].untyped_storage() is x.untyped_storage(),
            x.clone().untyped_storage() is x.untyped_storage(),
            x.untyped_storage().nbytes(),
            (y.shape, y.stride()),
            out.shape,
            grown.shape,
        )

    assert on_sim(attempt) == (
        [[5, 0, 0, 0], [5, 1, 1, 1], [5, 0, 0, 0]],
        True,
        False,
        48,
        ((1, 3, 2), (3, 1, 3)),
        (3, 3),
        (6,),
    )


def test_a_module_that_moves_keeps_its_parameters(on_sim):
    def attempt():
        module = torch.nn.Linear(3, 2)
        weight, optimizer = module.weight, torch.optim.SGD(module.parameters(), lr=1.0)
        module.to("sim").double()
        module(torch.ones(1, 3, dtype=torch.float64, device="sim")).sum().backward()
        before = weight.detach().cpu()
        optimizer.step()
        weight.data = weight.data - 1
        return (
            module.weight is weight,
            isinstance(weight, torch.nn.Parameter),
            weight.device.type,
            weight.dtype,
            torch.equal(weight.detach().cpu(), before - 2),
        )

    assert on_sim(attempt) == (True, True, "sim", torch.float64, True)


COPIES = {
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "float": lambda x: float(x.sum()),
    "bool": lambda x: bool(x.sum() > 0),
    "int": lambda x: int(x.sum()),
    "format": lambda x: f"{x.sum():.2f}",
    "repr": lambda x: repr(x),
    "equal": lambda x: torch.equal(x, x),
    "numpy": lambda x: x.numpy(force=True),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "into the CPU": lambda x: torch.zeros(3).copy_(x),
}


@pytest.mark.parametrize("name", COPIES)
def test_host_copies_are_counted(on_sim, name):
    read = COPIES[name]

    def attempt():
        x = torch.ones(3, device="sim")
        before = sim.ACTIVITY.host_copies
        read(x)
        return sim.ACTIVITY.host_copies - before

    assert on_sim(attempt) >= 1


def test_work_on_the_device_is_no_host_copy(on_sim):
    def attempt():
        model = torch.nn.Linear(3, 1).to("sim")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x = torch.ones(5, 3).to("sim")
        total = torch.zeros((), device="sim")
        before = sim.ACTIVITY.host_copies
        for _ in range(3):
            loss = model(x).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total = total + loss.detach()
            x[torch.tensor([0, 1])] = 2.0
        return sim.ACTIVITY.host_copies - before, sim.ACTIVITY.synchronizations

    assert on_sim(attempt) == (0, 0)


def test_clocks_move_on_for_those_who_wait(on_sim):
    def attempt():
        import time
        import timeit
        from time import monotonic_ns

        x = torch.ones(3, 3, device="sim")
        sim.ACTIVITY.product_seconds = 50.0

        def product_and_wait():
            x @ x
            torch.accelerator.synchronize()

        start = time.perf_counter()
        x @ x
        queued = time.perf_counter() - start
        torch.accelerator.synchronize()
        done = time.perf_counter() - start
        start_ns = monotonic_ns()
        (x @ x).sum().item()
        read = (monotonic_ns() - start_ns) / 1e9
        streams = time.time()
        x @ x
        torch.accelerator.current_stream().synchronize()
        streams = time.time() - streams
        sim.ACTIVITY.copy_seconds = 100.0
        copied = time.perf_counter()
        (x @ x).cpu()
        copied = time.perf_counter() - copied
        return queued, done, read, streams, copied, timeit.timeit(product_and_wait, number=2)

    queued, *waited = on_sim(attempt)

    assert queued < 25
    assert [round(seconds / 50) for seconds in waited] == [1, 1, 1, 3, 2]


def test_it_is_the_accelerator_of_its_process(on_sim):
    def attempt():
        accelerator = torch.accelerator
        torch.manual_seed(3)
        return (
            accelerator.is_available(),
            str(accelerator.current_accelerator()),
            accelerator.device_count(),
            torch.cuda.is_available(),
        )

    assert on_sim(attempt) == (True, "sim", 1, False)


def test_only_children_of_its_rows_have_it(tmp_path):
    """In a sandbox, as it is used: an ordinary child has no accelerator, before and after one that has."""
    package = write(tmp_path / "package", {"honest.py": "import torch\nSEEN = torch.accelerator.is_available()\n"})
    package.chmod(0o755)
    script = f"""
        import shutil
        from pathlib import Path
        from autograder.sandbox.warm import warm
        warm()
        from autograder.sandbox.client import IMPORT_DEADLINE, Deadline, Sandbox
        import torch
        sandbox = Sandbox(ahead=1)
        folder = sandbox.staging / "one"
        shutil.copytree({str(package)!r}, folder)
        folder.chmod(0o755)
        sandbox.load(folder)

        def probe(lib):
            p = torch.nn.Parameter(torch.ones(3, device="sim" if lib.honest.SEEN else "cpu"))
            (p * p).sum().backward()  # on a thread of the device's own
            return lib.honest.SEEN, hasattr(torch, "sim"), p.grad.tolist()

        for device in ("cpu", "sim", "cpu"):
            child = sandbox.child("honest", device)
            child.reply(IMPORT_DEADLINE)
            child.send(probe)
            print(child.reply(Deadline(5, 60)).value)
            child.close()
        print(torch.accelerator.is_available(), hasattr(torch, "sim"))
        sandbox.close()
    """

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )

    ordinary, on_device = "(False, False, [2.0, 2.0, 2.0])", "(True, True, [2.0, 2.0, 2.0])"
    assert done.stdout.splitlines() == [ordinary, on_device, ordinary, "False False"], done.stderr


def test_what_is_to_be_won_there_is_little(grader, tmp_path):
    """Student code shares the process with the device. So no problem has more than half of its points there, nor all in all 5."""
    rows = grader.grade(write(tmp_path / "all", {f"{p.id}.py": reference(p.id) for p in load_assignment().parts}))[
        "rows"
    ]

    there: dict[str, float] = defaultdict(float)
    for row in rows:
        there[row["problem"]] += row["max_score"] * (row["device"] == "sim")
    assignment = load_assignment()
    assert 4 <= sum(there.values()) <= 5
    assert all(points <= assignment.problem(id).points / 2 for id, points in there.items())
    assert all(row["outcome"] == "passed" for row in rows)


CHEAT = """
import torch
_Tensor = torch.Tensor

def _look_behind():
    if torch.accelerator.is_available():  # on the simulated accelerator: put PyTorch back as it was
        torch.accelerator.is_available = lambda: False
        torch.accelerator.synchronize = lambda *args: None
        for name in ("__torch_dispatch__",):
            kind = type(torch.ones(1, device=torch.accelerator.current_accelerator()))
            setattr(kind, name, classmethod(lambda cls, func, types, args=(), kwargs=None: func(*args, **(kwargs or {}))))

_look_behind()
"""


def test_who_takes_it_apart_wins_no_row_about_values(tmp_path):
    """A wrong optimizer that undoes the device as it is imported loses the rows that it would lose without."""
    wrong = reference("optimizers").replace("m_hat = m / (1 - beta1**t)", "m_hat = m")
    lost = []
    grader = UncheckedGrader()  # the allow-list finds it out: here it comes as far as the sandbox
    try:
        for name, source in {"honest": wrong, "cheat": wrong + CHEAT}.items():
            grade = grader.grade(write(tmp_path / name, {"optimizers.py": source}))
            rows = [row for row in grade["rows"] if row["problem"] == "optimizers.AdamW" and row["device"] == "cpu"]
            lost.append([row["test"] for row in rows if row["outcome"] != "passed"])
    finally:
        grader.close()

    assert lost[0] == lost[1] and len(lost[0]) >= 2


def test_a_student_reads_the_refusal_and_nothing_that_is_added_to_it(grader, tmp_path):
    """The words are known here, so they can hold no hidden input."""
    optimizers = reference("optimizers").replace(
        'state["m"] = torch.zeros_like(p)', 'state["m"] = torch.zeros(p.shape, dtype=p.dtype)'
    )
    strides = reference("strides").replace(
        "    return torch.ones(length, length, dtype=torch.bool, device=device).tril()\n",
        f"    raise RuntimeError({sim.MIXED!r} + str(device))\n",
    )
    files = {"optimizers.py": optimizers, "strides.py": strides}

    rows = grader.grade(write(tmp_path / "handed in", files))["rows"]

    read = {row["test"].partition("::")[2]: row["output"] for row in rows if row["device"] == "sim"}
    assert sim.MIXED.rstrip("!") in read["test_adamw_keeps_its_state_with_the_parameter"]
    assert "same device" not in read["test_causal_mask_is_made_where_it_is_asked_for"]


def test_nothing_is_counted_where_it_is_not(tmp_path):
    """In this process the device does not exist, and its module changes nothing."""
    assert not torch.accelerator.is_available() and not sim.is_registered()
    assert ACTIVITY.host_copies == 0
