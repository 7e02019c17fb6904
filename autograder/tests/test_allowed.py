"""The checker of the allow-lists: what it finds, what it lets pass, and which problem it holds responsible."""

import sys
from pathlib import Path
from textwrap import dedent

import pytest

from handout.problems import load_assignment
from tests.allowed import RULES, Violation, check_part, rules_for

REFERENCE = Path(__file__).resolve().parents[2] / "reference"


def found(part, text, **helpers):
    """What is found in one part with its helper files: names and problems."""
    sources = {f"{part}.py": dedent(text)} | {f"{name}.py": dedent(helper) for name, helper in helpers.items()}
    return {
        (violation.name, (violation.problem or "the part").removeprefix(f"{part}."))
        for violation in check_part(part, sources)
    }


# What is refused: part, source, helper files, and the names and problems that are found.
GUILTY = {
    # --- optimizers: aliases of torch.optim ---
    "plain attribute": ("optimizers", "import torch\nclass AdamW(torch.optim.AdamW): pass", {}, {("torch.optim.AdamW", "AdamW")}),
    "module alias": ("optimizers", "import torch.optim as o\nclass AdamW(o.AdamW): pass", {}, {("torch.optim.AdamW", "AdamW")}),
    "from-import with alias": (
        "optimizers",
        "from torch.optim import AdamW as A\nclass AdamW(A): pass",
        {},
        {("torch.optim.AdamW", "AdamW")},
    ),
    "submodule": (
        "optimizers",
        "from torch.optim.adamw import AdamW as Base\nclass AdamW:\n    def __init__(self, p):\n        self.inner = Base(p)",
        {},
        {("torch.optim.adamw.AdamW", "AdamW")},
    ),
    "name bound to torch": (
        "optimizers",
        "import torch\nT = torch\nclass SGD(T.optim.SGD): pass",
        {},
        {("torch.optim.SGD", "SGD")},
    ),
    "chain of aliases": (
        "optimizers",
        "import torch\na = torch\nb = a.optim\nclass SGD:\n    def step(self):\n        c = b\n        return c.SGD",
        {},
        {("torch.optim.SGD", "SGD")},
    ),
    "alias in a tuple": (
        "optimizers",
        "import torch, math\nt, m = torch, math\nclass SGD(t.optim.SGD): pass",
        {},
        {("torch.optim.SGD", "SGD")},
    ),
    "alias by condition": (
        "optimizers",
        "import torch\no = torch.optim if True else None\nclass SGD(o.SGD): pass",
        {},
        {("torch.optim.SGD", "SGD")},
    ),
    "alias by or": (
        "optimizers",
        "import torch\no = None or torch.optim\nclass SGD(o.SGD): pass",
        {},
        {("torch.optim.SGD", "SGD")},
    ),
    "alias by walrus": (
        "optimizers",
        "import torch\nclass SGD:\n    def step(self):\n        if o := torch.optim:\n            o.SGD",
        {},
        {("torch.optim", "SGD"), ("torch.optim.SGD", "SGD")},
    ),
    "the problem's own name is PyTorch's class": (
        "optimizers",
        "from torch.optim import AdamW, SGD",
        {},
        {("torch.optim.AdamW", "AdamW"), ("torch.optim.SGD", "SGD")},
    ),
    "assigned class": ("optimizers", "import torch\nAdaGrad = torch.optim.Adagrad", {}, {("torch.optim.Adagrad", "AdaGrad")}),
    "literal getattr": (
        "optimizers",
        'import torch\nclass SGD(getattr(getattr(torch, "optim"), "SGD")): pass',
        {},
        {("torch.optim.SGD", "SGD")},
    ),
    "computed getattr": (
        "optimizers",
        'import torch\nclass SGD(getattr(torch, "op" + "tim").SGD): pass',
        {},
        {("getattr", "SGD"), ("torch", "SGD")},
    ),
    "getattr under another name": (
        "optimizers",
        'import torch\ng = getattr\nclass SGD(g(torch, "optim").SGD): pass',
        {},
        {("torch.optim.SGD", "SGD")},
    ),
    "getattr passed on": (
        "optimizers",
        'import functools, torch\nclass SGD(functools.reduce(getattr, ["optim", "SGD"], torch)): pass',
        {},
        {("getattr", "SGD"), ("torch", "SGD")},
    ),
    "through another module": (
        "optimizers",
        "import torch.nn.functional as F\nclass SGD(F.torch.optim.SGD): pass",
        {},
        {("torch.optim.SGD", "SGD")},
    ),
    "star import": ("optimizers", "from torch import *\nclass SGD(optim.SGD): pass", {}, {("from torch import *", "the part")}),
    "star import of torch.optim": (
        "optimizers",
        "from torch.optim import *\nclass SGD(Optimizer): pass",
        {},
        {("from torch.optim import *", "the part")},
    ),
    "import inside a method": (
        "optimizers",
        "class SGD:\n    def step(self):\n        from torch.optim import SGD as S\n        S([])",
        {},
        {("torch.optim.SGD", "SGD")},
    ),
    "fused kernel": (
        "optimizers",
        "import torch\nclass AdamW:\n    def step(self):\n        torch._fused_adamw_([])",
        {},
        {("torch._fused_adamw_", "AdamW")},
    ),
    "fused kernel of aten": (
        "optimizers",
        "import torch\nops = torch.ops.aten\nclass AdamW:\n    def step(self):\n        ops._fused_adamw_.default([])",
        {},
        {("torch.ops.aten._fused_adamw_.default", "AdamW")},
    ),
    "functional optimizer": (
        "optimizers",
        "import torch.optim._functional as F\nclass AdamW:\n    def step(self):\n        F.adamw([])",
        {},
        {("torch.optim._functional.adamw", "AdamW")},
    ),
    "multi-tensor optimizer": (
        "optimizers",
        "from torch.optim.adamw import _multi_tensor_adamw as m\nclass AdamW:\n    def step(self):\n        m([])",
        {},
        {("torch.optim.adamw._multi_tensor_adamw", "AdamW")},
    ),
    "module in a list": (
        "optimizers",
        "import torch\nlibraries = [torch]\nclass SGD(libraries[0].optim.SGD): pass",
        {},
        {("torch", "SGD")},
    ),
    "module as an argument": (
        "optimizers",
        "import torch\ndef base(t):\n    return t.optim.SGD\nclass SGD(base(torch)): pass",
        {},
        {("torch", "SGD")},
    ),
    "module as a default": (
        "optimizers",
        "import torch\ndef base(t=torch):\n    return t.optim.SGD\nclass SGD(base()): pass",
        {},
        {("torch", "SGD")},
    ),
    "module as a class attribute": (
        "optimizers",
        "import torch\nclass SGD:\n    o = torch.optim\n    def step(self):\n        self.o.SGD",
        {},
        {("torch.optim", "SGD")},
    ),
    "module by vars": (
        "optimizers",
        'import torch\nclass SGD(vars(torch)["optim"].SGD): pass',
        {},
        {("torch", "SGD")},
    ),
    "module by __dict__": (
        "optimizers",
        'import torch\nclass SGD(torch.__dict__["optim"].SGD): pass',
        {},
        {("torch.__dict__", "SGD")},
    ),
    "subclasses of Optimizer": (
        "optimizers",
        "from torch.optim import Optimizer\nclass SGD(Optimizer.__subclasses__()[0]): pass",
        {},
        {("torch.optim.Optimizer.__subclasses__", "SGD")},
    ),
    "helper file": (
        "optimizers",
        "from .common import base\nclass SGD(base()): pass\nclass AdamW: pass",
        {"common": "import torch\ndef base():\n    return torch.optim.SGD"},
        {("torch.optim.SGD", "SGD")},
    ),
    "alias in a helper file": (
        "optimizers",
        "from student import common\nclass SGD(common.T.optim.SGD): pass",
        {"common": "import torch\nT = torch"},
        {("torch.optim.SGD", "SGD")},
    ),
    "class out of a helper file": (
        "optimizers",
        "from student.common import SGD, AdamW",
        {"common": "from torch.optim import SGD\nclass AdamW: pass"},
        {("torch.optim.SGD", "SGD")},
    ),
    "everything out of a helper file": (
        "optimizers",
        "from .common import *\nclass SGD(o.SGD): pass",
        {"common": "import torch.optim as o"},
        {("torch.optim.SGD", "SGD")},
    ),
    "patched when imported": (
        "optimizers",
        "import torch\nclass SGD: pass\ntorch.optim.SGD.step = None",
        {},
        {("torch.optim.SGD.step", "the part"), ("assignment to torch.optim.SGD", "the part")},
    ),
    # --- everywhere ---
    "exec": ("napkin", 'def training_flops(n, d):\n    exec("x = 1")', {}, {("exec", "training_flops")}),
    "eval at import": ("memory", 'eval("1")', {}, {("eval", "the part")}),
    "eval under another name": ("data", "e = eval\ndef get_batch():\n    e('1')", {}, {("eval", "get_batch")}),
    "eval of builtins": ("data", "import builtins\ndef get_batch():\n    builtins.eval('1')", {}, {("eval", "get_batch")}),
    "importlib": (
        "training",
        'import importlib\ndef train():\n    importlib.import_module("student.model")',
        {},
        {("importlib.import_module", "train")},
    ),
    "from importlib": (
        "training",
        'from importlib import import_module as i\ndef train():\n    i("student.model")',
        {},
        {("importlib.import_module", "train")},
    ),
    "__import__": ("model", 'def num_parameters(model):\n    __import__("torch")', {}, {("__import__", "num_parameters")}),
    "sys.modules": ("model", 'import sys\ndef num_parameters(m):\n    sys.modules["x"]', {}, {("sys.modules", "num_parameters")}),
    "attrgetter with a computed name": (
        "model",
        "import operator\ndef num_parameters(m, n):\n    operator.attrgetter(n)(m)",
        {},
        {("operator.attrgetter", "num_parameters")},
    ),
    "getattr with a computed name": (
        "model",
        'def num_parameters(model):\n    return getattr(model, f"layer{1}")',
        {},
        {("getattr", "num_parameters")},
    ),
    "exec in a function that nobody calls": ("model", 'def unused():\n    exec("1")', {}, {("exec", "the part")}),
    "exec in a helper file": (
        "model",
        "from . import common\ndef num_parameters(m):\n    return 1",
        {"common": 'exec("1")'},
        {("exec", "the part")},
    ),
    # --- other parts ---
    "another part": (
        "training",
        "from student.optimizers import AdamW\ndef train():\n    AdamW([])",
        {"optimizers": "class AdamW: pass"},
        {("import of optimizers", "train")},
    ),
    "another part, relatively": (
        "training",
        "from . import model as m\ndef train():\n    m.DeepLinear(1, 2)",
        {"model": "class DeepLinear: pass"},
        {("import of model", "train")},
    ),
    "another part that is not there": (
        "flops",
        "import student.strides\ndef mfu():\n    return student.strides.flat_index()",
        {},
        {("import of strides", "mfu")},
    ),
    "another part that nobody uses": ("flops", "from student import strides", {}, {("import of strides", "the part")}),
    "another part through a helper": (
        "training",
        "from .common import f\ndef train():\n    f()",
        {"common": "from .model import DeepLinear\ndef f():\n    DeepLinear()", "model": "class DeepLinear: pass"},
        {("import of model", "train")},
    ),
    # --- einsums ---
    "old way": (
        "einsums",
        "def attention_scores(q, k):\n    return q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5",
        {},
        {("@", "attention_scores"), (".transpose", "attention_scores")},
    ),
    "method": ("einsums", "def mean_pool(x):\n    return x.mean(1)", {}, {(".mean", "mean_pool")}),
    "method without a call": ("einsums", "def bilinear(x, a, y):\n    return x.mT", {}, {(".mT", "bilinear")}),
    "method by getattr": ("einsums", 'def mean_pool(x):\n    return getattr(x, "mean")(1)', {}, {(".mean", "mean_pool")}),
    "method by methodcaller": (
        "einsums",
        'from operator import methodcaller\ndef mean_pool(x):\n    return methodcaller("mean", 1)(x)',
        {},
        {(".mean", "mean_pool")},
    ),
    "method of the class": (
        "einsums",
        "from torch import Tensor as T\ndef mean_pool(x):\n    return T.mean(x, 1)",
        {},
        {("torch.Tensor.mean", "mean_pool")},
    ),
    "function": ("einsums", "import torch\ndef bilinear(x, a, y):\n    return torch.matmul(x, a)", {}, {("torch.matmul", "bilinear")}),
    "torch's einsum": ("einsums", "from torch import einsum\ndef bilinear(x):\n    return einsum('i->', x)", {}, {("torch.einsum", "bilinear")}),
    "whole attention": (
        "einsums",
        "import torch.nn.functional as F\ndef causal_attention(q, k, v, mask):\n    return F.scaled_dot_product_attention(q, k, v)",
        {},
        {("torch.nn.functional.scaled_dot_product_attention", "causal_attention")},
    ),
    "new axis by indexing": (
        "einsums",
        "def bilinear(x, a, y):\n    return x[..., None] * a",
        {},
        {("[..., None]", "bilinear")},
    ),
    "column by indexing": ("einsums", "def sum_hidden(x):\n    return x[:, 0]", {}, {("[:, 0]", "sum_hidden")}),
    "matmul in place": ("einsums", "def bilinear(x, a, y):\n    x @= a\n    return x", {}, {("@=", "bilinear")}),
    "matmul by its dunder": ("einsums", "def bilinear(x, a, y):\n    return x.__matmul__(a)", {}, {(".__matmul__", "bilinear")}),
    "operator.matmul": (
        "einsums",
        "import operator\ndef bilinear(x, a, y):\n    return operator.matmul(x, a)",
        {},
        {("operator.matmul", "bilinear")},
    ),
    "tensor split by an axis from the end": ("einsums", "def split_heads(x, heads):\n    return x.split(x.shape[-1] // heads, -1)", {}, {(".split", "split_heads")}),
    "tensor split of the first axis": ("einsums", "def split_heads(x, heads):\n    return x.split(4)", {}, {(".split", "split_heads")}),
    "slice by its name": ("einsums", "def mean_pool(x):\n    return x[slice(None), 0]", {}, {("[slice(None), 0]", "mean_pool")}),
    "slices by their name": ("einsums", "def mean_pool(x):\n    return x[(*(slice(None),) * 2, 0)]", {}, {("[*(slice(None),) * 2, 0]", "mean_pool")}),
    "tensor split": ("einsums", "def split_heads(x, heads):\n    return x.split(2, dim=-1)", {}, {(".split", "split_heads")}),
    "numpy": ("einsums", "import numpy as np\ndef mean_pool(x):\n    return np.mean(x, 1)", {}, {("numpy.mean", "mean_pool")}),
    "another library": (
        "einsums",
        "from opt_einsum import contract\ndef bilinear(x, a, y):\n    return contract('i,ij,j->', x, a, y)",
        {},
        {("opt_einsum.contract", "bilinear")},
    ),
    "helper that two problems use": (
        "einsums",
        "def swap(x):\n    return x.permute(1, 0)\ndef mean_pool(x):\n    return swap(x)\ndef sum_hidden(x):\n    return swap(x)\ndef bilinear(x, a, y): pass",
        {},
        {(".permute", "mean_pool"), (".permute", "sum_hidden")},
    ),
    "helper by way of another": (
        "einsums",
        "def inner(x):\n    return x.permute(1, 0)\ndef outer(x):\n    return inner(x)\ndef mean_pool(x):\n    return outer(x)",
        {},
        {(".permute", "mean_pool")},
    ),
    "lambda in a table": (
        "einsums",
        'TABLE = {}\nTABLE["mean"] = lambda x: x.mean(1)\ndef mean_pool(x):\n    return TABLE["mean"](x)',
        {},
        {(".mean", "mean_pool")},
    ),
    "table that is filled later": (
        "einsums",
        "import torch\nTABLE = []\nTABLE.append(torch.mean)\ndef mean_pool(x):\n    return TABLE[0](x, 1)",
        {},
        {("torch.mean", "mean_pool")},
    ),
    "decorator": (
        "einsums",
        "import torch\n@torch.vmap\ndef mean_pool(x):\n    return x",
        {},
        {("torch.vmap", "mean_pool")},
    ),
    "in a comprehension": ("einsums", "def mean_pool(x):\n    return [y.mean(0) for y in x]", {}, {(".mean", "mean_pool")}),
    "global set by a function": (
        "einsums",
        "import torch\ndef setup():\n    global f\n    f = torch.mean\nsetup()\ndef mean_pool(x):\n    return f(x, 1)",
        {},
        {("torch.mean", "mean_pool")},
    ),
    "variable of an outer function": (
        "einsums",
        "import torch\ndef mean_pool(x):\n    f = None\n    def setup():\n        nonlocal f\n        f = torch.mean\n    setup()\n    return f(x, 1)",
        {},
        {("torch.mean", "mean_pool")},
    ),
    "method of what einops returns": (
        "einsums",
        'from einops import rearrange\ndef mean_pool(x):\n    return rearrange(x, "a b -> b a").mean(0)',
        {},
        {(".mean", "mean_pool")},
    ),
    "method in the argument of what may be used": (
        "einsums",
        'import torch\ndef mean_pool(x):\n    return hasattr(x.mean(), "a"), torch.finfo(x.sum().dtype).min',
        {},
        {(".mean", "mean_pool"), (".sum", "mean_pool")},
    ),
    "method of the base class": (
        "einsums",
        "import torch\nclass T(torch.Tensor):\n    def pool(self):\n        return super().mean(1) + self.sum(1)\ndef mean_pool(x):\n    return x.as_subclass(T).pool()",
        {},
        {(".as_subclass", "mean_pool"), (".mean", "mean_pool"), (".sum", "mean_pool"), ("torch.Tensor", "mean_pool")},
    ),
    "other part by the package alone": (
        "flops",
        "import student\ndef mfu():\n    return student.strides.flat_index()",
        {},
        {("import of strides", "mfu")},
    ),
    # --- plain Python in the counting and shape formulas ---
    "meta tensor": (
        "strides",
        'import torch\ndef view_strides(s, t, n):\n    return torch.empty_strided(s, t, device="meta").view(n).stride()',
        {},
        {("torch.empty_strided", "view_strides")},
    ),
    "new Tensor": ("strides", "from torch import Tensor\ndef contiguous_strides(s):\n    return Tensor(*s).stride()", {}, {("torch.Tensor", "contiguous_strides")}),
    "helper that only one of them may use": (
        "strides",
        "import torch\ndef ones(n):\n    return torch.ones(n)\ndef causal_mask(n):\n    return ones(n)\ndef flat_index(i, s):\n    return ones(i)",
        {},
        {("torch.ones", "flat_index")},
    ),
    "numpy array": (
        "strides",
        "import numpy as np\ndef contiguous_strides(s):\n    return np.empty(s).strides",
        {},
        {("numpy.empty", "contiguous_strides")},
    ),
    "element size": (
        "napkin",
        "import torch\ndef bytes_per_parameter(p, g, s):\n    return torch.zeros((), dtype=p).element_size()",
        {},
        {("torch.zeros", "bytes_per_parameter")},
    ),
    "finfo": ("dtypes", "import torch\ndef float_limits(e, m):\n    return torch.finfo(torch.half).max", {}, {("torch.finfo", "float_limits"), ("torch.finfo.max", "float_limits")}),
    "numpy's finfo": ("dtypes", "from numpy import finfo as f\ndef float_limits(e, m):\n    return f(float).max", {}, {("numpy.finfo", "float_limits")}),
    # --- flops ---
    "flop counter": (
        "flops",
        "from torch.utils.flop_counter import FlopCounterMode as F\ndef count_flops(fn):\n    with F() as f:\n        fn()",
        {},
        {("torch.utils.flop_counter.FlopCounterMode", "count_flops")},
    ),
    "flop counter's module": (
        "flops",
        "from torch.utils import flop_counter as c\ndef count_flops(fn):\n    return c.mm_flop",
        {},
        {("torch.utils.flop_counter.mm_flop", "count_flops")},
    ),
    "flop counter by getattr": (
        "flops",
        'import torch.utils.flop_counter\ndef count_flops(fn):\n    getattr(torch.utils, "flop_counter")',
        {},
        {("torch.utils.flop_counter", "count_flops")},
    ),
    "utils passed on": ("flops", "import torch\ndef count_flops(fn):\n    return fn(torch.utils)", {}, {("torch.utils", "count_flops")}),
    # --- ways around the source ---
    "annotation read back": ("strides", "import torch\ndef f(x: torch.empty): pass\ndef view_strides(s):\n    return f.__annotations__['x'](s)", {}, {(".__annotations__", "view_strides"), ("torch.empty", "view_strides")}),
    "annotation of a field": ("optimizers", "import torch, dataclasses\n@dataclasses.dataclass\nclass K:\n    x: torch.optim.AdamW\nclass AdamW(dataclasses.fields(K)[0].type): pass", {}, {("torch.optim.AdamW", "AdamW")}),
    "assignment in an annotation": ("optimizers", "import torch\ndef f(x: (A := 1)): pass\nclass AdamW: pass", {}, {("assignment in an annotation", "the part")}),
    "a dispatcher's annotations": ("optimizers", "import functools\n@functools.singledispatch\ndef AdamW(x): return x", {}, {("functools.singledispatch", "AdamW")}),
    "type hints": ("optimizers", "import typing\ndef f(x: 'torch.optim.AdamW'): pass\nclass AdamW(typing.get_type_hints(f)['x']): pass", {}, {("typing.get_type_hints", "AdamW")}),
    "inspect": ("data", "import inspect\ndef get_batch():\n    inspect.stack()", {}, {("inspect.stack", "get_batch")}),
    "pickle in NumPy's files": ("optimizers", "import io, numpy\nclass AdamW(numpy.load(io.BytesIO(b''), None, True)): pass", {}, {("allow_pickle", "AdamW")}),
    "options of NumPy's out of sight": ("optimizers", "import io, numpy\nhow = {'allow_pickle': 1}\nclass AdamW(numpy.load(io.BytesIO(b''), **how)): pass", {}, {("allow_pickle", "AdamW")}),
    "arguments out of sight": ("training", "import torch\ndef load_checkpoint(*how):\n    torch.load(*how)", {}, {("load without weights_only=True", "load_checkpoint")}),
    "unpickler of a data pipe": ("optimizers", "from torch.utils.data.datapipes.utils.decoder import basichandlers\nclass SGD(basichandlers('pickle', b'')): pass", {}, {("torch.utils.data.datapipes.utils.decoder.basichandlers", "SGD")}),
    "a forward reference that is read": ("optimizers", "from typing import List\nclass SGD(List['optim.SGD'].__args__[0]._evaluate({}, {}, frozenset())): pass", {}, {("._evaluate", "SGD")}),
    "pickle": ("optimizers", "import pickle\nclass AdamW(pickle.loads(b'')): pass", {}, {("pickle.loads", "AdamW")}),
    "pickle in torch.load": ("optimizers", "import io, torch\nclass AdamW(torch.load(io.BytesIO(b''), weights_only=False)): pass", {}, {("torch.load", "AdamW"), ("load without weights_only=True", "AdamW")}),
    "pickle in a checkpoint": ("training", "import torch\ndef load_checkpoint(p):\n    torch.load(p, weights_only=False)", {}, {("load without weights_only=True", "load_checkpoint")}),
    "another unpickler": ("training", "import torch\ndef load_checkpoint(p, m):\n    torch.load(p, 'cpu', m)", {}, {("load without weights_only=True", "load_checkpoint")}),
    "an unpickler by name": ("training", "import torch\ndef load_checkpoint(p, m):\n    torch.load(p, pickle_module=m)", {}, {("load without weights_only=True", "load_checkpoint")}),
    "options out of sight": ("training", "import torch\ndef load_checkpoint(p, **how):\n    torch.load(p, **how)", {}, {("load without weights_only=True", "load_checkpoint")}),
    "the pipes' descriptors": ("training", "import os\ndef seed_everything(s):\n    os.dup2(5, 3)", {}, {("os.dup2", "seed_everything")}),
    "module of a module": ("optimizers", "import dataclasses\nclass AdamW(dataclasses.sys.modules['torch.optim'].AdamW): pass", {}, {("sys.modules", "AdamW")}),
    "PyTorch's private": ("flops", "import torch\ndef count_flops(f):\n    torch._inductor.utils.FlopCounterMode()", {}, {("torch._inductor.utils.FlopCounterMode", "count_flops")}),
    "code in a shape": (
        "einsums",
        "from jaxtyping import Float\nfrom torch import Tensor\nTAKEN = []\ndef sum_hidden(x):\n"
        "    isinstance(x, Float[Tensor, '... {TAKEN.append(1)}'])",
        {},
        {("code in a shape", "sum_hidden")},
    ),
    "code in a shape that has a name": (
        "einsums",
        "from jaxtyping import Float\nfrom torch import Tensor\nSHAPE = '(__import__)'\ndef sum_hidden(x):\n"
        "    isinstance(x, Float[Tensor, SHAPE])",
        {},
        {("code in a shape", "sum_hidden")},
    ),
    "code in an annotation's shape": (
        "optimizers",
        "from jaxtyping import Float\nfrom torch import Tensor\ndef AdamW(x: Float[Tensor, '{print(1)}']): pass",
        {},
        {("code in a shape", "AdamW")},
    ),
    "the module behind a warning": (
        "optimizers",
        "import warnings\ndef AdamW(): return warnings.catch_warnings()._module.sys.modules",
        {},
        {("._module", "AdamW")},
    ),
    "a class by the order of its bases": (
        "einsums",
        "def sum_hidden(x): return vars(type(x).mro()[1])['sum'](x, -1)",
        {},
        {(".mro", "sum_hidden")},
    ),
    "timeit of a string": ("flops", "import timeit\ndef time_matmul(f):\n    timeit.timeit('f()', 'import torch')", {}, {("timeit of a string", "time_matmul")}),
    "vars of nothing": ("model", "def num_parameters(m):\n    return vars()", {}, {("globals", "num_parameters")}),
    "own module as a value": ("model", "from . import common\ndef num_parameters(m):\n    return vars(common)", {"common": "import torch"}, {("common", "num_parameters")}),
    "pattern": ("einsums", "def mean_pool(x):\n    match x:\n        case object(mean=m):\n            return m(1)", {}, {(".mean", "mean_pool")}),
    "hidden pattern": ("model", "def num_parameters(x):\n    match x:\n        case object(__subclasses__=m):\n            return m()", {}, {(".__subclasses__", "num_parameters")}),
    "index in a variable": ("einsums", "def mean_pool(x):\n    i = (..., None)\n    return x[i]", {}, {("[i]", "mean_pool")}),
    "subclass of Tensor": ("strides", "import torch\nclass T(torch.Tensor): pass\ndef flat_index(i):\n    return T(i)", {}, {("torch.Tensor", "flat_index")}),
    "put into builtins": ("strides", "import torch, builtins\nbuiltins.f = torch.empty\ndef view_strides(s):\n    return f(s)", {}, {("assignment to builtins", "the part")}),
    "not the main guard": ("optimizers", "import torch\nif __name__ != '__main__':\n    A = torch.optim.AdamW\nclass AdamW(A): pass", {}, {("torch.optim.AdamW", "AdamW")}),
    "own TYPE_CHECKING": ("optimizers", "import torch\nTYPE_CHECKING = True\nif TYPE_CHECKING:\n    A = torch.optim.AdamW\nclass AdamW: pass", {}, {("assignment to __name__ or TYPE_CHECKING", "the part")}),
    "own __name__": ("optimizers", "import torch\n__name__ = '__main__'\nif __name__ == '__main__':\n    A = torch.optim.AdamW\nclass AdamW: pass", {}, {("assignment to __name__ or TYPE_CHECKING", "the part")}),
    "registered by a decorator": ("strides", "import torch\nT = []\n@T.append\ndef f(s):\n    return torch.empty(s)\ndef view_strides(s):\n    return T[0](s)\ndef flat_index(i): return i", {}, {("torch.empty", "view_strides")}),
    "registered by a class": ("strides", "import torch\nT = []\nclass C:\n    T.append(torch.empty)\ndef view_strides(s):\n    return T[0](s)", {}, {("torch.empty", "view_strides")}),
    "registered by an if": ("strides", "import torch\nT = []\nif True:\n    T.append(torch.empty)\ndef view_strides(s):\n    return T[0](s)", {}, {("torch.empty", "view_strides")}),
    "registered by map": ("strides", "import torch\nT = []\nlist(map(T.append, [torch.empty]))\ndef view_strides(s):\n    return T[0](s)", {}, {("torch.empty", "view_strides")}),
    "registered by a function": ("strides", "import torch\nT = []\ndef f():\n    T.append(torch.empty)\nf()\ndef view_strides(s):\n    return T[0](s)", {}, {("torch.empty", "view_strides")}),
    "registered by a subclass": ("strides", "import torch\nT = []\nclass C:\n    def __init_subclass__(cls):\n        T.append(torch.empty)\nclass D(C): pass\ndef view_strides(s):\n    return T[0](s)", {}, {("torch.empty", "view_strides")}),
    "registered from another file": ("strides", "import torch\nfrom . import table\ntable.T.append(torch.empty)\ndef view_strides(s):\n    return table.first()(s)", {"table": "T = []\ndef first():\n    return T[0]"}, {("torch.empty", "view_strides")}),
    "import in a class body": ("optimizers", "class _Lib:\n    from torch.optim import AdamW\nclass AdamW:\n    def __init__(self, p):\n        self.inner = _Lib.AdamW(p)", {}, {("torch.optim.AdamW", "AdamW")}),
    "import in the class itself": ("optimizers", "from torch.optim import Optimizer\nclass AdamW(Optimizer):\n    import torch.optim as o\n    def step(self):\n        self.o.AdamW", {}, {("torch.optim", "AdamW")}),
    "sys in a class body": ("optimizers", "class L:\n    import sys as s\nclass AdamW:\n    def step(self):\n        return L.s.modules['torch.optim'].AdamW", {}, {("sys", "AdamW")}),
    "exec in a class body": ("optimizers", "class L:\n    from builtins import exec as e\nclass AdamW:\n    def step(self):\n        L.e('')", {}, {("exec", "AdamW")}),
    "importlib in a class body": ("optimizers", "class L:\n    from importlib import import_module as e\nclass AdamW:\n    def step(self):\n        L.e('')", {}, {("importlib.import_module", "AdamW")}),
    "torch.load in a class body": ("optimizers", "class L:\n    from torch import load as l\nclass AdamW:\n    def step(self):\n        L.l('')", {}, {("torch.load", "AdamW")}),
    "torch's einsum in a class body": ("einsums", "class L:\n    from torch import einsum as _e\ndef mean_pool(x):\n    return L._e('', x)", {}, {("torch.einsum", "mean_pool")}),
    "own module in a class body": ("optimizers", "class L:\n    import student.common as c\nclass AdamW:\n    def step(self):\n        L.c.A", {"common": "from torch.optim import AdamW as A\n"}, {("common", "AdamW")}),
    "import of a global": ("optimizers", "def setup():\n    global A\n    from torch.optim import AdamW as A\nsetup()\nclass AdamW:\n    def step(self):\n        return A", {}, {("torch.optim.AdamW", "AdamW")}),
    "import of an outer function's name": ("optimizers", "def base():\n    A = None\n    def setup():\n        nonlocal A\n        from torch.optim import AdamW as A\n    setup()\n    return A\nclass AdamW:\n    def step(self):\n        return base()", {}, {("torch.optim.AdamW", "AdamW")}),
    "own module as a global": ("optimizers", "def setup():\n    global c\n    from . import common as c\nsetup()\nclass AdamW:\n    def step(self):\n        return c.A", {"common": "from torch.optim import AdamW as A\n"}, {("common", "AdamW")}),
    "profiler that counts": ("flops", "import torch\ndef count_flops(f):\n    with torch.autograd.profiler.profile(with_flops=True) as p: f()", {}, {("torch.autograd.profiler.profile", "count_flops")}),
    "profiler's own table": ("flops", "from torch.autograd import profiler_util\ndef count_flops(f):\n    profiler_util.FunctionEvent", {}, {("torch.autograd.profiler_util.FunctionEvent", "count_flops")}),
    "functions that can be overridden": ("optimizers", "from torch.overrides import get_overridable_functions as g\nclass AdamW:\n    def step(self):\n        return [n for n in g() if hasattr(n, 'optim')][0].optim.AdamW", {}, {("torch.overrides.get_overridable_functions", "AdamW")}),
    "module of a device": ("optimizers", "import torch\nclass AdamW:\n    def step(self):\n        return torch.get_device_module('cuda').torch.optim.AdamW", {}, {("torch.get_device_module", "AdamW")}),
    "import by a library": ("strides", "import numpy as np\nnp.info(1, toplevel='student.x')\ndef flat_index(i): return 1", {}, {("numpy.info", "the part")}),
    "registered by a field": ("optimizers", "import torch\nKEPT = []\nclass _E:\n    n: object = KEPT.append(torch.optim.AdamW)\nclass AdamW:\n    def __init__(self, p):\n        self.inner = KEPT[0](p)\n", {}, {("torch.optim.AdamW", "AdamW")}),
    "registered by an annotation": ("optimizers", "import torch\nKEPT = []\nclass _E:\n    n: KEPT.append(torch.optim.AdamW)\nclass AdamW:\n    def __init__(self, p):\n        self.inner = KEPT[0](p)\n", {}, {("torch.optim.AdamW", "AdamW")}),
    "registered by an argument's annotation": ("optimizers", "import torch\nKEPT = []\ndef f(n: KEPT.append(torch.optim.AdamW)): pass\nclass AdamW:\n    def __init__(self, p):\n        self.inner = KEPT[0](p)\n", {}, {("torch.optim.AdamW", "AdamW")}),
    "registered by a default": ("optimizers", "import torch\nKEPT = []\ndef f(n=KEPT.append(torch.optim.AdamW)): pass\nclass AdamW:\n    def __init__(self, p):\n        self.inner = KEPT[0](p)\n", {}, {("torch.optim.AdamW", "AdamW")}),
    "registered by a method's default": ("optimizers", "import torch\nKEPT = []\nclass K:\n    def f(n=KEPT.append(torch.optim.AdamW)): pass\nclass AdamW:\n    def __init__(self, p):\n        self.inner = KEPT[0](p)\n", {}, {("torch.optim.AdamW", "AdamW")}),
    "registered by a method's decorator": ("optimizers", "import torch\nKEPT = []\nclass K:\n    @KEPT.append\n    def f(p): return torch.optim.AdamW(p)\nclass AdamW:\n    def __init__(self, p):\n        self.inner = KEPT[0](p)\n", {}, {("torch.optim.AdamW", "AdamW")}),
    "registered by an own decorator": ("optimizers", "import torch\nKEPT = {}\ndef cache(f):\n    KEPT['x'] = f\n    return f\n@cache\ndef other(*a): return torch.optim.AdamW(*a)\nclass AdamW:\n    def __init__(self, p):\n        self.inner = KEPT['x'](p)\n", {}, {("torch.optim.AdamW", "AdamW")}),
    "registered by a decorator of another file": ("optimizers", "from .reg import KEPT\nfrom . import more\nclass AdamW:\n    def __init__(self, p):\n        self.inner = KEPT['x'](p)\n", {"reg": "KEPT = {}\ndef cache(f):\n    KEPT['x'] = f\n    return f\n", "more": "import torch\nfrom .reg import cache\n@cache\ndef other(*a): return torch.optim.AdamW(*a)\n"}, {("torch.optim.AdamW", "AdamW")}),
    "registered by what another file calls a library's": ("optimizers", "import torch\nfrom . import common\nKEPT = []\ndef cache(f):\n    KEPT.append(f)\n    return f\n@cache\ndef other(*a): return torch.optim.AdamW(*a)\nclass AdamW:\n    def step(self): return KEPT[0], common.X", {"common": "from functools import cache\nX = 1"}, {("torch.optim.AdamW", "AdamW")}),
    "registered in a global": ("optimizers", "import torch\nX = None\ndef reg(f):\n    global X\n    X = f\n    return f\n@reg\ndef other(p): return torch.optim.AdamW(p)\nclass AdamW:\n    def step(self): return X", {}, {("torch.optim.AdamW", "AdamW")}),
    "registered under a local name": ("optimizers", "import torch\nKEPT = {}\ndef cache(f):\n    k = KEPT\n    k['x'] = f\n    return f\n@cache\ndef other(*a): return torch.optim.AdamW(*a)\nclass AdamW:\n    def __init__(self, p):\n        self.inner = KEPT['x'](p)\n", {}, {("torch.optim.AdamW", "AdamW")}),
    "registered by a bound method": ("optimizers", "import torch\nKEPT = []\ndef cache(f):\n    k = KEPT.append\n    k(f)\n    return f\n@cache\ndef other(*a): return torch.optim.AdamW(*a)\nclass AdamW:\n    def __init__(self, p):\n        self.inner = KEPT[0](p)\n", {}, {("torch.optim.AdamW", "AdamW")}),
    "registered on a function": ("optimizers", "import torch\ndef g(): pass\ndef f():\n    g.x = torch.optim.AdamW\nf()\nclass AdamW:\n    def step(self): return g.x", {}, {("torch.optim.AdamW", "AdamW")}),
    "registered by an index of a class": ("optimizers", "import torch\nclass R:\n    d = []\n    def __class_getitem__(cls, f): cls.d.append(f)\ndef g(x: R[torch.optim.AdamW]): pass\nclass AdamW:\n    def step(self): return R.d[0]", {}, {("torch.optim.AdamW", "AdamW")}),
    "registered in a library": ("strides", "import torch, sys\nsys.argv.append(torch.empty)\ndef view_strides(s): return sys.argv[-1](s).stride()", {}, {("torch.empty", "view_strides")}),
    "registered in a table in a table": ("optimizers", "import torch\nKEPT={'a': []}\nKEPT.get('a').append(torch.optim.AdamW)\nclass AdamW:\n    def step(self): return KEPT['a'][0]", {}, {("torch.optim.AdamW", "AdamW")}),
    "registered by a class body of another file": ("optimizers", "from .reg import KEPT\nfrom . import more\nclass AdamW:\n    def step(self): return KEPT[0]", {"reg": "KEPT = []\n", "more": "import torch\nfrom .reg import KEPT as k\nclass E:\n    n: object = k.append(torch.optim.AdamW)\n"}, {("torch.optim.AdamW", "AdamW")}),
    "locals by name": ("optimizers", "class AdamW:\n    def step(self):\n        from torch.optim import AdamW as A\n        return locals()['A']", {}, {("torch.optim.AdamW", "AdamW")}),
    "locals passed on": ("optimizers", "class AdamW:\n    def step(self):\n        from torch.optim import AdamW as A\n        return list(map(lambda f: f(), [locals]))", {}, {("locals", "AdamW")}),
    "put into a library's class": ("optimizers", "import torch\nfrom torch.optim import Optimizer\ndef f():\n    Optimizer.real = torch.optim.AdamW\nf()\nclass AdamW(Optimizer):\n    def step(self): return self.real", {}, {("assignment to torch.optim.Optimizer", "AdamW"), ("torch.optim.AdamW", "AdamW")}),
    "put into a library's class by setattr": ("optimizers", "import torch\nfrom torch.optim import Optimizer\ndef f():\n    setattr(Optimizer, 'real', torch.optim.AdamW)\nf()\nclass AdamW(Optimizer):\n    def step(self): return self.real", {}, {("assignment to torch.optim.Optimizer", "the part")}),
    "setattr passed on": ("optimizers", "import torch\nfrom torch.optim import Optimizer as Opt\ndef f(s): s(Opt, 'real', torch.optim.AdamW)\nf(setattr)\nclass AdamW(Opt): pass", {}, {("setattr", "the part")}),
    "builtin that is never hidden": ("optimizers", "if 0:\n    exec = None\nclass AdamW:\n    def step(self): exec('')", {}, {("exec", "AdamW")}),
    "builtin that is hidden no longer": ("optimizers", "exec = None\ndel exec\nclass AdamW:\n    def step(self): exec('')", {}, {("exec", "AdamW")}),
    "builtin that an exception hid": ("optimizers", "try: 1/0\nexcept Exception as exec: pass\nclass AdamW:\n    def step(self): exec('')", {}, {("exec", "AdamW")}),
    "builtin in a class body": ("optimizers", "class AdamW:\n    if 0: exec = None\n    exec('')", {}, {("exec", "AdamW")}),
    "module's name in a class body": ("optimizers", "import torch.optim as o\nclass AdamW:\n    if 0: o = None\n    x = o.AdamW", {}, {("torch.optim.AdamW", "AdamW")}),
    "starred name that is never hidden": ("optimizers", "from .common import *\nif 0: A = None\nclass AdamW:\n    def step(self): return A", {"common": "from torch.optim import AdamW as A"}, {("torch.optim.AdamW", "AdamW")}),
    "builtin that is hidden later": ("optimizers", "exec('')\ndef exec(x): pass\nclass AdamW: pass", {}, {("exec", "the part")}),
    "builtin in a function that runs before it is hidden": ("optimizers", "def f(): exec('')\nf()\ndef exec(x): pass\nclass AdamW: pass", {}, {("exec", "the part")}),
    "members made global": ("optimizers", "import torch, enum\n@enum.global_enum\nclass E(enum.Enum):\n    A = torch.optim.AdamW\nclass AdamW:\n    def step(self): return A.value", {}, {("enum.global_enum", "the part")}),
    "module's __getattr__": ("optimizers", "import torch\ndef __getattr__(name):\n    return torch.optim.AdamW", {}, {("torch.optim.AdamW", "SGD"), ("torch.optim.AdamW", "AdamW"), ("torch.optim.AdamW", "AdaGrad"), ("torch.optim.AdamW", "optimizer_state_bytes")}),
    "package's __init__": ("model", "def num_parameters(m): return 1", {"__init__": "exec('')"}, {("exec", "the part")}),
    "__init__ of a package above": ("model", "from .extra.axes import f\ndef num_parameters(m): return 1", {"extra/__init__": "exec('')", "extra/axes": "f = 1"}, {("exec", "the part")}),
    "file in a folder called like another part": ("model", "from .memory.foo import f\ndef num_parameters(m): return f", {"memory/foo": "f = 1"}, {("import of memory", "num_parameters")}),
    "two files of one name": ("model", "from .extra.axes import f\ndef num_parameters(m): return 1", {"extra/axes": "f = 1", "extra.axes": "f = 2"}, {("more than one file is called extra.axes", "the part")}),
    "imported file that cannot be parsed": ("model", "from .axes import f\ndef num_parameters(m): return 1", {"axes": "("}, {("syntax error", "the part")}),
    "encoding": ("model", "# coding: utf-7\ndef num_parameters(m): return 1", {}, {("encoding utf-7", "the part")}),
    "formula by a tensor": ("flops", "import torch\ndef matmul_flops(m, k, n):\n    return torch.tensor(m)", {}, {("torch.tensor", "matmul_flops")}),
}  # fmt: skip


