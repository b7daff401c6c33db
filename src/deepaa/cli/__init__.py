"""The command line: one file per command, shared options, and progress.

Here belongs what reads options and prints. What a command does stands in the other packages.
"""
