"""What a submission does while it runs: calls that are not allowed, tensors made on a device of their own, the work it
takes, torch's global state.
"""

import random
import sys
import weakref
from contextlib import ExitStack

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lib.practice.language import Text

#: Calls that move a tensor to where another one is.
MOVES = {"to", "type_as", "cuda", "cpu", "new_tensor", "new_zeros", "new_ones", "new_full", "new_empty", "copy_"}
#: Calls that leave torch: numbers in Python lists or in numpy, where nothing is counted and no GPU follows.
LEAVES = {"tolist", "numpy", "__array__"}
#: Indices may lie on the CPU while the values are on a GPU.
INDEXING = {"__getitem__", "__setitem__", "__get__", "index_put_"}


class Calls(TorchFunctionMode):
    """Names of torch functions as they are called; and, where places matter, tensors that were made without saying on
    which device.
    """

    def __init__(self, forbidden: frozenset[str], places: bool):
        super().__init__()
        self.forbidden, self.places, self.found = forbidden, places, set()
        self.homeless: dict[int, weakref.ref] = {}
        self.mixed: str | None = None
        self.left: set[str] = set()

    def is_homeless(self, x: object) -> bool:
        """Whether a tensor was made without a device, or from such tensors alone."""
        return id(x) in self.homeless and self.homeless[id(x)]() is x

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in self.forbidden:
            self.found.add(name)
        if not self.places:
            return func(*args, **kwargs)
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        lost = [self.is_homeless(x) for x in tensors]
        if name in LEAVES and not all(lost):
            self.left.add(name)
        result = func(*args, **kwargs)
        if name in MOVES:  # on a CPU, x.to(device) is x itself
            self.homeless.pop(id(result), None)
            return result
        created = func in _device_constructors() and kwargs.get("device") is None and not tensors
        if created or (lost and all(lost)):
            self.homeless |= {id(x): weakref.ref(x) for x in tree_leaves(result) if isinstance(x, Tensor)}
        elif self.mixed is None and name not in INDEXING and any(x.ndim and here for x, here in zip(tensors, lost)):
            self.mixed = resolve_name(func) or name  # a scalar may mix with any device
        return result


class Work(TorchDispatchMode):
    """How many operations ran on tensors, the largest tensor they made, and the operators that are forbidden."""

    def __init__(self, forbidden: frozenset[str]):
        super().__init__()
        self.forbidden, self.found = forbidden, set()
        self.operations, self.largest = 0, 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the default imports torch._dynamo, which takes seconds

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if found := {name, name.lstrip("_"), name.removeprefix("native_")} & self.forbidden:
            self.found |= found
        result = func(*args, **(kwargs or {}))
        self.operations += 1
        sizes = [x.nbytes for x in tree_leaves(result) if isinstance(x, Tensor) and not x.is_sparse]
        self.largest = max([self.largest, *sizes])
        return result


class Watch:
    """All of it during one call. forbidden: bare names, such as 'softmax' or 'kl_div'; places: whether to look where
    tensors are made.
    """

    def __init__(self, forbidden=(), places: bool = True):
        names = frozenset(forbidden)
        self.calls, self.work = Calls(names, places), Work(names)
        self.found: set[str] = set()

    def __enter__(self):
        self._stack = ExitStack()
        self._stack.enter_context(self.work)
        self._stack.enter_context(self.calls)
        self._before = sys.getprofile()
        if self.calls.forbidden:
            sys.setprofile(self._python_call)
        return self

    def _python_call(self, frame, event, arg):
        """A forbidden function written in Python, such as torch.distributions.kl_divergence; not the reader's own."""
        name = frame.f_code.co_name
        if event == "call" and name in self.calls.forbidden:
            module = frame.f_globals.get("__name__", "")
            if module.partition(".")[0] in ("torch", "transformers", "trl", "peft"):
                self.found.add(name)

    def __exit__(self, *error):
        sys.setprofile(self._before)
        self._stack.close()
        self.found |= self.calls.found | self.work.found


PLACES = {"torch": torch, "torch.Tensor": Tensor, "torch.nn.functional": torch.nn.functional}
SETTINGS = {
    "torch.set_default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch.set_default_device": (torch.get_default_device, torch.set_default_device),
    "torch.set_grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch.set_num_threads": (torch.get_num_threads, torch.set_num_threads),
    "torch.use_deterministic_algorithms": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "torch.autograd.set_detect_anomaly": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
}


class State:
    """torch's global state and Python's random numbers: what of it has changed, and back to what it was."""

    def __init__(self):
        self.seed, self.random = torch.get_rng_state(), random.getstate()
        self.settings = {name: get() for name, (get, _) in SETTINGS.items()}
        self.places = {place: dict(vars(module)) for place, module in PLACES.items()}

    def _replaced(self) -> list[tuple[str, str]]:
        """Place and name of each public function that is another one now."""
        moved = [
            (place, name)
            for place, module in PLACES.items()
            for name, thing in self.places[place].items()
            if vars(module).get(name) is not thing
        ]
        public = [(p, n) for p, n in moved if n != "Storage" and not n.startswith("_")]  # it follows the default dtype
        return [(place, name) for place, name in public if callable(self.places[place][name])]

    def restore(self) -> list[Text]:
        """Put everything back; the names of what was no longer as it was."""
        found = []
        for name, (get, put) in SETTINGS.items():
            if get() != self.settings[name]:
                put(self.settings[name])
                found.append(Text(name, name))
        for place, name in self._replaced():
            setattr(PLACES[place], name, self.places[place][name])
            found.append(Text(f"{place}.{name}", f"{place}.{name}"))
        if not torch.equal(torch.get_rng_state(), self.seed) or random.getstate() != self.random:
            torch.set_rng_state(self.seed)
            random.setstate(self.random)
            found.append(Text("the random seed", "随机数种子"))
        return found
