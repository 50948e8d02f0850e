#include "pytorch/plugin/python_frames.hpp"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "pytorch/interpose/python_symbol.hpp"

namespace uvm::torch_plugin {
namespace {

using Object = PythonObject;

struct Python {
  Object (*current_frame)() = nullptr;       // PyEval_GetFrame: borrowed reference
  Object (*caller)(Object frame) = nullptr;  // PyFrame_GetBack: new reference or null
  Object (*modules)() = nullptr;             // PyImport_GetModuleDict: borrowed
  Object (*item)(Object dictionary, const char* key) = nullptr;  // PyDict_GetItemString: borrowed
  Object (*attribute)(Object, const char*) = nullptr;
  void (*clear_error)() = nullptr;
  void (*release)(Object) = nullptr;
  void (*retain)(Object) = nullptr;
  int (*is_initialized)() = nullptr;           // Py_IsInitialized
  int (*is_finalizing)() = nullptr;            // Py_IsFinalizing (_Py_... before 3.13)
  int (*take_lock)() = nullptr;                // PyGILState_Ensure
  void (*release_lock)(int before) = nullptr;  // PyGILState_Release
  const char* (*text)(Object) = nullptr;       // PyUnicode_AsUTF8: the object owns the string
  long (*number)(Object) = nullptr;            // PyLong_AsLong
  Object (*thread_state)() = nullptr;  // PyGILState_GetThisThreadState; null: unknown thread
  Object (*call)(Object) = nullptr;    // PyObject_CallNoArgs: new reference or null
  Object (*values)(Object dictionary) = nullptr;             // PyDict_Values: new list or null
  long (*length)(Object sequence) = nullptr;                 // PySequence_Size
  Object (*element)(Object sequence, long index) = nullptr;  // PySequence_GetItem: new reference

