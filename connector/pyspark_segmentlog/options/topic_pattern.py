"""``subscribePattern``: a pattern of ``java.util.regex``, matched as by Spark's ``kafka`` source.

The pattern is translated to Python's ``re``.  Only syntax that certainly means the same on the
names of topics is taken, and everything else is refused.  A name is selected if it contains a
match, so named groups need no names, and a greedy quantifier selects what a lazy one does.
"""

import re
import string
from typing import NoReturn

from segmentlog.errors import OptionError

_HEX = frozenset(string.hexdigits)
_QUANTIFIER = re.compile(r"[*+?]|\{[0-9]{1,9}(,[0-9]{0,9})?\}")
_GROUP = re.compile(r"\((\?(:|=|!|<=|<!|i:|<[a-zA-Z][a-zA-Z0-9]*>))?")
_PROPERTY = re.compile(r"[pP]\{(\w+)\}")

#: ASCII classes of Java; without ``UNICODE_CHARACTER_CLASS`` they have no other characters.
_PROPERTIES = {
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Lower": "a-z",
    "Upper": "A-Z",
    "XDigit": "0-9a-fA-F",
    "Punct": "!-/:-@\\[-`{-~",
}

#: Escapes outside of brackets that match no character, as Python writes them.  A name has no line
#: terminator, before which Java's ``\Z`` would match, too.
_ANCHORS = {"b": "\\b", "B": "\\B", "A": "\\A", "Z": "\\Z", "z": "\\Z"}
_CLASSES = "dDwWsS"
_CONTROLS = {"t": "\\t", "n": "\\n", "r": "\\r", "f": "\\f", "a": "\\a", "e": "\\x1b"}

#: Operators of sets in Java, or perhaps in a later version of Python.
_SET_OPERATORS = ("&&", "--", "~~", "||")


def compile_topic_pattern(text: str) -> re.Pattern[str]:
    """The pattern, whose ``search`` finds the names that Java's ``find`` does."""
    ignores_case = text.startswith("(?i)")
    body = text.removeprefix("(?i)")
    translated = _Translator(text, body, ignores_case=ignores_case or "(?i:" in body).translate()
    flags = re.ASCII | (re.IGNORECASE if ignores_case else 0)
    try:
        return re.compile(translated, flags)
    except (re.error, OverflowError, RecursionError) as error:
        accepted = f"give a regular expression; this one fails: {error}"
        raise OptionError("subscribePattern", text, accepted) from None


