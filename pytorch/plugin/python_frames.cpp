#include <uvmalloc/pytorch/plugin/python_frames.hpp>

#include <algorithm>
#include <string>

#include <uvmalloc/pytorch/loader/python_symbol.hpp>

namespace uvm::torch_plugin {
namespace {

using Object = PythonObject;

struct Python {
  Object (*current_frame)() = nullptr;       // PyEval_GetFrame: borrowed
  Object (*code)(Object frame) = nullptr;    // PyFrame_GetCode: new reference
  Object (*caller)(Object frame) = nullptr;  // PyFrame_GetBack: new reference or null
  Object (*attribute)(Object, const char*) = nullptr;
  const char* (*utf8)(Object) = nullptr;
  void (*release)(Object) = nullptr;
  void (*retain)(Object) = nullptr;

  bool complete() const {
    return current_frame && code && caller && attribute && utf8 && release && retain;
  }
};

const Python& python() {
  static const Python bound = [] {
    Python made;
    bind_python(made.current_frame, "PyEval_GetFrame");
    bind_python(made.code, "PyFrame_GetCode");
    bind_python(made.caller, "PyFrame_GetBack");
    bind_python(made.attribute, "PyObject_GetAttrString");
    bind_python(made.utf8, "PyUnicode_AsUTF8");
    bind_python(made.release, "Py_DecRef");
    bind_python(made.retain, "Py_IncRef");
    return made;
  }();
  return bound;
}

// The file of a frame's code; empty where it has none.
std::string file_of(Object frame) {
  std::string file;
  Object code = python().code(frame);
  Object name = code != nullptr ? python().attribute(code, "co_filename") : nullptr;
  if (const char* text = name != nullptr ? python().utf8(name) : nullptr) file = text;
  python().release(name);
  python().release(code);
  return file;
}

}  // namespace

bool called_from(std::initializer_list<std::string_view> files) {
  if (!python().complete()) return false;
  Object frame = python().current_frame();
  if (frame == nullptr) return false;
  python().retain(frame);
  bool found = false;
  for (int depth = 0; depth < 3 && frame != nullptr && !found; ++depth) {
    const std::string file = file_of(frame);
    found = std::any_of(files.begin(), files.end(),
                        [&](std::string_view wanted) { return file.ends_with(wanted); });
    Object caller = python().caller(frame);
    python().release(frame);
    frame = caller;
  }
  if (frame != nullptr) python().release(frame);
  return found;
}

}  // namespace uvm::torch_plugin
