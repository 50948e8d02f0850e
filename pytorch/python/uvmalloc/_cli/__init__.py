"""The command `uvmalloc`: its subcommands, the programs that it runs, and their reports.

main.py has the subcommands. Only main.py imports uvmalloc._trace, when a command needs a trace.
"""
