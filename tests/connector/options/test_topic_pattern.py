"""Patterns of topics match the names that Java's patterns match, or are refused."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka_here.gateway import gateway

from pyspark_segmentlog.options.topic_pattern import compile_topic_pattern
from segmentlog.errors import OptionError

NAMES = [
    "a", "b", "A", "ab", "ba", "aB", "abc", "a.b", "a-b", "a_b", "a1", "1", "12", "-", "_", "..a",
    "orders", "orders-10", "orders-1", "ORDERS.eu", "x_y_z", "aaa", "bbb-aaa", "Zz9", "__a",
]  # fmt: skip
ATOMS = [
    *"abAB1.-_z^$", "\\.", "\\-", "\\d", "\\D", "\\w", "\\W", "\\s", "\\S", "\\b", "\\B", "\\A",
    "\\Z", "\\z", "[ab]", "[^ab]", "[a-c]", "[A-z]", "[^a-z.]", "[\\w.]", "[^\\d]", "[a-]", "[-a]",
    "[a^]", "[a-c-e]", "[\\x41-\\x5a_]", "[\\p{Alpha}1]", "[^\\p{Punct}]", "[a&b]", "[.$|(]",
    "\\p{Lower}", "\\P{Upper}", "\\p{Alnum}", "\\p{Digit}", "\\p{XDigit}", "\\p{Punct}",
    "\\x61", "\\u0062", "\\Qa.b\\E", "\\Q-1\\E", "\\t", "\\e", "]", "}", "#", " ", "ä",
]  # fmt: skip
QUANTIFIERS = ["*", "+", "?", "{2}", "{1,}", "{0,2}", "*?", "+?", "??", "{1,2}?"]
GROUPS = ["(", "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?i:", "(?<n>", "(?>"]


def _wrapped(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = st.tuples(st.sampled_from(GROUPS), inner, st.just(")")).map("".join)
    repeated = st.tuples(inner | group, st.sampled_from(QUANTIFIERS)).map("".join)
    return (
        group
        | repeated
        | st.lists(inner, max_size=3).map("".join)
        | st.lists(inner, min_size=1, max_size=3).map("|".join)
    )


PATTERNS = st.tuples(
    st.sampled_from(["", "", "(?i)"]), st.recursive(st.sampled_from(ATOMS), _wrapped, max_leaves=6)
).map("".join)
TEXTS = st.text("ab1-.^$|()[]{}*+?\\,:=!<>i&pdDwQEsZzx0", max_size=9)


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A JVM that has the names in a list."""
    path: Path = tmp_path_factory.mktemp("no-jars")
    jvm = gateway(path).jvm
    names = jvm.java.util.ArrayList()
    for name in NAMES:
        names.add(name)
    return jvm, names


def found_by_java(java: Any, text: str) -> list[str] | None:
    """The names in which Java finds the pattern; None if Java refuses it."""
    jvm, names = java
    try:
        predicate = jvm.java.util.regex.Pattern.compile(text).asPredicate()
    except Exception as error:
        if "PatternSyntaxException" in str(error):
            return None
        raise
    joined = jvm.java.util.stream.Collectors.joining("|")
    found = names.stream().filter(predicate).collect(joined)
    return found.split("|") if found else []


def found_here(text: str) -> list[str] | None:
    """The names in which our translation finds the pattern; None if it is refused."""
    try:
        pattern = compile_topic_pattern(text)
    except OptionError:
        return None
    return [name for name in NAMES if pattern.search(name)]


@given(PATTERNS | TEXTS)
@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_pattern_selects_what_it_selects_in_java(java: Any, text: str) -> None:
    """A pattern is translated or refused, and never accepted if Java refuses it."""
    found = found_here(text)
    if found is not None:
        assert found == found_by_java(java, text)


@pytest.mark.parametrize("text", [each for each in ATOMS if each not in "^$"])
def test_usual_syntax_is_taken(java: Any, text: str) -> None:
    """The syntax is used alone, repeated, in groups, at both ends, and in both cases."""
    assertions = {"\\b", "\\B", "\\A", "\\Z", "\\z"}
    for form in ("{}", "^{}", "{}$", "({})", "a|{}", "(?:{})+", "(?<=a){}", "(?!{})a", "(?<n>{})"):
        pattern = form.format(text)
        assert found_here(pattern) is not None, pattern
        assert found_here(pattern) == found_by_java(java, pattern), pattern
    if text not in assertions:
        assert found_here(text + "{1,2}") == found_by_java(java, text + "{1,2}")
    if "p{" not in text.lower():
        assert found_here("(?i)" + text) == found_by_java(java, "(?i)" + text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a++", "character 3 there is a possessive quantifier"),
        ("a{2}+", "character 5 there is a possessive"),
        ("(?>a)", "character 1 there is an atomic group"),
        ("a(?s)b", "flags other than"),
        ("(?x)b", "flags other than"),
        ("(?P<n>a)", "an unknown group"),
        ("(?<n_1>a)", "an unknown group"),
        ("(?<n>a)(?<n>b)", "two groups with the same name"),
        ("(a)\\1", "a back-reference"),
        ("(?<n>a)\\k<n>", "a back-reference"),
        ("[a[b]]", "bracket within brackets"),
        ("[a&&b]", "an intersection"),
        ("[]a]", "bracket within brackets"),
        ("[ab", "not closed"),
        ("a)", "without a matching"),
        ("(a", "this one fails"),
        ("(?<=a|bc)d", "this one fails"),
        ("*a", "nothing before it to repeat"),
        ("a**", "nothing before it to repeat"),
        ("a{", "nothing before it to repeat"),
        ("a{,2}", "nothing before it to repeat"),
        ("\\h", "an escape"),
        ("\\R", "an escape"),
        ("\\G", "an escape"),
        ("\\07", "an escape"),
        ("\\x{61}", "an escape"),
        ("\\cA", "an escape"),
        ("\\p{IsAlphabetic}", "an escape"),
        ("\\pL", "an escape"),
        ("(?i)\\p{Lower}", "an escape"),
        ("[\\b]", "an escape"),
        ("[+-\\p{Alpha}]", "the end of a range"),
        ("[\\P{Alpha}]", "a negated property"),
        ("\\Q\\E", "an empty quotation"),
        ("a\\", "an escape"),
    ],
)
def test_other_syntax_is_refused(text: str, said: str) -> None:
    """The message has the place of the syntax, and a remedy."""
    with pytest.raises(OptionError, match=re.escape(said)) as caught:
        compile_topic_pattern(text)

    assert ("subscribePattern", text) == (caught.value.option, caught.value.value)
