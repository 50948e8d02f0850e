// Defines UVMALLOC_ADDRESS_SANITIZER and UVMALLOC_THREAD_SANITIZER as 1 if this build has the
// sanitizer, else as 0. GCC has a macro for each sanitizer; clang has __has_feature().
#pragma once

#if defined(__has_feature)
#define UVMALLOC_HAS_FEATURE(name) __has_feature(name)
#else
#define UVMALLOC_HAS_FEATURE(name) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || UVMALLOC_HAS_FEATURE(address_sanitizer)
#define UVMALLOC_ADDRESS_SANITIZER 1
#else
#define UVMALLOC_ADDRESS_SANITIZER 0
#endif

#if defined(__SANITIZE_THREAD__) || UVMALLOC_HAS_FEATURE(thread_sanitizer)
#define UVMALLOC_THREAD_SANITIZER 1
#else
#define UVMALLOC_THREAD_SANITIZER 0
#endif
