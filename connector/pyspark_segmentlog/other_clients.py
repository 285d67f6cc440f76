"""Kafka clients for Python meet an error of `as_kafka` instead of the network.

A class of a client gets another ``__init__``, which looks at the servers first.  A class in C can
have none: each name in a loaded module that is this class, also in the modules of the job, becomes
a subclass.  Modules that are imported later are changed after their import.

Functions of a job run in other processes, too.  What is pickled for these begins with a call that
guards the process; a file says which servers `as_kafka` knows at the time.  The module is not in
`testing`, because such a process has to import it.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

#: The classes that open connections, by the package; and the servers that they use by default.
_CLIENTS = {
    "confluent_kafka": ("Producer", "Consumer", "AdminClient", "SerializingProducer",
                        "DeserializingConsumer", "ShareConsumer", "DeserializingShareConsumer",
                        "AIOProducer", "AIOConsumer"),
    "kafka": ("KafkaProducer", "KafkaConsumer", "KafkaAdminClient", "KafkaClient",
              "KafkaShareConsumer"),
    "aiokafka": ("AIOKafkaProducer", "AIOKafkaConsumer", "AIOKafkaAdminClient", "AIOKafkaClient"),
}  # fmt: skip
_BY_DEFAULT = dict.fromkeys(("kafka", "aiokafka"), "localhost:9092,localhost")
_OPTIONS = ("bootstrap.servers", "metadata.broker.list", "bootstrap_servers")

_ADVICE = (
    "as_kafka has a log directory for this server, and no broker that {} could reach: let the "
    "test write with kafka_log.write and look with kafka_log.read, and give the job another "
    "client in the test"
)

#: Owners and names with what stood there: modules with classes, and classes with ``__init__``.
_CHANGED: list[tuple[Any, str, Any]] = []

#: Classes that are guarded, by their ids: some classes have no hash.
_GUARDED: dict[int, type] = {}

IsKnown = Callable[[str], bool]


def guard(is_known: IsKnown) -> None:
    """Let clients of servers that `as_kafka` knows raise an error where they are made."""
    if any(isinstance(each, _ClientFinder) for each in sys.meta_path):
        return
    finder = _ClientFinder(is_known)
    sys.meta_path.insert(0, finder)
    finder.change_loaded()


def guard_as_told(place: str) -> None:
    """Guard a process that runs functions of a job; without the file, clients are as ever."""

    def is_known(servers: str) -> bool:
        try:
            known = Path(place).read_text(encoding="utf-8").splitlines()
        except OSError:
            return False
        return not set(known).isdisjoint(names_of(servers))

    guard(is_known)


def names_of(servers: str) -> list[str]:
    """The names by which a list of servers may be known: as a whole, and each."""
    return [servers.strip(), *(each.strip() for each in servers.split(","))]


class PickledCommand:
    """What Spark pickles: a function, or a tuple that begins with one, after `guard_as_told`."""

    def __init__(self, command: Any, place: str) -> None:  # noqa: ANN401
        self._command, self._first = command, _First(place)

    def __reduce__(self) -> tuple[Any, ...]:
        return _last, (self._first, self._command)  # loaded in this order


class _First:
    def __init__(self, place: str) -> None:
        self._place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return guard_as_told, (self._place,)


def _last(_: None, command: Any) -> Any:  # noqa: ANN401
    return command


def release() -> None:
    """Put all classes back."""
    sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, _ClientFinder)]
    _GUARDED.clear()
    while _CHANGED:
        owner, name, found = _CHANGED.pop()
        setattr(owner, name, found)


class _ClientFinder(importlib.abc.MetaPathFinder):
    """Lets the modules of clients be found as ever, and changes them when they are loaded."""

    def __init__(self, is_known: IsKnown) -> None:
        self._is_known = is_known

    def change_loaded(self) -> None:
        in_c: dict[int, type] = {}
        for package, names in _CLIENTS.items():
            for _, members in _members(package):
                for name in names:
                    found = members.get(name)
                    if isinstance(found, type) and id(found) not in _GUARDED:
                        guarded = _guarded(found, package, self._is_known)
                        _GUARDED.update({id(found): guarded, id(guarded): guarded})
                        in_c.update({} if guarded is found else {id(found): guarded})
        for module, members in _members() if in_c else ():
            for name, found in list(members.items()):
                if id(found) in in_c:
                    _CHANGED.append((module, name, found))
                    setattr(module, name, in_c[id(found)])

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a client's module, whose loader is followed by the change."""
        if fullname.partition(".")[0] not in _CLIENTS:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    _follow(spec.loader, self.change_loaded)
                return spec
        return None


def _follow(loader: Any, act: Callable[[], None]) -> None:  # noqa: ANN401
    execute = loader.exec_module

    def execute_and_act(module: ModuleType) -> None:
        execute(module)
        act()

    loader.exec_module = execute_and_act


def _members(package: str = "") -> Iterator[tuple[ModuleType, dict[str, Any]]]:
    """Loaded modules, of a package or all, with their names."""
    for name, module in list(sys.modules.items()):  # another thread may import meanwhile
        if package in ("", name.partition(".")[0]) and issubclass(type(module), ModuleType):
            yield module, ModuleType.__getattribute__(module, "__dict__")  # a lazy one stays so


def _guarded(found: Any, package: str, is_known: IsKnown) -> type:  # noqa: ANN401
    """A client that refuses known servers: the class itself, or a subclass of one in C."""
    original = found.__init__

    def begin(self: object, *args: object, **options: object) -> None:
        for value in _servers(args, options, _BY_DEFAULT.get(package, "")):
            if is_known(value):
                from segmentlog.errors import OptionError

                client = f"{package}.{found.__name__}"
                raise OptionError("bootstrap.servers", value, _ADVICE.format(client))
        original(self, *args, **options)

    try:
        found.__init__ = begin
    except TypeError:
        members = {
            "__init__": begin,
            "__module__": found.__module__,
            "__doc__": found.__doc__,
            "__qualname__": found.__qualname__,
        }
        return type(found.__name__, (found,), members)
    _CHANGED.append((found, "__init__", original))
    return found  # type: ignore[no-any-return]


def _servers(args: Iterable[object], options: Mapping[str, object], default: str) -> Iterator[str]:
    """The servers among the arguments of a client, as one text each."""
    given = [options, *(each for each in args if isinstance(each, Mapping))]
    values = [each[name] for each in given for name in _OPTIONS if each.get(name)]
    for value in values or [default]:
        listed = isinstance(value, Iterable) and not isinstance(value, str)
        yield ",".join(map(str, value)) if listed else str(value)
