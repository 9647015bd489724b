"""The bytes that determine a torch module: tensors, plain attributes, and the code of classes from outside torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cached_property
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import TYPE_CHECKING

from ccfs.controllers.adapters.content import Known, framed, function_text, function_values, refuse, value_content

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["code_text", "code_values", "has_hooks", "marks", "state"]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_NOT_DATA = (GetSetDescriptorType, MemberDescriptorType)


def has_hooks(module: nn.Module) -> bool:
    """Say whether any part runs a hook, or a `forward` of its own instead of its class's."""
    parts = [vars(part) for part in module.modules()]
    return any("forward" in part or any(part[name] for name in _HOOKS) for part in parts)


def state(module: nn.Module, *, is_described: bool = False) -> bytes:
    """Return the bytes of every tensor, persistent or not, and of every plain attribute, part by part.

    Args:
        is_described: whether the caller describes attributes of other kinds elsewhere. If not, they are refused.
    """
    from torch import nn

    internal = vars(nn.Module()).keys()
    known = _marked if is_described else _known
    found = []
    for place, part in module.named_modules(remove_duplicate=False):  # in order: a Sequential runs in this order
        kind = type(part)
        found.append(framed(f"part {place}", f"{kind.__module__}.{kind.__qualname__} {part.training}".encode()))
        tensors = (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False))
        found += [framed(name, _tensor(name, tensor)) for name, tensor in tensors]
        attributes = {name: value for name, value in vars(part).items() if name not in internal}
        found += [framed(name, value_content(name, attributes[name], known)) for name in sorted(attributes)]
    return b"".join(found)


def marks(module: nn.Module) -> list[tuple[int, int]]:
    """Return something cheap that changes with any tensor of the module that is replaced or written to."""
    return [(id(tensor), tensor._version) for tensor in (*module.parameters(), *module.buffers())]


def code_text(module: nn.Module) -> bytes:
    """Return the source of every function of the module's classes, up to those of torch."""
    texts = [(place, function_text(f.__code__)) for place, f in _functions(module)]
    return b"".join(framed(place, text) for place, text in texts)


def code_values(module: nn.Module) -> bytes:
    """Return the bytes of class attributes and of what the classes' functions read from outside of them."""
    found = []
    for place, member in _members(module):
        if not _unpacked(member) and not isinstance(member, _NOT_DATA):
            found.append(framed(place, value_content(place, member, _known)))
    for place, f in _functions(module):
        for name, value in function_values(f):
            if value is not getattr(f, "__wrapped__", f):
                found.append(framed(f"{place} {name}", value_content(name, value, _known)))
    return b"".join(found)


def _members(module: nn.Module) -> Iterator[tuple[str, object]]:
    kinds = {base for part in module.modules() for base in type(part).__mro__ if not _is_library(base)}
    for kind in sorted(kinds, key=lambda kind: f"{kind.__module__}.{kind.__qualname__}"):
        for name, member in sorted(vars(kind).items()):
            is_machinery = name == "_abc_impl" or (name.startswith("__") and name.endswith("__"))
            if _unpacked(member) or not is_machinery:
                yield f"{kind.__qualname__}.{name}", member


def _functions(module: nn.Module) -> Iterator[tuple[str, FunctionType]]:
    """Yield every function of the module's own classes, and what a decorated function wraps."""
    for place, member in _members(module):
        for function in _unpacked(member):
            f: object = function
            while isinstance(f, FunctionType):
                if not _is_foreign(f.__globals__.get("__name__", "")):
                    yield place, f
                f = getattr(f, "__wrapped__", None)


def _unpacked(member: object) -> tuple[object, ...]:
    if isinstance(member, (staticmethod, classmethod)):
        return (member.__func__,)
    if isinstance(member, property):
        return (member.fget, member.fset, member.fdel)
    if isinstance(member, cached_property):
        return (member.func,)
    return (member,) if isinstance(member, FunctionType) else ()


def _is_library(kind: type) -> bool:
    """Say whether a class is torch's or Python's. The module's name is no proof, so the class is looked up."""
    home = sys.modules.get(kind.__module__)
    is_found = kind.__module__.startswith("torch.") or getattr(home, kind.__name__, None) is kind
    return is_found and _is_foreign(kind.__module__)


def _is_foreign(name: str) -> bool:
    """Say whether a module belongs to torch or to Python. The version of such code is recorded elsewhere."""
    root = name.split(".")[0]
    return root == "torch" or root in sys.stdlib_module_names


def _known(place: str, value: object, known: Known | None = None) -> bytes:
    """Return the bytes of what a module may hold beyond plain values. Nobody else holds the module's copy of it."""
    import torch

    known = known or _known
    if isinstance(value, torch.Tensor):
        return _tensor(place, value)
    if isinstance(value, (torch.dtype, torch.device, torch.Size)):
        return framed(type(value).__name__, str(value).encode())
    if type(value) is list:
        return framed("list", b"".join(value_content(place, item, known) for item in value))
    if type(value) is dict:
        pairs = [value_content(place, item, known) for pair in value.items() for item in pair]
        return framed("dict", b"".join(pairs))
    if isinstance(value, (set, frozenset)) and type(value) in (set, frozenset):
        return framed("set", b"".join(sorted(value_content(place, item, known) for item in value)))
    if isinstance(value, (type, FunctionType, BuiltinFunctionType)):
        name, where = str(value.__name__), str(value.__module__)
        if _is_foreign(where) and getattr(sys.modules.get(where), name, None) is value:
            return framed("name", f"{where}.{name}".encode())
    refuse(place, value)


def _marked(place: str, value: object) -> bytes:
    """Return what `_known` returns, and the type's name alone for what it refuses."""
    try:
        return _known(place, value, _marked)
    except ValueError:
        return framed("other", type(value).__qualname__.encode())


def _tensor(place: str, tensor: torch.Tensor) -> bytes:
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized:
        refuse(place, tensor)
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return framed(f"{tensor.dtype} {tuple(tensor.shape)}", flat.view(torch.uint8).numpy().tobytes())
