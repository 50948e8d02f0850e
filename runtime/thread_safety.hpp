// Annotations for clang's -Wthread-safety, which finds accesses without the lock (scripts/tidy).
// They expand to nothing for other compilers. https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
#pragma once

#if defined(__clang__)
#define UVM_THREAD_SAFETY(...) __attribute__((__VA_ARGS__))
#else
#define UVM_THREAD_SAFETY(...)
#endif

#define UVM_CAPABILITY(name) UVM_THREAD_SAFETY(capability(name))
#define UVM_SCOPED_CAPABILITY UVM_THREAD_SAFETY(scoped_lockable)
#define UVM_GUARDED_BY(lock) UVM_THREAD_SAFETY(guarded_by(lock))
#define UVM_REQUIRES(...) UVM_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define UVM_EXCLUDES(...) UVM_THREAD_SAFETY(locks_excluded(__VA_ARGS__))
#define UVM_ACQUIRE(...) UVM_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define UVM_TRY_ACQUIRE(...) UVM_THREAD_SAFETY(try_acquire_capability(__VA_ARGS__))
#define UVM_RELEASE(...) UVM_THREAD_SAFETY(release_capability(__VA_ARGS__))
// For a caller that holds the lock although the analysis cannot see it.
#define UVM_ASSERT_HELD(...) UVM_THREAD_SAFETY(assert_capability(__VA_ARGS__))
// Leaves a function out of the analysis. State the reason next to each use.
#define UVM_NOT_ANALYSED UVM_THREAD_SAFETY(no_thread_safety_analysis)
