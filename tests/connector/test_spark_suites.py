"""Each case of Spark's suites has a test here, or a reason why it has none."""

import ast
from functools import cache
from pathlib import Path

import pytest
from spark_suites import SUITES, Unfit

TESTS = Path(__file__).parents[1]
CASES = [(suite, case) for suite, cases in SUITES.items() for case in cases]


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file of tests."""
    return ast.parse(path.read_text())


def parameter_names(test: ast.FunctionDef) -> set[str]:
    """Names in ``pytest.param(…, id=…)``, and literals of a single parameter."""
    found: set[str] = set()
    for decorator in test.decorator_list:
        for node in ast.walk(decorator):
            if isinstance(node, ast.keyword) and node.arg == "id":
                found.add(str(ast.literal_eval(node.value)))
        if isinstance(decorator, ast.Call) and isinstance(decorator.args[1], ast.List):
            items = decorator.args[1].elts
            found |= {str(item.value) for item in items if isinstance(item, ast.Constant)}
    return found


@pytest.mark.parametrize(("suite", "case"), CASES)
def test_each_case_has_a_test(suite: str, case: str) -> None:
    """The test exists, with the name of its parameter."""
    value = SUITES[suite][case]
    if isinstance(value, Unfit):
        assert value.reason
        return
    for node in [value] if isinstance(value, str) else value:
        path, _, name = node.partition("::")
        name, _, parameter = name.removesuffix("]").partition("[")
        module = parsed(TESTS / path)
        tests = [each for each in module.body if isinstance(each, ast.FunctionDef)]
        found = [each for each in tests if each.name == name]
        assert found, node
        assert not parameter or parameter in parameter_names(found[0]), node
