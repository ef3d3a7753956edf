"""`__all__` is the promise of a library: every name in it exists and is documented, and nothing else is public."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

import pytest

LIBRARIES = ("iop_config", "iop_pool", "iop_refresh")


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(request.param)


def test_every_public_name_exists_once_and_is_not_private(library: ModuleType) -> None:
    names: list[str] = library.__all__
    assert len(names) == len(set(names)) > 5
    for name in names:
        assert hasattr(library, name), name
        assert not name.startswith("_"), name


def test_every_public_class_and_function_says_what_it_is(library: ModuleType) -> None:
    silent = [
        name
        for name in library.__all__
        if (inspect.isclass(getattr(library, name)) or inspect.isfunction(getattr(library, name)))
        and not (getattr(library, name).__doc__ or "").strip()
    ]
    assert not silent


def test_what_is_not_private_is_promised(library: ModuleType) -> None:
    stray = [
        name
        for name, value in vars(library).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name not in library.__all__
    ]
    assert not stray