@pytest.mark.parametrize("case", GUILTY)
def test_what_may_not_be_used_is_found(case):
    part, text, helpers, expected = GUILTY[case]
    assert found(part, text, **helpers) == expected


# What is let pass: part, source, helper files.
INNOCENT = {
    "an import of two helpers, each for a problem of its own": (
        "strides",
        "from .util import full_mask, product\ndef causal_mask(n): return full_mask(n)\ndef view_strides(a, b, c): return product(a)",
        {"util": "import torch\nimport math\ndef full_mask(n): return torch.ones(n, n)\ndef product(a): return math.prod(a)"},
    ),
    "only Optimizer": ("optimizers", "from torch.optim import Optimizer\nclass SGD(Optimizer): pass", {}),
    "Optimizer by its full name": ("optimizers", "import torch\nclass SGD(torch.optim.Optimizer): pass", {}),
    "Optimizer from its module": ("optimizers", "from torch.optim.optimizer import Optimizer as O\nclass SGD(O): pass", {}),
    "foreach arithmetic": (
        "optimizers",
        "import torch\nclass SGD:\n    def step(self):\n        torch._foreach_add_([], [])\n        torch._foreach_mul_([], 2)",
        {},
    ),
    "unused import": ("optimizers", "from torch.optim import AdamW as Theirs\nclass SGD: pass", {}),
    "comparison that no solution uses": ("optimizers", "import torch\nclass SGD: pass\ndef compare():\n    return torch.optim.SGD([])", {}),
    "main guard": ("optimizers", 'import torch\nclass SGD: pass\nif __name__ == "__main__":\n    torch.optim.SGD([])', {}),
    "comments and strings": ("optimizers", '"""torch.optim.AdamW"""\nclass SGD:\n    # torch.optim.SGD\n    name = "torch.optim.SGD"', {}),
    "annotations": (
        "optimizers",
        "import torch\nclass SGD:\n    def f(self, o: torch.optim.Optimizer, m: torch.BoolTensor) -> torch.Tensor:\n        x: torch.optim.Adam = None",
        {},
    ),
    "own names like PyTorch's": (
        "optimizers",
        "import torch\nclass Adam:\n    def step(self): pass\nclass SGD(Adam): pass\ndef AdaGrad(optim):\n    return optim.SGD",
        {},
    ),
    "type checking only": (
        "training",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from student.model import DeepLinear\ndef train(m): pass",
        {},
    ),
    "methods called eval and compile": (
        "model",
        "import re, torch\ndef num_parameters(m):\n    m.eval()\n    re.compile('x')\n    torch.compile(m)",
        {},
    ),
    "a helper called eval": ("model", "def eval(x):\n    return x\ndef num_parameters(m):\n    return eval(m)", {}),
    "getattr with a literal": ("model", 'def num_parameters(m):\n    return getattr(m, "bias", None)', {}),
    "hasattr": ("training", 'import torch\ndef train():\n    return hasattr(torch, "accelerator")', {}),
    "setattr": ("model", "class Linear:\n    def __init__(self, **k):\n        for n in k:\n            setattr(self, n, k[n])", {}),
    "own __dict__": ("model", "class Linear:\n    def f(self):\n        return self.__dict__", {}),
    "sorting by an attribute": ("model", 'from operator import attrgetter\ndef num_parameters(m):\n    sorted(m, key=attrgetter("size"))', {}),
    "einops": (
        "einsums",
        'from einops import einsum, rearrange, reduce\nimport math\ndef attention_scores(q, k):\n    return einsum(q, k, "... a d, ... b d -> ... a b") / math.sqrt(q.shape[-1])',
        {},
    ),
    "softmax in all spellings": (
        "einsums",
        "import torch\nimport torch.nn.functional as F\ndef causal_attention(s, m):\n    s.masked_fill_(~m, -torch.inf)\n"
        "    return torch.softmax(s, -1), s.softmax(-1), F.softmax(s, -1), torch.where(m, s, float('-inf')), torch.nn.Softmax(-1)(s)",
        {},
    ),
    "smallest number": ("einsums", "import torch\ndef causal_attention(s, m):\n    return s.masked_fill(m, torch.finfo(s.dtype).min)", {}),
    "arithmetic": ("einsums", "def attention_scores(q, k):\n    q = q.mul(2).div_(3) * -1 + 2 ** 0.5\n    q *= 2\n    return q.sqrt()", {}),
    "shape as a tuple": ("einsums", "def patchify(x, p):\n    b, c, *rest = x.shape\n    return x.shape[-1], x.shape[:2], x.size(0), x.ndim", {}),
    "annotations with axes": (
        "einsums",
        'import torch\nfrom jaxtyping import Float\nfrom torch import Tensor\nScores = Float[Tensor, "... q k"]\nShape = tuple[int, ...]\n'
        'def mean_pool(x: Float[torch.Tensor, "b s h"]) -> Scores:\n    y: Float[Tensor, "b h"] = x\n    return y',
        {},
    ),
    "isinstance": ("einsums", "import torch\ndef mean_pool(x):\n    assert isinstance(x, torch.Tensor)\n    return x", {}),
    "own checking": (
        "einsums",
        "from beartype import beartype\nfrom jaxtyping import jaxtyped\n@jaxtyped(typechecker=beartype)\ndef mean_pool(x):\n    return x",
        {},
    ),
    "helper with a library's name": (
        "einsums",
        'from einops import rearrange\ndef transpose(x):\n    return rearrange(x, "a b -> b a")\ndef bilinear(x, a, y):\n    return transpose(x)',
        {},
    ),
    "helper file with a library's name": (
        "einsums",
        "from . import axes\nfrom .axes import mean as average\ndef mean_pool(x):\n    return axes.transpose(x), average(x)",
        {"axes": 'from einops import rearrange, reduce\ndef transpose(x):\n    return rearrange(x, "a b -> b a")\ndef mean(x):\n    return reduce(x, "a b -> a", "mean")'},
    ),
    "method of an own class": (
        "einsums",
        "class Axes:\n    def __init__(self, x):\n        self.view = x\n    def transpose(self):\n        return self.view\n"
        "def bilinear(x, a, y):\n    axes = Axes(x)\n    return axes.transpose(), Axes(a).transpose()",
        {},
    ),
    "strings": ("einsums", 'def mean_pool(x):\n    names = "b s h".split(" ")\n    return " ".join(names), "{}".format(1), names.index("b")', {}),
    "dataclass": ("einsums", "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\ndef mean_pool(x):\n    return P(x).x", {}),
    "torch where torch may be used": (
        "strides",
        "import torch\ndef causal_mask(n):\n    return torch.ones(n, n).tril()\ndef sliding_windows(x, n):\n    return x.unfold(-1, n, 1)\ndef flat_index(i, s):\n    return sum(a * b for a, b in zip(i, s))",
        {},
    ),
    "math and itertools": (
        "strides",
        "import math, itertools, functools, operator\ndef contiguous_strides(s):\n    return tuple(itertools.accumulate(s, operator.mul)), math.prod(s), functools.reduce(operator.mul, s, 1)",
        {},
    ),
    "numpy's product": ("strides", "import numpy as np\ndef view_strides(s, t, n):\n    return int(np.prod(s))", {}),
    "torch.Size": ("strides", "import torch\ndef view_strides(s: torch.Size, t, n):\n    return torch.Size(n).numel()", {}),
    "a local name of another helper": (
        "strides",
        "import torch\ndef ones(n):\n    return torch.ones(n)\ndef causal_mask(n):\n    return ones(n)\ndef flat_index(index, strides):\n    ones = [i for i in index if i == 1]\n    return len(ones)",
        {},
    ),
    "dtypes": ("napkin", "import torch\ndef bytes_per_parameter(p, g, s):\n    return p.itemsize if p != torch.float32 else torch.finfo(p).bits // 8", {}),
    "dtype table": ("flops", "import torch\nPEAKS = {torch.bfloat16: 1.0}\ndef promised_flop_per_sec(n, d):\n    return PEAKS[d]", {}),
    "own dispatch mode": (
        "flops",
        "import torch\nfrom torch.utils._python_dispatch import TorchDispatchMode\nclass Mode(TorchDispatchMode):\n    def __torch_dispatch__(self, f, t, a=(), k=None):\n        return f is torch.ops.aten.mm\ndef count_flops(fn):\n    with Mode():\n        fn()",
        {},
    ),
    "own flop_counter": ("flops", "def flop_counter(x):\n    return x\ndef count_flops(fn):\n    return flop_counter(fn)", {}),
    "another part's name for something else": ("flops", "from student.extra.model import f\ndef mfu(model):\n    return f(model)", {"extra/model": "def f(x):\n    return x"}),
    "helper file that is not imported": ("einsums", "def mean_pool(x):\n    return x", {"notes": 'import torch\nexec("1")\nx = torch.ones(2)'}),
    "annotations with arrays and types": (
        "einsums",
        "import numpy as np, numpy.typing as npt, torch\ndef mean_pool(x: torch.FloatTensor, y: np.ndarray, z: npt.NDArray) -> torch.Tensor: return x",
        {},
    ),
    "type checking with a fallback": (
        "model",
        "try:\n    from typing import TYPE_CHECKING\nexcept ImportError:\n    TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from student.data import get_batch\ndef num_parameters(m): return 1",
        {},
    ),
    "honest modules": (
        "strides",
        "import sys, types, gc, os, logging, random\nlog = logging.getLogger(__name__)\ndef view_strides(s):\n    gc.collect()\n"
        "    return sys.maxsize, sys.float_info.max, os.path.join('a'), types.SimpleNamespace(a=1), log.info('x')",
        {},
    ),
    "locals in a function": ("optimizers", "class SGD:\n    def __init__(self, lr):\n        defaults = locals().copy()\n        super().__init__(lr, defaults)", {}),
    "timing a function": ("flops", "import timeit\ndef time_matmul(f, n):\n    def run(): f()\n    return timeit.repeat(run, number=1, repeat=n), timeit.timeit(lambda: f(), number=1)", {}),
    "backend's settings": ("model", "import torch\ntorch.backends.cudnn.deterministic = True\ndef num_parameters(m): return 1", {}),
    "dictionary with None": ("einsums", "NAMES = {None: 1}\ndef mean_pool(x):\n    return NAMES[None]", {}),
    "old optimizers' marker": ("optimizers", "from torch.optim.optimizer import required\nclass SGD:\n    lr = required", {}),
    "experiment at the end of the file": (
        "strides",
        "import torch\nSIZES = {1: 2}\ndef flat_index(i, s):\n    return SIZES.get(i)\nprint(torch.ones(2).stride(), flat_index(1, 2))",
        {},
    ),
    "broken file for the main guard": ("einsums", 'def mean_pool(x): return x\nif __name__ == "__main__":\n    from .scratch import f', {"scratch": "("}),
    "many replacements": ("einsums", "def mean_pool(x):\n    return x" + ".replace('a', 'b')" * 60, {}),
    "long sum": ("napkin", "def training_flops(n, d):\n    return " + " + ".join(["n"] * 900), {}),
    "long chain of elif": ("napkin", "def training_flops(n, d):\n    if n: pass\n" + "    elif d: pass\n" * 900, {}),
    "long sum in a file that is not imported": ("napkin", "def training_flops(n, d): return n", {"scratch": "x = " + " + ".join(["1"] * 9000)}),
    "check of what a problem returns": ("strides", "import torch\ndef contiguous_strides(s): return s\ndef check(a, b):\n    assert a == b\nif True:\n    check(contiguous_strides((2,3)), torch.ones(2,3).stride())", {}),
    "experiments with several problems": ("strides", "import torch\nSHAPES = [(2,3)]\ndef contiguous_strides(s): return s\ndef is_contiguous(s, t): return contiguous_strides(s) == t\nfor s in SHAPES:\n    assert contiguous_strides(s) == torch.empty(s).stride()\nprint(is_contiguous((2,), (1,)), torch.ones(2).is_contiguous())\nx = torch.arange(6).view(2, 3)\nprint(contiguous_strides(x.shape), x.stride())", {}),
    "mathematics in a class body": ("model", "class Linear:\n    from math import sqrt\n    def f(self): return self.sqrt(2)", {}),
    "a helper called eval, further down": ("training", "import logging\nlog = logging.getLogger(__name__)\nN = 3\ndef train(m): eval(m)\ndef eval(m): return m", {}),
    "PyTorch's compile under its own name": ("training", "import torch\ncompile = torch.compile\ndef train(m): compile(m)", {}),
    "locals without some": ("optimizers", "import torch\nfrom torch.optim import Optimizer\nclass SGD(Optimizer):\n    def __init__(self, params, lr=1):\n        defaults = {k: v for k, v in locals().items() if k not in ('self', 'params', '__class__')}\n        super().__init__(params, defaults)", {}),
    "own decorator for all problems": ("flops", "import functools, torch\ndef checked(f):\n    @functools.wraps(f)\n    def g(*a): return f(*a)\n    return g\n@checked\ndef matmul_flops(p): return 1\n@checked\ndef count_flops(f): return torch.ones(2)", {}),
    "table of handlers": ("flops", "import torch, math\nRULES = {}\ndef rule(op):\n    def put(f):\n        RULES[op] = f\n        return f\n    return put\n@rule(torch.ops.aten.mm)\ndef mm(a, b): return 2\n@rule(torch.ops.aten.bmm)\ndef bmm(a, b): return matmul_flops(a, b)\ndef matmul_flops(a, b): return math.prod(a)\ndef count_flops(f): return RULES[f](1, 2)", {}),
    "settings": ("training", "import os, sys, torch, warnings\nos.environ['X'] = '1'\ntorch.manual_seed(0)\nsys.setrecursionlimit(5)\nwarnings.filterwarnings('ignore')\ntorch.set_default_dtype(torch.float32)\ndef train(): return os.environ.get('X')", {}),
    "own function mode": ("flops", "import torch\nfrom torch.overrides import TorchFunctionMode\nclass M(TorchFunctionMode):\n    def __torch_function__(self, f, t, a=(), k=None): return f(*a, **(k or {}))\ndef count_flops(f):\n    with M(): f()", {}),
    "fields with defaults": ("flops", "import dataclasses, torch\n@dataclasses.dataclass\nclass S:\n    a: int = 0\n    b: list = dataclasses.field(default_factory=list)\n    c: torch.Tensor | None = None\n    def add(self, x): self.b.append(x)\ndef matmul_flops(m): return S(1).a", {}),
    "latin-1": ("napkin", "# coding: latin-1\ndef training_flops(n, d): return n", {}),
    "file that cannot be parsed": ("einsums", "def mean_pool(x:\n", {}),
    "no file": ("model", "", {}),
}  # fmt: skip


