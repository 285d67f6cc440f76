"""Lines pasted into an interactive Python, with what comes back; runs in the bare environment.

``python paste.py SNIPPETS.json``: a list of ``[language, text]``.  Python is typed line by line,
as a terminal would; SQL goes into ``spark.sql``, a statement at a time; text is only printed.
"""

import code
import json
import sys
from pathlib import Path


def paste(console: code.InteractiveConsole, text: str) -> None:
    """Print each line after its prompt; an empty line ends a block."""
    more = False
    for line in [*text.rstrip("\n").split("\n"), ""]:
        if more or line:
            print(f"{'...' if more else '>>>'} {line}".rstrip(), flush=True)
        more = console.push(line)


def main(snippets: list[tuple[str, str]]) -> None:
    """Run all snippets in one interpreter."""
    console = code.InteractiveConsole()
    for language, text in snippets:
        if language == "python":
            paste(console, text)
        elif language == "sql":
            for statement in filter(str.strip, text.split(";\n")):
                print(f"spark-sql> {statement.strip()};", flush=True)
                console.locals["statement"] = statement.strip()
                console.push("shown = spark.sql(statement)")
                console.push("shown.show(3, truncate=False) if shown.columns else None")
                console.push("del shown, statement")
        else:
            print(text, flush=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