class _Translator:
    """One pass over a pattern."""

    def __init__(self, text: str, body: str, *, ignores_case: bool) -> None:
        self._text = text
        self._body = body
        self._ignores_case = ignores_case
        self._at = 0
        self._names: set[str] = set()

    def translate(self) -> str:
        body, out = self._body, []
        opened: list[bool] = []  # whether a group that is open is an assertion
        is_atom = False  # whether a quantifier may follow
        while self._at < len(body):
            character = body[self._at]
            if character == "\\":
                piece, is_atom = self._escape()
            elif character == "[":
                piece, is_atom = self._brackets(), True
            elif character == "(":
                piece, is_assertion = self._group()
                opened.append(is_assertion)
                is_atom = False
            elif character == ")":
                if not opened:
                    self._refuse("a ')' without a matching '('")
                piece, is_atom = ")", not opened.pop()
                self._at += 1
            elif character in "*+?{":
                piece, is_atom = self._quantifier(is_atom=is_atom), False
            elif character in "^$|":
                piece, is_atom = character, False
                self._at += 1
            else:
                piece, is_atom = character if character == "." else re.escape(character), True
                self._at += 1
            out.append(piece)
        return "".join(out)

    def _quantifier(self, *, is_atom: bool) -> str:
        found = _QUANTIFIER.match(self._body, self._at)
        if not found or not is_atom:
            self._refuse("a quantifier with nothing before it to repeat, or a bare '{'")
        self._at = found.end()
        following = self._body[self._at : self._at + 1]
        if following == "+":
            self._refuse("a possessive quantifier")
        if following == "?":
            self._at += 1
            return found[0] + "?"
        return found[0]

    def _group(self) -> tuple[str, bool]:
        """The beginning of a group, and whether it is an assertion."""
        found = _GROUP.match(self._body, self._at)
        kind = found[2] if found else None
        if not found or (kind is None and self._body.startswith("(?", self._at)):
            self._refuse(
                "an atomic group, flags other than (?i) at the start, or an unknown group"
            )
        if kind and kind.endswith(">"):
            if kind in self._names:
                self._refuse("two groups with the same name")
            self._names.add(kind)
            kind = ":"
        self._at = found.end()
        return ("(?" + kind, kind in {"=", "!", "<=", "<!"}) if kind else ("(?:", False)

    def _escape(self) -> tuple[str, bool]:
        """An escape outside of brackets, and whether it can be repeated."""
        if self._body.startswith("\\Q", self._at):
            begin = self._at + 2
            end = self._body.find("\\E", begin)
            quoted = self._body[begin:] if end < 0 else self._body[begin:end]
            if not quoted:
                self._refuse("an empty quotation")
            self._at = len(self._body) if end < 0 else end + 2
            return re.escape(quoted), True
        letter = self._body[self._at + 1 : self._at + 2]
        if letter in _ANCHORS and letter:
            self._at += 2
            return _ANCHORS[letter], False
        piece = self._character_escape()
        negates = piece.startswith("^")
        if negates or piece in _PROPERTIES.values():
            piece = f"[{piece}]"
        return piece, True

    def _character_escape(self) -> str:
        """An escape of one character or of a class, which a property gives without brackets."""
        letter = self._body[self._at + 1 : self._at + 2]
        found = _PROPERTY.match(self._body, self._at + 1)
        if found and found[1] in _PROPERTIES and not self._ignores_case:
            self._at = found.end()
            return ("^" if found[0][0] == "P" else "") + _PROPERTIES[found[1]]
        n_digits = {"x": 2, "u": 4}.get(letter, 0)
        digits = self._body[self._at + 2 : self._at + 2 + n_digits]
        if n_digits and len(digits) == n_digits and _HEX.issuperset(digits):
            self._at += 2 + n_digits
            return re.escape(chr(int(digits, 16)))
        if not letter or not (letter in _CLASSES or letter in _CONTROLS or not letter.isalnum()):
            self._refuse(
                "an escape that Python does not have or interprets differently, or a "
                "back-reference"
            )
        self._at += 2
        return "\\" + letter if letter in _CLASSES else _CONTROLS.get(letter, re.escape(letter))

    def _brackets(self) -> str:
        """A class in brackets: characters, ranges and escapes, no sets of sets."""
        out = ["["]
        self._at += 1
        if self._body.startswith("^", self._at):
            out.append("^")
            self._at += 1
        first = self._at
        while not self._body.startswith("]", self._at) or self._at == first:
            if self._at >= len(self._body):
                self._refuse("a '[' that is not closed")
            character = self._body[self._at]
            if self._body.startswith(_SET_OPERATORS, self._at) or character in "[]":
                self._refuse("a union, an intersection or a bracket within brackets")
            if character == "\\":
                piece = self._character_escape()
                is_end = out[-1] == "-" or self._body.startswith("-", self._at)
                if piece.startswith("^") or (piece in _PROPERTIES.values() and is_end):
                    self._refuse("a negated property, or a property as the end of a range")
                out.append(piece)
                continue
            out.append("\\^" if character == "^" else character)
            self._at += 1
        self._at += 1
        return "".join(out) + "]"

    def _refuse(self, what: str) -> NoReturn:
        place = len(self._text) - len(self._body) + self._at
        accepted = (
            f"at character {place + 1} there is {what}; write the Java pattern without it, or "
            "name the topics with subscribe"
        )
        raise OptionError("subscribePattern", self._text, accepted)