@pytest.mark.parametrize("case", INNOCENT)
def test_what_may_be_used_is_let_pass(case):
    part, text, helpers = INNOCENT[case]
    assert found(part, text, **helpers) == set()


def sources_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in folder.rglob("*.py")}


@pytest.mark.parametrize("part", [path.stem for path in sorted(REFERENCE.glob("*.py")) if path.stem != "__init__"])
def test_reference_uses_only_what_the_handout_allows(part):
    assert check_part(part, sources_of(REFERENCE)) == []


def test_bytes_are_read_as_python_reads_them():
    text = "# coding: latin-1\n\u00e9 = exec\ndef num_parameters(m):\n    \u00e9('')\n"
    assert {violation.name for violation in check_part("model", {"model.py": text.encode("latin-1")})} == {"exec"}
    hidden = b"# coding: utf-7\n# +AAo-exec('')\ndef num_parameters(m): return 1\n"
    assert "encoding utf-7" in [violation.name for violation in check_part("model", {"model.py": hidden})]


def test_only_the_last_init_of_a_path_names_its_folder():
    sources = {
        "optimizers.py": "import torch\nclass SGD(torch.optim.SGD): pass\n",
        "optimizers/__init__/__init__.py": "SGD = 1\n",
    }
    assert [violation.name for violation in check_part("optimizers", sources)] == ["torch.optim.SGD"]


