"""Part 10: the training loop."""

import random
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from student import training
from tests.checks import check_close, check_equal, check_raises

# Three rows for a model y = w·x that starts at w = 0. The mean squared error is 3, its gradient -4 (see train_step).
X = torch.tensor([[1.0], [2.0], [3.0]])
Y = torch.tensor([[0.0], [3.0], [0.0]])
mse = nn.functional.mse_loss


def _model() -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def _sgd(model: nn.Module, lr: float = 0.5) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


def _weight(model: nn.Linear) -> Tensor:
    return model.weight.detach().clone()


@pytest.mark.problem("training.seed_everything")
def test_seed_everything_seeds_python_numpy_and_pytorch():
    """The same seed gives the same numbers again."""

    def draws(seed: int) -> tuple[float, float, float]:
        training.seed_everything(seed)
        return random.random(), float(np.random.rand()), torch.rand(()).item()

    first = draws(1)
    check_equal(draws(1), first, hint="random.seed, np.random.seed, torch.manual_seed")
    assert all(a != b for a, b in zip(draws(2), first, strict=True)), "another seed should give other numbers"


@pytest.mark.problem("training.seed_everything")
def test_seed_everything_returns_two_generators():
    """ "init" and "data" draw different numbers, the same for the same seed."""
    draws = {}
    for attempt in ("first", "again"):
        generators = training.seed_everything(1)
        check_equal(sorted(generators), ["data", "init"])
        draws[attempt] = {name: torch.rand(4, generator=generators[name]) for name in ("init", "data")}
    check_close(draws["again"]["init"], draws["first"]["init"], hint="the seed decides what the generators draw")
    check_close(draws["again"]["data"], draws["first"]["data"], hint="the seed decides what the generators draw")
    assert not torch.equal(draws["first"]["init"], draws["first"]["data"]), "the two should draw different numbers"


@pytest.mark.problem("training.train_step")
def test_train_step_returns_the_loss_and_updates_the_model():
    """The loss before the step, as a float; then w ← w - lr·gradient."""
    model = _model()
    check_equal(training.train_step(model, _sgd(model), mse, [(X, Y)]), 3.0, hint="loss.item(), before the update")
    check_close(_weight(model), torch.tensor([[2.0]]), hint="0 - 0.5·(-4)")


@pytest.mark.problem("training.train_step")
def test_train_step_weights_microbatches_by_their_rows():
    """Two rows and then one are the same as three rows at once."""
    model = _model()
    loss = training.train_step(model, _sgd(model), mse, [(X[:2], Y[:2]), (X[2:], Y[2:])])
    check_equal(loss, 3.0, hint="2/3 of the first microbatch's loss and 1/3 of the second's")
    check_close(
        _weight(model), torch.tensor([[2.0]]), hint="scale each loss by its share of the rows before backward()"
    )


@pytest.mark.problem("training.train_step")
def test_train_step_clears_old_gradients():
    """What an earlier backward pass left behind does not count."""
    model = _model()
    model.weight.grad = torch.full((1, 1), 100.0)
    training.train_step(model, _sgd(model), mse, [(X, Y)])
    check_close(_weight(model), torch.tensor([[2.0]]), hint="call zero_grad before the first backward()")


@pytest.mark.problem("training.train_step")
@pytest.mark.parametrize(("max_norm", "expected"), [(None, -2.5), (1.0, -0.5), (10.0, -2.5)])
def test_train_step_clips_by_the_norm_of_all_gradients(max_norm, expected):
    """Gradients of norm 5 are scaled to norm 1, and left alone where 10 is allowed."""
    model = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(model.weight)
    # The gradient of (3·y_0 + 4·y_1) is (3, 4)·x: norm 5 for x = 1.
    x, coefficients = torch.ones(1, 1), torch.tensor([[3.0, 4.0]])
    training.train_step(model, _sgd(model), lambda y, c: (y * c).sum(), [(x, coefficients)], max_norm=max_norm)
    direction = torch.tensor([[0.6], [0.8]])
    check_close(_weight(model), expected * direction, rtol=1e-4, hint="one factor for all gradients, never above 1")


@pytest.mark.problem("training.train_step")
def test_train_step_runs_the_forward_pass_under_autocast():
    """The model computes in bfloat16, its weights stay float32."""
    dtypes = []
    model = _model()
    model.register_forward_hook(lambda module, args, output: dtypes.append(output.dtype))
    training.train_step(model, _sgd(model), mse, [(X, Y)], autocast_dtype=torch.bfloat16)
    check_equal(dtypes, [torch.bfloat16], hint="torch.autocast(inputs.device.type, dtype=autocast_dtype)")
    check_close(_weight(model), torch.tensor([[2.0]]), hint="autocast casts copies; the model itself stays float32")


@pytest.mark.problem("training.train_step")
def test_train_step_uses_the_learning_rate_of_the_moment():
    """lr is set by hand between two steps."""
    model = _model()
    optimizer = _sgd(model)
    optimizer.param_groups[0]["lr"] = 0.25
    training.train_step(model, optimizer, mse, [(X, Y)])
    check_close(_weight(model), torch.tensor([[1.0]]), hint="the optimizer takes the step: optimizer.step()")


