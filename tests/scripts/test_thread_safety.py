"""clang-tidy finds accesses to data without the lock that guards them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Each line with a finding ends with the finding, as a comment.
PLANTED = """
#include "allocator/cache/thread_caches.hpp"
#include "allocator/state/heap_state.hpp"

namespace uvm {
class Planted {
 public:
  Planted(HeapState& state, ThreadCaches& caches) : state_(state), caches_(caches) {}

  std::size_t with_the_locks(BlockChain* out) {
    const ThreadCaches::StopTheWorld stopped(caches_);
    caches_.flush_all(out);
    const HeapGuard heap(state_);
    return counted_ + with_the_witness(heap);
  }
  std::size_t with_the_witness(const LockedHeap& heap) {
    heap.proves(state_);
    return ++counted_;
  }

  std::size_t without_the_lock() {
    return counted_;  // reading variable 'counted_' requires holding state lock 'state_'
  }
  void after_the_lock() {
    { const HeapGuard heap(state_); }
    ++counted_;  // writing variable 'counted_' requires holding state lock 'state_'
  }
  void twice() {
    const HeapGuard heap(state_);
    const HeapGuard again(state_);  // acquiring state lock 'state_' that is already held
  }
  void while_threads_run(BlockChain* out) {
    caches_.flush_all(out);  // calling function 'flush_all' requires holding mutex 'caches_'
  }

 private:
  HeapState& state_;
  ThreadCaches& caches_;
  std::size_t counted_ UVM_GUARDED_BY(state_) = 0;
};
}  // namespace uvm
"""


def expected(text: str) -> list[tuple[int, str]]:
    lines = enumerate(text.splitlines(), start=1)
    return [(number, line.split(";  // ")[1]) for number, line in lines if ";  // " in line]


def test_an_access_without_its_lock_is_a_finding(tmp_path: Path) -> None:
    source = tmp_path / "planted.cpp"
    source.write_text(PLANTED)
    # Adds a check, because clang-tidy does not run if only compiler warnings are enabled.
    command = ["clang-tidy", "--quiet", f"--config-file={ROOT / '.clang-tidy'}"]
    command += ["--checks=-*,clang-diagnostic-thread-safety*,modernize-redundant-void-arg"]
    command += [str(source), "--", "-std=c++20", f"-I{ROOT}", f"-I{ROOT}/include"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert finished.returncode == 1, finished.stdout + finished.stderr
    found = re.findall(r"planted\.cpp:(\d+):\d+: error: (.*?)(?: exclusively)? \[", finished.stdout)
    assert [(int(line), text) for line, text in found] == expected(PLANTED)
