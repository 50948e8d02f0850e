// Marks the symbols that libuvmsim.so exports for the stand-ins and tests. All others are hidden.
#pragma once

#define UVMSIM_EXPORT __attribute__((visibility("default")))
