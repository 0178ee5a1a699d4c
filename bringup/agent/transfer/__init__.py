"""Trees of files from host to host, from a hub or from a folder: a program that runs on a host as a job. Python 3.6.

The controller packs this folder as a zip (`bringup.run.transfer_program`), the module `tree_transfer` starts it. Each
process takes what its host lacks and gives what it has whole at the same time, file by file, so that a tree of hosts
works as a pipeline. It imports nothing of the agent but this folder.
"""