  bool complete() const {
    return current_frame && caller && modules && item && attribute && clear_error && release &&
           retain;
  }
  bool can_look_at_threads() const {
    return can_take_lock() && thread_state && call && values && length && element &&
           thread_state() != nullptr;
  }
  bool can_take_lock() const {
    return complete() && is_initialized && is_finalizing && take_lock && release_lock && text &&
           number && is_initialized() != 0 && is_finalizing() == 0;
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
    bind_python(made.is_initialized, "Py_IsInitialized");
    bind_python(made.is_finalizing, "Py_IsFinalizing");
    if (made.is_finalizing == nullptr) bind_python(made.is_finalizing, "_Py_IsFinalizing");
    bind_python(made.take_lock, "PyGILState_Ensure");
    bind_python(made.release_lock, "PyGILState_Release");
    bind_python(made.text, "PyUnicode_AsUTF8");
    bind_python(made.number, "PyLong_AsLong");
    bind_python(made.thread_state, "PyGILState_GetThisThreadState");
    bind_python(made.call, "PyObject_CallNoArgs");
    bind_python(made.values, "PyDict_Values");
    bind_python(made.length, "PySequence_Size");
    bind_python(made.element, "PySequence_GetItem");
    return made;
  }();
  return bound;
}

// Returns a new reference, or null without a Python error if the object has no such attribute.
Object attribute_of(Object object, const char* name) {
  Object value = python().attribute(object, name);
  if (value == nullptr) python().clear_error();
  return value;
}

// Whether `globals` is the dictionary of one of the modules.
bool is_of(Object globals, std::span<const char* const> modules) {
  return std::any_of(modules.begin(), modules.end(), [&](const char* name) {
    Object module = python().item(python().modules(), name);
    Object own = module != nullptr ? attribute_of(module, "__dict__") : nullptr;
    python().release(own);  // the module still holds a reference
    return own != nullptr && own == globals;
  });
}

// Returns a new reference to the running frame, or null.
Object innermost_frame() {
  Object frame = python().current_frame();
  if (frame != nullptr) python().retain(frame);
  return frame;
}

// Returns a new reference to the calling frame, or null. Releases the reference to `frame`.
Object step_out(Object frame) {
  Object caller = python().caller(frame);
  python().release(frame);
  return caller;
}

class Locked {
 public:
  Locked() : before_(python().take_lock()) {}
  ~Locked() { python().release_lock(before_); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  int before_;
};

// Returns an attribute that is a string, or "" if the attribute is missing or not a string.
std::string text_of(Object object, const char* name) {
  Object value = attribute_of(object, name);
  if (value == nullptr) return "";
  const char* text = python().text(value);
  if (text == nullptr) python().clear_error();
  std::string copy = text != nullptr ? text : "";
  python().release(value);
  return copy;
}

long line_of(Object frame) {
  Object value = attribute_of(frame, "f_lineno");
  if (value == nullptr) return 0;
  const long line = python().number(value);
  if (line < 0) python().clear_error();
  python().release(value);
  return line;
}

bool is_outside(Object frame) {
  Object globals = attribute_of(frame, "f_globals");
  if (globals == nullptr) return true;
  Object name = python().item(globals, "__name__");
  const char* text = name != nullptr ? python().text(name) : nullptr;
  if (text == nullptr) python().clear_error();
  const std::string_view module = text != nullptr ? text : "";
  const std::string_view package = module.substr(0, module.find('.'));
  const bool outside = package != "torch" && package != "uvmalloc";
  python().release(globals);
  return outside;
}

std::string line_text(Object frame) {
  Object code = attribute_of(frame, "f_code");
  if (code == nullptr) return "";
  const std::string file = text_of(code, "co_filename");
  std::string function = text_of(code, "co_qualname");  // exists from Python 3.11 on
  if (function.empty()) function = text_of(code, "co_name");
  python().release(code);
  return file + ":" + std::to_string(line_of(frame)) + " " + function;
}

// Owns a reference. If `object` is null, clears Python's error.
class Held {
 public:
  explicit Held(Object object) : object_(object) {
    if (object == nullptr) python().clear_error();
  }
  ~Held() {
    if (object_ != nullptr) python().release(object_);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  Object get() const { return object_; }

 private:
  Object object_;
};

template <class Visit>
void each_element(Object sequence, Visit visit) {
  if (sequence == nullptr) return;
  const long length = python().length(sequence);
  if (length < 0) python().clear_error();
  for (long index = 0; index < length; ++index) {
    const Held element(python().element(sequence, index));
    if (element.get() != nullptr) visit(element.get());
  }
}

std::string lower_text(Object text) {
  const char* words = python().text(text);
  if (words == nullptr) {  // not a string
    python().clear_error();
    return "";
  }
  std::string lower = words;
  for (char& letter : lower) letter = static_cast<char>(std::tolower(letter));
  return lower;
}

// Whether this is accelerate's find_executable_batch_size, Lightning's tuner, or a copy of them.
bool is_search(Object code) {
  std::string function = text_of(code, "co_qualname");
  if (function.empty()) function = text_of(code, "co_name");
  for (const char* known : {"find_executable_batch_size", "scale_batch_size"}) {
    if (function.find(known) != std::string::npos) return true;
  }
  // Before Python 3.11, an inner function does not name its outer function: compare the file.
  return text_of(code, "co_filename").ends_with("accelerate/utils/memory.py");
}

// Whether the function's names or constants mention an out-of-memory error.
bool names_out_of_memory(Object code) {
  bool found = false;
  for (const char* list : {"co_names", "co_consts"}) {
    const Held all(python().attribute(code, list));
    each_element(all.get(), [&](Object element) {
      const std::string text = lower_text(element);
      for (const char* words : {"outofmemory", "out of memory", "out_of_memory"})
        found |= text.find(words) != std::string::npos;
    });
  }
  return found;
}

SearchSign sign_of(Object innermost) {
  SearchSign sign = SearchSign::kNone;
  Object frame = innermost;
  python().retain(frame);
  while (frame != nullptr && sign != SearchSign::kSearches) {
    const Held code(python().attribute(frame, "f_code"));
    if (code.get() != nullptr) {
      if (is_search(code.get())) {
        sign = SearchSign::kSearches;
      } else if (names_out_of_memory(code.get())) {
        sign = SearchSign::kCatchesErrors;
      }
    }
    frame = step_out(frame);
  }
  if (frame != nullptr) python().release(frame);
  return sign;
}

}  // namespace

std::string calling_line() {
  if (!python().can_take_lock()) return "";
  const Locked locked;
  Object frame = innermost_frame();
  while (frame != nullptr && !is_outside(frame)) frame = step_out(frame);
  if (frame == nullptr) return "";
  std::string line = line_text(frame);
  python().release(frame);
  return line;
}

SearchSign search_sign() {
  if (!python().can_look_at_threads()) return SearchSign::kNone;
  const Locked locked;
  Object sys = python().item(python().modules(), "sys");
  const Held ask(sys != nullptr ? python().attribute(sys, "_current_frames") : nullptr);
  const Held by_thread(ask.get() != nullptr ? python().call(ask.get()) : nullptr);
  const Held frames(by_thread.get() != nullptr ? python().values(by_thread.get()) : nullptr);
  SearchSign sign = SearchSign::kNone;
  each_element(frames.get(), [&](Object frame) { sign = std::max(sign, sign_of(frame)); });
  return sign;
}

bool called_from(std::span<const char* const> modules, std::span<const char* const> between) {
  if (!python().complete()) return false;
  Object frame = innermost_frame();
  bool found = false;
  bool passed_over = true;
  while (frame != nullptr && passed_over) {
    Object globals = attribute_of(frame, "f_globals");
    found = is_of(globals, modules);
    passed_over = !found && is_of(globals, between);
    python().release(globals);
    frame = step_out(frame);
  }
  python().release(frame);
  return found;
}

}  // namespace uvm::torch_plugin
