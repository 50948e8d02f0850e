"""Replays recorded steps with too little memory, under each policy, and compares with a bound."""
