/* Finds the functions of CUDA's static runtime in a file without their names.
 *
 * A stripped file still lists where its functions begin, for exceptions. The static runtime is one
 * object file whose functions are in one section, so a linker keeps their distances. The distances
 * between more than a thousand beginnings tell which version the file contains, and with it where
 * each function is.
 */
#ifndef UVMSIM_AUDIT_RUNTIME_LAYOUTS_H
#define UVMSIM_AUDIT_RUNTIME_LAYOUTS_H

#include <stddef.h>
#include <stdint.h>

/* `address` is that of the file, without the base at which the linker maps it. */
typedef void UvmsimFoundFunction(const char* name, uintptr_t address, const void* context);

/* Calls `found` for each public function of the static runtime in an ELF file of 64 bits. Returns
 * their number: 0 if the file contains no version of runtime_layouts.inc, or is no such file. */
size_t uvmsim_find_functions_by_layout(const char* file, size_t file_bytes,
                                       UvmsimFoundFunction* found, const void* context);

#endif
