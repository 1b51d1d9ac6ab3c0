// OutputBuffer: a growing buffer of bytes that are collected, written, and then cleared all at
// once.
//
// clear() keeps the memory, so that the next batch of the same size needs no allocation. The speed
// of memory limits how fast output passes through. A value type; one owner thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string_view>

namespace ddprun {

class OutputBuffer {
 public:
  std::string_view bytes() const { return {storage_.get(), size_}; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  void clear() { size_ = 0; }

  // Returns room for `count` bytes, which the caller fills. They count as part of the buffer at
  // once.
  char* extend(std::size_t count) {
    if (capacity_ - size_ < count) grow(count);
    char* const begin = storage_.get() + size_;
    size_ += count;
    return begin;
  }
  void append(std::string_view bytes) {
    if (!bytes.empty()) std::memcpy(extend(bytes.size()), bytes.data(), bytes.size());
  }

 private:
  void grow(std::size_t count) {
    const std::size_t capacity = std::max(2 * capacity_, size_ + count);
    auto storage = std::make_unique_for_overwrite<char[]>(capacity);
    if (size_ > 0) std::memcpy(storage.get(), storage_.get(), size_);
    storage_ = std::move(storage);
    capacity_ = capacity;
  }

  std::unique_ptr<char[]> storage_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace ddprun
