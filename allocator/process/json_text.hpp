// Writes JSON value by value, in the order of the calls. Builds no tree of nlohmann/json objects,
// because their destructors allocate and would end a process that runs out of memory. One thread at
// a time may use an object.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

namespace uvm {

// One JSON object. Each function may throw std::bad_alloc; then the text must be discarded.
class JsonText {
 public:
  JsonText() : text_("{") {}
  // Continues a JSON object: new members follow those in the string `object`.
  explicit JsonText(std::string object) : text_(std::move(object)) {
    text_.resize(text_.find_last_of('}'));
    has_members_ = text_.find('"') != std::string::npos;
  }

  // Adds a member to the current object. `value` is a number, a bool, a string or nullptr. Bytes
  // that are not UTF-8 become replacement characters.
  template <class Value>
  void add(std::string_view key, const Value& value) {
    begin_member(key);
    text_ += text_of(value);
  }
  template <class Value>
  void add_element(const Value& value) {
    begin_element();
    text_ += text_of(value);
  }

  // Adds an object as a member or as an element. The function `members` adds its members.
  template <class Members>
  void add_object(std::string_view key, const Members& members) {
    begin_member(key);
    nest('{', '}', members);
  }
  template <class Members>
  void add_object_element(const Members& members) {
    begin_element();
    nest('{', '}', members);
  }
  // Adds an array as a member. The function `elements` adds its elements.
  template <class Elements>
  void add_array(std::string_view key, const Elements& elements) {
    begin_member(key);
    nest('[', ']', elements);
  }

  [[nodiscard]] std::string finish() && { return std::move(text_) + '}'; }

 private:
  template <class Value>
  static std::string text_of(const Value& value) {
    return nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  void begin_element() {
    if (has_members_) text_ += ',';
    has_members_ = true;
    text_ += '\n';
    text_.append(depth_, ' ');
  }
  void begin_member(std::string_view key) {
    begin_element();
    text_ += text_of(key) + ": ";
  }
  template <class Content>
  void nest(char open, char close, const Content& content) {
    text_ += open;
    ++depth_;
    has_members_ = false;
    content();
    has_members_ = true;
    --depth_;
    text_ += close;
  }

  std::string text_;
  std::size_t depth_ = 1;
  bool has_members_ = false;
};

}  // namespace uvm