def test_recursion_limit_is_as_before():
    before = sys.getrecursionlimit()
    check_part("model", {"model.py": "x = 1\n"})
    assert sys.getrecursionlimit() == before


def test_part_without_a_file_has_nothing_to_check():
    assert check_part("model", {"flops.py": "exec('1')"}) == []


def test_violation_names_the_line_the_name_and_the_rule():
    [violation] = check_part("einsums", {"einsums.py": "\ndef mean_pool(x):\n    return x.mean(1)\n"})
    assert violation == Violation("einsums.py", 3, ".mean", violation.rule, "einsums.mean_pool")
    assert str(violation) == f"student/einsums.py:3: .mean: {violation.rule}"
    assert "einops" in violation.rule and "\n" not in str(violation)


def test_violation_in_a_helper_file_is_found_there():
    sources = {
        "einsums.py": "from .extra.axes import f\ndef mean_pool(x):\n    return f(x)\n",
        "extra/axes.py": "\n\ndef f(x):\n    return x.mean(1)\n",
    }
    [violation] = check_part("einsums", sources)
    assert (violation.file, violation.line, violation.problem) == ("extra/axes.py", 4, "einsums.mean_pool")


def test_rules_speak_of_parts_and_problems_that_exist():
    assignment = load_assignment()
    known = {"*"} | {part.id for part in assignment.parts} | {problem.id for problem in assignment.problems}
    assert {name for rule in RULES for name in rule.where} <= known
    assert all(rules_for(problem.id) for problem in assignment.problems)
