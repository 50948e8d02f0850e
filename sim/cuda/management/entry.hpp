// Declares entry points of the stand-in for NVML, and the types of their arguments. NVML's header
// is not installed; types and numbers come from its documentation.
#pragma once

#include "sim/engine/export.hpp"

#define NVML_API extern "C" UVMSIM_EXPORT NvmlReturn
#define NVML_API_AS(type) extern "C" UVMSIM_EXPORT type

extern "C" {

enum NvmlReturn {
  NVML_SUCCESS = 0,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_NOT_FOUND = 6,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
};

using NvmlDevice = const char*;

struct NvmlMemory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct NvmlMemoryV2 {
  unsigned version;
  unsigned long long total;
  unsigned long long reserved;
  unsigned long long free;
  unsigned long long used;
};

struct NvmlPciInfo {
  char legacy_bus_id[16];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned device_id;
  unsigned subsystem_id;
  char bus_id[32];
};

struct NvmlUtilization {
  unsigned gpu;
  unsigned memory;
};

struct NvmlProcess {
  unsigned pid;
  unsigned long long used_bytes;
};

struct NvmlProcessV2 {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance;
  unsigned compute_instance;
};

struct NvmlTemperature {
  unsigned version;
  int sensor;
  int celsius;
};

}  // extern "C"