@pytest.mark.problem("training.train_step")
def test_train_step_refuses_a_step_without_rows():
    """The mean over no rows does not exist."""
    model = _model()
    check_raises(ValueError, lambda: training.train_step(model, _sgd(model), mse, []))
    check_raises(ValueError, lambda: training.train_step(model, _sgd(model), mse, [(X, Y)], max_norm=-1.0), names=-1.0)


@pytest.mark.problem("training.train")
def test_train_records_the_loss_of_each_step():
    """The losses are floats: 1, 1/4, 1/16 when each step halves the error."""
    model = _model()
    batch = (torch.ones(1, 1), torch.ones(1, 1))
    run = training.train(model, _sgd(model, lr=0.25), mse, [batch] * 3, 3, 6, 1e12)
    check_equal(run.losses, [1.0, 0.25, 0.0625], hint="a loss kept as a tensor keeps its whole graph in memory")


@pytest.mark.problem("training.train")
def test_train_takes_exactly_the_batches_it_needs():
    """After three steps the fourth batch is still there."""
    batches = iter([(X * i, Y) for i in range(5)])
    model = _model()
    training.train(model, _sgd(model, lr=0.0), mse, batches, 3, 6, 1e12)
    check_close(
        next(batches)[0], X * 3, hint="zip(batches, range(n)) takes one batch too many; zip(range(n), batches) does not"
    )


@pytest.mark.problem("training.train")
def test_train_accounts_for_its_steps():
    """num_flops counts all steps; the MFU is FLOPs per second over the peak."""

    def slow_mse(predictions: Tensor, targets: Tensor) -> Tensor:
        time.sleep(0.02)
        return mse(predictions, targets)

    model = _model()
    start = time.perf_counter()
    run = training.train(model, _sgd(model), slow_mse, [(X, Y)] * 3, 3, 700, 1000.0)
    elapsed = time.perf_counter() - start
    check_equal(run.num_flops, 2100, hint="num_steps · flops_per_step")
    check_equal([type(seconds) for seconds in run.step_seconds], [float] * 3)
    # time.sleep may end a little early on some systems.
    assert all(0.01 < seconds <= elapsed for seconds in run.step_seconds), "a step of 0.02 s takes 0.02 s"
    check_equal(run.mfu, 2100 / sum(run.step_seconds) / 1000.0, hint="all FLOPs, over all seconds, over the peak")


@pytest.mark.problem("training.train")
def test_train_refuses_what_it_cannot_do():
    """No steps, more steps than batches, no peak."""
    model = _model()
    batches = [(X, Y), (X, Y)]
    check_raises(ValueError, lambda: training.train(model, _sgd(model), mse, batches, 0, 6, 1e12), names=0)
    check_raises(ValueError, lambda: training.train(model, _sgd(model), mse, batches, 3, 6, 1e12), names=3)
    check_raises(ValueError, lambda: training.train(model, _sgd(model), mse, batches, 1, 6, 0.0), names=0.0)


def _trained() -> tuple[nn.Linear, torch.optim.Optimizer, dict[str, torch.Generator]]:
    """Return a model, an optimizer that remembers something, and a generator, all in the middle of a run."""
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    mse(model(X), Y).backward()
    optimizer.step()
    return model, optimizer, {"data": torch.Generator().manual_seed(3)}


def _fresh() -> tuple[nn.Linear, torch.optim.Optimizer, dict[str, torch.Generator]]:
    model = _model()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5), {"data": torch.Generator().manual_seed(4)}


def _write(path: Path) -> None:
    """Write the checkpoint of `_trained()` in the format that save_checkpoint's docstring describes."""
    model, optimizer, generators = _trained()
    states = {name: generator.get_state() for name, generator in generators.items()}
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7, "generators": states}
    torch.save(content, path)


@pytest.mark.problem("training.save_checkpoint")
def test_save_checkpoint_holds_everything(tmp_path):
    """Model, optimizer, step and the generators' states, readable with weights_only=True."""
    model, optimizer, generators = _trained()
    training.save_checkpoint(tmp_path / "run.pt", model, optimizer, 7, generators)
    checkpoint = torch.load(tmp_path / "run.pt", weights_only=True)
    check_equal(sorted(checkpoint), ["generators", "model", "optimizer", "step"])
    check_equal(checkpoint["step"], 7)
    check_close(checkpoint["model"]["weight"], torch.tensor([[2.0]]))
    check_close(checkpoint["optimizer"]["state"][0]["momentum_buffer"], torch.tensor([[-4.0]]))
    check_close(checkpoint["generators"]["data"], torch.Generator().manual_seed(3).get_state())


