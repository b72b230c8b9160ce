"""Content of files that users send and of answers, of files that tools change, and long tool outputs.

In: the bytes of a received file with its announced name and type, an answer, or the output of a tool. Out: a
part of a message, the Markdown and files of the answer, or a shorter output. The core imports it, and
channels do through ``gateway.channel``; it imports the contract. Parsers of documents run in
their own process (``worker.py``) and are never imported here.
"""

from gateway.files.answers import AnswerFile, answer_files, answer_markdown, diff_file, diff_of, one_line
from gateway.files.formats import picture_type
from gateway.files.outputs import OutputReader, ToolOutputs
from gateway.files.reader import FileReader
from gateway.files.recording import Recording, recording_of
from gateway.files.snapshots import SnapshotError, Snapshots, State, Watch, put_state, read_state

__all__ = [
    "AnswerFile",
    "FileReader",
    "OutputReader",
    "Recording",
    "SnapshotError",
    "Snapshots",
    "State",
    "ToolOutputs",
    "Watch",
    "answer_files",
    "answer_markdown",
    "diff_file",
    "diff_of",
    "one_line",
    "picture_type",
    "put_state",
    "read_state",
    "recording_of",
]
