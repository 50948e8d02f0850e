"""Measures groups of memory that sleep and wake (docs/reference/groups.md), in virtual time."""
