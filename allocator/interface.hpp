// The allocator with the types that all of its functions take or return. A program that only
// allocates and frees needs caching_managed_allocator.hpp alone.
#pragma once

#include <uvmalloc/allocator/caching_managed_allocator.hpp>
#include <uvmalloc/allocator/counters/figure_store.hpp>
#include <uvmalloc/allocator/memory_observer.hpp>
#include <uvmalloc/allocator/policy/size_classes.hpp>
#include <uvmalloc/allocator/statistics.hpp>
#include <uvmalloc/allocator/statistics/segments.hpp>
#include <uvmalloc/hints/hint_counters.hpp>
#include <uvmalloc/hints/placement_planner.hpp>
#include <uvmalloc/storage/storage_records.hpp>
