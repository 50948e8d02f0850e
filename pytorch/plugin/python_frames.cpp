#include <uvmalloc/pytorch/plugin/python_frames.hpp>

#include <algorithm>

#include <uvmalloc/pytorch/interpose/python_symbol.hpp>

namespace uvm::torch_plugin {
namespace {

using Object = PythonObject;

struct Python {
  Object (*current_frame)() = nullptr;       // PyEval_GetFrame: borrowed
  Object (*caller)(Object frame) = nullptr;  // PyFrame_GetBack: new reference or null
  Object (*modules)() = nullptr;             // PyImport_GetModuleDict: borrowed
  Object (*item)(Object dictionary, const char* key) = nullptr;  // PyDict_GetItemString: borrowed
  Object (*attribute)(Object, const char*) = nullptr;
  void (*clear_error)() = nullptr;
  void (*release)(Object) = nullptr;
  void (*retain)(Object) = nullptr;

  bool complete() const {
    return current_frame && caller && modules && item && attribute && clear_error && release &&
           retain;
  }
};

const Python& python() {
  static const Python bound = [] {
    Python made;
    bind_python(made.current_frame, "PyEval_GetFrame");
    bind_python(made.caller, "PyFrame_GetBack");
    bind_python(made.modules, "PyImport_GetModuleDict");
    bind_python(made.item, "PyDict_GetItemString");
    bind_python(made.attribute, "PyObject_GetAttrString");
    bind_python(made.clear_error, "PyErr_Clear");
    bind_python(made.release, "Py_DecRef");
    bind_python(made.retain, "Py_IncRef");
    return made;
  }();
  return bound;
}

// A new reference; null, without an error, where the object has no such attribute.
Object attribute_of(Object object, const char* name) {
  Object value = python().attribute(object, name);
  if (value == nullptr) python().clear_error();
  return value;
}

// Whether `globals`, of a frame, are those of one of the modules.
bool is_of(Object globals, std::span<const char* const> modules) {
  return std::any_of(modules.begin(), modules.end(), [&](const char* name) {
    Object module = python().item(python().modules(), name);
    Object own = module != nullptr ? attribute_of(module, "__dict__") : nullptr;
    python().release(own);  // the module keeps it
    return own != nullptr && own == globals;
  });
}

}  // namespace

bool called_from(std::span<const char* const> modules, std::span<const char* const> between) {
  if (!python().complete()) return false;
  Object frame = python().current_frame();
  if (frame == nullptr) return false;
  python().retain(frame);
  bool found = false;
  bool passed_over = true;
  while (frame != nullptr && passed_over) {
    Object globals = attribute_of(frame, "f_globals");
    found = is_of(globals, modules);
    passed_over = !found && is_of(globals, between);
    python().release(globals);
    Object caller = python().caller(frame);
    python().release(frame);
    frame = caller;
  }
  python().release(frame);
  return found;
}

}  // namespace uvm::torch_plugin
