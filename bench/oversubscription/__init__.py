"""Recorded steps replayed with too little memory, under each policy and beside a bound."""
