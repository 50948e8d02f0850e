"""The benchmarks: `scripts/bench` builds and runs them, docs/benchmarks.md describes them."""
