"""The benchmarks: `scripts/bench` runs them, docs/internals/benchmarks.md describes them."""
