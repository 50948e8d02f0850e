// The allocator, with all types that its functions take or return. A program that only allocates
// and frees memory needs only <uvmalloc/allocator.hpp>.
#pragma once

#include <uvmalloc/allocator.hpp>
#include <uvmalloc/configuration.hpp>
#include <uvmalloc/device_runtime.hpp>
#include <uvmalloc/inspection.hpp>
#include <uvmalloc/kernel_uses.hpp>
#include <uvmalloc/limits.hpp>
#include <uvmalloc/private_pools.hpp>
#include <uvmalloc/statistics.hpp>
#include <uvmalloc/streams.hpp>
#include <uvmalloc/tracing.hpp>
#include "allocator/counters/figure_store.hpp"
#include "allocator/memory_observer.hpp"
#include "allocator/policy/size_classes.hpp"
#include "allocator/statistics/segments.hpp"
#include "hints/hint_counters.hpp"
#include "hints/placement_planner.hpp"
#include "storage/storage_records.hpp"
