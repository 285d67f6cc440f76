"""A file system without files, for datasets whose files nobody opens."""

from typing import Any, NoReturn

import pyarrow as pa
from pyarrow import fs


class _NoFiles(fs.FileSystemHandler):  # type: ignore[misc]
    """Refuses whatever Arrow's own scan asks for."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _NoFiles)

    __hash__ = fs.FileSystemHandler.__hash__

    def get_type_name(self) -> str:
        return "segmentlog"

    def normalize_path(self, path: str) -> str:
        return path

    def _refuse(self, *_: Any) -> NoReturn:  # noqa: ANN401
        reason = (
            "Arrow's C++ cannot read a log dataset; pass it dataset.scanner(…).to_reader(), or "
            "dataset.to_table(…)"
        )
        raise pa.ArrowNotImplementedError(reason)

    copy_file = create_dir = delete_dir = delete_dir_contents = delete_file = _refuse
    delete_root_dir_contents = get_file_info = get_file_info_selector = move = _refuse
    open_append_stream = open_input_file = open_input_stream = open_output_stream = _refuse


#: The file system.
NO_FILES = fs.PyFileSystem(_NoFiles())