@pytest.mark.problem("training.save_checkpoint")
def test_save_checkpoint_leaves_the_old_file_when_writing_fails(tmp_path):
    """A second save that breaks off in the middle does not touch the first one's file, and leaves no other behind."""
    model, optimizer, generators = _trained()
    path = tmp_path / "run.pt"
    training.save_checkpoint(path, model, optimizer, 7, generators)
    optimizer.state[model.weight]["unwritable"] = lambda: None  # torch.save can't write a lambda
    check_raises(Exception, lambda: training.save_checkpoint(path, model, optimizer, 8, generators))
    hint = "write to another file in the same folder, and rename it when it is whole"
    check_equal([file.name for file in tmp_path.iterdir()], ["run.pt"], hint=hint)
    check_equal(torch.load(path, weights_only=True)["step"], 7, hint=hint)


@pytest.mark.problem("training.load_checkpoint")
def test_load_checkpoint_restores_everything(tmp_path):
    """Model, optimizer and generators are those that were saved, and the step is returned."""
    _write(tmp_path / "run.pt")
    model, optimizer, generators = _fresh()
    check_equal(training.load_checkpoint(tmp_path / "run.pt", model, optimizer, generators), 7)
    check_close(_weight(model), torch.tensor([[2.0]]))
    check_equal(optimizer.param_groups[0]["lr"], 0.5, hint="the optimizer's state_dict holds its groups too")
    check_close(optimizer.state[model.weight]["momentum_buffer"], torch.tensor([[-4.0]]))
    check_close(generators["data"].get_state(), torch.Generator().manual_seed(3).get_state())


@pytest.mark.problem("training.load_checkpoint")
def test_load_checkpoint_refuses_a_missing_file(tmp_path):
    """FileNotFoundError, as `open` raises it."""
    check_raises(FileNotFoundError, lambda: training.load_checkpoint(tmp_path / "nowhere.pt", *_fresh()))


@pytest.mark.problem("training.load_checkpoint")
@pytest.mark.parametrize("damage", ["cut off", "no checkpoint", "no generators", "another model"])
def test_load_checkpoint_is_all_or_nothing(tmp_path, damage):
    """A file that can't be used is a ValueError naming its path, and nothing has changed."""
    path = tmp_path / "run.pt"
    _write(path)
    model, optimizer, generators = _fresh()
    if damage == "cut off":
        path.write_bytes(path.read_bytes()[:-200])
    elif damage == "no checkpoint":
        path.write_bytes(b"Dear diary")
    else:
        content = torch.load(path, weights_only=True)
        if damage == "no generators":
            del content["generators"]
        else:
            content["model"]["bias"] = torch.zeros(1)
        torch.save(content, path)
    check_raises(ValueError, lambda: training.load_checkpoint(path, model, optimizer, generators), names=path.name)
    check_close(_weight(model), torch.zeros(1, 1), hint="the model should be as it was before")
    check_equal(optimizer.param_groups[0]["lr"], 0.1, hint="the optimizer should be as it was before")
    check_close(
        generators["data"].get_state(), torch.Generator().manual_seed(4).get_state(), hint="so should the generators"
    )


@pytest.mark.problem("training.together")
def test_together_a_run_that_was_cut_is_the_uncut_run(tmp_path):
    """Your own model, optimizer, batches and loop: ten steps at once, and four, a checkpoint, and six."""
    from student import data, model, optimizers  # the only test that needs other parts

    vocab_size, sequence_length = 50, 8
    (np.arange(2000) % vocab_size).astype("uint16").tofile(tmp_path / "tokens.bin")
    tokens = data.open_tokens(tmp_path / "tokens.bin", "uint16")

    def start(seed: int) -> tuple:
        """Return the four things that a run consists of, and its batches."""
        generators = training.seed_everything(seed)
        net = model.DeepLinear(dim=sequence_length, num_layers=2)
        optimizer = optimizers.AdamW(net.parameters(), lr=1e-2)

        def batches():
            """Predict the next token as a number."""
            while True:
                inputs, targets = data.get_batch(tokens, 16, sequence_length, "cpu", generators["data"])
                yield inputs / vocab_size, targets[:, -1] / vocab_size

        return net, optimizer, generators, batches()

    net, optimizer, _, batches = start(seed=1)
    uncut = training.train(net, optimizer, mse, batches, 10, 100, 1e12)

    net_a, optimizer, generators, batches = start(seed=1)
    first = training.train(net_a, optimizer, mse, batches, 4, 100, 1e12)
    training.save_checkpoint(tmp_path / "run.pt", net_a, optimizer, 4, generators)

    net_b, optimizer, generators, batches = start(seed=2)  # as in a new process: everything is different at first
    check_equal(training.load_checkpoint(tmp_path / "run.pt", net_b, optimizer, generators), 4)
    rest = training.train(net_b, optimizer, mse, batches, 6, 100, 1e12)

    check_equal(
        first.losses + rest.losses, uncut.losses, rtol=0, hint="bit for bit: the order of the data is part of a run"
    )
    for p, q in zip(net.parameters(), net_b.parameters(), strict=True):
        check_close(q, p, rtol=0, hint="bit for bit: the optimizer's state is part of a run")
