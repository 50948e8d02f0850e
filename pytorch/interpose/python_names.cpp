#include "pytorch/interpose/python_names.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <utility>

#include "pytorch/interpose/python_symbol.hpp"
#include "pytorch/interpose/torch_hooks.hpp"

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
  Object (*element)(Object tuple, std::ptrdiff_t) = nullptr;  // returns a borrowed reference
  void* (*to_pointer)(Object) = nullptr;
  void (*clear_error)() = nullptr;
  void (*retain)(Object) = nullptr;
  void (*release)(Object) = nullptr;

  bool complete() const {
    return compile && run_module && print_error && attribute && to_size && item && copy && remove &&
           build && concatenate && call && element && to_pointer && clear_error && retain &&
           release;
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
    bind_python(made.element, "PyTuple_GetItem");
    bind_python(made.to_pointer, "PyLong_AsVoidPtr");
    bind_python(made.clear_error, "PyErr_Clear");
    bind_python(made.retain, "Py_IncRef");
    bind_python(made.release, "Py_DecRef");
    return made;
  }();
  return bound;
}

// Copies of PyMethodDef, PyMethodDescrObject and PyCFunctionObject in Python's headers.
struct MethodTable {
  const char* name;
  void* method;  // `flags` tells its parameters
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
struct BuiltinFunction {
  std::ptrdiff_t references;
  Object type;
  MethodTable* table;
  Object self;
  Object module;
  Object weak_references;
  void* vector_call;
};
static_assert(sizeof(BuiltinFunction) == sizeof(MethodDescriptor));  // is_known() fits both

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

// Functions that return a tensor's address without taking its memory for writing. While one runs,
// the plugin knows the tensor, so that this tensor keeps the address.
//
// Python calls a function written in C with two to four arguments of one word, by the flags in its
// table. A function with four parameters can replace all of these: it passes on words that it was
// not given, and the callee does not read them.
using AnyMethod = Object (*)(Object self, void* second, void* third, void* fourth);
constexpr int kNoArguments = 0x4;        // METH_NOARGS: self
constexpr int kTupleAndKeywords = 0x3;   // METH_VARARGS | METH_KEYWORDS: self, tuple, keywords
constexpr int kArrayAndKeywords = 0x82;  // METH_FASTCALL | METH_KEYWORDS: self, array, size, ...
struct AddressFunction {
  std::atomic<AnyMethod> method = nullptr;
  std::atomic<int> flags = 0;
};
constexpr std::size_t kMostAddressFunctions = 4;
std::array<AddressFunction, kMostAddressFunctions> address_functions;

// Returns the tensor: the object of a method without arguments, else the first argument.
Object first_of(int flags, Object self, void* second, void* third) {
  if (flags == kNoArguments) return self;
  if (flags == kTupleAndKeywords) return python().element(second, 0);
  return third != nullptr ? *static_cast<Object*>(second) : nullptr;
}

// Returns the c10::TensorImpl of a tensor, or nullptr for another object.
const void* tensor_of(Object object) {
  Object number = object != nullptr ? python().attribute(object, "_cdata") : nullptr;
  const void* tensor = number != nullptr ? python().to_pointer(number) : nullptr;
  if (tensor == nullptr) python().clear_error();
  python().release(number);
  return tensor;
}

template <std::size_t kAt>
Object watching_address(Object self, void* second, void* third, void* fourth) {
  const AnyMethod method = address_functions[kAt].method.load(std::memory_order_relaxed);
  const int flags = address_functions[kAt].flags.load(std::memory_order_relaxed);
  const auto* hooks = interpose::torch_hooks.load(std::memory_order_acquire);
  if (hooks == nullptr) return method(self, second, third, fourth);
  const void* before = hooks->set_exporting(tensor_of(first_of(flags, self, second, third)));
  Object result = method(self, second, third, fourth);
  hooks->set_exporting(before);
  return result;
}

template <std::size_t... kAll>
constexpr std::array<AnyMethod, sizeof...(kAll)> watching_functions(std::index_sequence<kAll...>) {
  return {&watching_address<kAll>...};
}

bool has_attribute(Object object, const char* name) {
  Object found = python().attribute(object, name);
  if (found == nullptr) python().clear_error();
  python().release(found);
  return found != nullptr;
}

// Whether method objects have the layout above. Method objects of a free-threaded Python are
// larger.
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
  if (!uvm::watched.method.compare_exchange_strong(none,
                                                   reinterpret_cast<uvm::Method>(table->method))) {
    return false;
  }
  for (void* kept : {keyword, handler}) uvm::python().retain(kept);
  uvm::watched.keyword = keyword;
  uvm::watched.handler = handler;
  std::atomic_ref(table->method).store(reinterpret_cast<void*>(&uvm::watching_method));
  return true;
}

bool uvmalloc_watch_address(void* function) {
  if (!uvm::python().complete() || !uvm::is_known(function)) return false;
  const bool is_method = uvm::has_attribute(function, "__objclass__");
  uvm::MethodTable* table = is_method ? static_cast<uvm::MethodDescriptor*>(function)->table
                                      : static_cast<uvm::BuiltinFunction*>(function)->table;
  const bool is_callable =
      is_method ? table->flags == uvm::kNoArguments
                : table->flags == uvm::kTupleAndKeywords || table->flags == uvm::kArrayAndKeywords;
  if (!is_callable) return false;
  const auto current = reinterpret_cast<uvm::AnyMethod>(table->method);
  constexpr auto kWatching =
      uvm::watching_functions(std::make_index_sequence<uvm::kMostAddressFunctions>());
  for (std::size_t at = 0; at < uvm::kMostAddressFunctions; ++at) {
    if (current == kWatching[at]) return true;
    uvm::AnyMethod none = nullptr;
    if (!uvm::address_functions[at].method.compare_exchange_strong(none, current)) continue;
    uvm::address_functions[at].flags = table->flags;
    std::atomic_ref(table->method).store(reinterpret_cast<void*>(kWatching[at]));
    return true;
  }
  return false;
}
