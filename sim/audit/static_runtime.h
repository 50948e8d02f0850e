/* Gives programs that contain CUDA's static runtime (nvcc's default) the simulator's runtime
 * library.
 *
 * That runtime refuses every driver but NVIDIA's: it requests a private table of the driver, whose
 * function has to answer a question that only NVIDIA's driver can answer. The simulator does not
 * answer it. Instead the auditor replaces the runtime, as it replaces the shared one. If a file
 * contains CUDA's runtime, each public function of the runtime in it begins with a jump to the
 * function of the same name that a program with the shared runtime would call: that of a preloaded
 * library, else that of the simulator's libcudart.so.13. A symbol table names the functions. In a
 * stripped file the auditor finds those of known versions (runtime_layouts.h).
 *
 * A file with the runtime of CUDA 12 or older keeps it, because its functions differ from those of
 * libcudart.so.13. cuSPARSE keeps its runtime too, because it hides launches that fail.
 */
#ifndef UVMSIM_AUDIT_STATIC_RUNTIME_H
#define UVMSIM_AUDIT_STATIC_RUNTIME_H

#include <link.h>

/* Replaces the static runtime in a file that the linker has just mapped. Does nothing for other
 * files. `runtime` is the path of the simulator's libcudart.so.13, which stays valid; the auditor's
 * own dlopen finds no stand-in by its name. */
void uvmsim_replace_static_runtime(const struct link_map* file, const char* runtime);

/* Whether the auditor would replace the static runtime in this file. The command line calls it. */
__attribute__((visibility("default"))) int uvmsim_replaces_static_runtime(const char* path);

#endif
