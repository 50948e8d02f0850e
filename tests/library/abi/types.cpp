// The public headers in a library, for its debug information: the layouts of all their types. The
// compiler is told to keep those that no function uses.
#include <uvmalloc/uvmalloc.h>
#include <uvmalloc/uvmalloc_groups.h>
#include <uvmalloc/uvmalloc_runtime.h>
#include <uvmalloc/allocator.hpp>
#include <uvmalloc/groups.hpp>
#include <uvmalloc/memory_resource.hpp>
#include <uvmalloc/registry.hpp>

#define KEEP(type) \
  void keep(type*) {}
KEEP(uvm::CachingManagedAllocator)
KEEP(uvm::DeviceRuntime)
KEEP(uvm::Groups)
KEEP(uvm::Inspection)
KEEP(uvm::KernelUses)
KEEP(uvm::Limits)
KEEP(uvm::ManagedMemoryResource)
KEEP(uvm::PrivatePools)
KEEP(uvm::RuntimeChoice)
KEEP(uvm::RuntimeQuestions)
KEEP(uvm::Statistics)
KEEP(uvm::Streams)
KEEP(uvm::Tracing)
KEEP(uvmalloc_group_info)
KEEP(uvmalloc_group_options)
KEEP(uvmalloc_launch)
KEEP(uvmalloc_options)
KEEP(uvmalloc_runtime_operations)
KEEP(uvmalloc_statistics)
KEEP(uvmalloc_trace_range)
