"""The stubs say what the native module has: the same names, with the same parameters."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import hotrow._native as native


def parameters(function: ast.FunctionDef) -> list[str]:
    given = function.args
    return [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs) if a.arg != "self"]


def found(function: object) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]  # type: ignore[arg-type]


def test_the_stubs_are_those_of_the_module():
    tree = ast.parse(Path(native.__file__).with_name("_native.pyi").read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    constants = {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
    public = {name for name in vars(native) if not name.startswith("_")}
    assert public == functions.keys() | classes.keys() | constants
    for name, function in functions.items():
        assert parameters(function) == found(getattr(native, name)), name
    for name, body in classes.items():
        cls = getattr(native, name)
        methods = {node.name: node for node in body.body if isinstance(node, ast.FunctionDef)}
        attributes = {node.target.id for node in body.body if isinstance(node, ast.AnnAssign)}
        assert {word for word in vars(cls) if not word.startswith("_")} == methods.keys() - {"__init__"} | attributes
        for method, function in methods.items():
            assert parameters(function) == found(cls if method == "__init__" else getattr(cls, method)), (name, method)
