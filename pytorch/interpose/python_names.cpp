#include "pytorch/interpose/python_names.hpp"

#include <atomic>
#include <cstddef>

#include "pytorch/interpose/python_symbol.hpp"

#include "torch_names.inc"

namespace uvm {
namespace {

using Object = PythonObject;
using Method = Object (*)(Object self, Object arguments, Object keywords);

// All these functions are part of Python's stable interface.
struct Python {
  Object (*compile)(const char* source, const char* file, int start) = nullptr;
  Object (*run_module)(const char* name, Object code) = nullptr;
  void (*print_error)() = nullptr;
  Object (*attribute)(Object, const char*) = nullptr;
  std::ptrdiff_t (*to_size)(Object) = nullptr;
  Object (*item)(Object dictionary, Object key) = nullptr;  // returns a borrowed reference
  Object (*copy)(Object dictionary) = nullptr;
  int (*remove)(Object dictionary, Object key) = nullptr;
  Object (*build)(const char* format, ...) = nullptr;
  Object (*concatenate)(Object, Object) = nullptr;
  Object (*call)(Object, Object arguments, Object keywords) = nullptr;
  void (*retain)(Object) = nullptr;
  void (*release)(Object) = nullptr;

  bool complete() const {
    return compile && run_module && print_error && attribute && to_size && item && copy && remove &&
           build && concatenate && call && retain && release;
  }
};

const Python& python() {
  static const Python bound = [] {
    Python made;
    bind_python(made.compile, "Py_CompileString");
    bind_python(made.run_module, "PyImport_ExecCodeModule");
    bind_python(made.print_error, "PyErr_Print");
    bind_python(made.attribute, "PyObject_GetAttrString");
    bind_python(made.to_size, "PyLong_AsSsize_t");
    bind_python(made.item, "PyDict_GetItemWithError");
    bind_python(made.copy, "PyDict_Copy");
    bind_python(made.remove, "PyDict_DelItem");
    bind_python(made.build, "Py_BuildValue");
    bind_python(made.concatenate, "PySequence_Concat");
    bind_python(made.call, "PyObject_Call");
    bind_python(made.retain, "Py_IncRef");
    bind_python(made.release, "Py_DecRef");
    return made;
  }();
  return bound;
}

// Copies of PyMethodDef and PyMethodDescrObject in Python's headers.
struct MethodTable {
  const char* name;
  Method method;
  int flags;
  const char* text;
};
struct MethodDescriptor {
  std::ptrdiff_t references;
  Object type;
  Object owner;
  Object name;
  Object qualified_name;
  MethodTable* table;
  void* vector_call;
};

// The one method that watching_method() intercepts.
struct Watched {
  std::atomic<Method> method = nullptr;
  Object keyword = nullptr;
  Object handler = nullptr;
};
Watched watched;

Object call_handler(Object self, Object value, Object arguments, Object keywords) {
  Object others = python().copy(keywords);
  Object first = others != nullptr ? python().build("(OO)", self, value) : nullptr;
  Object all = first != nullptr ? python().concatenate(first, arguments) : nullptr;
  Object result = nullptr;
  if (all != nullptr && python().remove(others, watched.keyword) == 0) {
    result = python().call(watched.handler, all, others);
  }
  for (Object made : {others, first, all}) python().release(made);
  return result;
}

// If the keyword is absent, item() returns nullptr and sets no Python error.
Object watching_method(Object self, Object arguments, Object keywords) {
  if (keywords != nullptr) {
    if (Object value = python().item(keywords, watched.keyword)) {
      return call_handler(self, value, arguments, keywords);
    }
  }
  return watched.method.load(std::memory_order_relaxed)(self, arguments, keywords);
}

// Whether method objects have the layout above. Those of a free-threaded Python are larger.
bool is_known(Object descriptor) {
  Object type = python().attribute(descriptor, "__class__");
  Object size = type != nullptr ? python().attribute(type, "__basicsize__") : nullptr;
  const bool known = size != nullptr && python().to_size(size) == sizeof(MethodDescriptor);
  python().release(size);
  python().release(type);
  return known;
}

}  // namespace

void add_python_names() {
  if (!python().complete()) return;
  constexpr int kFileInput = 257;  // Py_file_input
  Object code = python().compile(kTorchNames, "uvmalloc/torch_names.py", kFileInput);
  Object module = code != nullptr ? python().run_module("_uvmalloc_torch_names", code) : nullptr;
  if (module == nullptr) python().print_error();
  python().release(module);
  python().release(code);
}

}  // namespace uvm

bool uvmalloc_take_keyword(void* descriptor, void* keyword, void* handler) {
  constexpr int kArgumentsAndKeywords = 0x3;  // METH_VARARGS | METH_KEYWORDS
  if (!uvm::python().complete() || !uvm::is_known(descriptor)) return false;
  uvm::MethodTable* table = static_cast<uvm::MethodDescriptor*>(descriptor)->table;
  if (table->flags != kArgumentsAndKeywords) return false;
  uvm::Method none = nullptr;
  if (!uvm::watched.method.compare_exchange_strong(none, table->method)) return false;
  for (void* kept : {keyword, handler}) uvm::python().retain(kept);
  uvm::watched.keyword = keyword;
  uvm::watched.handler = handler;
  std::atomic_ref(table->method).store(&uvm::watching_method);
  return true;
}
