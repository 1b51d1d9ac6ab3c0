// Secret: bytes that are kept out of core dumps, such as a key.
//
// They live in pages of their own (madvise MADV_DONTDUMP), which copies share and nothing changes. The
// last copy to go overwrites them. What is computed from them, and what OpenSSL makes of them, has no
// such place. A value type; any thread.
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
  // A copy of these bytes. std::bad_alloc, here and below: there is no memory.
  Secret(std::string_view bytes);
  Secret(const char* text) : Secret(std::string_view(text)) {}
  Secret(const std::string& text) : Secret(std::string_view(text)) {}
  // What `fill` writes to a place of `room` bytes. It returns how many of them count, at most `room`.
  static Secret filled(std::size_t room, const std::function<std::size_t(char*)>& fill);

  // Valid as long as a copy of this Secret lives.
  std::string_view view() const { return view_; }
  bool empty() const { return view_.empty(); }
  // Shares the pages. REQUIRES: `part` lies within view().
  Secret part(std::string_view part) const;

  friend bool operator==(const Secret& left, const Secret& right) {
    return left.view_ == right.view_;
  }

 private:
  std::shared_ptr<const char> pages_;
  std::string_view view_;
};

}  // namespace ddprun
