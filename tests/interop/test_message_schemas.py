"""Our table of schemas equals the JSON in the jars of Kafka, field by field."""

import json
import re
import zipfile
from collections.abc import Iterator

import pytest
from kafka_here.artifacts import schema_jars

from segmentlog.format.messages import lines
from segmentlog.format.messages.reader import JSON_NULL, Field, Schema, Versions, parse_schemas

pytestmark = pytest.mark.interop

NEWEST = "4.4.0"
LARGEST = 2**15 - 1
TYPES = {
    "string": "str",
    "bytes": "bytes",
    "bool": "bool",
    "uuid": "uuid",
    "float64": "f64",
    "records": "bytes",
}
TYPES |= {f"int{8 * n}": f"i{8 * n}" for n in (1, 2, 4, 8)} | {"uint16": "u16"}
NOT_OURS = {"request", "response", "header"}

#: Records of share groups, which 3.9 had not released.
NOT_RELEASED: dict[str, tuple[str, ...]] = {"3.9.2": ("Share",)}


def messages(version: str) -> Iterator[dict]:
    """The JSON of all messages of a release that are no requests or responses."""
    for jar in sorted(schema_jars(version).glob("*.jar")):
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if re.fullmatch(r"(common/)?(message|metadata)/\w+\.json", name):
                    text = re.sub(r"^\s*//.*$", "", archive.read(name).decode(), flags=re.M)
                    found = json.loads(text)
                    if found["type"] not in NOT_OURS:
                        yield found


def versions(text: str) -> Versions:
    """A range as the JSON has it."""
    if text == "none":
        return Versions(1, 0)
    least, _, most = text.rstrip("+").partition("-")
    return Versions(int(least), LARGEST if text.endswith("+") else int(most or least))


def layout(spec: dict, version: int, structs: dict, *, is_flexible: bool) -> list:
    """The fields of a version, as `ours` gives them."""
    found = []
    for each in spec["fields"]:
        if version not in versions(each.get("versions", each.get("taggedVersions"))):
            continue
        kind = each["type"].removeprefix("[]")
        nested = None
        if kind not in TYPES:
            inner = each if "fields" in each else structs[kind]
            nested = layout(inner, version, structs, is_flexible=is_flexible)
        is_tagged = version in versions(each.get("taggedVersions", "none"))
        tag = int(each["tag"]) if is_tagged else None
        is_nullable = version in versions(each.get("nullableVersions", "none"))
        default = each.get("default", ())
        default = JSON_NULL if default is None else str(default).lower() if default != () else None
        found.append(
            (
                each["name"],
                TYPES.get(kind, "struct"),
                each["type"][:2] == "[]",
                tag,
                is_nullable,
                _plain(default),
                nested,
            )
        )
    return found


def ours(fields: tuple[Field, ...], version: int, *, is_flexible: bool) -> list:
    """The fields of a version of our schema."""
    found = []
    for each in fields:
        if version in each.versions:
            nested = (
                ours(each.fields, version, is_flexible=is_flexible)
                if each.kind == "struct"
                else None
            )
            tag = each.tag if is_flexible else None
            found.append(
                (
                    each.name,
                    each.kind,
                    each.is_array,
                    tag,
                    each.is_nullable,
                    _plain(each.default),
                    nested,
                )
            )
    return found


def _plain(default: str | None) -> str | None:
    """A default, or None if it is zero, false or empty."""
    return None if default in ("0", "false", "") else default


def api_key(spec: dict) -> int:
    """The api key; a coordinator's key had it as its version up to 4.0."""
    return spec.get("apiKey", -1)


@pytest.mark.parametrize(
    "version",
    [
        NEWEST,
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("3.9.2", "4.0.1", "4.1.1", "4.2.1", "4.3.1")
        ),
    ],
)
@pytest.mark.addition("table")
def test_the_table_has_the_schemas_of_the_jars(version: str) -> None:
    """The newest release has exactly our schemas. An older release has no field that differs."""
    known: dict[str, Schema] = {}
    for name in lines.__all__:
        known |= parse_schemas(getattr(lines, name))
    if version == "4.0.1":  # 4.1 changed records of share groups without a new version
        for text in (lines.OFFSETS_4_0, lines.SHARE_STATE_4_0):
            known |= parse_schemas(text)
    seen = set()
    for spec in messages(version):
        schema = known.get(spec["name"])
        if spec["name"].startswith(NOT_RELEASED.get(version, ())):
            continue
        if schema is None:
            assert spec["type"] == "data", spec["name"]  # not a record
            continue
        seen.add(schema.name)
        valid = versions(spec["validVersions"])
        if version == NEWEST:
            assert (valid, api_key(spec)) == (schema.versions, schema.api_key), schema.name
        flexible = versions(spec["flexibleVersions"])
        structs = {each["name"]: each for each in spec.get("commonStructs", ())}
        for number in range(valid.least, valid.most + 1):
            expected_at = 0 if schema.name.endswith("Key") else number
            is_flexible = expected_at in schema.flexible
            assert (number in flexible) is is_flexible, (schema.name, number)
            found = ours(schema.fields, expected_at, is_flexible=is_flexible)
            expected = layout(spec, number, structs, is_flexible=is_flexible)
            if version != NEWEST:
                found = _without_later(found, expected)
            assert expected == found, (schema.name, number)
    missing = set(known) - seen
    assert missing == set() if version == NEWEST else len(seen) > 50


def _without_later(found: list, expected: list) -> list:
    """Fields without the tagged ones that later releases have added to the same version."""
    names = {each[0]: each for each in expected}
    kept = [each for each in found if each[0] in names or each[3] is None]
    return [
        (*each[:-1], _without_later(each[-1], names[each[0]][-1]))
        if each[-1] is not None and each[0] in names and names[each[0]][-1] is not None
        else each
        for each in kept
    ]
