/* A stand-in for libcupti.so.13, with which PyTorch's profiler records device activity. Its
 * functions return "not initialized", so the profiler records only the host. NVIDIA's own library
 * may crash here, because it needs undocumented parts of the driver, which the stand-in lacks.
 *
 * It has only the functions that PyTorch calls. They keep no state, so any thread may call them.
 */
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum { kSuccess = 0, kInvalidParameter = 1, kNotInitialized = 15 };

#define NOT_INITIALIZED(name) \
  EXPORT int name(void);      \
  EXPORT int name(void) {     \
    return kNotInitialized;   \
  }

NOT_INITIALIZED(cuptiActivityDisable)
NOT_INITIALIZED(cuptiActivityEnable)
NOT_INITIALIZED(cuptiActivityEnableCudaEventDeviceTimestamps)
NOT_INITIALIZED(cuptiActivityEnableDriverApi)
NOT_INITIALIZED(cuptiActivityEnableRuntimeApi)
NOT_INITIALIZED(cuptiActivityFlushAll)
NOT_INITIALIZED(cuptiActivityGetNextRecord)
NOT_INITIALIZED(cuptiActivityGetNumDroppedRecords)
NOT_INITIALIZED(cuptiActivityPopExternalCorrelationId)
NOT_INITIALIZED(cuptiActivityPushExternalCorrelationId)
NOT_INITIALIZED(cuptiActivityRegisterCallbacks)
NOT_INITIALIZED(cuptiActivityRegisterTimestampCallback)
NOT_INITIALIZED(cuptiActivitySetAttribute)
NOT_INITIALIZED(cuptiEnableCallback)
NOT_INITIALIZED(cuptiEnableDomain)
NOT_INITIALIZED(cuptiFinalize)
NOT_INITIALIZED(cuptiGetCallbackName)
NOT_INITIALIZED(cuptiSubscribe)
NOT_INITIALIZED(cuptiUnsubscribe)

EXPORT int cuptiGetVersion(uint32_t* version);
EXPORT int cuptiGetVersion(uint32_t* version) {
  if (version == NULL) return kInvalidParameter;
  *version = 130000;
  return kSuccess;
}

EXPORT int cuptiGetResultString(int result, const char** text);
EXPORT int cuptiGetResultString(int result, const char** text) {
  if (text == NULL) return kInvalidParameter;
  *text = result == kNotInitialized ? "CUPTI_ERROR_NOT_INITIALIZED (simulated device)" : "CUPTI";
  return kSuccess;
}
