// ByteBuffer: bytes are appended at the end and consumed at the front.
//
// For the receiving and the sending side of a connection. On average, every byte is copied a
// bounded number of times, no matter how the bytes are split. An emptied buffer releases large
// memory. Large memory grows by realloc(), which moves its pages instead of copying them, so
// that no single byte costs milliseconds. A value type; one owner thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string_view>

#include "base/assert.h"

namespace ddprun {

class ByteBuffer {
 public:
  // Returns the bytes in the buffer; valid until the next call of another function.
  std::string_view bytes() const { return {storage_.get() + begin_, end_ - begin_}; }
  std::size_t size() const { return end_ - begin_; }
  bool empty() const { return begin_ == end_; }
  // Returns the size of the memory, used or not.
  std::size_t capacity() const { return capacity_; }

  // Returns room for at least `wanted` more bytes. Bytes that are written there count after
  // commit().
  std::span<char> space(std::size_t wanted) {
    if (capacity_ - end_ < wanted) make_room(wanted);
    return {storage_.get() + end_, capacity_ - end_};
  }
  void commit(std::size_t count) {
    DDPRUN_ASSERT(count <= capacity_ - end_, "no more is committed than there was room for");
    end_ += count;
  }

  void append(std::string_view bytes) {
    if (bytes.empty()) return;
    std::memcpy(space(bytes.size()).data(), bytes.data(), bytes.size());
    commit(bytes.size());
  }

  void consume(std::size_t count) {
    DDPRUN_ASSERT(count <= size(), "no more is consumed than there is");
    begin_ += count;
    if (begin_ != end_) return;
    begin_ = end_ = 0;
    if (capacity_ > kKeepBytes) {
      storage_.reset();
      capacity_ = 0;
    }
  }

 private:
  static constexpr std::size_t kFirstBytes = 4096;
  static constexpr std::size_t kKeepBytes = 64 * 1024;

  void make_room(std::size_t wanted) {
    // Moves the bytes if that costs at most as much as was consumed since the last move;
    // otherwise growing is cheaper.
    if (begin_ >= size() && capacity_ - size() >= wanted) {
      std::memmove(storage_.get(), storage_.get() + begin_, size());
      end_ = size();
      begin_ = 0;
      return;
    }
    const std::size_t capacity = std::max({kFirstBytes, 2 * size(), size() + wanted});
    if (begin_ > 0) {
      std::memmove(storage_.get(), storage_.get() + begin_, size());
      end_ = size();
      begin_ = 0;
    }
    auto* grown = static_cast<char*>(std::realloc(storage_.get(), capacity));
    if (!grown) throw std::bad_alloc();
    (void)storage_.release();
    storage_.reset(grown);
    capacity_ = capacity;
  }

  struct Free {
    void operator()(char* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<char[], Free> storage_;
  std::size_t capacity_ = 0;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace ddprun
