"""A rendered template is put on the host as copy puts a text: the controller renders and sends it as `copy`."""

from bringup.agent.modules import _files, copy

ARGUMENTS = dict(_files.ATTRIBUTES, **{
    "src": {"type": "path", "required": True},
    "dest": {"type": "path", "required": True},
    "backup": {"type": "bool", "default": False},
    "force": {"type": "bool", "default": True},
    "validate": {"type": "str"},
    "follow": {"type": "bool", "default": False},
    "newline_sequence": {"type": "raw", "default": "\n", "choices": ["\n", "\r", "\r\n", "\\n", "\\r", "\\r\\n"]},
    "output_encoding": {"type": "str", "default": "utf-8"},
    "block_start_string": {"type": "str"},
    "block_end_string": {"type": "str"},
    "variable_start_string": {"type": "str"},
    "variable_end_string": {"type": "str"},
    "comment_start_string": {"type": "str"},
    "comment_end_string": {"type": "str"},
    "trim_blocks": {"type": "bool"},
    "lstrip_blocks": {"type": "bool"},
})


def run(task):
    return copy.run(task)
