"""Values of unions of several types, as Spark's ``from_avro`` has them.

Such a union is a struct with a field for each of its types but null: ``member0``, ``member1`` and
so on, of which one is not null.  ``int`` and ``long`` alone are a long, and ``float`` and
``double`` alone are a double.

`fastavro` says the name of a type that has one, and else the type follows from the object.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

#: Makes the value for Arrow of what fastavro has decoded.
Convert: TypeAlias = Callable[[Any], Any]

_MERGED = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}

_PLAIN = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


def not_null(union: Sequence[Any]) -> list[Any]:
    """The types of a union but null."""
    return [each for each in union if each != "null" and each != {"type": "null"}]


def merged(union: Sequence[Any]) -> str | None:
    """The type that the types of a union are together; None if they have a field each."""
    kinds = [each if isinstance(each, str) else each.get("type") for each in union]
    names = [each for each in kinds if isinstance(each, str)]
    return _MERGED.get(frozenset(names)) if len(names) == len(kinds) == 2 else None


def indistinct(union: Sequence[Any]) -> str | None:
    """Types of a union that one object can have; None if there are none."""
    kinds = {
        each if isinstance(each, str) else each.get("type")
        for each in union
        if isinstance(each, (str, dict)) and _is_hashable(each)
    }
    found = [" and ".join(sorted(each)) for each in _MERGED if each <= kinds]
    return found[0] if found else None


def _is_hashable(member: Any) -> bool:  # noqa: ANN401 - JSON
    return isinstance(member, str) or isinstance(member.get("type"), str)


class Unions:
    """What makes the values of a schema that has such unions.

    `parsed`: by fastavro.  `referred`: the schemas that it refers to, each before those that need
    it.  `resolves`: whether values of another schema are resolved to it; fastavro then does not
    always say the name of a type.
    """

    def __init__(self, parsed: Any, referred: Sequence[Any], *, resolves: bool) -> None:  # noqa: ANN401
        self._resolves = resolves
        self._named: dict[str, Convert] = {}
        for each in referred:
            self._of(each)
        self.convert = self._of(parsed)

    def _of(self, schema: Any) -> Convert:  # noqa: ANN401 - JSON
        if isinstance(schema, list):
            return self._union(not_null(schema))
        if isinstance(schema, str):
            return self._named.get(schema, _without_name)
        kind = schema["type"]
        if kind == "array":
            item = self._of(schema["items"])
            return lambda value: [item(each) for each in _without_name(value)]
        if kind == "map":
            of_value = self._of(schema["values"])
            return lambda value: [
                (key, of_value(each)) for key, each in _without_name(value).items()
            ]
        if kind in ("record", "error"):
            fields = {each["name"]: self._of(each["type"]) for each in schema["fields"]}

            def members(value: Any) -> dict[str, Any]:  # noqa: ANN401
                found = _without_name(value)
                return {name: convert(found[name]) for name, convert in fields.items()}

            self._named[schema["name"]] = members
            return members
        return self._of(kind) if not isinstance(kind, str) else _without_name

    def _union(self, types: list[Any]) -> Convert:
        converts = [self._of(each) for each in types]
        if len(types) == 1 or merged(types):
            convert = converts[0] if len(types) == 1 else _without_name
            return lambda value: None if value is None else convert(value)
        if not types:
            return lambda _: None
        names, kinds = [_name_of(each) for each in types], [_kind_of(each) for each in types]

        def member(value: Any) -> dict[str, Any] | None:  # noqa: ANN401
            if value is None:
                return None
            if isinstance(value, tuple):
                number = names.index(value[0])
            else:
                found = [n for n, kind in enumerate(kinds) if kind == _kind_of_value(value)]
                unnamed = [name for name in names if name is not None]
                if len(found) != 1 or (self._resolves and unnamed):
                    raise ValueError(
                        "which type of a union it has, does not follow from its schema"
                    )
                (number,) = found
            return {f"member{number}": converts[number](value)}

        return member


def _without_name(value: Any) -> Any:  # noqa: ANN401
    return value[1] if isinstance(value, tuple) else value


def _name_of(member: Any) -> str | None:  # noqa: ANN401 - JSON
    if isinstance(member, str):
        return None if member in _PLAIN else member
    name: str | None = member.get("name")
    return name


def _kind_of(member: Any) -> str:  # noqa: ANN401 - JSON
    kind = member if isinstance(member, str) else member["type"]
    if isinstance(member, dict) and member.get("logicalType") == "decimal":
        return "decimal" if "name" not in member else "named"
    return (
        {"int": "long", "float": "double"}.get(kind, kind)
        if kind in (*_PLAIN, "array", "map")
        else "named"
    )


def _kind_of_value(value: object) -> str:
    kinds = {
        bool: "boolean",
        int: "long",
        float: "double",
        str: "string",
        bytes: "bytes",
        list: "array",
        dict: "map",
        Decimal: "decimal",
    }
    return kinds.get(type(value), "named")
