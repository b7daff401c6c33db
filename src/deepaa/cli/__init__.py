"""The command line: the commands, the options that they share, and what they print.

Here belongs what reads options and prints. What a command does stands in the other packages.
"""
