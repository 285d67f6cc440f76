"""The paths of files, with the beginnings that a user has given to a command."""

import os
from collections.abc import Sequence

from segmentlog.disk.paths import readable_path
from segmentlog.disk.readable import is_file
from segmentlog.disk.remote.location import is_url, without_options

__all__ = ["as_given"]


def as_given(file: str, paths: Sequence[str]) -> str:
    """Path of `file`, below or beside one of `paths`, with the beginning that the user wrote.

    At a URL, it is the path without options.
    """
    if is_url(file):
        return without_options(file)
    for given in paths:
        begin, root = given, readable_path(given)
        if is_file(root):
            begin, root = os.path.dirname(begin), os.path.dirname(root)
        below = os.path.relpath(file, root)
        if below == os.curdir:
            return begin
        if below.partition(os.sep)[0] != os.pardir:
            return os.path.join(begin, below)
    return file
