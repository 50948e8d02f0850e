"""Measures groups of memory that sleep and wake (docs/groups.md), in virtual time."""
