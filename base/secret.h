// Secret: bytes that are kept out of core dumps, such as a key.
//
// The bytes have pages of their own (MADV_DONTDUMP). Copies share these pages. The last copy
// overwrites them when it is destroyed. Values computed from the bytes, also by OpenSSL, are not
// protected. A value type; any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace ddprun {

class Secret {
 public:
  Secret() = default;  // empty
  // Copies these bytes. Throws std::bad_alloc, also in the functions below, if there is no
  // memory.
  Secret(std::string_view bytes);
  Secret(const char* text) : Secret(std::string_view(text)) {}
  Secret(const std::string& text) : Secret(std::string_view(text)) {}
  // Makes a Secret of what `fill` writes to a place of `room` bytes. `fill` returns how many of
  // them count, at most `room`.
  static Secret filled(std::size_t room, const std::function<std::size_t(char*)>& fill);

  // Returns the bytes. Valid as long as a copy of this Secret lives.
  std::string_view view() const { return bytes_ ? std::string_view(bytes_.get(), size_) : ""; }
  bool empty() const { return view().empty(); }
  // Returns a Secret that shares the pages. REQUIRES: `part` lies within view().
  Secret part(std::string_view part) const;

  friend bool operator==(const Secret& left, const Secret& right) {
    return left.view() == right.view();
  }

 private:
  std::shared_ptr<const char> bytes_;  // owns the pages; null: empty
  std::size_t size_ = 0;               // counts only together with bytes_, which a move resets
};

}  // namespace ddprun
