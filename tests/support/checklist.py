"""The tests that an addition must pass, by its kind: those with the marker ``addition``.

``public_face.py`` writes the list into CONTRIBUTING.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parents[1]

#: Folders and files without Spark and brokers.
FAST = (
    "storage",
    "properties",
    "connector/options",
    "connector/test_spark_versions",
    "architecture/test_house",
    "architecture/test_door",
    "architecture/test_documents",
    "architecture/test_examples",
    "architecture/test_imports",
    "architecture/test_public_face",
    "architecture/test_dialects",
    "architecture/test_read_options",
    "architecture/test_stable",
)

#: Those among them that take more than three seconds, or need more packages than the extra `dev`
#: has; their tests with the marker ``addition`` are fast all the same.
NOT_FAST = (
    "architecture/test_examples",
    "connector/options/test_topic_pattern",
    "properties/test_decode_equals_reference", "properties/test_encode_equals_reference",
    "properties/test_legacy_slices", "storage/arrow_dataset/test_log_dataset",
    "storage/arrow_dataset/test_memory", "storage/arrow_dataset/test_timeline",
    "storage/cluster/test_mirror", "storage/cluster/test_replicated",
    "storage/format/kernels/test_hostile", "storage/format/records/test_columns",
    "storage/format/records/test_one_batch", "storage/format/records/test_one_pass",
    "storage/log/test_repeated_flushes", "storage/maintain/compaction/test_compact",
    "storage/maintain/compaction/test_dead_tasks", "storage/maintain/compaction/test_erase",
    "storage/maintain/test_delete_topic", "storage/maintain/start/test_preflight",
    "storage/maintain/test_retain", "storage/maintain/verification/test_tier",
    "storage/reads/test_narrowed_scans", "storage/reads/test_refresh_equals_open",
    "storage/bucket/test_clients", "storage/store/test_pace", "storage/store/test_planted_links",
    "storage/test_damage",
    "storage/test_native", "storage/tiered/test_aiven_joined", "storage/tiered/test_local_tier",
    "storage/tools/test_analyze_page", "storage/tools/test_cat", "storage/tools/test_cli",
    "storage/tools/test_dump",
    "storage/tools/test_going_on", "storage/tools/test_grep", "storage/tools/test_json_lines",
    "storage/tools/test_kafka_tables", "storage/tools/test_progress", "storage/tools/test_verify",
    "storage/txn/test_change", "storage/txn/test_network_mount", "storage/txn/test_recover_log",
    "storage/txn/test_guard", "storage/writes/test_shared_values",
    "storage/writes/test_writer",
)  # fmt: skip

_BEGIN, _END = "<!-- checklist:begin -->\n", "<!-- checklist:end -->\n"

#: How each kind of test is run.
RUNS = {"fast": "`pytest -m fast`", "thorough": "`pytest -m thorough`", "slow": "`pytest -m slow`"}


class Check(NamedTuple):
    """A test that an addition must pass."""

    kind: str  # of additions
    test: str  # its file and its name
    run: str  # one of `RUNS`, or "plain"


def may_be_fast(path: Path) -> bool:
    """Whether all tests of a file without another marker are fast."""
    name = str(path.relative_to(TESTS))
    return name.startswith(FAST) and not name.startswith(NOT_FAST)


def has_fast_tests(path: Path) -> bool:
    """Whether a file has fast tests: all of its tests, or those that an addition must pass."""
    if not str(path.relative_to(TESTS)).startswith(FAST):
        return False
    return may_be_fast(path) or "mark.addition(" in path.read_text()


def checks() -> Iterator[Check]:
    """All of them, by their files."""
    for path in sorted(TESTS.rglob("test_*.py")):
        if "mark.addition(" not in (text := path.read_text()):
            continue
        nodes = ast.parse(text).body
        of_file = {
            name
            for each in nodes
            if isinstance(each, ast.Assign)
            if ast.unparse(each.targets[0]) == "pytestmark"
            for name, _ in _marks(each.value)
        }
        for each in nodes:
            if not isinstance(each, ast.FunctionDef):
                continue
            marks = [mark for decorator in each.decorator_list for mark in _marks(decorator)]
            names = {name for name, _ in marks} | of_file
            run = "fast" if has_fast_tests(path) else "plain"
            run = "thorough" if names & {"thorough", "interop"} else run
            run = "slow" if "slow" in names else run
            for kind in (kind for name, kinds in marks if name == "addition" for kind in kinds):
                yield Check(kind, f"{path.relative_to(TESTS.parent)}::{each.name}", run)


def _marks(node: ast.expr) -> Iterator[tuple[str, list[str]]]:
    """The markers in an expression, and their arguments that are text."""
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "pytest.mark":
            calls = (one for one in ast.walk(node) if isinstance(one, ast.Call))
            arguments = next((one.args for one in calls if one.func is each), [])
            texts = (one.value for one in arguments if isinstance(one, ast.Constant))
            yield each.attr, [text for text in texts if isinstance(text, str)]


def with_checklist(text: str) -> str:
    """CONTRIBUTING with the list of today."""
    by_kind: dict[str, dict[str, list[str]]] = {}
    for check in checks():
        by_kind.setdefault(check.kind, {}).setdefault(check.run, []).append(check.test)
    rows = ""
    for kind, by_run in sorted(by_kind.items()):
        for run in filter(by_run.__contains__, RUNS):
            tests = ", ".join(f"`{each}`" for each in by_run[run])
            rows += f"| {kind} | {RUNS[run]} | {tests} |\n"
    before, _, rest = text.partition(_BEGIN)
    table = f"| a new | run | tests that it must pass |\n|---|---|---|\n{rows}"
    return f"{before}{_BEGIN}{table}{_END}{rest.partition(_END)[2]}"
